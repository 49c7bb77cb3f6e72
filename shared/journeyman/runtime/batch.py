"""Runs a step for what a queue or a schedule delivers: parse, once for each cluster, report what failed.

Messages of ours say "look again", so their order means nothing beyond one runner at a time, and several for one
cluster in a batch are served by one run. Clusters are run side by side, each one's runs in order: one that does not answer
takes no time from the others, and what has not ended shortly before the platform ends the process is answered as failed.

A failed record comes back after its visibility timeout and ends in
the dead-letter queue when its retries are used up. A message that will never be understood is retried at once: while a
failed one is waited for, its whole group in a FIFO queue stands still.

The queues use Powertools' plain BatchProcessor, not its FIFO one: that fails whatever stands behind a bad message of
the same group, and would drag good requeues into the dead-letter queue with it. A step that fails fails all its
cluster's records anyway, since they share one run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Any

from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from journeyman.core.lifecycle.interruption import InterruptionKind, dealt_with, received
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
from journeyman.ports import Interruption, Message, RequeueDue, Trigger
from journeyman.runtime.composition import Context, Runtime
from journeyman.steps.context import BUSY, Outcome, RunContext
from journeyman.steps.recorder import emit_error

StepFunction = Callable[[RunContext, Trigger], Outcome]
Event = Mapping[str, Any]
SIDE_BY_SIDE = 16
"""Clusters that are run at once. They wait for answers most of the time."""
ANSWER_SECONDS = 0.5
"""So long before its end a process must begin to answer; runs stop earlier, by themselves (`composition.FLUSH_MARGIN`)."""
FAILED = "failed"


@contextmanager
def reported(runtime: Runtime) -> Iterator[None]:
    """Log what is raised inside, once, and raise it on."""
    try:
        yield
    except Exception as error:
        runtime.log_error(error)
        raise


class StepRunner:
    """One step in one invocation. What it did is remembered, so that a cluster is run once for a whole batch.

    Interruption notices name no cluster, and most are about nobody's nodes: they are counted here, once for all clusters.

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
        self._done: dict[tuple[str, str], Outcome | Exception] = {}
        self._silent: dict[str, KubeUnavailableError] = {}

    def run_ahead(self, triggers: Iterable[Trigger]) -> None:
        """Run all that a batch asks for; `run` then only tells what became of each. What is refused is left to it."""
        wanted: list[Trigger] = []
        for trigger in triggers:
            with suppress(JourneymanError):
                wanted += self._accepted(trigger)
        self._run_each(wanted)

    def run(self, trigger: Trigger) -> tuple[Outcome, ...]:
        """Run the step for each cluster the trigger is about. A cluster that fails does not stop the others.

        Returns:
            What each run did, by cluster; nothing for an event that nobody needs to act on.

        Raises:
            MalformedEventError: The message is for another step.
            UnknownClusterError: It names a cluster not served here.
            Exception: The first run's failure, if redelivery can help. It has been logged.
        """
        with reported(self._runtime):
            accepted = self._accepted(trigger)
        if isinstance(trigger, Interruption):
            self._runtime.observe(*received(trigger.kind.value))
        results = self._run_each(accepted)
        for result in results:
            if isinstance(result, Exception):
                raise result
        if isinstance(trigger, Interruption):
            self._runtime.observe(*dealt_with(trigger.time, self._runtime.clock.now()))
        return tuple(result for result in results if isinstance(result, Outcome))

    def _accepted(self, trigger: Trigger) -> tuple[Trigger, ...]:
        """One trigger for each cluster that is to be run; none for an event that means nothing to us."""
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

    def _run_each(self, triggers: Sequence[Trigger]) -> list[Outcome | Exception]:
        """What became of each, in their order; what was not run before is run now."""
        by_cluster: dict[str, list[Trigger]] = {}
        for trigger in triggers:
            if self._key(trigger) not in self._done:
                by_cluster.setdefault(trigger.cluster, []).append(trigger)
        if len(by_cluster) < 2:
            self._run_in_turn(triggers)
        else:
            self._run_side_by_side(by_cluster)
        return [self._done[self._key(trigger)] for trigger in triggers]

    def _run_side_by_side(self, by_cluster: Mapping[str, Sequence[Trigger]]) -> None:
        """Return when all have ended, or when it is time to answer.

        A run that goes on after that is as one that the platform has ended: fenced by its Lease, and safe to repeat.
        """
        pool = ThreadPoolExecutor(max_workers=min(len(by_cluster), SIDE_BY_SIDE))
        running = [pool.submit(self._run_in_turn, triggers) for triggers in by_cluster.values()]
        wait(running, timeout=max(self._context.get_remaining_time_in_millis() / 1000 - ANSWER_SECONDS, 0))
        pool.shutdown(wait=False, cancel_futures=True)
        for future, triggers in zip(running, by_cluster.values(), strict=True):
            if future.done() and not future.cancelled():
                future.result()
            else:
                self._give_up(triggers)

    def _give_up(self, triggers: Sequence[Trigger]) -> None:
        cluster = triggers[0].cluster
        error = DeadlineError("the run did not end in time; its messages come back", cluster=cluster)
        self._runtime.log_error(error, controller=self._step.value)
        for trigger in triggers:
            self._done.setdefault(self._key(trigger), error)

    def _run_in_turn(self, triggers: Sequence[Trigger]) -> None:
        for trigger in triggers:
            if self._key(trigger) not in self._done:
                silent = self._silent.get(trigger.cluster)  # whoever did not answer is not waited for again
                self._done[self._key(trigger)] = silent or self._attempt(trigger)

    def _key(self, trigger: Trigger) -> tuple[str, str]:
        """The interruption step runs for each event, whose instances differ; the others once for a cluster."""
        return (trigger.cluster, trigger.id if self._step is Step.INTERRUPT else "")

    def _attempt(self, trigger: Trigger) -> Outcome | Exception:
        try:
            with self._runtime.invocation(trigger, self._context) as run:
                return self._checked(self._told(run, trigger), trigger)
        except Exception as error:  # noqa: BLE001 - logged, and raised for its record after the other clusters ran
            self._runtime.log_error(error, controller=self._step.value, correlation_id=trigger.id, on=trigger.cluster)
            if isinstance(error, KubeUnavailableError):
                self._silent[trigger.cluster] = error
            return self._verdict(error, trigger)

    def _told(self, run: RunContext, trigger: Trigger) -> Outcome:
        """Run the step; what ends it is told while its cluster can still be told of it."""
        try:
            return self._function(run, trigger)
        except JourneymanError as error:
            if not isinstance(error, LeaseLostError):
                emit_error(run, self._step, error)
            raise

    def _checked(self, outcome: Outcome, trigger: Trigger) -> Outcome:
        """A sweep that finds another one under way has nothing to come back for; a queue's message has."""
        if outcome.status == BUSY and self._step is not Step.SWEEP:
            raise LeaseLostError("another run holds the step; the message comes back later", cluster=trigger.cluster)
        return outcome

    def _verdict(self, error: Exception, trigger: Trigger) -> Outcome | Exception:
        """A wrong setting is acknowledged where the sweep asks again each minute; all else is delivered again."""
        if isinstance(error, ConfigurationError) and self._step is not Step.INTERRUPT:
            return Outcome(step=trigger.step, cluster=trigger.cluster, status=FAILED, notes=(str(error),))
        return error


def run_records(
    runtime: Runtime,
    handle: Callable[[Trigger], object],
    event: Event,
    *,
    ahead: Callable[[Iterable[Trigger]], None] = lambda _: None,
) -> dict[str, Any]:
    """Handle each record of an SQS batch; answers which failed (`batchItemFailures`), all of them if need be.

    Args:
        runtime: Logs, and lets what is hopeless be retried at once.
        handle: Handles one trigger; raises if its record is to come back.
        event: The platform's.
        ahead: Is given all triggers before the first is handled.
    """
    read = {record["messageId"]: _read(record) for record in event["Records"]}
    ahead(trigger for trigger in read.values() if isinstance(trigger, Trigger))
    hopeless: dict[str, list[str]] = {}

    def record_handler(record: SQSRecord) -> None:
        try:
            trigger = read[record.message_id]
            if isinstance(trigger, MalformedEventError):
                with reported(runtime):
                    raise trigger
            handle(trigger)
        except (MalformedEventError, UnknownClusterError):
            hopeless.setdefault(record["eventSourceARN"], []).append(record["receiptHandle"])
            raise

    processor = BatchProcessor(event_type=EventType.SQS, raise_on_entire_batch_failure=False)
    answer = process_partial_response(event=dict(event), record_handler=record_handler, processor=processor)
    _retry_now(runtime, hopeless)
    return dict(answer)


def _read(record: Event) -> Trigger | MalformedEventError:
    try:
        return parse_trigger(record)
    except MalformedEventError as error:
        return error


def _retry_now(runtime: Runtime, receipts_by_queue: Mapping[str, Sequence[str]]) -> None:
    """Let what nobody understands use up its retries, so that it is out of the way of those behind it."""
    try:
        for queue, receipts in receipts_by_queue.items():  # in fact one: a batch comes from one queue
            runtime.queue.retry_now(queue, receipts)
    except JourneymanError as error:
        runtime.log_error(error)


class DueRequeues:
    """What comes out of the delay queue: handed to its queue if it is due, put back if it woke too early.

    The sweep has no queue of its own, its requeues are run at once. Requeues alike are handed on once for a batch.
    """

    def __init__(self, runtime: Runtime, sweep: StepRunner) -> None:
        self._runtime = runtime
        self._sweep = sweep
        self._sent: set[Message] = set()

    def handle(self, trigger: Trigger) -> None:
        """Hand one on.

        Raises:
            UnknownClusterError: It names a cluster not served here.
            CloudProviderError: It could not be handed over; the record comes back.
        """
        at = trigger.at if isinstance(trigger, RequeueDue) else None
        due = at is None or at <= self._runtime.clock.now()
        if trigger.step is Step.SWEEP and due:
            self._sweep.run(trigger)
            return
        with reported(self._runtime):
            for one in self._runtime.addressed(trigger):
                self._hand_on(Message(cluster=one.cluster, step=one.step, reason=one.reason, at=None if due else at))

    def _hand_on(self, message: Message) -> None:
        if message not in self._sent:
            self._runtime.queue.send([message])
            self._sent.add(message)
