"""Terminate: NodeClaims that are deleted are drained, and their instances terminated; nothing is left behind.

::

    load ─► finalize: drain, terminate the instance, remove finalizers ─► expiration ─► garbage collection
         ─► inconsistent claims ─► liveness ─► repair ─► hydration ─► consistency ─► NodePool counts

Every reconciler decides on the cluster as it was read: one move per run. The step requeues itself while anything is
unfinished.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.conditions import LAUNCHED
from journeyman.core.api.objects import NODECLAIM
from journeyman.core.lifecycle.consistency import check_nodes
from journeyman.core.lifecycle.drain import TerminationIntervals, condition_since
from journeyman.core.lifecycle.expiration import expire_nodeclaims
from journeyman.core.lifecycle.garbage_collection import collect_garbage, delete_inconsistent_claims
from journeyman.core.lifecycle.health import next_status_check, repair_nodes, terminate_impaired_instances
from journeyman.core.lifecycle.hydration import hydrate_nodes
from journeyman.core.lifecycle.liveness import LivenessTimeouts, delete_claims_of_ended_instances
from journeyman.core.lifecycle.nodepool_status import registration_outcomes, update_nodepool_counts
from journeyman.core.lifecycle.termination import awaits_volumes, finalize_terminating, needs_termination
from journeyman.core.plan import DeleteObject, Failure, Plan, Requeue, Step, chain_of
from journeyman.core.state import InstanceStatus, Snapshot, StateNode
from journeyman.core.state.instances import CloudInstances
from journeyman.errors import CloudProviderError, ForbiddenError, NodeClaimNotFoundError, NoInstanceIdError
from journeyman.ports import Instance, Trigger
from journeyman.steps.context import Outcome, RunContext, Settings
from journeyman.steps.load import Scope, load, with_pods_of, with_volumes_of
from journeyman.steps.recorder import log_fields
from journeyman.steps.scheduling_inputs import StepInputs
from journeyman.steps.step import Reconciler, StepDefinition, run_step

SCOPE: Final = Scope(nodes=True, pools=True)
MAX_LOOKUPS: Final = 100
"""Instances that one run gets by id. If more vanished at once, the others follow in the next run."""
STATUS_CHECK_PERIOD: Final = timedelta(minutes=1)
"""karpenter-provider-aws pkg/controllers/interruption/instancestatus_controller.go `InstanceStatusInterval`."""


def terminate(run: RunContext, trigger: Trigger) -> Outcome:
    """Run the step once for one cluster; `trigger` says why, and all due work is derived from the cluster.

    Raises:
        JourneymanError: As `run_step`.
    """
    return run_step(run, TERMINATE, trigger)


# -- reading ----------------------------------------------------------------------------------------------------------


def _load(run: RunContext, trigger: Trigger) -> StepInputs:
    """Read claims and nodes, the cloud's instances, and what keeps terminating nodes: their pods, then their volumes."""
    instances = run.cloud.list()  # before the claims: none of these was launched for a claim that is not read yet
    snapshot = load(run, SCOPE)
    terminating = [n for n in snapshot.state_nodes if needs_termination(n)]
    snapshot = with_pods_of(run, snapshot, (n.node.metadata.name for n in terminating if n.node is not None))
    snapshot, failures = _with_volumes(run, snapshot)
    return StepInputs.of(
        run,
        trigger,
        snapshot,
        instances=instances,
        gone=_gone(run, snapshot, instances),
        statuses=_failing_statuses(run, snapshot),
        failures=failures,
    )


def _with_volumes(run: RunContext, snapshot: Snapshot) -> tuple[Snapshot, tuple[Failure, ...]]:
    """Return the snapshot with the volumes of drained nodes.

    Without the permission to read volumes the nodes do not wait for them, and the error is reported: a node that stays for
    ever is worse.
    """
    drained = [n.name for n in snapshot.state_nodes if awaits_volumes(n, snapshot.now)]
    try:
        return with_volumes_of(run, snapshot, drained), ()
    except ForbiddenError as error:
        return snapshot, (Failure(subject="volumes of terminating nodes", error=error),)


def _gone(run: RunContext, snapshot: Snapshot, instances: tuple[Instance, ...]) -> frozenset[str]:
    """Return provider ids of instances that do not exist; one that was not listed is looked up before it counts as gone."""
    listed = {i.provider_id for i in instances}
    settled = snapshot.now - run.settings.orphan_age
    missing = {
        (not needs_termination(n), n.provider_id)
        for n in snapshot.state_nodes
        if n.provider_id and n.provider_id not in listed and (needs_termination(n) or _may_be_lost(n, settled))
    }
    candidates = [provider_id for _, provider_id in sorted(missing)[:MAX_LOOKUPS]]
    return frozenset(provider_id for provider_id in candidates if _is_gone(run, provider_id))


def _may_be_lost(node: StateNode, settled: datetime) -> bool:
    """Whether its kubelet does not report, and it was launched long enough ago for the cloud to list it."""
    return node.claim is not None and not node.ready and condition_since(node.claim, LAUNCHED, settled) < settled


def _is_gone(run: RunContext, provider_id: str) -> bool:
    """Whether the instance does not exist, or the id is none: one claim that was edited must not block all others."""
    try:
        run.cloud.get(provider_id)
    except (NodeClaimNotFoundError, NoInstanceIdError):
        return True
    return False


def _failing_statuses(run: RunContext, snapshot: Snapshot) -> tuple[InstanceStatus, ...]:
    """Return our instances whose status checks fail; none if they were read less than a minute ago."""
    memory, now = run.memory, snapshot.now
    ours = {n.provider_id for n in snapshot.state_nodes if n.claim is not None and n.provider_id}
    if not ours or memory.checks_refused or (memory.checks_due is not None and now < memory.checks_due):
        return ()
    memory.checks_due = now + STATUS_CHECK_PERIOD
    try:
        found = tuple(s for s in run.cloud.statuses() if s.provider_id in ours)
    except CloudProviderError as error:
        memory.checks_refused = not error.retryable
        later = "this process does not read them again" if memory.checks_refused else "reading them again in a minute"
        text = f"status checks of instances are not known, {later}: {error.message}"
        run.telemetry.log("warning", text, **log_fields(error))
        return ()
    ends = next_status_check(found, now, run.settings.impaired_for)
    memory.checks_due = min(ends or memory.checks_due, memory.checks_due)
    return found


# -- reconcilers, in order --------------------------------------------------------------------------------------------


def _finalize(inputs: StepInputs) -> Plan:
    return finalize_terminating(inputs.loaded, _cloud(inputs), _pace(inputs.settings))


def _expire(inputs: StepInputs) -> Plan:
    return expire_nodeclaims(inputs.loaded)


def _collect_garbage(inputs: StepInputs) -> Plan:
    return collect_garbage(inputs.loaded, _cloud(inputs), inputs.settings.orphan_age)


def _end_inconsistent_claims(inputs: StepInputs) -> Plan:
    return delete_inconsistent_claims(inputs.loaded, _cloud(inputs), inputs.settings.stray_after)


def _delete_lost_claims(inputs: StepInputs) -> Plan:
    return delete_claims_of_ended_instances(inputs.loaded, _cloud(inputs).ended)


def _repair(inputs: StepInputs) -> Plan:
    """Delete the claims of impaired instances; of unhealthy nodes behind the gate NodeRepair, as in Karpenter.

    After impaired instances the step runs again at once, and unhealthy nodes are left to that run: a node must not be
    deleted, and counted, twice.
    """
    snapshot, limit = inputs.loaded, inputs.settings.impaired_for
    plan = terminate_impaired_instances(snapshot, inputs.statuses, limit)
    if not plan.chains and inputs.settings.feature_gates.node_repair:
        plan = repair_nodes(snapshot, inputs.repair_policies)
    at = next_status_check(inputs.statuses, snapshot.now, limit)
    return plan if at is None else plan + _again(at, "a status check of an instance will have failed for too long")


def _hydrate(inputs: StepInputs) -> Plan:
    return hydrate_nodes(inputs.loaded)


def _check_consistency(inputs: StepInputs) -> Plan:
    return check_nodes(inputs.loaded, inputs.settings.consistency_period)


def _count_nodes(inputs: StepInputs) -> Plan:
    """Update the NodePools' counts when claims were finalized, or ended before they registered."""
    settings, loaded = inputs.settings, inputs.loaded
    timeouts = LivenessTimeouts(launch=settings.launch_timeout, registration=settings.registration_timeout)
    registrations = registration_outcomes(loaded, inputs.written.claims, timeouts, _cloud(inputs).ended)
    if not registrations and not any(needs_termination(n) for n in loaded.state_nodes):
        return Plan()
    return update_nodepool_counts(_without_finalized(inputs), registrations)


def _then_again(decide: Callable[[StepInputs], Plan]) -> Callable[[StepInputs], Plan]:
    """Return the same reconciler; the step runs again at once when it deletes NodeClaims."""

    def reconcile(inputs: StepInputs) -> Plan:
        plan = decide(inputs)
        deletes = any(isinstance(a, DeleteObject) and a.ref.resource.kind == NODECLAIM.kind for a in plan.actions)
        return plan + _again(inputs.loaded.now, "claims were deleted") if deletes else plan

    return reconcile


TERMINATE: Final = StepDefinition(
    name=Step.TERMINATE,
    load=_load,
    reconcilers=tuple(
        Reconciler(decide, needs_catalogue=False)
        for decide in (
            _finalize,
            _then_again(_expire),
            _then_again(_collect_garbage),
            _then_again(_end_inconsistent_claims),
            _then_again(_delete_lost_claims),
            _then_again(_repair),
            _hydrate,
            _check_consistency,
            _count_nodes,
        )
    ),
    requeues=Step.TERMINATE,
)


def _again(at: datetime, reason: str) -> Plan:
    return Plan(chains=(chain_of("requeues", Requeue(step=Step.TERMINATE, at=at, reason=reason)),))


def _cloud(inputs: StepInputs) -> CloudInstances:
    return CloudInstances(listed=inputs.instances, gone=inputs.gone)


def _without_finalized(inputs: StepInputs) -> Snapshot:
    """Return the cluster as it was read, without the claims whose finalizer this run removed, and without their nodes."""
    snapshot = inputs.loaded
    finalized = [
        claim
        for claim in inputs.written.claims.values()
        if claim is not None
        and claim.metadata.deletion_timestamp is not None
        and labels.TERMINATION_FINALIZER not in claim.metadata.finalizers
    ]
    uids = {claim.metadata.uid for claim in finalized}
    gone = {n.node.metadata.name for n in snapshot.state_nodes if n.node and n.claim and n.claim.metadata.uid in uids}
    return replace(
        snapshot,
        claims=tuple(c for c in snapshot.claims if c.metadata.uid not in uids),
        nodes=tuple(n for n in snapshot.nodes if n.metadata.name not in gone),
    )


def _pace(settings: Settings) -> TerminationIntervals:
    return TerminationIntervals(
        min_drain=settings.min_drain, drain_poll=settings.drain_poll, instance_poll=settings.instance_poll
    )
