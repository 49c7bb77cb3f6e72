"""Dynamic resource allocation (`resource.k8s.io/v1`): ResourceSlices, ResourceClaims and DeviceClasses.

Restates: kubernetes staging/src/k8s.io/api/resource/v1/types.go, the fields that scheduling needs.
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
    """A selector of devices, as a CEL expression."""

    cel: CELSelector | None = None


class DeviceClassSpec(APIStruct, frozen=True):
    """`spec` of a DeviceClass."""

    selectors: tuple[DeviceSelector, ...] = ()


class DeviceClass(Object, frozen=True):
    """A DeviceClass."""

    spec: DeviceClassSpec = DeviceClassSpec()


class CapacityRequirements(APIStruct, frozen=True):
    """`capacity` of a request: requested amounts of a shared device, by name."""

    requests: dict[str, QuantityText] = msgspec.field(default_factory=dict)


class DeviceRequest(APIStruct, frozen=True):
    """A request for a number of devices of a class (`ExactCount`), or for all of them (`All`)."""

    name: str = ""  # of `firstAvailable` entries only
    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = "ExactCount"
    count: int = 1
    admin_access: bool = False
    tolerations: tuple[Toleration, ...] = ()
    capacity: CapacityRequirements = CapacityRequirements()


class DeviceRequestEntry(APIStruct, frozen=True):
    """A named request: exactly one, or the first of several that can be allocated."""

    name: str = ""
    exactly: DeviceRequest | None = None
    first_available: tuple[DeviceRequest, ...] = ()


class DeviceConstraint(APIStruct, frozen=True):
    """An attribute that devices of the requests (all, if none is named) must share, or in which they must differ."""

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
    """A device allocated to a ResourceClaim, or the capacity of it that is consumed."""

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
    """The allocated devices, and the nodes that can use them."""

    devices: DeviceAllocations = DeviceAllocations()
    node_selector: NodeSelector | None = None


class ConsumerReference(APIStruct, frozen=True):
    """A consumer of a ResourceClaim; a pod if `resource` is `pods` without `api_group`."""

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
    """An attribute of a device; one of the fields is set."""

    int_: int | None = msgspec.field(default=None, name="int")
    bool_: bool | None = msgspec.field(default=None, name="bool")
    string: str | None = None
    version: str | None = None


class CapacityRange(APIStruct, frozen=True):
    """Valid requests: from `min` to `max`, in steps."""

    min: QuantityText | None = None
    max: QuantityText | None = None
    step: QuantityText | None = None


class CapacityPolicy(APIStruct, frozen=True):
    """How requests of a capacity are rounded, and the default request."""

    default: QuantityText | None = None
    valid_values: tuple[QuantityText, ...] = ()
    valid_range: CapacityRange | None = None


class DeviceCapacity(APIStruct, frozen=True):
    """A capacity of a device."""

    value: QuantityText = "0"
    request_policy: CapacityPolicy | None = None


class Counter(APIStruct, frozen=True):
    """An amount in a set of counters."""

    value: QuantityText = "0"


class CounterSet(APIStruct, frozen=True):
    """Counters that the devices of a pool share."""

    name: str = ""
    counters: dict[str, Counter] = msgspec.field(default_factory=dict)


class CounterConsumption(APIStruct, frozen=True):
    """What an allocated device consumes of a set of counters."""

    counter_set: str = ""
    counters: dict[str, Counter] = msgspec.field(default_factory=dict)


class DeviceTaint(APIStruct, frozen=True):
    """A taint of a device."""

    key: str = ""
    value: str = ""
    effect: str = ""


class Device(APIStruct, frozen=True):
    """One device. Its node fields apply if its slice has `per_device_node_selection`."""

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
    """The pool of a slice, complete if it has `resource_slice_count` slices of the newest generation."""

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
    """Devices that a driver publishes, on one node or on several."""

    spec: ResourceSliceSpec = ResourceSliceSpec()


DEVICE_CLASS = resource("resource.k8s.io", "v1", "DeviceClass", "deviceclasses", DeviceClass, namespaced=False)
RESOURCE_CLAIM = resource("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims", ResourceClaim, namespaced=True)
RESOURCE_SLICE = resource("resource.k8s.io", "v1", "ResourceSlice", "resourceslices", ResourceSlice, namespaced=False)
