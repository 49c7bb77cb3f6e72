"""Capacity reservations and placement groups: selected, offered, used by launches, and reported by conditions."""

from collections import Counter
from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.cloud.aws.aws_settings import Clients
from journeyman.cloud.aws.provider import AwsCloudProvider
from journeyman.core.api import labels
from journeyman.core.api.objects import OfferingKey
from journeyman.core.catalogue import Unavailable, without_unavailable
from journeyman.errors import CreateError, InsufficientCapacityError, NodeClassNotReadyError
from journeyman.ports import Launched, LaunchFailed
from journeyman_simulator.in_process_account.account import REGION
from tests.helpers.builders import a_pod
from tests.helpers.karpenter_suite import schedule
from tests.helpers.small_clusters import spread
from tests.unit.cloud.aws.conftest import START, launching_claim

ZONE, OTHER_ZONE = "us-east-1a", "us-east-1b"
GROUP_ID, PARTITION = "karpenter.k8s.aws/placement-group-id", "karpenter.k8s.aws/placement-group-partition"
INTERRUPTIBLE = "karpenter.k8s.aws/capacity-reservation-interruptible"
KIND = "karpenter.k8s.aws/capacity-reservation-type"


TEAM = {"capacityReservationSelectorTerms": [{"tags": {"team": "ml"}}]}
RACKS = {"placementGroupSelector": {"name": "racks"}}


@pytest.fixture
def reserve(aws):
    """Return a function that reserves m5.large, by default two instances, with the tag that `TEAM` selects."""

    def one(count=2, *, team="ml", **given):
        return aws.reserved_capacity.reserve("m5.large", ZONE, count, tags={"team": team} if team else {}, **given)

    return one


@pytest.fixture
def racks(aws):
    """Create a placement group with three partitions, which `RACKS` selects."""
    return aws.reserved_capacity.add_group("racks", strategy="partition", partitions=3)


@pytest.fixture
def launch_reserved(launch, clock):
    """Return a function that launches a NodeClaim for reserved capacity."""

    def one(node_class, name="a", types=None, **requirements):
        claim = launching_claim(name, clock.now(), capacity_type="reserved", **requirements)
        return launch(claim, node_class, **({"types": types} if types else {}))

    return one


def selected(reservation):
    return {"capacityReservationSelectorTerms": [{"id": reservation.id}]}


def capacity_type_of(provider, outcome):
    assert isinstance(outcome, Launched), outcome.error
    return provider.get_each([outcome.instance.provider_id])[outcome.instance.provider_id].capacity_type


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
def test_selector_terms_find_active_reservations(reserve, resolved, term, found):
    """All fields of a term must match; a term for a missing reservation finds none."""
    shared = reserve(team=None, owner="999999999999", criteria="open")
    ids = {"tagged": reserve().id, "shared": shared.id, "ended": reserve(state="expired").id}
    node_class = resolved(capacityReservationSelectorTerms=[term])
    assert [r["id"] for r in node_class["status"]["capacityReservations"]] == [ids[name] for name in found]
    assert a_condition(node_class, "CapacityReservationsReady")[0] == a_condition(node_class, "Ready")[0] == "True"


def test_reservation_is_offered_with_its_free_capacity(reserve, provider, resolved, clock):
    """It costs next to nothing, and only its type and zone have it; the count is read every minute."""
    one = reserve()
    node_class = resolved(**selected(one))
    types = {t.name: t for t in provider.get_instance_types(node_class)}
    [offering] = [o for o in types["m5.large"].offerings if o.capacity_type == labels.RESERVED]
    capacity_types = {r.key: r.values for r in types["m5.large"].requirements}[labels.CAPACITY_TYPE]

    assert reserved(provider, node_class) == [("m5.large", ZONE, one.id, 2, True)]
    assert offering.price == pytest.approx(0.096 / 10_000_000)
    assert capacity_types == ("on-demand", "reserved", "spot")
    assert provider.get_instance_types(node_class) is provider.get_instance_types(node_class)

    one.total = 0
    clock.advance(61)
    assert reserved(provider, node_class) == [("m5.large", ZONE, one.id, 0, False)]


def test_launch_uses_the_reservation_until_it_is_used_up(reserve, provider, resolved, launch_reserved):
    """The instance carries the reservation's labels; then no offering is left, and EC2's refusal marks it unavailable.

    A launch whose result was lost is adopted with these labels. Once the reservation has ended, the instance is on-demand:
    EC2 does not end it, and the terminate step labels its NodeClaim and Node anew (`relabel_unreserved`).
    """
    one = reserve(1)
    node_class = resolved(**selected(one))
    stale = provider.get_instance_types(node_class)
    outcome = launch_reserved(node_class, reservation=one.id)

    assert capacity_type_of(provider, outcome) == "reserved"
    expected = {labels.CAPACITY_TYPE: "reserved", labels.RESERVATION_ID: one.id, labels.ZONE: ZONE, KIND: "default"}
    assert outcome.labels.items() >= expected.items()
    assert reserved(provider, node_class) == [("m5.large", ZONE, one.id, 0, False)]
    adopted = launch_reserved(node_class, reservation=one.id)
    assert (adopted.instance.provider_id, adopted.labels) == (outcome.instance.provider_id, outcome.labels)

    refused = launch_reserved(node_class, "b", types=stale, reservation=one.id)
    assert isinstance(refused, LaunchFailed)
    assert isinstance(refused.error, InsufficientCapacityError)
    assert refused.unavailable == (OfferingKey("m5.large", ZONE, "reserved", one.id),)

    assert [instance.capacity_type for instance in provider.list()] == ["reserved"]
    one.state = "expired"
    assert [instance.capacity_type for instance in provider.list()] == ["on-demand"]


def test_used_up_reservation_leaves_others_of_its_type_and_zone_in_use(reserve, provider, resolved):
    """Otherwise their users would pay for on-demand capacity, up to an hour at a time."""
    full, free = reserve(1), reserve(1)
    types = provider.get_instance_types(resolved(**TEAM))

    def left(*key):
        entry = Unavailable(**OfferingKey("m5.large", ZONE, *key)._asdict(), until=START + timedelta(minutes=3))
        offerings = [o for t in without_unavailable(types, [entry]) for o in t.offerings]
        return [o.reservation_id for o in offerings if o.reservation_id and o.available]

    assert left("reserved", full.id) == [free.id]
    assert left("reserved") == []
    assert left("on-demand") == [full.id, free.id]


def test_claim_that_admits_several_reservations_uses_the_one_with_most_capacity(
    aws, reserve, resolved, launch_reserved
):
    few, many = reserve(1), reserve(5)
    assert launch_reserved(resolved(**TEAM)).labels[labels.RESERVATION_ID] == many.id
    assert aws.reserved_capacity.available(few) == 1


def test_capacity_block_is_launched_by_its_market_and_expires_before_its_end(
    reserve, provider, resolved, launch_reserved, clock
):
    """EC2 terminates its instances half an hour before the end."""
    block = reserve(kind="capacity-block", ends=clock.now() + timedelta(hours=2))
    node_class = resolved(**selected(block))
    assert launch_reserved(node_class).labels[KIND] == "capacity-block"

    clock.advance(81 * 60)
    later = resolved(status=node_class["status"], **selected(block))
    assert later["status"]["capacityReservations"][0]["state"] == "expiring"
    assert [available for *_, available in reserved(provider, later)] == [False]


def test_interruptible_reservation_is_launched_by_its_market(reserve, provider, resolved, launch_reserved):
    """EC2 refuses the launch by any other one; the NodeClaim's label says that the instance may be interrupted."""
    one = reserve(1, interruptible=True)
    node_class = resolved(**selected(one))
    assert reserved(provider, node_class) == [("m5.large", ZONE, one.id, 1, True)]

    outcome = launch_reserved(node_class)

    assert capacity_type_of(provider, outcome) == "reserved"
    assert (outcome.labels[INTERRUPTIBLE], outcome.labels[labels.RESERVATION_ID]) == ("true", one.id)
    assert reserved(provider, node_class) == [("m5.large", ZONE, one.id, 0, False)]
    assert a_condition(node_class, "CapacityReservationsReady")[0] == "True"


@pytest.mark.parametrize("interruptible", ["true", "false"])
def test_claim_or_pod_may_ask_for_interruptible_reservations_or_exclude_them(
    reserve, provider, resolved, launch_reserved, interruptible
):
    """The label is a node selector like any other; without such a reservation the pod has no node."""
    ids = {team: reserve(1, interruptible=team == "true", team=team).id for team in ("true", "false")}
    terms = [{"tags": {"team": team}} for team in ids]
    node_class = resolved(capacityReservationSelectorTerms=terms)
    types = provider.get_instance_types(node_class)
    others = [term for term in terms if term["tags"]["team"] != interruptible]
    without = provider.get_instance_types(resolved(capacityReservationSelectorTerms=others))
    pod = a_pod("p", spec={"nodeSelector": {INTERRUPTIBLE: interruptible}})

    assert schedule(pod, types=types).label_of("p", labels.RESERVATION_ID) == ids[interruptible]
    assert schedule(pod, types=without).node_of("p") is None
    assert launch_reserved(node_class, interruptible=interruptible).labels[INTERRUPTIBLE] == interruptible


def test_reservations_that_ec2_may_interrupt_are_used_last(reserve, provider, resolved, launch_reserved, clock):
    many, some = reserve(9, interruptible=True), reserve(5, kind="capacity-block", ends=clock.now() + timedelta(days=2))
    few = reserve(1)
    node_class = resolved(**TEAM)
    types = provider.get_instance_types(node_class)
    prices = {o.reservation_id: o.price for t in types for o in t.offerings}

    used = [launch_reserved(node_class, str(n)).labels[labels.RESERVATION_ID] for n in range(7)]

    assert used == [few.id] + [some.id] * 5 + [many.id]
    assert prices[few.id] < prices[some.id] < prices[many.id] < prices[few.id] * 1.00001


def test_plan_uses_default_reservations_before_interruptible_ones(reserve, provider, resolved):
    """The ids are in the other order."""
    many, few = reserve(9, interruptible=True), reserve(2)
    pods = [a_pod(f"p{n}", cpu="1500m") for n in range(3)]
    plan = schedule(*pods, types=provider.get_instance_types(resolved(**TEAM)))
    assert sorted(plan.label_of(f"p{n}", labels.RESERVATION_ID) for n in range(3)) == sorted([few.id, few.id, many.id])


def test_disabled_feature_gate_is_reported(aws, reserve, resolved, settings, clock):
    """The NodeClass stays Ready, as Karpenter ignores the field then."""
    clients = Clients(lambda service, region: aws.client(service), REGION)
    provider = AwsCloudProvider(clients, replace(settings, reserved_capacity=False), clock)
    body = {**resolved(**selected(reserve())), "status": {}}
    body["status"] = provider.resolve(body, clock.now())

    assert a_condition(body, "CapacityReservationsReady")[:2] == ("False", "ReservedCapacityDisabled")
    assert a_condition(body, "Ready")[0] == "True"
    assert reserved(provider, body) == []


def test_conditions_of_selectors_go_with_them(reserve, resolved):
    reserve()
    after = resolved(status=resolved(**TEAM)["status"])
    assert after["status"]["capacityReservations"] == []
    assert a_condition(after, "CapacityReservationsReady") is None


def test_on_demand_launches_leave_open_reservations_to_their_users(aws, resolved, launch, clock):
    """EC2 would otherwise use an open reservation that no NodeClass selects, or that another one does."""
    launch(launching_claim("a", clock.now()), resolved())
    ec2 = aws.client("ec2")
    template = ec2.describe_launch_templates()["LaunchTemplates"][0]["LaunchTemplateId"]
    [version] = ec2.describe_launch_template_versions(LaunchTemplateId=template)["LaunchTemplateVersions"]
    preference = version["LaunchTemplateData"]["CapacityReservationSpecification"]
    assert preference == {"CapacityReservationPreference": "none"}


def placement(aws, outcome):
    assert isinstance(outcome, Launched), outcome.error
    instance_id = outcome.instance.provider_id.rpartition("/")[2]
    [found] = aws.client("ec2").describe_instances(InstanceIds=[instance_id])["Reservations"]
    return found["Instances"][0]["Placement"]


@pytest.mark.parametrize("by", ["name", "id"])
def test_instances_are_placed_in_the_placement_group(aws, provider, resolved, launch, clock, by):
    """The label has its id, for pods that select it; EC2 supports cluster placement groups for some types only."""
    group = aws.reserved_capacity.add_group("near")
    node_class = resolved(placementGroupSelector={by: getattr(group, by)})
    outcome = launch(launching_claim("a", clock.now()), node_class)

    assert a_condition(node_class, "PlacementGroupReady")[0] == "True"
    assert placement(aws, outcome)["GroupId"] == group.id
    assert outcome.labels[GROUP_ID] == group.id
    assert PARTITION not in outcome.labels
    usable = {t.name: any(o.available for o in t.offerings) for t in provider.get_instance_types(node_class)}
    assert (usable["m5.large"], usable["t3.large"]) == (True, False)


def test_launch_waits_for_a_placement_group_that_was_deleted_meanwhile(aws, resolved, launch, clock):
    """Without it the instance would be anywhere."""
    aws.reserved_capacity.add_group("near")
    node_class = resolved(placementGroupSelector={"name": "near"})
    del aws.reserved_capacity.groups["near"]
    clock.advance(61)
    refused = launch(launching_claim("a", clock.now()), node_class)
    assert isinstance(refused.error, NodeClassNotReadyError)


def test_claim_with_a_partition_is_launched_there(aws, racks, resolved, launch, clock):
    """Its label says so, also when an earlier run launched the instance."""
    node_class, claim = resolved(**RACKS), launching_claim("a", clock.now(), partition="2")
    first, second = launch(claim, node_class), launch(claim, node_class)
    assert (placement(aws, first)["PartitionNumber"], first.labels[PARTITION]) == (2, "2")
    assert (second.instance.provider_id, second.labels) == (first.instance.provider_id, first.labels)


def test_claims_without_a_partition_spread_over_all(aws, racks, resolved, launch, clock):
    """The label names the partition that was used; a claim that is launched again keeps its partition."""
    node_class = resolved(**RACKS)
    outcomes = [launch(launching_claim(f"c{n}", clock.now()), node_class) for n in range(30)]
    labelled = [outcome.labels[PARTITION] for outcome in outcomes]
    used = Counter(labelled)

    assert labelled == [str(placement(aws, outcome)["PartitionNumber"]) for outcome in outcomes]
    assert set(used) == {"1", "2", "3"}
    assert min(used.values()) >= 5


def test_group_that_lost_its_partitions_fails_the_claim_that_requires_one(racks, resolved, provider, launch, clock):
    """It was created again with fewer; the error names their number, and nothing is launched."""
    node_class = resolved(**RACKS)
    types = provider.get_instance_types(node_class)
    racks.partitions = 2
    clock.advance(61)
    refused = launch(launching_claim("a", clock.now(), partition="3"), node_class, types=types)

    assert isinstance(refused.error, CreateError)
    assert "has 2 partitions" in str(refused.error)


def test_pods_spread_over_the_partitions_or_select_one(racks, provider, resolved):
    """A topology spread over the label with the partition, as Karpenter offers it: each NodeClaim is for one partition.

    A NodeClass without partitions has no node for a pod that selects one.
    """
    types = provider.get_instance_types(resolved(**RACKS))
    pods = [a_pod(f"db-{n}", metadata={"labels": {"app": "db"}}, spec=spread(PARTITION, app="db")) for n in range(7)]
    plan = schedule(*pods, types=types)
    assert plan.by_label(PARTITION) == [2, 2, 3]
    assert all(plan.manifest_of(f"db-{n}") for n in range(7))

    third = a_pod("db", spec={"nodeSelector": {PARTITION: "3"}})
    assert schedule(third, types=types).label_of("db", PARTITION) == "3"
    assert schedule(third, types=provider.get_instance_types(resolved())).node_of("db") is None


def test_spread_placement_group_takes_seven_instances_in_a_zone(aws, resolved, launch, clock):
    """The eighth is refused, whatever its type: the zone is skipped for this NodeClass."""
    aws.reserved_capacity.add_group("apart", strategy="spread")
    node_class = resolved(placementGroupSelector={"name": "apart"})
    for n in range(7):
        launch(launching_claim(f"c{n}", clock.now(), zone=ZONE), node_class)
    refused = launch(launching_claim("late", clock.now(), zone=ZONE), node_class)

    assert isinstance(refused, LaunchFailed)
    assert isinstance(refused.error, InsufficientCapacityError)
    assert refused.unavailable == (OfferingKey("*", ZONE, "on-demand"),)


def test_missing_placement_group_makes_the_node_class_unready(aws, resolved):
    """A launch could only fail."""
    aws.reserved_capacity.add_group("going", state="deleting")
    for name in ("missing", "going"):
        node_class = resolved(placementGroupSelector={"name": name})
        reason, message = "PlacementGroupNotFound", f"there is no available placement group {name}"
        assert a_condition(node_class, "PlacementGroupReady") == ("False", reason, message)
        assert a_condition(node_class, "Ready")[0] == "False"
