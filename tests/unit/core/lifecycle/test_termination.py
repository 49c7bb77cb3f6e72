"""Termination: from the deletionTimestamp to the removal of NodeClaim, node and instance."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.lifecycle.drain import TerminationIntervals
from journeyman.core.lifecycle.termination import finalize_terminating, is_awaiting_volumes
from journeyman.core.plan import DeleteObject, EvictPod, PatchObject, Requeue, Step, TerminateInstance
from journeyman.core.state.instances import CloudInstances
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

GONE = CloudInstances(missing=frozenset({provider_id_of("default-1")}))


def run(claim=None, node=None, pods=(), cloud=None, attachments=()):
    snapshot = a_snapshot(
        claims=(claim,) if claim else (),
        nodes=(node,) if node else (),
        pods=tuple(pods),
        volume_attachments=tuple(attachments),
    )
    cloud = cloud or CloudInstances()
    return finalize_terminating(cloud.with_own_instances(snapshot), cloud, TerminationIntervals())


def of_type(plan, kind):
    return [a for a in plan.actions if isinstance(a, kind)]


def patches(plan, kind):
    return [a.patch for a in of_type(plan, PatchObject) if a.ref.resource.kind == kind]


def conditions(plan):
    found = {}
    for patch in patches(plan, "NodeClaim"):
        found.update({c["type"]: (c["status"], c["reason"]) for c in patch.get("status", {}).get("conditions", ())})
    return found


def requeued_steps(plan):
    return {w.step: w.at for w in of_type(plan, Requeue)}


def expiring(plan):
    events = [e for c in plan.chains for e in c.events]
    return [e.ref.resource.kind for e in events if e.reason == "TerminationGracePeriodExpiring"]


VOLUME = an_attachment("pv", "node-default-1")


def draining(seconds, *more):
    """Return a NodeClaim whose drain started so long ago."""
    return a_running_claim(
        deleting=ago(seconds=seconds),
        status={
            "conditions": [
                *(condition(t, since=ago(minutes=1)) for t in ("Launched", "Registered", "Initialized")),
                condition("Drained", "Unknown", since=ago(seconds=seconds), reason="Draining"),
                *more,
            ]
        },
    )


def test_deleted_claim_taints_and_deletes_its_node_and_evicts_in_one_run():
    """The taint is added before deletion and evictions; provision is requeued for the pods."""
    pod = a_pod("p", node="node-default-1")
    plan = run(a_running_claim(deleting=NOW), a_node(), [pod])

    node, claim, deletion, eviction = [a for a in plan.actions if not isinstance(a, Requeue)]
    assert node.patch["spec"]["taints"] == [{"key": labels.DISRUPTED_TAINT, "effect": "NoSchedule"}]
    assert node.patch["metadata"]["labels"] == {labels.EXCLUDE_BALANCERS: "karpenter"}
    assert claim.subresource == "status"
    assert isinstance(deletion, DeleteObject)
    assert deletion.ref.resource.kind == "Node"
    assert isinstance(eviction, EvictPod)
    assert conditions(plan)["Drained"] == ("Unknown", "Draining")
    assert requeued_steps(plan) == {Step.TERMINATE: NOW + timedelta(seconds=2), Step.PROVISION: NOW}


@pytest.mark.parametrize(
    ("reason", "seconds", "evicted"),
    [
        ("Underutilized", 0, ["large"]),
        ("Underutilized", 9, ["large"]),
        ("Underutilized", 10, ["half", "large"]),
        ("Empty", 0, ["half", "large"]),
    ],
)
def test_consolidation_evicts_the_largest_pods_of_all_its_nodes_first(reason, seconds, evicted):
    """If they stay, as a PodDisruptionBudget protects them, the others follow ten seconds later."""
    disrupted = condition("DisruptionReason", reason=reason)
    started = condition("Drained", "Unknown", since=ago(seconds=seconds), reason="Draining")
    claims = [
        a_running_claim(name, deleting=ago(seconds=seconds), status={"conditions": [disrupted, started]})
        for name in ("c1", "c2")
    ]
    nodes = tuple(a_node(name, deleting=ago(seconds=seconds)) for name in ("c1", "c2"))
    pods = (a_pod("half", node="node-c1", cpu="500m"), a_pod("large", node="node-c2", cpu="2"))
    snapshot = a_snapshot(claims=tuple(claims), nodes=nodes, pods=pods)

    plan = finalize_terminating(snapshot, CloudInstances(), TerminationIntervals())

    assert [e.ref.name for e in of_type(plan, EvictPod)] == evicted


def test_pods_are_evicted_after_the_node_is_tainted():
    """The eviction follows the taint in its chain; on a node that is tainted already it does not wait."""
    (pod,) = pods = [a_pod("p", node="node-default-1")]
    claim = draining(3)

    closing, *_ = run(claim, a_node(deleting=ago(seconds=3)), pods).chains
    assert [c.subject for c in closing.then] == [f"Pod {pod.key}"]

    closed = a_node(deleting=ago(seconds=3), spec={"taints": [{"key": labels.DISRUPTED_TAINT, "effect": "NoSchedule"}]})
    chains = run(claim, closed, pods).chains
    assert [c.subject for c in chains if c.subject.startswith("Pod")] == [f"Pod {pod.key}"]
    assert not any(c.then for c in chains)


def test_deleted_node_deletes_its_claim():
    """The deletion of either deletes the other."""
    plan = run(a_running_claim(), a_node(deleting=NOW))
    assert [d.ref.resource.kind for d in of_type(plan, DeleteObject)] == ["NodeClaim"]


def test_provision_is_requeued_once_at_the_start_of_a_drain():
    """Later its pods are pending, and the forwarder requeues provision."""
    plan = run(draining(3), a_node(deleting=ago(seconds=3)), [a_pod("p", node="node-default-1")])
    assert Step.PROVISION not in requeued_steps(plan)


@pytest.mark.parametrize(("seconds", "drained"), [(4, False), (5, True)])
def test_even_an_empty_node_drains_for_five_seconds(seconds, drained):
    """So the step notices pods that were bound at the last moment."""
    plan = run(draining(seconds), a_node(deleting=ago(seconds=seconds)))
    assert bool(of_type(plan, TerminateInstance)) is drained
    if not drained:
        assert requeued_steps(plan)[Step.TERMINATE] == NOW + timedelta(seconds=1)


def test_drained_nodes_instance_is_terminated_and_polled():
    """One patch has all three conditions, and the step polls the instance every five seconds."""
    plan = run(draining(6), a_node(deleting=ago(seconds=6)))
    assert {t: conditions(plan)[t][0] for t in ("Drained", "VolumesDetached", "InstanceTerminating")} == {
        "Drained": "True",
        "VolumesDetached": "True",
        "InstanceTerminating": "True",
    }
    assert [t.provider_id for t in of_type(plan, TerminateInstance)] == [provider_id_of("default-1")]
    assert requeued_steps(plan) == {Step.TERMINATE: NOW + timedelta(seconds=5)}


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
    met = ("Launched", *drained, *(["InstanceTerminating"] if asked else []))
    claim = a_running_claim(
        deleting=ago(seconds=9), status={"conditions": [condition(t, since=ago(seconds=9)) for t in met]}
    )
    node = a_node(deleting=ago(seconds=9)) if has_node else None
    plan = run(claim, node, cloud=CloudInstances(listed=(replace(an_instance(), state=state),)))

    assert bool(of_type(plan, TerminateInstance)) is ends
    assert Step.TERMINATE in requeued_steps(plan)


def test_a_drained_node_s_volumes_are_waited_for():
    """A volume that was not detached before its instance's end can be attached again only minutes later."""
    node = a_node(deleting=ago(seconds=6))
    plan = run(draining(6), node, attachments=[VOLUME])
    assert not of_type(plan, TerminateInstance)
    assert conditions(plan)["Drained"] == ("True", "Drained")
    assert conditions(plan)["VolumesDetached"] == ("Unknown", "AwaitingVolumeDetachment")
    assert [(e.reason, e.ref.name) for e in plan.events] == [("AwaitingVolumeDetachment", "node-default-1")]
    assert requeued_steps(plan) == {Step.TERMINATE: NOW + timedelta(seconds=2)}

    (status,) = [p["status"] for p in patches(plan, "NodeClaim")]
    after = run(a_running_claim(deleting=ago(seconds=9), status=status), node)
    assert of_type(after, TerminateInstance)
    assert conditions(after)["VolumesDetached"] == ("True", "VolumesDetached")
    observations = [o for plan in (plan, after) for chain in plan.chains for o in chain.observations]
    assert [o.name for o in observations if o.name.startswith("karpenter_")] == ["karpenter_nodes_drained_total"]
    changes = [o.labels for o in observations if o.name == "operator_nodeclaim_status_condition_transitions_total"]
    assert ("VolumesDetached", "True") in {(of["type"], of["status"]) for of in changes}


@pytest.mark.parametrize(("left", "elapsed"), [(0, False), (-1, True)])
def test_volumes_do_not_block_after_the_grace_period(left, elapsed):
    """The condition reports that they were not detached."""
    end = stamp(NOW + timedelta(seconds=left))
    claim = replace(
        draining(6), metadata=replace(draining(6).metadata, annotations={labels.TERMINATION_TIMESTAMP: end})
    )
    plan = run(claim, a_node(deleting=ago(seconds=6)), attachments=[VOLUME])
    assert bool(of_type(plan, TerminateInstance)) is elapsed
    expected = ("False", "TerminationGracePeriodElapsed") if elapsed else ("Unknown", "AwaitingVolumeDetachment")
    assert conditions(plan)["VolumesDetached"] == expected
    if not elapsed:
        assert requeued_steps(plan)[Step.TERMINATE] == NOW + timedelta(seconds=1)


@pytest.mark.parametrize(
    ("node", "pods", "reads"),
    [
        (a_node(deleting=NOW), [], True),
        (a_node(deleting=NOW), [a_pod("p", node="node-default-1")], False),
        (a_node(), [], False),
    ],
    ids=["no pod is waited for", "a pod is", "it stays"],
)
def test_volumes_are_read_only_once_they_matter(node, pods, reads):
    """The API cannot list the attachments of one node."""
    (state,) = a_snapshot(nodes=(node,), claims=(a_running_claim(),), pods=tuple(pods)).state_nodes
    assert is_awaiting_volumes(state, a_snapshot(), CloudInstances()) is reads


def test_pod_that_arrives_after_the_drain_is_evicted_without_a_condition():
    """A user set its nodeName."""
    claim = draining(60, condition("Drained", since=ago(seconds=30)))
    claim = replace(
        claim, status=replace(claim.status, conditions=[c for c in claim.status.conditions if c.reason != "Draining"])
    )
    plan = run(claim, a_node(deleting=ago(minutes=1)), [a_pod("p", node="node-default-1")])
    assert of_type(plan, EvictPod)
    assert "Drained" not in conditions(plan)


def test_forged_condition_does_not_replace_the_drain():
    """InstanceTerminating does not imply that the pods are evicted."""
    claim = draining(60, condition("InstanceTerminating"))
    plan = run(claim, a_node(deleting=ago(minutes=1)), [a_pod("p", node="node-default-1")])
    assert of_type(plan, EvictPod)
    assert not of_type(plan, TerminateInstance)


def test_disruption_taint_with_another_effect_is_replaced():
    """With two taints of one key, removing only one would leave the node tainted."""
    others = [{"key": labels.DISRUPTED_TAINT, "effect": "NoExecute"}, {"key": "team", "effect": "NoSchedule"}]
    plan = run(a_running_claim(deleting=NOW), a_node(spec={"taints": others}))
    (patch,) = patches(plan, "Node")
    assert patch["spec"]["taints"] == [others[1], {"key": labels.DISRUPTED_TAINT, "effect": "NoSchedule"}]


def test_finalizers_stay_until_the_instance_no_longer_exists():
    """The termination is repeated until then; afterwards the node is finalized first, then its NodeClaim."""
    node = a_node(deleting=ago(seconds=20))
    (status,) = [p["status"] for p in patches(run(draining(20), node), "NodeClaim")]
    claim = a_running_claim(deleting=ago(seconds=20), status=status)

    waiting = run(claim, node)
    assert of_type(waiting, TerminateInstance)
    assert not of_type(waiting, PatchObject)

    plan = run(claim, node, cloud=GONE)
    assert patches(plan, "Node") == [{"metadata": {"finalizers": []}}]
    assert patches(plan, "NodeClaim") == [{"metadata": {"finalizers": []}}]
    assert [a.ref.resource.kind for a in plan.actions] == ["Node", "NodeClaim"]
    assert not of_type(plan, Requeue)
    values = {o.name: o.value for o in plan.chains[0].observations}
    assert values["karpenter_nodes_terminated_total"] == values["karpenter_nodeclaims_terminated_total"] == 1
    assert values["karpenter_nodes_lifetime_duration_seconds"] == 60
    assert values["karpenter_nodes_termination_duration_seconds"] == 20
    assert values["karpenter_nodeclaims_termination_duration_seconds"] == 20
    assert values["karpenter_nodeclaims_instance_termination_duration_seconds"] == 0


def test_a_node_whose_instance_vanished_is_not_drained():
    """The node is NotReady, and the cloud has no such instance."""
    pod = a_pod("p", node="node-default-1")
    plan = run(draining(1), a_node(ready=False, deleting=ago(seconds=1)), [pod], cloud=GONE)
    assert patches(plan, "Node") == [{"metadata": {"finalizers": []}}]
    assert not of_type(plan, EvictPod)


def test_an_instance_with_two_nodes_ends_once_both_are_drained():
    """Its kubelet was renamed; the node without pods must not terminate the instance of the other."""
    renamed = a_node(metadata={"name": "renamed", "uid": "uid-renamed"}, deleting=ago(seconds=9))
    assert renamed.spec.provider_id == a_node().spec.provider_id
    pods = (a_pod("p", node="renamed"),)
    nodes = (a_node(deleting=ago(seconds=9)), renamed)
    snapshot = a_snapshot(claims=(draining(9),), nodes=nodes, pods=pods)

    plan = finalize_terminating(snapshot, CloudInstances(), TerminationIntervals())

    assert not of_type(plan, TerminateInstance)
    assert [e.ref.name for e in of_type(plan, EvictPod)] == ["p"]
    assert of_type(
        finalize_terminating(replace(snapshot, pods=()), CloudInstances(), TerminationIntervals()), TerminateInstance
    )


@pytest.mark.parametrize("conditions", [("Registered", "Drained", "VolumesDetached", "InstanceTerminating"), ()])
@pytest.mark.parametrize("finalizers", [["karpenter.sh/termination"], []])
def test_conditions_that_a_user_edits_do_not_end_an_instance_with_pods_on_another_node(conditions, finalizers):
    """They say that it is drained, or never registered; a Node that a tenant created with its provider id is empty."""
    metadata = {"name": "forged", "uid": "uid-forged", "finalizers": finalizers, "labels": {labels.REGISTERED: ""}}
    forged = a_node(metadata=metadata, deleting=ago(seconds=9) if finalizers else None)
    edited = a_running_claim(deleting=ago(seconds=9), status={"conditions": list(map(condition, conditions))})
    nodes = (a_node(deleting=ago(seconds=9)), forged)
    snapshot = a_snapshot(claims=(edited,), nodes=nodes, pods=(a_pod("p", node=nodes[0].metadata.name),))

    assert not of_type(finalize_terminating(snapshot, CloudInstances(), TerminationIntervals()), TerminateInstance)


def test_all_nodes_of_a_deleted_claim_are_deleted():
    """Its kubelet registered under several names; the instance ends once all are drained."""
    twins = tuple(a_node(metadata={"name": f"twin-{n}", "uid": f"uid-twin-{n}"}) for n in (1, 2))
    snapshot = a_snapshot(claims=(a_running_claim(deleting=NOW),), nodes=(a_node(), *twins))
    plan = finalize_terminating(snapshot, CloudInstances(), TerminationIntervals())
    assert {a.ref.name for a in of_type(plan, DeleteObject)} == {"node-default-1", "twin-1", "twin-2"}
    assert not of_type(plan, TerminateInstance)


def test_node_whose_instance_two_claims_name_is_deleted():
    """The claim that the node names as owner decides, the other one has no part in it; Karpenter treats it as if it had none."""
    owner = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": "default-1", "uid": "uid-default-1"}
    node = a_node(deleting=ago(seconds=20), metadata={"ownerReferences": [owner]})
    twin = a_running_claim("twin", provider_id=provider_id_of("default-1"))
    snapshot = a_snapshot(claims=(draining(20), twin), nodes=(node,))
    ended = finalize_terminating(snapshot, CloudInstances(), TerminationIntervals())
    assert [(t.provider_id, t.claim) for t in of_type(ended, TerminateInstance)] == [
        (provider_id_of("default-1"), "default-1")
    ]
    gone = [condition(t) for t in ("Drained", "VolumesDetached", "InstanceTerminating")]
    done = replace(snapshot, claims=(draining(20, *gone[1:]), twin))
    plan = finalize_terminating(done, GONE, TerminationIntervals())
    assert {"twin"}.isdisjoint(a.ref.name for a in of_type(plan, PatchObject) + of_type(plan, DeleteObject))


def test_ready_stays_true_while_a_claim_terminates():
    """All conditions count as observed at the generation that the deletion made."""
    done = [
        condition(t, since=ago(minutes=1), observedGeneration=1)
        for t in ("Launched", "Registered", "Initialized", "Ready")
    ]
    claim = a_running_claim(deleting=ago(seconds=9), metadata={"generation": 2}, status={"conditions": done})
    plan = run(claim, a_node(deleting=ago(seconds=9)))
    (status,) = [p["status"] for p in patches(plan, "NodeClaim") if "status" in p]
    assert {c["type"]: (c["status"], c["observedGeneration"]) for c in status["conditions"]} == {
        "Launched": ("True", 2),
        "Registered": ("True", 2),
        "Initialized": ("True", 2),
        "Ready": ("True", 2),
        "Drained": ("Unknown", 2),
    }


def test_node_and_claim_are_deleted_before_either_finalizer_goes():
    """A NodeClaim without a deletionTimestamp must keep its finalizer."""
    plan = run(a_running_claim(), a_node(ready=False, deleting=NOW), cloud=GONE)
    assert [d.ref.resource.kind for d in of_type(plan, DeleteObject)] == ["NodeClaim"]
    assert not of_type(plan, PatchObject)


def test_termination_time_is_written_once_and_forces_the_drain():
    """terminationGracePeriod counts from the deletion; an existing time is kept."""
    pod = a_pod("p", node="node-default-1", metadata={"annotations": {labels.DO_NOT_DISRUPT: "true"}})
    claim = a_running_claim(deleting=ago(minutes=1), spec={"terminationGracePeriod": "5m"})
    plan = run(claim, a_node(), [pod])
    (noted,) = [p["metadata"] for p in patches(plan, "NodeClaim") if "metadata" in p]
    assert noted["annotations"] == {labels.TERMINATION_TIMESTAMP: stamp(NOW + timedelta(minutes=4))}
    assert expiring(plan) == ["NodeClaim", "Node"]
    assert "FailedDraining" in {e.reason for e in plan.events}

    set_by_others = a_running_claim(
        deleting=ago(minutes=1),
        spec={"terminationGracePeriod": "5m"},
        metadata={"annotations": {labels.TERMINATION_TIMESTAMP: stamp(NOW)}},
    )
    plan = run(set_by_others, a_node(), [pod])
    assert [p for p in patches(plan, "NodeClaim") if "metadata" in p] == []
    assert [type(a).__name__ for a in plan.actions if "Pod" in type(a).__name__] == ["DeletePod"]
    assert expiring(plan) == ["Node"]


def test_invalid_termination_time_is_replaced():
    """A user edited it; without a valid time the terminationGracePeriod would never end."""
    claim = a_running_claim(
        deleting=ago(minutes=1),
        spec={"terminationGracePeriod": "5m"},
        metadata={"annotations": {labels.TERMINATION_TIMESTAMP: "soon"}},
    )
    plan = run(claim, a_node())
    (noted,) = [p["metadata"] for p in patches(plan, "NodeClaim") if "metadata" in p]
    assert noted["annotations"] == {labels.TERMINATION_TIMESTAMP: stamp(NOW + timedelta(minutes=4))}
    assert expiring(plan) == ["NodeClaim", "Node"]


def test_claim_without_a_node_has_a_termination_time():
    """Users can read when its instance is terminated at the latest."""
    claim = a_launched_claim(deleting=ago(minutes=1), spec={"terminationGracePeriod": "5m"})
    plan = run(claim)
    (noted,) = [p["metadata"] for p in patches(plan, "NodeClaim") if "metadata" in p]
    assert noted["annotations"] == {labels.TERMINATION_TIMESTAMP: stamp(NOW + timedelta(minutes=4))}
    assert expiring(plan) == ["NodeClaim"]


def test_termination_time_counts_from_the_claims_deletion():
    """Its node was deleted first; the NodeClaim has no deletionTimestamp yet."""
    plan = run(a_running_claim(spec={"terminationGracePeriod": "5m"}), a_node(deleting=ago(minutes=1)))
    assert [p for p in patches(plan, "NodeClaim") if "metadata" in p] == []


def test_claim_that_never_registered_is_not_drained():
    """The cloud controller deletes its node, if there is one."""
    plan = run(a_launched_claim(deleting=NOW), a_node(registered=False))
    assert [t.provider_id for t in of_type(plan, TerminateInstance)] == [provider_id_of("default-1")]
    assert patches(plan, "Node") == []


def test_claim_without_provider_id_finds_its_instance_by_tag_on_deletion():
    """The run crashed between the launch and the write of the status; the instance does not leak."""
    orphan = CloudInstances(listed=(an_instance(provider_id="aws:///a/i-9"),))
    plan = run(a_claim(deleting=NOW), cloud=orphan)
    assert [t.provider_id for t in of_type(plan, TerminateInstance)] == ["aws:///a/i-9"]
    assert not [p for p in patches(plan, "NodeClaim") if "metadata" in p]


def test_instance_of_the_node_is_terminated_even_if_it_is_not_listed():
    """Tags are used only for a NodeClaim without a node."""
    other = CloudInstances(listed=(an_instance(provider_id="aws:///a/i-9"),))
    claim = a_launched_claim(deleting=NOW)

    with_node = run(claim, a_node(registered=False), cloud=other)
    assert [t.provider_id for t in of_type(with_node, TerminateInstance)] == [provider_id_of("default-1")]
    without_node = run(claim, cloud=other)
    assert [t.provider_id for t in of_type(without_node, TerminateInstance)] == ["aws:///a/i-9"]


def test_instance_in_the_status_is_terminated_before_tagged_ones():
    """A repeated launch may have created two."""
    both = CloudInstances(listed=(an_instance(), an_instance(provider_id="aws:///a/i-0")))
    plan = run(a_launched_claim(deleting=NOW), cloud=both)
    assert [t.provider_id for t in of_type(plan, TerminateInstance)] == [provider_id_of("default-1")]


@pytest.mark.parametrize(("tags", "ends"), [({}, True), ({labels.NODECLAIM_UID_TAG: "another"}, False)])
def test_instance_belongs_to_the_claim_of_its_uid_or_else_of_its_name(tags, ends):
    """An earlier NodeClaim of the name may have an instance, too; Karpenter's tags have only the name."""
    instance = an_instance(age=timedelta(seconds=50), tags={labels.NODECLAIM_TAG: "default-1", **tags})
    plan = run(a_claim(deleting=NOW), cloud=CloudInstances(listed=(instance,)))
    assert bool(of_type(plan, TerminateInstance)) is ends


def test_node_of_the_tagged_instance_is_drained_though_its_claim_names_no_instance():
    """A user edited the provider id and removed the owner reference, so nothing in the cluster connects the two."""
    claim = a_running_claim(deleting=NOW, provider_id="i-am-none")
    plan = run(claim, a_node(), [a_pod("p", node="node-default-1")], CloudInstances(listed=(an_instance(),)))

    assert len(of_type(plan, EvictPod)) == 1
    assert of_type(plan, TerminateInstance) == []
    assert [d.ref.name for d in of_type(plan, DeleteObject)] == ["node-default-1"]


def test_instance_with_the_node_of_another_claim_is_not_terminated():
    """A user wrote the provider id of this NodeClaim's instance into the status of another, and made that the Node's owner."""
    owner = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": "other", "uid": "uid-other"}
    claims = (a_claim(deleting=NOW), a_running_claim("other", provider_id=provider_id_of("default-1")))
    cloud = CloudInstances(listed=(an_instance(),))
    snapshot = cloud.with_own_instances(
        a_snapshot(claims=claims, nodes=(a_node(metadata={"ownerReferences": [owner]}),))
    )

    plan = finalize_terminating(snapshot, cloud, TerminationIntervals())

    assert of_type(plan, TerminateInstance) == []
    assert patches(plan, "NodeClaim") == [{"metadata": {"finalizers": []}}]


@pytest.mark.parametrize("registered", [True, False])
def test_node_with_pods_is_drained_whatever_its_marks_say(registered):
    """A user removed the NodeClaim's conditions and the Node's labels; the pods say that it was registered."""
    node = a_node(registered=False)
    taints = node.spec.taints if registered else ()
    plan = run(
        a_launched_claim(deleting=NOW),
        replace(node, spec=replace(node.spec, taints=taints)),
        [a_pod("p", node="node-default-1")],
    )
    assert len(of_type(plan, EvictPod)) == 1
    assert of_type(plan, TerminateInstance) == []


def test_claim_without_an_instance_is_finalized_at_once():
    """The finalizer protects only an instance."""
    plan = run(a_claim(deleting=NOW))
    assert patches(plan, "NodeClaim") == [{"metadata": {"finalizers": []}}]
    assert not of_type(plan, TerminateInstance)


def test_nodes_without_a_provider_id_do_not_belong_to_an_unlaunched_claim():
    """Neither has a provider id, which does not make them one."""
    plan = run(a_claim(deleting=NOW), a_node("other", spec={"providerID": ""}))
    assert {a.ref.resource.kind for a in plan.actions} == {"NodeClaim"}


def test_other_finalizers_are_not_ours_to_remove():
    """The step removes only karpenter.sh/termination."""
    claim = a_claim(deleting=NOW, metadata={"finalizers": ["x/y", labels.TERMINATION_FINALIZER]})
    assert patches(run(claim), "NodeClaim") == [{"metadata": {"finalizers": ["x/y"]}}]


def test_long_drain_is_polled_with_growing_intervals():
    """A pod that blocks the drain must not cause a run every two seconds."""
    pod = a_pod("p", node="node-default-1", metadata={"annotations": {labels.DO_NOT_DISRUPT: "true"}})
    plan = run(draining(3600), a_node(deleting=ago(hours=1)), [pod])
    assert requeued_steps(plan)[Step.TERMINATE] == NOW + timedelta(seconds=30)


def test_running_nodes_and_unmanaged_nodes_are_not_changed():
    """Without a deletion the step has nothing to do."""
    assert run(a_running_claim(), a_node()).actions == ()
    assert run(None, a_node(deleting=NOW, metadata={"finalizers": []})).actions == ()


@pytest.mark.parametrize(
    "written",
    [
        [condition("Drained", "Unknown"), condition("VolumesDetached")],
        [condition("Drained"), condition("VolumesDetached", "Unknown")],
        [condition("Drained")],
        [condition("Drained"), condition("VolumesDetached")],
    ],
    ids=["not-drained", "volumes-attached", "volumes-unknown", "all-but-the-pods"],
)
def test_instance_terminating_counts_only_after_drain_and_volumes(written):
    """A user may have written it, so pods are evicted first, whatever the conditions say."""
    claim = a_running_claim(deleting=NOW)
    conditions = [condition(c.type, c.status) for c in claim.status.conditions]
    claim = a_running_claim(
        deleting=NOW, status={"conditions": [*conditions, *written, condition("InstanceTerminating")]}
    )
    plan = run(claim, a_node(deleting=NOW), [a_pod("p", node="node-default-1")], CloudInstances())
    assert len(of_type(plan, EvictPod)) == 1
    assert not of_type(plan, TerminateInstance)


@pytest.mark.parametrize("node", [{"ready": False}, {"ready": True}])
@pytest.mark.parametrize("gone", [True, False])
def test_drain_is_skipped_only_for_unready_node_of_instance_that_is_gone(node, gone):
    """The kubelet of a NotReady node with an instance may still run its pods."""
    cloud = GONE if gone else CloudInstances(listed=(an_instance(),))
    plan = run(draining(3600), a_node(deleting=NOW, **node), [a_pod("p", node="node-default-1")], cloud)
    assert bool(of_type(plan, EvictPod)) is (node["ready"] or not gone)
