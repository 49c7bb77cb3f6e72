"""What sets functions going in a story: pollers, schedules, and the minutes that judges are asked at. All are `Actor`s."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from journeyman.errors import JourneymanError
from journeyman.ports import Clock
from journeyman_simulator.account.account import Account
from journeyman_simulator.aws.event_source import EventSourceMapping, Function
from journeyman_simulator.aws.stack import Stack
from journeyman_simulator.faults.baton import Baton

MINUTE: Final = timedelta(minutes=1)


class Poller:
    """An event source mapping whose function may stand still in the middle of a batch."""

    def __init__(self, mapping: EventSourceMapping, clock: Clock, baton: Baton) -> None:
        self._mapping = mapping
        self._clock = clock
        self._baton = baton
        self.due = mapping.due

    def act(self) -> bool:
        """Poll if there is something to receive; True if there was."""
        due = self.due()
        if due is None or due > self._clock.now():
            return False
        self._baton.start(self._mapping.act)
        return True


class DirectInvocations:
    """Schedules that invoke a function without a queue between."""

    def __init__(self, account: Account, stack: Stack, baton: Baton) -> None:
        self._account = account
        self._functions: dict[str, Function] = {function.arn: function for function in stack.functions.values()}
        self._baton = baton

    def due(self) -> datetime | None:
        """They come from the ticker."""
        return None

    def act(self) -> bool:
        """Invoke for each delivery that waits; True if there was one."""
        deliveries = self._account.take_deliveries()
        for delivery in deliveries:
            self._baton.start(partial(self._functions[delivery.function_arn].invoke, delivery.event))
        return bool(deliveries)


class EndlessError(JourneymanError):
    """A story goes on and on."""


class Most:
    """Ends a story in which functions run more often than in any that comes to rest.

    Args:
        most: So many runs, of all functions together, are not too many yet.
        runs: How many there were.
        told: Who ran how often, and what woke them last.
    """

    def __init__(self, most: int, runs: Callable[[], int], told: Callable[[], str]) -> None:
        self._most = most
        self._runs = runs
        self._told = told

    def due(self) -> datetime | None:
        """It only looks on."""
        return None

    def act(self) -> bool:
        """Raises EndlessError if there were too many."""
        if self._runs() > self._most:
            raise EndlessError(f"more than {self._most} runs: {self._told()}")
        return False


class Minutes:
    """Asks the judges each minute."""

    def __init__(self, clock: Clock, ask: Callable[[], None]) -> None:
        self._clock = clock
        self._ask = ask
        self._next = clock.now() + MINUTE

    def due(self) -> datetime | None:
        """The next full minute."""
        return self._next

    def act(self) -> bool:
        """Ask, if it is time; that changes nothing."""
        if self._clock.now() >= self._next:
            self._next += MINUTE
            self._ask()
        return False
