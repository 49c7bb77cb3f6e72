"""Reads the ResourceClaims of pods: which devices they request, how many, and the constraints between them.

A pod names a claim, or its status names the claim created for it from a template. Pods whose own claims have equal
specs are equal; a claim named by several pods is one claim.

Restates: karpenter pkg/scheduling/dynamicresources/request.go `ValidateClaimRequest`, allocator.go `ClassifyClaims`;
pkg/controllers/provisioning/scheduling/dra.go `resolvePodClaims`, `resourceClaimName`.
Differs: the first available subrequest of `firstAvailable` is chosen; tolerations of device taints and `adminAccess`
are honored; a pod whose claim has not been created from its template yet gets an error (Karpenter schedules it as if it
needed no devices); the node that an allocated claim names is honored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

import msgspec
from msgspec import Struct, field

from journeyman.core.api.device_selectors import (
    InvalidSelectorError,
    ParsedSelector,
    SelectorEvaluationError,
    parse_selector,
)
from journeyman.core.api.dra import DeviceClass, DeviceRequest, DeviceSelector, ResourceClaim
from journeyman.core.api.objects import Pod, Toleration
from journeyman.core.scheduling.dra.devices import AccessibleNodes, PoolDevice, accessible_nodes_of, nano_amount
from journeyman.core.scheduling.results import PodError
from journeyman.core.state.snapshot import Snapshot
from journeyman.core.state.taints import untolerated
from journeyman.errors import ConfigurationError, InvalidQuantityError

MAX_DEVICES: Final = 32  # k8s.io/api resource/v1 `AllocationResultsMaxSize`


class InvalidClaimError(ConfigurationError):
    """A claim that is invalid, or not supported by this scheduler (`supported` False)."""

    def __init__(self, message: str, *, supported: bool = True) -> None:
        super().__init__(message)
        self.supported = supported


class RequestAlternative(Struct, frozen=True, kw_only=True, eq=False):
    """An exact request or subrequest: `count` devices that all of `selectors` select, or all of them (`is_all`).

    `capacity` is the capacity that each device must have (a shared device: that the request consumes), in nano units by
    name. `is_admin_access`: allocated devices are eligible as well, and stay available to others.
    """

    name: str
    device_class: str
    is_all: bool = False
    count: int = 1
    selectors: tuple[ParsedSelector, ...] = ()
    capacity: Mapping[str, int] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    is_admin_access: bool = False

    def selects(self, device: PoolDevice) -> bool:
        """Whether it selects the device. Raises SelectorEvaluationError."""
        return all(selector.selects(device.facts) for selector in self.selectors) and all(
            name in device.capacity and device.capacity[name].total >= n for name, n in self.capacity.items()
        )

    def tolerates(self, device: PoolDevice) -> bool:
        """Whether it tolerates the device's taints."""
        return untolerated(device.taints, self.tolerations) is None

    def would_select(self, device: PoolDevice) -> bool:
        """Whether it selects the device; a selector that cannot be evaluated for the device does not."""
        try:
            return self.selects(device)
        except SelectorEvaluationError:
            return False


class MatchAttributeConstraint(Struct, frozen=True):
    """The devices of these requests (None: of all) must have the same value of an attribute."""

    attribute: str
    requests: frozenset[str] | None

    def concerns(self, alternative: RequestAlternative) -> bool:
        """Whether the constraint covers the devices of this request."""
        name = alternative.name
        return self.requests is None or name in self.requests or name.partition("/")[0] in self.requests


ParsedRequest = tuple[RequestAlternative, ...]
"""A device request: the first of its alternatives that is available."""


class ClaimRequests(Struct, frozen=True, kw_only=True, eq=False):
    """The device requests of a claim. `key` is `namespace/name` of a shared claim, empty if each pod has its own.

    `held` are the nodes that can access the devices of a claim that is allocated already.
    """

    key: str = ""
    requests: tuple[ParsedRequest, ...] = ()
    constraints: tuple[MatchAttributeConstraint, ...] = ()
    held: AccessibleNodes | None = None


def _requests(claim: ResourceClaim, classes: Mapping[str, DeviceClass]) -> tuple[ParsedRequest, ...]:
    """Return the requests of a claim, in order. Raises InvalidClaimError."""
    requests = []
    for entry in claim.spec.devices.requests:
        options = [(f"{entry.name}/{option.name}", option) for option in entry.first_available]
        if entry.exactly is not None:
            options = [(entry.name, entry.exactly)]
        if not options:
            raise InvalidClaimError(f"request {entry.name} asks for nothing")
        requests.append(tuple(_alternative(name, option, classes) for name, option in options))
    least = sum(min(0 if each.is_all else each.count for each in request) for request in requests)
    if least > MAX_DEVICES:
        raise InvalidClaimError(f"asks for {least} devices, {MAX_DEVICES} are the most that a claim may have")
    return tuple(requests)


def _alternative(name: str, request: DeviceRequest, classes: Mapping[str, DeviceClass]) -> RequestAlternative:
    found, mode = classes.get(request.device_class_name), request.allocation_mode
    if found is None:
        raise InvalidClaimError(f"request {name}: DeviceClass {request.device_class_name!r} does not exist")
    if mode not in {"ExactCount", "All"}:
        raise InvalidClaimError(f"request {name}: allocationMode {mode!r} is not ExactCount or All", supported=False)
    if request.count < 1:
        raise InvalidClaimError(f"request {name}: asks for {request.count} devices")
    try:
        capacity = {key: nano_amount(text) for key, text in request.capacity.requests.items()}
        selectors = tuple(_selector(name, selector) for selector in (*found.spec.selectors, *request.selectors))
    except InvalidQuantityError as error:
        raise InvalidClaimError(f"request {name}: {error.message}") from error
    except InvalidSelectorError as error:
        raise InvalidClaimError(f"request {name}: {error.message}", supported=False) from error
    return RequestAlternative(
        name=name,
        device_class=request.device_class_name,
        is_all=mode == "All",
        count=request.count,
        selectors=selectors,
        capacity=capacity,
        tolerations=request.tolerations,
        is_admin_access=request.admin_access,
    )


def _selector(name: str, selector: DeviceSelector) -> ParsedSelector:
    if selector.cel is None:
        raise InvalidClaimError(f"request {name}: a selector that is not CEL is not supported", supported=False)
    return parse_selector(selector.cel.expression)


_encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode

PodClaims = tuple[ClaimRequests, ...]
"""The device requests of a pod's claims, in the pod's order."""


class ClaimReader:
    """Reads the claims of pods. `names` are the claims of the pods read so far, by pod key, in order."""

    def __init__(self, snapshot: Snapshot, rescheduled: Collection[str]) -> None:
        """`rescheduled` are the UIDs of pods that are rescheduled."""
        self._claims = {_key(claim): claim for claim in snapshot.resource_claims}
        self._classes = {found.metadata.name: found for found in snapshot.device_classes}
        self.rescheduled = rescheduled
        self._cache: dict[tuple[bool, str, bytes], ClaimRequests | InvalidClaimError] = {}
        self.names: dict[str, tuple[str, ...]] = {}

    def __iter__(self) -> Iterator[ResourceClaim]:
        return iter(self._claims.values())

    def read(self, pod: Pod, *, ignore_allocation: bool = False) -> PodClaims | PodError:
        """Return what a pod's claims request; an error if a claim is missing or invalid.

        Equal requests are the same objects. `ignore_allocation`: read allocated claims as if they were not allocated.
        """
        try:
            found = self._claims_of(pod)
            read = tuple(self._requests_of(claim, is_own, ignore_allocation) for claim, is_own in found)
        except InvalidClaimError as error:
            return PodError(kind="invalid" if error.supported else "unsupported", message=error.message)
        self.names[pod.key] = tuple(_key(claim) for claim, _ in found)
        return read

    def is_released(self, claim: ResourceClaim) -> bool:
        """Whether all pods that use the claim are rescheduled, so that it is allocated again.

        Restates: karpenter pkg/scheduling/dynamicresources/allocator.go `claimReservedEntirelyByDeletingPods`.
        """
        users = claim.status.reserved_for
        return bool(users) and all(
            user.resource == "pods" and not user.api_group and user.uid in self.rescheduled for user in users
        )

    def _claims_of(self, pod: Pod) -> list[tuple[ResourceClaim, bool]]:
        """Return a pod's claims, each with whether it was created for this pod only. Raises InvalidClaimError."""
        containers = (*pod.spec.containers, *pod.spec.init_containers)
        used = {claim.get("name", "") for container in containers for claim in container.resources.claims}
        unknown = used - {entry.name for entry in pod.spec.resource_claims}
        if unknown:
            raise InvalidClaimError(f"a container uses {min(unknown)!r}, which is not among the pod's resourceClaims")
        created = {entry.name: entry.resource_claim_name for entry in pod.status.resource_claim_statuses}
        found: list[tuple[ResourceClaim, bool]] = []
        for entry in pod.spec.resource_claims:
            is_own = not entry.resource_claim_name
            if is_own and entry.name not in created:
                raise InvalidClaimError(f"the ResourceClaim for {entry.name!r} has not been made from its template yet")
            name = created[entry.name] if is_own else entry.resource_claim_name
            if not name:
                continue  # the pod needs no claim for this entry
            key = f"{pod.metadata.namespace}/{name}"
            claim = self._claims.get(key)
            if claim is None or claim.metadata.deletion_timestamp is not None:
                raise InvalidClaimError(
                    f"ResourceClaim {key} {'does not exist' if claim is None else 'is being deleted'}"
                )
            if not any(claim is other for other, _ in found):
                found.append((claim, is_own))
        return found

    def _requests_of(self, claim: ResourceClaim, is_own: bool, ignore_allocation: bool) -> ClaimRequests:
        held = claim.status.allocation is not None and not ignore_allocation and not self.is_released(claim)
        key = "" if is_own and not held else _key(claim)
        case = (held, key, b"" if key else _encode(claim.spec))
        if case not in self._cache:
            try:
                self._cache[case] = self._read(claim, key, held=held)
            except InvalidClaimError as error:
                self._cache[case] = error
        found = self._cache[case]
        if isinstance(found, InvalidClaimError):
            raise InvalidClaimError(f"ResourceClaim {_key(claim)} {found.message}", supported=found.supported)
        return found

    def _read(self, claim: ResourceClaim, key: str, *, held: bool) -> ClaimRequests:
        if not held or claim.status.allocation is None:
            requests = _requests(claim, self._classes)
            constraints = tuple(
                MatchAttributeConstraint(found.match_attribute, frozenset(found.requests) or None)
                for found in claim.spec.devices.constraints
                if found.match_attribute is not None
            )
            if len(constraints) < len(claim.spec.devices.constraints):
                message = "has a constraint other than matchAttribute, which is not supported"
                raise InvalidClaimError(message, supported=False)
            return ClaimRequests(key=key, requests=requests, constraints=constraints)
        selector = claim.status.allocation.node_selector
        nodes = AccessibleNodes() if selector is None else accessible_nodes_of(selector)
        if nodes is None:
            raise InvalidClaimError("is allocated where its node selector cannot be read", supported=False)
        return ClaimRequests(key=key, held=nodes)


def _key(claim: ResourceClaim) -> str:
    return f"{claim.metadata.namespace}/{claim.metadata.name}"
