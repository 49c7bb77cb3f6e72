"""The search for devices: it ends soon where devices are too few, however many there are."""

from __future__ import annotations

from tests.helpers.device_allocation import TYPE, Allocations, device, pod, published
from tests.helpers.devices import DRIVER, NIC_DRIVER, exactly, first_of, named_devices, table

NAMES = [f"gpu-{n:02}" for n in range(60)]


def given(request, *devices):
    """Return the request of each of these devices."""
    return dict.fromkeys(devices, request)


def nics(count):
    """Return a request for so many NICs."""
    return exactly("nic", deviceClassName="nic", count=count)


def distinct(*names):
    """Return devices that differ in an attribute, as GPUs differ in their UUID."""
    return [device(name, uuid=name) for name in names]


@table(
    "devices, claims, expected",
    {
        "limit-of-devices": (
            NAMES,
            [first_of({"count": 20}, {"count": 10}, name="a"), first_of({"count": 20}, {"count": 10}, name="b")],
            given("a/option-0", *NAMES[:20]) | given("b/option-1", *NAMES[20:30]),
        ),
        "one-too-few": (NAMES[:19], [first_of({"count": 20}, {"count": 10})], given("gpu/option-1", *NAMES[:10])),
        "too-few-left": (
            NAMES[:30],
            [12, first_of({"count": 20}, {"count": 10})],
            given("req-1", *NAMES[:12]) | given("gpu/option-1", *NAMES[12:22]),
        ),
    },
)
def test_alternative_for_more_devices_than_there_are_is_found_to_fail_at_once(devices, claims, expected):
    """The search does not try each combination of GPUs that differ in their UUIDs, of which there are too many."""
    got = Allocations(published(distinct(*devices))).allocate(pod("a: -> no", *claims))

    assert (got.requests[TYPE] if got else None) == expected


def test_pods_with_an_impossible_request_leave_the_others_their_time():
    """Which GPUs would stand beside two NICs is not tried while there is only one."""
    allocations = Allocations(
        [*published(distinct(*NAMES)), *published(named_devices("nic-0"), driver=NIC_DRIVER, pool="nics")]
    )
    hopeless = [allocations.allocate(pod("a: -> no", 8, nics(2))) for _ in range(60)]

    got = allocations.allocate(pod("b: -> no", 1, nics(1)))

    assert hopeless == [None] * 60
    assert got is not None


def test_devices_without_enough_counters_left_count_as_not_there():
    """Thirty partitions differ in their UUIDs, and the counters suffice for 19 of them, so that ten more are given."""
    partitions = [device(name, uuid=name, draws={"gpu-slices": {"memory": "1Gi"}}) for name in NAMES[:30]]
    allocations = Allocations(published(partitions, counters={"gpu-slices": {"memory": "19Gi"}}))

    got = allocations.allocate(pod("a: -> no", first_of({"count": 20}, {"count": 10})))

    assert got is not None
    assert got.requests[TYPE] == given("gpu/option-1", *NAMES[:10])


def test_devices_that_another_request_selects_are_kept_for_it():
    """Any GPU would do for the first request, but the second needs the one that is tried first."""
    devices = [device("large", size="large"), device("small", size="small")]
    large = exactly("large", select=f'device.attributes["{DRIVER}"].size == "large"')

    got = Allocations(published(devices)).allocate(pod("a: -> no", exactly("any"), large))

    assert got is not None
    assert got.requests[TYPE] == {"small": "any", "large": "large"}
