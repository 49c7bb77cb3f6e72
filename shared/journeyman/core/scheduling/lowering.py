"""Constraints between pods, lowered onto classes so that packing need not know them.

Zone spread becomes quotas: how many pods of a class go to which zone, by filling up the emptiest zones first, over the
zones that can really be provisioned or have room. Hostname spread becomes a cap: an extra axis beside cpu and memory of
which a node has `maxSkew` and each counted pod takes one. A class that is counted but not itself capped must not share a
node with a capped one, since it could push the count over the cap.

Differs: Karpenter picks a zone pod by pod, counts a zone that is out of stock as empty (and then stalls on it), and lets
counted pods without the constraint land anywhere; here they are spread too, so that the plan stays within the skew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from journeyman.core.api import labels
from journeyman.core.scheduling.classes import PodClass
from journeyman.core.scheduling.offers import Bools, Ints
from journeyman.core.scheduling.topology import Spread

UNLIMITED: Final = 1 << 40
_SETTLING_ROUNDS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """`count` pods of one class that may go to any of `zones` (None: wherever the class may).

    `is_quota`: zones were chosen, for these and for other pods, on the understanding that all of these go there.
    """

    class_index: int
    count: int
    zones: tuple[str, ...] | None = None
    is_quota: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostCaps:
    """Hostname spread as axes. All arrays have a row per class and a column per axis.

    `takes`: the class is counted and capped. `counted`: its pods are counted, capped or not. `bound`: it has the
    constraint. `caps[h]` is what a node has of axis h; `spreads[h]` is the constraint behind it.
    """

    spreads: tuple[Spread, ...]
    caps: Ints
    takes: Ints
    counted: Bools
    bound: Bools


@dataclass(frozen=True, slots=True, kw_only=True)
class Zones:
    """What one class finds: zones it can be provisioned in, and per zone how many of its pods fit on nodes there.

    `counts` has, by spread asked about (in that order), the pods counted so far in each domain: zones where a counting
    node stands or could be opened, be it for other pods only. `discouraged` zones have nothing but NodePools whose taints
    ask for other pods: they are taken when no other zone will do.
    """

    provisionable: frozenset[str]
    room: Mapping[str, int]
    counts: tuple[Mapping[str, int], ...]
    discouraged: frozenset[str] = frozenset()


def free_of_zones(classes: Sequence[PodClass]) -> tuple[int, ...]:
    """The classes that a zone spread of another class counts, but that may go anywhere themselves."""
    groups = {s.group.id: s for cls in classes for s in cls.spreads if s.key == labels.ZONE}
    return tuple(
        index
        for index, cls in enumerate(classes)
        if not any(s.key == labels.ZONE for s in cls.spreads)
        and any(s.counts(cls.namespace, cls.labels) for s in groups.values())
    )


def lower_hostnames(classes: Sequence[PodClass]) -> HostCaps:
    """Caps for all hostname spreads of these classes."""
    axes: dict[tuple[bytes, int], Spread] = {}
    for cls in classes:
        for spread in cls.spreads:
            if spread.key == labels.HOSTNAME:
                axes.setdefault((spread.group.id, spread.max_skew), spread)
    shape = (len(classes), len(axes))
    counted: Bools = np.zeros(shape, dtype=bool)
    bound: Bools = np.zeros(shape, dtype=bool)
    for h, ((group, skew), axis) in enumerate(axes.items()):
        for c, cls in enumerate(classes):
            counted[c, h] = axis.counts(cls.namespace, cls.labels)
            bound[c, h] = any(s.group.id == group and s.max_skew == skew for s in cls.spreads)
    return HostCaps(
        spreads=tuple(axes.values()),
        caps=np.array([s.max_skew for s in axes.values()], dtype=np.int64),
        takes=(counted & bound).astype(np.int64),
        counted=counted,
        bound=bound,
    )


def lower_zones(
    classes: Sequence[PodClass], counts: Sequence[int], zones_of: Callable[[int, Sequence[Spread]], Zones]
) -> tuple[list[Unit], dict[int, int]]:
    """Quotas for zone spread.

    Classes that are only counted come first, then those with the least choice of zones: where they go does not depend on
    the others, and those must stay right wherever they went. Classes whose zones partly overlap may still upset each
    other; then they are spread again around each other, and pods for which that does not help are left without a zone.

    Args:
        classes: In queue order.
        counts: How many pods of each are to be placed.
        zones_of: What a class (by index) finds, with the counts of some spreads; only asked for classes that zone spread
            touches.

    Returns:
        Units in queue order, and by class index how many pods no zone may take without breaking the skew.
    """
    groups = {s.group.id: s for cls in classes for s in cls.spreads if s.key == labels.ZONE}
    touched: dict[int, _Spreading] = {}
    for index, cls in enumerate(classes):
        own = tuple(s for s in cls.spreads if s.key == labels.ZONE)
        counting = frozenset(g for g, s in groups.items() if s.counts(cls.namespace, cls.labels))
        if own or counting:
            others = tuple(groups[g] for g in sorted(counting - {s.group.id for s in own}))
            touched[index] = _Spreading(counts[index], own, others, counting, zones_of(index, (*own, *others)))
    ledger: dict[bytes, dict[str, int]] = {group: {} for group in groups}
    order = sorted(touched, key=lambda i: (bool(touched[i].own), len(touched[i].reachable), i))
    for index in order:
        touched[index].spread(ledger)
    for _ in range(_SETTLING_ROUNDS):
        upset = [index for index in order if touched[index].violations(ledger)]
        for index in upset:
            touched[index].spread(ledger)
        if not upset:
            break
    for index in order:
        touched[index].withdraw(touched[index].violations(ledger), ledger)
    return _as_units(counts, touched)


def _as_units(counts: Sequence[int], touched: Mapping[int, _Spreading]) -> tuple[list[Unit], dict[int, int]]:
    units: list[Unit] = []
    stuck: dict[int, int] = {}
    for index, count in enumerate(counts):
        if index not in touched:
            units.append(Unit(class_index=index, count=count))
            continue
        given = touched[index].given
        units += [
            Unit(class_index=index, count=n, zones=(zone,), is_quota=True) for zone, n in sorted(given.items()) if n
        ]
        left = count - sum(given.values())
        if left:
            stuck[index] = left
    return [unit for unit in units if unit.count], stuck


@dataclass(slots=True)
class _Spreading:
    """One class being spread over zones; `given` is how many of its pods each zone gets.

    `own` are the class's constraints, `others` those that merely count it: these are kept level, but forbid nothing.
    `counting` are the groups, of both, that count it. The ledger has the pods sent to each zone so far, by group.
    """

    pods: int
    own: tuple[Spread, ...]
    others: tuple[Spread, ...]
    counting: frozenset[bytes]
    zones: Zones
    given: dict[str, int] = field(default_factory=dict)

    @property
    def reachable(self) -> list[str]:
        """The zones it may be sent to."""
        return sorted(self.zones.provisionable | {z for z, n in self.zones.room.items() if n > 0})

    def spread(self, ledger: dict[bytes, dict[str, int]]) -> None:
        """Choose zones (again), given where the others went.

        A class that no spread counts stays together as far as it can: where nodes have room for it, else in the
        emptiest zone.
        """
        self.withdraw(list(self.given), ledger)
        levels = self._levels(ledger)
        known = self.zones
        room = {z: UNLIMITED if z in known.provisionable else known.room.get(z, 0) for z in self.reachable}
        if self.counting:
            self.given = _water_fill(self.pods, room, levels, known.discouraged)
        else:
            admitted = [z for z in self.reachable if all(level.admits(z) for level in levels)]
            left = self.pods
            for zone in sorted(admitted, key=lambda z: self._rank_together(z, levels)):
                self.given[zone] = min(left, room[zone])
                left -= self.given[zone]
        self._enter(self.given, ledger, 1)

    def _rank_together(self, zone: str, levels: Sequence[_Level]) -> tuple[bool, bool, int, str]:
        too_small = self.zones.room.get(zone, 0) < self.pods
        return zone in self.zones.discouraged, too_small, max(level.counts[zone] for level in levels), zone

    def withdraw(self, zones: Iterable[str], ledger: dict[bytes, dict[str, int]]) -> None:
        """Take its pods back from these zones."""
        taken = {zone: self.given.pop(zone) for zone in list(zones)}
        self._enter(taken, ledger, -1)

    def violations(self, ledger: dict[bytes, dict[str, int]]) -> list[str]:
        """The zones in which its pods break one of its constraints, now that all others are placed."""
        if not self.own:
            return []
        levels = self._levels(ledger)
        return [z for z, n in sorted(self.given.items()) if n and any(level.is_over(z) for level in levels)]

    def _enter(self, zones: Mapping[str, int], ledger: dict[bytes, dict[str, int]], sign: int) -> None:
        for group in self.counting:
            placed = ledger[group]
            for zone, n in zones.items():
                placed[zone] = placed.get(zone, 0) + sign * n

    def _levels(self, ledger: Mapping[bytes, Mapping[str, int]]) -> list[_Level]:
        nothing = dict.fromkeys(self.reachable, 0)
        return [
            _Level.of(
                spread,
                {**nothing, **counts},
                ledger[spread.group.id],
                counts_itself=spread.group.id in self.counting,
                binding=index < len(self.own),
            )
            for index, (spread, counts) in enumerate(zip((*self.own, *self.others), self.zones.counts, strict=True))
        ]


@dataclass(slots=True)
class _Level:
    """One spread's count per zone while a class is being spread. `skew` None: balance, but forbid nothing."""

    counts: dict[str, int]
    skew: int | None
    floor_is_zero: bool
    counts_itself: bool

    @classmethod
    def of(
        cls, spread: Spread, counts: Mapping[str, int], placed: Mapping[str, int], *, counts_itself: bool, binding: bool
    ) -> _Level:
        return cls(
            counts={zone: counts[zone] + placed.get(zone, 0) for zone in sorted(counts)},
            skew=spread.max_skew if binding else None,
            floor_is_zero=binding and len(counts) < spread.min_domains,
            counts_itself=counts_itself,
        )

    @property
    def floor(self) -> int:
        """The count that others are compared with."""
        return 0 if self.floor_is_zero else min(self.counts.values())

    def admits(self, zone: str) -> bool:
        """Whether one more pod may go there."""
        return self.skew is None or self.counts[zone] + self.counts_itself - self.floor <= self.skew

    def is_over(self, zone: str) -> bool:
        """Whether the pods there are too many already."""
        return self.skew is not None and self.counts_itself and self.counts[zone] - self.floor > self.skew

    def excess(self, zone: str) -> int:
        """How far the zone is above the emptiest, if more of these pods would raise it."""
        return self.counts[zone] - min(self.counts.values()) if self.counts_itself else 0

    def add(self, zone: str, n: int) -> None:
        if self.counts_itself:
            self.counts[zone] += n


def _water_fill(
    pods: int, room: dict[str, int], levels: Sequence[_Level], discouraged: frozenset[str]
) -> dict[str, int]:
    """How many pods each zone gets: always the emptiest zone that every spread admits, discouraged ones last.

    Once all zones are level and none is short of room, whole rounds are dealt at once.
    """
    given = dict.fromkeys(room, 0)

    def give(zone: str, n: int) -> None:
        given[zone] += n
        room[zone] -= n
        for level in levels:
            level.add(zone, n)

    while pods:
        rounds = 0 if discouraged else _whole_rounds(pods, room, levels)
        if rounds:
            for zone in room:
                give(zone, rounds)
            pods -= rounds * len(room)
            continue
        open_zones = [z for z in room if room[z] > 0 and all(level.admits(z) for level in levels)]
        if not open_zones:
            break
        give(min(open_zones, key=lambda z: (z in discouraged, max(level.excess(z) for level in levels), z)), 1)
        pods -= 1
    return given


def _whole_rounds(pods: int, room: Mapping[str, int], levels: Sequence[_Level]) -> int:
    """Rounds of one pod per zone that can be dealt at once without changing any difference between zones."""
    if not room or any(level.floor_is_zero or set(level.counts) != set(room) for level in levels):
        return 0
    if any(len(set(level.counts.values())) > 1 for level in levels):
        return 0
    return min(pods // len(room), *room.values())
