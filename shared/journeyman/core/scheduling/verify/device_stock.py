"""Which devices there are and how much of what is taken by parts, for the rules in `devices`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct, field

from journeyman.core.api import quantity
from journeyman.core.api.cel import DeviceFacts, InvalidExpressionError, read
from journeyman.core.api.cel_values import EvaluationError
from journeyman.core.api.dra import (
    CapacityPolicy,
    Device,
    DeviceCapacity,
    DeviceRequest,
    DeviceSelector,
    ResourceSliceSpec,
)
from journeyman.core.api.objects import NodeSelector, QuantityText
from journeyman.core.scheduling.verify.index import Place
from journeyman.errors import InvalidQuantityError

Id = tuple[str, str, str]
"""Driver, pool and name of a device."""

Parts = dict[tuple[str, ...], int]
"""Nano units by counter (driver, pool, set, name) and by shared capacity (driver, pool, device, "", name)."""


class Known(NamedTuple):
    """A device, and the slice it was found in."""

    device: Device
    where: ResourceSliceSpec
    facts: DeviceFacts

    @property
    def id(self) -> Id:
        """Which one it is."""
        return self.where.driver, self.where.pool.name, self.device.name

    def part(self, name: str) -> tuple[str, ...]:
        """One of its capacities."""
        return (*self.id, "", name)

    def counted(self) -> Parts:
        """What it draws on its pool's counters."""
        return {
            (*self.id[:2], drawn.counter_set, name): nano(counter.value)
            for drawn in self.device.consumes_counters
            for name, counter in drawn.counters.items()
        }

    def consumed(self, request: DeviceRequest) -> Parts | None:
        """What a request takes of its capacity, if it is shared; None if it does not give that."""
        asked = {name: nano(text) for name, text in request.capacity.requests.items()}
        if any(name not in self.device.capacity for name in asked):
            return None
        found: Parts = {}
        for name, capacity in self.device.capacity.items():
            amount = _rounded(asked.get(name), capacity)
            if amount is None:
                return None
            found[self.part(name)] = amount
        return found

    def large_enough(self, request: DeviceRequest) -> bool:
        """Whether it has the capacity that the request names."""
        has = self.device.capacity
        return all(name in has and nano(has[name].value) >= nano(n) for name, n in request.capacity.requests.items())

    def reached_from(self, place: Place) -> bool:
        """Whether every node that the place may become reaches it."""
        source = self.device if self.where.per_device_node_selection else self.where
        if source.all_nodes:
            return True
        if source.node_name:
            return place.node is not None and place.node.name == source.node_name
        return source.node_selector is not None and selected(place, source.node_selector)


def selected(place: Place, selector: NodeSelector) -> bool:
    """Whether a node selector means every node that the place may become."""
    terms = [
        term.match_expressions
        for term in selector.node_selector_terms
        if all(place.node is not None and place.node.name in entry.values for entry in term.match_fields)
    ]
    return bool(terms) and not place.rows & ~place.possible.suiting((tuple(terms),))


def is_selected(known: Known, selectors: Iterable[DeviceSelector]) -> bool:
    """Whether all of these select the device."""
    try:
        return all(s.cel is not None and read(s.cel.expression).selects(known.facts) for s in selectors)
    except (InvalidExpressionError, EvaluationError):
        return False


def nano(text: QuantityText) -> int:
    """A quantity. Raises InvalidQuantityError."""
    return quantity.parse(text).nano


def _rounded(asked: int | None, capacity: DeviceCapacity) -> int | None:
    """What a request for so much takes."""
    policy = capacity.request_policy or CapacityPolicy()
    if asked is None:
        return nano(capacity.value if policy.default is None else policy.default)
    if policy.valid_range is not None:
        least = nano(policy.valid_range.min or "0")
        step = nano(policy.valid_range.step or "0")
        amount = max(asked, least)
        if step and (amount - least) % step:
            amount += step - (amount - least) % step
        return amount if policy.valid_range.max is None or amount <= nano(policy.valid_range.max) else None
    if policy.valid_values:
        return min((value for text in policy.valid_values if (value := nano(text)) >= asked), default=None)
    return asked


class Stock(Struct):
    """Devices by id, how much there is of what is taken by parts, and the pools (driver, name) that are not whole."""

    devices: dict[Id, Known] = field(default_factory=dict)
    totals: Parts = field(default_factory=dict)
    broken: set[tuple[str, str]] = field(default_factory=set)

    @classmethod
    def of(cls, specs: Iterable[ResourceSliceSpec], *, published: bool) -> Stock:
        """What some slices have; of published pools the newest generation."""
        pools: dict[tuple[str, str], list[ResourceSliceSpec]] = {}
        for spec in specs:
            pools.setdefault((spec.driver, spec.pool.name), []).append(spec)
        made = cls()
        for key, slices in pools.items():
            newest = max(spec.pool.generation for spec in slices)
            current = [spec for spec in slices if not published or spec.pool.generation == newest]
            names = [device.name for spec in current for device in spec.devices]
            whole = not published or len(current) == current[0].pool.resource_slice_count
            if not whole or len(set(names)) < len(names) or not all(map(made._add, current)):
                made.broken.add(key)
        return made

    def _add(self, spec: ResourceSliceSpec) -> bool:
        """Add a slice; whether its amounts can be read."""
        driver, pool = spec.driver, spec.pool.name
        try:
            for counters in spec.shared_counters:
                for name, counter in counters.counters.items():
                    self.totals[driver, pool, counters.name, name] = nano(counter.value)
            for device in () if spec.shared_counters else spec.devices:
                for name, capacity in device.capacity.items():
                    self.totals[driver, pool, device.name, "", name] = nano(capacity.value)
                self.devices[driver, pool, device.name] = Known(device, spec, DeviceFacts.of(driver, device))
        except InvalidQuantityError:
            return False
        return True


class Book(Struct):
    """What is taken: whole devices, by how many, and parts."""

    devices: Counter[Id] = field(default_factory=Counter)
    parts: Parts = field(default_factory=dict)

    def take(self, known: Known, parts: Parts) -> None:
        """Take a device, which is not shared or of which these parts are taken."""
        if not known.device.allow_multiple_allocations:
            self.devices[known.id] += 1
        self.add(parts)

    def add(self, parts: Parts) -> None:
        """Take parts."""
        for key, amount in parts.items():
            self.parts[key] = self.parts.get(key, 0) + amount

    def widen(self, other: Book) -> None:
        """Take what either of the two has taken."""
        self.devices |= other.devices
        for key, amount in other.parts.items():
            self.parts[key] = max(self.parts.get(key, 0), amount)

    def excess(self, totals: Mapping[tuple[str, ...], int]) -> Iterator[str]:
        """What is taken more often than it is there, in words."""
        for device, times in sorted(self.devices.items()):
            if times > 1:
                yield f"device {'/'.join(device)} is taken {times} times"
        for key, amount in sorted(self.parts.items()):
            if amount > totals.get(key, 0):
                yield f"more of {'/'.join(part for part in key if part)} is taken than there is"
