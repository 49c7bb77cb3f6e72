"""The base class of invariant checkers, and the set of them that observes one scenario.

Checkers share no code with the product's decisions. A checker is created for each scenario, is called in the order of
events, and yields one sentence per violation.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct

from journeyman_simulator.apiserver.server import Write
from journeyman_simulator.faults.scenario_view import CloudEvent, RunError, ScenarioView


class Violation(Struct, frozen=True, kw_only=True):
    """An invariant was violated: which one, what happened, when."""

    invariant: str
    what: str
    at: datetime

    def __str__(self) -> str:
        return f"{self.at:%H:%M:%S} {self.invariant}: {self.what}"


class InvariantChecker:
    """One invariant. A subclass overrides the checks it needs; each yields a sentence per violation."""

    name: str

    def __init__(self, view: ScenarioView) -> None:
        """Args: `view` is the true state of cluster, account and queues."""
        self.view = view

    def check_write(self, write: Write) -> Iterable[str]:
        """Check a write that the API server accepted; its caller has no answer yet."""
        return ()

    def check_cloud_event(self, event: CloudEvent) -> Iterable[str]:
        """Check what happened to an instance."""
        return ()

    def check_error(self, error: RunError) -> Iterable[str]:
        """Check an error that a run reported."""
        return ()

    def check_every_minute(self) -> Iterable[str]:
        """Check the state at each full minute, when the schedule invokes the sweep in scenarios that have one."""
        return ()

    def check_at_rest(self) -> Iterable[str]:
        """Check the state once faults have ended and the cluster no longer changes."""
        return ()


class InvariantCheckers:
    """All checkers of one scenario, and the violations they found."""

    def __init__(self, view: ScenarioView, checkers: Iterable[type[InvariantChecker]]) -> None:
        self._clock = view.clock
        self._checkers = [checker(view) for checker in checkers]
        self._of_writes = [c for c in self._checkers if type(c).check_write is not InvariantChecker.check_write]
        self.violations: list[Violation] = []

    def check_write(self, write: Write) -> None:
        """Pass a write to every checker."""
        for checker in self._of_writes:
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
        """Call every checker's check of the minute."""
        for checker in self._checkers:
            self._record(checker, checker.check_every_minute())

    def check_at_rest(self) -> None:
        """Call every checker's check at rest."""
        for checker in self._checkers:
            self._record(checker, checker.check_at_rest())

    def report(self, invariant: str, what: str) -> None:
        """Add a violation that the scenario run itself found."""
        self.violations.append(Violation(invariant=invariant, what=what, at=self._clock.now()))

    def _record(self, checker: InvariantChecker, found: Iterable[str]) -> None:
        for what in found:
            self.report(checker.name, what)
