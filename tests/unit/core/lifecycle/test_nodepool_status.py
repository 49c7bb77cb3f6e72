"""NodePool status: conditions, counts, hash."""

import msgspec
import pytest

from journeyman.core.api import labels
from journeyman.core.api.hashes import NODEPOOL_HASH_VERSION, node_pool_hash
from journeyman.core.api.objects import NODEPOOL
from journeyman.core.lifecycle.nodepool_status import reconcile_nodepools, update_nodepool_counts, usage_by_pool
from journeyman.core.plan import Step
from journeyman.core.state import InvalidObject
from journeyman.ports import RequeueDue
from journeyman.steps.provision import provision
from tests.helpers.builders import (
    CAPACITY,
    NOW,
    a_claim,
    a_launched_claim,
    a_node,
    a_node_class,
    a_pool,
    a_running_claim,
    a_snapshot,
    ago,
    condition,
    merge,
    node_class_body,
    pool_body,
    provider_id_of,
)
from tests.helpers.fakes import Cluster


def written(plan, pool):
    """Return the NodePool with the plan's patches."""
    body = {"status": {"resources": dict(pool.status.resources)}}
    for action in plan.actions:
        body = merge(body, action.patch)
    return a_pool(pool.metadata.name, **body)


def conditions(plan):
    (patch,) = [a.patch["status"] for a in plan.actions if "status" in a.patch]
    return {c["type"]: (c["status"], c["reason"]) for c in patch["conditions"]}


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
def test_a_pool_is_as_ready_as_its_node_class(node_classes, expected):
    """The condition has the NodeClass's reason."""
    plan = reconcile_nodepools(a_snapshot(node_classes=node_classes))
    assert conditions(plan)["NodeClassReady"] == expected
    assert conditions(plan)["Ready"][0] == expected[0]


def test_usage_counts_nodes_by_their_capacity_and_pending_claims():
    """A registered node's capacity replaces its NodeClaim's."""
    snapshot = a_snapshot(
        claims=(a_running_claim("a"), a_launched_claim("b")),
        nodes=(a_node("a", status={"capacity": {"cpu": "3900m"}}),),
    )
    usage = usage_by_pool(snapshot)["default"]
    assert usage.resources["cpu"] == 3900 + 4000
    assert usage.nodes == 2


def test_usage_leaves_out_nodes_and_claims_without_nodepool():
    """A NodeClaim that a user created needs no NodePool."""
    standalone = a_launched_claim("standalone", metadata={"labels": {labels.NODEPOOL: ""}})
    joined = a_node("joined", metadata={"labels": {labels.NODEPOOL: ""}})
    assert usage_by_pool(a_snapshot(claims=(standalone,), nodes=(joined,))) == {}


def test_usage_counts_a_node_of_the_nodepool_whose_claim_is_gone():
    """Its instance runs until the node is drained."""
    usage = usage_by_pool(a_snapshot(nodes=(a_node("unclaimed"),)))["default"]
    assert (usage.nodes, usage.resources["cpu"]) == (1, 4000)


def test_usage_counts_an_instance_once_however_many_objects_name_it():
    """Two Nodes have its provider id after the kubelet was renamed, and a user gave it to a second NodeClaim."""
    again = a_node("a", metadata={"name": "renamed", "uid": "uid-renamed"}, status={"capacity": {"cpu": "4"}})
    copy = a_launched_claim("copy", provider_id=provider_id_of("a"))
    snapshot = a_snapshot(claims=(a_running_claim("a"), copy), nodes=(a_node("a"), again))
    usage = usage_by_pool(snapshot)["default"]
    assert (usage.nodes, usage.resources["cpu"]) == (1, 4000)


def test_usage_leaves_out_claims_without_an_instance():
    """Karpenter counts a NodeClaim from its launch on."""
    assert usage_by_pool(a_snapshot(claims=(a_claim(),))) == {}


@pytest.mark.parametrize("name", ["initialized", "joining", "zero"])
def test_usage_has_the_extended_resources_of_nodes_that_are_not_initialized(name):
    """The Node has them only once its device plugin runs, so the NodeClaim's count until the node is initialized."""
    gpus = {**CAPACITY, "nvidia.com/gpu": "8"}
    state = {
        "initialized": (a_running_claim, {}),
        "joining": (a_launched_claim, {"metadata": {"labels": {labels.INITIALIZED: "false"}}}),
        "zero": (a_launched_claim, {"registered": False, "status": {"capacity": {**CAPACITY, "nvidia.com/gpu": "0"}}}),
    }
    make, changes = state[name]
    changes = {"metadata": {"labels": {labels.NODEPOOL: "default"}}, **changes}
    snapshot = a_snapshot(claims=(make(name, status={"capacity": gpus}),), nodes=(a_node(name, **changes),))
    usage = usage_by_pool(snapshot)["default"]
    assert usage.resources.get("nvidia.com/gpu", 0) == (0 if name == "initialized" else 8)
    assert usage.resources["cpu"] == 4000


LEAVING = {
    "its NodeClaim is deleted": ({"deleting": NOW}, {}),
    "its Node is deleted": ({}, {"deleting": NOW}),
    "a command disrupts it": ({"status": {"conditions": [condition("DisruptionReason", reason="Empty")]}}, {}),
    "it is tainted": ({}, {"spec": {"taints": [{"key": labels.DISRUPTED_TAINT, "effect": "NoSchedule"}]}}),
}


@pytest.mark.parametrize(("claim", "node"), LEAVING.values(), ids=LEAVING)
def test_usage_leaves_out_nodes_that_are_leaving(claim, node):
    """Their replacements need their share of the limits; the status counts them no longer."""
    staying, leaving = a_running_claim("staying"), a_running_claim("leaving", **claim)
    snapshot = a_snapshot(claims=(staying, leaving), nodes=(a_node("staying"), a_node("leaving", **node)))
    usage = usage_by_pool(snapshot)["default"]
    assert (usage.nodes, usage.resources["cpu"]) == (1, 4000)


def test_usage_of_a_pool_whose_nodes_all_leave_is_zero():
    """A NodeClaim that a command disrupts and that is deleted as well counts once less, not twice."""
    both = a_running_claim(deleting=NOW, status={"conditions": [condition("DisruptionReason", reason="Empty")]})
    assert usage_by_pool(a_snapshot(claims=(both,), nodes=(a_node(deleting=NOW),))) == {}


def test_a_nodepool_without_nodes_counts_zero_of_each_well_known_resource():
    """`kubectl get nodepools` shows numbers from the start."""
    (action,) = update_nodepool_counts(a_snapshot()).actions
    zeros = dict.fromkeys(("cpu", "memory", "pods", "ephemeral-storage", "nodes"), "0")
    assert action.patch["status"]["resources"] == zeros
    assert written(update_nodepool_counts(a_snapshot()), a_pool()).status.nodes == 0


def test_counts_follow_the_nodes():
    """They are written with each change, and only then."""
    small = {"capacity": {"cpu": "100m", "memory": "1Gi", "pods": "256"}}
    large = {"capacity": {"cpu": "500m", "memory": "5Gi", "pods": "1000"}}
    claims = (a_running_claim("a"), a_running_claim("b", status={"capacity": {"pods": "1000"}}))
    nodes = (a_node("a", status=small), a_node("b", status=large))
    for node, amounts in zip(nodes, (small, large), strict=True):
        node.status.capacity.clear()
        node.status.capacity.update(amounts["capacity"])
    pool = a_pool()
    seen = []
    for part in (slice(0, 1), slice(0, 2), slice(1, 2)):
        snapshot = a_snapshot(node_pools=(pool,), claims=claims[part], nodes=nodes[part])
        pool = written(update_nodepool_counts(snapshot), pool)
        seen.append((pool.status.nodes, pool.status.resources["cpu"], pool.status.resources["pods"]))
        assert update_nodepool_counts(msgspec.structs.replace(snapshot, node_pools=(pool,))).actions == ()
    assert seen == [(1, "100m", "256"), (2, "600m", "1256"), (1, "500m", "1000")]


def test_each_nodepool_counts_its_own_nodes():
    """A static NodePool counts the nodes that it has, not its replicas."""
    static = a_pool("static", spec={"replicas": 3})
    of_static = {"metadata": {"labels": {labels.NODEPOOL: "static"}}}
    claims = (a_running_claim("a"), a_launched_claim("s1", **of_static), a_launched_claim("s2", **of_static))
    plan = update_nodepool_counts(a_snapshot(node_pools=(a_pool(), static), claims=claims, nodes=(a_node("a"),)))
    assert {a.ref.name: a.patch["status"]["nodes"] for a in plan.actions} == {"default": 1, "static": 2}


def test_usage_is_by_the_labels_of_the_node_or_else_of_its_claim():
    """The label of a registered Node decides; without its Node the NodeClaim stands for it, also under another provider id."""
    moved = a_node("a", metadata={"labels": {labels.NODEPOOL: "other"}})
    assert set(usage_by_pool(a_snapshot(claims=(a_running_claim("a"),), nodes=(moved,)))) == {"other"}
    without = usage_by_pool(a_snapshot(claims=(a_running_claim("a"),)))
    assert (without["default"].nodes, without["default"].resources["cpu"]) == (1, 4000)
    owner = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": "a", "uid": "uid-a"}
    changed = a_node("a", spec={"providerID": "aws:///a/i-new"}, metadata={"ownerReferences": [owner]})
    usage = usage_by_pool(a_snapshot(claims=(a_running_claim("a"),), nodes=(changed,)))
    assert usage["default"].nodes == 1


def test_hash_of_another_version_is_replaced():
    """An earlier release or Karpenter wrote it."""
    old = {labels.NODEPOOL_HASH: "12345", labels.NODEPOOL_HASH_VERSION: "v0"}
    pool = written(reconcile_nodepools(a_snapshot(node_pools=(a_pool(metadata={"annotations": old}),))), a_pool())
    assert pool.metadata.annotations[labels.NODEPOOL_HASH_VERSION] == NODEPOOL_HASH_VERSION
    assert pool.metadata.annotations[labels.NODEPOOL_HASH] == node_pool_hash(pool)


def capacity_types(*values):
    requirement = {"key": labels.CAPACITY_TYPE, "operator": "In", "values": list(values)}
    return {"template": {"spec": {"requirements": [requirement]}}}


@pytest.mark.parametrize(
    ("values", "valid"), [(["xspot"], False), (["on-demand"], True), (["on-demand", "xspot"], True)]
)
def test_a_nodepool_needs_one_valid_capacity_type(values, valid):
    """The step reads it from the API server, and its status says whether it validates."""
    cluster = Cluster()
    cluster.server.load([{**pool_body(spec=capacity_types(*values))}, node_class_body()])
    provision(cluster.run(), RequeueDue(id="1", cluster="demo", step=Step.PROVISION, reason="test", time=NOW))
    found = cluster.server.get(NODEPOOL, "default")["status"]["conditions"]
    status = {c["type"]: c["status"] for c in found}
    assert (status["ValidationSucceeded"], status["Ready"]) == (("True", "True") if valid else ("False", "False"))


def test_only_strictly_more_than_the_limit_exceeds_it():
    """Usage equal to the limit does not exceed it."""
    usage = usage_by_pool(a_snapshot(claims=(a_launched_claim(),)))["default"]
    assert usage.exceeded({"cpu": 4000, "nodes": 1}) == ()
    assert usage.exceeded({"cpu": 3999, "nodes": 0}) == ("cpu", "nodes")


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
