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
from journeyman.core.plan import DeleteObject, LaunchInstance, PatchObject, Requeue, Step
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

HASHED = node_pool_hash_annotations(a_pool())
UNREGISTERED = {"key": labels.UNREGISTERED_TAINT, "effect": "NoExecute"}


def run(claims, nodes=()):
    return reconcile_nodeclaims(a_snapshot(claims=tuple(claims), nodes=tuple(nodes)), LifecycleOptions())


def patches(plan):
    return [a for a in plan.actions if isinstance(a, PatchObject)]


def patch_of(plan, kind, part):
    return next((a.patch[part] for a in patches(plan) if a.ref.resource.kind == kind and part in a.patch), None)


def conditions(plan):
    status = patch_of(plan, "NodeClaim", "status") or {}
    return {c["type"]: (c["status"], c["reason"]) for c in status.get("conditions", ())}


def test_registration_syncs_claim_to_node_and_removes_unregistered_taint():
    """One patch adds finalizer, owner, labels, annotations and taints, and removes the unregistered taint."""
    claim = a_launched_claim(
        metadata={
            "labels": {"team": "a"},
            "annotations": {"example.com/x": "1", labels.PLANNED_PODS: "default/p"},
        },
        spec={
            "taints": [{"key": "gpu", "effect": "NoSchedule"}],
            "startupTaints": [{"key": "cni", "effect": "NoExecute"}],
        },
    )
    plan = run([claim], [a_node(registered=False, metadata={"labels": {"team": "b"}})])

    metadata = patch_of(plan, "Node", "metadata")
    assert metadata["finalizers"] == [labels.TERMINATION_FINALIZER]
    assert metadata["ownerReferences"][0] == {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "name": "default-1",
        "uid": "uid-default-1",
        "blockOwnerDeletion": True,
    }
    assert metadata["labels"]["team"] == "a"
    assert metadata["labels"][labels.REGISTERED] == "true"
    assert metadata["annotations"] == {"example.com/x": "1"}
    assert {t["key"] for t in patch_of(plan, "Node", "spec")["taints"]} == {"gpu", "cni"}
    assert patch_of(plan, "NodeClaim", "status")["nodeName"] == "node-default-1"
    assert conditions(plan)["Registered"] == ("True", "Registered")
    assert all(p.resource_version for p in patches(plan))


def test_registration_patches_node_before_claim():
    """After a crash in between, the next run registers the node again; the NodeClaim is never Registered too early."""
    plan = run([a_launched_claim()], [a_node(registered=False)])
    assert [p.ref.resource.kind for p in patches(plan)] == ["Node", "NodeClaim"]


def test_taints_are_not_synced_with_do_not_sync_taints():
    """The node keeps its own taints, and a removed startup taint is not added again."""
    claim = a_launched_claim(
        spec={
            "taints": [{"key": "gpu", "effect": "NoSchedule"}],
            "startupTaints": [{"key": "cni", "effect": "NoExecute"}],
        }
    )
    node = a_node(registered=False, metadata={"labels": {labels.DO_NOT_SYNC_TAINTS: "true"}})
    plan = run([claim], [node])
    assert patch_of(plan, "Node", "spec") == {"taints": []}


def test_node_without_unregistered_taint_registers_with_a_warning_event():
    """Pods may have been bound before the node was ready for them."""
    plan = run([a_launched_claim(age=UNTAINTED_WAIT)], [a_node(registered=False, spec={"taints": []})])
    assert "UnregisteredTaintMissing" in {e.reason for chain in plan.chains for e in chain.events}
    assert conditions(plan)["Registered"][0] == "True"


def test_node_without_unregistered_taint_waits_for_one_that_has_it():
    """A tenant may create one with the provider id; the instance's own joins with the taint."""
    liar, own = (
        a_node("liar", registered=False, spec={"taints": [], "providerID": provider_id_of("default-1")}),
        a_node(registered=False),
    )
    claim = a_launched_claim(age=UNTAINTED_WAIT / 2)

    assert conditions(run([claim], [liar]))["Registered"][:2] == ("Unknown", "UnregisteredTaintMissing")
    registered = run([claim], [liar, own])
    assert conditions(registered)["Registered"][0] == "True"
    assert patch_of(registered, "Node", "spec") == {"taints": []}


@pytest.mark.parametrize(
    ("taint", "node_labels", "warns"),
    [
        (UNREGISTERED, {}, False),
        ({**UNREGISTERED, "effect": "NoSchedule"}, {}, True),
        ({"key": "example.com/boot", "effect": "NoExecute"}, {}, True),
        ({"key": "example.com/boot", "effect": "NoExecute"}, {labels.REGISTERED: "true"}, False),
    ],
    ids=["unregistered", "another-effect", "another-key", "registered-before"],
)
def test_only_the_unregistered_taint_or_label_prevents_the_warning(taint, node_labels, warns):
    """A node with the label `registered` lost the taint at an earlier registration."""
    node = a_node(registered=False, spec={"taints": [taint]}, metadata={"labels": node_labels})
    plan = run([a_launched_claim(age=UNTAINTED_WAIT)], [node])
    assert ("UnregisteredTaintMissing" in {e.reason for chain in plan.chains for e in chain.events}) is warns


def test_ready_node_registers_and_initializes_in_one_run():
    """One patch has both labels, another both conditions; Ready is derived."""
    plan = run([a_launched_claim()], [a_node(registered=False)])
    assert patch_of(plan, "Node", "metadata")["labels"][labels.INITIALIZED] == "true"
    assert conditions(plan)["Ready"] == ("True", "Ready")
    assert not [a for a in plan.actions if isinstance(a, Requeue)]


@pytest.mark.parametrize("value", ["", "false", "True"])
def test_taints_are_synced_unless_do_not_sync_taints_is_true(value):
    """Only the value "true" leaves the taints to the node's bootstrap."""
    claim = a_launched_claim(
        spec={
            "taints": [{"key": "gpu", "effect": "NoSchedule"}],
            "startupTaints": [{"key": "cni", "effect": "NoExecute"}],
        }
    )
    node = a_node(registered=False, metadata={"labels": {labels.DO_NOT_SYNC_TAINTS: value}})
    plan = run([claim], [node])
    assert {t["key"] for t in patch_of(plan, "Node", "spec")["taints"]} == {"gpu", "cni"}


def test_removed_startup_taint_is_not_added_again():
    """The node is registered, and waits for another startup taint to be removed."""
    startup = [{"key": "cni", "effect": "NoExecute"}, {"key": "csi", "effect": "NoExecute"}]
    claim = a_launched_claim(true=("Launched", "Registered"), spec={"startupTaints": startup})
    plan = run([claim], [a_node(spec={"taints": startup[:1]})])
    assert [p.ref.resource.kind for p in patches(plan)] == ["NodeClaim"]
    assert conditions(plan)["Initialized"] == ("Unknown", "StartupTaintsExist")


def test_registration_keeps_an_owner_reference_that_the_node_has():
    """A run that crashed between its two writes has added it."""
    owner = {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "name": "default-1",
        "uid": "uid-default-1",
        "blockOwnerDeletion": True,
    }
    plan = run([a_launched_claim()], [a_node(registered=False, metadata={"ownerReferences": [owner]})])
    assert patch_of(plan, "Node", "metadata").get("ownerReferences", [owner]) == [owner]


def test_missing_node_sets_registered_unknown_once_and_requeues():
    """The second run writes nothing."""
    plan = run([a_launched_claim()])
    assert conditions(plan)["Registered"] == ("Unknown", "NodeNotFound")
    (wake,) = [a for a in plan.actions if isinstance(a, Requeue)]
    assert (wake.step, wake.at) == (Step.PROVISION, NOW + timedelta(seconds=5))

    said = a_launched_claim(status={"conditions": patch_of(plan, "NodeClaim", "status")["conditions"]})
    assert patches(run([said])) == []


def test_claim_with_provider_id_of_another_claim_does_not_register():
    """One Event names the instance's NodeClaim; the node is not changed."""
    thief = a_launched_claim("z", provider_id=provider_id_of("a"), age=timedelta(0))
    plan = run([a_launched_claim("a"), thief], [a_node("a", registered=False)])
    refused = [p.patch["status"] for p in patches(plan) if p.ref.name == "z" and "status" in p.patch]

    assert {(c["reason"], c["message"]) for s in refused for c in s["conditions"] if c["type"] == "Registered"} == {
        ("MultipleNodeClaimsFound", f"Its instance {provider_id_of('a')} belongs to NodeClaim a; delete this NodeClaim")
    }
    assert [e.reason for chain in plan.chains for e in chain.events if e.ref.name == "z"].count(
        "MultipleNodeClaimsFound"
    )
    owners = patch_of(plan, "Node", "metadata")["ownerReferences"]
    assert [owner["name"] for owner in owners] == ["a"]


def test_claim_with_two_nodes_does_not_register():
    """The right node is unknown."""
    twin = a_node(registered=False, metadata={"name": "twin", "uid": "twin"})
    plan = run([a_launched_claim()], [a_node(registered=False), twin])
    assert conditions(plan)["Registered"] == ("False", "MultipleNodesFound")
    assert conditions(plan).get("Initialized", ("Unknown", ""))[0] == "Unknown"


@pytest.mark.parametrize(
    ("node", "spec", "reason"),
    [
        ({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, {}, "NodeNotReady"),
        (
            {"spec": {"taints": [{"key": "cni", "effect": "NoExecute"}]}},
            {"startupTaints": [{"key": "cni", "effect": "NoExecute"}]},
            "StartupTaintsExist",
        ),
        (
            {"spec": {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]}},
            {},
            "KnownEphemeralTaintsExist",
        ),
        ({}, {"resources": {"requests": {"nvidia.com/gpu": "1"}}}, "ResourceNotRegistered"),
    ],
)
def test_initialization_waits_for_readiness_taints_and_resources(node, spec, reason):
    """The first unmet requirement is the condition's reason."""
    claim = a_launched_claim(true=("Launched", "Registered"), spec=spec)
    plan = run([claim], [a_node(**node)])
    assert conditions(plan)["Initialized"] == ("Unknown", reason)
    assert patch_of(plan, "Node", "metadata") is None


READINESS = {"key": "readiness.k8s.io/network", "effect": "NoSchedule"}
BLOCKERS = {
    "resources": (
        {"resources": {"requests": {"nvidia.com/gpu": "1"}}},
        {},
        {"status": {"allocatable": {"nvidia.com/gpu": "1"}}},
    ),
    "startup taints": (
        {"startupTaints": [{"key": "cni", "effect": "NoExecute"}]},
        {"spec": {"taints": [{"key": "cni", "effect": "NoExecute"}]}},
        {},
    ),
    "ephemeral taints": (
        {},
        {"spec": {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}]}},
        {},
    ),
    "readiness taints": ({}, {"spec": {"taints": [READINESS]}}, {}),
}


@pytest.mark.parametrize(("spec", "before", "after"), BLOCKERS.values(), ids=BLOCKERS)
def test_node_is_initialized_once_nothing_blocks_it_any_more(spec, before, after):
    """It gets the label with the condition, in the run that sees the change."""
    claim = a_launched_claim(true=("Launched", "Registered"), spec=spec)
    assert conditions(run([claim], [a_node(**before)]))["Initialized"][0] == "Unknown"
    plan = run([claim], [a_node(**merge({"metadata": {"labels": {labels.INITIALIZED: ""}}}, after))])
    assert conditions(plan)["Initialized"] == ("True", "Initialized")
    assert patch_of(plan, "Node", "metadata")["labels"] == {labels.INITIALIZED: "true"}


def without_owners(published):
    return replace(published, metadata=replace(published.metadata, owner_references=()))


def owned_by(kind, name):
    """Return a ResourceSlice without `nodeName`, whose only owner is this object."""
    published = a_slice("s", gpus(1), node="n")
    owner = replace(published.metadata.owner_references[0], kind=kind, name=name)
    return replace(
        published,
        metadata=replace(published.metadata, owner_references=(owner,)),
        spec=replace(published.spec, node_name=""),
    )


@pytest.mark.parametrize(
    ("slices", "waits"),
    [
        ((), True),
        ((a_slice("s", gpus(1), node="node-other"),), True),
        ((a_slice("s", gpus(1), node="node-default-1", of=2),), True),
        ((a_slice("s", gpus(1), node="node-default-1", generation=2), a_slice("t", [], node="node-default-1")), False),
        (
            (
                a_slice("s", gpus(1), node="node-default-1", generation=2, of=2),
                a_slice("t", gpus(1), node="node-default-1"),
            ),
            True,
        ),
        ((a_slice("s", gpus(1), node="node-default-1"),), False),
        ((without_owners(a_slice("s", gpus(1), node="node-default-1")),), False),
        ((owned_by("Node", "node-default-1"),), False),
        ((owned_by("Node", "node-other"),), True),
        ((owned_by("Pod", "node-default-1"),), True),
    ],
    ids=[
        "none",
        "another-node",
        "incomplete",
        "old-generation-too",
        "only-old-generation-complete",
        "complete",
        "node-name-alone",
        "owner-alone",
        "owner-is-another-node",
        "owner-is-no-node",
    ],
)
def test_initialization_waits_for_complete_pools_of_dra_drivers(slices, waits):
    """Each driver of the NodeClaim must have a complete pool on the node, unless ResourceClaims are ignored."""
    claim = a_launched_claim(
        true=("Launched", "Registered"), metadata={"annotations": {labels.DRA_DRIVERS: "gpu.example.com"}}
    )
    snapshot = a_snapshot(claims=(claim,), nodes=(a_node(),), resource_slices=slices)

    heeding = conditions(reconcile_nodeclaims(snapshot, LifecycleOptions(wait_for_devices=True)))["Initialized"]
    ignoring = conditions(reconcile_nodeclaims(snapshot, LifecycleOptions()))["Initialized"]

    assert heeding[:2] == (("Unknown", "DRADriverPoolsNotPublished") if waits else ("True", "Initialized"))
    assert ignoring[0] == "True"


TWO_DRIVERS = {"annotations": {labels.DRA_DRIVERS: "gpu.example.com,nic.example.com"}}


def published(name, driver, **changes):
    slice_ = a_slice(name, gpus(1), node="node-default-1", **changes)
    return replace(slice_, spec=replace(slice_.spec, driver=driver))


@pytest.mark.parametrize(
    ("metadata", "slices", "waits"),
    [
        (TWO_DRIVERS, [published("a", "gpu.example.com")], True),
        (TWO_DRIVERS, [published("a", "gpu.example.com"), published("b", "nic.example.com", of=2)], True),
        (TWO_DRIVERS, [published("a", "gpu.example.com"), published("b", "nic.example.com")], False),
        (
            TWO_DRIVERS,
            [
                published("a", "gpu.example.com"),
                published("b", "nic.example.com"),
                published("c", "nic.example.com", generation=2, of=2),
            ],
            True,
        ),
        ({}, [], False),
    ],
    ids=["one missing", "one incomplete", "both", "newer generation incomplete", "no annotation"],
)
def test_initialization_waits_for_every_dra_driver(metadata, slices, waits):
    """A NodeClaim without the annotation needs no devices."""
    claim = a_launched_claim(true=("Launched", "Registered"), metadata=metadata)
    snapshot = a_snapshot(claims=(claim,), nodes=(a_node(),), resource_slices=tuple(slices))
    found = conditions(reconcile_nodeclaims(snapshot, LifecycleOptions(wait_for_devices=True)))["Initialized"]
    assert found[0] == ("Unknown" if waits else "True")


def test_initialization_does_not_wait_for_resource_requested_at_zero():
    """A missing resource satisfies a request of zero."""
    claim = a_launched_claim(true=("Launched", "Registered"), spec={"resources": {"requests": {"nvidia.com/gpu": "0"}}})
    assert conditions(run([claim], [a_node()]))["Initialized"][0] == "True"


@pytest.mark.parametrize(
    ("claim", "minutes", "reason"),
    [
        (a_claim, 5, "launch_timeout"),
        (a_launched_claim, 15, "registration_timeout"),
    ],
)
def test_claim_is_deleted_after_launch_or_registration_timeout(claim, minutes, reason):
    """One second earlier it is kept; its deletion requeues terminate and provision."""
    early = run([claim(age=timedelta(minutes=minutes, seconds=-1))])
    assert not [a for a in early.actions if isinstance(a, DeleteObject)]

    plan = run([claim(age=timedelta(minutes=minutes))])
    (deletion,) = [a for a in plan.actions if isinstance(a, DeleteObject)]
    assert deletion.ref.uid == "uid-default-1"
    assert not [a for a in plan.actions if isinstance(a, LaunchInstance)]
    assert {a.step for a in plan.actions if isinstance(a, Requeue)} == {Step.PROVISION, Step.TERMINATE}
    [metric] = [o for c in plan.chains for o in c.observations if "disrupted" in o.name]
    assert metric.labels["reason"] == reason


def test_launch_timeout_starts_when_launched_became_unknown():
    """The NodeClaim is an hour old; the timeout is a setting."""
    started = condition("Launched", "Unknown", since=ago(minutes=2), reason="LaunchFailed")
    claim = a_claim(age=timedelta(hours=1), status={"conditions": [started]})

    def is_deleted(timeout):
        options = LifecycleOptions(timeouts=LivenessTimeouts(launch=timeout, registration=timedelta(hours=9)))
        plan = reconcile_nodeclaims(a_snapshot(claims=(claim,)), options)
        return any(isinstance(a, DeleteObject) for a in plan.actions)

    assert not is_deleted(timedelta(minutes=5))
    assert not is_deleted(timedelta(minutes=2, seconds=1))
    assert is_deleted(timedelta(minutes=2))


def test_registration_timeout_starts_at_the_launch():
    """The NodeClaim is an hour old at its launch; the timeout of its node starts then."""
    claim = a_launched_claim(age=timedelta(hours=1))
    launched = [replace(c, last_transition_time=NOW) if c.type == "Launched" else c for c in claim.status.conditions]
    claim = replace(claim, status=replace(claim.status, conditions=tuple(launched)))
    assert not [a for a in run([claim]).actions if isinstance(a, DeleteObject)]


def test_registered_claim_has_no_timeout():
    """The step waits for a node that takes long to become Ready, with growing intervals."""
    claim = a_launched_claim(true=("Launched", "Registered"), age=timedelta(minutes=29))
    plan = run([claim], [a_node(ready=False)])
    assert [a.at for a in plan.actions if isinstance(a, Requeue)] == [NOW + timedelta(minutes=1)]


@pytest.mark.parametrize(
    ("registered", "seconds", "wait"),
    [
        (False, 119, 5), (False, 135, 15), (False, 170, 50), (False, 400, 60),
        (True, 10, 5), (True, 29, 5), (True, 40, 10), (True, 50, 20), (True, 70, 40), (True, 100, 60), (True, 1000, 60),
    ],
)  # fmt: skip
def test_the_interval_of_polls_doubles_after_the_usual_time(registered, seconds, wait):
    """First polls are fast: for two minutes while a node boots, and for half a minute while it is set up."""
    true = ("Launched", "Registered") if registered else ("Launched",)
    claim = a_launched_claim(true=true, age=timedelta(seconds=seconds))
    plan = run([claim], [a_node(ready=False)] if registered else [])

    [at] = [a.at for a in plan.actions if isinstance(a, Requeue)]
    assert timedelta(seconds=wait / 2) <= at - NOW <= timedelta(seconds=wait * 1.5)


def test_a_registered_node_without_pods_is_deleted_after_the_initialization_timeout():
    """The Event says what was missing; the deletion names the version, so that an initialized node stays."""
    claim = a_launched_claim(true=("Launched", "Registered"), age=timedelta(minutes=30))
    plan = run([claim], [a_node(ready=False)])

    [deletion] = [a for a in plan.actions if isinstance(a, DeleteObject)]
    assert deletion.ref.name == "default-1"
    assert deletion.resource_version == claim.metadata.resource_version
    [event] = [event for chain in plan.chains for event in chain.events if event.reason == "InitializationTimedOut"]
    assert "Not initialized after 30 min, NodeNotReady: Node status is NotReady" in event.message
    assert {a.step for a in plan.actions if isinstance(a, Requeue)} == {Step.TERMINATE, Step.PROVISION}


def test_removed_finalizer_and_labels_of_claim_are_restored():
    """The finalizer is needed to terminate its instance, the label to find a NodeClass's NodeClaims."""
    edited = a_running_claim(metadata={"finalizers": ["other"], "labels": {CLASS_LABEL: ""}, "annotations": HASHED})
    kept = {key: value for key, value in edited.metadata.labels.items() if key != CLASS_LABEL}
    edited = replace(edited, metadata=replace(edited.metadata, labels=kept))

    plan = run([edited])

    assert patch_of(plan, "NodeClaim", "metadata") == {
        "finalizers": ["other", labels.TERMINATION_FINALIZER],
        "labels": {CLASS_LABEL: CLASS},
    }
    assert all(action.resource_version == "7" for action in plan.actions)
    assert [(e.reason, labels.TERMINATION_FINALIZER in e.message) for c in plan.chains for e in c.events] == [
        ("MetadataRestored", True)
    ]


@pytest.mark.parametrize("edited", ["", "aws:///a/i-another"])
def test_provider_id_of_claim_is_restored_from_its_node(edited):
    """For example, an interruption finds the NodeClaim by its provider id."""
    owner = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": "a", "uid": "uid-a"}
    claim = a_running_claim("a", provider_id=edited)
    plan = run([claim], [a_node("a", metadata={"ownerReferences": [owner]})])

    assert patch_of(plan, "NodeClaim", "status") == {"providerID": provider_id_of("a")}
    assert [e.reason for c in plan.chains for e in c.events] == ["MetadataRestored"]


def test_finalizer_of_unregistered_claim_is_restored():
    """A deletion without it would leak the instance."""
    plan = run([a_launched_claim(metadata={"finalizers": []})])
    assert patch_of(plan, "NodeClaim", "metadata") == {"finalizers": [labels.TERMINATION_FINALIZER]}
    assert "MetadataRestored" in {event.reason for chain in plan.chains for event in chain.events}


def test_initialized_and_terminating_claims_cause_no_writes():
    """Without changes the step writes nothing and requeues nothing."""
    running = a_running_claim("a", metadata={"annotations": HASHED})
    plan = run([running, a_launched_claim("b", deleting=NOW)], [a_node("a")])
    assert plan.actions == ()


def test_conditions_of_a_changed_claim_are_set_again_at_its_generation():
    """Until then Ready says nothing about the changed NodeClaim; the second run writes nothing."""
    old = {"observedGeneration": 1}
    done = [condition(t, since=ago(hours=1), **old) for t in ("Launched", "Registered", "Initialized", "Ready")]
    changed = a_running_claim(metadata={"generation": 2, "annotations": HASHED}, status={"conditions": done})
    written = patch_of(run([changed], [a_node()]), "NodeClaim", "status")["conditions"]
    assert {c["type"]: (c["status"], c["observedGeneration"]) for c in written} == dict.fromkeys(
        ("Launched", "Registered", "Initialized", "Ready"), ("True", 2)
    )
    assert {c["lastTransitionTime"] for c in written if c["type"] != "Ready"} == {stamp(ago(hours=1))}

    stored = a_running_claim(metadata={"generation": 2, "annotations": HASHED}, status={"conditions": written})
    assert run([stored], [a_node()]).actions == ()


def test_requeue_times_are_rounded_so_that_claims_share_them():
    """A run between two rounded times requeues for the next one that is not too near."""
    snapshot = a_snapshot(claims=(a_launched_claim(),), now=NOW + timedelta(seconds=2.5))
    (wake,) = [a for a in reconcile_nodeclaims(snapshot, LifecycleOptions()).actions if isinstance(a, Requeue)]
    assert wake.at == NOW + timedelta(seconds=5)


def test_node_and_claim_builders_have_the_same_provider_id():
    """The other tests here depend on it."""
    assert a_node("x").spec.provider_id == a_launched_claim("x").status.provider_id == provider_id_of("x")
    assert merge({"a": {"b": 1}}, {"a": {"c": 2}}) == {"a": {"b": 1, "c": 2}}


@pytest.mark.parametrize(
    ("phase", "launched"),
    [("Replacing", True), ("Succeeded", True), ("RolledBack", False), ("Rejected", False), ("Expired", False)],
)
def test_replacement_of_rolled_back_command_is_not_launched(phase, launched):
    """A frozen run may create the NodeClaim of a command that another run has rolled back."""
    command = NodeDisruption.model_validate(
        {
            "metadata": {"name": "underutilized-1", "uid": "uid-1"},
            "spec": {
                "method": "single-node",
                "decision": "replace",
                "reason": "Underutilized",
                "candidates": [{"nodeClaim": "old", "nodeClaimUid": "uid-old"}],
            },
            "status": {"phase": phase},
        }
    )
    replacement = a_claim(metadata={"annotations": {labels.DISRUPTION: "underutilized-1"}})
    plan = reconcile_nodeclaims(a_snapshot(claims=(replacement,), node_disruptions=(command,)), LifecycleOptions())

    assert any(isinstance(a, LaunchInstance) for a in plan.actions) is launched
    assert [a.ref.name for a in plan.actions if isinstance(a, DeleteObject)] == ([] if launched else ["default-1"])
    assert (
        any(event.reason == "DisruptionRolledBack" for chain in plan.chains for event in chain.events) is not launched
    )


def test_a_claim_said_to_be_initialized_before_its_launch_is_launched():
    """A user set the conditions while the run that was to launch it crashed; Karpenter launches while Launched is Unknown."""
    plan = run([a_claim(status={"conditions": [condition("Registered"), condition("Initialized")]})])

    assert [a for a in plan.actions if isinstance(a, LaunchInstance)]
