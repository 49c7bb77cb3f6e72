"""Searches devices for one pod on one node: depth first over claims, requests and devices, with a budget of tries.

Published devices are tried before those of a new node, each by driver, pool and position in its slice. Of devices
that the pod's claims cannot distinguish only the first free one is tried, and the devices of one request are chosen in
order, so that a failure is found once and not for every choice.

Restates: karpenter pkg/scheduling/dynamicresources/allocator.go `dfs`, `tryDevice`; constraint.go
`MatchAttributeConstraint`; partitionable_devices.go `checkCounters`.
Differs: the budget counts devices tried, where Karpenter has a timeout; `All` needs one device at least.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from journeyman.core.api.device_selectors import SelectorEvaluationError
from journeyman.core.api.dra import DeviceAttribute
from journeyman.core.scheduling.dra.devices import CounterDraw, CounterId, DeviceId, DevicePool, PoolDevice
from journeyman.core.scheduling.dra.requests import (
    MAX_DEVICES,
    ClaimRequests,
    MatchAttributeConstraint,
    RequestAlternative,
)
from journeyman.core.scheduling.requirements import Requirements

MAX_TRIES: Final = 10_000
"""Devices tried in one search, where Karpenter gives one pod 5 seconds (`allocateTimeout`)."""


class ChosenDevice(Struct, frozen=True):
    """A device chosen for a claim (by its position) and request, and the amounts that it draws on counters.

    `before` is the node's offer before the choice.
    """

    claim: int
    alternative: RequestAlternative
    device: PoolDevice
    draws: tuple[CounterDraw, ...]
    before: Requirements

    @property
    def exclusive(self) -> bool:
        """Whether no other request may have the device."""
        return not self.device.shared and not self.alternative.is_admin_access


class SearchBudget(Struct):
    """The number of devices that may still be tried."""

    left: int

    def spend(self) -> bool:
        """Use one try; return whether one was left."""
        self.left -= 1
        return self.left >= 0


class TargetNode(Struct, frozen=True, kw_only=True):
    """The node of a search: an existing one has a name, and its labels as its offer."""

    name: str
    offer: Requirements
    pools: Sequence[DevicePool]
    is_taken: Callable[[DeviceId], bool]
    used: Callable[[CounterId], int]


class DeviceSearch:
    """One search, for some claims on one node. `offer` is the node's offer, narrowed to nodes that access all chosen devices."""

    def __init__(self, *, node: TargetNode, demands: Sequence[tuple[int, ClaimRequests]], budget: SearchBudget) -> None:
        """Prepare the search; it tries the requests in the order of the demands."""
        self.node = node
        self.demands = demands
        self.budget = budget
        self.offer: Requirements = node.offer
        self.chosen: list[ChosenDevice] = []
        self._taken: set[DeviceId] = set()
        self._drawn: dict[CounterId, int] = {}
        self._values: dict[tuple[int, MatchAttributeConstraint], list[DeviceAttribute | None]] = {}
        self._steps: list[tuple[int, ClaimRequests, Sequence[RequestAlternative]]] = [
            (claim, demand, request.alternatives) for claim, demand in demands for request in demand.requests
        ]
        self._limits: dict[CounterId, int] = {
            counter: maximum for pool in node.pools for counter, maximum in pool.limits.items()
        }
        self._found: dict[RequestAlternative, Sequence[PoolDevice] | None] = {}
        self._alternatives = [alternative for _, _, alternatives in self._steps for alternative in alternatives]
        self._matched = [constraint.attribute for _, demand in demands for constraint in demand.constraints]
        self._kinds: dict[DeviceId, object] = {}

    def run(self) -> bool:
        """Whether all requests can be satisfied together; `chosen` are then the chosen devices, in order."""
        return self._satisfy_from(0)

    def _satisfy_from(self, step: int) -> bool:
        if step == len(self._steps):
            return True
        claim, _, alternatives = self._steps[step]
        left = MAX_DEVICES - sum(choice.claim == claim for choice in self.chosen)
        for alternative in alternatives:
            devices = self._candidates(alternative)
            if not devices:
                continue
            count = len(devices) if alternative.is_all else alternative.count
            if count <= left and self._fill(step, alternative, devices, count, 0):
                return True
        return False

    def _fill(
        self, step: int, alternative: RequestAlternative, devices: Sequence[PoolDevice], missing: int, start: int
    ) -> bool:
        """Choose `missing` more devices from `start` on, then continue with the next request."""
        if missing == 0:
            return self._satisfy_from(step + 1)
        failed: set[object] = set()
        last = start + 1 if alternative.is_all else len(devices)
        for index in range(start, last):
            device = devices[index]
            if self._is_taken(device, alternative) or (failed and self._kind(device) in failed):
                continue
            if not self.budget.spend():
                return False
            if self._take(step, alternative, device):
                if self._fill(step, alternative, devices, missing - 1, index if device.shared else index + 1):
                    return True
                self._release(step)
            if not device.shared:
                failed.add(self._kind(device))
        return False

    def _kind(self, device: PoolDevice) -> object:
        """Return what distinguishes a device for the claims; devices of one kind can replace each other."""
        if device.id not in self._kinds:
            values = (device.facts.attribute(name) for name in self._matched)
            self._kinds[device.id] = (
                device.id.driver,
                device.id.published,
                device.shared,
                device.draws,
                device.accessible_nodes,
                tuple((type(value), value) for value in values),
                tuple(each.tolerates(device) and each.would_select(device) for each in self._alternatives),
            )
        return self._kinds[device.id]

    def _candidates(self, alternative: RequestAlternative) -> Sequence[PoolDevice] | None:
        """Return the eligible devices of a request, in order; None if for `All` not all are known."""
        if alternative not in self._found:
            self._found[alternative] = (
                self._all_devices(alternative) if alternative.is_all else tuple(self._selected_devices(alternative))
            )
        return self._found[alternative]

    def _selected_devices(self, alternative: RequestAlternative) -> Iterator[PoolDevice]:
        for pool in self.node.pools:
            for device in () if pool.defect else pool.devices:
                if self._is_accessible(device) and alternative.tolerates(device) and alternative.would_select(device):
                    yield device

    def _all_devices(self, alternative: RequestAlternative) -> Sequence[PoolDevice] | None:
        found: list[PoolDevice] = []
        for pool in self.node.pools:
            accessible = [device for device in pool.devices if self._is_accessible(device)]
            if pool.defect and (accessible or not pool.devices):
                return None
            try:
                found += [device for device in accessible if alternative.selects(device)]
            except SelectorEvaluationError:
                return None
        return found if all(alternative.tolerates(device) for device in found) else None

    def _is_accessible(self, device: PoolDevice) -> bool:
        return device.accessible_nodes.narrowed(self.node.name, self.node.offer) is not None

    def _is_taken(self, device: PoolDevice, alternative: RequestAlternative) -> bool:
        if device.shared or alternative.is_admin_access:
            return False
        return device.id in self._taken or self.node.is_taken(device.id)

    # -- allocating and releasing -------------------------------------------------------------------------------------

    def _take(self, step: int, alternative: RequestAlternative, device: PoolDevice) -> bool:
        claim, demand, _ = self._steps[step]
        draws = () if alternative.is_admin_access else self._draws(device, alternative)
        if draws is None or not self._within_limits(device, draws):
            return False
        offer = device.accessible_nodes.narrowed(self.node.name, self.offer)
        if offer is None or not self._meets_constraints(claim, demand, alternative, device):
            return False
        choice = ChosenDevice(claim, alternative, device, draws, self.offer)
        self._record(demand, choice, 1)
        self.offer = offer
        self.chosen.append(choice)
        return True

    def _release(self, step: int) -> None:
        choice = self.chosen.pop()
        self.offer = choice.before
        self._record(self._steps[step][1], choice, -1)

    def _record(self, demand: ClaimRequests, choice: ChosenDevice, sign: int) -> None:
        for counter, amount in choice.draws:
            self._drawn[counter] = self._drawn.get(counter, 0) + sign * amount
        if choice.exclusive:
            (self._taken.add if sign > 0 else self._taken.remove)(choice.device.id)
        for constraint in demand.constraints:
            if constraint.concerns(choice.alternative):
                values = self._values.setdefault((choice.claim, constraint), [])
                values.append(choice.device.facts.attribute(constraint.attribute)) if sign > 0 else values.pop()

    def _draws(self, device: PoolDevice, alternative: RequestAlternative) -> tuple[CounterDraw, ...] | None:
        """Return the amounts drawn on counters and, if shared, the device's capacity; None if it cannot provide them."""
        if not device.shared:
            return device.draws
        consumed = [
            (device.counter(name), capacity.consumed(alternative.capacity.get(name)))
            for name, capacity in device.capacity.items()
        ]
        available = tuple(CounterDraw(counter, amount) for counter, amount in consumed if amount is not None)
        return (*device.draws, *available) if len(available) == len(consumed) else None

    def _within_limits(self, device: PoolDevice, draws: Sequence[CounterDraw]) -> bool:
        return all(
            self.node.used(counter) + self._drawn.get(counter, 0) + amount <= self._limit(counter, device)
            for counter, amount in draws
        )

    def _limit(self, counter: CounterId, device: PoolDevice) -> int:
        return device.capacity[counter.name].total if counter.of_device else self._limits.get(counter, 0)

    def _meets_constraints(
        self, claim: int, demand: ClaimRequests, alternative: RequestAlternative, device: PoolDevice
    ) -> bool:
        """Whether the device and the devices chosen before it meet the constraints."""
        for constraint in demand.constraints:
            if constraint.concerns(alternative):
                value = device.facts.attribute(constraint.attribute)
                if value is None or any(value != v for v in self._values.get((claim, constraint), ())[:1]):
                    return False
        return True
