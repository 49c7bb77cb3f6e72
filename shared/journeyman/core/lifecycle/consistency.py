"""Consistency: whether a node has what its claim promises, so that pods that were planned for it fit.

Restates: karpenter pkg/controllers/nodeclaim/consistency/{controller,nodeshape}.go.
Differs: looked at when the node is initialized, which costs no write of its own, and at times of the clock that all
nodes share from then on, so that nothing has to be kept of when each was looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Final

from journeyman.core.api.conditions import CONSISTENT_STATE_FOUND, INITIALIZED
from journeyman.core.api.objects import Node, NodeClaim, condition_of, is_true
from journeyman.core.api.resources import to_resources
from journeyman.core.lifecycle.progress import NodeClaimProgress, claim_ref
from journeyman.core.plan import Event, Plan
from journeyman.core.state import Snapshot

MIN_SHARE: Final = Fraction(90, 100)  # nodeshape.go: less than 90 % of what was expected


def check_nodes(snapshot: Snapshot, period: timedelta) -> Plan:
    """Check initialized nodes: all of them once in a period, and in between those that no run has checked yet.

    Args:
        snapshot: Claims and nodes.
        period: Whole minutes.
    """
    everyone = is_time(snapshot.now, period)
    found = []
    for state in snapshot.state_nodes:
        claim = state.claim
        if claim is None or state.node is None or claim.metadata.deletion_timestamp is not None:
            continue
        unseen = condition_of(claim.status.conditions, CONSISTENT_STATE_FOUND) is None
        if (everyone or unseen) and is_true(claim.status.conditions, INITIALIZED):
            found.append(
                check_consistency(NodeClaimProgress.of(claim, snapshot.now), state.node).chain(why="what its node has")
            )
    return Plan(chains=tuple(chain for chain in found if chain.actions or chain.events))


def check_consistency(progress: NodeClaimProgress, node: Node) -> NodeClaimProgress:
    """The claim with ConsistentStateFound as its node is, and an Event for each resource of which that has too little."""
    issues = tuple(_issues(node, progress.claim))
    if not issues:
        return progress.with_condition(CONSISTENT_STATE_FOUND, "True")
    ref = claim_ref(progress.claim)
    events = (
        Event(ref=ref, reason="FailedConsistencyCheck", message=issue, type="Warning", key=issue) for issue in issues
    )
    return progress.with_condition(
        CONSISTENT_STATE_FOUND, "False", "ConsistencyCheckFailed", "Consistency Check Failed"
    ).with_events(*events)


def is_time(now: datetime, period: timedelta) -> bool:
    """Whether this is the minute of the period in which all nodes are looked at; schedules are off by seconds."""
    return round(now.timestamp() / 60) % (period // timedelta(minutes=1)) == 0


def _issues(node: Node, claim: NodeClaim) -> Iterator[str]:
    """One sentence for each resource that the claim was made for."""
    wanted = to_resources(claim.spec.resources.requests, round_up=True)
    promised = to_resources(claim.status.capacity, round_up=True)
    actual = to_resources(node.status.capacity, round_up=False)
    for name in sorted(wanted):
        if not wanted[name] or not promised.get(name):
            continue
        share = Fraction(actual.get(name, 0), promised[name])
        if share < MIN_SHARE:
            had, should = node.status.capacity.get(name, "0"), claim.status.capacity[name]
            yield f"expected {should} of resource {name}, but found {had} ({float(share * 100):.1f}% of expected)"
