"""Launches by CreateFleet: what a failed fleet says about offerings, NodeClass and account; and the size of the user data."""

import base64

import pytest

from journeyman.cloud.aws.aws_settings import Clients
from journeyman.cloud.aws.provider import AwsCloudProvider
from journeyman.errors import CreateError, InsufficientCapacityError
from journeyman.ports import Launched
from journeyman_simulator.in_process_account.account import REGION
from tests.unit.cloud.aws.conftest import claim, launching_claim

TENANCY = "karpenter.k8s.aws/instance-tenancy"
DRY, NO_SUBNET_ADDRESS = "InsufficientInstanceCapacity", "InsufficientFreeAddressesInSubnet"


class Ec2:
    """The account's EC2. It answers fleets with errors if it is given their codes, and records the templates."""

    def __init__(self, real):
        self._real = real
        self.codes = None
        self.templates = []

    def __getattr__(self, name):
        return getattr(self._real, name)

    def create_launch_template(self, **parameters):
        self.templates.append(parameters["LaunchTemplateData"])
        return self._real.create_launch_template(**parameters)

    def create_fleet(self, **parameters):
        if self.codes is None:
            return self._real.create_fleet(**parameters)
        override = parameters["LaunchTemplateConfigs"][0]["Overrides"][0]
        refused = [
            {"ErrorCode": code, "ErrorMessage": "no", "LaunchTemplateAndOverrides": {"Overrides": override}}
            for code in self.codes
        ]
        return {"FleetId": "fleet-1", "Instances": [], "Errors": refused}


@pytest.fixture
def ec2(aws):
    return Ec2(aws.client("ec2"))


@pytest.fixture
def provider(aws, ec2, settings, clock):
    return AwsCloudProvider(
        Clients(lambda service, _: ec2 if service == "ec2" else aws.client(service), REGION), settings, clock
    )


@pytest.mark.parametrize(
    ("codes", "reason", "objects"),
    [
        ([DRY], None, []),
        ([DRY, DRY], None, []),
        ([NO_SUBNET_ADDRESS], None, ["Subnet"]),
        ([DRY, "InvalidSnapshot.NotFound"], "SnapshotNotFound", ["NodeClass"]),
        (["InvalidSnapshot.NotFound", "VcpuLimitExceeded"], "SnapshotNotFound", ["NodeClass"]),
        (["AddressLimitExceeded", DRY, "InvalidSnapshot.NotFound"], "AddressQuotaExceeded", ["Account"]),
        ([NO_SUBNET_ADDRESS, "InvalidSnapshot.NotFound"], "SnapshotNotFound", ["Subnet", "NodeClass"]),
        (["Unheard.Of"], "LaunchFailed", ["NodePool"]),
        (["Unsupported"], "Unsupported", ["NodeClass"]),
        ([DRY, "RequestLimitExceeded"], "RequestLimitExceeded", []),
        ([], "LaunchFailed", ["NodePool"]),
    ],
)
def test_failed_fleet_is_for_lack_of_capacity_or_has_the_gravest_reason(
    ec2, launch, resolved, clock, codes, reason, objects
):
    """Another offering may launch, unless one error concerns all of them, an object or the whole account."""
    body = resolved()
    ec2.codes = codes
    outcome = launch(launching_claim("web-1", clock.now(), launched=False), body)

    assert type(outcome.error) is (CreateError if reason else InsufficientCapacityError)
    assert getattr(outcome.error, "condition_reason", None) == reason
    assert sorted(fault.scope.value for fault in outcome.faults) == sorted(objects)
    assert outcome.answered


@pytest.mark.parametrize("codes", [None, [DRY]])
def test_outcome_has_the_largest_user_data_of_the_launch(ec2, launch, resolved, clock, codes):
    """Bottlerocket's has the number of pods, so types need several launch templates; EC2 limits the size."""
    body = resolved(amiSelectorTerms=[{"alias": "bottlerocket@latest"}])
    ec2.codes = codes
    outcome = launch(launching_claim("web-1", clock.now(), launched=False), body)

    sizes = {len(base64.b64decode(data["UserData"])) for data in ec2.templates}
    assert isinstance(outcome, Launched) is (codes is None)
    assert len(sizes) > 1
    assert outcome.user_data_bytes == max(sizes)


@pytest.mark.parametrize(
    ("accepted", "tenancy"),
    [(None, "default"), (["default"], "default"), (["dedicated"], "dedicated"), (["dedicated", "default"], "default")],
)
def test_tenancy_is_dedicated_only_if_the_claim_accepts_no_other(ec2, launch, resolved, accepted, tenancy):
    """Dedicated hardware costs more."""
    wanted = [] if accepted is None else [{"key": TENANCY, "operator": "In", "values": accepted}]
    requests = {"resources": {"requests": {"cpu": "100m", "pods": "1"}}}
    outcome = launch(claim(spec={"requirements": wanted, **requests}), resolved())
    assert isinstance(outcome, Launched)
    assert outcome.labels[TENANCY] == tenancy
    assert {data.get("Placement", {}).get("Tenancy", "default") for data in ec2.templates} == {tenancy}
