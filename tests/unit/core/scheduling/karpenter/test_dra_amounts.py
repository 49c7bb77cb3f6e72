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
            id="within",
        ),
        pytest.param(
            Case(THREE_IN_80, [pod("a", 3, gets=None)]),
            id="exceeded",
        ),
        pytest.param(
            Case(
                THREE_IN_80, [pod("a", 2, gets=None), pod("a", 1, gets=["gpu-1"])], in_use=[allocated("held", "gpu-0")]
            ),
            id="in-use",
        ),
        pytest.param(
            Case(THREE_IN_80, [pod("a", 2, gets=["gpu-0", "gpu-1"]), pod("b", 1, gets=None)]),
            id="other-pods",
        ),
        pytest.param(
            Case(
                published([both("gpu-0"), both("gpu-1"), both("gpu-2")], counters=MEMORY_AND_COMPUTE),
                [pod("a", 3, gets=None), pod("a", 2, gets=["gpu-0", "gpu-1"])],
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
            id="elsewhere",
        ),
        pytest.param(
            Case(
                published([device("gpu-0", draws={"other": {"memory": "40Gi"}})], counters=MEMORY_80),
                [pod("a", 1, gets=None)],
                types={TYPE: ()},
            ),
            id="unknown-set",
        ),
        pytest.param(
            Case(
                published([device("gpu-0", draws={"gpu-slices": {"other": "40Gi"}})], counters=MEMORY_80),
                [pod("a", 1, gets=None)],
                types={TYPE: ()},
            ),
            id="unknown-counter",
        ),
        pytest.param(
            Case(
                published(drawing("1", "gpu-0", "gpu-1"), counters={"gpu-slices": {"memory": "0"}}),
                [pod("a", 1, gets=None)],
                types={TYPE: ()},
            ),
            id="zero",
        ),
        pytest.param(
            Case(
                published(drawing("0", "gpu-0"), counters={"gpu-slices": {"memory": "0"}}),
                [pod("a", 1, gets=["gpu-0"])],
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
            id="another-choice",
        ),
        pytest.param(
            Case(
                published(drawing("80Gi", "gpu-0"), counters=MEMORY_80),
                [pod("a", 2, gets=["gpu-0", "own-0"]), pod("b", 1, gets=["own-0"])],
                types=own(drawing("80Gi", "own-0"), pool="pool-a"),
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
            id="dropped",
        ),
        pytest.param(
            Case(THREE_OF_40, [pod("a", 1, gets=["gpu-0"]), pod("b", 2, gets=["gpu-1", "gpu-2"])], types=TWO_TYPES),
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
            id="within",
        ),
        pytest.param(
            Case([], [pod("a", 3, gets=None)], types=own(drawing("40Gi", "gpu-0", "gpu-1", "gpu-2"))),
            id="exceeded",
        ),
        pytest.param(
            Case([], [pod("a", 2, 1, gets=None)], types=own(drawing("40Gi", "gpu-0", "gpu-1", "gpu-2"))),
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
            id="by-type",
        ),
        pytest.param(
            Case(
                [],
                [pod("a", 2, gets=["gpu-0", "gpu-1"]), pod("b", 2, gets=["gpu-0", "gpu-1"])],
                types=own(drawing("40Gi", "gpu-0", "gpu-1", "gpu-2")),
            ),
            id="by-node",
        ),
        pytest.param(
            Case(
                [],
                [pod("a", 2, gets=["gpu-0", "gpu-1"]), pod("a", 1, gets=None)],
                types=own(drawing("40Gi", "gpu-0", "gpu-1", "gpu-2", "gpu-3")),
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
            id="two-slices",
        ),
        pytest.param(
            Case(
                [],
                [pod("a", 3, gets=None), pod("a", 2, gets=["gpu-0", "gpu-1"])],
                types=own([both("gpu-0"), both("gpu-1"), both("gpu-2")], MEMORY_AND_COMPUTE),
            ),
            id="two-sets",
        ),
        pytest.param(
            Case([], [pod("a", 1, gets=None)], types=own(drawing("40Gi", "gpu-0"), None)),
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
            id="counters-elsewhere",
        ),
        pytest.param(
            Case([], [pod("a", 1, gets=None)], types=own([device("gpu-0", draws={"other": {"memory": "40Gi"}})])),
            id="unknown-set",
        ),
        pytest.param(
            Case([], [pod("a", 1, gets=None)], types=own([device("gpu-0", draws={"gpu-slices": {"other": "40Gi"}})])),
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
            id="some",
        ),
        pytest.param(
            Case(sharing("80Gi"), each_on_a_node(("16Gi", False), ("10Gi", True)), in_use=[consumed("70Gi")]),
            id="in-use",
        ),
        pytest.param(
            Case(sharing("48Gi"), each_on_a_node(("16Gi", True), ("16Gi", True), ("16Gi", True), ("1Gi", False))),
            id="one-after-another",
        ),
        pytest.param(
            Case(sharing("80Gi"), each_on_a_node((None, True), (None, False), ("1Gi", False))),
            id="whole",
        ),
        pytest.param(
            Case(sharing("80Gi"), each_on_a_node(("16Gi", True), ("16Gi", True), ("49Gi", False), ("48Gi", True))),
            id="unused",
        ),
        pytest.param(
            Case(
                sharing("100Gi"),
                each_on_a_node(("25Gi", True), ("40Gi", True), ("10Gi", False), ("5Gi", True)),
                in_use=[consumed("30Gi")],
            ),
            id="in-use-and-planned",
        ),
        pytest.param(
            Case(sharing("0"), each_on_a_node(("1Gi", False))),
            id="none-there",
        ),
        pytest.param(
            Case(sharing("80Gi", {"default": "8Gi"}), each_on_a_node(*[(None, True)] * 10, (None, False))),
            id="default",
        ),
        pytest.param(
            Case(
                sharing("16Gi", {"default": "4Gi", "validValues": ["4Gi", "8Gi", "16Gi"]}),
                each_on_a_node(("5Gi", True), ("9Gi", False), ("8Gi", True)),
            ),
            id="next-value",
        ),
        pytest.param(
            Case(
                sharing("80Gi", {"default": "4Gi", "validValues": ["4Gi", "8Gi", "16Gi"]}),
                each_on_a_node(("20Gi", False)),
            ),
            id="no-value",
        ),
        pytest.param(
            Case(
                sharing("80Gi", {"default": "4Gi", "validRange": {"min": "4Gi", "step": "4Gi"}}),
                each_on_a_node(("5Gi", True), ("76Gi", False), ("72Gi", True)),
            ),
            id="next-step",
        ),
        pytest.param(
            Case(
                sharing("100Gi", {"default": "4Gi", "validRange": {"min": "4Gi", "max": "50Gi", "step": "4Gi"}}),
                each_on_a_node(("55Gi", False), ("49Gi", False), ("48Gi", True)),
            ),
            id="above-maximum",
        ),
        pytest.param(
            Case(
                sharing("100Gi", {"default": "4Gi", "validRange": {"min": "4Gi", "max": "48Gi", "step": "4Gi"}}),
                each_on_a_node(("48Gi", True)),
            ),
            id="maximum",
        ),
        pytest.param(
            Case(
                sharing("100Gi", {"default": "4Gi", "validRange": {"min": "4Gi", "max": "50Gi"}}),
                each_on_a_node(("55Gi", False)),
            ),
            id="above-maximum-without-step",
        ),
        pytest.param(
            Case(
                sharing("31Gi", {"default": "4Gi", "validRange": {"min": "4Gi", "max": "50Gi"}}),
                each_on_a_node(("5Gi", True), ("27Gi", False), ("26Gi", True)),
            ),
            id="within-range",
        ),
        pytest.param(
            Case(sharing("80Gi"), each_on_a_node(("16Gi", True), ("65Gi", False), ("64Gi", True)), types=TWO_TYPES),
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
            id="two-requests",
        ),
        pytest.param(
            Case(sharing("24Gi"), [pod("a", vram("16Gi"), vram("16Gi", "two"), gets=None)]),
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
            id="two-claims",
        ),
        pytest.param(
            Case(
                published([shared("gpu-0", vram="20Gi"), shared("gpu-1", vram="40Gi")]),
                [pod("a", vram("20Gi"), vram("20Gi", "two"), gets=["gpu-0", "gpu-1"])],
            ),
            id="next-device",
        ),
        pytest.param(
            Case(
                sharing("16Gi", {"default": "4Gi", "validValues": ["4Gi", "8Gi", "16Gi"]}),
                [pod("a", vram("5Gi"), vram("5Gi", "two"), gets=["gpu-0", "gpu-0"]), pod("b", 1, gets=None)],
            ),
            id="rounded",
        ),
        pytest.param(
            Case(
                published([shared("gpu-0", vram="80Gi"), shared("gpu-1", bandwidth="100Gi")]),
                [pod("a", of_capacity(bandwidth="50Gi"), gets=["gpu-1"])],
            ),
            id="other-dimension",
        ),
        pytest.param(
            Case(
                published([shared("gpu-0", vram="80Gi"), shared("gpu-1", vram="80Gi", bandwidth="50Gi")]),
                [pod("a", of_capacity(bandwidth="25Gi"), gets=["gpu-1"])],
            ),
            id="more-dimensions",
        ),
        pytest.param(
            Case(
                published([shared("gpu-0", vram="80Gi", bandwidth="10Gi")]),
                [pod("a", of_capacity(vram="16Gi", bandwidth="12Gi"), gets=None)],
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
            id="both-used",
        ),
        pytest.param(
            Case(
                published([device("gpu-0", capacity={"vram": "80Gi"})]),
                [pod("a", vram("16Gi"), gets=["gpu-0"]), pod("b", vram("16Gi"), gets=None)],
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
            id="no-capacity",
        ),
        pytest.param(
            Case(
                NO_CAPACITY,
                [pod("a", 1, gets=["gpu-0"]), pod("b", 1, gets=["gpu-0"])],
                types=TWO_TYPES,
                in_use=[consumed("0")],
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
            id="no-capacity-dropped",
        ),
        pytest.param(
            Case(NO_CAPACITY, [pod("a", 1, gets=["gpu-0"])] * 5, in_use=[consumed("0")]),
            id="five-pods",
        ),
        pytest.param(
            Case(NO_CAPACITY, [pod(node, 1, gets=["gpu-0"]) for node in "abc"], in_use=[consumed("20Gi")]),
            id="three-nodes",
        ),
        pytest.param(
            Case(
                published([device("exclusive"), shared("gpu-0", vram="10Gi")]),
                [pod("a", 1, gets=None)],
                in_use=[allocated("held", "exclusive"), consumed("10Gi")],
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
            id="again",
        ),
    ],
)
def test_shared_device_also_draws_on_counters(case):
    """Each allocation draws on them, with those in use."""
    assert case.follow() == case.expected
