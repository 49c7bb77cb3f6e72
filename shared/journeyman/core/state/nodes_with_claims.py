"""Joins each Node with its NodeClaim, also after a user edited either.

A Node belongs to the NodeClaim with its provider id. Without one, it belongs to the NodeClaim

1. whose UID its ownerReference names, which registration writes, unless that NodeClaim has another provider id, and has never
   registered or owns the Node of that id: then a user has edited the reference, and the instance of this Node is an orphan
   until the NodeClaim launched for it has its provider id again; or else
2. that registered under the Node's name and has no provider id.

If several Nodes have one provider id, the NodeClaim's is the one that its status names, else one that names the NodeClaim as its
owner, else one with the taint that our user data sets, else the oldest. The others (`StateNode.twin_of`) belong to no NodeClaim:
a kubelet was renamed, or a tenant created a Node with the provider id of an instance that is not theirs. Nothing is concluded
from them, no pod is planned for them, and none of their labels, taints or conditions counts; but their pods keep the instance,
and they are drained with it. While there is no NodeClaim, it is not known which of them is the instance's, and no pod is planned for
any of them.

If several NodeClaims have one provider id, the instance belongs to the one that its Node names as owner, or to the oldest while
no Node has joined. The others are duplicates: they provide no capacity, and their deletion does not touch the instance.

Restates: karpenter pkg/controllers/state/cluster.go `UpdateNode`, `UpdateNodeClaim`.
Differs: Karpenter joins by provider id only, and of several Nodes takes the one written last. Of duplicates it finalizes none, and elsewhere uses the one written last. It
removes a Node without a drain if its NodeClaim has lost the provider id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import cached_property
from typing import Final

from journeyman.core.api import labels
from journeyman.core.api.conditions import REGISTERED
from journeyman.core.api.objects import NODECLAIM, Node, NodeClaim, Pod, is_true
from journeyman.core.state.state_node import StateNode

_EARLIEST: Final = datetime.min.replace(tzinfo=timezone.utc)


def join(
    nodes: Sequence[Node], claims: Sequence[NodeClaim], pods_by_node: Mapping[str, tuple[Pod, ...]]
) -> tuple[StateNode, ...]:
    """Return every Node and every NodeClaim, joined where they belong together.

    Args:
        nodes: All nodes, unmanaged ones included.
        claims: All NodeClaims that Journeyman manages.
        pods_by_node: Pods that run on each node, by its name.

    Returns:
        Sorted by name. A claim has at most one node, unless others name it as owner under another provider id. Managed nodes without a provider id are left
        out, as in Karpenter: their claims stand for them until the kubelet sets the id.
    """
    index = _ClaimIndex(nodes, claims)
    found = []
    with_node: set[str] = set()
    for node in nodes:
        claim = index.of(node)
        if claim is None and _awaits_provider_id(node):
            continue
        pods = pods_by_node.get(node.metadata.name, ())
        if claim is not None and index.is_twin(node, claim):
            found.append(StateNode(node=node, claim=None, pods=pods, twin_of=claim.metadata.name))
            continue
        if claim is not None:
            with_node.add(claim.metadata.uid)
        shares_instance = claim is None and index.shares_its_id(node)
        found.append(StateNode(node=node, claim=claim, pods=pods, shares_instance=shares_instance))
    found += [
        StateNode(node=None, claim=claim, duplicate_of=index.owner_of_instance(claim))
        for claim in claims
        if claim.metadata.uid not in with_node
    ]
    return tuple(sorted(found, key=lambda n: n.name))


class _ClaimIndex:
    """NodeClaims by provider id, by UID and by node name."""

    def __init__(self, nodes: Sequence[Node], claims: Sequence[NodeClaim]) -> None:
        self._nodes = nodes
        sharing: dict[str, list[NodeClaim]] = {}
        for claim in claims:
            if claim.status.provider_id:
                sharing.setdefault(claim.status.provider_id, []).append(claim)
        has_duplicates = any(len(rivals) > 1 for rivals in sharing.values())
        instances = self._instances_by_owner if has_duplicates else {}
        self._by_provider_id = {
            provider_id: min(rivals, key=lambda c: _precedence(c, instances)) if len(rivals) > 1 else rivals[0]
            for provider_id, rivals in sharing.items()
        }
        self._sharing_nodes = _nodes_that_share_an_id(nodes)
        self._by_uid = {claim.metadata.uid: claim for claim in claims}
        self._by_node = {
            claim.status.node_name: claim
            for claim in claims
            if not claim.status.provider_id and claim.status.node_name and is_true(claim.status.conditions, REGISTERED)
        }

    def of(self, node: Node) -> NodeClaim | None:
        """Return the claim that the node belongs to; None if there is none."""
        if node.spec.provider_id and (claim := self._by_provider_id.get(node.spec.provider_id)):
            return claim
        owners = (self._by_uid.get(uid) for uid in owner_uids(node))
        own = (claim for claim in owners if claim and not self._has_another_instance(claim))
        return next(own, None) or self._by_node.get(node.metadata.name)

    def is_twin(self, node: Node, claim: NodeClaim) -> bool:
        """Whether another Node with the same provider id is the claim's."""
        rivals = self._sharing_nodes.get(node.spec.provider_id, ())
        return bool(rivals) and min(rivals, key=lambda n: _claim_to_be_its_node(n, claim)) is not node

    def shares_its_id(self, node: Node) -> bool:
        """Whether another Node has the same provider id."""
        return node.spec.provider_id in self._sharing_nodes

    def _has_another_instance(self, claim: NodeClaim) -> bool:
        """Return whether the claim has its own provider id, so that a Node with another one is not the claim's.

        A user may have edited the provider id of a registered claim, unless the Node with that id names the claim as owner.
        """
        provider_id = claim.status.provider_id
        if not provider_id:
            return False
        owned = self._instances_by_owner.get(claim.metadata.uid, ())
        return provider_id in owned or not is_true(claim.status.conditions, REGISTERED)

    @cached_property
    def _instances_by_owner(self) -> Mapping[str, Collection[str]]:
        """The provider ids of the Nodes that name a claim as owner, by the claim's UID."""
        instances: dict[str, set[str]] = {}
        for node in self._nodes:
            for uid in owner_uids(node):
                instances.setdefault(uid, set()).add(node.spec.provider_id)
        return instances

    def owner_of_instance(self, claim: NodeClaim) -> str:
        """Return the name of another claim that owns the claim's instance; empty if there is none."""
        owner = self._by_provider_id.get(claim.status.provider_id, claim)
        return owner.metadata.name if owner.metadata.uid != claim.metadata.uid else ""


def _precedence(claim: NodeClaim, instances: Mapping[str, Collection[str]]) -> tuple[bool, bool, datetime, str]:
    """Return the sort key of claims with one provider id; the instance belongs to the first.

    A claim that the instance's Node names as owner comes first, one that another instance's Node names comes last.
    """
    owned = instances.get(claim.metadata.uid, ())
    is_owner = claim.status.provider_id in owned
    return not is_owner, bool(owned), claim.metadata.creation_timestamp or _EARLIEST, claim.metadata.name


def _nodes_that_share_an_id(nodes: Sequence[Node]) -> Mapping[str, Sequence[Node]]:
    """Return the Nodes of each provider id that several have."""
    seen: dict[str, list[Node]] = {}
    for node in nodes:
        if node.spec.provider_id:
            seen.setdefault(node.spec.provider_id, []).append(node)
    return {provider_id: sharing for provider_id, sharing in seen.items() if len(sharing) > 1}


def _claim_to_be_its_node(node: Node, claim: NodeClaim) -> tuple[bool, bool, bool, datetime, str]:
    """Return the sort key of Nodes with the claim's provider id: the first is the claim's Node."""
    meta = node.metadata
    is_named = meta.name == claim.status.node_name
    is_owned = claim.metadata.uid in owner_uids(node)
    created = meta.creation_timestamp or _EARLIEST
    return not is_named, not is_owned, not has_unregistered_taint(node), created, meta.name


def has_unregistered_taint(node: Node) -> bool:
    """Whether the node has the `unregistered` taint with which its kubelet registered it."""
    return any(t.key == labels.UNREGISTERED_TAINT and t.effect == "NoExecute" for t in node.spec.taints)


def owner_uids(node: Node) -> Iterator[str]:
    """Yield the UIDs of the NodeClaims that the node names as its owners."""
    return (o.uid for o in node.metadata.owner_references if o.kind == NODECLAIM.kind)


def _awaits_provider_id(node: Node) -> bool:
    """Whether the node belongs to a claim once its kubelet has set the provider id; a deleting node never will."""
    meta = node.metadata
    return labels.NODEPOOL in meta.labels and not node.spec.provider_id and meta.deletion_timestamp is None
