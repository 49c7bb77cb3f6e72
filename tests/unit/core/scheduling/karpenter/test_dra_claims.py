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
    table,
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


@table(
    "slices, seen",
    {
        "all-nodes": ([part(0, "gpu-0", "gpu-1")], ["gpu-0", "gpu-1"]),
        "zone": ([part(0, "gpu-0", at=HERE)], ["gpu-0"]),
        "other-zone": ([part(0, "gpu-0", at=FAR)], []),
        "not-all-nodes": ([part(0, "gpu-0", allNodes=False)], []),
        "nowhere": ([a_slice("s", "gpu-0")], []),
        "no-device": ([part(0)], []),
        "no-slice": ([], []),
        "no-zone-left": (
            [
                part(
                    0,
                    "gpu-0",
                    **selected_by([requirement(labels.ZONE, "In", HERE), requirement(labels.ZONE, "NotIn", HERE)]),
                )
            ],
            [],
        ),
        "two-slices": ([part(0, "gpu-0", of=2), part(1, "gpu-1", of=2)], ["gpu-0", "gpu-1"]),
        "two-pools": ([part(0, "gpu-0"), part(0, "gpu-1", pool="pool-b")], ["gpu-0", "pool-b/gpu-1"]),
        "two-drivers": ([part(0, "gpu-0"), part(1, "gpu-0", driver=NIC_DRIVER)], ["gpu-0", "gpu-0"]),
        "same-name": ([part(0, "gpu-0", of=2), part(1, "gpu-0", of=2)], None),
        "same-name-in-a-slice": ([part(0, "gpu-0", "gpu-0")], None),
        "same-counter-set": ([budget(0, of=3, budget=IN), budget(1, of=3, budget=IN), part(2, "gpu-0", of=3)], None),
        "same-counter-set-in-a-slice": (
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
        ),
        "no-counter-set": (
            [budget(0, of=2, budget=IN), part(1, drawing("gpu-0", of="other", memory="1Gi"), of=2)],
            None,
        ),
        "no-counter": ([budget(0, of=2, budget=IN), part(1, drawing("gpu-0", flops="1"), of=2)], None),
        "no-counter-set-elsewhere": (
            [
                budget(0, of=3, budget=IN),
                part(1, TWICE[0], of=3),
                part(2, drawing("gpu-1", of="other", memory="1Gi"), of=3, at=FAR),
            ],
            None,
        ),
        "no-counter-elsewhere": (
            [budget(0, of=3, budget=IN), part(1, TWICE[0], of=3), part(2, drawing("gpu-1", flops="1"), of=3, at=FAR)],
            None,
        ),
        "no-counters": ([part(0, TWICE[0])], None),
        "counter-of-another-set": (
            [budget(0, of=2, budget=IN, compute={"flops": "1000"}), part(1, drawing("gpu-0", flops="500"), of=2)],
            None,
        ),
        "counters": ([budget(0, of=2, budget={**IN, "flops": "1000"}), part(1, *TWICE, of=2)], ["gpu-0", "gpu-1"]),
        "counters-that-do-not-suffice": ([budget(0, of=2, budget={"memory": "70Gi"}), part(1, *TWICE, of=2)], None),
        "generation": ([part(0, "gpu-old", generation=1), part(0, "gpu-new", generation=2)], ["gpu-new"]),
        "fewer-slices-in-the-new-generation": (
            [part(0, "gpu-0", of=2), part(1, "gpu-1", of=2), part(0, "gpu-new", generation=2)],
            ["gpu-new"],
        ),
        "new-generation-incomplete": ([part(0, "gpu-0"), part(0, "gpu-new", generation=2, of=2)], None),
        "new-generation-invalid": (
            [part(0, "gpu-0"), *(part(n, "gpu-dup", generation=2, of=2) for n in range(2))],
            None,
        ),
        "old-generation-incomplete": ([part(0, "gpu-old", of=2), part(0, "gpu-new", generation=2)], ["gpu-new"]),
        "old-generation-invalid": (
            [*(part(n, "gpu-dup", of=2) for n in range(2)), part(0, "gpu-new", generation=2)],
            ["gpu-new"],
        ),
        "slice-missing": ([part(0, "gpu-0", of=2)], None),
        "slice-too-many": ([part(0, "gpu-0"), part(1, "gpu-1")], None),
        "no-slice-count": ([part(0, "gpu-0", of=0)], None),
        "slices-of-two-zones": ([part(0, "gpu-0", of=2, at=HERE), part(1, "gpu-1", of=2, at=FAR)], ["gpu-0"]),
        "new-generation-elsewhere": ([part(0, "gpu-0", at=HERE), part(0, "gpu-new", at=FAR, generation=2)], []),
        "two-slices-of-a-zone": (
            [part(0, "gpu-0", of=3, at=HERE), part(1, "gpu-1", of=3, at=HERE), part(2, "gpu-2", of=3, at=FAR)],
            ["gpu-0", "gpu-1"],
        ),
        "unused-counters": (
            [budget(0, of=3, budget=IN), part(1, "gpu-0", of=3), part(2, "gpu-1", of=3)],
            ["gpu-0", "gpu-1"],
        ),
        "counters-missing": ([part(0, "gpu-0", of=2)], None),
        "two-counter-sets": (
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
        ),
        "counters-of-two-slices": (
            [
                budget(0, of=3, budget=IN),
                budget(1, of=3, compute={"flops": "1000"}),
                part(2, TWICE[0], drawing("gpu-1", of="compute", flops="500"), of=3),
            ],
            ["gpu-0", "gpu-1"],
        ),
        "counters-last": ([part(0, TWICE[0], of=2), budget(1, of=2, budget=IN)], ["gpu-0"]),
        "device-beside-counters": ([budget(0, of=2, budget=IN, devices=["ghost"]), part(1, "gpu-0", of=2)], ["gpu-0"]),
        "counters-of-a-zone": ([budget(0, of=2, budget=IN), part(1, TWICE[0], of=2, at=HERE)], ["gpu-0"]),
        "counters-without-devices": ([budget(0, of=2, budget=IN), part(1, "gpu-0", of=2, at=FAR)], []),
        "two-defects": ([budget(0, of=3, budget=IN), part(1, "gpu-0", "gpu-0", of=3)], None),
    },
)
def test_request_for_all_devices_gets_those_of_complete_and_valid_pools(slices, seen):
    """There is one more, healthy pool. While a pool that the node reaches has a defect, not all devices are known."""
    healthy = part(0, "gpu-9", pool="free")

    found = planned(a_resource_claim("c", any_of(**ALL)), slices=[*slices, healthy], zone=HERE)

    if seen is None:
        assert "cannot be had" in found or "no published device" in found
    else:
        assert found == sorted([*(n if "/" in n else f"pool-a/{n}" for n in seen), "free/gpu-9"])


@table(
    "slices, held, chosen",
    {
        "none": ([], (), None),
        "same-zone": ([part(0, "gpu-0", at=HERE)], (), "pool-a/gpu-0"),
        "other-zone": ([part(0, "gpu-0", at=THERE)], (), None),
        "all-nodes": ([part(0, "gpu-0")], (), "pool-a/gpu-0"),
        "two-pools": ([part(0, "gpu-0", at=THERE), part(0, "gpu-0", pool="pool-b", at=HERE)], (), "pool-b/gpu-0"),
        "two-slices": ([part(0, "gpu-0", of=2, at=THERE), part(1, "gpu-1", of=2, at=HERE)], (), "pool-a/gpu-1"),
        "nowhere": ([a_slice("s", "gpu-0")], (), None),
        "counters-suffice": (
            [budget(0, of=3, budget=IN), part(1, TWICE[0], of=3, at=HERE), part(2, TWICE[1], of=3, at=THERE)],
            (an_allocated_claim("held", ("pool-a", "gpu-1")),),
            "pool-a/gpu-0",
        ),
        "counters-used-up-elsewhere": (
            [
                budget(0, of=3, budget={"memory": "70Gi"}),
                part(1, TWICE[0], of=3, at=HERE),
                part(2, TWICE[1], "gpu-plain", of=3, at=THERE),
            ],
            (an_allocated_claim("held", ("pool-a", "gpu-1")),),
            None,
        ),
        "device-without-counters-elsewhere": (
            [
                budget(0, of=3, budget={"memory": "70Gi"}),
                part(1, TWICE[0], of=3, at=HERE),
                part(2, TWICE[1], "gpu-plain", of=3, at=THERE),
            ],
            (an_allocated_claim("held", ("pool-a", "gpu-plain")),),
            "pool-a/gpu-0",
        ),
        "counters-used-up-in-two-zones": (
            [
                budget(0, of=4, budget=IN),
                part(1, TWICE[0], of=4, at=HERE),
                part(2, drawing("gpu-1", memory="20Gi"), of=4, at=THERE),
                part(3, drawing("gpu-2", memory="30Gi"), of=4, at=FAR),
            ],
            (an_allocated_claim("held", ("pool-a", "gpu-1"), ("pool-a", "gpu-2")),),
            None,
        ),
        "counters-without-devices": ([budget(0, of=2, budget=IN), part(1, TWICE[0], of=2, at=THERE)], (), None),
    },
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


@table(
    "requests, published, found",
    {
        "count": ([any_of(count=2)], models(3), ["a-00", "a-01"]),
        "capacity": (
            [any_of(capacity={"requests": {"memory": "40Gi"}})],
            [model("small", memory=20), model("large", memory=80)],
            ["large"],
        ),
        "two-requests": (
            [any_of("a", count=2), h100("b")],
            [*models(2), *models(1, "H100", "h")],
            ["a-00", "a-01", "h-00"],
        ),
        "selectors": (
            [h100(select=OF_40)],
            [model("a", "H100", 20), model("b", "A100", 80), model("c", "H100", 80)],
            ["c"],
        ),
        "as-many-as-allowed": ([any_of("a", count=16), any_of("b", count=16)], models(40), 32),
        "all": ([any_of(**ALL)], models(3), 3),
        "all-of-a-model": ([h100(**ALL)], [*models(1, "H100", "h"), *models(1)], ["h-00"]),
        "first-selectors": (
            [
                first_of(
                    {"deviceClassName": "h100", "selectors": [{"cel": {"expression": OF_40}}], "count": 2}, name="gpu"
                )
            ],
            [model("a", "H100", 20), *(model(n, "H100", 80) for n in "bc")],
            ["b", "c"],
        ),
        "first-in-order": (
            [
                first_of(
                    {"deviceClassName": "h100", "count": 4},
                    {"deviceClassName": "gpu", "count": 2},
                    {"deviceClassName": "any", "count": 1},
                )
            ],
            models(3),
            ["a-00", "a-01"],
        ),
        "first-capacity": (
            [first_of({"count": 2, "capacity": {"requests": {"memory": "40Gi"}}}, {"count": 1})],
            [model("small", memory=20), model("large", memory=80)],
            ["small"],
        ),
        "first-that-is-allowed": ([first_of({"count": 4}, {"count": 2}), any_of("other", count=30)], models(40), 32),
        "first-instead-of-all": (
            [first_of({"deviceClassName": "h100", **ALL}, {"count": 1}), a100("other", count=31)],
            [*models(3, "H100", "h"), *models(31)],
            32,
        ),
        "first-all": ([first_of(ALL)], models(3), 3),
        "first-all-or-one": ([first_of(ALL, {"count": 1})], models(3), 3),
        "exact-and-first": ([any_of("exact", count=2), first_of({"count": 3}, {"count": 1})], models(6), 5),
    },
)
def test_requests_of_a_claim_get_published_devices(requests, published, found):
    """`found` are their names, or how many there are."""
    devices = planned(a_resource_claim("c", *requests), slices=[part(0, *published)])

    if isinstance(found, int):
        assert len(devices) == found
    else:
        assert devices == [f"pool-a/{name}" for name in found]


def test_claim_without_requests_needs_no_device():
    """Its pod is scheduled."""
    assert planned(a_resource_claim("c", spec={"devices": {}})) == []


def test_request_for_all_devices_gets_those_of_all_pools():
    """Two GPUs and a NIC."""
    slices = [part(0, "gpu-0", "gpu-1"), part(0, "nic-0", pool="nics", driver=NIC_DRIVER)]

    assert planned(a_resource_claim("c", any_of(**ALL)), slices=slices) == [
        "nics/nic-0",
        "pool-a/gpu-0",
        "pool-a/gpu-1",
    ]


BROKEN = [model("same"), model("same")]


@table(
    "requests, published, message",
    {
        "class": ([any_of(deviceClassName="nonexistent")], [], "DeviceClass 'nonexistent' does not exist"),
        "nothing": ([{"name": "req"}], [], "request req asks for nothing"),
        "no-alternative": ([{"name": "req", "firstAvailable": []}], [], "request req asks for nothing"),
        "not-cel": ([any_of(selectors=[{}])], [], "a selector that is not CEL is not supported"),
        "malformed": ([any_of(selectors=MALFORMED)], [], "selector 'this is not valid CEL' is invalid at character 1"),
        "too-many": (
            [any_of("a", count=16), any_of("b", count=17)],
            models(40),
            "asks for 33 devices, 32 are the most",
        ),
        "all-of-a-broken-pool": ([any_of(**ALL)], BROKEN, "no published device"),
        "all-of-none": ([h100(**ALL)], models(2), "no published device"),
        "all-without-a-device": ([any_of(**ALL)], [], "no published device"),
        "all-of-too-many": ([any_of(**ALL)], models(33), "cannot be had together"),
        "all-and-too-many": (
            [h100(**ALL), a100(count=30)],
            [*models(3, "H100", "h"), *models(30)],
            "cannot be had together",
        ),
        "first-class": (
            [first_of({"deviceClassName": "nonexistent"}, {"count": 1})],
            models(1),
            "DeviceClass 'nonexistent' does not exist",
        ),
        "first-malformed": (
            [first_of({"selectors": MALFORMED}, {"count": 1})],
            models(1),
            "selector 'this is not valid CEL' is invalid at character 1",
        ),
        "first-not-cel": (
            [first_of({"selectors": [{}]}, {"count": 1})],
            models(1),
            "a selector that is not CEL is not supported",
        ),
        "first-too-many": (
            [first_of({"count": 4}, {"count": 2}), any_of("other", count=31)],
            models(40),
            "asks for 33 devices, 32 are the most",
        ),
        "first-all-of-a-broken-pool": ([first_of(ALL)], BROKEN, "no published device"),
    },
)
def test_claim_that_cannot_be_satisfied_says_why(requests, published, message):
    """Its pod is unschedulable."""
    slices = [part(0, *published)] if published else []

    assert message in planned(a_resource_claim("c", *requests), slices=slices)


def test_request_for_all_devices_waits_for_the_missing_slices():
    """The other slice of the pool is not published yet."""
    found = planned(a_resource_claim("c", any_of(**ALL)), slices=[part(0, "gpu-0", of=2)])

    assert "no published device" in found


@pytest.mark.parametrize(
    "constraint",
    [
        {"distinctAttribute": f"{DRIVER}/numa"},
        {},
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


@table(
    "requests, published, counts",
    {
        "all": ([any_of(**ALL)], [], {5: 5, 10: 10}),
        "first-all": ([first_of({"deviceClassName": "any", **ALL})], [], {5: 5, 10: 10}),
        "all-with-published": ([any_of(**ALL)], models(20), {10: 30, 20: None}),
        "all-and-a-count": ([h100(**ALL), a100(count=10)], [*models(15, "H100", "h"), *models(10)], {5: 30, 10: None}),
        "all-too-many": ([any_of(**ALL)], models(30), {5: None, 6: None}),
        "count": ([any_of(count=1)], models(3), {5: 1}),
        "first-all-with-published": (
            [first_of({"deviceClassName": "any", **ALL}, {"deviceClassName": "any", **ALL})],
            models(20),
            {10: 30, 20: None},
        ),
        "first-all-too-many": ([first_of({"deviceClassName": "any", **ALL})], models(30), {5: None, 6: None}),
        "first-all-or-one": (
            [first_of({"deviceClassName": "any", **ALL}, {"deviceClassName": "any", "count": 1})],
            models(25),
            {5: 30, 10: 1},
        ),
    },
)
def test_new_node_adds_its_own_devices_to_the_published_ones(requests, published, counts):
    """By the number of H100s of the type: how many devices the claim gets on its node; more than 32 are too many."""
    slices = [part(0, *published)] if published else []

    for own, expected in counts.items():
        found = planned(a_resource_claim("c", *requests), slices=slices, types=(brings(models(own, "H100", "t")),))
        assert (len(found) if isinstance(found, list) else None) == expected


@table(
    "own, published, found",
    {
        "own": ("H100", [], ["own/t-00"]),
        "none": ("A100", [], None),
        "both": ("H100", models(1, "H100", "h"), ["own/t-00", "pool-a/h-00"]),
        "published": ("A100", models(1, "H100", "h"), ["pool-a/h-00"]),
    },
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
        (model("d", "H100"), [selecting("H100")], True),
        (model("d", "A100"), [selecting("H100")], False),
        (model("d", "H100", 80, **SHARED), [selecting("H100"), OF_40, LARGE, OF_SHARED], True),
        (model("d", "H100", 20), [selecting("H100"), OF_40], False),
        ({"name": "d"}, [], True),
        (model("d", memory=20), [LARGE], False),
        ({"name": "d"}, [OF_SHARED], False),
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


@table(
    "requests, constraints, devices, found",
    {
        "one": ([A], [matching()], rooted("x"), [0]),
        "equal": ([A, B], [matching()], rooted("x", "x"), [0, 1]),
        "different": ([A, B], [matching()], rooted("x", "y"), None),
        "missing": ([A], [matching()], rooted(""), None),
        "of-one-request": ([A, B], [matching("a")], rooted("x", "y"), [0, 1]),
        "two-constraints": (
            [A, B],
            [matching(), matching(of=f"{DRIVER}/rack")],
            [
                {"name": f"d{n}", "attributes": {"root": {"string": root}, "rack": {"string": rack}}}
                for n, (root, rack) in enumerate(("xp", "xq", "yq", "xq"))
            ],
            [1, 3],
        ),
        "of-all-alternatives": ([GPUS], [matching("gpu")], rooted("x", "y", "y"), [1, 2]),
        "of-the-alternative": ([GPUS], [matching("gpu/h100")], rooted("x", "y", "y"), [1, 2]),
        "of-another-alternative": ([GPUS], [matching("gpu/a100")], rooted("x", "y", "y"), [0, 1]),
        "of-one-of-two-alternatives": (
            [GPUS, first_of({"name": "a100", "count": 2, "deviceClassName": "any"}, name="more")],
            [matching("more/a100")],
            rooted("x", "y", "y", "x"),
            [0, 1, 2, 3],
        ),
        "of-two-requests": (
            [GPUS, first_of({"name": "a100", "deviceClassName": "any"}, name="more")],
            [matching("gpu", "more")],
            rooted("x", "x", "x"),
            [0, 1, 2],
        ),
        "second-attempt": ([A, B], [matching()], rooted("x", "y", "y"), [1, 2]),
        "third-attempt": ([A, B, C], [matching()], rooted("x", "x", "y", "y", "y"), [2, 3, 4]),
        "request-between": ([A, B, C], [matching("a", "c")], rooted("x", "y", "x"), [0, 1, 2]),
        "full-name": (
            [A, B],
            [matching(of="vendor.example.com/root")],
            rooted("x", "x", domain="vendor.example.com/"),
            [0, 1],
        ),
        "name-without-domain": (
            [A, B],
            [matching()],
            [*rooted("x", domain=f"{DRIVER}/"), {**rooted("", "x")[1]}],
            [0, 1],
        ),
        "domain-of-another": ([A, B], [matching(of="vendor.example.com/root")], rooted("x", "x"), None),
    },
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
        ({"string": "a"}, {"string": "b"}, False),
        ({"int": 42}, {"int": 42}, True),
        pytest.param({"int": 42}, {"int": 43}, False),
        pytest.param({"bool": False}, {"bool": False}, True),
        ({"bool": True}, {"bool": False}, False),
        pytest.param({"version": "1.2.3"}, {"version": "1.2.3"}, True),
        ({"version": "1.2.3"}, {"version": "1.2.4"}, False),
        pytest.param({"version": "1.2.3+a"}, {"version": "1.2.3+b"}, False),
        ({"string": "1"}, {"int": 1}, False),
        pytest.param({"bool": True}, {"int": 1}, False),
        pytest.param({"version": "1.2.3"}, {"string": "1.2.3"}, False),
        ({}, {}, False),
    ],
)
def test_attribute_values_match_as_in_kube_scheduler(left, right, are_equal):
    """Values of different types do not, nor versions of different builds."""
    devices = [{"name": f"d{n}", "attributes": {"root": value}} for n, value in enumerate((left, right))]
    claim = a_resource_claim("c", any_of(count=2), match=f"{DRIVER}/root")

    assert isinstance(planned(claim, slices=[part(0, *devices)]), list) is are_equal


def test_each_instance_type_has_its_own_value_of_an_attribute():
    """The NodeClaim lists both types, though their devices have different roots."""
    types = [
        with_devices(fake_type(f"it-{root}", price=1.0), slice_spec(rooted(root, root), pool=root)) for root in "xy"
    ]
    claim = a_resource_claim("c", any_of(count=2), match=f"{DRIVER}/root")

    plan = schedule_devices(a_claiming_pod("p", "c"), types=tuple(types), claims=[claim], classes=CLASSES)

    devices = plan.node_of("p").devices
    assert {name: [d.pool for d in found] for name, found in devices.items()} == {"it-x": ["x"] * 2, "it-y": ["y"] * 2}
