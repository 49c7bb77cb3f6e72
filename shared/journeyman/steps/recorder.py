"""Records what one run did: logs, notes, Kubernetes Events, metrics, counts; and the requeues that it sends as it ends."""

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
from journeyman.ports import Message
from journeyman.steps.context import BUSY, DONE, PARTIAL, Outcome, RunContext

RETRY_AFTER: Final = timedelta(seconds=1)
RETRY_ERROR_AFTER: Final = timedelta(seconds=5)
FURTHEST_REQUEUE: Final = timedelta(minutes=15)
"""What a delay queue holds; what is due later, the sweep finds."""

_DEFAULT_NAMESPACE: Final = ObjectRef(resource=NAMESPACE, name="default")


class RunRecorder:
    """Records one run.

    Args:
        run: The run's connections.
        step: The step that runs.
        requeues_step: The step that runs again after a conflict, a passing error or the deadline; None: no step does.
    """

    def __init__(self, run: RunContext, step: Step, requeues_step: Step | None) -> None:
        self._run = run
        self._step = step
        self._requeues_step = requeues_step
        self._counts: Counter[str] = Counter()
        self._notes: list[str] = []
        self._requeues: dict[Step, Requeue] = {}
        self._status = DONE
        self._error: JourneymanError | None = None

    def record_plan(self, plan: Plan) -> None:
        """Record what was decided, requeues included: they are sent whatever happens to the plan's chains."""
        for note in plan.notes:
            self.note(note)
        for line in plan.logs:
            self._run.telemetry.log(line.level, line.message, **line.fields)
        for event in plan.events:
            self._run.telemetry.event(event)
        self.observe(plan.observations)
        for what, number in plan.counts:
            self.count(what, number)
        for failure in plan.failures:
            self.record_error(failure.subject, failure.error)
        for action in plan.actions:
            if isinstance(action, Requeue):
                self.requeue(action.step, action.at, action.reason)

    def record_chain(self, chain: Chain) -> None:
        """Record what is true once the whole chain has been carried out."""
        for event in chain.events:
            self._run.telemetry.event(event)
        self.observe(chain.observations)

    def note(self, text: str, message: str = "", *, level: str = "info", **fields: Any) -> None:
        """Add a line to the outcome; the log gets `message` with its fields instead, if it is given."""
        self._notes.append(text)
        self._run.telemetry.log(level, message or text, **fields)

    def count(self, what: str, number: int = 1) -> None:
        """Add to the outcome's counts."""
        self._counts[what] += number

    def event(self, event: Event) -> None:
        """Record a Kubernetes Event."""
        self._run.telemetry.event(event)

    def observe(self, observations: Iterable[Observation]) -> None:
        """Record metric samples."""
        for observation in observations:
            self._run.telemetry.observe(observation)

    def requeue(self, step: Step, at: datetime, reason: str) -> None:
        """Let `step` run at `at`; of several requeues the earliest is sent. One that is far off is left to the sweep."""
        if at - self._run.clock.now() > FURTHEST_REQUEUE:
            return
        known = self._requeues.get(step)
        if known is None or at < known.at:
            self._requeues[step] = Requeue(step=step, at=at, reason=reason)

    # -- errors -------------------------------------------------------------------------------------------------

    def record_conflict(self, subject: str, error: JourneymanError) -> None:
        """Record that an object changed since it was read; the step runs again and decides on what is there then."""
        self.count("conflicts")
        self._run.telemetry.log(
            "debug", "the object changed since it was read; deciding again", subject=subject, error=str(error)
        )
        self._requeue_own(RETRY_AFTER, f"{subject} changed since it was read")

    def record_error(self, subject: str, error: JourneymanError) -> None:
        """Record an error that stops one chain; the step runs again if it may pass."""
        self.count("errors")
        self._notes.append(f"{subject}: {error}")
        level = "warning" if error.retryable else "error"
        self._run.telemetry.log(level, error.message, subject=subject, error=type(error).__name__, **log_fields(error))
        emit_error(self._run, self._step, error)
        if error.retryable:
            self._requeue_own(_retry_after(error), f"{subject}: {error.message}")

    def record_busy(self, error: LeaseLostError) -> None:
        """Record that another run holds the step's Lease; the message that triggered this run is delivered again."""
        self._status, self._error = BUSY, error
        self._run.telemetry.log("info", error.message, **log_fields(error))

    def record_partial(self, error: JourneymanError) -> None:
        """Record that the run stops before its work is done; the step runs again at once, or when it may help."""
        self._status, self._error = PARTIAL, error
        self._run.telemetry.log("info", error.message, **log_fields(error))
        self._requeue_own(timedelta(0) if isinstance(error, DeadlineError) else _retry_after(error), error.message)

    def _requeue_own(self, wait: timedelta, reason: str) -> None:
        if self._requeues_step is not None:
            self.requeue(self._requeues_step, self._run.clock.now() + wait, reason)

    # -- the end ------------------------------------------------------------------------------------------------

    def send_requeues(self) -> None:
        """Send the requeues. Losing them is harmless: the sweep derives all due work from the cluster."""
        now = self._run.clock.now()
        messages = [
            Message(cluster=self._run.cluster, step=r.step, reason=r.reason, at=r.at if r.at > now else None)
            for r in self.requeues
        ]
        if not messages:
            return
        try:
            self._run.queue.send(messages)
        except JourneymanError as error:
            self._run.telemetry.log("warning", f"requeues were not sent: {error.message}", **log_fields(error))

    @property
    def requeues(self) -> tuple[Requeue, ...]:
        """The requeues so far, at most one for each step, by step."""
        return tuple(
            self._delayed(requeue) for _, requeue in sorted(self._requeues.items(), key=lambda kv: kv[0].value)
        )

    def _delayed(self, requeue: Requeue) -> Requeue:
        """Delay the requeue of a run that met an error: one that never passes would keep the step running without pause."""
        now = self._run.clock.now()
        if requeue.step is not self._requeues_step or requeue.at > now or not self._counts["errors"]:
            return requeue
        return replace(requeue, at=now + RETRY_ERROR_AFTER)

    def outcome(self) -> Outcome:
        """Return what came of the run."""
        return Outcome(
            step=self._step,
            cluster=self._run.cluster,
            status=self._status,
            notes=tuple(self._notes),
            counts=dict(sorted(self._counts.items())),
            requeues=self.requeues,
            error=self._error,
        )


def emit_error(run: RunContext, step: Step, error: JourneymanError) -> None:
    """Count an error that stopped a run or a part of it; emit an Event if a person has to act."""
    labels = {"controller": step.value, "error": type(error).__name__}
    run.telemetry.observe(Observation(name="journeyman_errors_total", labels=labels))
    if event := event_for_operator(step, error):
        run.telemetry.event(event)


def event_for_operator(step: Step, error: JourneymanError) -> Event | None:
    """Return the Event for an error that only a person can mend: a missing permission or CustomResourceDefinition.

    It goes on the namespace `default`, beside those of nodes, as the object it concerns cannot be read or does not exist.
    There is one for each permission and kind; None for other errors.
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
