"""Which types a launch may choose from: Karpenter's filters, in its order."""

import msgspec

from journeyman.cloud.aws.launch_filter import (
    MAX_INSTANCE_TYPES,
    asks_for_too_much,
    bought_as,
    capacity_type_of,
    launchable,
)
from journeyman.core.api import labels
from journeyman.core.api.objects import NodeSelectorRequirement
from journeyman.core.catalogue import InstanceType, Offering, label_requirements
from tests.unit.cloud.aws.conftest import claim

SIZE = f"{labels.AWS_GROUP}/instance-size"


def a_type(name, price, *, spot=None, zones=("a",), unavailable=(), arch="amd64", **capacity):
    """An instance type with on-demand offerings in each zone, and spot ones if a spot price is given."""
    prices = {"on-demand": price, **({"spot": spot} if spot is not None else {})}
    offerings = tuple(
        Offering(
            zone=zone,
            capacity_type=kind,
            price=cost,
            available=(zone, kind) not in unavailable,
            requirements=label_requirements(zone=zone, capacity_type=kind),
        )
        for zone in zones
        for kind, cost in prices.items()
    )
    values = {
        labels.INSTANCE_TYPE: (name,),
        labels.ARCH: (arch,),
        labels.ZONE: tuple(zones),
        labels.CAPACITY_TYPE: tuple(prices),
        SIZE: (name.partition(".")[2],),
    }
    return InstanceType(
        name=name,
        requirements=tuple(NodeSelectorRequirement(key=k, operator="In", values=v) for k, v in values.items()),
        offerings=offerings,
        capacity={"cpu": 4000, "memory": 2**34, "pods": 50, **capacity},
    )


def names(types):
    """Their names, in order."""
    return [t.name for t in types]


def test_only_what_is_compatible_available_and_big_enough_remains():
    """Requirements, stock and requests each rule out a type."""
    types = (
        a_type("m5.large", 0.1),
        a_type("m6g.large", 0.05, arch="arm64"),
        a_type("c5.large", 0.02, unavailable={("a", "on-demand")}),
        a_type("t3.small", 0.01, cpu=500),
        a_type("r5.large", 0.12, zones=("b",)),
    )

    assert names(launchable(claim(arch=("amd64",), zone=("a",), requests={"cpu": "1"}), types)) == ["m5.large"]


def test_an_offering_of_another_zone_or_capacity_type_is_not_used():
    """A type survives with those offerings alone that the claim allows."""
    wide = a_type("m5.large", 0.1, spot=0.04, zones=("a", "b"))
    kept = launchable(claim(zone=("b",), capacity_type=("on-demand",)), (wide,))

    assert [(o.zone, o.capacity_type) for t in kept for o in t.offerings] == [("b", "on-demand")]


def test_exotic_types_are_for_those_who_ask():
    """Metal and accelerators go while anything plain is left, and stay when nothing is."""
    plain, metal = a_type("m5.large", 0.5), a_type("m5.metal", 0.1)
    gpu = a_type("g5.large", 0.2, **{"nvidia.com/gpu": 1})

    assert names(launchable(claim(), (plain, metal, gpu))) == ["m5.large"]
    assert names(launchable(claim(), (metal, gpu))) == ["m5.metal", "g5.large"]
    assert names(launchable(claim(requests={"nvidia.com/gpu": "1"}), (plain, metal, gpu))) == ["g5.large"]


def test_spot_dearer_than_the_cheapest_on_demand_is_dropped():
    """Only where both may be bought; a claim for spot alone takes what spot costs."""
    cheap, dear = a_type("m5.large", 0.10, spot=0.09), a_type("m5.xlarge", 0.20, spot=0.11)
    kept = launchable(claim(capacity_type=("on-demand", "spot")), (cheap, dear))

    assert [(t.name, o.capacity_type) for t in kept for o in t.offerings] == [
        ("m5.large", "on-demand"),
        ("m5.large", "spot"),
        ("m5.xlarge", "on-demand"),
    ]
    assert names(launchable(claim(capacity_type=("spot",)), (cheap, dear))) == ["m5.large", "m5.xlarge"]


def test_the_sixty_cheapest_remain_in_total_order():
    """By price, then name, whatever order they came in."""
    types = tuple(a_type(f"m{n:03}.large", 1.0 - n % 2 / 10) for n in range(100))
    kept = launchable(claim(), tuple(reversed(types)))

    assert len(kept) == MAX_INSTANCE_TYPES
    assert names(kept)[:2] == ["m001.large", "m003.large"]
    assert names(kept)[50] == "m000.large"


def test_min_values_keep_variety_or_refuse():
    """Economy filters would take away what was asked for; too little variety is no launch."""
    types = (a_type("m5.large", 0.1), a_type("m5.metal", 0.1))
    required = NodeSelectorRequirement(key=labels.INSTANCE_TYPE, operator="Exists", min_values=2)
    base = claim()
    asking = msgspec.structs.replace(base, spec=msgspec.structs.replace(base.spec, requirements=(required,)))

    assert names(launchable(asking, types)) == ["m5.large", "m5.metal"]
    assert launchable(asking, types[:1]) == ()


def test_unavailable_types_count_towards_min_values_and_missing_do_not():
    """The former is planned anew without what is avoided; planning the latter again would make the same claim."""
    types = (a_type("m5.large", 0.1), a_type("c5.large", 0.1, unavailable=[("a", "on-demand")]))
    required = NodeSelectorRequirement(key=labels.INSTANCE_TYPE, operator="Exists", min_values=2)
    base = claim()
    asking = msgspec.structs.replace(base, spec=msgspec.structs.replace(base.spec, requirements=(required,)))

    assert not asks_for_too_much(asking, types)
    assert asks_for_too_much(asking, types[:1])
    assert not asks_for_too_much(asking, ())


def test_spot_is_preferred_and_narrows_the_types():
    """A fleet buys one way; types that cannot be bought so fall out."""
    types = (a_type("m5.large", 0.1, spot=0.05), a_type("c5.large", 0.08))

    assert capacity_type_of(types) == "spot"
    assert names(bought_as("spot", types)) == ["m5.large"]
    assert capacity_type_of(types[1:]) == "on-demand"
