"""What leaves, and how that is marked: on its node for everybody, on its claim the time by which it must be gone.

Restates: karpenter pkg/controllers/node/termination/terminator/terminator.go `Taint`; pkg/controllers/nodeclaim/lifecycle/
controller.go `ensureTerminationGracePeriodTerminationTimeAnnotation`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Annotated

import msgspec
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.conditions import DRAINED, format_time
from journeyman.core.api.duration import parse_duration
from journeyman.core.api.objects import Node, NodeClaim, condition_of
from journeyman.core.lifecycle.progress import Progress, claim_ref, node_ref, with_metadata, with_node
from journeyman.core.plan import Action, DeleteObject, Event, ObjectRef
from journeyman.core.state import StateNode
from journeyman.core.state.cordon import with_disrupted
from journeyman.errors import ConfigurationError

AwareTime = Annotated[datetime, msgspec.Meta(tz=True)]


def needs_termination(node: StateNode) -> bool:
    """Whether the Node or the NodeClaim has a deletionTimestamp and our finalizer, so that it is drained and terminated."""
    return any(awaits_finalizer(half) for half in (node.claim, node.node) if half is not None)


def awaits_finalizer(item: NodeClaim | Node) -> bool:
    """Whether it has a deletionTimestamp and our finalizer."""
    return item.metadata.deletion_timestamp is not None and labels.TERMINATION_FINALIZER in item.metadata.finalizers


def marked(node: Node) -> Node:
    """Closed to new pods and taken out of load balancers."""
    marks = {**node.metadata.labels, labels.EXCLUDE_BALANCERS: "karpenter"}
    return with_node(node, metadata={"labels": marks}, spec={"taints": with_disrupted(node.spec.taints)})


def announced(progress: Progress) -> Progress:
    """The node marked, and the time by which it must be gone written down once: a time that others set stands.

    What is no time says nothing, and would leave the node without an end. A node that lost our finalizer gets it back
    before it is deleted: it would be gone at once, and its pods with it. Until the claim has a deletionTimestamp there is
    nothing to count from.
    """
    if progress.node is not None:
        progress = replace(progress, node=_held(marked(progress.node)))
    claim = progress.claim
    period, deleted = _grace_period(claim), claim.metadata.deletion_timestamp
    if period is not None and deleted is not None and terminates_at(claim) is None:
        noted = {**claim.metadata.annotations, labels.TERMINATION_TIMESTAMP: format_time(deleted + period)}
        progress = replace(progress, claim=with_metadata(claim, annotations=noted))
    return progress.told(*_end_announced(progress))


def _held(node: Node) -> Node:
    """With our finalizer, unless it is being deleted: the API server takes no further ones then."""
    finalizers = node.metadata.finalizers
    if node.metadata.deletion_timestamp is not None or labels.TERMINATION_FINALIZER in finalizers:
        return node
    return with_node(node, metadata={"finalizers": (*finalizers, labels.TERMINATION_FINALIZER)})


def terminates_at(claim: NodeClaim) -> datetime | None:
    """When the claim's node must be gone; None if it may take as long as its pods need."""
    text = claim.metadata.annotations.get(labels.TERMINATION_TIMESTAMP, "")
    try:
        return msgspec.convert(text, AwareTime)
    except msgspec.ValidationError:
        return None


def delete_halves(progress: Progress) -> tuple[Action, ...]:
    """Deleting either half deletes the other."""
    halves: tuple[Action, ...] = ()
    if progress.original.metadata.deletion_timestamp is None:
        halves += (DeleteObject(ref=claim_ref(progress.original), why="its node is being deleted"),)
    node = progress.original_node
    if node is not None and node.metadata.deletion_timestamp is None:
        halves += (DeleteObject(ref=node_ref(node), why="its NodeClaim is being deleted"),)
    return halves


def without_ours(finalizers: tuple[str, ...]) -> tuple[str, ...]:
    """The finalizers that others put on."""
    return tuple(f for f in finalizers if f != labels.TERMINATION_FINALIZER)


def _grace_period(claim: NodeClaim) -> timedelta | None:
    """The claim's terminationGracePeriod; one that does not parse counts as none, which loses no pod."""
    text = claim.spec.termination_grace_period
    try:
        return parse_duration(text) if text is not None else None
    except ConfigurationError:
        return None


def _end_announced(progress: Progress) -> Iterator[Event]:
    """On the claim once we wrote the end down, on the node as well or, if others wrote it, once the drain begins."""
    if terminates_at(progress.claim) is None:
        return
    end = progress.claim.metadata.annotations[labels.TERMINATION_TIMESTAMP]
    written = progress.original.metadata.annotations.get(labels.TERMINATION_TIMESTAMP) != end
    begins = condition_of(progress.original.status.conditions, DRAINED) is None
    if written:
        yield _expiring(claim_ref(progress.original), end)
    if progress.original_node is not None and (written or begins):
        yield _expiring(node_ref(progress.original_node), end)


def _expiring(ref: ObjectRef, end: str) -> Event:
    text = f"All pods will be deleted by {end}"
    return Event(ref=ref, reason="TerminationGracePeriodExpiring", message=text, type="Warning")
