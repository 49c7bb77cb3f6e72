"""What a ResourceClaim asks for, read once: which devices, how many, and what they must have in common.

Restates: karpenter pkg/scheduling/dynamicresources/request.go `ValidateClaimRequest`.
Differs: the first of several alternatives that can be had (`firstAvailable`) is chosen; tolerations of devices' taints
and `adminAccess` are heeded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct, field

from journeyman.core.api.cel import Expression, InvalidExpressionError, read
from journeyman.core.api.cel_values import EvaluationError
from journeyman.core.api.dra import (
    DeviceClass,
    DeviceConstraint,
    DeviceRequest,
    DeviceRequestEntry,
    DeviceSelector,
    ResourceClaimSpec,
)
from journeyman.core.api.objects import Toleration
from journeyman.core.scheduling.dra.capacity import amount
from journeyman.core.scheduling.dra.pools import PoolDevice, Reach
from journeyman.core.scheduling.taints import untolerated
from journeyman.errors import ConfigurationError, InvalidQuantityError

MOST_DEVICES: Final = 32  # k8s.io/api resource/v1 `AllocationResultsMaxSize`


class UnreadableClaimError(ConfigurationError):
    """A claim that asks for something not understood. `supported` False: it may be right, but is beyond this scheduler."""

    def __init__(self, message: str, *, supported: bool = True) -> None:
        super().__init__(message)
        self.supported = supported


class Way(Struct, frozen=True, kw_only=True, eq=False):
    """One way to satisfy a request: `count` devices that all of `selectors` select, or `everything` there is of them.

    `capacity` is what each must have, of shared devices what is consumed, in nano units by name. `admin`: devices in
    use will do as well, and stay free for others.
    """

    name: str
    device_class: str
    everything: bool = False
    count: int = 1
    selectors: tuple[Expression, ...] = ()
    capacity: Mapping[str, int] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    admin: bool = False

    def selects(self, device: PoolDevice) -> bool:
        """Whether it is such a device. Raises EvaluationError."""
        return all(selector.selects(device.facts) for selector in self.selectors) and self._large_enough(device)

    def _large_enough(self, device: PoolDevice) -> bool:
        return all(name in device.capacity and device.capacity[name].total >= n for name, n in self.capacity.items())

    def tolerates(self, device: PoolDevice) -> bool:
        """Whether the device's taints do not keep it away."""
        return untolerated(device.taints, self.tolerations) is None

    def would_select(self, device: PoolDevice) -> bool:
        """The same as `selects`; what has no value for a device does not select it."""
        try:
            return self.selects(device)
        except EvaluationError:
            return False


class Request(Struct, frozen=True, kw_only=True, eq=False):
    """A request: the first of `ways` that can be had."""

    name: str
    ways: tuple[Way, ...]


class Match(Struct, frozen=True):
    """The devices of these requests (None: of all) must have one value of an attribute in common."""

    attribute: str
    requests: frozenset[str] | None

    def concerns(self, way: Way) -> bool:
        """Whether devices chosen that way are among those."""
        return self.requests is None or way.name in self.requests or way.name.partition("/")[0] in self.requests


class ClaimAsk(Struct, frozen=True, kw_only=True, eq=False):
    """What a claim asks for. `key` (`namespace/name`) if it is one certain claim, empty if each pod has its own.

    `held` is set if it has its devices already: from where they can be reached.
    """

    key: str = ""
    requests: tuple[Request, ...] = ()
    matches: tuple[Match, ...] = ()
    held: Reach | None = None


def read_requests(spec: ResourceClaimSpec, classes: Mapping[str, DeviceClass]) -> tuple[Request, ...]:
    """The requests of a claim, in order. Raises UnreadableClaimError."""
    requests = tuple(_request(entry, classes) for entry in spec.devices.requests)
    least = sum(min(0 if way.everything else way.count for way in request.ways) for request in requests)
    if least > MOST_DEVICES:
        raise UnreadableClaimError(f"asks for {least} devices, {MOST_DEVICES} are the most that a claim may have")
    return requests


def read_matches(constraints: Iterable[DeviceConstraint]) -> tuple[Match, ...]:
    """What devices must have in common. Raises UnreadableClaimError."""
    found = []
    for constraint in constraints:
        if constraint.match_attribute is None:
            raise UnreadableClaimError(
                "has a constraint other than matchAttribute, which is not supported", supported=False
            )
        requests = frozenset(constraint.requests) if constraint.requests else None
        found.append(Match(constraint.match_attribute, requests))
    return tuple(found)


def _request(entry: DeviceRequestEntry, classes: Mapping[str, DeviceClass]) -> Request:
    if entry.exactly is not None:
        return Request(name=entry.name, ways=(_way(entry.name, entry.exactly, classes),))
    if not entry.first_available:
        raise UnreadableClaimError(f"request {entry.name} asks for nothing")
    ways = (_way(f"{entry.name}/{option.name}", option, classes) for option in entry.first_available)
    return Request(name=entry.name, ways=tuple(ways))


def _way(name: str, request: DeviceRequest, classes: Mapping[str, DeviceClass]) -> Way:
    found = classes.get(request.device_class_name)
    if found is None:
        raise UnreadableClaimError(f"request {name}: DeviceClass {request.device_class_name!r} does not exist")
    if request.allocation_mode not in {"ExactCount", "All"}:
        raise UnreadableClaimError(
            f"request {name}: allocationMode {request.allocation_mode!r} is not ExactCount or All", supported=False
        )
    if request.count < 1:
        raise UnreadableClaimError(f"request {name}: asks for {request.count} devices")
    try:
        capacity = {key: amount(text) for key, text in request.capacity.requests.items()}
    except InvalidQuantityError as error:
        raise UnreadableClaimError(f"request {name}: {error.message}") from error
    return Way(
        name=name,
        device_class=request.device_class_name,
        everything=request.allocation_mode == "All",
        count=request.count,
        selectors=tuple(_expression(name, s) for s in (*found.spec.selectors, *request.selectors)),
        capacity=capacity,
        tolerations=request.tolerations,
        admin=request.admin_access,
    )


def _expression(name: str, selector: DeviceSelector) -> Expression:
    if selector.cel is None:
        raise UnreadableClaimError(f"request {name}: a selector that is not CEL is not supported", supported=False)
    try:
        return read(selector.cel.expression)
    except InvalidExpressionError as error:
        raise UnreadableClaimError(f"request {name}: {error.message}", supported=False) from error
