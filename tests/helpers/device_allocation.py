"""Pods that get devices one after another: what is published, what instance types bring, and who gets what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.dra import ResourceClaim, ResourceSlice
from journeyman.core.api.objects import NodeSelectorRequirement
from journeyman.core.catalogue import InstanceType
from journeyman.core.scheduling.dra import AllocationProposal, ClaimReader, DeviceAllocator
from journeyman.core.scheduling.requirements import EMPTY, Requirements, from_selectors
from tests.helpers.builders import a_snapshot, an_instance_type
from tests.helpers.devices import (
    DEVICE_CLASSES,
    DRIVER,
    NIC_DRIVER,
    a_claiming_pod,
    a_device_class,
    a_resource_claim,
    a_slice,
    exactly,
    selecting,
    slice_spec,
    with_devices,
)
from tests.helpers.karpenter_suite import requirement

TYPE = "it-1"
CLASSES = (*DEVICE_CLASSES, a_device_class("h100", selecting("H100")))

Devices = Sequence[Mapping[str, Any]]
Counters = Mapping[str, Mapping[str, str]]
"""Amounts by counter set and counter."""


# -- devices


def device(
    name: str, *, draws: Counters | None = None, capacity: Mapping[str, str] | None = None, **attributes: str
) -> dict[str, Any]:
    """Return a device with these attributes in the domain of its driver, that draws on counters of its pool."""
    return {
        "name": name,
        "attributes": {key: {"string": value} for key, value in attributes.items()},
        "capacity": {key: {"value": amount} for key, amount in (capacity or {}).items()},
        "consumesCounters": [{"counterSet": key, "counters": _amounts(found)} for key, found in (draws or {}).items()],
    }


NUMA = f"{DRIVER}/numa"


def on_numa(*nodes: int, prefix: str = "gpu") -> list[dict[str, Any]]:
    """Return devices, each on the NUMA node of that number."""
    return [device(f"{prefix}-{number}", numa=f"node-{node}") for number, node in enumerate(nodes)]


def drawing(amount: str, *names: str) -> list[dict[str, Any]]:
    """Return devices that each draw this much memory on the counter set `gpu-slices`."""
    return [device(name, draws={"gpu-slices": {"memory": amount}}) for name in names]


def shared(name: str, *, draws: Counters | None = None, policy: Any = None, **capacity: str) -> dict[str, Any]:
    """Return a device that several requests may share, with these capacities and one request policy."""
    found = device(name, draws=draws, capacity=capacity)
    for each in found["capacity"].values() if policy else ():
        each["requestPolicy"] = policy
    return found | {"allowMultipleAllocations": True}


def _amounts(of: Mapping[str, str]) -> dict[str, dict[str, str]]:
    return {name: {"value": amount} for name, amount in of.items()}


def counter_sets(counters: Counters) -> list[dict[str, Any]]:
    """Return shared counters of a slice."""
    return [{"name": name, "counters": _amounts(found)} for name, found in counters.items()]


MEMORY_80 = {"gpu-slices": {"memory": "80Gi"}}


def published(
    devices: Devices, *, pool: str = "pool-a", zone: str = "", counters: Counters | None = None, **spec: Any
) -> list[ResourceSlice]:
    """Return the slices of a pool that all nodes, or those of a zone, can access; its counters are in a slice of their own."""
    zonal = {"nodeSelectorTerms": [{"matchExpressions": [requirement(labels.ZONE, "In", zone)]}]}
    where = {"nodeSelector": zonal} if zone else {"allNodes": True}
    slices = [a_slice(pool, devices, **{"pool": pool, "of": 2 if counters else 1, **where, **spec})]
    if counters:
        driver = {"driver": spec["driver"]} if "driver" in spec else {}
        made = counter_sets(counters)
        slices.append(a_slice(f"{pool}-counters", [], pool=pool, of=2, allNodes=True, sharedCounters=made, **driver))
    return slices


def brought(devices: Devices, *, pool: str = "own", counters: Counters | None = None, **spec: Any) -> dict[str, Any]:
    """Return the slice of an instance type's own devices, with their counters."""
    made = {"sharedCounters": counter_sets(counters)} if counters else {}
    return slice_spec(devices, pool=pool, **made, **spec)


# Two types whose own NICs are on different roots, so that their pods get different published GPUs beside them.
ROOT = "example.com/root"
ON_A, ON_B = ({ROOT: {"string": root}} for root in "ab")
BESIDE_NICS = {
    name: [brought([{"name": f"nic-{number}", "attributes": root} for number in range(2)], driver=NIC_DRIVER)]
    for name, root in (("it-a", ON_A), ("it-b", ON_B))
}


def on_root(found: dict[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """Return the device on a root."""
    return {**found, "attributes": {**found["attributes"], **root}}


# -- claims


def asking(*requests: Any, match: Sequence[Any] = (), name: str = "c", **changes: Any) -> ResourceClaim:
    """Return a ResourceClaim; a number stands for a request for so many GPUs.

    `match` are attributes that devices must share: of all requests, or a pair with the names of some.
    """
    made = [exactly("req-1", count=each) if isinstance(each, int) else each for each in requests]
    constraints = [_constraint(each) for each in match]
    spec = {"devices": {"requests": made, "constraints": constraints}}
    return a_resource_claim(name, spec=spec, **changes)


def beside_nic(request: Any) -> ResourceClaim:
    """Return a claim for a NIC, and for GPUs on the root of that NIC."""
    return asking(exactly("nic", deviceClassName="nic"), request, match=[ROOT])


def _constraint(match: str | tuple[str, Sequence[str]]) -> dict[str, Any]:
    if isinstance(match, str):
        return {"matchAttribute": match}
    return {"matchAttribute": match[0], "requests": list(match[1])}


def of_capacity(name: str = "req-1", count: int = 1, **amounts: str) -> dict[str, Any]:
    """Return a request for so much of the capacity of a GPU."""
    return exactly(name, count=count, capacity={"requests": amounts})


def allocated(
    name: str = "held", *devices: str, pool: str = "pool-a", zone: str = "", **consumed: str
) -> ResourceClaim:
    """Return a ResourceClaim that is allocated these devices, or so much of their capacity, for the nodes of a zone."""
    results = [
        {"request": "r", "driver": DRIVER, "pool": pool, "device": each, "consumedCapacity": consumed}
        for each in devices
    ]
    allocation: dict[str, Any] = {"devices": {"results": results}}
    if zone:
        terms = [{"matchExpressions": [requirement(labels.ZONE, "In", zone)]}]
        allocation["nodeSelector"] = {"nodeSelectorTerms": terms}
    return a_resource_claim(name, status={"allocation": allocation})


# -- pods on nodes


class PodStep(NamedTuple):
    """A pod on a new node with claims of its own, and claims that it shares by name.

    `gets` are the names of its devices: for each type of the node, or by type if types differ; None if it does not fit.
    `zones` are those that the node may be in, `zone` is where it must be with these devices.
    """

    node: str
    own: Sequence[ResourceClaim]
    gets: Sequence[str] | Mapping[str, Sequence[str]] | None
    shares: Sequence[ResourceClaim] = ()
    types: Sequence[str] = ()
    zones: Sequence[str] = ()
    zone: str = ""
    commit: bool = True


def pod(node: str, *requests: Any, gets: Any, **more: Any) -> PodStep:
    """Return a pod whose own claims are those among `requests`, or else one claim with these requests."""
    claims = [each for each in requests if isinstance(each, ResourceClaim)]
    return PodStep(node, claims if claims or not requests else [asking(*requests)], gets, **more)


class Drop(NamedTuple):
    """A node can no longer become one of these types."""

    node: str
    types: Sequence[str]


class Case(NamedTuple):
    """Published devices, the slices that each instance type brings, claims in use, and steps: pods, and types that drop out."""

    published: Sequence[ResourceSlice]
    steps: Sequence[PodStep | Drop]
    types: Mapping[str, Sequence[Mapping[str, Any]]] = {TYPE: ()}
    in_use: Sequence[ResourceClaim] = ()

    @property
    def expected(self) -> list[Any]:
        """What each pod gets by type, and its node's zone."""
        return [
            None if step.gets is None else (_by_type(step, tuple(self.types)), step.zone)
            for step in self.steps
            if isinstance(step, PodStep)
        ]

    def follow(self) -> list[Any]:
        """Return what each pod gets by type, and its node's zone if the step names one."""
        allocations = Allocations(self.published, self.types, self.in_use)
        found: list[Any] = []
        for step in self.steps:
            if isinstance(step, Drop):
                allocations.drop(step.node, step.types)
                continue
            got = allocations.allocate(step)
            found.append(None if got is None else (got.devices, got.zone if step.zone else ""))
        return found


def _by_type(step: PodStep, types: Sequence[str]) -> dict[str, list[str]]:
    assert step.gets is not None
    by_type = step.gets if isinstance(step.gets, Mapping) else dict.fromkeys(step.types or types, step.gets)
    return {name: sorted(devices) for name, devices in by_type.items()}


class Allocated(NamedTuple):
    """What a pod gets: by instance type each device with its request, and the zone that its node must be in."""

    by_type: Mapping[str, Sequence[tuple[str, str]]]
    zone: str

    @property
    def devices(self) -> dict[str, list[str]]:
        """The names of its devices by instance type."""
        return {name: sorted(device for device, _ in found) for name, found in self.by_type.items()}

    @property
    def requests(self) -> dict[str, dict[str, str]]:
        """The request of each device, by instance type."""
        return {name: dict(found) for name, found in self.by_type.items()}


class Allocations:
    """Devices of a cluster, allocated to pods on new nodes as the scheduler does it."""

    def __init__(
        self,
        published: Sequence[ResourceSlice] = (),
        types: Mapping[str, Sequence[Mapping[str, Any]]] = {TYPE: ()},
        in_use: Sequence[ResourceClaim] = (),
    ) -> None:
        """`types` are the slices that each instance type brings, `in_use` the claims that are allocated already."""
        self._types = {
            name: with_devices(an_instance_type(name, cpu=64, memory_gib=64, price=1.0), *specs)
            for name, specs in types.items()
        }
        by_pool = {("default", name): found for name, found in self._types.items()}
        self._allocator = DeviceAllocator(_reader(in_use), published, (), by_pool, ())
        self._nodes: dict[str, Requirements] = {}
        self._types_left: dict[str, frozenset[str]] = {}
        self._rows = 0

    def allocate(self, step: PodStep) -> Allocated | None:
        """Return what a pod gets on its node; None if it does not fit."""
        claims = [_renamed(claim, f"own-{number}") for number, claim in enumerate(step.own)]
        user = a_claiming_pod("p", *(c.metadata.name for c in step.shares), made=[c.metadata.name for c in claims])
        demands = _reader((*step.shares, *claims)).read(user)
        assert isinstance(demands, tuple), demands
        offer = self._nodes.setdefault(step.node, _within(step.zones))
        row, self._rows = self._rows, self._rows + 1
        proposal = self._allocator.propose(
            self._index(step.node),
            row,
            0,
            demands,
            requirements=offer,
            types_meeting=lambda requirements: self._types_meeting(requirements, step.types),
            case=None,
        )
        if proposal is None:
            return None
        if step.commit:
            self._nodes[step.node] = proposal.requirements
            self._types_left[step.node] = proposal.types
            self._allocator.commit(self._index(step.node), proposal.types, proposal)
        zone = proposal.requirements.get(labels.ZONE)
        return Allocated(_by_type_of(proposal, row), zone.single or "" if zone is not None else "")

    def _types_meeting(self, requirements: Requirements, names: Sequence[str]) -> list[InstanceType]:
        rule = requirements.get(labels.INSTANCE_TYPE)
        return [self._types[name] for name in names or self._types if rule is None or rule.has(name)]

    def _index(self, node: str) -> int:
        return list(self._nodes).index(node)

    def drop(self, node: str, types: Sequence[str]) -> None:
        """Record that a node can no longer become one of these types."""
        self._nodes.setdefault(node, EMPTY)
        if self._allocator.holds(self._index(node)):
            self._types_left[node] -= set(types)
            self._allocator.commit(self._index(node), self._types_left[node])


def _by_type_of(proposal: AllocationProposal, row: int) -> dict[str, list[tuple[str, str]]]:
    return {
        name: [(found.device, found.request) for at, _, _, found in option.allocated if at == row]
        for option in proposal.options
        for name in sorted(option.types)
    }


def _reader(claims: Sequence[ResourceClaim]) -> ClaimReader:
    return ClaimReader(a_snapshot(resource_claims=tuple(claims), device_classes=CLASSES), ())


def _renamed(claim: ResourceClaim, name: str) -> ResourceClaim:
    return replace(claim, metadata=replace(claim.metadata, name=name))


def _within(zones: Sequence[str]) -> Requirements:
    return (
        from_selectors([NodeSelectorRequirement(key=labels.ZONE, operator="In", values=tuple(zones))])
        if zones
        else EMPTY
    )
