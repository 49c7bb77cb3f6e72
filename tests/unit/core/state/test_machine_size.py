"""The size of a NodeClaim's machine: what its node is believed to offer at most."""

import pytest

from journeyman.core.api import labels
from journeyman.core.api.resources import to_resources
from journeyman.core.state import StateNode
from journeyman.core.state.machine_size import machine_size
from journeyman_simulator.judge.check_nodes import allocatable
from tests.helpers.builders import GIB, a_node, a_running_claim

GROUPS = [labels.AWS_GROUP, labels.ALIBABA_GROUP, labels.HUAWEI_GROUP]


def a_labelled_claim(group=labels.AWS_GROUP, *, cpu="4", memory="16384", **status):
    metadata = {"labels": {f"{group}/instance-cpu": cpu, f"{group}/instance-memory": memory}}
    launched = {
        "capacity": {"cpu": "4", "memory": "15Gi", "pods": "58"},
        "allocatable": {"cpu": "3900m", "memory": "14Gi"},
    }
    return a_running_claim(metadata=metadata, status={**launched, **status})


def offered(claim, **allocatable_):
    """What scheduler and verification believe of a node that reports this."""
    reported = {"cpu": "4", "memory": "14Gi", **{k.replace("_", "-"): v for k, v in allocatable_.items()}}
    node = StateNode(node=a_node(status={"allocatable": reported, "capacity": reported}), claim=claim)
    assert node.allocatable() == allocatable(node)
    return node.allocatable()


@pytest.mark.parametrize("group", GROUPS)
def test_machine_has_what_the_labels_of_its_instance_type_say(group):
    """Its memory includes what a hypervisor keeps, which the capacity of the NodeClaim lacks."""
    assert machine_size(a_labelled_claim(group)) == {"cpu": 4000, "memory": 16 * GIB, "pods": 250}


def test_without_labels_the_capacity_of_the_nodeclaim_counts():
    """Labels that are no numbers count for nothing; without either, nothing is known of the machine."""
    assert machine_size(a_labelled_claim(cpu="many", memory="")) == {"cpu": 4000, "memory": 15 * GIB, "pods": 250}
    assert (
        machine_size(a_labelled_claim(cpu="", memory="", capacity=dict.fromkeys(("cpu", "memory", "pods"), "0"))) == {}
    )


@pytest.mark.parametrize(
    ("resource", "within", "beyond", "instead"),
    [
        ("cpu", "4400m", "4401m", 3900),
        ("memory", str(16 * GIB * 11 // 10), str(16 * GIB * 11 // 10 + 1), 14 * GIB),
        ("pods", "275", "276", 110),
        ("hugepages-2Mi", "16Gi", "18Gi", 16 * GIB),
    ],
)
def test_node_is_believed_up_to_ten_percent_above_its_machine(resource, within, beyond, instead):
    """More is not used: what it was launched with counts; scheduler and verification agree."""
    claim = a_labelled_claim()
    name = resource.replace("-", "_")
    assert offered(claim, **{name: beyond})[resource] == instead
    assert offered(claim, **{name: within})[resource] == to_resources({resource: within}, round_up=False)[resource]


def test_disks_and_devices_are_believed():
    """Disks are the image's and the NodeClass's matter; a device plugin may share one GPU between ten pods."""
    found = offered(a_labelled_claim(), **{"ephemeral_storage": "100Ti", "nvidia.com/gpu": "80"})
    assert (found["ephemeral-storage"], found["nvidia.com/gpu"]) == (100 * 2**40, 80)


def test_capacity_that_the_machine_cannot_have_does_not_use_up_limits():
    """A NodePool's limits count the capacity of nodes."""
    node = StateNode(node=a_node(status={"capacity": {"cpu": "1000", "memory": "14Gi"}}), claim=a_labelled_claim())
    assert node.capacity()["cpu"] == 4000


def test_node_whose_claim_is_lost_is_believed_up_to_what_its_labels_say():
    """They were the NodeClaim's. The node has memory for its pods, as before."""
    reported = {"cpu": "1000", "memory": "14Gi", "pods": "58"}
    own = {"labels": dict(a_labelled_claim().metadata.labels)}
    node = StateNode(node=a_node(status={"allocatable": reported}, metadata=own), claim=None)
    found = node.allocatable()
    assert found == allocatable(node)
    assert (found["cpu"], found["memory"], found["pods"]) == (4000, 14 * GIB, 58)


def test_node_of_others_is_believed():
    """Nothing is known of its machine."""
    node = StateNode(node=a_node(status={"allocatable": {"cpu": "1000"}}), claim=None)
    assert node.allocatable()["cpu"] == allocatable(node)["cpu"] == 1_000_000
