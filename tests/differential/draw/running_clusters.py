"""Running clusters for comparisons of disruption: `running_cluster(seed)` draws one of 3 to 25 nodes as a scenario.

Each has one to three NodePools, nodes between empty and full in all stages, and pods with owners. A cluster has few of the
further kinds of objects and rules (`Features`), so that a difference has few possible causes. Prices are distinct, because
Karpenter breaks ties at random. It is a seeded generator rather than a hypothesis strategy: a hundred clusters are drawn in
a second, and a number is enough to draw one again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TypeVar

from tests.differential.draw.resizes import GROWTHS, LEVELS, resized
from tests.differential.draw.resizes import STAGES as STAGES_OF_RESIZES
from tests.differential.draw.types import CPU_FAMILIES, Family
from tests.differential.draw.words import (
    ARCH,
    CAPACITY_TYPE,
    CPU,
    FAMILY,
    GENERATION,
    HOSTNAME,
    INSTANCE_TYPE,
    NODE_CLASS,
    NODE_CLASS_LABEL,
    NODEPOOL,
    OS,
    ZONE,
    JSONDict,
    an_object,
    require,
)

T = TypeVar("T")
NOW = datetime(2026, 1, 5, 12, 0, tzinfo=timezone.utc)  # a Monday
FAMILIES = (
    *CPU_FAMILIES[:3],
    Family(name="m6", gib_per_cpu=4, price=0.051),
    Family(name="c7", gib_per_cpu=2, price=0.044),
)
SIZES = (2, 4, 8, 16)
RESIZES = 1_000_000  # added to the seed
STAGES = ("initialized",) * 60 + ("registered", "launched", "deleting", "not-ready", "cordoned", "do-not-disrupt")
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, kw_only=True)
class Features:
    """Kinds of rules and objects in a cluster."""

    budgets: bool
    blockers: bool  # PodDisruptionBudgets, and pods with the do-not-disrupt annotation
    costs: bool  # pod deletion costs and priorities
    daemon_sets: bool
    drift: bool
    limits: bool
    min_values: bool
    pending_pods: bool
    pod_rules: bool  # zone spread and anti-affinity
    preferences: bool
    selectors: bool
    stages: bool  # nodes that are not simply initialized and ready
    static: bool
    unavailable: bool  # offerings
    windows: bool  # nodes within their consolidateAfter


PERCENT = {"min_values": 12, "limits": 12, "static": 20, "windows": 20, "preferences": 20, "unavailable": 25}


class Draw:
    """Random choices."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def chance(self, percent: int) -> bool:
        """Return True with a probability of this many percent."""
        return self._rng.random() * 100 < percent

    def pick(self, values: Sequence[T]) -> T:
        """Return one of the values."""
        return self._rng.choice(values)

    def some(self, values: Sequence[T], least: int = 1) -> list[T]:
        """Return `least` or more of the values, in their order."""
        chosen = self._rng.sample(range(len(values)), self._rng.randint(least, len(values)))
        return [values[index] for index in sorted(chosen)]

    def between(self, low: float, high: float) -> float:
        """Return a number between two numbers."""
        return self._rng.uniform(low, high)

    def count(self, low: int, high: int) -> int:
        """Return a whole number between two numbers, both included."""
        return self._rng.randint(low, high)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Pods of one owner."""

    name: str
    owner: str
    millicores: int
    mebibytes: int
    labels: dict[str, str]
    spec: JSONDict
    annotations: dict[str, str]
    zones: tuple[str, ...]  # where a node selector lets it run; empty for anywhere
    alone_on_node: bool
    is_ready: bool


@dataclass(kw_only=True)
class DrawnNode:
    """A node, and what is still free on it."""

    name: str
    pool: JSONDict
    instance_type: JSONDict
    zone: str
    capacity_type: str
    stage: str
    millicores: int
    mebibytes: int
    pod_slots: int
    workloads: set[str] = field(default_factory=set)


def running_cluster(seed: int) -> JSONDict:
    """Return the cluster of a number as a scenario that asks for the decisions of every disruption method."""
    draw = Draw(seed)
    features = _features(draw)
    types = _instance_types(draw, features)
    pools = _node_pools(draw, features, types)
    nodes = _nodes(draw, features, pools, types)
    _set_replicas(draw, pools, nodes)
    workloads = _workloads(draw, features)
    daemons = [_daemon_set(f"d{n}", draw) for n in range(draw.count(1, 2))] if features.daemon_sets else []
    placed = [*_daemon_pods(draw, nodes, daemons), *_running_pods(draw, features, nodes, workloads)]
    objects = [*pools, *daemons]
    for node in nodes:
        objects += _joined(draw, features, node)
    objects += _resized(seed, placed)
    if features.pending_pods:
        objects += _pending_pods(draw, workloads, nodes)
    if features.blockers:
        objects += _disruption_budgets(draw, workloads, daemons)
    options = {
        "disrupt": True,
        "everyMethod": True,
        "preferencePolicy": "Ignore" if draw.chance(10) else "Respect",
        "spotToSpotConsolidation": draw.chance(40),
    }
    return {
        "name": f"running-{seed}",
        "now": _time(timedelta(0)),
        "instanceTypes": types,
        "objects": objects,
        "options": options,
    }


def _features(draw: Draw) -> Features:
    """Return few features; static NodePools mostly come with drift, because only drift disrupts their nodes."""
    drawn = {name: draw.chance(PERCENT.get(name, 35)) for name in Features.__dataclass_fields__}
    return Features(**{**drawn, "drift": drawn["drift"] or (drawn["static"] and draw.chance(70))})


def _time(ago: timedelta) -> str:
    return (NOW - ago).strftime("%Y-%m-%dT%H:%M:%SZ")


# -- instance types and NodePools -------------------------------------------------------------------------------------


def _instance_types(draw: Draw, features: Features) -> list[JSONDict]:
    zones = ("a", "b", "c")[: draw.pick((3, 2, 3, 1))]
    families = list(FAMILIES) if draw.chance(40) else draw.some(FAMILIES)
    found = [_instance_type(draw, features, family, cpus, zones) for family in families for cpus in SIZES]
    return sorted(found, key=lambda t: str(t["name"]))


def _instance_type(draw: Draw, features: Features, family: Family, cpus: int, zones: tuple[str, ...]) -> JSONDict:
    name = f"{family.name}.{cpus}x"
    offerings = []
    for zone in zones:
        price = family.price * cpus * draw.between(0.97, 1.03)
        for capacity_type, factor in (("on-demand", 1.0), ("spot", draw.between(0.25, 0.6))):
            offerings.append(
                {
                    "requirements": [require(ZONE, "In", zone), require(CAPACITY_TYPE, "In", capacity_type)],
                    "price": round(price * factor, 7),
                    "available": not (features.unavailable and draw.chance(20)),
                }
            )
    labels = {
        INSTANCE_TYPE: [name],
        ARCH: ["amd64"],
        OS: ["linux"],
        ZONE: list(zones),
        CAPACITY_TYPE: ["on-demand", "spot"],
        CPU: [str(cpus)],
        FAMILY: [family.name],
        GENERATION: [family.name[1]],
    }
    return {
        "name": name,
        "requirements": [require(key, "In", *values) for key, values in labels.items()],
        "offerings": offerings,
        "capacity": {
            "cpu": str(cpus),
            "memory": f"{cpus * family.gib_per_cpu}Gi",
            "pods": "29" if cpus < 8 else "58",
            "ephemeral-storage": "20Gi",
        },
        "overhead": {"cpu": "80m", "memory": "300Mi"},
    }


def _node_pools(draw: Draw, features: Features, types: Sequence[JSONDict]) -> list[JSONDict]:
    count = max(draw.pick((1, 1, 2, 3)), 2 if features.static else 1)
    zones = next(r["values"] for r in types[0]["requirements"] if r["key"] == ZONE)
    return [_node_pool(n, zones, draw, features, static=features.static and n == count - 1) for n in range(count)]


def _node_pool(index: int, zones: Sequence[str], draw: Draw, features: Features, *, static: bool) -> JSONDict:
    name = f"p{index}"
    requirements = [require(CAPACITY_TYPE, "In", *draw.pick((["on-demand"], ["spot"], ["on-demand", "spot"])))]
    if draw.chance(15):
        requirements.append(require(ZONE, "In", *draw.some(zones)))
    if draw.chance(15):
        requirements.append(require(CPU, draw.pick(("Gt", "Lt")), draw.pick(("2", "16"))))
    if features.min_values:
        requirements.append({**require(INSTANCE_TYPE, "Exists"), "minValues": draw.pick((2, 4))})
    disruption: JSONDict = {
        "consolidationPolicy": draw.pick(("WhenEmptyOrUnderutilized",) * 5 + ("WhenEmpty", "Balanced", "Balanced")),
        "consolidateAfter": draw.pick(("0s", "0s", "30s", "5m", "0s", "0s", "30s", "Never")),
    }
    disruption["budgets"] = _budgets(draw) if features.budgets else [{"nodes": "100%"}]
    template = {
        "nodeClassRef": NODE_CLASS,
        "requirements": requirements,
        "expireAfter": draw.pick(("720h", "Never")),
    }
    spec: JSONDict = {"template": {"metadata": {"labels": {}}, "spec": template}, "disruption": disruption}
    if static:
        spec["replicas"] = 0  # until its nodes are drawn
        return an_object("NodePool", name, "karpenter.sh/v1", spec=spec)
    spec["weight"] = 10 * (3 - index)
    if features.limits:
        spec["limits"] = draw.pick(({"cpu": "200"}, {"cpu": "40"}, {"memory": "400Gi"}))
    return an_object("NodePool", name, "karpenter.sh/v1", spec=spec)


def _set_replicas(draw: Draw, pools: Sequence[JSONDict], nodes: Sequence[DrawnNode]) -> None:
    """Let static NodePools ask for as many nodes as they have, for one more or for one less; some have a limit."""
    for pool in pools:
        if "replicas" in pool["spec"]:
            count = sum(1 for node in nodes if node.pool is pool)
            pool["spec"]["replicas"] = max(0, count + draw.pick((0, 0, 0, 0, 1, -1)))
            if draw.chance(40):
                pool["spec"]["limits"] = {"nodes": str(count + draw.count(0, 3))}


def _budgets(draw: Draw) -> list[JSONDict]:
    """Return one to three budgets; no window of theirs opens or closes within minutes of now."""
    found = []
    for _ in range(draw.count(1, 3)):
        budget: JSONDict = {"nodes": draw.pick(("1", "2", "10%", "30%", "100%", "0", "5"))}
        if draw.chance(40):
            budget["reasons"] = draw.some(("Empty", "Drifted", "Underutilized"))
        if draw.chance(40):
            schedules = ("30 9 * * mon-fri", "0 18 * * *", "@daily", "15 3 * * sat,sun", "45 11 5 1 *", "@weekly")
            budget |= {"schedule": draw.pick(schedules), "duration": draw.pick(("8h", "1h10m", "23h20m", "45m"))}
        found.append(budget)
    return found


# -- nodes ------------------------------------------------------------------------------------------------------------


def _nodes(draw: Draw, features: Features, pools: Sequence[JSONDict], types: Sequence[JSONDict]) -> list[DrawnNode]:
    count = draw.pick((3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 25))
    return [_node(draw, features, f"n{index:02}", draw.pick(pools), types) for index in range(count)]


def _node(draw: Draw, features: Features, name: str, pool: JSONDict, types: Sequence[JSONDict]) -> DrawnNode:
    """Return a node of the pool, of an instance type and offering that it allows if there is one."""
    instance_type, offering = draw.pick(
        [(t, o) for t in types for o in t["offerings"] if _allows(pool, t, o)]
        or [(t, o) for t in types for o in t["offerings"]]
    )
    zone, capacity_type = (requirement["values"][0] for requirement in offering["requirements"])
    capacity = instance_type["capacity"]
    return DrawnNode(
        name=name,
        pool=pool,
        instance_type=instance_type,
        zone=zone,
        capacity_type=capacity_type,
        stage=draw.pick(STAGES if features.stages else STAGES[:1]),
        millicores=int(capacity["cpu"]) * 1000 - 80,
        mebibytes=int(capacity["memory"].removesuffix("Gi")) * 1024 - 300,
        pod_slots=int(capacity["pods"]),
    )


def _allows(pool: JSONDict, instance_type: JSONDict, offering: JSONDict) -> bool:
    values = {r["key"]: r["values"][0] for r in (*instance_type["requirements"], *offering["requirements"])}
    for requirement in pool["spec"]["template"]["spec"]["requirements"]:
        value, wanted = values[requirement["key"]], requirement.get("values", [])
        match requirement["operator"]:
            case "In":
                allowed = value in wanted
            case "Gt":
                allowed = int(value) > int(wanted[0])
            case "Lt":
                allowed = int(value) < int(wanted[0])
            case _:
                allowed = True
        if not allowed:
            return False
    return True


def _joined(draw: Draw, features: Features, node: DrawnNode) -> Iterator[JSONDict]:
    """Yield the NodeClaim of a node, and its Node if it has registered."""
    labels = {r["key"]: r["values"][0] for r in node.instance_type["requirements"] if len(r["values"]) == 1}
    labels |= {
        NODEPOOL: node.pool["metadata"]["name"],
        NODE_CLASS_LABEL: NODE_CLASS["name"],
        ZONE: node.zone,
        CAPACITY_TYPE: node.capacity_type,
    }
    memory = int(node.instance_type["capacity"]["memory"].removesuffix("Gi")) * 1024 - 300
    cpu = int(node.instance_type["capacity"]["cpu"]) * 1000 - 80
    allocatable = {**node.instance_type["capacity"], "cpu": f"{cpu}m", "memory": f"{memory}Mi"}
    amounts = {"capacity": node.instance_type["capacity"], "allocatable": allocatable}
    provider_id = f"test:///{node.zone}/{node.name}"
    yield _claim(draw, features, node, labels, {**amounts, "providerID": provider_id})
    if node.stage == "launched":
        return
    marks = {HOSTNAME: node.name, "karpenter.sh/registered": "true", "karpenter.sh/initialized": "true"}
    if node.stage == "registered":
        del marks["karpenter.sh/initialized"]
    metadata: JSONDict = {"labels": {**labels, **marks}, "creationTimestamp": _time(timedelta(hours=3))}
    if node.stage == "do-not-disrupt":
        metadata["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}
    cordoned = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    spec = {"providerID": provider_id}
    yield an_object(
        "Node",
        node.name,
        metadata=metadata,
        spec=spec | ({"taints": [cordoned], "unschedulable": True} if node.stage == "cordoned" else {}),
        status={
            **amounts,
            "conditions": [{"type": "Ready", "status": "False" if node.stage == "not-ready" else "True"}],
        },
    )


def _claim(draw: Draw, features: Features, node: DrawnNode, labels: JSONDict, status: JSONDict) -> JSONDict:
    """Return the NodeClaim; it is Consolidatable as Karpenter's controller would have set it."""
    reached = {"launched": 1, "registered": 2}.get(node.stage, 3)
    conditions = [_condition(kind, timedelta(hours=3)) for kind in ("Launched", "Registered", "Initialized")[:reached]]
    after = node.pool["spec"]["disruption"]["consolidateAfter"]
    quiet_minutes = draw.count(1, 4) if after == "5m" and features.windows and draw.chance(40) else draw.count(10, 90)
    is_quiet = after != "5m" or quiet_minutes > 5
    if after != "Never" and is_quiet and reached == 3:
        conditions.append(_condition("Consolidatable", timedelta(minutes=1)))
    if features.drift and draw.chance(25):
        conditions.append(_condition("Drifted", timedelta(seconds=draw.count(60, 6000))))
    metadata: JSONDict = {"labels": labels, "creationTimestamp": _time(timedelta(hours=3))}
    if node.stage == "deleting":
        metadata |= {"deletionTimestamp": _time(timedelta(minutes=1)), "finalizers": ["karpenter.sh/termination"]}
    spec = {
        "nodeClassRef": NODE_CLASS,
        "requirements": [require(INSTANCE_TYPE, "In", labels[INSTANCE_TYPE])],
        "expireAfter": node.pool["spec"]["template"]["spec"]["expireAfter"],
    }
    if features.drift and draw.chance(30):
        spec["terminationGracePeriod"] = "10m"
    return an_object(
        "NodeClaim",
        f"c-{node.name}",
        "karpenter.sh/v1",
        metadata=metadata,
        spec=spec,
        status={
            **status,
            "conditions": conditions,
            "nodeName": "" if node.stage == "launched" else node.name,
            "lastPodEventTime": _time(timedelta(minutes=quiet_minutes)),
        },
    )


def _condition(kind: str, ago: timedelta) -> JSONDict:
    return {"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": _time(ago)}


# -- pods -------------------------------------------------------------------------------------------------------------


def _workloads(draw: Draw, features: Features) -> list[Workload]:
    return [_workload(f"app{n}", draw, features) for n in range(draw.count(2, 8))]


def _workload(name: str, draw: Draw, features: Features) -> Workload:
    spec: JSONDict = {}
    zones: tuple[str, ...] = ()
    alone = False
    if features.selectors and draw.chance(35):
        key, value = draw.pick(((ZONE, "a"), (CAPACITY_TYPE, "spot"), (CAPACITY_TYPE, "on-demand"), (ZONE, "b")))
        spec["nodeSelector"] = {key: value}
        zones = (value,) if key == ZONE else ()
    if features.pod_rules and draw.chance(35):
        spec["topologySpreadConstraints"] = [_spread(name, draw, "DoNotSchedule")]
    elif features.pod_rules and draw.chance(35):
        alone = draw.chance(70)
        term = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"app": name}}}
        spec["affinity"] = {"podAntiAffinity": {REQUIRED: [term]}} if alone else {"podAffinity": {REQUIRED: [term]}}
    if features.preferences and draw.chance(40):
        if draw.chance(50):
            preference = {"matchExpressions": [require(ZONE, "In", draw.pick(("a", "b")))]}
            preferred = {PREFERRED: [{"weight": draw.pick((1, 50)), "preference": preference}]}
            spec["affinity"] = {**spec.get("affinity", {}), "nodeAffinity": preferred}
        elif "topologySpreadConstraints" not in spec:
            spec["topologySpreadConstraints"] = [_spread(name, draw, "ScheduleAnyway")]
    annotations = {}
    if features.costs and draw.chance(50):
        annotations["controller.kubernetes.io/pod-deletion-cost"] = draw.pick(
            ("100", "-2147483648", "50000000", "much", "-134217728")
        )
    if features.costs and draw.chance(40):
        spec["priority"] = draw.pick((1000000, -200000000, 1000000000, 0))
    if features.blockers and draw.chance(10):
        annotations["karpenter.sh/do-not-disrupt"] = draw.pick(("true", "true", "48h", "1m", "perhaps"))
    return Workload(
        name=name,
        owner=draw.pick(("ReplicaSet",) * 6 + ("StatefulSet", "Job", "")),
        millicores=draw.pick((50, 100, 250, 250, 500, 700, 1000, 1400, 3000)),
        mebibytes=draw.pick((64, 256, 512, 1024, 2048, 4096)),
        labels={"app": name, "half": draw.pick(("left", "right"))},
        spec=spec,
        annotations=annotations,
        zones=zones,
        alone_on_node=alone,
        is_ready=not draw.chance(10),
    )


def _spread(app: str, draw: Draw, when: str) -> JSONDict:
    selector = {"matchLabels": {"app": app}}
    key = draw.pick((ZONE, ZONE, HOSTNAME))
    return {"maxSkew": draw.pick((1, 1, 2)), "topologyKey": key, "whenUnsatisfiable": when, "labelSelector": selector}


def _running_pods(
    draw: Draw, features: Features, nodes: Sequence[DrawnNode], workloads: Sequence[Workload]
) -> Iterator[JSONDict]:
    """Yield pods on nodes that have registered, until each is filled as drawn; their node selectors and rules are met."""
    number = 0
    filled = draw.pick(((0.0, 0.1, 0.2, 0.5), (0.0, 0.3, 0.6, 0.9), (0.4, 0.6, 0.8, 1.0), (0.9, 1.0, 1.0, 0.95, 0.3)))
    for node in nodes:
        if node.stage == "launched":
            continue
        keep_free = node.millicores * (1 - draw.pick(filled))
        for _ in range(25):
            workload = draw.pick(workloads)
            if node.millicores - workload.millicores < keep_free or not _fits(workload, node):
                continue
            node.millicores -= workload.millicores
            node.mebibytes -= workload.mebibytes
            node.pod_slots -= 1
            node.workloads.add(workload.name)
            number += 1
            yield _pod(f"r{number:03}", workload, draw, features, node=node.name)


def _resized(seed: int, pods: Sequence[JSONDict]) -> Iterator[JSONDict]:
    """Yield the pods, in a third of the clusters some of them with a resize; random choices of its own leave the others as is."""
    draw = Draw(seed + RESIZES)
    percent = 20 if draw.chance(35) else 0
    for number, pod in enumerate(pods):
        if not draw.chance(percent) or pod["status"]["phase"] != "Running":
            yield pod
            continue
        newest = {"creationTimestamp": _time(timedelta(hours=1, seconds=number))}  # DaemonSets have one newest pod
        created = {**pod, "metadata": {**pod["metadata"], **newest}}
        level = draw.pick(LEVELS)
        # of the pod level, Karpenter sees no shrinking and no infeasible resize; our decisions about those differ
        yield resized(created, draw.pick(GROWTHS if level == "pod" else STAGES_OF_RESIZES), level)


def _fits(workload: Workload, node: DrawnNode) -> bool:
    selector = workload.spec.get("nodeSelector", {})
    return (
        workload.millicores <= node.millicores
        and workload.mebibytes <= node.mebibytes
        and node.pod_slots > 0
        and selector.get(ZONE, node.zone) == node.zone
        and selector.get(CAPACITY_TYPE, node.capacity_type) == node.capacity_type
        and not (workload.alone_on_node and workload.name in node.workloads)
    )


def _pod(name: str, workload: Workload, draw: Draw, features: Features, *, node: str = "") -> JSONDict:
    resources = {"requests": {"cpu": f"{workload.millicores}m", "memory": f"{workload.mebibytes}Mi"}}
    metadata: JSONDict = {"labels": workload.labels, "annotations": workload.annotations}
    if workload.owner:
        api = "batch/v1" if workload.owner == "Job" else "apps/v1"
        owner = {"apiVersion": api, "kind": workload.owner, "name": workload.name, "uid": f"owner-{workload.name}"}
        metadata["ownerReferences"] = [{**owner, "controller": True}]
    spec = {"containers": [{"name": "c", "image": "i", "resources": resources}], **workload.spec}
    if not node:
        return an_object("Pod", name, namespace="default", metadata=metadata, spec=spec)
    since = _time(timedelta(hours=2))
    ready = "True" if workload.is_ready else "False"
    status: JSONDict = {
        "phase": "Running",
        "startTime": since,
        "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": since},
            {"type": "Ready", "status": ready, "lastTransitionTime": since},
        ],
    }
    if features.stages and draw.chance(4):
        status["phase"] = "Succeeded"
    elif features.stages and draw.chance(4):
        metadata |= {"deletionTimestamp": _time(timedelta(seconds=30)), "finalizers": ["example.com/slow"]}
    return an_object(
        "Pod", name, namespace="default", metadata=metadata, spec={**spec, "nodeName": node}, status=status
    )


def _pending_pods(draw: Draw, workloads: Sequence[Workload], nodes: Sequence[DrawnNode]) -> Iterator[JSONDict]:
    """Yield unschedulable pods; one may wait for a node that is nominated for it."""
    for number in range(draw.count(1, 4)):
        pod = _pod(f"w{number}", draw.pick(workloads), draw, NO_FEATURES)
        if draw.chance(20):
            waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            pod["status"] = {
                "phase": "Pending",
                "conditions": [waits],
                "nominatedNodeName": draw.pick(nodes).name,
            }
        yield pod


NO_FEATURES = Features(**dict.fromkeys(Features.__dataclass_fields__, False))


def _daemon_set(name: str, draw: Draw) -> JSONDict:
    requests = {"cpu": draw.pick(("50m", "100m", "200m")), "memory": draw.pick(("64Mi", "128Mi"))}
    spec: JSONDict = {"containers": [{"name": "c", "image": "i", "resources": {"requests": requests}}]}
    if draw.chance(60):
        spec["tolerations"] = [{"operator": "Exists"}]
    template = {"metadata": {"labels": {"daemon": name}}, "spec": spec}
    body = {"selector": {"matchLabels": {"daemon": name}}, "template": template}
    return an_object("DaemonSet", name, "apps/v1", namespace="kube-system", spec=body)


def _daemon_pods(draw: Draw, nodes: Sequence[DrawnNode], daemons: Sequence[JSONDict]) -> Iterator[JSONDict]:
    """Yield the DaemonSets' pods on nodes that have registered; a few are missing."""
    since = _time(timedelta(hours=2))
    for daemon in daemons:
        name, template = daemon["metadata"]["name"], daemon["spec"]["template"]
        owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": name, "controller": True}
        owner["uid"] = f"DaemonSet-kube-system-{name}"
        for node in nodes:
            if node.stage == "launched" or draw.chance(3):
                continue
            requests = template["spec"]["containers"][0]["resources"]["requests"]
            node.millicores -= int(requests["cpu"].removesuffix("m"))
            node.mebibytes -= int(requests["memory"].removesuffix("Mi"))
            node.pod_slots -= 1
            scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": since}
            yield an_object(
                "Pod",
                f"{name}-{node.name}",
                namespace="kube-system",
                metadata={**template["metadata"], "ownerReferences": [owner]},
                spec={**template["spec"], "nodeName": node.name},
                status={"phase": "Running", "startTime": since, "conditions": [scheduled]},
            )


def _disruption_budgets(draw: Draw, workloads: Sequence[Workload], daemons: Sequence[JSONDict]) -> Iterator[JSONDict]:
    """Yield one to three PodDisruptionBudgets, of which some allow no eviction, and some select the same pods."""
    for number in range(draw.count(1, 3)):
        workload = draw.pick(workloads)
        namespace, selector = "default", draw.pick(({"app": workload.name}, {"app": workload.name}, {"half": "left"}))
        if daemons and draw.chance(25):
            namespace, selector = "kube-system", {"daemon": daemons[0]["metadata"]["name"]}
        allowed, amount = draw.pick(
            (
                (0, {"maxUnavailable": 0}),
                (0, {"maxUnavailable": 1}),
                (1, {"maxUnavailable": 1}),
                (5, {"minAvailable": 1}),
            )
        )
        spec: JSONDict = {"selector": {"matchLabels": selector}, **amount}
        if draw.chance(30):
            spec["unhealthyPodEvictionPolicy"] = "AlwaysAllow"
        status = {"disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}
        yield an_object("PodDisruptionBudget", f"b{number}", "policy/v1", namespace=namespace, spec=spec, status=status)
