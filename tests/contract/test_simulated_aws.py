"""Both simulated accounts behave like AWS: fleets, instances, Spot prices; and moto's server itself.

Every test uses boto3 and states AWS's behaviour, so it would also pass on the real service.
"""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from http.client import HTTPConnection

import pytest
from botocore.exceptions import ClientError
from moto.ec2.models.instances import Instance
from moto.ec2.responses import EC2Response

from journeyman.errors import ConfigurationError
from journeyman_simulator.cloud_rules.instance_states import InstanceTiming
from journeyman_simulator.moto_account.moto_extensions import MotoExtension, applied
from journeyman_simulator.moto_account.moto_server import MotoAccount, client_for
from tests.contract.conftest import PRICES, on_both_accounts, opened, seeded
from tests.helpers.small_clusters import table

ZONES = ("us-east-1a", "us-east-1b", "us-east-1c", "us-east-1d", "us-east-1e", "us-east-1f")


@pytest.fixture
def ec2(aws):
    return aws.client("ec2")


@pytest.fixture
def template(aws, account, ec2):
    """Create a launch template with all settings of a node."""
    iam = aws.client("iam")
    iam.create_instance_profile(InstanceProfileName="node")
    iam.add_role_to_instance_profile(InstanceProfileName="node", RoleName=account.role)
    data = {
        "ImageId": account.images["amazon-eks-node-al2023-x86_64-standard-1.33-v20260715"],
        "UserData": "aGVsbG8=",
        "IamInstanceProfile": {"Name": "node"},
        "NetworkInterfaces": [{"DeviceIndex": 0, "Groups": [account.security_group]}],
        "BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 20, "VolumeType": "gp3"}}],
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1},
        "Monitoring": {"Enabled": True},
        "TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "from", "Value": "template"}]}],
    }
    ec2.create_launch_template(LaunchTemplateName="node", LaunchTemplateData=data)
    return "node"


@pytest.fixture
def fleet(account, ec2, template):
    """Return a function that creates an instant fleet over types and zones and returns the response."""

    def create(types, zones=("us-east-1a",), count=1, capacity_type="on-demand", strategy="lowest-price", **more):
        subnet = dict(zip(ZONES, account.subnets, strict=True))
        override = more.pop("override", {})
        options = {"spot": "SpotOptions", "on-demand": "OnDemandOptions"}[capacity_type]
        return ec2.create_fleet(
            Type="instant",
            TargetCapacitySpecification={"TotalTargetCapacity": count, "DefaultTargetCapacityType": capacity_type},
            LaunchTemplateConfigs=[
                {
                    "LaunchTemplateSpecification": {"LaunchTemplateName": template, "Version": "$Latest"},
                    "Overrides": [
                        {"InstanceType": kind, "SubnetId": subnet[zone], **override.get(kind, {})}
                        for kind in types
                        for zone in zones
                    ],
                }
            ],
            **{options: {"AllocationStrategy": strategy}},
            **more,
        )

    return create


def launched_types(answer):
    return [entry["InstanceType"] for entry in answer["Instances"]]


def codes(answer):
    return [error["ErrorCode"] for error in answer["Errors"]]


def described(ec2, ids):
    (instance,) = ec2.describe_instances(InstanceIds=ids)["Reservations"][0]["Instances"]
    return instance


def state(ec2, instance_id):
    return described(ec2, [instance_id])["State"]["Name"]


# --- CreateFleet -----------------------------------------------------------------------------------------------------


PRIORITIES = {"t3.nano": {"Priority": 9}, "m5.large": {"Priority": 1}}
DIVERSIFIED = {"count": 4, "capacity_type": "spot", "strategy": "diversified", "zones": ZONES[:2]}
TOO_LOW = {"capacity_type": "spot", "override": {"m5.large": {"MaxPrice": "0.001"}}}


@on_both_accounts
@table(
    "types", "given", "launched", "errors",
    lowest_price_takes_the_cheapest_pool=(["m5.24xlarge", "t3.large", "t3.nano"], {"count": 3}, {"t3.nano": [3]}, []),
    prioritized_takes_the_lowest_number=(
        ["t3.nano", "m5.large"], {"strategy": "prioritized", "override": PRIORITIES}, {"m5.large": [1]}, [],
    ),
    diversified_uses_each_pool_once_first=(
        ["t3.nano", "t3.medium"], DIVERSIFIED, {"t3.nano": [1, 1], "t3.medium": [1, 1]}, [],
    ),
    max_price_limits_the_price=(["m5.large"], TOO_LOW, {}, ["SpotMaxPriceTooLow"]),
    zone_e_lacks_most_types=(
        ["m5.large", "zz.large"], {"zones": ["us-east-1e"]}, {},
        ["InvalidFleetConfiguration", "InvalidParameterValue"],
    ),
)  # fmt: skip
def test_fleet_launches_by_its_strategy(fleet, types, given, launched, errors):
    """The response has one entry per override with its instances, and an error for each pool that cannot launch."""
    answer = fleet(types, **given)
    found = {}
    for entry in answer["Instances"]:
        found.setdefault(entry["InstanceType"], []).append(len(entry["InstanceIds"]))
    assert (found, sorted(codes(answer))) == (launched, errors)


@on_both_accounts
def test_spot_fleets_launch_the_cheapest_spot_pool_of_the_price_history(fleet, ec2):
    """A fleet chooses by the price that DescribeSpotPriceHistory returns."""
    history = ec2.describe_spot_price_history(InstanceTypes=["m5.large", "c5.large"])["SpotPriceHistory"]
    by_price = sorted(history, key=lambda row: float(row["SpotPrice"]))
    in_reach = next(row for row in by_price if row["AvailabilityZone"] in ZONES[:3])

    answer = fleet(["m5.large", "c5.large"], zones=ZONES[:3], capacity_type="spot", strategy="price-capacity-optimized")

    entry = answer["Instances"][0]
    instance = described(ec2, entry["InstanceIds"])
    assert (entry["InstanceType"], entry["Lifecycle"]) == (in_reach["InstanceType"], "spot")
    assert instance["Placement"]["AvailabilityZone"] == in_reach["AvailabilityZone"]
    assert instance["InstanceLifecycle"] == "spot"
    assert instance["SpotInstanceRequestId"].startswith("sir-")


@on_both_accounts
def test_fleet_skips_a_pool_without_capacity_and_reports_an_error(aws, clock, fleet):
    """It launches there again once capacity returns."""
    aws.out_of_stock("t3.nano", "us-east-1a", "on-demand", until=clock.now() + timedelta(minutes=3))

    answer = fleet(["t3.nano", "t3.medium"])
    clock.advance(180)
    later = fleet(["t3.nano", "t3.medium"])

    (error,) = answer["Errors"]
    assert launched_types(answer) == ["t3.medium"]
    assert error["ErrorCode"] == "InsufficientInstanceCapacity"
    assert error["LaunchTemplateAndOverrides"]["Overrides"]["InstanceType"] == "t3.nano"
    assert error["Lifecycle"] == "on-demand"
    assert launched_types(later) == ["t3.nano"]


@on_both_accounts
def test_fleet_without_capacity_answers_an_error_for_each_pool(aws, clock, fleet):
    """An instant fleet reports insufficient capacity in its response."""
    for zone in ZONES[:2]:
        aws.out_of_stock("t3.nano", zone, "spot", until=clock.now() + timedelta(hours=1))
    answer = fleet(["t3.nano"], zones=ZONES[:2], capacity_type="spot", strategy="price-capacity-optimized")
    assert (answer["Instances"], codes(answer)) == ([], ["InsufficientInstanceCapacity"] * 2)


@on_both_accounts
def test_same_client_token_returns_the_first_answer_and_launches_nothing(ec2, fleet):
    """A retry must not launch a second instance; a token belongs to one request."""
    first = fleet(["t3.nano"], ClientToken="claim-uid")
    second = fleet(["t3.nano"], ClientToken="claim-uid")

    running = [i for page in ec2.describe_instances()["Reservations"] for i in page["Instances"]]
    assert (first["FleetId"], first["Instances"]) == (second["FleetId"], second["Instances"])
    assert len(running) == 1
    with pytest.raises(ClientError, match="IdempotentParameterMismatch"):
        fleet(["t3.medium"], ClientToken="claim-uid")


@on_both_accounts
def test_client_token_returns_a_failed_answer_again(aws, clock, fleet):
    """Capacity is back, but the token still returns the error; another token launches an instance."""
    aws.out_of_stock("t3.nano", "us-east-1a", "on-demand", until=clock.now() + timedelta(minutes=3))
    refused = fleet(["t3.nano"], ClientToken="claim-uid")
    clock.advance(180)

    again = fleet(["t3.nano"], ClientToken="claim-uid")

    assert codes(again) == ["InsufficientInstanceCapacity"]
    assert (again["Instances"], again["FleetId"]) == ([], refused["FleetId"])
    assert launched_types(fleet(["t3.nano"], ClientToken="claim-uid-1")) == ["t3.nano"]


@on_both_accounts
def test_unknown_launch_template_is_refused_and_leaves_the_token_unused(ec2, account):
    """EC2 did not execute the request, so it can be repeated once the template exists."""
    image = account.images["amazon-eks-node-al2023-x86_64-standard-1.33-v20260715"]
    overrides = [{"InstanceType": "t3.nano", "SubnetId": account.subnets[0]}]
    request = {
        "Type": "instant",
        "ClientToken": "claim-uid",
        "TargetCapacitySpecification": {"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "on-demand"},
        "LaunchTemplateConfigs": [
            {"LaunchTemplateSpecification": {"LaunchTemplateName": "late"}, "Overrides": overrides}
        ],
    }
    with pytest.raises(ClientError, match=r"InvalidLaunchTemplateName\.NotFoundException"):
        ec2.create_fleet(**request)
    ec2.create_launch_template(LaunchTemplateName="late", LaunchTemplateData={"ImageId": image})

    assert launched_types(ec2.create_fleet(**request)) == ["t3.nano"]


@on_both_accounts
def test_instance_has_what_its_launch_template_says(account, clock, ec2, fleet):
    """That is profile, groups, options, and the tags of template, request and AWS. Its launch time is virtual."""
    tags = [
        {"ResourceType": "instance", "Tags": [{"Key": "karpenter.sh/nodeclaim", "Value": "a"}]},
        {"ResourceType": "volume", "Tags": [{"Key": "team", "Value": "b"}]},
        {"ResourceType": "fleet", "Tags": [{"Key": "c", "Value": "d"}]},
    ]

    answer = fleet(["t3.nano"], TagSpecifications=tags)

    instance = described(ec2, answer["Instances"][0]["InstanceIds"])
    own_tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
    assert [group["GroupId"] for group in instance["SecurityGroups"]] == [account.security_group]
    assert instance["IamInstanceProfile"]["Arn"].endswith(":instance-profile/node")
    assert instance["MetadataOptions"]["HttpTokens"] == "required"
    assert (instance["Monitoring"]["State"], instance["Architecture"]) == ("enabled", "x86_64")
    assert (own_tags["from"], own_tags["karpenter.sh/nodeclaim"]) == ("template", "a")
    assert own_tags["aws:ec2:fleet-id"] == answer["FleetId"]
    assert own_tags["aws:ec2launchtemplate:version"] == "1"
    assert instance["LaunchTime"] == clock.now()
    (fleet,) = ec2.describe_fleets(FleetIds=[answer["FleetId"]])["Fleets"]
    assert (fleet["Type"], fleet["Instances"]) == ("instant", answer["Instances"])


def test_instance_has_user_data_interfaces_and_volumes_of_its_template(account, ec2, fleet):
    """Its volumes have the request's tags, too."""
    tags = [{"ResourceType": "volume", "Tags": [{"Key": "team", "Value": "b"}]}]

    ids = fleet(["t3.nano"], TagSpecifications=tags)["Instances"][0]["InstanceIds"]

    (volume,) = ec2.describe_volumes(Filters=[{"Name": "attachment.instance-id", "Values": ids}])["Volumes"]
    user_data = ec2.describe_instance_attribute(InstanceId=ids[0], Attribute="userData")["UserData"]["Value"]
    groups = described(ec2, ids)["NetworkInterfaces"][0]["Groups"]
    assert ([group["GroupId"] for group in groups], user_data) == ([account.security_group], "aGVsbG8=")
    assert (volume["Size"], volume["VolumeType"]) == (20, "gp3")
    assert volume["Tags"] == [{"Key": "team", "Value": "b"}]


@on_both_accounts
def test_unknown_instance_profile_is_a_fleet_error(account, ec2, template, fleet):
    """So is any other error of RunInstances."""
    data = {
        "ImageId": next(iter(account.images.values())),
        "IamInstanceProfile": {"Name": "gone"},
        "SecurityGroupIds": [account.security_group],
    }
    ec2.create_launch_template_version(LaunchTemplateName=template, LaunchTemplateData=data)

    answer = fleet(["t3.nano"])

    assert answer["Instances"] == []
    assert answer["Errors"][0]["ErrorCode"] == "InvalidParameterValue"
    assert "Invalid IAM Instance Profile name" in answer["Errors"][0]["ErrorMessage"]


@on_both_accounts
def test_terminated_instances_return_their_subnet_addresses(clock, account, ec2, fleet):
    """An instance holds an address until it is terminated."""
    vpc = ec2.describe_subnets(SubnetIds=[account.subnets[0]])["Subnets"][0]["VpcId"]
    made = ec2.create_subnet(VpcId=vpc, CidrBlock="172.31.128.0/28", AvailabilityZone="us-east-1a")
    tiny = made["Subnet"]["SubnetId"]
    here = {"t3.nano": {"SubnetId": tiny}}

    first = fleet(["t3.nano"], count=11, override=here)
    refused = fleet(["t3.nano"], override=here)
    ec2.terminate_instances(InstanceIds=first["Instances"][0]["InstanceIds"])
    clock.advance(60)

    assert codes(refused) == ["InsufficientFreeAddressesInSubnet"]
    assert ec2.describe_subnets(SubnetIds=[tiny])["Subnets"][0]["AvailableIpAddressCount"] == 11


def test_dry_run_launches_nothing(ec2, fleet):
    """The response is the error that EC2 returns for every dry run that would succeed."""
    with pytest.raises(ClientError, match="DryRunOperation"):
        fleet(["t3.nano"], DryRun=True)
    assert ec2.describe_instances()["Reservations"] == []


# --- instances in time -----------------------------------------------------------------------------------------------


@on_both_accounts
def test_instance_passes_through_its_states_in_virtual_time(clock, ec2, fleet):
    """EC2 no longer lists it an hour after its termination; a request with an unknown id terminates no instance."""
    (instance,) = fleet(["t3.nano"])["Instances"][0]["InstanceIds"]
    changes = []

    def terminate():
        (entry,) = ec2.terminate_instances(InstanceIds=[instance])["TerminatingInstances"]
        changes.append((entry["PreviousState"]["Name"], entry["CurrentState"]["Name"]))

    seen = [state(ec2, instance)]
    clock.advance(8)
    with pytest.raises(ClientError, match=r"InvalidInstanceID\.NotFound"):
        ec2.terminate_instances(InstanceIds=[instance, "i-0123456789abcdef0"])
    seen.append(state(ec2, instance))
    terminate()
    terminate()
    seen.append(state(ec2, instance))
    clock.advance(30)
    seen.append(state(ec2, instance))
    terminate()
    clock.advance(3600)

    assert seen == ["pending", "running", "shutting-down", "terminated"]
    assert changes == [("running", "shutting-down"), ("shutting-down", "shutting-down"), ("terminated", "terminated")]
    with pytest.raises(ClientError, match=r"InvalidInstanceID\.NotFound"):
        state(ec2, instance)


@pytest.mark.parametrize("kind", ["moto", "in process"])
def test_describe_instances_may_lag_behind_the_launch(clock, kind):
    """EC2 is eventually consistent; with a lag, a new instance is not found at first."""
    with opened(kind, clock, timing=InstanceTiming(describe_lag_seconds=3)) as aws:
        ec2, image = aws.client("ec2"), next(iter(seeded(aws).images.values()))
        (made,) = ec2.run_instances(ImageId=image, InstanceType="t3.nano", MinCount=1, MaxCount=1)["Instances"]
        with pytest.raises(ClientError, match=r"InvalidInstanceID\.NotFound"):
            state(ec2, made["InstanceId"])
        before = ec2.describe_instances()["Reservations"]
        clock.advance(3)

        assert before == []
        assert state(ec2, made["InstanceId"]) == "pending"


@on_both_accounts
def test_each_state_transition_is_an_event_with_its_own_time(aws, clock, ec2, fleet):
    """That holds even if the clock jumped over all of them."""
    deliver_events_to_function(aws, {"detail-type": ["EC2 Instance State-change Notification"]})
    (instance,) = fleet(["t3.nano"])["Instances"][0]["InstanceIds"]
    clock.advance(10)
    ec2.terminate_instances(InstanceIds=[instance])
    clock.advance(3600)
    aws.act()

    events = [delivery.event for delivery in aws.take_deliveries()]

    assert [(event["time"], event["detail"]["state"]) for event in events] == [
        ("2026-11-02T08:00:00Z", "pending"),
        ("2026-11-02T08:00:08Z", "running"),
        ("2026-11-02T08:00:10Z", "shutting-down"),
        ("2026-11-02T08:00:40Z", "terminated"),
    ]
    assert events[0]["resources"] == [f"arn:aws:ec2:us-east-1:123456789012:instance/{instance}"]
    assert {"version", "id", "detail-type", "source", "account", "time", "region", "resources", "detail"} == set(
        events[0]
    )


@on_both_accounts
def test_interruption_warns_and_shuts_down_two_minutes_later(aws, clock, ec2, fleet):
    """EC2 also recommends rebalancing, and sets the reason on the instance. It never interrupts on-demand instances."""
    deliver_events_to_function(aws, {"detail-type": [{"prefix": "EC2 Spot"}, {"prefix": "EC2 Instance Rebalance"}]})
    spot = fleet(["t3.nano"], capacity_type="spot", strategy="price-capacity-optimized")
    (instance,), (other,) = (each["Instances"][0]["InstanceIds"] for each in (spot, fleet(["t3.nano"])))
    with pytest.raises(ConfigurationError, match="Spot instance"):
        aws.interrupt(other)
    clock.advance(60)

    aws.interrupt(instance)
    clock.advance(119)
    before = state(ec2, instance)
    clock.advance(1)
    after = described(ec2, [instance])

    rebalance, warning = (delivery.event for delivery in aws.take_deliveries())
    assert rebalance["detail-type"] == "EC2 Instance Rebalance Recommendation"
    assert warning["detail-type"] == "EC2 Spot Instance Interruption Warning"
    assert warning["detail"] == {"instance-id": instance, "instance-action": "terminate"}
    assert warning["resources"] == [f"arn:aws:ec2:us-east-1a:instance/{instance}"]
    assert warning["time"] == "2026-11-02T08:01:00Z"
    assert (before, after["State"]["Name"]) == ("running", "shutting-down")
    assert after["StateReason"]["Code"] == "Server.SpotInstanceTermination"


def deliver_events_to_function(aws, pattern):
    events = aws.client("events")
    events.put_rule(Name="all", EventPattern=json.dumps(pattern))
    target = "arn:aws:lambda:us-east-1:123456789012:function:interrupt"
    events.put_targets(Rule="all", Targets=[{"Id": "function", "Arn": target}])


# --- prices -----------------------------------------------------------------------------------------------------------


@on_both_accounts
def test_spot_prices_are_a_share_of_on_demand_with_a_history(aws, clock, ec2):
    """From a start time on, the history has the price at that time and every later change."""
    asked = {"InstanceTypes": ["m5.large"], "AvailabilityZone": "us-east-1a", "ProductDescriptions": ["Linux/UNIX"]}

    def since(start):
        return ec2.describe_spot_price_history(StartTime=start, **asked)["SpotPriceHistory"]

    begin = clock.now()
    (first,) = since(begin)
    clock.advance(3600)
    aws.prices.set_spot("m5.large", "us-east-1a", 0.05, since=clock.now())

    assert 0.28 * PRICES["m5.large"] <= float(first["SpotPrice"]) <= 0.62 * PRICES["m5.large"]
    assert first["Timestamp"] <= begin
    assert [row["SpotPrice"] for row in since(clock.now())] == ["0.050000"]
    assert [row["SpotPrice"] for row in since(begin)] == ["0.050000", first["SpotPrice"]]


# --- status checks ---------------------------------------------------------------------------------------------------


@on_both_accounts
def test_status_checks_report_failures_and_planned_events(fleet, aws, ec2, clock):
    """They list running instances, and each filter works."""
    answer = fleet(["t3.nano"], count=3)
    broken, worn, well = answer["Instances"][0]["InstanceIds"]
    clock.advance(60)
    aws.instances.checks.fail(broken)
    aws.instances.checks.plan(worn, "instance-retirement", clock.now() + timedelta(days=7))

    def described(name, value):
        found = ec2.describe_instance_status(Filters=[{"Name": name, "Values": [value]}])["InstanceStatuses"]
        return {entry["InstanceId"]: entry for entry in found}

    impaired = described("instance-status.status", "impaired")
    planned = described("event.code", "instance-retirement")

    assert set(impaired) == {broken}
    (detail,) = impaired[broken]["InstanceStatus"]["Details"]
    assert (detail["Status"], detail["ImpairedSince"]) == ("failed", clock.now())
    assert [event["Code"] for event in planned[worn]["Events"]] == ["instance-retirement"]
    assert described("system-status.status", "impaired") == {}
    assert len(ec2.describe_instance_status()["InstanceStatuses"]) == 3
    aws.instances.checks.recover(broken)
    assert set(described("instance-status.status", "ok")) == {broken, worn, well}


# --- the server itself -----------------------------------------------------------------------------------------------


@on_both_accounts
def test_injected_failure_changes_nothing(aws, ec2, account):
    """The standard retries succeed after one throttled call."""
    impatient = aws.client("ec2", max_attempts=1)
    aws.fail_next("DescribeInstances", "RequestLimitExceeded", times=2)

    with pytest.raises(ClientError, match="RequestLimitExceeded") as refused:
        impatient.describe_instances()
    ec2.describe_instances()

    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 503
    assert aws.calls()["DescribeInstances"] == 3


def test_leaving_the_account_restores_moto(clock):
    """moto is unchanged afterwards."""
    original = Instance.terminate
    with MotoAccount(clock, PRICES) as first:
        patched = Instance.terminate
        first.client("sqs").create_queue(QueueName="left-over")
    with MotoAccount(clock, PRICES) as second:
        queues = second.client("sqs").list_queues()

    assert patched is not original
    assert Instance.terminate is original
    assert "describe_placement_groups" not in vars(EC2Response)
    assert "QueueUrls" not in queues


def test_connection_serves_one_request_after_the_other(aws):
    """It stays open after failed requests, too."""

    def response_to(action):
        body = f"Action={action}&Version=2016-11-15"
        kind = {"Content-Type": "application/x-www-form-urlencoded", "Authorization": SIGNED}
        connection.request("POST", "/", body, kind)
        with connection.getresponse() as answer:
            assert not answer.will_close
            assert answer.read()
            return answer.status, connection.sock.getsockname()

    with closing(HTTPConnection(aws.endpoint_url.removeprefix("http://"))) as connection:
        status, socket_name = response_to("DescribeRegions")
        aws.fail_next("DescribeRegions", "RequestLimitExceeded")
        assert status == 200
        assert response_to("DescribeRegions") == (503, socket_name)
        assert response_to("DescribeRegions") == (200, socket_name)


def test_account_listens_on_the_given_port_alone(clock):
    """Tools with a fixed endpoint find it, as they find LocalStack on 4566. Moto's state is global to the process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with MotoAccount(clock, PRICES, port=port) as aws:
        assert aws.endpoint_url == f"http://127.0.0.1:{port}"
        assert client_for(f"http://localhost:{port}", "sts").get_caller_identity()["Account"] == aws.account
        with pytest.raises(ConfigurationError, match="another MotoAccount"), MotoAccount(clock, PRICES):
            pass


@on_both_accounts
def test_concurrent_launches_are_independent(ec2, fleet):
    """Each token launches one instance, even if all requests are simultaneous and some are repeated."""
    tokens = [f"claim-{index % 8}" for index in range(16)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda token: fleet(["t3.nano"], ClientToken=token), tokens))
    assert len({answer["Instances"][0]["InstanceIds"][0] for answer in answers}) == 8
    assert len(ec2.describe_instances()["Reservations"]) == 8


SIGNED = "AWS4-HMAC-SHA256 Credential=simulated/20261102/us-east-1/ec2/aws4_request, SignedHeaders=host, Signature=0"


class Shape:
    """Replaces a class of moto."""

    def method(self, renamed):
        """One parameter."""
        return renamed


def test_unexpected_moto_version_is_refused_at_start_up():
    """The error names the changed function, and no extension stays applied."""

    def extension(name, replace):
        return MotoExtension(owner=Shape, name=name, replace=replace, reason="of the test")

    fits = extension("method", lambda _: lambda self, renamed: 1)
    for misfit in (extension("method", lambda _: lambda self, name: 2), extension("other", lambda _: None)):
        with pytest.raises(ConfigurationError, match="cannot start"):
            applied([fits, misfit])

    assert Shape().method(0) == 0
