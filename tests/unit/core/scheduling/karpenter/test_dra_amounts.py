"""Karpenter's suite of the device allocator: counters that devices draw on, and devices that pods share by capacity."""

from __future__ import annotations

import pytest

from tests.helpers.device_allocation import (
    BESIDE_NICS,
    MEMORY_80,
    ON_A,
    ON_B,
    TYPE,
    Case,
    Drop,
    allocated,
    asking,
    beside_nic,
    brought,
    device,
    drawing,
    of_capacity,
    on_root,
    pod,
    published,
    shared,
)
from tests.helpers.devices import DRIVER, NIC_DRIVER, exactly, named_devices

MEMORY_120 = {"gpu-slices": {"memory": "120Gi"}}
TWO_TYPES = {"it-a": (), "it-b": ()}
A_NIC = exactly("nic", deviceClassName="nic")
TWO_NICS = exactly("nic", deviceClassName="nic", count=2)
THREE_OF_40 = published(drawing("40Gi", "gpu-0", "gpu-1", "gpu-2"), counters=MEMORY_120)
THREE_IN_80 = published(drawing("40Gi", "gpu-0", "gpu-1", "gpu-2"), counters=MEMORY_80)
MEMORY_AND_COMPUTE = {"memory-budget": {"memory": "80Gi"}, "compute-budget": {"flops": "100"}}
NICS = published(
    [device(f"nic-{n}", draws={"bw-slices": {"bandwidth": "50G"}}) for n in range(2)],
    counters={"bw-slices": {"bandwidth": "100G"}},
    pool="pool-b",
    driver=NIC_DRIVER,
)


def both(name):
    """Return a device that draws on two counter sets."""
    return device(name, draws={"memory-budget": {"memory": "40Gi"}, "compute-budget": {"flops": "50"}})


def kind(value, name="req-1"):
    """Return a request for a GPU of a kind."""
    return exactly(name, select=f'device.attributes["{DRIVER}"].kind == "{value}"')


def own(devices, counters=MEMORY_80, **more):
    """Return one instance type with these devices and counters in one slice."""
    return {TYPE: [brought(devices, counters=counters, **more)]}


# -- counters of published devices


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            Case(
                published(drawing("40Gi", "gpu-0", "gpu-1"), counters=MEMORY_80), [pod("a", 2, gets=["gpu-0", "gpu-1"])]
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator", it="should allocate devices when counter budget is sufficient"
            ),
            id="within",
        ),
        pytest.param(
            Case(THREE_IN_80, [pod("a", 3, gets=None)]),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator", it="should reject allocation when counter budget is exhausted"
            ),
            id="exceeded",
        ),
        pytest.param(
            Case(
                THREE_IN_80, [pod("a", 2, gets=None), pod("a", 1, gets=["gpu-1"])], in_use=[allocated("held", "gpu-0")]
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator", it="should respect preallocated counter consumption"
            ),
            id="in-use",
        ),
        pytest.param(
            Case(THREE_IN_80, [pod("a", 2, gets=["gpu-0", "gpu-1"]), pod("b", 1, gets=None)]),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator", it="should track inflight counter consumption across pods"
            ),
            id="other-pods",
        ),
        pytest.param(
            Case(
                published([both("gpu-0"), both("gpu-1"), both("gpu-2")], counters=MEMORY_AND_COMPUTE),
                [pod("a", 3, gets=None), pod("a", 2, gets=["gpu-0", "gpu-1"])],
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator", it="should handle devices consuming from multiple counter sets"
            ),
            id="two-sets",
        ),
        pytest.param(
            Case(
                published(
                    [device(f"gpu-{n}", draws={"gpu": {"memory": "20Gi", "units": "2"}}) for n in range(3)],
                    counters={"gpu": {"memory": "80Gi", "units": "4"}},
                ),
                [pod("a", 3, gets=None), pod("a", 2, gets=["gpu-0", "gpu-1"])],
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator", it="should handle multiple counter sets in a single pool"
            ),
            id="two-counters",
        ),
        pytest.param(
            Case(
                published(
                    [
                        device("memory", draws={"memory-budget": {"memory": "80Gi"}}),
                        device("compute", draws={"compute-budget": {"flops": "50"}}),
                    ],
                    counters=MEMORY_AND_COMPUTE,
                ),
                [pod("a", 2, gets=["compute", "memory"])],
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should allocate both devices from a pool with asymmetric counter-sets via DFS ordering",
            ),
            id="asymmetric-sets",
        ),
        pytest.param(
            Case(
                [
                    *published(drawing("40Gi", "gpu-0", "gpu-1"), counters=MEMORY_80, of=3),
                    *published(drawing("40Gi", "far"), zone="b", of=3),
                ],
                [pod("a", 2, zones=["a"], gets=None), pod("a", 1, zones=["a"], gets=["gpu-0"])],
                in_use=[allocated("held", "far")],
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should deduct preallocated NonTargetingDevices from counter budget",
            ),
            id="elsewhere",
        ),
        pytest.param(
            Case(
                published([device("gpu-0", draws={"other": {"memory": "40Gi"}})], counters=MEMORY_80),
                [pod("a", 1, gets=None)],
                types={TYPE: ()},
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator", it="in-cluster device references non-existent counter set name"
            ),
            id="unknown-set",
        ),
        pytest.param(
            Case(
                published([device("gpu-0", draws={"gpu-slices": {"other": "40Gi"}})], counters=MEMORY_80),
                [pod("a", 1, gets=None)],
                types={TYPE: ()},
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator", it="in-cluster device references non-existent counter name"
            ),
            id="unknown-counter",
        ),
        pytest.param(
            Case(
                published(drawing("1", "gpu-0", "gpu-1"), counters={"gpu-slices": {"memory": "0"}}),
                [pod("a", 1, gets=None)],
                types={TYPE: ()},
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator", it="should reject allocation when counter has zero capacity"
            ),
            id="zero",
        ),
        pytest.param(
            Case(
                published(drawing("0", "gpu-0"), counters={"gpu-slices": {"memory": "0"}}),
                [pod("a", 1, gets=["gpu-0"])],
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should succeed when both counter capacity and device consumption are zero",
            ),
            id="zero-of-zero",
        ),
        pytest.param(
            Case(
                published(
                    [
                        device(f"gpu-{n}", draws={"gpu-slices": {"memory": "40Gi"}}, root=root)
                        for n, root in enumerate("aba")
                    ],
                    counters=MEMORY_80,
                ),
                [pod("n", asking(2, match=[f"{DRIVER}/root"]), gets=["gpu-0", "gpu-2"])],
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should backtrack counter deductions when DFS path fails constraints",
            ),
            id="another-choice",
        ),
        pytest.param(
            Case(
                published(drawing("80Gi", "gpu-0"), counters=MEMORY_80),
                [pod("a", 2, gets=["gpu-0", "own-0"]), pod("b", 1, gets=["own-0"])],
                types=own(drawing("80Gi", "own-0"), pool="pool-a"),
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should not cross-contaminate counters between template and in-cluster pools sharing the same PoolKey",
            ),
            id="of-own-pool",
        ),
    ],
)
def test_devices_draw_on_the_counters_of_their_pool(case):
    """Together they draw no more than the counters have, with devices in use and on all nodes."""
    assert case.follow() == case.expected


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            Case(
                THREE_IN_80,
                [
                    pod("a", 2, gets=["gpu-0", "gpu-1"]),
                    pod("b", 1, gets=None),
                    Drop("a", [TYPE]),
                    pod("b", 1, gets=["gpu-0"]),
                ],
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should restore counter budget when an instance type is released",
            ),
            id="dropped",
        ),
        pytest.param(
            Case(THREE_OF_40, [pod("a", 1, gets=["gpu-0"]), pod("b", 2, gets=["gpu-1", "gpu-2"])], types=TWO_TYPES),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator", it="should commit the pessimistic max across instance types"
            ),
            id="two-types",
        ),
        pytest.param(
            Case(
                THREE_OF_40,
                [
                    pod("a", 2, gets=["gpu-0", "gpu-1"]),
                    pod("b", 2, gets=None),
                    Drop("a", ["it-a"]),
                    pod("b", 2, gets=None),
                    Drop("a", ["it-b"]),
                    pod("b", 2, gets=["gpu-0", "gpu-1"]),
                ],
                types=TWO_TYPES,
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should partially refund counter budget when one IT is released from a multi-IT NC",
            ),
            id="one-by-one",
        ),
        pytest.param(
            Case(
                published(drawing("40Gi", "gpu-0", "gpu-1", "gpu-2", "gpu-3"), counters=MEMORY_120),
                [
                    pod("a", 1, gets=["gpu-0"]),
                    pod("a", 1, gets=["gpu-1"]),
                    pod("b", 2, gets=None),
                    pod("b", 1, gets=["gpu-2"]),
                ],
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should accumulate counter consumption across multiple pods on the same NC/IT",
            ),
            id="two-pods",
        ),
        pytest.param(
            Case(
                [*published(drawing("40Gi", "gpu-0", "gpu-1"), counters=MEMORY_80), *NICS],
                [
                    pod("a", 1, A_NIC, gets=["gpu-0", "nic-0"]),
                    pod("b", 1, gets=["gpu-1"]),
                    pod("c", TWO_NICS, gets=None),
                    Drop("a", [TYPE]),
                    pod("c", TWO_NICS, gets=["nic-0", "nic-1"]),
                ],
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should refund full delta when released IT consumed from a pool the survivor did not",
            ),
            id="two-pools",
        ),
        pytest.param(
            Case(
                [*published(drawing("40Gi", "gpu-0", "gpu-1"), counters=MEMORY_80), *NICS],
                [
                    pod("a", asking(2), asking(TWO_NICS), gets=["gpu-0", "gpu-1", "nic-0", "nic-1"]),
                    pod("b", 1, gets=None),
                    Drop("a", [TYPE]),
                    pod("b", asking(2), asking(TWO_NICS), gets=["gpu-0", "gpu-1", "nic-0", "nic-1"]),
                ],
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator", it="should deep copy allocating counters across multiple pools"
            ),
            id="two-pools-dropped",
        ),
        pytest.param(
            Case(
                [*published(drawing("80Gi", "gpu-0"), counters=MEMORY_80), *NICS],
                [
                    pod("a", 1, gets=["gpu-0"]),
                    pod("a", TWO_NICS, gets=["nic-0", "nic-1"]),
                    pod("b", A_NIC, gets=None),
                    Drop("a", [TYPE]),
                    pod("b", 1, TWO_NICS, gets=["gpu-0", "nic-0", "nic-1"]),
                ],
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should accumulate counter consumption from a new pool on second commit for the same NC/IT",
            ),
            id="next-pool",
        ),
        pytest.param(
            Case(
                published(
                    [
                        device("mem", kind="mem", draws={"memory-budget": {"memory": "80Gi"}}),
                        device("compute", kind="compute", draws={"compute-budget": {"flops": "100"}}),
                    ],
                    counters=MEMORY_AND_COMPUTE,
                ),
                [
                    pod("a", kind("mem"), gets=["mem"]),
                    pod("a", kind("compute"), gets=["compute"]),
                    pod("b", 1, gets=None),
                    Drop("a", [TYPE]),
                    pod("b", 2, gets=["compute", "mem"]),
                ],
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should accumulate counter consumption from a new counter set on second commit for the same NC/IT/pool",
            ),
            id="next-set",
        ),
        pytest.param(
            Case(
                published(
                    [
                        device("full", kind="full", draws={"budget": {"memory": "50Gi", "bandwidth": "100G"}}),
                        device("lite", kind="lite", draws={"budget": {"memory": "50Gi"}}),
                    ],
                    counters={"budget": {"memory": "100Gi", "bandwidth": "200G"}},
                ),
                [
                    pod("a", kind("full"), gets=["full"]),
                    pod("a", kind("lite"), gets=["lite"]),
                    Drop("a", ["it-a"]),
                    pod("b", 1, gets=None),
                    Drop("a", ["it-b"]),
                    pod("b", 2, gets=["full", "lite"]),
                ],
                types=TWO_TYPES,
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should refund full delta when released IT consumed a counter name the survivor did not",
            ),
            id="next-counter",
        ),
        pytest.param(
            Case(
                published(
                    [
                        device(
                            "high",
                            kind="high",
                            draws={"memory-budget": {"memory": "40Gi"}, "compute-budget": {"flops": "50"}},
                        ),
                        device("low", kind="low", draws={"memory-budget": {"memory": "40Gi"}}),
                    ],
                    counters=MEMORY_AND_COMPUTE,
                ),
                [
                    pod("a", kind("high"), gets=["high"]),
                    pod("a", kind("low"), gets=["low"]),
                    Drop("a", ["it-a"]),
                    pod("b", 1, gets=None),
                    Drop("a", ["it-b"]),
                    pod("b", 2, gets=["high", "low"]),
                ],
                types=TWO_TYPES,
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should refund full delta when released IT consumed from a counter set the survivor did not",
            ),
            id="some-sets",
        ),
    ],
)
def test_counters_are_free_again_once_no_type_needs_them(case):
    """A node draws on published counters what the type that needs most of them would."""
    assert case.follow() == case.expected


PLAIN_TOO = BESIDE_NICS | {"plain": ()}


def rooted(name, root, memory, **attributes):
    """Return a GPU on a root that draws memory."""
    return on_root(device(name, draws={"gpu-slices": {"memory": memory}}, **attributes), root)


BIG_OR_SMALL = published(
    [rooted("big", ON_A, "80Gi"), rooted("small", ON_B, "40Gi"), *drawing("40Gi", "rest-0", "rest-1")],
    counters=MEMORY_120,
)
ALTERNATING = published(
    [
        rooted("big-0", ON_A, "60Gi", kind="first"),
        rooted("small-0", ON_B, "20Gi", kind="first"),
        rooted("small-1", ON_A, "20Gi", kind="second"),
        rooted("big-1", ON_B, "60Gi", kind="second"),
        *drawing("20Gi", "rest-0", "rest-1", "rest-2"),
    ],
    counters=MEMORY_120,
)
DISJOINT = published(
    [
        on_root(device("mem", draws={"budget": {"memory": "40Gi"}}), ON_A),
        on_root(device("flops", draws={"budget": {"flops": "50"}}), ON_B),
        device("other-mem", draws={"budget": {"memory": "40Gi"}}),
        device("other-flops", draws={"budget": {"flops": "50"}}),
        device("more-mem", draws={"budget": {"memory": "40Gi"}}),
    ],
    counters={"budget": {"memory": "80Gi", "flops": "100"}},
)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            Case(
                BIG_OR_SMALL,
                [
                    pod("a", beside_nic(exactly("gpu")), gets={"it-a": ["big", "nic-0"], "it-b": ["nic-0", "small"]}),
                    pod("b", 2, types=["plain"], gets=None),
                    pod("b", 1, types=["plain"], gets=["rest-0"]),
                ],
                types=PLAIN_TOO,
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should commit the pessimistic max when ITs have asymmetric counter consumption",
            ),
            id="maximum",
        ),
        pytest.param(
            Case(
                BIG_OR_SMALL,
                [
                    pod("a", beside_nic(exactly("gpu")), gets={"it-a": ["big", "nic-0"], "it-b": ["nic-0", "small"]}),
                    Drop("a", ["it-a"]),
                    pod("b", 2, types=["plain"], gets=["rest-0", "rest-1"]),
                ],
                types=PLAIN_TOO,
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should partially refund when released IT had higher consumption than survivors",
            ),
            id="larger-dropped",
        ),
        pytest.param(
            Case(
                BIG_OR_SMALL,
                [
                    pod("a", beside_nic(exactly("gpu")), gets={"it-a": ["big", "nic-0"], "it-b": ["nic-0", "small"]}),
                    Drop("a", ["it-b"]),
                    pod("b", 2, types=["plain"], gets=None),
                    pod("b", 1, types=["plain"], gets=["small"]),
                ],
                types=PLAIN_TOO,
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should not refund counters when released IT had lower consumption than survivors (delta <= 0)",
            ),
            id="smaller-dropped",
        ),
        pytest.param(
            Case(
                ALTERNATING,
                [
                    pod(
                        "a",
                        beside_nic(kind("first")),
                        types=["it-a", "it-b"],
                        gets={"it-a": ["big-0", "nic-0"], "it-b": ["nic-0", "small-0"]},
                    ),
                    pod(
                        "a",
                        beside_nic(kind("second")),
                        types=["it-a", "it-b"],
                        gets={"it-a": ["nic-1", "small-1"], "it-b": ["big-1", "nic-1"]},
                    ),
                    pod("b", 3, types=["plain"], gets=None),
                    pod("b", 2, types=["plain"], gets=["rest-0", "rest-1"]),
                ],
                types=PLAIN_TOO,
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should not over-deduct counters across multiple commits with alternating IT winners",
            ),
            id="alternating",
        ),
        pytest.param(
            Case(
                DISJOINT,
                [
                    pod(
                        "a",
                        beside_nic(exactly("gpu")),
                        types=["it-a", "it-b"],
                        gets={"it-a": ["mem", "nic-0"], "it-b": ["flops", "nic-0"]},
                    ),
                    pod("b", 3, types=["plain"], gets=None),
                    pod("b", 2, types=["plain"], gets=["other-flops", "other-mem"]),
                ],
                types=PLAIN_TOO,
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should include disjoint counter names from different ITs in pessimistic max",
            ),
            id="disjoint",
        ),
    ],
)
def test_types_that_need_different_amounts_count_as_their_maximum(case):
    """The maximum is of what all pods of the node need together, and falls when a type drops out."""
    assert case.follow() == case.expected


# -- counters of devices that instance types bring


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            Case([], [pod("a", 2, gets=["gpu-0", "gpu-1"])], types=own(drawing("40Gi", "gpu-0", "gpu-1"))),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should allocate template devices when counter budget is sufficient",
            ),
            id="within",
        ),
        pytest.param(
            Case([], [pod("a", 3, gets=None)], types=own(drawing("40Gi", "gpu-0", "gpu-1", "gpu-2"))),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should reject template allocation when counter budget is exhausted",
            ),
            id="exceeded",
        ),
        pytest.param(
            Case([], [pod("a", 2, 1, gets=None)], types=own(drawing("40Gi", "gpu-0", "gpu-1", "gpu-2"))),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should track template counter deductions within a single claim with multiple requests",
            ),
            id="two-requests",
        ),
        pytest.param(
            Case(
                [],
                [pod("a", 3, gets={"large": ["gpu-0", "gpu-1", "gpu-2"]})],
                types={
                    "large": [
                        brought(
                            drawing("40Gi", "gpu-0", "gpu-1", "gpu-2"), counters={"gpu-slices": {"memory": "160Gi"}}
                        )
                    ],
                    "small": [brought(drawing("40Gi", "gpu-0", "gpu-1", "gpu-2"), counters=MEMORY_80)],
                },
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should evaluate template counters independently per instance type",
            ),
            id="by-type",
        ),
        pytest.param(
            Case(
                [],
                [pod("a", 2, gets=["gpu-0", "gpu-1"]), pod("b", 2, gets=["gpu-0", "gpu-1"])],
                types=own(drawing("40Gi", "gpu-0", "gpu-1", "gpu-2")),
            ),
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/allocator", it="should not share template counter budgets across pods"
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/allocator",
                    it="should allow template counter allocation on a different NC after exhausting budget on the first",
                ),
            ],
            id="by-node",
        ),
        pytest.param(
            Case(
                [],
                [pod("a", 2, gets=["gpu-0", "gpu-1"]), pod("a", 1, gets=None)],
                types=own(drawing("40Gi", "gpu-0", "gpu-1", "gpu-2", "gpu-3")),
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should accumulate template counter consumption across multiple pods on the same NC/IT",
            ),
            id="same-node",
        ),
        pytest.param(
            Case(
                [],
                [pod("a", 3, gets=["gpu-0", "gpu-1", "gpu-2"])],
                types={
                    TYPE: [
                        brought(drawing("20Gi", "gpu-0"), counters={"gpu-slices": {"memory": "40Gi"}}),
                        brought(drawing("20Gi", "gpu-1", "gpu-2"), counters={"gpu-slices": {"memory": "60Gi"}}),
                    ]
                },
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should handle multiple template slices for the same pool key",
            ),
            id="two-slices",
        ),
        pytest.param(
            Case(
                [],
                [pod("a", 3, gets=None), pod("a", 2, gets=["gpu-0", "gpu-1"])],
                types=own([both("gpu-0"), both("gpu-1"), both("gpu-2")], MEMORY_AND_COMPUTE),
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator", it="should handle multiple counter sets per template slice"
            ),
            id="two-sets",
        ),
        pytest.param(
            Case([], [pod("a", 1, gets=None)], types=own(drawing("40Gi", "gpu-0"), None)),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should reject template device when templateRemainingCounters is nil",
            ),
            id="no-counters",
        ),
        pytest.param(
            Case(
                [],
                [pod("a", 2, gets=None), pod("a", 1, gets=["gpu-a"])],
                types={
                    TYPE: [
                        brought(named_devices("gpu-a"), counters=MEMORY_80),
                        brought(drawing("40Gi", "gpu-b"), pool="other"),
                    ]
                },
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should reject template device when its pool has no entry in templateRemainingCounters",
            ),
            id="counters-elsewhere",
        ),
        pytest.param(
            Case([], [pod("a", 1, gets=None)], types=own([device("gpu-0", draws={"other": {"memory": "40Gi"}})])),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator", it="template device references non-existent counter set"
            ),
            id="unknown-set",
        ),
        pytest.param(
            Case([], [pod("a", 1, gets=None)], types=own([device("gpu-0", draws={"gpu-slices": {"other": "40Gi"}})])),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator", it="template device references non-existent counter name"
            ),
            id="unknown-counter",
        ),
    ],
)
def test_each_new_node_has_the_counters_of_its_type(case):
    """They are in the slice with the devices, or in another of the same pool."""
    assert case.follow() == case.expected


# -- devices that several pods share


def vram(amount, name="req-1", count=1):
    """Return a request for so much memory of a GPU."""
    return of_capacity(name, count, vram=amount)


def sharing(total, policy=None):
    """Return a published GPU with so much memory to share."""
    return published([shared("gpu-0", policy=policy, vram=total)])


def each_on_a_node(*amounts):
    """Return pods on nodes of their own: each with the amount of memory that it requests, None for none, and whether it fits."""
    return [
        pod(f"n{number}", exactly("req-1") if amount is None else vram(amount), gets=["gpu-0"] if fits else None)
        for number, (amount, fits) in enumerate(amounts)
    ]


def consumed(amount, device="gpu-0"):
    """Return a claim in use that has so much memory of a GPU."""
    return allocated(f"held-{device}", device, vram=amount)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            Case(sharing("80Gi"), each_on_a_node(("16Gi", True), ("65Gi", False), ("64Gi", True))),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should allocate a multi-alloc device with capacity and record ConsumedCapacity in metadata",
            ),
            id="some",
        ),
        pytest.param(
            Case(sharing("80Gi"), each_on_a_node(("16Gi", False), ("10Gi", True)), in_use=[consumed("70Gi")]),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should block allocation when multi-alloc device capacity is exhausted",
            ),
            id="in-use",
        ),
        pytest.param(
            Case(sharing("48Gi"), each_on_a_node(("16Gi", True), ("16Gi", True), ("16Gi", True), ("1Gi", False))),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should accumulate capacity across sequential Allocate+Commit calls for the same multi-alloc device",
            ),
            id="one-after-another",
        ),
        pytest.param(
            Case(sharing("80Gi"), each_on_a_node((None, True), (None, False), ("1Gi", False))),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should consume full device capacity when no explicit capacity request is made on a multi-alloc device",
            ),
            id="whole",
        ),
        pytest.param(
            Case(sharing("80Gi"), each_on_a_node(("16Gi", True), ("16Gi", True), ("49Gi", False), ("48Gi", True))),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should allow cross-NodeClaim sharing of a fresh multi-alloc device via inflight capacity tracking",
            ),
            id="unused",
        ),
        pytest.param(
            Case(
                sharing("100Gi"),
                each_on_a_node(("25Gi", True), ("40Gi", True), ("10Gi", False), ("5Gi", True)),
                in_use=[consumed("30Gi")],
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should correctly account for preallocated + inflight + allocating capacity all contributing to the same device",
            ),
            id="in-use-and-planned",
        ),
        pytest.param(
            Case(sharing("0"), each_on_a_node(("1Gi", False))),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should reject allocation when device has zero capacity for a requested dimension",
            ),
            id="none-there",
        ),
        pytest.param(
            Case(sharing("80Gi", {"default": "8Gi"}), each_on_a_node(*[(None, True)] * 10, (None, False))),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should use RequestPolicy.Default when no capacity request is specified",
            ),
            id="default",
        ),
        pytest.param(
            Case(
                sharing("16Gi", {"default": "4Gi", "validValues": ["4Gi", "8Gi", "16Gi"]}),
                each_on_a_node(("5Gi", True), ("9Gi", False), ("8Gi", True)),
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should round up to the next ValidValue when request does not match exactly",
            ),
            id="next-value",
        ),
        pytest.param(
            Case(
                sharing("80Gi", {"default": "4Gi", "validValues": ["4Gi", "8Gi", "16Gi"]}),
                each_on_a_node(("20Gi", False)),
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator", it="should fail when request exceeds all ValidValues"
            ),
            id="no-value",
        ),
        pytest.param(
            Case(
                sharing("80Gi", {"default": "4Gi", "validRange": {"min": "4Gi", "step": "4Gi"}}),
                each_on_a_node(("5Gi", True), ("76Gi", False), ("72Gi", True)),
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should round up to nearest step-aligned value with ValidRange policy",
            ),
            id="next-step",
        ),
        pytest.param(
            Case(
                sharing("100Gi", {"default": "4Gi", "validRange": {"min": "4Gi", "max": "50Gi", "step": "4Gi"}}),
                each_on_a_node(("55Gi", False), ("49Gi", False), ("48Gi", True)),
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should reject allocation when request rounds above ValidRange.Max",
            ),
            id="above-maximum",
        ),
        pytest.param(
            Case(
                sharing("100Gi", {"default": "4Gi", "validRange": {"min": "4Gi", "max": "48Gi", "step": "4Gi"}}),
                each_on_a_node(("48Gi", True)),
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator", it="should succeed when request is at exactly ValidRange.Max"
            ),
            id="maximum",
        ),
        pytest.param(
            Case(
                sharing("100Gi", {"default": "4Gi", "validRange": {"min": "4Gi", "max": "50Gi"}}),
                each_on_a_node(("55Gi", False)),
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should reject allocation when request exceeds Max even without Step",
            ),
            id="above-maximum-without-step",
        ),
        pytest.param(
            Case(
                sharing("31Gi", {"default": "4Gi", "validRange": {"min": "4Gi", "max": "50Gi"}}),
                each_on_a_node(("5Gi", True), ("27Gi", False), ("26Gi", True)),
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should succeed when request fits within ValidRange without Step (Min only)",
            ),
            id="within-range",
        ),
        pytest.param(
            Case(sharing("80Gi"), each_on_a_node(("16Gi", True), ("65Gi", False), ("64Gi", True)), types=TWO_TYPES),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator", it="should track capacity independently across ITs"
            ),
            id="two-types",
        ),
    ],
)
def test_pods_on_any_nodes_share_the_capacity_of_a_device(case):
    """An amount is rounded up by the device's request policy; without one the whole capacity, or the policy's default, is consumed."""
    assert case.follow() == case.expected


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            Case(
                sharing("64Gi"),
                [
                    pod("a", vram("16Gi"), vram("16Gi", "two"), gets=["gpu-0", "gpu-0"]),
                    pod("b", vram("16Gi", count=2), gets=["gpu-0", "gpu-0"]),
                    pod("c", vram("1Gi"), gets=None),
                ],
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should deduct capacity within a single DFS when multiple slots request the same multi-alloc device",
            ),
            id="two-requests",
        ),
        pytest.param(
            Case(sharing("24Gi"), [pod("a", vram("16Gi"), vram("16Gi", "two"), gets=None)]),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should fail when intra-DFS capacity deduction exceeds device capacity",
            ),
            id="too-much",
        ),
        pytest.param(
            Case(
                sharing("48Gi"),
                [
                    pod("a", asking(vram("20Gi")), asking(vram("20Gi")), gets=["gpu-0", "gpu-0"]),
                    pod("b", vram("10Gi"), gets=None),
                    pod("c", vram("8Gi"), gets=["gpu-0"]),
                ],
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should deduct capacity from the same multi-alloc device across multiple claims in a single Allocate call",
            ),
            id="two-claims",
        ),
        pytest.param(
            Case(
                published([shared("gpu-0", vram="20Gi"), shared("gpu-1", vram="40Gi")]),
                [pod("a", vram("20Gi"), vram("20Gi", "two"), gets=["gpu-0", "gpu-1"])],
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should restore capacity on backtrack and find alternative devices",
            ),
            id="next-device",
        ),
        pytest.param(
            Case(
                sharing("16Gi", {"default": "4Gi", "validValues": ["4Gi", "8Gi", "16Gi"]}),
                [pod("a", vram("5Gi"), vram("5Gi", "two"), gets=["gpu-0", "gpu-0"]), pod("b", 1, gets=None)],
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should account for rounded-up ValidValues capacity in intra-DFS deduction",
            ),
            id="rounded",
        ),
        pytest.param(
            Case(
                published([shared("gpu-0", vram="80Gi"), shared("gpu-1", bandwidth="100Gi")]),
                [pod("a", of_capacity(bandwidth="50Gi"), gets=["gpu-1"])],
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should skip a device when request references a non-existent capacity dimension",
            ),
            id="other-dimension",
        ),
        pytest.param(
            Case(
                published([shared("gpu-0", vram="80Gi"), shared("gpu-1", vram="80Gi", bandwidth="50Gi")]),
                [pod("a", of_capacity(bandwidth="25Gi"), gets=["gpu-1"])],
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should skip device missing a requested dimension and succeed on a sibling that has it",
            ),
            id="more-dimensions",
        ),
        pytest.param(
            Case(
                published([shared("gpu-0", vram="80Gi", bandwidth="10Gi")]),
                [pod("a", of_capacity(vram="16Gi", bandwidth="12Gi"), gets=None)],
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should reject when one capacity dimension is exceeded even if other dimensions have room",
            ),
            id="one-exceeded",
        ),
        pytest.param(
            Case(
                published([shared("gpu-0", vram="80Gi", bandwidth="10Gi")]),
                [
                    pod("a", of_capacity(vram="16Gi", bandwidth="5Gi"), gets=["gpu-0"]),
                    pod("b", of_capacity(vram="16Gi", bandwidth="6Gi"), gets=None),
                    pod("b", of_capacity(vram="64Gi", bandwidth="5Gi"), gets=["gpu-0"]),
                ],
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should succeed when both dimensions have sufficient capacity",
            ),
            id="both-fit",
        ),
        pytest.param(
            Case(
                published([shared("gpu-0", vram="32Gi", bandwidth="8Gi")]),
                [
                    pod(
                        "a",
                        of_capacity(vram="16Gi", bandwidth="4Gi"),
                        of_capacity("two", vram="16Gi", bandwidth="4Gi"),
                        gets=["gpu-0", "gpu-0"],
                    ),
                    pod("b", of_capacity(vram="1Gi", bandwidth="0"), gets=None),
                    pod("b", of_capacity(vram="0", bandwidth="1"), gets=None),
                ],
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should track multi-dimension capacity deductions intra-DFS independently",
            ),
            id="both-used",
        ),
        pytest.param(
            Case(
                published([device("gpu-0", capacity={"vram": "80Gi"})]),
                [pod("a", vram("16Gi"), gets=["gpu-0"]), pod("b", vram("16Gi"), gets=None)],
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should have nil ConsumedCapacity for exclusive (non-multi-alloc) devices",
            ),
            id="not-shared",
        ),
    ],
)
def test_requests_of_a_pod_share_the_capacity_of_a_device(case):
    """Each capacity must suffice for all requests; devices without a requested capacity are not selected."""
    assert case.follow() == case.expected


NO_CAPACITY = published([shared("gpu-0")])


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            Case(NO_CAPACITY, [pod("a", 1, gets=["gpu-0"]), pod("b", 1, gets=["gpu-0"])], in_use=[consumed("30Gi")]),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should bypass IsAllocated for multi-allocatable devices and allow cross-NodeClaim sharing",
            ),
            id="no-capacity",
        ),
        pytest.param(
            Case(
                NO_CAPACITY,
                [pod("a", 1, gets=["gpu-0"]), pod("b", 1, gets=["gpu-0"])],
                types=TWO_TYPES,
                in_use=[consumed("0")],
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should commit inflight consumed capacity with pessimistic-max across ITs",
            ),
            id="no-capacity-types",
        ),
        pytest.param(
            Case(
                NO_CAPACITY,
                [pod("a", 1, gets=["gpu-0"]), Drop("a", ["it-a"]), Drop("a", ["it-b"]), pod("b", 1, gets=["gpu-0"])],
                types=TWO_TYPES,
                in_use=[consumed("0")],
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should release inflight consumed capacity when all ITs are released",
            ),
            id="no-capacity-dropped",
        ),
        pytest.param(
            Case(NO_CAPACITY, [pod("a", 1, gets=["gpu-0"])] * 5, in_use=[consumed("0")]),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should accumulate inflight capacity across multiple Allocate+Commit calls",
            ),
            id="five-pods",
        ),
        pytest.param(
            Case(NO_CAPACITY, [pod(node, 1, gets=["gpu-0"]) for node in "abc"], in_use=[consumed("20Gi")]),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should not mix multi-alloc and exclusive tracking for the same device",
            ),
            id="three-nodes",
        ),
        pytest.param(
            Case(
                published([device("exclusive"), shared("gpu-0", vram="10Gi")]),
                [pod("a", 1, gets=None)],
                in_use=[allocated("held", "exclusive"), consumed("10Gi")],
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should block exclusive devices even when ConsumedCapacity tracks other devices",
            ),
            id="exclusive",
        ),
        pytest.param(
            Case(
                sharing("40Gi"),
                [
                    pod("a", vram("40Gi"), gets=["gpu-0"]),
                    pod("b", vram("1Gi"), gets=None),
                    Drop("a", ["it-a"]),
                    Drop("a", ["it-b"]),
                    pod("b", vram("40Gi"), gets=["gpu-0"]),
                ],
                types=TWO_TYPES,
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should correctly refund inflight capacity so a subsequent allocation at the boundary succeeds",
            ),
            id="all-dropped",
        ),
        pytest.param(
            Case(
                sharing("80Gi"),
                [
                    pod("a", vram("30Gi"), gets=["gpu-0"]),
                    Drop("a", ["it-a"]),
                    pod("b", vram("51Gi"), gets=None),
                    pod("c", vram("50Gi"), gets=["gpu-0"]),
                ],
                types=TWO_TYPES,
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should partially refund when released IT had lower consumption than survivors",
            ),
            id="one-dropped",
        ),
        pytest.param(
            Case(
                published([on_root(shared("gpu-a", vram="80Gi"), ON_A), on_root(shared("gpu-b", vram="80Gi"), ON_B)]),
                [
                    pod(
                        "a",
                        beside_nic(vram("60Gi")),
                        types=["it-a", "it-b"],
                        gets={"it-a": ["gpu-a", "nic-0"], "it-b": ["gpu-b", "nic-0"]},
                    ),
                    pod("b", vram("30Gi"), types=["plain"], gets=None),
                    Drop("a", ["it-a"]),
                    pod("b", vram("80Gi"), types=["plain"], gets=["gpu-a"]),
                ],
                types=PLAIN_TOO,
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should partially refund capacity when released IT had higher consumption than survivors",
            ),
            id="two-pods-dropped",
        ),
        pytest.param(
            Case(
                [],
                [
                    pod("a", vram("20Gi"), gets=["gpu-0"]),
                    pod("a", vram("20Gi"), gets=["gpu-0"]),
                    pod("a", vram("1Gi"), gets=None),
                    pod("b", vram("40Gi"), gets=["gpu-0"]),
                ],
                types={TYPE: [brought([shared("gpu-0", vram="40Gi")])]},
            ),
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/allocator",
                    it="should handle template multi-alloc devices with capacity constraints",
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/allocator",
                    it="should track template consumed capacity per-IT with concrete quantities",
                ),
            ],
            id="own",
        ),
        pytest.param(
            Case(
                [],
                [
                    pod("a", vram("20Gi"), gets=["gpu-0"]),
                    pod("a", vram("1Gi"), gets=None),
                    Drop("a", ["it-a"]),
                    pod("a", vram("1Gi"), gets=None),
                ],
                types={
                    "it-a": [brought([shared("gpu-0", vram="20Gi")])],
                    "it-b": [brought([shared("gpu-0", vram="20Gi")], pool="other")],
                },
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should independently track template capacity across different ITs in same NodeClaim",
            ),
            id="own-by-type",
        ),
    ],
)
def test_shared_device_is_allocated_beside_others_until_its_capacity_is_used(case):
    """What an instance type needs of it is free once that type has dropped out."""
    assert case.follow() == case.expected


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            Case(
                published(
                    [shared(f"mig-{n}", draws={"gpu-slices": {"memory": "40Gi"}}, vram="20Gi") for n in range(2)],
                    counters=MEMORY_80,
                ),
                [pod("a", 2, gets=None), pod("a", 1, gets=["mig-1"])],
                in_use=[consumed("10Gi", "mig-0")],
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should deduct counters for preallocated multi-alloc devices",
            ),
            id="in-use",
        ),
        pytest.param(
            Case(
                published(
                    [shared(f"gpu-{n}", draws={"sms": {"count": "20"}}, bandwidth="100Gi") for n in range(3)],
                    counters={"sms": {"count": "40"}},
                ),
                [pod("a", 3, gets=None), pod("a", 2, gets=["gpu-0", "gpu-1"])],
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should track both capacity and counters independently for multi-alloc devices",
            ),
            id="both",
        ),
        pytest.param(
            Case(
                published(
                    [shared("a", draws={"gpu-slices": {"memory": "40Gi"}}, vram="80Gi"), *drawing("40Gi", "b")],
                    counters=MEMORY_80,
                ),
                [pod("m", vram("20Gi", count=2), gets=None), pod("n", vram("20Gi"), gets=["a"])],
                in_use=[allocated("held", "a")],
            ),
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/allocator",
                it="should correctly backtrack capacity and counters together on multi-alloc device",
            ),
            id="again",
        ),
    ],
)
def test_shared_device_also_draws_on_counters(case):
    """Each allocation draws on them, with those in use."""
    assert case.follow() == case.expected
