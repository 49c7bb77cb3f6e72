"""Consistency: a node's capacity compared with the requests of its NodeClaim."""

from datetime import timedelta

import pytest

from journeyman.core.lifecycle.consistency import check_nodes, is_check_due
from journeyman.core.plan import PatchObject
from tests.helpers.actions import conditions, events
from tests.helpers.builders import CAPACITY, NOW, a_launched_claim, a_node, a_running_claim, a_snapshot, merge

PERIOD = timedelta(minutes=10)
WANTS = {"spec": {"resources": {"requests": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "0"}}}}
PROMISED = {"status": {"capacity": {**CAPACITY, "nvidia.com/gpu": "1"}}}


def check(node_capacity, *, now=NOW, claim=None):
    claim = claim or a_running_claim(**merge(WANTS, PROMISED))
    node = a_node(status={"capacity": {**CAPACITY, **node_capacity}})
    return check_nodes(a_snapshot(claims=(claim,), nodes=(node,), now=now), PERIOD)


def found(plan):
    """Return the written condition ConsistentStateFound, and the messages of the Events."""
    messages = [e.message for e in events(plan) if e.reason == "FailedConsistencyCheck"]
    return conditions(plan)["ConsistentStateFound"], messages


def test_node_below_nine_tenths_of_requested_capacity_is_reported():
    """Only requested resources count: a GPU that no pod requested may be missing."""
    said = ["expected 16Gi of resource memory, but found 12Gi (75.0% of expected)"]
    assert found(check({"memory": "12Gi"})) == (("False", "ConsistencyCheckFailed"), said)


@pytest.mark.parametrize(
    ("capacity", "status"),
    [
        ({"memory": "14745Mi"}, "False"),
        ({"memory": "14746Mi"}, "True"),
        ({"memory": "20Gi"}, "True"),
        ({"cpu": "3599m"}, "False"),
        ({"cpu": "3600m"}, "True"),
    ],
)
def test_nine_tenths_of_a_request_are_consistent(capacity, status):
    """Nine tenths of 16 GiB are 14745.6 MiB, of 4 CPUs 3600m."""
    assert found(check(capacity))[0][0] == status


def test_nodes_are_checked_once_per_period_and_unchecked_nodes_at_once():
    """Between two checks a change has no effect; an unchanged condition is not written.

    A node that is not initialized is not checked: its devices may not be registered yet.
    """
    assert is_check_due(NOW, PERIOD)
    between = NOW + timedelta(minutes=4)
    seen = ("Launched", "Registered", "Initialized", "ConsistentStateFound", "Ready")
    claim = a_running_claim(**merge(WANTS, PROMISED), true=seen)

    assert not check({"memory": "1Gi"}, now=between, claim=claim).chains
    assert found(check({"memory": "1Gi"}, claim=claim))[0][0] == "False"
    assert not any(isinstance(a, PatchObject) for a in check({}, claim=claim).actions)
    assert found(check({}, now=between))[0][0] == "True"
    joining = a_launched_claim(**merge(WANTS, PROMISED), true=("Launched", "Registered"))
    assert not check({"memory": "1Gi"}, claim=joining).chains


def test_only_nodes_with_a_nonterminating_claim_are_checked():
    """Unmanaged nodes, NodeClaims without a node, and terminating NodeClaims are skipped."""
    claims = (a_running_claim("without-node"), a_running_claim("going", deleting=NOW))
    nodes = (a_node("going"), a_node("unmanaged"))
    assert check_nodes(a_snapshot(claims=claims, nodes=nodes), PERIOD).chains == ()
