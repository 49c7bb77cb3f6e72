"""Runs one step for the triggers of one invocation, once per cluster and clusters in parallel.

A message only starts a step, so several messages for one cluster in a batch are one run, and their order does not matter.
The runs of one cluster are sequential. A cluster that does not respond does not delay the others. A run that has not ended
shortly before the platform ends the process counts as failed.

While the function lives, it holds the batch's messages (`MessageBatch.held`); those of a function that crashed are delivered again within
seconds. A failed message is delivered again within 30 seconds (`retry_seconds`), because it blocks its message group of a FIFO queue until
then, and goes to the dead-letter queue when its receives are used up. A message that can never succeed, because it does not
parse or names an unknown cluster, goes there at once.

Reading a batch and answering it depend on the platform: `lambda_entry.SqsBatch`, `fc_entry.EventStreamBatch`,
`fgs_entry.InvocationBatch`.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.lifecycle.interruption import (
    InterruptionKind,
    deleted_message_metrics,
    received_message_metrics,
)
from journeyman.core.plan import Observation, Step
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
from journeyman.ports import EVERY_CLUSTER, AlarmChanged, Interruption, Message, ReceivedMessage, Trigger
from journeyman.runtime.composition import Context, Runtime, is_routed
from journeyman.steps.context import BUSY, Outcome, RunContext
from journeyman.steps.recorder import emit_error, error_metric

StepFunction = Callable[[RunContext, Trigger], Outcome]
Result = Outcome | Exception
Answer = dict[str, Any]

MAX_PARALLEL_CLUSTERS = 16
"""Clusters that run in parallel. They wait for responses most of the time."""
RESPONSE_SECONDS = 0.5
"""The time reserved for the function's response. Runs stop earlier by themselves (`composition.FLUSH_MARGIN`)."""
FAILED = "failed"


class StepRunner:
    """Runs one step in one invocation.

    Args:
        runtime: The registered clusters and their adapters.
        step: The step's name.
        function: The step.
        context: The platform's invocation context; its remaining time is the deadline of all runs.
        routes: The triggers of interruptions by cluster (`Runtime.route`), by id.
    """

    def __init__(
        self,
        runtime: Runtime,
        step: Step,
        function: StepFunction,
        context: Context,
        routes: Mapping[str, tuple[Trigger, ...]] | None = None,
    ) -> None:
        self._routes = routes or {}
        self._runtime = runtime
        self._step = step
        self._function = function
        self._context = context

    def accept(self, trigger: Trigger) -> tuple[Trigger, ...]:
        """Return one trigger for each cluster for which the step must run; none for an event without effect.

        Raises:
            MalformedEventError: The trigger is for another step.
            UnknownClusterError: It names a cluster that is not registered here.
        """
        if trigger.step is not self._step:
            raise MalformedEventError(
                f"a message for {trigger.step.value} arrived at {self._step.value}",
                id=trigger.id,
                trigger=type(trigger).__name__,
                to_do="send it to its own step's queue",
            )
        if trigger.cluster == EVERY_CLUSTER and trigger.id in self._routes:
            return self._routes[trigger.id]
        triggers = self._runtime.triggers_by_cluster(trigger)
        is_no_op = isinstance(trigger, Interruption) and trigger.kind is InterruptionKind.NO_OP
        return () if is_no_op else triggers

    def run(self, triggers: Sequence[Trigger]) -> list[Result]:
        """Run the step once for each cluster; return the results in the order of the triggers.

        A cluster's run continues the shortest chain of its messages. Each interruption has its own run, because their instances
        differ. A cluster that fails does not stop the others. A run that is still going when the function responds can write only as
        long as it holds its Lease.
        """
        by_cluster: dict[str, dict[str, Trigger]] = {}
        for trigger in triggers:
            runs, key = by_cluster.setdefault(trigger.cluster, {}), self._key(trigger)
            runs[key] = _merged(runs[key], trigger) if key in runs else trigger
        results: dict[tuple[str, str], Result] = {}
        if len(by_cluster) == 1:
            for runs in by_cluster.values():
                self._run_cluster(runs, results)
        elif by_cluster:
            pool = ThreadPoolExecutor(max_workers=MAX_PARALLEL_CLUSTERS)
            ordered = self._runtime.in_order_of_reachability(by_cluster)
            running = {c: pool.submit(self._run_cluster, by_cluster[c], results) for c in ordered}
            seconds = self._context.get_remaining_time_in_millis() / 1000 - RESPONSE_SECONDS
            wait(running.values(), timeout=max(seconds, 0))
            pool.shutdown(wait=False, cancel_futures=True)
            for cluster, future in running.items():
                if not future.done() or future.cancelled():
                    self._give_up(cluster, by_cluster[cluster], results)
        return [results[trigger.cluster, self._key(trigger)] for trigger in triggers]

    def _run_cluster(self, runs: Mapping[str, Trigger], results: dict[tuple[str, str], Result]) -> None:
        """Run the step for one cluster, once for each of `runs`; skip the rest once its API server does not respond."""
        unavailable: KubeUnavailableError | None = None
        for key, trigger in runs.items():
            result: Result
            is_counted = False
            if unavailable is not None:
                results.setdefault((trigger.cluster, key), unavailable)
                continue
            try:
                with self._runtime.invocation(trigger, self._context) as run, _emit_errors(run, self._step):
                    is_counted = True
                    result = self._raise_if_busy(self._function(run, trigger))
            except Exception as error:  # noqa: BLE001 - logged, and returned for its record after the other clusters ran
                result = self._failure(error, trigger, is_counted=is_counted)
                unavailable = error if isinstance(error, KubeUnavailableError) else None
            ended_by = result.error if isinstance(result, Outcome) else result
            is_reachable = not isinstance(ended_by, KubeUnavailableError)
            self._runtime.record_reachability(trigger.cluster, is_reachable=is_reachable)
            results.setdefault((trigger.cluster, key), result)

    def _key(self, trigger: Trigger) -> str:
        return trigger.id if self._step is Step.INTERRUPT else ""

    def _raise_if_busy(self, outcome: Outcome) -> Outcome:
        """Return the outcome. Raises LeaseLostError after a busy run, so that the queue delivers its message again."""
        if outcome.status == BUSY and self._step is not Step.SWEEP:  # the next sweep replaces a sweep
            context = outcome.error.context if outcome.error is not None else {}
            raise LeaseLostError(
                "another run holds the Lease; the queue delivers the message again",
                **{**context, "cluster": outcome.cluster},
            )
        return outcome

    def _failure(self, error: Exception, trigger: Trigger, *, is_counted: bool) -> Result:
        """Log the error and return it; after a wrong setting return an Outcome, because the sweep tries again each minute.

        `is_counted` is whether the run counts its error; an error before it starts, such as a wrong setting, is counted here.
        """
        if not is_counted:
            self._runtime.observe(error_metric(self._step, error))
        self._runtime.log_error(error, controller=self._step.value, correlation_id=trigger.id, on=trigger.cluster)
        if isinstance(error, ConfigurationError) and self._step is not Step.INTERRUPT:
            return Outcome(step=trigger.step, cluster=trigger.cluster, status=FAILED, notes=(str(error),))
        return error

    def _give_up(self, cluster: str, runs: Mapping[str, Trigger], results: dict[tuple[str, str], Result]) -> None:
        error = DeadlineError("the run did not end in time; the queue delivers its messages again", cluster=cluster)
        self._runtime.log_error(error, controller=self._step.value)
        for key in runs:
            results.setdefault((cluster, key), error)


def _merged(one: Trigger, other: Trigger) -> Trigger:
    """Return the trigger with fewer hops, the first if they are equal; it is due when the later of both is."""
    shorter = other if other.hops < one.hops else one
    return replace(shorter, at=max((t.at for t in (one, other) if t.at is not None), default=None))


@contextmanager
def _emit_errors(run: RunContext, step: Step) -> Iterator[None]:
    """Emit the error that ends a run while its cluster's telemetry is still open."""
    try:
        yield
    except LeaseLostError:
        raise
    except JourneymanError as error:
        emit_error(run, step, error)
        raise


@contextmanager
def log_errors(runtime: Runtime) -> Iterator[None]:
    """Log an error that is raised inside the block, and raise it again."""
    try:
        yield
    except Exception as error:
        runtime.log_error(error)
        raise


@contextmanager
def logged(runtime: Runtime) -> Iterator[None]:
    """Log an error that is raised inside the block, and go on after the block."""
    try:
        yield
    except JourneymanError as error:
        runtime.log_error(error)


class MessageBatch(Struct):
    """The messages of one invocation, with the trigger or the failure of each by message id."""

    runtime: Runtime
    messages: Sequence[ReceivedMessage]
    triggers: dict[str, Trigger] = field(default_factory=dict)
    failures: dict[str, Exception] = field(default_factory=dict)

    def parse(self, payloads: Iterable[Mapping[str, Any]]) -> None:
        """Parse the payload of each message, in order; a message that does not parse is logged and becomes a failure."""
        for message, payload in zip(self.messages, payloads, strict=True):
            trigger = _parse(self.runtime, payload)
            if isinstance(trigger, MalformedEventError):
                self.failures[message.id] = trigger
            else:
                self.triggers[message.id] = trigger

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the batch's messages inside the block, so that a crash in it holds up their message groups for seconds only."""
        with ExitStack() as holds:
            for messages in _by_queue(self.messages):
                holds.enter_context(self.runtime.queue.hold(messages))
            yield

    def repeat_alone(self, message_id: str, failed: Sequence[Trigger]) -> bool:
        """Send a message for each cluster whose run of a message failed, since the others succeeded; return whether that worked."""
        if isinstance(failed[0], AlarmChanged):  # a message's triggers are of one kind
            return False  # it is delivered to all clusters again, which changes nothing where it is stored
        queue = next((message.queue for message in self.messages if message.id == message_id), "")
        interruptions = [trigger for trigger in failed if isinstance(trigger, Interruption)]
        if interruptions and not queue:
            return False
        try:
            if interruptions:
                self.runtime.queue.send_interruptions(queue, interruptions, retry_seconds(1, message_id))
            else:
                self.runtime.queue.send(
                    Message(cluster=t.cluster, step=t.step, reason=t.reason, hops=t.hops) for t in failed
                )
        except JourneymanError as error:
            self.runtime.log_error(error)
            return False
        return True

    def answer(self) -> Answer:
        """Return the function's response, after settling the failed messages as the platform needs it."""
        raise NotImplementedError

    def failed(self) -> list[ReceivedMessage]:
        """Return the failed messages, in order."""
        return [message for message in self.messages if message.id in self.failures]

    def send_dead_letters(self) -> set[str]:
        """Send messages that can never succeed to the dead-letter queue; return the ids of those that it accepted."""
        sent: set[str] = set()
        for messages in _by_queue(m for m in self.failed() if isinstance(self.failures[m.id], PERMANENT)):
            with logged(self.runtime):
                if self.runtime.queue.send_to_dead_letters(messages):
                    sent |= {message.id for message in messages}
        return sent

    def retry(self, messages: Iterable[ReceivedMessage]) -> None:
        """Set when each of these failed messages is delivered again. Raises CloudProviderError if the queue refuses one."""
        for of_queue in _by_queue(messages):
            self.runtime.queue.retry(self._retry_delays(of_queue, self.runtime.clock.now()))

    def _retry_delays(self, messages: Iterable[ReceivedMessage], now: datetime) -> dict[ReceivedMessage, int]:
        """Return the seconds until each message is delivered again; messages of one group return together.

        A message that waits for the Lease of a crashed run returns when that ends, if it would return later otherwise.
        """
        by_group: dict[str, list[ReceivedMessage]] = {}
        for message in messages:
            by_group.setdefault(message.group or message.id, []).append(message)
        delays: dict[ReceivedMessage, int] = {}
        for group, members in by_group.items():
            receives = max(message.receives for message in members)
            waits = [_lease_seconds(self.failures[message.id], now) for message in members]
            seconds = min(retry_seconds(receives, group), *waits)
            delays.update(dict.fromkeys(members, seconds))
        return delays


ReadBatch = Callable[[Step, Any], MessageBatch]
"""Returns the batch in an event of a step's function, with every message parsed."""


def process_batch(read: ReadBatch, step: str, function: StepFunction, event: Any, context: Context) -> Answer:
    """Run the step for the batch of messages in an event; return the platform's answer.

    A message of several clusters is repeated for those that failed only. Interruptions name no cluster, so they are counted here,
    once for all clusters.
    """
    batch = read(Step(step), event)
    runtime = batch.runtime
    with batch.held():
        runner = StepRunner(runtime, Step(step), function, context, _route(batch))
        accepted: dict[str, tuple[Trigger, ...]] = {}
        for message_id, trigger in batch.triggers.items():
            triggers = accept_or_fail(runtime, runner, trigger)
            if isinstance(triggers, JourneymanError):
                batch.failures[message_id] = triggers
            else:
                accepted[message_id] = triggers
        results = iter(runner.run([trigger for triggers in accepted.values() for trigger in triggers]))
        for message_id, triggers in accepted.items():
            _record_results(batch, message_id, [(trigger, next(results)) for trigger in triggers])
    return batch.answer()


def _route(batch: MessageBatch) -> Mapping[str, tuple[Trigger, ...]]:
    """Return the routes of the batch's interruptions (`Runtime.route`); if they cannot be looked up, all of these fail."""
    try:
        with log_errors(batch.runtime):
            return batch.runtime.route(batch.triggers.values())
    except JourneymanError as error:
        for message_id, trigger in list(batch.triggers.items()):
            if is_routed(trigger):
                del batch.triggers[message_id]
                batch.failures[message_id] = error
        return {}


def _record_results(batch: MessageBatch, message_id: str, results: Sequence[tuple[Trigger, Result]]) -> None:
    """Record whether a message failed, and count it; repeat a message of several clusters for those that failed."""
    failures = [(trigger, result) for trigger, result in results if isinstance(result, Exception)]
    is_partial = 0 < len(failures) < len(results)
    is_repeated = is_partial and batch.repeat_alone(message_id, [trigger for trigger, _ in failures])
    if failures and not is_repeated:
        batch.failures[message_id] = failures[0][1]
    _count_interruption(batch.runtime, batch.triggers[message_id], is_handled=not failures)


def accept_or_fail(runtime: Runtime, runner: StepRunner, trigger: Trigger) -> tuple[Trigger, ...] | JourneymanError:
    """Return the triggers of `StepRunner.accept`, or the error that it raised, which is logged."""
    try:
        with log_errors(runtime):
            return runner.accept(trigger)
    except JourneymanError as error:
        return error


def _count_interruption(runtime: Runtime, trigger: Trigger, *, is_handled: bool) -> None:
    if isinstance(trigger, Interruption):
        if trigger.cluster == EVERY_CLUSTER:  # otherwise it was received before, for several clusters
            runtime.observe(*received_message_metrics(trigger.kind.value))
        if is_handled:
            runtime.observe(*deleted_message_metrics(trigger.time, runtime.clock.now()))


def sweep_clusters(runtime: Runtime, runner: StepRunner, event: Mapping[str, Any]) -> Answer:
    """Sweep the clusters for an event of the schedule; return what was found in each.

    Raises:
        MalformedEventError: The event does not parse.
        JourneymanError: The sweep of a cluster failed; the others were swept.
    """
    with log_errors(runtime):
        triggers = runner.accept(parse_trigger(event))
    results = runner.run(triggers)
    if any(isinstance(result, Outcome) for result in results):
        runtime.observe(Observation(name="journeyman_sweeps_total"))
    for result in results:
        if isinstance(result, Exception):
            raise result
    outcomes = [result for result in results if isinstance(result, Outcome)]
    return {"clusters": [{"cluster": o.cluster, "status": o.status, **o.counts} for o in outcomes]}


def _lease_seconds(failure: Exception, now: datetime) -> int:
    """Return when the Lease for which a run waited ends, unless its holder renews it; at most `LONGEST_RETRY_SECONDS`."""
    until = failure.context.get("until", "") if isinstance(failure, LeaseLostError) else ""
    if not until:
        return LONGEST_RETRY_SECONDS
    seconds = math.ceil((datetime.fromisoformat(until) - now).total_seconds())
    return min(max(seconds, 1), LONGEST_RETRY_SECONDS)


PERMANENT: Final = (MalformedEventError, UnknownClusterError)
"""The failures of messages that can never succeed."""
LONGEST_RETRY_SECONDS: Final = 30


def retry_seconds(receives: int, key: str) -> int:
    """Return when a message is delivered again: after 2 s, twice as long after each further receive, at most 30 s.

    Up to a quarter is taken off, by the message group, so that clusters that fail together do not return together.
    """
    longest = min(1 << min(receives, 8), LONGEST_RETRY_SECONDS)
    share = zlib.crc32(f"{key}/{receives}".encode()) / 2**32
    return max(1, round(longest * (1 - share / 4)))


def _by_queue(messages: Iterable[ReceivedMessage]) -> list[list[ReceivedMessage]]:
    """Return the messages of each queue, without those whose queue is unknown, as in test events that are written by hand."""
    by_queue: dict[str, list[ReceivedMessage]] = {}
    for message in messages:
        if message.queue:
            by_queue.setdefault(message.queue, []).append(message)
    return list(by_queue.values())


def _parse(runtime: Runtime, payload: Mapping[str, Any]) -> Trigger | MalformedEventError:
    try:
        with log_errors(runtime):
            return parse_trigger(payload)
    except MalformedEventError as error:
        return error
