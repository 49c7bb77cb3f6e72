"""Both simulated accounts have AWS's instance types, prices, images and subnets.

No test changes the account, so all share one.
"""

import json
from datetime import datetime, timezone

import pytest
from botocore.exceptions import ClientError

from journeyman.cloud.aws.instance_type_info import parse
from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.in_process_account.account import InProcessAccount
from journeyman_simulator.in_process_account.ec2_catalogue import KNOWN_TYPES
from tests.contract.conftest import PRICES, ZONES, on_both_accounts, opened, seeded

pytestmark = pytest.mark.xdist_group("aws-catalogue")  # one worker, so that the account is created once

on_moto = pytest.mark.parametrize("aws", ["moto"], indirect=True)


@pytest.fixture(scope="module")
def aws(request):
    """Return one account of either kind."""
    with opened(request.param, VirtualClock(datetime(2026, 11, 2, 8, 0, tzinfo=timezone.utc))) as account:
        yield account


@pytest.fixture(scope="module")
def account(aws):
    """Create a cluster's resources in the account."""
    return seeded(aws)


@pytest.fixture(scope="module")
def ec2(aws):
    return aws.client("ec2")


@on_moto
def test_instance_types_come_in_pages_and_only_those_of_the_region(ec2):
    """The first page has one hundred types."""
    first = ec2.describe_instance_types()
    pages = list(ec2.get_paginator("describe_instance_types").paginate())
    offered = ec2.get_paginator("describe_instance_type_offerings").paginate(LocationType="region")

    names = [item["InstanceType"] for page in pages for item in page["InstanceTypes"]]
    assert len(first["InstanceTypes"]) == 100
    assert len(names) == len(set(names))
    assert set(names) == {offer["InstanceType"] for page in offered for offer in page["InstanceTypeOfferings"]}


@on_both_accounts
def test_filters_and_names_still_select_instance_types(ec2):
    """The simulator caches responses by request."""
    named = ec2.describe_instance_types(InstanceTypes=["m5.large"])["InstanceTypes"]
    arm = ec2.describe_instance_types(
        Filters=[{"Name": "processor-info.supported-architecture", "Values": ["arm64"]}], MaxResults=5
    )

    assert [item["InstanceType"] for item in named] == ["m5.large"]
    assert len(arm["InstanceTypes"]) == 5
    assert all(item["ProcessorInfo"]["SupportedArchitectures"] == ["arm64"] for item in arm["InstanceTypes"])
    with pytest.raises(ClientError, match="InvalidInstanceType"):
        ec2.describe_instance_types(InstanceTypes=["zz.large"])


@on_moto
def test_describe_instance_types_returns_all_details(ec2):
    """Numbers, flags and nested lists are those of moto's record of EC2."""
    from moto.ec2.models.instance_types import INSTANCE_TYPES

    for name in ("m5.large", "p5.48xlarge", "i4i.large"):
        (described,) = ec2.describe_instance_types(InstanceTypes=[name])["InstanceTypes"]
        assert described == INSTANCE_TYPES[name]


def test_in_process_instance_types_equal_ec2s():
    """The adapter reads the same fields from them as from moto's record of EC2."""
    from moto.ec2.models.instance_types import INSTANCE_TYPES

    ec2 = InProcessAccount(VirtualClock(datetime(2026, 11, 2, tzinfo=timezone.utc)), types=KNOWN_TYPES).client("ec2")
    pages = ec2.get_paginator("describe_instance_types").paginate()
    described = {entry["InstanceType"]: parse(entry) for page in pages for entry in page["InstanceTypes"]}
    assert set(described) == set(KNOWN_TYPES)
    assert described == {name: parse(INSTANCE_TYPES[name]) for name in KNOWN_TYPES}


@on_both_accounts
def test_account_has_no_capacity_reservations_or_placement_groups(ec2):
    """The provider requests both even if a test does not use them."""
    assert ec2.describe_capacity_reservations()["CapacityReservations"] == []
    assert ec2.describe_placement_groups()["PlacementGroups"] == []


@on_both_accounts
def test_price_list_has_on_demand_prices_in_aws_shape(aws):
    """Karpenter's filters find them: Linux, no software, used capacity, shared tenancy."""
    wanted = {"regionCode": "us-east-1", "operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA"}
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
    pages = aws.client("pricing").get_paginator("get_products").paginate(ServiceCode="AmazonEC2", Filters=filters)

    prices = {}
    for text in (text for page in pages for text in page["PriceList"]):
        offer = json.loads(text)
        (term,) = offer["terms"]["OnDemand"].values()
        (dimension,) = term["priceDimensions"].values()
        prices[offer["product"]["attributes"]["instanceType"]] = float(dimension["pricePerUnit"]["USD"])

    assert prices == PRICES


@on_both_accounts
@pytest.mark.parametrize(
    ("parameter", "architecture"),
    [
        ("/aws/service/eks/optimized-ami/1.33/amazon-linux-2023/arm64/standard/recommended/image_id", "arm64"),
        ("/aws/service/eks/optimized-ami/1.33/amazon-linux-2023/x86_64/nvidia/recommended/image_id", "x86_64"),
        ("/aws/service/bottlerocket/aws-k8s-1.33/x86_64/latest/image_id", "x86_64"),
    ],
)
def test_image_aliases_resolve_through_ssm_to_amazons_images(aws, account, ec2, parameter, architecture):
    """The alias of an EC2NodeClass needs this."""
    image_id = aws.client("ssm").get_parameter(Name=parameter)["Parameter"]["Value"]
    (image,) = ec2.describe_images(ImageIds=[image_id], Owners=["amazon"])["Images"]
    assert (image["Architecture"], image["State"], image["RootDeviceName"]) == (architecture, "available", "/dev/xvda")


@on_both_accounts
def test_subnets_and_security_group_are_found_by_the_discovery_tag(account, ec2):
    """Karpenter's getting-started manifests select by this tag."""
    tagged = [{"Name": "tag:karpenter.sh/discovery", "Values": ["demo"]}]
    subnets = ec2.describe_subnets(Filters=tagged)["Subnets"]
    groups = ec2.describe_security_groups(Filters=tagged)["SecurityGroups"]
    assert sorted(subnet["AvailabilityZone"] for subnet in subnets) == list(ZONES)
    assert [group["GroupId"] for group in groups] == [account.security_group]


@on_moto
def test_seeded_eks_cluster_is_active(aws, account):
    """Only moto has EKS; fault scenarios register their cluster in the settings."""
    cluster = aws.client("eks").describe_cluster(name="demo")["cluster"]
    assert (cluster["status"], cluster["version"]) == ("ACTIVE", "1.33")
    assert cluster["kubernetesNetworkConfig"]["serviceIpv4Cidr"] == "10.100.0.0/16"
