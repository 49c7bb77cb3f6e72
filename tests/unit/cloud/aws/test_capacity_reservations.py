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
from tests.unit.cloud.aws.conftest import DISCOVERED, START, launching_claim

ZONE, OTHER_ZONE = "us-east-1a", "us-east-1b"
GROUP_ID, PARTITION = "karpenter.k8s.aws/placement-group-id", "karpenter.k8s.aws/placement-group-partition"
INTERRUPTIBLE = "karpenter.k8s.aws/capacity-reservation-interruptible"


TEAM = {"capacityReservationSelectorTerms": [{"tags": {"team": "ml"}}]}


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
    """The instance carries the reservation's labels; then no offering is left, and EC2's refusal marks it unavailable.

    A launch whose result was lost is adopted with these labels. Once the reservation has ended, the instance is on-demand:
    EC2 does not end it, and the terminate step labels its NodeClaim and Node anew (`relabel_unreserved`).
    """
    one = aws.reserved_capacity.reserve("m5.large", ZONE, 1)
    node_class = resolved(capacityReservationSelectorTerms=[{"id": one.id}])
    stale = provider.get_instance_types(node_class)
    claim = launching_claim("a", clock.now(), capacity_type="reserved", reservation=one.id)
    outcome = launch(claim, node_class)

    assert isinstance(outcome, Launched)
    assert {key: outcome.labels.get(key) for key in (labels.CAPACITY_TYPE, labels.RESERVATION_ID, labels.ZONE)} == {
        labels.CAPACITY_TYPE: "reserved",
        labels.RESERVATION_ID: one.id,
        labels.ZONE: ZONE,
    }
    assert outcome.labels["karpenter.k8s.aws/capacity-reservation-type"] == "default"
    assert provider.get_each([outcome.instance.provider_id])[outcome.instance.provider_id].capacity_type == "reserved"
    assert reserved(provider, node_class) == [("m5.large", ZONE, one.id, 0, False)]
    adopted = launch(claim, node_class)
    assert (adopted.instance.provider_id, adopted.labels) == (outcome.instance.provider_id, outcome.labels)

    late = launching_claim("b", clock.now(), capacity_type="reserved", reservation=one.id)
    refused = launch(late, node_class, types=stale)
    assert isinstance(refused, LaunchFailed)
    assert isinstance(refused.error, InsufficientCapacityError)
    assert refused.unavailable == (OfferingKey("m5.large", ZONE, "reserved", one.id),)

    assert [instance.capacity_type for instance in provider.list()] == ["reserved"]
    one.state = "expired"
    assert [instance.capacity_type for instance in provider.list()] == ["on-demand"]


def test_used_up_reservation_leaves_others_of_its_type_and_zone_in_use(aws, provider, resolved):
    """Otherwise their users would pay for on-demand capacity, up to an hour at a time."""
    full, free = (aws.reserved_capacity.reserve("m5.large", ZONE, 1, tags={"team": "ml"}) for _ in range(2))
    types = provider.get_instance_types(resolved(**TEAM))

    def left(*keys):
        entries = [Unavailable(**OfferingKey("m5.large", ZONE, *key)._asdict(), until=later) for key in keys]
        marked = without_unavailable(types, entries)
        return [o.reservation_id for t in marked for o in t.offerings if o.reservation_id and o.available]

    later = START + timedelta(minutes=3)
    assert left(("reserved", full.id)) == [free.id]
    assert left(("reserved",)) == []
    assert left(("on-demand",)) == [full.id, free.id]


def test_claim_that_admits_several_reservations_uses_the_one_with_most_capacity(aws, resolved, launch, clock):
    few, many = (aws.reserved_capacity.reserve("m5.large", ZONE, n, tags={"team": "ml"}) for n in (1, 5))
    outcome = launch(launching_claim("a", clock.now(), capacity_type="reserved"), resolved(**TEAM))

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


def test_interruptible_reservation_is_launched_by_its_market(aws, provider, resolved, launch, clock):
    """EC2 refuses the launch by any other one; the NodeClaim's label says that the instance may be interrupted."""
    one = aws.reserved_capacity.reserve("m5.large", ZONE, 1, interruptible=True)
    node_class = resolved(capacityReservationSelectorTerms=[{"id": one.id}])
    assert reserved(provider, node_class) == [("m5.large", ZONE, one.id, 1, True)]

    outcome = launch(launching_claim("a", clock.now(), capacity_type="reserved"), node_class)

    assert isinstance(outcome, Launched), outcome.error
    assert outcome.labels[INTERRUPTIBLE] == "true"
    assert outcome.labels[labels.RESERVATION_ID] == one.id
    assert provider.get_each([outcome.instance.provider_id])[outcome.instance.provider_id].capacity_type == "reserved"
    assert reserved(provider, node_class) == [("m5.large", ZONE, one.id, 0, False)]
    assert a_condition(node_class, "CapacityReservationsReady")[0] == "True"


@pytest.mark.parametrize("interruptible", [True, False])
def test_claim_may_ask_for_interruptible_reservations_or_exclude_them(aws, resolved, launch, clock, interruptible):
    """Types offer the label with the values of their reservations."""
    for each in (True, False):
        aws.reserved_capacity.reserve("m5.large", ZONE, 1, interruptible=each, tags={"team": "ml"})
    claim = launching_claim("a", clock.now(), capacity_type="reserved", interruptible=str(interruptible).lower())

    assert launch(claim, resolved(**TEAM)).labels[INTERRUPTIBLE] == str(interruptible).lower()


def test_reservations_that_ec2_may_interrupt_are_used_last(aws, provider, resolved, launch, clock):
    ends = clock.now() + timedelta(days=2)
    many, some, few = (
        aws.reserved_capacity.reserve("m5.large", ZONE, number, tags={"team": "ml"}, **kind)
        for number, kind in ((9, {"interruptible": True}), (5, {"kind": "capacity-block", "ends": ends}), (1, {}))
    )
    node_class = resolved(**TEAM)
    types = provider.get_instance_types(node_class)
    prices = {o.reservation_id: o.price for t in types for o in t.offerings}

    used = [
        launch(launching_claim(str(n), clock.now(), capacity_type="reserved"), node_class).labels[labels.RESERVATION_ID]
        for n in range(7)
    ]

    assert used == [few.id] + [some.id] * 5 + [many.id]

    assert prices[few.id] < prices[some.id] < prices[many.id] < prices[few.id] * 1.00001


def test_plan_uses_default_reservations_before_interruptible_ones(aws, provider, resolved):
    """The ids are in the other order."""
    many = aws.reserved_capacity.reserve("m5.large", ZONE, 9, interruptible=True, tags={"team": "ml"})
    few = aws.reserved_capacity.reserve("m5.large", ZONE, 2, tags={"team": "ml"})
    pods = [a_pod(f"p{n}", cpu="1500m") for n in range(3)]
    plan = schedule(*pods, types=provider.get_instance_types(resolved(**TEAM)))

    assert sorted(plan.label_of(f"p{n}", labels.RESERVATION_ID) for n in range(3)) == sorted([few.id, few.id, many.id])


@pytest.mark.parametrize("interruptible", ["true", "false"])
def test_pod_may_select_or_refuse_interruptible_reservations(aws, provider, resolved, interruptible):
    """The label is a node selector like any other; without such a reservation the pod has no node."""
    ids = {
        str(each).lower(): aws.reserved_capacity.reserve(
            "m5.large", ZONE, 1, interruptible=each, tags={"team": str(each).lower()}
        ).id
        for each in (True, False)
    }
    both = [{"tags": {"team": "true"}}, {"tags": {"team": "false"}}]
    types = provider.get_instance_types(resolved(capacityReservationSelectorTerms=both))
    others = [{"tags": {"team": "false" if interruptible == "true" else "true"}}]
    without = provider.get_instance_types(resolved(capacityReservationSelectorTerms=others))
    pod = a_pod("p", spec={"nodeSelector": {INTERRUPTIBLE: interruptible}})

    assert schedule(pod, types=types).label_of("p", labels.RESERVATION_ID) == ids[interruptible]
    assert schedule(pod, types=without).node_of("p") is None


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
    aws.reserved_capacity.reserve("m5.large", ZONE, 2, tags={"team": "ml"})
    after = resolved(status=resolved(**TEAM)["status"])

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


def placement(aws, outcome):
    assert isinstance(outcome, Launched), outcome.error
    instance_id = outcome.instance.provider_id.rpartition("/")[2]
    return aws.client("ec2").describe_instances(InstanceIds=[instance_id])["Reservations"][0]["Instances"][0][
        "Placement"
    ]


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


def test_claim_with_a_partition_is_launched_there(aws, resolved, launch, clock):
    """Its label says so, also when an earlier run launched the instance."""
    aws.reserved_capacity.add_group("racks", strategy="partition", partitions=3)
    node_class = resolved(placementGroupSelector={"name": "racks"})
    claim = launching_claim("a", clock.now(), partition="2")
    first, second = launch(claim, node_class), launch(claim, node_class)

    assert placement(aws, first)["PartitionNumber"] == 2
    assert first.labels[PARTITION] == "2"
    assert (second.instance.provider_id, second.labels) == (first.instance.provider_id, first.labels)


def test_claims_without_a_partition_spread_over_all(aws, resolved, launch, clock):
    """The label names the partition that was used; a claim that is launched again keeps its partition."""
    aws.reserved_capacity.add_group("racks", strategy="partition", partitions=3)
    node_class = resolved(placementGroupSelector={"name": "racks"})
    outcomes = [launch(launching_claim(f"c{n}", clock.now()), node_class) for n in range(30)]
    used = Counter(outcome.labels[PARTITION] for outcome in outcomes)

    assert [outcome.labels[PARTITION] for outcome in outcomes] == [
        str(placement(aws, outcome)["PartitionNumber"]) for outcome in outcomes
    ]
    assert set(used) == {"1", "2", "3"}
    assert min(used.values()) >= 5


def test_group_that_lost_its_partitions_fails_the_claim_that_requires_one(aws, resolved, provider, launch, clock):
    """It was created again with fewer; the error names their number, and nothing is launched."""
    group = aws.reserved_capacity.add_group("racks", strategy="partition", partitions=3)
    node_class = resolved(placementGroupSelector={"name": "racks"})
    types = provider.get_instance_types(node_class)
    group.partitions = 2
    clock.advance(61)
    refused = launch(launching_claim("a", clock.now(), partition="3"), node_class, types=types)

    assert isinstance(refused.error, CreateError)
    assert "has 2 partitions" in str(refused.error)


def test_pods_spread_over_the_partitions_or_select_one(aws, provider, resolved):
    """A topology spread over the label with the partition, as Karpenter offers it: each NodeClaim is for one partition.

    A NodeClass without partitions has no node for a pod that selects one.
    """
    aws.reserved_capacity.add_group("racks", strategy="partition", partitions=3)
    types = provider.get_instance_types(resolved(placementGroupSelector={"name": "racks"}))
    spread = {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "db"}}}
    spec = {"topologySpreadConstraints": [{**spread, "topologyKey": PARTITION}]}
    pods = [a_pod(f"db-{n}", metadata={"labels": {"app": "db"}}, spec=spec) for n in range(7)]
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
