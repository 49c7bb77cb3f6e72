"""Consistency: checks whether a node has the capacity that its NodeClaim promised, so that pods planned for it fit.

Restates: karpenter pkg/controllers/nodeclaim/consistency/controller.go `Reconcile`, `checkConsistency`,
pkg/controllers/nodeclaim/consistency/nodeshape.go `Check`.
Differs: a node is checked when it is initialized, in the same write, and from then on in the same minutes as all others, so
that no state records when each node was checked. Karpenter keeps that in memory, for 10 minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Final

from journeyman.core.api.conditions import CONSISTENT_STATE_FOUND, INITIALIZED
from journeyman.core.api.objects import Node, NodeClaim, condition_of, is_true
from journeyman.core.api.resources import to_resources
from journeyman.core.lifecycle.progress import NodeClaimProgress
from journeyman.core.plan import Event, Plan, claim_ref
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.skipped_objects import plan_for_each

MIN_SHARE: Final = Fraction(90, 100)  # nodeshape.go: less than 90 % of what was expected


def check_nodes(snapshot: Snapshot, period: timedelta) -> Plan:
    """Check all initialized nodes once in a period, and in every run those without the condition ConsistentStateFound.

    Args:
        snapshot: NodeClaims and nodes.
        period: How often all nodes are checked, in whole minutes.
    """
    check_all = is_check_due(snapshot.now, period)

    def decide(state: StateNode) -> Plan:
        claim = state.claim
        if claim is None or state.node is None or claim.metadata.deletion_timestamp is not None:
            return Plan()
        unchecked = condition_of(claim.status.conditions, CONSISTENT_STATE_FOUND) is None
        if not (check_all or unchecked) or not is_true(claim.status.conditions, INITIALIZED):
            return Plan()
        progress = check_consistency(NodeClaimProgress.of(claim, snapshot.now), state.node)
        chain = progress.chain(why="consistency check")
        return Plan(chains=(chain,) if chain.actions or chain.events else ())

    return plan_for_each(snapshot.state_nodes, decide)


def check_consistency(progress: NodeClaimProgress, node: Node) -> NodeClaimProgress:
    """Set ConsistentStateFound, with an Event for each resource of which the node has less than 90 % of what was promised.

    Restates: karpenter pkg/controllers/nodeclaim/consistency/controller.go `checkConsistency`.
    """
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


def is_check_due(now: datetime, period: timedelta) -> bool:
    """Whether all nodes are checked in this minute. Rounded, since schedules are off by some seconds."""
    return round(now.timestamp() / 60) % (period // timedelta(minutes=1)) == 0


def _issues(node: Node, claim: NodeClaim) -> Iterator[str]:
    """Yield a message for each requested resource of which the node has too little.

    Restates: karpenter pkg/controllers/nodeclaim/consistency/nodeshape.go `Check`.
    """
    requested = to_resources(claim.spec.resources.requests, round_up=True)
    promised = to_resources(claim.status.capacity, round_up=True)
    actual = to_resources(node.status.capacity, round_up=False)
    for name in sorted(requested):
        if not requested[name] or not promised.get(name):
            continue
        share = Fraction(actual.get(name, 0), promised[name])
        if share < MIN_SHARE:
            found, expected = node.status.capacity.get(name, "0"), claim.status.capacity[name]
            yield f"expected {expected} of resource {name}, but found {found} ({float(share * 100):.1f}% of expected)"
