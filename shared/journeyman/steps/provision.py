"""Provision: launches nodes for unschedulable pods, and registers and initializes them.

::

    load ─► NodeClasses ─► NodeOverlays ─► NodeClaims in flight: launch, register, initialize, time out ─► static NodePools
         ─► the remaining pods: solve, verify, create NodeClaims, launch ─► NodePool statuses ─► explain unschedulable pods
         ─► launch templates and instance profiles that nothing uses, every day

Unschedulable pods are explained after the launches, with an effort of their own: however long it takes to find out why one pod
fits nowhere, no other pod waits for it.

NodeClaims in flight come first: those without an instance are launched and count as capacity, so that only the remaining
pods need new nodes. While nodes are joining the step requeues itself; it never waits.

Restates: karpenter pkg/controllers/provisioning/provisioner.go `Reconcile`, `Schedule`, `CreateNodeClaims`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import NODECLAIM, Pod
from journeyman.core.api.wording import counted
from journeyman.core.catalogue import Catalogue
from journeyman.core.disruption.calendar import report_invalid_windows
from journeyman.core.disruption.commands import kept_after_rollback, marked_for_deletion, pods_with_capacity
from journeyman.core.disruption.static_nodepool_state import static_nodepools
from journeyman.core.disruption.static_provisioning import deprovision_static, provision_static, report_disabled
from journeyman.core.lifecycle.capacity_buffer_status import reconcile_capacity_buffers, without_virtual_pods
from journeyman.core.lifecycle.expiration import delete_claims_of_ending_blocks, drain_replaced
from journeyman.core.lifecycle.failed_launches import clear_settled_faults
from journeyman.core.lifecycle.instance_names import name_instances
from journeyman.core.lifecycle.launch import OfferingBackoff
from journeyman.core.lifecycle.learned_sizes import learn_sizes
from journeyman.core.lifecycle.nodeclaim import LifecycleOptions, RequeueIntervals, reconcile_nodeclaims
from journeyman.core.lifecycle.nodeoverlay_status import reconcile_nodeoverlays
from journeyman.core.lifecycle.nodepool_status import reconcile_nodepools, registration_outcomes
from journeyman.core.lifecycle.nomination import (
    BATCH_MIN_PODS,
    MAX_PODS_PER_RUN,
    MIN_KUBERNETES_VERSION,
    NominatablePods,
    nominate_to_existing_nodes,
)
from journeyman.core.lifecycle.progress import poll_time
from journeyman.core.lifecycle.provisioning import (
    create_nodeclaims,
    failed_scheduling_events,
    next_offering_retry,
    one_try_each,
    scheduling_events,
)
from journeyman.core.lifecycle.unused_launches import record_unused_launches, remember_launches
from journeyman.core.observability.pending_pods import pending_gauges
from journeyman.core.plan import (
    Chain,
    CreateObject,
    LogLine,
    Observation,
    Plan,
    Requeue,
    Step,
    chain_of,
    merge_plans,
)
from journeyman.core.scheduling.results import CachedResults, PlannedClaim, ProblemKey, Results
from journeyman.core.scheduling.scheduler import Scheduler, explained, select_pods, solve_without_launches_for
from journeyman.core.state import Snapshot
from journeyman.core.state.pod_predicates import is_currently_reschedulable, is_virtual_pod
from journeyman.core.state.skipped_objects import SkippedObject, report_skipped, select_each
from journeyman.errors import KubeAPIError
from journeyman.ports import Trigger
from journeyman.steps.context import Outcome, RunContext
from journeyman.steps.load import EVERYTHING, load
from journeyman.steps.node_classes import delete_unused_resources, record_price_ages, refresh_node_classes
from journeyman.steps.scheduling_inputs import StepInputs
from journeyman.steps.step import Reconciler, ScheduledPlan, StepDefinition, run_step
from journeyman.steps.verification import RETRY_REJECTED_AFTER, PlanVerifier, VerifiedResults, defects_plan

RETRY_UNREACHED_AFTER: Final = timedelta(minutes=1)
"""By then most of the pods that were scheduled are bound, and the others have the effort for themselves."""
RECHECK_EXISTING_AFTER: Final = timedelta(seconds=10)
"""When the step runs again for new pods that it planned for existing nodes; most are bound within a second."""
RECHECK_FOR: Final = timedelta(minutes=1)
"""How long after its creation; then the sweep plans for pods that kube-scheduler does not bind."""


def provision(run: RunContext, trigger: Trigger) -> Outcome:
    """Run the step once for one cluster; it derives its work from the cluster, not from `trigger`.

    Raises:
        JourneymanError: As `run_step`.
    """
    return run_step(run, PROVISION, trigger)


def _load(run: RunContext, trigger: Trigger) -> StepInputs:
    supports_nomination = run.settings.pod_nomination and _supports_nomination(run)
    snapshot = load(run, EVERYTHING)
    return StepInputs.of(
        run,
        trigger,
        snapshot,
        supports_nomination=supports_nomination,
    )


def _supports_nomination(run: RunContext) -> bool:
    """Whether the API server is new enough for pod nomination; False if its version cannot be read.

    kube-scheduler has the API server's version or is one minor version older.
    """
    memory = run.memory
    if memory.kubernetes_version is None:
        try:
            memory.kubernetes_version = run.store.version()
        except KubeAPIError as error:
            run.telemetry.log(
                "warning", f"not nominating pods in this run: {error.message}", error=type(error).__name__
            )
            return False
    return memory.kubernetes_version >= MIN_KUBERNETES_VERSION


# -- reconcilers, in order --------------------------------------------------------------------------------------------


def _name_instances(inputs: StepInputs) -> Plan:
    return name_instances(inputs.snapshot)


def _report_windows(inputs: StepInputs) -> Plan:
    return report_invalid_windows(inputs.snapshot)


def _report_overlays(inputs: StepInputs) -> Plan:
    return reconcile_nodeoverlays(inputs.snapshot, inputs.catalogued.overlay_conflicts)


def _delete_claims_of_ending_blocks(inputs: StepInputs) -> Plan:
    return delete_claims_of_ending_blocks(inputs.snapshot)


def _advance_nodeclaims(inputs: StepInputs) -> Plan:
    return reconcile_nodeclaims(inputs.snapshot, _lifecycle_options(inputs))


def _clear_settled_faults(inputs: StepInputs) -> Plan:
    return clear_settled_faults(inputs.snapshot)


def _learn_sizes(inputs: StepInputs) -> Plan:
    return learn_sizes(inputs.snapshot)


def _record_unused_launches(inputs: StepInputs) -> Plan:
    return record_unused_launches(inputs.snapshot)


def _deprovision_static(inputs: StepInputs) -> Plan:
    return deprovision_static(inputs.snapshot) if inputs.settings.feature_gates.static_capacity else Plan()


def _provision_static(inputs: StepInputs) -> Plan:
    """Create the missing NodeClaims of static NodePools.

    It comes after NodeClaims in flight, so that claims that timed out do not count, and before scheduling, so that pods use
    the new capacity. A NodePool that lost a NodeClaim in this run waits for the next run: until the claim is gone it counts
    against the limit, and by then the offerings that refused the launch are marked unavailable.
    """
    snapshot, settings = inputs.snapshot, inputs.settings
    if not settings.feature_gates.static_capacity:
        return report_disabled(snapshot)
    written = inputs.written.claims
    pools_with_lost_claims = {
        c.metadata.labels.get(labels.NODEPOOL) for c in inputs.loaded.claims if written.get(c.metadata.name, c) is None
    }
    static = static_nodepools(snapshot.claims, snapshot.node_pools, snapshot.state_nodes)
    pools_to_fill = {pool.name for pool in static if pool.missing}
    requeues = [
        Requeue(step=Step.PROVISION, at=snapshot.now, reason=f"NodePool {name} lost a NodeClaim in flight")
        for name in sorted(pools_to_fill & pools_with_lost_claims)
    ]
    pools = tuple(pool for pool in snapshot.node_pools if pool.metadata.name in pools_to_fill - pools_with_lost_claims)
    plan = provision_static(
        replace(snapshot, node_pools=pools),
        inputs.catalogued.catalogue,
        max_claims=settings.claims_per_run,
        requeue_at=_registration_due(inputs),
    )
    return _with_node_pools(plan) + Plan(chains=(chain_of("requeues", *requeues),))


def _schedule(inputs: StepInputs) -> ScheduledPlan:
    """Schedule pending pods: nominate them to existing nodes, or create and launch NodeClaims for them."""
    snapshot = inputs.snapshot
    selected, skipped = select_pods(snapshot)
    found = _pods_to_schedule(snapshot, selected)
    verified, cached = _verified_results(inputs, found)
    results = verified.results
    nominatable = NominatablePods.of(snapshot, enabled=inputs.supports_nomination)
    plan = merge_plans(
        (
            report_skipped({item.refs: item for item in (*skipped, *found.skipped)}.values()),
            _record(snapshot, without_virtual_pods(results, found.pods)),
            reconcile_capacity_buffers(snapshot, results),
            _report_defects(verified),
            _requeue_provision(snapshot, verified, inputs.catalogued.catalogue),
            nominate_to_existing_nodes(snapshot, results.existing, nominatable),
            drain_replaced(snapshot, results.existing),
            _create_nodeclaims(inputs, results.new_claims),
        )
    )
    return ScheduledPlan(plan, cached, without_virtual_pods(results, found.pods))


def _explain(inputs: StepInputs) -> Plan:
    """Return Events that say why pods are unschedulable, and what would change that."""
    results = explained(inputs.scheduled, effort=inputs.effort)
    return failed_scheduling_events(inputs.snapshot, results)


def _update_nodepool_statuses(inputs: StepInputs) -> Plan:
    timeouts, refused = _lifecycle_options(inputs).timeouts, inputs.written.launch_faults
    registrations = registration_outcomes(inputs.loaded, inputs.written.claims, timeouts, refused=refused)
    return reconcile_nodepools(inputs.snapshot, registrations)


PROVISION: Final = StepDefinition(
    name=Step.PROVISION,
    load=_load,
    reconcilers=(
        Reconciler(refresh_node_classes, needs_catalogue=False),
        Reconciler(record_price_ages),
        Reconciler(_report_windows, needs_catalogue=False),
        Reconciler(_report_overlays),
        Reconciler(_delete_claims_of_ending_blocks, needs_catalogue=False),
        Reconciler(_advance_nodeclaims),
        Reconciler(_clear_settled_faults, needs_catalogue=False),
        Reconciler(_learn_sizes, needs_catalogue=False),
        Reconciler(_record_unused_launches, needs_catalogue=False),
        Reconciler(_deprovision_static),
        Reconciler(_provision_static),
        Reconciler(_schedule),
        Reconciler(_update_nodepool_statuses),
        Reconciler(_explain, needs_catalogue=False),
        Reconciler(_name_instances, needs_catalogue=False),
        Reconciler(delete_unused_resources),
    ),
    requeues=Step.PROVISION,
)


# -- scheduling -------------------------------------------------------------------------------------------------------


class _PodsToSchedule(Struct, frozen=True, kw_only=True):
    """The pods of one pass.

    Attributes:
        pods: All of them: pending pods, pods on terminating nodes, and those that commands move.
        with_capacity: The keys of pods for which nothing is launched (`pods_with_capacity`).
        waiting: The keys of pods for which nothing is launched for a while (`unused_launches`).
        without_nodes: The names of nodes that the scheduler must not use.
        skipped: Pods that cannot be evaluated.
    """

    pods: tuple[Pod, ...]
    with_capacity: frozenset[str]
    waiting: frozenset[str]
    without_nodes: frozenset[str]
    skipped: tuple[SkippedObject, ...]


def _pods_to_schedule(snapshot: Snapshot, selected: Iterable[Pod]) -> _PodsToSchedule:
    """Return the pods to schedule: those `selected`, and those that commands move, so that these find their capacity.

    Pods of nodes whose command was rolled back stay on their nodes. If all pods have capacity, none is scheduled.
    """
    marked, with_capacity = marked_for_deletion(snapshot), pods_with_capacity(snapshot)
    removed = [n for name, n in snapshot.state_nodes_by_claim.items() if name in marked and not n.is_terminating]
    on_removed = (pod for node in removed for pod in node.pods)
    moving, skipped = select_each(on_removed, lambda pod: is_currently_reschedulable(pod, snapshot.pdbs, snapshot.now))
    staying = {pod.key for name in kept_after_rollback(snapshot) for pod in snapshot.state_nodes_by_claim[name].pods}
    pending = (pod for pod in selected if pod.key not in staying)
    pods = {pod.key: pod for pod in (*pending, *moving)}  # a tainted node's pods are in both
    return _PodsToSchedule(
        pods=tuple(pods.values()) if pods.keys() - with_capacity else (),
        with_capacity=with_capacity,
        waiting=remember_launches(snapshot).waiting,
        without_nodes=frozenset(node.name for node in removed),
        skipped=skipped,
    )


def _verified_results(inputs: StepInputs, found: _PodsToSchedule) -> tuple[VerifiedResults, CachedResults]:
    """Return the scheduler's verified results, from the cache if nothing changed since, and the cache that contains them."""
    snapshot, catalogue, options = inputs.snapshot, inputs.catalogued.catalogue, inputs.settings.scheduling
    removed, without_launches = found.without_nodes, found.with_capacity | found.waiting
    cache = inputs.cached_results.valid_for(snapshot, catalogue, options)
    problem = ProblemKey(tuple(pod.key for pod in found.pods), removed, ",".join(sorted(found.waiting)))
    if (cached_results := cache.by_problem.get(problem)) is not None:
        return VerifiedResults(results=cached_results, defects=()), cache
    scheduler = Scheduler(snapshot, catalogue, options)
    # if pods with capacity need a node after all, kube-scheduler says so once they are evicted
    results, pods = solve_without_launches_for(scheduler, without_launches, found.pods, removed, inputs.effort)
    verifier = PlanVerifier(
        snapshot=snapshot,
        catalogue=catalogue,
        pods=pods,
        removed_nodes=removed,
        options=options,
        verify=inputs.verify,
    )
    verified = verifier.verify_results(results)
    return verified, cache if verified.defects else cache.with_results({problem: verified.results})


def _report_defects(verified: VerifiedResults) -> Plan:
    """Report placements that verification rejected."""
    if not verified.defects:
        return Plan()
    message = "verification rejected some of the scheduler's placements; the others are executed"
    return defects_plan("pods", message, verified.defects)


def _requeue_provision(snapshot: Snapshot, verified: VerifiedResults, catalogue: Catalogue) -> Plan:
    """Requeue the step for rejected placements, pods planned for existing nodes, unreached pods and unavailable offerings."""
    now, results = snapshot.now, verified.results
    due: list[tuple[datetime, str]] = []
    if verified.defects:
        due.append((now + RETRY_REJECTED_AFTER, "verification rejected the placements of some pods"))
    if _may_lose_their_node(snapshot, results):
        reason = "kube-scheduler may have bound others to the nodes that pods were planned for"
        due.append((now + RECHECK_EXISTING_AFTER, reason))
    if results.pod_errors and results.is_truncated:
        due.append((now + RETRY_UNREACHED_AFTER, "the scheduler's time did not suffice for all pods"))
    if at := next_offering_retry(snapshot, results, catalogue):
        due.append((at, "unavailable offerings may be available again"))
    requeues = (Requeue(step=Step.PROVISION, at=at, reason=reason) for at, reason in due)
    return Plan(chains=(chain_of("requeues", *requeues),))


def _may_lose_their_node(snapshot: Snapshot, results: Results) -> bool:
    """Whether new pods were planned for existing nodes: kube-scheduler may bind other pods there, which sends no event."""
    nodes = {node.metadata.name for node in snapshot.nodes}
    planned = {key for name, keys in results.existing.items() if name in nodes for key in keys}
    return bool(planned) and any(
        pod.key in planned and not pod.spec.node_name and not is_virtual_pod(pod) and _is_new(pod, snapshot.now)
        for pod in snapshot.pods
    )


def _is_new(pod: Pod, now: datetime) -> bool:
    created = pod.metadata.creation_timestamp
    return created is not None and now - created < RECHECK_FOR


def _create_nodeclaims(inputs: StepInputs, planned: tuple[PlannedClaim, ...]) -> Plan:
    """Create and launch at most `claims_per_run` NodeClaims; requeue at once for the pods of the others."""
    limit, snapshot = inputs.settings.claims_per_run, inputs.snapshot
    launched = one_try_each(snapshot, planned)[:limit]
    plan = _with_node_pools(create_nodeclaims(snapshot, launched, _registration_due(inputs)))
    left = len(planned) - len(launched)
    if not left:
        return plan
    reason = f"{counted(left, 'planned node')} left for the next run"
    return plan + Plan(chains=(chain_of("requeues", Requeue(step=Step.PROVISION, at=snapshot.now, reason=reason)),))


def _with_node_pools(plan: Plan) -> Plan:
    """Return the plan with the NodePool of each chain's new NodeClaim; the executor reads that NodePool again first."""
    return replace(plan, chains=tuple(replace(chain, node_pool=_node_pool(chain)) for chain in plan.chains))


def _node_pool(chain: Chain) -> str:
    first = next(iter(chain.actions), None)
    if not isinstance(first, CreateObject) or first.resource.kind != NODECLAIM.kind:
        return ""
    return str(first.body["metadata"].get("labels", {}).get(labels.NODEPOOL, ""))


def _record(snapshot: Snapshot, results: Results) -> Plan:
    """Return a plan that records the results: Events on scheduled pods and NodePools, log lines, a note, and metrics."""
    scheduled = sum(len(c.pods) for c in results.new_claims) + sum(len(keys) for keys in results.existing.values())
    logs: tuple[LogLine, ...] = ()
    notes: tuple[str, ...] = ()
    if scheduled or results.pod_errors:
        # debug, because every run finds the pods that wait for a NodeClaim in flight
        level = "info" if results.new_claims else "debug"
        fields = {"number": scheduled + len(results.pod_errors)}
        logs = (LogLine(level=level, message="found provisionable pod(s)", fields=fields),)
    if results.new_claims:
        pods = sum(len(c.pods) for c in results.new_claims)
        notes = (
            f"computed {len(results.new_claims)} new nodeclaim(s) to fit {pods} pod(s), {results.price:.4f} per hour",
        )
        if results.chosen_plan is not None:
            logs = (*logs, LogLine(level="info", message="chose a plan", fields=results.chosen_plan.as_data()))
    controller = {"controller": "provisioner"}
    unschedulable = Observation(
        name="karpenter_scheduler_unschedulable_pods_count",
        value=float(len(results.pod_errors)),
        labels=controller,
        kind="gauge",
    )
    unreached = Observation(
        name="journeyman_scheduler_unreached_pods",
        value=float(sum(error.kind == "unreached" for error in results.pod_errors.values())),
        kind="gauge",
    )
    duration = Observation(name="karpenter_scheduler_scheduling_duration_seconds", labels=controller, kind="histogram")
    recorded = Plan(
        logs=logs,
        notes=notes,
        counts=(("unschedulable pods", len(results.pod_errors)),),
        observations=(unschedulable, unreached, *pending_gauges(snapshot, results)),
        durations=(duration,),
    )
    return scheduling_events(snapshot, results) + report_skipped(results.skipped) + recorded


# -- settings of the lifecycle ----------------------------------------------------------------------------------------


def _lifecycle_options(inputs: StepInputs) -> LifecycleOptions:
    settings = inputs.settings
    return LifecycleOptions(
        timeouts=settings.timeouts,
        backoff=OfferingBackoff(first=settings.unavailable_for, longest=settings.unavailable_longest),
        intervals=RequeueIntervals(shortest=settings.registration_poll),
        wait_for_devices=not settings.ignore_dra_requests,
        batch_min_pods=BATCH_MIN_PODS,
        max_nominations=MAX_PODS_PER_RUN if inputs.supports_nomination else 0,
    )


def _registration_due(inputs: StepInputs) -> datetime:
    """Return the earliest time at which a new node may have registered."""
    now, poll = inputs.snapshot.now, inputs.settings.registration_poll
    return poll_time(now, now, poll, poll)
