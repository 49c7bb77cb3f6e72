"""Registration, initialization and liveness of a NodeClaim."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.hashes import node_pool_hash_annotations
from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.lifecycle.liveness import LivenessTimeouts
from journeyman.core.lifecycle.nodeclaim import LifecycleOptions, reconcile_nodeclaims
from journeyman.core.lifecycle.registration import UNTAINTED_WAIT
from journeyman.core.plan import DeleteObject, PatchObject, Step
from tests.helpers.actions import conditions, done, events, of_type, patches, reasons, requeues
from tests.helpers.builders import (
    CLASS,
    CLASS_LABEL,
    NOW,
    a_claim,
    a_launched_claim,
    a_node,
    a_pool,
    a_running_claim,
    a_snapshot,
    ago,
    condition,
    merge,
    provider_id_of,
    stamp,
)
from tests.helpers.devices import a_slice, gpus
from tests.helpers.small_clusters import table

HASHED = node_pool_hash_annotations(a_pool())
UNREGISTERED = {"key": labels.UNREGISTERED_TAINT, "effect": "NoExecute"}
BOOT = {"key": "example.com/boot", "effect": "NoExecute"}
CNI = {"key": "cni", "effect": "NoExecute"}
READINESS = {"key": "readiness.k8s.io/network", "effect": "NoSchedule"}
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}
BOTH_TAINTS = {"taints": [{"key": "gpu", "effect": "NoSchedule"}], "startupTaints": [CNI]}
OWNER = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": "default-1", "uid": "uid-default-1"}
MISSING_TAINT = ("Node", "UnregisteredTaintMissing")


def run(claims, *nodes, **snapshot):
    claims = claims if isinstance(claims, tuple) else (claims,)
    options = snapshot.pop("options", LifecycleOptions())
    return reconcile_nodeclaims(a_snapshot(claims=claims, nodes=nodes, **snapshot), options)


def an_unregistered_node(*taints, **metadata):
    return a_node(registered=False, metadata=metadata, **({"spec": {"taints": list(taints)}} if taints else {}))


def a_registered_claim(**changes):
    return a_launched_claim(true=("Launched", "Registered"), **changes)


def tainted(*taints):
    return {"spec": {"taints": list(taints)}}


def test_ready_node_registers_and_initializes_in_one_run():
    """One patch of the node syncs it with its claim and removes the unregistered taint; the next one has the conditions.

    After a crash in between, the next run registers the node again; the NodeClaim is never Registered too early.
    """
    annotations = {"example.com/x": "1", labels.PLANNED_PODS: "default/p"}
    claim = a_launched_claim(metadata={"labels": {"team": "a"}, "annotations": annotations}, spec=BOTH_TAINTS)
    syncing = run(claim, an_unregistered_node(labels={"team": "b"}))

    (metadata,) = patches(syncing, "Node", "metadata")
    assert metadata["finalizers"] == [labels.TERMINATION_FINALIZER]
    assert metadata["ownerReferences"][0] == {**OWNER, "blockOwnerDeletion": True}
    assert (metadata["labels"]["team"], metadata["labels"][labels.REGISTERED]) == ("a", "true")
    assert metadata["annotations"] == {"example.com/x": "1"}
    assert {t["key"] for t in patches(syncing, "Node", "spec")[0]["taints"]} == {"gpu", "cni"}
    assert patches(syncing, "NodeClaim", "status")[0]["nodeName"] == "node-default-1"
    assert conditions(syncing)["Registered"] == ("True", "Registered")
    assert all(p.resource_version for p in of_type(syncing, PatchObject))

    plan = run(a_launched_claim(), an_unregistered_node())
    assert [p.ref.resource.kind for p in of_type(plan, PatchObject)] == ["Node", "NodeClaim"]
    assert patches(plan, "Node", "metadata")[0]["labels"][labels.INITIALIZED] == "true"
    assert conditions(plan)["Ready"] == ("True", "Ready")
    assert not requeues(plan)


@pytest.mark.parametrize(
    ("value", "synced"),
    [("true", set()), ("", {"gpu", "cni"}), ("false", {"gpu", "cni"}), ("True", {"gpu", "cni"})],
)
def test_taints_are_synced_unless_do_not_sync_taints_is_true(value, synced):
    """Then the node keeps its own taints, and a removed startup taint is not added again."""
    node = an_unregistered_node(labels={labels.DO_NOT_SYNC_TAINTS: value})
    (spec,) = patches(run(a_launched_claim(spec=BOTH_TAINTS), node), "Node", "spec")
    assert ({t["key"] for t in spec["taints"]}, spec.keys()) == (synced, {"taints"})


@table(
    "node, warns",
    no_taint=(a_node(registered=False, spec={"taints": []}), True),
    unregistered=(an_unregistered_node(UNREGISTERED), False),
    another_effect=(an_unregistered_node({**UNREGISTERED, "effect": "NoSchedule"}), True),
    another_key=(an_unregistered_node(BOOT), True),
    registered_before=(an_unregistered_node(BOOT, labels={labels.REGISTERED: "true"}), False),
)
def test_node_without_unregistered_taint_or_label_registers_with_a_warning_event(node, warns):
    """Pods may have been bound before it was ready for them. With the label it lost the taint at an earlier registration."""
    plan = run(a_launched_claim(age=UNTAINTED_WAIT), node)
    assert ("UnregisteredTaintMissing" in {reason for _, reason in reasons(plan)}) is warns
    assert conditions(plan)["Registered"][0] == "True"


def test_node_without_unregistered_taint_waits_for_one_that_has_it():
    """A tenant may create one with the provider id; the instance's own joins with the taint."""
    liar = a_node("liar", registered=False, spec={"taints": [], "providerID": provider_id_of("default-1")})
    claim = a_launched_claim(age=UNTAINTED_WAIT / 2)

    assert conditions(run(claim, liar))["Registered"] == ("Unknown", "UnregisteredTaintMissing")
    registered = run(claim, liar, an_unregistered_node())
    assert conditions(registered)["Registered"][0] == "True"
    assert patches(registered, "Node", "spec")[0] == {"taints": []}


def test_removed_startup_taint_is_not_added_again():
    """The node is registered, and waits for another startup taint to be removed."""
    claim = a_registered_claim(spec={"startupTaints": [CNI, {**CNI, "key": "csi"}]})
    plan = run(claim, a_node(**tainted(CNI)))
    assert [p.ref.resource.kind for p in of_type(plan, PatchObject)] == ["NodeClaim"]
    assert conditions(plan)["Initialized"] == ("Unknown", "StartupTaintsExist")


def test_registration_keeps_an_owner_reference_that_the_node_has():
    """A run that crashed between its two writes has added it."""
    owners = [{**OWNER, "blockOwnerDeletion": True}]
    (metadata,) = patches(run(a_launched_claim(), an_unregistered_node(ownerReferences=owners)), "Node", "metadata")
    assert metadata.get("ownerReferences", owners) == owners


def test_missing_node_sets_registered_unknown_once_and_requeues():
    """The second run writes nothing. Requeue times are rounded, so that claims share them, to the next that is not too near."""
    plan = run(a_launched_claim())
    assert conditions(plan)["Registered"] == ("Unknown", "NodeNotFound")
    assert requeues(plan) == {Step.PROVISION: NOW + timedelta(seconds=5)}
    assert requeues(run(a_launched_claim(), now=NOW + timedelta(seconds=2.5))) == requeues(plan)

    (status,) = patches(plan, "NodeClaim", "status")
    assert patches(run(a_launched_claim(status={"conditions": status["conditions"]}))) == []


def test_claim_with_provider_id_of_another_claim_does_not_register():
    """One Event names the instance's NodeClaim; the node is not changed."""
    thief = a_launched_claim("z", provider_id=provider_id_of("a"), age=timedelta(0))
    plan = run((a_launched_claim("a"), thief), a_node("a", registered=False))
    written = [p.patch for p in of_type(plan, PatchObject) if p.ref.name == "z" and "status" in p.patch]
    refused = [c for patch in written for c in patch["status"]["conditions"]]

    assert {(c["reason"], c["message"]) for c in refused if c["type"] == "Registered"} == {
        ("MultipleNodeClaimsFound", f"Its instance {provider_id_of('a')} belongs to NodeClaim a; delete this NodeClaim")
    }
    assert "MultipleNodeClaimsFound" in {e.reason for e in events(plan) if e.ref.name == "z"}
    assert [owner["name"] for owner in patches(plan, "Node", "metadata")[0]["ownerReferences"]] == ["a"]


def test_claim_with_two_nodes_does_not_register():
    """The right node is unknown."""
    plan = run(a_launched_claim(), an_unregistered_node(), an_unregistered_node(name="twin", uid="twin"))
    assert conditions(plan)["Registered"] == ("False", "MultipleNodesFound")
    assert conditions(plan).get("Initialized", ("Unknown", ""))[0] == "Unknown"


def requesting(gpus):
    return {"resources": {"requests": {"nvidia.com/gpu": gpus}}}


@table(
    "spec, before, reason, after",
    the_node_is_not_ready=({}, {"ready": False}, "NodeNotReady", {}),
    a_startup_taint=({"startupTaints": [CNI]}, tainted(CNI), "StartupTaintsExist", {}),
    an_ephemeral_taint=({}, tainted(NOT_READY), "KnownEphemeralTaintsExist", {}),
    another_effect=({}, tainted({**NOT_READY, "effect": "NoSchedule"}), "KnownEphemeralTaintsExist", {}),
    a_readiness_taint=({}, tainted(READINESS), "KnownEphemeralTaintsExist", {}),
    a_resource=(requesting("1"), {}, "ResourceNotRegistered", {"status": {"allocatable": {"nvidia.com/gpu": "1"}}}),
)
def test_node_is_initialized_once_nothing_blocks_it_any_more(spec, before, reason, after):
    """The first unmet requirement is the condition's reason; the node gets the label in the run that sees the change."""
    claim = a_registered_claim(spec=spec)
    waiting = run(claim, a_node(**before))
    assert conditions(waiting)["Initialized"] == ("Unknown", reason)
    assert patches(waiting, "Node", "metadata") == []

    plan = run(claim, a_node(**merge({"metadata": {"labels": {labels.INITIALIZED: ""}}}, after)))
    assert conditions(plan)["Initialized"] == ("True", "Initialized")
    assert patches(plan, "Node", "metadata")[0]["labels"] == {labels.INITIALIZED: "true"}


def test_initialization_does_not_wait_for_resource_requested_at_zero():
    """A missing resource satisfies a request of zero."""
    assert conditions(run(a_registered_claim(spec=requesting("0")), a_node()))["Initialized"][0] == "True"


def published(name="s", driver="gpu.example.com", count=1, *, node="node-default-1", **changes):
    """Return a ResourceSlice of the node."""
    made = a_slice(name, gpus(count), node=node, **changes)
    return replace(made, spec=replace(made.spec, driver=driver))


def without_owners():
    made = published()
    return replace(made, metadata=replace(made.metadata, owner_references=()))


def owned_by(kind, name):
    """Return a ResourceSlice without `nodeName`, whose only owner is this object."""
    made = published(node="n")
    owner = replace(made.metadata.owner_references[0], kind=kind, name=name)
    return replace(
        made, metadata=replace(made.metadata, owner_references=(owner,)), spec=replace(made.spec, node_name="")
    )


GPU, NIC = "gpu.example.com", "nic.example.com"


@table(
    "drivers, slices, waits",
    none=(GPU, (), True),
    another_node=(GPU, (published(node="node-other"),), True),
    incomplete=(GPU, (published(of=2),), True),
    old_generation_too=(GPU, (published(generation=2), published("t", count=0)), False),
    only_old_generation_complete=(GPU, (published(generation=2, of=2), published("t")), True),
    complete=(GPU, (published(),), False),
    node_name_alone=(GPU, (without_owners(),), False),
    owner_alone=(GPU, (owned_by("Node", "node-default-1"),), False),
    owner_is_another_node=(GPU, (owned_by("Node", "node-other"),), True),
    owner_is_no_node=(GPU, (owned_by("Pod", "node-default-1"),), True),
    one_driver_missing=(f"{GPU},{NIC}", (published("a"),), True),
    one_driver_incomplete=(f"{GPU},{NIC}", (published("a"), published("b", NIC, of=2)), True),
    both_drivers=(f"{GPU},{NIC}", (published("a"), published("b", NIC)), False),
    newer_generation_of_one_driver_incomplete=(
        f"{GPU},{NIC}", (published("a"), published("b", NIC), published("c", NIC, generation=2, of=2)), True
    ),
    no_annotation=(None, (), False),
)  # fmt: skip
def test_initialization_waits_for_complete_pools_of_every_dra_driver(drivers, slices, waits):
    """Each driver of the NodeClaim must have a complete pool on the node, unless ResourceClaims are ignored."""
    claim = a_registered_claim(metadata={"annotations": {labels.DRA_DRIVERS: drivers} if drivers else {}})
    heeding = run(claim, a_node(), resource_slices=slices, options=LifecycleOptions(wait_for_devices=True))
    ignoring = run(claim, a_node(), resource_slices=slices)
    expected = ("Unknown", "DRADriverPoolsNotPublished") if waits else ("True", "Initialized")
    assert (conditions(heeding)["Initialized"], conditions(ignoring)["Initialized"][0]) == (expected, "True")


@pytest.mark.parametrize(
    ("claim", "minutes", "reason"),
    [(a_claim, 5, "launch_timeout"), (a_launched_claim, 15, "registration_timeout")],
)
def test_claim_is_deleted_after_launch_or_registration_timeout(claim, minutes, reason):
    """One second earlier it is kept; its deletion requeues terminate and provision."""
    assert "delete" not in done(run(claim(age=timedelta(minutes=minutes, seconds=-1))))

    plan = run(claim(age=timedelta(minutes=minutes)))
    assert done(plan) == "delete NodeClaim default-1"
    assert of_type(plan, DeleteObject)[0].ref.uid == "uid-default-1"
    assert requeues(plan).keys() == {Step.PROVISION, Step.TERMINATE}
    [metric] = [o for c in plan.chains for o in c.observations if "disrupted" in o.name]
    assert metric.labels["reason"] == reason


@pytest.mark.parametrize(
    ("timeout", "goes"), [({"minutes": 5}, False), ({"seconds": 121}, False), ({"minutes": 2}, True)]
)
def test_launch_timeout_starts_when_launched_became_unknown(timeout, goes):
    """The NodeClaim is an hour old; the timeout is a setting."""
    started = condition("Launched", "Unknown", since=ago(minutes=2), reason="LaunchFailed")
    claim = a_claim(age=timedelta(hours=1), status={"conditions": [started]})
    timeouts = LivenessTimeouts(launch=timedelta(**timeout), registration=timedelta(hours=9))
    assert ("delete" in done(run(claim, options=LifecycleOptions(timeouts=timeouts)))) is goes


def test_registration_timeout_starts_at_the_launch():
    """The NodeClaim is an hour old at its launch; the timeout of its node starts then."""
    claim = a_launched_claim(true=(), age=timedelta(hours=1), status={"conditions": [condition("Launched")]})
    assert "delete" not in done(run(claim))


@pytest.mark.parametrize(
    ("registered", "seconds", "wait"),
    [
        (False, 119, 5), (False, 135, 15), (False, 170, 50), (False, 400, 60), (True, 10, 5), (True, 29, 5),
        (True, 40, 10), (True, 50, 20), (True, 70, 40), (True, 100, 60), (True, 1000, 60), (True, 29 * 60, 60),
    ],
)  # fmt: skip
def test_the_interval_of_polls_doubles_after_the_usual_time(registered, seconds, wait):
    """First polls are fast: for two minutes while a node boots, and for half a minute while it is set up.

    A registered claim has no timeout: the step waits for a node that takes long to become Ready.
    """
    true = ("Launched", "Registered") if registered else ("Launched",)
    plan = run(a_launched_claim(true=true, age=timedelta(seconds=seconds)), *([a_node(ready=False)] * registered))
    [at] = requeues(plan).values()
    assert timedelta(seconds=wait / 2) <= at - NOW <= timedelta(seconds=wait * 1.5)
    assert seconds < 29 * 60 or at == NOW + timedelta(minutes=1)


def test_a_registered_node_without_pods_is_deleted_after_the_initialization_timeout():
    """The Event says what was missing; the deletion names the version, so that an initialized node stays."""
    claim = a_registered_claim(age=timedelta(minutes=30))
    plan = run(claim, a_node(ready=False))

    assert done(plan) == "delete NodeClaim default-1"
    [event] = [event for event in events(plan) if event.reason == "InitializationTimedOut"]
    assert "Not initialized after 30 min, NodeNotReady: Node status is NotReady" in event.message
    assert claim.metadata.resource_version in {
        a.resource_version for a in plan.actions if hasattr(a, "resource_version")
    }
    assert requeues(plan).keys() == {Step.TERMINATE, Step.PROVISION}


def test_removed_finalizer_and_labels_of_claim_are_restored():
    """The finalizer is needed to terminate its instance, the label to find a NodeClass's NodeClaims."""
    edited = a_running_claim(metadata={"finalizers": ["other"], "labels": {CLASS_LABEL: ""}, "annotations": HASHED})
    del edited.metadata.labels[CLASS_LABEL]
    plan = run(edited)

    restored = {"finalizers": ["other", labels.TERMINATION_FINALIZER], "labels": {CLASS_LABEL: CLASS}}
    assert patches(plan, "NodeClaim", "metadata") == [restored]
    assert all(action.resource_version == "7" for action in plan.actions)
    assert reasons(plan) == [("NodeClaim", "MetadataRestored")]
    assert labels.TERMINATION_FINALIZER in events(plan)[0].message

    unregistered = run(a_launched_claim(metadata={"finalizers": []}))  # its deletion would leak the instance
    assert patches(unregistered, "NodeClaim", "metadata") == [{"finalizers": [labels.TERMINATION_FINALIZER]}]
    assert ("NodeClaim", "MetadataRestored") in reasons(unregistered)


@pytest.mark.parametrize("edited", ["", "aws:///a/i-another"])
def test_provider_id_of_claim_is_restored_from_its_node(edited):
    """For example, an interruption finds the NodeClaim by its provider id."""
    owned = {"ownerReferences": [{**OWNER, "name": "a", "uid": "uid-a"}]}
    plan = run(a_running_claim("a", provider_id=edited), a_node("a", metadata=owned))
    assert patches(plan, "NodeClaim", "status") == [{"providerID": provider_id_of("a")}]
    assert reasons(plan) == [("NodeClaim", "MetadataRestored")]


def test_initialized_and_terminating_claims_cause_no_writes():
    """Without changes the step writes nothing and requeues nothing."""
    running = a_running_claim("a", metadata={"annotations": HASHED})
    assert run((running, a_launched_claim("b", deleting=NOW)), a_node("a")).actions == ()


def test_conditions_of_a_changed_claim_are_set_again_at_its_generation():
    """Until then Ready says nothing about the changed NodeClaim; the second run writes nothing."""
    stages = ("Launched", "Registered", "Initialized", "Ready")
    done = [condition(t, since=ago(hours=1), observedGeneration=1) for t in stages]
    metadata = {"generation": 2, "annotations": HASHED}
    (status,) = patches(
        run(a_running_claim(metadata=metadata, status={"conditions": done}), a_node()), "NodeClaim", "status"
    )
    written = status["conditions"]
    assert {c["type"]: (c["status"], c["observedGeneration"]) for c in written} == dict.fromkeys(stages, ("True", 2))
    assert {c["lastTransitionTime"] for c in written if c["type"] != "Ready"} == {stamp(ago(hours=1))}

    assert run(a_running_claim(metadata=metadata, status={"conditions": written}), a_node()).actions == ()


@pytest.mark.parametrize(
    ("phase", "launched"),
    [("Replacing", True), ("Succeeded", True), ("RolledBack", False), ("Rejected", False), ("Expired", False)],
)
def test_replacement_of_rolled_back_command_is_not_launched(phase, launched):
    """A frozen run may create the NodeClaim of a command that another run has rolled back."""
    candidates = [{"nodeClaim": "old", "nodeClaimUid": "uid-old"}]
    spec = {"method": "single-node", "decision": "replace", "reason": "Underutilized", "candidates": candidates}
    metadata = {"name": "underutilized-1", "uid": "uid-1"}
    command = NodeDisruption.model_validate({"metadata": metadata, "spec": spec, "status": {"phase": phase}})
    replacement = a_claim(metadata={"annotations": {labels.DISRUPTION: "underutilized-1"}})
    plan = run(replacement, node_disruptions=(command,))

    assert done(plan) == ("launch default-1" if launched else "delete NodeClaim default-1")
    assert ("DisruptionRolledBack" in {event.reason for event in events(plan)}) is not launched


def test_a_claim_said_to_be_initialized_before_its_launch_is_launched():
    """A user set the conditions while the run that was to launch it crashed; Karpenter launches while Launched is Unknown."""
    plan = run(a_claim(status={"conditions": [condition("Registered"), condition("Initialized")]}))
    assert "launch default-1" in done(plan)
