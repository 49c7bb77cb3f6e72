"""Builders for dynamic resource allocation: devices, ResourceSlices, DeviceClasses and ResourceClaims."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from journeyman.core.api.dra import DeviceClass, ResourceClaim, ResourceSlice, ResourceSliceSpec
from journeyman.core.api.objects import Pod
from journeyman.core.catalogue import InstanceType
from journeyman.core.scheduling.results import Options
from tests.helpers.builders import merge, pod_body
from tests.helpers.karpenter_suite import Scheduled, schedule

DRIVER = "gpu.example.com"
NIC_DRIVER = "nic.example.com"


def gpu(name: str, model: str = "A100", **more: Any) -> dict[str, Any]:
    """Return a GPU as a driver publishes it."""
    return {
        "name": name,
        "attributes": {"model": {"string": model}},
        "capacity": {"memory": {"value": "40Gi"}},
        **more,
    }


def gpus(count: int, model: str = "A100", **more: Any) -> list[dict[str, Any]]:
    """Return so many equal GPUs."""
    return [gpu(f"gpu-{index}", model, **more) for index in range(count)]


Devices = str | Sequence[Mapping[str, Any]]
_DEVICE = re.compile(r"(?P<name>[^:!+]+)(:(?P<attributes>[^!+]+))?(!(?P<draws>[^+]+))?(?P<shared>\+(?P<capacity>.*))?")


def listed(devices: Devices) -> list[dict[str, Any]]:
    """Return devices from text such as `gpu-0..3 h100:model=H100,numa=0 part!40Gi shared+vram=80Gi`.

    The first are four devices. `:` begins string attributes, `!` what the device draws on counters (see `counter_sets`),
    and `+` the capacities of a shared device.
    """
    if not isinstance(devices, str):
        return [dict(found) for found in devices]
    made: list[dict[str, Any]] = []
    for word in devices.split():
        found = _DEVICE.fullmatch(word)
        assert found is not None, word
        stem, _, last = found["name"].partition("..")
        prefix, _, first = stem.rpartition("-")
        names = [f"{prefix}-{n:0{len(first)}}" for n in range(int(first), int(last) + 1)] if last else [stem]
        values = dict(pair.split("=") for pair in (found["attributes"] or "").split(",") if pair)
        sizes = dict(pair.rsplit("=", 1) for pair in (found["capacity"] or "").split(",") if pair)
        drawn = counter_sets(found["draws"] or "")
        made += [
            {
                "name": name,
                "attributes": {key: {"string": value} for key, value in values.items()},
                "capacity": {key: {"value": amount} for key, amount in sizes.items()},
                "consumesCounters": [{"counterSet": each["name"], "counters": each["counters"]} for each in drawn],
                "allowMultipleAllocations": found["shared"] is not None,
            }
            for name in names
        ]
    return made


def counter_sets(text: str) -> list[dict[str, Any]]:
    """Return counters from text such as `80Gi` (of memory) or `gpu.memory=80Gi,gpu.units=4,flops=100` (a set of its own)."""
    found: dict[str, dict[str, Any]] = {}
    for key, _, amount in (entry.rpartition("=") for entry in text.split(",") if entry):
        name, _, counter = (key or "memory").rpartition(".")
        found.setdefault(name or counter, {})[counter] = {"value": amount}
    return [{"name": name, "counters": counters} for name, counters in found.items()]


def slice_spec(
    devices: Devices, *, pool: str = "pool", generation: int = 1, of: int = 1, **spec: Any
) -> dict[str, Any]:
    """Return the spec of a ResourceSlice, one `of` so many of its pool."""
    whole = {"name": pool, "generation": generation, "resourceSliceCount": of}
    return {"driver": DRIVER, "pool": whole, "devices": listed(devices), **spec}


def a_slice(name: str, devices: Devices, *, node: str = "", **spec: Any) -> ResourceSlice:
    """Return a published ResourceSlice; owned by `node` if given."""
    body: dict[str, Any] = {
        "metadata": {"name": name},
        "spec": slice_spec(devices, **{"pool": node or name, **spec}),
    }
    if node:
        body["spec"]["nodeName"] = node
        body["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "Node", "name": node}]
    return msgspec.convert(body, ResourceSlice)


def with_devices(instance_type: InstanceType, *specs: Mapping[str, Any]) -> InstanceType:
    """Return the instance type with devices that its nodes publish."""
    return replace(instance_type, device_slices=tuple(msgspec.convert(dict(spec), ResourceSliceSpec) for spec in specs))


def a_device_class(name: str = "gpu", expression: str = f'device.driver == "{DRIVER}"') -> DeviceClass:
    """Return a DeviceClass with one selector."""
    return msgspec.convert(
        {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}, DeviceClass
    )


DEVICE_CLASSES = (a_device_class(), a_device_class("nic", f'device.driver == "{NIC_DRIVER}"'))


def exactly(name: str = "gpu", *, select: str = "", **request: Any) -> dict[str, Any]:
    """Return a request for devices of class `gpu`."""
    selectors = {"selectors": [{"cel": {"expression": select}}]} if select else {}
    return {"name": name, "exactly": {"deviceClassName": "gpu", **selectors, **request}}


def first_of(*options: Mapping[str, Any], name: str = "gpu") -> dict[str, Any]:
    """Return a request for the first available alternative of `option-0` and so on."""
    made = [{"name": f"option-{n}", "deviceClassName": "gpu", **option} for n, option in enumerate(options)]
    return {"name": name, "firstAvailable": made}


def selecting(model: str) -> str:
    """Return the CEL expression that selects GPUs of a model."""
    return f'device.attributes["{DRIVER}"].model == "{model}"'


def a_resource_claim(name: str, *requests: Mapping[str, Any], match: str = "", **changes: Any) -> ResourceClaim:
    """Return a ResourceClaim with these requests, by default for one GPU; all its devices have the same `match` attribute."""
    devices: dict[str, Any] = {"requests": list(requests) or [exactly()]}
    if match:
        devices["constraints"] = [{"matchAttribute": match}]
    body = {"metadata": {"name": name, "namespace": "default"}, "spec": {"devices": devices}, **changes}
    return msgspec.convert(body, ResourceClaim)


def an_allocated_claim(
    name: str, *devices: tuple[str, str], users: Sequence[str] = (), node: str = ""
) -> ResourceClaim:
    """Return a ResourceClaim with devices, each (pool, name), reserved for pods by UID; bound to `node` if given."""
    results = [{"request": "gpu", "driver": DRIVER, "pool": pool, "device": device} for pool, device in devices]
    allocation: dict[str, Any] = {"devices": {"results": results}}
    if node:
        fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
        allocation["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": fields}]}
    reserved = [{"resource": "pods", "name": uid, "uid": uid} for uid in users]
    return a_resource_claim(name, status={"allocation": allocation, "reservedFor": reserved})


def a_claiming_pod(name: str, *claims: str, made: Sequence[str] = (), **kwargs: Any) -> Pod:
    """Return a pod that uses ResourceClaims by name, and those that were `made` for it from templates."""
    named = [{"name": f"c{n}", "resourceClaimName": claim} for n, claim in enumerate(claims)]
    own = [{"name": f"t{n}", "resourceClaimTemplateName": "template"} for n, _ in enumerate(made)]
    statuses = [{"name": f"t{n}", "resourceClaimName": claim} for n, claim in enumerate(made)]
    body = pod_body(name, **kwargs)
    uses = {
        "metadata": {"uid": f"uid-{name}"},
        "spec": {"resourceClaims": [*named, *own]},
        "status": {"resourceClaimStatuses": statuses},
    }
    return msgspec.convert(merge(body, uses), Pod)


def schedule_devices(
    *pods: Pod,
    claims: Sequence[ResourceClaim] = (),
    slices: Sequence[ResourceSlice] = (),
    nodeclaims: Sequence[Any] = (),
    classes: Sequence[DeviceClass] | None = None,
    **cluster: Any,
) -> Scheduled:
    """Return the verified plan, with devices, for these pods and their ResourceClaims; see `karpenter_suite.schedule`.

    Args:
        pods: Pods, also running ones.
        claims: All ResourceClaims.
        slices: The published ResourceSlices.
        nodeclaims: The NodeClaims.
        classes: The DeviceClasses, by default `gpu` and `nic`, each with the devices of one driver.
        cluster: The other fields of the snapshot, and the instance types.
    """
    return schedule(
        *pods,
        options=Options(ignore_dra_requests=False),
        resource_claims=tuple(claims),
        resource_slices=tuple(slices),
        device_classes=DEVICE_CLASSES if classes is None else tuple(classes),
        claims=tuple(nodeclaims),
        **cluster,
    )


def table(names: str, cases: Mapping[str, Any]) -> pytest.MarkDecorator:
    """Return the mark for a test with these parameters and one case by id."""
    return pytest.mark.parametrize(names, list(cases.values()), ids=list(cases))


def devices_of(plan: Scheduled, claim: str = "c") -> list[str]:
    """Return the planned devices of a ResourceClaim, each `pool/name`; those for the priced type of a new node.

    `claim` is in the namespace default unless it names one.
    """
    key = claim if "/" in claim else f"default/{claim}"
    on_new = (d for node in plan.results.new_claims for d in node.devices.get(node.offering.instance_type, ()))
    on_existing = (d for found in plan.results.devices.values() for d in found)
    return sorted(f"{d.pool}/{d.device}" for d in (*on_new, *on_existing) if d.claim == key)
