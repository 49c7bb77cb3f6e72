"""Every cloud's provider launches at most one instance for a NodeClaim, and finds it again after a crash."""

import threading

import msgspec
import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeSelectorRequirement, OfferingKey
from journeyman.errors import (
    CreateError,
    InsufficientCapacityError,
    NodeClaimNotFoundError,
    NodeClassNotReadyError,
    RateLimitedError,
)
from journeyman.ports import Launched, LaunchFailed


def ids(instances):
    """Return the provider ids of instances."""
    return [instance.provider_id for instance in instances]


def test_launched_claim_gets_labels_capacity_price_and_hash(cloud, launch, request_for, provider, instance_types):
    """The cheapest allowed type is launched in the allowed zone; list and get return the same instance."""
    cheap, _, large = cloud.types
    outcome = launch(request_for("full", large, cheap, zones=(cloud.zones[1],)))

    assert isinstance(outcome, Launched)
    instance = outcome.instance
    planned = next(t for t in instance_types if t.name == cheap)
    assert (instance.instance_type, instance.zone, instance.capacity_type) == (cheap, cloud.zones[1], "on-demand")
    assert (
        outcome.labels
        | {
            labels.INSTANCE_TYPE: cheap,
            labels.ZONE: cloud.zones[1],
            labels.CAPACITY_TYPE: "on-demand",
            labels.ARCH: "amd64",
            labels.OS: "linux",
        }
        == outcome.labels
    )
    assert outcome.capacity["cpu"] == "2"
    assert outcome.price == min(o.price for o in planned.offerings if o.capacity_type == "on-demand")
    assert {k.rpartition("/")[2]: v for k, v in outcome.annotations.items() if "hash" in k} == {
        f"{cloud.kind.lower()}-hash": "abc",
        f"{cloud.kind.lower()}-hash-version": "v1",
    }
    [listed] = provider.list()
    assert listed == provider.get_each([instance.provider_id])[instance.provider_id]
    assert (listed.provider_id, listed.image_id, listed.zone) == (
        instance.provider_id,
        instance.image_id,
        instance.zone,
    )


def test_spot_is_launched_where_the_claim_allows_it(launch, request_for, provider, cloud):
    """It costs less than on-demand; the cloud reports the instance as Spot."""
    cheap = launch(request_for("cheap", capacity_type="on-demand spot"))
    dear = launch(request_for("dear"))

    assert (
        provider.get_each([cheap.instance.provider_id])[cheap.instance.provider_id].capacity_type
        == cheap.labels[labels.CAPACITY_TYPE]
        == "spot"
    )
    assert 0 < cheap.price < dear.price


def test_launch_follows_the_prices_of_node_overlays(launch, request_for, cloud):
    """A savings plan makes the dearer type the cheaper one."""
    request = request_for("planned", cloud.types[0], cloud.types[2])
    types = tuple(
        replace(t, offerings=tuple(replace(o, price=0.001, price_overlaid=True) for o in t.offerings))
        if t.name == cloud.types[2]
        else t
        for t in request.instance_types
    )
    outcome = launch(replace(request, instance_types=types))

    assert (outcome.instance.instance_type, outcome.price) == (cloud.types[2], 0.001)


# -- at most one instance ---------------------------------------------------------------------------------------------


def test_repeated_launch_adopts_the_instance(cloud, cluster, launch, request_for, provider):
    """Another process repeats it with other types, after the instance already runs."""
    first = launch(request_for("again"))
    cloud.wait(60)
    second = launch(request_for("again", cloud.types[2]), cloud.provider(cluster))
    assert second.instance.provider_id == first.instance.provider_id
    assert (second.labels, second.price) == (first.labels, first.price)
    assert len(provider.list()) == 1


def test_instance_of_a_lost_answer_is_adopted(cloud, cluster, launch, request_for, provider):
    """The launch is unanswered, so its token stays; the next process finds the instance by its tags."""
    cloud.lose_next_launch()
    lost = launch(request_for("lost"))
    found = launch(request_for("lost"), cloud.provider(cluster))
    assert (type(lost.error), lost.answered) == (CreateError, False)
    assert isinstance(found, Launched)
    assert ids(provider.list()) == [found.instance.provider_id]


def test_concurrent_launches_of_a_claim_launch_one_instance(cloud, cluster, request_for, provider):
    """Neither run sees the other's instance; both send the same client token."""
    cloud.require("client token")
    request = request_for("twice")
    outcomes = []
    runs = [
        threading.Thread(target=lambda p=p: outcomes.extend(p.launch([request])))
        for p in (provider, cloud.provider(cluster))
    ]
    for run in runs:
        run.start()
    for run in runs:
        run.join()

    assert [type(outcome) for outcome in outcomes] == [Launched, Launched]
    assert {o.instance.provider_id for o in outcomes} == set(ids(provider.list()))
    assert len(provider.list()) == 1


def test_claim_whose_instance_ends_gets_no_second_one(cloud, running, launch, request_for, provider):
    """Neither by the same client token nor by the next one."""
    instance = running("ended")
    provider.delete_each([instance.provider_id])
    outcomes = [
        launch(request_for("ended", cloud.types[1])),
        launch(request_for("ended", annotations={labels.LAUNCH_RETRY: "1 2026-11-02T09:00:00Z"})),
    ]

    assert [type(outcome.error) for outcome in outcomes] == [NodeClaimNotFoundError] * 2
    assert set(ids(provider.list())) <= {instance.provider_id}


def test_each_launch_has_one_outcome(cloud, provider, request_for):
    """A failed launch does not affect the others, nor does a claim that cannot be read."""
    cloud.out_of_stock(cloud.types[1], cloud.zones[0], "on-demand")
    requests = [request_for(f"many-{n}") for n in range(6)]
    requests.insert(3, request_for("unlucky", cloud.types[1], zones=cloud.zones[:1]))
    bad = request_for("bad")
    nonsense = NodeSelectorRequirement(key=labels.ARCH, operator="Near", values=("amd64",))
    spec = msgspec.structs.replace(bad.claim.spec, requirements=(nonsense,))
    requests.append(replace(bad, claim=msgspec.structs.replace(bad.claim, spec=spec)))
    outcomes = {outcome.claim: outcome for outcome in provider.launch(requests)}

    assert len(outcomes) == 8
    assert isinstance(outcomes.pop("unlucky").error, InsufficientCapacityError)
    assert "Near" in str(outcomes.pop("bad").error)
    assert {outcome.instance.provider_id for outcome in outcomes.values()} == set(ids(provider.list()))
    assert len(provider.list()) == 6
    cloud.wait(200)


def test_no_launch_starts_after_the_caller_stops_reading_outcomes(provider, request_for):
    """After losing the Lease only launches in flight continue."""
    outcomes = provider.launch([request_for(f"rest-{n}") for n in range(12)])
    next(outcomes)
    outcomes.close()
    assert 1 <= len(provider.list()) <= 4


# -- capacity ---------------------------------------------------------------------------------------------------------


def test_offering_out_of_stock_is_replaced_and_reported(cloud, launch, request_for):
    """The launch uses another type; the next plan must not use the refused offering."""
    cloud.require("several offerings")
    cheap, other, _ = cloud.types
    zone = cloud.zones[0]
    cloud.out_of_stock(cheap, zone, "on-demand")
    outcome = launch(request_for("detour", cheap, other, zones=(zone,)))
    cloud.wait(200)

    assert isinstance(outcome, Launched)
    assert outcome.instance.instance_type == other
    assert outcome.unavailable == (OfferingKey(cheap, zone, "on-demand"),)


def test_launch_without_any_stock_names_the_offerings_and_leaks_nothing(cloud, launch, request_for, provider):
    """The cloud answered, so the next attempt is a new launch, which succeeds once there is stock."""
    name, zones = cloud.types[1], cloud.zones[: cloud.zones_per_launch]
    for zone in zones:
        cloud.out_of_stock(name, zone, "spot")
    failed = launch(request_for("dry", name, capacity_type="spot", zones=zones))

    assert isinstance(failed.error, InsufficientCapacityError)
    assert failed.unavailable == failed.error.offerings == tuple(OfferingKey(name, zone, "spot") for zone in zones)
    assert {(r.zone, r.capacity_type) for r in failed.refusals} == {(zone, "spot") for zone in zones}
    assert failed.answered
    assert provider.list() == ()

    cloud.wait(200)
    retried = {labels.LAUNCH_RETRY: "1 2026-11-02T09:00:00Z"}
    again = launch(request_for("dry", name, capacity_type="spot", zones=zones, annotations=retried))
    assert isinstance(again, Launched)
    assert len(provider.list()) == 1


def test_full_subnet_is_avoided_and_its_zone_reported(cloud, cluster, launch, request_for, provider):
    """A launch uses another zone; without one the offerings of the zone are unavailable."""
    cloud.require("several offerings")
    cloud.require("zonal subnets")
    full, free = cloud.zones[:2]
    cloud.add_subnet(full, f"full-{cluster}", is_full=True)
    cloud.add_subnet(free, f"full-{cluster}")
    body = cloud.node_class(f"full-{cluster}")
    body["status"] = provider.resolve(body, cloud.clock.now())
    elsewhere = launch(request_for("elsewhere", zones=(full, free), body=body))
    nowhere = launch(request_for("nowhere", zones=(full,), body=body))

    assert elsewhere.instance.zone == free
    assert isinstance(nowhere.error, InsufficientCapacityError)
    assert nowhere.unavailable == tuple(OfferingKey("*", full, kind) for kind in ("on-demand", "spot"))


def test_subnet_with_free_addresses_is_chosen_in_a_zone(cloud, cluster, launch, request_for, provider):
    """Another subnet of the zone is full."""
    zone = cloud.zones[0]
    for is_full in (True, False, True):
        cloud.add_subnet(zone, f"half-{cluster}", is_full=is_full)
    body = cloud.node_class(f"half-{cluster}")
    body["status"] = provider.resolve(body, cloud.clock.now())
    assert launch(request_for("fits", zones=(zone,), body=body)).instance.zone == zone


def test_zones_without_a_subnet_are_reported(cloud, cluster, launch, request_for, provider):
    """The NodeClass lost their subnets after planning."""
    cloud.require("zonal subnets")
    cloud.add_subnet(cloud.zones[1], f"moved-{cluster}")
    body = cloud.node_class(f"moved-{cluster}")
    body["status"] = provider.resolve(body, cloud.clock.now())
    outcome = launch(request_for("nowhere", zones=cloud.zones[:1], body=body))

    assert isinstance(outcome.error, InsufficientCapacityError)
    assert outcome.unavailable == tuple(OfferingKey("*", cloud.zones[0], kind) for kind in ("on-demand", "spot"))


def test_claim_without_a_compatible_offering_has_no_capacity(launch, request_for):
    """For example, its instance type no longer exists."""
    outcome = launch(request_for("none", "m1.gone"))
    assert isinstance(outcome.error, InsufficientCapacityError)
    assert outcome.unavailable == ()


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "failure", "kind", "reason"),
    [
        ("launch", "throttled", RateLimitedError, None),
        ("launch", "unavailable", CreateError, "InternalError"),
        ("launch", "denied", CreateError, "Unauthorized"),
        ("list", "throttled", RateLimitedError, None),
        ("list", "unavailable", CreateError, "InternalError"),
    ],
)
def test_failed_request_is_the_outcome_of_the_launch(cloud, launch, request_for, operation, failure, kind, reason):
    """The outcome has the reason, or is throttling; the next attempt succeeds, at the outcome's time."""
    cloud.fail(operation, failure)
    failed = launch(request_for("fails"))
    cloud.wait(failed.retry_after.total_seconds())

    assert isinstance(failed, LaunchFailed)
    assert type(failed.error) is kind
    assert getattr(failed.error, "condition_reason", None) == reason
    retries = {labels.LAUNCH_RETRY: "1 2026-11-02T09:00:00Z"} if failed.answered else {}
    assert isinstance(launch(request_for("fails", annotations=retries)), Launched)


def test_launch_needs_the_permission_to_list(cloud, launch, request_for, provider):
    """Without the list it could launch a second instance."""
    with cloud.denying("list"):
        refused = launch(request_for("blind"))
    assert (type(refused.error), refused.answered) == (CreateError, False)
    assert refused.error.condition_reason == "Unauthorized"
    assert cloud.permissions["list"] in str(refused.error)
    assert provider.list() == ()


@pytest.mark.parametrize(
    ("state", "status", "kind"),
    [
        ({"deleting": True}, "True", InsufficientCapacityError),
        ({"ready": False, "message": "no subnets"}, "False", NodeClassNotReadyError),
        ({"ready": False}, "Unknown", CreateError),
    ],
)
def test_unready_node_class_launches_nothing(launch, request_for, ready, provider, state, status, kind):
    """A deleted NodeClass deletes the NodeClaim; an unready one makes it wait; an unknown one is a condition."""
    body = {**ready, "status": {**ready["status"], "conditions": [{"type": "Ready", "status": status}]}}
    outcome = launch(request_for("early", body=body, **state))
    assert type(outcome.error) is kind
    assert provider.list() == ()


def test_instance_that_ends_at_boot_says_why_and_whose_fault_it_is(cloud, launch, request_for, provider):
    """The cloud accepted the launch; afterwards the instance is listed with its reason, or the cloud still knows it."""
    reason = cloud.early_end
    cloud.account.instances.end_next_early(1, reason=reason, after_seconds=2)
    id_ = launch(request_for("dying")).instance.provider_id
    for _ in range(4):
        cloud.clock.advance(20)
        cloud.act()

    listed = {each.provider_id: each.failure for each in provider.list()}
    failure = listed.get(id_) or provider.end_reasons([id_]).get(id_)
    assert failure is not None
    assert reason in failure.message
    assert failure.remedy
    assert not failure.is_capacity
    assert provider.end_reasons(["kwok://node"]) == {}
