"""Builders for dynamic resource allocation: devices, what publishes them, and what asks for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from journeyman.core.api.dra import DeviceClass, ResourceClaim, ResourceSlice, ResourceSliceSpec
from journeyman.core.api.objects import Pod
from journeyman.core.catalogue import InstanceType
from tests.helpers.builders import merge, pod_body

DRIVER = "gpu.example.com"


def gpu(name: str, model: str = "A100", **more: Any) -> dict[str, Any]:
    """A GPU as a driver publishes it."""
    return {
        "name": name,
        "attributes": {"model": {"string": model}},
        "capacity": {"memory": {"value": "40Gi"}},
        **more,
    }


def gpus(count: int, model: str = "A100", **more: Any) -> list[dict[str, Any]]:
    """That many equal GPUs."""
    return [gpu(f"gpu-{index}", model, **more) for index in range(count)]


def slice_spec(
    devices: Sequence[Mapping[str, Any]], *, pool: str = "pool", generation: int = 1, of: int = 1, **spec: Any
) -> dict[str, Any]:
    """The spec of a slice, one `of` so many that make up its pool."""
    whole = {"name": pool, "generation": generation, "resourceSliceCount": of}
    return {"driver": DRIVER, "pool": whole, "devices": list(devices), **spec}


def a_slice(name: str, devices: Sequence[Mapping[str, Any]], *, node: str = "", **spec: Any) -> ResourceSlice:
    """A published slice; of a node, which owns it, if one is named."""
    body: dict[str, Any] = {
        "metadata": {"name": name},
        "spec": slice_spec(devices, **{"pool": node or name, **spec}),
    }
    if node:
        body["spec"]["nodeName"] = node
        body["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "Node", "name": node}]
    return msgspec.convert(body, ResourceSlice)


def with_devices(instance_type: InstanceType, *specs: Mapping[str, Any]) -> InstanceType:
    """The type with devices that its nodes bring."""
    return replace(instance_type, device_slices=tuple(msgspec.convert(dict(spec), ResourceSliceSpec) for spec in specs))


def a_device_class(name: str = "gpu", expression: str = f'device.driver == "{DRIVER}"') -> DeviceClass:
    """A DeviceClass with one selector."""
    return msgspec.convert(
        {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}, DeviceClass
    )


def exactly(name: str = "gpu", *, select: str = "", **request: Any) -> dict[str, Any]:
    """A request for devices of class `gpu`."""
    selectors = {"selectors": [{"cel": {"expression": select}}]} if select else {}
    return {"name": name, "exactly": {"deviceClassName": "gpu", **selectors, **request}}


def first_of(*options: Mapping[str, Any], name: str = "gpu") -> dict[str, Any]:
    """A request for the first of some alternatives that can be had, `option-0` and so on."""
    made = [{"name": f"option-{n}", "deviceClassName": "gpu", **option} for n, option in enumerate(options)]
    return {"name": name, "firstAvailable": made}


def selecting(model: str) -> str:
    """The expression that selects GPUs of a model."""
    return f'device.attributes["{DRIVER}"].model == "{model}"'


def a_resource_claim(name: str, *requests: Mapping[str, Any], match: str = "", **changes: Any) -> ResourceClaim:
    """A claim with these requests, by default for one GPU; `match` is an attribute that all devices must have in common."""
    devices: dict[str, Any] = {"requests": list(requests) or [exactly()]}
    if match:
        devices["constraints"] = [{"matchAttribute": match}]
    body = {"metadata": {"name": name, "namespace": "default"}, "spec": {"devices": devices}, **changes}
    return msgspec.convert(body, ResourceClaim)


def an_allocated_claim(
    name: str, *devices: tuple[str, str], users: Sequence[str] = (), node: str = ""
) -> ResourceClaim:
    """A claim that has devices, each (pool, name), reserved for pods by UID; bound to a node if one is named."""
    results = [{"request": "gpu", "driver": DRIVER, "pool": pool, "device": device} for pool, device in devices]
    allocation: dict[str, Any] = {"devices": {"results": results}}
    if node:
        fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
        allocation["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": fields}]}
    reserved = [{"resource": "pods", "name": uid, "uid": uid} for uid in users]
    return a_resource_claim(name, status={"allocation": allocation, "reservedFor": reserved})


def a_claiming_pod(name: str, *claims: str, made: Sequence[str] = (), **kwargs: Any) -> Pod:
    """A pod that uses claims by name, and such as were `made` for it from templates."""
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
