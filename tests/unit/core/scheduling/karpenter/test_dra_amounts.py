"""Karpenter's suite of the device allocator: counters that devices draw on, and devices that pods share by capacity."""

from __future__ import annotations

from tests.helpers.device_allocation import (
    BESIDE_NICS,
    MEMORY_80,
    ON_A,
    ON_B,
    TYPE,
    Case,
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
from tests.helpers.devices import DRIVER, NIC_DRIVER, exactly, table

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


@table(
    "case",
    {
        "within": Case(published(drawing("40Gi", "gpu-0", "gpu-1"), counters=MEMORY_80), "a: 2 -> gpu-0 gpu-1"),
        "exceeded": Case(THREE_IN_80, "a: 3 -> no"),
        "in-use": Case(THREE_IN_80, "a: 2 -> no", "a: 1 -> gpu-1", in_use="gpu-0"),
        "other-pods": Case(THREE_IN_80, "a: 2 -> gpu-0 gpu-1", "b: 1 -> no"),
        "two-sets": Case(
            published([both("gpu-0"), both("gpu-1"), both("gpu-2")], counters=MEMORY_AND_COMPUTE),
            "a: 3 -> no",
            "a: 2 -> gpu-0 gpu-1",
        ),
        "two-counters": Case(
            published(
                [device(f"gpu-{n}", draws={"gpu": {"memory": "20Gi", "units": "2"}}) for n in range(3)],
                counters={"gpu": {"memory": "80Gi", "units": "4"}},
            ),
            "a: 3 -> no",
            "a: 2 -> gpu-0 gpu-1",
        ),
        "asymmetric-sets": Case(
            published(
                [
                    device("memory", draws={"memory-budget": {"memory": "80Gi"}}),
                    device("compute", draws={"compute-budget": {"flops": "50"}}),
                ],
                counters=MEMORY_AND_COMPUTE,
            ),
            "a: 2 -> compute memory",
        ),
        "elsewhere": Case(
            published(drawing("40Gi", "gpu-0", "gpu-1"), counters=MEMORY_80, of=3)
            + published(drawing("40Gi", "far"), zone="b", of=3, pool="pool-a"),
            "a in a: 2 -> no",
            "a in a: 1 -> gpu-0",
            in_use="far",
        ),
        "unknown-set": Case(
            published([device("gpu-0", draws={"other": {"memory": "40Gi"}})], counters=MEMORY_80),
            "a: 1 -> no",
            types={TYPE: ()},
        ),
        "unknown-counter": Case(
            published([device("gpu-0", draws={"gpu-slices": {"other": "40Gi"}})], counters=MEMORY_80),
            "a: 1 -> no",
            types={TYPE: ()},
        ),
        "zero": Case(
            published(drawing("1", "gpu-0", "gpu-1"), counters={"gpu-slices": {"memory": "0"}}),
            "a: 1 -> no",
            types={TYPE: ()},
        ),
        "zero-of-zero": Case(
            published(drawing("0", "gpu-0"), counters={"gpu-slices": {"memory": "0"}}), "a: 1 -> gpu-0"
        ),
        "another-choice": Case(
            published(
                [
                    device(f"gpu-{n}", draws={"gpu-slices": {"memory": "40Gi"}}, root=root)
                    for n, root in enumerate("aba")
                ],
                counters=MEMORY_80,
            ),
            pod("n: -> gpu-0 gpu-2", asking(2, match=[f"{DRIVER}/root"])),
        ),
        "of-own-pool": Case(
            published(drawing("80Gi", "gpu-0"), counters=MEMORY_80),
            "a: 2 -> gpu-0 own-0",
            "b: 1 -> own-0",
            types=own(drawing("80Gi", "own-0"), pool="pool-a"),
        ),
    },
)
def test_devices_draw_on_the_counters_of_their_pool(case):
    """Together they draw no more than the counters have, with devices in use and on all nodes."""
    assert case.follow() == case.expected


@table(
    "case",
    {
        "dropped": Case(THREE_IN_80, "a: 2 -> gpu-0 gpu-1", "b: 1 -> no", "a drops it-1", "b: 1 -> gpu-0"),
        "two-types": Case(THREE_OF_40, "a: 1 -> gpu-0", "b: 2 -> gpu-1 gpu-2", types=TWO_TYPES),
        "one-by-one": Case(
            THREE_OF_40,
            "a: 2 -> gpu-0 gpu-1",
            "b: 2 -> no",
            "a drops it-a",
            "b: 2 -> no",
            "a drops it-b",
            "b: 2 -> gpu-0 gpu-1",
            types=TWO_TYPES,
        ),
        "two-pods": Case(
            published(drawing("40Gi", "gpu-0", "gpu-1", "gpu-2", "gpu-3"), counters=MEMORY_120),
            "a: 1 -> gpu-0",
            "a: 1 -> gpu-1",
            "b: 2 -> no",
            "b: 1 -> gpu-2",
        ),
        "two-pools": Case(
            published(drawing("40Gi", "gpu-0", "gpu-1"), counters=MEMORY_80) + NICS,
            "a: 1 1*nic -> gpu-0 nic-0",
            "b: 1 -> gpu-1",
            "c: 2*nic -> no",
            "a drops it-1",
            "c: 2*nic -> nic-0 nic-1",
        ),
        "two-pools-dropped": Case(
            published(drawing("40Gi", "gpu-0", "gpu-1"), counters=MEMORY_80) + NICS,
            "a: 2 | 2*nic -> gpu-0 gpu-1 nic-0 nic-1",
            "b: 1 -> no",
            "a drops it-1",
            "b: 2 | 2*nic -> gpu-0 gpu-1 nic-0 nic-1",
        ),
        "next-pool": Case(
            published(drawing("80Gi", "gpu-0"), counters=MEMORY_80) + NICS,
            "a: 1 -> gpu-0",
            "a: 2*nic -> nic-0 nic-1",
            "b: 1*nic -> no",
            "a drops it-1",
            "b: 1 2*nic -> gpu-0 nic-0 nic-1",
        ),
        "next-set": Case(
            published(
                [
                    device("mem", kind="mem", draws={"memory-budget": {"memory": "80Gi"}}),
                    device("compute", kind="compute", draws={"compute-budget": {"flops": "100"}}),
                ],
                counters=MEMORY_AND_COMPUTE,
            ),
            "a: 1*kind=mem -> mem",
            "a: 1*kind=compute -> compute",
            "b: 1 -> no",
            "a drops it-1",
            "b: 2 -> compute mem",
        ),
        "next-counter": Case(
            published(
                [
                    device("full", kind="full", draws={"budget": {"memory": "50Gi", "bandwidth": "100G"}}),
                    device("lite", kind="lite", draws={"budget": {"memory": "50Gi"}}),
                ],
                counters={"budget": {"memory": "100Gi", "bandwidth": "200G"}},
            ),
            "a: 1*kind=full -> full",
            "a: 1*kind=lite -> lite",
            "a drops it-a",
            "b: 1 -> no",
            "a drops it-b",
            "b: 2 -> full lite",
            types=TWO_TYPES,
        ),
        "some-sets": Case(
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
            "a: 1*kind=high -> high",
            "a: 1*kind=low -> low",
            "a drops it-a",
            "b: 1 -> no",
            "a drops it-b",
            "b: 2 -> high low",
            types=TWO_TYPES,
        ),
    },
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


@table(
    "case",
    {
        "maximum": Case(
            BIG_OR_SMALL,
            pod("a: -> it-a=big,nic-0 it-b=nic-0,small", beside_nic(exactly("gpu"))),
            pod("b: 2 -> no", types="plain"),
            pod("b: 1 -> rest-0", types="plain"),
            types=PLAIN_TOO,
        ),
        "larger-dropped": Case(
            BIG_OR_SMALL,
            pod("a: -> it-a=big,nic-0 it-b=nic-0,small", beside_nic(exactly("gpu"))),
            "a drops it-a",
            pod("b: 2 -> rest-0 rest-1", types="plain"),
            types=PLAIN_TOO,
        ),
        "smaller-dropped": Case(
            BIG_OR_SMALL,
            pod("a: -> it-a=big,nic-0 it-b=nic-0,small", beside_nic(exactly("gpu"))),
            "a drops it-b",
            pod("b: 2 -> no", types="plain"),
            pod("b: 1 -> small", types="plain"),
            types=PLAIN_TOO,
        ),
        "alternating": Case(
            ALTERNATING,
            pod("a: -> it-a=big-0,nic-0 it-b=nic-0,small-0", beside_nic(kind("first")), types="it-a it-b"),
            pod("a: -> it-a=nic-1,small-1 it-b=big-1,nic-1", beside_nic(kind("second")), types="it-a it-b"),
            pod("b: 3 -> no", types="plain"),
            pod("b: 2 -> rest-0 rest-1", types="plain"),
            types=PLAIN_TOO,
        ),
        "disjoint": Case(
            DISJOINT,
            pod("a: -> it-a=mem,nic-0 it-b=flops,nic-0", beside_nic(exactly("gpu")), types="it-a it-b"),
            pod("b: 3 -> no", types="plain"),
            pod("b: 2 -> other-flops other-mem", types="plain"),
            types=PLAIN_TOO,
        ),
    },
)
def test_types_that_need_different_amounts_count_as_their_maximum(case):
    """The maximum is of what all pods of the node need together, and falls when a type drops out."""
    assert case.follow() == case.expected


# -- counters of devices that instance types bring


@table(
    "case",
    {
        "within": Case([], "a: 2 -> gpu-0 gpu-1", types=own(drawing("40Gi", "gpu-0", "gpu-1"))),
        "exceeded": Case([], "a: 3 -> no", types=own(drawing("40Gi", "gpu-0", "gpu-1", "gpu-2"))),
        "two-requests": Case([], "a: 2 1 -> no", types=own(drawing("40Gi", "gpu-0", "gpu-1", "gpu-2"))),
        "by-type": Case(
            [],
            "a: 3 -> large=gpu-0,gpu-1,gpu-2",
            types={
                "large": [
                    brought(drawing("40Gi", "gpu-0", "gpu-1", "gpu-2"), counters={"gpu-slices": {"memory": "160Gi"}})
                ],
                "small": [brought(drawing("40Gi", "gpu-0", "gpu-1", "gpu-2"), counters=MEMORY_80)],
            },
        ),
        "by-node": Case(
            [], "a: 2 -> gpu-0 gpu-1", "b: 2 -> gpu-0 gpu-1", types=own(drawing("40Gi", "gpu-0", "gpu-1", "gpu-2"))
        ),
        "same-node": Case(
            [], "a: 2 -> gpu-0 gpu-1", "a: 1 -> no", types=own(drawing("40Gi", "gpu-0", "gpu-1", "gpu-2", "gpu-3"))
        ),
        "two-slices": Case(
            [],
            "a: 3 -> gpu-0 gpu-1 gpu-2",
            types={
                TYPE: [
                    brought(drawing("20Gi", "gpu-0"), counters={"gpu-slices": {"memory": "40Gi"}}),
                    brought(drawing("20Gi", "gpu-1", "gpu-2"), counters={"gpu-slices": {"memory": "60Gi"}}),
                ]
            },
        ),
        "two-sets": Case(
            [],
            "a: 3 -> no",
            "a: 2 -> gpu-0 gpu-1",
            types=own([both("gpu-0"), both("gpu-1"), both("gpu-2")], MEMORY_AND_COMPUTE),
        ),
        "no-counters": Case([], "a: 1 -> no", types=own(drawing("40Gi", "gpu-0"), None)),
        "counters-elsewhere": Case(
            [],
            "a: 2 -> no",
            "a: 1 -> gpu-a",
            types={TYPE: [brought("gpu-a", counters=MEMORY_80), brought(drawing("40Gi", "gpu-b"), pool="other")]},
        ),
        "unknown-set": Case([], "a: 1 -> no", types=own([device("gpu-0", draws={"other": {"memory": "40Gi"}})])),
        "unknown-counter": Case(
            [], "a: 1 -> no", types=own([device("gpu-0", draws={"gpu-slices": {"other": "40Gi"}})])
        ),
    },
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
        f"n{number}: 1{f'*vram:{amount}' if amount else ''} -> {'gpu-0' if fits else 'no'}"
        for number, (amount, fits) in enumerate(amounts)
    ]


def consumed(amount, device="gpu-0"):
    """Return a claim in use that has so much memory of a GPU."""
    return allocated(f"held-{device}", device, vram=amount)


@table(
    "case",
    {
        "some": Case(sharing("80Gi"), *each_on_a_node(("16Gi", True), ("65Gi", False), ("64Gi", True))),
        "in-use": Case(sharing("80Gi"), *each_on_a_node(("16Gi", False), ("10Gi", True)), in_use=[consumed("70Gi")]),
        "one-after-another": Case(
            sharing("48Gi"), *each_on_a_node(("16Gi", True), ("16Gi", True), ("16Gi", True), ("1Gi", False))
        ),
        "whole": Case(sharing("80Gi"), *each_on_a_node((None, True), (None, False), ("1Gi", False))),
        "unused": Case(
            sharing("80Gi"), *each_on_a_node(("16Gi", True), ("16Gi", True), ("49Gi", False), ("48Gi", True))
        ),
        "in-use-and-planned": Case(
            sharing("100Gi"),
            *each_on_a_node(("25Gi", True), ("40Gi", True), ("10Gi", False), ("5Gi", True)),
            in_use=[consumed("30Gi")],
        ),
        "none-there": Case(sharing("0"), *each_on_a_node(("1Gi", False))),
        "default": Case(sharing("80Gi", {"default": "8Gi"}), *each_on_a_node(*[(None, True)] * 10, (None, False))),
        "next-value": Case(
            sharing("16Gi", {"default": "4Gi", "validValues": ["4Gi", "8Gi", "16Gi"]}),
            *each_on_a_node(("5Gi", True), ("9Gi", False), ("8Gi", True)),
        ),
        "no-value": Case(
            sharing("80Gi", {"default": "4Gi", "validValues": ["4Gi", "8Gi", "16Gi"]}), *each_on_a_node(("20Gi", False))
        ),
        "next-step": Case(
            sharing("80Gi", {"default": "4Gi", "validRange": {"min": "4Gi", "step": "4Gi"}}),
            *each_on_a_node(("5Gi", True), ("76Gi", False), ("72Gi", True)),
        ),
        "above-maximum": Case(
            sharing("100Gi", {"default": "4Gi", "validRange": {"min": "4Gi", "max": "50Gi", "step": "4Gi"}}),
            *each_on_a_node(("55Gi", False), ("49Gi", False), ("48Gi", True)),
        ),
        "maximum": Case(
            sharing("100Gi", {"default": "4Gi", "validRange": {"min": "4Gi", "max": "48Gi", "step": "4Gi"}}),
            *each_on_a_node(("48Gi", True)),
        ),
        "above-maximum-without-step": Case(
            sharing("100Gi", {"default": "4Gi", "validRange": {"min": "4Gi", "max": "50Gi"}}),
            *each_on_a_node(("55Gi", False)),
        ),
        "within-range": Case(
            sharing("31Gi", {"default": "4Gi", "validRange": {"min": "4Gi", "max": "50Gi"}}),
            *each_on_a_node(("5Gi", True), ("27Gi", False), ("26Gi", True)),
        ),
        "two-types": Case(
            sharing("80Gi"), *each_on_a_node(("16Gi", True), ("65Gi", False), ("64Gi", True)), types=TWO_TYPES
        ),
    },
)
def test_pods_on_any_nodes_share_the_capacity_of_a_device(case):
    """An amount is rounded up by the device's request policy; without one the whole capacity, or the policy's default, is consumed."""
    assert case.follow() == case.expected


@table(
    "case",
    {
        "two-requests": Case(
            sharing("64Gi"),
            "a: 1*vram:16Gi 1*vram:16Gi -> gpu-0 gpu-0",
            "b: 2*vram:16Gi -> gpu-0 gpu-0",
            "c: 1*vram:1Gi -> no",
        ),
        "too-much": Case(sharing("24Gi"), "a: 1*vram:16Gi 1*vram:16Gi -> no"),
        "two-claims": Case(
            sharing("48Gi"),
            "a: 1*vram:20Gi | 1*vram:20Gi -> gpu-0 gpu-0",
            "b: 1*vram:10Gi -> no",
            "c: 1*vram:8Gi -> gpu-0",
        ),
        "next-device": Case(
            published([shared("gpu-0", vram="20Gi"), shared("gpu-1", vram="40Gi")]),
            "a: 1*vram:20Gi 1*vram:20Gi -> gpu-0 gpu-1",
        ),
        "rounded": Case(
            sharing("16Gi", {"default": "4Gi", "validValues": ["4Gi", "8Gi", "16Gi"]}),
            "a: 1*vram:5Gi 1*vram:5Gi -> gpu-0 gpu-0",
            "b: 1 -> no",
        ),
        "other-dimension": Case(
            published([shared("gpu-0", vram="80Gi"), shared("gpu-1", bandwidth="100Gi")]),
            "a: 1*bandwidth:50Gi -> gpu-1",
        ),
        "more-dimensions": Case(
            published([shared("gpu-0", vram="80Gi"), shared("gpu-1", vram="80Gi", bandwidth="50Gi")]),
            "a: 1*bandwidth:25Gi -> gpu-1",
        ),
        "one-exceeded": Case(
            published([shared("gpu-0", vram="80Gi", bandwidth="10Gi")]), "a: 1*vram:16Gi,bandwidth:12Gi -> no"
        ),
        "both-fit": Case(
            published([shared("gpu-0", vram="80Gi", bandwidth="10Gi")]),
            "a: 1*vram:16Gi,bandwidth:5Gi -> gpu-0",
            "b: 1*vram:16Gi,bandwidth:6Gi -> no",
            "b: 1*vram:64Gi,bandwidth:5Gi -> gpu-0",
        ),
        "both-used": Case(
            published([shared("gpu-0", vram="32Gi", bandwidth="8Gi")]),
            "a: 1*vram:16Gi,bandwidth:4Gi 1*vram:16Gi,bandwidth:4Gi -> gpu-0 gpu-0",
            "b: 1*vram:1Gi,bandwidth:0 -> no",
            "b: 1*vram:0,bandwidth:1 -> no",
        ),
        "not-shared": Case(
            published([device("gpu-0", capacity={"vram": "80Gi"})]), "a: 1*vram:16Gi -> gpu-0", "b: 1*vram:16Gi -> no"
        ),
    },
)
def test_requests_of_a_pod_share_the_capacity_of_a_device(case):
    """Each capacity must suffice for all requests; devices without a requested capacity are not selected."""
    assert case.follow() == case.expected


NO_CAPACITY = published([shared("gpu-0")])


@table(
    "case",
    {
        "no-capacity": Case(NO_CAPACITY, "a: 1 -> gpu-0", "b: 1 -> gpu-0", in_use=[consumed("30Gi")]),
        "no-capacity-types": Case(
            NO_CAPACITY, "a: 1 -> gpu-0", "b: 1 -> gpu-0", types=TWO_TYPES, in_use=[consumed("0")]
        ),
        "no-capacity-dropped": Case(
            NO_CAPACITY,
            "a: 1 -> gpu-0",
            "a drops it-a",
            "a drops it-b",
            "b: 1 -> gpu-0",
            types=TWO_TYPES,
            in_use=[consumed("0")],
        ),
        "five-pods": Case(NO_CAPACITY, *["a: 1 -> gpu-0"] * 5, in_use=[consumed("0")]),
        "three-nodes": Case(NO_CAPACITY, *(f"{node}: 1 -> gpu-0" for node in "abc"), in_use=[consumed("20Gi")]),
        "exclusive": Case(
            published([device("exclusive"), shared("gpu-0", vram="10Gi")]),
            "a: 1 -> no",
            in_use=[allocated("held", "exclusive"), consumed("10Gi")],
        ),
        "all-dropped": Case(
            sharing("40Gi"),
            "a: 1*vram:40Gi -> gpu-0",
            "b: 1*vram:1Gi -> no",
            "a drops it-a",
            "a drops it-b",
            "b: 1*vram:40Gi -> gpu-0",
            types=TWO_TYPES,
        ),
        "one-dropped": Case(
            sharing("80Gi"),
            "a: 1*vram:30Gi -> gpu-0",
            "a drops it-a",
            "b: 1*vram:51Gi -> no",
            "c: 1*vram:50Gi -> gpu-0",
            types=TWO_TYPES,
        ),
        "two-pods-dropped": Case(
            published([on_root(shared("gpu-a", vram="80Gi"), ON_A), on_root(shared("gpu-b", vram="80Gi"), ON_B)]),
            pod("a: -> it-a=gpu-a,nic-0 it-b=gpu-b,nic-0", beside_nic(vram("60Gi")), types="it-a it-b"),
            pod("b: 1*vram:30Gi -> no", types="plain"),
            "a drops it-a",
            pod("b: 1*vram:80Gi -> gpu-a", types="plain"),
            types=PLAIN_TOO,
        ),
        "own": Case(
            [],
            "a: 1*vram:20Gi -> gpu-0",
            "a: 1*vram:20Gi -> gpu-0",
            "a: 1*vram:1Gi -> no",
            "b: 1*vram:40Gi -> gpu-0",
            types={TYPE: [brought([shared("gpu-0", vram="40Gi")])]},
        ),
        "own-by-type": Case(
            [],
            "a: 1*vram:20Gi -> gpu-0",
            "a: 1*vram:1Gi -> no",
            "a drops it-a",
            "a: 1*vram:1Gi -> no",
            types={
                "it-a": [brought([shared("gpu-0", vram="20Gi")])],
                "it-b": [brought([shared("gpu-0", vram="20Gi")], pool="other")],
            },
        ),
    },
)
def test_shared_device_is_allocated_beside_others_until_its_capacity_is_used(case):
    """What an instance type needs of it is free once that type has dropped out."""
    assert case.follow() == case.expected


@table(
    "case",
    {
        "in-use": Case(
            published(
                [shared(f"mig-{n}", draws={"gpu-slices": {"memory": "40Gi"}}, vram="20Gi") for n in range(2)],
                counters=MEMORY_80,
            ),
            "a: 2 -> no",
            "a: 1 -> mig-1",
            in_use=[consumed("10Gi", "mig-0")],
        ),
        "both": Case(
            published(
                [shared(f"gpu-{n}", draws={"sms": {"count": "20"}}, bandwidth="100Gi") for n in range(3)],
                counters={"sms": {"count": "40"}},
            ),
            "a: 3 -> no",
            "a: 2 -> gpu-0 gpu-1",
        ),
        "again": Case(
            published(
                [shared("a", draws={"gpu-slices": {"memory": "40Gi"}}, vram="80Gi"), *drawing("40Gi", "b")],
                counters=MEMORY_80,
            ),
            "m: 2*vram:20Gi -> no",
            "n: 1*vram:20Gi -> a",
            in_use="a",
        ),
    },
)
def test_shared_device_also_draws_on_counters(case):
    """Each allocation draws on them, with those in use."""
    assert case.follow() == case.expected
