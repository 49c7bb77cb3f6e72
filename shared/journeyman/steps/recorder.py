"""Records one run's logs, notes, Kubernetes Events, metrics, counts and requeues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec.structs import replace

from journeyman.core.api.objects import NAMESPACE
from journeyman.core.plan import Chain, Event, ObjectRef, Observation, Plan, Requeue, Step
from journeyman.errors import (
    NOT_SERVED,
    ConflictError,
    DeadlineError,
    ForbiddenError,
    JourneymanError,
    KubeAPIError,
    LeaseLostError,
    RateLimitedError,
    TooManyRequestsError,
)
from journeyman.steps.context import BUSY, DONE, PARTIAL, Outcome, RunContext

RETRY_AFTER: Final = timedelta(seconds=1)
RETRY_ERROR_AFTER: Final = timedelta(seconds=5)
MAX_REQUEUE_DELAY: Final = timedelta(minutes=15)
"""The longest delay of an SQS message. The sweep finds what is due later."""

CHAIN_ENDS: Final = "the chain of requeues has reached its limit; the next sweep starts a new one"

_DEFAULT_NAMESPACE: Final = ObjectRef(resource=NAMESPACE, name="default")


class RunRecorder:
    """Records one run.

    Args:
        run: The run.
        step: The step that runs.
        requeues_step: The step to requeue after a conflict; None for no requeue. A retryable error or the deadline requeues
            it only if it is `step`: interrupt requeues terminate, and its own message is delivered again.
        hops: The number of requeues before this run in its chain of messages.
    """

    def __init__(self, run: RunContext, step: Step, requeues_step: Step | None, *, hops: int = 0) -> None:
        self._run = run
        self._hops = hops
        self._step = step
        self._requeues_step = requeues_step
        self._counts: Counter[str] = Counter()
        self._notes: list[str] = []
        self._requeues: dict[Step, Requeue] = {}
        self._status = DONE
        self._examined_until: str | None = None
        self._error: JourneymanError | None = None

    def record_plan(self, plan: Plan) -> None:
        """Record a plan's notes, logs, Events, metrics, failures and requeues; they do not depend on its chains' success."""
        for note in plan.notes:
            self.note(note)
        self._notes += (line.note for line in plan.logs if line.note)
        emit_reports(self._run, plan)
        for name, number in plan.counts:
            self.count(name, number)
        for failure in plan.failures:
            self.record_error(failure.subject, failure.error)
        if plan.examined_until is not None:
            self._examined_until = plan.examined_until
        for action in plan.actions:
            if isinstance(action, Requeue):
                self.requeue(action.step, action.at, action.reason)

    def record_chain(self, chain: Chain) -> None:
        """Record the Events and metrics of a chain whose actions were all performed."""
        for event in chain.events:
            self._run.telemetry.event(event)
        self.observe(chain.observations)

    def note(self, text: str, message: str = "", *, level: str = "info", **fields: Any) -> None:
        """Add `text` to the outcome's notes, and write `message` (by default `text`) to the log."""
        self._notes.append(text)
        self._run.telemetry.log(level, message or text, **fields)

    def count(self, name: str, number: int = 1) -> None:
        """Add to a count of the outcome."""
        self._counts[name] += number

    def event(self, event: Event) -> None:
        """Record a Kubernetes Event."""
        self._run.telemetry.event(event)

    def observe(self, observations: Iterable[Observation]) -> None:
        """Record metric samples."""
        for observation in observations:
            self._run.telemetry.observe(observation)

    def requeue(self, step: Step, at: datetime, reason: str) -> None:
        """Requeue `step` at `at`, unless it is requeued earlier already, or `at` is so late that the sweep finds the work."""
        if at - self._run.clock.now() > MAX_REQUEUE_DELAY:
            return
        earliest = self._requeues.get(step)
        if earliest is None or at < earliest.at:
            self._requeues[step] = Requeue(step=step, at=at, reason=reason)

    # -- errors -------------------------------------------------------------------------------------------------

    def record_conflict(self, subject: str, error: JourneymanError) -> None:
        """Record that an object changed since it was read, and requeue the step to decide again."""
        self.count("conflicts")
        self._run.telemetry.log(
            "debug", "the object changed since it was read; deciding again", subject=subject, error=str(error)
        )
        self._requeue_own(RETRY_AFTER, f"{subject} changed since it was read")

    def record_error(self, subject: str, error: JourneymanError) -> None:
        """Record an error that stops one chain; if it is retryable, requeue a step whose message is not delivered again."""
        self.count("errors")
        self._notes.append(f"{subject}: {error}")
        level = "warning" if error.retryable else "error"
        self._run.telemetry.log(level, error.message, subject=subject, error=type(error).__name__, **log_fields(error))
        emit_error(self._run, self._step, error)
        if error.retryable:
            self._retry_own(_retry_after(error), f"{subject}: {error.message}")

    def record_busy(self, error: LeaseLostError) -> None:
        """Record that another run holds the step's Lease; the queue delivers this run's message again.

        It is a warning if that run has held it longer than any run lasts.
        """
        self._status, self._error = BUSY, error
        held = error.context.get("held_seconds")
        self._run.telemetry.log("info" if held is None else "warning", error.message, **log_fields(error))
        if held is not None:
            self.observe((lease_metric(self._step, "held"),))

    def record_acquired(self) -> None:
        """Record that this run has acquired a Lease that another holder claims, if it has."""
        if self._run.lease.disbelieved:
            self._run.telemetry.log("warning", self._run.lease.disbelieved)
            self.observe((lease_metric(self._step, "disbelieved"),))

    def record_partial(self, error: JourneymanError) -> None:
        """Record that the deadline or a retryable error stops the run; requeue a step whose message is not delivered again."""
        self._status, self._error = PARTIAL, error
        self._run.telemetry.log("info", error.message, **log_fields(error))
        self._retry_own(timedelta(0) if isinstance(error, DeadlineError) else _retry_after(error), error.message)

    def _retry_own(self, wait: timedelta, reason: str) -> None:
        """Requeue the step, unless it requeues another one: then its own message is delivered again."""
        if self._requeues_step is self._step:
            self._requeue_own(wait, reason)

    def _requeue_own(self, wait: timedelta, reason: str) -> None:
        if self._requeues_step is not None:
            self.requeue(self._requeues_step, self._run.clock.now() + wait, reason)

    # -- end of the run ------------------------------------------------------------------------------------------------

    def record_chain_end(self) -> None:
        """Record that requeues are not sent, if there are any and the chain of messages has reached its limit."""
        if self._requeues and self._chain_ends:
            reasons = "; ".join(requeue.reason for _, requeue in sorted(self._requeues.items()))
            self._run.telemetry.log("info", CHAIN_ENDS, hops=str(self._hops), reason=reasons)
            self.observe((chain_end_metric(self._step),))

    @property
    def examined_until(self) -> str:
        """The object after which the next run continues, for the Lease: what a plan says, else what an earlier run stored."""
        return self._run.lease.examined_until if self._examined_until is None else self._examined_until

    @property
    def requeues(self) -> tuple[Requeue, ...]:
        """The requeues to send, at most one for each step, by step; none if the chain of messages has reached its limit."""
        if self._chain_ends:
            return ()
        return tuple(
            self._delayed(requeue) for _, requeue in sorted(self._requeues.items(), key=lambda kv: kv[0].value)
        )

    @property
    def _chain_ends(self) -> bool:
        return self._hops >= self._run.settings.max_hops

    def _delayed(self, requeue: Requeue) -> Requeue:
        """Delay an immediate requeue after an error: a permanent error would otherwise requeue the step without pause."""
        now = self._run.clock.now()
        if requeue.step is not self._requeues_step or requeue.at > now or not self._counts["errors"]:
            return requeue
        return replace(requeue, at=now + RETRY_ERROR_AFTER)

    def outcome(self) -> Outcome:
        """Return the run's result."""
        return Outcome(
            step=self._step,
            cluster=self._run.cluster,
            status=self._status,
            notes=tuple(self._notes),
            counts=dict(sorted(self._counts.items())),
            requeues=self.requeues,
            error=self._error,
        )


def chain_end_metric(step: Step) -> Observation:
    """Return the metric sample of a chain of requeues that reached its limit at a step."""
    return Observation(name="journeyman_requeue_chains_ended_total", labels={"controller": step.value})


def lease_metric(step: Step, problem: str) -> Observation:
    """Return the metric sample of a Lease that is `held` longer than any run lasts, or `disbelieved`."""
    labels = {"controller": step.value, "problem": problem}
    return Observation(name="journeyman_lease_problems_total", labels=labels)


def emit_reports(run: RunContext, plan: Plan) -> None:
    """Emit a plan's log lines, Events and metric samples."""
    for line in plan.logs:
        run.telemetry.log(line.level, line.message, **line.fields)
    for event in plan.events:
        run.telemetry.event(event)
    for sample in plan.observations:
        run.telemetry.observe(sample)


def emit_error(run: RunContext, step: Step, error: JourneymanError) -> None:
    """Count an error that stopped a run or a part of it; record an Event if an operator must act."""
    run.telemetry.observe(error_metric(step, error))
    if event := event_for_operator(step, error):
        run.telemetry.event(event)


def error_metric(step: Step, error: Exception) -> Observation:
    """Return the metric sample of an error that stopped a run or a part of it."""
    labels = {"controller": step.value, "error": type(error).__name__}
    return Observation(name="journeyman_errors_total", labels=labels)


def event_for_operator(step: Step, error: JourneymanError) -> Event | None:
    """Return the Event for a missing permission or CustomResourceDefinition, which only an operator can add.

    The Event is on the namespace `default`, where Events of nodes are, because the object concerned cannot be read. Each
    permission and kind has its own Event. None for other errors.
    """
    if isinstance(error, ForbiddenError):
        reason = "PermissionDenied"
        key = [str(error.context.get(part, "")) for part in ("verb", "api_group", "resource")]
    elif isinstance(error, KubeAPIError) and error.reason == NOT_SERVED:
        reason, key = "CRDNotInstalled", [error.message]
    else:
        return None
    advice = error.context.get("to_do", "")
    text = f"{step.value}: {error.message}{f'; {advice}' if advice else ''}"
    return Event(ref=_DEFAULT_NAMESPACE, reason=reason, message=text, type="Warning", key="/".join((step.value, *key)))


def log_fields(error: JourneymanError) -> dict[str, str]:
    """Return an error's context as fields for a log line."""
    return {key: str(value) for key, value in error.context.items()}


def _retry_after(error: JourneymanError) -> timedelta:
    if isinstance(error, RateLimitedError | TooManyRequestsError):
        return timedelta(seconds=error.retry_after_seconds)
    return RETRY_AFTER if isinstance(error, ConflictError) else RETRY_ERROR_AFTER
