"""Volumes on existing nodes: each attaches so many of a CSI driver's, one that several pods share only once.

Restates: karpenter pkg/scheduling/volumeusage.go `ExceedsLimits`.
Differs: only drivers that the pod itself uses can refuse it.
"""

from __future__ import annotations

from collections.abc import Sequence

from journeyman.core.scheduling.demand.classes import PodClass
from journeyman.core.scheduling.demand.volumes import VolumeRoom


class Attachments:
    """What nodes can still attach while pods are placed."""

    def __init__(self, rooms: Sequence[VolumeRoom]) -> None:
        """`rooms` has an entry per node; without any there are no limits."""
        self._rooms = rooms
        self._own: dict[tuple[int, str], int] = {}
        self._shared: dict[tuple[int, str], set[str]] = {}

    def admit(self, place: int, cls: PodClass) -> bool:
        """Whether one more pod of the class can have its volumes there."""
        if not self._rooms:
            return True
        room = self._rooms[place]
        for driver in {*cls.volume_counts, *(driver for driver, _ in cls.shared_volumes)}:
            free = room.free(driver)
            new = self._new(place, driver, cls)
            if free is not None and self._taken(place, driver) + cls.volume_counts.get(driver, 0) + len(new) > free:
                return False
        return True

    def attach(self, place: int, cls: PodClass, pods: int) -> None:
        """Attach the volumes of so many pods of the class."""
        if not self._rooms:
            return
        for driver, count in cls.volume_counts.items():
            self._own[place, driver] = self._own.get((place, driver), 0) + count * pods
        for driver, key in cls.shared_volumes:
            if key in self._new(place, driver, cls):
                self._shared.setdefault((place, driver), set()).add(key)

    def _taken(self, place: int, driver: str) -> int:
        return self._own.get((place, driver), 0) + len(self._shared.get((place, driver), ()))

    def _new(self, place: int, driver: str, cls: PodClass) -> set[str]:
        """Shared volumes of the driver that are not there yet."""
        here = self._rooms[place].attached.get(driver, frozenset()) | self._shared.get((place, driver), set())
        return {key for of, key in cls.shared_volumes if of == driver} - here
