"""Karpenter's suite of the device allocator: counters that devices draw on, and devices that pods share by capacity."""

from __future__ import annotations

from journeyman.core.api.labels import ZONE
from tests.helpers.device_allocation import BESIDE_NIC, BESIDE_NICS, Case, allocated, pod, published, with_policy
from tests.helpers.devices import a_slice, table

IN_80 = "gpu-0..2!40Gi with 80Gi"
IN_120 = "gpu-0..2!40Gi with 120Gi"
NICS = "nic-0..1!bandwidth=50G with bandwidth=100G"
BOTH = "gpu-0..2!memory=40Gi,flops=50 with memory=80Gi,flops=100"
TWO_TYPES = {"it-a": "", "it-b": ""}


# -- counters of published devices


@table(
    "case",
    {
        "within": Case("gpu-0..1!40Gi with 80Gi", "a: 2 -> gpu-0 gpu-1"),
        "exceeded": Case(IN_80, "a: 3 -> no"),
        "in-use": Case(IN_80, "a: 2 -> no", "a: 1 -> gpu-1", in_use="gpu-0"),
        "other-pods": Case(IN_80, "a: 2 -> gpu-0 gpu-1", "b: 1 -> no"),
        "two-sets": Case(BOTH, "a: 3 -> no", "a: 2 -> gpu-0 gpu-1"),
        "two-counters": Case(
            "gpu-0..2!gpu.memory=20Gi,gpu.units=2 with gpu.memory=80Gi,gpu.units=4",
            "a: 3 -> no",
            "a: 2 -> gpu-0 gpu-1",
        ),
        "asymmetric-sets": Case("mem!80Gi compute!flops=50 with memory=80Gi,flops=100", "a: 2 -> compute mem"),
        "unknown-set": Case("gpu-0!other.memory=40Gi with 80Gi", "a: 1 -> no"),
        "unknown-counter": Case("gpu-0!memory.other=40Gi with 80Gi", "a: 1 -> no"),
        "zero": Case("gpu-0..1!1 with 0", "a: 1 -> no"),
        "zero-of-zero": Case("gpu-0!0 with 0", "a: 1 -> gpu-0"),
        "another-choice": Case(
            "gpu-0:root=a!40Gi gpu-1:root=b!40Gi gpu-2:root=a!40Gi with 80Gi", "n: 2 ~root -> gpu-0 gpu-2"
        ),
        "of-own-pool": Case(
            "gpu-0!80Gi with 80Gi",
            "a: 2 -> gpu-0 own-0",
            "b: 1 -> own-0",
            types={"it-1": "own-0!80Gi with 80Gi of pool-a"},
        ),
    },
)
def test_devices_draw_on_the_counters_of_their_pool(case):
    """Together they draw no more than the counters have, with devices in use and on all nodes."""
    assert case.follow() == case.expected


@table(
    "case",
    {
        "dropped": Case(IN_80, "a: 2 -> gpu-0 gpu-1", "b: 1 -> no", "a drops it-1", "b: 1 -> gpu-0"),
        "two-types": Case(IN_120, "a: 1 -> gpu-0", "b: 2 -> gpu-1 gpu-2", types=TWO_TYPES),
        "one-by-one": Case(
            IN_120,
            *("a: 2 -> gpu-0 gpu-1", "b: 2 -> no", "a drops it-a", "b: 2 -> no", "a drops it-b", "b: 2 -> gpu-0 gpu-1"),
            types=TWO_TYPES,
        ),
        "two-pods": Case("gpu-0..3!40Gi with 120Gi", "a: 1 -> gpu-0", "a: 1 -> gpu-1", "b: 2 -> no", "b: 1 -> gpu-2"),
        "two-pools": Case(
            f"gpu-0..1!40Gi with 80Gi; {NICS}",
            *("a: 1 1*nic -> gpu-0 nic-0", "b: 1 -> gpu-1", "c: 2*nic -> no", "a drops it-1"),
            "c: 2*nic -> nic-0 nic-1",
        ),
        "two-pools-dropped": Case(
            f"gpu-0..1!40Gi with 80Gi; {NICS}",
            *("a: 2 | 2*nic -> gpu-0 gpu-1 nic-0 nic-1", "b: 1 -> no", "a drops it-1"),
            "b: 2 | 2*nic -> gpu-0 gpu-1 nic-0 nic-1",
        ),
        "next-pool": Case(
            f"gpu-0!80Gi with 80Gi; {NICS}",
            *("a: 1 -> gpu-0", "a: 2*nic -> nic-0 nic-1", "b: 1*nic -> no", "a drops it-1"),
            "b: 1 2*nic -> gpu-0 nic-0 nic-1",
        ),
        "next-set": Case(
            "mem:kind=mem!80Gi compute:kind=compute!flops=100 with memory=80Gi,flops=100",
            *("a: 1*kind=mem -> mem", "a: 1*kind=compute -> compute", "b: 1 -> no", "a drops it-1"),
            "b: 2 -> compute mem",
        ),
        "next-counter": Case(
            "full:kind=full!s.memory=50Gi,s.bandwidth=100G lite:kind=lite!s.memory=50Gi with s.memory=100Gi,s.bandwidth=200G",
            *("a: 1*kind=full -> full", "a: 1*kind=lite -> lite", "a drops it-a", "b: 1 -> no", "a drops it-b"),
            "b: 2 -> full lite",
            types=TWO_TYPES,
        ),
        "some-sets": Case(
            "high:kind=high!memory=40Gi,flops=50 low:kind=low!40Gi with memory=80Gi,flops=100",
            *("a: 1*kind=high -> high", "a: 1*kind=low -> low", "a drops it-a", "b: 1 -> no", "a drops it-b"),
            "b: 2 -> high low",
            types=TWO_TYPES,
        ),
    },
)
def test_counters_are_free_again_once_no_type_needs_them(case):
    """A node draws on published counters what the type that needs most of them would."""
    assert case.follow() == case.expected


A, B = ("example.com/root=" + root for root in "ab")
BIG_OR_SMALL = f"big:{A}!80Gi small:{B}!40Gi rest-0..1!40Gi with 120Gi"
BIG_OR_SMALL_POD = f"a: {BESIDE_NIC} -> it-a=big,nic-0 it-b=nic-0,small"


def plain(text):
    """Return a pod on a node without devices of its own."""
    return pod(text, types="plain")


@table(
    "case",
    {
        "maximum": Case(
            BIG_OR_SMALL, BIG_OR_SMALL_POD, plain("b: 2 -> no"), plain("b: 1 -> rest-0"), types=BESIDE_NICS
        ),
        "larger-dropped": Case(
            BIG_OR_SMALL, BIG_OR_SMALL_POD, "a drops it-a", plain("b: 2 -> rest-0 rest-1"), types=BESIDE_NICS
        ),
        "smaller-dropped": Case(
            BIG_OR_SMALL,
            BIG_OR_SMALL_POD,
            *("a drops it-b", plain("b: 2 -> no"), plain("b: 1 -> small")),
            types=BESIDE_NICS,
        ),
        "alternating": Case(
            f"big-0:kind=1,{A}!60Gi small-0:kind=1,{B}!20Gi small-1:kind=2,{A}!20Gi big-1:kind=2,{B}!60Gi"
            " rest-0..2!20Gi with 120Gi",
            "a: 1*nic 1*kind=1 ~example.com/root -> it-a=big-0,nic-0 it-b=nic-0,small-0",
            "a: 1*nic 1*kind=2 ~example.com/root -> it-a=nic-1,small-1 it-b=big-1,nic-1",
            *(plain("b: 3 -> no"), plain("b: 2 -> rest-0 rest-1")),
            types=BESIDE_NICS,
        ),
        "disjoint": Case(
            f"mem-0:{A}!s.memory=40Gi flops-0:{B}!s.flops=50 mem-1!s.memory=40Gi flops-1!s.flops=50 mem-2!s.memory=40Gi"
            " with s.memory=80Gi,s.flops=100",
            f"a: {BESIDE_NIC} -> it-a=mem-0,nic-0 it-b=flops-0,nic-0",
            *(plain("b: 3 -> no"), plain("b: 2 -> flops-1 mem-1")),
            types=BESIDE_NICS,
        ),
    },
)
def test_types_that_need_different_amounts_count_as_their_maximum(case):
    """The maximum is of what all pods of the node need together, and falls when a type drops out."""
    assert case.follow() == case.expected


# -- counters of devices that instance types bring


@table(
    "own, steps",
    {
        "within": ("gpu-0..1!40Gi with 80Gi", ["a: 2 -> gpu-0 gpu-1"]),
        "exceeded": (IN_80, ["a: 3 -> no"]),
        "two-requests": (IN_80, ["a: 2 1 -> no"]),
        "by-node": (IN_80, ["a: 2 -> gpu-0 gpu-1", "b: 2 -> gpu-0 gpu-1"]),
        "same-node": ("gpu-0..3!40Gi with 80Gi", ["a: 2 -> gpu-0 gpu-1", "a: 1 -> no"]),
        "two-slices": ("gpu-0!20Gi with 40Gi; gpu-1..2!20Gi with 60Gi", ["a: 3 -> gpu-0 gpu-1 gpu-2"]),
        "two-sets": (BOTH, ["a: 3 -> no", "a: 2 -> gpu-0 gpu-1"]),
        "no-counters": ("gpu-0!40Gi", ["a: 1 -> no"]),
        "counters-elsewhere": ("gpu-a with 80Gi; gpu-b!40Gi of other", ["a: 2 -> no", "a: 1 -> gpu-a"]),
        "unknown-set": ("gpu-0!other.memory=40Gi with 80Gi", ["a: 1 -> no"]),
        "unknown-counter": ("gpu-0!memory.other=40Gi with 80Gi", ["a: 1 -> no"]),
    },
)
def test_each_new_node_has_the_counters_of_its_type(own, steps):
    """They are in the slice with the devices, or in another of the same pool."""
    case = Case("", *steps, types={"it-1": own})

    assert case.follow() == case.expected


def test_type_without_enough_counters_drops_out():
    """Of two types with the same three devices, one has the memory for two of them."""
    types = {"large": "gpu-0..2!40Gi with 160Gi", "small": IN_80}
    case = Case("", "a: 3 -> large=gpu-0,gpu-1,gpu-2", types=types)

    assert case.follow() == case.expected


def test_devices_in_use_elsewhere_draw_on_the_counters_of_their_pool():
    """The device in use is in another zone."""
    where = {"nodeSelectorTerms": [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["b"]}]}]}
    far = a_slice("far", "far!40Gi", pool="pool-a", of=3, nodeSelector=where)
    near = published("gpu-0..1!40Gi with 80Gi", of=3)
    case = Case([*near, far], "a in a: 2 -> no", "a in a: 1 -> gpu-0", in_use="far")

    assert case.follow() == case.expected


# -- devices that several pods share


def sharing(total, policy=""):
    """Return a GPU with so much memory to share, by a policy."""
    found = f"gpu-0+vram={total}"
    return [a_slice("pool-a", with_policy(found, policy) if policy else found, pool="pool-a", allNodes=True)]


def each(amounts):
    """Return pods on nodes of their own: how much memory each requests, `gpu` for no amount; with a `-` it does not fit."""
    return [
        f"n{number}: 1*{amount.removeprefix('-')} -> {'no' if amount.startswith('-') else 'gpu-0'}"
        for number, amount in enumerate(amounts.split())
    ]


def consumed(amount, device="gpu-0"):
    """Return a claim in use that has so much memory of a GPU."""
    return allocated(f"held-{device}", device, vram=amount)


@table(
    "total, policy, used, amounts",
    {
        "some": ("80Gi", "", "", "16Gi -65Gi 64Gi"),
        "in-use": ("80Gi", "", "70Gi", "-16Gi 10Gi"),
        "in-use-but-unreadable": ("80Gi", "", "much", "80Gi -1Gi"),
        "one-after-another": ("48Gi", "", "", "16Gi 16Gi 16Gi -1Gi"),
        "whole": ("80Gi", "", "", "gpu -gpu -1Gi"),
        "unused": ("80Gi", "", "", "16Gi 16Gi -49Gi 48Gi"),
        "in-use-and-planned": ("100Gi", "", "30Gi", "25Gi 40Gi -10Gi 5Gi"),
        "none-there": ("0", "", "", "-1Gi"),
        "default": ("80Gi", "8Gi", "", "gpu " * 10 + "-gpu"),
        "next-value": ("16Gi", "4Gi of 4Gi,8Gi,16Gi", "", "5Gi -9Gi 8Gi"),
        "no-value": ("80Gi", "4Gi of 4Gi,8Gi,16Gi", "", "-20Gi"),
        "next-step": ("80Gi", "4Gi min 4Gi step 4Gi", "", "5Gi -76Gi 72Gi"),
        "above-maximum": ("100Gi", "4Gi min 4Gi max 50Gi step 4Gi", "", "-55Gi -49Gi 48Gi"),
        "maximum": ("100Gi", "4Gi min 4Gi max 48Gi step 4Gi", "", "48Gi"),
        "above-maximum-without-step": ("100Gi", "4Gi min 4Gi max 50Gi", "", "-55Gi"),
        "within-range": ("31Gi", "4Gi min 4Gi max 50Gi", "", "5Gi -27Gi 26Gi"),
    },
)
@table("types", {"one-type": {"it-1": ""}, "two-types": TWO_TYPES})
def test_pods_on_any_nodes_share_the_capacity_of_a_device(total, policy, used, amounts, types):
    """An amount is rounded up by the device's request policy; without one the whole capacity, or the policy's default, is consumed."""
    in_use = [consumed(used)] if used else ()
    case = Case(sharing(total, policy), *each(amounts), types=types, in_use=in_use)

    assert case.follow() == case.expected


@table(
    "case",
    {
        "two-requests": Case(
            "gpu-0+vram=64Gi", "a: 1*16Gi 1*16Gi -> gpu-0 gpu-0", "b: 2*16Gi -> gpu-0 gpu-0", "c: 1*1Gi -> no"
        ),
        "too-much": Case("gpu-0+vram=24Gi", "a: 1*16Gi 1*16Gi -> no"),
        "two-claims": Case(
            "gpu-0+vram=48Gi", "a: 1*20Gi | 1*20Gi -> gpu-0 gpu-0", "b: 1*10Gi -> no", "c: 1*8Gi -> gpu-0"
        ),
        "next-device": Case("gpu-0+vram=20Gi gpu-1+vram=40Gi", "a: 1*20Gi 1*20Gi -> gpu-0 gpu-1"),
        "rounded": Case(sharing("16Gi", "4Gi of 4Gi,8Gi,16Gi"), "a: 1*5Gi 1*5Gi -> gpu-0 gpu-0", "b: 1 -> no"),
        "other-dimension": Case("gpu-0+vram=80Gi gpu-1+bandwidth=100Gi", "a: 1*bandwidth:50Gi -> gpu-1"),
        "more-dimensions": Case("gpu-0+vram=80Gi gpu-1+vram=80Gi,bandwidth=50Gi", "a: 1*bandwidth:25Gi -> gpu-1"),
        "one-exceeded": Case("gpu-0+vram=80Gi,bandwidth=10Gi", "a: 1*16Gi,bandwidth:12Gi -> no"),
        "both-fit": Case(
            "gpu-0+vram=80Gi,bandwidth=10Gi",
            *("a: 1*16Gi,bandwidth:5Gi -> gpu-0", "b: 1*16Gi,bandwidth:6Gi -> no", "b: 1*64Gi,bandwidth:5Gi -> gpu-0"),
        ),
        "both-used": Case(
            "gpu-0+vram=32Gi,bandwidth=8Gi",
            "a: 1*16Gi,bandwidth:4Gi 1*16Gi,bandwidth:4Gi -> gpu-0 gpu-0",
            *("b: 1*1Gi,bandwidth:0 -> no", "b: 1*0,bandwidth:1 -> no"),
        ),
        "not-shared": Case(
            [a_slice("s", [{"name": "gpu-0", "capacity": {"vram": {"value": "80Gi"}}}], allNodes=True)],
            *("a: 1*16Gi -> gpu-0", "b: 1*16Gi -> no"),
        ),
    },
)
def test_requests_of_a_pod_share_the_capacity_of_a_device(case):
    """Each capacity must suffice for all requests; devices without a requested capacity are not selected."""
    assert case.follow() == case.expected


@table(
    "case",
    {
        "no-capacity": Case("gpu-0+", "a: 1 -> gpu-0", "b: 1 -> gpu-0", in_use=[consumed("30Gi")]),
        "no-capacity-types": Case("gpu-0+", "a: 1 -> gpu-0", "b: 1 -> gpu-0", types=TWO_TYPES, in_use=[consumed("0")]),
        "no-capacity-dropped": Case(
            "gpu-0+",
            *("a: 1 -> gpu-0", "a drops it-a", "a drops it-b", "b: 1 -> gpu-0"),
            types=TWO_TYPES,
            in_use=[consumed("0")],
        ),
        "five-pods": Case("gpu-0+", *["a: 1 -> gpu-0"] * 5, in_use=[consumed("0")]),
        "three-nodes": Case("gpu-0+", *(f"{node}: 1 -> gpu-0" for node in "abc"), in_use=[consumed("20Gi")]),
        "exclusive": Case(
            "exclusive gpu-0+vram=10Gi", "a: 1 -> no", in_use=[allocated("held", "exclusive"), consumed("10Gi")]
        ),
        "all-dropped": Case(
            "gpu-0+vram=40Gi",
            *("a: 1*40Gi -> gpu-0", "b: 1*1Gi -> no", "a drops it-a", "a drops it-b", "b: 1*40Gi -> gpu-0"),
            types=TWO_TYPES,
        ),
        "one-dropped": Case(
            "gpu-0+vram=80Gi",
            *("a: 1*30Gi -> gpu-0", "a drops it-a", "b: 1*51Gi -> no", "c: 1*50Gi -> gpu-0"),
            types=TWO_TYPES,
        ),
        "two-pods-dropped": Case(
            f"gpu-a:{A}+vram=80Gi gpu-b:{B}+vram=80Gi",
            "a: 1*nic 1*60Gi ~example.com/root -> it-a=gpu-a,nic-0 it-b=gpu-b,nic-0",
            *(plain("b: 1*30Gi -> no"), "a drops it-a", plain("b: 1*80Gi -> gpu-a")),
            types=BESIDE_NICS,
        ),
        "own": Case(
            "",
            *("a: 1*20Gi -> gpu-0", "a: 1*20Gi -> gpu-0", "a: 1*1Gi -> no", "b: 1*40Gi -> gpu-0"),
            types={"it-1": "gpu-0+vram=40Gi"},
        ),
        "own-by-type": Case(
            "",
            *("a: 1*20Gi -> gpu-0", "a: 1*1Gi -> no", "a drops it-a", "a: 1*1Gi -> no"),
            types={"it-a": "gpu-0+vram=20Gi", "it-b": "gpu-0+vram=20Gi of other"},
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
            "mig-0..1!40Gi+vram=20Gi with 80Gi",
            *("a: 2 -> no", "a: 1 -> mig-1"),
            in_use=[consumed("10Gi", "mig-0")],
        ),
        "both": Case("gpu-0..2!sms=20+bandwidth=100Gi with sms=40", "a: 3 -> no", "a: 2 -> gpu-0 gpu-1"),
        "again": Case("a!40Gi+vram=80Gi b!40Gi with 80Gi", "m: 2*20Gi -> no", "n: 1*20Gi -> a", in_use="a"),
    },
)
def test_shared_device_also_draws_on_counters(case):
    """Each allocation draws on them, with those in use."""
    assert case.follow() == case.expected
