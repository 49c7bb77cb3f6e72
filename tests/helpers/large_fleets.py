"""Large running fleets as scenarios: thousands of nodes whose pods belong to a hundred apps, a third of them with rules.

Nodes are of four types, in three zones, on demand. Every app has replicas of one size. With `rules`, every third app has one
kind of rule: topology spread over zones or nodes, anti-affinity over nodes or zones, and preferences for a zone, for spread
and for anti-affinity. Running pods meet the required rules. `usage` is the part of the fleet's CPUs that pods request.
"""

from __future__ import annotations

import random
from typing import Any

from tests.helpers.under_used_fleets import MEBIBYTES, NOW, TYPES, ZONES, claim_and_node, usable
from tests.helpers.workloads import HOSTNAME, ZONE, in_, instance_types, node_pool

MILLICORES = (100, 250, 500, 1000, 3000)
REPLICAS = 100  # of an app, on average
REQUIRED, PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)
PROBES = 40  # random nodes that are tried for a pod before the emptiest one
JSONDict = dict[str, Any]


def fleet(nodes: int, pods: int, *, seed: int = 17, usage: float = 0.6, rules: bool = False) -> JSONDict:
    """Return a scenario of so many nodes and, if they find capacity, pods, in the input format of `journeyman solve`."""
    return _Fleet(nodes, pods, seed, usage, rules=rules).scenario()


class _Fleet:
    def __init__(self, nodes: int, pods: int, seed: int, usage: float, *, rules: bool) -> None:
        self.rng = random.Random(seed)
        self.types = {t["name"]: t for t in instance_types()}
        self.type_of = [self.rng.choice(TYPES) for _ in range(nodes)]
        self.zone_of = [ZONES[n % len(ZONES)] for n in range(nodes)]
        self.free = [usable(self.types[name]) for name in self.type_of]
        self.rules = rules
        self.pods, self.usage = pods, usage
        self.name = f"fleet-{nodes}-{pods}{'-rules' if rules else ''}-{usage:.0%}"

    def scenario(self) -> JSONDict:
        """Return the whole cluster."""
        objects: list[JSONDict] = [node_pool("on-demand", zones=ZONES)]
        for number, (type_name, zone) in enumerate(zip(self.type_of, self.zone_of, strict=True)):
            objects += claim_and_node(f"node-{number:05d}", self.types[type_name], zone)
        objects += self._running_pods()
        return {
            "name": self.name,
            "now": NOW,
            "instanceTypes": instance_types(),
            "objects": objects,
            "options": {"disrupt": True},
        }

    def _running_pods(self) -> list[JSONDict]:
        apps = max(self.pods // REPLICAS, 1)
        sizes = [(self.rng.choice(MILLICORES), self.rng.choice(MEBIBYTES)) for _ in range(apps)]
        counts = [self.pods // apps + (a < self.pods % apps) for a in range(apps)]
        requested = sum(cpu * count for (cpu, _), count in zip(sizes, counts, strict=True))
        scale = self.usage * sum(cpu for cpu, _ in self.free) / requested
        sizes = [(int(cpu * scale), memory) for cpu, memory in sizes]
        order = sorted(range(apps), key=lambda a: -sizes[a][0])
        return [pod for a in order for pod in self._replicas(a, counts[a], *sizes[a])]

    def _replicas(self, app: int, count: int, cpu: int, memory: int) -> list[JSONDict]:
        kind = KINDS[app // 3 % len(KINDS)] if self.rules and app % 3 == 0 else ""
        name, used, made = f"app-{app:03d}", set[int](), []
        for replica in range(count):
            zone = {"zone-spread": ZONES[replica % 3], "apart-in-zones": ZONES[replica % 3]}.get(kind, "")
            if kind == "apart-in-zones" and replica >= len(ZONES):
                break
            alone = kind in {"apart", "host-spread"}
            node = self._draw(cpu, memory, zone, used if alone else ())
            if node is None:
                continue
            used.add(node)
            self.free[node] = (self.free[node][0] - cpu, self.free[node][1] - memory)
            made.append(_pod(f"{name}-{replica:03d}", name, f"node-{node:05d}", cpu, memory, _rules(kind, name)))
        return made

    def _draw(self, cpu: int, memory: int, zone: str, excluded: Any) -> int | None:
        """Return a node with capacity, mostly a random one."""

        def has_capacity(node: int) -> bool:
            free_cpu, free_memory = self.free[node]
            return (
                free_cpu >= cpu and free_memory >= memory and zone in {"", self.zone_of[node]} and node not in excluded
            )

        for _ in range(PROBES):
            node = self.rng.randrange(len(self.free))
            if has_capacity(node):
                return node
        left = [node for node in range(len(self.free)) if has_capacity(node)]
        return max(left, key=lambda node: (self.free[node], node), default=None)


KINDS = ("zone-spread", "apart", "prefer-zone", "host-spread", "prefer-spread", "prefer-apart", "apart-in-zones")


def _rules(kind: str, app: str) -> JSONDict:
    """Return the part of a pod's spec for a kind of rule."""
    selector = {"labelSelector": {"matchLabels": {"app": app}}}
    spread = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule", **selector}
    term = {"topologyKey": HOSTNAME, **selector}
    zone = {"weight": 10, "preference": {"matchExpressions": [in_(ZONE, ZONES[0], ZONES[1])]}}
    anti_affinity: dict[str, list[JSONDict]] = {
        "apart": [term],
        "apart-in-zones": [{"topologyKey": ZONE, **selector}],
    }
    match kind:
        case "zone-spread":
            return {"topologySpreadConstraints": [spread]}
        case "host-spread":
            return {"topologySpreadConstraints": [{**spread, "topologyKey": HOSTNAME, "maxSkew": 2}]}
        case "prefer-spread":
            return {"topologySpreadConstraints": [{**spread, "whenUnsatisfiable": "ScheduleAnyway"}]}
        case "prefer-zone":
            return {"affinity": {"nodeAffinity": {PREFERRED: [zone]}}}
        case "prefer-apart":
            weighted = [{"weight": 5, "podAffinityTerm": term}]
            return {"affinity": {"podAntiAffinity": {PREFERRED: weighted}}}
        case "apart" | "apart-in-zones":
            return {"affinity": {"podAntiAffinity": {REQUIRED: anti_affinity[kind]}}}
    return {}


def _pod(name: str, app: str, node: str, cpu: int, memory: int, spec: JSONDict) -> JSONDict:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "uid": app, "controller": True}
    conditions = [
        {"type": c, "status": "True", "lastTransitionTime": "2026-01-05T10:05:00Z"} for c in ("PodScheduled", "Ready")
    ]
    requests = {"cpu": f"{cpu}m", "memory": f"{memory}Mi"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": app}, "ownerReferences": [owner]},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "c", "image": "pause", "resources": {"requests": requests}}],
            **spec,
        },
        "status": {"phase": "Running", "conditions": conditions},
    }
