"""The instance types of a launch request: Karpenter's filters, in its order."""

import msgspec

from journeyman.cloud.aws.fleet_launch import LIMITS
from journeyman.cloud.launch_filter import (
    capacity_type_of,
    has_unsatisfiable_min_values,
    launchable,
    with_capacity_type,
)
from journeyman.core.api import labels
from journeyman.core.api.objects import NodeSelectorRequirement
from journeyman.core.catalogue import InstanceType, Offering, label_requirements
from tests.unit.cloud.aws.conftest import claim

SIZE = f"{labels.AWS_GROUP}/instance-size"


def a_type(name, price, *, spot=None, zones=("a",), unavailable=(), arch="amd64", **capacity):
    """Return an instance type with on-demand offerings in each zone, and Spot ones if a Spot price is given."""
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
    return [t.name for t in types]


def test_compatible_available_and_large_enough_types_remain():
    """Requirements, availability and requests each exclude a type; it keeps only the offerings that the claim allows."""
    types = (
        a_type("m5.large", 0.1, spot=0.04, zones=("a", "b")),
        a_type("m6g.large", 0.05, arch="arm64"),
        a_type("c5.large", 0.02, unavailable={("a", "on-demand")}),
        a_type("t3.small", 0.01, cpu=500),
        a_type("r5.large", 0.12, zones=("b",)),
    )
    asking = claim(arch=("amd64",), zone=("a",), capacity_type=("on-demand",), requests={"cpu": "1"})
    kept = launchable(asking, types, LIMITS)

    assert [(t.name, o.zone, o.capacity_type) for t in kept for o in t.offerings] == [("m5.large", "a", "on-demand")]


def test_metal_and_accelerated_types_are_used_last():
    plain, metal = a_type("m5.large", 0.5), a_type("m5.metal", 0.1)
    gpu = a_type("g5.large", 0.2, **{"nvidia.com/gpu": 1})
    assert names(launchable(claim(), (plain, metal, gpu), LIMITS)) == ["m5.large"]
    assert names(launchable(claim(), (metal, gpu), LIMITS)) == ["m5.metal", "g5.large"]
    assert names(launchable(claim(requests={"nvidia.com/gpu": "1"}), (plain, metal, gpu), LIMITS)) == ["g5.large"]


def test_spot_above_the_cheapest_on_demand_price_is_dropped():
    """That applies only if both are allowed; a NodeClaim for Spot alone keeps them."""
    cheap, dear = a_type("m5.large", 0.10, spot=0.09), a_type("m5.xlarge", 0.20, spot=0.11)
    kept = launchable(claim(capacity_type=("on-demand", "spot")), (cheap, dear), LIMITS)

    assert [(t.name, o.capacity_type) for t in kept for o in t.offerings] == [
        ("m5.large", "on-demand"),
        ("m5.large", "spot"),
        ("m5.xlarge", "on-demand"),
    ]
    assert names(launchable(claim(capacity_type=("spot",)), (cheap, dear), LIMITS)) == ["m5.large", "m5.xlarge"]


def test_sixty_cheapest_types_remain_in_total_order():
    types = tuple(a_type(f"m{n:03}.large", 1.0 - n % 2 / 10) for n in range(100))
    kept = launchable(claim(), tuple(reversed(types)), LIMITS)
    assert len(kept) == LIMITS.max_instance_types
    assert names(kept)[:2] == ["m001.large", "m003.large"]
    assert names(kept)[50] == "m000.large"


def test_min_values_are_kept_or_the_launch_is_refused():
    """The price filters are skipped if they would leave too few types.

    Unavailable types count, since a new plan avoids them; if types are missing, it would make the same NodeClaim.
    """
    types = (a_type("m5.large", 0.1), a_type("m5.metal", 0.1))
    required = NodeSelectorRequirement(key=labels.INSTANCE_TYPE, operator="Exists", min_values=2)
    asking = claim(spec={"requirements": [msgspec.to_builtins(required)]})

    assert names(launchable(asking, types, LIMITS)) == ["m5.large", "m5.metal"]
    assert launchable(asking, types[:1], LIMITS) == ()
    unavailable = a_type("c5.large", 0.1, unavailable=[("a", "on-demand")])
    unsatisfiable = [
        has_unsatisfiable_min_values(asking, of, LIMITS) for of in ((*types[:1], unavailable), types[:1], ())
    ]
    assert unsatisfiable == [False, True, False]


def test_spot_is_preferred_and_types_without_spot_are_dropped():
    """A fleet has one capacity type."""
    types = (a_type("m5.large", 0.1, spot=0.05), a_type("c5.large", 0.08))
    assert capacity_type_of(types) == "spot"
    assert names(with_capacity_type("spot", types)) == ["m5.large"]
    assert capacity_type_of(types[1:]) == "on-demand"
