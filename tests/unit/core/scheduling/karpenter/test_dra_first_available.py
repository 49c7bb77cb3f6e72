"""Karpenter's suite of the device allocator: requests for the first of several alternatives that is available."""

from __future__ import annotations

import pytest

from tests.helpers.device_allocation import (
    NUMA,
    TYPE,
    Allocations,
    Case,
    allocated,
    asking,
    brought,
    device,
    drawing,
    on_numa,
    pod,
    published,
    shared,
)
from tests.helpers.devices import NIC_DRIVER, exactly, first_of, named_devices, selecting

FOUR = published(named_devices("gpu-0", "gpu-1", "gpu-2", "gpu-3"))
THREE = published(named_devices("gpu-0", "gpu-1", "gpu-2"))
TWO = published(named_devices("gpu-0", "gpu-1"))
ONE = published(named_devices("gpu-0"))


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
NICS = published(named_devices("nic-0", "nic-1"), driver=NIC_DRIVER, pool="nics")
ONE_NIC = published(named_devices("nic-0"), driver=NIC_DRIVER, pool="nics")
SMALL_BUDGET = published(drawing("40Gi", "gpu-0", "gpu-1"), counters={"gpu-slices": {"memory": "40Gi"}})
TWO_MODELS = published([device("a100", model="A100"), device("h100", model="H100")])


def given(request, *devices):
    """Return the request of each of these devices."""
    return dict.fromkeys(devices, request)


NAMES = [f"gpu-{n:02}" for n in range(40)]


@pytest.mark.parametrize(
    ("devices", "claims", "expected"),
    [
        pytest.param(
            TWO,
            [first_of({"count": 2})],
            given("gpu/option-0", "gpu-0", "gpu-1"),
            id="one",
        ),
        pytest.param(
            TWO,
            [first_of({"count": 2}, {"count": 1})],
            given("gpu/option-0", "gpu-0", "gpu-1"),
            id="first",
        ),
        pytest.param(
            TWO,
            [first_of({"count": 4}, {"count": 2})],
            given("gpu/option-1", "gpu-0", "gpu-1"),
            id="second",
        ),
        pytest.param(
            ONE,
            [first_of({"count": 4}, {"count": 2})],
            None,
            id="none",
        ),
        pytest.param(
            TWO,
            [first_of({"count": 3}, {"count": 2}, {"count": 1})],
            given("gpu/option-1", "gpu-0", "gpu-1"),
            id="middle",
        ),
        pytest.param(
            TWO,
            [first_of({"count": 4}, {"count": 3}, {"count": 2})],
            given("gpu/option-2", "gpu-0", "gpu-1"),
            id="last",
        ),
        pytest.param(
            TWO,
            [2],
            given("req-1", "gpu-0", "gpu-1"),
            id="exactly",
        ),
        pytest.param(
            THREE,
            [1, first_of({"count": 2}, {"count": 1})],
            given("req-1", "gpu-0") | given("gpu/option-0", "gpu-1", "gpu-2"),
            id="and-exactly",
        ),
        pytest.param(
            TWO_MODELS,
            [first_of(of("A100", 2), of("H100"))],
            given("gpu/option-1", "h100"),
            id="selectors",
        ),
        pytest.param(
            NICS,
            [first_of({}, nics())],
            given("gpu/option-1", "nic-0"),
            id="classes",
        ),
        pytest.param(
            [*FOUR, *NICS],
            [first_of({"count": 4}, {"count": 2}), first_of(nics(2), nics(), name="nic")],
            given("gpu/option-0", "gpu-0", "gpu-1", "gpu-2", "gpu-3") | given("nic/option-0", "nic-0", "nic-1"),
            id="two-requests",
        ),
        pytest.param(
            [*TWO, *ONE_NIC],
            [first_of({"count": 2}, {}), first_of(nics(2), nics(), name="nic")],
            given("gpu/option-0", "gpu-0", "gpu-1") | given("nic/option-1", "nic-0"),
            id="second-request",
        ),
        pytest.param(
            FOUR,
            [asking(first_of({"count": 3})), asking(first_of({"count": 2}, {}, name="b"))],
            given("gpu/option-0", "gpu-0", "gpu-1", "gpu-2") | given("b/option-1", "gpu-3"),
            id="two-claims",
        ),
        pytest.param(
            THREE,
            [asking(first_of({"count": 3}, {})), asking(1)],
            given("gpu/option-1", "gpu-0") | given("req-1", "gpu-1"),
            id="for-next-claim",
        ),
        pytest.param(
            FOUR,
            [first_of({"count": 5}, {"count": 4})],
            given("gpu/option-1", "gpu-0", "gpu-1", "gpu-2", "gpu-3"),
            id="all-free",
        ),
        pytest.param(
            THREE,
            [first_of(EVERY)],
            given("gpu/option-0", "gpu-0", "gpu-1", "gpu-2"),
            id="all",
        ),
        pytest.param(
            ONE_NIC,
            [first_of(EVERY, nics())],
            given("gpu/option-1", "nic-0"),
            id="all-of-none",
        ),
        pytest.param(
            published(on_numa(0, 0, 1)),
            [asking(first_of({"count": 3}, {"count": 2}), match=[(NUMA, ["gpu"])])],
            given("gpu/option-1", "gpu-0", "gpu-1"),
            id="same-attribute",
        ),
        pytest.param(
            published(
                [
                    device("a", model="A100", numa="0"),
                    device("b", model="H100", numa="1"),
                    device("c", model="H100", numa="1"),
                ]
            ),
            [asking(first_of(of("A100", 2), of("H100", 2)), match=[(NUMA, ["gpu"])])],
            given("gpu/option-1", "b", "c"),
            id="other-value",
        ),
        pytest.param(
            published(on_numa(0, 1)),
            [asking(first_of({"count": 2}, {}), match=[(NUMA, ["gpu/option-0"])])],
            given("gpu/option-1", "gpu-0"),
            id="attribute-of-one-option",
        ),
        pytest.param(
            published(
                [
                    device("a", model="A100", numa="0"),
                    device("b", model="H100", numa="1"),
                    device("c", model="H100", numa="0"),
                ]
            ),
            [asking(first_of(of("A100"), of("H100")), exactly("req-1"), match=[(NUMA, ["gpu", "req-1"])])],
            given("gpu/option-0", "a") | given("req-1", "c"),
            id="attribute-of-two-requests",
        ),
        pytest.param(
            [
                *published([device("a", model="A100")], zone="a"),
                *published([device("b", model="H100")], zone="b", pool="pool-b"),
            ],
            [first_of(of("A100", 2), of("H100"))],
            given("gpu/option-1", "b"),
            id="other-zone",
        ),
        pytest.param(
            SMALL_BUDGET,
            [first_of({"count": 2}, {})],
            given("gpu/option-1", "gpu-0"),
            id="counters",
        ),
        pytest.param(
            SMALL_BUDGET,
            [first_of(EVERY, EVERY)],
            None,
            id="counters-of-all",
        ),
        pytest.param(
            SMALL_BUDGET,
            [first_of(EVERY, {})],
            given("gpu/option-1", "gpu-0"),
            id="counters-or-one",
        ),
        pytest.param(
            [*SMALL_BUDGET, *NICS],
            [first_of(EVERY, EVERY | nics())],
            given("gpu/option-1", "nic-0", "nic-1"),
            id="counters-or-other",
        ),
        pytest.param(
            published([shared("gpu-0", vram="40Gi")]),
            [first_of(vram("30Gi", 2), vram("30Gi"))],
            given("gpu/option-1", "gpu-0"),
            id="capacity",
        ),
        pytest.param(
            published(named_devices(*NAMES)),
            [first_of({"count": 20}, {"count": 10}, name="a"), first_of({"count": 20}, {"count": 10}, name="b")],
            given("a/option-0", *NAMES[:20]) | given("b/option-1", *NAMES[20:30]),
            id="20-and-10",
        ),
        pytest.param(
            published(named_devices(*NAMES)),
            [first_of({"count": 40}, {"count": 20})],
            given("gpu/option-1", *NAMES[:20]),
            id="20-of-40",
        ),
    ],
)
def test_first_available_alternative_is_allocated(devices, claims, expected):
    """An alternative that fails leaves no trace, and a later one is tried if another request of the pod would fail."""
    got = Allocations(devices).allocate(pod("a", *claims, gets=None))

    assert (got.requests[TYPE] if got else None) == expected


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        pytest.param(
            {
                "big": [brought(named_devices("o-0", "o-1", "o-2", "o-3"))],
                "small": [brought(named_devices("o-0", "o-1"))],
            },
            {"big": given("gpu/option-0", "o-0", "o-1", "o-2", "o-3"), "small": given("gpu/option-1", "o-0", "o-1")},
            id="each",
        ),
        pytest.param(
            {"big": [brought(named_devices("o-0", "o-1", "o-2", "o-3"))], "tiny": [brought(named_devices("o-0"))]},
            {"big": given("gpu/option-0", "o-0", "o-1", "o-2", "o-3")},
            id="pruned",
        ),
        pytest.param(
            {"it": [brought(named_devices("o-0", "o-1", "o-2"))]},
            {"it": given("gpu/option-1", "o-0", "o-1")},
            id="second",
        ),
        pytest.param(
            {"it": [brought(named_devices("o-0", "o-1", "o-2", "o-3", "o-4"))]},
            {"it": given("gpu/option-0", "o-0", "o-1", "o-2", "o-3")},
            id="first",
        ),
    ],
)
def test_first_available_alternative_is_allocated_for_each_type(types, expected):
    """The pod asks for four GPUs, or else for two."""
    got = Allocations([], types).allocate(pod("a", first_of({"count": 4}, {"count": 2}), gets=None))

    assert got is not None
    assert got.requests == expected


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            Case(
                published([shared("gpu-0", vram="40Gi")]),
                [
                    pod(
                        "a",
                        asking(first_of(vram("30Gi"), vram("10Gi"))),
                        asking(exactly(capacity={"requests": {"vram": "30Gi"}})),
                        gets=["gpu-0", "gpu-0"],
                    ),
                    pod("b", 1, gets=None),
                ],
            ),
            id="claims",
        ),
        pytest.param(
            Case(
                published([shared("gpu-0", vram="50Gi"), shared("gpu-1", vram="80Gi")]),
                [
                    pod("a", first_of(EVERY | vram("30Gi"), vram("30Gi")), gets=["gpu-0"]),
                    pod("b", first_of(vram("21Gi"), vram("20Gi")), gets=["gpu-0"]),
                ],
                in_use=[allocated("held", "gpu-1", vram="70Gi")],
            ),
            id="all",
        ),
    ],
)
def test_alternative_that_failed_consumes_no_capacity(case):
    """What a failed alternative would have consumed is there for others."""
    assert case.follow() == case.expected
