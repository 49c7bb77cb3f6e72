"""Registration: syncs a NodeClaim to the node that joined, and removes the node's `unregistered` taint.

Restates: karpenter pkg/controllers/nodeclaim/lifecycle/registration.go `Reconcile`, `syncNode`,
pkg/controllers/nodeclaim/lifecycle/events.go `UnregisteredTaintMissingEvent`.
Differs: pod nomination keeps the taint until a node can be given its pods; Karpenter has registration hooks for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import NODECLAIM, Node, NodeClaim, OwnerReference, Taint, is_true
from journeyman.core.lifecycle.progress import NodeClaimProgress, with_node
from journeyman.core.plan import Event, claim_ref
from journeyman.core.state.nodeclaim_metrics import node_counter


def register(
    progress: NodeClaimProgress, nodes: Sequence[Node], *, keep_taint: str = "", duplicate_of: str = ""
) -> NodeClaimProgress:
    """Sync the NodeClaim to its node, and set the condition Registered.

    Args:
        progress: The NodeClaim, launched or not.
        nodes: All nodes with the NodeClaim's provider id.
        keep_taint: The reason for which a node that has joined keeps the `unregistered` taint for now; empty to remove it.
        duplicate_of: The name of another NodeClaim that owns the instance with this provider id, if there is one.

    Returns:
        Registered True, with the synced node; Unknown ``NodeNotFound`` while no node has joined, or ``keep_taint``; False
        ``MultipleNodesFound`` or ``MultipleNodeClaimsFound``. A registered NodeClaim only gets its node attached.
    """
    if duplicate_of:
        return _reject_duplicate(progress, duplicate_of)
    claim = progress.claim
    if not is_true(claim.status.conditions, "Launched"):
        return progress
    if is_true(claim.status.conditions, "Registered"):
        return progress.with_found_node(nodes[0]) if len(nodes) == 1 else progress
    if not nodes:
        return progress.with_condition("Registered", "Unknown", "NodeNotFound", "Node not registered with cluster")
    if len(nodes) > 1:
        text = f"Invariant violated, matched multiple nodes: {', '.join(n.metadata.name for n in nodes)}"
        return progress.with_condition("Registered", "False", "MultipleNodesFound", text)
    if keep_taint:
        text = f"Node {nodes[0].metadata.name} joined; its unregistered taint is removed once its planned pods can be nominated to it"
        return progress.with_condition("Registered", "Unknown", keep_taint, text)
    return _complete_registration(progress.with_found_node(nodes[0]), nodes[0])


def _reject_duplicate(progress: NodeClaimProgress, owner: str) -> NodeClaimProgress:
    """Set Registered False: another NodeClaim owns the instance. Liveness deletes this one after its registration timeout."""
    claim = progress.claim
    if is_true(claim.status.conditions, "Registered"):
        return progress
    text = f"Its instance {claim.status.provider_id} belongs to NodeClaim {owner}; delete this NodeClaim"
    event = Event(ref=claim_ref(claim), reason="MultipleNodeClaimsFound", message=text, type="Warning")
    return progress.with_condition("Registered", "False", "MultipleNodeClaimsFound", text).with_events(event)


def sync_node(node: Node, claim: NodeClaim) -> Node:
    """Return the node with the NodeClaim's finalizer, owner reference, labels, annotations and taints, and without `unregistered`.

    Restates: karpenter pkg/controllers/nodeclaim/lifecycle/registration.go `syncNode`.
    """
    metadata = node.metadata
    finalizers = metadata.finalizers
    if labels.TERMINATION_FINALIZER not in finalizers:
        finalizers += (labels.TERMINATION_FINALIZER,)
    return with_node(
        node,
        metadata={
            "finalizers": finalizers,
            "owner_references": with_owner(metadata.owner_references, claim),
            "labels": {**metadata.labels, **claim.metadata.labels, labels.REGISTERED: "true"},
            "annotations": {**metadata.annotations, **_annotations_for_node(claim.metadata.annotations)},
        },
        spec={"taints": _merge_taints(node, claim)},
    )


def _complete_registration(progress: NodeClaimProgress, node: Node) -> NodeClaimProgress:
    claim = progress.claim
    warnings: tuple[Event, ...] = ()
    if labels.REGISTERED not in node.metadata.labels and not has_unregistered_taint(node):
        text = f"Missing {labels.UNREGISTERED_TAINT} taint which prevents registration related race conditions on Karpenter-managed nodes"
        warnings = (Event(ref=claim_ref(claim), reason="UnregisteredTaintMissing", message=text, type="Warning"),)
    status = msgspec.structs.replace(claim.status, node_name=node.metadata.name)
    progress = replace(
        progress, node=sync_node(node, claim), claim=msgspec.structs.replace(claim, status=status)
    ).with_condition("Registered", "True")
    return progress.with_events(
        *warnings,
        observations=(node_counter("karpenter_nodes_created_total", claim),),
        notes=(f"registered NodeClaim {claim.metadata.name} as node {node.metadata.name}",),
    )


def has_unregistered_taint(node: Node) -> bool:
    """Whether the node has the `unregistered` taint with which its kubelet registered it."""
    return any(t.key == labels.UNREGISTERED_TAINT and t.effect == "NoExecute" for t in node.spec.taints)


def with_owner(owners: Iterable[OwnerReference], claim: NodeClaim) -> tuple[OwnerReference, ...]:
    """Return the owner references with the NodeClaim's as the last one.

    Restates: karpenter pkg/utils/nodeclaim/nodeclaim.go `UpdateNodeOwnerReferences`.
    """
    own = OwnerReference(
        api_version=NODECLAIM.api_version,
        kind=NODECLAIM.kind,
        name=claim.metadata.name,
        uid=claim.metadata.uid,
        block_owner_deletion=True,
    )
    return (*(o for o in owners if o.uid != own.uid), own)


def _annotations_for_node(annotations: dict[str, str]) -> dict[str, str]:
    """Return the annotations to copy to the node: all but those in which Journeyman keeps state on the NodeClaim."""
    return {key: value for key, value in annotations.items() if not key.startswith(f"{labels.OWN_GROUP}/")}


def _merge_taints(node: Node, claim: NodeClaim) -> tuple[Taint, ...]:
    """Return the node's taints and those of the NodeClaim that it lacks, without `unregistered`.

    The label `do-not-sync-taints` says that the node's bootstrap sets the taints.
    """
    taints = [t for t in node.spec.taints if t.key != labels.UNREGISTERED_TAINT]
    if node.metadata.labels.get(labels.DO_NOT_SYNC_TAINTS) == "true":
        return tuple(taints)
    present = {(t.key, t.effect) for t in taints}
    claimed = (*claim.spec.taints, *claim.spec.startup_taints)
    return (*taints, *(t for t in claimed if (t.key, t.effect) not in present))
