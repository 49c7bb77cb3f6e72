"""Tests of `LaunchableOfferings` and `PossibleLaunches`: the offerings and the labels their nodes can have."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeSelectorRequirement
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.verify.matching import PodKind
from journeyman_simulator.judge.possible_nodes import (
    LaunchableOfferings,
    PossibleLaunches,
    offerings_by_node_pool,
)
from tests.helpers.builders import LARGE, MEDIUM, SMALL, TYPES, a_pod, a_pool, an_instance_type

RACK = "example.com/rack"


def requires(key, operator, *values):
    """Return a requirement."""
    return NodeSelectorRequirement(key=key, operator=operator, values=values)


def test_labels_of_an_offering_override_labels_of_its_instance_type():
    """The offerings in zones b and c set a rack, so the racks of the instance type apply only in zone a."""
    plain = an_instance_type("z", cpu=4, memory_gib=16, price=0.2, zones=("a", "b", "c"))
    racks = {"b": "r1", "c": "r3"}
    offerings = tuple(
        replace(o, requirements=(*o.requirements, requires(RACK, "In", racks[o.zone]))) if o.zone in racks else o
        for o in plain.offerings
    )
    either = replace(plain, offerings=offerings, requirements=(*plain.requirements, requires(RACK, "In", "r1", "r2")))
    single = replace(plain, offerings=offerings, requirements=(*plain.requirements, requires(RACK, "In", "r1")))

    def racks_by_zone(instance_type):
        found = LaunchableOfferings([instance_type])
        return {
            offering.zone: {tuple(sorted(values)) for values, rows in found.columns[RACK].items() if rows >> row & 1}
            for row, (_, offering) in enumerate(found.rows)
        }

    assert racks_by_zone(either) == {"a": {("r1", "r2")}, "b": {("r1",)}, "c": {("r3",)}}
    assert racks_by_zone(single) == {"a": {("r1",)}, "b": {("r1",)}, "c": {("r3",)}}


@pytest.mark.parametrize("amount", [0, 1, 1920, 1921, 3920, 7920, 7921])
def test_offerings_by_size_use_allocatable_and_largest_uses_capacity(amount):
    """`smaller_than` compares the amount with allocatable, `largest` returns capacity."""
    found = LaunchableOfferings(TYPES)
    by_name = {SMALL.name: 2000, MEDIUM.name: 4000, LARGE.name: 8000}

    smaller = {t.name for row, (t, _) in enumerate(found.rows) if found.smaller_than("cpu", amount) >> row & 1}

    assert smaller == {name for name, capacity in by_name.items() if capacity - 80 < amount}
    for row, (t, _) in enumerate(found.rows):
        assert found.largest("cpu", 1 << row) == by_name[t.name]
    assert found.largest("cpu", found.all_rows) == 8000
    assert found.largest("cpu", 0) == 0


def test_node_pools_with_the_same_instance_types_share_offerings():
    """A NodePool with other instance types has its own offerings."""
    offerings = offerings_by_node_pool(Catalogue({"one": TYPES, "two": TYPES, "three": (SMALL,)}))

    assert offerings["one"] is offerings["two"]
    assert [t.name for t, _ in offerings["three"].rows] == ["m.small"]


def test_label_values_come_from_node_pool_and_pod_requirements():
    """The NodePool lists teams but only requires that a rack exists, so racks have values only if a pod lists them."""
    entries = [
        {"key": "team", "operator": "In", "values": ["red", "blue"]},
        {"key": RACK, "operator": "Exists"},
    ]
    pool = a_pool(spec={"template": {"spec": {"requirements": entries}}})
    launches = PossibleLaunches(pool, LaunchableOfferings(TYPES), ())

    assert launches.values("team", ()) == {"red", "blue"}
    assert launches.values("team", (requires("team", "NotIn", "red"),)) == {"blue"}
    assert launches.values(RACK, (requires(RACK, "Exists"),)) == set()
    assert launches.values(RACK, (requires(RACK, "In", "r1"),)) == {"r1"}
    assert launches.values("team", (requires("absent", "In", "x"),)) == set()
    assert launches.values("absent", (requires("absent", "In", "x"),)) == set()


def test_type_too_small_for_its_daemons_adds_no_label_value():
    """The DaemonSets request 2 CPU together, one of them on Spot nodes only; no node of the small type is launched."""
    small = an_instance_type("small", cpu=2, memory_gib=8, price=0.1, zones=("a",), spot=0.05)
    large = an_instance_type("large", cpu=4, memory_gib=16, price=0.2, zones=("b",), spot=0.1)
    on_spot = PodKind.of(a_pod("on-spot", cpu="1", spec={"nodeSelector": {labels.CAPACITY_TYPE: "spot"}}))
    everywhere = PodKind.of(a_pod("everywhere", cpu="1"))

    def zones(*daemons):
        return PossibleLaunches(a_pool(), LaunchableOfferings((small, large)), daemons).values(labels.ZONE, ())

    assert zones(everywhere) == {"a", "b"}
    assert zones(everywhere, on_spot) == {"b"}
