"""Launches are distributed over a zone's subnets by their free addresses."""

import pytest

from journeyman.cloud.aws.aws_settings import Clients
from journeyman.cloud.aws.subnets import SubnetProvider
from tests.unit.cloud.aws.conftest import Pages, node_class
from tests.unit.cloud.aws.test_launch_filter import a_type

TWO_IN_A = [{"id": "subnet-1", "zone": "a"}, {"id": "subnet-2", "zone": "a"}, {"id": "subnet-3", "zone": "b"}]
TYPES = (a_type("m5.large", 0.1, pods=30), a_type("m5.xlarge", 0.2, pods=60))


@pytest.fixture
def ec2():
    """Return an EC2 client with two subnets in zone a that have nearly equal free addresses."""
    free = {"subnet-1": 100, "subnet-2": 90, "subnet-3": 50}
    return Pages(
        describe_subnets=[{"Subnets": [{"SubnetId": i, "AvailableIpAddressCount": n} for i, n in free.items()]}]
    )


@pytest.fixture
def subnets(ec2, clock):
    """Return the subnet provider under test."""
    return SubnetProvider(Clients(lambda service, region: ec2, "us-east-1"), clock)


@pytest.fixture
def choose(subnets):
    """Return a function that returns the subnet chosen in zone a, and all chosen ones."""

    def choice():
        chosen = subnets.choose(node_class(status={"subnets": TWO_IN_A}), TYPES, "on-demand")
        return chosen["a"].id, tuple(chosen.values())

    return choice


def test_launches_in_flight_count_as_used_addresses(choose):
    """The first launch is expected to use 30 addresses, so the second uses another subnet."""
    assert [choose()[0] for _ in range(3)] == ["subnet-1", "subnet-2", "subnet-1"]


def test_unused_addresses_are_released(choose, subnets):
    """If the fleet uses another subnet, the free addresses are as before."""
    first, chosen = choose()
    subnets.release_unused(chosen, used=None)

    assert first == choose()[0] == "subnet-1"


def test_exhausted_subnet_is_last_until_it_is_read_again(choose, subnets, clock):
    """A minute later the free addresses are read again."""
    class_ = node_class(status={"subnets": TWO_IN_A})
    choose()
    subnets.mark_exhausted("subnet-1")
    assert choose()[0] == "subnet-2"
    assert not subnets.is_zone_exhausted(class_, "a")

    subnets.mark_exhausted("subnet-2")
    assert subnets.is_zone_exhausted(class_, "a")
    clock.advance(61)
    assert choose()[0] == "subnet-1"


def test_single_subnet_per_zone_needs_no_request(subnets, ec2):
    """Free addresses do not matter without a choice."""
    chosen = subnets.choose(node_class(), TYPES, "on-demand")

    assert {zone: subnet.id for zone, subnet in chosen.items()} == {"us-east-1a": "subnet-a", "us-east-1b": "subnet-b"}
    assert not ec2.asked


def test_zone_without_a_compatible_type_is_not_charged(subnets):
    """The charge is the fewest pods among the types in the zone."""
    chosen = subnets.choose(node_class(status={"subnets": TWO_IN_A}), TYPES, "on-demand")

    assert (chosen["a"].reserved, chosen["b"].reserved) == (30, 0)
