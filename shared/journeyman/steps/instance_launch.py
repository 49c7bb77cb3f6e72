"""Launches the instances of a plan together, and writes each result into its NodeClaim as it arrives.

Claims of limited NodePools are launched only if they are within the limits together with all claims that others created
meanwhile (`lifecycle.nodepool_limits`). After a crash the next run finds the instances by the claim's name in their tag and
the claim's UID as client token, and does not launch twice.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

from journeyman.core.api import labels
from journeyman.core.api.objects import NODECLAIM, NodeClaim, OfferingKey
from journeyman.core.lifecycle.hydration import with_finalizer_and_labels
from journeyman.core.lifecycle.launch import FailedLaunch, LaunchedInstance, OfferingBackoff, is_deleted, record_launch
from journeyman.core.lifecycle.nodepool_limits import check_limits
from journeyman.core.lifecycle.progress import claim_patches
from journeyman.core.plan import Observation, Plan, Step, chain_of
from journeyman.core.state import Snapshot
from journeyman.core.state.launch_backoff import full_subnets
from journeyman.errors import (
    DeadlineError,
    JourneymanError,
    LeaseLostError,
    NodeClassNotReadyError,
)
from journeyman.ports import Launched, LaunchFailed, LaunchOutcome, LaunchRequest, Lease
from journeyman.steps.actions import ObjectWriter
from journeyman.steps.context import RunContext
from journeyman.steps.recorder import RunRecorder
from journeyman.steps.scheduling_inputs import SchedulingInputs

CLOCK_SKEW: Final = timedelta(seconds=5)
"""The tolerated difference between the cloud's clock and ours."""


class InstanceLauncher:
    """Launches instances for the claims of one run.

    Args:
        run: The run.
        recorder: Records each launch.
        writer: Returns the claims that this run wrote.
        scheduling: NodeClasses and instance types.
        execute: Executes the plan that records the result of a launch.
        lease: The step's Lease, checked before each launch; None for a step without one.
    """

    def __init__(
        self,
        run: RunContext,
        recorder: RunRecorder,
        writer: ObjectWriter,
        scheduling: SchedulingInputs,
        *,
        execute: Callable[[Plan], None],
        lease: Lease | None,
    ) -> None:
        self._run = run
        self._recorder = recorder
        self._writer = writer
        self._scheduling = scheduling
        self._execute = execute
        self._lease = lease

    def launch(self, claims: Sequence[str]) -> Iterator[str]:
        """Launch the instances of these claims, and write each result as it arrives.

        Yields:
            The name of each claim whose launch succeeded.

        Raises:
            LeaseLostError: Another run holds the Lease. The step's next run finds the instances that were launched.
            DeadlineError: The remaining time is too short for further launches; the next run starts them.
        """
        for outcome in self._outcomes(self._within_limits(claims)):
            claim = self._claim(outcome.claim)
            try:
                if claim is not None:
                    self._record(claim, outcome)
            finally:
                self._requeue_orphan(outcome)
            if claim is not None and isinstance(outcome, Launched):
                yield outcome.claim

    def _claim(self, name: str) -> NodeClaim | None:
        return self._writer.claim(name, self._scheduling.snapshot)

    def _within_limits(self, names: Sequence[str]) -> Sequence[str]:
        """Return the claims within their NodePools' limits; read all claims again if one of the NodePools has limits."""
        snapshot = self._scheduling.snapshot
        limited = {pool.metadata.name for pool in snapshot.node_pools if pool.spec.limits}
        claims = (claim for name in names if (claim := self._claim(name)) is not None)
        if not any(_pool_of(claim) in limited for claim in claims):
            return names
        check = check_limits(names, self._read_again(snapshot, limited), self._scheduling.catalogue)
        self._execute(check.plan)
        return [name for name in names if name not in check.blocked]

    def _read_again(self, snapshot: Snapshot, pools: Container[str]) -> Snapshot:
        """Return the snapshot with what this run wrote, and with the claims of these NodePools as stored now."""
        written = self._writer.written.claims
        claims = {c.metadata.name: c for c in snapshot.claims if _pool_of(c) not in pools}
        claims |= {name: c for name, c in written.items() if c is not None}
        claims |= {c.metadata.name: c for c in self._run.store.list(NODECLAIM).items if _pool_of(c) in pools}
        deleted = {name for name, claim in written.items() if claim is None}
        return snapshot.with_claims(c for name, c in claims.items() if name not in deleted)

    # -- requests -----------------------------------------------------------------------------------------------

    def _outcomes(self, names: Sequence[str]) -> Iterator[LaunchOutcome]:
        """Yield one outcome for each claim that still exists: first those of claims that cannot be requested."""
        requests: list[LaunchRequest] = []
        for name in names:
            claim = self._with_finalizer(name)
            if claim is None:
                continue
            request = self._request(claim)
            if isinstance(request, LaunchRequest):
                requests.append(request)
            else:
                yield request
        yield from self._call_cloud(requests)

    def _call_cloud(self, requests: Sequence[LaunchRequest]) -> Iterator[LaunchOutcome]:
        """Yield the outcomes of the launches; if the call fails as a whole, yield its error for each claim without one."""
        waiting = {request.claim.metadata.name for request in requests}
        try:
            if waiting:
                self._check()
            for outcome in self._run.cloud.launch(requests) if requests else ():
                waiting.discard(outcome.claim)
                yield outcome
                if waiting:
                    self._check()
        except (LeaseLostError, DeadlineError):
            raise
        except JourneymanError as error:
            for name in sorted(waiting):
                yield LaunchFailed(claim=name, error=error)

    def _check(self) -> None:
        """Raise if a further launch could not end before the deadline, or if the run lost the Lease."""
        run = self._run
        if run.deadline - run.settings.deadline_margin - run.clock.now() < run.settings.launch_call_timeout:
            raise DeadlineError("the remaining time is too short for another launch")
        if self._lease is not None:
            self._lease.check()

    def _with_finalizer(self, name: str) -> NodeClaim | None:
        """Return the claim after adding the termination finalizer, without which its instance could leak; None if that fails."""
        claim = self._claim(name)
        if claim is None or labels.TERMINATION_FINALIZER in claim.metadata.finalizers:
            return claim
        patches = claim_patches(claim, with_finalizer_and_labels(claim), "add the finalizer before the launch")
        self._execute(Plan(chains=(chain_of(f"NodeClaim {name}", *patches),)))
        claim = self._claim(name)
        has_finalizer = claim is not None and labels.TERMINATION_FINALIZER in claim.metadata.finalizers
        return claim if has_finalizer else None

    def _request(self, claim: NodeClaim) -> LaunchRequest | LaunchFailed:
        scheduling = self._scheduling
        node_class = scheduling.node_class(claim)
        name, ref = claim.metadata.name, claim.spec.node_class_ref
        if node_class is None or node_class.deleting:
            error = NodeClassNotReadyError(f"{ref.kind} {ref.name} does not exist or is being deleted")
            return LaunchFailed(claim=name, error=error)
        if not node_class.ready:
            why = node_class.message or node_class.reason
            return LaunchFailed(claim=name, error=NodeClassNotReadyError(f"{ref.kind} {ref.name} is not ready: {why}"))
        if node_class.name in scheduling.failures:
            return LaunchFailed(claim=name, error=scheduling.failures[node_class.name])
        types = scheduling.catalogue.instance_types(claim.metadata.labels.get(labels.NODEPOOL, ""))
        return LaunchRequest(
            claim=claim,
            node_class=node_class,
            instance_types=types or scheduling.by_node_class.get(node_class.name, ()),
            full_subnets=full_subnets(scheduling.snapshot),
            cluster_uid=scheduling.snapshot.cluster_uid,
        )

    # -- results ------------------------------------------------------------------------------------------------

    def _record(self, claim: NodeClaim, outcome: LaunchOutcome) -> None:
        now, snapshot = self._run.clock.now(), self._scheduling.snapshot
        result = _launch_result(outcome)
        self._execute(record_launch(claim, result, now, self._offering_backoff(), snapshot))
        if isinstance(outcome, Launched):
            self._recorder.count("launched")
            instance = outcome.instance
            offering = (
                f"{instance.instance_type} in {instance.zone}, {instance.capacity_type}, {outcome.price:.4f} per hour"
            )
            text = f"launched NodeClaim {outcome.claim}: {offering}"
            self._recorder.note(text, "launched nodeclaim", **_log_fields(outcome))
        else:
            self._recorder.count("launches failed")
            self._record_failure(outcome, deleted=isinstance(result, FailedLaunch) and is_deleted(claim, result))
        for key in outcome.unavailable:
            values = {"instance_type": key.instance_type, "zone": key.zone, "capacity_type": key.capacity_type}
            self._recorder.observe((Observation(name="journeyman_offerings_refused_total", labels=values),))

    def _offering_backoff(self) -> OfferingBackoff:
        settings, snapshot = self._run.settings, self._scheduling.snapshot
        return OfferingBackoff(
            first=settings.unavailable_for,
            longest=settings.unavailable_longest,
            previously_failed=frozenset(offering.key for offering in snapshot.unavailable),
        )

    def _record_failure(self, outcome: LaunchFailed, *, deleted: bool) -> None:
        """Record the error of a claim's launch and what happens next; the error's context becomes log fields."""
        error, name = outcome.error, outcome.claim
        text = f"failed to launch NodeClaim {name}, "
        text += "deleted it to schedule its pods again" if deleted else "launching it again in the next run"
        message = error.message if isinstance(error, JourneymanError) else str(error)
        context = {key: str(value) for key, value in getattr(error, "context", {}).items()}
        fields: dict[str, Any] = {**context, "NodeClaim": {"name": name}, "error": type(error).__name__}
        self._recorder.note(f"{text}: {error}", f"{text}: {message}", level="warning", **fields)

    def _requeue_orphan(self, outcome: LaunchOutcome) -> None:
        """Requeue terminate if a launched instance is in no claim's status, so that it is garbage-collected soon.

        The claim may have been deleted during the launch, by a run that found no instance yet; and without claims the sweep
        starts garbage collection only every ten minutes.
        """
        if not isinstance(outcome, Launched):
            return
        claim = self._claim(outcome.claim)
        if claim is None or claim.status.provider_id != outcome.instance.provider_id:
            at = self._run.clock.now() + self._run.settings.orphan_age + CLOCK_SKEW
            self._recorder.requeue(Step.TERMINATE, at, f"instance {outcome.instance.provider_id} may have no NodeClaim")


def _pool_of(claim: NodeClaim) -> str:
    return claim.metadata.labels.get(labels.NODEPOOL, "")


def _launch_result(outcome: LaunchOutcome) -> LaunchedInstance | FailedLaunch:
    if isinstance(outcome, LaunchFailed):
        return FailedLaunch(
            error=outcome.error,
            unavailable=outcome.unavailable,
            unavailable_for_class=outcome.unavailable_for_class,
            faults=outcome.faults,
            answered=outcome.answered,
            retry_after=outcome.retry_after,
        )
    instance = outcome.instance
    return LaunchedInstance(
        provider_id=instance.provider_id,
        image_id=instance.image_id,
        labels=outcome.labels,
        annotations=outcome.annotations,
        capacity=outcome.capacity,
        allocatable=outcome.allocatable,
        offering=OfferingKey(instance.instance_type, instance.zone, instance.capacity_type, instance.reservation_id),
        launched_at=instance.launched_at,
        unavailable=outcome.unavailable,
        unavailable_for_class=outcome.unavailable_for_class,
        faults=outcome.faults,
        is_confirmed=outcome.is_confirmed,
    )


def _log_fields(outcome: Launched) -> dict[str, Any]:
    instance = outcome.instance
    return {
        "NodeClaim": {"name": outcome.claim},
        "provider-id": instance.provider_id,
        "instance-type": instance.instance_type,
        "zone": instance.zone,
        "capacity-type": instance.capacity_type,
        "allocatable": dict(outcome.allocatable),
        "price-per-hour": outcome.price,
    }
