"""Constraints between pods, lowered onto classes so that packing need not know them.

Zone spread becomes quotas: how many pods of a class go to which zone, by filling up the emptiest zones first, over the
zones that can really be provisioned or have room. Hostname spread becomes a cap: an extra axis beside cpu and memory of
which a node has `maxSkew` and each counted pod takes one. A class that is counted but not itself capped must not share a
node with a capped one, since it could push the count over the cap.

Differs: Karpenter picks a zone pod by pod, counts a zone that is out of stock as empty (and then stalls on it), and lets
counted pods without the constraint land anywhere; here they are spread too, so that the plan stays within the skew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from journeyman.core.api import labels
from journeyman.core.scheduling.classes import PodClass
from journeyman.core.scheduling.offers import Bools, Ints
from journeyman.core.scheduling.topology import Spread

UNLIMITED = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """`count` pods of one class that may go to any of `zones` (None: wherever the class may)."""

    class_index: int
    count: int
    zones: tuple[str, ...] | None = None


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
    node stands or could be opened, be it for other pods only.
    """

    provisionable: frozenset[str]
    room: Mapping[str, int]
    counts: tuple[Mapping[str, int], ...]


def lower_hostnames(classes: Sequence[PodClass]) -> HostCaps:
    """Caps for all hostname spreads of these classes."""
    axes: dict[tuple[bytes, int], Spread] = {}
    for cls in classes:
        for spread in cls.spreads:
            if spread.key == labels.HOSTNAME:
                axes.setdefault((spread.group, spread.max_skew), spread)
    shape = (len(classes), len(axes))
    counted: Bools = np.zeros(shape, dtype=bool)
    bound: Bools = np.zeros(shape, dtype=bool)
    for h, ((group, skew), axis) in enumerate(axes.items()):
        for c, cls in enumerate(classes):
            counted[c, h] = axis.counts(cls.namespace, cls.labels)
            bound[c, h] = any(s.group == group and s.max_skew == skew for s in cls.spreads)
    return HostCaps(
        spreads=tuple(axes.values()),
        caps=np.array([s.max_skew for s in axes.values()], dtype=np.int64),
        takes=(counted & bound).astype(np.int64),
        counted=counted,
        bound=bound,
    )


@dataclass(slots=True)
class _Ledger:
    """Pods that this pass has sent to each zone, by spread group."""

    groups: Mapping[bytes, Spread]
    placed: dict[bytes, dict[str, int]] = field(default_factory=dict)

    def counting(self, cls: PodClass) -> tuple[bytes, ...]:
        """The groups that count pods of this class."""
        return tuple(group for group, spread in self.groups.items() if spread.counts(cls.namespace, cls.labels))

    def of(self, group: bytes) -> dict[str, int]:
        return self.placed.setdefault(group, {})


def lower_zones(
    classes: Sequence[PodClass], zones_of: Callable[[int, Sequence[Spread]], Zones]
) -> tuple[list[Unit], dict[int, int]]:
    """Quotas for zone spread.

    Args:
        classes: In queue order.
        zones_of: What a class (by index) finds, with the counts of some spreads; only asked for classes that zone spread
            touches.

    Returns:
        Units in queue order, and by class index how many pods no zone may take without breaking the skew.
    """
    groups = {s.group: s for cls in classes for s in cls.spreads if s.key == labels.ZONE}
    ledger = _Ledger(groups)
    units: list[Unit] = []
    stuck: dict[int, int] = {}
    for index, cls in enumerate(classes):
        counting = ledger.counting(cls)
        own = [s for s in cls.spreads if s.key == labels.ZONE]
        if not counting and not own:
            units.append(Unit(class_index=index, count=len(cls.pods)))
            continue
        others = [groups[group] for group in counting if group not in {s.group for s in own}]
        quotas = _quotas(cls, own, others, zones_of(index, [*own, *others]), ledger)
        units += [Unit(class_index=index, count=n, zones=zones) for zones, n in sorted(quotas.items()) if n]
        left = len(cls.pods) - sum(quotas.values())
        if left:
            stuck[index] = left
    return units, stuck


def _quotas(
    cls: PodClass, own: Sequence[Spread], others: Sequence[Spread], zones: Zones, ledger: _Ledger
) -> dict[tuple[str, ...], int]:
    """Pods per zone; a class that no spread counts goes to the emptiest zone as a whole.

    `own` are the class's constraints, `others` those that merely count it: these are kept level, but forbid nothing.
    """
    reachable = sorted(zones.provisionable | {z for z, n in zones.room.items() if n > 0})
    counting = ledger.counting(cls)
    levels = [
        _Level.of(
            s,
            {**dict.fromkeys(reachable, 0), **counts},
            ledger.of(s.group),
            counts_itself=s.group in counting,
            binding=index < len(own),
        )
        for index, (s, counts) in enumerate(zip([*own, *others], zones.counts, strict=True))
    ]
    if not counting:
        open_zones = [z for z in reachable if all(level.admits(z) for level in levels)]
        emptiest = min(open_zones, key=lambda z: (max(level.counts[z] for level in levels), z), default=None)
        return {(emptiest,): len(cls.pods)} if emptiest is not None else {}
    room = {z: UNLIMITED if z in zones.provisionable else zones.room.get(z, 0) for z in reachable}
    given = _water_fill(len(cls.pods), room, levels)
    for group in counting:
        placed = ledger.of(group)
        for zone, n in given.items():
            placed[zone] = placed.get(zone, 0) + n
    return {(zone,): n for zone, n in given.items()}


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

    def admits(self, zone: str) -> bool:
        if self.skew is None:
            return True
        floor = 0 if self.floor_is_zero else min(self.counts.values())
        return self.counts[zone] + self.counts_itself - floor <= self.skew

    def excess(self, zone: str) -> int:
        """How far the zone is above the emptiest, if more of these pods would raise it."""
        return self.counts[zone] - min(self.counts.values()) if self.counts_itself else 0

    def add(self, zone: str, n: int) -> None:
        if self.counts_itself:
            self.counts[zone] += n


def _water_fill(pods: int, room: dict[str, int], levels: Sequence[_Level]) -> dict[str, int]:
    """How many pods each zone gets: always the emptiest zone that every spread admits; equal ones by name.

    Once all zones are level and none is short of room, whole rounds are dealt at once.
    """
    given = dict.fromkeys(room, 0)

    def give(zone: str, n: int) -> None:
        given[zone] += n
        room[zone] -= n
        for level in levels:
            level.add(zone, n)

    while pods:
        rounds = _whole_rounds(pods, room, levels)
        if rounds:
            for zone in room:
                give(zone, rounds)
            pods -= rounds * len(room)
            continue
        open_zones = [z for z in room if room[z] > 0 and all(level.admits(z) for level in levels)]
        if not open_zones:
            break
        give(min(open_zones, key=lambda z: (max(level.excess(z) for level in levels), z)), 1)
        pods -= 1
    return given


def _whole_rounds(pods: int, room: Mapping[str, int], levels: Sequence[_Level]) -> int:
    """Rounds of one pod per zone that can be dealt at once without changing any difference between zones."""
    if not room or any(level.floor_is_zero or set(level.counts) != set(room) for level in levels):
        return 0
    if any(len(set(level.counts.values())) > 1 for level in levels):
        return 0
    return min(pods // len(room), *room.values())
