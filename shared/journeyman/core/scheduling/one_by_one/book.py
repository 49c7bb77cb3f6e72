"""Requirements numbered, so that the same ones are merged and judged once however many nodes ask for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from journeyman.core.api import labels
from journeyman.core.scheduling.requirements import Requirements, requirement

NONE: Final = -1
"""The number of what cannot be: requirements that contradict each other."""


class Book:
    """Requirements by number; equal ones have the same."""

    def __init__(self) -> None:
        self._entries: list[Requirements] = []
        self._numbers: dict[Requirements, int] = {}
        self._narrowed: dict[tuple[int, int], int] = {}
        self._pins: dict[tuple[str, tuple[str, ...]], int] = {}

    def __getitem__(self, number: int) -> Requirements:
        return self._entries[number]

    def number(self, requirements: Requirements) -> int:
        """The number of these requirements."""
        found = self._numbers.get(requirements)
        if found is None:
            found = self._numbers[requirements] = len(self._entries)
            self._entries.append(requirements)
        return found

    def pin(self, key: str, values: Iterable[str]) -> int:
        """The number of `key In values`."""
        case = (key, tuple(sorted(values)))
        found = self._pins.get(case)
        if found is None:
            found = self._pins[case] = self.number(Requirements({key: requirement(key, "In", case[1])}))
        return found

    def narrowed(self, offer: int, wish: int) -> int:
        """An offer with a wish added, `NONE` if they cannot meet; well-known labels may be asked for undefined."""
        case = (offer, wish)
        found = self._narrowed.get(case)
        if found is None:
            offered, wanted = self._entries[offer], self._entries[wish]
            meets = offered.compatible(wanted, allow_undefined=labels.WELL_KNOWN) is None
            found = self._narrowed[case] = self.number(offered & wanted) if meets else NONE
        return found
