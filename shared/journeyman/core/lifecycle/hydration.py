"""Hydration: add the metadata that every claim and node of ours needs where it is missing or was removed.

Restates: karpenter pkg/controllers/nodeclaim/hydration/controller.go, pkg/controllers/node/hydration/controller.go,
pkg/controllers/nodeclaim/lifecycle/controller.go `Reconcile` (the finalizer).
Differs: Karpenter puts back a claim's finalizer and both halves' NodeClass label, and says nothing. Here a provider id
that was edited, that a claim was launched, its NodePool, and all marks by which we know our nodes again, are put back, too.

Hash migration: claims whose hashes another hash version made get current hashes; drift could not be detected otherwise.

So it is after a release that hashes differently, and for the claims of a cluster that Karpenter ran before. Changes
of a template between the two versions go undetected, since hashes of two versions cannot be compared.

Restates: karpenter pkg/controllers/nodepool/hash/controller.go `updateNodeClaimHash`; karpenter-provider-aws
pkg/controllers/nodeclass/hash/controller.go, likewise.
Differs: a claim is migrated whenever it is met with another version, not only in the run in which its owner's changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

import msgspec
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.conditions import DRIFTED, INITIALIZED, LAUNCHED, NODECLAIM_DEPENDENTS, READY, REGISTERED
from journeyman.core.api.hashes import NODEPOOL_HASH_VERSION, NODEPOOL_KEYS, HashKeys, node_pool_hash
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import NODEPOOL, Node, NodeClaim, condition_of, is_true
from journeyman.core.lifecycle.progress import NodeClaimProgress, claim_ref, node_ref, with_metadata, with_node
from journeyman.core.lifecycle.registration import has_unregistered_taint, sync_node, with_owner
from journeyman.core.plan import Chain, Event, Plan, Requeue, Step, chain_of
from journeyman.core.state import NodeClassState, Snapshot, StateNode


def is_initialized(claim: NodeClaim) -> bool:
    """Whether its node was opened and found ready. One of the two conditions alone is some hand's work."""
    conditions = claim.status.conditions
    return is_true(conditions, REGISTERED) and is_true(conditions, INITIALIZED)


def has_stale_ready_condition(claim: NodeClaim) -> bool:
    """Whether the claim is initialized but its Ready condition is not True; a node that is not ready is no cause of that."""
    ready = condition_of(claim.status.conditions, READY)
    return is_initialized(claim) and ready is not None and ready.status != "True"


def with_finalizer_and_labels(claim: NodeClaim) -> NodeClaim:
    """The claim with the termination finalizer and the labels of its NodeClass and its NodePool, there before a launch.

    The same object if it has them: nearly all claims do, and all are asked in each run.
    """
    finalizers, marks = claim.metadata.finalizers, {**_class_label(claim), **_pool_label(claim)}
    if labels.TERMINATION_FINALIZER in finalizers and claim.metadata.labels.keys() >= marks.keys():
        return claim
    if labels.TERMINATION_FINALIZER not in finalizers:
        finalizers += (labels.TERMINATION_FINALIZER,)
    return with_metadata(claim, finalizers=finalizers, labels={**marks, **claim.metadata.labels})


def with_recovered_launch(claim: NodeClaim, state: StateNode, now: datetime) -> NodeClaim:
    """The claim as one that was launched, if it has an instance: whatever became of its status, there is one to go on with.

    The provider id and the condition are written together, so only a hand can have parted them; and a node that knows its
    claim as its owner says which instance that has.
    """
    instance = "" if state.duplicate_of else state.provider_id
    if not instance or is_true(claim.status.conditions, LAUNCHED):
        return claim
    status = msgspec.structs.replace(claim.status, provider_id=instance)
    found = msgspec.structs.replace(claim, status=status)
    return NodeClaimProgress.of(found, now).with_condition(LAUNCHED, "True").claim


def start_progress(claim: NodeClaim, known: NodeClaim, now: datetime) -> NodeClaimProgress:
    """A claim's progress at the beginning of a run: with what every claim carries, and an Event if it had been taken off.

    Args:
        claim: The claim as it is stored.
        known: The same with what is known of its launch (`recalled`).
        now: The time.
    """
    return _restored_progress(claim, with_finalizer_and_labels(known), now)


def hydrate_nodeclaim(claim: NodeClaim, snapshot: Snapshot) -> Plan:
    """Make a claim that has become a node whole again; nothing if it is.

    Args:
        claim: The claim, initialized and not being deleted.
        snapshot: Its node, its NodePool and its NodeClass.
    """
    state = snapshot.state_nodes_by_claim[claim.metadata.name]
    pool = snapshot.node_pools_by_name.get(claim.metadata.labels.get(labels.NODEPOOL, ""))
    named = claim.spec.node_class_ref.name
    node_class = next((c for c in snapshot.node_classes if c.name == named), None)
    whole = with_current_hashes(with_finalizer_and_labels(claim), pool, node_class)
    if state.node is not None and state.provider_id != claim.status.provider_id:
        whole = msgspec.structs.replace(
            whole, status=msgspec.structs.replace(whole.status, provider_id=state.provider_id)
        )
    if state.provider_id and has_stale_ready_condition(whole):
        whole = _with_ready(whole, snapshot.now)
    if whole is claim:
        return Plan()
    return Plan(chains=(_restored_progress(claim, whole, snapshot.now).chain(why="it is not as we made it"),))


def _with_ready(claim: NodeClaim, now: datetime) -> NodeClaim:
    """With all that Ready depends on said anew: a condition that a hand wrote may be of no generation, or contradict them.

    Restates: karpenter pkg/controllers/nodeclaim/lifecycle, whose steps stamp their conditions in each reconcile.
    """
    progress = NodeClaimProgress.of(claim, now)
    for type_ in NODECLAIM_DEPENDENTS:
        progress = progress.with_condition(type_, "True")
    return progress.claim


def hydrate_nodes(snapshot: Snapshot) -> Plan:
    """Make the nodes of claims that registered whole again, those that are leaving aside; nothing if they are.

    Here alone it is seen that a claim names another instance than its node does; the provision step puts that right.
    """
    chains = (chain for state in snapshot.state_nodes for chain in _hydrate_node(state, snapshot))
    return Plan(chains=tuple(chains))


def _hydrate_node(state: StateNode, snapshot: Snapshot) -> Iterator[Chain]:
    node, claim = state.node, state.claim
    if node is None or claim is None or state.is_terminating or not is_true(claim.status.conditions, REGISTERED):
        return
    if state.provider_id != claim.status.provider_id:
        why = f"NodeClaim {claim.metadata.name} names another instance than its node"
        yield chain_of(f"NodeClaim {claim.metadata.name}", Requeue(step=Step.PROVISION, at=snapshot.now, reason=why))
    missing = {key: value for key, value in _expected_labels(claim).items() if key not in node.metadata.labels}
    has_finalizer = labels.TERMINATION_FINALIZER in node.metadata.finalizers
    has_owner = any(o.uid == claim.metadata.uid for o in node.metadata.owner_references)
    is_new = has_unregistered_taint(node)  # it was deleted, and its kubelet has registered it once more
    if has_finalizer and has_owner and not missing and not is_new:
        return
    progress = NodeClaimProgress.of(claim, snapshot.now).with_found_node(node)
    progress = replace(progress, node=_hydrated_node(sync_node(node, claim) if is_new else node, claim, missing))
    taken = [f"label {key}" for key in sorted(missing) if key not in _class_label(claim)]
    taken += ["registration, as a node that came up anew"] if is_new else []
    taken += [] if has_finalizer else [f"finalizer {labels.TERMINATION_FINALIZER}"]
    taken += [] if has_owner else [f"owner NodeClaim {claim.metadata.name}"]
    if taken:
        progress = progress.with_events(
            Event(ref=node_ref(node), reason="MetadataRestored", message=_restored_message(taken), type="Warning")
        )
    yield progress.chain(why="its node is not as we made it")


def _hydrated_node(node: Node, claim: NodeClaim, missing: Mapping[str, str]) -> Node:
    metadata = node.metadata
    finalizers = metadata.finalizers
    if labels.TERMINATION_FINALIZER not in finalizers:
        finalizers += (labels.TERMINATION_FINALIZER,)
    return with_node(
        node,
        metadata={
            "finalizers": finalizers,
            "owner_references": with_owner(metadata.owner_references, claim),
            "labels": {**metadata.labels, **missing},
        },
    )


def _expected_labels(claim: NodeClaim) -> Mapping[str, str]:
    """The labels by which a node of this claim is known, as far as it has come."""
    marks = {**_class_label(claim), labels.REGISTERED: "true"}
    if is_true(claim.status.conditions, INITIALIZED):
        marks[labels.INITIALIZED] = "true"
    if pool := claim.metadata.labels.get(labels.NODEPOOL):
        marks[labels.NODEPOOL] = pool
    return marks


def _class_label(claim: NodeClaim) -> Mapping[str, str]:
    ref = claim.spec.node_class_ref
    return {f"{ref.group}/{ref.kind.lower()}": ref.name}


def _pool_label(claim: NodeClaim) -> Mapping[str, str]:
    """Its NodePool by the owner that it was made with."""
    owner = next((o.name for o in claim.metadata.owner_references if o.kind == NODEPOOL.kind), "")
    return {labels.NODEPOOL: owner} if owner else {}


def _restored_progress(before: NodeClaim, after: NodeClaim, now: datetime) -> NodeClaimProgress:
    progress = replace(NodeClaimProgress.of(before, now), claim=after)
    taken = tuple(_restored_fields(before, after))
    event = Event(ref=claim_ref(before), reason="MetadataRestored", message=_restored_message(taken), type="Warning")
    return progress.with_events(event) if taken else progress


def _restored_fields(before: NodeClaim, after: NodeClaim) -> Iterator[str]:
    """What only a hand can have changed; the NodeClass's label may be missing as Karpenter did not set it once."""
    if before.metadata.finalizers != after.metadata.finalizers:
        yield f"finalizer {labels.TERMINATION_FINALIZER}"
    if labels.NODEPOOL in after.metadata.labels.keys() - before.metadata.labels.keys():
        yield f"label {labels.NODEPOOL}"
    if is_true(before.status.conditions, LAUNCHED) != is_true(after.status.conditions, LAUNCHED):
        yield f"condition {LAUNCHED}"
    if before.status.provider_id != after.status.provider_id:
        yield f"provider id {after.status.provider_id}"


def _restored_message(restored: tuple[str, ...] | list[str]) -> str:
    return f"Restored what was removed or changed: {', '.join(restored)}"


def with_current_hashes(claim: NodeClaim, pool: NodePool | None, node_class: NodeClassState | None) -> NodeClaim:
    """The claim with its owners' hashes in their present version; the same object if it has them.

    A claim that has drifted already keeps its hash: it would not be known any more that it has to go.

    Args:
        claim: A claim that was launched.
        pool: Its NodePool, None if it has none or that is gone.
        node_class: Its NodeClass, None if that is gone.
    """
    changes: dict[str, str] = {}
    has_drifted = condition_of(claim.status.conditions, DRIFTED) is not None
    if pool is not None and _is_foreign(claim, NODEPOOL_KEYS, NODEPOOL_HASH_VERSION):
        changes |= _stamp(NODEPOOL_KEYS, NODEPOOL_HASH_VERSION, "" if has_drifted else node_pool_hash(pool))
    if node_class is not None and node_class.hash_version:
        prefix = f"{node_class.group}/{node_class.kind.lower()}-hash"
        keys = HashKeys(prefix, f"{prefix}-version")
        if _is_foreign(claim, keys, node_class.hash_version):
            changes |= _stamp(keys, node_class.hash_version, "" if has_drifted else node_class.hash)
    return with_metadata(claim, annotations={**claim.metadata.annotations, **changes}) if changes else claim


def _is_foreign(claim: NodeClaim, keys: HashKeys, version: str) -> bool:
    return claim.metadata.annotations.get(keys.version) != version


def _stamp(keys: HashKeys, version: str, hash_: str) -> Mapping[str, str]:
    return {keys.version: version, **({keys.hash: hash_} if hash_ else {})}
