"""What a tenant may write into a namespace to keep others waiting: pods, claims and budgets of shapes that no user would mean.

Each shape is a function of a size, and yields objects that an API server admits. They are other kinds than those of `expensive_pods`:
these are many small pods that are all different, sums of thousands of parts, names of the greatest length, and objects that refer
to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.fuzz.expensive_pods import HOSTNAME, ZONE, ZONES, own, pod

JSONDict = dict[str, Any]
Shape = Callable[[int], Iterator[JSONDict]]
NAMESPACE = "tenant"
LONG = "x" * 63
ODD_TEXTS = ("größer", "日本語", "\u202e", "a\u2028b", "\ufeff", "'; DROP", "{{.}}", "%s%n", "\t")


def _required(key: str, operator: str, *values: str) -> JSONDict:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def _node_affinity(*terms: list[JSONDict]) -> JSONDict:
    selector = {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}}


def _apart(kind: str, *terms: JSONDict) -> JSONDict:
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


def _requesting(name: str, number: int, **requests: str) -> JSONDict:
    body = pod(name, own(number))
    body["spec"]["containers"][0]["resources"]["requests"].update(requests)
    return body


def required_labels(size: int) -> Iterator[JSONDict]:
    """Yield a pod that requires so many labels, which no node has."""
    yield pod("labels", own(0), nodeSelector={f"k{n}.example.com/{LONG[:40]}": f"v{n}" for n in range(size)})


def forbidden_labels(size: int) -> Iterator[JSONDict]:
    """Yield a pod that forbids so many labels, and needs a zone that does not exist."""
    forbidden = [_required(f"k{n}", "DoesNotExist") for n in range(size)]
    yield pod("forbidden", own(0), affinity=_node_affinity([*forbidden, _required(ZONE, "In", "mars")]))


def forbidden_values(size: int) -> Iterator[JSONDict]:
    """Yield a pod that forbids so many values of labels that nodes have."""
    values = [f"value-{n}" for n in range(size)]
    yield pod("values", own(0), affinity=_node_affinity([_required(ZONE, "NotIn", *values), _required("a", "In", "b")]))


def same_label_again(size: int) -> Iterator[JSONDict]:
    """Yield a pod with so many expressions about one label."""
    yield pod("again", own(0), affinity=_node_affinity([_required(ZONE, "NotIn", f"z-{n}") for n in range(size)]))


def bounds(size: int) -> Iterator[JSONDict]:
    """Yield a pod with so many bounds of one number."""
    key = "karpenter.k8s.aws/instance-cpu"
    expressions = [_required(key, ("Gt", "Lt")[n % 2], str(n if n % 2 == 0 else 10**9 - n)) for n in range(size)]
    yield pod("bounds", own(0), affinity=_node_affinity(expressions))


def misspelled_terms(size: int) -> Iterator[JSONDict]:
    """Yield a pod each of whose many terms names another misspelled label."""
    terms = [
        [_required(f"topology.kubernetes.io/zon{n}", "In", "a"), _required(ZONE, "In", "mars")] for n in range(size)
    ]
    yield pod("misspelled", own(0), affinity=_node_affinity(*terms))


def instance_types(size: int) -> Iterator[JSONDict]:
    """Yield pods that differ in the instance type that they forbid."""
    for n in range(size):
        expression = _required("node.kubernetes.io/instance-type", "NotIn", f"m{n}.large")
        yield pod(f"type-{n}", own(n), cpu="100m", affinity=_node_affinity([expression]))


def different_requests(size: int) -> Iterator[JSONDict]:
    """Yield pods all of whose requests differ."""
    for n in range(size):
        yield _requesting(f"request-{n}", n, cpu=f"{100 + n}m", memory=f"{100 + 7 * n}Mi")


def different_tolerations(size: int) -> Iterator[JSONDict]:
    """Yield pods that each tolerate another taint."""
    for n in range(size):
        yield pod(f"tolerating-{n}", own(n), cpu="50m", tolerations=[{"key": f"t{n}", "operator": "Exists"}])


def different_selectors(size: int) -> Iterator[JSONDict]:
    """Yield pods that each need a label of their own, which no node has."""
    for n in range(size):
        yield pod(f"selecting-{n}", own(n), cpu="50m", nodeSelector={f"tenant/{n}": "x"})


def different_ports(size: int) -> Iterator[JSONDict]:
    """Yield pods that each have a host port of their own."""
    for n in range(size):
        body = pod(f"port-{n}", own(n), cpu="50m")
        body["spec"]["containers"][0]["ports"] = [{"containerPort": 1, "hostPort": 1 + n}]
        yield body


def same_port(size: int) -> Iterator[JSONDict]:
    """Yield pods that all have the same host port, so that each needs a node."""
    for n in range(size):
        body = pod(f"same-port-{n}", own(0), cpu="50m")
        body["spec"]["containers"][0]["ports"] = [{"containerPort": 1, "hostPort": 80}]
        yield body


def different_spreads(size: int) -> Iterator[JSONDict]:
    """Yield pods that each spread over zones by themselves."""
    for n in range(size):
        rule = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule", "minDomains": 1 + n % 5}
        yield pod(
            f"spread-{n}",
            own(n),
            cpu="50m",
            topologySpreadConstraints=[{**rule, "labelSelector": {"matchLabels": own(n)}}],
        )


def different_zones(size: int) -> Iterator[JSONDict]:
    """Yield pods that must stay out of the zones of all pods of another kind."""
    for n in range(size):
        term = {"topologyKey": ZONE, "labelSelector": {"matchExpressions": [_required("app", "NotIn", f"tenant-{n}")]}}
        yield pod(f"zone-{n}", own(n), cpu="50m", affinity=_apart("podAntiAffinity", term))


def joining(size: int) -> Iterator[JSONDict]:
    """Yield pods that must each join a pod that does not exist."""
    for n in range(size):
        term = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"app": f"nobody-{n}"}}}
        yield pod(f"joining-{n}", own(n), cpu="50m", affinity=_apart("podAffinity", term))


def ring(size: int) -> Iterator[JSONDict]:
    """Yield pods each of which must join the next one, the last one the first."""
    for n in range(size):
        term = {"topologyKey": ZONE, "labelSelector": {"matchLabels": own((n + 1) % size)}}
        yield pod(f"ring-{n}", own(n), cpu="50m", affinity=_apart("podAffinity", term))


def unknown_topology(size: int) -> Iterator[JSONDict]:
    """Yield pods that spread over labels of their own, which no node has."""
    for n in range(size):
        rule = {"maxSkew": 1, "topologyKey": f"tenant/{n}", "whenUnsatisfiable": "DoNotSchedule"}
        yield pod(
            f"unknown-{n}", own(n), topologySpreadConstraints=[{**rule, "labelSelector": {"matchLabels": own(n)}}]
        )


def selector_values(size: int) -> Iterator[JSONDict]:
    """Yield a pod that keeps away from pods with one of so many labels."""
    names = [f"app-{n}" for n in range(size)]
    term = {"topologyKey": HOSTNAME, "labelSelector": {"matchExpressions": [_required("app", "In", *names)]}}
    yield pod("selector", own(0), affinity=_apart("podAntiAffinity", term))


def selector_expressions(size: int) -> Iterator[JSONDict]:
    """Yield a pod whose selector has so many expressions."""
    expressions = [_required(f"label-{n}", "DoesNotExist") for n in range(size)]
    term = {"topologyKey": ZONE, "labelSelector": {"matchExpressions": expressions}}
    yield pod("expressions", own(0), affinity=_apart("podAntiAffinity", term))


def many_namespaces(size: int) -> Iterator[JSONDict]:
    """Yield a pod that keeps away from pods in so many namespaces."""
    term = {"topologyKey": ZONE, "labelSelector": {}, "namespaces": [f"ns-{n}" for n in range(size)]}
    yield pod("namespaces", own(0), affinity=_apart("podAntiAffinity", term))


def pod_labels(size: int) -> Iterator[JSONDict]:
    """Yield a pod with so many labels."""
    yield pod("labelled", {f"label-{n}": LONG for n in range(size)})


def annotations(size: int) -> Iterator[JSONDict]:
    """Yield a pod with so many annotations, those that Journeyman reads among them."""
    body = pod("annotated", own(0))
    read = ("karpenter.sh/do-not-disrupt", "journeyman.dev/max-evictions-per-day", "journeyman.dev/nominated-at")
    body["metadata"]["annotations"] = {f"a{n}": ODD_TEXTS[n % len(ODD_TEXTS)] for n in range(size)} | dict.fromkeys(
        read, ODD_TEXTS[0] * 1000
    )
    yield body


def unicode_values(size: int) -> Iterator[JSONDict]:
    """Yield pods whose names and values are as odd as an API server admits."""
    for n in range(size):
        yield pod(f"odd-{n}", {"app": f"{'z' * 62}{n % 10}"}, schedulingGates=[], nodeSelector={LONG: ""})


def extended_resources(size: int) -> Iterator[JSONDict]:
    """Yield a pod that requests so many resources, which no node has."""
    yield _requesting("resources", 0, **{f"tenant.example.com/r{n}": "1" for n in range(size)})


def own_resources(size: int) -> Iterator[JSONDict]:
    """Yield pods that each request a resource of their own."""
    for n in range(size):
        yield _requesting(f"resource-{n}", n, **{f"tenant.example.com/r{n}": "1"})


def containers(size: int) -> Iterator[JSONDict]:
    """Yield a pod with so many containers and init containers."""
    body = pod("containers", own(0))
    part = {"image": "x", "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}}}
    body["spec"]["containers"] = [{"name": f"c{n}", **part} for n in range(size)]
    body["spec"]["initContainers"] = [{"name": f"i{n}", "restartPolicy": "Always", **part} for n in range(size)]
    yield body


def volumes(size: int) -> Iterator[JSONDict]:
    """Yield a pod with so many volumes, and their claims, which wait for it."""
    yield {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "any-zone"},
        "provisioner": "ebs.csi.aws.com",
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowedTopologies": [
            {"matchLabelExpressions": [{"key": ZONE, "values": [zone]}]} for zone in (*ZONES, "mars", "moon")
        ],
    }
    names = [f"data-{n}" for n in range(size)]
    for name in names:
        yield {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "any-zone"},
            "status": {"phase": "Pending"},
        }
    mounted = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names]
    yield pod("volumes", own(0), volumes=mounted)


def missing_volumes(size: int) -> Iterator[JSONDict]:
    """Yield pods with volumes whose claims do not exist."""
    for n in range(size):
        missing = [{"name": f"v{v}", "persistentVolumeClaim": {"claimName": f"none-{n}-{v}"}} for v in range(20)]
        yield pod(f"missing-{n}", own(n), volumes=missing)


def ephemeral_volumes(size: int) -> Iterator[JSONDict]:
    """Yield a pod with so many ephemeral volumes."""
    yield pod("ephemeral", own(0), volumes=[{"name": f"v{n}", "ephemeral": {}} for n in range(size)])


def device_claims(size: int) -> Iterator[JSONDict]:
    """Yield a pod with a ResourceClaim of many requests, and pods that name claims which do not exist."""
    requests = [
        {"name": f"r{n}", "exactly": {"deviceClassName": "none", "selectors": [{"cel": {"expression": "true"}}]}}
        for n in range(min(size, 32))
    ]
    yield {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "devices", "namespace": NAMESPACE},
        "spec": {"devices": {"requests": requests}},
    }
    for n in range(size):
        named = [{"name": "d", "resourceClaimName": "devices" if n % 2 else f"none-{n}"}]
        yield pod(f"devices-{n}", own(n), cpu="50m", resourceClaims=named)


def budgets(size: int) -> Iterator[JSONDict]:
    """Yield so many PodDisruptionBudgets that all select the same pods."""
    for n in range(size):
        expressions = [_required("app", "NotIn", *(f"other-{n}-{k}" for k in range(20)))]
        yield {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": f"budget-{n}", "namespace": NAMESPACE, "uid": f"pdb-{n}"},
            "spec": {"maxUnavailable": 0, "selector": {"matchExpressions": expressions}},
            "status": {"disruptionsAllowed": 0, "expectedPods": 1},
        }
    yield pod("budgeted", own(0))


def owners(size: int) -> Iterator[JSONDict]:
    """Yield a pod with so many owners, and pods that own each other."""
    body = pod("owned", own(0))
    body["metadata"]["ownerReferences"] = [
        {"apiVersion": "x/v1", "kind": "Odd", "name": f"o{n}", "uid": f"o{n}", "controller": n == 0}
        for n in range(size)
    ]
    yield body
    for n in range(10):
        owner = {"apiVersion": "v1", "kind": "Pod", "name": f"owner-{(n + 1) % 10}", "uid": f"uid-owner-{(n + 1) % 10}"}
        circular = pod(f"owner-{n}", own(n), cpu="50m")
        circular["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
        yield circular


def preferred_pods(size: int) -> Iterator[JSONDict]:
    """Yield a pod with so many preferred affinity terms."""
    terms = [
        {"weight": 1 + n % 100, "podAffinityTerm": {"topologyKey": ZONE, "labelSelector": {"matchLabels": own(n)}}}
        for n in range(size)
    ]
    rule = {"preferredDuringSchedulingIgnoredDuringExecution": terms}
    yield pod("preferring", own(0), affinity={"podAffinity": rule, "podAntiAffinity": rule})


def different_preferences(size: int) -> Iterator[JSONDict]:
    """Yield pods that each prefer an instance type of their own."""
    for n in range(size):
        preference = {"matchExpressions": [_required("node.kubernetes.io/instance-type", "In", f"m{n}.large")]}
        rule = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": preference}]}
        yield pod(f"prefers-{n}", own(n), cpu="50m", affinity={"nodeAffinity": rule})


def priorities(size: int) -> Iterator[JSONDict]:
    """Yield pods of extreme priorities, some of which were nominated to nodes that do not exist."""
    for n in range(size):
        body = pod(f"priority-{n}", own(n), cpu="50m", priority=(2**31 - 1, -(2**31), 0)[n % 3])
        body["status"]["nominatedNodeName"] = f"none-{n}"
        yield body


def label_keys(size: int) -> Iterator[JSONDict]:
    """Yield pods whose spreads copy the values of so many of their labels (matchLabelKeys)."""
    keys = [f"label-{n}" for n in range(size)]
    for n in range(20):
        rule = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule", "matchLabelKeys": keys}
        yield pod(f"keys-{n}", dict.fromkeys(keys, f"v{n}"), topologySpreadConstraints=[{**rule, "labelSelector": {}}])


def terminating(size: int) -> Iterator[JSONDict]:
    """Yield pods that are being deleted for years, with finalizers."""
    for n in range(size):
        body = pod(f"terminating-{n}", own(n), cpu="50m", terminationGracePeriodSeconds=2**31)
        body["metadata"] |= {"deletionTimestamp": "2026-03-02T20:00:00Z", "finalizers": [f"tenant/{LONG}"]}
        yield body


def type_topology(size: int) -> Iterator[JSONDict]:
    """Yield pods that spread over instance types, each by itself."""
    for n in range(size):
        rule = {
            "maxSkew": 1 + n,
            "topologyKey": "node.kubernetes.io/instance-type",
            "whenUnsatisfiable": "DoNotSchedule",
        }
        yield pod(
            f"types-{n}",
            own(n),
            cpu="50m",
            topologySpreadConstraints=[{**rule, "labelSelector": {"matchLabels": own(n)}}],
        )


def all_namespaces(size: int) -> Iterator[JSONDict]:
    """Yield pods that keep away from all pods of all namespaces but those with a label of their own."""
    for n in range(size):
        term = {
            "topologyKey": HOSTNAME,
            "namespaceSelector": {},
            "labelSelector": {"matchExpressions": [_required(f"none-{n}", "Exists")]},
        }
        yield pod(f"everywhere-{n}", own(n), cpu="50m", affinity=_apart("podAntiAffinity", term))


def gated(size: int) -> Iterator[JSONDict]:
    """Yield pods with so many scheduling gates."""
    for n in range(10):
        yield pod(f"gated-{n}", own(n), schedulingGates=[{"name": f"tenant/{g}"} for g in range(size)])


def overheads(size: int) -> Iterator[JSONDict]:
    """Yield pods with different overheads and pod-level resources."""
    for n in range(size):
        level = {"requests": {"cpu": f"{100 + n}m"}, "limits": {"cpu": f"{200 + n}m", "memory": f"{n + 1}Mi"}}
        yield pod(f"overhead-{n}", own(n), overhead={"cpu": f"{n}m", "memory": f"{n}Ki"}, resources=level)


def preferred_nodes(size: int) -> Iterator[JSONDict]:
    """Yield a pod with so many preferred node terms, each with many labels."""
    terms = [
        {
            "weight": 1 + n % 100,
            "preference": {"matchExpressions": [_required(f"k{n}-{k}", "Exists") for k in range(10)]},
        }
        for n in range(size)
    ]
    rule = {"preferredDuringSchedulingIgnoredDuringExecution": terms}
    yield pod("preferred-nodes", own(0), affinity={"nodeAffinity": rule})


def chosen_types(size: int) -> Iterator[JSONDict]:
    """Yield pods that each list so many instance types, in another order and with another one missing."""
    names = [f"m{n}.large" for n in range(size)]
    for n in range(30):
        listed = [*names[n:], *names[:n]][1:] or names
        expression = _required("node.kubernetes.io/instance-type", "In", *listed)
        yield pod(f"chosen-{n}", own(n), cpu="50m", affinity=_node_affinity([expression]))


def huge_requests(size: int) -> Iterator[JSONDict]:
    """Yield pods that no node is large enough for, all different."""
    for n in range(size):
        yield _requesting(f"huge-{n}", n, cpu=f"{1000 + n}", memory=f"{1000 + n}Gi")


SHAPES: Mapping[Shape, tuple[int, ...]] = {
    required_labels: (1, 2, 100, 1000, 3200, 6400),
    forbidden_labels: (1, 100, 1000, 3000, 6400),
    forbidden_values: (1, 100, 1000, 10_000, 30_000),
    same_label_again: (2, 100, 1000, 3000),
    bounds: (2, 100, 1000),
    misspelled_terms: (2, 30, 300, 1000, 2000),
    instance_types: (10, 100, 300, 600),
    different_requests: (10, 300, 1000, 3000),
    different_tolerations: (10, 300, 1000),
    different_selectors: (1, 10, 300, 1000, 2000),
    different_ports: (10, 100, 300, 1000),
    same_port: (10, 100, 300, 1000),
    different_spreads: (1, 10, 100, 300, 1000),
    different_zones: (1, 3, 30, 100, 300),
    joining: (1, 10, 100, 300, 1000),
    ring: (2, 10, 100, 300),
    unknown_topology: (1, 10, 100, 300, 1000),
    selector_values: (1, 100, 1000, 10_000, 30_000),
    selector_expressions: (1, 100, 1000, 5000),
    many_namespaces: (1, 100, 1000, 10_000),
    pod_labels: (100, 1000, 5000),
    annotations: (100, 1000, 5000),
    unicode_values: (1, 10, 100, 1000),
    extended_resources: (1, 10, 100, 1000, 5000),
    own_resources: (1, 10, 100, 300, 1000),
    containers: (10, 100, 1000, 3000),
    volumes: (1, 5, 10, 100, 300),
    missing_volumes: (1, 10, 100, 1000),
    ephemeral_volumes: (1, 10, 1000, 10_000),
    device_claims: (1, 10, 100, 300),
    budgets: (1, 10, 100, 1000),
    owners: (1, 10, 100, 5000),
    preferred_pods: (1, 10, 100, 300, 1000),
    different_preferences: (1, 10, 100, 300),
    priorities: (10, 100, 1000),
    label_keys: (1, 10, 100, 300),
    terminating: (10, 100, 1000),
    type_topology: (1, 10, 100, 300),
    all_namespaces: (1, 10, 100, 300, 1000),
    gated: (1, 10, 1000),
    overheads: (1, 10, 100, 1000),
    preferred_nodes: (1, 10, 100, 300, 1000),
    chosen_types: (1, 10, 100, 1000, 5000),
    huge_requests: (1, 10, 100, 1000, 3000),
}
"""The sizes in which each shape is tried."""
SEVERAL: tuple[tuple[tuple[Shape, int], ...], ...] = (
    ((required_labels, 3200), (forbidden_labels, 3000), (misspelled_terms, 300)),
    ((different_spreads, 100), (different_zones, 30), (ring, 30)),
    ((extended_resources, 1000), (own_resources, 100), (containers, 300)),
    ((volumes, 100), (device_claims, 30), (budgets, 100)),
    ((different_selectors, 300), (instance_types, 100), (preferred_pods, 100)),
    ((different_ports, 100), (selector_values, 1000), (label_keys, 30)),
    ((unknown_topology, 100), (joining, 100), (forbidden_values, 1000)),
    ((same_port, 100), (different_requests, 300), (priorities, 100)),
    ((annotations, 1000), (pod_labels, 1000), (terminating, 100)),
    ((huge_requests, 300), (misspelled_terms, 100), (required_labels, 1000)),
    ((all_namespaces, 100), (type_topology, 30), (preferred_nodes, 100)),
    ((bounds, 100), (same_label_again, 100), (different_preferences, 100)),
)
"""Shapes together: each alone may fit into a budget that all exceed."""
CASES: Mapping[str, tuple[tuple[Shape, int], ...]] = {
    f"{shape.__name__}-{size}": ((shape, size),) for shape, sizes in SHAPES.items() for size in sizes
} | {"+".join(shape.__name__ for shape, _ in parts): parts for parts in SEVERAL}


def hostile(case: str) -> list[JSONDict]:
    """Return the objects of a case."""
    return [body for shape, size in CASES[case] for body in shape(size)]
