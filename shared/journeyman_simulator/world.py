"""Runs a discrete-event simulation: actors that react to a cluster, on one virtual clock.

An actor simulates a controller, a kubelet or a cloud: it reads the API server (or its cloud), does the work that is due,
and returns when it is due next. The world calls all actors until none changes anything, then advances the clock to the
earliest due time. It uses no threads, no sleeps and no randomness, so the same start gives the same history, and a failing
seed can be run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from journeyman.errors import JourneymanError
from journeyman_simulator.clock import VirtualClock

_MAX_ROUNDS = 2_000


class WorldStuckError(JourneymanError):
    """The simulation cannot continue: its actors do not settle, or a condition that a scenario waits for does not occur."""


class Actor(Protocol):
    """A simulated component that reacts to changes and to the clock."""

    def act(self) -> bool:
        """Do the work that is due now; return whether anything changed."""
        ...

    def due(self) -> datetime | None:
        """Return when the actor has work if nothing else changes; None if it has none."""
        ...


class World:
    """Runs actors in a fixed order on a virtual clock."""

    def __init__(self, clock: VirtualClock, actors: Sequence[Actor]) -> None:
        self._clock = clock
        self._actors = tuple(actors)

    def settle(self) -> None:
        """Call all actors until none has work that is due now.

        Raises:
            WorldStuckError: Actors still change something after 2,000 rounds.
        """
        busy: list[Actor] = []
        for _ in range(_MAX_ROUNDS):
            busy = [actor for actor in self._actors if actor.act()]
            if not busy:
                return
        names = ", ".join(type(actor).__name__ for actor in busy)
        raise WorldStuckError(f"the world does not settle; still changing: {names}", time=self._clock.now().isoformat())

    def run_until(self, done: Callable[[], bool], *, within: timedelta, waiting_for: str) -> None:
        """Run until `done()` returns True.

        Args:
            done: Called after each step of the clock.
            within: The maximum virtual time.
            waiting_for: The condition, for the error message.

        Raises:
            WorldStuckError: `done()` did not return True in that time.
        """
        end = self._clock.now() + within
        self.settle()
        while not done():
            if not self._step(end):
                raise WorldStuckError(
                    f"still waiting for {waiting_for} after {within}", time=self._clock.now().isoformat()
                )

    def run_for(self, span: timedelta, *, unless: Callable[[], bool] = lambda: False) -> None:
        """Run for `span` of virtual time, or until `unless()` returns True after a step of the clock."""
        end = self._clock.now() + span
        self.settle()
        while not unless() and self._step(end):
            pass
        if not unless():
            self._clock.advance_to(end)
            self.settle()

    def _step(self, end: datetime) -> bool:
        """Advance the clock to the next time at which an actor is due, at most `end`; return False if there is none."""
        moments = [moment for actor in self._actors if (moment := actor.due()) is not None]
        upcoming = [moment for moment in moments if moment > self._clock.now()]
        if not upcoming or min(upcoming) > end:
            return False
        self._clock.advance_to(min(upcoming))
        self.settle()
        return True
