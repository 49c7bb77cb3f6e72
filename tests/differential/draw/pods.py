"""Pods: workloads of equal pods with every kind of rule about where they may run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from tests.differential.draw.words import (
    ARCH,
    CAPACITY_TYPE,
    CPU,
    FAMILY,
    GENERATION,
    GPU,
    HOSTNAME,
    INSTANCE_TYPE,
    NODEPOOL,
    RACK,
    TEAM,
    TIER,
    VALUES,
    ZONE,
    Draw,
    JSONDict,
    Mix,
    an_object,
    chance,
    pick,
    require,
    some,
)

CPUS = ("250m", "100m", "50m", "500m", "700m", "1", "1400m", "2", "3", "7", "15")
MEMORIES = ("256Mi", "64Mi", "512Mi", "1Gi", "1500Mi", "2Gi", "4Gi", "10Gi", "30Gi")
TOLERATIONS: tuple[JSONDict, ...] = (
    {"operator": "Exists"},
    {"key": "gpu", "operator": "Exists"},
    {"key": "dedicated", "operator": "Equal", "value": "x"},
    {"key": "dedicated", "operator": "Equal", "value": "y"},
    {"key": "gpu", "operator": "Exists", "effect": "NoExecute"},
    {"key": "dedicated", "operator": "Exists", "effect": "PreferNoSchedule"},
)
ODDITIES: tuple[JSONDict, ...] = (
    {"overhead": {"cpu": "250m", "memory": "120Mi"}},
    {"resources": {"requests": {"cpu": "1", "memory": "2Gi"}}},
    {"nodeSelector": {NODEPOOL: "p0"}},
    {"nodeSelector": {"failure-domain.beta.kubernetes.io/zone": "a", "beta.kubernetes.io/arch": "amd64"}},
    {"nodeSelector": {HOSTNAME: "n0"}},
    {"nodeSelector": {"karpenter.sh/forbidden": "x"}},
    {"schedulingGates": [{"name": "later"}]},
    {"tolerations": [{"key": "dedicated", "operator": "Gt", "value": "3"}]},
)
TERM, WEIGHTED = "requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Pods that are alike but for their names. `claims_each`: PersistentVolumeClaims of its own that each pod mounts."""

    name: str
    namespace: str
    labels: dict[str, str]
    spec: JSONDict
    replicas: int
    claims_each: tuple[str, ...] = ()
    shared_claims: tuple[str, ...] = field(default=())

    def pod(self, name: str, *, node: str = "", cpu: str = "") -> JSONDict:
        """One of them: waiting, or running on a node (and then perhaps smaller than the others)."""
        spec = {**self.spec, **({"nodeName": node} if node else {})}
        if cpu:
            container = {**self.spec["containers"][0], "resources": {"requests": {"cpu": cpu, "memory": "128Mi"}}}
            spec = {**spec, "containers": [container]}
            spec.pop("initContainers", None)
        claims = (*self.shared_claims, *(f"{name}-{claim}" for claim in self.claims_each))
        if claims:
            spec["volumes"] = [{"name": c, "persistentVolumeClaim": {"claimName": c}} for c in claims]
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": self.name, "uid": f"rs-{self.name}"}
        metadata = {"labels": self.labels, "ownerReferences": [{**owner, "controller": True}]}
        running = {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]}
        rest = {"status": running} if node else {}
        return an_object("Pod", name, namespace=self.namespace, metadata=metadata, spec=spec, **rest)


@st.composite
def workloads(draw: Draw, mix: Mix, types: Sequence[JSONDict], at_most: int) -> list[Workload]:
    """Some workloads, with at most so many pods altogether."""
    count, left, found = draw(st.integers(1, 8)), at_most, []
    apps = [f"app{index}" for index in range(count)]
    for name in apps:
        replicas = min(left, pick(draw, (1, 2, 3, 5, 8, 13, 20, 30)))
        if replicas:
            found.append(draw(_workloads(name, replicas, apps, mix, types)))
        left -= replicas
    return found


@st.composite
def _workloads(draw: Draw, name: str, replicas: int, apps: list[str], mix: Mix, types: Sequence[JSONDict]) -> Workload:
    app = name if not chance(draw, 10) else pick(draw, apps)
    spec: JSONDict = {"containers": [draw(_containers(mix))]}
    if chance(draw, 8):
        early = {"name": "i", "image": "i", "resources": {"requests": {"cpu": "2"}}}
        spec["initContainers"] = [early | ({"restartPolicy": "Always"} if chance(draw, 40) else {})]
    if mix.selectors and chance(draw, 40):
        spec["nodeSelector"] = draw(_node_selectors(types))
    affinity = draw(_affinities(app, apps, mix, types))
    if affinity:
        spec["affinity"] = affinity
    if mix.spread and chance(draw, 60):
        kinds = st.lists(_spreads(app, apps, mix), min_size=1, max_size=2, unique_by=lambda s: s["topologyKey"])
        spec["topologySpreadConstraints"] = draw(kinds)
    if mix.taints and chance(draw, 50):
        spec["tolerations"] = [pick(draw, TOLERATIONS)]
    if mix.oddities and chance(draw, 50):
        spec |= pick(draw, ODDITIES)
    return Workload(
        name=name,
        namespace=pick(draw, ("default", "batch")) if mix.namespaces else "default",
        labels={"app": app, "rev": pick(draw, ("1", "2"))},
        spec=spec,
        replicas=replicas,
        claims_each=(pick(draw, ("data", "logs")),) if mix.volumes and chance(draw, 40) else (),
        shared_claims=("shared",) if mix.volumes and chance(draw, 10) else (),
    )


@st.composite
def _containers(draw: Draw, mix: Mix) -> JSONDict:
    requests = {"cpu": pick(draw, CPUS), "memory": pick(draw, MEMORIES)}
    resources: JSONDict = {"requests": requests}
    if mix.gpus and chance(draw, 40):
        requests[GPU] = pick(draw, ("1", "2"))
        resources["limits"] = {GPU: requests[GPU]}
    found: JSONDict = {"name": "c", "image": "i", "resources": resources}
    if mix.ports and chance(draw, 50):
        port = {"containerPort": 80, "hostPort": pick(draw, (80, 443)), "protocol": pick(draw, ("TCP", "UDP"))}
        found["ports"] = [port | ({"hostIP": pick(draw, ("10.0.0.1", "10.0.0.2"))} if chance(draw, 30) else {})]
    return found


@st.composite
def _node_selectors(draw: Draw, types: Sequence[JSONDict]) -> dict[str, str]:
    found = {}
    keys = (CAPACITY_TYPE, ZONE, ARCH, FAMILY, TEAM, TIER, INSTANCE_TYPE)
    for key in (pick(draw, keys), pick(draw, keys))[: 2 if chance(draw, 25) else 1]:
        found[key] = pick(draw, [t["name"] for t in types] if key == INSTANCE_TYPE else VALUES[key])
    return found


@st.composite
def expressions(draw: Draw, types: Sequence[JSONDict]) -> JSONDict:
    """A requirement for a node's labels: any operator, mostly about labels that nodes have."""
    own = (ZONE, CAPACITY_TYPE, ARCH, CPU, FAMILY, GENERATION, INSTANCE_TYPE)
    key = pick(draw, own if not chance(draw, 25) else (TEAM, TIER, "example.com/absent"))
    values = [str(t["name"]) for t in types] if key == INSTANCE_TYPE else list(VALUES[key])
    operators = ["In", "NotIn", "Exists"] + (["Gt", "Lt", "Gte", "Lte"] if key in {CPU, GENERATION} else [])
    operator = pick(draw, [*operators, "DoesNotExist"] if key in {TEAM, TIER, "example.com/absent"} else operators)
    if operator in {"Exists", "DoesNotExist"}:
        return require(key, operator)
    if operator in {"Gt", "Lt", "Gte", "Lte"}:
        return require(key, operator, pick(draw, ("1", "4", "5", "6", "8")))
    return require(key, operator, *some(draw, values)[:3])


@st.composite
def _terms(draw: Draw, types: Sequence[JSONDict]) -> JSONDict:
    return {"matchExpressions": draw(st.lists(expressions(types), min_size=1, max_size=2))}


@st.composite
def _affinities(draw: Draw, app: str, apps: list[str], mix: Mix, types: Sequence[JSONDict]) -> JSONDict:
    found: JSONDict = {}
    node: JSONDict = {}
    if mix.node_affinity and chance(draw, 45):
        node[TERM] = {"nodeSelectorTerms": draw(st.lists(_terms(types), min_size=1, max_size=3))}
    if mix.preferences and chance(draw, 30):
        node[WEIGHTED] = [
            {"weight": pick(draw, (1, 10, 100)), "preference": term}
            for term in draw(st.lists(_terms(types), min_size=1, max_size=2))
        ]
    if node:
        found["nodeAffinity"] = node
    if mix.affinity and chance(draw, 40):
        found["podAffinity"] = draw(_between_pods(app, apps, mix, preferred=mix.preferences and chance(draw, 40)))
    if mix.anti_affinity and chance(draw, 40):
        found["podAntiAffinity"] = draw(_between_pods(app, apps, mix, preferred=mix.preferences and chance(draw, 40)))
    return found


@st.composite
def _between_pods(draw: Draw, app: str, apps: list[str], mix: Mix, *, preferred: bool) -> JSONDict:
    keys = (HOSTNAME, ZONE, HOSTNAME, CAPACITY_TYPE)
    term: JSONDict = {"topologyKey": pick(draw, keys), "labelSelector": draw(_selectors(app, apps))}
    if mix.namespaces and chance(draw, 50):
        term |= pick(draw, ({"namespaceSelector": {}}, {"namespaces": ["batch"]}, {"namespaceSelector": CALM}))
    if preferred:
        return {WEIGHTED: [{"weight": pick(draw, (1, 10, 100)), "podAffinityTerm": term}]}
    return {TERM: [term]}


CALM = {"matchLabels": {"mood": "calm"}}


@st.composite
def _selectors(draw: Draw, app: str, apps: list[str]) -> JSONDict:
    """Mostly the pods themselves, sometimes others, or several workloads."""
    kind = pick(draw, ("own", "own", "own", "other", "several", "not"))
    if kind == "own":
        return {"matchLabels": {"app": app}}
    if kind == "other":
        return {"matchLabels": {"app": pick(draw, apps)}}
    if kind == "several":
        return {"matchExpressions": [require("app", "In", *some(draw, apps))]}
    return {"matchExpressions": [require("app", "NotIn", pick(draw, apps))]}


@st.composite
def _spreads(draw: Draw, app: str, apps: list[str], mix: Mix) -> JSONDict:
    key = pick(draw, (ZONE, HOSTNAME, ZONE, HOSTNAME, CAPACITY_TYPE, RACK))
    when = "ScheduleAnyway" if mix.preferences and chance(draw, 40) else "DoNotSchedule"
    found: JSONDict = {
        "maxSkew": pick(draw, (1, 2, 3)),
        "topologyKey": key,
        "whenUnsatisfiable": when,
        "labelSelector": draw(_selectors(app, apps)),
    }
    if when == "DoNotSchedule" and chance(draw, 20):
        found["minDomains"] = pick(draw, (1, 2, 3, 4))
    if chance(draw, 20):
        found["matchLabelKeys"] = ["rev"]
    if chance(draw, 20):
        found["nodeAffinityPolicy"] = pick(draw, ("Ignore", "Honor"))
    if chance(draw, 20):
        found["nodeTaintsPolicy"] = pick(draw, ("Honor", "Ignore"))
    return found
