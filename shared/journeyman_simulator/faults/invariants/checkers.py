"""The base class of invariant checkers, and the set of checkers of one scenario.

Checkers share no code with the product's decisions. Each scenario has its own checkers, which are called in the order of
events and yield one sentence per violation.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct

from journeyman_simulator.apiserver.server import Write
from journeyman_simulator.faults.scenario_view import CloudEvent, RunError, ScenarioView


class Violation(Struct, frozen=True, kw_only=True):
    """A violation of an invariant: the invariant's name, what happened, and when."""

    invariant: str
    what: str
    at: datetime

    def __str__(self) -> str:
        return f"{self.at:%H:%M:%S} {self.invariant}: {self.what}"


class InvariantChecker:
    """One invariant. A subclass overrides the checks it needs; each yields a sentence per violation."""

    name: str

    def __init__(self, view: ScenarioView) -> None:
        """Create a checker of the scenario behind `view`."""
        self.view = view

    def check_write(self, write: Write) -> Iterable[str]:
        """Check a write that the API server accepted, before its caller receives the response."""
        return ()

    def check_cloud_event(self, event: CloudEvent) -> Iterable[str]:
        """Check an event of an instance."""
        return ()

    def check_error(self, error: RunError) -> Iterable[str]:
        """Check an error that a run reported."""
        return ()

    def check_every_minute(self) -> Iterable[str]:
        """Check the state at each full minute, when the schedule invokes the sweep in scenarios that have one."""
        return ()

    def check_at_rest(self) -> Iterable[str]:
        """Check the state after the faults, when the cluster no longer changes."""
        return ()


class InvariantCheckers:
    """Calls all checkers of one scenario and collects the violations."""

    def __init__(self, view: ScenarioView, checkers: Iterable[type[InvariantChecker]]) -> None:
        self._clock = view.clock
        self._checkers = [checker(view) for checker in checkers]
        self._write_checkers = [c for c in self._checkers if type(c).check_write is not InvariantChecker.check_write]
        self.violations: list[Violation] = []

    def check_write(self, write: Write) -> None:
        """Pass a write to every checker."""
        for checker in self._write_checkers:
            self._record(checker, checker.check_write(write))

    def check_cloud_event(self, event: CloudEvent) -> None:
        """Pass a cloud event to every checker."""
        for checker in self._checkers:
            self._record(checker, checker.check_cloud_event(event))

    def check_error(self, error: RunError) -> None:
        """Pass a run's error to every checker."""
        for checker in self._checkers:
            self._record(checker, checker.check_error(error))

    def check_every_minute(self) -> None:
        """Call `check_every_minute` of every checker."""
        for checker in self._checkers:
            self._record(checker, checker.check_every_minute())

    def check_at_rest(self) -> None:
        """Call `check_at_rest` of every checker."""
        for checker in self._checkers:
            self._record(checker, checker.check_at_rest())

    def report(self, invariant: str, what: str) -> None:
        """Add a violation that the scenario run found without a checker."""
        self.violations.append(Violation(invariant=invariant, what=what, at=self._clock.now()))

    def _record(self, checker: InvariantChecker, found: Iterable[str]) -> None:
        for what in found:
            self.report(checker.name, what)
