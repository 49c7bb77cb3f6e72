"""Karpenter's suites of device pools, requests and constraints: which published devices a claim gets."""

from __future__ import annotations

import msgspec
import pytest

from journeyman.core.api import labels
from journeyman.core.api.dra import DeviceClass
from tests.helpers.devices import (
    DRIVER,
    NIC_DRIVER,
    a_claiming_pod,
    a_device_class,
    a_resource_claim,
    a_slice,
    an_allocated_claim,
    devices_of,
    exactly,
    first_of,
    named_devices,
    schedule_devices,
    selecting,
    slice_spec,
    with_devices,
)
from tests.helpers.karpenter_suite import ZONES, fake_type, requirement

HERE, THERE, FAR = ZONES
ALL = {"allocationMode": "All"}
ANY = msgspec.convert({"metadata": {"name": "any"}}, DeviceClass)
CLASSES = (
    ANY,
    a_device_class(),
    a_device_class("h100", selecting("H100")),
    a_device_class("nic", f'device.driver == "{NIC_DRIVER}"'),
)
TWO_ZONES = fake_type("plain-it", offerings=((HERE, labels.ON_DEMAND), (THERE, labels.ON_DEMAND)))


def any_of(name="req", **request):
    """A request for any devices."""
    return exactly(name, **{"deviceClassName": "any", **request})


def planned(claim, *, slices=(), types=(TWO_ZONES,), held=(), zone=""):
    """The devices that a claim gets on a new node, or why there is none; its pod may select a zone."""
    spec = {"nodeSelector": {labels.ZONE: zone}} if zone else {}
    plan = schedule_devices(
        a_claiming_pod("p", "c", cpu="1m", memory="1Mi", spec=spec),
        types=types,
        claims=[claim, *held],
        slices=slices,
        classes=CLASSES,
    )
    error = plan.results.pod_errors.get("default/p")
    return devices_of(plan) if error is None else error.message


# -- pools


def part(number, *devices, pool="pool-a", of=1, generation=1, driver=DRIVER, at=None, **spec):
    """A slice of a pool: one `of` so many, for all nodes, or for those of a zone."""
    term = {"matchExpressions": [requirement(labels.ZONE, "In", at)]}
    where = (
        {}
        if "allNodes" in spec
        else {"allNodes": True}
        if at is None
        else {"nodeSelector": {"nodeSelectorTerms": [term]}}
    )
    made = [named_devices(each)[0] if isinstance(each, str) else each for each in devices]
    return a_slice(
        f"s-{pool}-{number}-{generation}",
        made,
        pool=pool,
        of=of,
        generation=generation,
        driver=driver,
        **({} if "sharedCounters" in spec or "nodeSelector" in spec else where),
        **spec,
    )


def drawing(name, of="budget", **counters):
    """A device that draws on counters."""
    return {"name": name, "consumesCounters": [{"counterSet": of, "counters": amounts(counters)}]}


def budget(number, *, of, devices=(), pool="pool-a", **sets):
    """A slice with counters, by set."""
    found = [{"name": name, "counters": amounts(counters)} for name, counters in sets.items()]
    return part(number, *devices, of=of, pool=pool, sharedCounters=found)


def amounts(counters):
    """Counters as JSON."""
    return {name: {"value": value} for name, value in counters.items()}


def selected_by(*terms):
    """The nodes that one of these terms selects, each a list of expressions."""
    return {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": list(term)} for term in terms]}}


TWICE = [drawing("gpu-0", memory="40Gi"), drawing("gpu-1", memory="40Gi")]
IN = {"memory": "80Gi"}


@pytest.mark.parametrize(
    ("slices", "seen"),
    [
        pytest.param(
            [part(0, "gpu-0", "gpu-1")],
            ["gpu-0", "gpu-1"],
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/pool", it="should build a pool from an AllNodes slice"
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/pool",
                    it="should construct correct DeviceIDs for multiple devices in a single slice",
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/types", it="should return AllNodes from the API object"
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/types", it="should return nil NodeSelector when not set"
                ),
            ],
            id="all-nodes",
        ),
        pytest.param(
            [part(0, "gpu-0", at=HERE)],
            ["gpu-0"],
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/pool",
                    it="should build a pool from a nodeSelector slice matching requirements",
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/types", it="should return NodeSelector from the API object"
                ),
            ],
            id="zone",
        ),
        pytest.param(
            [part(0, "gpu-0", at=FAR)],
            [],
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool", it="should exclude pools with only incompatible nodeSelector slices"
            ),
            id="other-zone",
        ),
        pytest.param(
            [part(0, "gpu-0", allNodes=False)],
            [],
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/types", it="should return false for AllNodes when explicitly false"
                ),
            ],
            id="not-all-nodes",
        ),
        pytest.param(
            [a_slice("s", named_devices("gpu-0"))],
            [],
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/pool", it="should exclude slices with no node affinity fields"
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/types", it="should return false for AllNodes when nil"
                ),
            ],
            id="nowhere",
        ),
        pytest.param(
            [part(0)],
            [],
            marks=pytest.mark.karpenter("scheduling/dynamicresources/types", it="should handle empty device list"),
            id="no-device",
        ),
        pytest.param(
            [],
            [],
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool", it="should return an empty list when no slices are provided"
            ),
            id="no-slice",
        ),
        pytest.param(
            [
                part(
                    0,
                    "gpu-0",
                    **selected_by([requirement(labels.ZONE, "In", HERE), requirement(labels.ZONE, "NotIn", HERE)]),
                )
            ],
            [],
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool",
                it="should reject a slice when one match expression within a term is incompatible",
            ),
            id="no-zone-left",
        ),
        pytest.param(
            [part(0, "gpu-0", of=2), part(1, "gpu-1", of=2)],
            ["gpu-0", "gpu-1"],
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/pool",
                    it="should group multiple slices into the same pool by driver+pool",
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/pool",
                    it="should not mark a pool as invalid when device names are unique",
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/pool", it="should accumulate slices from the same generation"
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/pool",
                    it="should not mark a pool as incomplete when slice count matches",
                ),
            ],
            id="two-slices",
        ),
        pytest.param(
            [part(0, "gpu-0"), part(0, "gpu-1", pool="pool-b")],
            ["gpu-0", "pool-b/gpu-1"],
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/pool", it="should create separate pools for different pool names"
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/pool",
                    it="should construct correct DeviceIDs across multiple slices and pools",
                ),
            ],
            id="two-pools",
        ),
        pytest.param(
            [part(0, "gpu-0"), part(1, "gpu-0", driver=NIC_DRIVER)],
            ["gpu-0", "gpu-0"],
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool", it="should create separate pools for different drivers"
            ),
            id="two-drivers",
        ),
        pytest.param(
            [part(0, "gpu-0", of=2), part(1, "gpu-0", of=2)],
            None,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool",
                it="should mark a pool as invalid when it has duplicate device names",
            ),
            id="same-name",
        ),
        pytest.param(
            [part(0, "gpu-0", "gpu-0")],
            None,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool",
                it="should mark a pool as invalid when a single slice has duplicate device names",
            ),
            id="same-name-in-a-slice",
        ),
        pytest.param(
            [budget(0, of=3, budget=IN), budget(1, of=3, budget=IN), part(2, "gpu-0", of=3)],
            None,
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/pool",
                    it="should mark pool invalid when counter set names are duplicated",
                ),
                pytest.mark.karpenter("scheduling/dynamicresources/pool", it="across slices"),
            ],
            id="same-counter-set",
        ),
        pytest.param(
            [
                part(
                    0,
                    of=2,
                    sharedCounters=[
                        {"name": "budget", "counters": amounts({name: "1"})} for name in ("memory", "flops")
                    ],
                ),
                part(1, "gpu-0", of=2),
            ],
            None,
            marks=pytest.mark.karpenter("scheduling/dynamicresources/pool", it="within a single slice"),
            id="same-counter-set-in-a-slice",
        ),
        pytest.param(
            [budget(0, of=2, budget=IN), part(1, drawing("gpu-0", of="other", memory="1Gi"), of=2)],
            None,
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/pool",
                    it="should mark pool invalid when counter references are invalid",
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/pool", it="device references non-existent counter set"
                ),
            ],
            id="no-counter-set",
        ),
        pytest.param(
            [budget(0, of=2, budget=IN), part(1, drawing("gpu-0", flops="1"), of=2)],
            None,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool", it="device references non-existent counter within set"
            ),
            id="no-counter",
        ),
        pytest.param(
            [
                budget(0, of=3, budget=IN),
                part(1, TWICE[0], of=3),
                part(2, drawing("gpu-1", of="other", memory="1Gi"), of=3, at=FAR),
            ],
            None,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool", it="non-targeting device references non-existent counter set"
            ),
            id="no-counter-set-elsewhere",
        ),
        pytest.param(
            [budget(0, of=3, budget=IN), part(1, TWICE[0], of=3), part(2, drawing("gpu-1", flops="1"), of=3, at=FAR)],
            None,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool",
                it="non-targeting device references non-existent counter within set",
            ),
            id="no-counter-elsewhere",
        ),
        pytest.param(
            [part(0, TWICE[0])],
            None,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool", it="device declares ConsumesCounters but pool has no counter sets"
            ),
            id="no-counters",
        ),
        pytest.param(
            [
                budget(0, of=2, budget=IN, compute={"flops": "1000"}),
                part(1, drawing("gpu-0", flops="500"), of=2),
            ],
            None,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool",
                it="device references counter that exists in a different counter set",
            ),
            id="counter-of-another-set",
        ),
        pytest.param(
            [budget(0, of=2, budget={**IN, "flops": "1000"}), part(1, *TWICE, of=2)],
            ["gpu-0", "gpu-1"],
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/pool",
                    it="should not mark pool invalid when device counter references are valid",
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/pool", it="should gather counter sets from a SharedCounters slice"
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/pool", it="should preserve CounterSets through filtering"
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/types", it="should convert devices with ConsumesCounters"
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/types", it="should return SharedCounters from the API object"
                ),
            ],
            id="counters",
        ),
        pytest.param(
            [budget(0, of=2, budget={"memory": "70Gi"}), part(1, *TWICE, of=2)],
            None,
            id="counters-that-do-not-suffice",
        ),
        pytest.param(
            [part(0, "gpu-old", generation=1), part(0, "gpu-new", generation=2)],
            ["gpu-new"],
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool", it="should discard slices from an older generation"
            ),
            id="generation",
        ),
        pytest.param(
            [part(0, "gpu-0", of=2), part(1, "gpu-1", of=2), part(0, "gpu-new", generation=2)],
            ["gpu-new"],
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool",
                it="should replace all old-generation slices when a newer generation arrives",
            ),
            id="fewer-slices-in-the-new-generation",
        ),
        pytest.param(
            [part(0, "gpu-0"), part(0, "gpu-new", generation=2, of=2)],
            None,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool",
                it="should return new generation as incomplete when previous generation was complete",
            ),
            id="new-generation-incomplete",
        ),
        pytest.param(
            [part(0, "gpu-0"), *(part(n, "gpu-dup", generation=2, of=2) for n in range(2))],
            None,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool",
                it="should return new generation as invalid when previous generation was complete",
            ),
            id="new-generation-invalid",
        ),
        pytest.param(
            [part(0, "gpu-old", of=2), part(0, "gpu-new", generation=2)],
            ["gpu-new"],
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool",
                it="should return new generation as valid when previous generation was incomplete",
            ),
            id="old-generation-incomplete",
        ),
        pytest.param(
            [*(part(n, "gpu-dup", of=2) for n in range(2)), part(0, "gpu-new", generation=2)],
            ["gpu-new"],
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool",
                it="should return new generation as valid when previous generation was invalid",
            ),
            id="old-generation-invalid",
        ),
        pytest.param(
            [part(0, "gpu-0", of=2)],
            None,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool",
                it="should mark a pool as incomplete when fewer slices than ResourceSliceCount",
            ),
            id="slice-missing",
        ),
        pytest.param(
            [part(0, "gpu-0"), part(1, "gpu-1")],
            None,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool",
                it="should mark a pool as incomplete when more slices than ResourceSliceCount",
            ),
            id="slice-too-many",
        ),
        pytest.param(
            [part(0, "gpu-0", of=0)],
            None,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool",
                it="should mark a pool as incomplete when ResourceSliceCount is 0",
            ),
            id="no-slice-count",
        ),
        pytest.param(
            [part(0, "gpu-0", of=2, at=HERE), part(1, "gpu-1", of=2, at=FAR)],
            ["gpu-0"],
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/pool",
                    it="should not mark a pool as incomplete when non-matching slices complete the count",
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/pool",
                    it="should not retain non-matching devices without ConsumesCounters as NonTargetingDevices",
                ),
            ],
            id="slices-of-two-zones",
        ),
        pytest.param(
            [part(0, "gpu-0", at=HERE), part(0, "gpu-new", at=FAR, generation=2)],
            [],
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool",
                it="should drop a pool when a newer generation exists only on non-matching slices",
            ),
            id="new-generation-elsewhere",
        ),
        pytest.param(
            [part(0, "gpu-0", of=3, at=HERE), part(1, "gpu-1", of=3, at=HERE), part(2, "gpu-2", of=3, at=FAR)],
            ["gpu-0", "gpu-1"],
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool",
                it="should include only matching slices when pool has mixed node selectors",
            ),
            id="two-slices-of-a-zone",
        ),
        pytest.param(
            [budget(0, of=3, budget=IN), part(1, "gpu-0", of=3), part(2, "gpu-1", of=3)],
            ["gpu-0", "gpu-1"],
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/pool", it="should count counter-set slices toward completeness"
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/pool",
                    it="should handle pool with SharedCounters slice and no ConsumesCounters on devices",
                ),
            ],
            id="unused-counters",
        ),
        pytest.param(
            [part(0, "gpu-0", of=2)],
            None,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool",
                it="should mark pool incomplete when counter-set slice is missing",
            ),
            id="counters-missing",
        ),
        pytest.param(
            [
                budget(0, of=2, budget=IN, compute={"flops": "1000"}),
                part(
                    1,
                    {
                        "name": "gpu-0",
                        "consumesCounters": [
                            *drawing("", memory="40Gi")["consumesCounters"],
                            *drawing("", of="compute", flops="500")["consumesCounters"],
                        ],
                    },
                    of=2,
                ),
            ],
            ["gpu-0"],
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/pool", it="should gather multiple counter sets from a single slice"
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/pool",
                    it="should handle devices consuming from multiple counter sets",
                ),
            ],
            id="two-counter-sets",
        ),
        pytest.param(
            [
                budget(0, of=3, budget=IN),
                budget(1, of=3, compute={"flops": "1000"}),
                part(2, TWICE[0], drawing("gpu-1", of="compute", flops="500"), of=3),
            ],
            ["gpu-0", "gpu-1"],
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool",
                it="should gather counter sets from multiple SharedCounters slices in the same pool",
            ),
            id="counters-of-two-slices",
        ),
        pytest.param(
            [part(0, TWICE[0], of=2), budget(1, of=2, budget=IN)],
            ["gpu-0"],
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool",
                it="should gather counter sets correctly regardless of slice ordering",
            ),
            id="counters-last",
        ),
        pytest.param(
            [budget(0, of=2, budget=IN, devices=["ghost"]), part(1, "gpu-0", of=2)],
            ["gpu-0"],
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/pool",
                    it="should ignore devices on a slice that also declares SharedCounters",
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/pool", it="should not include counter-set slices in pool.Slices"
                ),
            ],
            id="device-beside-counters",
        ),
        pytest.param(
            [budget(0, of=2, budget=IN), part(1, TWICE[0], of=2, at=HERE)],
            ["gpu-0"],
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/pool",
                    it="should treat SharedCounters slice as always matching requirements",
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/pool",
                    it="should always retain pools with SharedCounters slices through filtering",
                ),
            ],
            id="counters-of-a-zone",
        ),
        pytest.param(
            [budget(0, of=2, budget=IN), part(1, "gpu-0", of=2, at=FAR)],
            [],
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool",
                it="should return nil pool when only SharedCounters slices exist with no device slices matching",
            ),
            id="counters-without-devices",
        ),
        pytest.param(
            [budget(0, of=3, budget=IN), part(1, "gpu-0", "gpu-0", of=3)],
            None,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool", it="should preserve Incomplete and Invalid flags through filtering"
            ),
            id="two-defects",
        ),
    ],
)
def test_request_for_all_devices_gets_those_of_complete_and_valid_pools(slices, seen):
    """There is one more, healthy pool. While a pool that the node reaches has a defect, not all devices are known."""
    healthy = part(0, "gpu-9", pool="free")

    found = planned(a_resource_claim("c", any_of(**ALL)), slices=[*slices, healthy], zone=HERE)

    if seen is None:
        assert "cannot be had" in found or "no published device" in found
    else:
        assert found == sorted([*(n if "/" in n else f"pool-a/{n}" for n in seen), "free/gpu-9"])


@pytest.mark.parametrize(
    ("slices", "held", "chosen"),
    [
        pytest.param(
            [],
            (),
            None,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool", it="should return an empty list when no pools are provided"
            ),
            id="none",
        ),
        pytest.param(
            [part(0, "gpu-0", at=HERE)],
            (),
            "pool-a/gpu-0",
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool", it="should retain pools with compatible slices"
            ),
            id="same-zone",
        ),
        pytest.param(
            [part(0, "gpu-0", at=THERE)],
            (),
            None,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool",
                it="should exclude pools with incompatible slices after requirement tightening",
            ),
            id="other-zone",
        ),
        pytest.param(
            [part(0, "gpu-0")],
            (),
            "pool-a/gpu-0",
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool", it="should always retain pools with AllNodes slices"
            ),
            id="all-nodes",
        ),
        pytest.param(
            [part(0, "gpu-0", at=THERE), part(0, "gpu-0", pool="pool-b", at=HERE)],
            (),
            "pool-b/gpu-0",
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool", it="should retain some pools and exclude others"
            ),
            id="two-pools",
        ),
        pytest.param(
            [part(0, "gpu-0", of=2, at=THERE), part(1, "gpu-1", of=2, at=HERE)],
            (),
            "pool-a/gpu-1",
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/pool",
                    it="should retain a pool but strip non-matching slices and their devices",
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/pool",
                    it="should not move devices without ConsumesCounters to NonTargetingDevices on tightening",
                ),
            ],
            id="two-slices",
        ),
        pytest.param(
            [a_slice("s", named_devices("gpu-0"))],
            (),
            None,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool",
                it="should exclude a pool when its slices have no node affinity fields",
            ),
            id="nowhere",
        ),
        pytest.param(
            [budget(0, of=3, budget=IN), part(1, TWICE[0], of=3, at=HERE), part(2, TWICE[1], of=3, at=THERE)],
            (an_allocated_claim("held", ("pool-a", "gpu-1")),),
            "pool-a/gpu-0",
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool",
                it="should retain non-matching devices with ConsumesCounters as NonTargetingDevices",
            ),
            id="counters-suffice",
        ),
        pytest.param(
            [
                budget(0, of=3, budget={"memory": "70Gi"}),
                part(1, TWICE[0], of=3, at=HERE),
                part(2, TWICE[1], "gpu-plain", of=3, at=THERE),
            ],
            (an_allocated_claim("held", ("pool-a", "gpu-1")),),
            None,
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/pool",
                    it="should move devices with ConsumesCounters to NonTargetingDevices when requirements tighten",
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/pool",
                    it="should preserve ConsumesCounters data on NonTargetingDevices",
                ),
            ],
            id="counters-used-up-elsewhere",
        ),
        pytest.param(
            [
                budget(0, of=3, budget={"memory": "70Gi"}),
                part(1, TWICE[0], of=3, at=HERE),
                part(2, TWICE[1], "gpu-plain", of=3, at=THERE),
            ],
            (an_allocated_claim("held", ("pool-a", "gpu-plain")),),
            "pool-a/gpu-0",
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool",
                it="should retain only devices with ConsumesCounters from a non-matching slice with mixed devices",
            ),
            id="device-without-counters-elsewhere",
        ),
        pytest.param(
            [
                budget(0, of=4, budget=IN),
                part(1, TWICE[0], of=4, at=HERE),
                part(2, drawing("gpu-1", memory="20Gi"), of=4, at=THERE),
                part(3, drawing("gpu-2", memory="30Gi"), of=4, at=FAR),
            ],
            (an_allocated_claim("held", ("pool-a", "gpu-1"), ("pool-a", "gpu-2")),),
            None,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/pool",
                it="should preserve existing NonTargetingDevices through filtering",
            ),
            id="counters-used-up-in-two-zones",
        ),
        pytest.param(
            [budget(0, of=2, budget=IN), part(1, TWICE[0], of=2, at=THERE)],
            (),
            None,
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/pool",
                    it="should retain pool with zero Slices when NonTargetingDevices exist after tightening",
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/pool",
                    it="should retain pool during build when only NonTargetingDevices exist",
                ),
            ],
            id="counters-without-devices",
        ),
    ],
)
def test_device_of_a_zone_restricts_the_other_devices_of_its_claim(slices, held, chosen):
    """The claim's NIC is in one zone; devices elsewhere are not reached, but those in use draw on their pool's counters."""
    claim = a_resource_claim("c", any_of("nic", deviceClassName="nic"), exactly())
    nic = part(0, "nic-0", pool="nics", driver=NIC_DRIVER, at=HERE)

    found = planned(claim, slices=[nic, *slices], held=held)

    if chosen is None:
        assert isinstance(found, str)
    else:
        assert found == sorted(["nics/nic-0", chosen])


@pytest.mark.karpenter("scheduling/dynamicresources/pool", it="should construct correct DeviceIDs")
def test_plan_names_driver_pool_and_name_of_a_device():
    """It also says whether the device is published."""
    plan = schedule_devices(
        a_claiming_pod("p", "c"), types=(TWO_ZONES,), claims=[a_resource_claim("c")], slices=[part(0, "gpu-0")]
    )

    (found,) = plan.node_of("p").devices["plain-it"]
    assert (found.driver, found.pool, found.device, found.published) == (DRIVER, "pool-a", "gpu-0", True)


# -- requests


def model(name, model="A100", memory=0, **more):
    """A GPU of a model, with so many GiB of memory."""
    size = {"capacity": {"memory": {"value": f"{memory}Gi"}}} if memory else {}
    attributes = {"model": {"string": model}, "memory": {"int": memory}}
    return {"name": name, "attributes": attributes, **size, **more}


def models(count, of="A100", prefix="a"):
    """So many GPUs of a model."""
    return [model(f"{prefix}-{n:02}", of) for n in range(count)]


def h100(name="h100", **request):
    """A request for H100s."""
    return exactly(name, deviceClassName="h100", **request)


def a100(name="a100", **request):
    """A request for A100s."""
    return exactly(name, select=selecting("A100"), **request)


MALFORMED = [{"cel": {"expression": "this is not valid CEL"}}]
OF_40 = f'device.attributes["{DRIVER}"].memory > 40'


@pytest.mark.parametrize(
    ("requests", "published", "found"),
    [
        pytest.param(
            [any_of(count=2)],
            models(3),
            ["a-00", "a-01"],
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request", it="should validate a simple ExactCount request"
            ),
            id="count",
        ),
        pytest.param(
            [any_of(capacity={"requests": {"memory": "40Gi"}})],
            [model("small", memory=20), model("large", memory=80)],
            ["large"],
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request", it="should populate CapacityRequests when Capacity is set"
            ),
            id="capacity",
        ),
        pytest.param(
            [any_of("a", count=2), h100("b")],
            [*models(2), *models(1, "H100", "h")],
            ["a-00", "a-01", "h-00"],
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request", it="should validate multiple requests in a single claim"
            ),
            id="two-requests",
        ),
        pytest.param(
            [h100(select=OF_40)],
            [model("a", "H100", 20), model("b", "A100", 80), model("c", "H100", 80)],
            ["c"],
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request", it="should combine selectors from class and request"
            ),
            id="selectors",
        ),
        pytest.param(
            [any_of("a", count=16), any_of("b", count=16)],
            models(40),
            32,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request",
                it="should succeed when total devices across multiple requests equal AllocationResultsMaxSize",
            ),
            id="as-many-as-allowed",
        ),
        pytest.param(
            [any_of(**ALL)],
            models(3),
            3,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request", it="should validate an All mode request with valid pools"
            ),
            id="all",
        ),
        pytest.param(
            [h100(**ALL)],
            [*models(1, "H100", "h"), *models(1)],
            ["h-00"],
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request", it="should filter All mode devices by selectors"
            ),
            id="all-of-a-model",
        ),
        pytest.param(
            [
                first_of(
                    {"deviceClassName": "h100", "selectors": [{"cel": {"expression": OF_40}}], "count": 2}, name="gpu"
                )
            ],
            [model("a", "H100", 20), *(model(n, "H100", 80) for n in "bc")],
            ["b", "c"],
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request",
                it="should validate a FirstAvailable request with class and sub-request selector merging",
            ),
            id="first-selectors",
        ),
        pytest.param(
            [
                first_of(
                    {"deviceClassName": "h100", "count": 4},
                    {"deviceClassName": "gpu", "count": 2},
                    {"deviceClassName": "any", "count": 1},
                )
            ],
            models(3),
            ["a-00", "a-01"],
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request",
                it="should validate multiple sub-requests preserving priority order",
            ),
            id="first-in-order",
        ),
        pytest.param(
            [first_of({"count": 2, "capacity": {"requests": {"memory": "40Gi"}}}, {"count": 1})],
            [model("small", memory=20), model("large", memory=80)],
            ["small"],
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request", it="should populate CapacityRequests on sub-requests"
            ),
            id="first-capacity",
        ),
        pytest.param(
            [first_of({"count": 4}, {"count": 2}), any_of("other", count=30)],
            models(40),
            32,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request",
                it="should pass upfront when only the smaller sub-request fits within the limit",
            ),
            id="first-that-is-allowed",
        ),
        pytest.param(
            [first_of({"deviceClassName": "h100", **ALL}, {"count": 1}), a100("other", count=31)],
            [*models(3, "H100", "h"), *models(31)],
            32,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request",
                it="should include All-mode sub-request device counts in the MIN floor",
            ),
            id="first-instead-of-all",
        ),
        pytest.param(
            [first_of(ALL)],
            models(3),
            3,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request", it="should populate AllDevices for an All-mode sub-request"
            ),
            id="first-all",
        ),
        pytest.param(
            [first_of(ALL, {"count": 1})],
            models(3),
            3,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request",
                it="should mix ExactCount and All-mode sub-requests in the same FirstAvailable",
            ),
            id="first-all-or-one",
        ),
        pytest.param(
            [any_of("exact", count=2), first_of({"count": 3}, {"count": 1})],
            models(6),
            5,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request",
                it="should validate a claim with both Exactly and FirstAvailable requests",
            ),
            id="exact-and-first",
        ),
    ],
)
def test_requests_of_a_claim_get_published_devices(requests, published, found):
    """`found` are their names, or how many there are."""
    devices = planned(a_resource_claim("c", *requests), slices=[part(0, *published)])

    if isinstance(found, int):
        assert len(devices) == found
    else:
        assert devices == [f"pool-a/{name}" for name in found]


@pytest.mark.karpenter("scheduling/dynamicresources/request", it="should validate an empty claim with no requests")
def test_claim_without_requests_needs_no_device():
    """Its pod is scheduled."""
    assert planned(a_resource_claim("c", spec={"devices": {}})) == []


@pytest.mark.karpenter(
    "scheduling/dynamicresources/request", it="should aggregate devices across multiple pools in All mode"
)
def test_request_for_all_devices_gets_those_of_all_pools():
    """Two GPUs and a NIC."""
    slices = [part(0, "gpu-0", "gpu-1"), part(0, "nic-0", pool="nics", driver=NIC_DRIVER)]

    assert planned(a_resource_claim("c", any_of(**ALL)), slices=slices) == [
        "nics/nic-0",
        "pool-a/gpu-0",
        "pool-a/gpu-1",
    ]


BROKEN = [model("same"), model("same")]


@pytest.mark.parametrize(
    ("requests", "published", "message"),
    [
        pytest.param(
            [any_of(deviceClassName="nonexistent")],
            [],
            "DeviceClass 'nonexistent' does not exist",
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request", it="should fail when DeviceClass is not found"
            ),
            id="class",
        ),
        pytest.param(
            [{"name": "req"}],
            [],
            "request req asks for nothing",
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request",
                it="should fail when a request has neither Exactly nor FirstAvailable",
            ),
            id="nothing",
        ),
        pytest.param(
            [{"name": "req", "firstAvailable": []}],
            [],
            "request req asks for nothing",
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request", it="should fail when a request has an empty FirstAvailable list"
            ),
            id="no-alternative",
        ),
        pytest.param(
            [any_of(selectors=[{}])],
            [],
            "a selector that is not CEL is not supported",
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request", it="should fail when a request has a non-CEL selector"
            ),
            id="not-cel",
        ),
        pytest.param(
            [any_of(selectors=MALFORMED)],
            [],
            "selector 'this is not valid CEL' is invalid at character 1",
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/request",
                    it="should fail when a CEL expression in a request does not compile",
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/request",
                    it="should return error when CEL expression fails to compile in DeviceMatchesSelectors",
                ),
            ],
            id="malformed",
        ),
        pytest.param(
            [any_of("a", count=16), any_of("b", count=17)],
            models(40),
            "asks for 33 devices, 32 are the most",
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request",
                it="should fail when total devices across multiple requests exceed AllocationResultsMaxSize",
            ),
            id="too-many",
        ),
        pytest.param(
            [any_of(**ALL)],
            BROKEN,
            "no published device",
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/request",
                    it="should fail when an All mode request encounters an invalid pool",
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/request",
                    it="should fail when any pool is invalid in All mode even if others are valid",
                ),
            ],
            id="all-of-a-broken-pool",
        ),
        pytest.param(
            [h100(**ALL)],
            models(2),
            "no published device",
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request",
                it="should return empty AllDevices when no pool devices match selectors in All mode",
            ),
            id="all-of-none",
        ),
        pytest.param(
            [any_of(**ALL)],
            [],
            "no published device",
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request", it="should validate All mode with empty pools"
            ),
            id="all-without-a-device",
        ),
        pytest.param(
            [any_of(**ALL)],
            models(33),
            "cannot be had together",
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request",
                it="should fail when All mode in-cluster devices exceed AllocationResultsMaxSize",
            ),
            id="all-of-too-many",
        ),
        pytest.param(
            [h100(**ALL), a100(count=30)],
            [*models(3, "H100", "h"), *models(30)],
            "cannot be had together",
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request",
                it="should fail when All mode in-cluster devices plus ExactCount exceed AllocationResultsMaxSize",
            ),
            id="all-and-too-many",
        ),
        pytest.param(
            [first_of({"deviceClassName": "nonexistent"}, {"count": 1})],
            models(1),
            "DeviceClass 'nonexistent' does not exist",
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request",
                it="should fail when a sub-request references a nonexistent DeviceClass",
            ),
            id="first-class",
        ),
        pytest.param(
            [first_of({"selectors": MALFORMED}, {"count": 1})],
            models(1),
            "selector 'this is not valid CEL' is invalid at character 1",
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request", it="should fail when a sub-request has an invalid CEL selector"
            ),
            id="first-malformed",
        ),
        pytest.param(
            [first_of({"selectors": [{}]}, {"count": 1})],
            models(1),
            "a selector that is not CEL is not supported",
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request", it="should fail when a sub-request has a non-CEL selector"
            ),
            id="first-not-cel",
        ),
        pytest.param(
            [first_of({"count": 4}, {"count": 2}), any_of("other", count=31)],
            models(40),
            "asks for 33 devices, 32 are the most",
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request",
                it="should use the MIN device count across sub-requests for the upfront limit check",
            ),
            id="first-too-many",
        ),
        pytest.param(
            [first_of(ALL)],
            BROKEN,
            "no published device",
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request",
                it="should fail when an All-mode sub-request encounters an invalid pool",
            ),
            id="first-all-of-a-broken-pool",
        ),
    ],
)
def test_claim_that_cannot_be_satisfied_says_why(requests, published, message):
    """Its pod is unschedulable."""
    slices = [part(0, *published)] if published else []

    assert message in planned(a_resource_claim("c", *requests), slices=slices)


@pytest.mark.karpenter(
    "scheduling/dynamicresources/request", it="should fail when an All mode request encounters an incomplete pool"
)
def test_request_for_all_devices_waits_for_the_missing_slices():
    """The other slice of the pool is not published yet."""
    found = planned(a_resource_claim("c", any_of(**ALL)), slices=[part(0, "gpu-0", of=2)])

    assert "no published device" in found


@pytest.mark.parametrize(
    "constraint",
    [
        pytest.param(
            {"distinctAttribute": f"{DRIVER}/numa"},
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request",
                it="should fail on DistinctAttribute constraints (not yet supported)",
            ),
        ),
        pytest.param(
            {},
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request", it="should fail on unsupported constraint types"
            ),
        ),
    ],
)
def test_claim_with_another_constraint_than_match_attribute_says_so(constraint):
    """Its pod is unschedulable."""
    spec = {"devices": {"requests": [any_of()], "constraints": [constraint]}}

    found = planned(a_resource_claim("c", spec=spec), slices=[part(0, "gpu-0")])

    assert "has a constraint other than matchAttribute, which is not supported" in found


# -- devices of instance types


def brings(devices):
    """An instance type whose nodes publish these devices."""
    return with_devices(fake_type("gpu-it"), slice_spec(devices, pool="own"))


@pytest.mark.parametrize(
    ("requests", "published", "counts"),
    [
        pytest.param(
            [any_of(**ALL)],
            [],
            {5: 5, 10: 10},
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request",
                it="should populate AllTemplateDevicesByIT for All mode with template devices",
            ),
            id="all",
        ),
        pytest.param(
            [first_of({"deviceClassName": "any", **ALL})],
            [],
            {5: 5, 10: 10},
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request",
                it="should populate AllTemplateDevicesByIT for an All-mode sub-request",
            ),
            id="first-all",
        ),
        pytest.param(
            [any_of(**ALL)],
            models(20),
            {10: 30, 20: None},
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request",
                it="should prune instance types whose template devices would exceed AllocationResultsMaxSize",
            ),
            id="all-with-published",
        ),
        pytest.param(
            [h100(**ALL), a100(count=10)],
            [*models(15, "H100", "h"), *models(10)],
            {5: 30, 10: None},
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request",
                it="should account for ExactCount devices in base total when pruning template devices",
            ),
            id="all-and-a-count",
        ),
        pytest.param(
            [any_of(**ALL)],
            models(30),
            {5: None, 6: None},
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request", it="should fail when all instance types are pruned"
            ),
            id="all-too-many",
        ),
        pytest.param(
            [any_of(count=1)],
            models(3),
            {5: 1},
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request",
                it="should not fail when template devices exist but no All mode requests reference them",
            ),
            id="count",
        ),
        pytest.param(
            [first_of({"deviceClassName": "any", **ALL}, {"deviceClassName": "any", **ALL})],
            models(20),
            {10: 30, 20: None},
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request", it="should prune ITs based on the MIN sub-request template count"
            ),
            id="first-all-with-published",
        ),
        pytest.param(
            [first_of({"deviceClassName": "any", **ALL})],
            models(30),
            {5: None, 6: None},
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request",
                it="should fail when all ITs are pruned due to sub-request template overflow",
            ),
            id="first-all-too-many",
        ),
        pytest.param(
            [first_of({"deviceClassName": "any", **ALL}, {"deviceClassName": "any", "count": 1})],
            models(25),
            {5: 30, 10: 1},
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request",
                it="should not prune any IT when a template-free sub-request sets the MIN to zero",
            ),
            id="first-all-or-one",
        ),
    ],
)
def test_new_node_adds_its_own_devices_to_the_published_ones(requests, published, counts):
    """By the number of H100s of the type: how many devices the claim gets on its node; more than 32 are too many."""
    slices = [part(0, *published)] if published else []

    for own, expected in counts.items():
        found = planned(a_resource_claim("c", *requests), slices=slices, types=(brings(models(own, "H100", "t")),))
        assert (len(found) if isinstance(found, list) else None) == expected


@pytest.mark.parametrize(
    ("own", "published", "found"),
    [
        pytest.param(
            "H100",
            [],
            ["own/t-00"],
            id="own",
        ),
        pytest.param(
            "A100",
            [],
            None,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request",
                it="should exclude instance types with no matching template devices from AllTemplateDevicesByIT",
            ),
            id="none",
        ),
        pytest.param(
            "H100",
            models(1, "H100", "h"),
            ["own/t-00", "pool-a/h-00"],
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request",
                it="should keep instance types with no matching template devices when in-cluster devices exist",
            ),
            id="both",
        ),
        pytest.param(
            "A100",
            models(1, "H100", "h"),
            ["pool-a/h-00"],
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request",
                it=(
                    "should keep all instance types with empty device lists when in-cluster devices match but no "
                    "template devices match"
                ),
            ),
            id="published",
        ),
    ],
)
def test_request_for_all_devices_counts_those_that_it_selects(own, published, found):
    """Of the node itself, and published ones; one of either suffices."""
    slices = [part(0, *published)] if published else []

    devices = planned(a_resource_claim("c", h100(**ALL)), slices=slices, types=(brings(models(1, own, "t")),))

    assert (devices if isinstance(devices, list) else None) == found


# -- selectors

SHARED = {"allowMultipleAllocations": True}
LARGE = f'device.capacity["{DRIVER}"].memory.isGreaterThan(quantity("40Gi"))'
OF_SHARED = "device.allowMultipleAllocations == true"


@pytest.mark.parametrize(
    ("device", "selectors", "selected"),
    [
        pytest.param(
            model("d", "H100"),
            [selecting("H100")],
            True,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request", it="should match a device with matching attributes"
            ),
        ),
        pytest.param(
            model("d", "A100"),
            [selecting("H100")],
            False,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request", it="should not match a device with non-matching attributes"
            ),
        ),
        pytest.param(
            model("d", "H100", 80, **SHARED),
            [selecting("H100"), OF_40, LARGE, OF_SHARED],
            True,
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/request", it="should match when all selectors pass (AND semantics)"
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/types",
                    it="should convert devices with interned names, attributes, capacity, and AllowMultipleAllocations",
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/types",
                    it="should return devices with attributes, capacity, and AllowMultipleAllocations",
                ),
            ],
        ),
        pytest.param(
            model("d", "H100", 20),
            [selecting("H100"), OF_40],
            False,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request", it="should not match when any selector fails (AND semantics)"
            ),
        ),
        pytest.param(
            {"name": "d"},
            [],
            True,
            marks=pytest.mark.karpenter("scheduling/dynamicresources/request", it="should match with empty selectors"),
        ),
        pytest.param(
            model("d", memory=20),
            [LARGE],
            False,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request", it="should not match when capacity selector fails"
            ),
        ),
        pytest.param(
            {"name": "d"},
            [OF_SHARED],
            False,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request", it="should not match when AllowMultipleAllocations is false"
            ),
        ),
    ],
)
@pytest.mark.parametrize("is_published", [True, False])
def test_device_must_be_selected_by_every_selector(device, selectors, selected, is_published):
    """Whether it is published, or will be on a new node."""
    request = any_of(selectors=[{"cel": {"expression": each}} for each in selectors])
    slices, types = ([part(0, device)], (TWO_ZONES,)) if is_published else ([], (brings([device]),))

    found = planned(a_resource_claim("c", request), slices=slices, types=types)

    assert isinstance(found, list) is selected


# -- constraints


def rooted(*roots, domain=""):
    """Devices with these roots; without the attribute where there is none."""
    return [
        {"name": f"d{n}", "attributes": {f"{domain}root": {"string": root}} if root else {}}
        for n, root in enumerate(roots)
    ]


def matching(*requests, of=f"{DRIVER}/root"):
    """A constraint on devices of these requests, by default of all: the same root."""
    return {"matchAttribute": of, **({"requests": list(requests)} if requests else {})}


A, B, C = any_of("a"), any_of("b"), any_of("c")
GPUS = first_of({"name": "h100", "count": 2, "deviceClassName": "any"}, name="gpu")


@pytest.mark.parametrize(
    ("requests", "constraints", "devices", "found"),
    [
        pytest.param(
            [A],
            [matching()],
            rooted("x"),
            [0],
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/constraint", it="should accept the first device and pin its value"
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/request", it="should build MatchAttribute constraints from the claim"
                ),
            ],
            id="one",
        ),
        pytest.param(
            [A, B],
            [matching()],
            rooted("x", "x"),
            [0, 1],
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/constraint",
                it="should accept a second device with the same attribute value",
            ),
            id="equal",
        ),
        pytest.param(
            [A, B],
            [matching()],
            rooted("x", "y"),
            None,
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/constraint",
                    it="should reject a device with a different attribute value",
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/constraint",
                    it="should apply to all requests when requestNames is empty",
                ),
            ],
            id="different",
        ),
        pytest.param(
            [A],
            [matching()],
            rooted(""),
            None,
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/constraint", it="should reject a device missing the attribute"
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/constraint", it="should return nil when attribute is not found"
                ),
            ],
            id="missing",
        ),
        pytest.param(
            [A, B],
            [matching("a")],
            rooted("x", "y"),
            [0, 1],
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/constraint",
                    it="should only apply to named requests when requestNames is set",
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/request",
                    it="should build MatchAttribute constraints scoped to specific requests",
                ),
            ],
            id="of-one-request",
        ),
        pytest.param(
            [A, B],
            [matching(), matching(of=f"{DRIVER}/rack")],
            [
                {"name": f"d{n}", "attributes": {"root": {"string": root}, "rack": {"string": rack}}}
                for n, (root, rack) in enumerate(("xp", "xq", "yq", "xq"))
            ],
            [1, 3],
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/request", it="should build multiple MatchAttribute constraints"
            ),
            id="two-constraints",
        ),
        pytest.param(
            [GPUS],
            [matching("gpu")],
            rooted("x", "y", "y"),
            [1, 2],
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/constraint",
                    it="should apply to sub-requests when requestNames contains the parent",
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/constraint",
                    it="should reject across different sub-requests when values conflict under parent match",
                ),
            ],
            id="of-all-alternatives",
        ),
        pytest.param(
            [GPUS],
            [matching("gpu/h100")],
            rooted("x", "y", "y"),
            [1, 2],
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/constraint",
                it="should apply to sub-requests when requestNames contains the qualified name",
            ),
            id="of-the-alternative",
        ),
        pytest.param(
            [GPUS],
            [matching("gpu/a100")],
            rooted("x", "y", "y"),
            [0, 1],
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/constraint",
                it="should skip sub-requests when requestNames contains a different qualified name",
            ),
            id="of-another-alternative",
        ),
        pytest.param(
            [GPUS, first_of({"name": "a100", "count": 2, "deviceClassName": "any"}, name="more")],
            [matching("more/a100")],
            rooted("x", "y", "y", "x"),
            [0, 1, 2, 3],
            marks=[
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/constraint",
                    it="should allow interleaved matching and non-matching sub-request Adds",
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/constraint",
                    it="should be a no-op for non-matching sub-request names",
                ),
                pytest.mark.karpenter(
                    "scheduling/dynamicresources/constraint",
                    it="should handle Remove correctly after interleaved matching/non-matching sub-request Adds",
                ),
            ],
            id="of-one-of-two-alternatives",
        ),
        pytest.param(
            [GPUS, first_of({"name": "a100", "deviceClassName": "any"}, name="more")],
            [matching("gpu", "more")],
            rooted("x", "x", "x"),
            [0, 1, 2],
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/constraint",
                it="should enforce constraint across different sub-requests under parent match",
            ),
            id="of-two-requests",
        ),
        pytest.param(
            [A, B],
            [matching()],
            rooted("x", "y", "y"),
            [1, 2],
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/constraint",
                it="should allow a different value after removing all devices",
            ),
            id="second-attempt",
        ),
        pytest.param(
            [A, B, C],
            [matching()],
            rooted("x", "x", "y", "y", "y"),
            [2, 3, 4],
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/constraint",
                it="should maintain the pin after removing only one of two devices",
            ),
            id="third-attempt",
        ),
        pytest.param(
            [A, B, C],
            [matching("a", "c")],
            rooted("x", "y", "x"),
            [0, 1, 2],
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/constraint", it="should be a no-op for non-matching request names"
            ),
            id="request-between",
        ),
        pytest.param(
            [A, B],
            [matching(of="vendor.example.com/root")],
            rooted("x", "x", domain="vendor.example.com/"),
            [0, 1],
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/constraint", it="should find a fully qualified attribute"
            ),
            id="full-name",
        ),
        pytest.param(
            [A, B],
            [matching()],
            [*rooted("x", domain=f"{DRIVER}/"), {**rooted("", "x")[1]}],
            [0, 1],
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/constraint", it="should fall back to driver-qualified lookup"
            ),
            id="name-without-domain",
        ),
        pytest.param(
            [A, B],
            [matching(of="vendor.example.com/root")],
            rooted("x", "x"),
            None,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/constraint",
                it="should not fall back when domain prefix does not match driver",
            ),
            id="domain-of-another",
        ),
    ],
)
def test_devices_have_the_same_value_of_the_attribute_of_a_constraint(requests, constraints, devices, found):
    """A value with too few devices is given up; `found` are the numbers of the devices."""
    claim = a_resource_claim("c", spec={"devices": {"requests": requests, "constraints": constraints}})

    chosen = planned(claim, slices=[part(0, *devices)])

    assert (chosen if isinstance(chosen, list) else None) == (
        None if found is None else [f"pool-a/d{number}" for number in found]
    )


@pytest.mark.parametrize(
    ("left", "right", "are_equal"),
    [
        pytest.param(
            {"string": "a"},
            {"string": "b"},
            False,
            marks=pytest.mark.karpenter("scheduling/dynamicresources/constraint", it="should compare string values"),
        ),
        pytest.param(
            {"int": 42},
            {"int": 42},
            True,
            marks=pytest.mark.karpenter("scheduling/dynamicresources/constraint", it="should compare int values"),
        ),
        pytest.param({"int": 42}, {"int": 43}, False),
        pytest.param({"bool": False}, {"bool": False}, True),
        pytest.param(
            {"bool": True},
            {"bool": False},
            False,
            marks=pytest.mark.karpenter("scheduling/dynamicresources/constraint", it="should compare bool values"),
        ),
        pytest.param({"version": "1.2.3"}, {"version": "1.2.3"}, True),
        pytest.param(
            {"version": "1.2.3"},
            {"version": "1.2.4"},
            False,
            marks=pytest.mark.karpenter("scheduling/dynamicresources/constraint", it="should compare version values"),
        ),
        pytest.param({"version": "1.2.3+a"}, {"version": "1.2.3+b"}, False),
        pytest.param(
            {"string": "1"},
            {"int": 1},
            False,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/constraint", it="should return false for mismatched types"
            ),
        ),
        pytest.param({"bool": True}, {"int": 1}, False),
        pytest.param({"version": "1.2.3"}, {"string": "1.2.3"}, False),
        pytest.param(
            {},
            {},
            False,
            marks=pytest.mark.karpenter(
                "scheduling/dynamicresources/constraint", it="should return false for nil values"
            ),
        ),
    ],
)
def test_attribute_values_match_as_in_kube_scheduler(left, right, are_equal):
    """Values of different types do not, nor versions of different builds."""
    devices = [{"name": f"d{n}", "attributes": {"root": value}} for n, value in enumerate((left, right))]
    claim = a_resource_claim("c", any_of(count=2), match=f"{DRIVER}/root")

    assert isinstance(planned(claim, slices=[part(0, *devices)]), list) is are_equal


@pytest.mark.karpenter(
    "scheduling/dynamicresources/constraint",
    it="should clear pinned attribute value and allow re-pinning to a different value",
)
@pytest.mark.karpenter("scheduling/dynamicresources/constraint", it="should clear all mutable state")
def test_each_instance_type_has_its_own_value_of_an_attribute():
    """The NodeClaim lists both types, though their devices have different roots."""
    types = [
        with_devices(fake_type(f"it-{root}", price=1.0), slice_spec(rooted(root, root), pool=root)) for root in "xy"
    ]
    claim = a_resource_claim("c", any_of(count=2), match=f"{DRIVER}/root")

    plan = schedule_devices(a_claiming_pod("p", "c"), types=tuple(types), claims=[claim], classes=CLASSES)

    devices = plan.node_of("p").devices
    assert {name: [d.pool for d in found] for name, found in devices.items()} == {"it-x": ["x"] * 2, "it-y": ["y"] * 2}
