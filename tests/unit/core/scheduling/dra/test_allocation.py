"""The search for devices: it ends soon where devices are too few, however many there are."""

from __future__ import annotations

import pytest

from journeyman.core.scheduling.dra import ClaimReader
from journeyman.core.scheduling.dra.devices import PublishedPools
from journeyman.core.scheduling.dra.search import DeviceSearch
from journeyman.core.scheduling.requirements import EMPTY
from tests.helpers.builders import a_snapshot
from tests.helpers.device_allocation import CLASSES, TYPE, Allocations, claim, pod, published
from tests.helpers.devices import a_claiming_pod, listed, table


def distinct(devices):
    """Return devices that differ in an attribute, as GPUs differ in their UUID."""
    return " ".join(f"{name}:uuid={name}{draws and '!' + draws}" for name, draws in devices)


def gpus(count, draws=""):
    """Return so many GPUs that differ, and what each draws on counters."""
    return distinct((found["name"], draws) for found in listed(f"gpu-00..{count - 1:02}"))


def names(first, last):
    """Return the names of GPUs."""
    return " ".join(f"gpu-{n:02}" for n in range(first, last + 1))


@table(
    "slices, claims, expected",
    {
        "limit-of-devices": (
            gpus(60),
            "a@20/10 b@20/10",
            f"a/option-0: {names(0, 19)}; b/option-1: {names(20, 29)}",
        ),
        "one-too-few": (gpus(19), "20/10", f"gpu/option-1: {names(0, 9)}"),
        "too-few-left": (gpus(30), "12 20/10", f"req-1: {names(0, 11)}; gpu/option-1: {names(12, 21)}"),
        "counters-for-19": (f"{gpus(30, '1Gi')} with 19Gi", "20/10", f"gpu/option-1: {names(0, 9)}"),
    },
)
def test_alternative_for_more_devices_than_there_are_is_found_to_fail_at_once(slices, claims, expected):
    """The search does not try each combination of GPUs that differ in their UUIDs, of which there are too many."""
    got = Allocations(slices).allocate(pod(f"a: {claims} ->"))

    assert got is not None
    assert got.requests[TYPE] == expected


def test_pods_with_an_impossible_request_leave_the_others_their_time():
    """Which GPUs would stand beside two NICs is not tried while there is only one."""
    allocations = Allocations(f"{gpus(60)}; nic-0")
    hopeless = [allocations.allocate(pod("a: 8 2*nic -> no")) for _ in range(60)]

    got = allocations.allocate(pod("b: 1 1*nic -> gpu-00 nic-0"))

    assert hopeless == [None] * 60
    assert got is not None


def test_devices_that_another_request_selects_are_kept_for_it():
    """Any GPU would do for the first request, but the second needs the one that is tried first."""
    got = Allocations("large:size=large small:size=small").allocate(pod("a: any@1 large@1*size=large ->"))

    assert got is not None
    assert got.requests[TYPE] == "any: small; large: large"


@pytest.mark.parametrize(("tries", "left"), [(3, 1), (2, 0), (1, -1), (0, -1)])
def test_search_is_given_up_when_its_tries_are_spent(tries, left):
    """Two devices take two tries."""
    reader = ClaimReader(a_snapshot(resource_claims=(claim("2"),), device_classes=CLASSES), ())
    claims = list(enumerate(reader.read(a_claiming_pod("p", "c"))))
    pools = PublishedPools(published("gpu-0..1"), ()).seen_from("")
    search = DeviceSearch(claims, name="", offer=EMPTY, pools=pools, used=lambda _: 0, tries=tries)

    assert ((search.run() is not None), search.tries) == (left >= 0, left)
