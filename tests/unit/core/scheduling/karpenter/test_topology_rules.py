"""Karpenter's topology suite: spread, pod affinity and anti-affinity, on its fake cloud's instance types."""

from __future__ import annotations

import pytest

from journeyman.core.api import labels
from tests.helpers.builders import a_node, a_pod, a_running_claim, a_volume, a_volume_claim, provider_id_of
from tests.helpers.karpenter_suite import (
    ZONES,
    both,
    pool,
    preferred,
    requesting,
    required,
    requirement,
    schedule,
    tiny,
)

ZONE, HOST, ARCH, TYPE, CAPACITY = labels.ZONE, labels.HOSTNAME, labels.ARCH, labels.INSTANCE_TYPE, labels.CAPACITY_TYPE
BIG = requesting({"cpu": "1.1"})


def spread(*keys, app="web", skew=1, **more):
    """A spec with a required spread over each label."""
    selector = {} if app is None else {"labelSelector": {"matchLabels": {"app": app}}}
    base = {"maxSkew": skew, "whenUnsatisfiable": "DoNotSchedule", **selector, **more}
    return {"topologySpreadConstraints": [{**base, "topologyKey": key} for key in keys]}


def beside(kind, key, app, *, weight=None, **more):
    """A spec with a term for (`podAffinity`) or against (`podAntiAffinity`) an app's pods, preferred if it has a weight."""
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}, **more}
    if weight is None:
        return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    entry = {"weight": weight, "podAffinityTerm": term}
    return {"affinity": {kind: {"preferredDuringSchedulingIgnoredDuringExecution": [entry]}}}


def in_zones(*zones):
    """A NodePool's template with these zones."""
    return {"requirements": [requirement(ZONE, "In", *zones)]}


def pods(count, spec, name="p", app="web"):
    """So many pods of an app."""
    return [tiny(f"{name}{n}", spec=spec, metadata={"labels": {"app": app}}) for n in range(count)]


def running(zone, count=1, name="r", *, cpu="3", app="web", spec=None, **labelled):
    """A full node in a zone, its NodeClaim, and its pods."""
    claim = f"{name}-{zone}"
    own = {ZONE: zone, ARCH: "amd64", CAPACITY: labels.ON_DEMAND, TYPE: "default-instance-type", **labelled}
    amounts = {"cpu": cpu, "memory": "4Gi", "pods": str(count)}
    node = a_node(claim, metadata={"labels": own}, status={"capacity": amounts, "allocatable": amounts})
    held = a_running_claim(
        claim, provider_id=provider_id_of(claim), metadata={"labels": own}, status={"nodeName": node.metadata.name}
    )
    held_pods = [
        a_pod(
            f"{claim}-{n}",
            cpu="10m",
            memory="1Mi",
            node=node.metadata.name,
            metadata={"labels": {"app": app}},
            spec=spec or {},
        )
        for n in range(count)
    ]
    return node, held, held_pods


def beside_running(existing, *waiting, **cluster):
    """The plan for waiting pods beside running ones."""
    nodes, claims = tuple(each[0] for each in existing), tuple(each[1] for each in existing)
    return schedule(*(pod for each in existing for pod in each[2]), *waiting, nodes=nodes, claims=claims, **cluster)


@pytest.mark.parametrize(
    ("template", "count", "spec", "skew"),
    [
        (
            {},
            4,
            spread(ZONE, app=None, labelSelector={"matchExpressions": [requirement("app", "In", "web")]}),
            [1, 1, 2],
        ),
        (in_zones(*ZONES), 4, spread(ZONE), [1, 1, 2]),
        (in_zones(*ZONES[:2]), 4, spread(ZONE), [2, 2]),
        ({"labels": {ZONE: ZONES[0]}}, 4, spread(ZONE), [4]),
        ({"labels": {ZONE: ZONES[0]}, **in_zones(*ZONES[:2])}, 4, spread(ZONE), [4]),
        (in_zones(*ZONES), 11, spread(ZONE, minDomains=3), [3, 4, 4]),
        (in_zones(*ZONES), 11, spread(ZONE, minDomains=2), [3, 4, 4]),
        ({}, 10, both(spread(ZONE), required([requirement(ZONE, "In", *ZONES[:2])])), [5, 5]),
        ({}, 6, both(spread(ZONE), required([requirement(ZONE, "In", *ZONES[:2])])), [3, 3]),
        ({}, 6, both(spread(ZONE), preferred((1, [requirement(ZONE, "In", *ZONES[:2])]))), [2, 2, 2]),
    ],
)
def test_spread_over_zones_counts_the_zones_that_its_pods_can_use(template, count, spec, skew):
    """Zones of the NodePool that the pods' required node affinity allows."""
    plan = schedule(*pods(count, spec), node_pools=(pool(**template),))

    assert not plan.results.pod_errors
    assert plan.by_label(ZONE) == skew


@pytest.mark.parametrize(
    ("existing", "template", "count", "skew", "placed"),
    [
        ([(ZONES[2], 1)], in_zones(*ZONES[:2]), 6, 1, [2, 2]),
        ([(ZONES[0], 1), (ZONES[1], 1)], in_zones(ZONES[2]), 10, 5, [6]),
        ([(ZONES[0], 3)], {}, 3, 1, [1, 2]),
    ],
)
def test_running_pods_of_any_zone_bound_a_spread(existing, template, count, skew, placed):
    """The other pods have no place."""
    plan = beside_running(
        [running(zone, number) for zone, number in existing],
        *pods(count, both(BIG, spread(ZONE, skew=skew))),
        node_pools=(pool(**template),),
    )

    assert plan.by_label(ZONE) == placed
    assert len(plan.results.pod_errors) == count - sum(placed)


@pytest.mark.parametrize(("count", "when", "placed"), [(5, "DoNotSchedule", 2), (5, "ScheduleAnyway", 5)])
def test_spread_over_capacity_types_counts_the_running_pod(count, when, placed):
    """It runs on on-demand capacity, the NodePool allows Spot only."""
    spot = pool(requirements=[requirement(CAPACITY, "In", labels.SPOT)])

    plan = beside_running(
        [running(ZONES[0])], *pods(count, both(BIG, spread(CAPACITY, whenUnsatisfiable=when))), node_pools=(spot,)
    )

    assert plan.by_label(CAPACITY) == [placed]
    assert len(plan.results.pod_errors) == count - placed


def test_spread_over_architectures_counts_the_running_pod():
    """It runs on amd64, the NodePool allows arm64 only: two more pods."""
    arm = pool(requirements=[requirement(ARCH, "In", "arm64")])

    plan = beside_running(
        [running(ZONES[0])], *pods(5, both(requesting({"cpu": "2"}), spread(ARCH))), node_pools=(arm,)
    )

    assert sum(len(claim.pods) for claim in plan.results.new_claims) == 2


def test_required_affinity_excludes_the_running_pod_from_the_spread():
    """Five pods that require Spot in zone 2 do not count the on-demand pod in zone 1."""
    wanted = required([requirement(ZONE, "In", ZONES[1]), requirement(CAPACITY, "In", labels.SPOT)])

    plan = beside_running([running(ZONES[0])], *pods(5, both(spread(CAPACITY), wanted)))

    assert not plan.results.pod_errors
    assert plan.by_label(CAPACITY) == [5]


@pytest.mark.parametrize(("key", "values"), [(ZONE, ZONES[:2]), (CAPACITY, (labels.SPOT, labels.ON_DEMAND))])
def test_node_selector_leaves_one_domain_to_a_spread(key, values):
    """Five pods select one value and ten the other."""
    groups = [
        pods(count, both(spread(key), {"nodeSelector": {key: value}}), name)
        for name, count, value in zip("ab", (5, 10), values, strict=True)
    ]

    plan = schedule(*(pod for group in groups for pod in group))

    assert not plan.results.pod_errors
    assert plan.by_label(key) == [5, 10]


@pytest.mark.parametrize(
    ("groups", "nodes"),
    [
        ([("web", "amd64", 4)], 4),
        ([("app1", "amd64", 2), ("app2", "amd64", 2)], 2),
        ([("app1", "amd64", 2), ("app2", "arm64", 2)], 4),
    ],
)
def test_spread_over_hosts_gives_each_pod_of_an_app_a_node(groups, nodes):
    """Pods of two apps share nodes if their architectures allow it."""
    waiting = [
        pod
        for app, arch, count in groups
        for pod in pods(count, both(spread(HOST, app=app), {"nodeSelector": {ARCH: arch}}), app, app)
    ]

    plan = schedule(*waiting)

    assert not plan.results.pod_errors
    assert len(plan.results.new_claims) == nodes


@pytest.mark.parametrize("count", [2, 5, 14])
@pytest.mark.parametrize("keys", [(ZONE, HOST), (CAPACITY, ZONE, HOST)])
def test_all_constraints_of_a_spread_hold_at_once(keys, count):
    """Skew 1 over zones and capacity types, 3 over hosts."""
    spec = spread(*keys)
    for constraint in spec["topologySpreadConstraints"]:
        constraint["maxSkew"] = 3 if constraint["topologyKey"] == HOST else 1
    zones = {"requirements": [requirement(ZONE, "In", *ZONES[:2])]}

    plan = schedule(*pods(count, spec), node_pools=(pool(**zones),))

    assert not plan.results.pod_errors
    for key in keys:
        counts = [len(c.pods) for c in plan.results.new_claims] if key == HOST else plan.by_label(key)
        assert max(counts) - (0 if key == HOST or len(counts) < 2 else min(counts)) <= (3 if key == HOST else 1)


# -- taints of NodePools


@pytest.mark.parametrize(("policy", "placed"), [("Ignore", 1), ("Honor", 2)])
def test_domain_behind_a_taint_counts_by_the_taints_policy(policy, placed):
    """The pods do not tolerate the taint of the NodePool with the second value, of which a node exists.

    Without that node kube-scheduler does not know the value either, so that it does not count.
    """
    taint = {"key": "taint-key", "value": "taint-value", "effect": "NoSchedule"}
    pools = (
        pool("open", requirements=[requirement("fake-label", "In", "foo")]),
        pool("tainted", requirements=[requirement("fake-label", "In", "bar")], taints=[taint]),
    )
    tainted = a_node(metadata={"labels": {"fake-label": "bar"}}, spec={"taints": [taint]})

    plan = schedule(
        *pods(2, spread("fake-label", nodeTaintsPolicy=policy)),
        node_pools=pools,
        nodes=(tainted,),
        claims=(a_running_claim(),),
    )

    assert sum(len(claim.pods) for claim in plan.results.new_claims) == placed


def test_domains_of_nodepools_with_different_taints_count_apart():
    """Two pods tolerate the first NodePool, four the second; each group is spread over its own two values."""
    pools, waiting = [], []
    for number, (values, count) in enumerate(((("foo", "bar"), 2), (("foo", "baz"), 4))):
        taint = {"key": "taint-key", "value": f"nodepool-{number}", "effect": "NoSchedule"}
        pools.append(pool(f"np-{number}", requirements=[requirement("fake-label", "In", *values)], taints=[taint]))
        tolerations = [{**taint, "operator": "Equal"}]
        spec = both(spread("fake-label", nodeTaintsPolicy="Honor"), {"tolerations": tolerations})
        waiting += pods(count, spec, f"p{number}-")

    plan = schedule(*waiting, node_pools=tuple(pools))

    assert not plan.results.pod_errors
    assert plan.by_label("fake-label") == [1, 2, 3]


# -- affinity


@pytest.mark.parametrize(("kind", "same"), [("podAffinity", True), ("podAntiAffinity", False)])
def test_affinity_may_be_over_architectures(kind, same):
    """The first pod runs on arm64; the spread keeps the second from its node."""
    first = tiny("first", spec=both(requesting({"cpu": "2"}), spread(HOST), {"nodeSelector": {ARCH: "arm64"}}))
    second = tiny("second", spec=both(requesting({"cpu": "1"}), spread(HOST), beside(kind, ARCH, "web")))

    plan = schedule(first, second)

    assert plan.node_of("first") is not plan.node_of("second")
    arches = [next(iter(plan.node_of(name).instance_types)) == "arm-instance-type" for name in ("first", "second")]
    assert arches == [True, same]


# -- taints of nodes


def test_startup_taint_keeps_no_pod_away_and_a_toleration_adds_none():
    """The NodeClaim has the startup taint, and no other."""
    startup = [{"key": "ignore-me", "value": "nothing-to-see-here", "effect": "NoSchedule"}]

    plan = schedule(
        tiny("p"),
        tiny("q", spec={"tolerations": [{"key": "k", "operator": "Exists"}]}),
        node_pools=(pool(startupTaints=startup),),
    )

    assert not plan.results.pod_errors
    spec = plan.manifest_of("p")["spec"]
    assert (spec["startupTaints"], spec.get("taints", [])) == (startup, [])


# -- rules that Karpenter meets in several passes, because the zone of a new node is open until it exists


def test_zone_of_a_volume_does_not_narrow_the_zones_that_a_spread_counts():
    """One pod runs in each of three zones; the pod's volume is in the first."""
    spec = both(
        spread(ZONE, minDomains=3), {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]}
    )

    plan = beside_running(
        [running(zone) for zone in ZONES],
        tiny("p", spec=spec),
        persistent_volume_claims=(a_volume_claim("data", volume="pv"),),
        persistent_volumes=(a_volume("pv", {ZONE: (ZONES[0],)}),),
    )

    assert plan.label_of("p", ZONE) == ZONES[0]
