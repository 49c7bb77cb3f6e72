"""Terminate: what is to go, goes; nothing is lost on the way and nothing left behind.

Expired claims are deleted; whatever is being deleted is drained, its instance terminated until the cloud says that it
is gone, its finalizers removed; instances without a claim and claims without an instance are collected. One move per
run; the step wakes itself while anything is unfinished.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.lifecycle.expiration import expire
from journeyman.core.lifecycle.garbage import collect
from journeyman.core.lifecycle.nodepool_status import count
from journeyman.core.lifecycle.termination import Cloud, Termination, finalize, is_leaving
from journeyman.core.plan import Step
from journeyman.core.state import Snapshot
from journeyman.errors import NodeClaimNotFoundError
from journeyman.ports import Instance, Trigger
from journeyman.steps.apply import Applier, run_step
from journeyman.steps.invocation import Invocation, Outcome, Settings
from journeyman.steps.load import Scope, load, with_pods_of

SCOPE: Final = Scope(nodes=True, pools=True)
GOING: Final = frozenset({"shutting-down", "terminated"})
"""States of an instance that is on its way out already."""


def terminate(run: Invocation, trigger: Trigger) -> Outcome:
    """Run the step once for one cluster; `trigger` says why, and all due work is derived from the cluster.

    Raises:
        JourneymanError: As `run_step`.
    """
    run.telemetry.log("debug", "terminating", trigger=trigger.source, reason=trigger.reason)
    return run_step(run, Step.TERMINATE, _terminate)


def _terminate(hand: Applier) -> None:
    run = hand.run
    snapshot = load(run, SCOPE)
    instances = run.cloud.list()  # after the claims: a claim made in between only makes its instance look young
    leaving = [n for n in snapshot.state_nodes if is_leaving(n)]
    snapshot = with_pods_of(run, snapshot, (n.node.metadata.name for n in leaving if n.node is not None))
    hand.apply(finalize(snapshot, _cloud(run, snapshot, instances), _pace(run.settings)))
    fresh = expire(snapshot) + collect(
        snapshot, [i for i in instances if i.state not in GOING], run.settings.orphan_age
    )
    hand.apply(fresh)
    if any("NodeClaim" in chain.subject for chain in fresh.chains):
        hand.wake(Step.TERMINATE, run.clock.now(), "claims were deleted")
    if leaving:
        hand.apply(count(_without_gone(hand, snapshot)))


def _cloud(run: Invocation, snapshot: Snapshot, instances: tuple[Instance, ...]) -> Cloud:
    """What is known of the instances of leaving claims; a missing one is asked for by name before it counts as gone."""
    live = {i.provider_id for i in instances}
    wanted = {n.provider_id for n in snapshot.state_nodes if is_leaving(n) and n.provider_id} - live
    return Cloud(
        gone=frozenset(provider_id for provider_id in sorted(wanted) if _is_gone(run, provider_id)),
        by_claim={i.claim: i.provider_id for i in instances if i.claim},
    )


def _is_gone(run: Invocation, provider_id: str) -> bool:
    try:
        run.cloud.get(provider_id)
    except NodeClaimNotFoundError:
        return True
    return False


def _without_gone(hand: Applier, snapshot: Snapshot) -> Snapshot:
    """The snapshot without what this run let go of."""
    freed = [
        claim
        for claim in hand.effects.claims.values()
        if claim is not None
        and claim.metadata.deletion_timestamp is not None
        and labels.TERMINATION_FINALIZER not in claim.metadata.finalizers
    ]
    uids = {claim.metadata.uid for claim in freed}
    gone = {n.node.metadata.name for n in snapshot.state_nodes if n.node and n.claim and n.claim.metadata.uid in uids}
    return replace(
        snapshot,
        claims=tuple(c for c in snapshot.claims if c.metadata.uid not in uids),
        nodes=tuple(n for n in snapshot.nodes if n.metadata.name not in gone),
    )


def _pace(settings: Settings) -> Termination:
    return Termination(
        min_drain=settings.min_drain, drain_poll=settings.drain_poll, instance_poll=settings.instance_poll
    )
