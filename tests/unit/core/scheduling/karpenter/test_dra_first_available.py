"""Karpenter's suite of the device allocator: requests for the first of several alternatives that is available."""

from __future__ import annotations

from tests.helpers.device_allocation import (
    NUMA,
    TYPE,
    Allocations,
    Case,
    allocated,
    asking,
    drawing,
    on_numa,
    pod,
    published,
    shared,
)
from tests.helpers.devices import NIC_DRIVER, exactly, first_of, named_devices, selecting, table

FOUR = published("gpu-0 gpu-1 gpu-2 gpu-3")
THREE = published("gpu-0 gpu-1 gpu-2")
TWO = published("gpu-0 gpu-1")
ONE = published("gpu-0")


def of(model, count=1):
    """Return an alternative for so many GPUs of a model."""
    return {"count": count, "selectors": [{"cel": {"expression": selecting(model)}}]}


def nics(count=1):
    """Return an alternative for so many NICs."""
    return {"count": count, "deviceClassName": "nic"}


def vram(amount, count=1):
    """Return an alternative for so much memory of each of so many GPUs."""
    return {"count": count, "capacity": {"requests": {"vram": amount}}}


EVERY = {"allocationMode": "All"}
NICS = published("nic-0 nic-1", driver=NIC_DRIVER, pool="nics")
ONE_NIC = published("nic-0", driver=NIC_DRIVER, pool="nics")
SMALL_BUDGET = published(drawing("40Gi", "gpu-0", "gpu-1"), counters={"gpu-slices": {"memory": "40Gi"}})
TWO_MODELS = published("a100:model=A100 h100:model=H100")


def given(request, *devices):
    """Return the request of each of these devices."""
    return dict.fromkeys(devices, request)


NAMES = [f"gpu-{n:02}" for n in range(40)]


@table(
    "devices, claims, expected",
    {
        "one": (TWO, [first_of({"count": 2})], given("gpu/option-0", "gpu-0", "gpu-1")),
        "first": (TWO, [first_of({"count": 2}, {"count": 1})], given("gpu/option-0", "gpu-0", "gpu-1")),
        "second": (TWO, [first_of({"count": 4}, {"count": 2})], given("gpu/option-1", "gpu-0", "gpu-1")),
        "none": (ONE, [first_of({"count": 4}, {"count": 2})], None),
        "middle": (TWO, [first_of({"count": 3}, {"count": 2}, {"count": 1})], given("gpu/option-1", "gpu-0", "gpu-1")),
        "last": (TWO, [first_of({"count": 4}, {"count": 3}, {"count": 2})], given("gpu/option-2", "gpu-0", "gpu-1")),
        "exactly": (TWO, [2], given("req-1", "gpu-0", "gpu-1")),
        "and-exactly": (
            THREE,
            [1, first_of({"count": 2}, {"count": 1})],
            given("req-1", "gpu-0") | given("gpu/option-0", "gpu-1", "gpu-2"),
        ),
        "selectors": (TWO_MODELS, [first_of(of("A100", 2), of("H100"))], given("gpu/option-1", "h100")),
        "classes": (NICS, [first_of({}, nics())], given("gpu/option-1", "nic-0")),
        "two-requests": (
            FOUR + NICS,
            [first_of({"count": 4}, {"count": 2}), first_of(nics(2), nics(), name="nic")],
            given("gpu/option-0", "gpu-0", "gpu-1", "gpu-2", "gpu-3") | given("nic/option-0", "nic-0", "nic-1"),
        ),
        "second-request": (
            TWO + ONE_NIC,
            [first_of({"count": 2}, {}), first_of(nics(2), nics(), name="nic")],
            given("gpu/option-0", "gpu-0", "gpu-1") | given("nic/option-1", "nic-0"),
        ),
        "two-claims": (
            FOUR,
            [asking(first_of({"count": 3})), asking(first_of({"count": 2}, {}, name="b"))],
            given("gpu/option-0", "gpu-0", "gpu-1", "gpu-2") | given("b/option-1", "gpu-3"),
        ),
        "for-next-claim": (
            THREE,
            [asking(first_of({"count": 3}, {})), asking(1)],
            given("gpu/option-1", "gpu-0") | given("req-1", "gpu-1"),
        ),
        "all-free": (
            FOUR,
            [first_of({"count": 5}, {"count": 4})],
            given("gpu/option-1", "gpu-0", "gpu-1", "gpu-2", "gpu-3"),
        ),
        "all": (THREE, [first_of(EVERY)], given("gpu/option-0", "gpu-0", "gpu-1", "gpu-2")),
        "all-of-none": (ONE_NIC, [first_of(EVERY, nics())], given("gpu/option-1", "nic-0")),
        "same-attribute": (
            published(on_numa(0, 0, 1)),
            [asking(first_of({"count": 3}, {"count": 2}), match=[(NUMA, ["gpu"])])],
            given("gpu/option-1", "gpu-0", "gpu-1"),
        ),
        "other-value": (
            published("a:model=A100,numa=0 b:model=H100,numa=1 c:model=H100,numa=1"),
            [asking(first_of(of("A100", 2), of("H100", 2)), match=[(NUMA, ["gpu"])])],
            given("gpu/option-1", "b", "c"),
        ),
        "attribute-of-one-option": (
            published(on_numa(0, 1)),
            [asking(first_of({"count": 2}, {}), match=[(NUMA, ["gpu/option-0"])])],
            given("gpu/option-1", "gpu-0"),
        ),
        "attribute-of-two-requests": (
            published("a:model=A100,numa=0 b:model=H100,numa=1 c:model=H100,numa=0"),
            [asking(first_of(of("A100"), of("H100")), exactly("req-1"), match=[(NUMA, ["gpu", "req-1"])])],
            given("gpu/option-0", "a") | given("req-1", "c"),
        ),
        "other-zone": (
            published("a:model=A100", zone="a") + published("b:model=H100", zone="b"),
            [first_of(of("A100", 2), of("H100"))],
            given("gpu/option-1", "b"),
        ),
        "counters": (SMALL_BUDGET, [first_of({"count": 2}, {})], given("gpu/option-1", "gpu-0")),
        "counters-of-all": (SMALL_BUDGET, [first_of(EVERY, EVERY)], None),
        "counters-or-one": (SMALL_BUDGET, [first_of(EVERY, {})], given("gpu/option-1", "gpu-0")),
        "counters-or-other": (
            SMALL_BUDGET + NICS,
            [first_of(EVERY, EVERY | nics())],
            given("gpu/option-1", "nic-0", "nic-1"),
        ),
        "capacity": (
            published([shared("gpu-0", vram="40Gi")]),
            [first_of(vram("30Gi", 2), vram("30Gi"))],
            given("gpu/option-1", "gpu-0"),
        ),
        "20-and-10": (
            published(named_devices(*NAMES)),
            [first_of({"count": 20}, {"count": 10}, name="a"), first_of({"count": 20}, {"count": 10}, name="b")],
            given("a/option-0", *NAMES[:20]) | given("b/option-1", *NAMES[20:30]),
        ),
        "20-of-40": (
            published(named_devices(*NAMES)),
            [first_of({"count": 40}, {"count": 20})],
            given("gpu/option-1", *NAMES[:20]),
        ),
    },
)
def test_first_available_alternative_is_allocated(devices, claims, expected):
    """An alternative that fails leaves no trace, and a later one is tried if another request of the pod would fail."""
    got = Allocations(devices).allocate(pod("a: -> no", *claims))

    assert (got.requests[TYPE] if got else None) == expected


@table(
    "types, expected",
    {
        "each": (
            {"big": "o-0 o-1 o-2 o-3", "small": "o-0 o-1"},
            {"big": given("gpu/option-0", "o-0", "o-1", "o-2", "o-3"), "small": given("gpu/option-1", "o-0", "o-1")},
        ),
        "pruned": (
            {"big": "o-0 o-1 o-2 o-3", "tiny": "o-0"},
            {"big": given("gpu/option-0", "o-0", "o-1", "o-2", "o-3")},
        ),
        "second": ({"it": "o-0 o-1 o-2"}, {"it": given("gpu/option-1", "o-0", "o-1")}),
        "first": ({"it": "o-0 o-1 o-2 o-3 o-4"}, {"it": given("gpu/option-0", "o-0", "o-1", "o-2", "o-3")}),
    },
)
def test_first_available_alternative_is_allocated_for_each_type(types, expected):
    """The pod asks for four GPUs, or else for two."""
    got = Allocations([], types).allocate(pod("a: -> no", first_of({"count": 4}, {"count": 2})))

    assert got is not None
    assert got.requests == expected


@table(
    "case",
    {
        "claims": Case(
            published([shared("gpu-0", vram="40Gi")]),
            pod(
                "a: -> gpu-0 gpu-0",
                asking(first_of(vram("30Gi"), vram("10Gi"))),
                asking(exactly(capacity={"requests": {"vram": "30Gi"}})),
            ),
            "b: 1 -> no",
        ),
        "all": Case(
            published([shared("gpu-0", vram="50Gi"), shared("gpu-1", vram="80Gi")]),
            pod("a: -> gpu-0", first_of(EVERY | vram("30Gi"), vram("30Gi"))),
            pod("b: -> gpu-0", first_of(vram("21Gi"), vram("20Gi"))),
            in_use=[allocated("held", "gpu-1", vram="70Gi")],
        ),
    },
)
def test_alternative_that_failed_consumes_no_capacity(case):
    """What a failed alternative would have consumed is there for others."""
    assert case.follow() == case.expected
