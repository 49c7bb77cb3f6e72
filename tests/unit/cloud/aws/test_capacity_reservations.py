"""Capacity reservations and placement groups: selected, offered, used by launches, and reported by conditions."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.cloud.aws.aws_settings import Clients
from journeyman.cloud.aws.provider import AwsCloudProvider
from journeyman.core.api import labels
from journeyman.errors import InsufficientCapacityError
from journeyman.ports import Launched, LaunchFailed
from journeyman_simulator.in_process_account.account import REGION
from tests.unit.cloud.aws.conftest import DISCOVERED, launching_claim

ZONE, OTHER_ZONE = "us-east-1a", "us-east-1b"


def a_condition(node_class, type_):
    """Return status, reason and message of a condition; None if it is missing."""
    found = [c for c in node_class["status"]["conditions"] if c["type"] == type_]
    return (found[0]["status"], found[0]["reason"], found[0]["message"]) if found else None


def reserved(provider, node_class):
    """Return (type, zone, reservation, free, available) of the reserved offerings."""
    return [
        (t.name, o.zone, o.reservation_id, o.reservation_capacity, o.available)
        for t in provider.get_instance_types(node_class)
        for o in t.offerings
        if o.capacity_type == labels.RESERVED
    ]


@pytest.mark.parametrize(
    ("term", "found"),
    [
        ({"tags": {"team": "ml"}}, ["tagged"]),
        ({"tags": {"team": "*"}}, ["tagged"]),
        ({"ownerID": "999999999999", "instanceMatchCriteria": "open"}, ["shared"]),
        ({"instanceMatchCriteria": "targeted"}, ["tagged"]),
        ({"id": "cr-0000000000000000f"}, []),
    ],
)
def test_selector_terms_find_active_reservations(aws, resolved, term, found):
    """All fields of a term must match; a term for a missing reservation finds none."""
    ids = {
        "tagged": aws.reserved_capacity.reserve("m5.large", ZONE, 2, tags={"team": "ml"}).id,
        "shared": aws.reserved_capacity.reserve("m5.large", ZONE, 2, owner="999999999999", criteria="open").id,
        "ended": aws.reserved_capacity.reserve("m5.large", ZONE, 2, state="expired", tags={"team": "ml"}).id,
    }
    node_class = resolved(capacityReservationSelectorTerms=[term])

    assert [r["id"] for r in node_class["status"]["capacityReservations"]] == [ids[name] for name in found]
    assert a_condition(node_class, "CapacityReservationsReady")[0] == a_condition(node_class, "Ready")[0] == "True"


def test_reservation_is_offered_with_its_free_capacity(aws, provider, resolved, clock):
    """It costs next to nothing, and only its type and zone have it; the count is read every minute."""
    one = aws.reserved_capacity.reserve("m5.large", ZONE, 2)
    node_class = resolved(capacityReservationSelectorTerms=[{"id": one.id}])
    types = {t.name: t for t in provider.get_instance_types(node_class)}
    [offering] = [o for o in types["m5.large"].offerings if o.capacity_type == labels.RESERVED]

    assert reserved(provider, node_class) == [("m5.large", ZONE, one.id, 2, True)]
    assert offering.price == pytest.approx(0.096 / 10_000_000)
    assert {r.key: r.values for r in types["m5.large"].requirements}[labels.CAPACITY_TYPE] == (
        "on-demand",
        "reserved",
        "spot",
    )
    assert provider.get_instance_types(node_class) is provider.get_instance_types(node_class)

    one.total = 0
    clock.advance(61)
    assert reserved(provider, node_class) == [("m5.large", ZONE, one.id, 0, False)]


def test_launch_uses_the_reservation_until_it_is_used_up(aws, provider, resolved, launch, clock):
    """The instance carries the reservation's labels; then no offering is left, and EC2's refusal marks it unavailable."""
    one = aws.reserved_capacity.reserve("m5.large", ZONE, 1)
    node_class = resolved(capacityReservationSelectorTerms=[{"id": one.id}])
    stale = provider.get_instance_types(node_class)
    outcome = launch(launching_claim("a", clock.now(), capacity_type="reserved", reservation=one.id), node_class)

    assert isinstance(outcome, Launched)
    assert {key: outcome.labels.get(key) for key in (labels.CAPACITY_TYPE, labels.RESERVATION_ID, labels.ZONE)} == {
        labels.CAPACITY_TYPE: "reserved",
        labels.RESERVATION_ID: one.id,
        labels.ZONE: ZONE,
    }
    assert outcome.labels["karpenter.k8s.aws/capacity-reservation-type"] == "default"
    assert provider.get(outcome.instance.provider_id).capacity_type == "reserved"
    assert reserved(provider, node_class) == [("m5.large", ZONE, one.id, 0, False)]

    late = launching_claim("b", clock.now(), capacity_type="reserved", reservation=one.id)
    refused = launch(late, node_class, types=stale)
    assert isinstance(refused, LaunchFailed)
    assert isinstance(refused.error, InsufficientCapacityError)
    assert refused.unavailable == (("m5.large", ZONE, "reserved"),)


def test_instance_is_on_demand_once_its_reservation_has_ended(aws, provider, resolved, launch, clock):
    """EC2 does not end it; the terminate step labels its NodeClaim and Node anew (`relabel_unreserved`)."""
    one = aws.reserved_capacity.reserve("m5.large", ZONE, 1)
    node_class = resolved(capacityReservationSelectorTerms=[{"id": one.id}])
    launch(launching_claim("a", clock.now(), capacity_type="reserved", reservation=one.id), node_class)
    assert [instance.capacity_type for instance in provider.list()] == ["reserved"]

    one.state = "expired"
    assert [instance.capacity_type for instance in provider.list()] == ["on-demand"]


def test_adopted_instance_keeps_the_labels_of_its_reservation(aws, resolved, launch, clock):
    """The first launch succeeded, but its result was lost."""
    one = aws.reserved_capacity.reserve("m5.large", ZONE, 1)
    node_class = resolved(capacityReservationSelectorTerms=[{"id": one.id}])
    claim = launching_claim("a", clock.now(), capacity_type="reserved", reservation=one.id)
    first, second = launch(claim, node_class), launch(claim, node_class)

    assert second.instance.provider_id == first.instance.provider_id
    assert second.labels == first.labels


def test_claim_that_admits_several_reservations_uses_the_one_with_most_capacity(aws, resolved, launch, clock):
    """A launch targets one of them."""
    few, many = (aws.reserved_capacity.reserve("m5.large", ZONE, n, tags={"team": "ml"}) for n in (1, 5))
    node_class = resolved(capacityReservationSelectorTerms=[{"tags": {"team": "ml"}}])
    outcome = launch(launching_claim("a", clock.now(), capacity_type="reserved"), node_class)

    assert outcome.labels[labels.RESERVATION_ID] == many.id
    assert aws.reserved_capacity.available(few) == 1


def test_capacity_block_is_launched_by_its_market_and_expires_before_its_end(aws, provider, resolved, launch, clock):
    """EC2 terminates its instances half an hour before the end."""
    ends = clock.now() + timedelta(hours=2)
    block = aws.reserved_capacity.reserve("m5.large", ZONE, 2, kind="capacity-block", ends=ends)
    node_class = resolved(capacityReservationSelectorTerms=[{"id": block.id}])
    outcome = launch(launching_claim("a", clock.now(), capacity_type="reserved"), node_class)
    assert outcome.labels["karpenter.k8s.aws/capacity-reservation-type"] == "capacity-block"

    clock.advance(81 * 60)
    later = resolved(status=node_class["status"], capacityReservationSelectorTerms=[{"id": block.id}])
    assert later["status"]["capacityReservations"][0]["state"] == "expiring"
    assert [available for *_, available in reserved(provider, later)] == [False]


def test_interruptible_reservation_is_reported_and_not_used(aws, provider, resolved):
    """The condition names it."""
    one = aws.reserved_capacity.reserve("m5.large", ZONE, 2, interruptible=True)
    node_class = resolved(capacityReservationSelectorTerms=[{"id": one.id}])

    assert reserved(provider, node_class) == []
    message = f"interruptible capacity reservations are not used: {one.id}"
    assert a_condition(node_class, "CapacityReservationsReady") == ("True", "CapacityReservationsReady", message)


def test_disabled_feature_gate_is_reported(aws, settings, clock):
    """The NodeClass stays Ready, as Karpenter ignores the field then."""
    one = aws.reserved_capacity.reserve("m5.large", ZONE, 2)
    clients = Clients(lambda service, region: aws.client(service), REGION)
    provider = AwsCloudProvider(clients, replace(settings, reserved_capacity=False), clock)
    spec = {
        "amiSelectorTerms": [{"alias": "al2023@latest"}],
        "role": "first",
        "subnetSelectorTerms": DISCOVERED,
        "securityGroupSelectorTerms": DISCOVERED,
        "capacityReservationSelectorTerms": [{"id": one.id}],
    }
    body = {"metadata": {"name": "default", "uid": "u", "generation": 1}, "spec": spec}
    body["status"] = provider.resolve(body, clock.now())

    assert a_condition(body, "CapacityReservationsReady")[:2] == ("False", "ReservedCapacityDisabled")
    assert a_condition(body, "Ready")[0] == "True"
    assert reserved(provider, body) == []


def test_conditions_of_selectors_go_with_them(aws, resolved):
    """Without terms there are neither reservations nor a condition."""
    one = aws.reserved_capacity.reserve("m5.large", ZONE, 2)
    before = resolved(capacityReservationSelectorTerms=[{"id": one.id}])
    after = resolved(status=before["status"])

    assert after["status"]["capacityReservations"] == []
    assert a_condition(after, "CapacityReservationsReady") is None


def test_on_demand_launches_leave_open_reservations_to_their_users(aws, resolved, launch, clock):
    """EC2 would otherwise use an open reservation that no NodeClass selects, or that another one does."""
    launch(launching_claim("a", clock.now()), resolved())
    found = aws.client("ec2").describe_launch_templates()["LaunchTemplates"]
    [version] = aws.client("ec2").describe_launch_template_versions(LaunchTemplateId=found[0]["LaunchTemplateId"])[
        "LaunchTemplateVersions"
    ]

    preference = version["LaunchTemplateData"]["CapacityReservationSpecification"]
    assert preference == {"CapacityReservationPreference": "none"}


@pytest.mark.parametrize("by", ["name", "id"])
def test_instances_are_placed_in_the_placement_group(aws, resolved, launch, clock, by):
    """It is selected by name or by id."""
    group = aws.reserved_capacity.add_group("near")
    node_class = resolved(placementGroupSelector={by: getattr(group, by)})
    outcome = launch(launching_claim("a", clock.now()), node_class)
    instance_id = outcome.instance.provider_id.rpartition("/")[2]
    reply = aws.client("ec2").describe_instances(InstanceIds=[instance_id])
    placement = reply["Reservations"][0]["Instances"][0]["Placement"]

    assert a_condition(node_class, "PlacementGroupReady")[0] == "True"
    assert getattr(group, by) in placement.values()


def test_missing_placement_group_makes_the_node_class_unready(aws, resolved):
    """A launch could only fail."""
    aws.reserved_capacity.add_group("going", state="deleting")
    for name in ("missing", "going"):
        node_class = resolved(placementGroupSelector={"name": name})
        reason, message = "PlacementGroupNotFound", f"there is no available placement group {name}"
        assert a_condition(node_class, "PlacementGroupReady") == ("False", reason, message)
        assert a_condition(node_class, "Ready")[0] == "False"
