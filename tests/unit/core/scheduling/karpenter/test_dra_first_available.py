"""Karpenter's suite of the device allocator: requests for the first of several alternatives that is available."""

from __future__ import annotations

from tests.helpers.device_allocation import TYPE, Allocations, Case, allocated, pod
from tests.helpers.devices import table

BUDGET = "gpu-0..1!40Gi with 40Gi"
MODELS = "a:model=A100,numa={} b:model=H100,numa={} c:model=H100,numa={}"


def up_to(last):
    """Return the names of GPUs from 0 to the last one."""
    return " ".join(f"gpu-{n:02}" for n in range(last + 1))


@table(
    "slices, claims, expected",
    {
        "one": ("gpu-0..1", "2/", "gpu/option-0: gpu-0 gpu-1"),
        "first": ("gpu-0..1", "2/1", "gpu/option-0: gpu-0 gpu-1"),
        "second": ("gpu-0..1", "4/2", "gpu/option-1: gpu-0 gpu-1"),
        "none": ("gpu-0", "4/2", None),
        "middle": ("gpu-0..1", "3/2/1", "gpu/option-1: gpu-0 gpu-1"),
        "last": ("gpu-0..1", "4/3/2", "gpu/option-2: gpu-0 gpu-1"),
        "exactly": ("gpu-0..1", "2", "req-1: gpu-0 gpu-1"),
        "and-exactly": ("gpu-0..2", "1 2/1", "req-1: gpu-0; gpu/option-0: gpu-1 gpu-2"),
        "selectors": ("a:model=A100 h:model=H100", "2*model=A100/1*model=H100", "gpu/option-1: h"),
        "classes": ("nic-0..1", "1/1*nic", "gpu/option-1: nic-0"),
        "two-requests": (
            "gpu-0..3; nic-0..1",
            "4/2 nic@2*nic/1*nic",
            "gpu/option-0: gpu-0 gpu-1 gpu-2 gpu-3; nic/option-0: nic-0 nic-1",
        ),
        "second-request": (
            "gpu-0..1; nic-0",
            "2/1 nic@2*nic/1*nic",
            "gpu/option-0: gpu-0 gpu-1; nic/option-1: nic-0",
        ),
        "two-claims": ("gpu-0..3", "3/ | b@2/1", "gpu/option-0: gpu-0 gpu-1 gpu-2; b/option-1: gpu-3"),
        "for-next-claim": ("gpu-0..2", "3/1 | 1", "gpu/option-1: gpu-0; req-1: gpu-1"),
        "all-free": ("gpu-0..3", "5/4", "gpu/option-1: gpu-0 gpu-1 gpu-2 gpu-3"),
        "all": ("gpu-0..2", "all/", "gpu/option-0: gpu-0 gpu-1 gpu-2"),
        "all-of-none": ("nic-0", "all/1*nic", "gpu/option-1: nic-0"),
        "same-attribute": (
            "gpu-0:numa=0 gpu-1:numa=0 gpu-2:numa=1",
            "3/2 ~numa@gpu",
            "gpu/option-1: gpu-0 gpu-1",
        ),
        "other-value": (MODELS.format(0, 1, 1), "2*model=A100/2*model=H100 ~numa@gpu", "gpu/option-1: b c"),
        "attribute-of-one-option": ("gpu-0:numa=0 gpu-1:numa=1", "2/1 ~numa@gpu/option-0", "gpu/option-1: gpu-0"),
        "attribute-of-two-requests": (
            MODELS.format(0, 1, 0),
            "1*model=A100/1*model=H100 1 ~numa@gpu,req-2",
            "gpu/option-0: a; req-2: c",
        ),
        "other-zone": ("a:model=A100 in a; b:model=H100 in b", "2*model=A100/1*model=H100", "gpu/option-1: b"),
        "counters": (BUDGET, "2/1", "gpu/option-1: gpu-0"),
        "counters-of-all": (BUDGET, "all/all", None),
        "counters-or-one": (BUDGET, "all/1", "gpu/option-1: gpu-0"),
        "counters-or-other": (f"{BUDGET}; nic-0..1", "all/all*nic", "gpu/option-1: nic-0 nic-1"),
        "capacity": ("gpu-0+vram=40Gi", "2*30Gi/1*30Gi", "gpu/option-1: gpu-0"),
        "20-and-10": (
            "gpu-00..39",
            "a@20/10 b@20/10",
            f"a/option-0: {up_to(19)}; b/option-1: {up_to(29).removeprefix(up_to(19)).strip()}",
        ),
        "20-of-40": ("gpu-00..39", "40/20", f"gpu/option-1: {up_to(19)}"),
    },
)
def test_first_available_alternative_is_allocated(slices, claims, expected):
    """An alternative that fails leaves no trace, and a later one is tried if another request of the pod would fail."""
    got = Allocations(slices).allocate(pod(f"a: {claims} ->"))

    assert (got.requests[TYPE] if got else None) == expected


@table(
    "types, expected",
    {
        "each": (
            {"big": "o-0..3", "small": "o-0..1"},
            {"big": "gpu/option-0: o-0 o-1 o-2 o-3", "small": "gpu/option-1: o-0 o-1"},
        ),
        "pruned": ({"big": "o-0..3", "tiny": "o-0"}, {"big": "gpu/option-0: o-0 o-1 o-2 o-3"}),
        "second": ({"it": "o-0..2"}, {"it": "gpu/option-1: o-0 o-1"}),
        "first": ({"it": "o-0..4"}, {"it": "gpu/option-0: o-0 o-1 o-2 o-3"}),
    },
)
def test_first_available_alternative_is_allocated_for_each_type(types, expected):
    """The pod asks for four GPUs, or else for two."""
    got = Allocations("", types).allocate(pod("a: 4/2 ->"))

    assert got is not None
    assert got.requests == expected


@table(
    "case",
    {
        "claims": Case("gpu-0+vram=40Gi", "a: 1*30Gi/1*10Gi | 1*30Gi -> gpu-0 gpu-0", "b: 1 -> no"),
        "all": Case(
            "gpu-0+vram=50Gi gpu-1+vram=80Gi",
            "a: all*30Gi/1*30Gi -> gpu-0",
            "b: 1*21Gi/1*20Gi -> gpu-0",
            in_use=[allocated("held", "gpu-1", vram="70Gi")],
        ),
    },
)
def test_alternative_that_failed_consumes_no_capacity(case):
    """What a failed alternative would have consumed is there for others."""
    assert case.follow() == case.expected
