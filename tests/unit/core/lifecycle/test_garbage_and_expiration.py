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

ID = provider_id_of("default-1")


def run(claims=(), nodes=(), instances=(), gone=(), pools=()):
    """Return the removals, with those that the brake would allow."""
    snapshot = a_snapshot(claims=tuple(claims), nodes=tuple(nodes), node_pools=tuple(pools))
    return collect(snapshot, CloudInstances(listed=tuple(instances), missing=frozenset(gone)))


def collect(snapshot, cloud):
    lost = lost_objects(snapshot, cloud, OrphanWaits())
    return merge_plans((delete_claims_without_instance(snapshot, cloud), *(one.removal for one in lost)))


@pytest.mark.parametrize(("age", "waits"), [(ESTABLISHED - timedelta(seconds=1), 30), (ESTABLISHED, 300)])
def test_instance_that_ran_for_long_is_kept_longer_without_its_nodeclaim(age, waits):
    """After the API server was restored its kubelet registers it again; a launch that was cut off never has a Node."""
    cloud = CloudInstances(listed=(an_instance(age=age),))
    [lost] = lost_objects(a_snapshot(), cloud, OrphanWaits())
    assert (lost.name, lost.wait) == (ID, timedelta(seconds=waits))


def test_claims_are_surely_lost_only_while_the_cloud_lists_others_of_the_fleet():
    """If it finds none at all, the credentials may be those of another account."""
    claims, nodes = [a_running_claim("a"), a_running_claim("b")], [a_node("a", ready=False), a_node("b", ready=False)]
    snapshot, waits = a_snapshot(claims=tuple(claims), nodes=tuple(nodes)), OrphanWaits()
    one = CloudInstances(listed=(an_instance("b"),), missing=frozenset({provider_id_of("a")}))
    none = CloudInstances(missing=frozenset({provider_id_of("a"), provider_id_of("b")}))
    assert [
        a.ref.name for a in delete_claims_without_instance(snapshot, one).actions if isinstance(a, DeleteObject)
    ] == ["a"]
    assert not delete_claims_without_instance(snapshot, none).actions
    assert (
        [o.name for o in lost_objects(snapshot, one, waits)],
        [o.name for o in lost_objects(snapshot, none, waits)],
    ) == ([], ["a", "b"])


def test_orphaned_instance_without_a_node_is_terminated():
    """The cloud's tags name the NodeClaim, which must not exist by then either."""
    (chain,) = run(instances=[an_instance()]).chains
    (terminate,) = chain.actions
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
    other = a_running_claim("other")
    tagged = an_instance(tags={labels.NODECLAIM_TAG: "other"})
    nodes = [a_node("other"), a_node()]
    deleted, _ = run(claims=[other], nodes=nodes, instances=[an_instance("other"), tagged]).actions
    assert isinstance(deleted, DeleteObject)
    assert (deleted.ref.name, deleted.unless_exists) == ("node-default-1", None)


def test_orphaned_instance_of_draining_node_is_not_terminated():
    """The drain's end terminates the instance."""
    taint = {"key": labels.DISRUPTED_TAINT, "effect": "NoSchedule"}
    assert run(nodes=[a_node(deleting=NOW, spec={"taints": [taint]})], instances=[an_instance()]).actions == ()


@pytest.mark.parametrize(
    ("claims", "instance"),
    [
        ([], an_instance(state="shutting-down")),
        ([a_launched_claim()], an_instance()),
        ([a_claim("cut-off")], an_instance("cut-off")),
        ([a_claim("cut-off")], an_instance("cut-off", tags={labels.NODECLAIM_TAG: "cut-off"})),
        ([a_claim("cut-off")], an_instance("cut-off", tags={labels.NODECLAIM_UID_TAG: "uid-cut-off"})),
    ],
    ids=[
        "it is going",
        "its claim is there",
        "its launch was cut off",
        "its launch by Karpenter was cut off",
        "its cloud knows only the UID while it builds the instance",
    ],
)
def test_instance_with_claim_or_recent_launch_is_not_terminated(claims, instance):
    """They belong to a node in use or to one that joins later."""
    assert run(claims, instances=[instance]).actions == ()


def test_instance_of_claim_with_another_uid_is_an_orphan():
    """The new NodeClaim of the same name has another UID."""
    earlier = an_instance("again", tags={labels.NODECLAIM_TAG: "again", labels.NODECLAIM_UID_TAG: "another"})
    assert [type(a) for a in run([a_claim("again")], instances=[earlier]).actions] == [TerminateInstance]


@pytest.mark.parametrize("node", [None, a_node(ready=False)])
@pytest.mark.parametrize(
    "cloud",
    [{"gone": [ID]}, {"instances": [an_instance(state="stopped")]}, {"instances": [an_instance(state="stopping")]}],
)
def test_claim_without_instance_is_deleted(node, cloud):
    """The instance is terminated or stopped, and its node is not Ready."""
    (chain,) = run([a_running_claim()], [node] if node else [], **cloud).chains
    (deletion, _) = chain.actions
    assert isinstance(deletion, DeleteObject)
    assert deletion.ref.resource.kind == "NodeClaim"
    assert [(e.ref.resource.kind, e.reason) for e in chain.events] == [
        (kind, "InstanceNotFound") for kind in (["NodeClaim", "Node"] if node else ["NodeClaim"])
    ]


@pytest.mark.parametrize(
    ("claim", "nodes"),
    [(a_running_claim(), [a_node()]), (a_launched_claim(), []), (a_running_claim(deleting=NOW), [])],
    ids=["its node is Ready", "it never registered: liveness decides", "it is going already"],
)
def test_claim_that_is_ready_unregistered_or_terminating_is_kept(claim, nodes):
    """A stale list of instances must not delete it."""
    assert run([claim], nodes, gone=[ID]).actions == ()


@pytest.mark.parametrize("claim", [a_running_claim(), a_launched_claim()], ids=["registered", "unregistered"])
def test_claim_of_a_running_instance_is_kept_without_its_node(claim):
    """Its kubelet may register again; `delete_inconsistent_claims` limits how long."""
    assert run([claim], instances=[an_instance()]).actions == ()


def test_claim_without_provider_id_node_and_instance_is_deleted():
    """A user removed the provider id and the instance's tags, and the instance was terminated as an orphan."""
    lost = a_running_claim(status={"providerID": ""})
    (chain,) = run([lost], instances=[an_instance(tags={}, state="terminated")]).chains

    assert [type(action) for action in chain.actions] == [DeleteObject, Requeue]
    assert [(e.ref.name, e.reason) for e in chain.events] == [("default-1", "InstanceNotFound")]
    assert chain.events[0].message.startswith("NodeClaim default-1 has no instance, ")


def test_claim_without_provider_id_is_kept_while_it_may_have_an_instance():
    """Its Node exists, or it is not launched yet: the next launch returns its instance."""
    edited = {"providerID": "", "nodeName": "node-default-1"}
    assert run([a_running_claim(status=edited)], [a_node(ready=False)]).actions == ()
    assert run([a_running_claim(true=("Registered", "Initialized"), status=edited)]).actions == ()


def test_unlisted_instance_alone_does_not_delete_its_claim():
    """The step deletes it only if a read by id also finds no instance."""
    assert run([a_running_claim()], [a_node(ready=False)]).actions == ()


@pytest.mark.parametrize(
    ("expire_after", "age", "goes"),
    [("1h", timedelta(hours=1), True), ("1h", timedelta(minutes=54), False), ("Never", timedelta(days=9999), False)],
)
def test_claim_expires_after_expire_after_and_not_before(expire_after, age, goes):
    """Expiration ignores budgets, and `Never` disables it."""
    claim = a_running_claim(age=age, spec={"expireAfter": expire_after})
    plan = expire_nodeclaims(a_snapshot(claims=(claim,)))
    assert bool(plan.actions) is goes
    if goes:
        assert plan.chains[0].observations[0].labels["reason"] == "expired"
        assert [(e.ref.resource.kind, e.reason) for e in plan.chains[0].events] == [
            ("NodeClaim", "DisruptionTerminating")
        ]


def test_expiration_counts_the_pods_that_need_another_node():
    """Pods of DaemonSets do not. The NodeClaim's age counts, its node may be younger."""
    claim = a_running_claim(age=timedelta(hours=1), spec={"expireAfter": "1h", "terminationGracePeriod": "1m"})
    pods = (a_pod("a", node="node-default-1"), a_pod("b", node="node-default-1"), daemon_pod("d"))
    plan = expire_nodeclaims(a_snapshot(claims=(claim,), nodes=(a_node(),), pods=pods))
    labelled = {
        "reason": "expired",
        "nodepool": "default",
        "capacity_type": "",
        "consolidation_policy": "",
        "termination_mode": "eventual",
    }
    assert [(o.name, o.value, o.labels) for o in plan.chains[0].observations] == [
        ("karpenter_nodeclaims_disrupted_total", 1, labelled),
        ("karpenter_pods_disruption_initiated_total", 2, labelled),
    ]


def daemon_pod(name):
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d"}
    return a_pod(name, node="node-default-1", metadata={"ownerReferences": [owner]})


def test_garbage_collection_counts_the_pods_of_the_lost_node():
    """They are still bound to it."""
    pods = (a_pod("a", node="node-default-1"), daemon_pod("d"))
    snapshot = a_snapshot(claims=(a_running_claim(),), nodes=(a_node(ready=False),), pods=pods)
    plan = collect(snapshot, CloudInstances(missing=frozenset({ID})))
    values = {o.name: o.value for o in plan.chains[0].observations}
    assert values["karpenter_pods_disruption_initiated_total"] == 1


def test_all_claims_without_an_instance_are_deleted_in_one_run():
    """Each has a chain of its own."""
    names = [f"c{n:02}" for n in range(30)]
    claims, nodes = [a_running_claim(n) for n in names], [a_node(n, ready=False) for n in names]
    plan = run(claims, nodes, gone=[provider_id_of(n) for n in names])
    assert [a.ref.name for a in plan.actions if isinstance(a, DeleteObject)] == names
    assert len(plan.chains) == len(names)


def test_terminating_claim_does_not_expire_again():
    """One deletion is enough."""
    claim = a_running_claim(age=timedelta(days=99), deleting=NOW)
    assert expire_nodeclaims(a_snapshot(claims=(claim,))).actions == ()


def test_running_second_node_of_orphaned_instance_is_deleted():
    """Its kubelet was renamed; both nodes are drained before the instance is terminated."""
    working = a_node(metadata={"name": "renamed", "uid": "uid-renamed"})
    plan = run(nodes=[a_node(deleting=NOW), working], instances=[an_instance()])
    assert [a.ref.name for a in plan.actions if isinstance(a, DeleteObject)] == ["renamed"]


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
        assert {event.ref.name for event in plan.chains[0].events} == {"default-1", "node-default-1"}
        assert "capacity block cr-block ends soon" in plan.chains[0].events[0].message


def test_held_node_of_a_nodeclaim_that_was_created_again_is_not_lost():
    """Kubernetes deleted it with the NodeClaim that was wiped; its pods run on."""
    adopted = a_running_claim(metadata={"annotations": {labels.ADOPTED: ID}})
    node = a_node(deleting=adopted.metadata.creation_timestamp)
    assert run([adopted], [node], [an_instance()]).actions == ()
