"""Topology spread: which domains and pods it counts, which zone is chosen, and what happens if no domain is left."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.catalogue import InstanceType
from tests.helpers.builders import a_volume, a_volume_claim, an_instance_type, claims_as_volumes
from tests.helpers.small_clusters import (
    ARM,
    CAPACITY,
    CHEAP_B,
    DEAR_A,
    HOST,
    IN_BULK,
    RACK,
    ZONE,
    ZONES,
    apart,
    at,
    both_ways,
    by_domain,
    either,
    errors,
    expected_of,
    near,
    only,
    plan,
    pool,
    prefers,
    selects,
    some,
    spread,
    table,
    tolerates,
    zonal,
)

THREE = zonal()
TWO = zonal("a", "b")
SPOTTY = zonal("a", "b", spot=0.1)
SPOT_IN_C = an_instance_type("c.large", cpu=8, memory_gib=32, price=0.4, zones=("c",), spot=0.1)
SPOT_IN_C = replace(SPOT_IN_C, offerings=tuple(o for o in SPOT_IN_C.offerings if o.capacity_type == labels.SPOT))
MINE = [{"key": "mine", "effect": "NoSchedule"}]
RACKS = pool("default", (RACK, "In", "r1", "r2"))


WEB = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}
IN_A_OR_B = pool("default", (ZONE, "In", "a", "b"))
SPOT_ONLY = pool("default", (CAPACITY, "In", labels.SPOT))
ON_DEMAND = at("n/a", **{CAPACITY: labels.ON_DEMAND})
TAINTED = at("n/a", taints=MINE, **{RACK: "r2"})
OPEN_AND_TAINTED = (pool("open", (RACK, "In", "r1")), pool("tainted", (RACK, "In", "r2"), taints=MINE))
HONORING = spread(RACK, app="p|q", nodeTaintsPolicy="Honor")


def sold_out(instance_type: InstanceType, zone: str) -> InstanceType:
    """Returns the instance type without available offerings in a zone."""
    offerings = tuple(replace(o, available=o.zone != zone) for o in instance_type.offerings)
    return replace(instance_type, offerings=offerings)


@both_ways
@table(
    "pods",
    "cluster",
    "expected",
    one=([some(1, "web", spread())], {}, "a: 1 web"),
    seven=([some(7, "web", spread())], {}, "a: 3 web; b: 2 web; c: 2 web"),
    running_pods_count=(
        [some(2, "web", cpu="0", on="n", name="old"), some(2, "web", spread())],
        {"nodes": at("n/a")},
        "b: 1 web; c: 1 web",
    ),
    zone_out_of_stock_is_no_domain=(
        [some(6, "web", spread())],
        {"types": (sold_out(THREE, "c"),)},
        "a: 3 web; b: 3 web",
    ),
    zone_whose_types_are_too_small_is_no_domain=(
        [some(1, "web", spread())],
        {
            "types": (zonal("a", price=0.1), an_instance_type("m.small", cpu=2, memory_gib=8, price=0.2, zones=("b",))),
            "node_pools": (pool(limits={"cpu": "4"}),),
        },
        "b: 1 web",
    ),
    too_few_domains_allow_max_skew_each=(
        [some(8, "web", spread(skew=2, minDomains=4))],
        {},
        "a: 2 web; b: 2 web; c: 2 web; pending: 2 web",
    ),
    existing_nodes_first_within_max_skew=(
        [some(6, "web", spread())],
        {"nodes": at("n/a:3")},
        "a: 2 web; b: 2 web; c: 2 web",
    ),
    cheaper_zone_of_equally_full_ones=([some(3, "web", spread())], {"types": (DEAR_A, CHEAP_B)}, "a: 1 web; b: 2 web"),
    cheaper_means_per_cpu=(
        [some(3, "web", spread())],
        {"types": (an_instance_type("x.small", cpu=2, memory_gib=8, price=0.2, zones=("a",)), CHEAP_B)},
        "a: 1 web; b: 2 web",
    ),
    large_max_skew_puts_pods_into_the_cheaper_zone=(
        [some(5, "web", spread(skew=3))],
        {"types": (an_instance_type("d", cpu=2, memory_gib=8, price=0.4, zones=("a",)), zonal("b", cpu=2, price=0.1))},
        ("a: 2 web; b: 3 web", "a: 1 web; b: 4 web"),
    ),
    pods_that_may_use_fewer_zones_go_first=(
        [some(4, "web", spread(), selects(zone="a"), cpu="500m", name="tied"), some(8, "web", spread(), name="free")],
        {},
        "a: 4 web; b: 4 web; c: 4 web",
    ),
    pods_without_a_spread_are_counted_but_never_rejected=(
        [some(5, "web", selects(zone="a"), cpu="500m", name="tied"), some(3, "web", spread())],
        {},
        "a: 5 web; b: 2 web; c: 1 web",
    ),
    pods_without_a_spread_stay_in_the_cheaper_zone=(
        [some(4, "web", name="loose"), some(1, "web", spread(), cpu="2")],
        {"types": (DEAR_A, CHEAP_B)},
        ("a: 1 web; b: 4 web", "b: 5 web"),
    ),
    values_of_a_nodepool_are_domains=(
        [some(4, "web", spread(RACK))],
        {"node_pools": (RACKS,), "by": RACK},
        "r1: 2 web; r2: 2 web",
    ),
    a_label_that_no_node_has=([some(2, "web", spread(RACK)), some(1, "db")], {"by": RACK}, "-: 1 db; pending: 2 web"),
    zones_of_several_nodepools=(
        [some(4, "web", spread())],
        {"node_pools": (pool("one", labels={ZONE: "a"}), pool("two", labels={ZONE: "b"}))},
        "a: 2 web; b: 2 web",
    ),
    no_selector_counts_no_pod=([some(5, "web", spread(labelSelector=None))], {}, "-: 5 web"),
    counting_no_pod_restricts_nothing=([some(5, "web", spread(app="other"))], {}, "-: 5 web"),
    capacity_types_are_domains=(
        [some(6, "web", spread(CAPACITY))],
        {"types": (SPOTTY,), "by": CAPACITY},
        "on-demand: 3 web; spot: 3 web",
    ),
    zone_that_offers_one_capacity_type_gets_its_pods_before_the_others=(
        [some(100, "web", spread(), spread(CAPACITY))],
        {"types": (SPOTTY, SPOT_IN_C), "by": CAPACITY},
        "on-demand: 50 web; spot: 50 web",
    ),
    existing_node_without_offerings_is_usable_by_pods_that_are_not_counted=(
        [some(5, "web", spread(app="other"))],
        {"types": (zonal("b"),), "nodes": at("n/a:4")},
        "-: 1 web; a: 4 web",
    ),
    the_stricter_of_two_spreads=(
        [some(2, "web", spread(skew=2), spread(skew=1))],
        {"types": (zonal("b"),), "nodes": at("n/a")},
        "b: 1 web; pending: 1 web",
    ),
    the_stricter_of_two_spreads_in_the_other_order=(
        [some(2, "web", spread(skew=1), spread(skew=2))],
        {"types": (zonal("b"),), "nodes": at("n/a")},
        "b: 1 web; pending: 1 web",
    ),
    existing_nodes_of_all_zones=(
        [
            *(some(n, "web", cpu="0", on=z, name=f"old-{z}") for z, n in zip(ZONES, (1, 1, 2), strict=True)),
            some(5, "web", spread()),
        ],
        {"nodes": at("a/a:3", "b/b:3", "c/c:3"), "types": ()},
        "a: 2 web; b: 2 web; c: 1 web",
    ),
    selector_with_expressions=([some(4, "web", spread(labelSelector=WEB))], {}, "a: 2 web; b: 1 web; c: 1 web"),
    zones_of_a_nodepool=([some(4, "web", spread())], {"node_pools": (IN_A_OR_B,)}, "a: 2 web; b: 2 web"),
    zone_label_of_a_nodepool=([some(4, "web", spread())], {"node_pools": (pool(labels={ZONE: "a"}),)}, "a: 4 web"),
    zone_label_and_requirement_of_a_nodepool=(
        [some(4, "web", spread())],
        {"node_pools": (pool("default", (ZONE, "In", "a", "b"), labels={ZONE: "a"}),)},
        "a: 4 web",
    ),
    as_many_domains_as_min_domains=([some(11, "web", spread(minDomains=3))], {}, "a: 4 web; b: 4 web; c: 3 web"),
    more_domains_than_min_domains=([some(11, "web", spread(minDomains=2))], {}, "a: 4 web; b: 4 web; c: 3 web"),
    zones_of_the_required_affinity=([some(6, "web", spread(), only(ZONE, "a", "b"))], {}, "a: 3 web; b: 3 web"),
    zones_of_a_preferred_affinity_are_no_limit=(
        [some(6, "web", spread(), prefers(only(ZONE, "a", "b")))],
        {},
        "a: 2 web; b: 2 web; c: 2 web",
    ),
    zone_selectors=(
        [some(5, "web", spread(), selects(zone="a"), name="p"), some(10, "web", spread(), selects(zone="b"))],
        {},
        "a: 5 web; b: 10 web",
    ),
    running_pod_of_a_zone_without_nodepool=(
        [some(1, "web", cpu="0", on="n", name="old"), some(6, "web", spread())],
        {"nodes": at("n/c"), "node_pools": (IN_A_OR_B,)},
        "a: 2 web; b: 2 web; pending: 2 web",
    ),
    running_pods_of_the_minimum=(
        [*(some(1, "web", cpu="0", on=n, name=f"old-{n}") for n in "ab"), some(10, "web", spread(skew=5))],
        {"nodes": at("a/a", "b/b"), "node_pools": (pool("default", (ZONE, "In", "c")),)},
        "c: 6 web; pending: 4 web",
    ),
    running_pod_of_another_capacity_type=(
        [some(1, "web", cpu="0", on="n", name="old"), some(5, "web", spread(CAPACITY))],
        {"nodes": ON_DEMAND, "node_pools": (SPOT_ONLY,), "types": (SPOTTY,), "by": CAPACITY},
        "spot: 2 web; pending: 3 web",
    ),
    preference_and_running_pod_of_another_capacity_type=(
        [some(1, "web", cpu="0", on="n", name="old"), some(5, "web", prefers(spread(CAPACITY)))],
        {"nodes": ON_DEMAND, "node_pools": (SPOT_ONLY,), "types": (SPOTTY,), "by": CAPACITY},
        "spot: 5 web",
    ),
    running_pod_of_a_capacity_type_that_the_affinity_excludes=(
        [
            some(1, "web", cpu="0", on="n", name="old"),
            some(5, "web", spread(CAPACITY), either([(ZONE, "In", "b"), (CAPACITY, "In", labels.SPOT)])),
        ],
        {"nodes": ON_DEMAND, "types": (SPOTTY,), "by": CAPACITY},
        "spot: 5 web",
    ),
    running_pod_of_another_architecture=(
        [some(1, "web", cpu="0", on="n", name="old"), some(5, "web", spread(labels.ARCH))],
        {
            "nodes": at("n/a", **{labels.ARCH: "amd64"}),
            "node_pools": (pool("default", (labels.ARCH, "In", "arm64")),),
            "types": (ARM,),
            "by": labels.ARCH,
        },
        "arm64: 2 web; pending: 3 web",
    ),
    value_behind_a_taint_counts=(
        [some(2, "web", spread(RACK, nodeTaintsPolicy="Ignore"))],
        {"nodes": TAINTED, "node_pools": OPEN_AND_TAINTED, "by": RACK},
        "r1: 1 web; pending: 1 web",
    ),
    value_behind_a_taint_does_not_count=(
        [some(2, "web", spread(RACK, nodeTaintsPolicy="Honor"))],
        {"nodes": TAINTED, "node_pools": OPEN_AND_TAINTED, "by": RACK},
        "r1: 2 web",
    ),
    values_of_nodepools_with_different_taints=(
        [some(2, "p", HONORING, tolerates("p")), some(4, "q", HONORING, tolerates("q"))],
        {
            "node_pools": (
                pool("p", (RACK, "In", "r1", "r2"), taints=[{"key": "p", "effect": "NoSchedule"}]),
                pool("q", (RACK, "In", "r1", "r3"), taints=[{"key": "q", "effect": "NoSchedule"}]),
            ),
            "by": RACK,
        },
        "r1: 2 q, 1 p; r2: 1 p; r3: 2 q",
    ),
    a_pod_that_no_zone_can_take_does_not_count=(
        [some(1, "web", spread(), cpu="20", name="large"), some(8, "web", spread())],
        {
            "types": tuple(
                an_instance_type(f"t.{n}", cpu=n, memory_gib=4 * n, price=0.05 * n, zones=tuple("abcdefgh"))
                for n in (2, 4, 32)
            ),
            "node_pools": (pool("default", (labels.INSTANCE_TYPE, "Exists:2")),),
        },
        "a: 1 web; b: 1 web; c: 1 web; d: 1 web; e: 1 web; f: 1 web; g: 1 web; h: 1 web; pending: 1 web",
    ),
)
def test_spread_decides_the_domains_of_pods(pods, cluster, expected, options):
    """Karpenter chooses at random between equally full zones; here the cheaper one is chosen.

    A pair: pods that are planned one by one may also be bound before the pods that count, to a cheaper zone.
    """
    cluster = {"types": (THREE,), **cluster}
    by = cluster.pop("by", ZONE)

    assert by_domain(plan(*pods, options=options, **cluster), by) == expected_of(expected, options)


@both_ways
@pytest.mark.parametrize(("policy", "expected"), [("Honor", "a: 1 web; b: 1 web"), ("Ignore", "b: 2 web")])
@pytest.mark.parametrize("what", ["nodeAffinityPolicy", "nodeTaintsPolicy"])
def test_policies_decide_which_running_pods_a_spread_counts(what, policy, expected, options):
    """Two pods run in zone a on a node that the new pods cannot use: it lacks a label, or has a taint."""
    fast = pool(labels={"disk": "fast"}) if what == "nodeAffinityPolicy" else pool()
    rules = [selects(disk="fast")] if what == "nodeAffinityPolicy" else []
    taints = {} if rules else {"taints": MINE}
    running = some(2, "web", cpu="0", on="n", name="old")

    found = plan(
        running,
        some(2, "web", spread(**{what: policy}), *rules),
        nodes=at("n/a", **taints),
        types=(TWO,),
        node_pools=(fast,),
        options=options,
    )

    assert by_domain(found) == expected


@pytest.mark.parametrize(
    ("tainted", "tolerating", "expected"),
    [
        ("nothing", "guests", "a: 2 guest; b: 2 own"),
        ("a node", "guests", "a: 1 own, 2 guest; b: 1 own"),
        ("a NodePool", "guests", "a: 1 own, 2 guest; b: 1 own"),
        ("a node", "guests and own", "a: 2 guest; b: 2 own"),
    ],
)
def test_spread_that_honors_taints_relies_only_on_pods_with_equal_tolerations(tainted, tolerating, expected):
    """Guests in zone a balance the spread in zone b, unless they may be bound to tainted nodes, where it counts no pods."""
    counted = spread(app="guest|own", nodeTaintsPolicy="Honor")
    own = [tolerates("mine")] if tolerating == "guests and own" else []
    first, second = at("n0/a", taints=MINE if tainted == "a node" else []), at("n1/a")
    pools = (pool("one"), pool("two", taints=MINE if tainted == "a NodePool" else []))

    found = plan(
        some(2, "guest", selects(zone="a"), tolerates("mine"), cpu="2"),
        some(2, "own", counted, *own, cpu="3"),
        nodes=([*first[0], *second[0]], [*first[1], *second[1]]),
        types=(TWO,),
        node_pools=pools,
        options=IN_BULK,
    )

    assert by_domain(found) == expected


@pytest.mark.parametrize(
    ("disks", "expected"), [(["fast"], "a: 2 guest; b: 2 own"), (["fast", "slow"], "a: 1 own, 2 guest; b: 1 own")]
)
def test_spread_relies_only_on_pods_whose_nodes_meet_its_node_affinity(disks, expected):
    """Guests in zone a balance the spread in zone b, unless they may be bound to nodes with another disk."""
    found = plan(
        some(2, "guest", selects(zone="a"), only("disk", *disks), cpu="2"),
        some(2, "own", spread(app="guest|own"), only("disk", "fast", "ssd"), cpu="3"),
        types=(TWO,),
        node_pools=(pool("default", ("disk", "Exists")),),
        options=IN_BULK,
    )

    assert by_domain(found) == expected


@both_ways
def test_spread_counts_new_nodes_whose_types_all_match_the_node_selector(options):
    """The pod in zone b does not require amd64, but its node can only be that; so zone a, which has a pod, gets another."""
    types = (an_instance_type("s.small", cpu=2, memory_gib=8, price=0.1, zones=("b",)), zonal("a"))

    found = plan(
        some(1, "web", selects(zone="b"), name="sent"),
        some(1, "web", spread(), selects(arch="amd64"), cpu="6"),
        some(1, "web", cpu="4", on="n", name="running"),
        nodes=at("n/a:4", **{labels.ARCH: "amd64"}),
        types=types,
        options=options,
    )

    assert by_domain(found) == "a: 1 web; b: 1 web"


@both_ways
@pytest.mark.parametrize("count", [2, 5, 14])
@pytest.mark.parametrize("keys", [(ZONE, HOST), (CAPACITY, ZONE, HOST)])
def test_all_constraints_of_a_spread_hold_at_once(keys, count, options):
    """Skew 1 over zones and capacity types, 3 over hosts."""
    rules = [spread(key, skew=3 if key == HOST else 1) for key in keys]

    found = plan(some(count, "web", *rules), types=(SPOTTY,), options=options)

    assert not found.results.pod_errors
    assert max(len(claim.pods) for claim in found.results.new_claims) <= 3
    for key in keys[:-1]:
        counts = found.by_label(key)
        assert len(counts) < 2 or max(counts) - min(counts) <= 1


def test_zone_of_a_volume_does_not_narrow_the_zones_that_a_spread_counts():
    """One pod runs in each of three zones; the pod's volume is in the first."""
    old = [pod for zone in ZONES for pod in some(1, "web", cpu="0", on=zone, name=f"old-{zone}")]

    found = plan(
        old,
        some(1, "web", spread(minDomains=3), claims_as_volumes("data")["spec"]),
        nodes=at("a/a", "b/b", "c/c"),
        types=(THREE,),
        persistent_volume_claims=(a_volume_claim("data", volume="pv"),),
        persistent_volumes=(a_volume("pv", {ZONE: ("a",)}),),
    )

    assert by_domain(found) == "a: 1 web"


@pytest.mark.parametrize(("full_zones", "expected"), [("", "b: 2 web"), ("b", "b: 2 web"), ("a", "a: 1 web; b: 1 web")])
def test_pod_joins_a_counted_pod_unless_another_zone_has_nodes(full_zones, expected):
    """kube-scheduler counts only zones with nodes: if zone a has a node, zone b gets its second pod after zone a."""
    types = [an_instance_type(f"in-{z}", cpu=4, memory_gib=8, price=p, zones=(z,)) for z, p in (("a", 0.4), ("b", 0.3))]

    found = plan(
        some(1, "web", spread(), name="bound"),
        some(1, "web", spread(app="none"), cpu="2", name="counted"),
        nodes=at(*(f"n{zone}/{zone}" for zone in full_zones)),
        types=tuple(types),
    )

    assert by_domain(found) == expected


def test_spread_uses_a_prefer_no_schedule_zone_only_if_max_skew_requires():
    """With maxSkew 2, two pods stay in zone b; the third must go to zone c, where the node is full."""
    quiet = pool("quiet", (ZONE, "In", "c"), taints=[{"key": "quiet", "effect": "PreferNoSchedule"}])

    two, three = (
        plan(
            some(count, "web", spread(skew=2)),
            nodes=at("n/c"),
            types={"default": (zonal("b", cpu=4),), "quiet": (zonal(cpu=4),)},
            node_pools=(pool(), quiet),
        )
        for count in (2, 3)
    )

    assert (by_domain(two), by_domain(three)) == ("b: 2 web", "b: 2 web; c: 1 web")


@both_ways
@pytest.mark.parametrize("count", [6, 100])
def test_two_spreads_over_different_labels_hold_at_once(count, options):
    """Zone c has only spot capacity; if zones a and b used up the spot share, it could take no more pods."""
    both = an_instance_type("x.large", cpu=8, memory_gib=32, price=0.4, zones=("a", "b"), spot=0.4)
    spot = an_instance_type("y.large", cpu=8, memory_gib=32, price=0.4, zones=("c",), spot=0.4)
    spot = replace(spot, offerings=tuple(o for o in spot.offerings if o.capacity_type == labels.SPOT))

    found = plan(some(count, "web", spread(), spread(CAPACITY)), types=(both, spot), options=options)

    for key, domains in ((ZONE, 3), (CAPACITY, 2)):
        counts = found.by_label(key)
        assert (len(counts), sum(counts)) == (domains, count)
        assert max(counts) - min(counts) <= 1


def test_many_pods_are_spread_evenly():
    """Over three zones, in one step each."""
    assert plan(some(10_000, "web", spread(), cpu="10m"), types=(THREE,)).by_label(ZONE) == [3333, 3333, 3334]


def test_many_pods_without_a_spread_that_a_spread_counts_are_balanced():
    """They balance the zones around the running pods, as far as no other zone is dearer."""
    found = plan(
        some(30, "web", cpu="0", memory="0", on="n", name="old"),
        some(400, "web", cpu="10m", memory="1Mi", name="loose"),
        some(3, "web", spread(), cpu="20m", memory="1Mi"),
        nodes=at("n/a"),
        types=(THREE,),
        options=IN_BULK,
    )

    assert by_domain(found) == "a: 115 web; b: 144 web; c: 144 web"


def test_error_of_a_pod_that_no_domain_can_take_names_the_spread():
    """Each of three zones has its pod, and minDomains asks for a fourth."""
    found = plan(some(4, "web", spread(minDomains=4)), types=(THREE,))

    assert "exceeds its maxSkew" in errors(found)


def test_constraint_that_allows_a_domain_is_not_reported_as_the_reason():
    """The spread allows only zone a, the anti-affinity only zone b: neither alone excludes the pod."""
    running = [*some(1, "db", cpu="0", on="n0"), *some(1, "web", cpu="0", on="n1", name="old")]

    found = plan(running, some(1, "web", spread(), apart("db")), nodes=at("n0/a", "n1/b"), types=(TWO,))

    assert by_domain(found) == "pending: 1 web"
    assert "unsatisfiable rules between pods: no domain that it can reach keeps all of them" in errors(found)


# -- rules that later placements violate


def test_pods_that_exceed_their_max_skew_because_of_later_pods_are_unplaced():
    """Loose pods (maxSkew 2) fill zone a first; the tight pod (maxSkew 1) fits only there, and only if it is bound first.

    Zones b and c have capacity for one loose pod each, so zone a takes three pods at most, in any order of binding.
    """
    loose = some(5, "loose", spread(skew=2, app="loose|tight"))
    tight = some(1, "tight", spread(app="loose|tight"), cpu="2")

    found = plan(loose, tight, nodes=at("n0/b:1", "n1/c:1"), types=(zonal("a"),), options=IN_BULK)

    assert by_domain(found) == "a: 1 tight, 2 loose; b: 1 loose; c: 1 loose; pending: 1 loose"


def test_pods_that_followed_unplaced_pods_are_unplaced_too():
    """Three loose pods go to zone a and one follows them; then six tight pods go there, and leave no place for loose pods.

    Zone c runs five pods, so the tight pods may go up to six, while zone b has capacity for one loose pod only.
    """
    counted = "loose|tight"

    found = plan(
        some(5, "tight", cpu="0", on="n2", name="old"),
        some(4, "loose", spread(skew=2, app=counted), only(ZONE, "a", "b")),
        some(6, "tight", spread(app=counted), only(ZONE, "a", "c"), cpu="100m"),
        some(1, "follower", near("loose"), only(ZONE, "a"), cpu="100m"),
        nodes=at("n0/a:4", "n1/b:1", "n2/c"),
        types=(),
        options=IN_BULK,
    )

    assert by_domain(found) == "a: 6 tight; b: 1 loose; pending: 3 loose, 1 follower"


# -- preferences


@both_ways
@table(
    "pods",
    "cluster",
    "expected",
    relaxed_for_pods_that_cannot_meet_it=(
        [some(3, "web", prefers(spread()), cpu="6")],
        {"types": (zonal("a"), an_instance_type("y.small", cpu=2, memory_gib=8, price=0.1, zones=("b",)))},
        "-: 2 web; a: 1 web",
    ),
    met_if_a_node_can_be_opened=(
        [some(3, "web", prefers(spread(HOST)), cpu="100m")],
        {"nodes": at("n/a:4"), "by": HOST},
        "-: 2 web; node-n: 1 web",
    ),
    relaxed_if_no_node_can_be_opened=(
        [some(3, "web", prefers(spread(HOST)), cpu="100m")],
        {"nodes": at("n/a:4"), "by": HOST, "types": ()},
        "node-n: 3 web",
    ),
)
def test_preferred_spread_is_met_as_far_as_possible(pods, cluster, expected, options):
    """Preferred spreads open nodes, but leave no pod pending."""
    cluster = {"types": (THREE,), **cluster}
    by = cluster.pop("by", ZONE)

    assert by_domain(plan(*pods, options=options, **cluster), by) == expected_of(expected, options)


# -- many pods at once


def one_at_a_time(pods, counts, free, offered, skew):
    """Returns the pods by zone if each in turn goes to the emptiest zone that maxSkew allows, first to existing nodes.

    Args:
        pods: How many.
        counts: The running pods of each zone.
        free: How many pods the existing nodes of each zone can take.
        offered: The zones in which new nodes can be launched.
        skew: The maxSkew, or None for a preferred spread.
    """
    counts, found = dict(counts), dict.fromkeys(counts, 0)
    for _ in range(pods):
        least = min(counts.values())
        open_zones = [
            zone
            for zone in counts
            if (found[zone] < free[zone] or zone in offered) and (skew is None or counts[zone] + 1 - least <= skew)
        ]
        if not open_zones:
            break
        zone = min(open_zones, key=lambda z: (found[z] >= free[z], counts[z], z in offered, z))
        found[zone] += 1
        counts[zone] += 1
    return {zone: count for zone, count in found.items() if count}


@pytest.mark.parametrize("seed", range(60))
def test_many_pods_are_spread_as_one_pod_at_a_time(seed):
    """Running pods, free capacity of existing nodes and zones without offerings are random."""
    draw = random.Random(seed)
    zones = "abcd"[: draw.randint(1, 4)]
    counts = {zone: draw.choice((0, 0, 1, 5, 30)) for zone in zones}
    free = {zone: draw.choice((0, 0, 2, 30)) for zone in zones}
    offered = [zone for zone in zones if draw.random() < 0.8]
    pods, skew = draw.choice((3, 50, 400)), draw.choice((1, 2, 7))
    nodes, _ = at(*(f"n-{zone}/{zone}:4" for zone in zones))
    fillers = [
        pod
        for zone in zones
        for pod in (
            *some(counts[zone], "web", cpu="0", memory="0", on=f"n-{zone}", name=f"old-{zone}"),
            *some(1, "filler", cpu=f"{4000 - 100 * free[zone]}m", on=f"n-{zone}", name=f"filler-{zone}"),
        )
    ]

    found = plan(
        some(pods, "web", spread(skew=skew), cpu="100m", memory="1Mi"),
        nodes=(nodes, fillers),
        types=(zonal(*offered),) if offered else (),
        options=IN_BULK,
    )

    expected = one_at_a_time(pods, counts, free, offered, skew)
    left = pods - sum(expected.values())
    text = [f"{zone}: {count} web" for zone, count in sorted(expected.items())]
    assert by_domain(found) == "; ".join([*text, *([f"pending: {left} web"] if left else [])])


def one_at_a_time_over_two_labels(pods, counts, cells, skews):
    """Returns the pods by cell if each in turn goes to the cell that exceeds the emptiest domains least.

    Args:
        pods: How many.
        counts: The running pods by domain of each of two labels.
        cells: A domain of each label, in the order of preference.
        skews: The maxSkew of each label.
    """
    counts, found = [dict(each) for each in counts], dict.fromkeys(cells, 0)
    for _ in range(pods):
        above = {
            cell: [count[domain] - min(count.values()) for domain, count in zip(cell, counts, strict=True)]
            for cell in cells
        }
        allowed = [cell for cell in cells if all(n < skew for n, skew in zip(above[cell], skews, strict=True))]
        if not allowed:
            break
        cell = min(allowed, key=lambda each: max(above[each]))
        found[cell] += 1
        for domain, count in zip(cell, counts, strict=True):
            count[domain] += 1
    return found


@pytest.mark.parametrize("seed", range(40))
def test_many_pods_are_spread_over_two_labels_as_one_pod_at_a_time(seed):
    """Zones and capacity types, whose offerings cost the same; running pods and each maxSkew are random."""
    draw = random.Random(seed)
    zones = "abcd"[: draw.randint(1, 4)]
    running = {(zone, kind): draw.choice((0, 0, 1, 5, 30)) for zone in zones for kind in ("on-demand", "spot")}
    pods, skews = draw.choice((5, 60, 400)), (draw.choice((1, 2, 5)), draw.choice((1, 2, 9)))
    nodes, fillers = [], []
    for (zone, kind), count in running.items():
        name = f"n-{zone}-{kind}"
        found, filler = at(f"{name}/{zone}", **{CAPACITY: kind})
        nodes += found
        fillers += [*filler, *some(count, "web", cpu="0", memory="0", on=name, name=f"old-{zone}-{kind}-")]
    by_zone = {zone: sum(n for (z, _), n in running.items() if z == zone) for zone in zones}
    by_kind = {kind: sum(n for (_, k), n in running.items() if k == kind) for kind in ("on-demand", "spot")}
    cells = [(zone, kind) for kind in ("on-demand", "spot") for zone in zones]

    planned = plan(
        some(pods, "web", spread(skew=skews[0]), spread(CAPACITY, skew=skews[1]), cpu="10m", memory="1Mi"),
        nodes=(nodes, fillers),
        types=(zonal(*zones, spot=0.4),),
        options=IN_BULK,
    )

    expected = one_at_a_time_over_two_labels(pods, (by_zone, by_kind), cells, skews)
    for key, place in ((ZONE, 0), (CAPACITY, 1)):
        totals = Counter()
        for cell, count in expected.items():
            totals[cell[place]] += count
        left = pods - sum(expected.values())
        text = [f"{domain}: {count} web" for domain, count in sorted(totals.items()) if count]
        assert by_domain(planned, key) == "; ".join([*text, *([f"pending: {left} web"] if left else [])])


@pytest.mark.parametrize("seed", range(20))
def test_many_pods_without_a_spread_are_levelled_as_one_pod_at_a_time(seed):
    """The spread of three larger pods, which go first, counts them; running pods are random."""
    draw = random.Random(seed)
    zones = "abcd"[: draw.randint(2, 4)]
    counts, nothing = {zone: draw.choice((0, 0, 1, 5, 90)) for zone in zones}, dict.fromkeys(zones, 0)
    nodes, fillers = at(*(f"n-{zone}/{zone}" for zone in zones))
    old = [pod for z in zones for pod in some(counts[z], "web", cpu="0", memory="0", on=f"n-{z}", name=f"old-{z}")]

    found = plan(
        some(3, "web", spread(), cpu="20m", memory="1Mi", name="bound"),
        some(400, "web", cpu="10m", memory="1Mi"),
        nodes=(nodes, [*fillers, *old]),
        types=(zonal(*zones),),
        options=IN_BULK,
    )

    first = one_at_a_time(3, counts, nothing, zones, 1)
    then = one_at_a_time(400, {z: counts[z] + first.get(z, 0) for z in zones}, nothing, zones, None)
    totals = {zone: first.get(zone, 0) + then.get(zone, 0) for zone in zones}
    assert by_domain(found) == "; ".join(f"{zone}: {count} web" for zone, count in totals.items() if count)
