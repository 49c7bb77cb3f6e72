"""Pods: workloads of equal pods with every kind of scheduling constraint."""

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
    LABEL_VALUES,
    NODEPOOL,
    RACK,
    TEAM,
    TIER,
    ZONE,
    Draw,
    Features,
    JSONDict,
    an_object,
    chance,
    pick,
    pick_some,
    require,
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
EDGE_CASES: tuple[JSONDict, ...] = (
    {"overhead": {"cpu": "250m", "memory": "120Mi"}},
    {"resources": {"requests": {"cpu": "1", "memory": "2Gi"}}},
    {"nodeSelector": {NODEPOOL: "p0"}},
    {"nodeSelector": {"failure-domain.beta.kubernetes.io/zone": "a", "beta.kubernetes.io/arch": "amd64"}},
    {"nodeSelector": {HOSTNAME: "n0"}},
    {"nodeSelector": {"karpenter.sh/forbidden": "x"}},
    {"schedulingGates": [{"name": "later"}]},
    {"tolerations": [{"key": "dedicated", "operator": "Gt", "value": "3"}]},
)
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Pods that differ only in their names.

    Each pod mounts `claims_per_pod`, PersistentVolumeClaims of its own, and all pods mount `shared_claims`.
    """

    name: str
    namespace: str
    labels: dict[str, str]
    spec: JSONDict
    replicas: int
    claims_per_pod: tuple[str, ...] = ()
    shared_claims: tuple[str, ...] = field(default=())

    def pod(self, name: str, *, node: str = "", cpu: str = "") -> JSONDict:
        """Return a pending pod, or one that runs on `node`; `cpu` replaces its requests."""
        spec = {**self.spec, **({"nodeName": node} if node else {})}
        if cpu:
            container = {**self.spec["containers"][0], "resources": {"requests": {"cpu": cpu, "memory": "128Mi"}}}
            spec = {**spec, "containers": [container]}
            spec.pop("initContainers", None)
        claims = (*self.shared_claims, *(f"{name}-{claim}" for claim in self.claims_per_pod))
        if claims:
            spec["volumes"] = [{"name": c, "persistentVolumeClaim": {"claimName": c}} for c in claims]
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": self.name, "uid": f"rs-{self.name}"}
        metadata = {"labels": self.labels, "ownerReferences": [{**owner, "controller": True}]}
        running = {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]}
        status = {"status": running} if node else {}
        return an_object("Pod", name, namespace=self.namespace, metadata=metadata, spec=spec, **status)


@st.composite
def workloads(draw: Draw, features: Features, types: Sequence[JSONDict], max_pods: int) -> list[Workload]:
    """Draw workloads with at most `max_pods` pods in total."""
    count, left, found = draw(st.integers(1, 8)), max_pods, []
    apps = [f"app{index}" for index in range(count)]
    for name in apps:
        replicas = min(left, pick(draw, (1, 2, 3, 5, 8, 13, 20, 30)))
        if replicas:
            found.append(draw(_workloads(name, replicas, apps, features, types)))
        left -= replicas
    return found


@st.composite
def _workloads(
    draw: Draw, name: str, replicas: int, apps: list[str], features: Features, types: Sequence[JSONDict]
) -> Workload:
    app = name if not chance(draw, 10) else pick(draw, apps)
    spec: JSONDict = {"containers": [draw(_containers(features))]}
    if chance(draw, 8):
        init_container = {"name": "i", "image": "i", "resources": {"requests": {"cpu": "2"}}}
        spec["initContainers"] = [init_container | ({"restartPolicy": "Always"} if chance(draw, 40) else {})]
    if features.node_selectors and chance(draw, 40):
        spec["nodeSelector"] = draw(_node_selectors(types))
    affinity = draw(_affinities(app, apps, features, types))
    if affinity:
        spec["affinity"] = affinity
    if features.topology_spread and chance(draw, 60):
        constraints = st.lists(
            _spread_constraints(app, apps, features), min_size=1, max_size=2, unique_by=lambda s: s["topologyKey"]
        )
        spec["topologySpreadConstraints"] = draw(constraints)
    if features.taints and chance(draw, 50):
        spec["tolerations"] = [pick(draw, TOLERATIONS)]
    if features.edge_cases and chance(draw, 50):
        spec |= pick(draw, EDGE_CASES)
    return Workload(
        name=name,
        namespace=pick(draw, ("default", "batch")) if features.namespaces else "default",
        labels={"app": app, "rev": pick(draw, ("1", "2"))},
        spec=spec,
        replicas=replicas,
        claims_per_pod=(pick(draw, ("data", "logs")),) if features.volumes and chance(draw, 40) else (),
        shared_claims=("shared",) if features.volumes and chance(draw, 10) else (),
    )


@st.composite
def _containers(draw: Draw, features: Features) -> JSONDict:
    requests = {"cpu": pick(draw, CPUS), "memory": pick(draw, MEMORIES)}
    resources: JSONDict = {"requests": requests}
    if features.gpus and chance(draw, 40):
        requests[GPU] = pick(draw, ("1", "2"))
        resources["limits"] = {GPU: requests[GPU]}
    found: JSONDict = {"name": "c", "image": "i", "resources": resources}
    if features.host_ports and chance(draw, 50):
        port = {"containerPort": 80, "hostPort": pick(draw, (80, 443)), "protocol": pick(draw, ("TCP", "UDP"))}
        found["ports"] = [port | ({"hostIP": pick(draw, ("10.0.0.1", "10.0.0.2"))} if chance(draw, 30) else {})]
    return found


@st.composite
def _node_selectors(draw: Draw, types: Sequence[JSONDict]) -> dict[str, str]:
    found = {}
    keys = (CAPACITY_TYPE, ZONE, ARCH, FAMILY, TEAM, TIER, INSTANCE_TYPE)
    for key in (pick(draw, keys), pick(draw, keys))[: 2 if chance(draw, 25) else 1]:
        found[key] = pick(draw, [t["name"] for t in types] if key == INSTANCE_TYPE else LABEL_VALUES[key])
    return found


@st.composite
def node_selector_requirements(draw: Draw, types: Sequence[JSONDict]) -> JSONDict:
    """Draw a requirement with any operator, mostly for a label that nodes have."""
    own = (ZONE, CAPACITY_TYPE, ARCH, CPU, FAMILY, GENERATION, INSTANCE_TYPE)
    key = pick(draw, own if not chance(draw, 25) else (TEAM, TIER, "example.com/absent"))
    values = [str(t["name"]) for t in types] if key == INSTANCE_TYPE else list(LABEL_VALUES[key])
    operators = ["In", "NotIn", "Exists"] + (["Gt", "Lt", "Gte", "Lte"] if key in {CPU, GENERATION} else [])
    operator = pick(draw, [*operators, "DoesNotExist"] if key in {TEAM, TIER, "example.com/absent"} else operators)
    if operator in {"Exists", "DoesNotExist"}:
        return require(key, operator)
    if operator in {"Gt", "Lt", "Gte", "Lte"}:
        return require(key, operator, pick(draw, ("1", "4", "5", "6", "8")))
    return require(key, operator, *pick_some(draw, values)[:3])


@st.composite
def _node_selector_terms(draw: Draw, types: Sequence[JSONDict]) -> JSONDict:
    return {"matchExpressions": draw(st.lists(node_selector_requirements(types), min_size=1, max_size=2))}


@st.composite
def _affinities(draw: Draw, app: str, apps: list[str], features: Features, types: Sequence[JSONDict]) -> JSONDict:
    found: JSONDict = {}
    node: JSONDict = {}
    if features.node_affinity and chance(draw, 45):
        node[REQUIRED] = {"nodeSelectorTerms": draw(st.lists(_node_selector_terms(types), min_size=1, max_size=3))}
    if features.preferences and chance(draw, 30):
        node[PREFERRED] = [
            {"weight": pick(draw, (1, 10, 100)), "preference": term}
            for term in draw(st.lists(_node_selector_terms(types), min_size=1, max_size=2))
        ]
    if node:
        found["nodeAffinity"] = node
    if features.pod_affinity and chance(draw, 40):
        found["podAffinity"] = draw(
            _pod_affinities(app, apps, features, preferred=features.preferences and chance(draw, 40))
        )
    if features.pod_anti_affinity and chance(draw, 40):
        found["podAntiAffinity"] = draw(
            _pod_affinities(app, apps, features, preferred=features.preferences and chance(draw, 40))
        )
        for term in found["podAntiAffinity"].get(REQUIRED, ()) if chance(draw, 10) else ():
            term["topologyKey"] = pick(draw, (RACK, "example.com/absent"))
    if features.daemon_sets and chance(draw, 20):
        kind = pick(draw, ("podAffinity", "podAffinity", "podAntiAffinity"))
        found[kind] = draw(_affinities_to_daemons(preferred=features.preferences and chance(draw, 40)))
    return found


@st.composite
def _affinities_to_daemons(draw: Draw, *, preferred: bool) -> JSONDict:
    """Draw the affinity or anti-affinity to the pods of one DaemonSet, or of all."""
    selector = pick(draw, ({"matchLabels": {"daemon": "d0"}}, {"matchExpressions": [require("daemon", "Exists")]}))
    key = pick(draw, (HOSTNAME, HOSTNAME, ZONE, RACK))
    term: JSONDict = {"topologyKey": key, "labelSelector": selector, "namespaces": ["kube-system"]}
    if preferred:
        return {PREFERRED: [{"weight": pick(draw, (1, 10, 100)), "podAffinityTerm": term}]}
    return {REQUIRED: [term]}


@st.composite
def _pod_affinities(draw: Draw, app: str, apps: list[str], features: Features, *, preferred: bool) -> JSONDict:
    keys = (HOSTNAME, ZONE, HOSTNAME, CAPACITY_TYPE)
    term: JSONDict = {"topologyKey": pick(draw, keys), "labelSelector": draw(_label_selectors(app, apps))}
    if features.namespaces and chance(draw, 50):
        term |= pick(
            draw, ({"namespaceSelector": {}}, {"namespaces": ["batch"]}, {"namespaceSelector": NAMESPACE_SELECTOR})
        )
    if preferred:
        return {PREFERRED: [{"weight": pick(draw, (1, 10, 100)), "podAffinityTerm": term}]}
    return {REQUIRED: [term]}


NAMESPACE_SELECTOR = {"matchLabels": {"mood": "calm"}}


@st.composite
def _label_selectors(draw: Draw, app: str, apps: list[str]) -> JSONDict:
    """Draw a selector, mostly of the workload's own pods, else of other or several workloads."""
    kind = pick(draw, ("own", "own", "own", "other", "several", "not"))
    if kind == "own":
        return {"matchLabels": {"app": app}}
    if kind == "other":
        return {"matchLabels": {"app": pick(draw, apps)}}
    if kind == "several":
        return {"matchExpressions": [require("app", "In", *pick_some(draw, apps))]}
    return {"matchExpressions": [require("app", "NotIn", pick(draw, apps))]}


@st.composite
def _spread_constraints(draw: Draw, app: str, apps: list[str], features: Features) -> JSONDict:
    key = pick(draw, (ZONE, HOSTNAME, ZONE, HOSTNAME, CAPACITY_TYPE, RACK))
    when = "ScheduleAnyway" if features.preferences and chance(draw, 40) else "DoNotSchedule"
    found: JSONDict = {
        "maxSkew": pick(draw, (1, 2, 3)),
        "topologyKey": key,
        "whenUnsatisfiable": when,
        "labelSelector": draw(_label_selectors(app, apps)),
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
