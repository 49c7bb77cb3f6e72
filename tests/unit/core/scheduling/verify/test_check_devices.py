"""The second opinion on devices: whatever is changed about a right plan is objected to."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.results import Options
from journeyman.core.scheduling.scheduler import pods_to_schedule, solve
from journeyman.core.scheduling.verify import verify
from journeyman.core.scheduling.verify.check_devices import DeviceUsage
from tests.helpers.builders import NOW, a_node, a_pod, a_running_claim, a_snapshot, an_instance_type, stamp
from tests.helpers.devices import (
    a_claiming_pod,
    a_device_class,
    a_resource_claim,
    a_slice,
    an_allocated_claim,
    exactly,
    gpu,
    gpus,
    selecting,
    slice_spec,
    with_devices,
)

NODE = "node-a"
PAIR = with_devices(
    an_instance_type("g.pair", cpu=8, memory_gib=32, price=1.0), slice_spec([*gpus(2), gpu("old", "T4")])
)
CATALOGUE = Catalogue({"default": (PAIR,)})


def a_case():
    """A node whose GPU the first pod gets, a new node for the other two, and the plan for that."""
    snapshot = a_snapshot(
        pods=tuple(a_claiming_pod(f"p{n}", made=[f"c{n}"]) for n in range(3)),
        resource_claims=tuple(a_resource_claim(f"c{n}", exactly(select=selecting("A100"))) for n in range(3)),
        resource_slices=(a_slice("s", gpus(1), node=NODE),),
        device_classes=(a_device_class(),),
        claims=(a_running_claim("a"),),
        nodes=(a_node("a"),),
    )
    results = solve(snapshot, CATALOGUE, options=Options(ignore_dra_requests=False))
    assert verify(snapshot, CATALOGUE, results, pods=pods_to_schedule(snapshot)) == ()
    return snapshot, results


def objections(snapshot, results):
    """All that is wrong, in one text."""
    return "; ".join(map(str, verify(snapshot, CATALOGUE, results, pods=pods_to_schedule(snapshot))))


def with_grants(results, change):
    """The plan with the new node's grants changed."""
    (claim,) = results.new_claims
    grants = change(claim.devices["g.pair"])
    return replace(results, new_claims=(replace(claim, devices={"g.pair": tuple(grants)}),))


@pytest.mark.parametrize(
    ("change", "objection"),
    [
        (lambda g: g[:1], "p2 is scheduled although ResourceClaim default/c2 gets its devices on 0 nodes"),
        (lambda g: [g[0], replace(g[1], device="gpu-0")], "device gpu.example.com/pool/gpu-0 is taken 2 times"),
        (lambda g: [g[0], replace(g[1], device="old")], "does not select device gpu.example.com/pool/old"),
        (lambda g: [g[0], replace(g[1], device="gpu-7")], "there is no device gpu.example.com/pool/gpu-7"),
        (lambda g: [g[0], replace(g[1], request="tpu")], "request tpu does not exist"),
        (lambda g: [g[0], replace(g[1], claim="default/c9")], "ResourceClaim default/c9 does not exist"),
        (lambda g: [g[0], replace(g[1], claim="default/c1")], "request gpu gets 2 devices instead of 1"),
        (
            lambda g: [g[0], replace(g[1], published=True, pool=NODE, device="gpu-0")],
            "device gpu.example.com/node-a/gpu-0 cannot be reached from there",
        ),
    ],
    ids=["missing", "twice", "unselected", "unknown", "request", "claim", "count", "unreachable"],
)
def test_devices_of_a_new_node_are_checked_one_by_one(change, objection):
    """Each claim has the right number of the right devices, each of them once."""
    snapshot, results = a_case()

    assert objection in objections(snapshot, with_grants(results, change))


def test_every_listed_type_must_have_the_devices():
    """A type that the plan says nothing of might be launched without."""
    snapshot, results = a_case()
    (claim,) = results.new_claims

    silent = replace(results, new_claims=(replace(claim, devices={}),))

    assert "gets its devices on 0 nodes" in objections(snapshot, silent)


@pytest.mark.parametrize(
    ("changes", "objection"),
    [
        ({"resource_claims": ()}, "has resource claims that do not exist (default/c0)"),
        ({"resource_slices": ()}, "there is no device gpu.example.com/node-a/gpu-0 to be had"),
        ({"device_classes": ()}, "request gpu does not select device"),
        (
            {"resource_slices": (a_slice("s", gpus(1), node=NODE, of=2),)},
            "there is no device gpu.example.com/node-a/gpu-0 to be had",
        ),
    ],
    ids=["claims", "slices", "classes", "incomplete"],
)
def test_a_plan_for_another_cluster_is_objected_to(changes, objection):
    """What was published or asked for has changed."""
    snapshot, results = a_case()

    assert objection in objections(replace(snapshot, **changes), results)


def test_an_allocated_device_is_not_allocated_twice():
    """An allocation of a claim that stays."""
    snapshot, results = a_case()
    held = an_allocated_claim("held", (NODE, "gpu-0"))

    changed = replace(snapshot, resource_claims=(*snapshot.resource_claims, held))

    assert "device gpu.example.com/node-a/gpu-0 is taken 2 times" in objections(changed, results)


def test_an_allocated_claim_must_be_reached_from_its_pods_node():
    """The claim is bound to a node, the plan has its pod elsewhere."""
    snapshot, results = a_case()
    bound = an_allocated_claim("c1", ("node-b", "gpu-0"), node="node-b")
    claims = tuple(bound if c.metadata.name == "c1" else c for c in snapshot.resource_claims)

    found = objections(replace(snapshot, resource_claims=claims), results)

    assert "from where the devices of ResourceClaim default/c1 cannot be reached" in found


def test_whoever_asks_for_devices_on_a_node_that_is_not_there_is_told_so():
    """Nothing can be said of the devices there, and everything else is said all the same."""
    snapshot, results = a_case()

    found = objections(snapshot, replace(results, existing={"node-gone": ("default/p0",)}, devices={}))

    assert "node node-gone gets pods (default/p0) although it does not exist" in found


def test_only_the_newest_generation_of_a_pool_is_read():
    """The planned device is in an older generation, which no longer counts."""
    snapshot, results = a_case()
    old = a_slice("s", gpus(1), node=NODE)
    new = a_slice("t", [gpu("gpu-9")], node=NODE, generation=2)

    found = objections(replace(snapshot, resource_slices=(old, new)), results)

    assert "there is no device gpu.example.com/node-a/gpu-0 to be had" in found


def test_slices_of_older_generations_do_no_harm():
    """The newest generation has the planned device and is complete."""
    snapshot, results = a_case()
    old = a_slice("s", [gpu("gpu-9")], node=NODE)
    new = a_slice("t", gpus(1), node=NODE, generation=2)

    assert objections(replace(snapshot, resource_slices=(old, new)), results) == ""


def test_a_claim_that_one_user_keeps_is_not_released():
    """One of its two users is deleted, the other stays."""
    snapshot, results = a_case()
    leaving = a_pod("leaving", metadata={"uid": "uid-leaving", "deletionTimestamp": stamp(NOW)})
    claim = an_allocated_claim("held", (NODE, "gpu-0"), users=["uid-leaving", "uid-staying"])
    changed = replace(snapshot, pods=(*snapshot.pods, leaving), resource_claims=(*snapshot.resource_claims, claim))

    assert "device gpu.example.com/node-a/gpu-0 is taken 2 times" in objections(changed, results)


def test_a_claim_that_no_user_keeps_is_released():
    """Its only user is deleted."""
    snapshot, results = a_case()
    leaving = a_pod("leaving", metadata={"uid": "uid-leaving", "deletionTimestamp": stamp(NOW)})
    claim = an_allocated_claim("held", (NODE, "gpu-0"), users=["uid-leaving"])
    changed = replace(snapshot, pods=(*snapshot.pods, leaving), resource_claims=(*snapshot.resource_claims, claim))

    assert "taken 2 times" not in objections(changed, results)


def test_usage_is_raised_to_the_maximum():
    """Per counter, the larger of both amounts, whichever side has it."""
    left, right = DeviceUsage(), DeviceUsage()
    left.add({("a",): 1, ("b",): 5})
    right.add({("a",): 3, ("b",): 2, ("c",): 4})

    left.take_maximum(right)

    assert left.parts == {("a",): 3, ("b",): 5, ("c",): 4}
    assert list(left.excess({("a",): 2, ("b",): 5, ("c",): 4})) == ["more of a is taken than there is"]
