"""Nodes and NodeClaims are joined to one thing each, whatever was done to either by hand.

A node and the claim of its provider id belong together. Where that fails, the next of these holds:

1. The node's ownerReference, written at registration, names the claim's UID.
2. The claim registered as a node of that name, and has no provider id to say otherwise.

If several claims have one provider id, the instance is the claim's that its node names as owner; before a node has
joined, the oldest one's. The others are duplicates: they provide no capacity, and are finalized without touching the instance.

Restates: karpenter pkg/controllers/state/cluster.go `UpdateNode`, `UpdateNodeClaim`.
Differs: Karpenter knows the provider id alone, takes duplicates for no claim at all in deletion and for the last one
written elsewhere, and lets a node go without a drain whose claim has lost its provider id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Final

from journeyman.core.api import labels
from journeyman.core.api.conditions import REGISTERED
from journeyman.core.api.objects import NODECLAIM, Node, NodeClaim, Pod, is_true
from journeyman.core.state.state_node import StateNode

_EARLIEST: Final = datetime.min.replace(tzinfo=timezone.utc)


def join(
    nodes: Sequence[Node], claims: Sequence[NodeClaim], pods_by_node: Mapping[str, tuple[Pod, ...]]
) -> tuple[StateNode, ...]:
    """Every node and every claim, together where they belong together.

    Args:
        nodes: All nodes, unmanaged ones included.
        claims: All NodeClaims of ours.
        pods_by_node: Pods that run on each node, by its name.

    Returns:
        By name. A claim may have several nodes, a node at most one claim. Nodes of ours that have no provider id yet are
        left out, as Karpenter does: their claims stand for them.
    """
    index = _Claims(nodes, claims)
    found = []
    with_node: set[str] = set()
    for node in nodes:
        claim = index.of(node)
        if claim is None and _awaits_identity(node):
            continue
        if claim is not None:
            with_node.add(claim.metadata.uid)
        found.append(StateNode(node=node, claim=claim, pods=pods_by_node.get(node.metadata.name, ())))
    found += [
        StateNode(node=None, claim=claim, duplicate_of=index.rival_of(claim))
        for claim in claims
        if claim.metadata.uid not in with_node
    ]
    return tuple(sorted(found, key=lambda n: n.name))


class _Claims:
    """The claims by what a node may know them by."""

    def __init__(self, nodes: Iterable[Node], claims: Sequence[NodeClaim]) -> None:
        sharing: dict[str, list[NodeClaim]] = {}
        for claim in claims:
            if claim.status.provider_id:
                sharing.setdefault(claim.status.provider_id, []).append(claim)
        contested = any(len(rivals) > 1 for rivals in sharing.values())
        named = _instances_by_owner(nodes) if contested else {}
        self._by_provider_id = {
            provider_id: min(rivals, key=lambda c: _precedence(c, named)) if len(rivals) > 1 else rivals[0]
            for provider_id, rivals in sharing.items()
        }
        self._by_uid = {claim.metadata.uid: claim for claim in claims}
        self._by_node = {
            claim.status.node_name: claim
            for claim in claims
            if not claim.status.provider_id and claim.status.node_name and is_true(claim.status.conditions, REGISTERED)
        }

    def of(self, node: Node) -> NodeClaim | None:
        """The node's claim."""
        if node.spec.provider_id and (claim := self._by_provider_id.get(node.spec.provider_id)):
            return claim
        owners = (self._by_uid.get(uid) for uid in _owners(node))
        return next((claim for claim in owners if claim), None) or self._by_node.get(node.metadata.name)

    def rival_of(self, claim: NodeClaim) -> str:
        """Whose instance it is that a claim without a node names as its own; empty if it is its own."""
        holder = self._by_provider_id.get(claim.status.provider_id, claim)
        return holder.metadata.name if holder.metadata.uid != claim.metadata.uid else ""


def _instances_by_owner(nodes: Iterable[Node]) -> Mapping[str, Collection[str]]:
    named: dict[str, set[str]] = {}
    for node in nodes:
        for uid in _owners(node):
            named.setdefault(uid, set()).add(node.spec.provider_id)
    return named


def _precedence(claim: NodeClaim, named: Mapping[str, Collection[str]]) -> tuple[bool, bool, datetime, str]:
    """The least of several claims with one provider id has it: first whom the instance's node names, last whom another's does.

    `named` are the instances whose nodes name a claim as owner, by its UID.
    """
    instances = named.get(claim.metadata.uid, ())
    elsewhere = claim.status.provider_id not in instances
    return elsewhere, bool(instances), claim.metadata.creation_timestamp or _EARLIEST, claim.metadata.name


def _owners(node: Node) -> Iterator[str]:
    return (o.uid for o in node.metadata.owner_references if o.kind == NODECLAIM.kind)


def _awaits_identity(node: Node) -> bool:
    """Whether it is to become the node of a claim that cannot be known yet; one in deletion will not."""
    meta = node.metadata
    return labels.NODEPOOL in meta.labels and not node.spec.provider_id and meta.deletion_timestamp is None
