"""Dynamic resource allocation (`resource.k8s.io/v1`): devices that drivers publish, and claims for some of them.

Restates: kubernetes staging/src/k8s.io/api/resource/v1/types.go, as far as it decides where a pod may run.
"""

from __future__ import annotations

import msgspec

from journeyman.core.api.objects import (
    APIStruct,
    NodeSelector,
    Object,
    QuantityText,
    Toleration,
    resource,
)


class CELSelector(APIStruct, frozen=True):
    """`cel` of a selector: an expression over `device`."""

    expression: str = ""


class DeviceSelector(APIStruct, frozen=True):
    """What a device must be like; only CEL exists."""

    cel: CELSelector | None = None


class DeviceClassSpec(APIStruct, frozen=True):
    """`spec` of a DeviceClass."""

    selectors: tuple[DeviceSelector, ...] = ()


class DeviceClass(Object, frozen=True):
    """A DeviceClass."""

    spec: DeviceClassSpec = DeviceClassSpec()


class CapacityRequirements(APIStruct, frozen=True):
    """`capacity` of a request: how much of a shared device's capacity is wanted, by name."""

    requests: dict[str, QuantityText] = msgspec.field(default_factory=dict)


class DeviceRequest(APIStruct, frozen=True):
    """What one request is for: so many devices (`ExactCount`), or all there are (`All`), of a class."""

    name: str = ""  # of an alternative only
    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = "ExactCount"
    count: int = 1
    admin_access: bool = False
    tolerations: tuple[Toleration, ...] = ()
    capacity: CapacityRequirements = CapacityRequirements()


class DeviceRequestEntry(APIStruct, frozen=True):
    """A named request: exactly this, or the first of these alternatives that can be had."""

    name: str = ""
    exactly: DeviceRequest | None = None
    first_available: tuple[DeviceRequest, ...] = ()


class DeviceConstraint(APIStruct, frozen=True):
    """What the devices of these requests (all, if none is named) must have in common, or must not."""

    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceClaim(APIStruct, frozen=True):
    """`devices` of a claim's spec."""

    requests: tuple[DeviceRequestEntry, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()


class ResourceClaimSpec(APIStruct, frozen=True):
    """`spec` of a ResourceClaim."""

    devices: DeviceClaim = DeviceClaim()


class DeviceAllocation(APIStruct, frozen=True):
    """A device that a claim has been given, or the part of it that it consumes."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool = False
    consumed_capacity: dict[str, QuantityText] = msgspec.field(default_factory=dict)


class DeviceAllocations(APIStruct, frozen=True):
    """`devices` of an allocation."""

    results: tuple[DeviceAllocation, ...] = ()


class Allocation(APIStruct, frozen=True):
    """What a claim has been given, and from which nodes it can be reached."""

    devices: DeviceAllocations = DeviceAllocations()
    node_selector: NodeSelector | None = None


class ConsumerReference(APIStruct, frozen=True):
    """Who has reserved a claim; a pod if `resource` is `pods` and there is no `api_group`."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class ResourceClaimStatus(APIStruct, frozen=True):
    """`status` of a ResourceClaim."""

    allocation: Allocation | None = None
    reserved_for: tuple[ConsumerReference, ...] = ()


class ResourceClaim(Object, frozen=True):
    """A ResourceClaim."""

    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class DeviceAttribute(APIStruct, frozen=True):
    """A property of a device; one of the fields is set."""

    int_: int | None = msgspec.field(default=None, name="int")
    bool_: bool | None = msgspec.field(default=None, name="bool")
    string: str | None = None
    version: str | None = None


class CapacityRange(APIStruct, frozen=True):
    """Amounts that may be asked for: from `min` to `max`, in steps."""

    min: QuantityText | None = None
    max: QuantityText | None = None
    step: QuantityText | None = None


class CapacityPolicy(APIStruct, frozen=True):
    """How a request for part of a capacity is rounded, and what one that names none gets."""

    default: QuantityText | None = None
    valid_values: tuple[QuantityText, ...] = ()
    valid_range: CapacityRange | None = None


class DeviceCapacity(APIStruct, frozen=True):
    """An amount that a device has."""

    value: QuantityText = "0"
    request_policy: CapacityPolicy | None = None


class Counter(APIStruct, frozen=True):
    """An amount in a set of counters."""

    value: QuantityText = "0"


class CounterSet(APIStruct, frozen=True):
    """Counters that the devices of a pool draw on together."""

    name: str = ""
    counters: dict[str, Counter] = msgspec.field(default_factory=dict)


class CounterConsumption(APIStruct, frozen=True):
    """What a device draws from a set of counters once it is allocated."""

    counter_set: str = ""
    counters: dict[str, Counter] = msgspec.field(default_factory=dict)


class DeviceTaint(APIStruct, frozen=True):
    """A taint of a device."""

    key: str = ""
    value: str = ""
    effect: str = ""


class Device(APIStruct, frozen=True):
    """One device. Its own node fields count if its slice says `per_device_node_selection`."""

    name: str = ""
    attributes: dict[str, DeviceAttribute] = msgspec.field(default_factory=dict)
    capacity: dict[str, DeviceCapacity] = msgspec.field(default_factory=dict)
    consumes_counters: tuple[CounterConsumption, ...] = ()
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    taints: tuple[DeviceTaint, ...] = ()
    allow_multiple_allocations: bool = False


class ResourcePool(APIStruct, frozen=True):
    """The pool a slice belongs to; it is whole once `resource_slice_count` slices of the newest generation are there."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class ResourceSliceSpec(APIStruct, frozen=True):
    """`spec` of a ResourceSlice."""

    driver: str = ""
    pool: ResourcePool = ResourcePool()
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    per_device_node_selection: bool = False
    devices: tuple[Device, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()


class ResourceSlice(Object, frozen=True):
    """Devices that a driver publishes, of one node or of several."""

    spec: ResourceSliceSpec = ResourceSliceSpec()


DEVICE_CLASS = resource("resource.k8s.io", "v1", "DeviceClass", "deviceclasses", DeviceClass, namespaced=False)
RESOURCE_CLAIM = resource("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims", ResourceClaim, namespaced=True)
RESOURCE_SLICE = resource("resource.k8s.io", "v1", "ResourceSlice", "resourceslices", ResourceSlice, namespaced=False)
