"""Runs the deployed functions in simulated sandboxes, which start cold, stay warm, freeze and crash.

The handlers run on the runtime of their cloud, with an in-memory API server and account that inject faults, a virtual clock, and
serial numbers as ids.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from itertools import count
from typing import Any, Final, Protocol

from aws_lambda_powertools import Logger
from msgspec import Struct

from journeyman.core.plan import Observation
from journeyman.errors import InvariantError, JourneymanError
from journeyman.observe import RunTelemetry
from journeyman.observe.logs import SERVICE
from journeyman.ports import Clock, KubeStore, Queue
from journeyman.runtime.adapters import logger
from journeyman.runtime.composition import Adapters, Runtime, installed
from journeyman.runtime.environment import Environment
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.faults.fault_injection import FaultInjector, FunctionRun, current_name, running
from journeyman_simulator.faults.faulty_adapters import FaultyStore
from journeyman_simulator.faults.scenario_view import RunError
from journeyman_simulator.judge import verify_strictly


class Collaborators(Struct, frozen=True, kw_only=True):
    """Wrappers of a function's store, queue and clients of the cloud; mutation tests pass faulty ones.

    Each is called with the step and the original, and returns the object to use.
    """

    store: Callable[[str, KubeStore], KubeStore] = lambda _step, store: store
    queue: Callable[[str, Queue], Queue] = lambda _step, queue: queue
    client: Callable[[str, Any], Any] = lambda _step, client: client  # of a service on AWS, else of all


ORIGINALS: Final = Collaborators()


class SandboxConnections(Struct, frozen=True, kw_only=True):
    """The clocks, servers and settings that all functions of a scenario share."""

    environment: Environment
    clock: Clock  # without clock skew
    seen_clock: Clock  # with clock skew, for the functions
    server: ApiServer
    version_at: Callable[[datetime], int]
    faults: FaultInjector
    on_error: Callable[[RunError], None]
    ids: count[int]
    collaborators: Collaborators
    before_request: Callable[[str, object], None] = lambda _operation, _request: None
    """Called with each request to the cloud before the cloud gets it."""

    def new_id(self) -> str:
        """Return the next serial number as an id."""
        return f"id-{next(self.ids)}"

    def store(self, step: str) -> KubeStore:
        """Return the connection of a step's function to the cluster."""
        return self.collaborators.store(step, FaultyStore(self.server, step, self.faults, self.version_at))


class VirtualContext(Protocol):
    """The part of an invocation's context that sandboxes use."""

    ends_at: datetime
    """The function's timeout, in virtual time."""


class Sandboxes:
    """Runs a function in one sandbox per concurrent run, and reuses the most recently used sandbox first.

    It is called as the function's handler.

    Args:
        step: The function's step.
        handler: The deployed handler.
        connections: The clocks, servers and settings of the runs.
        new_adapters: Returns the adapters of a new sandbox.
    """

    def __init__(
        self,
        step: str,
        handler: Callable[[Any, Any], Any],
        connections: SandboxConnections,
        new_adapters: Callable[[], Adapters],
    ) -> None:
        self._handler = handler
        self.step = step
        self._connections = connections
        self._new_adapters = new_adapters
        self._free: list[Runtime] = []
        self.runs = 0
        self.last: Any = {}  # the event of the latest run
        self.active_runs: dict[int, FunctionRun] = {}

    def __call__(self, event: Any, context: VirtualContext) -> Any:
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
            if run.alive:  # clouds keep a sandbox whose handler raised, too
                self._free.append(runtime)

    def restart(self) -> None:
        """Crash all runs in progress, and start the next ones cold, as after a change of the function's settings."""
        self._free.clear()
        for run in self.active_runs.values():
            run.crash("the function's settings have changed")

    def _run(self, run: FunctionRun, runtime: Runtime, event: Any, context: VirtualContext) -> Any:
        with running(run), installed(runtime):
            try:
                answer = self._handler(event, context)
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
        return Runtime(self._connections.environment.settings, self._new_adapters(), verify=verify_strictly)


class SimulatedAdapters:
    """The part of a sandbox's adapters that all clouds have in common: neither logs nor metrics, but reports of failures.

    It stands before the adapters of a cloud among the base classes.
    """

    clock: Clock
    connections: SandboxConnections

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
            at=self.connections.clock.now(),
            run=current_name(),
            error=fields["error"],
            message=" ".join([message, *(f"{k}={v}" for k, v in fields.items() if k not in {"error", "stacktrace"})]),
            expected="stacktrace" not in fields,  # `Runtime.log_error` logs a stack trace for bugs only
            stack=fields.get("stacktrace", ""),
        )
        self.connections.on_error(error)


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
    """Disable the process's logger, which the adapters use, inside the context."""
    logger()  # the first call sets its level
    ours = logging.getLogger(SERVICE)
    level = ours.level
    ours.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        ours.setLevel(level)
