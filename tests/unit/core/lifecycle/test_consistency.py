"""Consistency: what a node has, against what its claim promises."""

from datetime import timedelta

import pytest

from journeyman.core.lifecycle.consistency import check_nodes, is_check_due
from journeyman.core.plan import PatchObject
from tests.helpers.builders import (
    CAPACITY,
    NOW,
    a_launched_claim,
    a_node,
    a_running_claim,
    a_snapshot,
    merge,
)

PERIOD = timedelta(minutes=10)
WANTS = {"spec": {"resources": {"requests": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "0"}}}}
PROMISED = {"status": {"capacity": {**CAPACITY, "nvidia.com/gpu": "1"}}}


def looked_at(node_capacity, *, now=NOW, claim=None):
    claim = claim or a_running_claim(**merge(WANTS, PROMISED))
    node = a_node(status={"capacity": {**CAPACITY, **node_capacity}})
    return check_nodes(a_snapshot(claims=(claim,), nodes=(node,), now=now), PERIOD)


def found(plan):
    """ConsistentStateFound as it is written, and what the Events say."""
    [patch] = [a.patch["status"] for a in plan.actions if isinstance(a, PatchObject)]
    written = next(c for c in patch["conditions"] if c["type"] == "ConsistentStateFound")
    messages = [e.message for chain in plan.chains for e in chain.events if e.reason == "FailedConsistencyCheck"]
    return (written["status"], written["reason"]), messages


@pytest.mark.karpenter(
    "nodeclaim/consistency", it="should detect issues that launch with much fewer resources than expected"
)
def test_node_below_nine_tenths_of_requested_capacity_is_reported():
    """Only requested resources count: a GPU that no pod requested may be missing."""
    assert found(looked_at({"memory": "12Gi"})) == (
        ("False", "ConsistencyCheckFailed"),
        ["expected 16Gi of resource memory, but found 12Gi (75.0% of expected)"],
    )


@pytest.mark.parametrize(("memory", "status"), [("14745Mi", "False"), ("14746Mi", "True"), ("20Gi", "True")])
@pytest.mark.karpenter(
    "nodeclaim/consistency",
    it="should set consistent state found condition to true if there are no consistency issues",
)
def test_nine_tenths_are_enough(memory, status):
    """Of 16 GiB those are 14745.6 MiB."""
    assert found(looked_at({"memory": memory}))[0][0] == status


def test_nodes_are_checked_once_per_period_and_unchecked_nodes_at_once():
    """In between a node may change, and nothing is said; what did not change is not written."""
    assert is_check_due(NOW, PERIOD)
    between = NOW + timedelta(minutes=4)
    seen = ("Launched", "Registered", "Initialized", "ConsistentStateFound", "Ready")
    claim = a_running_claim(**merge(WANTS, PROMISED), true=seen)

    assert not looked_at({"memory": "1Gi"}, now=between, claim=claim).chains
    assert found(looked_at({"memory": "1Gi"}, claim=claim))[0][0] == "False"
    assert not any(isinstance(a, PatchObject) for a in looked_at({}, claim=claim).actions)
    assert found(looked_at({}, now=between))[0][0] == "True"


def test_a_node_that_is_not_initialized_is_not_held_against_anything():
    """It may be given its devices yet."""
    claim = a_launched_claim(**merge(WANTS, PROMISED), true=("Launched", "Registered"))
    assert not looked_at({"memory": "1Gi"}, claim=claim).chains


@pytest.mark.parametrize(("cpu", "status"), [("3599m", "False"), ("3600m", "True")])
def test_exactly_nine_tenths_are_consistent(cpu, status):
    """Of 4 CPUs."""
    assert found(looked_at({"cpu": cpu}))[0][0] == status


def test_only_nodes_with_a_claim_that_stays_are_checked():
    """Unmanaged nodes, claims without a node, and terminating claims are left out."""
    claims = (a_running_claim("without-node"), a_running_claim("going", deleting=NOW))
    nodes = (a_node("going"), a_node("unmanaged"))
    assert check_nodes(a_snapshot(claims=claims, nodes=nodes), PERIOD).chains == ()
