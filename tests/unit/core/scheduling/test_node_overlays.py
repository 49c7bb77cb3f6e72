"""NodeOverlays: the offerings that they select, their order by weight, and invalid overlays."""

import pytest

from journeyman.core.api import labels
from journeyman.core.api.model import parse
from journeyman.core.api.nodeoverlay import NodeOverlay
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.node_overlays import apply_overlays, overlay_annotations
from journeyman.errors import InvalidObjectError
from tests.helpers.builders import a_pool, an_instance_type, an_overlay, overlay_body

SMALL = an_instance_type("small", cpu=2, memory_gib=4, price=1.0, zones=("a", "b"), spot=0.4)
LARGE = an_instance_type("large", cpu=8, memory_gib=16, price=4.0, zones=("a", "b"), spot=1.6)
FUSE = "smarter-devices/fuse"


def selecting(**values):
    keys = {
        "type": labels.INSTANCE_TYPE,
        "zone": labels.ZONE,
        "capacity": labels.CAPACITY_TYPE,
        "pool": labels.NODEPOOL,
    }
    return [{"key": keys[key], "operator": "In", "values": [value]} for key, value in values.items()]


def apply(*overlays, pools=("default",)):
    catalogue = Catalogue(dict.fromkeys(pools, (LARGE, SMALL)))
    return apply_overlays([a_pool(name) for name in pools], catalogue, overlays)


def price(result, name, zone, capacity_type, pool="default"):
    found = next(t for t in result.catalogue.instance_types(pool) if t.name == name)
    return next(o.price for o in found.offerings if (o.zone, o.capacity_type) == (zone, capacity_type))


def test_an_overlay_prices_the_offerings_it_selects_and_no_others():
    """By zone and capacity type, by type, by NodePool and by labels of the pool's template."""
    result = apply(
        an_overlay("spot-a", requirements=selecting(zone="a", capacity="spot"), price="0.9"),
        an_overlay("cheaper", requirements=selecting(pool="reserved", capacity="on-demand"), priceAdjustment="-25%"),
        pools=("default", "reserved"),
    )
    assert price(result, "small", "a", "spot") == 0.9
    assert price(result, "large", "a", "spot") == 0.9
    assert price(result, "small", "b", "spot") == 0.4
    assert price(result, "small", "a", "on-demand") == 1.0
    assert price(result, "small", "a", "on-demand", pool="reserved") == 0.75
    assert result.conflicts == {}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"price": "0"}, 0.0),
        ({"price": "2.5"}, 2.5),
        ({"priceAdjustment": "+0.5"}, 4.5),
        ({"priceAdjustment": "-0.5"}, 3.5),
        ({"priceAdjustment": "-5"}, 0.0),
        ({"priceAdjustment": "+10%"}, 4.4),
        ({"priceAdjustment": "-100%"}, 0.0),
        ({}, 4.0),
    ],
)
def test_prices_are_set_or_adjusted_and_never_negative(change, expected):
    """Absolute, by an amount, or by a part."""
    assert price(apply(an_overlay("o", **change)), "large", "a", "on-demand") == pytest.approx(expected)


def test_the_heaviest_overlay_alone_adjusts_each_offering():
    """The others still hold where it does not match."""
    result = apply(
        an_overlay("light", weight=1, priceAdjustment="+1"),
        an_overlay("heavy", weight=5, requirements=selecting(zone="a"), priceAdjustment="+10"),
    )
    assert price(result, "small", "a", "on-demand") == 11.0
    assert price(result, "small", "b", "on-demand") == 2.0


def test_the_heaviest_overlay_sets_an_extended_resource_of_a_type():
    """All or nothing for a type: one matching offering is enough."""
    result = apply(
        an_overlay("more", weight=2, requirements=selecting(type="small", zone="b"), capacity={FUSE: "4"}),
        an_overlay("less", weight=1, capacity={FUSE: 1, "example.com/other": "2k"}),
    )
    small, large = (
        next(t for t in result.catalogue.instance_types("default") if t.name == n) for n in ("small", "large")
    )
    assert (small.capacity[FUSE], small.capacity["example.com/other"]) == (4, 2000)
    assert (large.capacity[FUSE], large.capacity["example.com/other"]) == (1, 2000)
    assert small.capacity["cpu"] == SMALL.capacity["cpu"]


def test_of_conflicting_overlays_of_equal_weight_the_first_name_is_ignored():
    """Names from the top, as Karpenter orders them; without anything in common both are applied."""
    result = apply(
        an_overlay("a", price="3", requirements=selecting(zone="a"), capacity={"example.com/a": 1}),
        an_overlay("b", price="2", requirements=selecting(capacity="spot")),
        an_overlay("c", capacity={FUSE: 1}),
        an_overlay("d", capacity={"example.com/d": 1}),
        an_overlay("e", capacity={FUSE: 2}),
    )
    assert result.conflicts == {"a": "b", "c": "e"}
    assert price(result, "small", "a", "on-demand") == 1.0
    small = next(t for t in result.catalogue.instance_types("default") if t.name == "small")
    assert "example.com/a" not in small.capacity
    assert (small.capacity[FUSE], small.capacity["example.com/d"]) == (2, 1)


def test_overlays_that_match_nothing_return_the_same_catalogue():
    """Identity is what solvers cache by; a label that no type defines is not met."""
    catalogue = Catalogue({"default": (LARGE, SMALL)})
    unknown = [{"key": "example.com/rack", "operator": "Exists"}]
    missed = apply_overlays([a_pool()], catalogue, [an_overlay("o", requirements=unknown, price="1")])
    assert missed.catalogue is catalogue
    overlays = [
        an_overlay(name, price=str(i), requirements=selecting(zone="ab"[i % 2])) for i, name in enumerate("abcd")
    ]
    first, again = apply(*overlays), apply(*reversed(overlays))
    assert first.catalogue.by_node_pool == again.catalogue.by_node_pool
    assert first.conflicts == again.conflicts


def test_pools_that_no_overlay_tells_apart_keep_sharing_their_types():
    """What solvers derive from a list of types they derive once for all pools that have it."""
    by_type = apply(an_overlay("o", requirements=selecting(type="small"), price="1"), pools=("one", "two"))
    assert by_type.catalogue.instance_types("one") is by_type.catalogue.instance_types("two")
    by_pool = apply(an_overlay("o", requirements=selecting(pool="one"), price="1"), pools=("one", "two"))
    assert price(by_pool, "small", "a", "on-demand", pool="one") == 1.0
    assert by_pool.catalogue.instance_types("two")[1] is SMALL


def test_claims_say_that_overlays_had_a_part_in_them():
    """Karpenter's annotations, by what their types carry."""
    result = apply(an_overlay("o", requirements=selecting(type="small", zone="a"), price="1", capacity={FUSE: 1}))
    large, small = result.catalogue.instance_types("default")
    assert overlay_annotations(large) == ()
    assert overlay_annotations(small) == (labels.CAPACITY_OVERLAY_APPLIED, labels.PRICE_OVERLAY_APPLIED)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"price": "1", "priceAdjustment": "+1"}, "mutually exclusive"),
        ({"price": "-1"}, "spec.price"),
        ({"price": 1.5}, "spec.price"),
        ({"price": "9" * 400}, "spec.price: .*at most 64"),
        ({"priceAdjustment": "10%"}, "spec.priceAdjustment"),
        ({"priceAdjustment": "-101%"}, "spec.priceAdjustment"),
        ({"capacity": {"cpu": "1"}}, "only extended resources"),
        ({"capacity": {"nvidia.com/gpu": "1"}}, "only extended resources"),
        ({"capacity": {FUSE: "many"}}, "spec.capacity"),
        ({"capacity": {FUSE: "-1"}}, "negative"),
        ({"weight": 10001}, "spec.weight"),
        ({"requirements": [{"key": labels.ZONE, "operator": "NotIn"}]}, "must have a value"),
        ({"requirements": [{"key": labels.ZONE, "operator": "Near", "values": ["a"]}]}, "operator"),
        ({"requirements": [{"key": labels.HOSTNAME, "operator": "Exists"}]}, "reserved"),
    ],
)
def test_an_overlay_that_makes_no_sense_does_not_validate(spec, why):
    """The rules of Karpenter's definition and of its runtime validation."""
    with pytest.raises(InvalidObjectError, match=why):
        parse(NodeOverlay, overlay_body("o", **spec))
