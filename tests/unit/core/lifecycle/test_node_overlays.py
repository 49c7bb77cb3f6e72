"""NodeOverlays: the offerings that they select, their order by weight, and invalid overlays."""

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.model import parse
from journeyman.core.api.nodeoverlay import NodeOverlay, NodeOverlaySpec
from journeyman.core.catalogue import Catalogue
from journeyman.core.lifecycle.node_overlays import apply_overlays
from journeyman.core.scheduling.instance_type_choice import overlay_annotations
from journeyman.errors import InvalidObjectError
from tests.helpers.builders import a_pool, an_instance_type, an_overlay, overlay_body
from tests.helpers.small_clusters import table

SMALL = an_instance_type("small", cpu=2, memory_gib=4, price=1.0, zones=("a", "b"), spot=0.4)
LARGE = an_instance_type("large", cpu=8, memory_gib=16, price=4.0, zones=("a", "b"), spot=1.6)
FUSE = "smarter-devices/fuse"


def with_labels(name, *, arch, os):
    """Return a type of another architecture and operating system, with no Spot offering in zone c."""
    made = an_instance_type(name, cpu=2, memory_gib=4, price=1.0, zones=("a", "b", "c"))
    changed = {labels.ARCH: (arch,), labels.OS: (os,)}
    return replace(made, requirements=tuple(replace(r, values=changed.get(r.key, r.values)) for r in made.requirements))


TYPE, ZONE, CAPACITY_TYPE = labels.INSTANCE_TYPE, labels.ZONE, labels.CAPACITY_TYPE
KEYS = {"type": TYPE, "zone": ZONE, "capacity": CAPACITY_TYPE, "pool": labels.NODEPOOL}


def one_of(key, *values, operator="In"):
    return [{"key": key, "operator": operator, "values": list(values)}]


def selecting(**values):
    return [term for key, value in values.items() for term in one_of(KEYS[key], value)]


def apply(*overlays, pools=("default",)):
    catalogue = Catalogue(dict.fromkeys(pools, (LARGE, SMALL)))
    return apply_overlays([a_pool(name) for name in pools], catalogue, overlays)


def a_type(result, name, pool="default"):
    return next(t for t in result.catalogue.instance_types(pool) if t.name == name)


def price(result, name, zone, capacity_type, pool="default"):
    offerings = a_type(result, name, pool).offerings
    return next(o.price for o in offerings if (o.zone, o.capacity_type) == (zone, capacity_type))


def test_an_overlay_prices_the_offerings_it_selects_and_no_others():
    """By zone and capacity type, by type, by NodePool and by labels of the pool's template."""
    result = apply(
        an_overlay("spot-a", requirements=selecting(zone="a", capacity="spot"), price="0.9"),
        an_overlay("cheaper", requirements=selecting(pool="reserved", capacity="on-demand"), priceAdjustment="-25%"),
        pools=("default", "reserved"),
    )
    assert price(result, "small", "a", "spot") == price(result, "large", "a", "spot") == 0.9
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
    small, large = a_type(result, "small"), a_type(result, "large")
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
    small = a_type(result, "small")
    assert "example.com/a" not in small.capacity
    assert (small.capacity[FUSE], small.capacity["example.com/d"]) == (2, 1)


def test_overlays_that_match_nothing_return_the_same_catalogue():
    """Identity is what solvers cache by; a label that no type defines is not met."""
    catalogue = Catalogue({"default": (LARGE, SMALL)})
    unknown = [{"key": "example.com/rack", "operator": "Exists"}]
    missed = apply_overlays([a_pool()], catalogue, [an_overlay("o", requirements=unknown, price="1")])
    assert missed.catalogue is catalogue
    zones = {"a": "a", "b": "b", "c": "a", "d": "b"}
    overlays = [an_overlay(n, price=str(i), requirements=selecting(zone=zones[n])) for i, n in enumerate(zones)]
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
        ({"price": "9" * 400}, "spec.price: .*too large for a price"),
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


# -- Karpenter's controller -------------------------------------------------------------------------------------------

ARM = with_labels("arm", arch="arm64", os="linux")
AMD = with_labels("amd", arch="amd64", os="ios")


ANY_CAPACITY_TYPE = one_of(CAPACITY_TYPE, operator="Exists")
OVERLAPS = {
    "arm64 and every capacity type": (one_of(labels.ARCH, "arm64"), ANY_CAPACITY_TYPE, True),
    "another architecture": (one_of(labels.ARCH, "arm64"), one_of(labels.OS, "ios"), False),
    "a zone and every capacity type": (one_of(ZONE, "a", "d"), ANY_CAPACITY_TYPE, True),
    "every capacity type and spot": (ANY_CAPACITY_TYPE, one_of(CAPACITY_TYPE, "spot"), True),
    "a zone without spot offerings": (one_of(ZONE, "c"), one_of(CAPACITY_TYPE, "spot"), False),
    "a zone and spot": (one_of(ZONE, "a", "d"), one_of(CAPACITY_TYPE, "spot"), True),
    "types with one in common": (one_of(TYPE, "small", "arm"), one_of(TYPE, "small", "large"), True),
    "types without one in common": (one_of(TYPE, "small"), one_of(TYPE, "small", operator="NotIn"), False),
}
CHANGES = {
    "price": ({"price": "1.03"}, {"price": "23"}),
    "adjustment": ({"priceAdjustment": "+54"}, {"priceAdjustment": "-2"}),
    "the same price": ({"price": "100"}, {"price": "100"}),
    "the same adjustment": ({"priceAdjustment": "+100"}, {"priceAdjustment": "+100"}),
    "capacity": ({"capacity": {FUSE: "54"}}, {"capacity": {FUSE: "5"}}),
    "the same capacity": ({"capacity": {FUSE: "54"}}, {"capacity": {FUSE: "54"}}),
}


def overlapping(first, second, weights=(10, 10)):
    overlays = [an_overlay("a", weight=weights[0], **first), an_overlay("b", weight=weights[1], **second)]
    return apply_overlays([a_pool()], Catalogue({"default": (ARM, AMD, LARGE, SMALL)}), overlays)


@pytest.mark.parametrize(("first", "second", "overlaps"), OVERLAPS.values(), ids=OVERLAPS)
@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_overlays_of_one_weight_conflict_if_they_change_the_same(first, second, overlaps, changes):
    """Equal values are no exception. A capacity is of the whole type, so two overlays of its zones conflict."""
    specs = [{"requirements": r, **change} for r, change in zip((first, second), changes, strict=True)]
    found = overlapping(*specs)
    same_type = "capacity" in changes[0] and {first[0]["key"], second[0]["key"]} == {ZONE, CAPACITY_TYPE}
    expected = overlaps or (same_type and first[0]["values"] != ["c"])
    assert found.conflicts == ({"a": "b"} if expected else {})


@pytest.mark.parametrize(("weights", "changed"), [((10, 20), (23, 5)), ((20, 10), (3, 54))])
def test_of_overlays_that_change_the_same_the_heavier_one_counts(weights, changed):
    """The lighter one still adds the resource that the heavier one lacks."""
    first, second = (
        {"price": "3", "capacity": {FUSE: "54", "example.com/a": "1"}},
        {"price": "23", "capacity": {FUSE: "5"}},
    )
    found = overlapping(first, second, weights)
    assert found.conflicts == {}
    small = a_type(found, "small")
    assert ({o.price for o in small.offerings}, small.capacity[FUSE]) == ({changed[0]}, changed[1])
    assert small.capacity["example.com/a"] == 1


def test_conflicting_capacities_leave_another_overlay_alone():
    """The one in conflict shares no resource with the good one."""
    found = apply(
        an_overlay("conflicting-1", weight=10, capacity={"example.com/a": "2Gi"}),
        an_overlay("good", weight=10, requirements=one_of(TYPE, "small"), capacity={FUSE: "1"}),
        an_overlay("conflicting-2", weight=10, requirements=one_of(TYPE, "small"), capacity={"example.com/a": "3Gi"}),
    )
    assert found.conflicts == {"conflicting-1": "conflicting-2"}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_overlay_in_conflict_changes_nothing_at_all(changes):
    """Neither the types nor the NodePools that the other overlay leaves alone."""
    catalogue = Catalogue({"both": (LARGE, SMALL, AMD), "one": (AMD,)})
    overlays = [
        an_overlay("a", weight=10, requirements=one_of(TYPE, "amd", "small"), **changes[0]),
        an_overlay("b", weight=10, requirements=one_of(TYPE, "small", "large"), **changes[1]),
    ]
    found = apply_overlays([a_pool("both"), a_pool("one")], catalogue, overlays)
    assert found.conflicts == {"a": "b"}
    types = {name: found.catalogue.instance_types(name) for name in ("both", "one")}
    changed = {name: [t.name for t in each if overlay_annotations(t)] for name, each in types.items()}
    assert changed == {"both": ["large", "small"], "one": []}


@pytest.mark.parametrize("by", ["name", "label"])
def test_overlays_may_differ_by_nodepool(by):
    """By its name, or by a label of its template. Price and capacity are of different overlays."""
    of_team = {name: {"template": {"metadata": {"labels": {"example.com/team": name}}}} for name in ("one", "two")}
    pools = [a_pool(name, spec=spec) for name, spec in of_team.items()]
    key = labels.NODEPOOL if by == "name" else "example.com/team"
    overlays = []
    for name, amount in (("one", "13234.223"), ("two", "232.11")):
        own = {"weight": 10, "requirements": one_of(key, name)}
        overlays += [an_overlay(f"price-{name}", price=amount, **own)]
        overlays += [an_overlay(f"capacity-{name}", capacity={FUSE: amount.partition(".")[0]}, **own)]
    found = apply_overlays(pools, Catalogue({"one": (SMALL,), "two": (SMALL,), "three": (SMALL,)}), overlays)
    assert found.conflicts == {}
    (one,), (two,), (three,) = (found.catalogue.instance_types(name) for name in ("one", "two", "three"))
    assert ({o.price for o in one.offerings}, one.capacity[FUSE]) == ({13234.223}, 13234)
    assert ({o.price for o in two.offerings}, two.capacity[FUSE]) == ({232.11}, 232)
    assert three is SMALL
    assert one.requirements == two.requirements == SMALL.requirements


@table(
    "overlays",
    none=([],),
    changes_nothing=([an_overlay("o", requirements=one_of(TYPE, "small"), weight=10)],),
    selects_nothing=([an_overlay("o", requirements=one_of(TYPE, "none"), price="1", capacity={FUSE: "1"})],),
)
@pytest.mark.parametrize("types", [(LARGE, SMALL), ()])
def test_types_that_no_overlay_changes_stay_the_same(overlays, types):
    """There are no conflicts either."""
    catalogue = Catalogue({"default": types})
    found = apply_overlays([a_pool()], catalogue, overlays)
    assert (found.catalogue, found.conflicts) == (catalogue, {})


# the change of each field of a NodeOverlay, beside another overlay that sets the price 2 with weight 5
FIELDS = {
    "requirements": {"requirements": selecting(zone="a")},
    "price": {"price": "3"},
    "priceAdjustment": {"price": None, "priceAdjustment": "+50%"},
    "capacity": {"capacity": {FUSE: "1"}},
    "weight": {"weight": 1},
}


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_of_a_node_overlay_changes_the_catalogue(field):
    """No field is accepted and ignored: a new one needs an effect, and a line in FIELDS."""
    assert set(FIELDS) == {field.alias or name for name, field in NodeOverlaySpec.model_fields.items()}
    plain = {"requirements": selecting(type="small"), "price": "1.5", "weight": 10}
    changed = {key: value for key, value in {**plain, **FIELDS[field]}.items() if value is not None}
    other = an_overlay("other", requirements=selecting(type="small"), price="2", weight=5)
    before, after = (apply(an_overlay("one", **spec), other).catalogue for spec in (plain, changed))

    assert before.by_node_pool == apply(an_overlay("one", **plain), other).catalogue.by_node_pool
    assert before.by_node_pool != after.by_node_pool
