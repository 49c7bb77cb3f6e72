"""Garbage collection and expiration of NodeClaims."""

from datetime import timedelta

import pytest

from journeyman.core.api import labels
from journeyman.core.lifecycle.expiration import delete_claims_of_ending_blocks, ending_block, expire_nodeclaims
from journeyman.core.lifecycle.garbage_collection import (
    ESTABLISHED,
    OrphanWaits,
    delete_claims_without_instance,
    lost_objects,
)
from journeyman.core.plan import DeleteObject, PatchObject, Requeue, TerminateInstance, merge_plans
from journeyman.core.state.instances import CloudInstances
from tests.helpers.actions import done, of_type, reasons
from tests.helpers.builders import (
    NOW,
    a_claim,
    a_launched_claim,
    a_node,
    a_node_class,
    a_pod,
    a_running_claim,
    a_snapshot,
    an_instance,
    provider_id_of,
)
from tests.helpers.small_clusters import table

ID = provider_id_of("default-1")
NODE = "node-default-1"
RENAMED = a_node(metadata={"name": "renamed", "uid": "uid-renamed"})
DRAINING = {"spec": {"taints": [{"key": labels.DISRUPTED_TAINT, "effect": "NoSchedule"}]}}


def daemon_pod(name):
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d"}
    return a_pod(name, node=NODE, metadata={"ownerReferences": [owner]})


def run(claims=(), nodes=(), instances=(), gone=(), pods=()):
    """Return the removals, with those that the brake would allow; without NodePools no instance is adopted."""
    snapshot = a_snapshot(claims=tuple(claims), nodes=tuple(nodes), pods=tuple(pods), node_pools=())
    cloud = CloudInstances(listed=tuple(instances), missing=frozenset(gone))
    lost = lost_objects(snapshot, cloud, OrphanWaits())
    return merge_plans((delete_claims_without_instance(snapshot, cloud), *(one.removal for one in lost)))


def tagged(claim="default-1", *, instance="default-1", uid=""):
    """Return an instance whose tags name a NodeClaim, or also its UID."""
    tags = {labels.NODECLAIM_TAG: claim, labels.NODECLAIM_UID_TAG: uid}
    return an_instance(instance, tags={key: value for key, value in tags.items() if value})


@pytest.mark.parametrize(("age", "waits"), [(ESTABLISHED - timedelta(seconds=1), 30), (ESTABLISHED, 300)])
def test_instance_that_ran_for_long_is_kept_longer_without_its_nodeclaim(age, waits):
    """After the API server was restored its kubelet registers it again; a launch that was cut off never has a Node."""
    [lost] = lost_objects(a_snapshot(), CloudInstances(listed=(an_instance(age=age),)), OrphanWaits())
    assert (lost.name, lost.wait) == (ID, timedelta(seconds=waits))


@pytest.mark.parametrize(
    ("listed", "surely", "maybe"), [((an_instance("b"),), "delete NodeClaim a", []), ((), "", ["a", "b"])]
)
def test_claims_are_surely_lost_only_while_the_cloud_lists_others_of_the_fleet(listed, surely, maybe):
    """If it finds none at all, the credentials may be those of another account."""
    claims, nodes = (a_running_claim("a"), a_running_claim("b")), (a_node("a", ready=False), a_node("b", ready=False))
    gone = {provider_id_of(name) for name in ("a", "b")} - {instance.provider_id for instance in listed}
    snapshot, cloud = a_snapshot(claims=claims, nodes=nodes), CloudInstances(listed=listed, missing=frozenset(gone))

    plan = delete_claims_without_instance(snapshot, cloud)

    assert (done(plan), bool(plan.actions)) == (surely, bool(surely))
    assert [lost.name for lost in lost_objects(snapshot, cloud, OrphanWaits())] == maybe


def test_orphaned_instance_without_a_node_is_terminated():
    """The cloud's tags name the NodeClaim, which must not exist by then either."""
    (terminate,) = run(instances=[an_instance()]).actions
    assert isinstance(terminate, TerminateInstance)
    assert (terminate.claim, terminate.claim_uid, terminate.unless_claimed) == ("default-1", "uid-default-1", True)


@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize("registered", [True, False])
def test_node_of_orphaned_instance_is_drained_first(registered, ready):
    """Pods may run on it though it is not Ready or its kubelet registered it again; the finalizer keeps it until they are gone."""
    node = a_node(ready=ready, registered=registered, metadata={"finalizers": []})
    held, deleted, _ = run(nodes=[node], instances=[an_instance()]).actions
    assert isinstance(held, PatchObject)
    assert held.patch["metadata"]["finalizers"] == [labels.TERMINATION_FINALIZER]
    assert isinstance(deleted, DeleteObject)
    assert (deleted.ref.resource.kind, deleted.ref.uid) == ("Node", "uid-node-default-1")
    assert (deleted.unless_exists.name, deleted.unless_exists.uid) == ("default-1", "uid-default-1")


def test_node_of_orphaned_instance_is_deleted_though_the_tags_name_a_claim_with_another_instance():
    """A user edited the tags; the NodeClaim that they name keeps its own node."""
    instances = [an_instance("other"), tagged("other")]
    deleted, _ = run([a_running_claim("other")], [a_node("other"), a_node()], instances).actions
    assert isinstance(deleted, DeleteObject)
    assert (deleted.ref.name, deleted.unless_exists) == (NODE, None)


ADOPTED = a_running_claim(metadata={"annotations": {labels.ADOPTED: ID}})
HELD = a_node(deleting=ADOPTED.metadata.creation_timestamp)
NOT_READY = a_node(ready=False)
UNNAMED = a_running_claim(status={"providerID": "", "nodeName": NODE})
UNLAUNCHED = a_running_claim(true=("Registered", "Initialized"), status={"providerID": "", "nodeName": NODE})
CUT_OFF = [a_claim("cut-off")]


@table(
    "cluster, expected",
    its_drain_ends_the_instance=({"nodes": [a_node(deleting=NOW, **DRAINING)], "instances": [an_instance()]}, None),
    it_is_going=({"instances": [an_instance(state="shutting-down")]}, None),
    its_claim_is_there=({"claims": [a_launched_claim()], "instances": [an_instance()]}, None),
    its_launch_was_cut_off=({"claims": CUT_OFF, "instances": [an_instance("cut-off")]}, None),
    its_launch_by_Karpenter_was_cut_off=(
        {"claims": CUT_OFF, "instances": [tagged("cut-off", instance="cut-off")]}, None
    ),
    its_cloud_knows_only_the_UID_while_it_builds_the_instance=(
        {"claims": CUT_OFF, "instances": [tagged("", instance="cut-off", uid="uid-cut-off")]}, None
    ),
    it_is_of_an_earlier_claim_of_the_name=(
        {"claims": [a_claim("again")], "instances": [tagged("again", instance="again", uid="another")]},
        "terminate i-again",
    ),
    its_node_is_Ready=({"claims": [a_running_claim()], "nodes": [a_node()], "gone": [ID]}, None),
    it_never_registered_so_liveness_decides=({"claims": [a_launched_claim()], "gone": [ID]}, None),
    its_claim_is_going_already=({"claims": [a_running_claim(deleting=NOW)], "gone": [ID]}, None),
    its_node_is_missing_and_may_register_again=({"claims": [a_running_claim()], "instances": [an_instance()]}, None),
    its_provider_id_was_removed_but_its_node_exists=({"claims": [UNNAMED], "nodes": [NOT_READY]}, None),
    its_next_launch_returns_its_instance=({"claims": [UNLAUNCHED]}, None),
    it_is_only_unlisted_and_not_read_by_id=({"claims": [a_running_claim()], "nodes": [NOT_READY]}, None),
    its_claim_was_created_again_after_a_wipe=(
        {"claims": [ADOPTED], "nodes": [HELD], "instances": [an_instance()]}, None
    ),
)  # fmt: skip
def test_what_is_in_use_or_may_be_used_later_is_kept(cluster, expected):
    """A stale list of instances deletes nothing, and an instance that was created for another UID is none of the claim's."""
    plan = run(**cluster)
    assert (done(plan) or None) == expected
    assert len(plan.actions) == bool(expected)


@pytest.mark.parametrize("nodes", [[], [NOT_READY]])
@pytest.mark.parametrize(
    "cloud",
    [{"gone": [ID]}, {"instances": [an_instance(state="stopped")]}, {"instances": [an_instance(state="stopping")]}],
)
def test_claim_without_instance_is_deleted(nodes, cloud):
    """The instance is terminated or stopped, and its node is not Ready. The pods that are still bound to it are counted."""
    plan = run([a_running_claim()], nodes, pods=(a_pod("a", node=NODE), daemon_pod("d")), **cloud)
    (chain,) = plan.chains
    assert [type(action) for action in chain.actions] == [DeleteObject, Requeue]
    assert done(plan) == "delete NodeClaim default-1"
    assert reasons(plan) == [(kind, "InstanceNotFound") for kind in (["NodeClaim", "Node"] if nodes else ["NodeClaim"])]
    values = {o.name: o.value for o in chain.observations}
    assert values.get("karpenter_pods_disruption_initiated_total", 0) == len(nodes)


def test_claim_without_provider_id_node_and_instance_is_deleted():
    """A user removed the provider id and the instance's tags, and the instance was terminated as an orphan."""
    lost = a_running_claim(status={"providerID": ""})
    (chain,) = run([lost], instances=[an_instance(tags={}, state="terminated")]).chains
    assert [type(action) for action in chain.actions] == [DeleteObject, Requeue]
    assert [(e.ref.name, e.reason) for e in chain.events] == [("default-1", "InstanceNotFound")]
    assert chain.events[0].message.startswith("NodeClaim default-1 has no instance, ")


@table(
    "expire_after, claim, goes",
    after_its_time=("1h", {"age": timedelta(hours=1)}, True),
    not_before=("1h", {"age": timedelta(minutes=54)}, False),
    never=("Never", {"age": timedelta(days=9999)}, False),
    not_again=("720h", {"age": timedelta(days=99), "deleting": NOW}, False),
)
def test_claim_expires_after_expire_after_and_not_before(expire_after, claim, goes):
    """Expiration ignores budgets, and `Never` disables it; one deletion is enough.

    It counts the pods that need another node, which those of DaemonSets do not. The node may be younger than its NodeClaim.
    """
    claim = a_running_claim(**claim, spec={"expireAfter": expire_after, "terminationGracePeriod": "1m"})
    pods = (a_pod("a", node=NODE), a_pod("b", node=NODE), daemon_pod("d"))
    bare, full = (
        expire_nodeclaims(a_snapshot(claims=(claim,), **parts)) for parts in ({}, {"nodes": (a_node(),), "pods": pods})
    )
    assert bool(bare.actions) is bool(full.actions) is goes
    labelled = {"reason": "expired", "nodepool": "default", "termination_mode": "eventual"}
    labelled |= {"capacity_type": "", "consolidation_policy": ""}
    if goes:
        assert reasons(bare) == [("NodeClaim", "DisruptionTerminating")]
        assert bare.chains[0].observations[0].labels["reason"] == "expired"
        assert [(o.name, o.value, o.labels) for o in full.chains[0].observations] == [
            ("karpenter_nodeclaims_disrupted_total", 1, labelled),
            ("karpenter_pods_disruption_initiated_total", 2, labelled),
        ]


def test_all_claims_without_an_instance_are_deleted_in_one_run():
    """Each has a chain of its own."""
    names = [f"c{n:02}" for n in range(30)]
    claims, nodes = [a_running_claim(n) for n in names], [a_node(n, ready=False) for n in names]
    plan = run(claims, nodes, gone=[provider_id_of(n) for n in names])
    assert [a.ref.name for a in of_type(plan, DeleteObject)] == names
    assert len(plan.chains) == len(names)


def test_running_second_node_of_orphaned_instance_is_deleted():
    """Its kubelet was renamed; both nodes are drained before the instance is terminated."""
    plan = run(nodes=[a_node(deleting=NOW), RENAMED], instances=[an_instance()])
    assert [a.ref.name for a in of_type(plan, DeleteObject)] == ["renamed"]


@pytest.mark.parametrize(
    ("reservation", "left", "goes"),
    [
        ("cr-block", 39, True),
        ("cr-block", 41, False),
        ("cr-block", -5, True),
        ("cr-other", 39, False),
        (None, 39, False),
    ],
)
def test_claim_on_a_capacity_block_goes_forty_minutes_before_its_end(reservation, left, goes):
    """Ten minutes before EC2 terminates the instances; the pods of others stay."""
    claim = a_running_claim(metadata={"labels": {labels.RESERVATION_ID: reservation} if reservation else {}})
    blocks = {"cr-block": NOW + timedelta(minutes=left)}
    snapshot = a_snapshot(claims=(claim,), nodes=(a_node(),), node_classes=(a_node_class(block_ends=blocks),))
    plan = delete_claims_of_ending_blocks(snapshot)
    assert [action.ref.name for action in plan.actions] == (["default-1"] if goes else [])
    assert bool(ending_block(claim, snapshot)) == goes
    if goes:
        assert {event.ref.name for event in plan.chains[0].events} == {"default-1", NODE}
        assert "capacity block cr-block ends soon" in plan.chains[0].events[0].message
