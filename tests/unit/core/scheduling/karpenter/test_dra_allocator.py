"""Karpenter's suite of the device allocator: which devices pods get on new nodes, and what they leave for others."""

from __future__ import annotations

from tests.helpers.builders import NOW, a_node, a_running_claim, stamp
from tests.helpers.device_allocation import (
    BESIDE_NICS,
    MEMORY_80,
    NUMA,
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
    table,
)

PCIE = f"{DRIVER}/pcie"
FOUR = published("gpu-0 gpu-1 gpu-2 gpu-3")
THREE = published("gpu-0 gpu-1 gpu-2")
TWO = published("gpu-0 gpu-1")
ONE = published("gpu-0")
NAMES = [f"gpu-{n:02}" for n in range(40)]
OWN_TWO = {TYPE: "own-0 own-1"}
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


@table(
    "case",
    {
        "no-claim": Case(FOUR, "a: ->"),
        "one": Case(FOUR, "a: 1 -> gpu-0"),
        "three": Case(FOUR, "a: 3 -> gpu-0 gpu-1 gpu-2"),
        "five-of-four": Case(FOUR, "a: 5 -> no"),
        "two-requests": Case(FOUR, "a: 2 2 -> gpu-0 gpu-1 gpu-2 gpu-3"),
        "too-many-requests": Case(FOUR, "a: 3 3 -> no"),
        "two-claims": Case(FOUR, "a: 2 | 2 -> gpu-0 gpu-1 gpu-2 gpu-3"),
        "too-many-claims": Case(THREE, "a: 2 | 2 -> no"),
        "in-use": Case(FOUR, "a: 2 -> no", in_use="gpu-0 gpu-1 gpu-2"),
        "some-in-use": Case(FOUR, "a: 2 -> gpu-2 gpu-3", in_use="gpu-0 gpu-1"),
        "class": Case(published("gpu-0:model=H100 gpu-1:model=A100 gpu-2:model=H100"), "a: 2*h100 -> gpu-0 gpu-2"),
        "class-too-many": Case(published("gpu-0:model=H100 gpu-1:model=A100 gpu-2:model=H100"), "a: 3*h100 -> no"),
        "selector": Case(
            published("gpu-0:model=H100 gpu-1:model=A100 gpu-2:model=H100"),
            "a: 1*model=A100 -> gpu-1",
        ),
        "class-and-selector": Case(
            published("gpu-0:model=H100,kind=large gpu-1:model=H100,kind=small gpu-2:model=A100,kind=large"),
            "a: 2*h100,kind=large -> no",
            "b: 1*h100,kind=large -> gpu-0",
        ),
        "two-pools": Case(published("gpu-0") + published("gpu-1", pool="pool-b"), "a: 2 -> gpu-0 gpu-1"),
        "same-name": Case(ONE + published("gpu-0", pool="pool-b"), "a: 2 -> gpu-0 gpu-0", "b: 1 -> no"),
        "no-type": Case(ONE, "a: 1 -> no", types={}),
        "no-device": Case(published("gpu-0", zone="a") + published("gpu-1", zone="b"), "a in c: 1 -> no"),
        "invalid-pool": Case(published([shared("twin", vram="80Gi"), shared("twin", vram="40Gi")]), "a: 1 -> no"),
    },
)
def test_pod_gets_so_many_devices_that_its_requests_select(case):
    """Published devices are taken in the order of their pools; without enough of them the pod does not fit."""
    assert case.follow() == case.expected


# -- constraints


@table(
    "case",
    {
        "pair": Case(published(on_numa(0, 0, 1, 1)), "a: 2 ~numa -> gpu-0 gpu-1"),
        "three-of-two": Case(published(on_numa(0, 0, 1, 1)), "a: 3 ~numa -> no"),
        "per-request": Case(
            published(on_numa(0, 1, 0, 1)),
            pod(
                "a: -> gpu-0 gpu-1 gpu-2 gpu-3",
                asking(exactly("one", count=2), exactly("two", count=2), match=[(NUMA, ["one"]), (NUMA, ["two"])]),
            ),
        ),
        "per-claim": Case(published(on_numa(0, 1, 0, 1)), "a: 2 ~numa | 2 ~numa -> gpu-0 gpu-1 gpu-2 gpu-3"),
        "some-requests": Case(
            published(on_numa(0, 0, 1)),
            pod(
                "a: -> gpu-0 gpu-1 gpu-2", asking(exactly("a"), exactly("b"), exactly("c"), match=[(NUMA, ["a", "b"])])
            ),
        ),
        "two-attributes": Case(
            published("gpu-0:numa=0,pcie=0 gpu-1:numa=0,pcie=1 gpu-2:numa=0,pcie=0"), "a: 2 ~numa ~pcie -> gpu-0 gpu-2"
        ),
        "two-attributes-apart": Case(
            published("gpu-0:numa=0,pcie=0 gpu-1:numa=0,pcie=1 gpu-2:numa=1,pcie=0"), "a: 2 ~numa ~pcie -> no"
        ),
        "own-devices": Case(
            published(on_numa(0, 1)), "a: 2 ~numa -> own-0 own-1", types={TYPE: [brought(on_numa(2, 2, prefix="own"))]}
        ),
        "each-type": Case(
            [],
            "a: 2 ~numa -> own-0 own-1",
            types={"it-a": [brought(on_numa(0, 0, prefix="own"))], "it-b": [brought(on_numa(1, 1, prefix="own"))]},
        ),
        "second-type": Case(
            [],
            "a: 2 ~numa -> it-b=own-0,own-1",
            types={"it-a": [brought(on_numa(0, 1, prefix="own"))], "it-b": [brought(on_numa(2, 2, prefix="own"))]},
        ),
        "all": Case(published(on_numa(0, 0)), "a: all ~numa -> gpu-0 gpu-1"),
        "all-and-one": Case(
            published("gpu-0:kind=compute,numa=0 gpu-1:kind=compute,numa=0 gpu-2:kind=extra,numa=0"),
            "a: all*kind=compute 1*kind=extra ~numa -> gpu-0 gpu-1 gpu-2",
        ),
        "all-and-one-apart": Case(
            published("gpu-0:kind=compute,numa=0 gpu-1:kind=compute,numa=0 gpu-2:kind=extra,numa=1"),
            "a: all*kind=compute 1*kind=extra ~numa -> no",
        ),
    },
)
def test_devices_of_a_claim_have_the_same_attributes(case):
    """The constraint covers the requests that it names, by default all of the claim; another choice is tried where one fails."""
    assert case.follow() == case.expected


# -- all devices


@table(
    "case",
    {
        "published": Case(THREE, "a: all -> gpu-0 gpu-1 gpu-2"),
        "own": Case(ONE, "a: all -> gpu-0 own-0 own-1", types=OWN_TWO),
        "by-type": Case(
            [], "a: all -> it-a=own-0,own-1,own-2 it-b=own-0", types={"it-a": "own-0 own-1 own-2", "it-b": "own-0"}
        ),
        "none": Case(published("nic-0", driver=NIC_DRIVER), "a: all -> no"),
        "in-use": Case(TWO, "a: all -> no", in_use="gpu-0"),
        "and-one": Case(
            published(of_kinds(a="compute", b="compute", c="network")), "a: all*kind=compute 1*kind=network -> a b c"
        ),
        "pools": Case(
            published("gpu-0") + published("gpu-1", pool="pool-b") + published("gpu-2", pool="pool-c"),
            "a: all -> gpu-0 gpu-1 gpu-2",
        ),
        "shared-twins": Case(published([shared("twin", vram="80Gi"), shared("twin", vram="80Gi")]), "a: all -> no"),
        "counters": Case(published(drawing("30Gi", "gpu-0", "gpu-1"), counters=MEMORY_80), "a: all -> gpu-0 gpu-1"),
        "counters-exceeded": Case(
            published(drawing("40Gi", "gpu-0", "gpu-1"), counters={"gpu-slices": {"memory": "60Gi"}}), "a: all -> no"
        ),
    },
)
def test_allocation_mode_all_takes_each_selected_device_or_none(case):
    """All devices that the node can access must be known and free."""
    assert case.follow() == case.expected


# -- devices that instance types bring


@table(
    "case",
    {
        "both": Case(TWO, "a: 3 -> gpu-0 gpu-1 own-0", types=OWN_TWO),
        "published-first": Case(TWO, "a: 2 -> gpu-0 gpu-1", types=OWN_TWO),
        "one-type": Case(ONE, "a: 3 -> large=gpu-0,own-0,own-1", types={"large": "own-0 own-1", "small": ()}),
        "both-types": Case(
            ONE, "a: 2 -> gpu-0 own-0", types={"it-a": "own-0", "it-b": [brought("own-0", pool="other")]}
        ),
        "no-type": Case([], "a: 5 -> no", types={"it-a": "own-0", "it-b": [brought("own-0", pool="other")]}),
        "same-node": Case([], "a: 2 -> own-0 own-1", "a: 1 -> no", types=OWN_TWO),
        "type-by-type": Case(
            [],
            "a: 2 -> it-a=own-0,own-1 it-b=own-0,own-1",
            "a drops it-a",
            "a: 1 -> no",
            types={"it-a": "own-0 own-1", "it-b": [brought("own-0 own-1", pool="other")]},
        ),
        "one-after-another": Case([], "a: 1 -> own-0", "a: 1 -> own-1", "a: 1 -> no", "b: 1 -> own-0", types=OWN_TWO),
    },
)
def test_new_node_brings_the_devices_of_its_instance_type(case):
    """They are taken after published ones; types without enough devices drop out."""
    assert case.follow() == case.expected


# -- pods on several nodes


@table(
    "case",
    {
        "same-node": Case(THREE, "a: 2 -> gpu-0 gpu-1", "a: 2 -> no", "a: 1 -> gpu-2"),
        "same-node-again": Case(TWO, "a: 1 -> gpu-0", "a: 1 -> gpu-1"),
        "other-node": Case(THREE, "a: 2 -> gpu-0 gpu-1", "b: 2 -> no", "b: 1 -> gpu-2"),
        "two-types": Case(THREE, "a: 2 -> it-a=gpu-0,gpu-1 it-b=gpu-0,gpu-1", "b: 2 -> no", types=TWO_TYPES),
        "type-dropped": Case(TWO, "a: 2 -> gpu-0 gpu-1", "b: 1 -> no", "a drops it-1", "b: 1 -> gpu-0"),
        "types-dropped": Case(
            TWO,
            "a: 2 -> gpu-0 gpu-1",
            "a drops it-a",
            "b: 1 -> no",
            "a drops it-b",
            "b: 1 -> gpu-0",
            types=TWO_TYPES,
        ),
        "nothing-dropped": Case(TWO, "a drops unknown", "b: 2 -> gpu-0 gpu-1"),
        "proposed-only": Case(TWO, pod("a: 2 -> gpu-0 gpu-1", commit=False), "a: 2 -> gpu-0 gpu-1"),
        "proposed-elsewhere": Case(TWO, pod("a: 2 -> gpu-0 gpu-1", commit=False), "b: 2 -> gpu-0 gpu-1"),
    },
)
def test_device_is_held_by_the_pods_of_one_node(case):
    """It is free again when no instance type left of that node needs it."""
    assert case.follow() == case.expected


# -- zones


@table(
    "case",
    {
        "first-zone": Case(published("a0", zone="a") + published("b0", zone="b"), "n in a,b: 1 -> a0 in a"),
        "one-zone": Case(published("a0 a1", zone="a") + published("b0 b1", zone="b"), "n in a,b: 2 -> a0 a1 in a"),
        "second-zone": Case(published("a0", zone="a") + published("b0 b1", zone="b"), "n in a,b: 2 -> b0 b1 in b"),
        "other-zone": Case(published("gpu-0", zone="b", pool="pool-a"), "n in a: 1 -> no"),
        "type-pruned": Case(
            published("a0", zone="a") + published("b0", zone="b"),
            "n in a,b: 2 -> it-a=a0,own-0 in a",
            types={"it-a": "own-0", "it-b": ()},
        ),
        "types-alike": Case(
            published("a0 a1", zone="a") + published("b0 b1", zone="b"),
            "n in a,b: 2 -> a0 a1 in a",
            types={"it-a": "own-0", "it-b": ()},
        ),
        "next-pod": Case(
            published("a0 a1", zone="a") + published("b0 b1", zone="b"),
            "n in a,b: 1 -> it-a=a0 it-b=a0 in a",
            "n drops it-a",
            "n: 1 -> it-b=a1 in a",
            types={"it-a": [brought("nic-0", driver=NIC_DRIVER)], "it-b": ()},
        ),
    },
)
def test_zonal_devices_restrict_the_zones_of_a_node(case):
    """All devices of a node are in one zone, whatever instance type it becomes."""
    assert case.follow() == case.expected


@table(
    "case",
    {
        "anywhere": Case([], pod("n: ->", allocated())),
        "zone": Case([], pod("n in a,b: -> in a", allocated("held", zone="a"))),
        "other-zone": Case([], pod("n in a: -> no", allocated("held", zone="c"))),
        "and-unallocated": Case(
            published("a0", zone="a") + published("b0", zone="b"),
            pod("n in a,b: -> b0 in b", allocated("held", zone="b"), asking(1)),
        ),
        "mixed": Case(TWO, pod("n: -> gpu-0", allocated(), asking(1))),
        "two": Case([], pod("n: ->", allocated(), allocated())),
        "two-zones": Case([], pod("n in a,b: -> no", allocated(zone="a"), allocated(zone="b"))),
        "one-zone": Case([], pod("n in a,b: -> in a", allocated(zone="a"), allocated(zone="a"))),
        "and-planned": Case(
            published("gpu-0", zone="a"), "m in a,b: &s -> gpu-0 in a", pod("n in a,b: &s -> no", allocated(zone="b"))
        ),
    },
)
def test_pod_goes_where_the_devices_of_its_allocated_claims_can_be_used(case):
    """The devices of an allocated claim do not change; its node selector restricts the node."""
    assert case.follow() == case.expected


@table(
    "case",
    {
        "same-node": Case(TWO, "m: &s -> gpu-0", "m: &s ->", "m: 1 -> gpu-1"),
        "other-node": Case(TWO, "m: &s -> gpu-0", "n: &s ->"),
        "own-device-elsewhere": Case([], "m: &s -> own-0", "n: &s -> no", types=OWN_TWO),
        "own-device": Case([], "m: &s -> own-0", "m: &s ->", types=OWN_TWO),
        "two-claims": Case(
            ONE,
            "m: &s &t*nic -> gpu-0 own-0",
            "m: 1*nic -> no",
            "n: 1 | 1*nic -> no",
            "n: 1*nic -> own-0",
            "n: &t*nic -> no",
            "n: &s ->",
            types={TYPE: [brought("own-0", driver=NIC_DRIVER)]},
        ),
        "zone": Case(published("gpu-0", zone="a"), "m in a,b: &s -> gpu-0 in a", "n in a,b: &s -> in a"),
        "no-zone": Case(ONE, "m in a,b: &s -> gpu-0", "n in b: &s -> in b"),
        "other-zone": Case(published("gpu-0", zone="a"), "m in a,b: &s -> gpu-0 in a", "n in c: &s -> no"),
        "and-unallocated": Case(
            published("b0", zone="b", pool="pool-a")
            + published("nic-a", zone="a", pool="nic-a", driver=NIC_DRIVER)
            + published("nic-b", zone="b", pool="nic-b", driver=NIC_DRIVER),
            "m: &s -> b0 in b",
            "n: &s 1*nic -> nic-b in b",
        ),
        "two-zones": Case(
            published("a0", zone="a") + published("b0", zone="b"),
            "l: &s -> a0 in a",
            "m: &t -> b0 in b",
            "n: &s &t -> no",
        ),
        "each-claim": Case(
            published("gpu-0", zone="a") + published("nic-0", driver=NIC_DRIVER, pool="pool-b"),
            "m in a,b: &s &t*nic -> gpu-0 nic-0 in a",
            "n in b: &t*nic -> in b",
            "o in b: &s -> no",
        ),
    },
)
def test_pods_that_share_a_claim_share_its_devices(case):
    """With devices of the node itself they stay on that node, else each of their nodes must be able to access the devices."""
    assert case.follow() == case.expected


# -- claims that pods share, when types drop out


WITH_PLAIN = BESIDE_NICS | {"plain": ()}
TURNS = (
    published([on_root(device("a"), ON_A)], zone="a") + published([on_root(device("b"), ON_B)], pool="pool-b"),
    pod("m in a,b: -> it-a=a,nic-0 it-b=b,nic-0", beside_nic(exactly("gpu"))),
    "m: &s -> it-a=b it-b=a in a",
    pod("n in b: &s -> no", types="plain"),
)


@table(
    "case",
    {
        "zonal-dropped": Case(*TURNS, "m drops it-b", pod("n in b: &s -> in b", types="plain"), types=WITH_PLAIN),
        "other-dropped": Case(*TURNS, "m drops it-a", pod("n in b: &s -> no", types="plain"), types=WITH_PLAIN),
    },
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


@table("node, expected", {"own": ("a", {"node-a": ("default/p",)}), "other": ("b", {}), "new": ("", {})})
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


@table(
    "users, slices, expected",
    {
        "deleting": ([user("uid-deleting")], FOUR, ["pool-a/gpu-0"]),
        "and-live": ([user("uid-deleting"), user("uid-live")], [], []),
        "live": ([user("uid-live")], [], []),
        "no-pod": ([user("uid-deleting", resource="widgets", apiGroup="example.com")], [], []),
        "no-pod-of-kubernetes": ([user("uid-deleting", apiGroup="example.com")], [], []),
    },
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


@table(
    "claim, slices, message",
    {
        "class": (asking(exactly(deviceClassName="none")), FOUR, "request gpu: DeviceClass 'none' does not exist"),
        "selector": (asking(exactly(selectors=[{}])), FOUR, "request gpu: a selector that is not CEL is not supported"),
        "empty": (asking({"name": "r"}), FOUR, "request r asks for nothing"),
        "constraint": (
            a_resource_claim("c", spec={"devices": {"requests": [exactly()], "constraints": [{}]}}),
            FOUR,
            "has a constraint other than matchAttribute, which is not supported",
        ),
        "too-many": (
            asking(*(first_of({"count": 24}, {"count": 20}, name=name) for name in "ab")),
            published(named_devices(*NAMES)),
            "asks for 40 devices, 32 are the most that a claim may have",
        ),
        "twins": (
            asking(ALL),
            published("gpu-0 gpu-1 gpu-0"),
            f"selects; pool {DRIVER}/pool-a is left out because two of its devices have the same name",
        ),
        "incomplete": (
            asking(ALL),
            FOUR + published("gpu-0", pool="pool-b", of=2),
            f"on one node; pool {DRIVER}/pool-b is left out because it has 1 of its 2 slices",
        ),
    },
)
def test_error_of_a_pod_says_what_is_wrong_with_its_claim_or_a_pool(claim, slices, message):
    """Of pools it names one that has devices for the claim."""
    found = schedule_devices(a_claiming_pod("p", "c"), claims=[claim], slices=slices)

    assert found.results.pod_errors["default/p"].message.endswith(message)
