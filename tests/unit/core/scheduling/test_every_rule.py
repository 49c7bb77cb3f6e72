"""Every kind of scheduling rule on a small cluster: the scheduler's plan, which `verify` accepts."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.results import MinValuesPolicy, Options
from journeyman.core.scheduling.scheduler import pods_to_schedule, solve
from journeyman_simulator.judge import verify_strictly
from tests.helpers.builders import TYPES, a_node, a_pod, a_pool, a_running_claim, a_snapshot, an_instance_type

ZONES = ("a", "b", "c")
TYPES_EVERYWHERE = (
    an_instance_type("z.small", cpu=2, memory_gib=8, price=0.1, zones=ZONES, spot=0.04),
    an_instance_type("z.large", cpu=8, memory_gib=32, price=0.4, zones=ZONES, spot=0.15),
)


def plan(*pods, types=TYPES_EVERYWHERE, options=Options(), **cluster):  # noqa: B008 - a frozen value
    """Return the verified plan for these pods and the other objects of the cluster."""
    snapshot = a_snapshot(pods=tuple(sorted(pods, key=lambda p: p.key)), **cluster)
    catalogue = Catalogue({pool.metadata.name: types for pool in snapshot.node_pools})
    results = solve(snapshot, catalogue, options=options)
    assert verify_strictly(snapshot, catalogue, results, pods=pods_to_schedule(snapshot)) == ()
    return results


def pods(count, prefix="p", *, app="web", **kwargs):
    """Return this many equal pods of one app."""
    return [a_pod(f"{prefix}{i}", metadata={"labels": {"app": app}}, **kwargs) for i in range(count)]


def near(key, app="web"):
    """Return a spec with required affinity to the pods of an app."""
    return {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_term(key, app)]}}}


def apart(key, app="web"):
    """Return a spec with required anti-affinity to the pods of an app."""
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_term(key, app)]}}}


def _term(key, app):
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}


def spread(key, **more):
    """Return a spec with one required spread over the pods of the app web."""
    constraint = {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule"}
    return {"topologySpreadConstraints": [{**constraint, "labelSelector": {"matchLabels": {"app": "web"}}, **more}]}


def values_of(results, key):
    """Return the values that each new NodeClaim requires for a key."""
    return [next((r.values for r in c.requirements if r.key == key), None) for c in results.new_claims]


def pods_by(results, key):
    """Return the number of pods on nodes with each value of a key."""
    counts = {}
    for claim, values in zip(results.new_claims, values_of(results, key), strict=True):
        counts[values] = counts.get(values, 0) + len(claim.pods)
    return counts


def a_pool_that_requires(*requirements):
    """Return a NodePool whose template has exactly these requirements."""
    return a_pool(spec={"template": {"spec": {"requirements": list(requirements)}}})


def on_ports(*ports):
    """Return a spec whose container uses these host ports."""
    resources = {"requests": {"cpu": "500m", "memory": "1Gi"}}
    return {"containers": [{"name": "main", "resources": resources, "ports": [{"hostPort": p} for p in ports]}]}


def test_hostname_anti_affinity_gives_each_pod_a_node():
    """Three pods get three nodes."""
    assert len(plan(*pods(3, cpu="100m", spec=apart(labels.HOSTNAME))).new_claims) == 3


def test_zone_anti_affinity_gives_each_pod_a_zone():
    """One pass uses all three zones, Karpenter one zone per pass; the fourth pod stays pending."""
    results = plan(*pods(4, cpu="100m", spec=apart(labels.ZONE)))

    assert sorted(values_of(results, labels.ZONE)) == [("a",), ("b",), ("c",)]
    assert len(results.pod_errors) == 1


def test_pods_with_hostname_affinity_share_a_node():
    """A smaller node for each pod would be enough without the rule."""
    results = plan(*pods(3, cpu="1", spec=near(labels.HOSTNAME)))

    assert [len(claim.pods) for claim in results.new_claims] == [3]


def test_pods_with_zone_affinity_go_to_the_zone_of_their_target():
    """The target is pending too, so the scheduler gives it a zone first."""
    target = pods(1, "target", app="db", cpu="1", spec={"nodeSelector": {labels.ZONE: "b"}})

    results = plan(*target, *pods(2, "follower", cpu="6", spec=near(labels.ZONE, "db")))

    assert set(values_of(results, labels.ZONE)) == {("b",)}


def test_zone_of_co_located_pods_is_chosen_by_the_price_of_whole_nodes():
    """A core is cheaper on the huge type of zone a, but the small type of zone b is enough for one pod."""
    types = (
        an_instance_type("huge", cpu=64, memory_gib=256, price=1.6, zones=("a",)),
        an_instance_type("small", cpu=2, memory_gib=8, price=0.1, zones=("b",)),
    )

    results = plan(*pods(1, cpu="1", spec=near(labels.ZONE)), types=types)

    assert [claim.offering[:2] for claim in results.new_claims] == [("small", "b")]


def test_pod_with_affinity_to_a_missing_pod_stays_pending():
    """No pod matches its affinity, not even the pod itself."""
    results = plan(*pods(1, spec=near(labels.ZONE, "ghost")), a_pod("fine"))

    assert set(results.pod_errors) == {"default/p0"}


def test_pods_with_the_same_host_port_get_different_nodes():
    """A third pod with another port shares a node."""
    first, second = (a_pod(name, spec=on_ports(8080)) for name in ("a", "b"))

    results = plan(first, second, a_pod("c", spec=on_ports(9090)), types=TYPES)

    assert len(results.new_claims) == 2
    assert {"default/a", "default/b"} not in [set(claim.pods) for claim in results.new_claims]


def test_spread_distributes_pods_over_capacity_types():
    """Every label in which offerings differ can be a topology key."""
    results = plan(*pods(4, cpu="1", spec=spread(labels.CAPACITY_TYPE)))

    assert pods_by(results, labels.CAPACITY_TYPE) == {("on-demand",): 2, ("spot",): 2}


def test_spread_distributes_pods_over_values_that_the_nodepool_allows():
    """The values of the NodePool's requirement are the domains."""
    rack = {"key": "example.com/rack", "operator": "In", "values": ["r1", "r2"]}
    pool = a_pool_that_requires(rack)

    results = plan(*pods(4, cpu="1", spec=spread("example.com/rack")), node_pools=(pool,))

    assert pods_by(results, "example.com/rack") == {("r1",): 2, ("r2",): 2}


def test_missing_min_domains_count_as_empty_domains():
    """With minDomains 4 and three zones, each zone takes one pod."""
    results = plan(*pods(5, cpu="100m", spec=spread(labels.ZONE, minDomains=4)))

    assert len(results.pod_errors) == 2


@pytest.mark.parametrize(("policy", "placed"), [("Strict", False), ("BestEffort", True)])
def test_only_best_effort_policy_relaxes_unsatisfied_min_values(policy, placed):
    """The NodePool requires three instance types, and two exist."""
    wanted = {"key": labels.INSTANCE_TYPE, "operator": "Exists", "minValues": 3}
    pool = a_pool_that_requires(wanted)

    results = plan(a_pod("p"), node_pools=(pool,), options=Options(min_values=MinValuesPolicy(policy)))

    assert bool(results.new_claims) is placed
    assert all(claim.min_values_relaxed for claim in results.new_claims)


def test_min_values_limit_the_pods_of_a_nodeclaim():
    """Both types must hold the pods of a NodeClaim: none has more pods than fit on the small type."""
    wanted = {"key": labels.INSTANCE_TYPE, "operator": "Exists", "minValues": 2}

    results = plan(*pods(4, cpu="1500m"), node_pools=(a_pool_that_requires(wanted),))

    assert not results.pod_errors
    assert {len(claim.instance_types) for claim in results.new_claims} == {2}


def test_zone_anti_affinity_of_a_running_pod_excludes_its_zone():
    """The selected pod gets a new node in another zone, although the existing node has capacity."""
    guard = a_pod("guard", node="node-default-1", metadata={"labels": {"app": "db"}}, spec=apart(labels.ZONE))
    node = a_node()
    zone = node.metadata.labels[labels.ZONE]

    results = plan(*pods(1), guard, nodes=(node,), claims=(a_running_claim(),))

    (offering,) = (claim.offering for claim in results.new_claims)
    assert offering[1] != zone


def test_anti_affinity_excludes_a_zone_beside_a_spread_without_domains():
    """The pod counts for a spread whose topology key no node has, and still avoids the zone."""
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


def test_pod_order_does_not_change_the_plan():
    """The API server lists pods in any order."""
    mixed = [*pods(5, cpu="1", spec=spread(labels.ZONE)), *pods(3, "q", app="db", spec=apart(labels.HOSTNAME, "db"))]
    snapshot = a_snapshot(pods=tuple(mixed))
    catalogue = Catalogue({pool.metadata.name: TYPES_EVERYWHERE for pool in snapshot.node_pools})

    shuffled = replace(snapshot, pods=snapshot.pods[::-1])

    assert solve(shuffled, catalogue) == solve(snapshot, catalogue)
