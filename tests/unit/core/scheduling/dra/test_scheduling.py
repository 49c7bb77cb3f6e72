"""Pods with ResourceClaims: their existing and new nodes, and their devices; `verify` accepts every plan."""

from __future__ import annotations

import subprocess
import sys

import pytest

from journeyman.core.api import labels
from journeyman.core.scheduling.results import Options
from tests.helpers.builders import (
    NOW,
    a_launched_claim,
    a_node,
    a_pod,
    a_running_claim,
    an_instance_type,
    stamp,
)
from tests.helpers.device_allocation import asking, brought, claim, published
from tests.helpers.devices import (
    DRIVER,
    a_claiming_pod,
    a_resource_claim,
    a_slice,
    an_allocated_claim,
    exactly,
    gpu,
    schedule_devices,
    table,
    with_devices,
)
from tests.helpers.karpenter_suite import schedule as schedule_without_claims

ONE_GPU = with_devices(an_instance_type("g.one", cpu=4, memory_gib=16, price=1.0), *brought("gpu-0"))
FOUR_GPUS = with_devices(an_instance_type("g.four", cpu=16, memory_gib=64, price=3.5), *brought("gpu-0..3"))


def schedule(*pods, types=(ONE_GPU, FOUR_GPUS), **cluster):
    """Return the verified results for these pods."""
    return schedule_devices(*pods, types=types, **cluster).results


def error(results, pod="p"):
    """Return the kind and message of a pod's error."""
    found = results.pod_errors[f"default/{pod}"]
    return f"{found.kind}: {found.message}"


def a_cluster(*names):
    """Return nodes and their NodeClaims; the node of NodeClaim `a` is `node-a`."""
    metadata = {"labels": {labels.NODEPOOL: "default", labels.INSTANCE_TYPE: "g.one"}}
    return {
        "nodeclaims": tuple(a_running_claim(name, metadata=metadata) for name in names),
        "nodes": tuple(a_node(name, metadata=metadata) for name in names),
    }


def each_on_its_node(*names):
    """Return a slice with one GPU of each node."""
    return [a_slice(f"s-{name}", "gpu-0", node=f"node-{name}") for name in names]


# -- new nodes


def test_pod_with_a_resource_claim_has_an_error_by_default():
    """As in Karpenter, the scheduler skips the pod and schedules the others."""
    pods = (a_claiming_pod("p", "c"), a_pod("q"))

    results = schedule_without_claims(*pods, types=(ONE_GPU,), resource_claims=(claim("1"),), options=Options()).results

    assert error(results).startswith("unsupported: pod has Dynamic Resource Allocation requirements")
    assert [node.pods for node in results.new_claims] == [("default/q",)]


def test_pod_that_does_not_fit_beside_its_shared_claim_stays_pending():
    """The device is on the first pod's node, and no type holds both pods."""
    results = schedule(*(a_claiming_pod(f"p{i}", "c", cpu="9") for i in range(2)), claims=[claim("1")])

    assert [node.pods for node in results.new_claims] == [("default/p0",)]
    assert "cannot be had together on one node" in error(results, "p1")


@pytest.mark.parametrize(("claims", "schedulable"), [(["32"], True), (["33"], False), (["20", "20"], True)])
def test_each_resource_claim_has_at_most_32_devices(claims, schedulable):
    """Kubernetes limits the devices of a ResourceClaim; a pod may have several ResourceClaims."""
    many = with_devices(an_instance_type("g.many", cpu=4, memory_gib=16, price=9.0), *brought("gpu-00..39"))
    made = [claim(text, f"c{n}") for n, text in enumerate(claims)]

    results = schedule(a_claiming_pod("p", *(c.metadata.name for c in made)), claims=made, types=(many,))

    assert (not results.pod_errors) is schedulable


def test_types_that_wait_for_other_drivers_than_the_cheapest_drop_out():
    """A node waits for the drivers that its cheapest type needs: here none, since all of its GPUs are published."""
    plain = an_instance_type("plain", cpu=4, memory_gib=16, price=0.5)

    (node,) = schedule(
        a_claiming_pod("p", "c"), claims=[claim("all")], slices=published("gpu-0"), types=(ONE_GPU, plain)
    ).new_claims

    assert (node.instance_types, node.dra_drivers) == (("plain",), ())


# -- existing nodes


def test_allocated_claim_binds_its_pods_to_the_node_of_its_devices():
    """A second pod that shares the claim goes to the same node."""
    user = a_claiming_pod("user", "shared", node="node-b")
    held = an_allocated_claim("shared", ("node-b", "gpu-0"), users=["uid-user"], node="node-b")
    pods = (a_claiming_pod("p", "shared"), user)

    results = schedule(*pods, claims=[held], slices=each_on_its_node("a", "b"), **a_cluster("a", "b"))

    assert results.existing == {"node-b": ("default/p",)}


@table(
    "slices, cpu, expected",
    {
        "of-the-node": (each_on_its_node("a", "b"), "500m", "node-b"),
        "of-all-nodes": (published("gpu-0"), "2", "node-a"),
    },
)
def test_pod_joins_a_bound_pod_whose_shared_claim_is_not_allocated_yet(slices, cpu, expected):
    """The plan names the claim's devices on the node of the bound pod, also for a pod on another node."""
    pods = (a_claiming_pod("p", "c", cpu=cpu), a_claiming_pod("user", "c", node="node-b", cpu="3"))

    results = schedule(*pods, claims=[claim("1")], slices=slices, **a_cluster("a", "b"))

    assert list(results.existing) == [expected]
    assert {node: [found.device for found in devices] for node, devices in results.devices.items()} == {
        "node-b": ["gpu-0"]
    }


@table(
    "metadata, existing, devices",
    {
        "running": ({}, {}, []),
        "deleting": ({"deletionTimestamp": stamp(NOW)}, {"node-a": ("default/p",)}, ["default/c"]),
    },
)
def test_bound_pod_holds_the_device_of_its_unallocated_claim_until_it_is_deleted(metadata, existing, devices):
    """The plan does not name it; while it holds the only GPU of its node, the other pod gets a new node."""
    pods = (a_claiming_pod("p", "c"), a_claiming_pod("user", "own", node="node-a", metadata=metadata))

    results = schedule(*pods, claims=[claim("1"), claim("1", "own")], slices=each_on_its_node("a"), **a_cluster("a"))

    assert results.existing == existing
    assert [found.claim for planned in results.devices.values() for found in planned] == devices
    assert len(results.new_claims) == (not existing)


def test_in_flight_node_has_the_unallocated_devices_of_its_type():
    """Its planned pod gets the GPU; the next pod needs another node."""
    own = {labels.INSTANCE_TYPE: "g.one", labels.NODEPOOL: "default"}
    planned = {"labels": own, "annotations": {labels.PLANNED_PODS: "default/first"}}
    names = ("first", "second")

    results = schedule(
        *(a_claiming_pod(name, made=[f"c-{name}"]) for name in names),
        claims=[claim("1", f"c-{name}") for name in names],
        nodeclaims=(a_launched_claim("a", metadata=planned),),
    )

    assert results.existing == {"a": ("default/first",)}
    assert [node.pods for node in results.new_claims] == [("default/second",)]


# -- devices that differ


TAINTS = {"taints": [{"key": "old", "effect": "NoSchedule"}]}
TOLERATING = exactly(tolerations=[{"key": "old", "operator": "Exists"}])
IN_USE = an_allocated_claim("other", ("node-a", "gpu-0"), users=["uid-user"])
ADMINS = {"request": "gpu", "driver": DRIVER, "pool": "node-a", "device": "gpu-0", "adminAccess": True}
BY_ADMIN = a_resource_claim("other", status={"allocation": {"devices": {"results": [ADMINS]}}})


@table(
    "device, wanted, held, gets_it",
    {
        "tainted": (gpu("gpu-0", **TAINTS), exactly(), (), False),
        "tolerated": (gpu("gpu-0", **TAINTS), TOLERATING, (), True),
        "tainted-otherwise": (gpu("gpu-0", taints=[{"key": "old", "effect": "None"}]), exactly(), (), True),
        "all-but-tainted": (gpu("gpu-0", **TAINTS), exactly(allocationMode="All"), (), False),
        "invalid-amount": (gpu("gpu-0", capacity={"memory": {"value": "much"}}), exactly(), (), False),
        "in-use": (gpu("gpu-0"), exactly(), (IN_USE,), False),
        "admin-access": (gpu("gpu-0"), exactly(adminAccess=True), (IN_USE,), True),
        "in-use-by-an-admin": (gpu("gpu-0"), exactly(), (BY_ADMIN,), True),
        "selector-without-value": (gpu("gpu-0"), exactly(select="device.attributes['x'].y == 1"), (), False),
        "all-without-value": (
            gpu("gpu-0"),
            exactly(select="device.attributes['x'].y == 1", allocationMode="All"),
            (),
            False,
        ),
    },
)
def test_request_gets_a_device_that_it_selects_and_tolerates(device, wanted, held, gets_it):
    """The request has the toleration, not the pod; one with adminAccess leaves the device to those that have it."""
    slices = [a_slice("s", [device], node="node-a")]

    results = schedule(
        a_claiming_pod("p", "c"), claims=[asking(wanted), *held], slices=slices, types=(), **a_cluster("a")
    )

    assert results.existing == ({"node-a": ("default/p",)} if gets_it else {})


def test_each_device_of_a_slice_may_name_its_own_node():
    """The slice has `perDeviceNodeSelection`."""
    devices = [gpu("gpu-a", nodeName="node-a"), gpu("gpu-b", nodeName="node-b"), gpu("gpu-c", allNodes=True)]

    results = schedule(
        *(a_claiming_pod(f"p{n}", made=[f"c{n}"], cpu="3") for n in range(2)),
        claims=[claim(f"{2 - n}", f"c{n}") for n in range(2)],
        slices=[a_slice("s", devices, perDeviceNodeSelection=True)],
        **a_cluster("a", "b"),
    )

    assert results.existing == {"node-a": ("default/p0",), "node-b": ("default/p1",)}


# -- bad input


@table(
    "found, message",
    {
        "class": (claim("1*tpu"), "invalid: ResourceClaim default/c request req-1: DeviceClass 'tpu' does not exist"),
        "malformed": (
            asking(exactly(select="device.driver ==")),
            "unsupported: ResourceClaim default/c request gpu: selector",
        ),
        "macro": (asking(exactly(select="device.attributes.all(d, d == 'x')")), "d is not a supported name"),
        "not-cel": (
            asking(exactly(selectors=[{}])),
            "unsupported: ResourceClaim default/c request gpu: a selector that is not CEL",
        ),
        "zero": (claim("0"), "invalid: ResourceClaim default/c request req-1: asks for 0 devices"),
        "many": (claim("33"), "asks for 33 devices, 32 are the most"),
        "mode": (
            asking(exactly(allocationMode="Most")),
            "unsupported: ResourceClaim default/c request gpu: allocationMode 'Most' is not ExactCount or All",
        ),
        "quantity": (claim("1*memory:lots"), "'lots' is not a quantity"),
        "negative": (claim("1*memory:-1Gi"), "'-1Gi' is negative"),
        "constraint": (asking(exactly(), match=[{}]), "unsupported: ResourceClaim default/c has a constraint other"),
        "deleting": (
            a_resource_claim("c", metadata={"name": "c", "namespace": "default", "deletionTimestamp": stamp(NOW)}),
            "invalid: ResourceClaim default/c is being deleted",
        ),
        "allocated-nowhere": (
            a_resource_claim("c", status={"allocation": {"nodeSelector": {"nodeSelectorTerms": [{}, {}]}}}),
            "unsupported: ResourceClaim default/c is allocated where its node selector cannot be read",
        ),
    },
)
def test_invalid_resource_claim_gives_its_pods_an_error(found, message):
    """Other pods are scheduled."""
    pods = (a_claiming_pod("p", "c"), a_claiming_pod("q", "good"), a_pod("r"))

    results = schedule(*pods, claims=[found, claim("1", "good")])

    assert message in error(results)
    assert set(results.pod_errors) == {"default/p"}


@table(
    "pod, message",
    {
        "named": (a_claiming_pod("p", "c"), "invalid: ResourceClaim default/c does not exist"),
        "made": (a_claiming_pod("p", made=["x"]), "invalid: ResourceClaim default/x does not exist"),
        "container": (
            a_pod("p", spec={"containers": [{"name": "c", "resources": {"claims": [{"name": "gpu"}]}}]}),
            "invalid: a container uses 'gpu', which is not among the pod's resourceClaims",
        ),
        "container-of-a-pod-with-claims": (
            a_claiming_pod(
                "p", "c", spec={"initContainers": [{"name": "i", "resources": {"claims": [{"name": "x"}]}}]}
            ),
            "invalid: a container uses 'x', which is not among the pod's resourceClaims",
        ),
        "not-made": (
            a_pod("p", spec={"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]}),
            "invalid: the ResourceClaim for 'gpu' has not been made from its template yet",
        ),
    },
)
def test_pod_without_its_resource_claim_has_an_error(pod, message):
    """Other pods are scheduled."""
    results = schedule(pod, a_pod("r"))

    assert message in error(results)
    assert set(results.pod_errors) == {"default/p"}


def test_pod_that_names_a_claim_twice_gets_its_device_once():
    """Both entries are the same ResourceClaim."""
    results = schedule(a_claiming_pod("p", "c", "c"), claims=[claim("1")], types=(ONE_GPU,))

    (node,) = results.new_claims
    assert len(node.devices["g.one"]) == 1


# -- effort


def test_search_for_devices_stops_after_a_number_of_tries():
    """Twenty of forty partitions, all of different sizes, are too large together, whichever of them are taken."""
    partitions = " ".join(f"gpu-{n}!{1000 + n}" for n in range(40))
    odd = with_devices(an_instance_type("odd", cpu=64, memory_gib=64, price=1), *brought(f"{partitions} with 19999"))

    results = schedule(a_claiming_pod("p", "c"), claims=[claim("20")], types=(odd,))

    assert "cannot be had together on one node" in error(results)


def test_pods_without_claims_are_planned_the_same_and_load_nothing_of_dra():
    """The option is on, and a claim exists that no pod uses."""
    pods = [a_pod(f"p{n}", cpu="700m") for n in range(20)]
    code = """
import sys
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.results import Options
from journeyman.core.scheduling.scheduler import solve
from tests.helpers.builders import a_pod, a_snapshot
from tests.helpers.devices import a_resource_claim

snapshot = a_snapshot(pods=(a_pod("p"),), resource_claims=(a_resource_claim("c"),))
solve(snapshot, Catalogue({"default": ()}), options=Options(ignore_dra_requests=False))
print([name for name in sys.modules if name.startswith("journeyman.core.scheduling.dra")])
"""
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert loaded.stdout.strip() == "[]"
    assert schedule(*pods) == schedule_without_claims(*pods, types=(ONE_GPU, FOUR_GPUS)).results
