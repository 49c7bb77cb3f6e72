"""Registration: syncs a NodeClaim to the node that joined, and removes the node's `unregistered` taint.

Restates: karpenter pkg/controllers/nodeclaim/lifecycle/registration.go `Reconcile`, `syncNode`,
pkg/controllers/nodeclaim/lifecycle/events.go `UnregisteredTaintMissingEvent`.
Differs: pod nomination keeps the taint until a node can be given its pods; Karpenter has registration hooks for that. Of several
Nodes with the provider id, the only one with the `unregistered` taint is the NodeClaim's: a tenant with the right to create Nodes could
otherwise stop a registration. Karpenter waits until only one is left. For the same reason a Node that never had the taint is
registered no sooner than `UNTAINTED_WAIT` after the launch, so that the instance's own has the time to join.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.conditions import format_time
from journeyman.core.api.objects import NODECLAIM, Node, NodeClaim, OwnerReference, Taint, condition_of, is_true
from journeyman.core.lifecycle.progress import NodeClaimProgress, with_node
from journeyman.core.plan import Event, claim_ref
from journeyman.core.state.nodeclaim_metrics import node_counter
from journeyman.core.state.nodes_with_claims import has_unregistered_taint
from journeyman.core.state.state_node import StateNode

UNTAINTED_WAIT: Final = timedelta(minutes=2)
"""How long after its launch a NodeClaim waits for a Node with the `unregistered` taint before it takes one without."""


def register(
    progress: NodeClaimProgress, nodes: Sequence[Node], *, keep_taint: str = "", duplicate_of: str = ""
) -> NodeClaimProgress:
    """Sync the NodeClaim to its node, and set the condition Registered.

    Args:
        progress: The NodeClaim, launched or not.
        nodes: All nodes with the NodeClaim's provider id, or once it is registered its own (`joining_nodes`).
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
    if (due := _untainted_until(claim, nodes[0])) is not None and progress.now < due:
        text = f"Node {nodes[0].metadata.name} joined without the taint {labels.UNREGISTERED_TAINT}; it is registered at {format_time(due)}, unless a Node with the taint joins before"
        return progress.with_condition("Registered", "Unknown", "UnregisteredTaintMissing", text)
    if keep_taint:
        text = f"Node {nodes[0].metadata.name} joined; its unregistered taint is removed once its planned pods can be nominated to it"
        return progress.with_condition("Registered", "Unknown", keep_taint, text)
    return _complete_registration(progress.with_found_node(nodes[0]), nodes[0])


def _untainted_until(claim: NodeClaim, node: Node) -> datetime | None:
    """Return until when a Node without the `unregistered` taint is not registered; None for one that has it, or was registered before."""
    launched = condition_of(claim.status.conditions, "Launched")
    if has_unregistered_taint(node) or labels.REGISTERED in node.metadata.labels or launched is None:
        return None
    since = launched.last_transition_time
    return since + UNTAINTED_WAIT if since is not None else None


def joining_nodes(state: StateNode, nodes: Sequence[Node]) -> Sequence[Node]:
    """Return the Nodes that may be the NodeClaim's: its own once it is registered, else the only one with the `unregistered` taint.

    Args:
        state: The NodeClaim, joined with its Node.
        nodes: All nodes with its provider id.
    """
    if state.duplicate_of:
        return ()
    if state.claim is not None and is_true(state.claim.status.conditions, "Registered"):
        return (state.node,) if state.node is not None else ()
    tainted = [node for node in nodes if has_unregistered_taint(node)]
    return tainted if len(tainted) == 1 else nodes


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
