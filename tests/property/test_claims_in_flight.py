"""Reserved placements of NodeClaims in flight, in clusters that change meanwhile."""

from __future__ import annotations

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.resources import total_requests
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.scheduler import pods_to_schedule, solve
from journeyman_simulator.judge import verify_strictly
from tests.helpers.builders import (
    NOW,
    a_claim,
    a_daemon_set,
    a_node,
    a_node_class,
    a_pod,
    a_running_claim,
    a_snapshot,
    an_instance_type,
    provider_id_of,
)
from tests.helpers.examples import examples

ZONES = ("a", "b", "c")
APPS = ("web", "db")
KEYS = (labels.ZONE, labels.ZONE, labels.HOSTNAME)
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
CATEGORY = "karpenter.k8s.aws/instance-category"
PLAIN = ("plain",)
KINDS = ("plain", "spread", "spread", "spread", "both", "near", "apart")
SIZES = (2, 4, 8)
FREE_MILLICORES = 2700  # mCPU of a claim, before and after launch, beside the daemon
FEW = settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])

selectors = st.sampled_from(APPS).map(lambda app: {"matchLabels": {"app": app}})


@st.composite
def specs(draw, kinds):
    """What pods of one kind want of each other and of their node."""
    spec = {}
    kind = draw(st.sampled_from(kinds))
    if kind in {"near", "apart"}:
        term = {"topologyKey": draw(st.sampled_from(KEYS)), "labelSelector": draw(selectors)}
        spec["affinity"] = {"podAffinity" if kind == "near" else "podAntiAffinity": {REQUIRED: [term]}}
    if kind in {"spread", "both"}:
        keys = (labels.ZONE, labels.HOSTNAME) if kind == "both" else (draw(st.sampled_from(KEYS)),)
        spec["topologySpreadConstraints"] = [
            {
                "maxSkew": draw(st.integers(1, 2)),
                "topologyKey": key,
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": draw(selectors),
                **({"minDomains": draw(st.integers(2, 4))} if draw(st.integers(0, 4)) == 0 else {}),
            }
            for key in keys
        ]
    if draw(st.integers(0, 4)) == 0:
        wanted = {"key": CATEGORY, "operator": "In", "values": ["c", "m"]}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}
        spec.setdefault("affinity", {})["nodeAffinity"] = {REQUIRED: terms}
    if kinds != PLAIN and draw(st.integers(0, 5)) == 0:
        spec["nodeSelector"] = {labels.ZONE: draw(st.sampled_from(ZONES))}
    if kinds != PLAIN and draw(st.integers(0, 5)) == 0:
        spec["containers"] = [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]
    return spec


@st.composite
def groups(draw, kinds):
    """Groups of equal pods: names and bodies."""
    found = []
    for group in range(draw(st.integers(1, 3))):
        body = {"cpu": draw(st.sampled_from(("100m", "900m", "2"))), "spec": draw(specs(kinds))}
        body["metadata"] = {"labels": {"app": draw(st.sampled_from(APPS))}}
        found += [(f"g{group}-{i}", body) for i in range(draw(st.integers(1, 6)))]
    return found


@st.composite
def clusters(draw, kinds=KINDS):
    """Nodes that stay or leave, claims on their way with pods planned, and what can be launched.

    Pods of the simplest kind can always be given a node.
    """
    standing = draw(st.lists(st.tuples(st.sampled_from(ZONES), st.booleans()), max_size=3))
    ways = st.sampled_from(("asked for", "launched", "joining"))
    coming = draw(st.lists(st.tuples(st.sampled_from(ZONES), ways), min_size=1, max_size=3))
    pods, planned = [], [[] for _ in coming]
    for name, body in draw(groups(kinds)):
        place = draw(st.integers(-3, len(standing) - 1))
        pods.append(a_pod(name, node=f"node-s{place}" if place >= 0 else "", **body))
        if draw(st.integers(0, 3)):
            planned[draw(st.integers(0, len(coming) - 1))].append(f"default/{name}")
    made = [_standing(n, zone, leaves=leaves) for n, (zone, leaves) in enumerate(standing)]
    made += [
        _coming(n, zone, way, planned[n], draw(st.sets(st.sampled_from(ZONES)))) for n, (zone, way) in enumerate(coming)
    ]
    simple = kinds == PLAIN
    stocked = frozenset(draw(st.sets(st.sampled_from(ZONES), min_size=int(simple))))
    return (
        a_snapshot(
            pods=tuple(sorted(pods, key=lambda p: p.key)),
            claims=tuple(claim for claim, _ in made),
            nodes=tuple(node for _, node in made if node is not None),
            daemon_sets=(a_daemon_set("agent", cpu="300m"),) if draw(st.booleans()) else (),
            node_classes=(a_node_class(ready=simple or draw(st.integers(0, 5)) > 0),),
        ),
        Catalogue({"default": tuple(_type(cpu, stocked) for cpu in SIZES)}),
    )


def _type(cpu, stocked):
    made = an_instance_type(f"z{cpu}", cpu=cpu, memory_gib=4 * cpu, price=0.05 * cpu, zones=ZONES)
    category = msgspec.convert({"key": CATEGORY, "operator": "In", "values": ["m"]}, type(made.requirements[0]))
    offerings = tuple(replace(o, available=o.zone in stocked) for o in made.offerings)
    return replace(made, offerings=offerings, requirements=(*made.requirements, category))


def _standing(n, zone, *, leaves):
    since = NOW if leaves else None
    values = {labels.ZONE: zone, CATEGORY: "m"}
    node = a_node(f"s{n}", deleting=since, metadata={"labels": values})
    return a_running_claim(f"s{n}", deleting=since), node


def _coming(n, zone, way, planned, others):
    """Before launch a claim says what it may become (in other zones, too), afterwards what it is."""
    values = {} if way == "asked for" else {labels.ZONE: zone, labels.INSTANCE_TYPE: "z4", CATEGORY: "m"}
    asked = [(labels.ZONE, sorted({zone, *others})), (CATEGORY, ["c", "m"]), (labels.INSTANCE_TYPE, ["z4", "z8"])]
    claim = a_claim(
        f"c{n}",
        provider_id="" if way == "asked for" else provider_id_of(f"c{n}"),
        metadata={"annotations": {labels.PLANNED_PODS: ",".join(planned)}, "labels": values},
        spec={
            "requirements": [{"key": key, "operator": "In", "values": v} for key, v in asked],
            "resources": {"requests": {"cpu": "3", "memory": "16Gi", "pods": "20"}},
        },
    )
    node = a_node(f"c{n}", registered=False, metadata={"labels": {labels.ZONE: zone}}) if way == "joining" else None
    return claim, node


@FEW
@given(clusters())
def test_plans_with_reserved_placements_pass_verification(cluster):
    """Whatever spread, affinity and anti-affinity constraints the pods have."""
    snapshot, catalogue = cluster

    results = solve(snapshot, catalogue)

    assert verify_strictly(snapshot, catalogue, results, pods=pods_to_schedule(snapshot)) == ()


@FEW
@given(clusters())
def test_reserved_placements_leave_no_pod_unschedulable(cluster):
    """As many pods are scheduled as if no claim recorded its pods."""
    snapshot, catalogue = cluster
    forgetful = replace(snapshot, claims=tuple(_forgetting(claim) for claim in snapshot.claims))

    kept, afresh = solve(snapshot, catalogue), solve(forgetful, catalogue)

    assert len(kept.pod_errors) <= len(afresh.pod_errors)


def _forgetting(claim):
    return replace(claim, metadata=replace(claim.metadata, annotations={}))


@FEW
@given(clusters(PLAIN))
def test_unconstrained_pods_keep_their_reserved_placement(cluster):
    """No pod is provisioned for twice."""
    snapshot, catalogue = cluster
    asked = {pod.key: pod for pod in pods_to_schedule(snapshot)}

    results = solve(snapshot, catalogue)

    assert results.pod_errors == {}
    for node in snapshot.state_nodes:
        names = node.claim.metadata.annotations.get(labels.PLANNED_PODS, "").split(",")
        pods = [asked[name] for name in names if name in asked]
        if total_requests(pods).get("cpu", 0) <= FREE_MILLICORES:
            assert {pod.key for pod in pods} <= set(results.existing.get(node.name, ()))
