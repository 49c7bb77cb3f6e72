"""Terminate: what is to go, goes; nothing is lost on the way and nothing left behind.

Expired claims and sick nodes are given up; whatever is being deleted is drained, its instance terminated until the cloud
says that it is gone, its finalizers removed; instances without a claim, claims without an instance and claims that
contradict themselves are collected; nodes that lost a mark of ours get it back, and are held against what their claims
promise. One move per run; the step wakes itself while anything is unfinished.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.conditions import LAUNCHED
from journeyman.core.api.objects import NODECLAIM
from journeyman.core.lifecycle.consistency import check_nodes
from journeyman.core.lifecycle.drain import Termination, since
from journeyman.core.lifecycle.expiration import expire
from journeyman.core.lifecycle.garbage_collection import collect, end_strays
from journeyman.core.lifecycle.hydration import hydrate_nodes
from journeyman.core.lifecycle.liveness import Timeouts, abandon
from journeyman.core.lifecycle.nodepool_status import count, outcomes
from journeyman.core.lifecycle.termination import awaits_volumes, finalize, needs_termination
from journeyman.core.plan import DeleteObject, Plan, Step
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.instances import Cloud
from journeyman.errors import ForbiddenError, NodeClaimNotFoundError, NoInstanceIdError
from journeyman.ports import Instance, Trigger
from journeyman.steps.context import Outcome, RunContext, Settings
from journeyman.steps.executor import Applier, run_step
from journeyman.steps.load import Scope, load, with_pods_of, with_volumes_of
from journeyman.steps.sick import look_after_the_sick

SCOPE: Final = Scope(nodes=True, pools=True)
ASKED_PER_RUN: Final = 100
"""Instances that one run asks for by name. Of more that vanished at once, the others come in the next run."""


def terminate(run: RunContext, trigger: Trigger) -> Outcome:
    """Run the step once for one cluster; `trigger` says why, and all due work is derived from the cluster.

    Raises:
        JourneymanError: As `run_step`.
    """
    run.telemetry.log("debug", "terminating", trigger=type(trigger).__name__, reason=trigger.reason)
    return run_step(run, Step.TERMINATE, _terminate)


def _terminate(hand: Applier) -> None:
    run = hand.run
    instances = run.cloud.list()  # before the claims: none of these was launched for a claim that is not read yet
    snapshot = load(run, SCOPE)
    leaving = [n for n in snapshot.state_nodes if needs_termination(n)]
    snapshot = _with_what_holds(hand, snapshot, leaving)
    cloud = _cloud(run, snapshot, instances)
    hand.apply(finalize(snapshot, cloud, _pace(run.settings)))
    fresh = expire(snapshot) + collect(snapshot, cloud, run.settings.orphan_age)
    fresh += end_strays(snapshot, cloud, run.settings.stray_after) + abandon(snapshot, cloud.ended)
    fresh += look_after_the_sick(hand, snapshot)
    fresh += hydrate_nodes(snapshot) + check_nodes(snapshot, run.settings.consistency_period)
    hand.apply(fresh)
    if _deletes_claims(fresh):
        hand.requeue(Step.TERMINATE, run.clock.now(), "claims were deleted")
    came_of_claims = outcomes(snapshot, hand.effects.claims, _timeouts(run.settings), cloud.ended)
    if leaving or came_of_claims:
        hand.apply(count(_without_gone(hand, snapshot), came_of_claims))


def _with_what_holds(hand: Applier, snapshot: Snapshot, leaving: list[StateNode]) -> Snapshot:
    """The snapshot with what keeps nodes from leaving: their pods, and once those are gone, their volumes.

    Who may not read volumes does not wait for them, and is told: a node that stays for ever helps nobody.
    """
    snapshot = with_pods_of(hand.run, snapshot, (n.node.metadata.name for n in leaving if n.node is not None))
    empty = [n.name for n in snapshot.state_nodes if awaits_volumes(n, snapshot.now)]
    try:
        return with_volumes_of(hand.run, snapshot, empty)
    except ForbiddenError as error:
        hand.failed("volumes of nodes that leave", error)
        return snapshot


def _deletes_claims(plan: Plan) -> bool:
    return any(isinstance(a, DeleteObject) and a.ref.resource.kind == NODECLAIM.kind for a in plan.actions)


def _cloud(run: RunContext, snapshot: Snapshot, instances: tuple[Instance, ...]) -> Cloud:
    """What is known of the instances; one that was not listed is asked for by name before it counts as gone."""
    listed = {i.provider_id for i in instances}
    settled = snapshot.now - run.settings.orphan_age
    missing = {
        (not needs_termination(n), n.provider_id)
        for n in snapshot.state_nodes
        if n.provider_id and n.provider_id not in listed and (needs_termination(n) or _may_be_lost(n, settled))
    }
    asked = [provider_id for _, provider_id in sorted(missing)[:ASKED_PER_RUN]]
    return Cloud(listed=instances, gone=frozenset(provider_id for provider_id in asked if _is_gone(run, provider_id)))


def _may_be_lost(node: StateNode, settled: datetime) -> bool:
    """Whether its kubelet does not speak, and it was launched long enough ago for the cloud to know of it everywhere."""
    return node.claim is not None and not node.ready and since(node.claim, LAUNCHED, settled) < settled


def _is_gone(run: RunContext, provider_id: str) -> bool:
    """Whether nothing runs there, or there is no such place: one claim that was edited must not hold up all others."""
    try:
        run.cloud.get(provider_id)
    except (NodeClaimNotFoundError, NoInstanceIdError):
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


def _timeouts(settings: Settings) -> Timeouts:
    return Timeouts(launch=settings.launch_timeout, registration=settings.registration_timeout)


def _pace(settings: Settings) -> Termination:
    return Termination(
        min_drain=settings.min_drain, drain_poll=settings.drain_poll, instance_poll=settings.instance_poll
    )
