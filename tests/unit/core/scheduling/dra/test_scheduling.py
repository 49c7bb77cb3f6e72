"""Pods with ResourceClaims: their existing and new nodes, and their devices; `verify` accepts every plan."""

from __future__ import annotations

import pytest

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.nodeclaim_templates import to_node_claim
from journeyman.core.scheduling.results import Options
from journeyman.core.scheduling.scheduler import pods_to_schedule, solve
from journeyman_simulator.judge import verify_strictly
from tests.helpers.builders import (
    LARGE,
    MEDIUM,
    NOW,
    SMALL,
    a_launched_claim,
    a_node,
    a_pod,
    a_pool,
    a_running_claim,
    a_snapshot,
    an_instance_type,
    stamp,
)
from tests.helpers.devices import (
    DRIVER,
    a_claiming_pod,
    a_device_class,
    a_resource_claim,
    a_slice,
    an_allocated_claim,
    exactly,
    first_of,
    gpu,
    gpus,
    selecting,
    slice_spec,
    with_devices,
)

PLANNING = Options(ignore_dra_requests=False)
ONE_GPU = with_devices(an_instance_type("g.one", cpu=4, memory_gib=16, price=1.0), slice_spec(gpus(1)))
FOUR_GPUS = with_devices(an_instance_type("g.four", cpu=16, memory_gib=64, price=3.5), slice_spec(gpus(4)))
H100 = with_devices(an_instance_type("h.one", cpu=4, memory_gib=16, price=2.0), slice_spec(gpus(1, "H100")))
TYPES = (SMALL, MEDIUM, LARGE, ONE_GPU, FOUR_GPUS, H100)


def schedule(*pods, resource_claims=(), slices=(), types=TYPES, options=PLANNING, classes=None, **cluster):
    """Return the verified plan for these pods."""
    snapshot = a_snapshot(
        pods=tuple(sorted(pods, key=lambda p: p.key)),
        resource_claims=tuple(resource_claims),
        resource_slices=tuple(slices),
        device_classes=(a_device_class(),) if classes is None else classes,
        **cluster,
    )
    catalogue = Catalogue({pool.metadata.name: types for pool in snapshot.node_pools})
    results = solve(snapshot, catalogue, options=options)
    ignored = options.ignore_dra_requests
    assert (
        verify_strictly(snapshot, catalogue, results, pods=pods_to_schedule(snapshot), ignore_dra_requests=ignored)
        == ()
    )
    return results


def new_nodes(results):
    """Return the instance types and pods of every new node."""
    return sorted((claim.instance_types, claim.pods) for claim in results.new_claims)


def error(results, pod="p"):
    """Return the kind and message of a pod's error."""
    found = results.pod_errors[f"default/{pod}"]
    return f"{found.kind}: {found.message}"


def a_cluster(*nodes, initialized=True):
    """Return nodes and their NodeClaims; the node of NodeClaim `a` is `node-a`."""
    make = a_running_claim if initialized else a_launched_claim
    kinds = {labels.NODEPOOL: "default", labels.INSTANCE_TYPE: "g.one"}
    metadata = {"labels": kinds}
    return {
        "claims": tuple(make(name, metadata=metadata) for name in nodes),
        "nodes": tuple(a_node(name, metadata=metadata) for name in nodes) if initialized else (),
    }


# -- new nodes --------------------------------------------------------------------------------------------------------


def test_new_node_has_the_devices_of_a_resource_claim():
    """The NodeClaim lists only types with matching devices, and the driver to wait for."""
    results = schedule(
        a_claiming_pod("p", "gpu"), resource_claims=[a_resource_claim("gpu", exactly(select=selecting("A100")))]
    )

    (claim,) = results.new_claims
    assert claim.instance_types == ("g.one", "g.four")
    assert claim.price == 1.0
    assert claim.dra_drivers == (DRIVER,)
    assert [g.device for g in claim.devices["g.four"]] == ["gpu-0"]


def test_nodeclaim_annotation_names_the_dra_drivers_to_wait_for():
    """The annotation is Karpenter's; NodeClaims without devices do not have it."""
    with_gpu = schedule(a_claiming_pod("p", "gpu"), resource_claims=[a_resource_claim("gpu")]).new_claims[0]
    plain = schedule(a_pod("p")).new_claims[0]

    annotations = [
        to_node_claim(c, a_pool(), name="n", hash="1", hash_version="v3")["metadata"]["annotations"]
        for c in (with_gpu, plain)
    ]

    assert annotations[0]["karpenter.sh/requested-dra-drivers"] == DRIVER
    assert "karpenter.sh/requested-dra-drivers" not in annotations[1]


def test_pod_with_a_resource_claim_has_an_error_by_default():
    """As in Karpenter, the scheduler skips the pod and schedules the others."""
    results = schedule(
        a_claiming_pod("p", "gpu"), a_pod("q"), resource_claims=[a_resource_claim("gpu")], options=Options()
    )

    assert error(results).startswith("unsupported: pod has Dynamic Resource Allocation requirements")
    assert [claim.pods for claim in results.new_claims] == [("default/q",)]


def test_pods_with_own_resource_claims_share_the_devices_of_nodes():
    """Five ResourceClaims get five GPUs, and no GPU twice."""
    pods = [a_claiming_pod(f"p{i}", made=[f"gpu-{i}"]) for i in range(5)]
    claims = [a_resource_claim(f"gpu-{i}", exactly(select=selecting("A100"))) for i in range(5)]

    results = schedule(*pods, resource_claims=claims)

    assert not results.pod_errors
    assert sum(len(claim.devices[claim.instance_types[0]]) for claim in results.new_claims) == 5
    granted = {g.claim for claim in results.new_claims for g in claim.devices[claim.instance_types[0]]}
    assert granted == {f"default/gpu-{i}" for i in range(5)}


def test_pods_with_a_shared_resource_claim_share_a_new_node():
    """Pods can use the device of a new node only there."""
    pods = [a_claiming_pod(f"p{i}", "shared", cpu="1500m") for i in range(3)]

    results = schedule(*pods, resource_claims=[a_resource_claim("shared")])

    (claim,) = results.new_claims
    assert claim.pods == ("default/p0", "default/p1", "default/p2")
    assert claim.instance_types == ("g.four",)


def test_pod_that_does_not_fit_beside_its_shared_claim_stays_pending():
    """The device is on the first pod's node, and no type holds both pods."""
    pods = [a_claiming_pod(f"p{i}", "shared", cpu="9") for i in range(2)]

    results = schedule(*pods, resource_claims=[a_resource_claim("shared")])

    assert [claim.pods for claim in results.new_claims] == [("default/p0",)]
    assert "cannot be had together on one node" in error(results, "p1")


def test_all_requests_of_a_resource_claim_are_for_one_node():
    """Three devices of one request and one of another need the node with four."""
    claim = a_resource_claim("gpu", exactly("many", count=3), exactly("one"))

    assert new_nodes(schedule(a_claiming_pod("p", "gpu"), resource_claims=[claim])) == [(("g.four",), ("default/p",))]


def test_allocation_mode_all_takes_every_matching_device_of_the_node():
    """The second pod needs another node."""
    claims = [a_resource_claim(f"gpu-{i}", exactly(allocationMode="All")) for i in range(2)]
    pods = [a_claiming_pod(f"p{i}", f"gpu-{i}") for i in range(2)]

    results = schedule(*pods, resource_claims=claims, types=(SMALL, FOUR_GPUS))

    assert new_nodes(results) == [(("g.four",), ("default/p0",)), (("g.four",), ("default/p1",))]
    assert {len(claim.devices["g.four"]) for claim in results.new_claims} == {4}


@pytest.mark.parametrize(
    ("claims", "schedulable"),
    [
        (([32],), True),
        (([33],), False),
        (([16, 16],), True),
        (([16, 17],), False),
        (([20], [20]), True),
    ],
)
def test_each_resource_claim_has_at_most_32_devices(claims, schedulable):
    """Kubernetes limits the devices of a ResourceClaim, all requests together; a pod may have several ResourceClaims."""
    types = (with_devices(an_instance_type("g.many", cpu=4, memory_gib=16, price=9.0), slice_spec(gpus(40))),)
    made = [
        a_resource_claim(f"c{n}", *(exactly(f"r{i}", count=count) for i, count in enumerate(counts)))
        for n, counts in enumerate(claims)
    ]

    results = schedule(a_claiming_pod("p", *(c.metadata.name for c in made)), resource_claims=made, types=types)

    assert (not results.pod_errors) == schedulable


def test_allocation_mode_all_has_at_most_32_devices():
    """Mode All counts the devices of the node: 32 of one type are allocated, 33 of the other are not."""
    types = tuple(
        with_devices(an_instance_type(f"g.{n}", cpu=4, memory_gib=16, price=float(n)), slice_spec(gpus(n)))
        for n in (32, 33)
    )

    results = schedule(
        a_claiming_pod("p", "all"),
        resource_claims=[a_resource_claim("all", exactly(allocationMode="All"))],
        types=types,
    )

    assert new_nodes(results) == [(("g.32",), ("default/p",))]


def test_first_available_subrequest_leaves_devices_for_the_other_requests_of_its_claim():
    """Twenty and sixteen devices exceed the 32 of a ResourceClaim, so the second alternative is used."""
    types = (with_devices(an_instance_type("g.many", cpu=4, memory_gib=16, price=9.0), slice_spec(gpus(40))),)
    claim = a_resource_claim("c", first_of({"count": 20}, {"count": 1}, name="first"), exactly("second", count=16))

    (node,) = schedule(a_claiming_pod("p", "c"), resource_claims=[claim], types=types).new_claims

    assert len(node.devices["g.many"]) == 17


def test_first_available_subrequest_is_allocated():
    """No type has a B200; the H100 is next, before the cheaper A100."""
    options = [{"selectors": [{"cel": {"expression": selecting(m)}}]} for m in ("B200", "H100", "A100")]
    claim = a_resource_claim("gpu", first_of(*options))

    (opened_for,) = schedule(a_claiming_pod("p", "gpu"), resource_claims=[claim]).new_claims

    by_type = {name: grants[0].request for name, grants in opened_for.devices.items()}
    assert by_type == {"g.one": "gpu/option-2", "g.four": "gpu/option-2", "h.one": "gpu/option-1"}


def test_match_attribute_constraint_excludes_types_without_equal_devices():
    """Two GPUs must have the same root; one type has only GPUs with different roots."""
    apart = [gpu(f"gpu-{n}", attributes={"root": {"string": f"r{n}"}}) for n in range(2)]
    together = [gpu(f"gpu-{n}", attributes={"root": {"string": f"r{n // 2}"}}) for n in range(3)]
    types = (
        with_devices(an_instance_type("apart", cpu=4, memory_gib=16, price=1), slice_spec(apart)),
        with_devices(an_instance_type("together", cpu=4, memory_gib=16, price=2), slice_spec(together)),
    )
    claim = a_resource_claim("gpu", exactly(count=2), match=f"{DRIVER}/root")

    assert new_nodes(schedule(a_claiming_pod("p", "gpu"), resource_claims=[claim], types=types)) == [
        (("together",), ("default/p",))
    ]


@pytest.mark.parametrize("together", [False, True])
def test_partitions_of_a_device_share_its_counters(together):
    """Of two halves and a whole, a node provides the two halves or the whole; its type may list them beside the counters."""

    def partition(name, amount):
        drawn = {"counterSet": "gpu-0", "counters": {"memory": {"value": amount}}}
        return gpu(name, name[:4], consumesCounters=[drawn])

    parts = [partition("whole", "40Gi"), partition("half-0", "20Gi"), partition("half-1", "20Gi")]
    counters = [{"name": "gpu-0", "counters": {"memory": {"value": "40Gi"}}}]
    apart = [slice_spec(parts), slice_spec([], sharedCounters=counters)]
    slices = [slice_spec(parts, sharedCounters=counters)] if together else apart
    split = with_devices(an_instance_type("split", cpu=16, memory_gib=64, price=1), *slices)
    wholes = [a_resource_claim(f"whole-{n}", exactly(select=selecting("whol"))) for n in range(1)]
    halves = [a_resource_claim(f"half-{n}", exactly(select=selecting("half"))) for n in range(3)]
    pods = [a_claiming_pod(f"p{n}", c.metadata.name) for n, c in enumerate((*wholes, *halves))]

    results = schedule(*pods, resource_claims=(*wholes, *halves), types=(split,))

    assert sorted(len(claim.pods) for claim in results.new_claims) == [1, 1, 2]


def test_shared_device_capacity_is_rounded_up_for_each_request():
    """Requests for 9Gi consume 10Gi, so four fit into 40Gi."""
    policy = {"default": "40Gi", "validRange": {"min": "5Gi", "step": "5Gi", "max": "20Gi"}}
    shared = gpu(
        "gpu-0", allowMultipleAllocations=True, capacity={"memory": {"value": "40Gi", "requestPolicy": policy}}
    )
    sliced = with_devices(an_instance_type("sliced", cpu=16, memory_gib=64, price=1), slice_spec([shared]))
    claims = [a_resource_claim(f"c{n}", exactly(capacity={"requests": {"memory": "9Gi"}})) for n in range(5)]
    pods = [a_claiming_pod(f"p{n}", f"c{n}") for n in range(5)]

    results = schedule(*pods, resource_claims=claims, types=(sliced,))

    assert sorted(len(claim.pods) for claim in results.new_claims) == [1, 4]


def test_request_above_the_maximum_of_a_shared_device_fails():
    """30Gi exceed the policy's maximum of 20Gi, although 40Gi are free."""
    policy = {"validRange": {"min": "5Gi", "max": "20Gi"}}
    shared = gpu(
        "gpu-0", allowMultipleAllocations=True, capacity={"memory": {"value": "40Gi", "requestPolicy": policy}}
    )
    sliced = with_devices(an_instance_type("sliced", cpu=16, memory_gib=64, price=1), slice_spec([shared]))
    claim = a_resource_claim("c", exactly(capacity={"requests": {"memory": "30Gi"}}))

    results = schedule(a_claiming_pod("p", "c"), resource_claims=[claim], types=(sliced,))

    assert "the devices for request 'gpu' (DeviceClass gpu) cannot be had" in error(results)


# -- published devices ------------------------------------------------------------------------------------------------


def test_published_devices_are_used_before_a_node_is_opened():
    """The first pod gets the GPU of the existing node, the second pod a new node."""
    pods = [a_claiming_pod(f"p{n}", made=[f"c{n}"]) for n in range(2)]
    claims = [a_resource_claim(f"c{n}") for n in range(2)]

    results = schedule(*pods, resource_claims=claims, slices=[a_slice("s", gpus(1), node="node-a")], **a_cluster("a"))

    assert results.existing == {"node-a": ("default/p0",)}
    assert [g.device for g in results.devices["node-a"]] == ["gpu-0"]
    assert [claim.pods for claim in results.new_claims] == [("default/p1",)]


def test_device_of_an_allocated_claim_without_pods_is_not_available():
    """No pod uses the other claim, but it still has its allocation."""
    taken = an_allocated_claim("other", ("node-a", "gpu-0"))

    results = schedule(
        a_claiming_pod("p", "c"),
        resource_claims=[a_resource_claim("c"), taken],
        slices=[a_slice("s", gpus(1), node="node-a")],
        **a_cluster("a"),
    )

    assert not results.existing
    assert len(results.new_claims) == 1


def test_device_of_a_deleting_pod_is_available():
    """The only pod that uses the claim is being deleted, so another pod gets its GPU."""
    going = a_claiming_pod("going", "other", node="node-a", metadata={"deletionTimestamp": stamp(NOW)})
    held = an_allocated_claim("other", ("node-a", "gpu-0"), users=["uid-going"], node="node-a")

    results = schedule(
        a_claiming_pod("p", "c"),
        going,
        resource_claims=[a_resource_claim("c"), held],
        slices=[a_slice("s", gpus(1), node="node-a")],
        **a_cluster("a"),
    )

    assert results.existing == {"node-a": ("default/p",)}


def test_allocated_claim_binds_its_pods_to_the_node_of_its_devices():
    """A second pod that shares the claim goes to the same node."""
    user = a_claiming_pod("user", "shared", node="node-b")
    held = an_allocated_claim("shared", ("node-b", "gpu-0"), users=["uid-user"], node="node-b")
    slices = [a_slice(f"s-{n}", gpus(1), node=f"node-{n}") for n in "ab"]

    results = schedule(
        a_claiming_pod("p", "shared"), user, resource_claims=[held], slices=slices, **a_cluster("a", "b")
    )

    assert results.existing == {"node-b": ("default/p",)}


def test_pod_joins_a_bound_pod_whose_shared_claim_is_not_allocated_yet():
    """The plan names the claim's devices on the node of the bound pod, also for a pod on another node."""
    user = a_claiming_pod("user", "shared", node="node-b", cpu="3")
    claim = a_resource_claim("shared")

    def devices_of(slices, cpu):
        pod = a_claiming_pod("p", "shared", cpu=cpu)
        results = schedule(pod, user, resource_claims=[claim], slices=slices, **a_cluster("a", "b"))
        (where,) = results.existing
        return where, {node: [grant.device for grant in grants] for node, grants in results.devices.items()}

    local = [a_slice(f"s-{n}", gpus(1), node=f"node-{n}") for n in "ab"]
    assert devices_of(local, "500m") == ("node-b", {"node-b": ["gpu-0"]})
    assert devices_of([a_slice("fabric", gpus(1), allNodes=True)], "2") == ("node-a", {"node-b": ["gpu-0"]})


def test_network_devices_restrict_a_new_node_to_their_zone():
    """They are used before a more expensive GPU node is launched, and the NodeClaim requires their zone."""
    zonal = an_instance_type("z", cpu=4, memory_gib=16, price=0.2, zones=("a", "b"))
    term = {"matchExpressions": [{"key": labels.ZONE, "operator": "In", "values": ["b"]}]}
    slices = [a_slice("fabric", gpus(2), nodeSelector={"nodeSelectorTerms": [term]})]
    pods = [a_claiming_pod(f"p{n}", made=[f"c{n}"], cpu="2") for n in range(3)]
    claims = [a_resource_claim(f"c{n}") for n in range(3)]

    results = schedule(*pods, resource_claims=claims, slices=slices, types=(zonal, ONE_GPU))

    by_zone = {claim.offering[:2]: claim.dra_drivers for claim in results.new_claims}
    assert by_zone == {("z", "b"): (), ("g.one", "a"): (DRIVER,)}
    assert not results.pod_errors


def test_in_flight_node_has_the_unallocated_devices_of_its_type():
    """Its planned pod gets the GPU; the next pod needs another node."""
    mine = {labels.INSTANCE_TYPE: "g.one", labels.NODEPOOL: "default"}
    planned = {labels.PLANNED_PODS: "default/first"}
    claim = a_launched_claim("a", metadata={"labels": mine, "annotations": planned})
    pods = [a_claiming_pod(name, made=[f"c-{name}"]) for name in ("first", "second")]
    claims = [a_resource_claim(f"c-{name}") for name in ("first", "second")]

    results = schedule(*pods, resource_claims=claims, claims=(claim,))

    assert results.existing == {"a": ("default/first",)}
    assert [c.pods for c in results.new_claims] == [("default/second",)]


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            exactly(deviceClassName="tpu"),
            "invalid: ResourceClaim default/c request gpu: DeviceClass 'tpu' does not exist",
        ),
        (exactly(select="device.driver =="), "unsupported: ResourceClaim default/c request gpu: selector"),
        (exactly(select="device.attributes.all(d, d == 'x')"), "d is not a supported name"),
        (exactly(selectors=[{}]), "unsupported: ResourceClaim default/c request gpu: a selector that is not CEL"),
        (exactly(count=0), "asks for 0 devices"),
        (exactly(count=33), "asks for 33 devices, 32 are the most"),
        (exactly(allocationMode="Most"), "allocationMode 'Most' is not ExactCount or All"),
        (exactly(capacity={"requests": {"memory": "lots"}}), "'lots' is not a quantity"),
        (exactly(capacity={"requests": {"memory": "-1Gi"}}), "'-1Gi' is negative"),
        ({"name": "gpu"}, "request gpu asks for nothing"),
    ],
    ids=["class", "malformed", "macro", "not-cel", "zero", "many", "mode", "quantity", "negative", "empty"],
)
def test_invalid_resource_claim_gives_its_pods_an_error(request_, message):
    """Other pods are scheduled."""
    claims = [a_resource_claim("c", request_), a_resource_claim("good")]

    results = schedule(a_claiming_pod("p", "c"), a_claiming_pod("q", "good"), a_pod("r"), resource_claims=claims)

    assert message in error(results)
    assert set(results.pod_errors) == {"default/p"}


@pytest.mark.parametrize(
    ("pod", "message"),
    [
        (a_claiming_pod("p", "c"), "invalid: ResourceClaim default/c does not exist"),
        (
            a_claiming_pod("p", made=["x"], status={"resourceClaimStatuses": []}),
            "invalid: ResourceClaim default/x does not exist",
        ),
        (
            a_pod("p", spec={"containers": [{"name": "c", "resources": {"claims": [{"name": "gpu"}]}}]}),
            "invalid: a container uses 'gpu', which is not among the pod's resourceClaims",
        ),
        (
            a_pod("p", spec={"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]}),
            "invalid: the ResourceClaim for 'gpu' has not been made from its template yet",
        ),
    ],
    ids=["named", "made", "container", "not-made"],
)
def test_pod_without_its_resource_claim_has_an_error(pod, message):
    """Other pods are scheduled."""
    results = schedule(pod, a_pod("r"))

    assert message in error(results)
    assert set(results.pod_errors) == {"default/p"}


def test_pod_that_needs_no_claim_from_its_template_is_scheduled():
    """An entry without a name in the pod's status means that it needs none."""
    entry = {"spec": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]}}
    pod = a_pod("p", **entry, status={"resourceClaimStatuses": [{"name": "gpu"}]})

    assert not schedule(pod).pod_errors


def test_deleting_resource_claim_gives_its_pods_an_error():
    """Kubernetes can create no new claim of that name before it is deleted."""
    going = a_resource_claim("c", metadata={"name": "c", "namespace": "default", "deletionTimestamp": stamp(NOW)})

    assert "ResourceClaim default/c is being deleted" in error(
        schedule(a_claiming_pod("p", "c"), resource_claims=[going])
    )


def test_constraints_other_than_match_attribute_are_not_supported():
    """As in Karpenter 1.14, the pod has an error."""
    spec = {"devices": {"requests": [exactly()], "constraints": [{"distinctAttribute": "a/b"}]}}

    results = schedule(a_claiming_pod("p", "c"), resource_claims=[a_resource_claim("c", spec=spec)])

    assert "has a constraint other than matchAttribute" in error(results)


def test_error_names_the_request_that_no_device_satisfies():
    """It also names the DeviceClass."""
    claim = a_resource_claim("c", exactly(select=selecting("B200")))

    results = schedule(a_claiming_pod("p", "c"), resource_claims=[claim])

    assert error(results).endswith(
        "no published device and no instance type has what request 'gpu' (DeviceClass gpu) selects"
    )


@pytest.mark.parametrize(
    "slices",
    [
        [a_slice("s", gpus(1), node="node-a", of=2)],
        [
            a_slice("s", gpus(1), node="node-a", pool="p"),
            a_slice("t", [], node="node-a", pool="p", generation=2),
        ],
        [a_slice("s", [gpu("twin"), gpu("twin")], node="node-a")],
        [a_slice("s", [gpu("odd", capacity={"memory": {"value": "much"}})], node="node-a")],
        [a_slice("s", gpus(1), node="node-gone")],
        [a_slice("s", gpus(1, taints=[{"key": "broken", "effect": "NoSchedule"}]), node="node-a")],
        [a_slice("s", gpus(1))],
        [
            a_slice(
                "s", gpus(1, consumesCounters=[{"counterSet": "x", "counters": {"m": {"value": "1"}}}]), node="node-a"
            )
        ],
    ],
    ids=["incomplete", "outdated", "twins", "odd", "no-node", "tainted", "nowhere", "no-counters"],
)
def test_unusable_published_devices_are_not_allocated(slices):
    """The pod gets a new node."""
    results = schedule(
        a_claiming_pod("p", "c"), resource_claims=[a_resource_claim("c")], slices=slices, **a_cluster("a")
    )

    assert not results.existing
    assert len(results.new_claims) == 1


def test_request_with_a_toleration_gets_a_tainted_device():
    """The request has the toleration, not the pod."""
    tainted = a_slice("s", gpus(1, taints=[{"key": "old", "effect": "NoSchedule"}]), node="node-a")
    claim = a_resource_claim("c", exactly(tolerations=[{"key": "old", "operator": "Exists"}]))

    results = schedule(a_claiming_pod("p", "c"), resource_claims=[claim], slices=[tainted], **a_cluster("a"))

    assert results.existing == {"node-a": ("default/p",)}


def test_admin_access_request_gets_a_device_in_use():
    """The pods that use the device keep it."""
    held = an_allocated_claim("other", ("node-a", "gpu-0"), users=["uid-user"])
    claim = a_resource_claim("c", exactly(adminAccess=True))

    results = schedule(
        a_claiming_pod("p", "c"),
        resource_claims=[claim, held],
        slices=[a_slice("s", gpus(1), node="node-a")],
        **a_cluster("a"),
    )

    assert results.existing == {"node-a": ("default/p",)}


def test_each_device_of_a_slice_may_name_its_own_node():
    """The slice has `perDeviceNodeSelection`."""
    devices = [gpu("gpu-a", nodeName="node-a"), gpu("gpu-b", nodeName="node-b")]
    pods = [a_claiming_pod(f"p{n}", made=[f"c{n}"]) for n in range(2)]
    claims = [a_resource_claim(f"c{n}") for n in range(2)]

    results = schedule(
        *pods,
        resource_claims=claims,
        slices=[a_slice("s", devices, perDeviceNodeSelection=True)],
        **a_cluster("a", "b"),
    )

    assert results.existing == {"node-a": ("default/p0",), "node-b": ("default/p1",)}


# -- effort and order -------------------------------------------------------------------------------------------------


def test_search_for_devices_stops_after_a_number_of_tries():
    """Twenty of forty partitions, all of different sizes, are too large together, whichever of them are taken."""
    partitions = [
        gpu(f"gpu-{n}", consumesCounters=[{"counterSet": "all", "counters": {"memory": {"value": str(1000 + n)}}}])
        for n in range(40)
    ]
    counters = slice_spec([], sharedCounters=[{"name": "all", "counters": {"memory": {"value": "19999"}}}])
    odd = with_devices(an_instance_type("odd", cpu=64, memory_gib=64, price=1), slice_spec(partitions), counters)

    results = schedule(
        a_claiming_pod("p", "c"), resource_claims=[a_resource_claim("c", exactly(count=20))], types=(odd,)
    )

    assert "cannot be had together on one node" in error(results)


def test_order_of_pods_claims_and_slices_does_not_change_the_plan():
    """The reverse order gives the same plan."""
    pods = [a_claiming_pod(f"p{n}", made=[f"c{n}"]) for n in range(6)]
    claims = [a_resource_claim(f"c{n}", exactly(count=1 + n % 2)) for n in range(6)]
    slices = [a_slice(f"s-{n}", gpus(2), node=f"node-{n}") for n in "ab"]
    cluster = a_cluster("a", "b")

    forward = schedule(*pods, resource_claims=claims, slices=slices, **cluster)
    backward = schedule(*pods[::-1], resource_claims=claims[::-1], slices=slices[::-1], **cluster)

    assert forward == backward


def test_dra_option_does_not_change_the_plan_of_pods_without_claims():
    """The plan is the same with the option on and off."""
    pods = [a_pod(f"p{n}", cpu="700m") for n in range(20)]

    assert schedule(*pods) == schedule(*pods, options=Options())
