"""Runs the deployed functions in simulated Lambda sandboxes, which start cold, stay warm, freeze and crash.

The handlers run on the runtime of `runtime.aws`, with an in-memory API server and account that inject faults, a virtual
clock, and serial numbers as ids.
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
    """Wrappers of a function's store, queue and AWS clients; mutation tests pass faulty ones.

    Each is called with the step and the original, and returns the object to use.
    """

    store: Callable[[str, KubeStore], KubeStore] = lambda _step, store: store
    queue: Callable[[str, Queue], Queue] = lambda _step, queue: queue
    client: Callable[[str, Any], Any] = lambda _step, client: client  # of an AWS service


ORIGINALS: Final = Collaborators()


class SandboxConnections(Struct, frozen=True, kw_only=True):
    """The clocks, servers and settings that all functions of a scenario share."""

    environment: Environment
    clock: Clock  # without clock skew
    seen_clock: Clock  # with clock skew, for the functions
    server: ApiServer
    account: ClientSource
    version_at: Callable[[datetime], int]
    faults: FaultInjector
    on_error: Callable[[RunError], None]
    ids: count[int]
    collaborators: Collaborators

    def new_id(self) -> str:
        """Return the next serial number as an id."""
        return f"id-{next(self.ids)}"


class Sandboxes:
    """Runs a function in one sandbox per concurrent run, and reuses the most recently used sandbox first.

    `LambdaFunction` calls it as the function's handler.

    Args:
        handler: The template's property `Handler`.
        connections: The clocks, servers and settings of the runs.
    """

    def __init__(self, handler: str, connections: SandboxConnections) -> None:
        self._handler = handler
        self.step = handler.partition(".")[0]
        self._connections = connections
        self._free: list[Runtime] = []
        self.runs = 0
        self.last: dict[str, Any] = {}  # the event of the latest run
        self.active_runs: dict[int, FunctionRun] = {}

    def __call__(self, event: dict[str, Any], context: VirtualLambdaContext) -> Any:
        """Run one invocation. Raises ProcessCrashed if the sandbox crashes."""
        self.runs += 1
        self.last = event
        run = FunctionRun(step=self.step, serial=self.runs, ends_at=context.ends_at)
        self.active_runs[run.serial] = run
        runtime = self._free.pop() if self._free else self._new_runtime()
        try:
            return self._run(run, runtime, event, context)
        finally:
            del self.active_runs[run.serial]
            if run.alive:  # Lambda keeps a sandbox whose handler raised, too
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
            raise run.crash("an exception handler swallowed the crash")
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

    def _new_runtime(self) -> Runtime:
        return Runtime(self._connections.environment.settings, SimulatedAwsAdapters(self.step, self._connections))


class VirtualLambdaContext(LambdaContext):
    """Lambda's context object, with the remaining time in virtual time."""

    def __init__(self, function: LambdaFunction, request_id: str) -> None:
        super().__init__(function, request_id)
        self._clock = function.clock
        self.ends_at = function.clock.now() + timedelta(seconds=function.timeout_seconds)

    def get_remaining_time_in_millis(self) -> int:
        """Return the milliseconds of virtual time until the timeout."""
        return max(0, round((self.ends_at - self._clock.now()).total_seconds() * 1000))


class SimulatedAwsAdapters(AwsAdapters):
    """The adapters of one sandbox: without logs and metrics, and with sequential requests, so that runs are reproducible."""

    renew_seconds = 0

    def __init__(self, step: str, connections: SandboxConnections) -> None:
        """Create the adapters of a sandbox of the step's function."""
        self._connections = connections
        self._client_by_service: dict[str, Any] = {}
        self._step = step
        super().__init__(
            connections.environment,
            clock=connections.seen_clock,
            stores=lambda _: connections.collaborators.store(
                step, FaultyStore(connections.server, step, connections.faults, connections.version_at)
            ),
            clients=self._client,
            log_to=silent_logger(),
        )

    def queue(self) -> Queue:
        """Return the queue adapter, with serial numbers as message ids, and without a thread."""
        queue = SQSQueue(
            self._client("sqs", self.environment.region),
            self.clock,
            queues=self.environment.queues,
            requeue_url=self.environment.requeue_url,
            new_id=self._connections.new_id,
            renew_seconds=self.renew_seconds,
        )
        return self._connections.collaborators.queue(self._step, queue)

    def telemetry(self, store: KubeStore, fields: Mapping[str, str]) -> RunTelemetry:
        """Return telemetry that writes Events and reports InvariantErrors."""
        return _EventsOnly(store, self.clock, fields, on_defect=self.log)

    def observe(self, observations: Sequence[Observation]) -> None:
        """Drop them."""

    def log(self, level: str, message: str, **fields: Any) -> None:
        """Report the failure that a run logs."""
        if "error" not in fields:
            return
        error = RunError(
            at=self._connections.clock.now(),
            run=current_name(),
            error=fields["error"],
            message=" ".join([message, *(f"{k}={v}" for k, v in fields.items() if k not in {"error", "stacktrace"})]),
            expected="stacktrace" not in fields,  # `Runtime.log_error` logs a stack trace for bugs only
            stack=fields.get("stacktrace", ""),
        )
        self._connections.on_error(error)

    def aws_settings(self, cluster: RegisteredCluster) -> AwsSettings:
        """Return the settings without concurrency, so that a scenario is reproducible."""
        return replace(super().aws_settings(cluster), max_parallel_launches=1, parallel_reads=False)

    def _client(self, service: str, _region: str) -> Any:
        if service not in self._client_by_service:
            account = self._connections.account
            client = FaultyClient(account.client(service), service, self._step, self._connections.faults)
            self._client_by_service[service] = self._connections.collaborators.client(self._step, client)
        return self._client_by_service[service]


class _EventsOnly(RunTelemetry):
    """Telemetry without metrics, which would take a tenth of the time. It reports the InvariantErrors in log lines."""

    def __init__(
        self, store: KubeStore, clock: Clock, fields: Mapping[str, str], *, on_defect: Callable[..., None]
    ) -> None:
        super().__init__(silent_logger(), store, clock, fields=fields, stream=io.StringIO())
        self._on_defect = on_defect

    def log(self, level: str, message: str, **fields: Any) -> None:
        """Report the InvariantError in a log line."""
        if fields.get("error") == InvariantError.__name__:
            self._on_defect(level, message, **fields)

    def observe(self, observation: Observation) -> None:
        """Drop it."""


@cache
def silent_logger() -> Logger:
    """Return a logger that writes nothing."""
    return Logger(service=f"{SERVICE}.enabled", level=logging.CRITICAL, stream=io.StringIO())


@contextmanager
def logs_silenced() -> Iterator[None]:
    """Disable the process's logger, which the AWS adapter uses, inside the context."""
    logger()  # the first call sets its level
    ours = logging.getLogger(SERVICE)
    level = ours.level
    ours.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        ours.setLevel(level)
