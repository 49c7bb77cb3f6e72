"""Karpenter's suite of the device allocator: which devices pods get on new nodes, and what they leave for others."""

from __future__ import annotations

from tests.helpers.builders import NOW, a_node, a_running_claim, stamp
from tests.helpers.device_allocation import BESIDE_NIC, BESIDE_NICS, Case, allocated, asking, claim, pod, published
from tests.helpers.devices import DRIVER, a_claiming_pod, a_slice, devices_of, exactly, schedule_devices, table

FOUR, THREE, TWO = "gpu-0..3", "gpu-0..2", "gpu-0..1"
MODELS = "gpu-0:model=H100 gpu-1:model=A100 gpu-2:model=H100"
TWO_ZONES = "{} in a; {} in b"
OWN_TWO = {"it-1": "own-0..1"}
TWO_TYPES = {"it-a": "", "it-b": ""}


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
        "class": Case(MODELS, "a: 2*h100 -> gpu-0 gpu-2"),
        "class-too-many": Case(MODELS, "a: 3*h100 -> no"),
        "selector": Case(MODELS, "a: 1*model=A100 -> gpu-1"),
        "class-and-selector": Case(
            "gpu-0:model=H100,kind=large gpu-1:model=H100,kind=small gpu-2:model=A100,kind=large",
            *("a: 2*h100,kind=large -> no", "b: 1*h100,kind=large -> gpu-0"),
        ),
        "two-pools": Case("gpu-0; gpu-1 of pool-b", "a: 2 -> gpu-0 gpu-1"),
        "same-name": Case("gpu-0; gpu-0 of pool-b", "a: 2 -> gpu-0 gpu-0", "b: 1 -> no"),
        "no-type": Case("gpu-0", "a: 1 -> no", types={}),
        "no-device": Case(TWO_ZONES.format("gpu-0", "gpu-1"), "a in c: 1 -> no"),
        "invalid-pool": Case("twin+vram=80Gi twin+vram=40Gi", "a: 1 -> no"),
    },
)
def test_pod_gets_so_many_devices_that_its_requests_select(case):
    """Published devices are taken in the order of their pools; without enough of them the pod does not fit."""
    assert case.follow() == case.expected


# -- constraints


PAIRS = "gpu-0..1:numa=0 gpu-2..3:numa=1"
IN_TURN = "gpu-0:numa=0 gpu-1:numa=1 gpu-2:numa=0 gpu-3:numa=1"
KINDS = "gpu-0..1:kind=compute,numa=0 gpu-2:kind=extra,numa={}"
TWO_ATTRIBUTES = "gpu-0:numa=0,pcie=0 gpu-1:numa=0,pcie=1 gpu-2:numa={},pcie=0"


@table(
    "case",
    {
        "pair": Case(PAIRS, "a: 2 ~numa -> gpu-0 gpu-1"),
        "three-of-two": Case(PAIRS, "a: 3 ~numa -> no"),
        "per-request": Case(IN_TURN, "a: x@2 y@2 ~numa@x ~numa@y -> gpu-0 gpu-1 gpu-2 gpu-3"),
        "per-claim": Case(IN_TURN, "a: 2 ~numa | 2 ~numa -> gpu-0 gpu-1 gpu-2 gpu-3"),
        "some-requests": Case("gpu-0..1:numa=0 gpu-2:numa=1", "a: x@1 y@1 z@1 ~numa@x,y -> gpu-0 gpu-1 gpu-2"),
        "two-attributes": Case(TWO_ATTRIBUTES.format(0), "a: 2 ~numa ~pcie -> gpu-0 gpu-2"),
        "two-attributes-apart": Case(TWO_ATTRIBUTES.format(1), "a: 2 ~numa ~pcie -> no"),
        "own-devices": Case(
            "gpu-0:numa=0 gpu-1:numa=1", "a: 2 ~numa -> own-0 own-1", types={"it-1": "own-0..1:numa=2"}
        ),
        "each-type": Case(
            "", "a: 2 ~numa -> own-0 own-1", types={"it-a": "own-0..1:numa=0", "it-b": "own-0..1:numa=1"}
        ),
        "second-type": Case(
            "",
            "a: 2 ~numa -> it-b=own-0,own-1",
            types={"it-a": "own-0:numa=0 own-1:numa=1", "it-b": "own-0..1:numa=2"},
        ),
        "all": Case("gpu-0..1:numa=0", "a: all ~numa -> gpu-0 gpu-1"),
        "all-and-one": Case(KINDS.format(0), "a: all*kind=compute 1*kind=extra ~numa -> gpu-0 gpu-1 gpu-2"),
        "all-and-one-apart": Case(KINDS.format(1), "a: all*kind=compute 1*kind=extra ~numa -> no"),
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
        "own": Case("gpu-0", "a: all -> gpu-0 own-0 own-1", types=OWN_TWO),
        "by-type": Case("", "a: all -> it-a=own-0,own-1,own-2 it-b=own-0", types={"it-a": "own-0..2", "it-b": "own-0"}),
        "none": Case("nic-0", "a: all -> no"),
        "in-use": Case(TWO, "a: all -> no", in_use="gpu-0"),
        "and-one": Case("a:kind=gpu b:kind=gpu c:kind=nic", "a: all*kind=gpu 1*kind=nic -> a b c"),
        "pools": Case("gpu-0; gpu-1 of pool-b; gpu-2 of pool-c", "a: all -> gpu-0 gpu-1 gpu-2"),
        "shared-twins": Case("twin+vram=80Gi twin+vram=80Gi", "a: all -> no"),
        "counters": Case("gpu-0..1!30Gi with 80Gi", "a: all -> gpu-0 gpu-1"),
        "counters-exceeded": Case("gpu-0..1!40Gi with 60Gi", "a: all -> no"),
    },
)
def test_allocation_mode_all_takes_each_selected_device_or_none(case):
    """All devices that the node can access must be known and free."""
    assert case.follow() == case.expected


# -- devices that instance types bring


ALIKE = {"it-a": "own-0", "it-b": "own-0 of other"}


@table(
    "case",
    {
        "both": Case(TWO, "a: 3 -> gpu-0 gpu-1 own-0", types=OWN_TWO),
        "published-first": Case(TWO, "a: 2 -> gpu-0 gpu-1", types=OWN_TWO),
        "one-type": Case("gpu-0", "a: 3 -> large=gpu-0,own-0,own-1", types={"large": "own-0..1", "small": ""}),
        "both-types": Case("gpu-0", "a: 2 -> gpu-0 own-0", types=ALIKE),
        "no-type": Case("", "a: 5 -> no", types=ALIKE),
        "same-node": Case("", "a: 2 -> own-0 own-1", "a: 1 -> no", types=OWN_TWO),
        "type-by-type": Case(
            "",
            *("a: 2 -> it-a=own-0,own-1 it-b=own-0,own-1", "a drops it-a", "a: 1 -> no"),
            types={"it-a": "own-0..1", "it-b": "own-0..1 of other"},
        ),
        "one-after-another": Case("", "a: 1 -> own-0", "a: 1 -> own-1", "a: 1 -> no", "b: 1 -> own-0", types=OWN_TWO),
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
            *("a: 2 -> gpu-0 gpu-1", "a drops it-a", "b: 1 -> no", "a drops it-b", "b: 1 -> gpu-0"),
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


ONE_EACH = TWO_ZONES.format("a0", "b0")
TWO_EACH = TWO_ZONES.format("a0 a1", "b0 b1")


@table(
    "case",
    {
        "first-zone": Case(ONE_EACH, "n in a,b: 1 -> a0 in a"),
        "one-zone": Case(TWO_EACH, "n in a,b: 2 -> a0 a1 in a"),
        "second-zone": Case(TWO_ZONES.format("a0", "b0 b1"), "n in a,b: 2 -> b0 b1 in b"),
        "other-zone": Case("gpu-0 in b", "n in a: 1 -> no"),
        "type-pruned": Case(ONE_EACH, "n in a,b: 2 -> it-a=a0,own-0 in a", types={"it-a": "own-0", "it-b": ""}),
        "types-alike": Case(TWO_EACH, "n in a,b: 2 -> a0 a1 in a", types={"it-a": "own-0", "it-b": ""}),
        "next-pod": Case(
            TWO_EACH,
            *("n in a,b: 1 -> it-a=a0 it-b=a0 in a", "n drops it-a", "n: 1 -> it-b=a1 in a"),
            types={"it-a": "nic-0", "it-b": ""},
        ),
    },
)
def test_zonal_devices_restrict_the_zones_of_a_node(case):
    """All devices of a node are in one zone, whatever instance type it becomes."""
    assert case.follow() == case.expected


IN_A, IN_B = (allocated("held", zone=zone) for zone in "ab")


@table(
    "case",
    {
        "anywhere": Case("", pod("n: ->", allocated())),
        "zone": Case("", pod("n in a,b: -> in a", IN_A)),
        "other-zone": Case("", pod("n in a: -> no", allocated(zone="c"))),
        "and-unallocated": Case(ONE_EACH, pod("n in a,b: -> b0 in b", IN_B, claim("1"))),
        "mixed": Case(TWO, pod("n: -> gpu-0", allocated(), claim("1"))),
        "two": Case("", pod("n: ->", allocated(), allocated())),
        "two-zones": Case("", pod("n in a,b: -> no", IN_A, IN_B)),
        "one-zone": Case("", pod("n in a,b: -> in a", IN_A, IN_A)),
        "and-planned": Case("gpu-0 in a", "m in a,b: &s -> gpu-0 in a", pod("n in a,b: &s -> no", IN_B)),
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
        "own-device-elsewhere": Case("", "m: &s -> own-0", "n: &s -> no", types=OWN_TWO),
        "own-device": Case("", "m: &s -> own-0", "m: &s ->", types=OWN_TWO),
        "two-claims": Case(
            "gpu-0",
            *("m: &s &t*nic -> gpu-0 nic-0", "m: 1*nic -> no", "n: 1 | 1*nic -> no", "n: 1*nic -> nic-0"),
            *("n: &t*nic -> no", "n: &s ->"),
            types={"it-1": "nic-0"},
        ),
        "zone": Case("gpu-0 in a", "m in a,b: &s -> gpu-0 in a", "n in a,b: &s -> in a"),
        "no-zone": Case("gpu-0", "m in a,b: &s -> gpu-0", "n in b: &s -> in b"),
        "other-zone": Case("gpu-0 in a", "m in a,b: &s -> gpu-0 in a", "n in c: &s -> no"),
        "and-unallocated": Case(
            "b0 in b; nic-a of nics-a in a; nic-b of nics-b in b", "m: &s -> b0 in b", "n: &s 1*nic -> nic-b in b"
        ),
        "two-zones": Case(ONE_EACH, "l: &s -> a0 in a", "m: &t -> b0 in b", "n: &s &t -> no"),
        "each-claim": Case(
            "gpu-0 in a; nic-0",
            *("m in a,b: &s &t*nic -> gpu-0 nic-0 in a", "n in b: &t*nic -> in b", "o in b: &s -> no"),
        ),
    },
)
def test_pods_that_share_a_claim_share_its_devices(case):
    """With devices of the node itself they stay on that node, else each of their nodes must be able to access the devices."""
    assert case.follow() == case.expected


@table("dropped, gets", {"zonal-dropped": ("it-b", "in b"), "other-dropped": ("it-a", "no")})
def test_shared_claim_is_bound_to_a_zone_only_by_types_that_are_left(dropped, gets):
    """Its device is zonal if the node becomes one of its two types."""
    case = Case(
        "a:example.com/root=a in a; b:example.com/root=b of pool-b",
        *(f"m in a,b: {BESIDE_NIC} -> it-a=a,nic-0 it-b=b,nic-0", "m: &s -> it-a=b it-b=a in a"),
        *(pod("n in b: &s -> no", types="plain"), f"m drops {dropped}", pod(f"n in b: &s -> {gets}", types="plain")),
        types=BESIDE_NICS,
    )

    assert case.follow() == case.expected


# -- whole plans


def running(node):
    """Return the node and NodeClaim of this name, as fields of a cluster; none if the name is empty."""
    return {"nodeclaims": (a_running_claim(node),), "nodes": (a_node(node),)} if node else {}


def test_claims_of_the_same_name_in_two_namespaces_are_different():
    """Each gets a device of its own."""
    names = ("ns-1", "ns-2")
    pods = [a_claiming_pod("p", "c", metadata={"namespace": name}) for name in names]
    claims = [claim("1", metadata={"name": "c", "namespace": name}) for name in names]

    plan = schedule_devices(*pods, claims=claims, slices=published(FOUR))

    assert [devices_of(plan, "ns-1/c"), devices_of(plan, "ns-2/c")] == [["pool-a/gpu-0"], ["pool-a/gpu-1"]]


@table("node, expected", {"own": ("a", {"node-a": ("default/p",)}), "other": ("b", {}), "new": ("", {})})
def test_device_of_a_node_is_not_there_on_others(node, expected):
    """The ResourceSlice has the name of node-a; no instance type has such a device."""
    slices = [a_slice("s", "gpu-0", nodeName="node-a")]

    found = schedule_devices(a_claiming_pod("p", "c"), claims=[claim("1")], slices=slices, **running(node))

    assert found.results.existing == expected
    assert set(found.results.pod_errors) == (set() if expected else {"default/p"})


DELETING = {"deletionTimestamp": stamp(NOW)}


def user(uid, **more):
    """Return who uses a claim: a pod by default."""
    return {"resource": "pods", "name": uid, "uid": uid, **more}


@table(
    "users, slices, expected",
    {
        "deleting": ([user("uid-deleting")], published(FOUR), ["pool-a/gpu-0"]),
        "and-live": ([user("uid-deleting"), user("uid-live")], [], []),
        "live": ([user("uid-live")], [], []),
        "no-pod": ([user("uid-deleting", resource="widgets", apiGroup="example.com")], [], []),
        "no-pod-of-kubernetes": ([user("uid-deleting", apiGroup="example.com")], [], []),
    },
)
def test_claim_of_deleting_pods_only_is_allocated_again(users, slices, expected):
    """The device of any other allocated claim stays as it is, even if nothing publishes it any more."""
    results = [{"request": "req-1", "driver": DRIVER, "pool": "pool-a", "device": "gpu-0"}]
    found = claim("1", status={"allocation": {"devices": {"results": results}}, "reservedFor": users})
    old = [
        a_claiming_pod(name, "c", node="node-a", metadata=metadata)
        for name, metadata in (("deleting", DELETING), ("live", {}))
    ]

    plan = schedule_devices(a_claiming_pod("p", "c"), *old, claims=[found], slices=slices, **running("a"))

    assert devices_of(plan) == expected
    assert not plan.results.pod_errors


@table(
    "found, slices, message",
    {
        "class": (claim("1*none"), FOUR, "request req-1: DeviceClass 'none' does not exist"),
        "selector": (asking(exactly(selectors=[{}])), FOUR, "request gpu: a selector that is not CEL is not supported"),
        "empty": (asking({"name": "r"}), FOUR, "request r asks for nothing"),
        "constraint": (
            asking(exactly(), match=[{}]),
            FOUR,
            "has a constraint other than matchAttribute, which is not supported",
        ),
        "too-many": (
            claim("a@24/20 b@24/20"),
            "gpu-00..39",
            "asks for 40 devices, 32 are the most that a claim may have",
        ),
        "none-selected": (
            claim("1*model=B200"),
            FOUR,
            "no published device and no instance type has what request 'req-1' (DeviceClass gpu) selects",
        ),
        "too-few": (
            claim("5 x@9*nic/8"),
            f"{FOUR}; nic-0",
            "for request 'req-1' (DeviceClass gpu), request 'x' (DeviceClass nic or gpu) cannot be had together on one node",
        ),
        "elsewhere": (allocated("c", "gpu-0", zone="nowhere"), FOUR, "its claims are bound elsewhere"),
        "twins": (
            claim("all"),
            "gpu-0 gpu-1 gpu-0",
            f"selects; pool {DRIVER}/pool-a is left out because two of its devices have the same name",
        ),
        "incomplete": (
            claim("all"),
            [*published(FOUR), *published("gpu-0 of pool-b", of=2)],
            f"on one node; pool {DRIVER}/pool-b is left out because it has 1 of its 2 slices",
        ),
    },
)
def test_error_of_a_pod_says_what_is_wrong_with_its_claim_or_a_pool(found, slices, message):
    """Of pools it names one that has devices for the claim."""
    plan = schedule_devices(a_claiming_pod("p", "c"), claims=[found], slices=published(slices))

    assert plan.results.pod_errors["default/p"].message.endswith(message)
