"""StateNode: a Node joined with its NodeClaim.

Restates: karpenter pkg/controllers/state/statenode.go.
Differs: a node is also registered if its claim's condition is True. Only a deletionTimestamp marks it for deletion;
InstanceTerminating does not, because only deleting claims have it. Claims that can never get a node are distinguished.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from functools import cached_property
from typing import Final

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.conditions import DISRUPTION_REASON, EXPIRED, REGISTERED
from journeyman.core.api.objects import Condition, Node, NodeClaim, Pod, Taint, condition_of, is_true
from journeyman.core.api.resources import to_resources
from journeyman.core.plan import ObjectRef, claim_ref, node_ref
from journeyman.core.state.machine_size import believable


class StateNode(Struct, frozen=True, kw_only=True, dict=True):
    """A Node and its NodeClaim (see `nodes_with_claims`); at least one of the two exists.

    `pods` are bound to the node and not terminal, sorted by key. `duplicate_of` names the claim that the instance belongs to, if
    this claim has no node and the same provider id; only edits by users lead to that. `twin_of` names the claim whose instance
    has this Node's provider id while another Node is that claim's; then `claim` is None. `shares_instance`: there is no claim, and
    another Node has the same provider id.
    """

    node: Node | None
    claim: NodeClaim | None
    pods: tuple[Pod, ...] = ()
    duplicate_of: str = ""
    twin_of: str = ""
    shares_instance: bool = False

    @cached_property
    def name(self) -> str:
        """The Node's name; the NodeClaim's while there is no Node."""
        if self.node is not None:
            return self.node.metadata.name
        assert self.claim is not None  # noqa: S101 - construction guarantees one of the two
        return self.claim.metadata.name

    @property
    def provider_id(self) -> str:
        """The provider id; empty before launch."""
        if self.node is not None and self.node.spec.provider_id:
            return self.node.spec.provider_id
        return self.claim.status.provider_id if self.claim is not None else ""

    @property
    def object_refs(self) -> tuple[ObjectRef, ...]:
        """References to the NodeClaim and the Node, as far as they exist, to record Events on."""
        claim = (claim_ref(self.claim),) if self.claim is not None else ()
        return (*claim, node_ref(self.node)) if self.node is not None else claim

    @property
    def managed(self) -> bool:
        """Whether a NodeClaim owns it."""
        return self.claim is not None

    @property
    def node_pool(self) -> str:
        """Name of the NodePool from the Node's label, or else the NodeClaim's; empty if there is none."""
        claimed = self.claim.metadata.labels.get(labels.NODEPOOL, "") if self.claim is not None else ""
        return self.labels.get(labels.NODEPOOL) or claimed

    @cached_property
    def registered(self) -> bool:
        """Whether the claim's Registered condition or the node's label says so; unmanaged nodes are registered.

        Either is enough: a crash between the two writes leaves only one, and a label that a user removed must not make the
        node look as if no pod ever ran there.
        """
        if self.claim is None or is_true(self.claim.status.conditions, REGISTERED):
            return True
        return self.node is not None and self.node.metadata.labels.get(labels.REGISTERED) == "true"

    @property
    def initialized(self) -> bool:
        """Whether the node's label says so; unmanaged nodes are initialized."""
        if self.claim is None:
            return True
        return self.node is not None and self.node.metadata.labels.get(labels.INITIALIZED) == "true"

    def allocatable(self) -> dict[str, int]:
        """Return what pods and daemons may use: the Node's status, completed by the NodeClaim's.

        Before launch, it is what the NodeClaim requests. What the machine cannot have does not count (`machine_size`).

        Restates: karpenter pkg/controllers/state/statenode.go `Allocatable`.

        Raises:
            InvalidQuantityError: A quantity of the Node or the NodeClaim does not parse.
        """
        return self._amounts("allocatable")

    def capacity(self) -> dict[str, int]:
        """Return the capacity, from the same sources as `allocatable`. Raises InvalidQuantityError."""
        return self._amounts("capacity")

    def _amounts(self, field: str) -> dict[str, int]:
        of_node = to_resources(getattr(self.node.status, field), round_up=False) if self.node is not None else {}
        if self.claim is None:
            return believable(of_node, {}, self.node) if self.node is not None else {}
        of_claim = to_resources(getattr(self.claim.status, field), round_up=False)
        of_node = believable(of_node, of_claim, self.claim)
        if self.initialized and of_node:
            return of_node
        if not of_claim and not of_node:
            return to_resources(self.claim.spec.resources.requests, round_up=True)
        return {**of_claim, **{name: amount for name, amount in of_node.items() if amount}}

    @property
    def is_held(self) -> bool:
        """Whether the Node has a deletionTimestamp only because its NodeClaim was wiped: our finalizer keeps it, and pods run on.

        Kubernetes deletes the Node of an owner that does not exist. Then there is no NodeClaim and the drain has not begun, or a NodeClaim
        was created again after the deletion.
        """
        if self.node is None or self.node.metadata.deletion_timestamp is None:
            return False
        if labels.TERMINATION_FINALIZER not in self.node.metadata.finalizers or self.twin_of:
            return False
        if self.claim is None:
            return all(t.key != labels.DISRUPTED_TAINT for t in self.node.spec.taints)
        created = self.claim.metadata.creation_timestamp
        is_adopted = labels.ADOPTED in self.claim.metadata.annotations
        return is_adopted and created is not None and self.node.metadata.deletion_timestamp <= created

    @property
    def may_be_adopted(self) -> bool:
        """Whether it has a Node and no NodeClaim, which can be created again: it is not terminating, and no drain of it has begun."""
        return self.node is not None and self.claim is None and not self.twin_of and not self.is_being_disrupted

    @property
    def is_terminating(self) -> bool:
        """Whether the Node or the NodeClaim has a deletionTimestamp, unless it is held. Nothing can undo that."""
        is_node_deleted = (
            self.node is not None and self.node.metadata.deletion_timestamp is not None and not self.is_held
        )
        return is_node_deleted or (self.claim is not None and self.claim.metadata.deletion_timestamp is not None)

    @property
    def is_being_disrupted(self) -> bool:
        """Whether it is terminating, or its Node has the `karpenter.sh/disrupted` taint, also if a user set it.

        It takes no new pods, and its pods need another node. A rollback may remove the taint.
        """
        has_taint = self.node is not None and any(t.key == labels.DISRUPTED_TAINT for t in self.node.spec.taints)
        return self.is_terminating or has_taint

    @property
    def is_expiring(self) -> bool:
        """Whether it expires soon, and what its pods need is launched now; it may be terminating already."""
        reason = condition_of(self.conditions, DISRUPTION_REASON)
        return reason is not None and (reason.status, reason.reason) == ("True", EXPIRED)

    @property
    def is_leaving(self) -> bool:
        """Whether it is terminating or being disrupted, also before its Node is tainted: its NodePool's limits do not count it.

        Its replacement runs beside it. A rollback may undo this.

        Restates: karpenter pkg/controllers/state/statenode.go `MarkedForDeletion`.
        """
        return self.is_being_disrupted or is_true(self.conditions, DISRUPTION_REASON)

    @property
    def is_node_missing(self) -> bool:
        """Whether the NodeClaim is registered and its Node does not exist: deleted by hand, or not read yet."""
        return self.claim is not None and self.node is None and is_true(self.claim.status.conditions, REGISTERED)

    @property
    def is_unusable(self) -> bool:
        """Whether no pod may be planned onto it: it has no Node that pods could be bound to and will not get one, or may be a twin."""
        return self.is_node_missing or bool(self.duplicate_of or self.twin_of) or self.shares_instance

    @cached_property
    def labels(self) -> Mapping[str, str]:
        """Labels that pods are scheduled by: the claim's and its single-valued requirements until registration, then the node's.

        A node that is registered without the label that says so, as it was loaded before this run registered it, has both.
        """
        if self.node is None or self.node.metadata.labels.get(labels.REGISTERED) != "true":
            base = dict(self.claim.metadata.labels) if self.claim is not None else {}
            if self.claim is not None:
                for requirement in self.claim.spec.requirements:
                    if requirement.operator == "In" and len(requirement.values) == 1:
                        base.setdefault(requirement.key, requirement.values[0])
            if self.node is not None and labels.HOSTNAME in self.node.metadata.labels:
                base.setdefault(labels.HOSTNAME, self.node.metadata.labels[labels.HOSTNAME])
            return {**base, **self.node.metadata.labels} if self.node is not None and self.registered else base
        return self.node.metadata.labels

    @cached_property
    def taints(self) -> tuple[Taint, ...]:
        """Taints that a pod must tolerate to be scheduled here; startup taints do not count until initialization.

        Restates: karpenter pkg/controllers/state/statenode.go `Taints`.
        """
        if self.node is None or not self.registered:
            taints: tuple[Taint, ...] = self.claim.spec.taints if self.claim is not None else ()
        else:
            taints = self.node.spec.taints
        if self.initialized:
            return taints
        startup = {(t.key, t.effect) for t in self.claim.spec.startup_taints} if self.claim is not None else set()
        return tuple(
            t for t in taints if not labels.is_ephemeral_taint(t.key, t.effect) and (t.key, t.effect) not in startup
        )

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The claim's conditions; none for unmanaged nodes."""
        return self.claim.status.conditions if self.claim is not None else ()

    @property
    def ready(self) -> bool:
        """Whether the Node's Ready condition is True."""
        return self.node is not None and is_true(self.node.status.conditions, "Ready")


def one_per_instance(nodes: Iterable[StateNode]) -> tuple[StateNode, ...]:
    """Return one state node for each instance, and those without an instance; the amounts of an instance count once.

    Of several Nodes without a NodeClaim, an initialized one counts, and of these the oldest: a tenant's is younger. Twins (`twin_of`) are left out.
    Duplicates (`duplicate_of`) are kept: a user may have edited their provider id, and their own instance runs.

    Restates: karpenter pkg/controllers/state/cluster.go `Cluster`, whose nodes are kept by provider id.
    """
    ordered = sorted((n for n in nodes if not n.twin_of), key=_precedence)
    seen: set[str] = set()
    found = []
    for node in ordered:
        if node.duplicate_of or node.provider_id not in seen:
            found.append(node)
        if node.provider_id:
            seen.add(node.provider_id)
    return tuple(found)


def _precedence(node: StateNode) -> tuple[bool, bool, datetime, str]:
    created = node.node.metadata.creation_timestamp if node.node is not None else None
    return node.node is None, not node.initialized, created or _EARLIEST, node.name


_EARLIEST: Final = datetime.min.replace(tzinfo=timezone.utc)
