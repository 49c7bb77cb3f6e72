"""Karpenter's own scheduling benchmark as scenarios: pods of every kind, and pods with preferences, on 400 plain types.

Restates: karpenter pkg/controllers/provisioning/scheduling/scheduling_benchmark_test.go `makeDiversePods`,
`makePreferencePods`; pkg/cloudprovider/fake/instancetype.go `InstanceTypes`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from tests.helpers.workloads import ARCH, CAPACITY_TYPE, HOSTNAME, ZONE, in_

SEED = 42
TYPES = 400
ZONES = ("test-zone-1", "test-zone-2", "test-zone-3")
OFFERED = (
    ("spot", "test-zone-1"),
    ("spot", "test-zone-2"),
    ("on-demand", "test-zone-1"),
    ("on-demand", "test-zone-2"),
    ("on-demand", "test-zone-3"),
)
MILLICORES = (100, 250, 500, 1000, 1500)
MEBIBYTES = (100, 256, 512, 1024, 2048, 4096)
NGINX = {"app": "nginx"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
JSONDict = dict[str, Any]


def scenario(name: str) -> JSONDict:
    """Return the scenario of a name."""
    kind, count = name.rsplit("-", 1)
    made = {"diverse": diverse_pods, "preferences": preference_pods}[kind](int(count))
    return {"name": name, "instanceTypes": instance_types(), "objects": [node_pool(), *made], "options": {}}


NAMES = ("diverse-500", "diverse-2000", "diverse-10000", "diverse-20000", "preferences-4000")


def instance_types() -> list[JSONDict]:
    """Return one type per number of cores, with 2 GiB and ten pods per core."""
    return [_instance_type(cpus) for cpus in range(1, TYPES + 1)]


def _instance_type(cpus: int) -> JSONDict:
    name = f"type-{cpus:03d}"
    price = 0.1 * cpus + 0.1 * (2 * cpus * 2**30) / 1e9
    labels = {
        "node.kubernetes.io/instance-type": (name,),
        ARCH: ("amd64",),
        "kubernetes.io/os": ("linux",),
        ZONE: ZONES,
        CAPACITY_TYPE: ("on-demand", "spot"),
    }
    return {
        "name": name,
        "capacity": {"cpu": str(cpus), "memory": f"{2 * cpus}Gi", "pods": str(10 * cpus)},
        "overhead": {"cpu": "100m", "memory": "10Mi"},
        "requirements": [in_(key, *values) for key, values in labels.items()],
        "offerings": [
            {"price": price, "requirements": [in_(ZONE, zone), in_(CAPACITY_TYPE, capacity)]}
            for capacity, zone in OFFERED
        ],
    }


def node_pool() -> JSONDict:
    """Return a NodePool that allows all types and pods, with limits that no scenario reaches."""
    node_class = {"group": "karpenter.test.sh", "kind": "TestNodeClass", "name": "default"}
    requirements = [in_(CAPACITY_TYPE, "spot", "on-demand")]
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": "default"},
        "spec": {
            "limits": {"cpu": "10000000", "memory": "10000000Gi"},
            "disruption": {"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]},
            "template": {
                "spec": {"expireAfter": "Never", "requirements": requirements, "nodeClassRef": node_class},
            },
        },
    }


def diverse_pods(count: int, seed: int = SEED) -> list[JSONDict]:
    """Return a fifth each: plain, spread over zones, spread over hosts, with zone affinity, with host anti-affinity."""
    rng = random.Random(seed)
    fifth = count // 5
    kinds: list[tuple[int, Callable[[random.Random], tuple[JSONDict, JSONDict]]]] = [
        (count - 4 * fifth, lambda rng: (_label(rng), {})),
        (fifth, lambda rng: _spread(rng, ZONE)),
        (fifth, lambda rng: _spread(rng, HOSTNAME)),
        (fifth, _together),
        (fifth, lambda _: (NGINX, _affinity("podAntiAffinity", REQUIRED, [_term(HOSTNAME, NGINX)]))),
    ]
    described = (kind(rng) for share, kind in kinds for _ in range(share))
    return list(_pods(described, rng))


def preference_pods(count: int, seed: int = SEED) -> list[JSONDict]:
    """Return pods that all prefer one zone, and anti-affinity in zones and on hosts."""
    apart = [
        {"weight": 10, "podAffinityTerm": _term(ZONE, NGINX)},
        {"weight": 1, "podAffinityTerm": _term(HOSTNAME, NGINX)},
    ]
    zone = [{"weight": 1, "preference": {"matchExpressions": [in_(ZONE, "test-zone-1")]}}]
    affinity = {"nodeAffinity": {PREFERRED: zone}, "podAntiAffinity": {PREFERRED: apart}}
    described = ((NGINX, {"affinity": affinity}) for _ in range(count))
    return list(_pods(described, random.Random(seed)))


def _pods(described: Iterator[tuple[JSONDict, JSONDict]], rng: random.Random) -> Iterator[JSONDict]:
    """Return pods with these labels and constraints; each then draws its requests."""
    for index, (labels, spec) in enumerate(described):
        requests = {"cpu": f"{rng.choice(MILLICORES)}m", "memory": f"{rng.choice(MEBIBYTES)}Mi"}
        yield {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"p{index:06d}", "namespace": "default", "labels": labels},
            "spec": {"containers": [{"name": "c", "image": "pause", "resources": {"requests": requests}}], **spec},
        }


def _label(rng: random.Random, key: str = "my-label") -> JSONDict:
    return {key: rng.choice("abcdefg")}


def _spread(rng: random.Random, key: str) -> tuple[JSONDict, JSONDict]:
    own = _label(rng)
    constraint = {
        "maxSkew": 1,
        "topologyKey": key,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": _label(rng)},
    }
    return own, {"topologySpreadConstraints": [constraint]}


def _together(rng: random.Random) -> tuple[JSONDict, JSONDict]:
    own = _label(rng, "my-affinity")
    return own, _affinity("podAffinity", REQUIRED, [_term(ZONE, own)])


def _term(key: str, labels: JSONDict) -> JSONDict:
    return {"topologyKey": key, "labelSelector": {"matchLabels": labels}}


def _affinity(kind: str, when: str, terms: list[JSONDict]) -> JSONDict:
    return {"affinity": {kind: {when: terms}}}
