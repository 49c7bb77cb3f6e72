"""New nodes within limits of NodePools, on reserved capacity, with minValues, and with the cheapest instance types."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeSelectorRequirement
from journeyman.core.catalogue import Catalogue
from journeyman.core.lifecycle.node_overlays import apply_overlays
from journeyman.core.scheduling.results import MinValuesPolicy, Options
from journeyman.core.scheduling.scheduler import solve
from tests.helpers.builders import (
    LARGE,
    MEDIUM,
    NOW,
    SMALL,
    TYPES,
    a_claim,
    a_daemon_set,
    a_launched_claim,
    a_node,
    a_pool,
    a_running_claim,
    a_snapshot,
    an_instance_type,
    an_overlay,
    with_reservation,
)
from tests.helpers.karpenter_suite import schedule
from tests.helpers.small_clusters import (
    CAPACITY,
    HOST,
    RACK,
    TYPE,
    ZONE,
    apart,
    both_ways,
    by_domain,
    by_node,
    either,
    expected_of,
    plan,
    pool,
    selects,
    some,
    table,
)

FAMILY = "karpenter.k8s.aws/instance-family"
BEST_EFFORT = MinValuesPolicy.BEST_EFFORT
CHEAP, DEAR = (an_instance_type(name, cpu=4, memory_gib=16, price=p) for name, p in (("cheap", 0.1), ("dear", 0.2)))


def limited(name="default", *requirements, weight=None, **limits):
    """Return a NodePool with these limits."""
    return pool(name, *requirements, limits=limits, **({"weight": weight} if weight else {}))


FULL_CLAIM = a_launched_claim(
    "full", status={"capacity": {"cpu": "4", "pods": "9"}, "allocatable": {"cpu": "1m", "pods": "1"}}
)


@both_ways
@table(
    "pods",
    "cluster",
    "expected",
    none=([some(7, "web")], {}, "m.large: 7 web"),
    larger_pods_first=([some(2, "small"), some(1, "big", cpu="7")], {}, "m.large: 1 big; m.medium: 2 small"),
    cpu=([some(6, "web")], {"types": (MEDIUM,), "node_pools": (limited(cpu="4"),)}, "m.medium: 3 web; pending: 3 web"),
    ten_cpus_are_a_large_and_a_small_type=(
        [some(12, "web")],
        {"node_pools": (limited(cpu="10"),)},
        (
            "m.medium: 3 web; m.medium: 3 web; m.small: 1 web; pending: 5 web",
            "m.large: 7 web; m.small: 1 web; pending: 4 web",
        ),
    ),
    few_large_nodes_hold_more_than_a_node_for_each_pod_that_keeps_off_its_like=(
        [some(8, "lone", apart("lone", HOST)), some(8, "web", cpu="999m")],
        {"node_pools": (limited(cpu="10"),)},
        (
            "m.medium: 2 web, 1 lone; m.medium: 3 web; m.small: 1 web; pending: 2 web, 7 lone",
            "m.large: 6 web, 1 lone; m.small: 1 lone; pending: 2 web, 6 lone",
        ),
    ),
    number_of_nodes=(
        [some(3, "web", cpu="7")],
        {"node_pools": (limited(nodes="2"),)},
        "m.large: 1 web; m.large: 1 web; pending: 1 web",
    ),
    a_resource_that_each_type_has_more_of=(
        [some(1, "web")],
        {"node_pools": (limited(pods="109"),)},
        "pending: 1 web",
    ),
    nodes_of_earlier_passes=(
        [some(2, "web", cpu="1500m")],
        {"node_pools": (limited(nodes="2"),), "claims": (FULL_CLAIM,), "types": (SMALL,)},
        "m.small: 1 web; pending: 1 web",
    ),
    capacity_of_earlier_passes=(
        [some(1, "web", cpu="1500m")],
        {"node_pools": (limited(cpu="5"),), "claims": (FULL_CLAIM,), "types": (SMALL,)},
        "pending: 1 web",
    ),
    selector_comes_before_weight=(
        [some(1, "web", selects(**{labels.NODEPOOL: "light"})), some(1, "db", selects(team="red")), some(1, "any")],
        {
            "node_pools": (pool("heavy", weight=100), pool("light", labels={"team": "red"}), pool("other", weight=20)),
            "by": labels.NODEPOOL,
        },
        "heavy: 1 any; light: 1 web, 1 db",
    ),
    types_above_the_limit_are_not_used=(
        [some(1, "web")],
        {"types": (LARGE, MEDIUM), "node_pools": (limited(cpu="4"),)},
        "m.medium: 1 web",
    ),
    most_pods_win_under_a_tight_limit=(
        [some(9, "web", memory="5Gi")],
        {
            "types": (
                an_instance_type("wide", cpu=12, memory_gib=16, price=0.10),
                an_instance_type("lean", cpu=4, memory_gib=16, price=0.20),
            ),
            "node_pools": (limited(cpu="12"),),
        },
        "lean: 3 web; lean: 3 web; lean: 3 web",
    ),
    the_rest_goes_to_the_next_nodepool=(
        [some(9, "web")],
        {"node_pools": (limited("heavy", weight=10, cpu="4"), pool("light")), "by": labels.NODEPOOL},
        ("heavy: 2 web; light: 7 web", "heavy: 3 web; light: 6 web"),
    ),
    the_rest_goes_to_a_dearer_nodepool_of_the_same_weight=(
        [some(12, "web")],
        {
            "types": (CHEAP, DEAR),
            "node_pools": (limited("cheap", (TYPE, "In", "cheap"), cpu="8"), pool("dear", (TYPE, "In", "dear"))),
        },
        "; ".join(["cheap: 3 web"] * 2 + ["dear: 3 web"] * 2),
    ),
    weight_comes_before_price=(
        [some(1, "web"), some(1, "big", cpu="7")],
        {
            "types": {"heavy": (MEDIUM,), "light": (SMALL, LARGE)},
            "node_pools": (pool("heavy", weight=10), pool("light")),
        },
        "m.large: 1 big; m.medium: 1 web",
    ),
    price_decides_between_equal_weights=(
        [some(1, "web")],
        {"types": {"a": (LARGE,), "z": (SMALL,)}, "node_pools": (pool("a"), pool("z"))},
        "m.small: 1 web",
    ),
    prefer_no_schedule_comes_last=(
        [some(2, "web")],
        {
            "types": {"quiet": (MEDIUM,), "other": (SMALL,)},
            "node_pools": (
                limited("other", cpu="2"),
                pool("quiet", weight=10, taints=[{"key": "quiet", "effect": "PreferNoSchedule"}]),
            ),
        },
        "m.medium: 1 web; m.small: 1 web",
    ),
    cheapest_of_the_terms_that_a_type_matches=(
        [some(1, "web", either(*([(TYPE, "In", name)] for name in ("nowhere", "m.large", "m.small"))))],
        {},
        "m.small: 1 web",
    ),
    nodes_meet_different_terms_of_equal_pods=(
        [some(8, "web", either([(TYPE, "In", "m.large")], [(TYPE, "In", "m.small")]))],
        {},
        "m.large: 7 web; m.small: 1 web",
    ),
    a_reservation_until_it_is_used_up=(
        [some(2, "web", cpu="3")],
        {"types": (with_reservation(MEDIUM, "cr-1", price=1e-8),), "by": CAPACITY},
        "on-demand: 1 web; reserved: 1 web",
    ),
    a_reservation_of_two_types_has_the_lower_capacity=(
        [some(3, "web", cpu="3")],
        {"types": tuple(with_reservation(t, "cr-1", price=1e-8) for t in (MEDIUM, LARGE)), "by": CAPACITY},
        ("on-demand: 1 web; reserved: 2 web"),
    ),
    a_reservation_of_a_nodeclaim_that_is_not_launched=(
        [some(1, "web", cpu="3")],
        {
            "types": (with_reservation(MEDIUM, "cr-1", price=1e-8),),
            "claims": (
                a_claim(
                    spec={
                        "requirements": [{"key": labels.RESERVATION_ID, "operator": "In", "values": ["cr-1"]}],
                        "resources": {"requests": {"cpu": "1"}},
                    }
                ),
            ),
            "by": CAPACITY,
        },
        "on-demand: 1 web",
    ),
    the_larger_reservation_if_the_smaller_leaves_pods=(
        [some(6, "web")],
        {
            "types": (with_reservation(SMALL, "cr-small", price=1e-7), with_reservation(LARGE, "cr-large", price=4e-7)),
            "node_pools": (limited(memory="32Gi"),),
            "by": labels.RESERVATION_ID,
        },
        "cr-large: 6 web",
    ),
    a_term_for_reserved_capacity_is_skipped_on_other_nodes=(
        [some(2, "web", either([(CAPACITY, "NotIn", "on-demand", "spot")], [(ZONE, "Exists")]), cpu="3")],
        {"types": (with_reservation(MEDIUM, "cr-1", price=1e-8),), "by": CAPACITY},
        "on-demand: 1 web; reserved: 1 web",
    ),
    min_values_count_types_that_hold_the_pods=(
        [some(3, "web")],
        {"node_pools": (pool("default", (TYPE, "Exists:3")),)},
        "m.small: 1 web; m.small: 1 web; m.small: 1 web",
    ),
    min_values_do_not_block_other_pods=(
        [some(1, "picky", selects(type="m.large")), some(2, "web")],
        {"node_pools": (pool("default", (TYPE, "Exists:2")),)},
        "m.medium: 2 web; pending: 1 picky",
    ),
    open_label_gets_the_value_that_pods_select=(
        [some(2, "red", selects(team="red")), some(2, "blue", selects(team="blue"))],
        {"node_pools": (pool("default", ("team", "In", "red", "blue")),), "by": "team"},
        "blue: 2 blue; red: 2 red",
    ),
)
def test_nodepools_limit_the_new_nodes_of_pods(pods, cluster, expected, options):
    """Three instance types of 2, 4 and 8 CPUs; the price of a CPU falls with their size."""
    cluster = dict(cluster)
    by = cluster.pop("by", None)
    found = plan(*pods, options=options, **cluster)

    assert (by_domain(found, by) if by else by_node(found)) == expected_of(expected, options)


LISTED = {
    "requirements": [{"key": TYPE, "operator": "In", "values": ["m.small", "m.large"]}],
    "resources": {"requests": {"cpu": "1"}},
}
OTHER = {"metadata": {"labels": {labels.NODEPOOL: "other"}}}


@pytest.mark.parametrize(
    ("cluster", "used"),
    [
        ({"claims": (a_claim("c", spec=LISTED),)}, 8),
        ({"claims": (a_launched_claim("c", spec=LISTED),)}, 4),
        ({"claims": (a_running_claim("c", spec=LISTED),), "nodes": (a_node("c"),)}, 4),
        ({"nodes": (a_node("c"),)}, 4),
        (
            {
                "claims": (a_running_claim("c", spec=LISTED, status={"capacity": {}}),),
                "nodes": (a_node("c", status={"capacity": {"cpu": "2"}}),),
            },
            2,
        ),
        ({"claims": (a_running_claim("c", **OTHER),), "nodes": (a_node("c", **OTHER),)}, 0),
        ({"claims": (a_running_claim("c", deleting=NOW),), "nodes": (a_node("c", deleting=NOW),)}, 0),
    ],
    ids=[
        "before launch",
        "launched",
        "joined",
        "unmanaged",
        "joined with less",
        "of another NodePool",
        "being deleted",
    ],
)
def test_nodes_use_limits_with_their_capacity_and_before_launch_with_their_largest_type(cluster, used):
    """A small type of two CPUs and a large one of eight are listed; the instance has four."""
    waiting = some(9, "web", selects(type="m.small"))

    found = schedule(*waiting, types=(SMALL, LARGE), node_pools=(limited(cpu="18"),), **cluster)

    assert len(found.results.new_claims) == (18 - used) // 2


def test_types_that_a_claim_does_not_list_do_not_count_towards_limits():
    """A node of 8 GiB is on its way, and the limit has 16 GiB left."""
    small = {
        "requirements": [{"key": TYPE, "operator": "In", "values": ["m.small"]}],
        "resources": {"requests": {"cpu": "1"}},
    }

    found = plan(
        some(9, "web", selects(type="m.small"), cpu="1500m"),
        claims=(a_claim("c", spec=small),),
        node_pools=(limited(memory="24Gi"),),
    )

    assert len(found.results.new_claims) == 2


@pytest.mark.parametrize(("without", "new"), [((), 3), (("node-one",), 5), (("node-one", "node-else"), 5)])
def test_limits_grow_without_the_nodes_of_their_nodepool(without, new):
    """Two nodes of four CPUs each use the limit of 14, and one of another NodePool does not."""
    names = ("one", "two", "else")
    snapshot = a_snapshot(
        node_pools=(limited(cpu="14", nodes="9"),),
        nodes=tuple(a_node(n, **(OTHER if n == "else" else {})) for n in names),
        claims=tuple(a_running_claim(n, **(OTHER if n == "else" else {})) for n in names),
    )
    waiting = some(9, "web", selects(type="m.small"))

    found = solve(
        replace(snapshot, pods=tuple(waiting)), Catalogue({"default": (SMALL,)}), without_nodes=frozenset(without)
    )

    assert len(found.new_claims) == new


def test_limited_nodepool_uses_the_reservation_that_makes_the_plan_cheaper():
    """The limit allows the large reservation for all pods, or the small one for one pod and paid nodes for the rest."""
    booked = (with_reservation(SMALL, "cr-small", price=1e-7), with_reservation(LARGE, "cr-large", price=4e-7))

    found = plan(
        some(6, "web"),
        types={"limited": booked, "other": TYPES},
        node_pools=(limited("limited", memory="32Gi"), pool("other")),
    )

    assert by_node(found) == "m.large: 6 web"
    assert found.results.price < 1e-5


def test_nodeclaim_names_its_reservation():
    """It requires the reserved capacity; the other node requires on-demand capacity."""
    found = plan(some(2, "web", cpu="3"), types=(with_reservation(MEDIUM, "cr-1", price=1e-8),))

    free, bought = sorted(found.results.new_claims, key=lambda claim: claim.price)
    assert (values_of(free, CAPACITY), values_of(free, labels.RESERVATION_ID)) == ((labels.RESERVED,), ("cr-1",))
    assert (values_of(bought, CAPACITY), bought.price) == ((labels.ON_DEMAND,), 0.19)
    assert (free.reservations, bought.reservations) == (("cr-1",), ())


def test_error_of_pods_beyond_all_limits_is_of_its_own_kind():
    """An existing node uses the limit."""
    found = plan(
        some(1, "web", cpu="3"),
        some(1, "old", cpu="3", on="c"),
        nodes=([a_node("c")], []),
        node_pools=(limited(cpu="4"),),
    )

    assert {error.kind for error in found.results.pod_errors.values()} == {"limits"}


# -- minValues


def values_of(claim, key):
    """Return the values that the NodeClaim requires for a label."""
    return next((r.values for r in claim.requirements if r.key == key), None)


def with_family(instance_type, family):
    """Return the instance type with an instance family."""
    own = NodeSelectorRequirement(key=FAMILY, operator="In", values=(family,))
    return replace(instance_type, requirements=(*instance_type.requirements, own))


def test_min_values_apply_to_any_label_and_are_set_on_the_nodeclaim():
    """Two families are required: types of both hold three CPUs, only one type holds five."""
    types = tuple(with_family(t, f) for t, f in ((SMALL, "m"), (MEDIUM, "n"), (LARGE, "m")))
    families = pool("default", (FAMILY, "Exists:2"))

    three, five = (plan(some(1, "web", cpu=cpu), types=types, node_pools=(families,)) for cpu in "35")

    (claim,) = three.results.new_claims
    assert claim.instance_types == ("m.medium", "m.large")
    assert next(r.min_values for r in claim.requirements if r.key == FAMILY) == 2
    assert by_node(five) == "pending: 1 web"


@both_ways
def test_best_effort_lowers_min_values_if_too_few_types_hold_the_pods(options):
    """The pod allows one instance type, but minValues requires three."""
    pools = (pool("default", (TYPE, "Exists:3")),)
    pods = some(1, "web", selects(type="m.large"))

    strict = plan(pods, node_pools=pools, options=options)
    (claim,) = plan(pods, node_pools=pools, options=replace(options, min_values=BEST_EFFORT)).results.new_claims

    assert by_node(strict) == "pending: 1 web"
    assert claim.min_values_relaxed
    assert [r.min_values for r in claim.requirements if r.key == TYPE] == [1]


def test_best_effort_lowers_min_values_if_pods_stay_pending():
    """The limit allows one medium node or two small ones; with both types open, the second pod would stay pending."""
    tight = limited("default", (TYPE, "Exists:2"), memory="16Gi")

    found = plan(some(2, "web"), types=(SMALL, MEDIUM), node_pools=(tight,), options=Options(min_values=BEST_EFFORT))

    assert not found.results.pod_errors


# -- which instance types a NodeClaim lists

MANY = tuple(an_instance_type(f"t.{n:03}", cpu=4, memory_gib=16, price=round(0.1 + n / 1000, 3)) for n in range(100))


@pytest.mark.parametrize(
    ("options", "listed"),
    [
        (Options(), 26),  # instance types that cost at most 25% more than 0.1
        (Options(near_price=1.0), 15),
        (Options(near_price=1.0, min_types=1), 1),
        (Options(near_price=2.0), 60),
        (Options(near_price=1.05, min_types=1, max_types=3), 3),
    ],
)
def test_nodeclaim_lists_the_cheapest_types_within_price_and_count_options(options, listed):
    """In the order of price; the options near_price, min_types and max_types decide how many."""
    (claim,) = plan(some(1, "web"), types=MANY, options=options).results.new_claims

    assert claim.instance_types == tuple(t.name for t in MANY[:listed])
    assert (claim.price, str(claim.offering)) == (0.1, "t.000/a/on-demand")


@table(
    "pods",
    "cluster",
    "listed",
    all_that_hold_the_pod=([some(1, "web")], {}, ("m.small", "m.medium", "m.large")),
    all_that_hold_three_pods=([some(3, "web")], {}, ("m.medium", "m.large")),
    those_within_the_limit=([some(1, "web")], {"node_pools": (limited(cpu="4"),)}, ("m.small",)),
    those_that_the_pod_selects=([some(1, "web", selects(type="m.large"))], {}, ("m.large",)),
    two_by_option=([some(1, "web")], {"options": Options(near_price=1.0, min_types=2)}, ("m.small", "m.medium")),
    three_by_min_values=(
        [some(1, "web")],
        {"options": Options(near_price=1.0, min_types=2), "node_pools": (pool("default", (TYPE, "Exists:3")),)},
        ("m.small", "m.medium", "m.large"),
    ),
    a_dear_type_of_a_second_zone_replaces_a_cheaper_one=(
        [some(1, "web")],
        {
            "types": (*MANY, an_instance_type("z.dear", cpu=4, memory_gib=16, price=5.0, zones=("b",))),
            "options": Options(near_price=1.05, min_types=1, max_types=3),
            "node_pools": (pool("default", (ZONE, "Exists:2")),),
        },
        ("t.000", "t.001", "z.dear"),
    ),
)
def test_nodeclaim_lists_the_types_that_its_pods_and_nodepool_allow(pods, cluster, listed):
    """Not lowered minValues are not said to be."""
    (claim,) = plan(*pods, **cluster).results.new_claims

    assert (claim.instance_types, claim.min_values_relaxed) == (listed, False)


def test_each_nodeclaim_has_its_own_pods_requests_and_instance_types():
    """Zones differ, so that each group of pods has a node; a DaemonSet requests 100m."""
    types = tuple(
        replace(an_instance_type(t.name, cpu=c, memory_gib=4 * c, price=p, zones=("a", "b", "c")))
        for t, c, p in ((SMALL, 2, 0.1), (MEDIUM, 4, 0.19), (LARGE, 8, 0.37))
    )
    pods = [some(n, f"in-{zone}", selects(zone=zone)) for zone, n in (("a", 6), ("b", 1), ("c", 2))]

    found = plan(*pods, types=types, daemon_sets=(a_daemon_set("agent", cpu="100m"),))

    by_zone = {claim.offering.zone: claim for claim in found.results.new_claims}
    assert {zone: len(claim.pods) for zone, claim in by_zone.items()} == {"a": 6, "b": 1, "c": 2}
    assert [by_zone[zone].instance_types[0] for zone in "abc"] == ["m.large", "m.small", "m.medium"]
    assert [by_zone[zone].requests["cpu"] for zone in "abc"] == [6100, 1100, 2100]


def test_nodeclaim_requires_the_value_of_an_open_label_that_its_pods_select():
    """The NodePool allows racks one and two."""
    found = plan(some(2, "web", selects(rack="two")), node_pools=(pool("default", (RACK, "In", "one", "two")),))

    assert values_of(found.results.new_claims[0], RACK) == ("two",)


# -- annotations of NodePools, and NodeOverlays


@pytest.mark.parametrize(("annotation", "nodes"), [(None, 4), ("0.10", 1), ("a lot", 4), ("-1", 4)])
def test_node_surcharge_leads_to_fewer_nodes(annotation, nodes):
    """Four tiny nodes cost 0.28 and one large node costs 0.37; an invalid surcharge is ignored."""
    tiny = an_instance_type("m.tiny", cpu=2, memory_gib=4, price=0.07)
    surcharged = pool(annotations={labels.NODE_SURCHARGE: annotation} if annotation else {})

    found = plan(some(4, "web", cpu="1500m"), types=(tiny, LARGE), node_pools=(surcharged,))

    assert len(found.results.new_claims) == nodes
    assert found.results.price == pytest.approx(0.28 if nodes == 4 else 0.37)


def test_packing_annotation_of_a_nodepool_selects_fewest_nodes():
    """As Karpenter packs; by default four tiny nodes are cheaper."""
    tiny = an_instance_type("m.tiny", cpu=1, memory_gib=4, price=0.01)

    for packing, nodes in (({labels.PACKING: "fewest-nodes"}, 1), ({}, 4)):
        found = plan(some(4, "web", cpu="500m"), types=(tiny, LARGE), node_pools=(pool(annotations=packing),))
        assert len(found.results.new_claims) == nodes


@pytest.mark.parametrize(
    ("annotation", "value", "warning"),
    [
        (labels.NODE_SURCHARGE, "a lot", "'a lot' is not a price per hour"),
        (labels.PACKING, "fewest", "'fewest' is neither price nor fewest-nodes"),
        (labels.REBALANCE, "true", "'true' is not replace"),
        (labels.NODE_SURCHARGE, "0.1", ""),
        (labels.PACKING, "fewest-nodes", ""),
        (labels.REBALANCE, "replace", ""),
    ],
)
def test_invalid_annotation_of_a_nodepool_gets_a_warning(annotation, value, warning):
    """It is ignored."""
    found = plan(some(1, "web"), node_pools=(pool(annotations={annotation: value}),))

    assert warning in found.results.warnings.get("default", "")
    assert bool(warning) is bool(found.results.warnings)


def test_nodeclaim_names_only_node_overlays_on_its_instance_types():
    """The overlay's price makes the medium type the cheapest; the annotations are Karpenter's."""
    on_medium = [{"key": TYPE, "operator": "In", "values": [MEDIUM.name]}]
    overlay = an_overlay("o", requirements=on_medium, price="0.01", capacity={"smarter-devices/fuse": 1})
    types = apply_overlays([a_pool()], Catalogue({"default": TYPES}), [overlay]).catalogue.instance_types("default")

    found = plan(some(1, "web"), types=types)
    (large,) = plan(some(1, "web", cpu="7"), types=types).results.new_claims

    assert by_node(found) == "m.medium: 1 web"
    annotations = found.manifest_of("web0")["metadata"]["annotations"]
    assert annotations[labels.PRICE_OVERLAY_APPLIED] == annotations[labels.CAPACITY_OVERLAY_APPLIED] == "true"
    assert (large.instance_types, large.overlays) == ((LARGE.name,), ())
