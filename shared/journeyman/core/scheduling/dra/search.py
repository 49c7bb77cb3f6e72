"""The search for devices: depth first over claims, their requests and the devices of each, with a bounded effort.

Published devices are tried before those that a node will bring, each kind by driver, pool and place in its slice. Of
devices that differ in name alone the first that is free stands for all, and the devices of one request are chosen in
order, so that a failure is found out once and not for every permutation.

Restates: karpenter pkg/scheduling/dynamicresources/allocator.go `dfs`, `tryDevice`; constraint.go
`MatchAttributeConstraint`; partitionable_devices.go `checkCounters`.
Differs: effort is counted in devices tried, where Karpenter looks at a clock; `All` needs one device at least.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from journeyman.core.api.cel_values import EvaluationError, Value, same
from journeyman.core.scheduling.dra.devices import Account, DeviceId, Pool, PoolDevice
from journeyman.core.scheduling.dra.requests import MOST_DEVICES, ClaimAsk, Match, Way
from journeyman.core.scheduling.requirements import Requirements

MOST_TRIES: Final = 10_000
"""Devices tried in one search, where Karpenter gives one pod 5 seconds (`allocateTimeout`)."""


class Use(Struct, frozen=True):
    """A device chosen: for which claim (its position) and request, and what it takes of which accounts.

    `before` is what the node offered until then.
    """

    claim: int
    way: Way
    device: PoolDevice
    draws: tuple[tuple[Account, int], ...]
    before: Requirements

    @property
    def exclusive(self) -> bool:
        """Whether nobody else may have the device."""
        return not self.device.shared and not self.way.admin


class Effort(Struct):
    """How many devices may still be tried."""

    left: int

    def spend(self) -> bool:
        """Take one; whether there was one."""
        self.left -= 1
        return self.left >= 0


class Node(Struct, frozen=True, kw_only=True):
    """A node as devices see it: one that stands has a name, and its labels as its offer."""

    name: str
    offer: Requirements
    pools: Sequence[Pool]
    is_taken: Callable[[DeviceId], bool]
    used: Callable[[Account], int]


class Search:
    """One search, for some claims on one node. `offer` is what it may still be once it reaches all devices chosen."""

    def __init__(self, *, node: Node, asks: Sequence[tuple[int, ClaimAsk]], effort: Effort) -> None:
        """Lay out the requests in order."""
        self.node = node
        self.asks = asks
        self.effort = effort
        self.offer: Requirements = node.offer
        self.uses: list[Use] = []
        self._taken: set[DeviceId] = set()
        self._drawn: dict[Account, int] = {}
        self._values: dict[tuple[int, Match], list[Value]] = {}
        self._steps: list[tuple[int, ClaimAsk, Sequence[Way]]] = [
            (claim, ask, request.ways) for claim, ask in asks for request in ask.requests
        ]
        self._limits: dict[Account, int] = {
            account: most for pool in node.pools for account, most in pool.limits.items()
        }
        self._found: dict[Way, Sequence[PoolDevice] | None] = {}

    def run(self) -> bool:
        """Whether all requests can be satisfied at once; `uses` are then the devices chosen, in order."""
        return self._from(0)

    def _from(self, step: int) -> bool:
        if step == len(self._steps):
            return all(self._within_bounds(claim) for claim, _ in self.asks)
        for way in self._steps[step][2]:
            devices = self._candidates(way)
            if not devices:
                continue
            count = len(devices) if way.everything else way.count
            if count <= MOST_DEVICES and self._fill(step, way, devices, count, 0):
                return True
        return False

    def _within_bounds(self, claim: int) -> bool:
        return sum(use.claim == claim for use in self.uses) <= MOST_DEVICES

    def _fill(self, step: int, way: Way, devices: Sequence[PoolDevice], missing: int, start: int) -> bool:
        """Choose so many more devices from `start` on, and go on with the next request."""
        if missing == 0:
            return self._from(step + 1)
        failed: set[object] = set()
        last = start + 1 if way.everything else len(devices)
        for index in range(start, last):
            device = devices[index]
            kind = (device.id[:2], device.id.published, device.likeness)
            if kind in failed or self._is_taken(device, way):
                continue
            if not self.effort.spend():
                return False
            if self._take(step, way, device):
                if self._fill(step, way, devices, missing - 1, index if device.shared else index + 1):
                    return True
                self._give_back(step)
            if not device.shared:
                failed.add(kind)
        return False

    def _candidates(self, way: Way) -> Sequence[PoolDevice] | None:
        """The devices that such a request may have, in order; None if `All` cannot be sure of them."""
        if way not in self._found:
            self._found[way] = self._every(way) if way.everything else tuple(self._some(way))
        return self._found[way]

    def _some(self, way: Way) -> Iterator[PoolDevice]:
        for pool in self.node.pools:
            for device in () if pool.defect else pool.devices:
                if self._reachable(device) and way.tolerates(device) and way.would_select(device):
                    yield device

    def _every(self, way: Way) -> Sequence[PoolDevice] | None:
        found: list[PoolDevice] = []
        for pool in self.node.pools:
            here = [device for device in pool.devices if self._reachable(device)]
            if pool.defect and (here or not pool.devices):
                return None
            try:
                found += [device for device in here if way.selects(device)]
            except EvaluationError:
                return None
        return found if all(way.tolerates(device) for device in found) else None

    def _reachable(self, device: PoolDevice) -> bool:
        return device.reach.narrowed(self.node.name, self.node.offer) is not None

    def _is_taken(self, device: PoolDevice, way: Way) -> bool:
        if device.shared or way.admin:
            return False
        return device.id in self._taken or self.node.is_taken(device.id)

    # -- taking and giving back ---------------------------------------------------------------------------------------

    def _take(self, step: int, way: Way, device: PoolDevice) -> bool:
        claim, ask, _ = self._steps[step]
        draws = () if way.admin else self._draws(device, way)
        if draws is None or not self._affordable(device, draws):
            return False
        offer = device.reach.narrowed(self.node.name, self.offer)
        if offer is None or not self._agrees(claim, ask, way, device):
            return False
        use = Use(claim, way, device, draws, self.offer)
        self._note(ask, use, 1)
        self.offer = offer
        self.uses.append(use)
        return True

    def _give_back(self, step: int) -> None:
        use = self.uses.pop()
        self.offer = use.before
        self._note(self._steps[step][1], use, -1)

    def _note(self, ask: ClaimAsk, use: Use, sign: int) -> None:
        for account, amount in use.draws:
            self._drawn[account] = self._drawn.get(account, 0) + sign * amount
        if use.exclusive:
            (self._taken.add if sign > 0 else self._taken.remove)(use.device.id)
        for match in ask.matches:
            if match.concerns(use.way):
                values = self._values.setdefault((use.claim, match), [])
                values.append(use.device.facts.attribute(match.attribute)) if sign > 0 else values.pop()

    def _draws(self, device: PoolDevice, way: Way) -> tuple[tuple[Account, int], ...] | None:
        """What the device takes of counters and, if it is shared, of its own capacity; None if it cannot be had so."""
        if not device.shared:
            return device.draws
        consumed = [
            (device.account(name), capacity.consumed(way.capacity.get(name)))
            for name, capacity in device.capacity.items()
        ]
        sure = tuple((account, amount) for account, amount in consumed if amount is not None)
        return (*device.draws, *sure) if len(sure) == len(consumed) else None

    def _affordable(self, device: PoolDevice, draws: Sequence[tuple[Account, int]]) -> bool:
        return all(
            self.node.used(account) + self._drawn.get(account, 0) + amount <= self._limit(account, device)
            for account, amount in draws
        )

    def _limit(self, account: Account, device: PoolDevice) -> int:
        return device.capacity[account.name].total if account.of_device else self._limits.get(account, 0)

    def _agrees(self, claim: int, ask: ClaimAsk, way: Way, device: PoolDevice) -> bool:
        """Whether the device has what those chosen before have in common."""
        for match in ask.matches:
            if match.concerns(way):
                value = device.facts.attribute(match.attribute)
                if value is None or any(not same(value, v) for v in self._values.get((claim, match), ())[:1]):
                    return False
        return True
