"""What only the AWS provider does, over AWS's HTTP APIs; `clouds` has the tests that every cloud's provider passes.

One simulated account of each kind serves the whole file, since reading moto's 1,400 instance types takes seconds. Each test
has its own cluster in it, so that it does not see other tests' instances.
"""

import itertools
from datetime import datetime, timedelta, timezone
from functools import partial

import pytest
from msgspec.structs import replace

from journeyman.cloud.aws.aws_settings import AwsSettings, Clients
from journeyman.cloud.aws.capacity_reservations import CapacityReservationProvider
from journeyman.cloud.aws.fleet_launch import FleetLauncher
from journeyman.cloud.aws.instance_provider import InstanceProvider
from journeyman.cloud.aws.instance_types import InstanceTypeProvider
from journeyman.cloud.aws.launch_templates import LaunchTemplateProvider
from journeyman.cloud.aws.network_discovery import PlacementGroupProvider, free_addresses
from journeyman.cloud.aws.nodeclass_view import ec2_node_class
from journeyman.cloud.aws.pricing import price_provider, shipped_on_demand
from journeyman.cloud.aws.provider import AwsCloudProvider
from journeyman.cloud.free_addresses import FreeAddresses
from journeyman.core.api import labels
from journeyman.core.api.objects import OfferingKey
from journeyman.errors import CreateError, InsufficientCapacityError, NodeClaimNotFoundError, RateLimitedError
from journeyman.ports import Launched, LaunchFailed
from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.in_process_account.account import InProcessAccount
from tests.contract.conftest import opened, seeded
from tests.helpers.launching import launch_request

pytestmark = pytest.mark.xdist_group("aws-cloud")  # one worker, so that the account is created once

REGION = "us-east-1"
AL2023 = [{"alias": "al2023@latest"}]
CLUSTERS = itertools.count(1)
FOUND = [{"tags": {"karpenter.sh/discovery": "demo"}}]


@pytest.fixture(scope="module")
def clock():
    """Return the clock of the whole file; it only moves forward."""
    return VirtualClock(datetime(2026, 11, 2, 8, 0, tzinfo=timezone.utc))


@pytest.fixture(scope="module", params=["moto", "in process"])
def aws(request, clock):
    """Return one account, with real list prices."""
    with opened(request.param, clock, shipped_on_demand(REGION)) as account:
        yield account


@pytest.fixture(scope="module")
def account(aws):
    """Create a VPC in six zones, a node role, and EKS's images."""
    return seeded(aws, kubernetes_version="1.34")


@pytest.fixture
def settings():
    """Return the settings of a cluster with a new name."""
    return AwsSettings(
        cluster_name=f"cluster-{next(CLUSTERS)}",
        region=REGION,
        kubernetes_version="1.34",
        cluster_endpoint="https://demo",
        cluster_ca="Y2E=",
        service_cidr="10.100.0.0/16",
        max_parallel_launches=4,
    )


@pytest.fixture
def clients(aws):
    return Clients(lambda service, region: aws.client(service), REGION)


@pytest.fixture
def provider(aws, account, settings, clock):
    """Return a provider with empty caches."""
    impatient = Clients(lambda service, region: aws.client(service, max_attempts=1), REGION)
    return AwsCloudProvider(impatient, settings, clock)


def node_class(account, **spec):
    """Return an EC2NodeClass as a user writes it; a field given as None is omitted."""
    selected = {"subnetSelectorTerms": FOUND, "securityGroupSelectorTerms": FOUND}
    given = {"amiSelectorTerms": AL2023, "role": account.role, **selected, **spec}
    metadata = {"name": "default", "uid": "0c6f", "generation": 2, "creationTimestamp": "2026-11-02T07:00:00Z"}
    spec = {key: value for key, value in given.items() if value is not None}
    return {"apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": metadata, "spec": spec}


@pytest.fixture
def ready(provider, account, clock):
    """Return the default EC2NodeClass, resolved."""
    body = node_class(account)
    return {**body, "status": provider.resolve(body, clock.now())}


@pytest.fixture(scope="module")
def read_types(aws, account, clock):
    """Return a function that returns a NodeClass's instance types; it reads EC2's catalogue once for the whole file."""
    clients = Clients(lambda service, region: aws.client(service), REGION)
    settings = AwsSettings(cluster_name="reader", region=REGION)
    prices, reservations = price_provider(clients, settings, clock), CapacityReservationProvider(clients, clock)
    catalogue = InstanceTypeProvider(
        clients, settings, prices, clock, reservations=reservations, groups=PlacementGroupProvider(clients, clock)
    )
    return lambda body: catalogue.for_node_class(ec2_node_class(body))


@pytest.fixture
def request_for(ready, read_types):
    """Return a function that makes the launch request of a NodeClaim which allows these types."""

    def make(name, *types, capacity_type=("on-demand",), zones=(), annotations=None, body=ready, **state):
        return launch_request(
            name,
            uid=f"uid-of-{name}",
            types=types or ("m5.large",),
            capacity_types=capacity_type,
            zones=zones,
            annotations=annotations,
            node_class={"kind": "EC2NodeClass", "group": labels.AWS_GROUP, "raw": body, **state},
            instance_types=read_types(body),
        )

    return make


@pytest.fixture
def launch(provider):
    """Return a function that launches one request and returns its outcome."""

    def one(request):
        [outcome] = provider.launch([request])
        return outcome

    return one


@pytest.fixture
def launch_with(clients, settings, clock):
    """Return a function that launches one request and returns its outcome, with another list of EC2's instances."""

    def one(instances, request):
        launcher = FleetLauncher(
            clients,
            settings,
            clock,
            instances=instances(clients, settings.cluster_name),
            addresses=FreeAddresses(partial(free_addresses, clients), clock),
            templates=LaunchTemplateProvider(clients, clock),
            reservations=CapacityReservationProvider(clients, clock),
            groups=PlacementGroupProvider(clients, clock),
            view=ec2_node_class,
        )
        [outcome] = launcher.launch([request])
        return outcome

    return one


def condition(status, type_):
    """Return (status, reason, message) of a condition."""
    return next((c["status"], c["reason"], c["message"]) for c in status["conditions"] if c["type"] == type_)


# -- NodeClasses ----------------------------------------------------------------------------------------------------


def test_node_class_resolves_to_existing_resources(ready, account):
    """Its status has subnets, security groups and images."""
    status = ready["status"]
    assert {s["id"] for s in status["subnets"]} == set(account.subnets)
    assert status["securityGroups"] == [{"id": account.security_group, "name": "demo-node"}]
    assert {i["id"] for i in status["amis"]} == {i for name, i in account.images.items() if "al2023" in name}


def test_instance_profile_is_created_once_with_the_role(provider, aws, account, clients, settings, clock):
    """A second sandbox without caches finds the same profile."""
    name = provider.resolve(node_class(account), clock.now())["instanceProfile"]
    again = AwsCloudProvider(clients, settings, clock)
    assert again.resolve(node_class(account), clock.now())["instanceProfile"] == name
    profile = aws.client("iam").get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
    assert [role["RoleName"] for role in profile["Roles"]] == [account.role]
    assert profile["Path"] == f"/karpenter/{REGION}/{settings.cluster_name}/0c6f/"


def test_deleted_node_class_removes_its_own_resources_only(
    provider, aws, account, settings, clock, request_for, launch
):
    """It removes the profiles of all its roles and its launch templates, not another NodeClass's; safe to repeat."""
    iam, ec2, uid = aws.client("iam"), aws.client("ec2"), settings.cluster_name
    iam.create_role(RoleName=f"former-{uid}", AssumeRolePolicyDocument="{}")

    def resolved(name, **spec):
        body = node_class(account, **spec)
        body = {**body, "metadata": {**body["metadata"], "name": name, "uid": f"{name}-{uid}"}}
        return {**body, "status": provider.resolve(body, clock.now())}

    def profiles(name):
        path = f"/karpenter/{REGION}/{settings.cluster_name}/{name}-{uid}/"
        return [p for p in iam.list_instance_profiles(PathPrefix=path)["InstanceProfiles"] if p["Path"] == path]

    def templates(name):
        owned = {"tag:eks:eks-cluster-name": settings.cluster_name, "tag:karpenter.k8s.aws/ec2nodeclass": name}
        filters = [{"Name": key, "Values": [value]} for key, value in owned.items()]
        return ec2.describe_launch_templates(Filters=filters)["LaunchTemplates"]

    resolved("going", role=f"former-{uid}")
    bodies = [resolved("going"), resolved("staying")]
    for body in bodies:
        name = body["metadata"]["name"]
        assert launch(request_for(f"claim-{name}", body=body)).user_data_bytes > 100
    assert (len(profiles("going")), len(profiles("staying"))) == (2, 1)
    assert templates("going")
    assert templates("staying")

    for _ in range(2):
        provider.release(bodies[0])
        assert (profiles("going"), templates("going")) == ([], [])
    assert len(profiles("staying")) == 1
    assert templates("staying")


@pytest.mark.parametrize(
    ("spec", "type_", "reason"),
    [
        ({"securityGroupSelectorTerms": [{"id": "sg-0"}]}, "SecurityGroupsReady", "SecurityGroupsNotFound"),
        ({"amiSelectorTerms": [{"id": "ami-0"}], "amiFamily": "AL2023"}, "AMIsReady", "AMINotFound"),
        ({"amiSelectorTerms": [{"alias": "al2023@v1"}]}, "AMIsReady", "AMINotFound"),
        ({"amiSelectorTerms": [{"alias": "al2@latest"}]}, "AMIsReady", "UnsupportedAlias"),
        ({"role": "no-such-role"}, "InstanceProfileReady", "RoleNotFound"),
        ({"kubelet": {"maxPod": 5}}, "ValidationSucceeded", "InvalidKubeletConfiguration"),
        ({"tags": {"kubernetes.io/cluster/x": "owned"}}, "ValidationSucceeded", "TagValidationFailed"),
        ({"tags": {f"k{i}": "v" for i in range(43)}}, "ValidationSucceeded", "TagValidationFailed"),
        ({"tags": {f"k{i}": "v" for i in range(50)}}, "ValidationSucceeded", "TagValidationFailed"),
        ({"role": None}, "ValidationSucceeded", "InvalidSpec"),
        ({"blockDeviceMappings": [{"ebs": {"volumeSize": "Ti"}}]}, "ValidationSucceeded", "InvalidSpec"),
    ],
)
def test_invalid_node_class_gets_a_false_condition(provider, account, clock, spec, type_, reason):
    """No error is raised; the condition names the field, and Ready is False. EC2 would refuse too many tags."""
    status = provider.resolve(node_class(account, **spec), clock.now())
    found = condition(status, type_)

    assert found[:2] == ("False", reason)
    assert condition(status, "Ready")[0] == "False"
    if len(spec.get("tags", ())) > 1:
        assert found[2].startswith(f"{len(spec['tags'])} tags are too many")
        assert "42 at most" in found[2]


def test_images_are_selected_by_name_and_by_bottlerocket_alias(provider, account, clock):
    """Amazon's images are found by name without an owner."""

    def images(*terms, **spec):
        return provider.resolve(node_class(account, amiSelectorTerms=list(terms), **spec), clock.now())["amis"]

    name = "amazon-eks-node-al2023-x86_64-standard-1.34-*"
    by_name = images({"name": name, "owner": "602401143452"}, amiFamily="AL2023")

    assert {i["name"].partition("-")[0] for i in images({"alias": "bottlerocket@latest"})} == {"bottlerocket"}
    assert [i["id"] for i in by_name] == [account.images[f"{name[:-1]}v20260715"]]


# -- instance types -------------------------------------------------------------------------------------------------


def test_instance_types_have_prices_zones_and_capacity_types(aws, ready, read_types, provider):
    """Each offering is in a zone of a subnet, with a price. The Pricing API returns prices in pages."""
    types = {t.name: t for t in read_types(ready)}
    zones = {s["zone"] for s in ready["status"]["subnets"]}
    provider.refresh_prices()
    on_demand = provider.prices().on_demand

    assert min(len(types), len(on_demand)) > (1000 if not isinstance(aws, InProcessAccount) else 10)
    assert types["m5.large"].offerings
    assert {o.zone for t in types.values() for o in t.offerings} <= zones
    assert all(o.price > 0 for t in types.values() for o in t.offerings)
    assert not any(o.available for o in types["a1.large"].offerings)  # AL2023 does not support it
    assert on_demand["m5.large"] == 0.096


# -- launching ------------------------------------------------------------------------------------------------------


def test_launch_returns_the_claims_status_and_labels(launch, request_for, ready, provider):
    """It returns labels, capacity, price and hash."""
    outcome = launch(request_for("full", "m5.large", "m5.xlarge", zones=("us-east-1b",)))

    assert isinstance(outcome, Launched)
    assert (outcome.instance.instance_type, outcome.price) == ("m5.large", 0.096)
    assert outcome.labels["karpenter.k8s.aws/instance-family"] == "m5"
    assert labels.WINDOWS_BUILD not in outcome.labels
    assert (outcome.capacity["cpu"], outcome.allocatable["memory"]) == ("2", "6903Mi")
    assert outcome.annotations == {
        "karpenter.k8s.aws/ec2nodeclass-hash": "abc",
        "karpenter.k8s.aws/ec2nodeclass-hash-version": "v1",
        "karpenter.k8s.aws/instance-profile-name": ready["status"]["instanceProfile"],
    }
    assert [(each.claim, each.image_id) for each in provider.list()] == [("full", outcome.instance.image_id)]


class LateListing(InstanceProvider):
    """EC2 instances whose first search does not find a just launched instance, as EC2 may do for some seconds."""

    searches = 0

    def by_claim_uid(self, uids):
        """Return nothing at the first call, the instances later."""
        self.searches += 1
        return {} if self.searches == 1 else super().by_claim_uid(uids)


def test_instance_that_ec2_listed_late_is_adopted(launch, launch_with, request_for, provider):
    """A used token with other parameters proves that the instance exists."""
    first = launch(request_for("hidden"))
    second = launch_with(LateListing, request_for("hidden", "c5.large"))
    assert second.instance.provider_id == first.instance.provider_id
    assert len(provider.list()) == 1


class EmptyListing(InstanceProvider):
    """EC2 instances whose searches find nothing, as EC2 may do for longer."""

    def by_claim_uid(self, uids):
        """Return nothing."""
        return {}


def test_client_token_stays_while_its_instance_is_not_listed(launch, launch_with, request_for, provider):
    """The first launch may have succeeded; another token would launch a second instance.

    After two minutes, in which EC2 lists an instance, its first use must have failed in a crashed run: it changes.
    """
    launch(request_for("unseen"))
    second = launch_with(EmptyListing, request_for("unseen", "c5.large"))
    assert isinstance(second.error, CreateError)
    assert not second.answered
    assert len(provider.list()) == 1

    retries = {labels.LAUNCH_RETRY: "7 2026-11-02T09:00:00Z 0"}
    launch(request_for("lost"))
    last = launch_with(EmptyListing, request_for("lost", "c5.large", annotations=retries))
    assert (last.answered, last.retry_after) == (True, timedelta(minutes=2))


def test_only_a_failed_fleet_needs_another_client_token(launch, aws, ready, request_for):
    """EC2 repeats the failure for the same token; a refused request does not use the token."""
    unknown = {**ready, "status": {**ready["status"], "instanceProfile": "no-such-profile"}}
    failed = launch(request_for("failed", body=unknown))
    aws.gate.fail_next("CreateFleet", "UnauthorizedOperation", 1)
    refused = launch(request_for("refused"))
    assert (type(failed.error), failed.answered) == (CreateError, True)
    assert (type(refused.error), refused.answered) == (CreateError, False)


def test_insufficient_capacity_names_the_offerings(launch, aws, clock, request_for):
    """The step marks them unavailable and schedules the NodeClaim's pods again."""
    zones = ("us-east-1a", "us-east-1b")
    for zone in zones:
        aws.capacity_pools.out_of_stock("c6i.large", zone, "spot", clock.now() + timedelta(minutes=3))
    outcome = launch(request_for("dry", "c6i.large", capacity_type=("spot",), zones=zones))

    assert isinstance(outcome.error, InsufficientCapacityError)
    assert outcome.unavailable == tuple(OfferingKey("c6i.large", zone, "spot") for zone in zones)
    refusals = {(r.zone, r.capacity_type, r.reason) for r in outcome.refusals}
    assert refusals == {(zone, "spot", "InsufficientCapacity") for zone in zones}
    assert all(r.zone_id.startswith("use1-az") for r in outcome.refusals)


class Silent:
    """An EC2 client whose fleets have neither instances nor errors."""

    def __init__(self, real):
        self._real = real

    def __getattr__(self, name):
        return getattr(self._real, name)

    def create_fleet(self, **_):
        return {"FleetId": "fleet-1", "Instances": [], "Errors": []}


def test_fleet_without_errors_keeps_the_claim(aws, settings, clock, request_for):
    """No offering can be marked, and the next plan would be the same, so the launch is retried later."""
    mute = Clients(lambda service, region: Silent(aws.client(service)), REGION)
    [outcome] = AwsCloudProvider(mute, settings, clock).launch([request_for("mute")])
    assert isinstance(outcome.error, CreateError)
    assert outcome.answered


def test_spot_launch_follows_the_prices_of_node_overlays(launch, request_for):
    """A fleet has priorities for Spot as well; EC2 launches what was planned."""
    request = request_for("planned", "c5.large", "m5.xlarge", capacity_type=("spot",))
    overlay = lambda o: replace(o, price=0.001, price_overlaid=True)  # noqa: E731
    types = tuple(
        replace(t, offerings=tuple(map(overlay, t.offerings))) if t.name == "m5.xlarge" else t
        for t in request.instance_types
    )
    outcome = launch(replace(request, instance_types=types))

    assert (outcome.instance.instance_type, outcome.price) == ("m5.xlarge", 0.001)


def test_externally_deleted_launch_template_is_created_again(launch, aws, request_for):
    """The provider had cached it."""
    ec2 = aws.client("ec2")
    assert isinstance(launch(request_for("before")), Launched)
    for template in ec2.describe_launch_templates()["LaunchTemplates"]:
        ec2.delete_launch_template(LaunchTemplateName=template["LaunchTemplateName"])
    assert isinstance(launch(request_for("after")), Launched)


def test_claims_with_equal_settings_share_a_launch_template(launch, aws, request_for, settings):
    """The template's name is derived from its content."""
    launch(request_for("one"))
    launch(request_for("two"))
    filters = [{"Name": "tag:eks:eks-cluster-name", "Values": [settings.cluster_name]}]
    [template] = aws.client("ec2").describe_launch_templates(Filters=filters)["LaunchTemplates"]
    assert template["LaunchTemplateName"].startswith("karpenter.k8s.aws/")


@pytest.mark.parametrize(
    ("code", "kind", "reason"),
    [("RequestLimitExceeded", RateLimitedError, None), ("UnauthorizedOperation", CreateError, "Unauthorized")],
)
def test_failed_call_is_the_launchs_outcome(launch, aws, request_for, code, kind, reason):
    """The outcome has Karpenter's reason, or is throttling; the next attempt succeeds."""
    aws.gate.fail_next("CreateLaunchTemplate", code, 1)
    outcome = launch(request_for(f"fails-{code}"))
    assert isinstance(outcome, LaunchFailed)
    assert type(outcome.error) is kind
    assert getattr(outcome.error, "condition_reason", None) == reason
    assert isinstance(launch(request_for(f"fails-{code}")), Launched)


# -- instances ------------------------------------------------------------------------------------------------------


def test_malformed_instance_id_is_not_found(provider):
    """EC2 has an error code of its own for it."""
    provider_id = "aws:///us-east-1a/i-nonsense"
    assert provider.get_each([provider_id]) == {}
    assert type(provider.delete_each([provider_id])[provider_id]) is NodeClaimNotFoundError
