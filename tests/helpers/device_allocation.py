"""Pods that get devices one after another: what is published, what instance types bring, and who gets what."""

from __future__ import annotations

import re
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
    Devices,
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

Counters = Mapping[str, Mapping[str, str]]
"""Amounts by counter set and counter."""

Brought = str | Sequence[Mapping[str, Any]]
"""What an instance type brings: slices, or only devices as text (see `devices.listed`)."""


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
    devices: Devices, *, pool: str = "", zone: str = "", counters: Counters | None = None, **spec: Any
) -> list[ResourceSlice]:
    """Return the slices of a pool that all nodes, or those of a zone, can access; its counters are in a slice of their own."""
    pool = pool or f"pool-{zone or 'a'}"
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

    `gets` are the names of its devices by type, or for every type left; None if it does not fit. `zones` are those that the
    node may be in, `zone` is where it must be with these devices.
    """

    node: str
    own: Sequence[ResourceClaim]
    shares: Sequence[ResourceClaim]
    gets: Mapping[str, Sequence[str]] | Sequence[str] | None
    types: Sequence[str]
    zones: Sequence[str]
    zone: str
    commit: bool

    def expected(self, types: Sequence[str]) -> tuple[dict[str, list[str]], str] | None:
        """Return what it gets by type, and the zone of its node; None if it does not fit."""
        if self.gets is None:
            return None
        by_type = self.gets if isinstance(self.gets, Mapping) else dict.fromkeys(self.types or types, self.gets)
        return {name: sorted(devices) for name, devices in by_type.items()}, self.zone


_POD = re.compile(r"(?P<node>\w+)( in (?P<zones>\S+))?: (?P<claims>.*?) ?->(?P<gets>.*?)( in (?P<zone>\w+))?")


def pod(text: str, *more: Any, types: str = "", commit: bool = True) -> PodStep:
    """Return a pod from `NODE [in ZONES]: [CLAIMS] -> DEVICES [in ZONE]`; without devices `no` if it does not fit.

    Claims are separated by `|`; each has requests (see `_request`) and `~attribute` that its devices have in common, or is
    `&name`, a shared claim for one GPU or `&name*what`. Devices differ by type as in `it-a=gpu-0,gpu-1 it-b=gpu-2`.

    Args:
        text: The pod.
        more: Further claims of its own, or the requests of one.
        types: The types that the node may become, by default all.
        commit: Whether it gets the devices; otherwise they are only proposed.
    """
    found = _POD.fullmatch(text)
    assert found is not None, text
    words = found["claims"].split()
    shares = [word[1:].partition("*") for word in words if word.startswith("&")]
    own = [claim.split() for claim in " ".join(w for w in words if not w.startswith("&")).split(" | ")]
    made = [claim for claim in more if isinstance(claim, ResourceClaim)] or [asking(*more)] * bool(more)
    devices = found["gets"].split()
    by_type = {name: names.split(",") for name, _, names in (word.partition("=") for word in devices) if names}
    return PodStep(
        node=found["node"],
        own=[*(_claim(claim) for claim in own if claim), *made],
        shares=[asking(_request(f"1*{what}"), name=name) for name, _, what in shares],
        gets=None if devices == ["no"] else by_type or devices,
        types=types.split(),
        zones=(found["zones"] or "").split(",") if found["zones"] else (),
        zone=found["zone"] or "",
        commit=commit,
    )


def _claim(words: Sequence[str]) -> ResourceClaim:
    match = [f"{DRIVER}/{word[1:]}" for word in words if word.startswith("~")]
    return asking(*(_request(word) for word in words if not word.startswith("~")), match=match)


def _request(text: str) -> dict[str, Any]:
    """Return a request from `COUNT` or `all`, and after `*` a class, `attribute=value` and `capacity:amount`, by comma."""
    count, _, what = text.partition("*")
    words = what.split(",") if what else []
    request: dict[str, Any] = {"allocationMode": "All"} if count == "all" else {"count": int(count)}
    capacity = dict(word.split(":") for word in words if ":" in word)
    selected = [word.split("=") for word in words if "=" in word]
    select = " && ".join(f'device.attributes["{DRIVER}"].{name} == "{value}"' for name, value in selected)
    request |= {"capacity": {"requests": capacity}} if capacity else {}
    classes = [word for word in words if not {":", "="} & set(word)]
    return exactly("req-1", select=select, deviceClassName=classes[0] if classes else "gpu", **request)


class Case:
    """Pods that get devices one after another.

    `types` are the slices or only the devices that each instance type brings, `in_use` claims in use, or devices. Steps are
    pods, also as text, and types that a node can no longer become: `NODE drops TYPES`.
    """

    def __init__(
        self,
        published: Sequence[ResourceSlice],
        *steps: PodStep | str,
        types: Mapping[str, Brought] = {TYPE: ()},
        in_use: Sequence[ResourceClaim] | str = (),
    ) -> None:
        self.published = published
        self.steps = [pod(step) if isinstance(step, str) and ":" in step else step for step in steps]
        self.types = types
        self.in_use = [allocated("held", *in_use.split())] if isinstance(in_use, str) else in_use

    @property
    def expected(self) -> list[Any]:
        """What each pod gets by type, and its node's zone."""
        return [step.expected(tuple(self.types)) for step in self.steps if isinstance(step, PodStep)]

    def follow(self) -> list[Any]:
        """Return what each pod gets by type, and its node's zone if the step names one."""
        allocations = Allocations(self.published, self.types, self.in_use)
        found: list[Any] = []
        for step in self.steps:
            if isinstance(step, str):
                node, _, types = step.partition(" drops ")
                allocations.drop(node, types.split())
                continue
            got = allocations.allocate(step)
            found.append(None if got is None else (got.devices, got.zone if step.zone else ""))
        return found


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
        types: Mapping[str, Brought] = {TYPE: ()},
        in_use: Sequence[ResourceClaim] = (),
    ) -> None:
        """`types` are what each instance type brings, `in_use` the claims that are allocated already."""
        self._types = {
            name: with_devices(
                an_instance_type(name, cpu=64, memory_gib=64, price=1.0),
                *([brought(found)] if isinstance(found, str) else found),
            )
            for name, found in types.items()
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
