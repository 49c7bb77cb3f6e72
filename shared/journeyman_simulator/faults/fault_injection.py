"""Injects faults: decides at each outside call and each message whether it fails, and how."""

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
    """The process is gone: the run makes no further call."""


class FunctionRun(Struct, kw_only=True, eq=False):
    """One invocation of one function."""

    step: str
    serial: int
    ends_at: datetime  # when Lambda kills it
    alive: bool = True

    @property
    def name(self) -> str:
        """Name for people: "provision#12"."""
        return f"{self.step}#{self.serial}"

    def crash(self, why: str) -> ProcessCrashed:
        """Let every further outside call of the run raise; return what to raise now."""
        self.alive = False
        return ProcessCrashed(f"{self.name}: {why}")


_current: Final[ContextVar[FunctionRun]] = ContextVar("run")


@contextmanager
def running(run: FunctionRun) -> Iterator[FunctionRun]:
    """Attribute the calls inside to this run; each thread has its own."""
    token = _current.set(run)
    try:
        yield run
    finally:
        _current.reset(token)


def current_run() -> FunctionRun:
    """Return the run of this thread. Raises LookupError outside of one."""
    return _current.get()


def current_name() -> str:
    """Return its name; empty outside of a run."""
    run = _current.get(None)
    return run.name if run else ""


def current_step() -> str:
    """Return its step; empty outside of a run."""
    run = _current.get(None)
    return run.step if run else ""


class InjectableCall(Struct, frozen=True, kw_only=True):
    """An outside call, as far as faults concern it.

    `error` makes what its caller sees. `touch` is the conflicting write of another client. `cached` says whether the caller of a
    read accepts a stale answer.
    """

    site: str
    error: Callable[[FaultKind], Exception]
    touch: Callable[[], None] | None = None
    cached: bool = False


class FaultInjector:
    """The call faults of one scenario.

    Args:
        faults: Of several for one call the first counts.
        clock: Virtual time.
        scheduler: Pauses runs.
        coverage: Counts calls and faults.
        note: Called with each fault that happens.
        thaw: Whether a run that was paused beyond its end resumes all the same.
    """

    def __init__(
        self,
        faults: Iterable[CallFault],
        *,
        clock: Clock,
        scheduler: CooperativeScheduler,
        coverage: FaultCoverage,
        note: Callable[[str], None],
        thaw: bool = False,
    ) -> None:
        self._waiting: dict[tuple[str, int], CallFault] = {}
        for fault in faults:
            self._waiting.setdefault((fault.site, fault.nth), fault)
        self._clock = clock
        self._scheduler = scheduler
        self._coverage = coverage
        self._note = note
        self._thaw = thaw
        self._calls: Counter[str] = Counter()
        self._over = False
        self.enabled = True
        """False: no more faults."""

    def end(self) -> None:
        """End the scenario: paused runs crash where they are."""
        self._over = True

    def can_pause(self, step: str) -> bool:
        """Return whether a fault can still pause a run of the step."""
        return self.enabled and any(
            nth > self._calls[site] and fault.kind in _WAITS and step_of(site) == step
            for (site, nth), fault in self._waiting.items()
        )

    def call(self, call: InjectableCall, perform: Callable[[], T], as_of: Callable[[datetime], T] | None = None) -> T:
        """Make the call, or inject its fault.

        Args:
            call: What faults need to know of it.
            perform: Makes it.
            as_of: Makes a read as of a past time.

        Raises:
            ProcessCrashed: The run has ended, now or before.
            Exception: What `call.error` makes, or the call's own.
        """
        run = current_run()
        self._check(run, call.site)
        self._coverage.count_call(call.site)
        fault = self._fault(call)
        if fault is None:
            return perform()
        return self._wrong(run, call, fault, perform, as_of)

    def _fault(self, call: InjectableCall) -> CallFault | None:
        if not self.enabled:
            return None
        self._calls[call.site] += 1
        fault = self._waiting.get((call.site, self._calls[call.site]))
        if fault is None or (fault.kind is FaultKind.STALE and not call.cached):
            return None
        self._coverage.count_fault(call.site, fault.kind.value)
        self._note(f"{fault.kind.value} {call.site}{f' {fault.seconds:g} s' if fault.seconds else ''}")
        return fault

    def _wrong(
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
        """Pause the run; Lambda kills it at its timeout, unless the scenario resumes frozen runs."""
        until = self._clock.now() + timedelta(seconds=seconds)
        ends_here = until >= run.ends_at and not self._thaw
        self._scheduler.pause(run.ends_at if ends_here else until)
        if ends_here and self._clock.now() >= run.ends_at:
            raise run.crash("the function timed out")
        self._check(run, "paused")

    def _check(self, run: FunctionRun, where: str) -> None:
        if self._over or not run.alive:
            raise run.crash(f"{where} after the crash")


_AFTER: Final = frozenset({FaultKind.FAIL_AFTER, FaultKind.TIMEOUT_AFTER, FaultKind.CRASH_AFTER})
_WAITS: Final = frozenset({FaultKind.PAUSE, FaultKind.TIMEOUT_BEFORE, FaultKind.TIMEOUT_AFTER})
_FAILS: Final = frozenset(
    {FaultKind.FAIL_BEFORE, FaultKind.FAIL_AFTER, FaultKind.TIMEOUT_BEFORE, FaultKind.TIMEOUT_AFTER, FaultKind.THROTTLE}
)


class MessageFaultInjector:
    """The message faults of one scenario.

    Args:
        faults: Of several for one message the first counts.
        coverage: Counts faults.
        note: Called with each fault that happens.
    """

    def __init__(self, faults: Iterable[MessageFault], coverage: FaultCoverage, note: Callable[[str], None]) -> None:
        self._waiting: dict[tuple[str, int], MessageFault] = {}
        for fault in faults:
            self._waiting.setdefault((fault.queue, fault.nth), fault)
        self._coverage = coverage
        self._note = note
        self._sent: Counter[str] = Counter()
        self.queues: Mapping[str, str] = {}
        """The scenario's names of the account's queues; others have no faults."""
        self.enabled = True

    def decide(self, name: str, _body: str) -> MessageOutcome:
        """Return what happens to a message (`SimulatedQueues.decide`)."""
        queue = self.queues.get(name, "")
        if not self.enabled or not queue:
            return DELIVERED
        self._sent[queue] += 1
        fault = self._waiting.get((queue, self._sent[queue]))
        if fault is None or (fault.kind is MessageFaultKind.REORDER and name.endswith(".fifo")):
            return DELIVERED
        self._coverage.count_message_fault(queue, fault.kind.value)
        self._note(
            f"{fault.kind.value} message {fault.nth} to {queue}{f' {fault.seconds:g} s' if fault.seconds else ''}"
        )
        return _fate(fault)


def _fate(fault: MessageFault) -> MessageOutcome:
    if fault.kind is MessageFaultKind.DROP:
        return MessageOutcome(copies=0)
    if fault.kind is MessageFaultKind.DUPLICATE:
        return MessageOutcome(copies=2)
    if fault.kind is MessageFaultKind.DELAY:
        return MessageOutcome(delay_seconds=fault.seconds)
    return MessageOutcome(overtakes=True)
