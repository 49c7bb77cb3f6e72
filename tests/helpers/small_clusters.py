"""Small clusters in a compact notation, for tests that are tables: pods with rules, nodes, and a verified plan as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import Node, Pod
from journeyman.core.catalogue import InstanceType
from journeyman.core.scheduling.results import Options, PlannedClaim
from tests.helpers.builders import TYPES, a_node, a_pod, a_pool, a_running_claim, an_instance_type
from tests.helpers.karpenter_suite import Scheduled, schedule

ZONES = ("a", "b", "c")
ZONE, HOST, TYPE, CAPACITY = labels.ZONE, labels.HOSTNAME, labels.INSTANCE_TYPE, labels.CAPACITY_TYPE
RACK = "example.com/rack"
DEAR_A = an_instance_type("x.large", cpu=8, memory_gib=32, price=0.5, zones=("a",))
CHEAP_B = an_instance_type("y.large", cpu=8, memory_gib=32, price=0.4, zones=("b",))
ARM = replace(
    an_instance_type("arm.large", cpu=8, memory_gib=32, price=0.45, zones=ZONES),
    requirements=tuple(
        replace(each, values=("arm64",)) if each.key == labels.ARCH else each
        for each in an_instance_type("arm.large", cpu=8, memory_gib=32, price=0.45, zones=ZONES).requirements
    ),
)
IN_BULK = Options(compare_up_to=0)
"""The pods are planned by class only, not one by one as well."""
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

Spec = dict[str, Any]


def zonal(*zones: str, spot: float | None = None, cpu: int = 8, price: float = 0.4) -> InstanceType:
    """Return an instance type that is offered in these zones, by default in three."""
    return an_instance_type("z.large", cpu=cpu, memory_gib=4 * cpu, price=price, zones=zones or ZONES, spot=spot)


# -- rules of pods, as parts of a spec


def spread(key: str = ZONE, skew: int = 1, app: str = "web", **more: Any) -> Spec:
    """Return a required topology spread over the pods of an app."""
    base = {"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector(app)}
    return {"topologySpreadConstraints": [{**base, **more}]}


def near(app: str = "web", key: str = ZONE, **more: Any) -> Spec:
    """Return required pod affinity to the pods of an app."""
    return {"affinity": {"podAffinity": {_REQUIRED: [_term(app, key, more)]}}}


def apart(app: str = "web", key: str = ZONE, **more: Any) -> Spec:
    """Return required pod anti-affinity to the pods of an app."""
    return {"affinity": {"podAntiAffinity": {_REQUIRED: [_term(app, key, more)]}}}


def prefers(rule: Spec) -> Spec:
    """Return the rule as a preference: affinity with weight 1, a spread with ScheduleAnyway."""
    spreads = [{**each, "whenUnsatisfiable": "ScheduleAnyway"} for each in rule.get("topologySpreadConstraints", ())]
    affinity: Spec = {}
    for kind, terms in rule.get("affinity", {}).items():
        if kind == "nodeAffinity":
            found = [{"weight": 1, "preference": term} for term in terms[_REQUIRED]["nodeSelectorTerms"]]
        else:
            found = [{"weight": 1, "podAffinityTerm": term} for term in terms[_REQUIRED]]
        affinity[kind] = {_PREFERRED: found}
    return {"topologySpreadConstraints": spreads, "affinity": affinity}


def _term(app: str, key: str, more: Spec) -> Spec:
    return {"topologyKey": key, "labelSelector": selector(app), **more}


def selector(app: str) -> Spec:
    """Return a label selector for the pods of an app, or of several that are separated by `|`."""
    if "|" not in app:
        return {"matchLabels": {"app": app}}
    return {"matchExpressions": [{"key": "app", "operator": "In", "values": app.split("|")}]}


def only(key: str, *values: str, operator: str = "In") -> Spec:
    """Return a required node affinity with one expression."""
    return either([(key, operator, *values)])


def either(*terms: list[tuple[str, ...]]) -> Spec:
    """Return a required node affinity with these alternatives, each a list of (key, operator, value, …)."""
    made = [{"matchExpressions": [{"key": k, "operator": o, "values": list(v)} for k, o, *v in term]} for term in terms]
    return {"affinity": {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": made}}}}


def selects(**selected: str) -> Spec:
    """Return a node selector; `zone` and `type` stand for the labels of Kubernetes."""
    known = {"zone": ZONE, "type": TYPE, "capacity": CAPACITY, "rack": RACK, "arch": labels.ARCH}
    return {"nodeSelector": {known.get(key, key): value for key, value in selected.items()}}


def tolerates(key: str | None = None) -> Spec:
    """Return a toleration of each taint, or of those with a key."""
    return {"tolerations": [{**({"key": key} if key else {}), "operator": "Exists"}]}


def listens(*ports: int, cpu: str = "100m", **more: Any) -> Spec:
    """Return a container with these host ports."""
    entries = [{"containerPort": port, "hostPort": port, **more} for port in ports]
    return {"containers": [{"name": "c", "image": "i", "ports": entries, "resources": {"requests": {"cpu": cpu}}}]}


def with_rules(*rules: Spec) -> Spec:
    """Return the rules as one spec: maps are merged, and lists put behind one another."""
    found: Spec = {}
    for rule in rules:
        _add(found, rule)
    return found


def _add(found: Spec, more: Spec) -> None:
    for key, value in more.items():
        if isinstance(value, dict):
            own: Spec = dict(found.get(key, {}))
            _add(own, value)
            found[key] = own
        else:
            found[key] = [*found.get(key, ()), *value] if isinstance(value, list) else value


# -- pods, nodes, NodePools


def some(count: int, app: str, *rules: Spec, cpu: str = "1", on: str = "", name: str = "", **more: Any) -> list[Pod]:
    """Return so many pods of an app with these rules: waiting, or running on a node that `at` names."""
    node = f"node-{on}" if on else ""
    labelled = {"labels": {"app": app, **more.pop("labels", {})}, **more.pop("metadata", {})}
    spec = with_rules(*rules)
    return [a_pod(f"{name or app}{n}", cpu=cpu, node=node, metadata=labelled, spec=spec, **more) for n in range(count)]


def at(*places: str, **more: Any) -> tuple[list[Node], list[Pod]]:
    """Return existing nodes of four CPUs, and pods that fill them: `name/zone` is full, `name/zone:3` has 3 CPUs free.

    Args:
        places: The nodes.
        more: Labels of them all, and `taints`.
    """
    nodes, fillers = [], []
    spec = {"taints": more.pop("taints", [])}
    for place in places:
        name, _, rest = place.partition("/")
        zone, _, free = rest.partition(":")
        nodes.append(a_node(name, metadata={"labels": {ZONE: zone or "a", **more}}, spec=spec))
        if float(free or 0) < 4:
            fillers += some(1, "filler", cpu=str(4 - float(free or 0)), on=name, name=f"filler-{name}-")
    return nodes, fillers


def pool(name: str = "default", *requirements: tuple[str, ...], **spec: Any) -> Any:
    """Return a NodePool with requirements (key, operator, value, …); `labels` and `taints` are of its template.

    An operator may have minValues: `Exists:2`.
    """
    entries = []
    for key, operator, *values in requirements:
        name_of_operator, _, least = operator.partition(":")
        more = {"minValues": int(least)} if least else {}
        entries.append({"key": key, "operator": name_of_operator, "values": values, **more})
    metadata = {"labels": spec.pop("labels", {})}
    template = {"metadata": metadata, "spec": {"requirements": entries, "taints": spec.pop("taints", [])}}
    annotations = {"annotations": spec.pop("annotations", {})}
    return a_pool(name, metadata=annotations, spec={**spec, "template": template})


# -- plans


def plan(
    *pods: Pod | list[Pod],
    nodes: tuple[list[Node], list[Pod]] = ([], []),
    types: tuple[InstanceType, ...] | Mapping[str, tuple[InstanceType, ...]] = TYPES,
    options: Options = Options(),  # noqa: B008 - a frozen value
    **cluster: Any,
) -> Scheduled:
    """Return the plan for these pods beside the nodes of `at`, which `verify_strictly` accepts."""
    flat = [pod for each in pods for pod in (each if isinstance(each, list) else [each])]
    if nodes[0]:
        claims = tuple(a_running_claim(node.metadata.name.removeprefix("node-")) for node in nodes[0])
        cluster = {**cluster, "nodes": tuple(nodes[0]), "claims": (*claims, *cluster.pop("claims", ()))}
    offered = {"by_pool": types} if isinstance(types, Mapping) else {"types": types}
    return schedule(*flat, *nodes[1], options=options, **offered, **cluster)


def by_domain(found: Scheduled, key: str = ZONE) -> str:
    """Return the planned pods by the domain of their nodes, as `a: 2 web, 1 db; b: 1 web; pending: 1 web`.

    A new node that may still get one of several values is in `a|b`, and one without the label in `-`.
    """
    nodes = {node.name: node.labels for node in found.snapshot.state_nodes}
    counts: dict[str, Counter[str]] = {}
    for name, keys in found.results.existing.items():
        counts.setdefault(nodes[name].get(key, "-"), Counter()).update(_apps(found, keys))
    for claim in found.results.new_claims:
        counts.setdefault(_value(claim, key), Counter()).update(_apps(found, claim.pods))
    return _text(found, sorted(counts.items()))


def by_node(found: Scheduled, key: str = TYPE) -> str:
    """Return the planned pods by node, as `node-n0: 1 web; m.large: 2 web`: new nodes by their cheapest instance type.

    With another key new nodes are named by that label.
    """
    places = [(name, _apps(found, keys)) for name, keys in sorted(found.results.existing.items())]
    new = sorted((_value(claim, key), sorted(_apps(found, claim.pods).items())) for claim in found.results.new_claims)
    return _text(found, [*places, *((name, Counter(dict(apps))) for name, apps in new)])


def _text(found: Scheduled, places: list[tuple[str, Counter[str]]]) -> str:
    pending = _apps(found, tuple(found.results.pod_errors))
    shown = [*places, *([("pending", pending)] if pending else [])]
    return "; ".join(
        f"{name}: {', '.join(f'{n} {app}' for app, n in sorted(apps.items(), reverse=True))}" for name, apps in shown
    )


def _apps(found: Scheduled, keys: tuple[str, ...]) -> Counter[str]:
    apps = {pod.key: pod.metadata.labels.get("app", "") for pod in found.snapshot.pods}
    return Counter(apps[key] for key in keys)


def _value(claim: PlannedClaim, key: str) -> str:
    if key == TYPE:
        return claim.offering.instance_type
    found = next((r for r in claim.requirements if r.key == key), None)
    if found is not None and found.operator == "NotIn":
        return {ZONE: claim.offering.zone, CAPACITY: claim.offering.capacity_type}.get(key, "-")
    return "|".join(found.values) if found is not None and found.values else "-"


def errors(found: Scheduled) -> str:
    """Return the messages of all pods that have no place."""
    return " ".join(error.message for error in found.results.pod_errors.values())


def table(*names: str, **cases: tuple[Any, ...]) -> pytest.MarkDecorator:
    """Return the mark that runs a test once for each case; the cases' names, with `_` for spaces, are the ids.

    The names of its arguments may also be one text, as `"pods, nodes, expected"`.
    """
    arguments = [name.strip() for text in names for name in text.split(",")]
    ids = [name.replace("_", " ") for name in cases]
    return pytest.mark.parametrize(arguments, [*cases.values()], ids=ids)


def expected_of(expected: str | tuple[str, str], options: Options) -> str:
    """Return what is expected, which may be a pair: of the plan by class, and of the best plan."""
    return expected if isinstance(expected, str) else expected[options != IN_BULK]


both_ways = pytest.mark.parametrize("options", [IN_BULK, Options()], ids=["in bulk", "also pod by pod"])
