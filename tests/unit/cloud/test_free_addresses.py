"""Launches are distributed over a zone's subnets by their free addresses."""

from datetime import datetime, timezone

import pytest

from journeyman.cloud.free_addresses import FreeAddresses, smallest_pods, subnets_by_zone
from journeyman_simulator.clock import VirtualClock
from tests.unit.cloud.test_launch_filter import a_type

TWO_IN_A = subnets_by_zone([("a", "subnet-1"), ("a", "subnet-2"), ("b", "subnet-3")])
TYPES = (a_type("m5.large", 0.1, pods=30), a_type("m5.xlarge", 0.2, pods=60))


@pytest.fixture
def clock():
    return VirtualClock(datetime(2026, 11, 2, 8, tzinfo=timezone.utc))


@pytest.fixture
def described():
    return []


@pytest.fixture
def subnets(described, clock):
    def describe(ids):
        described.append(ids)
        return {"subnet-1": 100, "subnet-2": 90, "subnet-3": 50}

    return FreeAddresses(describe, clock)


@pytest.fixture
def choose(subnets):
    """Return a function that returns the subnet chosen in zone a, and all chosen ones."""

    def choice():
        chosen = subnets.choose(TWO_IN_A, TYPES, "on-demand")
        return chosen["a"].id, tuple(chosen.values())

    return choice


def test_launches_in_flight_count_as_used_addresses(choose, subnets):
    """Of the zones with a compatible type: the first launch is expected to use 30 addresses, so the second uses another subnet."""
    assert [choose()[0] for _ in range(3)] == ["subnet-1", "subnet-2", "subnet-1"]
    chosen = subnets.choose(TWO_IN_A, TYPES, "on-demand")
    assert (chosen["a"].reserved, chosen["b"].reserved) == (30, 0)


def test_unused_addresses_are_released(choose, subnets):
    first, chosen = choose()
    subnets.release_unused(chosen, used=None)
    assert first == choose()[0] == "subnet-1"


def test_exhausted_subnet_is_last_until_it_is_read_again(choose, subnets, clock):
    choose()
    subnets.mark_exhausted("subnet-1")
    assert choose()[0] == "subnet-2"
    assert not subnets.is_zone_exhausted(TWO_IN_A, "a")

    subnets.mark_exhausted("subnet-2")
    assert subnets.is_zone_exhausted(TWO_IN_A, "a")
    clock.advance(61)
    assert choose()[0] == "subnet-1"


def test_single_subnet_per_zone_needs_no_request(subnets, described):
    """Free addresses do not matter without a choice."""
    chosen = subnets.choose({"a": ("subnet-1",), "b": ("subnet-3",)}, TYPES, "on-demand")
    assert {zone: subnet.id for zone, subnet in chosen.items()} == {"a": "subnet-1", "b": "subnet-3"}
    assert not described


def test_subnet_that_was_full_for_another_process_comes_last(subnets):
    """OfferingState has it; the zone is full only if all of its subnets are."""
    chosen = subnets.choose(TWO_IN_A, TYPES, "on-demand", full={"subnet-1"})
    assert chosen["a"].id == "subnet-2"
    assert not subnets.is_zone_exhausted(TWO_IN_A, "a", full={"subnet-1"})
    assert subnets.is_zone_exhausted(TWO_IN_A, "a", full={"subnet-1", "subnet-2"})


@pytest.mark.parametrize(
    ("zone", "capacity_type", "pods"),
    [("a", "on-demand", 30), ("b", "on-demand", 60), ("a", "spot", 60), ("b", "spot", 0), ("c", "on-demand", 0)],
)
def test_launch_uses_as_many_addresses_as_its_smallest_type_there_has_pods(zone, capacity_type, pods):
    """Of the types with an available offering; one of several is enough."""
    types = (
        a_type("m5.large", 0.1, pods=30),
        a_type("m5.xlarge", 0.2, spot=0.1, zones=("a", "b"), unavailable={("b", "spot")}, pods=60),
    )
    assert smallest_pods(types, zone, capacity_type) == pods
