"""Drift of EC2 instances from an EC2NodeClass: reasons in Karpenter's order, reservations and placement groups."""

import pytest

from journeyman.cloud.aws.instance_drift import drift_from
from journeyman.cloud.aws.network_discovery import PlacementGroup
from tests.helpers.builders import an_instance, an_instance_type
from tests.unit.cloud.aws.conftest import node_class

ARM = [{"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]}]
STATUS = {
    "amis": [
        {"id": "ami-arm", "requirements": ARM},
        {"id": "ami-new", "requirements": []},
        {"id": "ami-old", "requirements": []},
    ],
    "subnets": [{"id": "subnet-a", "zone": "a"}, {"id": "subnet-b", "zone": "b"}],
    "securityGroups": [{"id": "sg-1"}, {"id": "sg-2"}],
    "capacityReservations": [
        {
            "id": "cr-1",
            "availabilityZone": "a",
            "instanceMatchCriteria": "open",
            "instanceType": "m.medium",
            "ownerID": "111122223333",
        }
    ],
}
TYPES = (an_instance_type("m.medium", cpu=4, memory_gib=16, price=0.2),)
GROUP = PlacementGroup(id="pg-1", strategy="cluster")


def drift(status=None, group=None, selector=None, **instance):
    """The reason for which an instance has drifted; None if that is unknown."""
    spec = {"placementGroupSelector": selector} if selector else {}
    drift_of = drift_from(node_class({**STATUS, **(status or {})}, **spec), TYPES, group)
    kept = {"image_id": "ami-new", "subnet_id": "subnet-b", "security_group_ids": ("sg-1", "sg-2")}
    return drift_of and drift_of(an_instance(**{**kept, **instance}))


@pytest.mark.parametrize(
    ("instance", "reason"),
    [
        ({}, ""),
        ({"image_id": "ami-old"}, "AMIDrift"),
        ({"image_id": "ami-arm"}, "AMIDrift"),
        ({"security_group_ids": ("sg-1",)}, "SecurityGroupDrift"),
        ({"security_group_ids": ("sg-1", "sg-2", "sg-3")}, "SecurityGroupDrift"),
        ({"subnet_id": "subnet-c"}, "SubnetDrift"),
        ({"reservation_id": "cr-1"}, ""),
        ({"reservation_id": "cr-2"}, "CapacityReservationDrift"),
        ({"placement_group_id": "pg-1"}, "PlacementGroupDrift"),
        ({"image_id": "ami-old", "subnet_id": "subnet-c", "security_group_ids": ()}, "AMIDrift"),
        ({"subnet_id": "subnet-c", "security_group_ids": ()}, "SecurityGroupDrift"),
        ({"instance_type": "gone"}, None),
    ],
)
def test_first_difference_is_the_reason(instance, reason):
    """The AMI is the newest that fits the instance's type."""
    assert drift(**instance) == reason


def test_instance_outside_the_selected_placement_group_drifts():
    """While the group does not exist, a condition of the NodeClass says so, and no node drifts."""
    selected = {"selector": {"name": "fast"}, "group": GROUP}
    assert drift(**selected) == "PlacementGroupDrift"
    assert drift(**selected, placement_group_id="pg-1") == ""
    assert drift(selector={"name": "fast"}, placement_group_id="pg-0") == ""


@pytest.mark.parametrize("field", ["amis", "subnets", "securityGroups"])
def test_nothing_is_known_while_the_status_is_incomplete(field):
    """Karpenter returns an error then, and keeps the condition."""
    assert drift(status={field: []}, image_id="ami-old") is None
