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
from tests.helpers.actions import conditions, events
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
from tests.helpers.small_clusters import table


def written(plan, pool):
    """Return the NodePool with the plan's patches."""
    body = {"status": {"resources": dict(pool.status.resources)}}
    for action in plan.actions:
        body = merge(body, action.patch)
    return a_pool(pool.metadata.name, **body)


def test_new_nodepool_gets_conditions_counts_and_hash_once():
    """The second run writes nothing."""
    pool = a_pool()
    plan = reconcile_nodepools(a_snapshot(node_pools=(pool,)))

    assert conditions(plan, "NodePool")["Ready"] == ("True", "Ready")
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
    found = conditions(reconcile_nodepools(a_snapshot(node_classes=node_classes)), "NodePool")
    assert (found["NodeClassReady"], found["Ready"][0]) == (expected, expected[0])


def of_pool(name):
    return {"metadata": {"labels": {labels.NODEPOOL: name}}}


def owned_by(name):
    return {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": name, "uid": f"uid-{name}"}


def with_gpus(number):
    return {"status": {"capacity": {**CAPACITY, "nvidia.com/gpu": number}}}


A, B = a_running_claim("a"), a_launched_claim("b")
RENAMED = {"metadata": {"name": "renamed", "uid": "uid-renamed"}, "status": {"capacity": {"cpu": "4"}}}
MOVED = {"spec": {"providerID": "aws:///a/i-new"}, "metadata": {"ownerReferences": [owned_by("a")]}}
NOT_YET = {"metadata": {"labels": {labels.NODEPOOL: "default", labels.INITIALIZED: "false"}}}
DISRUPTED = {"conditions": [condition("DisruptionReason", reason="Empty")]}
TAINTED = {"taints": [{"key": labels.DISRUPTED_TAINT, "effect": "NoSchedule"}]}
NONE, ONE = {}, {"default": (1, 4000, 0)}


@table(
    "claims, nodes, expected",
    of_nodes_by_their_capacity_and_of_pending_claims=(
        (A, B), (a_node("a", status={"capacity": {"cpu": "3900m"}}),), {"default": (2, 7900, 0)}
    ),
    without_what_has_no_nodepool_as_a_user_created_it=(
        (a_launched_claim("standalone", **of_pool("")),), (a_node("joined", **of_pool("")),), NONE
    ),
    with_a_node_whose_claim_is_gone=((), (a_node("unclaimed"),), ONE),
    with_a_node_once_that_has_two_names_and_claims=(
        (A, a_launched_claim("copy", provider_id=provider_id_of("a"))), (a_node("a"), a_node("a", **RENAMED)), ONE
    ),
    without_claims_before_their_launch=((a_claim(),), (), NONE),
    with_resources_of_an_initialized_node=((a_running_claim("a", **with_gpus("8")),), (a_node("a"),), ONE),
    with_resources_of_the_claim_of_a_joining_node=(
        (a_launched_claim("b", **with_gpus("8")),), (a_node("b", **NOT_YET),), {"default": (1, 4000, 8)}
    ),
    with_resources_of_the_claim_while_the_node_has_zero=(
        (a_launched_claim("b", **with_gpus("8")),),
        (a_node("b", registered=False, **merge(of_pool("default"), with_gpus("0"))),),
        {"default": (1, 4000, 8)},
    ),
    without_a_deleted_claim=((A, a_running_claim("b", deleting=NOW)), (a_node("a"), a_node("b")), ONE),
    without_a_deleted_node=((A, a_running_claim("b")), (a_node("a"), a_node("b", deleting=NOW)), ONE),
    without_a_disrupted_node=((A, a_running_claim("b", status=DISRUPTED)), (a_node("a"), a_node("b")), ONE),
    without_a_tainted_node=((A, a_running_claim("b")), (a_node("a"), a_node("b", spec=TAINTED)), ONE),
    without_a_disrupted_and_deleted_node_once=(
        (a_running_claim(deleting=NOW, status=DISRUPTED),), (a_node(deleting=NOW),), NONE
    ),
    by_the_label_of_the_registered_node=((A,), (a_node("a", **of_pool("other")),), {"other": (1, 4000, 0)}),
    by_the_claim_without_its_node=((A,), (), ONE),
    by_the_claim_of_a_node_with_another_provider_id=((A,), (a_node("a", **MOVED),), {"default": (1, None, 0)}),
)  # fmt: skip
def test_usage_is_of_nodes_that_stay_and_of_launched_claims(claims, nodes, expected):
    """An instance counts once, however many objects name it. Replacements need the share of nodes that leave.

    A Node has extended resources only once its device plugin runs, so those of the NodeClaim count until it is initialized.
    """
    found = usage_by_pool(a_snapshot(claims=claims, nodes=nodes))
    assert found.keys() == expected.keys()
    for pool, (number, cpu, gpus) in expected.items():
        usage = found[pool]
        assert (usage.nodes, usage.resources.get("nvidia.com/gpu", 0)) == (number, gpus)
        assert cpu in {None, usage.resources["cpu"]}


def test_a_nodepool_without_nodes_counts_zero_of_each_well_known_resource():
    """`kubectl get nodepools` shows numbers from the start."""
    plan = update_nodepool_counts(a_snapshot())
    (action,) = plan.actions
    zeros = dict.fromkeys(("cpu", "memory", "pods", "ephemeral-storage", "nodes"), "0")
    assert action.patch["status"]["resources"] == zeros
    assert written(plan, a_pool()).status.nodes == 0


def test_counts_follow_the_nodes():
    """They are written with each change, and only then."""
    amounts = {"a": ("100m", "1Gi", "256"), "b": ("500m", "5Gi", "1000")}
    claims = (a_running_claim("a"), a_running_claim("b", status={"capacity": {"pods": "1000"}}))
    nodes = tuple(a_node(name) for name in amounts)
    for node, of_node in zip(nodes, amounts.values(), strict=True):
        node.status.capacity.clear()
        node.status.capacity.update(zip(("cpu", "memory", "pods"), of_node, strict=True))
    pool = a_pool()
    seen = []
    for part in (slice(0, 1), slice(0, 2), slice(1, 2)):
        snapshot = a_snapshot(node_pools=(pool,), claims=claims[part], nodes=nodes[part])
        pool = written(update_nodepool_counts(snapshot), pool)
        seen.append((pool.status.nodes, pool.status.resources["cpu"], pool.status.resources["pods"]))
        assert update_nodepool_counts(msgspec.structs.replace(snapshot, node_pools=(pool,))).actions == ()
    assert seen == [(1, "100m", "256"), (2, "600m", "1256"), (1, "500m", "1000")]


def test_counts_decrease_with_removed_nodes():
    """Resources that no node has any more are removed from the status."""
    gpu = a_launched_claim(status={"capacity": {"nvidia.com/gpu": "1"}})
    stored = written(update_nodepool_counts(a_snapshot(node_pools=(a_pool(),), claims=(gpu,))), a_pool())
    assert stored.status.nodes == 1

    (action,) = update_nodepool_counts(a_snapshot(node_pools=(stored,))).actions
    resources = action.patch["status"]["resources"]
    assert (action.patch["status"]["nodes"], resources["nvidia.com/gpu"], resources["cpu"]) == (0, None, "0")


def test_each_nodepool_counts_its_own_nodes():
    """A static NodePool counts the nodes that it has, not its replicas."""
    static = a_pool("static", spec={"replicas": 3})
    claims = (A, *(a_launched_claim(name, **of_pool("static")) for name in ("s1", "s2")))
    plan = update_nodepool_counts(a_snapshot(node_pools=(a_pool(), static), claims=claims, nodes=(a_node("a"),)))
    assert {a.ref.name: a.patch["status"]["nodes"] for a in plan.actions} == {"default": 1, "static": 2}


def test_hash_of_another_version_is_replaced():
    """An earlier release or Karpenter wrote it."""
    old = {labels.NODEPOOL_HASH: "12345", labels.NODEPOOL_HASH_VERSION: "v0"}
    pool = written(reconcile_nodepools(a_snapshot(node_pools=(a_pool(metadata={"annotations": old}),))), a_pool())
    assert pool.metadata.annotations[labels.NODEPOOL_HASH_VERSION] == NODEPOOL_HASH_VERSION
    assert pool.metadata.annotations[labels.NODEPOOL_HASH] == node_pool_hash(pool)


@pytest.mark.parametrize(
    ("values", "status"), [(["xspot"], "False"), (["on-demand"], "True"), (["on-demand", "xspot"], "True")]
)
def test_a_nodepool_needs_one_valid_capacity_type(values, status):
    """The step reads it from the API server, and its status says whether it validates."""
    requirement = {"key": labels.CAPACITY_TYPE, "operator": "In", "values": values}
    cluster = Cluster()
    body = pool_body(spec={"template": {"spec": {"requirements": [requirement]}}})
    cluster.server.load([body, node_class_body()])
    provision(cluster.run(), RequeueDue(id="1", cluster="demo", step=Step.PROVISION, reason="test", time=NOW))
    found = {c["type"]: c["status"] for c in cluster.server.get(NODEPOOL, "default")["status"]["conditions"]}
    assert (found["ValidationSucceeded"], found["Ready"]) == (status, status)


def test_only_strictly_more_than_the_limit_exceeds_it():
    """Usage equal to the limit does not exceed it."""
    usage = usage_by_pool(a_snapshot(claims=(a_launched_claim(),)))["default"]
    assert usage.exceeded({"cpu": 4000, "nodes": 1}) == ()
    assert usage.exceeded({"cpu": 3999, "nodes": 0}) == ("cpu", "nodes")


def test_invalid_nodepool_gets_its_condition_once():
    """ValidationSucceeded is False with the reason; the second run writes nothing."""
    bad = InvalidObject(
        kind="NodePool", name="bad", uid="u", why="weight: too heavy", generation=3, created=ago(hours=1)
    )
    plan = reconcile_nodepools(a_snapshot(node_pools=(), invalid_objects=(bad,)))

    assert conditions(plan, "NodePool")["ValidationSucceeded"] == ("False", "NodePoolValidationFailed")
    assert conditions(plan, "NodePool")["Ready"][0] == "False"
    assert {e.reason for e in events(plan)} == {"ValidationSucceeded", "Ready"}

    said = a_pool(status=plan.actions[0].patch["status"]).status.conditions
    again = msgspec.structs.replace(bad, conditions=said)
    assert reconcile_nodepools(a_snapshot(node_pools=(), invalid_objects=(again,))).actions == ()
