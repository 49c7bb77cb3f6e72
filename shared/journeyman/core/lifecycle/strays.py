"""Strays: NodeClaims that contradict themselves, and would cost money for ever without a pod on them.

==========================================  ===========================================================================
registered, but its Node is gone although   after a while, in which the kubelet may register it again, the claim is
its instance runs                           deleted: no pod can be bound to it
InstanceTerminating, but nobody deleted it  the claim is deleted, which is what follows from the condition
==========================================  ===========================================================================

A Node is gone since a run first missed it: the claim carries that time as long as it holds.

Differs: Karpenter leaves both as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Annotated

import msgspec
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.conditions import INSTANCE_TERMINATING, format_time
from journeyman.core.api.objects import NodeClaim, is_true
from journeyman.core.lifecycle.explain import disrupted
from journeyman.core.lifecycle.garbage import is_lost
from journeyman.core.lifecycle.instances import Cloud
from journeyman.core.lifecycle.progress import Progress, claim_ref, deletion, with_metadata
from journeyman.core.plan import Chain, Event, Plan, Requeue, Step, chain_of
from journeyman.core.state import Snapshot, StateNode

_AwareTime = Annotated[datetime, msgspec.Meta(tz=True)]


def end_strays(snapshot: Snapshot, cloud: Cloud, stray_after: timedelta) -> Plan:
    """Delete what has strayed for long enough, and note what is beginning to.

    Args:
        snapshot: All nodes and claims.
        cloud: What is known of their instances; claims that lost theirs are no strays but garbage.
        stray_after: How long a kubelet is given to register its Node again.
    """
    states = (snapshot.state_nodes_by_claim[claim.metadata.name] for claim in snapshot.claims)
    found = tuple(chain for state in states for chain in _end(state, snapshot, cloud, stray_after))
    notes = tuple(event.message for chain in found for event in chain.events)
    return Plan(chains=found, notes=notes)


def _end(state: StateNode, snapshot: Snapshot, cloud: Cloud, stray_after: timedelta) -> Iterator[Chain]:
    claim, now = state.claim, snapshot.now
    if claim is None or claim.metadata.deletion_timestamp is not None or is_lost(claim, snapshot, cloud):
        return
    if is_true(claim.status.conditions, INSTANCE_TERMINATING):
        text = f"NodeClaim {claim.metadata.name} says that its instance terminates, although nobody deleted it: it is deleted, its pods are drained first"
        yield _deleted(claim, "InconsistentStatus", text, now)
    elif not state.is_node_missing:
        if labels.NODE_MISSING_SINCE in claim.metadata.annotations:
            yield _noted(claim, None, now)
    elif (since := _missing_since(claim)) is None:
        yield _noted(claim, now, now)
        yield chain_of(f"NodeClaim {claim.metadata.name}", _look(claim, now + stray_after))
    elif now < since + stray_after:
        yield chain_of(f"NodeClaim {claim.metadata.name}", _look(claim, since + stray_after))
    else:
        text = f"Node {claim.status.node_name} of NodeClaim {claim.metadata.name} has been gone since {format_time(since)}, and its instance did not bring it back: both are deleted"
        yield _deleted(claim, "NodeNotFound", text, now)


def _look(claim: NodeClaim, at: datetime) -> Requeue:
    return Requeue(step=Step.TERMINATE, at=at, reason=f"the node of NodeClaim {claim.metadata.name} is missing")


def _missing_since(claim: NodeClaim) -> datetime | None:
    try:
        return msgspec.convert(claim.metadata.annotations.get(labels.NODE_MISSING_SINCE), _AwareTime)
    except msgspec.ValidationError:
        return None


def _noted(claim: NodeClaim, since: datetime | None, now: datetime) -> Chain:
    """The claim with this time on it, or with none."""
    others = {k: v for k, v in claim.metadata.annotations.items() if k != labels.NODE_MISSING_SINCE}
    said = {labels.NODE_MISSING_SINCE: format_time(since)} if since is not None else {}
    told = replace(Progress.of(claim, now), claim=with_metadata(claim, annotations={**others, **said}))
    return told.chain(why="its node is missing" if said else "its node is back")


def _deleted(claim: NodeClaim, reason: str, text: str, now: datetime) -> Chain:
    name = claim.metadata.name
    return Chain(
        subject=f"NodeClaim {name}",
        actions=(
            deletion(claim, text),
            Requeue(step=Step.PROVISION, at=now, reason=f"NodeClaim {name} goes: {reason}"),
        ),
        events=(Event(ref=claim_ref(claim), reason=reason, message=text, type="Warning"),),
        observations=(disrupted(claim, "garbage_collected"),),
    )
