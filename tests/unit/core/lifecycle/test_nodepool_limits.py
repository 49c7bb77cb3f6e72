"""NodePool limits: NodeClaims that each fit the limits are launched only if all fit together."""

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue
from journeyman.core.lifecycle.nodepool_limits import check_limits
from journeyman.core.plan import DeleteObject, Requeue, Step
from tests.helpers.actions import of_type
from tests.helpers.builders import (
    NOW,
    a_claim,
    a_launched_claim,
    a_node,
    a_pool,
    a_running_claim,
    a_snapshot,
    ago,
    an_instance_type,
    condition,
    stamp,
)
from tests.helpers.small_clusters import table

CATALOGUE = Catalogue(
    {
        "default": (
            an_instance_type("m.medium", cpu=4, memory_gib=16, price=0.2),
            an_instance_type("m.large", cpu=8, memory_gib=32, price=0.4),
        )
    }
)
LARGE = {"spec": {"requirements": [{"key": labels.INSTANCE_TYPE, "operator": "In", "values": ["m.large"]}]}}


def decide_limits(*claims, asked, limits, nodes=()):
    """Return (NodeClaims that must not launch, deleted NodeClaims, the first requeue time)."""
    snapshot = a_snapshot(claims=claims, nodes=nodes, node_pools=(a_pool(spec={"limits": limits}),))
    checked = check_limits(asked, snapshot, CATALOGUE)
    deleted = [a.ref.name for a in of_type(checked.plan, DeleteObject)]
    latest_first = sorted(of_type(checked.plan, Requeue), key=lambda requeue: requeue.at, reverse=True)
    return sorted(checked.blocked), deleted, {requeue.step: requeue.at for requeue in latest_first}


def unlaunched(name, *, seconds_ago=0, **more):
    return a_claim(name, metadata={"creationTimestamp": stamp(ago(seconds=seconds_ago))}, **more)


@pytest.mark.parametrize("limits", [{}, {"cpu": "8"}, {"cpu": "8", "nodes": "2", "memory": "32Gi"}])
def test_claims_that_fit_together_are_launched(limits):
    """Each counts as its largest possible type."""
    assert decide_limits(unlaunched("a"), unlaunched("b"), asked=["a", "b"], limits=limits) == ([], [], {})


@pytest.mark.parametrize("limits", [{"cpu": "7"}, {"nodes": "1"}, {"cpu": "80", "memory": "31Gi"}])
def test_younger_claim_beyond_limits_is_deleted_and_older_waits(limits):
    """None is launched while both exist, because another run may launch the other."""
    older, younger = unlaunched("old", seconds_ago=3), unlaunched("a-young")
    held, deleted, wakes = decide_limits(older, younger, asked=["a-young", "old"], limits=limits)
    assert (held, deleted) == (["a-young", "old"], ["a-young"])
    assert wakes == {Step.TERMINATE: NOW, Step.PROVISION: NOW}


def test_run_deletes_only_the_nodeclaims_that_it_would_launch():
    """This run's older NodeClaim waits; the other run deletes its younger one."""
    claims = unlaunched("old", seconds_ago=3), unlaunched("young")
    held, deleted, wakes = decide_limits(*claims, asked=["old"], limits={"cpu": "4"})
    assert (held, deleted) == (["old"], [])
    assert list(wakes) == [Step.PROVISION]
    assert wakes[Step.PROVISION] > NOW
    assert decide_limits(*claims, asked=["young"], limits={"cpu": "4"})[1] == ["young"]


def test_running_nodes_have_precedence_over_unlaunched_claims():
    """Age does not matter for them; a NodeClaim that fits with them waits only for those that do not."""
    launched = a_launched_claim("launched", metadata={"creationTimestamp": stamp(NOW)})
    claims = (launched, unlaunched("old", seconds_ago=9), unlaunched("older", seconds_ago=20))
    assert decide_limits(*claims, asked=["old", "older"], limits={"cpu": "8"})[:2] == (["old", "older"], ["old"])
    assert decide_limits(*claims, asked=["old", "older"], limits={"cpu": "3"})[1] == ["older", "old"]


TAINTED = {"taints": [{"key": labels.DISRUPTED_TAINT, "effect": "NoSchedule"}]}


@table(
    "claim, node",
    deleted=({"deleting": NOW}, {}),
    candidate_of_a_command=({"status": {"conditions": [condition("DisruptionReason", reason="Underutilized")]}}, {}),
    tainted_for_one=({}, {"spec": TAINTED}),
)
def test_terminating_nodes_free_capacity(claim, node):
    """Their replacements need it."""
    claims = a_running_claim("going", **claim), unlaunched("new")
    assert decide_limits(*claims, asked=["new"], limits={"cpu": "4"}, nodes=(a_node("going", **node),)) == ([], [], {})


def test_claims_that_are_gone_or_of_no_pool_have_no_limit():
    """The launch itself fails if they no longer exist."""
    alone = unlaunched("alone")
    alone = replace(alone, metadata=replace(alone.metadata, labels={labels.NODEPOOL: "deleted"}))
    assert decide_limits(alone, asked=["alone", "gone"], limits={"cpu": "4"}) == ([], [], {})


def test_withdrawn_claim_leaves_its_capacity_to_smaller_younger_ones():
    """The older one does not fit and is deleted; the younger one then fits. A launched one still counts: its instance exists."""
    older, younger = unlaunched("older", seconds_ago=9, **LARGE), unlaunched("younger")
    assert decide_limits(older, younger, asked=["older", "younger"], limits={"cpu": "6"})[1] == ["older"]
    launched = a_launched_claim("launched", status={"capacity": {"cpu": "8"}})
    assert decide_limits(launched, unlaunched("new"), asked=["new"], limits={"cpu": "6"})[1] == ["new"]
