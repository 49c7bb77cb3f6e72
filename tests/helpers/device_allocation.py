"""Pods that get devices one after another: what is published, what instance types bring, and who gets what."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
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
    counter_sets,
    first_of,
    listed,
    selecting,
    slice_spec,
    with_devices,
)
from tests.helpers.karpenter_suite import requirement

TYPE = "it-1"
CLASSES = (*DEVICE_CLASSES, a_device_class("h100", selecting("H100")))

Slices = str | Sequence[Any]
"""Slices, or text such as `gpu-0..3!40Gi with 80Gi; a100:model=A100 of pool-b in zone-a`: see `published`."""

_SLICE = re.compile(r"(?P<devices>.*?)( ?with (?P<counters>\S+))?( of (?P<pool>\S+))?( in (?P<zone>\S+))?")


def _parts(text: str, pool: str) -> Iterator[dict[str, Any]]:
    for part in filter(None, text.split(";")):
        found = _SLICE.fullmatch(part.strip())
        assert found is not None, part
        is_nic, zone = found["devices"].startswith("nic"), found["zone"] or ""
        default = f"{pool}-nics" if is_nic else pool.replace("-a", f"-{zone or 'a'}")
        yield {
            "driver": NIC_DRIVER if is_nic else DRIVER,
            "devices": listed(found["devices"]),
            "pool": found["pool"] or default,
            "counters": counter_sets(found["counters"] or ""),
            "zone": zone,
        }


def published(slices: Slices, **more: Any) -> list[ResourceSlice]:
    """Return published slices; as text they are separated by `;`.

    Each has devices (see `devices.listed`; `nic-...` are NICs), then `with` counters, that are in a slice of their own, `of` a
    pool, by default `pool-a` or that of its zone, and `in` the zone whose nodes can access it, by default all nodes.
    """
    if not isinstance(slices, str):
        return list(slices)
    made = []
    for part in _parts(slices, "pool-a"):
        pool, counters, zone = part.pop("pool"), part.pop("counters"), part.pop("zone")
        zonal = {"nodeSelectorTerms": [{"matchExpressions": [requirement(labels.ZONE, "In", zone)]}]}
        where = {"nodeSelector": zonal} if zone else {"allNodes": True}
        spec = {"pool": pool, "of": 2 if counters else 1, **more}
        made.append(a_slice(f"{pool}-{zone}", **part, **spec, **where))
        if counters:
            sets = {"sharedCounters": counters, "driver": part["driver"], "allNodes": True}
            made.append(a_slice(f"{pool}-counters", "", **spec, **sets))
    return made


def brought(slices: Slices) -> list[Any]:
    """Return the slices of an instance type's own devices, with their counters, by default in the pool `own`."""
    if not isinstance(slices, str):
        return list(slices)
    made = []
    for part in _parts(slices, "own"):
        counters, _ = part.pop("counters"), part.pop("zone")
        made.append(slice_spec(**part, **({"sharedCounters": counters} if counters else {})))
    return made


def with_policy(devices: Devices, policy: str) -> list[dict[str, Any]]:
    """Return devices whose capacities have a policy such as `4Gi`, the default, `4Gi of 4Gi,8Gi` or `4Gi min 4Gi step 4Gi`."""
    default, *words = policy.split()
    rest: dict[str, Any] = dict(zip(words[::2], words[1::2], strict=True))
    values = {"validValues": rest.pop("of").split(",")} if "of" in rest else {}
    whole = {"default": default, **values, **({"validRange": rest} if rest else {})}
    made = listed(devices)
    for capacity in (found for each in made for found in each["capacity"].values()):
        capacity["requestPolicy"] = whole
    return made


# Two types whose own NICs are on different roots, so that their pods get different published GPUs beside them.
BESIDE_NICS = {f"it-{root}": f"nic-0..1:example.com/root={root}" for root in "ab"} | {"plain": ""}
BESIDE_NIC = "1*nic 1 ~example.com/root"


# -- claims


def asking(*requests: Any, match: Sequence[Any] = (), name: str = "c", **changes: Any) -> ResourceClaim:
    """Return a ResourceClaim with these requests and constraints: attributes to match, each with the names of requests or alone."""
    constraints = [
        each if isinstance(each, dict) else {"matchAttribute": each[0], "requests": list(each[1:])} for each in match
    ]
    spec = {"devices": {"requests": list(requests), "constraints": constraints}}
    return a_resource_claim(name, spec=spec, **changes)


def claim(text: str, name: str = "c", **changes: Any) -> ResourceClaim:
    """Return a ResourceClaim from requests as text, and `~attribute` or `~attribute@requests` that devices have in common.

    A request is `[NAME@]COUNT[*WHAT]` (or `all` of them). What is a class, `attribute=value` and `capacity:amount`, by comma;
    an amount alone is memory, `vram`. Alternatives of which the first available is allocated are separated by `/`, which
    also ends a single one.
    """
    words = text.split()
    match: list[Any] = []
    for word in (word[1:] for word in words if word.startswith("~")):
        attribute, _, requests = word.partition("@")
        full = attribute if "/" in attribute else f"{DRIVER}/{attribute}"
        match.append([full, *(requests.split(",") if requests else ())])
    entries = (_entry(word, f"req-{n}") for n, word in enumerate((w for w in words if not w.startswith("~")), 1))
    return asking(*entries, match=match, name=name, **changes)


def _entry(text: str, default: str) -> dict[str, Any]:
    name, _, request = text.rpartition("@")
    if "/" in request:
        return first_of(*(_request(option) for option in request.split("/") if option), name=name or "gpu")
    return {"name": name or default, "exactly": {"deviceClassName": "gpu", **_request(request)}}


def _request(text: str) -> dict[str, Any]:
    count, _, what = text.partition("*")
    words = what.split(",") if what else []
    request: dict[str, Any] = {"allocationMode": "All"} if count == "all" else {"count": int(count)}
    for word in words:
        if "=" in word:
            name, value = word.split("=")
            selected = {"expression": f'device.attributes["{DRIVER}"].{name} == "{value}"'}
            request.setdefault("selectors", []).append({"cel": selected})
        elif ":" in word or word[0].isdigit():
            name, _, amount = word.rpartition(":")
            request.setdefault("capacity", {"requests": {}})["requests"][name or "vram"] = amount
        else:
            request["deviceClassName"] = word
    return request


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


def pod(text: str, *more: ResourceClaim, types: str = "", commit: bool = True) -> PodStep:
    """Return a pod from `NODE [in ZONES]: [CLAIMS] -> DEVICES [in ZONE]`; without devices `no` if it does not fit.

    Its own claims are separated by `|` (see `claim`); `&name` is a shared one for a GPU, `&name*what` for another device.
    Devices differ by type as in `it-a=gpu-0,gpu-1 it-b=gpu-2`.

    Args:
        text: The pod.
        more: Further claims of its own.
        types: The types that the node may become, by default all.
        commit: Whether it gets the devices; otherwise they are only proposed.
    """
    found = _POD.fullmatch(text)
    assert found is not None, text
    words = found["claims"].split()
    shares = [word[1:].partition("*") for word in words if word.startswith("&")]
    own = " ".join(word for word in words if not word.startswith("&")).split(" | ")
    devices = found["gets"].split()
    by_type = {name: names.split(",") for name, _, names in (word.partition("=") for word in devices) if names}
    return PodStep(
        node=found["node"],
        own=[*(claim(each) for each in own if each), *more],
        shares=[claim(f"1*{what}", name=name) for name, _, what in shares],
        gets=None if devices == ["no"] else by_type or devices,
        types=types.split(),
        zones=(found["zones"] or "").split(",") if found["zones"] else (),
        zone=found["zone"] or "",
        commit=commit,
    )


class Case:
    """Pods that get devices one after another.

    `slices` are published, `types` are what each instance type brings, `in_use` claims in use, or devices. Steps are pods, also
    as text, and types that a node can no longer become: `NODE drops TYPES`.
    """

    def __init__(
        self,
        slices: Slices,
        *steps: PodStep | str,
        types: Mapping[str, Slices] = {TYPE: ""},
        in_use: Sequence[ResourceClaim] | str = (),
    ) -> None:
        self.published = published(slices)
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
    def requests(self) -> dict[str, str]:
        """The requests with their devices by instance type, as text such as `gpu: gpu-0 gpu-1; nic: nic-0`."""
        return {
            name: "; ".join(
                f"{request}: {' '.join(device for device, of in found if of == request)}"
                for request in dict.fromkeys(request for _, request in found)
            )
            for name, found in self.by_type.items()
        }


class Allocations:
    """Devices of a cluster, allocated to pods on new nodes as the scheduler does it."""

    def __init__(
        self,
        slices: Slices = (),
        types: Mapping[str, Slices] = {TYPE: ""},
        in_use: Sequence[ResourceClaim] = (),
    ) -> None:
        """`types` are what each instance type brings, `in_use` the claims that are allocated already."""
        self._types = {
            name: with_devices(an_instance_type(name, cpu=64, memory_gib=64, price=1.0), *brought(found))
            for name, found in types.items()
        }
        by_pool = {("default", name): found for name, found in self._types.items()}
        self._allocator = DeviceAllocator(_reader(in_use), published(slices), (), by_pool, ())
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
