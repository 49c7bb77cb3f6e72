"""Hydration: restores metadata and status that every NodeClaim and Node needs, where they are missing or were edited.

Restates: karpenter pkg/controllers/nodeclaim/hydration/controller.go `Reconcile`,
pkg/controllers/node/hydration/controller.go `Reconcile`, pkg/controllers/nodeclaim/lifecycle/controller.go `Reconcile`.
Differs: Karpenter restores the NodeClaim's finalizer and the NodeClass label of NodeClaim and Node, without an Event. Here the
provider id, the condition Launched, the NodePool label, and the Node's finalizer, owner reference and labels are restored as
well, and an Event says so.

Hash migration: NodeClaims whose hashes have another hash version get current hashes, since drift compares hashes of one
version only. This happens after a release that hashes differently, and in clusters that Karpenter managed before. Changes of
a template between the two versions go undetected.

Restates: karpenter pkg/controllers/nodepool/hash/controller.go `updateNodeClaimHash`; karpenter-provider-aws
pkg/controllers/nodeclass/hash/controller.go `updateNodeClaimHash`.
Differs: each run migrates any NodeClaim with another version; Karpenter does it once, when the owner's version changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.conditions import DRIFTED, INITIALIZED, LAUNCHED, NODECLAIM_DEPENDENTS, READY, REGISTERED
from journeyman.core.api.hashes import NODEPOOL_HASH_VERSION, NODEPOOL_KEYS, HashKeys, node_class_keys, node_pool_hash
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import NODEPOOL, Node, NodeClaim, condition_of, is_true
from journeyman.core.lifecycle.progress import NodeClaimProgress, with_metadata, with_node
from journeyman.core.lifecycle.registration import sync_node, with_owner
from journeyman.core.plan import Chain, Event, PatchObject, Plan, Requeue, Step, chain_of, claim_ref, node_ref
from journeyman.core.state import NodeClassState, Snapshot, StateNode
from journeyman.core.state.instances import CloudInstances
from journeyman.core.state.nodes_with_claims import has_unregistered_taint
from journeyman.core.state.skipped_objects import plan_for_each


def is_initialized(claim: NodeClaim) -> bool:
    """Whether Registered and Initialized are True: if only Initialized is, a user edited the status."""
    conditions = claim.status.conditions
    return is_true(conditions, REGISTERED) and is_true(conditions, INITIALIZED)


def has_stale_ready_condition(claim: NodeClaim) -> bool:
    """Whether the NodeClaim is initialized, and its Ready is not True or of an earlier generation.

    Its Ready does not depend on the Node's.
    """
    ready = condition_of(claim.status.conditions, READY)
    if not is_initialized(claim) or ready is None:
        return False
    return ready.status != "True" or ready.observed_generation < claim.metadata.generation


def with_finalizer_and_labels(claim: NodeClaim) -> NodeClaim:
    """Return the NodeClaim with the termination finalizer and the labels of its NodeClass and NodePool.

    Returns the same object if it has them, as nearly all do: every run calls this for every NodeClaim.
    """
    finalizers, expected = claim.metadata.finalizers, {**_class_label(claim), **_pool_label(claim)}
    if labels.TERMINATION_FINALIZER in finalizers and claim.metadata.labels.keys() >= expected.keys():
        return claim
    if labels.TERMINATION_FINALIZER not in finalizers:
        finalizers += (labels.TERMINATION_FINALIZER,)
    return with_metadata(claim, finalizers=finalizers, labels={**expected, **claim.metadata.labels})


def with_recovered_launch(claim: NodeClaim, state: StateNode, now: datetime) -> NodeClaim:
    """Return the NodeClaim with its provider id and Launched True, if it, its node or the annotation of its adoption names an instance.

    The launch writes both together, so if one is missing a user removed it. A Node that the NodeClaim owns
    has the provider id of its instance.
    """
    adopted = claim.metadata.annotations.get(labels.ADOPTED, "")
    instance = "" if state.duplicate_of else state.provider_id or adopted
    if not instance or is_true(claim.status.conditions, LAUNCHED):
        return claim
    status = msgspec.structs.replace(claim.status, provider_id=instance)
    recovered = msgspec.structs.replace(claim, status=status)
    return NodeClaimProgress.of(recovered, now).with_condition(LAUNCHED, "True").claim


def start_progress(claim: NodeClaim, launched: NodeClaim, now: datetime) -> NodeClaimProgress:
    """Return the progress of a NodeClaim at the start of a run, with its finalizer and labels and an Event if they were removed.

    Args:
        claim: The NodeClaim as it is stored.
        launched: The same as `with_recovered_launch` returned it.
        now: The time.
    """
    return _restored_progress(claim, with_finalizer_and_labels(launched), now)


def hydrate_nodeclaim(claim: NodeClaim, snapshot: Snapshot) -> Plan:
    """Restore the finalizer, labels, hashes, provider id and Ready of an initialized NodeClaim; an empty plan if all are right.

    Args:
        claim: The NodeClaim, without a deletionTimestamp.
        snapshot: Its node, NodePool and NodeClass.

    Restates: karpenter pkg/controllers/nodeclaim/hydration/controller.go `Reconcile`.
    """
    state = snapshot.state_nodes_by_claim[claim.metadata.name]
    pool = snapshot.node_pools_by_name.get(claim.metadata.labels.get(labels.NODEPOOL, ""))
    class_name = claim.spec.node_class_ref.name
    node_class = next((c for c in snapshot.node_classes if c.name == class_name), None)
    hydrated = with_current_hashes(with_finalizer_and_labels(claim), pool, node_class)
    if state.node is not None and state.provider_id != claim.status.provider_id:
        hydrated = msgspec.structs.replace(
            hydrated, status=msgspec.structs.replace(hydrated.status, provider_id=state.provider_id)
        )
    if state.provider_id and has_stale_ready_condition(hydrated):
        hydrated = _with_ready(hydrated, snapshot.now)
    if hydrated is claim:
        return Plan()
    progress = _restored_progress(claim, hydrated, snapshot.now)
    return Plan(chains=(progress.chain(why="restore what was removed or changed"),))


def _with_ready(claim: NodeClaim, now: datetime) -> NodeClaim:
    """Return the NodeClaim with all conditions that Ready depends on set again, at its current generation.

    A user may have edited Ready alone, or written a condition without observedGeneration.

    Restates: karpenter pkg/controllers/nodeclaim/lifecycle/{launch,registration,initialization}.go `Reconcile`, each of
    which sets its condition again at the current generation.
    """
    progress = NodeClaimProgress.of(claim, now)
    for type_ in NODECLAIM_DEPENDENTS:
        progress = progress.with_condition(type_, "True")
    return progress.claim


def restore_provider_ids(stored: Iterable[NodeClaim], snapshot: Snapshot) -> Plan:
    """Restore provider ids that users edited, and requeue provisioning, which registers Nodes by them.

    Args:
        stored: The NodeClaims as they are stored.
        snapshot: The same NodeClaims with their own instances (`CloudInstances.with_own_instances`).
    """
    chains = []
    for claim in stored:
        owner = snapshot.claims_by_name[claim.metadata.name]
        if claim.status.provider_id != owner.status.provider_id and claim.metadata.deletion_timestamp is None:
            why = f"NodeClaim {claim.metadata.name} has its own instance's provider id again"
            requeue = Requeue(step=Step.PROVISION, at=snapshot.now, reason=why)
            chains.append(
                _restored_progress(claim, owner, snapshot.now).chain(requeue, why="its tags name the instance")
            )
    return Plan(chains=tuple(chains))


def relabel_unreserved(snapshot: Snapshot, cloud: CloudInstances) -> Plan:
    """Label the NodeClaims and Nodes of reserved instances as on-demand once their capacity reservation has ended.

    Such an instance goes on running, at the on-demand price, and consolidation must know it.

    Restates: karpenter-provider-aws pkg/controllers/capacityreservation/capacitytype/controller.go `syncCapacityType`.
    Differs: only registered NodeClaims, since EC2 may not list the reservation of an instance that it just launched.
    """

    def decide(state: StateNode) -> Plan:
        claim, instance = state.claim, cloud.find(state.provider_id)
        if claim is None or instance is None or not is_true(claim.status.conditions, REGISTERED):
            return Plan()
        was_reserved = claim.metadata.labels.get(labels.CAPACITY_TYPE) == labels.RESERVED
        if (
            not was_reserved
            or instance.capacity_type != labels.ON_DEMAND
            or claim.metadata.deletion_timestamp is not None
        ):
            return Plan()
        why = "its capacity reservation has ended"
        patches = [PatchObject(ref=claim_ref(claim), patch=_unreserved(claim.metadata.labels), why=why)]
        if state.node is not None:
            patch = _unreserved(state.node.metadata.labels)
            patches.append(PatchObject(ref=node_ref(state.node), patch=patch, why=why))
        return Plan(chains=(chain_of(f"NodeClaim {claim.metadata.name}", *patches),))

    return plan_for_each(snapshot.state_nodes, decide)


_RESERVATION_PREFIX: Final = labels.RESERVATION_ID.removesuffix("id")


def _unreserved(present: Mapping[str, str]) -> dict[str, Any]:
    """Return the merge patch that makes an object's labels those of an on-demand instance."""
    removed: dict[str, str | None] = dict.fromkeys(
        key for key in sorted(present) if key.startswith(_RESERVATION_PREFIX)
    )
    return {"metadata": {"labels": {labels.CAPACITY_TYPE: labels.ON_DEMAND, **removed}}}


def hydrate_nodes(snapshot: Snapshot) -> Plan:
    """Restore finalizer, owner reference and labels of registered nodes that are not terminating.

    If a NodeClaim has another provider id than its node, requeue provisioning, which corrects the NodeClaim. An Event reports
    each other Node with the provider id of a NodeClaim's instance.

    Restates: karpenter pkg/controllers/node/hydration/controller.go `Reconcile`.
    """

    def decide(state: StateNode) -> Plan:
        return Plan(chains=tuple(_hydrate_node(state, snapshot)), events=tuple(_twin_events(state, snapshot)))

    return plan_for_each(snapshot.state_nodes, decide)


def _twin_events(state: StateNode, snapshot: Snapshot) -> Iterator[Event]:
    """Yield Events that report a Node with the provider id of a NodeClaim's instance, although another Node is the NodeClaim's."""
    claim = snapshot.claims_by_name.get(state.twin_of)
    if claim is None or state.node is None or claim.metadata.deletion_timestamp is not None:
        return
    own = snapshot.state_nodes_by_claim[claim.metadata.name]
    text = f"Node {state.name} has the provider id {state.provider_id}, but the Node of NodeClaim {claim.metadata.name} with that instance is {own.name}: no pod is planned for Node {state.name}, and it is not counted. Unless the kubelet was renamed, find out who created it, and delete Node {state.name}"
    for ref in (claim_ref(claim), node_ref(state.node)):
        yield Event(ref=ref, reason="MultipleNodesFound", message=text, type="Warning", key=state.name)


def _hydrate_node(state: StateNode, snapshot: Snapshot) -> Iterator[Chain]:
    node, claim = state.node, state.claim
    if node is None or claim is None or state.is_terminating or not is_true(claim.status.conditions, REGISTERED):
        return
    if state.provider_id != claim.status.provider_id:
        why = f"NodeClaim {claim.metadata.name} has another provider id than its node"
        yield chain_of(f"NodeClaim {claim.metadata.name}", Requeue(step=Step.PROVISION, at=snapshot.now, reason=why))
    missing = {key: value for key, value in _expected_labels(claim).items() if key not in node.metadata.labels}
    has_finalizer = labels.TERMINATION_FINALIZER in node.metadata.finalizers
    has_owner = any(o.uid == claim.metadata.uid for o in node.metadata.owner_references)
    is_recreated = has_unregistered_taint(node)  # it was deleted, and its kubelet registered it again
    if has_finalizer and has_owner and not missing and not is_recreated:
        return
    progress = NodeClaimProgress.of(claim, snapshot.now).with_found_node(node)
    progress = replace(progress, node=_hydrated_node(sync_node(node, claim) if is_recreated else node, claim, missing))
    restored = [f"label {key}" for key in sorted(missing) if key not in _class_label(claim)]
    if is_recreated:
        restored.append("registration of the recreated Node")
    if not has_finalizer:
        restored.append(f"finalizer {labels.TERMINATION_FINALIZER}")
    if not has_owner:
        restored.append(f"owner NodeClaim {claim.metadata.name}")
    if restored:
        progress = progress.with_events(
            Event(ref=node_ref(node), reason="MetadataRestored", message=_restored_message(restored), type="Warning")
        )
    yield progress.chain(why="restore what was removed or changed")


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
    """Return the labels that registration and initialization gave the node of this NodeClaim."""
    expected = {**_class_label(claim), labels.REGISTERED: "true"}
    if is_true(claim.status.conditions, INITIALIZED):
        expected[labels.INITIALIZED] = "true"
    if pool := claim.metadata.labels.get(labels.NODEPOOL):
        expected[labels.NODEPOOL] = pool
    return expected


def _class_label(claim: NodeClaim) -> Mapping[str, str]:
    ref = claim.spec.node_class_ref
    return {labels.node_class_label(ref.group, ref.kind): ref.name}


def _pool_label(claim: NodeClaim) -> Mapping[str, str]:
    """Return the NodePool label, from the NodeClaim's owner reference."""
    owner = next((o.name for o in claim.metadata.owner_references if o.kind == NODEPOOL.kind), "")
    return {labels.NODEPOOL: owner} if owner else {}


def _restored_progress(before: NodeClaim, after: NodeClaim, now: datetime) -> NodeClaimProgress:
    progress = replace(NodeClaimProgress.of(before, now), claim=after)
    restored = tuple(_restored_fields(before, after))
    event = Event(ref=claim_ref(before), reason="MetadataRestored", message=_restored_message(restored), type="Warning")
    return progress.with_events(event) if restored else progress


def _restored_fields(before: NodeClaim, after: NodeClaim) -> Iterator[str]:
    """Yield what a user must have removed or changed. Not the NodeClass label: older versions of Karpenter did not set it."""
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
    """Return the NodeClaim with the hashes of its NodePool and NodeClass in the current version; the same object if it has them.

    A drifted NodeClaim gets the new version but keeps its hash: with a new hash it would no longer be drifted.

    Args:
        claim: A launched NodeClaim.
        pool: Its NodePool; None if it has none or that does not exist.
        node_class: Its NodeClass; None if that does not exist.

    Restates: karpenter pkg/controllers/nodepool/hash/controller.go `updateNodeClaimHash`.
    """
    changes: dict[str, str] = {}
    has_drifted = condition_of(claim.status.conditions, DRIFTED) is not None
    if pool is not None and _has_other_version(claim, NODEPOOL_KEYS, NODEPOOL_HASH_VERSION):
        changes |= _hash_annotations(NODEPOOL_KEYS, NODEPOOL_HASH_VERSION, "" if has_drifted else node_pool_hash(pool))
    if node_class is not None and node_class.hash_version:
        keys = node_class_keys(node_class.group, node_class.kind)
        if _has_other_version(claim, keys, node_class.hash_version):
            changes |= _hash_annotations(keys, node_class.hash_version, "" if has_drifted else node_class.hash)
    return with_metadata(claim, annotations={**claim.metadata.annotations, **changes}) if changes else claim


def _has_other_version(claim: NodeClaim, keys: HashKeys, version: str) -> bool:
    return claim.metadata.annotations.get(keys.version) != version


def _hash_annotations(keys: HashKeys, version: str, hash_: str) -> Mapping[str, str]:
    return {keys.version: version, **({keys.hash: hash_} if hash_ else {})}
