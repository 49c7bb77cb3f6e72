"""Tests that the plan verifier reports every wrong device allocation."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.results import Options
from journeyman.core.scheduling.scheduler import pods_to_schedule, solve
from journeyman_simulator.judge import judge
from journeyman_simulator.judge.check_devices import DeviceUsage
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
    """Return a snapshot and its valid plan: p0 gets the existing node's GPU, p1 and p2 get a new node."""
    snapshot = a_snapshot(
        pods=tuple(a_claiming_pod(f"p{n}", made=[f"c{n}"]) for n in range(3)),
        resource_claims=tuple(a_resource_claim(f"c{n}", exactly(select=selecting("A100"))) for n in range(3)),
        resource_slices=(a_slice("s", gpus(1), node=NODE),),
        device_classes=(a_device_class(),),
        claims=(a_running_claim("a"),),
        nodes=(a_node("a"),),
    )
    results = solve(snapshot, CATALOGUE, options=Options(ignore_dra_requests=False))
    assert judge(snapshot, CATALOGUE, results, pods=pods_to_schedule(snapshot)) == ()
    return snapshot, results


def objections(snapshot, results):
    """Return all of the verifier's findings as one text."""
    return "; ".join(map(str, judge(snapshot, CATALOGUE, results, pods=pods_to_schedule(snapshot))))


def with_grants(results, change):
    """Return the plan with changed device allocations on the new node."""
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
def test_wrong_device_allocation_of_a_new_node_is_reported(change, objection):
    """Each ResourceClaim must get the requested number of matching devices, and each device is allocated once."""
    snapshot, results = a_case()

    assert objection in objections(snapshot, with_grants(results, change))


def test_instance_type_without_planned_devices_is_reported():
    """The NodeClaim lists an instance type for which the plan allocates no devices."""
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
def test_plan_is_invalid_when_claims_slices_or_device_classes_have_changed(changes, objection):
    """ResourceClaims, ResourceSlices or DeviceClasses are missing, or a ResourceSlice pool is incomplete."""
    snapshot, results = a_case()

    assert objection in objections(replace(snapshot, **changes), results)


def test_device_of_an_allocated_claim_cannot_be_allocated_again():
    """Another ResourceClaim in the cluster already holds the planned device."""
    snapshot, results = a_case()
    held = an_allocated_claim("held", (NODE, "gpu-0"))

    changed = replace(snapshot, resource_claims=(*snapshot.resource_claims, held))

    assert "device gpu.example.com/node-a/gpu-0 is taken 2 times" in objections(changed, results)


def test_pod_must_be_scheduled_to_a_node_that_reaches_its_allocated_devices():
    """The ResourceClaim is allocated on one node, but the plan schedules its pod to another."""
    snapshot, results = a_case()
    bound = an_allocated_claim("c1", ("node-b", "gpu-0"), node="node-b")
    claims = tuple(bound if c.metadata.name == "c1" else c for c in snapshot.resource_claims)

    found = objections(replace(snapshot, resource_claims=claims), results)

    assert "from where the devices of ResourceClaim default/c1 cannot be reached" in found


def test_pod_with_devices_scheduled_to_a_missing_node_is_reported():
    """The verifier cannot check devices on a missing node, but still reports that the node does not exist."""
    snapshot, results = a_case()

    found = objections(snapshot, replace(results, existing={"node-gone": ("default/p0",)}, devices={}))

    assert "node node-gone gets pods (default/p0) although it does not exist" in found


def test_only_the_newest_generation_of_a_resource_slice_pool_counts():
    """The planned device is only in a ResourceSlice of an older generation."""
    snapshot, results = a_case()
    old = a_slice("s", gpus(1), node=NODE)
    new = a_slice("t", [gpu("gpu-9")], node=NODE, generation=2)

    found = objections(replace(snapshot, resource_slices=(old, new)), results)

    assert "there is no device gpu.example.com/node-a/gpu-0 to be had" in found


def test_resource_slices_of_older_generations_are_ignored():
    """The newest generation has the planned device and is complete."""
    snapshot, results = a_case()
    old = a_slice("s", [gpu("gpu-9")], node=NODE)
    new = a_slice("t", gpus(1), node=NODE, generation=2)

    assert objections(replace(snapshot, resource_slices=(old, new)), results) == ""


def test_resource_claim_stays_allocated_while_one_of_its_pods_remains():
    """One of the two pods that use the ResourceClaim is being deleted, the other remains."""
    snapshot, results = a_case()
    leaving = a_pod("leaving", metadata={"uid": "uid-leaving", "deletionTimestamp": stamp(NOW)})
    claim = an_allocated_claim("held", (NODE, "gpu-0"), users=["uid-leaving", "uid-staying"])
    changed = replace(snapshot, pods=(*snapshot.pods, leaving), resource_claims=(*snapshot.resource_claims, claim))

    assert "device gpu.example.com/node-a/gpu-0 is taken 2 times" in objections(changed, results)


def test_resource_claim_is_released_when_all_its_pods_are_being_deleted():
    """The only pod that uses the ResourceClaim is being deleted."""
    snapshot, results = a_case()
    leaving = a_pod("leaving", metadata={"uid": "uid-leaving", "deletionTimestamp": stamp(NOW)})
    claim = an_allocated_claim("held", (NODE, "gpu-0"), users=["uid-leaving"])
    changed = replace(snapshot, pods=(*snapshot.pods, leaving), resource_claims=(*snapshot.resource_claims, claim))

    assert "taken 2 times" not in objections(changed, results)


def test_devices_that_the_cluster_has_given_out_twice_are_no_defect_of_the_plan():
    """Two claims have one device, and a third one has more of a counter than there is; the plan needs neither."""
    snapshot, results = a_case()
    drawn = [{"counterSet": "m", "counters": {"memory": {"value": "40Gi"}}}]
    half = {"sharedCounters": [{"name": "m", "counters": {"memory": {"value": "20Gi"}}}]}
    slices = (
        *snapshot.resource_slices,
        a_slice("counters", [], pool="far", of=2, **half, allNodes=True),
        a_slice("far", gpus(2, consumesCounters=drawn), pool="far", of=2, allNodes=True),
    )
    held = [an_allocated_claim(f"held-{n}", ("far", "gpu-0")) for n in range(2)]
    claims = (*snapshot.resource_claims, *held, an_allocated_claim("more", ("far", "gpu-1")))

    assert objections(replace(snapshot, resource_claims=claims, resource_slices=slices), results) == ""


def test_take_maximum_keeps_the_larger_amount_of_each_counter():
    """The larger amount may be on either side, or the counter only on one side."""
    left, right = DeviceUsage(), DeviceUsage()
    left.add({("a",): 1, ("b",): 5})
    right.add({("a",): 3, ("b",): 2, ("c",): 4})

    left.take_maximum(right)

    assert left.parts == {("a",): 3, ("b",): 5, ("c",): 4}
    assert list(left.excess({("a",): 2, ("b",): 5, ("c",): 4})) == ["more of a is taken than there is"]
