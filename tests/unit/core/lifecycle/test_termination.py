"""Termination: from the deletionTimestamp to the removal of NodeClaim, node and instance."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.lifecycle.drain import TerminationIntervals
from journeyman.core.lifecycle.termination import finalize_terminating, is_awaiting_volumes
from journeyman.core.plan import PatchObject, Requeue, Step
from journeyman.core.state.instances import CloudInstances
from tests.helpers.actions import conditions, done, of_type, patches, reasons, requeues
from tests.helpers.builders import (
    NOW,
    a_claim,
    a_launched_claim,
    a_node,
    a_pod,
    a_running_claim,
    a_snapshot,
    ago,
    an_attachment,
    an_instance,
    condition,
    provider_id_of,
    stamp,
)
from tests.helpers.small_clusters import table

GONE = CloudInstances(missing=frozenset({provider_id_of("default-1")}))
UNLISTED = CloudInstances()
NODE = "node-default-1"
VOLUME = an_attachment("pv", NODE)
DISRUPTED = {"key": labels.DISRUPTED_TAINT, "effect": "NoSchedule"}
GRACE = {"terminationGracePeriod": "5m"}
FINALIZED = "finalize Node node-default-1; finalize NodeClaim default-1"


def run(claims, *nodes, pods=(), cloud=UNLISTED, attachments=()):
    claims = claims if isinstance(claims, tuple) else (claims,)
    snapshot = a_snapshot(claims=claims, nodes=nodes, pods=tuple(pods), volume_attachments=tuple(attachments))
    return finalize_terminating(cloud.with_own_instances(snapshot), cloud, TerminationIntervals())


def listed(*instances):
    return CloudInstances(listed=instances)


def web(node=NODE, **changes):
    return a_pod("p", node=node, **changes)


PROTECTED = web(metadata={"annotations": {labels.DO_NOT_DISRUPT: "true"}})


def seen(*written, **claim):
    """Return a NodeClaim that is being deleted, with these conditions alone."""
    made = [condition(each, since=ago(seconds=9)) if isinstance(each, str) else each for each in written]
    return a_running_claim(**{"deleting": NOW, "status": {"conditions": made}, **claim})


STAGES = ("Launched", "Registered", "Initialized")


def draining(seconds, *more):
    """Return a NodeClaim whose drain started so long ago."""
    begun = condition("Drained", "Unknown", since=ago(seconds=seconds), reason="Draining")
    stages = (condition(each, since=ago(minutes=1)) for each in STAGES)
    return seen(*stages, begun, *more, deleting=ago(seconds=seconds))


def a_deleted_node(seconds=0, **changes):
    return a_node(deleting=ago(seconds=seconds), **changes)


def expiring(plan):
    return [kind for kind, reason in reasons(plan) if reason == "TerminationGracePeriodExpiring"]


def owned_by(name, uid):
    owner = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": name, "uid": uid}
    return {"metadata": {"ownerReferences": [owner]}}


def test_deleted_claim_taints_and_deletes_its_node_and_evicts_in_one_run():
    """The taint is added before deletion and evictions; provision is requeued for the pods."""
    plan = run(a_running_claim(deleting=NOW), a_node(), pods=[web()])

    node, claim, *_ = [a for a in plan.actions if not isinstance(a, Requeue)]
    assert node.patch["spec"]["taints"] == [DISRUPTED]
    assert node.patch["metadata"]["labels"] == {labels.EXCLUDE_BALANCERS: "karpenter"}
    assert claim.subresource == "status"
    assert [type(a) for a in plan.actions].count(PatchObject) == 2
    assert done(plan) == "delete Node node-default-1; evict p"
    assert conditions(plan)["Drained"] == ("Unknown", "Draining")
    assert requeues(plan) == {Step.TERMINATE: NOW + timedelta(seconds=2), Step.PROVISION: NOW}


def edited(*written):
    """Return a NodeClaim whose conditions say that its instance is terminating, and these."""
    return seen(*STAGES, *written, condition("InstanceTerminating"))


@table(
    "claim, node, cloud, expected",
    it_arrived_late=(seen(*STAGES, "Drained", deleting=ago(seconds=60)), a_deleted_node(60), UNLISTED, "evict p"),
    a_user_says_it_ends=(draining(60, condition("InstanceTerminating")), a_deleted_node(60), UNLISTED, "evict p"),
    a_user_said_so_undrained=(
        edited(condition("Drained", "Unknown"), condition("VolumesDetached")), a_deleted_node(), UNLISTED, "evict p"
    ),
    a_user_said_so_with_volumes=(
        edited(condition("Drained"), condition("VolumesDetached", "Unknown")), a_deleted_node(), UNLISTED, "evict p"
    ),
    a_user_said_so_when_drained=(edited(condition("Drained")), a_deleted_node(), UNLISTED, "evict p"),
    a_user_wrote_all_conditions=(
        edited(condition("Drained"), condition("VolumesDetached")), a_deleted_node(), UNLISTED, "evict p"
    ),
    a_user_removed_the_marks_that_it_registered=(
        a_launched_claim(deleting=NOW), a_node(registered=False), UNLISTED, "delete Node node-default-1; evict p"
    ),
    a_user_removed_the_taint_too=(
        a_launched_claim(deleting=NOW),
        replace(a_node(registered=False), spec=replace(a_node().spec, taints=())),
        UNLISTED,
        "delete Node node-default-1; evict p",
    ),
    a_user_edited_the_provider_id_and_the_owner=(
        a_running_claim(deleting=NOW, provider_id="i-am-none"),
        a_node(),
        listed(an_instance()),
        "delete Node node-default-1; evict p",
    ),
    the_node_is_not_ready=(draining(3600), a_deleted_node(ready=False), listed(an_instance()), "evict p"),
    the_node_is_ready=(draining(3600), a_deleted_node(), listed(an_instance()), "evict p"),
    the_node_is_ready_though_its_instance_is_gone=(draining(3600), a_deleted_node(), GONE, "evict p"),
    not_if_the_instance_of_an_unready_node_is_gone=(draining(3600), a_deleted_node(ready=False), GONE, FINALIZED),
    not_of_an_instance_that_vanished_at_once=(draining(1), a_deleted_node(1, ready=False), GONE, FINALIZED),
)  # fmt: skip
def test_pods_are_evicted_before_an_instance_ends_whatever_conditions_and_marks_say(claim, node, cloud, expected):
    """Users edit both. Only the kubelet of a NotReady node without an instance surely runs no pods any more."""
    plan = run(claim, node, pods=[web()], cloud=cloud)
    assert done(plan) == expected
    is_drained = any((c.type, c.status) == ("Drained", "True") for c in claim.status.conditions)
    assert not (is_drained and "Drained" in conditions(plan))


TAGGED = an_instance(provider_id="aws:///a/i-9")
LAUNCHED = a_launched_claim(deleting=NOW)


def of_tags(**tags):
    return listed(an_instance(age=timedelta(seconds=50), tags={labels.NODECLAIM_TAG: "default-1", **tags}))


@table(
    "claim, nodes, cloud, expected",
    not_registered_so_not_drained=(LAUNCHED, [a_node(registered=False)], UNLISTED, "terminate i-default-1"),
    not_in_the_status_but_tagged=(a_claim(deleting=NOW), [], listed(TAGGED), "terminate i-9"),
    of_its_node_though_another_is_tagged=(
        LAUNCHED, [a_node(registered=False)], listed(TAGGED), "terminate i-default-1"
    ),
    tagged_without_a_node=(LAUNCHED, [], listed(TAGGED), "terminate i-9"),
    in_the_status_before_tagged_ones=(
        LAUNCHED, [], listed(an_instance(), an_instance(provider_id="aws:///a/i-0")), "terminate i-default-1"
    ),
    of_its_name=(a_claim(deleting=NOW), [], of_tags(), "terminate i-default-1"),
    not_of_another_uid=(
        a_claim(deleting=NOW), [], of_tags(**{labels.NODECLAIM_UID_TAG: "another"}), "finalize NodeClaim default-1"
    ),
    not_launched_so_finalized_at_once=(a_claim(deleting=NOW), [], UNLISTED, "finalize NodeClaim default-1"),
    not_launched_beside_a_node_without_provider_id=(
        a_claim(deleting=NOW), [a_node("other", spec={"providerID": ""})], UNLISTED, "finalize NodeClaim default-1"
    ),
    not_with_the_node_of_another_claim=(
        (a_claim(deleting=NOW), a_running_claim("other", provider_id=provider_id_of("default-1"))),
        [a_node(**owned_by("other", "uid-other"))],
        listed(an_instance()),
        "finalize NodeClaim default-1",
    ),
)  # fmt: skip
def test_instance_of_a_deleted_claim_without_a_drain_is_terminated_by_status_or_tags(claim, nodes, cloud, expected):
    """A run may crash between launch and status, and repeat a launch; Karpenter's tags have only the name. No instance leaks."""
    plan = run(claim, *nodes, cloud=cloud)
    assert done(plan) == expected
    assert not patches(plan, "Node")
    assert ("finalize" in expected) is (not requeues(plan))
    assert {"finalizers": []} in patches(plan, "NodeClaim", "metadata") or not patches(plan, "NodeClaim", "metadata")


@pytest.mark.parametrize(
    ("reason", "seconds", "evicted"),
    [
        ("Underutilized", 0, "evict large"),
        ("Underutilized", 9, "evict large"),
        ("Underutilized", 10, "evict half; evict large"),
        ("Empty", 0, "evict half; evict large"),
    ],
)
def test_consolidation_evicts_the_largest_pods_of_all_its_nodes_first(reason, seconds, evicted):
    """If they stay, as a PodDisruptionBudget protects them, the others follow ten seconds later."""
    disrupted = condition("DisruptionReason", reason=reason)
    started = condition("Drained", "Unknown", since=ago(seconds=seconds), reason="Draining")
    status, since = {"conditions": [disrupted, started]}, ago(seconds=seconds)
    claims = tuple(a_running_claim(name, deleting=since, status=status) for name in ("c1", "c2"))
    pods = (a_pod("half", node="node-c1", cpu="500m"), a_pod("large", node="node-c2", cpu="2"))

    assert done(run(claims, *(a_node(name, deleting=since) for name in ("c1", "c2")), pods=pods)) == evicted


def test_pods_are_evicted_after_the_node_is_tainted():
    """The eviction follows the taint in its chain; on a node that is tainted already it does not wait.

    Provision is requeued once at the start of a drain; later its pods are pending, and the forwarder requeues it.
    """
    opened = run(draining(3), a_deleted_node(3), pods=[web()])
    assert [c.subject for c in opened.chains[0].then] == [f"Pod {web().key}"]
    assert Step.PROVISION not in requeues(opened)

    chains = run(draining(3), a_deleted_node(3, spec={"taints": [DISRUPTED]}), pods=[web()]).chains
    assert [c.subject for c in chains if c.subject.startswith("Pod")] == [f"Pod {web().key}"]
    assert not any(c.then for c in chains)


def test_even_an_empty_node_drains_for_five_seconds_before_its_instance_is_terminated_and_polled():
    """So the step notices pods that were bound at the last moment. Then one patch has all three conditions."""
    early, over = (run(draining(seconds), a_deleted_node(seconds)) for seconds in (4, 5))

    assert (done(early), requeues(early)[Step.TERMINATE]) == ("", NOW + timedelta(seconds=1))
    assert (done(over), requeues(over)) == ("terminate i-default-1", {Step.TERMINATE: NOW + timedelta(seconds=5)})
    (status,) = patches(over, "NodeClaim", "status")
    assert {c["type"] for c in status["conditions"] if c["status"] == "True"} >= {
        "Drained",
        "VolumesDetached",
        "InstanceTerminating",
    }


@pytest.mark.parametrize(
    ("state", "asked", "ends"),
    [
        ("running", True, True),  # the cloud refused the last request
        ("stopped", True, True),
        ("stopping", False, True),  # by a user
        ("stopping", True, False),  # as some clouds name the end of an instance that is deleted
        ("shutting-down", True, False),
    ],
)
@pytest.mark.parametrize("has_node", [True, False])
def test_instance_that_is_ending_is_not_terminated_again(has_node, state, asked, ends):
    """The step polls it until it is gone."""
    drained = ("Registered", "Initialized", "Drained", "VolumesDetached") if has_node else ()
    claim = seen("Launched", *drained, *(["InstanceTerminating"] if asked else []), deleting=ago(seconds=9))
    plan = run(claim, *([a_deleted_node(9)] if has_node else []), cloud=listed(an_instance(state=state)))
    assert done(plan) == ("terminate i-default-1" if ends else "")
    assert Step.TERMINATE in requeues(plan)


def test_a_drained_node_s_volumes_are_waited_for():
    """A volume that was not detached before its instance's end can be attached again only minutes later."""
    node = a_deleted_node(6)
    plan = run(draining(6), node, attachments=[VOLUME])
    assert done(plan) == ""
    assert conditions(plan)["Drained"] == ("True", "Drained")
    assert conditions(plan)["VolumesDetached"] == ("Unknown", "AwaitingVolumeDetachment")
    assert [(e.reason, e.ref.name) for e in plan.events] == [("AwaitingVolumeDetachment", NODE)]
    assert requeues(plan) == {Step.TERMINATE: NOW + timedelta(seconds=2)}

    (status,) = patches(plan, "NodeClaim", "status")
    after = run(a_running_claim(deleting=ago(seconds=9), status=status), node)
    assert done(after) == "terminate i-default-1"
    assert conditions(after)["VolumesDetached"] == ("True", "VolumesDetached")
    observations = [o for plan in (plan, after) for chain in plan.chains for o in chain.observations]
    assert [o.name for o in observations if o.name.startswith("karpenter_")] == ["karpenter_nodes_drained_total"]
    changes = [o.labels for o in observations if o.name == "operator_nodeclaim_status_condition_transitions_total"]
    assert ("VolumesDetached", "True") in {(of["type"], of["status"]) for of in changes}


def test_volumes_do_not_block_after_the_grace_period():
    """The condition reports that they were not detached."""

    def at_the_end(left):
        end = {"annotations": {labels.TERMINATION_TIMESTAMP: stamp(NOW + timedelta(seconds=left))}}
        claim = replace(draining(6), metadata=replace(draining(6).metadata, **end))
        return run(claim, a_deleted_node(6), attachments=[VOLUME])

    waiting, over = at_the_end(0), at_the_end(-1)
    assert (done(waiting), requeues(waiting)[Step.TERMINATE]) == ("", NOW + timedelta(seconds=1))
    assert conditions(waiting)["VolumesDetached"] == ("Unknown", "AwaitingVolumeDetachment")
    assert done(over) == "terminate i-default-1"
    assert conditions(over)["VolumesDetached"] == ("False", "TerminationGracePeriodElapsed")


@table(
    "node, pods, reads",
    no_pod_is_waited_for=(a_node(deleting=NOW), (), True),
    a_pod_is=(a_node(deleting=NOW), (web(),), False),
    it_stays=(a_node(), (), False),
)
def test_volumes_are_read_only_once_they_matter(node, pods, reads):
    """The API cannot list the attachments of one node."""
    (state,) = a_snapshot(nodes=(node,), claims=(a_running_claim(),), pods=pods).state_nodes
    assert is_awaiting_volumes(state, a_snapshot(), UNLISTED) is reads


def test_disruption_taint_with_another_effect_is_replaced():
    """With two taints of one key, removing only one would leave the node tainted."""
    others = [{"key": labels.DISRUPTED_TAINT, "effect": "NoExecute"}, {"key": "team", "effect": "NoSchedule"}]
    plan = run(a_running_claim(deleting=NOW), a_node(spec={"taints": others}))
    assert [spec["taints"] for spec in patches(plan, "Node", "spec")] == [[others[1], DISRUPTED]]
    assert len(patches(plan, "Node")) == 1


def test_finalizers_stay_until_the_instance_no_longer_exists():
    """The termination is repeated until then; afterwards the node is finalized first, then its NodeClaim."""
    node = a_deleted_node(20)
    (status,) = patches(run(draining(20), node), "NodeClaim", "status")
    claim = a_running_claim(deleting=ago(seconds=20), status=status)

    waiting = run(claim, node)
    assert (done(waiting), patches(waiting)) == ("terminate i-default-1", [])

    plan = run(claim, node, cloud=GONE)
    assert patches(plan) == [{"metadata": {"finalizers": []}}] * 2
    assert [a.ref.resource.kind for a in plan.actions] == ["Node", "NodeClaim"]
    values = {o.name: o.value for o in plan.chains[0].observations}
    assert values["karpenter_nodes_terminated_total"] == values["karpenter_nodeclaims_terminated_total"] == 1
    assert values["karpenter_nodes_lifetime_duration_seconds"] == 60
    assert values["karpenter_nodes_termination_duration_seconds"] == 20
    assert values["karpenter_nodeclaims_termination_duration_seconds"] == 20
    assert values["karpenter_nodeclaims_instance_termination_duration_seconds"] == 0


RENAMED = {"metadata": {"name": "renamed", "uid": "uid-renamed"}}


def test_an_instance_with_two_nodes_ends_once_both_are_drained():
    """Its kubelet was renamed; the node without pods must not terminate the instance of the other."""
    nodes = (a_deleted_node(9), a_deleted_node(9, **RENAMED))
    assert nodes[0].spec.provider_id == nodes[1].spec.provider_id

    assert done(run(draining(9), *nodes, pods=(web("renamed"),))) == "evict p"
    assert "terminate i-default-1" in done(run(draining(9), *nodes))
    twins = [a_node(metadata={"name": f"twin-{n}", "uid": f"uid-twin-{n}"}) for n in (1, 2)]
    deleted = run(a_running_claim(deleting=NOW), a_node(), *twins)
    assert set(done(deleted).split("; ")) == {f"delete Node {name}" for name in (NODE, "twin-1", "twin-2")}


@pytest.mark.parametrize("written", [("Registered", "Drained", "VolumesDetached", "InstanceTerminating"), ()])
@pytest.mark.parametrize("finalizers", [["karpenter.sh/termination"], []])
def test_conditions_that_a_user_edits_do_not_end_an_instance_with_pods_on_another_node(written, finalizers):
    """They say that it is drained, or never registered; a Node that a tenant created with its provider id is empty."""
    metadata = {"name": "forged", "uid": "uid-forged", "finalizers": finalizers, "labels": {labels.REGISTERED: ""}}
    forged = a_node(metadata=metadata, deleting=ago(seconds=9) if finalizers else None)
    claim = a_running_claim(deleting=ago(seconds=9), status={"conditions": list(map(condition, written))})
    assert "terminate" not in done(run(claim, a_deleted_node(9), forged, pods=(web(),)))


def test_node_whose_instance_two_claims_name_is_deleted():
    """The claim that the node names as owner decides, the other one has no part in it; Karpenter treats it as if it had none."""
    node = a_deleted_node(20, **owned_by("default-1", "uid-default-1"))
    twin = a_running_claim("twin", provider_id=provider_id_of("default-1"))
    ended = run((draining(20), twin), node)
    assert done(ended) == "terminate i-default-1"
    assert [a.claim for a in ended.actions if hasattr(a, "claim")] == ["default-1"]

    gone = run((draining(20, condition("VolumesDetached"), condition("InstanceTerminating")), twin), node, cloud=GONE)
    assert "twin" not in done(gone)
    assert "twin" not in {a.ref.name for a in of_type(gone, PatchObject)}


def test_ready_stays_true_while_a_claim_terminates():
    """All conditions count as observed at the generation that the deletion made."""
    stages = [condition(t, since=ago(minutes=1), observedGeneration=1) for t in (*STAGES, "Ready")]
    plan = run(seen(*stages, deleting=ago(seconds=9), metadata={"generation": 2}), a_deleted_node(9))
    (status,) = patches(plan, "NodeClaim", "status")
    assert {c["type"]: (c["status"], c["observedGeneration"]) for c in status["conditions"]} == {
        **dict.fromkeys((*STAGES, "Ready"), ("True", 2)),
        "Drained": ("Unknown", 2),
    }


def test_deletion_of_a_node_deletes_its_claim_before_either_finalizer_goes():
    """A NodeClaim without a deletionTimestamp must keep its finalizer, and has no termination time yet."""
    for node, cloud in ((a_node(deleting=NOW), UNLISTED), (a_node(ready=False, deleting=NOW), GONE)):
        plan = run(a_running_claim(), node, cloud=cloud)
        assert done(plan) == "delete NodeClaim default-1"
    assert not of_type(plan, PatchObject)
    assert patches(run(a_running_claim(spec=GRACE), a_node(deleting=ago(minutes=1))), "NodeClaim", "metadata") == []


FOUR_MINUTES_LEFT = {"annotations": {labels.TERMINATION_TIMESTAMP: stamp(NOW + timedelta(minutes=4))}}


@table(
    "claim, nodes, written, announced_on",
    for_the_first_time=({}, [a_node()], [FOUR_MINUTES_LEFT], ["NodeClaim", "Node"]),
    in_place_of_an_invalid_one=({"was": "soon"}, [a_node()], [FOUR_MINUTES_LEFT], ["NodeClaim", "Node"]),
    not_again=({"was": stamp(NOW)}, [a_node()], [], ["Node"]),
    also_without_a_node=({"make": a_launched_claim}, [], [FOUR_MINUTES_LEFT], ["NodeClaim"]),
)
def test_termination_time_is_written_once_and_forces_the_drain(claim, nodes, written, announced_on):
    """terminationGracePeriod counts from the deletion. An invalid time, which a user edited, would never end."""
    metadata = {"annotations": {labels.TERMINATION_TIMESTAMP: claim["was"]}} if "was" in claim else {}
    made = claim.get("make", a_running_claim)(deleting=ago(minutes=1), spec=GRACE, metadata=metadata)
    plan = run(made, *nodes, pods=[PROTECTED] if nodes else [])

    assert (patches(plan, "NodeClaim", "metadata"), expiring(plan)) == (written, announced_on)
    assert ("delete Pod p" in done(plan)) is (not written)
    assert ("FailedDraining" in {e.reason for e in plan.events}) is bool(nodes and written)
    assert "evict" not in done(plan)


def test_other_finalizers_are_not_ours_to_remove():
    """The step removes only karpenter.sh/termination."""
    claim = a_claim(deleting=NOW, metadata={"finalizers": ["x/y", labels.TERMINATION_FINALIZER]})
    assert patches(run(claim), "NodeClaim") == [{"metadata": {"finalizers": ["x/y"]}}]


def test_long_drain_is_polled_with_growing_intervals():
    """A pod that blocks the drain must not cause a run every two seconds."""
    plan = run(draining(3600), a_deleted_node(3600), pods=[PROTECTED])
    assert requeues(plan)[Step.TERMINATE] == NOW + timedelta(seconds=30)


def test_running_nodes_and_unmanaged_nodes_are_not_changed():
    """Without a deletion the step has nothing to do."""
    assert run(a_running_claim(), a_node()).actions == ()
    assert run((), a_node(deleting=NOW, metadata={"finalizers": []})).actions == ()
