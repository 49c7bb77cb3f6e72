"""The deployed functions under a storm: sandboxes that are made, kept warm, frozen and lost, as Lambda's are.

The handlers are those that are deployed. What they run on is `runtime.aws`'s composition with its outside replaced: an
in-memory API server and account in which every call may go wrong, a virtual clock, ids that are serial numbers.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import cache
from itertools import count
from typing import Any, Final

from aws_lambda_powertools import Logger
from msgspec import Struct
from msgspec.structs import replace

from journeyman.cloud.aws.aws_settings import AwsSettings
from journeyman.cloud.aws.sqs_queue import SQSQueue
from journeyman.core.plan import Observation
from journeyman.errors import InvariantError, JourneymanError
from journeyman.kube.clusters import RegisteredCluster
from journeyman.observe import RunTelemetry
from journeyman.observe.logs import SERVICE
from journeyman.ports import Clock, KubeStore, Queue
from journeyman.runtime.aws import AwsAdapters, logger
from journeyman.runtime.composition import Runtime, installed
from journeyman.runtime.environment import Environment
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.deployment_files import load_handler
from journeyman_simulator.faults.fault_injection import FaultInjector, FunctionRun, current_name, running
from journeyman_simulator.faults.faulty_adapters import FaultyClient, FaultyStore
from journeyman_simulator.faults.scenario_view import RunError
from journeyman_simulator.lambda_functions import LambdaContext, LambdaFunction
from journeyman_simulator.sam_stack import ClientSource


class Collaborators(Struct, frozen=True, kw_only=True):
    """Wrappers around what a function talks to; mutation tests inject faulty ones. Each gets the step and the original."""

    store: Callable[[str, KubeStore], KubeStore] = lambda _step, store: store
    queue: Callable[[str, Queue], Queue] = lambda _step, queue: queue
    client: Callable[[str, Any], Any] = lambda _step, client: client  # of an AWS service


ORIGINALS: Final = Collaborators()


class SandboxConnections(Struct, frozen=True, kw_only=True):
    """What all functions of a scenario share."""

    environment: Environment
    clock: Clock  # the truth
    seen_clock: Clock  # what the functions take for it
    server: ApiServer
    account: ClientSource
    version_at: Callable[[datetime], int]
    faults: FaultInjector
    on_error: Callable[[RunError], None]
    ids: count[int]
    collaborators: Collaborators

    def new_id(self) -> str:
        """Never given before."""
        return f"id-{next(self.ids)}"


class Sandboxes:
    """Where one function runs: as many sandboxes as it has runs at once; the one that was warm last is taken first.

    It is the function's handler as the platform calls it.

    Args:
        handler: As the template names it.
        outside: What the runs talk to.
    """

    def __init__(self, handler: str, connections: SandboxConnections) -> None:
        self._handler = handler
        self.step = handler.partition(".")[0]
        self._connections = connections
        self._free: list[Runtime] = []
        self.runs = 0
        self.last: dict[str, Any] = {}  # the event of the latest run
        self.busy: dict[int, FunctionRun] = {}

    def __call__(self, event: dict[str, Any], context: VirtualLambdaContext) -> Any:
        """One invocation. Raises Died if it is the sandbox's last."""
        self.runs += 1
        self.last = event
        run = FunctionRun(step=self.step, serial=self.runs, ends_at=context.ends_at)
        self.busy[run.serial] = run
        runtime = self._free.pop() if self._free else self._cold()
        try:
            return self._run(run, runtime, event, context)
        finally:
            del self.busy[run.serial]
            if run.alive:  # the platform keeps a sandbox whose handler raised, too
                self._free.append(runtime)

    def _run(self, run: FunctionRun, runtime: Runtime, event: dict[str, Any], context: VirtualLambdaContext) -> Any:
        with running(run), installed(runtime):
            try:
                answer = load_handler(self._handler)(event, context)
            except Exception as error:
                if not isinstance(error, JourneymanError):  # the handler has reported those
                    self._report_unexpected(error)
                raise
        if not run.alive:
            raise run.die("somebody on the way took its end for an error like others")
        return answer

    def _report_unexpected(self, error: Exception) -> None:
        reported = RunError(
            at=self._connections.clock.now(),
            run=current_name(),
            error=type(error).__name__,
            message=str(error),
            expected=False,
        )
        self._connections.on_error(reported)

    def _cold(self) -> Runtime:
        return Runtime(self._connections.environment.settings, SimulatedAwsAdapters(self.step, self._connections))


class VirtualLambdaContext(LambdaContext):
    """Lambda's context, whose remaining time is virtual."""

    def __init__(self, function: LambdaFunction, request_id: str) -> None:
        super().__init__(function, request_id)
        self._clock = function.clock
        self.ends_at = function.clock.now() + timedelta(seconds=function.timeout_seconds)

    def get_remaining_time_in_millis(self) -> int:
        """Virtual milliseconds until the function is stopped."""
        return max(0, round((self.ends_at - self._clock.now()).total_seconds() * 1000))


class SimulatedAwsAdapters(AwsAdapters):
    """One sandbox's connections. Log lines and metrics go nowhere; requests go one after another, so that runs repeat."""

    def __init__(self, step: str, connections: SandboxConnections) -> None:
        """Args: `step` is the function's."""
        self._connections = connections
        self._made: dict[str, Any] = {}
        self._step = step
        super().__init__(
            connections.environment,
            clock=connections.seen_clock,
            stores=lambda _: connections.collaborators.store(
                step, FaultyStore(connections.server, step, connections.faults, connections.version_at)
            ),
            clients=self._client,
            log_to=silent(),
        )

    def queue(self) -> Queue:
        """The queues, with message ids that are serial numbers."""
        queue = SQSQueue(
            self._client("sqs", self._environment.region),
            self.clock,
            queues=self._environment.queues,
            requeue_url=self._environment.requeue_url,
            new_id=self._connections.new_id,
        )
        return self._connections.collaborators.queue(self._step, queue)

    def telemetry(self, store: KubeStore, fields: Mapping[str, str]) -> RunTelemetry:
        """Events in the cluster, and nothing else but defects."""
        return _EventsOnly(store, self.clock, fields, on_defect=self.log)

    def observe(self, observations: Sequence[Observation]) -> None:
        """Not kept."""

    def log(self, level: str, message: str, **fields: Any) -> None:
        """What a run reports as its failure."""
        if "error" not in fields:
            return
        error = RunError(
            at=self._connections.clock.now(),
            run=current_name(),
            error=fields["error"],
            message=" ".join([message, *(f"{k}={v}" for k, v in fields.items() if k not in {"error", "stacktrace"})]),
            expected="stacktrace" not in fields,  # as `Runtime.log_error` tells bugs from what may happen
            stack=fields.get("stacktrace", ""),
        )
        self._connections.on_error(error)

    def _aws_settings(self, cluster: RegisteredCluster) -> AwsSettings:
        return replace(super()._aws_settings(cluster), max_parallel_launches=1, parallel_reads=False)

    def _client(self, service: str, _region: str) -> Any:
        if service not in self._made:
            account = self._connections.account
            client = FaultyClient(account.client(service), service, self._step, self._connections.faults)
            self._made[service] = self._connections.collaborators.client(self._step, client)
        return self._made[service]


class _EventsOnly(RunTelemetry):
    """Nobody reads a storm's metrics, and writing them takes a tenth of its time; of its lines, checkers read of defects."""

    def __init__(
        self, store: KubeStore, clock: Clock, fields: Mapping[str, str], *, on_defect: Callable[..., None]
    ) -> None:
        super().__init__(silent(), store, clock, fields=fields, stream=io.StringIO())
        self._on_defect = on_defect

    def log(self, level: str, message: str, **fields: Any) -> None:
        """What a run found wrong with itself, and went on."""
        if fields.get("error") == InvariantError.__name__:
            self._on_defect(level, message, **fields)

    def observe(self, observation: Observation) -> None:
        """Not kept."""


@cache
def silent() -> Logger:
    """A logger that writes nothing, and takes no time for it."""
    return Logger(service=f"{SERVICE}.storm", level=logging.CRITICAL, stream=io.StringIO())


@contextmanager
def logs_silenced() -> Iterator[None]:
    """The process's own logger, too: what the AWS adapter says is no part of a scenario."""
    logger()  # whoever makes it first sets its level
    ours = logging.getLogger(SERVICE)
    level = ours.level
    ours.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        ours.setLevel(level)
