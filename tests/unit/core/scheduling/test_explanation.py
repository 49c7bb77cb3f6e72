"""Explains why a pod is unschedulable, with counts, and the smallest change that would let it schedule."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue, Unavailable, without_unavailable
from journeyman.core.scheduling.scheduler import explained as explain_later
from journeyman.core.scheduling.scheduler import solve
from tests.helpers.builders import (
    NOW,
    POOL,
    a_daemon_set,
    a_pod,
    a_pool,
    a_running_claim,
    a_snapshot,
    a_volume,
    a_volume_claim,
    an_instance_type,
    claims_as_volumes,
    with_reservation,
)
from tests.helpers.small_clusters import (
    CAPACITY,
    HOST,
    TYPE,
    ZONE,
    apart,
    at,
    either,
    listens,
    near,
    only,
    pool,
    selects,
    some,
    spread,
    with_rules,
)

SMALL = an_instance_type("m.small", cpu=2, memory_gib=8, price=0.10, zones=("a", "b"), spot=0.05)
LARGE = an_instance_type("m.large", cpu=16, memory_gib=64, price=0.80, zones=("a", "b"))
BACK = NOW + timedelta(minutes=4)
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def explained(*node_pools, types=(LARGE, SMALL), unavailable=(), nodes=((), ()), others=(), daemon_sets=(), **pod):
    """Return the error of such a pod beside other ones; by default there is one NodePool and no node."""
    node_pools = node_pools or (a_pool(),)
    offered = without_unavailable(types, unavailable)
    claims = tuple(a_running_claim(node.metadata.name.removeprefix("node-")) for node in nodes[0])
    snapshot = a_snapshot(
        node_pools=node_pools,
        nodes=tuple(nodes[0]),
        claims=claims,
        daemon_sets=daemon_sets,
        pods=(*nodes[1], *others, a_pod("p", **pod)),
    )
    results = solve(snapshot, Catalogue({pool.metadata.name: offered for pool in node_pools}))
    return results.pod_errors["default/p"]


def unavailable_offerings(*types, zones=("a", "b"), capacity_types=(labels.ON_DEMAND, labels.SPOT)):
    """Return offerings that are unavailable for four minutes."""
    return [
        Unavailable(instance_type=t, zone=z, capacity_type=c, until=BACK, reason="InsufficientCapacity")
        for t in types
        for z in zones
        for c in capacity_types
    ]


def tainted(name=POOL, **spec):
    """Return a NodePool with a NoSchedule taint."""
    return pool(name, taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}], **spec)


def test_reason_counts_instance_types_and_states_until_when_offerings_are_unavailable():
    """The reason states the cause in one sentence, and the same facts as fields."""
    error = explained(unavailable=unavailable_offerings("m.large", zones=("b",)), cpu="12", spec=selects(zone="b"))

    (reason,) = error.reasons
    assert (
        reason.detail
        == "needs 12 vCPU: 1 of 2 types fit, but no instance type has the required offering in zone b: out of stock until 21:04 UTC"
    )
    assert (reason.kind, reason.types_total, reason.types_suiting) == ("offerings", 2, 2)
    assert (reason.types_fitting, reason.types_available, reason.unavailable_until) == (1, 0, BACK)
    assert error.smallest_change == "allow zone a"


GPU = {"containers": [{"name": "c", "resources": {"requests": {"nvidia.com/gpu": "1"}}}]}
NOWHERE = near("db", namespaceSelector={"matchLabels": {"team": "none"}})
TWO_TYPES, THREE_TYPES = (pool("default", (TYPE, f"Exists:{n}")) for n in (2, 3))
HUGE = an_instance_type("m.huge", cpu=32, memory_gib=64, price=2.0)
CREATE = "create a NodePool with instance types for it"
ANY_OF_THEM = "relax its constraints about other pods, or theirs about it"
FULL = at("n0/a", "n1/b")
SHUNNED = [pod for name in ("n0", "n1") for pod in some(1, "guard", apart(), cpu="0", on=name, name=name)]
FROM_ALL = apart(labelSelector={})


@pytest.mark.parametrize(
    ("cluster", "pod", "kind", "change"),
    [
        ({"pools": [tainted()]}, {}, "taints", "tolerate taint gpu=yes:NoSchedule"),
        ({}, {"spec": selects(zone="mars")}, "requirements", "allow zone a"),
        ({}, {"cpu": "12", "spec": selects(capacity=labels.SPOT)}, "resources", "allow capacity type on-demand"),
        ({}, {"spec": selects(type="x9")}, "requirements", "allow instance type m.small"),
        ({}, {"spec": {"nodeSelector": {"zone": "b"}}}, "requirements", f"write label zone as {ZONE}"),
        (
            {},
            {"spec": selects(**{"topolgy.kubernetes.io/zone": "b"})},
            "requirements",
            f"write label topolgy.kubernetes.io/zone as {ZONE}",
        ),
        (
            {},
            {"spec": selects(**{labels.NODEPOOL: "ours"})},
            "requirements",
            f"allow label karpenter.sh/nodepool={POOL}",
        ),
        ({}, {"spec": selects(team="red")}, "requirements", "drop its requirement on label team"),
        ({}, {"spec": selects(team="red", zone="a")}, "requirements", "drop its requirement on label team"),
        ({}, {"cpu": "99"}, "resources", "request at most 15.92 vCPU (it asks for 99 vCPU)"),
        (
            {},
            {"spec": GPU},
            "resources",
            "request no nvidia.com/gpu, or create a NodePool whose instance types have it",
        ),
        ({"pools": [pool(limits={"cpu": "1"})]}, {}, "limits", "raise NodePool default's limit on cpu by 1"),
        (
            {"unavailable": unavailable_offerings("m.small", "m.large")},
            {},
            "offerings",
            "wait until 2026-03-02 21:04 UTC, when unavailable offerings are tried again",
        ),
        ({"pools": [tainted()]}, {"cpu": "99"}, "taints", CREATE),
        (
            {"pools": [tainted("other", limits={"cpu": "1"}), pool()]},
            {"cpu": "20"},
            "resources",
            "request at most 15.92 vCPU (it asks for 20 vCPU)",
        ),
        (
            {"pools": [THREE_TYPES], "types": (SMALL, LARGE, HUGE)},
            {"spec": selects(type="m.small")},
            "min-values",
            "drop its requirement on instance type",
        ),
        ({"pools": [TWO_TYPES]}, {"spec": selects(type="m.large")}, "min-values", "allow instance type m.small"),
        ({"pools": [THREE_TYPES]}, {}, "min-values", CREATE),
        (
            {
                "types": (
                    an_instance_type("r.slow", cpu=2, memory_gib=64, price=0.3),
                    an_instance_type("c.fast", cpu=16, memory_gib=8, price=0.3),
                )
            },
            {"cpu": "4", "memory": "32Gi"},
            "resources",
            "request at most 1.92 vCPU",
        ),
        (
            {
                "pools": [
                    pool("one", (ZONE, "In", "a"), (TYPE, "In", "m.large")),
                    pool("two", (ZONE, "In", "b"), (TYPE, "In", "m.small")),
                ]
            },
            {"spec": selects(zone="c")},
            "requirements",
            "allow zone b",
        ),
        (
            {"nodes": FULL},
            {"spec": FROM_ALL},
            "rules",
            f"remove its pod anti-affinity over {ZONE} to pods of any labels in namespace default",
        ),
        ({"nodes": FULL}, {"spec": with_rules(FROM_ALL, spread(app="filler"))}, "rules", ANY_OF_THEM),
        ({"nodes": FULL}, {"spec": with_rules(FROM_ALL, spread(HOST))}, "rules", "remove its pod anti-affinity"),
        (
            {"nodes": FULL, "others": SHUNNED},
            {},
            "rules",
            f"relax the pod anti-affinity of other pods over {ZONE}, which excludes it",
        ),
        ({"nodes": FULL, "others": SHUNNED}, {"spec": spread()}, "rules", ANY_OF_THEM),
        (
            {"others": some(3, "web", spread(minDomains=3))},
            {"cpu": "500m", "spec": spread(minDomains=3)},
            "rules",
            f"lower minDomains of its topology spread over {ZONE} from 3 to 2",
        ),
    ],
)
def test_smallest_change_is_the_first_change_that_suffices_alone(cluster, pod, kind, change):
    """The explainer checks each change against the available offerings, and states its concrete value."""
    cluster = dict(cluster)

    error = explained(*cluster.pop("pools", ()), **cluster, **pod)

    assert error.reasons[0].kind == kind
    assert error.smallest_change.startswith(change)
    assert error.smallest_change in error.message


@pytest.mark.parametrize(
    ("cluster", "pod", "words"),
    [
        ({}, {"spec": {"nodeSelector": {"zone": "a"}}}, 'typo of "topology.kubernetes.io/zone"?'),
        ({"nodes": FULL}, {"spec": FROM_ALL}, "2 of 2 types fit, but"),
        ({}, {"spec": near("db", HOST)}, f"affinity over {HOST} to pods with app=db in namespace default"),
        (
            {"daemon_sets": (a_daemon_set("d", **listens(8080)),)},
            {"spec": listens(8080)},
            "unsatisfiable constraints of the pod: host port 8080",
        ),
        ({}, {"spec": GPU}, "no instance type has enough resources: none of the 2 compatible types has nvidia.com/gpu"),
        ({"pools": [THREE_TYPES]}, {}, f"2 of 3 for {TYPE}"),
        (
            {"pools": [pool("default", (TYPE, "Exists:3"), (ZONE, "Exists:2"))]},
            {},
            f"the minValues requirement is not met (2 of 3 for {TYPE})",
        ),
        ({}, {"spec": NOWHERE}, "pods with app=db in no namespace (its namespaceSelector selects none)"),
        ({}, {"memory": "123456789123"}, "needs 114.98Gi memory"),
        ({"pools": [pool(limits={"cpu": "1"})]}, {}, "exceed limits for nodepool (left: 1 vCPU)"),
        ({}, {"spec": only(ZONE, *(f"zone-{n:04}" for n in range(5000)))}, "zone-0000"),
        (
            {
                "pools": [pool("default", (CAPACITY, "In", labels.RESERVED))],
                "types": (with_reservation(SMALL, "cr-1", price=0.01),),
                "others": some(2, "web", cpu="1500m"),
            },
            {},
            "only reserved capacity offers them, and none is left",
        ),
    ],
)
def test_error_names_what_is_in_the_way(cluster, pod, words):
    """Long lists are cut, and amounts have a unit."""
    cluster = dict(cluster)

    error = explained(*cluster.pop("pools", ()), **cluster, **pod)

    assert words in error.message
    assert len(error.message) < 500


def test_only_instance_types_that_the_nodepool_admits_are_counted():
    """The NodePool requires spot capacity, which one of the two instance types does not have."""
    (reason,) = explained(pool("default", (CAPACITY, "In", labels.SPOT)), cpu="12").reasons

    assert (reason.kind, reason.types_total) == ("resources", 1)


def test_nodepool_that_passes_the_most_filters_is_listed_first():
    """A NodePool without limit left comes before a tainted NodePool; an unusable NodePool comes last."""
    error = explained(tainted("b"), pool("a", limits={"cpu": "1"}), pool("c", replicas=1))

    assert [(r.node_pool, r.kind) for r in error.reasons] == [("a", "limits"), ("b", "taints"), ("c", "not-usable")]
    assert list(error.by_node_pool) == ["a", "b", "c"]
    assert error.kind == "limits"


def placed(*node_pools, types=(LARGE, SMALL), unavailable=(), **pod):
    """Return whether the scheduler schedules such a pod."""
    node_pools = node_pools or (a_pool(),)
    offered = without_unavailable(types, unavailable)
    snapshot = a_snapshot(node_pools=node_pools, pods=(a_pod("p", **pod),))
    return not solve(snapshot, Catalogue({pool.metadata.name: offered for pool in node_pools})).pod_errors


def test_suggested_changes_are_just_enough_for_the_scheduler_to_schedule_the_pod():
    """The scheduler schedules the pod with the change, but not without it or with a slightly smaller change."""
    tolerating = {"tolerations": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}
    limited = [a_pool(spec={"limits": {"cpu": limit}}) for limit in ("1999m", "2")]
    lost = unavailable_offerings("m.large", zones=("b",))
    in_zone = [selects(zone=zone) for zone in "ba"]

    assert [placed(cpu=cpu) for cpu in ("15921m", "15920m")] == [False, True]
    assert [placed(tainted(), spec=spec) for spec in ({}, tolerating)] == [False, True]
    assert [placed(pool) for pool in limited] == [False, True]
    assert [placed(unavailable=lost, cpu="12", spec=spec) for spec in in_zone] == [False, True]


def with_volumes(**zones):
    """Return a snapshot in which each pod has a bound PersistentVolumeClaim for each of its zones, and the catalogue."""
    names = {f"{pod}-{number}": zone for pod, reached in zones.items() for number, zone in enumerate(reached)}
    snapshot = a_snapshot(
        node_pools=(a_pool(),),
        pods=tuple(
            a_pod(pod, **claims_as_volumes(*(f"{pod}-{number}" for number in range(len(reached)))))
            for pod, reached in zones.items()
        ),
        persistent_volume_claims=tuple(a_volume_claim(name, volume=f"pv-{name}") for name in names),
        persistent_volumes=tuple(a_volume(f"pv-{name}", {labels.ZONE: (zone,)}) for name, zone in names.items()),
    )
    return snapshot, Catalogue({POOL: (LARGE, SMALL)})


def test_error_names_the_claims_and_zones_of_each_pods_own_volumes():
    """The manifest does not name the zone; the volume does. Pods with equal constraints share all but the claims."""
    errors = solve(*with_volumes(red=["mars"], blue=["mars"])).pod_errors

    for pod in ("red", "blue"):
        claim = f"PersistentVolumeClaim default/{pod}-0 in zone mars"
        assert f"(its volumes: {claim})" in errors[f"default/{pod}"].message
        assert errors[f"default/{pod}"].smallest_change == f"move its volumes to where a node can run it ({claim})"
        assert claim in errors[f"default/{pod}"].reasons[0].detail


def test_volumes_in_two_zones_are_named_with_their_zones():
    """No node can attach both, whatever the NodePool offers."""
    (error,) = solve(*with_volumes(p=["a", "b"])).pod_errors.values()

    claims = "PersistentVolumeClaims default/p-0 in zone a and default/p-1 in zone b"
    assert error.by_node_pool == {POOL: f"no node can attach all of its volumes ({claims})"}
    assert error.smallest_change == f"move its volumes to where one node can attach all of them ({claims})"


def test_moving_volumes_is_not_suggested_when_the_pod_fits_no_instance_type():
    """The pod is too large for every instance type, in whatever zone its volumes are."""
    snapshot, catalogue = with_volumes(p=["mars"])
    large = replace(snapshot, pods=(a_pod("p", cpu="99", **claims_as_volumes("p-0")),))

    assert solve(large, catalogue).pod_errors["default/p"].smallest_change == CREATE


MANY_LABELS = 6400


@pytest.mark.parametrize(
    ("selector", "change"),
    [
        ({f"k{n}": "x" for n in range(MANY_LABELS)}, CREATE),
        ({f"node.kubernetes.io/{n}": "x" for n in range(MANY_LABELS)} | {ZONE: "mars"}, CREATE),
    ],
    ids=["unknown labels", "unknown labels of a known domain"],
)
def test_the_search_takes_no_longer_for_thousands_of_labels_that_no_node_has(selector, change):
    """With two labels that no node has no single change helps, so the search tries no others; 6,400 took 27 s and 1.3 GB."""
    snapshot = a_snapshot(pods=(a_pod("p", spec={"nodeSelector": selector}),))
    results = solve(snapshot, Catalogue({POOL: (LARGE, SMALL)}), explain=False)

    assert explain_later(results, effort=40_000).pod_errors["default/p"].smallest_change == change


def test_labels_that_exclude_no_node_hide_no_change():
    """A pod that forbids thousands of labels, which no node has, needs another zone only."""
    forbidden = [(f"k{n}", "DoesNotExist") for n in range(1000)]

    assert explained(spec=either([*forbidden, (ZONE, "In", "mars")])).smallest_change == "allow zone a"


def test_pods_whose_explanation_takes_too_long_are_told_so():
    """Those with few constraints are explained first, and get their reasons even if the search for a change ends."""
    terms = [
        {"matchExpressions": [{"key": key, "operator": "In", "values": ["x"]} for key in (f"k{n}", labels.ZONE)]}
        for n in range(300)
    ]
    many = {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}}
    pods = (a_pod("many", spec=many), a_pod("few", cpu="99"), a_pod("one", spec=selects(team="red")))
    catalogue, snapshot = Catalogue({POOL: (LARGE, SMALL)}), a_snapshot(node_pools=(a_pool(),), pods=pods)

    def errors(effort):
        return explain_later(solve(snapshot, catalogue, explain=False), effort=effort).pod_errors

    generous, tight, none = errors(1_000_000), errors(2_000), errors(0)

    assert "ended early" in generous["default/many"].smallest_change
    assert generous["default/many"].message.endswith(generous["default/many"].smallest_change)
    assert "request at most 15.92 vCPU" in tight["default/few"].message
    assert all("ended early" in error.message for error in (tight["default/many"], *none.values()))
