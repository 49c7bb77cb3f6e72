"""Launches spread over the subnets of a zone by the addresses that are left."""

import pytest

from journeyman.cloud.aws.aws_settings import Clients
from journeyman.cloud.aws.subnets import SubnetProvider
from tests.unit.cloud.aws.conftest import Pages, node_class
from tests.unit.cloud.aws.test_launch_filter import a_type

TWO_IN_A = [{"id": "subnet-1", "zone": "a"}, {"id": "subnet-2", "zone": "a"}, {"id": "subnet-3", "zone": "b"}]
TYPES = (a_type("m5.large", 0.1, pods=30), a_type("m5.xlarge", 0.2, pods=60))


@pytest.fixture
def ec2():
    """Two subnets in zone a, nearly equal."""
    free = {"subnet-1": 100, "subnet-2": 90, "subnet-3": 50}
    return Pages(
        describe_subnets=[{"Subnets": [{"SubnetId": i, "AvailableIpAddressCount": n} for i, n in free.items()]}]
    )


@pytest.fixture
def subnets(ec2, clock):
    """What is under test."""
    return SubnetProvider(Clients(lambda service, region: ec2, "us-east-1"), clock)


@pytest.fixture
def choose(subnets):
    """The subnet chosen in zone a, and all chosen ones."""

    def choice():
        chosen = subnets.choose(node_class(status={"subnets": TWO_IN_A}), TYPES, "on-demand")
        return chosen["a"].id, tuple(chosen.values())

    return choice


def test_launches_under_way_count(choose):
    """The first launch is expected to take 30 addresses, so the second goes next door."""
    assert [choose()[0] for _ in range(3)] == ["subnet-1", "subnet-2", "subnet-1"]


def test_what_was_not_used_is_given_back(choose, subnets):
    """A fleet that went elsewhere leaves the subnet as full as it was."""
    first, chosen = choose()
    subnets.settle(chosen, used=None)

    assert first == choose()[0] == "subnet-1"


def test_an_exhausted_subnet_comes_last_until_the_next_reading(choose, subnets, clock):
    """EC2 knows better than the last count; a minute later it is asked again."""
    class_ = node_class(status={"subnets": TWO_IN_A})
    choose()
    subnets.mark_exhausted("subnet-1")
    assert choose()[0] == "subnet-2"
    assert not subnets.is_zone_exhausted(class_, "a")

    subnets.mark_exhausted("subnet-2")
    assert subnets.is_zone_exhausted(class_, "a")
    clock.advance(61)
    assert choose()[0] == "subnet-1"


def test_nothing_is_asked_where_no_zone_has_a_choice(subnets, ec2):
    """One subnet in each zone is the usual network; it costs no call."""
    chosen = subnets.choose(node_class(), TYPES, "on-demand")

    assert {zone: subnet.id for zone, subnet in chosen.items()} == {"us-east-1a": "subnet-a", "us-east-1b": "subnet-b"}
    assert not ec2.asked


def test_a_zone_that_no_type_uses_is_not_charged(subnets):
    """The charge is the fewest pods among the types that can be bought there."""
    chosen = subnets.choose(node_class(status={"subnets": TWO_IN_A}), TYPES, "on-demand")

    assert (chosen["a"].charged, chosen["b"].charged) == (30, 0)
