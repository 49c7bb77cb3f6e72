"""Karpenter's suites of device pools, requests and constraints: which published devices a claim gets."""

from __future__ import annotations

import re

import msgspec
import pytest

from journeyman.core.api import labels
from journeyman.core.api.dra import DeviceClass
from tests.helpers.device_allocation import CLASSES, asking, brought, claim
from tests.helpers.devices import (
    DRIVER,
    NIC_DRIVER,
    a_claiming_pod,
    a_slice,
    an_allocated_claim,
    counter_sets,
    devices_of,
    exactly,
    first_of,
    listed,
    schedule_devices,
    selecting,
    slice_spec,
    table,
    with_devices,
)
from tests.helpers.karpenter_suite import ZONES, fake_type, requirement

HERE, THERE, FAR = ZONES
BY_NAME = {"here": HERE, "there": THERE, "far": FAR}
EVERY_CLASS = (*CLASSES, msgspec.convert({"metadata": {"name": "any"}}, DeviceClass))
TWO_ZONES = fake_type("plain-it", offerings=((HERE, labels.ON_DEMAND), (THERE, labels.ON_DEMAND)))


def wanting(requests):
    """Return a claim from text, or with these requests."""
    return claim(requests) if isinstance(requests, str) else asking(*requests)


def planned(found, *, slices=(), types=(TWO_ZONES,), held=(), zone=""):
    """Return the devices that a claim gets on a new node, or why there is none; its pod may select a zone."""
    spec = {"nodeSelector": {labels.ZONE: zone}} if zone else {}
    plan = schedule_devices(
        a_claiming_pod("p", "c", cpu="1m", memory="1Mi", spec=spec),
        types=types,
        claims=[found, *held],
        slices=slices,
        classes=EVERY_CLASS,
    )
    error = plan.results.pod_errors.get("default/p")
    return devices_of(plan) if error is None else error.message


# -- pools


def part(devices, **spec):
    """Return a slice of a pool for all nodes."""
    return a_slice("s", devices, **{"pool": "pool-a", "allNodes": True, **spec})


_PART = re.compile(
    r"(g(?P<generation>\d) )?(?P<of>\d) ?(?P<devices>[^#]*?) ?(#(?P<counters>\S+))?( of (?P<pool>\S+))?( in (?P<zone>\S+))?"
)


def slices_of(text):
    """Return slices from text, separated by `;`.

    Each has its generation (`g2`), the number of slices of the pool, devices, `#` its counters, `of` its pool and `in` the zone
    of its nodes; `in none` is nowhere.
    """
    made = []
    for number, found in enumerate(_PART.fullmatch(each.strip()) for each in text.split(";") if each.strip()):
        zone, pool = found["zone"], found["pool"] or "pool-a"
        term = {"matchExpressions": [requirement(labels.ZONE, "In", BY_NAME.get(zone))]}
        where = {"nodeSelector": {"nodeSelectorTerms": [term]}} if zone in BY_NAME else {"allNodes": zone is None}
        counters = {"sharedCounters": counter_sets(found["counters"])} if found["counters"] else where
        generation, driver = int(found["generation"] or 1), NIC_DRIVER if pool == "nics" else DRIVER
        spec = {"pool": pool, "of": int(found["of"]), "generation": generation, "driver": driver, **counters}
        made.append(a_slice(f"s-{number}", found["devices"], **spec))
    return made


TWICE = "gpu-0..1!40Gi"
CONFLICT = [requirement(labels.ZONE, operator, HERE) for operator in ("In", "NotIn")]
SAME_SET = [*counter_sets("budget.memory=1"), *counter_sets("budget.flops=1")]


@table(
    "slices, seen",
    {
        "all-nodes": ("1 gpu-0..1", "gpu-0 gpu-1"),
        "zone": ("1 gpu-0 in here", "gpu-0"),
        "other-zone": ("1 gpu-0 in far", ""),
        "nowhere": ("1 gpu-0 in none", ""),
        "no-device": ("1", ""),
        "no-slice": ("", ""),
        "no-zone-left": (
            [part("gpu-0", allNodes=False, nodeSelector={"nodeSelectorTerms": [{"matchExpressions": CONFLICT}]})],
            "",
        ),
        "two-slices": ("2 gpu-0; 2 gpu-1", "gpu-0 gpu-1"),
        "two-pools": ("1 gpu-0; 1 gpu-1 of pool-b", "gpu-0 pool-b/gpu-1"),
        "two-drivers": ([part("gpu-0"), part("gpu-0", driver=NIC_DRIVER)], "gpu-0 gpu-0"),
        "same-name": ("2 gpu-0; 2 gpu-0", None),
        "same-name-in-a-slice": ("1 gpu-0 gpu-0", None),
        "same-counter-set": ("3 #80Gi; 3 #80Gi; 3 gpu-0", None),
        "same-counter-set-in-a-slice": ([part("", of=2, sharedCounters=SAME_SET), part("gpu-0", of=2)], None),
        "no-counter-set": ("2 #80Gi; 2 gpu-0!other.memory=1Gi", None),
        "no-counter": ("2 #80Gi; 2 gpu-0!memory.flops=1", None),
        "no-counter-set-elsewhere": ("3 #80Gi; 3 gpu-0!40Gi; 3 gpu-1!other.memory=1Gi in far", None),
        "no-counter-elsewhere": ("3 #80Gi; 3 gpu-0!40Gi; 3 gpu-1!memory.flops=1 in far", None),
        "no-counters": ("1 gpu-0!40Gi", None),
        "counter-of-another-set": ("2 #80Gi,flops=1000; 2 gpu-0!memory.flops=500", None),
        "counters": (f"2 #80Gi,memory.flops=1000; 2 {TWICE}", "gpu-0 gpu-1"),
        "counters-that-do-not-suffice": (f"2 #70Gi; 2 {TWICE}", None),
        "generation": ("1 gpu-old; g2 1 gpu-new", "gpu-new"),
        "fewer-slices-in-the-new-generation": ("2 gpu-0; 2 gpu-1; g2 1 gpu-new", "gpu-new"),
        "new-generation-incomplete": ("1 gpu-0; g2 2 gpu-new", None),
        "new-generation-invalid": ("1 gpu-0; g2 2 gpu-dup; g2 2 gpu-dup", None),
        "old-generation-incomplete": ("2 gpu-old; g2 1 gpu-new", "gpu-new"),
        "old-generation-invalid": ("2 gpu-dup; 2 gpu-dup; g2 1 gpu-new", "gpu-new"),
        "slice-missing": ("2 gpu-0", None),
        "slice-too-many": ("1 gpu-0; 1 gpu-1", None),
        "no-slice-count": ("0 gpu-0", None),
        "slices-of-two-zones": ("2 gpu-0 in here; 2 gpu-1 in far", "gpu-0"),
        "new-generation-elsewhere": ("1 gpu-0 in here; g2 1 gpu-new in far", ""),
        "two-slices-of-a-zone": ("3 gpu-0 in here; 3 gpu-1 in here; 3 gpu-2 in far", "gpu-0 gpu-1"),
        "unused-counters": ("3 #80Gi; 3 gpu-0; 3 gpu-1", "gpu-0 gpu-1"),
        "two-counter-sets": ("2 #80Gi,flops=1000; 2 gpu-0!40Gi,flops=500", "gpu-0"),
        "counters-of-two-slices": ("3 #80Gi; 3 #flops=1000; 3 gpu-0!40Gi gpu-1!flops=500", "gpu-0 gpu-1"),
        "counters-last": ("2 gpu-0!40Gi; 2 #80Gi", "gpu-0"),
        "device-beside-counters": ("2 ghost #80Gi; 2 gpu-0", "gpu-0"),
        "counters-of-a-zone": ("2 #80Gi; 2 gpu-0!40Gi in here", "gpu-0"),
        "counters-without-devices": ("2 #80Gi; 2 gpu-0 in far", ""),
        "two-defects": ("3 #80Gi; 3 gpu-0 gpu-0", None),
    },
)
def test_request_for_all_devices_gets_those_of_complete_and_valid_pools(slices, seen):
    """There is one more, healthy pool. While a pool that the node reaches has a defect, not all devices are known."""
    made = slices_of(slices) if isinstance(slices, str) else slices

    found = planned(claim("all*any"), slices=[*made, *slices_of("1 gpu-9 of free")], zone=HERE)

    if seen is None:
        assert "cannot be had" in found or "no published device" in found
    else:
        assert found == sorted([*(n if "/" in n else f"pool-a/{n}" for n in seen.split()), "free/gpu-9"])


USED_UP = "3 #70Gi; 3 gpu-0!40Gi in here; 3 gpu-1!40Gi gpu-plain in there"


@table(
    "slices, held, chosen",
    {
        "none": ("", (), None),
        "same-zone": ("1 gpu-0 in here", (), "pool-a/gpu-0"),
        "other-zone": ("1 gpu-0 in there", (), None),
        "all-nodes": ("1 gpu-0", (), "pool-a/gpu-0"),
        "two-pools": ("1 gpu-0 in there; 1 gpu-0 of pool-b in here", (), "pool-b/gpu-0"),
        "two-slices": ("2 gpu-0 in there; 2 gpu-1 in here", (), "pool-a/gpu-1"),
        "nowhere": ("1 gpu-0 in none", (), None),
        "counters-suffice": (USED_UP.replace("70", "80"), ("gpu-1",), "pool-a/gpu-0"),
        "counters-used-up-elsewhere": (USED_UP, ("gpu-1",), None),
        "device-without-counters-elsewhere": (USED_UP, ("gpu-plain",), "pool-a/gpu-0"),
        "counters-used-up-in-two-zones": (
            "4 #80Gi; 4 gpu-0!40Gi in here; 4 gpu-1!20Gi in there; 4 gpu-2!30Gi in far",
            ("gpu-1", "gpu-2"),
            None,
        ),
        "counters-without-devices": ("2 #80Gi; 2 gpu-0!40Gi in there", (), None),
    },
)
def test_device_of_a_zone_restricts_the_other_devices_of_its_claim(slices, held, chosen):
    """The claim's NIC is in one zone; devices elsewhere are not reached, but those in use draw on their pool's counters."""
    in_use = an_allocated_claim("held", *(("pool-a", name) for name in held))

    found = planned(claim("1*nic 1"), slices=slices_of(f"1 nic-0 of nics in here; {slices}"), held=[in_use])

    if chosen is None:
        assert isinstance(found, str)
    else:
        assert found == sorted(["nics/nic-0", chosen])


def test_plan_names_driver_pool_and_name_of_a_device():
    """It also says whether the device is published."""
    plan = schedule_devices(
        a_claiming_pod("p", "c"), types=(TWO_ZONES,), claims=[claim("1")], slices=slices_of("1 gpu-0")
    )

    (found,) = plan.node_of("p").devices["plain-it"]
    assert (found.driver, found.pool, found.device, found.published) == (DRIVER, "pool-a", "gpu-0", True)


# -- requests


def model(name, model="A100", memory=0, **more):
    """Return a GPU of a model, with so many GiB of memory."""
    size = {"capacity": {"memory": {"value": f"{memory}Gi"}}} if memory else {}
    attributes = {"model": {"string": model}, "memory": {"int": memory}}
    return {"name": name, "attributes": attributes, **size, **more}


def models(a100=0, h100=0):
    """Return so many GPUs of each model."""
    found = [
        listed(f"{name[0].lower()}-00..{count - 1:02}:model={name}") if count else []
        for name, count in (("A100", a100), ("H100", h100))
    ]
    return [*found[0], *found[1]]


MALFORMED = [{"cel": {"expression": "this is not valid CEL"}}]
OF_40 = f'device.attributes["{DRIVER}"].memory > 40'
SIZES = [model("a", "H100", 20), model("b", "A100", 80), model("c", "H100", 80)]


@table(
    "requests, published, found",
    {
        "count": ("2*any", models(3), "a-00 a-01"),
        "capacity": ("1*any,memory:40Gi", SIZES, "b"),
        "two-requests": ("2*any 1*h100", models(2, 1), "a-00 a-01 h-00"),
        "selectors": ([exactly(deviceClassName="h100", select=OF_40)], SIZES, "c"),
        "as-many-as-allowed": ("16*any 16*any", models(40), 32),
        "all": ("all*any", models(3), 3),
        "all-of-a-model": ("all*h100", models(1, 1), "h-00"),
        "first-selectors": (
            [first_of({"deviceClassName": "h100", "selectors": [{"cel": {"expression": OF_40}}], "count": 2})],
            [*SIZES, model("d", "H100", 80)],
            "c d",
        ),
        "first-in-order": ("4*h100/2/1*any", models(3), "a-00 a-01"),
        "first-capacity": ("2*memory:40Gi/1", SIZES[:2], "a"),
        "first-that-is-allowed": ("4/2 30*any", models(40), 32),
        "first-instead-of-all": ("all*h100/1 31*model=A100", models(31, 3), 32),
        "first-all": ("all/", models(3), 3),
        "first-all-or-one": ("all/1", models(3), 3),
        "exact-and-first": ("2*any 3/1", models(6), 5),
        "no-request": ([], models(1), 0),
    },
)
def test_requests_of_a_claim_get_published_devices(requests, published, found):
    """`found` are their names, or how many there are."""
    devices = planned(wanting(requests), slices=[part(published)])

    assert (len(devices) if isinstance(found, int) else devices) == (
        found if isinstance(found, int) else [f"pool-a/{name}" for name in found.split()]
    )


def test_request_for_all_devices_gets_those_of_all_pools():
    """Two GPUs and a NIC."""
    found = planned(claim("all*any"), slices=slices_of("1 gpu-0..1; 1 nic-0 of nics"))

    assert found == ["nics/nic-0", "pool-a/gpu-0", "pool-a/gpu-1"]


BROKEN = [model("same"), model("same")]


@table(
    "requests, published, message",
    {
        "class": ("1*nonexistent", [], "DeviceClass 'nonexistent' does not exist"),
        "nothing": ([{"name": "req"}], [], "request req asks for nothing"),
        "no-alternative": ([{"name": "req", "firstAvailable": []}], [], "request req asks for nothing"),
        "not-cel": ([exactly(selectors=[{}])], [], "a selector that is not CEL is not supported"),
        "malformed": (
            [exactly(selectors=MALFORMED)],
            [],
            "selector 'this is not valid CEL' is invalid at character 1",
        ),
        "too-many": ("16*any 17*any", models(40), "asks for 33 devices, 32 are the most"),
        "all-of-a-broken-pool": ("all*any", BROKEN, "no published device"),
        "all-of-none": ("all*h100", models(2), "no published device"),
        "all-without-a-device": ("all*any", [], "no published device"),
        "all-of-too-many": ("all*any", models(33), "cannot be had together"),
        "all-and-too-many": ("all*h100 30*model=A100", models(30, 3), "cannot be had together"),
        "first-class": ("1*nonexistent/1", models(1), "DeviceClass 'nonexistent' does not exist"),
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
        "first-too-many": ("4/2 31*any", models(40), "asks for 33 devices, 32 are the most"),
        "first-all-of-a-broken-pool": ("all/", BROKEN, "no published device"),
    },
)
def test_claim_that_cannot_be_satisfied_says_why(requests, published, message):
    """Its pod is unschedulable."""
    assert message in planned(wanting(requests), slices=[part(published)] if published else [])


def test_request_for_all_devices_waits_for_the_missing_slices():
    """The other slice of the pool is not published yet."""
    assert "no published device" in planned(claim("all*any"), slices=slices_of("2 gpu-0"))


@pytest.mark.parametrize("constraint", [{"distinctAttribute": f"{DRIVER}/numa"}, {}])
def test_claim_with_another_constraint_than_match_attribute_says_so(constraint):
    """Its pod is unschedulable."""
    message = planned(asking(exactly(), match=[constraint]), slices=slices_of("1 gpu-0"))

    assert "has a constraint other than matchAttribute, which is not supported" in message


# -- devices of instance types


def brings(devices):
    """Return an instance type whose nodes publish these devices."""
    slices = brought(devices) if isinstance(devices, str) else [slice_spec(devices, pool="own")]
    return with_devices(fake_type("gpu-it"), *slices)


@table(
    "requests, published, counts",
    {
        "all": ("all*any", [], {5: 5, 10: 10}),
        "first-all": ("all*any/", [], {5: 5, 10: 10}),
        "all-with-published": ("all*any", models(20), {10: 30, 20: None}),
        "all-and-a-count": ("all*h100 10*model=A100", models(10, 15), {5: 30, 10: None}),
        "all-too-many": ("all*any", models(30), {5: None, 6: None}),
        "count": ("1*any", models(3), {5: 1}),
        "first-all-with-published": ("all*any/all*any", models(20), {10: 30, 20: None}),
        "first-all-too-many": ("all*any/", models(30), {5: None, 6: None}),
        "first-all-or-one": ("all*any/1*any", models(25), {5: 30, 10: 1}),
    },
)
def test_new_node_adds_its_own_devices_to_the_published_ones(requests, published, counts):
    """By the number of H100s of the type: how many devices the claim gets on its node; more than 32 are too many."""
    slices = [part(published)] if published else []

    for own, expected in counts.items():
        found = planned(claim(requests), slices=slices, types=(brings(f"t-00..{own - 1:02}:model=H100"),))
        assert (len(found) if isinstance(found, list) else None) == expected


@table(
    "own, published, found",
    {
        "own": ("H100", [], ["own/t-00"]),
        "none": ("A100", [], None),
        "both": ("H100", models(0, 1), ["own/t-00", "pool-a/h-00"]),
        "published": ("A100", models(0, 1), ["pool-a/h-00"]),
    },
)
def test_request_for_all_devices_counts_those_that_it_selects(own, published, found):
    """Of the node itself, and published ones; one of either suffices."""
    slices = [part(published)] if published else []

    devices = planned(claim("all*h100"), slices=slices, types=(brings(f"t-00:model={own}"),))

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
    request = exactly(deviceClassName="any", selectors=[{"cel": {"expression": each}} for each in selectors])
    slices, types = ([part([device])], (TWO_ZONES,)) if is_published else ([], (brings([device]),))

    found = planned(asking(request), slices=slices, types=types)

    assert isinstance(found, list) is selected


# -- constraints


def rooted(roots, domain=""):
    """Return devices with these roots; without the attribute for a `-`."""
    return " ".join(f"d{n}" + (f":{domain}root={root}" if root != "-" else "") for n, root in enumerate(roots))


VENDOR = "vendor.example.com/"


@table(
    "requests, devices, found",
    {
        "one": ("1 ~root", rooted("x"), [0]),
        "equal": ("1 1 ~root", rooted("xx"), [0, 1]),
        "different": ("1 1 ~root", rooted("xy"), None),
        "missing": ("1 ~root", rooted("-"), None),
        "of-one-request": ("a@1 b@1 ~root@a", rooted("xy"), [0, 1]),
        "two-constraints": (
            "1 1 ~root ~rack",
            "d0:root=x,rack=p d1:root=x,rack=q d2:root=y,rack=q d3:root=x,rack=q",
            [1, 3],
        ),
        "of-all-alternatives": ("gpu@2/ ~root@gpu", rooted("xyy"), [1, 2]),
        "of-the-alternative": ("gpu@2/ ~root@gpu/option-0", rooted("xyy"), [1, 2]),
        "of-another-alternative": ("gpu@2/ ~root@gpu/option-1", rooted("xyy"), [0, 1]),
        "of-one-of-two-alternatives": ("gpu@2/ more@2/ ~root@more/option-0", rooted("xyyx"), [0, 1, 2, 3]),
        "of-two-requests": ("gpu@2/ more@1/ ~root@gpu,more", rooted("xxx"), [0, 1, 2]),
        "second-attempt": ("1 1 ~root", rooted("xyy"), [1, 2]),
        "third-attempt": ("1 1 1 ~root", rooted("xxyyy"), [2, 3, 4]),
        "request-between": ("a@1 b@1 c@1 ~root@a,c", rooted("xyx"), [0, 1, 2]),
        "full-name": (f"1 1 ~{VENDOR}root", rooted("xx", VENDOR), [0, 1]),
        "name-without-domain": ("1 1 ~root", f"d0:{DRIVER}/root=x d1:root=x", [0, 1]),
        "domain-of-another": (f"1 1 ~{VENDOR}root", rooted("xx"), None),
    },
)
def test_devices_have_the_same_value_of_the_attribute_of_a_constraint(requests, devices, found):
    """A value with too few devices is given up; `found` are the numbers of the devices."""
    chosen = planned(claim(requests), slices=[part(devices)])

    assert (chosen if isinstance(chosen, list) else None) == (
        None if found is None else [f"pool-a/d{number}" for number in found]
    )


@pytest.mark.parametrize(
    ("left", "right", "are_equal"),
    [
        ({"string": "a"}, {"string": "b"}, False),
        ({"int": 42}, {"int": 42}, True),
        ({"int": 42}, {"int": 43}, False),
        ({"bool": False}, {"bool": False}, True),
        ({"bool": True}, {"bool": False}, False),
        ({"version": "1.2.3"}, {"version": "1.2.3"}, True),
        ({"version": "1.2.3"}, {"version": "1.2.4"}, False),
        ({"version": "1.2.3+a"}, {"version": "1.2.3+b"}, False),
        ({"string": "1"}, {"int": 1}, False),
        ({"bool": True}, {"int": 1}, False),
        ({"version": "1.2.3"}, {"string": "1.2.3"}, False),
        ({}, {}, False),
    ],
)
def test_attribute_values_match_as_in_kube_scheduler(left, right, are_equal):
    """Values of different types do not, nor versions of different builds."""
    devices = [{"name": f"d{n}", "attributes": {"root": value}} for n, value in enumerate((left, right))]

    assert isinstance(planned(claim("2 ~root"), slices=[part(devices)]), list) is are_equal


def test_each_instance_type_has_its_own_value_of_an_attribute():
    """The NodeClaim lists both types, though their devices have different roots."""
    types = [with_devices(fake_type(f"it-{root}", price=1.0), slice_spec(rooted(2 * root), pool=root)) for root in "xy"]

    plan = schedule_devices(a_claiming_pod("p", "c"), types=tuple(types), claims=[claim("2 ~root")])

    devices = plan.node_of("p").devices
    assert {name: [d.pool for d in found] for name, found in devices.items()} == {"it-x": ["x"] * 2, "it-y": ["y"] * 2}
