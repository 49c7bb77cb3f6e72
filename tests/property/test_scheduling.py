"""Properties of every plan."""

from __future__ import annotations

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeClaim
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.nodeclaim_templates import claim_name, to_node_claim
from journeyman.core.scheduling.scheduler import pods_to_schedule, solve
from journeyman_simulator.judge import verify_strictly
from tests.helpers.builders import (
    a_daemon_set,
    a_node,
    a_pod,
    a_pool,
    a_running_claim,
    a_snapshot,
    an_instance_type,
)
from tests.helpers.examples import examples

TYPES = tuple(
    an_instance_type(
        f"t{cpu}", cpu=cpu, memory_gib=cpu * ratio, price=0.04 * cpu + 0.005 * cpu * ratio, zones=zones, spot=spot
    )
    for cpu, ratio, zones, spot in (
        (2, 4, ("a", "b"), 0.03),
        (4, 2, ("a", "c"), None),
        (8, 4, ("a", "b", "c"), 0.2),
        (16, 8, ("b",), 0.5),
    )
)
FEW = settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])

KEYS = st.sampled_from([labels.ZONE, labels.HOSTNAME])


@st.composite
def specs(draw):
    """A pod spec with some of the rules that are understood."""
    spec = {}
    if draw(st.booleans()):
        selector = st.fixed_dictionaries(
            {},
            optional={
                labels.ZONE: st.sampled_from(["a", "b", "c", "d"]),
                labels.CAPACITY_TYPE: st.sampled_from([labels.SPOT, labels.ON_DEMAND]),
                "team": st.sampled_from(["red", "blue"]),
            },
        )
        spec["nodeSelector"] = draw(selector)
    if draw(st.booleans()):
        constraint = {
            "maxSkew": draw(st.integers(1, 3)),
            "topologyKey": draw(KEYS),
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": draw(st.sampled_from(["web", "db"]))}},
        }
        spec["topologySpreadConstraints"] = [constraint]
    if draw(st.booleans()):
        spec["tolerations"] = [{"key": "gpu", "operator": "Exists"}]
    return spec


@st.composite
def workloads(draw):
    """A few groups of equal pods."""
    found = []
    for group in range(draw(st.integers(1, 5))):
        spec, app = draw(specs()), draw(st.sampled_from(["web", "db"]))
        cpu, memory = draw(st.sampled_from(["100m", "750m", "2", "7"])), draw(st.sampled_from(["64Mi", "1Gi", "6Gi"]))
        found += [
            a_pod(f"g{group}-{i}", cpu=cpu, memory=memory, spec=spec, metadata={"labels": {"app": app}})
            for i in range(draw(st.integers(1, 9)))
        ]
    return found


@st.composite
def pools(draw):
    """One or two NodePools, with limits, weights, taints and an open label now and then."""
    found = []
    for name in ("one", "two")[: draw(st.integers(1, 2))]:
        template = {"requirements": []}
        if draw(st.booleans()):
            template["requirements"] = [{"key": "team", "operator": "In", "values": ["red", "blue"]}]
        if draw(st.booleans()):
            template["taints"] = [{"key": "gpu", "effect": "NoSchedule"}]
        spec = {"template": {"spec": template}}
        if draw(st.booleans()):
            spec["limits"] = {"cpu": str(draw(st.integers(1, 40)))}
        if draw(st.booleans()):
            spec["weight"] = draw(st.integers(1, 3))
        found.append(a_pool(name, spec=spec))
    return tuple(found)


@st.composite
def clusters(draw):
    """Pools, pods that wait, and perhaps two nodes with a pod each."""
    cluster = {"node_pools": draw(pools()), "pods": draw(workloads())}
    if draw(st.booleans()):
        cluster["nodes"] = (a_node("x"), a_node("y"))
        cluster["claims"] = (a_running_claim("x"), a_running_claim("y"))
        cluster["pods"] += [a_pod("r-x", node="node-x"), a_pod("r-y", cpu="100m", node="node-y")]
    if draw(st.booleans()):
        cluster["daemon_sets"] = (a_daemon_set("agent", cpu="250m"),)
    cluster["pods"] = tuple(sorted(cluster["pods"], key=lambda p: p.key))
    return a_snapshot(**cluster)


def catalogue_of(snapshot):
    """The same types for every pool."""
    return Catalogue({pool.metadata.name: TYPES for pool in snapshot.node_pools})


@FEW
@given(snapshot=clusters())
def test_every_plan_passes_verification(snapshot):
    """No pod twice, missing or misplaced; no node overbooked; no limit, skew or taint violated; every price correct."""
    catalogue = catalogue_of(snapshot)

    results = solve(snapshot, catalogue)

    assert verify_strictly(snapshot, catalogue, results, pods=pods_to_schedule(snapshot)) == ()


@FEW
@given(snapshot=clusters())
def test_no_plan_costs_less_than_its_lower_bound(snapshot):
    """Otherwise it would not be a bound."""
    results = solve(snapshot, catalogue_of(snapshot))

    assert results.lower_bound <= results.price + 1e-9


@settings(FEW, max_examples=examples(30))  # each takes two plans
@given(snapshot=clusters(), data=st.data())
def test_order_of_pods_does_not_matter(snapshot, data):
    """Lists may have any order; the decision is the same, byte for byte."""
    shuffled = replace(snapshot, pods=tuple(data.draw(st.permutations(snapshot.pods))))
    catalogue = catalogue_of(snapshot)

    assert repr(solve(shuffled, catalogue)) == repr(solve(snapshot, catalogue))


@FEW
@given(snapshot=clusters())
def test_planning_again_after_creating_the_claims_adds_nothing(snapshot):
    """The claims' pods keep their placements, so the second plan launches no node for them."""
    catalogue = catalogue_of(snapshot)
    first = solve(snapshot, catalogue)
    claims = [
        to_node_claim(
            planned,
            snapshot.node_pools_by_name[planned.node_pool],
            name=claim_name(planned.node_pool, "seed", planned.pods),
            hash="",
            hash_version="",
        )
        for planned in first.new_claims
    ]
    after = snapshot.with_claims((*snapshot.claims, *msgspec.convert(claims, tuple[NodeClaim, ...])))

    second = solve(after, catalogue)

    assert {pod for claim in second.new_claims for pod in claim.pods} <= first.pod_errors.keys()
    assert sum(map(len, second.existing.values())) >= sum(len(c.pods) for c in first.new_claims)
