"""Injects faults into calls to the API server and to the cloud, and into messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Final, TypeVar

from msgspec import Struct

from journeyman.ports import Clock
from journeyman_simulator.faults.call_sites import FaultCoverage, step_of
from journeyman_simulator.faults.cooperative_scheduler import CooperativeScheduler
from journeyman_simulator.faults.fault_scenario import CallFault, FaultKind, MessageFault, MessageFaultKind
from journeyman_simulator.in_process_account.sqs_queues import DELIVERED, MessageOutcome

T = TypeVar("T")


class ProcessCrashed(BaseException):
    """The simulated process crashed, so its run makes no further call."""


class FunctionRun(Struct, kw_only=True, eq=False):
    """One invocation of one function."""

    step: str
    serial: int
    ends_at: datetime  # the timeout, at which Lambda kills the run
    alive: bool = True

    @property
    def name(self) -> str:
        """Return the step and the serial number: "provision#12"."""
        return f"{self.step}#{self.serial}"

    def crash(self, why: str) -> ProcessCrashed:
        """Make every further call of the run raise ProcessCrashed, and return the exception to raise now."""
        self.alive = False
        return ProcessCrashed(f"{self.name}: {why}")


_current: Final[ContextVar[FunctionRun]] = ContextVar("run")


@contextmanager
def running(run: FunctionRun) -> Iterator[FunctionRun]:
    """Attribute the calls of this thread to the run inside the context."""
    token = _current.set(run)
    try:
        yield run
    finally:
        _current.reset(token)


def current_run() -> FunctionRun:
    """Return the run of this thread. Raises LookupError if there is none."""
    return _current.get()


def current_name() -> str:
    """Return the name of this thread's run; empty if there is none."""
    run = _current.get(None)
    return run.name if run else ""


def current_step() -> str:
    """Return the step of this thread's run; empty if there is none."""
    run = _current.get(None)
    return run.step if run else ""


class InjectableCall(Struct, frozen=True, kw_only=True):
    """A call to the API server or to the cloud into which a fault can be injected.

    `error` returns the exception that the caller sees. `touch` makes the conflicting write of another client. `cached` is
    whether the caller of a read accepts a stale response.
    """

    site: str
    error: Callable[[FaultKind], Exception]
    touch: Callable[[], None] | None = None
    cached: bool = False


class FaultInjector:
    """Injects the call faults of one scenario.

    Args:
        faults: The faults; of several for one call, the first is injected.
        clock: The virtual clock.
        scheduler: Pauses runs.
        coverage: Counts calls and faults.
        on_fault: Called with a description of each injected fault.
        thaw: Whether a run that is paused beyond its timeout resumes, as in a sandbox that Lambda freezes and thaws.
        on_crash: Called with each run that crashes, while the cluster is as it leaves it.
    """

    def __init__(
        self,
        faults: Iterable[CallFault],
        *,
        clock: Clock,
        scheduler: CooperativeScheduler,
        coverage: FaultCoverage,
        on_fault: Callable[[str], None],
        thaw: bool = False,
        on_crash: Callable[[FunctionRun], None] = lambda _: None,
    ) -> None:
        self._pending: dict[tuple[str, int], CallFault] = {}
        for fault in faults:
            self._pending.setdefault((fault.site, fault.nth), fault)
        self._clock = clock
        self._scheduler = scheduler
        self._coverage = coverage
        self._on_fault = on_fault
        self._thaw = thaw
        self._on_crash = on_crash
        self._calls: Counter[str] = Counter()
        self._ended = False
        self.enabled = True
        """Whether faults are injected."""

    def end(self) -> None:
        """End the scenario: paused runs crash when they resume."""
        self._ended = True

    def can_pause(self, step: str) -> bool:
        """Whether a fault that is not yet injected can pause a run of the step."""
        return self.enabled and any(
            nth > self._calls[site] and fault.kind in _WAITS and step_of(site) == step
            for (site, nth), fault in self._pending.items()
        )

    def call(self, call: InjectableCall, perform: Callable[[], T], as_of: Callable[[datetime], T] | None = None) -> T:
        """Make the call, or inject its fault, and return the result.

        Args:
            call: The call's site and errors.
            perform: Makes the call.
            as_of: Makes a read with the state of a past time.

        Raises:
            ProcessCrashed: The run crashed, at this call or earlier.
            Exception: The exception of `call.error`, or of the call itself.
        """
        run = current_run()
        self._check(run, call.site)
        self._coverage.count_call(call.site)
        fault = self._fault(call)
        if fault is None:
            return perform()
        return self._inject(run, call, fault, perform, as_of)

    def sleep(self, seconds: float) -> None:
        """Pause this thread's run, which waits, in virtual time. Raises ProcessCrashed at its timeout."""
        self._pause(current_run(), seconds)

    def _fault(self, call: InjectableCall) -> CallFault | None:
        if not self.enabled:
            return None
        self._calls[call.site] += 1
        fault = self._pending.get((call.site, self._calls[call.site]))
        if fault is None or (fault.kind is FaultKind.STALE and not call.cached):
            return None
        self._coverage.count_fault(call.site, fault.kind.value)
        self._on_fault(f"{fault.kind.value} {call.site}{f' {fault.seconds:g} s' if fault.seconds else ''}")
        return fault

    def _inject(
        self,
        run: FunctionRun,
        call: InjectableCall,
        fault: CallFault,
        perform: Callable[[], T],
        as_of: Callable[[datetime], T] | None,
    ) -> T:
        kind = fault.kind
        if kind in _AFTER:
            with suppress(Exception):
                perform()
        if kind in {FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER}:
            self._on_crash(run)
            raise run.crash(f"{kind.value} {call.site}")
        if kind in _WAITS:
            self._pause(run, fault.seconds)
        if kind in {FaultKind.STALE, FaultKind.LAG} and as_of is not None:
            return as_of(self._clock.now() - timedelta(seconds=fault.seconds))
        if kind is FaultKind.CONFLICT and call.touch is not None:
            call.touch()
        if kind in _FAILS:
            raise call.error(kind)
        return perform()

    def _pause(self, run: FunctionRun, seconds: float) -> None:
        """Pause the run. It crashes at its timeout, unless the scenario resumes frozen runs."""
        until = self._clock.now() + timedelta(seconds=seconds)
        times_out = until >= run.ends_at and not self._thaw
        self._scheduler.pause(run.ends_at if times_out else until)
        if times_out and self._clock.now() >= run.ends_at:
            self._on_crash(run)
            raise run.crash("the function timed out")
        self._check(run, "paused")

    def _check(self, run: FunctionRun, where: str) -> None:
        if self._ended or not run.alive:
            raise run.crash(f"{where} after the crash")


class RepeatedRequests:
    """Injects the faults of requests that an adapter repeats: one that fails fails again as often as it is repeated.

    Args:
        faults: Decides for each request whether it fails.
        error: Returns the exception that the adapter sees.
        attempts: How often the adapter sends a request.
        is_repeated: Whether the adapter repeats a request that failed so.
    """

    def __init__(
        self,
        faults: FaultInjector,
        error: Callable[[FaultKind], Exception],
        *,
        attempts: int,
        is_repeated: Callable[[FaultKind], bool],
    ) -> None:
        self._faults = faults
        self._error = error
        self._attempts = attempts
        self._is_repeated = is_repeated
        self._failing: object = None
        self._remaining: list[FaultKind] = []

    def call(self, site: str, request: object, perform: Callable[[], T]) -> T:
        """Send a request, or inject its fault; `request` is equal for each attempt."""
        if self._remaining and self._failing == request:
            kind = self._remaining.pop()
            if kind in _AFTER:
                perform()
            raise self._error(kind)
        self._remaining = []

        def error(kind: FaultKind) -> Exception:
            self._failing = request
            self._remaining = [kind] * (self._attempts - 1 if self._is_repeated(kind) else 0)
            return self._error(kind)

        return self._faults.call(InjectableCall(site=site, error=error), perform)


_AFTER: Final = frozenset({FaultKind.FAIL_AFTER, FaultKind.TIMEOUT_AFTER, FaultKind.CRASH_AFTER})
_WAITS: Final = frozenset({FaultKind.PAUSE, FaultKind.TIMEOUT_BEFORE, FaultKind.TIMEOUT_AFTER})
NO_ANSWER: Final[Mapping[FaultKind, str]] = {
    FaultKind.FAIL_AFTER: "ConnectionError: the connection broke before the response",
    FaultKind.TIMEOUT_BEFORE: "ReadTimeout: no response in time",
    FaultKind.TIMEOUT_AFTER: "ReadTimeout: no response in time",
}
"""The text of the error for a request that gets no response, of clouds whose errors are only texts then."""
_FAILS: Final = frozenset(
    {FaultKind.FAIL_BEFORE, FaultKind.FAIL_AFTER, FaultKind.TIMEOUT_BEFORE, FaultKind.TIMEOUT_AFTER, FaultKind.THROTTLE}
)


class MessageFaultInjector:
    """Injects the message faults of one scenario.

    Args:
        faults: The faults; of several for one message, the first is injected.
        coverage: Counts faults.
        on_fault: Called with a description of each injected fault.
    """

    def __init__(
        self, faults: Iterable[MessageFault], coverage: FaultCoverage, on_fault: Callable[[str], None]
    ) -> None:
        self._pending: dict[tuple[str, int], MessageFault] = {}
        for fault in faults:
            self._pending.setdefault((fault.queue, fault.nth), fault)
        self._coverage = coverage
        self._on_fault = on_fault
        self._sent: Counter[str] = Counter()
        self.queues: Mapping[str, str] = {}
        """The scenario's queue names by the account's queue names; other queues have no faults."""
        self.enabled = True

    def decide(self, name: str, _body: str) -> MessageOutcome:
        """Return the outcome of sending a message (`SimulatedQueues.decide`)."""
        queue = self.queues.get(name, "")
        if not self.enabled or not queue:
            return DELIVERED
        self._sent[queue] += 1
        fault = self._pending.get((queue, self._sent[queue]))
        if fault is None or (fault.kind is MessageFaultKind.REORDER and name.endswith(".fifo")):
            return DELIVERED
        self._coverage.count_message_fault(queue, fault.kind.value)
        self._on_fault(
            f"{fault.kind.value} message {fault.nth} to {queue}{f' {fault.seconds:g} s' if fault.seconds else ''}"
        )
        return _outcome(fault)


def _outcome(fault: MessageFault) -> MessageOutcome:
    if fault.kind is MessageFaultKind.DROP:
        return MessageOutcome(copies=0)
    if fault.kind is MessageFaultKind.DUPLICATE:
        return MessageOutcome(copies=2)
    if fault.kind is MessageFaultKind.DELAY:
        return MessageOutcome(delay_seconds=fault.seconds)
    return MessageOutcome(overtakes=True)
