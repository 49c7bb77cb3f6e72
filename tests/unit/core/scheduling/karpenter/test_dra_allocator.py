"""Karpenter's suite of the device allocator: which devices pods get on new nodes, and what they leave for others."""

from __future__ import annotations

import pytest

from tests.helpers.builders import NOW, a_node, a_running_claim, stamp
from tests.helpers.device_allocation import (
    BESIDE_NICS,
    MEMORY_80,
    NUMA,
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
    on_numa,
    on_root,
    pod,
    published,
    shared,
)
from tests.helpers.devices import (
    DRIVER,
    NIC_DRIVER,
    a_claiming_pod,
    a_resource_claim,
    a_slice,
    devices_of,
    exactly,
    first_of,
    named_devices,
    schedule_devices,
    selecting,
)

PCIE = f"{DRIVER}/pcie"
FOUR = published(named_devices("gpu-0", "gpu-1", "gpu-2", "gpu-3"))
THREE = published(named_devices("gpu-0", "gpu-1", "gpu-2"))
TWO = published(named_devices("gpu-0", "gpu-1"))
ONE = published(named_devices("gpu-0"))
NAMES = [f"gpu-{n:02}" for n in range(40)]
OWN_TWO = {TYPE: [brought(named_devices("own-0", "own-1"))]}
TWO_TYPES = {"it-a": (), "it-b": ()}
ALL = exactly("all", allocationMode="All")
A_NIC = exactly("nic", deviceClassName="nic")


def of_kinds(**kinds):
    """Return a device for each name, of that kind."""
    return [device(name, kind=kind) for name, kind in kinds.items()]


def kind(value, name="req-1", **more):
    """Return a request for a GPU of a kind."""
    return exactly(name, select=f'device.attributes["{DRIVER}"].kind == "{value}"', **more)


# -- how many devices, and which


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            Case(FOUR, [pod("a", gets=[])]),
            id="no-claim",
        ),
        pytest.param(
            Case(FOUR, [pod("a", 1, gets=["gpu-0"])]),
            id="one",
        ),
        pytest.param(
            Case(FOUR, [pod("a", 3, gets=["gpu-0", "gpu-1", "gpu-2"])]),
            id="three",
        ),
        pytest.param(
            Case(FOUR, [pod("a", 5, gets=None)]),
            id="five-of-four",
        ),
        pytest.param(
            Case(FOUR, [pod("a", 2, 2, gets=["gpu-0", "gpu-1", "gpu-2", "gpu-3"])]),
            id="two-requests",
        ),
        pytest.param(
            Case(FOUR, [pod("a", 3, 3, gets=None)]),
            id="too-many-requests",
        ),
        pytest.param(
            Case(FOUR, [pod("a", asking(2), asking(2), gets=["gpu-0", "gpu-1", "gpu-2", "gpu-3"])]),
            id="two-claims",
        ),
        pytest.param(
            Case(THREE, [pod("a", asking(2), asking(2), gets=None)]),
            id="too-many-claims",
        ),
        pytest.param(
            Case(FOUR, [pod("a", 2, gets=None)], in_use=[allocated("held", "gpu-0", "gpu-1", "gpu-2")]),
            id="in-use",
        ),
        pytest.param(
            Case(FOUR, [pod("a", 2, gets=["gpu-2", "gpu-3"])], in_use=[allocated("held", "gpu-0", "gpu-1")]),
            id="some-in-use",
        ),
        pytest.param(
            Case(
                published(
                    [device("gpu-0", model="H100"), device("gpu-1", model="A100"), device("gpu-2", model="H100")]
                ),
                [pod("a", exactly(deviceClassName="h100", count=2), gets=["gpu-0", "gpu-2"])],
            ),
            id="class",
        ),
        pytest.param(
            Case(
                published(
                    [device("gpu-0", model="H100"), device("gpu-1", model="A100"), device("gpu-2", model="H100")]
                ),
                [pod("a", exactly(deviceClassName="h100", count=3), gets=None)],
            ),
            id="class-too-many",
        ),
        pytest.param(
            Case(
                published(
                    [device("gpu-0", model="H100"), device("gpu-1", model="A100"), device("gpu-2", model="H100")]
                ),
                [pod("a", exactly(select=selecting("A100")), gets=["gpu-1"])],
            ),
            id="selector",
        ),
        pytest.param(
            Case(
                published(
                    [
                        device("gpu-0", model="H100", kind="large"),
                        device("gpu-1", model="H100", kind="small"),
                        device("gpu-2", model="A100", kind="large"),
                    ]
                ),
                [
                    pod("a", kind("large", deviceClassName="h100", count=2), gets=None),
                    pod("b", kind("large", deviceClassName="h100"), gets=["gpu-0"]),
                ],
            ),
            id="class-and-selector",
        ),
        pytest.param(
            Case(
                [*published(named_devices("gpu-0")), *published(named_devices("gpu-1"), pool="pool-b")],
                [pod("a", 2, gets=["gpu-0", "gpu-1"])],
            ),
            id="two-pools",
        ),
        pytest.param(
            Case(
                [*ONE, *published(named_devices("gpu-0"), pool="pool-b")],
                [pod("a", 2, gets=["gpu-0", "gpu-0"]), pod("b", 1, gets=None)],
            ),
            id="same-name",
        ),
        pytest.param(
            Case(ONE, [pod("a", 1, gets=None)], types={}),
            id="no-type",
        ),
        pytest.param(
            Case(
                [
                    *published(named_devices("gpu-0"), zone="a"),
                    *published(named_devices("gpu-1"), zone="b", pool="pool-b"),
                ],
                [pod("a", 1, zones=["c"], gets=None)],
            ),
            id="no-device",
        ),
        pytest.param(
            Case(published([shared("twin", vram="80Gi"), shared("twin", vram="40Gi")]), [pod("a", 1, gets=None)]),
            id="invalid-pool",
        ),
    ],
)
def test_pod_gets_so_many_devices_that_its_requests_select(case):
    """Published devices are taken in the order of their pools; without enough of them the pod does not fit."""
    assert case.follow() == case.expected


# -- constraints


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            Case(published(on_numa(0, 0, 1, 1)), [pod("a", asking(2, match=[NUMA]), gets=["gpu-0", "gpu-1"])]),
            id="pair",
        ),
        pytest.param(
            Case(published(on_numa(0, 0, 1, 1)), [pod("a", asking(3, match=[NUMA]), gets=None)]),
            id="three-of-two",
        ),
        pytest.param(
            Case(
                published(on_numa(0, 1, 0, 1)),
                [
                    pod(
                        "a",
                        asking(
                            exactly("one", count=2), exactly("two", count=2), match=[(NUMA, ["one"]), (NUMA, ["two"])]
                        ),
                        gets=["gpu-0", "gpu-1", "gpu-2", "gpu-3"],
                    )
                ],
            ),
            id="per-request",
        ),
        pytest.param(
            Case(
                published(on_numa(0, 1, 0, 1)),
                [pod("a", asking(2, match=[NUMA]), asking(2, match=[NUMA]), gets=["gpu-0", "gpu-1", "gpu-2", "gpu-3"])],
            ),
            id="per-claim",
        ),
        pytest.param(
            Case(
                published(on_numa(0, 0, 1)),
                [
                    pod(
                        "a",
                        asking(exactly("a"), exactly("b"), exactly("c"), match=[(NUMA, ["a", "b"])]),
                        gets=["gpu-0", "gpu-1", "gpu-2"],
                    )
                ],
            ),
            id="some-requests",
        ),
        pytest.param(
            Case(
                published(
                    [
                        device("gpu-0", numa="0", pcie="0"),
                        device("gpu-1", numa="0", pcie="1"),
                        device("gpu-2", numa="0", pcie="0"),
                    ]
                ),
                [pod("a", asking(2, match=[NUMA, PCIE]), gets=["gpu-0", "gpu-2"])],
            ),
            id="two-attributes",
        ),
        pytest.param(
            Case(
                published(
                    [
                        device("gpu-0", numa="0", pcie="0"),
                        device("gpu-1", numa="0", pcie="1"),
                        device("gpu-2", numa="1", pcie="0"),
                    ]
                ),
                [pod("a", asking(2, match=[NUMA, PCIE]), gets=None)],
            ),
            id="two-attributes-apart",
        ),
        pytest.param(
            Case(
                published(on_numa(0, 1)),
                [pod("a", asking(2, match=[NUMA]), gets=["own-0", "own-1"])],
                types={TYPE: [brought(on_numa(2, 2, prefix="own"))]},
            ),
            id="own-devices",
        ),
        pytest.param(
            Case(
                [],
                [pod("a", asking(2, match=[NUMA]), gets=["own-0", "own-1"])],
                types={"it-a": [brought(on_numa(0, 0, prefix="own"))], "it-b": [brought(on_numa(1, 1, prefix="own"))]},
            ),
            id="each-type",
        ),
        pytest.param(
            Case(
                [],
                [pod("a", asking(2, match=[NUMA]), gets={"it-b": ["own-0", "own-1"]})],
                types={"it-a": [brought(on_numa(0, 1, prefix="own"))], "it-b": [brought(on_numa(2, 2, prefix="own"))]},
            ),
            id="second-type",
        ),
        pytest.param(
            Case(published(on_numa(0, 0)), [pod("a", asking(ALL, match=[NUMA]), gets=["gpu-0", "gpu-1"])]),
            id="all",
        ),
        pytest.param(
            Case(
                published(
                    [
                        device("gpu-0", kind="compute", numa="0"),
                        device("gpu-1", kind="compute", numa="0"),
                        device("gpu-2", kind="extra", numa="0"),
                    ]
                ),
                [
                    pod(
                        "a",
                        asking(kind("compute", "all", allocationMode="All"), kind("extra", "one"), match=[NUMA]),
                        gets=["gpu-0", "gpu-1", "gpu-2"],
                    )
                ],
            ),
            id="all-and-one",
        ),
        pytest.param(
            Case(
                published(
                    [
                        device("gpu-0", kind="compute", numa="0"),
                        device("gpu-1", kind="compute", numa="0"),
                        device("gpu-2", kind="extra", numa="1"),
                    ]
                ),
                [
                    pod(
                        "a",
                        asking(kind("compute", "all", allocationMode="All"), kind("extra", "one"), match=[NUMA]),
                        gets=None,
                    )
                ],
            ),
            id="all-and-one-apart",
        ),
    ],
)
def test_devices_of_a_claim_have_the_same_attributes(case):
    """The constraint covers the requests that it names, by default all of the claim; another choice is tried where one fails."""
    assert case.follow() == case.expected


# -- all devices


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            Case(THREE, [pod("a", ALL, gets=["gpu-0", "gpu-1", "gpu-2"])]),
            id="published",
        ),
        pytest.param(
            Case(ONE, [pod("a", ALL, gets=["gpu-0", "own-0", "own-1"])], types=OWN_TWO),
            id="own",
        ),
        pytest.param(
            Case(
                [],
                [pod("a", ALL, gets={"it-a": ["own-0", "own-1", "own-2"], "it-b": ["own-0"]})],
                types={
                    "it-a": [brought(named_devices("own-0", "own-1", "own-2"))],
                    "it-b": [brought(named_devices("own-0"))],
                },
            ),
            id="by-type",
        ),
        pytest.param(
            Case(published(named_devices("nic-0"), driver=NIC_DRIVER), [pod("a", ALL, gets=None)]),
            id="none",
        ),
        pytest.param(
            Case(TWO, [pod("a", ALL, gets=None)], in_use=[allocated("held", "gpu-0")]),
            id="in-use",
        ),
        pytest.param(
            Case(
                published(of_kinds(a="compute", b="compute", c="network")),
                [pod("a", kind("compute", "all", allocationMode="All"), kind("network", "one"), gets=["a", "b", "c"])],
            ),
            id="and-one",
        ),
        pytest.param(
            Case(
                [
                    *published(named_devices("gpu-0")),
                    *published(named_devices("gpu-1"), pool="pool-b"),
                    *published(named_devices("gpu-2"), pool="pool-c"),
                ],
                [pod("a", ALL, gets=["gpu-0", "gpu-1", "gpu-2"])],
            ),
            id="pools",
        ),
        pytest.param(
            Case(published([shared("twin", vram="80Gi"), shared("twin", vram="80Gi")]), [pod("a", ALL, gets=None)]),
            id="shared-twins",
        ),
        pytest.param(
            Case(
                published(drawing("30Gi", "gpu-0", "gpu-1"), counters=MEMORY_80),
                [pod("a", ALL, gets=["gpu-0", "gpu-1"])],
            ),
            id="counters",
        ),
        pytest.param(
            Case(
                published(drawing("40Gi", "gpu-0", "gpu-1"), counters={"gpu-slices": {"memory": "60Gi"}}),
                [pod("a", ALL, gets=None)],
            ),
            id="counters-exceeded",
        ),
    ],
)
def test_allocation_mode_all_takes_each_selected_device_or_none(case):
    """All devices that the node can access must be known and free."""
    assert case.follow() == case.expected


# -- devices that instance types bring


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            Case(TWO, [pod("a", 3, gets=["gpu-0", "gpu-1", "own-0"])], types=OWN_TWO),
            id="both",
        ),
        pytest.param(
            Case(TWO, [pod("a", 2, gets=["gpu-0", "gpu-1"])], types=OWN_TWO),
            id="published-first",
        ),
        pytest.param(
            Case(
                ONE,
                [pod("a", 3, gets={"large": ["gpu-0", "own-0", "own-1"]})],
                types={"large": [brought(named_devices("own-0", "own-1"))], "small": ()},
            ),
            id="one-type",
        ),
        pytest.param(
            Case(
                ONE,
                [pod("a", 2, gets=["gpu-0", "own-0"])],
                types={
                    "it-a": [brought(named_devices("own-0"))],
                    "it-b": [brought(named_devices("own-0"), pool="other")],
                },
            ),
            id="both-types",
        ),
        pytest.param(
            Case(
                [],
                [pod("a", 5, gets=None)],
                types={
                    "it-a": [brought(named_devices("own-0"))],
                    "it-b": [brought(named_devices("own-0"), pool="other")],
                },
            ),
            id="no-type",
        ),
        pytest.param(
            Case([], [pod("a", 2, gets=["own-0", "own-1"]), pod("a", 1, gets=None)], types=OWN_TWO),
            id="same-node",
        ),
        pytest.param(
            Case(
                [],
                [
                    pod("a", 2, gets={"it-a": ["own-0", "own-1"], "it-b": ["own-0", "own-1"]}),
                    Drop("a", ["it-a"]),
                    pod("a", 1, gets=None),
                ],
                types={
                    "it-a": [brought(named_devices("own-0", "own-1"))],
                    "it-b": [brought(named_devices("own-0", "own-1"), pool="other")],
                },
            ),
            id="type-by-type",
        ),
        pytest.param(
            Case(
                [],
                [
                    pod("a", 1, gets=["own-0"]),
                    pod("a", 1, gets=["own-1"]),
                    pod("a", 1, gets=None),
                    pod("b", 1, gets=["own-0"]),
                ],
                types=OWN_TWO,
            ),
            id="one-after-another",
        ),
    ],
)
def test_new_node_brings_the_devices_of_its_instance_type(case):
    """They are taken after published ones; types without enough devices drop out."""
    assert case.follow() == case.expected


# -- pods on several nodes


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            Case(THREE, [pod("a", 2, gets=["gpu-0", "gpu-1"]), pod("a", 2, gets=None), pod("a", 1, gets=["gpu-2"])]),
            id="same-node",
        ),
        pytest.param(
            Case(TWO, [pod("a", 1, gets=["gpu-0"]), pod("a", 1, gets=["gpu-1"])]),
            id="same-node-again",
        ),
        pytest.param(
            Case(THREE, [pod("a", 2, gets=["gpu-0", "gpu-1"]), pod("b", 2, gets=None), pod("b", 1, gets=["gpu-2"])]),
            id="other-node",
        ),
        pytest.param(
            Case(
                THREE,
                [pod("a", 2, gets={"it-a": ["gpu-0", "gpu-1"], "it-b": ["gpu-0", "gpu-1"]}), pod("b", 2, gets=None)],
                types=TWO_TYPES,
            ),
            id="two-types",
        ),
        pytest.param(
            Case(
                TWO,
                [
                    pod("a", 2, gets=["gpu-0", "gpu-1"]),
                    pod("b", 1, gets=None),
                    Drop("a", [TYPE]),
                    pod("b", 1, gets=["gpu-0"]),
                ],
            ),
            id="type-dropped",
        ),
        pytest.param(
            Case(
                TWO,
                [
                    pod("a", 2, gets=["gpu-0", "gpu-1"]),
                    Drop("a", ["it-a"]),
                    pod("b", 1, gets=None),
                    Drop("a", ["it-b"]),
                    pod("b", 1, gets=["gpu-0"]),
                ],
                types=TWO_TYPES,
            ),
            id="types-dropped",
        ),
        pytest.param(
            Case(TWO, [Drop("a", ["unknown"]), pod("b", 2, gets=["gpu-0", "gpu-1"])]),
            id="nothing-dropped",
        ),
        pytest.param(
            Case(TWO, [pod("a", 2, gets=["gpu-0", "gpu-1"], commit=False), pod("a", 2, gets=["gpu-0", "gpu-1"])]),
            id="proposed-only",
        ),
        pytest.param(
            Case(TWO, [pod("a", 2, gets=["gpu-0", "gpu-1"], commit=False), pod("b", 2, gets=["gpu-0", "gpu-1"])]),
            id="proposed-elsewhere",
        ),
    ],
)
def test_device_is_held_by_the_pods_of_one_node(case):
    """It is free again when no instance type left of that node needs it."""
    assert case.follow() == case.expected


# -- zones


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            Case(
                [*published(named_devices("a0"), zone="a"), *published(named_devices("b0"), zone="b", pool="pool-b")],
                [pod("n", 1, zones=["a", "b"], gets=["a0"], zone="a")],
            ),
            id="first-zone",
        ),
        pytest.param(
            Case(
                [
                    *published(named_devices("a0", "a1"), zone="a"),
                    *published(named_devices("b0", "b1"), zone="b", pool="pool-b"),
                ],
                [pod("n", 2, zones=["a", "b"], gets=["a0", "a1"], zone="a")],
            ),
            id="one-zone",
        ),
        pytest.param(
            Case(
                [
                    *published(named_devices("a0"), zone="a"),
                    *published(named_devices("b0", "b1"), zone="b", pool="pool-b"),
                ],
                [pod("n", 2, zones=["a", "b"], gets=["b0", "b1"], zone="b")],
            ),
            id="second-zone",
        ),
        pytest.param(
            Case(published(named_devices("gpu-0"), zone="b"), [pod("n", 1, zones=["a"], gets=None)]),
            id="other-zone",
        ),
        pytest.param(
            Case(
                [*published(named_devices("a0"), zone="a"), *published(named_devices("b0"), zone="b", pool="pool-b")],
                [pod("n", 2, zones=["a", "b"], gets={"it-a": ["a0", "own-0"]}, zone="a")],
                types={"it-a": [brought(named_devices("own-0"))], "it-b": ()},
            ),
            id="type-pruned",
        ),
        pytest.param(
            Case(
                [
                    *published(named_devices("a0", "a1"), zone="a"),
                    *published(named_devices("b0", "b1"), zone="b", pool="pool-b"),
                ],
                [pod("n", 2, zones=["a", "b"], gets=["a0", "a1"], zone="a")],
                types={"it-a": [brought(named_devices("own-0"))], "it-b": ()},
            ),
            id="types-alike",
        ),
        pytest.param(
            Case(
                [
                    *published(named_devices("a0", "a1"), zone="a"),
                    *published(named_devices("b0", "b1"), zone="b", pool="pool-b"),
                ],
                [
                    pod("n", 1, zones=["a", "b"], gets={"it-a": ["a0"], "it-b": ["a0"]}, zone="a"),
                    Drop("n", ["it-a"]),
                    pod("n", 1, gets={"it-b": ["a1"]}, zone="a"),
                ],
                types={"it-a": [brought(named_devices("nic-0"), driver=NIC_DRIVER)], "it-b": ()},
            ),
            id="next-pod",
        ),
    ],
)
def test_zonal_devices_restrict_the_zones_of_a_node(case):
    """All devices of a node are in one zone, whatever instance type it becomes."""
    assert case.follow() == case.expected


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            Case([], [pod("n", allocated(), gets=[])]),
            id="anywhere",
        ),
        pytest.param(
            Case([], [pod("n", allocated("held", zone="a"), zones=["a", "b"], gets=[], zone="a")]),
            id="zone",
        ),
        pytest.param(
            Case([], [pod("n", allocated("held", zone="c"), zones=["a"], gets=None)]),
            id="other-zone",
        ),
        pytest.param(
            Case(
                [*published(named_devices("a0"), zone="a"), *published(named_devices("b0"), zone="b", pool="pool-b")],
                [pod("n", allocated("held", zone="b"), asking(1), zones=["a", "b"], gets=["b0"], zone="b")],
            ),
            id="and-unallocated",
        ),
        pytest.param(
            Case(TWO, [pod("n", allocated(), asking(1), gets=["gpu-0"])]),
            id="mixed",
        ),
        pytest.param(
            Case([], [pod("n", allocated(), allocated(), gets=[])]),
            id="two",
        ),
        pytest.param(
            Case([], [pod("n", allocated(zone="a"), allocated(zone="b"), zones=["a", "b"], gets=None)]),
            id="two-zones",
        ),
        pytest.param(
            Case([], [pod("n", allocated(zone="a"), allocated(zone="a"), zones=["a", "b"], gets=[], zone="a")]),
            id="one-zone",
        ),
        pytest.param(
            Case(
                published(named_devices("gpu-0"), zone="a"),
                [
                    pod("m", shares=[asking(1, name="s")], zones=["a", "b"], gets=["gpu-0"], zone="a"),
                    pod("n", allocated(zone="b"), shares=[asking(1, name="s")], zones=["a", "b"], gets=None),
                ],
            ),
            id="and-planned",
        ),
    ],
)
def test_pod_goes_where_the_devices_of_its_allocated_claims_can_be_used(case):
    """The devices of an allocated claim do not change; its node selector restricts the node."""
    assert case.follow() == case.expected


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            Case(
                TWO,
                [
                    pod("m", shares=[asking(1, name="s")], gets=["gpu-0"]),
                    pod("m", shares=[asking(1, name="s")], gets=[]),
                    pod("m", 1, gets=["gpu-1"]),
                ],
            ),
            id="same-node",
        ),
        pytest.param(
            Case(
                TWO,
                [
                    pod("m", shares=[asking(1, name="s")], gets=["gpu-0"]),
                    pod("n", shares=[asking(1, name="s")], gets=[]),
                ],
            ),
            id="other-node",
        ),
        pytest.param(
            Case(
                [],
                [
                    pod("m", shares=[asking(1, name="s")], gets=["own-0"]),
                    pod("n", shares=[asking(1, name="s")], gets=None),
                ],
                types=OWN_TWO,
            ),
            id="own-device-elsewhere",
        ),
        pytest.param(
            Case(
                [],
                [
                    pod("m", shares=[asking(1, name="s")], gets=["own-0"]),
                    pod("m", shares=[asking(1, name="s")], gets=[]),
                ],
                types=OWN_TWO,
            ),
            id="own-device",
        ),
        pytest.param(
            Case(
                ONE,
                [
                    pod("m", shares=[asking(1, name="s"), asking(A_NIC, name="t")], gets=["gpu-0", "own-0"]),
                    pod("m", A_NIC, gets=None),
                    pod("n", asking(1), asking(A_NIC), gets=None),
                    pod("n", A_NIC, gets=["own-0"]),
                    pod("n", shares=[asking(A_NIC, name="t")], gets=None),
                    pod("n", shares=[asking(1, name="s")], gets=[]),
                ],
                types={TYPE: [brought(named_devices("own-0"), driver=NIC_DRIVER)]},
            ),
            id="two-claims",
        ),
        pytest.param(
            Case(
                published(named_devices("gpu-0"), zone="a"),
                [
                    pod("m", shares=[asking(1, name="s")], zones=["a", "b"], gets=["gpu-0"], zone="a"),
                    pod("n", shares=[asking(1, name="s")], zones=["a", "b"], gets=[], zone="a"),
                ],
            ),
            id="zone",
        ),
        pytest.param(
            Case(
                ONE,
                [
                    pod("m", shares=[asking(1, name="s")], zones=["a", "b"], gets=["gpu-0"]),
                    pod("n", shares=[asking(1, name="s")], zones=["b"], gets=[], zone="b"),
                ],
            ),
            id="no-zone",
        ),
        pytest.param(
            Case(
                published(named_devices("gpu-0"), zone="a"),
                [
                    pod("m", shares=[asking(1, name="s")], zones=["a", "b"], gets=["gpu-0"], zone="a"),
                    pod("n", shares=[asking(1, name="s")], zones=["c"], gets=None),
                ],
            ),
            id="other-zone",
        ),
        pytest.param(
            Case(
                [
                    *published(named_devices("b0"), zone="b"),
                    *published(named_devices("nic-a"), zone="a", pool="nic-a", driver=NIC_DRIVER),
                    *published(named_devices("nic-b"), zone="b", pool="nic-b", driver=NIC_DRIVER),
                ],
                [
                    pod("m", shares=[asking(1, name="s")], gets=["b0"], zone="b"),
                    pod("n", A_NIC, shares=[asking(1, name="s")], gets=["nic-b"], zone="b"),
                ],
            ),
            id="and-unallocated",
        ),
        pytest.param(
            Case(
                [*published(named_devices("a0"), zone="a"), *published(named_devices("b0"), zone="b", pool="pool-b")],
                [
                    pod("l", shares=[asking(1, name="s")], gets=["a0"], zone="a"),
                    pod("m", shares=[asking(1, name="t")], gets=["b0"], zone="b"),
                    pod("n", shares=[asking(1, name="s"), asking(1, name="t")], gets=None),
                ],
            ),
            id="two-zones",
        ),
        pytest.param(
            Case(
                [
                    *published(named_devices("gpu-0"), zone="a"),
                    *published(named_devices("nic-0"), driver=NIC_DRIVER, pool="pool-b"),
                ],
                [
                    pod(
                        "m",
                        shares=[asking(1, name="s"), asking(A_NIC, name="t")],
                        zones=["a", "b"],
                        gets=["gpu-0", "nic-0"],
                        zone="a",
                    ),
                    pod("n", shares=[asking(A_NIC, name="t")], zones=["b"], gets=[], zone="b"),
                    pod("o", shares=[asking(1, name="s")], zones=["b"], gets=None),
                ],
            ),
            id="each-claim",
        ),
    ],
)
def test_pods_that_share_a_claim_share_its_devices(case):
    """With devices of the node itself they stay on that node, else each of their nodes must be able to access the devices."""
    assert case.follow() == case.expected


# -- claims that pods share, when types drop out


TURNS = Case(
    [*published([on_root(device("a"), ON_A)], zone="a"), *published([on_root(device("b"), ON_B)], pool="pool-b")],
    [
        pod("m", beside_nic(exactly("gpu")), zones=["a", "b"], gets={"it-a": ["a", "nic-0"], "it-b": ["b", "nic-0"]}),
        pod("m", shares=[asking(1, name="s")], gets={"it-a": ["b"], "it-b": ["a"]}, zone="a"),
        pod("n", shares=[asking(1, name="s")], types=["plain"], zones=["b"], gets=None),
    ],
    types=BESIDE_NICS | {"plain": ()},
)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            TURNS._replace(
                steps=[
                    *TURNS.steps,
                    Drop("m", ["it-b"]),
                    pod("n", shares=[asking(1, name="s")], types=["plain"], zones=["b"], gets=[], zone="b"),
                ]
            ),
            id="zonal-dropped",
        ),
        pytest.param(
            TURNS._replace(
                steps=[
                    *TURNS.steps,
                    Drop("m", ["it-a"]),
                    pod("n", shares=[asking(1, name="s")], types=["plain"], zones=["b"], gets=None),
                ]
            ),
            id="other-dropped",
        ),
    ],
)
def test_shared_claim_is_bound_to_a_zone_only_by_types_that_are_left(case):
    """Its device is zonal if the node becomes one of its two types."""
    assert case.follow() == case.expected


# -- whole plans


def running(node):
    """Return the node and NodeClaim of this name, as fields of a cluster; none if the name is empty."""
    return {"nodeclaims": (a_running_claim(node),), "nodes": (a_node(node),)} if node else {}


def test_claims_of_the_same_name_in_two_namespaces_are_different():
    """Each gets a device of its own."""
    names = ("ns-1", "ns-2")
    pods = [a_claiming_pod("p", "c", metadata={"namespace": name}) for name in names]
    claims = [asking(1, metadata={"name": "c", "namespace": name}) for name in names]

    plan = schedule_devices(*pods, claims=claims, slices=FOUR)

    assert [devices_of(plan, "ns-1/c"), devices_of(plan, "ns-2/c")] == [["pool-a/gpu-0"], ["pool-a/gpu-1"]]


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        pytest.param(
            "a",
            {"node-a": ("default/p",)},
            id="own",
        ),
        pytest.param(
            "b",
            {},
            id="other",
        ),
        pytest.param(
            "",
            {},
            id="new",
        ),
    ],
)
def test_device_of_a_node_is_not_there_on_others(node, expected):
    """The ResourceSlice has the name of node-a; no instance type has such a device."""
    slices = [a_slice("s", named_devices("gpu-0"), nodeName="node-a")]

    found = schedule_devices(a_claiming_pod("p", "c"), claims=[asking(1)], slices=slices, **running(node))

    assert found.results.existing == expected
    assert set(found.results.pod_errors) == (set() if expected else {"default/p"})


DELETING = {"deletionTimestamp": stamp(NOW)}


def user(uid, **more):
    """Return who uses a claim: a pod by default."""
    return {"resource": "pods", "name": uid, "uid": uid, **more}


@pytest.mark.parametrize(
    ("users", "slices", "expected"),
    [
        pytest.param(
            [user("uid-deleting")],
            FOUR,
            ["pool-a/gpu-0"],
            id="deleting",
        ),
        pytest.param(
            [user("uid-deleting"), user("uid-live")],
            [],
            [],
            id="and-live",
        ),
        pytest.param(
            [user("uid-live")],
            [],
            [],
            id="live",
        ),
        pytest.param(
            [user("uid-deleting", resource="widgets", apiGroup="example.com")],
            [],
            [],
            id="no-pod",
        ),
        pytest.param(
            [user("uid-deleting", apiGroup="example.com")],
            [],
            [],
            id="no-pod-of-kubernetes",
        ),
    ],
)
def test_claim_of_deleting_pods_only_is_allocated_again(users, slices, expected):
    """The device of any other allocated claim stays as it is, even if nothing publishes it any more."""
    results = [{"request": "req-1", "driver": DRIVER, "pool": "pool-a", "device": "gpu-0"}]
    claim = asking(1, status={"allocation": {"devices": {"results": results}}, "reservedFor": users})
    old = [
        a_claiming_pod(name, "c", node="node-a", metadata=metadata)
        for name, metadata in (("deleting", DELETING), ("live", {}))
    ]

    found = schedule_devices(a_claiming_pod("p", "c"), *old, claims=[claim], slices=slices, **running("a"))

    assert devices_of(found) == expected
    assert not found.results.pod_errors


@pytest.mark.parametrize(
    ("claim", "slices", "message"),
    [
        pytest.param(
            asking(exactly(deviceClassName="none")),
            FOUR,
            "request gpu: DeviceClass 'none' does not exist",
            id="class",
        ),
        pytest.param(
            asking(exactly(selectors=[{}])),
            FOUR,
            "request gpu: a selector that is not CEL is not supported",
            id="selector",
        ),
        pytest.param(
            asking({"name": "r"}),
            FOUR,
            "request r asks for nothing",
            id="empty",
        ),
        pytest.param(
            a_resource_claim("c", spec={"devices": {"requests": [exactly()], "constraints": [{}]}}),
            FOUR,
            "has a constraint other than matchAttribute, which is not supported",
            id="constraint",
        ),
        pytest.param(
            asking(*(first_of({"count": 24}, {"count": 20}, name=name) for name in "ab")),
            published(named_devices(*NAMES)),
            "asks for 40 devices, 32 are the most that a claim may have",
            id="too-many",
        ),
        pytest.param(
            asking(ALL),
            published(named_devices("gpu-0", "gpu-1", "gpu-0")),
            f"selects; pool {DRIVER}/pool-a is left out because two of its devices have the same name",
            id="twins",
        ),
        pytest.param(
            asking(ALL),
            [*FOUR, *published(named_devices("gpu-0"), pool="pool-b", of=2)],
            f"on one node; pool {DRIVER}/pool-b is left out because it has 1 of its 2 slices",
            id="incomplete",
        ),
    ],
)
def test_error_of_a_pod_says_what_is_wrong_with_its_claim_or_a_pool(claim, slices, message):
    """Of pools it names one that has devices for the claim."""
    found = schedule_devices(a_claiming_pod("p", "c"), claims=[claim], slices=slices)

    assert found.results.pod_errors["default/p"].message.endswith(message)
