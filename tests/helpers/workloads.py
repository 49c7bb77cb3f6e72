"""Published test workloads for node autoscalers as scheduling scenarios, on real instance types.

The workloads are 400 small, 100 medium and 10 large pods, a mix of them, a spread of at most 30 pods per node, a CPU burst of
ten pods, and a web tier over three zones. Instance types are moto's record of EC2; on-demand prices are the product's own
table; Spot prices are drawn with a fixed seed at 28 to 62 % of on-demand. `tests/differential/cases` has Karpenter's results
for exactly these scenarios, so the numbers here must not change.
"""

from __future__ import annotations

import functools
import gzip
import json
import random
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

ZONE = "topology.kubernetes.io/zone"
HOSTNAME = "kubernetes.io/hostname"
ARCH = "kubernetes.io/arch"
CAPACITY_TYPE = "karpenter.sh/capacity-type"
REGION = "us-east-1"
SPOT_SEED = 7
JSONDict = dict[str, Any]


def scenario(name: str) -> JSONDict:
    """Return the scenario of a name, in the input format of `journeyman solve`."""
    return {"name": name, "instanceTypes": instance_types(), "objects": WORKLOADS[name](), "options": {}}


def in_(key: str, *values: str) -> JSONDict:
    """Return a requirement with the operator In."""
    return {"key": key, "operator": "In", "values": list(values)}


@functools.cache
def instance_types() -> list[JSONDict]:
    """Return all Nitro types of the region that have a price, with their offerings, sorted by name."""
    prices = json.loads((resources.files("journeyman.cloud.aws") / "data/on_demand_prices.json").read_text())
    zones = _zones()
    rng = random.Random(SPOT_SEED)
    found = []
    for name, facts in sorted(_moto_data("instance_types.json.gz").items()):
        price = prices["onDemandPerHour"][REGION].get(name)
        if price is not None and name in zones and _is_usable(name, facts):
            found.append(_instance_type(name, facts, price, sorted(zones[name]), rng))
    return found


def _moto_data(path: str) -> Any:
    import moto

    return json.loads(gzip.decompress((Path(moto.__file__).parent / "ec2/resources" / path).read_bytes()))


def _zones() -> dict[str, list[str]]:
    zones: dict[str, list[str]] = {}
    for row in _moto_data(f"instance_type_offerings/availability-zone/{REGION}.json.gz"):
        zones.setdefault(row["InstanceType"], []).append(row["Location"])
    return zones


def _is_usable(name: str, facts: JSONDict) -> bool:
    plain = facts.get("Hypervisor") == "nitro" and not facts.get("BareMetal")
    return plain and bool(_architecture(facts)) and not name.startswith("mac")


def _architecture(facts: JSONDict) -> str:
    known = {"x86_64": "amd64", "arm64": "arm64"}
    return next((known[a] for a in facts["ProcessorInfo"]["SupportedArchitectures"] if a in known), "")


def _instance_type(name: str, facts: JSONDict, price: float, zones: list[str], rng: random.Random) -> JSONDict:
    cpus, memory_mib = facts["VCpuInfo"]["DefaultVCpus"], facts["MemoryInfo"]["SizeInMiB"]
    network = facts["NetworkInfo"]
    card = network["NetworkCards"][network.get("DefaultNetworkCardIndex", 0)]
    pods = card["MaximumNetworkInterfaces"] * (network["Ipv4AddressesPerInterface"] - 1) + 2
    family = name.split(".", maxsplit=1)[0]
    generation = re.search(r"\d+", family)
    labels = {
        "node.kubernetes.io/instance-type": [name],
        ARCH: [_architecture(facts)],
        "kubernetes.io/os": ["linux"],
        ZONE: zones,
        CAPACITY_TYPE: ["on-demand", "spot"],
        "karpenter.k8s.aws/instance-category": [re.match("[a-z]+", family)[0]],  # type: ignore[index]
        "karpenter.k8s.aws/instance-generation": [generation[0] if generation else "0"],
        "karpenter.k8s.aws/instance-family": [family],
        "karpenter.k8s.aws/instance-cpu": [str(cpus)],
        "karpenter.k8s.aws/instance-memory": [str(memory_mib)],
    }
    capacity = {
        "cpu": str(cpus),
        "memory": f"{int(memory_mib * 0.925)}Mi",
        "pods": str(pods),
        "ephemeral-storage": "20Gi",
    }
    gpus = facts.get("GpuInfo", {}).get("Gpus", [])
    devices = sum(gpu.get("Count", 0) for gpu in gpus)
    if devices and gpus[0].get("Manufacturer") == "NVIDIA":
        capacity["nvidia.com/gpu"] = str(devices)
    reserved = 60 + sum(10 if core == 2 else 5 if core <= 4 else 2.5 for core in range(2, cpus + 1))
    return {
        "name": name,
        "requirements": [in_(key, *values) for key, values in labels.items()],
        "offerings": list(_offerings(price, zones, rng)),
        "capacity": capacity,
        "overhead": {"cpu": f"{int(reserved)}m", "memory": f"{11 * pods + 355}Mi"},
    }


def _offerings(price: float, zones: list[str], rng: random.Random) -> Iterator[JSONDict]:
    for zone in zones:
        yield {"price": price, "requirements": [in_(ZONE, zone), in_(CAPACITY_TYPE, "on-demand")]}
        spot = round(price * rng.uniform(0.28, 0.62), 6)
        yield {"price": spot, "requirements": [in_(ZONE, zone), in_(CAPACITY_TYPE, "spot")]}


def node_pool(*capacity_types: str, zones: tuple[str, ...] = (), every_type: bool = False) -> JSONDict:
    """Return a NodePool of current general-purpose amd64 types, or with `every_type` of all amd64 types."""
    requirements = [in_(CAPACITY_TYPE, *capacity_types), in_(ARCH, "amd64"), in_("kubernetes.io/os", "linux")]
    if not every_type:
        requirements += [
            in_("karpenter.k8s.aws/instance-category", "c", "m", "r"),
            {"key": "karpenter.k8s.aws/instance-generation", "operator": "Gt", "values": ["4"]},
        ]
    if zones:
        requirements.append(in_(ZONE, *zones))
    node_class = {"group": "karpenter.test.sh", "kind": "TestNodeClass", "name": "default"}
    template = {"spec": {"requirements": requirements, "expireAfter": "720h", "nodeClassRef": node_class}}
    disruption = {
        "consolidationPolicy": "WhenEmptyOrUnderutilized",
        "consolidateAfter": "0s",
        "budgets": [{"nodes": "100%"}],
    }
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": "default"},
        "spec": {"template": template, "disruption": disruption},
    }


def pods(app: str, count: int, cpu: str, memory: str, *, gpus: int = 0, **spec: Any) -> list[JSONDict]:
    """Return the replicas of one workload."""
    devices = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    resources = {"requests": {"cpu": cpu, "memory": memory, **devices}, **({"limits": devices} if devices else {})}
    container = {"name": "c", "image": "pause", "resources": resources}
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{app}-{index}", "namespace": "default", "labels": {"app": app}},
            "spec": {"containers": [container], **spec},
        }
        for index in range(count)
    ]


def spread(app: str, key: str, max_skew: int) -> list[JSONDict]:
    """Return a required topology spread of an app's pods."""
    return [
        {
            "maxSkew": max_skew,
            "topologyKey": key,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": app}},
        }
    ]


def spread_scenario(apps: int, replicas: int, keys: tuple[str, ...]) -> JSONDict:
    """Return a scenario of several workloads, each spread evenly over the domains of each key."""
    sizes = (("500m", "1Gi"), ("250m", "256Mi"), ("1", "2Gi"))
    objects = [node_pool("spot", "on-demand")]
    for number in range(apps):
        app, (cpu, memory) = f"app{number}", sizes[number % len(sizes)]
        constraints = [constraint for key in keys for constraint in spread(app, key, 1)]
        objects += pods(app, replicas, cpu, memory, topologySpreadConstraints=constraints)
    name = f"spread-{apps}x{replicas}"
    return {"name": name, "instanceTypes": instance_types(), "objects": objects, "options": {}}


def _mix() -> list[JSONDict]:
    return [
        *pods("small", 400, "250m", "256Mi"),
        *pods("mid", 100, "1", "1Gi"),
        *pods("big", 10, "10", "10Gi"),
    ]


WORKLOADS = {
    "habr-400x250m": lambda: [node_pool("spot"), *pods("small", 400, "250m", "256Mi")],
    "habr-100x1": lambda: [node_pool("spot"), *pods("mid", 100, "1", "1Gi")],
    "habr-10x10": lambda: [node_pool("spot"), *pods("big", 10, "10", "10Gi")],
    "habr-400-spread30": lambda: [
        node_pool("spot"),
        *pods("spread", 400, "250m", "256Mi", topologySpreadConstraints=spread("spread", HOSTNAME, 30)),
    ],
    "habr-mixed": lambda: [node_pool("spot"), *_mix()],
    "habr-mixed-od": lambda: [node_pool("on-demand"), *_mix()],
    "cce-cpu-burst": lambda: [node_pool("spot", "on-demand"), *pods("burst", 10, "1400m", "1200Mi")],
    "web-zonal-300": lambda: [
        node_pool("spot", "on-demand", zones=("us-east-1a", "us-east-1b", "us-east-1c")),
        *pods("web", 300, "500m", "1Gi", topologySpreadConstraints=spread("web", ZONE, 1)),
    ],
}


def main(folder: str) -> None:
    """Write all scenarios as input files for `journeyman solve`."""
    destination = Path(folder)
    destination.mkdir(parents=True, exist_ok=True)
    for name in WORKLOADS:
        (destination / f"{name}.json").write_text(json.dumps(scenario(name)))


if __name__ == "__main__":
    import sys

    main(sys.argv[1])
