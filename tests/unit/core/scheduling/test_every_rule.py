"""Every kind of rule through the whole scheduler: a small cluster, the plan it leads to, and the second opinion."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.results import MinValuesPolicy, Options
from journeyman.core.scheduling.scheduler import pods_to_schedule, solve
from journeyman.core.scheduling.verify import verify
from tests.helpers.builders import TYPES, a_node, a_pod, a_pool, a_running_claim, a_snapshot, an_instance_type

ZONES = ("a", "b", "c")
TYPES_EVERYWHERE = (
    an_instance_type("z.small", cpu=2, memory_gib=8, price=0.1, zones=ZONES, spot=0.04),
    an_instance_type("z.large", cpu=8, memory_gib=32, price=0.4, zones=ZONES, spot=0.15),
)


def plan(*pods, types=TYPES_EVERYWHERE, options=Options(), **cluster):  # noqa: B008 - a frozen value
    """The verified plan for these pods and whatever else the cluster holds."""
    snapshot = a_snapshot(pods=tuple(sorted(pods, key=lambda p: p.key)), **cluster)
    catalogue = Catalogue({pool.metadata.name: types for pool in snapshot.node_pools})
    results = solve(snapshot, catalogue, options=options)
    assert verify(snapshot, catalogue, results, pods=pods_to_schedule(snapshot)) == ()
    return results


def pods(count, prefix="p", *, app="web", **kwargs):
    """That many equal pods of one app."""
    return [a_pod(f"{prefix}{i}", metadata={"labels": {"app": app}}, **kwargs) for i in range(count)]


def near(key, app="web"):
    """A spec with required affinity to the pods of an app."""
    return {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_term(key, app)]}}}


def apart(key, app="web"):
    """A spec with required anti-affinity to the pods of an app."""
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_term(key, app)]}}}


def _term(key, app):
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}


def spread(key, **more):
    """A spec with one required spread over the pods of the app web."""
    constraint = {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule"}
    return {"topologySpreadConstraints": [{**constraint, "labelSelector": {"matchLabels": {"app": "web"}}, **more}]}


def values_of(results, key):
    """What each claim asks for under a key."""
    return [next((r.values for r in c.requirements if r.key == key), None) for c in results.new_claims]


def pods_by(results, key):
    """How many pods go to nodes with each value of a key."""
    counts = {}
    for claim, values in zip(results.new_claims, values_of(results, key), strict=True):
        counts[values] = counts.get(values, 0) + len(claim.pods)
    return counts


def a_pool_that_requires(*requirements):
    """The pool with these requirements of its template, and no others."""
    return a_pool(spec={"template": {"spec": {"requirements": list(requirements)}}})


def on_ports(*ports):
    """A spec whose container asks for these ports of its node."""
    resources = {"requests": {"cpu": "500m", "memory": "1Gi"}}
    return {"containers": [{"name": "main", "resources": resources, "ports": [{"hostPort": p} for p in ports]}]}


@pytest.mark.karpenter(
    "provisioning/scheduling/topology",
    it="should separate nodes using simple pod anti-affinity on hostname",
)
def test_pods_that_keep_apart_per_host_get_a_node_each():
    """One rule, three nodes."""
    assert len(plan(*pods(3, cpu="100m", spec=apart(labels.HOSTNAME))).new_claims) == 3


def test_pods_that_keep_apart_per_zone_get_a_zone_each_and_the_fourth_none():
    """All zones are used in one pass; Karpenter places one pod a pass."""
    results = plan(*pods(4, cpu="100m", spec=apart(labels.ZONE)))

    assert sorted(values_of(results, labels.ZONE)) == [("a",), ("b",), ("c",)]
    assert len(results.pod_errors) == 1


@pytest.mark.karpenter("provisioning/scheduling/topology", it="should respect self pod affinity (hostname)")
def test_pods_that_stay_together_per_host_share_a_node():
    """Although smaller nodes for each would do as well."""
    results = plan(*pods(3, cpu="1", spec=near(labels.HOSTNAME)))

    assert [len(claim.pods) for claim in results.new_claims] == [3]


@pytest.mark.karpenter(
    "provisioning/scheduling/topology",
    it="should support pod affinity with zone topology (constrained target)",
)
def test_pods_follow_others_to_their_zone():
    """The followers' target is pending too: it is given a zone first."""
    target = pods(1, "target", app="db", cpu="1", spec={"nodeSelector": {labels.ZONE: "b"}})

    results = plan(*target, *pods(2, "follower", cpu="6", spec=near(labels.ZONE, "db")))

    assert set(values_of(results, labels.ZONE)) == {("b",)}


def test_co_located_pods_choose_the_zone_by_the_price_of_whole_nodes():
    """A core is cheaper on the huge type of zone a, but the small one of zone b is enough for one pod."""
    types = (
        an_instance_type("huge", cpu=64, memory_gib=256, price=1.6, zones=("a",)),
        an_instance_type("small", cpu=2, memory_gib=8, price=0.1, zones=("b",)),
    )

    results = plan(*pods(1, cpu="1", spec=near(labels.ZONE)), types=types)

    assert [claim.offering[:2] for claim in results.new_claims] == [("small", "b")]


@pytest.mark.karpenter(
    "provisioning/scheduling/topology",
    it="should not schedule pods with affinity to a non-existent pod",
)
def test_pods_that_follow_nobody_have_no_place():
    """There is no pod of that app, and they are none themselves."""
    results = plan(*pods(1, spec=near(labels.ZONE, "ghost")), a_pod("fine"))

    assert set(results.pod_errors) == {"default/p0"}


def test_two_pods_that_want_one_host_port_get_a_node_each():
    """A third with another port shares."""
    first, second = (a_pod(name, spec=on_ports(8080)) for name in ("a", "b"))

    results = plan(first, second, a_pod("c", spec=on_ports(9090)), types=TYPES)

    assert len(results.new_claims) == 2
    assert {"default/a", "default/b"} not in [set(claim.pods) for claim in results.new_claims]


@pytest.mark.karpenter("provisioning/scheduling/topology", it="should balance pods across capacity types")
def test_pods_spread_over_capacity_types():
    """Any label that offerings differ in is a domain."""
    results = plan(*pods(4, cpu="1", spec=spread(labels.CAPACITY_TYPE)))

    assert pods_by(results, labels.CAPACITY_TYPE) == {("on-demand",): 2, ("spot",): 2}


@pytest.mark.karpenter("provisioning/scheduling/topology", it="should balance pods across NodePool requirements")
def test_pods_spread_over_a_label_that_the_node_pool_leaves_open():
    """The values that the NodePool allows are the domains."""
    rack = {"key": "example.com/rack", "operator": "In", "values": ["r1", "r2"]}
    pool = a_pool_that_requires(rack)

    results = plan(*pods(4, cpu="1", spec=spread("example.com/rack")), node_pools=(pool,))

    assert pods_by(results, "example.com/rack") == {("r1",): 2, ("r2",): 2}


def test_min_domains_beyond_the_existing_zones_count_as_empty_domains():
    """With minDomains 4 and three zones the emptiest zone counts as 0: one pod each."""
    results = plan(*pods(5, cpu="100m", spec=spread(labels.ZONE, minDomains=4)))

    assert len(results.pod_errors) == 2


@pytest.mark.parametrize(("policy", "placed"), [("Strict", False), ("BestEffort", True)])
@pytest.mark.karpenter("provisioning", it="should not schedule when minValues requirement is not met")
@pytest.mark.karpenter("provisioning", it="should schedule even when minValues requirement is not met")
@pytest.mark.karpenter(
    "provisioning/scheduling/instance_selection",
    it="schedule should fail if minimum number of InstanceTypes is not met as per the minValues in the requirement",
)
def test_min_values_that_cannot_be_met_open_nothing_or_are_lowered(policy, placed):
    """Two types there are, three are asked for."""
    wanted = {"key": labels.INSTANCE_TYPE, "operator": "Exists", "minValues": 3}
    pool = a_pool_that_requires(wanted)

    results = plan(a_pod("p"), node_pools=(pool,), options=Options(min_values=MinValuesPolicy(policy)))

    assert bool(results.new_claims) is placed
    assert all(claim.min_values_relaxed for claim in results.new_claims)


@pytest.mark.karpenter(
    "provisioning/scheduling/instance_selection",
    it="should schedule respecting the minValues from instance-type requirements",
)
def test_min_values_keep_a_claim_to_what_enough_types_can_hold():
    """Both types must hold what the claim plans for: no node takes more than the small one."""
    wanted = {"key": labels.INSTANCE_TYPE, "operator": "Exists", "minValues": 2}

    results = plan(*pods(4, cpu="1500m"), node_pools=(a_pool_that_requires(wanted),))

    assert not results.pod_errors
    assert {len(claim.instance_types) for claim in results.new_claims} == {2}


@pytest.mark.karpenter(
    "provisioning/scheduling/topology",
    it="should not violate pod anti-affinity on zone (inverse w/existing nodes)",
)
def test_running_pods_anti_affinity_bars_their_zone():
    """A pod that the rule selects goes to another zone, existing node or not."""
    guard = a_pod("guard", node="node-default-1", metadata={"labels": {"app": "db"}}, spec=apart(labels.ZONE))
    node = a_node()
    zone = node.metadata.labels[labels.ZONE]

    results = plan(*pods(1), guard, nodes=(node,), claims=(a_running_claim(),))

    (offering,) = (claim.offering for claim in results.new_claims)
    assert offering[1] != zone


def test_a_repelled_zone_stays_excluded_beside_a_spread_without_domains():
    """The pod counted by that spread has no domain under its label, and still must keep out of the zone."""
    guard = a_pod("guard", node="node-default-1", metadata={"labels": {"app": "db"}}, spec=apart(labels.ZONE))
    node = a_node()

    results = plan(
        *pods(1),
        a_pod("odd", metadata={"labels": {"app": "db"}}, spec=spread("example.com/rack")),
        guard,
        nodes=(node,),
        claims=(a_running_claim(),),
    )

    assert set(results.pod_errors) == {"default/odd"}
    assert results.new_claims[0].offering[1] != node.metadata.labels[labels.ZONE]


def test_the_same_cluster_in_any_order_makes_the_same_plan():
    """Order is an accident of the API server."""
    mixed = [*pods(5, cpu="1", spec=spread(labels.ZONE)), *pods(3, "q", app="db", spec=apart(labels.HOSTNAME, "db"))]
    snapshot = a_snapshot(pods=tuple(mixed))
    catalogue = Catalogue({pool.metadata.name: TYPES_EVERYWHERE for pool in snapshot.node_pools})

    shuffled = replace(snapshot, pods=snapshot.pods[::-1])

    assert solve(shuffled, catalogue) == solve(snapshot, catalogue)
