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
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator", it="should allocate using the first satisfiable sub-request"
            ),
            id="one",
        ),
        pytest.param(
            TWO,
            [first_of({"count": 2}, {"count": 1})],
            given("gpu/option-0", "gpu-0", "gpu-1"),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator", it="preferred sub-request selected (qualified)"
            ),
            id="first",
        ),
        pytest.param(
            TWO,
            [first_of({"count": 4}, {"count": 2})],
            given("gpu/option-1", "gpu-0", "gpu-1"),
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/allocator",
                    it="should fall back to lower-priority sub-request when higher fails",
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/allocator",
                    it="should correctly commit FirstAvailable allocation metadata",
                ),
            ],
            id="second",
        ),
        pytest.param(
            ONE,
            [first_of({"count": 4}, {"count": 2})],
            None,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator", it="should fail when no sub-request is satisfiable"
            ),
            id="none",
        ),
        pytest.param(
            TWO,
            [first_of({"count": 3}, {"count": 2}, {"count": 1})],
            given("gpu/option-1", "gpu-0", "gpu-1"),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator", it="three sub-requests, middle wins and later is not tried"
            ),
            id="middle",
        ),
        pytest.param(
            TWO,
            [first_of({"count": 4}, {"count": 3}, {"count": 2})],
            given("gpu/option-2", "gpu-0", "gpu-1"),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator", it="three sub-requests, falls through two failures to the last"
            ),
            id="last",
        ),
        pytest.param(
            TWO,
            [2],
            given("req-1", "gpu-0", "gpu-1"),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator", it="plain Exactly request records the unqualified name"
            ),
            id="exactly",
        ),
        pytest.param(
            THREE,
            [1, first_of({"count": 2}, {"count": 1})],
            given("req-1", "gpu-0") | given("gpu/option-0", "gpu-1", "gpu-2"),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should handle mixed Exactly and FirstAvailable requests in the same claim",
            ),
            id="and-exactly",
        ),
        pytest.param(
            TWO_MODELS,
            [first_of(of("A100", 2), of("H100"))],
            given("gpu/option-1", "h100"),
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/allocator",
                    it="should handle FirstAvailable with selectors distinguishing sub-requests",
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/allocator", it="selector picks the fallback sub-request"
                ),
            ],
            id="selectors",
        ),
        pytest.param(
            NICS,
            [first_of({}, nics())],
            given("gpu/option-1", "nic-0"),
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/allocator",
                    it="should handle FirstAvailable with different DeviceClasses per sub-request",
                ),
                pytest.mark.karpenter("scheduling/dynamicresources/allocator", it="different device class fallback"),
            ],
            id="classes",
        ),
        pytest.param(
            [*FOUR, *NICS],
            [first_of({"count": 4}, {"count": 2}), first_of(nics(2), nics(), name="nic")],
            given("gpu/option-0", "gpu-0", "gpu-1", "gpu-2", "gpu-3") | given("nic/option-0", "nic-0", "nic-1"),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should handle multiple FirstAvailable requests in the same claim",
            ),
            id="two-requests",
        ),
        pytest.param(
            [*TWO, *ONE_NIC],
            [first_of({"count": 2}, {}), first_of(nics(2), nics(), name="nic")],
            given("gpu/option-0", "gpu-0", "gpu-1") | given("nic/option-1", "nic-0"),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should still exercise the fallback loop for a SECOND FirstAvailable request in a claim",
            ),
            id="second-request",
        ),
        pytest.param(
            FOUR,
            [asking(first_of({"count": 3})), asking(first_of({"count": 2}, {}, name="b"))],
            given("gpu/option-0", "gpu-0", "gpu-1", "gpu-2") | given("b/option-1", "gpu-3"),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should handle FirstAvailable interacting with multiple claims",
            ),
            id="two-claims",
        ),
        pytest.param(
            THREE,
            [asking(first_of({"count": 3}, {})), asking(1)],
            given("gpu/option-1", "gpu-0") | given("req-1", "gpu-1"),
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/allocator",
                    it="should backtrack across claims when sub-request consumes too much capacity",
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/allocator",
                    it="records the fallback name after cross-claim backtracking unwinds the preferred sub-request",
                ),
            ],
            id="for-next-claim",
        ),
        pytest.param(
            FOUR,
            [first_of({"count": 5}, {"count": 4})],
            given("gpu/option-1", "gpu-0", "gpu-1", "gpu-2", "gpu-3"),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator", it="should not leak state between sub-request attempts"
            ),
            id="all-free",
        ),
        pytest.param(
            THREE,
            [first_of(EVERY)],
            given("gpu/option-0", "gpu-0", "gpu-1", "gpu-2"),
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/allocator", it="should handle FirstAvailable with All-mode sub-request"
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/allocator",
                    it="records the sub-request name on every device of an All-mode sub-request",
                ),
            ],
            id="all",
        ),
        pytest.param(
            ONE_NIC,
            [first_of(EVERY, nics())],
            given("gpu/option-1", "nic-0"),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should fall back from All-mode to ExactCount when All-mode matches zero devices",
            ),
            id="all-of-none",
        ),
        pytest.param(
            published(on_numa(0, 0, 1)),
            [asking(first_of({"count": 3}, {"count": 2}), match=[(NUMA, ["gpu"])])],
            given("gpu/option-1", "gpu-0", "gpu-1"),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should handle constraints scoped to parent name applying to all sub-requests",
            ),
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
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should reset a constraint pin from a failed sub-request before the winning sub-request needs a different value",
            ),
            id="other-value",
        ),
        pytest.param(
            published(on_numa(0, 1)),
            [asking(first_of({"count": 2}, {}), match=[(NUMA, ["gpu/option-0"])])],
            given("gpu/option-1", "gpu-0"),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator", it="should handle constraints scoped to specific sub-request"
            ),
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
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should carry a FirstAvailable sub-request's pinned value into a different constrained request",
            ),
            id="attribute-of-two-requests",
        ),
        pytest.param(
            [
                *published([device("a", model="A100")], zone="a"),
                *published([device("b", model="H100")], zone="b", pool="pool-b"),
            ],
            [first_of(of("A100", 2), of("H100"))],
            given("gpu/option-1", "b"),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should restore tightened topology requirements when a sub-request backtracks",
            ),
            id="other-zone",
        ),
        pytest.param(
            SMALL_BUDGET,
            [first_of({"count": 2}, {})],
            given("gpu/option-1", "gpu-0"),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should restore shared counter budget when a sub-request backtracks",
            ),
            id="counters",
        ),
        pytest.param(
            SMALL_BUDGET,
            [first_of(EVERY, EVERY)],
            None,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should prune when all All-mode sub-requests are counter-infeasible",
            ),
            id="counters-of-all",
        ),
        pytest.param(
            SMALL_BUDGET,
            [first_of(EVERY, {})],
            given("gpu/option-1", "gpu-0"),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should not prune a FirstAvailable request with a feasible ExactCount sub-request",
            ),
            id="counters-or-one",
        ),
        pytest.param(
            [*SMALL_BUDGET, *NICS],
            [first_of(EVERY, EVERY | nics())],
            given("gpu/option-1", "nic-0", "nic-1"),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should keep the IT alive when a later All-mode sub-request is counter-feasible",
            ),
            id="counters-or-other",
        ),
        pytest.param(
            published([shared("gpu-0", vram="40Gi")]),
            [first_of(vram("30Gi", 2), vram("30Gi"))],
            given("gpu/option-1", "gpu-0"),
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/allocator",
                    it="should restore consumed capacity after a multi-slot sub-request fails mid-fill",
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/allocator",
                    it="co-records ConsumedCapacity and the qualified sub-request name on a multi-alloc FA device",
                ),
            ],
            id="capacity",
        ),
        pytest.param(
            published(named_devices(*NAMES)),
            [first_of({"count": 20}, {"count": 10}, name="a"), first_of({"count": 20}, {"count": 10}, name="b")],
            given("a/option-0", *NAMES[:20]) | given("b/option-1", *NAMES[20:30]),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should allow FirstAvailable requests that fit only by selecting smaller sub-requests",
            ),
            id="20-and-10",
        ),
        pytest.param(
            published(named_devices(*NAMES)),
            [first_of({"count": 40}, {"count": 20})],
            given("gpu/option-1", *NAMES[:20]),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should fall back to a smaller sub-request when the larger one exceeds the device limit",
            ),
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
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/allocator",
                    it="should select different sub-requests for different instance types",
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/allocator",
                    it="selects a different sub-request per instance type and records the matching name",
                ),
            ],
            id="each",
        ),
        pytest.param(
            {"big": [brought(named_devices("o-0", "o-1", "o-2", "o-3"))], "tiny": [brought(named_devices("o-0"))]},
            {"big": given("gpu/option-0", "o-0", "o-1", "o-2", "o-3")},
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator", it="should prune ITs where no sub-request is satisfiable"
            ),
            id="pruned",
        ),
        pytest.param(
            {"it": [brought(named_devices("o-0", "o-1", "o-2"))]},
            {"it": given("gpu/option-1", "o-0", "o-1")},
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator", it="should handle FirstAvailable with template devices"
            ),
            id="second",
        ),
        pytest.param(
            {"it": [brought(named_devices("o-0", "o-1", "o-2", "o-3", "o-4"))]},
            {"it": given("gpu/option-0", "o-0", "o-1", "o-2", "o-3")},
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator", it="preferred sub-request selected from template devices"
            ),
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
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should backtrack a sub-request across claims when capacity (not device count) is short",
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
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should restore consumed capacity when an All-mode sub-request over-allocates and backtracks",
            ),
            id="all",
        ),
    ],
)
def test_alternative_that_failed_consumes_no_capacity(case):
    """What a failed alternative would have consumed is there for others."""
    assert case.follow() == case.expected
