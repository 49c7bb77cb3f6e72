"""What one run tells: people, in log lines, notes, Events and metrics; and the steps, in requeues sent as it ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec.structs import replace

from journeyman.core.plan import Chain, Observation, Plan, Requeue, Step
from journeyman.errors import (
    ConflictError,
    DeadlineError,
    JourneymanError,
    LeaseLostError,
    RateLimitedError,
    TooManyRequestsError,
)
from journeyman.ports import Message
from journeyman.steps.context import BUSY, DONE, PARTIAL, Outcome, RunContext
from journeyman.steps.mending import tell_error

RETRY_AFTER: Final = timedelta(seconds=1)
RETRY_ERROR_AFTER: Final = timedelta(seconds=5)
FURTHEST_REQUEUE: Final = timedelta(minutes=15)  # what a delay queue holds; what is due later, the sweep finds


class Report:
    """One run's word: what was decided, what came of it, who is to look again and when."""

    def __init__(self, run: RunContext, step: Step) -> None:
        self.run = run
        self.step = step
        self._counts: Counter[str] = Counter()
        self._notes: list[str] = []
        self._requeues: dict[Step, Requeue] = {}
        self._status = DONE

    def tell(self, plan: Plan) -> None:
        """Say what was decided, and take note of its requeues: they come whatever happens to its chains."""
        for note in plan.notes:
            self.note(note)
        for event in plan.events:
            self.run.telemetry.event(event)
        self.observe(plan.observations)
        for action in plan.actions:
            if isinstance(action, Requeue):
                self.requeue(action.step, action.at, action.reason)

    def note(self, text: str, message: str = "", *, level: str = "info", **fields: Any) -> None:
        """One line for a person in the outcome; the log gets `message` and its fields, if they say the same better."""
        self._notes.append(text)
        self.run.telemetry.log(level, message or text, **fields)

    def count(self, what: str, number: int = 1) -> None:
        """Add to the outcome's counts."""
        self._counts[what] += number

    def requeue(self, step: Step, at: datetime, reason: str) -> None:
        """Ask for a run of `step` at `at`; of several, the earliest is sent. One that is far off is left to the sweep."""
        if at - self.run.clock.now() > FURTHEST_REQUEUE:
            return
        known = self._requeues.get(step)
        if known is None or at < known.at:
            self._requeues[step] = Requeue(step=step, at=at, reason=reason)

    def explain(self, chain: Chain) -> None:
        """Tell what is true now that all of a chain has been carried out."""
        for event in chain.events:
            self.run.telemetry.event(event)
        self.observe(chain.observations)

    def observe(self, observations: Iterable[Observation]) -> None:
        """Metric samples."""
        for observation in observations:
            self.run.telemetry.observe(observation)

    # -- what goes wrong ----------------------------------------------------------------------------------------

    def moved_on(self, subject: str, error: JourneymanError) -> None:
        """Somebody else was quicker: all is decided again, on what there is then."""
        self.count("conflicts")
        self.run.telemetry.log("debug", "the cluster moved on, deciding again", subject=subject, error=str(error))
        self.requeue(self.step, self.run.clock.now() + RETRY_AFTER, f"{subject} changed meanwhile")

    def failed(self, subject: str, error: JourneymanError) -> None:
        """Report an error that stops one chain; one that may pass leaves a requeue."""
        self.count("errors")
        self._notes.append(f"{subject}: {error}")
        level = "warning" if error.retryable else "error"
        self.run.telemetry.log(level, error.message, subject=subject, error=type(error).__name__, **_fields(error))
        tell_error(self.run, self.step, error)
        if error.retryable:
            at = self.run.clock.now() + _retry_after(error)
            self.requeue(self.step, at, f"{subject}: {error.message}")

    # -- the end ------------------------------------------------------------------------------------------------

    def busy(self, error: LeaseLostError) -> None:
        """Another run holds the step: nothing more is done here, and the message that woke us comes back."""
        self._status = BUSY
        self.run.telemetry.log("info", error.message, **_fields(error))

    def partial(self, error: JourneymanError) -> None:
        """The run stops before its work is done: come back at once, or when it may help."""
        self._status = PARTIAL
        self.run.telemetry.log("info", error.message, **_fields(error))
        wait = timedelta(0) if isinstance(error, DeadlineError) else _retry_after(error)
        self.requeue(self.step, self.run.clock.now() + wait, error.message)

    def send_requeues(self) -> None:
        """Hand the requeues over. Losing them is harmless: the sweep derives all due work again."""
        now = self.run.clock.now()
        messages = [
            Message(cluster=self.run.cluster, step=w.step, reason=w.reason, at=w.at if w.at > now else None)
            for w in self.requeues
        ]
        if not messages:
            return
        try:
            self.run.queue.send(messages)
        except JourneymanError as error:
            self.run.telemetry.log("warning", f"requeues were not sent: {error.message}", **_fields(error))

    @property
    def requeues(self) -> tuple[Requeue, ...]:
        """The requeues so far, at most one for each step, by step."""
        return tuple(
            self._paused(requeue) for _, requeue in sorted(self._requeues.items(), key=lambda item: item[0].value)
        )

    def _paused(self, requeue: Requeue) -> Requeue:
        """A run that met an error does not come back at once: what fails for good would keep it running without end."""
        now = self.run.clock.now()
        if requeue.step is not self.step or requeue.at > now or not self._counts["errors"]:
            return requeue
        return replace(requeue, at=now + RETRY_ERROR_AFTER)

    def outcome(self) -> Outcome:
        """What came of it."""
        return Outcome(
            step=self.step,
            cluster=self.run.cluster,
            status=self._status,
            notes=tuple(self._notes),
            counts=dict(sorted(self._counts.items())),
            requeues=self.requeues,
        )


def _retry_after(error: JourneymanError) -> timedelta:
    if isinstance(error, RateLimitedError | TooManyRequestsError):
        return timedelta(seconds=error.retry_after_seconds)
    return RETRY_AFTER if isinstance(error, ConflictError) else RETRY_ERROR_AFTER


def _fields(error: JourneymanError) -> dict[str, str]:
    return {key: str(value) for key, value in error.context.items()}
