"""Runs one step for the triggers of one invocation, once per cluster and clusters in parallel; reads SQS batches.

A message only starts a step, so several messages for one cluster in a batch are one run, and their order does not matter.
The runs of one cluster are sequential. A cluster that does not respond does not delay the others. A run that has not ended
shortly before the platform ends the process counts as failed.

While the function lives, it holds the batch's messages (`SqsBatch.held`); those of a function that crashed are delivered again within
seconds. A failed record is delivered again within 30 seconds (`retry_seconds`), because it blocks its message group of a FIFO queue until
then, and goes to the dead-letter queue when its receives are used up. A record that can never succeed, because it does not
parse or names an unknown cluster, goes there at once. Failed records are reported individually. Powertools' FIFO processor
would report all records from the first failure on, and move valid messages of the group to the dead-letter queue.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

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
from journeyman.ports import EVERY_CLUSTER, DeadLetter, Interruption, Message, Trigger
from journeyman.runtime.composition import Context, Runtime
from journeyman.steps.context import BUSY, Outcome, RunContext
from journeyman.steps.recorder import emit_error, error_metric

StepFunction = Callable[[RunContext, Trigger], Outcome]
LambdaEvent = Mapping[str, Any]
Result = Outcome | Exception
Record = Mapping[str, Any]
"""A message as Lambda passes it to the function."""

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

        A cluster's run continues the shortest chain of its messages. Each interruption has its own run, because their instances differ. A cluster that fails does not stop the others. A
        run that is still going when the function responds can write only as long as it holds its Lease.
        """
        by_cluster: dict[str, dict[str, Trigger]] = {}
        for trigger in triggers:
            runs, key = by_cluster.setdefault(trigger.cluster, {}), self._key(trigger)
            if key not in runs or trigger.hops < runs[key].hops:
                runs[key] = trigger
        results: dict[tuple[str, str], Result] = {}
        if len(by_cluster) == 1:
            for runs in by_cluster.values():
                self._run_cluster(runs, results)
        elif by_cluster:
            pool = ThreadPoolExecutor(max_workers=min(len(by_cluster), MAX_PARALLEL_CLUSTERS))
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


class SqsBatch(Struct):
    """The records of one batch, with the trigger or the failure of each by message id."""

    records: Sequence[Record]
    triggers: dict[str, Trigger]
    failures: dict[str, Exception]

    @classmethod
    def read(cls, runtime: Runtime, event: LambdaEvent) -> SqsBatch:
        """Return the batch with every record parsed; a record that does not parse is logged and becomes a failure.

        The triggers of one batch may share their hops (`_with_shared_hops`).
        """
        batch = cls(records=event["Records"], triggers={}, failures={})
        for record in batch.records:
            trigger = _parse(runtime, record)
            if isinstance(trigger, MalformedEventError):
                batch.failures[record["messageId"]] = trigger
            else:
                batch.triggers[record["messageId"]] = trigger
        batch.triggers = _with_shared_hops(batch.triggers, runtime.max_hops)
        return batch

    @contextmanager
    def held(self, runtime: Runtime) -> Iterator[None]:
        """Hold the batch's messages inside the block, so that a crash in it holds up their message groups for seconds only."""
        received = [r for r in self.records if "receiptHandle" in r and "eventSourceARN" in r]
        with ExitStack() as holds:
            for queue, records in _by_queue(received).items():
                holds.enter_context(runtime.queue.hold(queue, [record["receiptHandle"] for record in records]))
            yield

    def repeat_alone(self, runtime: Runtime, message_id: str, failed: Sequence[Trigger]) -> bool:
        """Send a message for each cluster whose run of a record failed, since the others succeeded; return whether that worked."""
        queue = next((r.get("eventSourceARN", "") for r in self.records if r["messageId"] == message_id), "")
        interruptions = [trigger for trigger in failed if isinstance(trigger, Interruption)]
        if interruptions and not queue:
            return False
        try:
            if interruptions:
                runtime.queue.send_interruptions(queue, interruptions, retry_seconds(1, message_id))
            others = [trigger for trigger in failed if not isinstance(trigger, Interruption)]
            runtime.queue.send([Message(cluster=t.cluster, step=t.step, reason=t.reason, hops=t.hops) for t in others])
        except JourneymanError as error:
            runtime.log_error(error)
            return False
        return True

    def answer(self, runtime: Runtime) -> dict[str, Any]:
        """Return the failed records as `batchItemFailures`, after setting when each is delivered again.

        Records that can never succeed go to the dead-letter queue instead. Where SQS refuses that, they are retried as well.
        """
        failed = [record for record in self.records if record["messageId"] in self.failures]
        # test events written by hand may lack both
        received = [record for record in failed if "receiptHandle" in record and "eventSourceARN" in record]
        permanent = [r for r in received if isinstance(self.failures[r["messageId"]], _PERMANENT)]
        moved: set[str] = set()
        for queue, records in _by_queue(permanent).items():
            letters = [DeadLetter(r["body"], r.get("attributes", {}).get("MessageGroupId", "")) for r in records]
            with _logged(runtime):
                if runtime.queue.send_to_dead_letters(queue, letters):
                    moved |= {record["messageId"] for record in records}
        for queue, records in _by_queue(r for r in received if r["messageId"] not in moved).items():
            with _logged(runtime):
                runtime.queue.retry_after(queue, self._retry_delays(records, runtime.clock.now()))
        message_ids = [record["messageId"] for record in failed if record["messageId"] not in moved]
        return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in message_ids]}

    def _retry_delays(self, records: Iterable[Record], now: datetime) -> dict[str, int]:
        """Return the seconds until each record is delivered again by receipt handle; records of one group return together.

        A record that waits for the Lease of a crashed run returns when that ends, if it would return later otherwise.
        """
        by_group: dict[str, list[Record]] = {}
        for record in records:
            group = record.get("attributes", {}).get("MessageGroupId", record["messageId"])
            by_group.setdefault(group, []).append(record)
        delays: dict[str, int] = {}
        for group, members in by_group.items():
            receives = max(int(r.get("attributes", {}).get("ApproximateReceiveCount", 1)) for r in members)
            waits = [_lease_seconds(self.failures[record["messageId"]], now) for record in members]
            seconds = min(retry_seconds(receives, group), *waits)
            delays.update({record["receiptHandle"]: seconds for record in members})
        return delays


def _lease_seconds(failure: Exception, now: datetime) -> int:
    """Return when the Lease for which a run waited ends, unless its holder renews it; at most `LONGEST_RETRY_SECONDS`."""
    until = failure.context.get("until", "") if isinstance(failure, LeaseLostError) else ""
    if not until:
        return LONGEST_RETRY_SECONDS
    seconds = math.ceil((datetime.fromisoformat(until) - now).total_seconds())
    return min(max(seconds, 1), LONGEST_RETRY_SECONDS)


def _with_shared_hops(triggers: Mapping[str, Trigger], limit: int) -> dict[str, Trigger]:
    """Return the triggers with the hops that count for their chains.

    While Lambda may stop chains, every trigger has the hops of the longest chain, because Lambda takes what the invocation sends for
    a part of all chains of its batch. Otherwise each keeps its own. No message of ours has more hops than the limit: one
    that does is forged or faulty, and ends its own chain only.
    """
    if limit >= _LAMBDA_STOPS_AFTER:
        return dict(triggers)
    longest = max((t.hops for t in triggers.values() if t.hops <= limit), default=0)
    return {key: t if t.hops > limit else replace(t, hops=longest) for key, t in triggers.items()}


_LAMBDA_STOPS_AFTER: Final = 16  # runs of a function in a chain, unless its property RecursiveLoop is Allow
_PERMANENT: Final = (MalformedEventError, UnknownClusterError)
LONGEST_RETRY_SECONDS: Final = 30


def retry_seconds(receives: int, key: str) -> int:
    """Return when a message is delivered again: after 2 s, twice as long after each further receive, at most 30 s.

    Up to a quarter is taken off, by the message group, so that clusters that fail together do not return together.
    """
    longest = min(1 << min(receives, 8), LONGEST_RETRY_SECONDS)
    share = zlib.crc32(f"{key}/{receives}".encode()) / 2**32
    return max(1, round(longest * (1 - share / 4)))


def _by_queue(records: Iterable[Record]) -> dict[str, list[Record]]:
    by_queue: dict[str, list[Record]] = {}
    for record in records:
        by_queue.setdefault(record["eventSourceARN"], []).append(record)
    return by_queue


@contextmanager
def _logged(runtime: Runtime) -> Iterator[None]:
    """Log an error of the queue; the messages are then delivered again after their visibility timeout."""
    try:
        yield
    except JourneymanError as error:
        runtime.log_error(error)


def _parse(runtime: Runtime, record: Record) -> Trigger | MalformedEventError:
    try:
        with log_errors(runtime):
            return parse_trigger(record)
    except MalformedEventError as error:
        return error
