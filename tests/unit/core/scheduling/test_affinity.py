"""Pod affinity and anti-affinity over any label: where pods go together or apart, and which pods stay pending."""

from __future__ import annotations

import pytest

from journeyman.core.api import labels
from tests.helpers.builders import LARGE, MEDIUM, SMALL, an_instance_type
from tests.helpers.small_clusters import (
    ARM,
    CAPACITY,
    CHEAP_B,
    DEAR_A,
    HOST,
    RACK,
    TYPE,
    ZONE,
    ZONES,
    apart,
    at,
    both_ways,
    by_domain,
    by_node,
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
    zonal,
)

THREE = zonal()
ELSEWHERE = (zonal("a", price=0.1), CHEAP_B)
RACKED = pool("racked", labels={RACK: "r1"})

THREE_FULL = at("n-a/a", "n-b/b", "n-c/c")
GUARDS, SHY_GUARDS = (
    [some(1, "guard", rule, cpu="0", on=f"n-{zone}", name=f"guard-{zone}") for zone in ZONES]
    for rule in (apart("db"), prefers(apart("db")))
)


def _where(pods, cluster, options):
    cluster = {"types": (THREE,), **cluster}
    by = cluster.pop("by", ZONE)
    found = plan(*pods, options=options, **cluster)
    return by_node(found) if by == "node" else by_domain(found, by)


@both_ways
@table(
    "pods",
    "cluster",
    "expected",
    pods_that_need_each_other_choose_the_cheapest_zone_for_all=(
        [some(3, "web", near()), some(2, "web", near(), cpu="4", name="big")],
        {"types": (DEAR_A, CHEAP_B)},
        "b: 5 web",
    ),
    zone_of_one_pod_is_rated_by_whole_nodes=(
        [some(1, "web", near())],
        {
            "types": (
                an_instance_type("huge", cpu=64, memory_gib=256, price=1.6, zones=("a",)),
                an_instance_type("small", cpu=2, memory_gib=8, price=0.1, zones=("b",)),
            )
        },
        ("a: 1 web", "b: 1 web"),
    ),
    first_zone_counts_only_pods_that_need_new_nodes=(
        [some(4, "web", near())],
        {
            "types": (
                an_instance_type("a.large", cpu=8, memory_gib=32, price=0.6, zones=("a",)),
                an_instance_type("b.large", cpu=8, memory_gib=32, price=0.4, zones=("b",)),
            ),
            "nodes": at("n/a:3.5"),
        },
        "a: 4 web",
    ),
    first_zone_is_rated_by_its_cheapest_capacity_type=(
        [some(2, "web", near(), spread(CAPACITY, skew=9))],
        {
            "types": (
                an_instance_type("a.large", cpu=8, memory_gib=32, price=0.9, zones=("a",), spot=0.1),
                an_instance_type("b.large", cpu=8, memory_gib=32, price=0.15, zones=("b",)),
            )
        },
        "a: 2 web",
    ),
    first_zone_is_that_of_the_nodepool_with_more_weight=(
        [some(3, "web", near())],
        {
            "types": (DEAR_A, CHEAP_B),
            "node_pools": (pool("heavy", (ZONE, "In", "a"), weight=10), pool("light", (ZONE, "In", "b"))),
        },
        "a: 3 web",
    ),
    zone_that_the_most_constrained_pod_allows=(
        [some(3, "web", near(), cpu="2"), some(1, "web", near(), only(ZONE, "c"), name="tied")],
        {},
        "c: 4 web",
    ),
    all_in_one_of_two_zones=([some(3, "web", near())], {"types": (DEAR_A, CHEAP_B), "nodes": at("n/a:1")}, "a: 3 web"),
    zone_of_running_pods=(
        [some(1, "db", cpu="0", on="n"), some(3, "web", near("db"))],
        {"nodes": at("n/b")},
        "b: 3 web",
    ),
    running_pods_in_an_excluded_zone_do_not_count=(
        [some(1, "web", cpu="0", on="n", name="old"), some(2, "web", near(), only(ZONE, "b", "c"))],
        {"nodes": at("n/a")},
        "b: 2 web",
    ),
    target_is_pending_too=(
        [some(1, "db", selects(zone="b")), some(2, "web", near("db"), cpu="6")],
        {},
        "b: 2 web, 1 db",
    ),
    target_goes_to_the_only_zone_of_its_follower=(
        [some(1, "web", cpu="2", name="leader"), some(1, "web", near(), selects(type="c.small"), cpu="500m")],
        {"types": (THREE, an_instance_type("c.small", cpu=1, memory_gib=4, price=0.1, zones=("c",)))},
        ("a: 1 web; pending: 1 web", "c: 2 web"),
    ),
    chain=(
        [some(1, "web", near("db"), cpu="4"), some(1, "db", near("disk"), cpu="2"), some(1, "disk")],
        {},
        "a: 1 web, 1 disk, 1 db",
    ),
    target_is_missing=([some(2, "web", near("db")), some(1, "fine")], {}, "-: 1 fine; pending: 2 web"),
    node_without_free_cpu_takes_pods_without_requests=(
        [some(1, "web", near("filler"), cpu="0")],
        {"nodes": at("n/a")},
        "a: 1 web",
    ),
    target_is_in_another_namespace=(
        [some(1, "db"), some(1, "web", near("db", namespaces=["other"]))],
        {"types": (zonal("a"),)},
        "-: 1 db; pending: 1 web",
    ),
    target_may_go_anywhere=([some(1, "db"), some(10, "web", near("db"), cpu="100m")], {}, "a: 10 web, 1 db"),
    pods_that_need_each_other_and_select_different_zones=(
        [some(1, "web", near(), only(ZONE, "b"), name="in-b"), some(1, "web", near(), only(ZONE, "c"), name="in-c")],
        {},
        "b: 1 web; c: 1 web",
    ),
    host_of_a_running_pod_in_an_excluded_zone=(
        [some(1, "web", cpu="0", on="n", name="old"), some(3, "web", near(key=HOST), only(ZONE, "b", "c"))],
        {"nodes": at("n/a")},
        "pending: 3 web",
    ),
    more_than_fit_on_one_host=(
        [some(10, "web", near(key=HOST))],
        {"by": "node", "types": (LARGE,)},
        "m.large: 7 web; pending: 3 web",
    ),
    same_architecture=(
        [
            some(1, "db", selects(arch="arm64"), spread(HOST, app="web|db"), cpu="2"),
            some(1, "web", near("db", labels.ARCH), spread(HOST, app="web|db")),
        ],
        {"types": (THREE, ARM), "by": "node"},
        "arm.large: 1 db; arm.large: 1 web",
    ),
    empty_rules=([some(1, "web", {"affinity": {"podAffinity": {}, "podAntiAffinity": {}}})], {}, "-: 1 web"),
    same_host=([some(3, "web", near(key=HOST))], {"by": "node", "types": (LARGE, SMALL)}, "m.large: 3 web"),
    host_of_a_smaller_pod_that_is_scheduled_later=(
        [some(1, "web", near("db", HOST), cpu="2"), some(1, "db")],
        {"by": "node"},
        "z.large: 1 web, 1 db",
    ),
    same_host_as_a_running_pod=(
        [some(1, "db", cpu="1", on="n1"), some(3, "web", near("db", HOST))],
        {"nodes": at("n0/a:4", "n1/a:4"), "by": "node", "types": ()},
        "node-n1: 3 web",
    ),
    pair_that_fills_a_node_goes_before_others=(
        [some(1, "web", near("db", HOST), cpu="4"), some(7, "other"), some(1, "db", cpu="100m")],
        {"types": (LARGE,), "by": "node"},
        "m.large: 1 web, 1 db; m.large: 7 other",
    ),
    joining_any_pod_comes_after_spreading=(
        [some(1, "a", near("a|b", HOST)), some(1, "b", spread(HOST, app="a|b"))],
        {"by": "node"},
        "z.large: 1 b, 1 a",
    ),
)
def test_affinity_brings_pods_together(pods, cluster, expected, options):
    """All pods of a group are in one domain, which the price of all of them decides."""
    assert _where(pods, cluster, options) == expected_of(expected, options)


@both_ways
@table(
    "pods",
    "cluster",
    "expected",
    many_pods_go_before_the_one_that_excludes_them=(
        [some(2, "loner", apart("loner"), cpu="2"), some(4, "shy", apart("loner"))],
        {"types": (zonal("a"),)},
        ("a: 1 loner; pending: 4 shy, 1 loner", "a: 4 shy; pending: 2 loner"),
    ),
    a_zone_each=([some(4, "web", apart())], {}, "a: 1 web; b: 1 web; c: 1 web; pending: 1 web"),
    a_host_each=([some(3, "web", apart(key=HOST), cpu="100m")], {"by": "node"}, "; ".join(["z.large: 1 web"] * 3)),
    another_architecture=(
        [some(1, "db", selects(arch="arm64"), cpu="2"), some(1, "web", apart("db", labels.ARCH))],
        {"types": (THREE, ARM), "by": "node"},
        "arm.large: 1 db; z.large: 1 web",
    ),
    zones_of_running_pods=(
        [some(1, "db", cpu="0", on="n"), some(3, "web", apart("db"))],
        {"nodes": at("n/a")},
        "b: 3 web",
    ),
    zone_of_a_running_pod_that_has_the_rule=(
        [some(1, "db", apart(), cpu="0", on="n"), some(2, "web", spread(skew=2)), some(1, "other")],
        {"nodes": at("n/a:3")},
        ("a: 1 other; b: 1 web; c: 1 web", "a: 1 other; b: 2 web"),
    ),
    host_of_a_running_pod_that_has_the_rule=(
        [some(1, "db", apart(key=HOST), cpu="1", on="n"), some(1, "web"), some(1, "other")],
        {"nodes": at("n/a:4"), "by": "node"},
        "node-n: 1 other; z.large: 1 web",
    ),
    host_of_a_new_pod_that_has_the_rule=(
        [some(1, "db", apart(key=HOST), cpu="2"), some(1, "web", cpu="100m")],
        {"by": "node"},
        "z.large: 1 db; z.large: 1 web",
    ),
    preferred_rule_of_a_running_pod_excludes_nothing=(
        [some(1, "db", prefers(apart(key=HOST)), cpu="1", on="n"), some(1, "web")],
        {"nodes": at("n/a:4"), "by": "node"},
        "node-n: 1 web",
    ),
    finished_and_moving_pods_exclude_nothing=(
        [some(1, "db", apart(key=HOST), cpu="1", on="n", name="done", status={"phase": "Succeeded"}), some(1, "web")],
        {"nodes": at("n/a:4"), "by": "node"},
        "node-n: 1 web",
    ),
    rule_of_a_pod_that_has_no_place=(
        [some(1, "loner", apart(), cpu="100"), some(3, "web")],
        {},
        "-: 3 web; pending: 1 loner",
    ),
    two_sides_of_a_rule=(
        [some(1, "web", apart("db"), cpu="4"), some(6, "db")],
        {"types": (zonal("a", "b"),)},
        "a: 6 db; b: 1 web",
    ),
    two_sides_of_a_rule_in_the_other_order=(
        [some(1, "web", apart("db")), some(6, "db", cpu="4")],
        {"types": (zonal("a", "b"),)},
        "a: 6 db; b: 1 web",
    ),
    zone_out_of_reach_beside_a_spread_without_domains=(
        [some(1, "db", apart(), on="n"), some(1, "web"), some(1, "odd", spread(RACK))],
        {"nodes": at("n/a:4"), "types": (zonal("a", "b"),)},
        "b: 1 web; pending: 1 odd",
    ),
    every_zone_that_a_new_node_may_get=(
        [some(2, "db", near("db", HOST), cpu="3"), some(1, "web", apart("db"))],
        {"types": (zonal("a", "b"), an_instance_type("z.small", cpu=2, memory_gib=8, price=0.1, zones=ZONES))},
        "a|b: 2 db; c: 1 web",
    ),
    no_zone_is_left=(
        [some(2, "db", near("db", HOST), cpu="3"), some(1, "web", apart("db"))],
        {"types": (zonal("a", "b"), an_instance_type("z.small", cpu=2, memory_gib=8, price=0.1, zones=("a", "b")))},
        ("a|b: 2 db; pending: 1 web", "a: 2 db; b: 1 web"),
    ),
    running_pods_of_all_zones_that_have_the_rule=([*GUARDS, some(1, "db")], {"nodes": THREE_FULL}, "pending: 1 db"),
    running_pods_of_all_zones_that_have_the_preference=([*SHY_GUARDS, some(1, "db")], {"nodes": THREE_FULL}, "-: 1 db"),
    new_pods_of_all_zones_that_have_the_rule=(
        [*(some(1, "guard", apart("db"), selects(zone=z), cpu="2", name=z) for z in ZONES), some(1, "db")],
        {},
        ("a: 1 db; b: 1 guard; c: 1 guard; pending: 1 guard", "a: 1 guard; b: 1 guard; c: 1 guard; pending: 1 db"),
    ),
    new_pods_of_all_zones_that_have_the_preference=(
        [*(some(1, "guard", prefers(apart("db")), selects(zone=z), cpu="2", name=z) for z in ZONES), some(1, "db")],
        {},
        "a: 1 guard; b: 1 guard; c: 1 guard, 1 db",
    ),
    new_pods_of_all_zones_that_the_rule_selects=(
        [*(some(1, "db", selects(zone=z), cpu="2", name=z) for z in ZONES), some(1, "web", apart("db"))],
        {},
        "a: 1 db; b: 1 db; c: 1 db; pending: 1 web",
    ),
    a_label_that_no_node_has=(
        [some(2, "web", apart(key=RACK)), some(1, "shy", apart(key=RACK), cpu="500m")],
        {"by": "node"},
        "z.large: 2 web, 1 shy",
    ),
    existing_node_without_the_label=(
        [some(1, "db", apart(key=RACK), on="n"), some(1, "web", apart("db", RACK))],
        {"nodes": at("n/a:4"), "by": "node"},
        "node-n: 1 web",
    ),
    nodes_with_the_label_take_one_pod=(
        [some(3, "web", apart(key=RACK))],
        {"node_pools": (RACKED,), "by": RACK},
        "r1: 1 web; pending: 2 web",
    ),
    rack_of_the_cheaper_nodepool_is_excluded=(
        [some(1, "loner", apart(key=RACK), on="n"), some(2, "web", cpu="2")],
        {
            "nodes": at("n/a:4", **{RACK: "r1"}),
            "node_pools": (pool(), RACKED),
            "types": {"default": (THREE,), "racked": (zonal(price=0.1),)},
            "by": RACK,
        },
        "-: 2 web",
    ),
    unscheduled_pod_excludes_no_rack=(
        [some(1, "loner", apart(key=RACK), cpu="100"), some(2, "web", cpu="2")],
        {"node_pools": (pool(), RACKED), "types": {"default": (THREE,), "racked": (zonal(price=0.1),)}, "by": RACK},
        "r1: 2 web; pending: 1 loner",
    ),
)
def test_anti_affinity_keeps_pods_apart(pods, cluster, expected, options):
    """In both directions: a pod avoids those that its rule selects, and is avoided by those whose rules select it."""
    assert _where(pods, cluster, options) == expected_of(expected, options)


@both_ways
@table(
    "requirements",
    "selected",
    "rack",
    exists=([(RACK, "Exists")], [], "1"),
    bounds=([(RACK, "Gte", "0"), (RACK, "Lte", "3")], [], "1"),
    selected_by_the_pods=([(RACK, "Exists")], [selects(rack="r7")], "r7"),
    absent=([(RACK, "NotIn", "r9")], [], "-"),
)
def test_excluded_pods_get_another_value_of_a_label_that_their_nodepool_leaves_open(
    requirements, selected, rack, options
):
    """The running pod is on a node of rack 0, the value that such a NodePool gives first; that node has capacity."""
    found = plan(
        some(1, "loner", apart(key=RACK), on="n"),
        some(2, "web", *selected),
        nodes=at("n/a:4", **{RACK: "0"}),
        types=(THREE,),
        node_pools=(pool("default", *requirements),),
        options=options,
    )

    assert by_domain(found, RACK) == f"{rack}: 2 web"


def test_pods_apart_over_racks_share_only_nodes_that_have_none():
    """One NodePool's nodes are all in rack 1, which takes one pod; the others go where there are no racks."""
    found = plan(some(3, "web", apart(key=RACK)), node_pools=(RACKED, pool("free", weight=1)), types=(MEDIUM,))

    assert not found.results.pod_errors
    assert all(len(claim.pods) == 1 for claim in found.results.new_claims if claim.node_pool == "racked")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (near("db"), "no domain of topology.kubernetes.io/zone that it can reach holds any of the pods"),
        (apart(), "every domain of topology.kubernetes.io/zone that it can reach is taken (a, b, c)"),
    ],
)
def test_error_of_a_pod_that_no_domain_can_take_names_the_rule(rule, message):
    """Of four pods."""
    assert message in errors(plan(some(4, "web", rule), types=(THREE,)))


# -- preferences


@both_ways
@table(
    "pods",
    "cluster",
    "expected",
    anti_affinity_is_given_up_by_pods_that_cannot_meet_it=(
        [some(4, "web", prefers(apart()))],
        {},
        ("a: 1 web; b: 1 web; c: 2 web", "-: 4 web"),
    ),
    anti_affinity_opens_nodes_up_to_the_limit=(
        [some(3, "web", prefers(apart(key=HOST)), cpu="100m")],
        {"node_pools": (pool(limits={"nodes": "2"}),), "by": "node"},
        "z.large: 1 web; z.large: 2 web",
    ),
    affinity_follows_pods_that_share_a_domain=(
        [some(2, "web", prefers(near("db")), cpu="4"), some(2, "db", near("db"), only(ZONE, "c"))],
        {},
        "c: 2 web, 2 db",
    ),
    affinity_gives_way_to_a_required_spread=(
        [some(3, "web", prefers(near("db", HOST)), spread(HOST)), some(1, "db", cpu="2")],
        {"by": "node"},
        "z.large: 1 web, 1 db; z.large: 1 web; z.large: 1 web",
    ),
    affinity_to_missing_pods_is_packed_by_price=(
        [some(2, "web", prefers(near("cache", HOST)), cpu="7")],
        {
            "types": (
                an_instance_type("large", cpu=16, memory_gib=64, price=0.4),
                an_instance_type("small", cpu=8, memory_gib=32, price=0.1),
            ),
            "by": "node",
        },
        ("large: 2 web", "small: 1 web; small: 1 web"),
    ),
    anti_affinity_does_not_count_a_pod_whose_zone_is_open=(
        [some(1, "db", cpu="2"), some(1, "web", prefers(apart("db")))],
        {"by": "node"},
        "z.large: 1 web, 1 db",
    ),
    anti_affinity_counts_a_pod_that_selects_a_zone=(
        [some(1, "db", selects(zone="a"), cpu="2"), some(1, "web", prefers(apart("db")))],
        {"by": "node"},
        "z.large: 1 db; z.large: 1 web",
    ),
    fewer_preferred_nodes_go_first=(
        [some(1, "z", prefers(only(ZONE, "a"))), some(1, "a", prefers(apart("web")))],
        {"nodes": at("n0/a:1", "n1/b:4"), "by": "node"},
        ("node-n0: 1 a; z.large: 1 z", "node-n0: 1 z; node-n1: 1 a"),
    ),
)
def test_preferred_affinity_is_met_as_far_as_possible(pods, cluster, expected, options):
    """It leaves no pod pending."""
    assert _where(pods, cluster, options) == expected_of(expected, options)


# -- leaders and followers on existing nodes


@both_ways
@pytest.mark.parametrize(
    ("followers", "nodes", "types", "expected"),
    [
        ([some(1, "web", near("db", HOST), selects(zone="b"))], ("n1/a:4", "n2/b:4"), (), "node-n2: 1 web, 1 db"),
        ([some(1, "web", near("db", HOST))], ("n1/a:2.5", "n2/b:4"), (), "node-n2: 1 web, 1 db"),
        (
            [some(1, "cache", near("db", HOST), cpu="500m"), some(1, "web", near("cache", HOST), selects(zone="b"))],
            ("n1/a:4", "n2/b:4"),
            (),
            "node-n2: 1 web, 1 db, 1 cache",
        ),
        ([some(1, "web", near("db", HOST), selects(zone="c"))], ("n1/a:4", "n2/b:4"), (THREE,), "z.large: 1 web, 1 db"),
        ([some(1, "web", near("db", HOST), selects(zone="d"))], ("n1/a:4",), (THREE,), "node-n1: 1 db; pending: 1 web"),
    ],
    ids=[
        "its follower accepts another zone",
        "its follower is too large",
        "the follower of its follower does not accept",
        "its follower can join it on no existing node",
        "its follower can join it nowhere",
    ],
)
def test_leader_goes_where_its_followers_can_join_it(followers, nodes, types, expected, options):
    """The first node takes the leader as well."""
    found = plan(some(1, "db", cpu="2"), *followers, nodes=at(*nodes), types=types, options=options)

    assert by_node(found) == expected


def test_last_node_affinity_term_is_tried_first_if_pods_stay_pending():
    """The first term gives the leader a node on which its follower does not fit."""
    two = either([(TYPE, "In", "m.small")], [(TYPE, "In", "m.large")])

    found = plan(some(1, "db", two), some(1, "web", near("db", HOST), cpu="4"))

    assert by_node(found) == "m.large: 1 web, 1 db"


def test_pending_pods_go_first_if_that_schedules_more_pods():
    """The large pod is first and excludes both small pods from the only zone; without it, both are scheduled."""
    found = plan(some(1, "web", apart(), cpu="2", name="large"), some(2, "web", name="small"), types=(MEDIUM,))

    assert by_node(found) == "m.medium: 2 web; pending: 1 web"
