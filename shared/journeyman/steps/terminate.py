"""Terminate: drains nodes that are being deleted, terminates their instances, and collects garbage.

::

    load ─► finalize: drain, terminate the instance, remove finalizers ─► expiration ─► adoption ─► garbage collection
         ─► liveness ─► repair ─► hydration ─► consistency ─► NodePool counts

All reconcilers decide on the cluster as it was loaded, so that each object moves by one step per run. The step requeues
itself while any termination is unfinished.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from journeyman.core.api import labels
from journeyman.core.api.conditions import LAUNCHED
from journeyman.core.api.objects import NAMESPACE, NODECLAIM
from journeyman.core.lifecycle.adoption import adopt_instances
from journeyman.core.lifecycle.consistency import check_nodes
from journeyman.core.lifecycle.drain import TerminationIntervals, condition_since
from journeyman.core.lifecycle.expiration import expire_nodeclaims, replace_expiring
from journeyman.core.lifecycle.failed_registrations import ended_registrations, record_failed_registrations
from journeyman.core.lifecycle.garbage_collection import (
    OrphanWaits,
    delete_claims_without_instance,
    end_useless_instances,
    fleet_size,
    has_lost_instance,
    inconsistent_claims,
    lost_objects,
    orphaned_instances,
)
from journeyman.core.lifecycle.health import (
    is_repair_due,
    next_status_check,
    repair_nodes,
    terminate_impaired_instances,
)
from journeyman.core.lifecycle.hydration import hydrate_nodes, relabel_unreserved, restore_provider_ids
from journeyman.core.lifecycle.launch import OfferingBackoff
from journeyman.core.lifecycle.liveness import delete_claims_of_ended_instances, ends_early, is_awaiting_node
from journeyman.core.lifecycle.nodepool_status import registration_outcomes, update_nodepool_counts
from journeyman.core.lifecycle.removal_brake import DEFAULT_NAMESPACE, remove_lost
from journeyman.core.lifecycle.termination import (
    finalize_terminating,
    is_awaiting_volumes,
    is_being_finalized,
    nodes_being_finalized,
)
from journeyman.core.plan import DeleteObject, Event, Failure, Observation, Plan, Requeue, Step, chain_of
from journeyman.core.state import InstanceStatus, Snapshot, StateNode
from journeyman.core.state.expiration_times import is_expired
from journeyman.core.state.instances import CloudInstances, is_foreign
from journeyman.core.state.skipped_objects import evaluate
from journeyman.errors import CloudProviderError, ForbiddenError, NotFoundError
from journeyman.ports import Trigger
from journeyman.steps.context import Outcome, RunContext, Settings
from journeyman.steps.end_reasons import read_end_reasons
from journeyman.steps.load import Scope, load, with_pods_of, with_volumes_of
from journeyman.steps.recorder import log_fields
from journeyman.steps.scheduling_inputs import StepInputs
from journeyman.steps.step import Reconciler, StepDefinition, run_step

SCOPE: Final = Scope(nodes=True, pools=True, guard=True)
MAX_LOOKUPS: Final = 100
"""Instances that one run reads by id; the next run reads the others."""
STATUS_CHECK_PERIOD: Final = timedelta(minutes=1)
"""karpenter-provider-aws pkg/controllers/interruption/instancestatus_controller.go `InstanceStatusInterval`."""


def terminate(run: RunContext, trigger: Trigger) -> Outcome:
    """Run the step once for one cluster; it derives its work from the cluster, not from `trigger`.

    Raises:
        JourneymanError: As `run_step`.
    """
    return run_step(run, TERMINATE, trigger)


# -- loading ----------------------------------------------------------------------------------------------------------


def _load(run: RunContext, trigger: Trigger) -> StepInputs:
    """Read the cloud's instances, claims and nodes; the pods of nodes that terminate or that this run deletes; and volumes."""
    listed = run.cloud.list()  # before the claims, so that the claim of each listed instance is read as well
    uid, failures = _cluster_uid(run)
    foreign = frozenset(instance.provider_id for instance in listed if is_foreign(instance, uid))
    instances = tuple(instance for instance in listed if instance.provider_id not in foreign)
    stored, cloud = load(run, SCOPE), CloudInstances(listed=instances, missing=foreign)
    snapshot = cloud.with_own_instances(stored)
    terminating = nodes_being_finalized(snapshot, cloud)
    cloud = CloudInstances(listed=instances, missing=foreign | _missing_instances(run, snapshot, cloud, uid))
    read = (*terminating, *(n for n in snapshot.state_nodes if _will_be_deleted(n, run, snapshot, cloud)))
    snapshot = with_pods_of(run, snapshot, (n.node.metadata.name for n in read if n.node is not None))
    snapshot, unread = _with_volumes(run, snapshot, cloud)
    end_reasons = read_end_reasons(run, _ended_early(snapshot, cloud) & cloud.missing)
    return StepInputs.of(
        run,
        trigger,
        snapshot,
        stored_claims=stored.claims,
        instances=instances,
        missing_instances=cloud.missing,
        end_reasons=end_reasons,
        foreign_instances=foreign,
        statuses=_failing_statuses(run, snapshot),
        failures=(*failures, *unread),
    )


def _cluster_uid(run: RunContext) -> tuple[str, tuple[Failure, ...]]:
    """Return the UID of the namespace kube-system, read in each run: another cluster may have got this one's name meanwhile.

    Without the permission to read it the error is reported, and no instance is known to be another cluster's.
    """
    try:
        return run.store.get(NAMESPACE, "kube-system").metadata.uid, ()
    except NotFoundError:
        return "", ()
    except ForbiddenError as error:
        return "", (Failure(subject="namespace kube-system", error=error),)


def _will_be_deleted(node: StateNode, run: RunContext, snapshot: Snapshot, cloud: CloudInstances) -> bool:
    """Whether this run deletes the node's NodeClaim, unless too many nodes are unhealthy; its pods are counted then."""
    claim = node.claim
    if claim is None or node.node is None or claim.metadata.deletion_timestamp is not None:
        return False
    if is_expired(claim, snapshot.now) or has_lost_instance(claim, snapshot, cloud):
        return True
    repairs = run.settings.feature_gates.node_repair
    return repairs and is_repair_due(node.node, run.cloud.repair_policies, snapshot.now)


def _ended_early(snapshot: Snapshot, cloud: CloudInstances) -> frozenset[str]:
    """Return provider ids of instances that ended before their node joined or soon after, and whose NodeClaim this run deletes."""
    return frozenset(
        claim.status.provider_id
        for claim in snapshot.claims
        if claim.status.provider_id in cloud.ended
        and ends_early(claim, snapshot.now)
        and (is_awaiting_node(claim) or has_lost_instance(claim, snapshot, cloud))
    )


def _with_volumes(run: RunContext, snapshot: Snapshot, cloud: CloudInstances) -> tuple[Snapshot, tuple[Failure, ...]]:
    """Return the snapshot with the volumes of drained nodes.

    Without the permission to read volumes the error is reported and nodes do not wait for volumes to detach, because they
    would otherwise wait forever.
    """
    nodes = nodes_being_finalized(snapshot, cloud)
    drained = [n.name for n in nodes if evaluate(n, is_awaiting_volumes, n, snapshot, cloud) is True]
    try:
        return with_volumes_of(run, snapshot, drained), ()
    except ForbiddenError as error:
        return snapshot, (Failure(subject="volumes of terminating nodes", error=error),)


def _missing_instances(run: RunContext, snapshot: Snapshot, cloud: CloudInstances, uid: str) -> frozenset[str]:
    """Return provider ids of instances that do not exist; reads those that were not listed by their ids, all together.

    Those of other clusters than the one with this UID do not exist for this one.

    An invalid provider id counts as that of an instance that is gone, so that its NodeClaim can be finalized.

    Instances of terminating nodes come first, and no more than `MAX_LOOKUPS` are read.
    """
    launched_before = snapshot.now - run.settings.orphan_age
    unlisted = [n for n in snapshot.state_nodes if n.provider_id and cloud.find(n.provider_id) is None]
    finalized = {n.provider_id for n in unlisted if is_being_finalized(n, snapshot, cloud)}
    lost = {n.provider_id for n in unlisted if _may_be_lost(n, launched_before) or _may_be_left_over(n, snapshot)}
    missing = {(provider_id not in finalized, provider_id) for provider_id in finalized | lost}
    candidates = frozenset(provider_id for _, provider_id in sorted(missing)[:MAX_LOOKUPS])
    found = run.cloud.get_each(candidates) if candidates else {}
    return candidates - {provider_id for provider_id, instance in found.items() if not is_foreign(instance, uid)}


def _may_be_lost(node: StateNode, launched_before: datetime) -> bool:
    """Whether the node is not Ready and was launched long enough ago for the cloud to list its instance."""
    if node.claim is None or node.ready:
        return False
    return condition_since(node.claim, LAUNCHED, launched_before) < launched_before


def _may_be_left_over(node: StateNode, snapshot: Snapshot) -> bool:
    """Whether it is a held Node of ours without a NodeClaim, and not Ready: nothing is left to keep once its instance has ended."""
    return node.claim is None and node.is_held and not node.ready and snapshot.is_ours(node)


def _failing_statuses(run: RunContext, snapshot: Snapshot) -> tuple[InstanceStatus, ...]:
    """Return this cluster's failing status checks; none if they were read less than a minute ago."""
    memory, now = run.memory, snapshot.now
    provider_ids = {n.provider_id for n in snapshot.state_nodes if n.claim is not None and n.provider_id}
    if not provider_ids or memory.checks_refused or (memory.checks_due is not None and now < memory.checks_due):
        return ()
    memory.checks_due = now + STATUS_CHECK_PERIOD
    try:
        found = tuple(s for s in run.cloud.statuses() if s.provider_id in provider_ids)
    except CloudProviderError as error:
        memory.checks_refused = not error.retryable
        retry = "this process does not try again" if memory.checks_refused else "trying again in a minute"
        text = f"cannot read the status checks of instances, {retry}: {error.message}"
        run.telemetry.log("warning", text, **log_fields(error))
        return ()
    next_check = next_status_check(found, now, run.settings.impaired_for)
    memory.checks_due = min(next_check or memory.checks_due, memory.checks_due)
    return found


# -- reconcilers, in order --------------------------------------------------------------------------------------------


def _finalize(inputs: StepInputs) -> Plan:
    return finalize_terminating(inputs.loaded, _cloud(inputs), _termination_intervals(inputs.settings))


def _restore_provider_ids(inputs: StepInputs) -> Plan:
    return restore_provider_ids(inputs.stored_claims, inputs.loaded)


def _expire(inputs: StepInputs) -> Plan:
    return expire_nodeclaims(inputs.loaded) + replace_expiring(inputs.loaded)


def _end_useless_instances(inputs: StepInputs) -> Plan:
    return end_useless_instances(inputs.loaded, _cloud(inputs))


def _adopt(inputs: StepInputs) -> Plan:
    return adopt_instances(inputs.loaded, orphaned_instances(inputs.loaded, _cloud(inputs)))


def _delete_claims_without_instance(inputs: StepInputs) -> Plan:
    return delete_claims_without_instance(inputs.loaded, _cloud(inputs))


def _remove_lost(inputs: StepInputs) -> Plan:
    """Remove what looks lost, all kinds together, as far as the brake allows."""
    loaded, cloud, settings = inputs.loaded, _cloud(inputs), inputs.settings
    waits = OrphanWaits(young=settings.orphan_age, established=max(settings.orphan_age, settings.inconsistent_after))
    recorded, inconsistent = inconsistent_claims(loaded, cloud, settings.inconsistent_after)
    lost = {one.key: one for one in (*inconsistent, *lost_objects(loaded, cloud, waits))}
    return recorded + remove_lost(lost.values(), fleet_size(loaded, cloud), loaded)


def _report_foreign(inputs: StepInputs) -> Plan:
    """Report instances with this cluster's name in their tags and another cluster's UID; nothing touches them."""
    if not inputs.foreign_instances:
        return Plan()
    ids, count = sorted(inputs.foreign_instances), len(inputs.foreign_instances)
    shown = f"{', '.join(ids[:5])}{f' and {count - 5} more' if count > 5 else ''}"
    text = f"{count} instances have this cluster's name in their tags, but were launched by another cluster (tag {labels.CLUSTER_UID_TAG}): {shown}. They are left alone. If their cluster is gone, terminate them yourself; if it is not, correct the entry of {inputs.loaded.cluster} in the register of clusters"
    event = Event(ref=DEFAULT_NAMESPACE, reason="ForeignInstances", message=text, type="Warning")
    sample = Observation(name="journeyman_foreign_instances", value=float(count), kind="gauge")
    return Plan(events=(event,), observations=(sample,), notes=(text,))


def _record_failed_registrations(inputs: StepInputs) -> Plan:
    """Record whose fault the early ends of instances are, before their NodeClaims are deleted."""
    loaded, cloud, settings = inputs.loaded, _cloud(inputs), inputs.settings
    ended = _ended_early(loaded, cloud)
    reasons = {id_: failure for id_ in sorted(ended) if (failure := cloud.failure_of(id_)) is not None}
    backoff = OfferingBackoff(first=settings.unavailable_for, longest=settings.unavailable_longest)
    return record_failed_registrations(loaded, ended_registrations(loaded, ended, reasons), backoff)


def _delete_claims_of_ended_instances(inputs: StepInputs) -> Plan:
    return delete_claims_of_ended_instances(inputs.loaded, _cloud(inputs))


def _repair(inputs: StepInputs) -> Plan:
    """Delete the claims of impaired instances, and of unhealthy nodes if the feature gate NodeRepair is enabled.

    If there are impaired instances, the next run repairs unhealthy nodes, so that no node is deleted and counted twice.
    """
    snapshot, limit = inputs.loaded, inputs.settings.impaired_for
    plan = terminate_impaired_instances(snapshot, inputs.statuses, limit)
    if not plan.chains and inputs.settings.feature_gates.node_repair:
        plan = repair_nodes(snapshot, inputs.repair_policies)
    at = next_status_check(inputs.statuses, snapshot.now, limit)
    return plan if at is None else plan + _requeue_at(at, "an instance's status check will exceed its toleration")


def _hydrate(inputs: StepInputs) -> Plan:
    return hydrate_nodes(inputs.loaded)


def _relabel_unreserved(inputs: StepInputs) -> Plan:
    return relabel_unreserved(inputs.loaded, _cloud(inputs))


def _check_consistency(inputs: StepInputs) -> Plan:
    return check_nodes(inputs.loaded, inputs.settings.consistency_period)


def _count_nodes(inputs: StepInputs) -> Plan:
    """Update the NodePools' counts if nodes are terminating, which no longer count, or claims were deleted before they registered."""
    settings, loaded = inputs.settings, inputs.loaded
    ended, faults = _cloud(inputs).ended, inputs.written.launch_faults
    registrations = registration_outcomes(loaded, inputs.written.claims, settings.timeouts, ended, refused=faults)
    if not registrations and not any(n.is_terminating for n in loaded.state_nodes):
        return Plan()
    return update_nodepool_counts(loaded, registrations)


def _requeue_after_deletions(decide: Callable[[StepInputs], Plan]) -> Callable[[StepInputs], Plan]:
    """Return the reconciler with a requeue of the step at once if its plan deletes NodeClaims."""

    def reconcile(inputs: StepInputs) -> Plan:
        plan = decide(inputs)
        deletes = any(isinstance(a, DeleteObject) and a.ref.resource.kind == NODECLAIM.kind for a in plan.actions)
        return plan + _requeue_at(inputs.loaded.now, "NodeClaims were deleted") if deletes else plan

    return reconcile


TERMINATE: Final = StepDefinition(
    name=Step.TERMINATE,
    load=_load,
    reconcilers=tuple(
        Reconciler(decide, needs_catalogue=False)
        for decide in (
            _finalize,
            _restore_provider_ids,
            _record_failed_registrations,
            _requeue_after_deletions(_expire),
            _end_useless_instances,
            _adopt,
            _requeue_after_deletions(_delete_claims_without_instance),
            _requeue_after_deletions(_remove_lost),
            _report_foreign,
            _requeue_after_deletions(_delete_claims_of_ended_instances),
            _requeue_after_deletions(_repair),
            _hydrate,
            _relabel_unreserved,
            _check_consistency,
            _count_nodes,
        )
    ),
    requeues=Step.TERMINATE,
)


def _requeue_at(at: datetime, reason: str) -> Plan:
    return Plan(chains=(chain_of("requeues", Requeue(step=Step.TERMINATE, at=at, reason=reason)),))


def _cloud(inputs: StepInputs) -> CloudInstances:
    return CloudInstances(listed=inputs.instances, missing=inputs.missing_instances, failures=inputs.end_reasons)


def _termination_intervals(settings: Settings) -> TerminationIntervals:
    return TerminationIntervals(
        min_drain=settings.min_drain, drain_poll=settings.drain_poll, instance_poll=settings.instance_poll
    )
