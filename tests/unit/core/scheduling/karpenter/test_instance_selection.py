"""Karpenter's suite of instance type selection: the cheapest type that the NodePool and the pod allow, and minValues."""

from __future__ import annotations

from itertools import product

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from tests.helpers.karpenter_suite import ZONES, fake_type, pool, requesting, required, requirement, schedule, tiny

TYPE, ZONE, ARCH, OS, CAPACITY = labels.INSTANCE_TYPE, labels.ZONE, labels.ARCH, labels.OS, labels.CAPACITY_TYPE
GENERATION = "karpenter.k8s.aws/instance-generation"

ASSORTED = tuple(
    fake_type(
        f"{cpu}-cpu-{memory}-mem-{arch}-{os}-{zone}-{capacity}",
        cpu=cpu,
        memory=f"{memory}Gi",
        arch=arch,
        os=(os,),
        offerings=((zone, capacity),),
        price=0.1 * cpu + 0.01 * memory,
    )
    for cpu, memory, arch, os, zone, capacity in product(
        (1, 2, 8, 32), (1, 8), ("amd64", "arm64"), ("linux", "windows"), ZONES, (labels.SPOT, labels.ON_DEMAND)
    )
)
CHEAPEST = min(t.offerings[0].price for t in ASSORTED)


@pytest.mark.parametrize(
    ("by_pool", "by_pod"),
    [
        ({}, {ARCH: "amd64"}),
        ({}, {ARCH: "arm64"}),
        ({ARCH: "amd64"}, {}),
        ({ARCH: "arm64"}, {}),
        ({OS: "windows"}, {}),
        ({}, {OS: "windows"}),
        ({}, {OS: "linux"}),
        ({ZONE: ZONES[1]}, {}),
        ({}, {ZONE: ZONES[1]}),
        ({CAPACITY: labels.SPOT}, {}),
        ({}, {CAPACITY: labels.SPOT}),
        ({CAPACITY: labels.ON_DEMAND, ZONE: ZONES[0]}, {}),
        ({}, {CAPACITY: labels.SPOT, ZONE: ZONES[0]}),
        ({CAPACITY: labels.SPOT}, {ZONE: ZONES[1]}),
        ({CAPACITY: labels.ON_DEMAND, ZONE: ZONES[0], ARCH: "arm64", OS: "windows"}, {}),
        ({ARCH: "amd64", OS: "linux"}, {CAPACITY: labels.SPOT, ZONE: ZONES[1]}),
        ({}, {CAPACITY: labels.SPOT, ZONE: ZONES[1], ARCH: "amd64", OS: "linux"}),
    ],
)
def test_cheapest_type_that_nodepool_and_pod_allow_is_chosen(by_pool, by_pod):
    """Each type that the NodeClaim lists meets both."""
    wanted = [requirement(key, "In", value) for key, value in by_pool.items()]
    spec = required([requirement(key, "In", value) for key, value in by_pod.items()]) if by_pod else {}

    claim = schedule(tiny("p", spec=spec), types=ASSORTED, node_pools=(pool(requirements=wanted),)).node_of("p")

    assert claim.price == pytest.approx(CHEAPEST)
    listed = [t for t in ASSORTED if t.name in claim.instance_types]
    for key, value in {**by_pool, **by_pod}.items():
        assert {next(r.values for r in t.requirements if r.key == key) for t in listed} == {(value,)}


@pytest.mark.parametrize(
    ("excluded", "template", "spec"),
    [
        ({ARCH: "arm64"}, {}, {ARCH: "arm64"}),
        ({ARCH: "arm64", ZONE: ZONES[1]}, {}, {ARCH: "arm64", ZONE: ZONES[1]}),
        ({ARCH: "arm64", ZONE: ZONES[1]}, {ARCH: "arm64"}, {ZONE: ZONES[1]}),
    ],
)
def test_pod_has_no_place_without_a_matching_type(excluded, template, spec):
    """The types with all the excluded labels do not exist."""
    found = tuple(
        t
        for t in ASSORTED
        if not all(
            any(r.key == key and r.values == (value,) for r in t.requirements) for key, value in excluded.items()
        )
    )
    wanted = [requirement(key, "In", value) for key, value in template.items()]

    plan = schedule(
        tiny("p", spec=required([requirement(key, "In", value) for key, value in spec.items()])),
        types=found,
        node_pools=(pool(requirements=wanted),),
    )

    assert set(plan.results.pod_errors) == {"default/p"}


@pytest.mark.parametrize(("cpu", "memory"), list(product((0.1, 1.0, 2.0, 2.5, 4.0, 8.5, 30.0), (0.5, 2.0, 7.5))))
def test_type_with_enough_resources_is_chosen(cpu, memory):
    """Every type that the NodeClaim lists has enough."""
    claim = schedule(tiny("p", spec=requesting({"cpu": str(cpu), "memory": f"{memory}Gi"})), types=ASSORTED).node_of(
        "p"
    )

    for found in (t for t in ASSORTED if t.name in claim.instance_types):
        assert found.allocatable["cpu"] >= cpu * 1000
        assert found.allocatable["memory"] >= memory * 2**30


def test_price_of_the_allowed_capacity_type_decides():
    """By its Spot price the other type would be cheaper."""
    here = ((ZONES[0], labels.ON_DEMAND), (ZONES[0], labels.SPOT))
    types = (
        fake_type("test-instance1", cpu=1, memory="1Gi", offerings=here, price=1.0, spot=0.2),
        fake_type("test-instance2", cpu=1, memory="1Gi", offerings=here, price=1.3, spot=0.1),
    )
    on_demand = pool(requirements=[requirement(CAPACITY, "In", labels.ON_DEMAND)])

    assert schedule(tiny("p"), types=types, node_pools=(on_demand,)).label_of("p", TYPE) == "test-instance1"


# -- minValues


def sized(*cpus, arches=()):
    """Types of ascending price with these CPUs; the generation of each is its number of CPUs plus its position."""
    made = []
    for number, cpu in enumerate(cpus, 1):
        arch = arches[number - 1] if arches else "arm64"
        one = fake_type(
            f"instance-type-{number}",
            cpu=cpu,
            memory=f"{cpu}Gi",
            arch=arch,
            offerings=((ZONES[0], labels.SPOT),),
            price=0.5 * number,
        )
        generation = replace(one.requirements[0], key=GENERATION, values=(str(number + 1),))
        made.append(replace(one, requirements=(*one.requirements, generation)))
    return tuple(made)


ALL = ("instance-type-1", "instance-type-2", "instance-type-3")


@pytest.mark.parametrize(
    ("types", "wanted", "least"),
    [
        (sized(1, 1, 4), [requirement(GENERATION, "Gt", "2", minValues=2)], 2),
        (sized(1, 2, 4), [requirement(GENERATION, "Lt", "4", minValues=2)], 2),
        (
            sized(1, 2, 4),
            [requirement(TYPE, "In", *ALL, minValues=1), requirement(TYPE, "NotIn", "instance-type-3", minValues=2)],
            2,
        ),
        (
            sized(1, 1, 4, 4),
            [requirement(GENERATION, "Gt", "2", minValues=1), requirement(GENERATION, "Lt", "5", minValues=2)],
            2,
        ),
        (sized(1, 4), [requirement(TYPE, "Exists", minValues=1), requirement(TYPE, "In", *ALL[:2], minValues=2)], 2),
        (
            sized(1, 4, arches=("arm64", "amd64")),
            [requirement(ARCH, "Exists", minValues=2), requirement(TYPE, "In", *ALL[:2], minValues=1)],
            2,
        ),
    ],
)
def test_nodeclaim_lists_as_many_types_as_min_values_need(types, wanted, least):
    """Two pods would share the larger type; the smallest one that must be listed holds one of them."""
    pods = [tiny(f"p{n}", spec=requesting({"cpu": "0.9", "memory": "0.9Gi"})) for n in range(2)]

    plan = schedule(*pods, types=types, node_pools=(pool(requirements=wanted),))

    assert not plan.results.pod_errors
    assert all(len(claim.instance_types) >= least for claim in plan.results.new_claims)


@pytest.mark.parametrize(
    ("types", "wanted", "spec"),
    [
        (sized(1, 4), [requirement(GENERATION, "Exists", minValues=2)], required([requirement(GENERATION, "Gt", "2")])),
        (sized(2, 4), [requirement(GENERATION, "Lt", "3", minValues=2)], {}),
    ],
)
def test_pod_has_no_place_if_min_values_are_not_met(types, wanted, spec):
    """Of the two types one is left."""
    plan = schedule(tiny("p", spec=spec), types=types, node_pools=(pool(requirements=wanted),))

    assert set(plan.results.pod_errors) == {"default/p"}
    assert "minValues" in next(iter(plan.results.pod_errors.values())).message
