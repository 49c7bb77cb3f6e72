"""NodePool status: conditions, counts, hash."""

import pytest

from journeyman.core.api import labels
from journeyman.core.lifecycle.nodepool_status import reconcile_nodepools, update_nodepool_counts, usage_by_pool
from journeyman.core.state import InvalidObject
from tests.helpers.builders import (
    a_launched_claim,
    a_node,
    a_node_class,
    a_pool,
    a_running_claim,
    a_snapshot,
    ago,
    merge,
)


def written(plan, pool):
    """Return the NodePool with the plan's patches."""
    body = {"status": {"resources": dict(pool.status.resources)}}
    for action in plan.actions:
        body = merge(body, action.patch)
    return a_pool(pool.metadata.name, **body)


def conditions(plan):
    (patch,) = [a.patch["status"] for a in plan.actions if "status" in a.patch]
    return {c["type"]: (c["status"], c["reason"]) for c in patch["conditions"]}


@pytest.mark.karpenter(
    "nodepool/readiness",
    it="should have status condition on nodePool as ready if nodeClass is ready",
)
@pytest.mark.karpenter(
    "nodepool/validation",
    it="should set the NodePoolValidationSucceeded status condition to true if nodePool healthy checks succeed",
)
def test_new_nodepool_gets_conditions_counts_and_hash_once():
    """The second run writes nothing."""
    pool = a_pool()
    plan = reconcile_nodepools(a_snapshot(node_pools=(pool,)))

    assert conditions(plan)["Ready"] == ("True", "Ready")
    [chain] = plan.chains
    assert {e.reason for e in chain.events} == {"NodeClassReady", "Ready", "ValidationSucceeded"}
    assert all(e.message.endswith(f"Status: Unknown -> True, Reason: {e.reason}") for e in chain.events)
    assert {o.labels["type"] for o in chain.observations} == {e.reason for e in chain.events}
    stored = written(plan, pool)
    assert stored.metadata.annotations[labels.NODEPOOL_HASH]
    assert reconcile_nodepools(a_snapshot(node_pools=(stored,))).actions == ()


@pytest.mark.parametrize(
    ("node_classes", "expected"),
    [
        ((), ("False", "NodeClassNotFound")),
        ((a_node_class(deleting=True),), ("False", "NodeClassTerminating")),
        ((a_node_class(ready=False, reason="SubnetsNotFound"),), ("False", "SubnetsNotFound")),
        ((a_node_class(ready=False, reason="AwaitingReconciliation"),), ("Unknown", "NodeClassReadinessUnknown")),
    ],
)
@pytest.mark.karpenter(
    "nodepool/readiness",
    it="should have status condition on nodePool as not ready when nodeClass does not exist",
)
@pytest.mark.karpenter(
    "nodepool/readiness",
    it="should have status condition on nodePool as not ready if nodeClass is not ready",
)
@pytest.mark.karpenter(
    "nodepool/readiness",
    it="should mark NodeClassReady status condition on nodePool as NotReady if nodeClass is terminating",
)
def test_a_pool_is_as_ready_as_its_node_class(node_classes, expected):
    """The condition has the NodeClass's reason."""
    plan = reconcile_nodepools(a_snapshot(node_classes=node_classes))
    assert conditions(plan)["NodeClassReady"] == expected
    assert conditions(plan)["Ready"][0] == expected[0]


@pytest.mark.karpenter(
    "nodepool/counter",
    it="should set the counter from the nodeClaim and then to the node when it initializes",
)
def test_usage_counts_nodes_by_their_capacity_and_pending_claims():
    """A registered node's capacity replaces its NodeClaim's."""
    snapshot = a_snapshot(
        claims=(a_running_claim("a"), a_launched_claim("b")),
        nodes=(a_node("a", status={"capacity": {"cpu": "3900m"}}),),
    )
    usage = usage_by_pool(snapshot)["default"]
    assert usage.resources["cpu"] == 3900 + 4000
    assert usage.nodes == 2


def test_usage_leaves_out_unmanaged_nodes_and_claims_without_nodepool():
    """The label karpenter.sh/nodepool alone does not make a node managed."""
    standalone = a_launched_claim("standalone", metadata={"labels": {labels.NODEPOOL: ""}})
    assert usage_by_pool(a_snapshot(claims=(standalone,), nodes=(a_node("unmanaged"),))) == {}


def test_only_strictly_more_than_the_limit_exceeds_it():
    """Usage equal to the limit does not exceed it."""
    usage = usage_by_pool(a_snapshot(claims=(a_launched_claim(),)))["default"]
    assert usage.exceeded({"cpu": 4000, "nodes": 1}) == ()
    assert usage.exceeded({"cpu": 3999, "nodes": 0}) == ("cpu", "nodes")


@pytest.mark.karpenter("nodepool/counter", it="should zero out the counter when all nodes are deleted")
@pytest.mark.karpenter("nodepool/counter", it="should update Status.Nodes when nodes are added and removed")
def test_counts_decrease_with_removed_nodes():
    """Resources that no node has any more are removed from the status."""
    gpu = a_launched_claim(status={"capacity": {"nvidia.com/gpu": "1"}})
    pool = a_pool()
    stored = written(update_nodepool_counts(a_snapshot(node_pools=(pool,), claims=(gpu,))), pool)
    assert stored.status.nodes == 1

    (action,) = update_nodepool_counts(a_snapshot(node_pools=(stored,))).actions
    assert action.patch["status"]["nodes"] == 0
    assert action.patch["status"]["resources"]["nvidia.com/gpu"] is None
    assert action.patch["status"]["resources"]["cpu"] == "0"


@pytest.mark.karpenter(
    "nodepool/validation",
    it="should set the NodePoolValidationSucceeded status condition to false if nodePool validation failed",
)
def test_invalid_nodepool_gets_its_condition_once():
    """ValidationSucceeded is False with the reason; the second run writes nothing."""
    bad = InvalidObject(
        kind="NodePool", name="bad", uid="u", why="weight: too heavy", generation=3, created=ago(hours=1)
    )
    plan = reconcile_nodepools(a_snapshot(node_pools=(), invalid_objects=(bad,)))

    assert conditions(plan)["ValidationSucceeded"] == ("False", "NodePoolValidationFailed")
    assert conditions(plan)["Ready"][0] == "False"
    assert {e.reason for e in plan.chains[0].events} == {"ValidationSucceeded", "Ready"}

    said = a_pool(status=plan.actions[0].patch["status"]).status.conditions
    again = InvalidObject(
        kind="NodePool", name="bad", uid="u", why=bad.why, generation=3, created=ago(hours=1), conditions=said
    )
    assert reconcile_nodepools(a_snapshot(node_pools=(), invalid_objects=(again,))).actions == ()
