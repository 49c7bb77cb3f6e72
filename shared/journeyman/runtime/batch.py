"""Runs one step for the triggers of one invocation: once per cluster, clusters in parallel; and reads SQS batches.

Messages only say that a step must run, so several for one cluster in a batch are one run, and their order does not matter.
Each cluster's runs are sequential. A cluster that does not answer takes no time from the others, and a run that has not
ended shortly before the platform ends the process counts as failed.

A failed record is delivered again after its visibility timeout, and ends in the dead-letter queue when its retries are used
up. One that can never be read is retried at once: while SQS waits for a failed message, its whole group in a FIFO queue
stands still. Records are reported one by one, not from the first failure on as Powertools' FIFO processor does: that would
carry good messages behind a bad one of their group into the dead-letter queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

from msgspec import Struct

from journeyman.core.lifecycle.interruption import InterruptionKind
from journeyman.core.plan import Step
from journeyman.errors import (
    ConfigurationError,
    DeadlineError,
    JourneymanError,
    KubeUnavailableError,
    LeaseLostError,
    MalformedEventError,
    UnknownClusterError,
)
from journeyman.events import parse_trigger
from journeyman.ports import Interruption, Trigger
from journeyman.runtime.composition import Context, Runtime
from journeyman.steps.context import BUSY, Outcome, RunContext
from journeyman.steps.recorder import emit_error

StepFunction = Callable[[RunContext, Trigger], Outcome]
LambdaEvent = Mapping[str, Any]
Result = Outcome | Exception

CLUSTERS_AT_ONCE = 16
"""Clusters that run in parallel. They wait for answers most of the time."""
ANSWER_SECONDS = 0.5
"""So long before its end a process must start to answer; runs stop earlier, by themselves (`composition.FLUSH_MARGIN`)."""
FAILED = "failed"


class StepRunner:
    """Runs one step in one invocation.

    Args:
        runtime: The clusters served here.
        step: Which step it is.
        function: The step.
        context: The platform's; its remaining time is the deadline of all runs.
    """

    def __init__(self, runtime: Runtime, step: Step, function: StepFunction, context: Context) -> None:
        self._runtime = runtime
        self._step = step
        self._function = function
        self._context = context

    def accept(self, trigger: Trigger) -> tuple[Trigger, ...]:
        """Return one trigger for each cluster that must run; none for an event that concerns no cluster.

        Raises:
            MalformedEventError: The message is for another step.
            UnknownClusterError: It names a cluster not served here.
        """
        if trigger.step is not self._step:
            raise MalformedEventError(
                f"a message for {trigger.step.value} arrived at {self._step.value}",
                id=trigger.id,
                trigger=type(trigger).__name__,
                to_do="send it to its own step's queue",
            )
        addressed = self._runtime.addressed(trigger)
        is_no_op = isinstance(trigger, Interruption) and trigger.kind is InterruptionKind.NO_OP
        return () if is_no_op else addressed

    def run(self, triggers: Sequence[Trigger]) -> list[Result]:
        """Run the step for each trigger, once for those of one cluster; return the results in the triggers' order.

        Interruptions are run one by one, as their instances differ. A cluster that fails does not stop the others. A run
        that goes on after the time to answer is fenced by its Lease, like one that the platform has ended.
        """
        by_cluster: dict[str, dict[str, Trigger]] = {}
        for trigger in triggers:
            by_cluster.setdefault(trigger.cluster, {}).setdefault(self._key(trigger), trigger)
        results: dict[tuple[str, str], Result] = {}
        if len(by_cluster) == 1:
            for runs in by_cluster.values():
                self._run_cluster(runs, results)
        elif by_cluster:
            pool = ThreadPoolExecutor(max_workers=min(len(by_cluster), CLUSTERS_AT_ONCE))
            running = {c: pool.submit(self._run_cluster, runs, results) for c, runs in by_cluster.items()}
            seconds = self._context.get_remaining_time_in_millis() / 1000 - ANSWER_SECONDS
            wait(running.values(), timeout=max(seconds, 0))
            pool.shutdown(wait=False, cancel_futures=True)
            for cluster, future in running.items():
                if not future.done() or future.cancelled():
                    self._give_up(cluster, by_cluster[cluster], results)
        return [results[trigger.cluster, self._key(trigger)] for trigger in triggers]

    def _run_cluster(self, runs: Mapping[str, Trigger], results: dict[tuple[str, str], Result]) -> None:
        """Run the step for one cluster, once for each of `runs`; one that did not answer is not called again."""
        unavailable: KubeUnavailableError | None = None
        for key, trigger in runs.items():
            result: Result
            if unavailable is not None:
                results.setdefault((trigger.cluster, key), unavailable)
                continue
            try:
                with self._runtime.invocation(trigger, self._context) as run, _emitted(run, self._step):
                    result = self._checked(self._function(run, trigger))
            except Exception as error:  # noqa: BLE001 - logged, and returned for its record after the other clusters ran
                result = self._failure(error, trigger)
                unavailable = error if isinstance(error, KubeUnavailableError) else None
            results.setdefault((trigger.cluster, key), result)

    def _key(self, trigger: Trigger) -> str:
        return trigger.id if self._step is Step.INTERRUPT else ""

    def _checked(self, outcome: Outcome) -> Outcome:
        """Return the outcome; a busy run's message comes back, but for a sweep's, which the next sweep makes up for."""
        if outcome.status == BUSY and self._step is not Step.SWEEP:
            raise LeaseLostError("another run holds the step; the message comes back later", cluster=outcome.cluster)
        return outcome

    def _failure(self, error: Exception, trigger: Trigger) -> Result:
        """Log the error; a wrong setting is acknowledged where the sweep tries again each minute."""
        self._runtime.log_error(error, controller=self._step.value, correlation_id=trigger.id, on=trigger.cluster)
        if isinstance(error, ConfigurationError) and self._step is not Step.INTERRUPT:
            return Outcome(step=trigger.step, cluster=trigger.cluster, status=FAILED, notes=(str(error),))
        return error

    def _give_up(self, cluster: str, runs: Mapping[str, Trigger], results: dict[tuple[str, str], Result]) -> None:
        error = DeadlineError("the run did not end in time; its messages come back", cluster=cluster)
        self._runtime.log_error(error, controller=self._step.value)
        for key in runs:
            results.setdefault((cluster, key), error)


@contextmanager
def _emitted(run: RunContext, step: Step) -> Iterator[None]:
    """Emit the error that ends a run while its cluster's telemetry is still open."""
    try:
        yield
    except LeaseLostError:
        raise
    except JourneymanError as error:
        emit_error(run, step, error)
        raise


@contextmanager
def logged_once(runtime: Runtime) -> Iterator[None]:
    """Log what is raised inside, and raise it on."""
    try:
        yield
    except Exception as error:
        runtime.log_error(error)
        raise


class SqsBatch(Struct):
    """The records of one batch: the trigger of each, and why others failed, by message id."""

    records: Sequence[Mapping[str, Any]]
    triggers: dict[str, Trigger]
    failures: dict[str, Exception]

    @classmethod
    def read(cls, runtime: Runtime, event: LambdaEvent) -> SqsBatch:
        """Parse every record; those that cannot be read are logged, and have failed."""
        batch = cls(records=event["Records"], triggers={}, failures={})
        for record in batch.records:
            trigger = _parsed(runtime, record)
            if isinstance(trigger, MalformedEventError):
                batch.failures[record["messageId"]] = trigger
            else:
                batch.triggers[record["messageId"]] = trigger
        return batch

    def answer(self, runtime: Runtime) -> dict[str, Any]:
        """Return which records failed (`batchItemFailures`); those that can never succeed are retried at once."""
        hopeless: dict[str, list[str]] = {}
        for record in self.records:
            failed = isinstance(self.failures.get(record["messageId"]), MalformedEventError | UnknownClusterError)
            if failed and "receiptHandle" in record:  # an event that was typed by hand may lack it
                hopeless.setdefault(record["eventSourceARN"], []).append(record["receiptHandle"])
        try:
            for queue, receipts in hopeless.items():  # in fact one: a batch comes from one queue
                runtime.queue.retry_now(queue, receipts)
        except JourneymanError as error:
            runtime.log_error(error)
        message_ids = [record["messageId"] for record in self.records if record["messageId"] in self.failures]
        return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in message_ids]}


def _parsed(runtime: Runtime, record: Mapping[str, Any]) -> Trigger | MalformedEventError:
    try:
        with logged_once(runtime):
            return parse_trigger(record)
    except MalformedEventError as error:
        return error
