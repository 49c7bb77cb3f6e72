"""Searches devices for one pod on one node: depth first over claims, requests and devices, with limited tries.

Published devices are tried before those of a new node, each by driver, pool and position in its slice. Of devices
that the pod's claims cannot distinguish only the first free one is tried, and the devices of one request are chosen in
order, so that a failure is found once and not for every choice.

Restates: karpenter pkg/scheduling/dynamicresources/allocator.go `dfs`, `tryDevice`; constraint.go
`MatchAttributeConstraint`; partitionable_devices.go `checkCounters`.
Differs: the limit counts devices tried, where Karpenter has a timeout; `All` needs one device at least.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct, field

from journeyman.core.api.device_selectors import SelectorEvaluationError
from journeyman.core.scheduling.dra.devices import AmountId, DeviceId, DevicePool, PoolDevice
from journeyman.core.scheduling.dra.requests import MAX_DEVICES, ClaimRequests, RequestAlternative
from journeyman.core.scheduling.requirements import Requirements

MAX_TRIES: Final = 10_000
"""Devices tried in one search, where Karpenter gives one pod 5 seconds (`allocateTimeout`)."""


class ChosenDevice(NamedTuple):
    """A device chosen for a claim (by its position) and request."""

    claim: int
    alternative: RequestAlternative
    device: PoolDevice


class Choices(Struct, frozen=True, kw_only=True, eq=False):
    """The devices chosen so far, what they draw, and the node's offer, narrowed to nodes that access all of them."""

    chosen: tuple[ChosenDevice, ...] = ()
    drawn: Mapping[AmountId, int] = field(default_factory=dict)
    offer: Requirements


class DeviceSearch:
    """One search, for some claims on one node.

    `tries` is the number of devices that may still be tried; below 0 the search has been given up.
    """

    def __init__(
        self,
        claims: Sequence[tuple[int, ClaimRequests]],
        *,
        name: str,
        offer: Requirements,
        pools: Sequence[DevicePool],
        used: Callable[[AmountId], int],
        tries: int,
    ) -> None:
        """Prepare the search for claims, each with its position, in this order.

        An existing node has a name, and its labels as its offer. `used` returns what is in use of a counter or device.
        """
        self.tries = tries
        self._name = name
        self._offer = offer
        self._pools = pools
        self._used = used
        self._steps = [(position, claim, request) for position, claim in claims for request in claim.requests]
        self._limits: dict[AmountId, int] = {
            counter: maximum for pool in pools for counter, maximum in pool.limits.items()
        }
        self._eligible: dict[RequestAlternative, Sequence[PoolDevice]] = {}
        self._alternatives = [alternative for _, _, request in self._steps for alternative in request]
        self._matched = [constraint.attribute for _, claim in claims for constraint in claim.constraints]
        self._kinds: dict[DeviceId, object] = {}

    def run(self) -> Choices | None:
        """Return devices that satisfy all requests together; None if there are none."""
        return self._satisfy_from(0, Choices(offer=self._offer))

    def _satisfy_from(self, step: int, choices: Choices) -> Choices | None:
        if step == len(self._steps):
            return choices
        position, _, request = self._steps[step]
        left = MAX_DEVICES - sum(choice.claim == position for choice in choices.chosen)
        for alternative in request:
            if alternative not in self._eligible:
                self._eligible[alternative] = self._eligible_devices(alternative)
            devices = self._eligible[alternative]
            count = len(devices) if alternative.is_all else alternative.count
            if devices and count <= left:
                found = self._fill(step, alternative, count, 0, choices)
                if found is not None:
                    return found
        return None

    def _fill(
        self, step: int, alternative: RequestAlternative, missing: int, start: int, choices: Choices
    ) -> Choices | None:
        """Choose `missing` more devices from `start` on, then continue with the next request."""
        if missing == 0:
            return self._satisfy_from(step + 1, choices)
        devices, failed = self._eligible[alternative], set[object]()
        for index in range(start, start + 1 if alternative.is_all else len(devices)):
            device = devices[index]
            is_exclusive = not device.shared and not alternative.is_admin_access
            is_taken = is_exclusive and self._left(device.id, 1, choices) < 1
            if is_taken or (failed and self._kind(device) in failed):
                continue
            self.tries -= 1
            if self.tries < 0:
                return None
            found = self._with(step, alternative, device, choices)
            if found is not None:
                found = self._fill(step, alternative, missing - 1, index if device.shared else index + 1, found)
            if found is not None:
                return found
            if not device.shared:
                failed.add(self._kind(device))
        return None

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

    def _eligible_devices(self, alternative: RequestAlternative) -> Sequence[PoolDevice]:
        """Return the devices that a request selects, in order; for `All` none unless all are known and tolerated."""
        found: list[PoolDevice] = []
        for pool in self._pools:
            accessible = [
                device
                for device in pool.devices
                if device.accessible_nodes.narrowed(self._name, self._offer) is not None
            ]
            if pool.defect and alternative.is_all and (accessible or not pool.devices):
                return ()
            for device in () if pool.defect else accessible:
                try:
                    is_selected = alternative.selects(device)
                except SelectorEvaluationError:
                    if alternative.is_all:
                        return ()
                    continue
                if is_selected and alternative.tolerates(device):
                    found.append(device)
                elif is_selected and alternative.is_all:
                    return ()
        return found

    def _with(self, step: int, alternative: RequestAlternative, device: PoolDevice, choices: Choices) -> Choices | None:
        """Return the choices with one more; None if it is not possible beside the others."""
        position, claim, _ = self._steps[step]
        draws = () if alternative.is_admin_access else self._draws(device, alternative, choices)
        offer = device.accessible_nodes.narrowed(self._name, choices.offer)
        if draws is None or offer is None:
            return None
        for constraint in claim.constraints:
            if constraint.concerns(alternative):
                concerned = (
                    c.device for c in choices.chosen if c.claim == position and constraint.concerns(c.alternative)
                )
                value = device.facts.attribute(constraint.attribute)
                if value is None or value != next(concerned, device).facts.attribute(constraint.attribute):
                    return None
        drawn = dict(choices.drawn)
        for counter, amount in draws:
            drawn[counter] = drawn.get(counter, 0) + amount
        chosen = (*choices.chosen, ChosenDevice(position, alternative, device))
        return Choices(chosen=chosen, drawn=drawn, offer=offer)

    def _draws(
        self, device: PoolDevice, alternative: RequestAlternative, choices: Choices
    ) -> Sequence[tuple[AmountId, int]] | None:
        """Return what is drawn on counters, and on the device or its capacity; None if it cannot be had."""
        draws: list[tuple[AmountId, int]] = [*device.draws]
        if any(amount > self._left(counter, self._limits.get(counter, 0), choices) for counter, amount in draws):
            return None
        for name, capacity in device.capacity.items() if device.shared else ():
            amount = capacity.consumed(alternative.capacity.get(name))
            if amount is None or amount > self._left(device.counter(name), capacity.total, choices):
                return None
            draws.append((device.counter(name), amount))
        return draws if device.shared else [*draws, (device.id, 1)]

    def _left(self, counter: AmountId, limit: int, choices: Choices) -> int:
        return limit - self._used(counter) - choices.drawn.get(counter, 0)
