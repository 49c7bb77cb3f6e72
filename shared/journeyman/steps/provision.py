"""Provision: pods that have no node get one.

::

    load ─► NodeClasses current ─► claims on their way: launch, register, initialize, give up ─► static NodePools
         ─► solve for what is left ─► verify ─► create claims, launch ─► NodePool statuses

What was begun is finished first: claims without an instance are launched, then counted as capacity, and only what
still has no place is solved for. While nodes are joining the step wakes itself; it never waits.

Restates: karpenter pkg/controllers/provisioning/provisioner.go `Reconcile`, `Schedule`, `CreateNodeClaims`.
"""

from __future__ import annotations

from msgspec.structs import replace

from journeyman.core.api.objects import Pod
from journeyman.core.catalogue import Unavailable
from journeyman.core.disruption.commands import kept_after_rollback, marked_for_deletion
from journeyman.core.lifecycle.capacity_buffer_status import tell_buffers
from journeyman.core.lifecycle.liveness import Timeouts
from journeyman.core.lifecycle.nodeclaim import Lifecycle, Pace, advance
from journeyman.core.lifecycle.nodeoverlay_status import tell_overlays
from journeyman.core.lifecycle.nodepool_status import outcomes, reconcile
from journeyman.core.lifecycle.nomination import (
    BATCH_MIN_PODS,
    MAX_PODS_PER_RUN,
    MIN_KUBERNETES_VERSION,
    NominatablePods,
    nominate_to_existing_nodes,
)
from journeyman.core.lifecycle.progress import poll_at
from journeyman.core.lifecycle.provisioning import open_claims, retry_at, tell_pods
from journeyman.core.observability.pending_pods import pending_gauges
from journeyman.core.plan import Observation, Plan, Step
from journeyman.core.scheduling.capacity_buffers import without_virtual_pods
from journeyman.core.scheduling.results import PlannedClaim, Results
from journeyman.core.scheduling.scheduler import pods_to_schedule, solve
from journeyman.core.state import Snapshot
from journeyman.core.state.pod_predicates import is_currently_reschedulable
from journeyman.errors import KubeAPIError
from journeyman.ports import Trigger
from journeyman.steps.context import Outcome, RunContext
from journeyman.steps.executor import Applier, run_step
from journeyman.steps.load import EVERYTHING, load
from journeyman.steps.node_classes import catalogued, refresh_node_classes, tell_prices
from journeyman.steps.scheduling_inputs import SchedulingInputs, scheduling_inputs_of
from journeyman.steps.static import scale_static_pools
from journeyman.steps.stored_pools import still_allowed
from journeyman.steps.verification import AGAIN, PlanVerifier, VerifiedResults, tell_defects


def provision(run: RunContext, trigger: Trigger) -> Outcome:
    """Run the step once for one cluster; `trigger` says why, and all due work is derived from the cluster.

    Raises:
        JourneymanError: As `run_step`.
    """
    run.telemetry.log("debug", "provisioning", trigger=type(trigger).__name__, reason=trigger.reason)
    return run_step(run, Step.PROVISION, _provision)


def _provision(hand: Applier) -> None:
    run = hand.run
    snapshot = refresh_node_classes(hand, load(run, EVERYTHING))
    world = catalogued(hand, snapshot)
    tell_prices(hand, world)
    hand.apply(tell_overlays(world.snapshot, world.overlay_conflicts))
    lifecycle = _lifecycle(run)
    hand.apply(advance(world.snapshot, lifecycle), world)
    world = _as_written(hand, world)
    if run.settings.feature_gates.static_capacity:
        scale_static_pools(hand, world, snapshot)
        world = _as_written(hand, world)
    decision = _decide(hand, world)
    nominatable = NominatablePods.of(world.snapshot, enabled=lifecycle.max_nominations > 0)
    hand.apply(nominate_to_existing_nodes(world.snapshot, decision.results.existing, nominatable))
    _open(hand, world, decision.results.new_claims)
    came_of_claims = outcomes(snapshot, hand.effects.claims, lifecycle.timeouts)
    hand.apply(reconcile(_as_written(hand, world).snapshot, came_of_claims))


def _decide(hand: Applier, world: SchedulingInputs) -> VerifiedResults:
    run, snapshot = hand.run, world.snapshot
    began = run.clock.now()
    pods, gone = _question(snapshot)
    decision = _answered(run, world, pods, gone)
    took = (run.clock.now() - began).total_seconds()
    results = decision.results
    results_of_pods = without_virtual_pods(results, pods)
    _explain(hand, snapshot, results_of_pods, took)
    hand.tell(Plan(observations=tuple(pending_gauges(snapshot, results_of_pods))))
    hand.apply(tell_buffers(snapshot, results))
    if decision.defects:
        tell_defects(hand, "pods", "the scheduler's answer does not verify; what does is carried out", decision.defects)
        hand.requeue(Step.PROVISION, snapshot.now + AGAIN, "the places of some pods were refused by verify")
    if at := retry_at(snapshot, results):
        hand.requeue(Step.PROVISION, at, "offerings that were out of stock may be had again")
    return decision


def _answered(run: RunContext, world: SchedulingInputs, pods: tuple[Pod, ...], gone: frozenset[str]) -> VerifiedResults:
    """The scheduler's answer, checked; the one that it gave to the same question, if the cluster is as it was then."""
    snapshot, options = world.snapshot, run.settings.scheduling
    known = run.memory.answers.results_for(snapshot, world.catalogue, options)
    question = (tuple(pod.key for pod in pods), gone, "")
    if (results := known.get(question)) is not None:
        return VerifiedResults(results=results, defects=())
    answer = solve(snapshot, world.catalogue, pods=pods, without_nodes=gone, options=options)
    checked = PlanVerifier(snapshot=snapshot, catalogue=world.catalogue, pods=pods, gone=gone).of(answer)
    if not checked.defects:
        known.store(question, checked.results)
    return checked


def _question(snapshot: Snapshot) -> tuple[tuple[Pod, ...], frozenset[str]]:
    """The pods to place, and the nodes to think away.

    Besides what is pending and what is on leaving nodes: nodes that a disruption gives back once their replacements
    are ready. Their pods hold their places on the replacements, so that nobody else is planned there. Pods on nodes whose
    disruption is about to be undone stay.
    """
    marked = marked_for_deletion(snapshot)
    given_back = [n for name, n in snapshot.state_nodes_by_claim.items() if name in marked and not n.is_terminating]
    moving = tuple(
        pod for node in given_back for pod in node.pods if is_currently_reschedulable(pod, snapshot.pdbs, snapshot.now)
    )
    staying = {pod.key for name in kept_after_rollback(snapshot) for pod in snapshot.state_nodes_by_claim[name].pods}
    asking = (pod for pod in pods_to_schedule(snapshot) if pod.key not in staying)
    pods = {pod.key: pod for pod in (*asking, *moving)}  # a tainted node's pods are in both
    return tuple(pods.values()), frozenset(n.name for n in given_back)


def _open(hand: Applier, world: SchedulingInputs, planned: tuple[PlannedClaim, ...]) -> None:
    """Create and launch, as many as one run may; the pods of the rest are planned again at once."""
    run, snapshot = hand.run, world.snapshot
    now = run.clock.now()
    most = run.settings.claims_per_run
    if len(planned) > most:
        hand.requeue(Step.PROVISION, now, f"{len(planned) - most} planned node(s) are left for the next run")
    allowed = still_allowed(hand, snapshot, {claim.node_pool for claim in planned})
    wanted = [claim for claim in planned[:most] if claim.node_pool in allowed]
    look_again = poll_at(now, now, run.settings.registration_poll, run.settings.registration_poll)
    hand.apply(open_claims(snapshot, wanted, look_again), world)


def _as_written(hand: Applier, world: SchedulingInputs) -> SchedulingInputs:
    """The world after this run's own writes: claims as they are stored now, refused offerings avoided."""
    written, remembered = hand.effects.claims, hand.remembered
    if not written and not remembered:
        return world
    claims = {**world.snapshot.claims_by_name, **written}
    refused = tuple(
        Unavailable(instance_type=t, zone=z, capacity_type=c, until=action.soonest_end, reason=action.reason)
        for action in remembered
        for t, z, c in action.offerings
    )
    snapshot = world.snapshot.with_claims(c for c in claims.values() if c is not None)
    snapshot = replace(snapshot, unavailable=tuple(dict.fromkeys((*snapshot.unavailable, *refused))))
    return scheduling_inputs_of(hand.run, snapshot)


def _explain(hand: Applier, snapshot: Snapshot, results: Results, took: float) -> None:
    telemetry = hand.run.telemetry
    hand.tell(tell_pods(snapshot, results))
    placed = sum(len(c.pods) for c in results.new_claims) + sum(len(keys) for keys in results.existing.values())
    if placed or results.pod_errors:
        level = "info" if results.new_claims else "debug"  # pods that wait for a node on its way are found every time
        telemetry.log(level, "found provisionable pod(s)", number=placed + len(results.pod_errors), duration=took)
    if results.new_claims:
        hand.note(
            f"computed {len(results.new_claims)} new nodeclaim(s) to fit {sum(len(c.pods) for c in results.new_claims)} "
            f"pod(s), {results.price:.4f} per hour"
        )
    hand.count("pods without a place", len(results.pod_errors))
    labels = {"controller": "provisioner"}
    telemetry.observe(
        Observation(name="karpenter_scheduler_scheduling_duration_seconds", value=took, labels=labels, kind="histogram")
    )
    telemetry.observe(
        Observation(
            name="karpenter_scheduler_unschedulable_pods_count",
            value=float(len(results.pod_errors)),
            labels=labels,
            kind="gauge",
        )
    )


def _lifecycle(run: RunContext) -> Lifecycle:
    settings = run.settings
    return Lifecycle(
        timeouts=Timeouts(launch=settings.launch_timeout, registration=settings.registration_timeout),
        pace=Pace(shortest=settings.registration_poll),
        wait_for_devices=not settings.ignore_dra_requests,
        batch_min_pods=BATCH_MIN_PODS,
        max_nominations=MAX_PODS_PER_RUN if settings.pod_nomination and _supports_nomination(run) else 0,
    )


def _supports_nomination(run: RunContext) -> bool:
    """Whether the API server is new enough; not if it does not answer. kube-scheduler is as new, or one minor version older."""
    memory = run.memory
    if memory.kubernetes_version is None:
        try:
            memory.kubernetes_version = run.store.version()
        except KubeAPIError as error:
            run.telemetry.log(
                "warning", f"no pods are nominated in this run: {error.message}", error=type(error).__name__
            )
            return False
    return memory.kubernetes_version >= MIN_KUBERNETES_VERSION
