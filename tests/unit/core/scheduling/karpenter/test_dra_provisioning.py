"""Karpenter's suites of dynamic resource allocation: which devices pods get on new and existing nodes."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.dra import ResourceClaim
from journeyman.core.catalogue import Catalogue
from journeyman.core.disruption.candidates import find_candidates
from journeyman.core.disruption.simulation import Simulation
from journeyman.core.scheduling.results import Options, PlannedClaim
from tests.helpers.builders import NOW, a_node, a_pod, a_running_claim, a_snapshot
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
    slice_spec,
    table,
    with_devices,
)
from tests.helpers.karpenter_suite import ZONES, fake_type, required, requirement, tiny

TYPE, ZONE = labels.INSTANCE_TYPE, labels.ZONE
PLAIN = fake_type("plain-it", cpu=16, memory="64Gi")
ALL = {"allocationMode": "All"}
NIC = exactly("nic", deviceClassName="nic")


def gpu_type(count, name="gpu-it", **kwargs):
    """An instance type whose nodes publish so many GPUs."""
    return with_devices(fake_type(name, **kwargs), slice_spec(named_devices(*(f"gpu-{n}" for n in range(count)))))


def sharing(policy=None):
    """An instance type with one GPU that several pods may share, by its 16Gi of memory."""
    memory = {"value": "16Gi", **({"requestPolicy": policy} if policy else {})}
    return with_devices(
        fake_type("gpu-it"),
        slice_spec([{"name": "gpu-0", "allowMultipleAllocations": True, "capacity": {"memory": memory}}]),
    )


def partitioned(budget, count, each, counter_set="gpu-slices"):
    """An instance type with so many partitions of one GPU, which draw on its counters."""
    drawn = [{"counterSet": counter_set, "counters": amounts(each)}]
    partitions = [{"name": f"gpu-{n}", "consumesCounters": drawn} for n in range(count)]
    counters = slice_spec([], sharedCounters=[{"name": "gpu-slices", "counters": amounts(budget)}])
    return with_devices(fake_type("gpu-it"), counters, slice_spec(partitions))


def amounts(of):
    """Counters as JSON."""
    return {name: {"value": value} for name, value in of.items()}


def of_capacity(**requests):
    """A request for a part of a device."""
    return exactly(capacity={"requests": requests})


# -- devices of new nodes


@table(
    "instance_type, requests, by_node",
    {
        "two-gpus": (gpu_type(2), [exactly()] * 2, [["gpu-0", "gpu-1"]]),
        "one-gpu": (gpu_type(1), [exactly()] * 2, [["gpu-0"], ["gpu-0"]]),
        "all": (gpu_type(3), [exactly(**ALL)], [["gpu-0", "gpu-1", "gpu-2"]]),
        "none": (fake_type("no-gpu-it"), [exactly()], []),
        "part": (sharing(), [of_capacity(memory="4Gi")], [["gpu-0"]]),
        "three-parts": (sharing(), [of_capacity(memory="4Gi")] * 3, [["gpu-0"] * 3]),
        "parts-of-two": (
            sharing(),
            [of_capacity(memory=f"{size}Gi") for size in (4, 4, 4, 8)],
            [["gpu-0"], ["gpu-0"] * 3],
        ),
        "too-large-a-part": (sharing(), [of_capacity(memory="32Gi")], []),
        "unknown-capacity": (sharing(), [of_capacity(memory="4Gi", bandwidth="10")], []),
        "no-valid-value": (
            sharing({"default": "4Gi", "validValues": ["4Gi", "8Gi", "16Gi"]}),
            [of_capacity(memory="32Gi")],
            [],
        ),
        "default-part": (sharing({"default": "4Gi"}), [exactly()] * 3, [["gpu-0"] * 3]),
        "partitions": (partitioned({"memory": "80Gi"}, 2, {"memory": "40Gi"}), [exactly()] * 2, [["gpu-0", "gpu-1"]]),
        "partitions-of-two": (
            partitioned({"memory": "80Gi"}, 3, {"memory": "40Gi"}),
            [exactly()] * 3,
            [["gpu-0"], ["gpu-0", "gpu-1"]],
        ),
        "two-counters": (
            partitioned({"memory": "80Gi", "compute": "100"}, 2, {"memory": "40Gi", "compute": "50"}),
            [exactly()] * 2,
            [["gpu-0", "gpu-1"]],
        ),
        "too-large-a-partition": (partitioned({"memory": "40Gi"}, 1, {"memory": "80Gi"}), [exactly()], []),
        "unknown-counters": (
            partitioned({"memory": "80Gi"}, 1, {"memory": "40Gi"}, counter_set="nonexistent-counter-set"),
            [exactly()],
            [],
        ),
        "partitions-apart": (
            partitioned({"compute": "100"}, 2, {"compute": "60"}),
            [exactly()] * 2,
            [["gpu-0"], ["gpu-0"]],
        ),
    },
)
def test_pods_get_devices_of_as_few_new_nodes_as_suffice(instance_type, requests, by_node):
    """Each pod has a claim of its own; without enough devices it is unschedulable."""
    pods = [a_claiming_pod(f"p{n}", f"c{n}", cpu="1m", memory="1Mi") for n in range(len(requests))]
    claims = [a_resource_claim(f"c{n}", request) for n, request in enumerate(requests)]

    plan = schedule_devices(*pods, types=(instance_type,), claims=claims)

    found = [sorted(d.device for d in node.devices[instance_type.name]) for node in plan.results.new_claims]
    assert sorted(found) == by_node
    assert bool(plan.results.pod_errors) is not bool(by_node)


def test_match_attribute_holds_for_devices_of_two_requests():
    """The two GPUs with equal roots are chosen, not the first one."""
    gpus = [{"name": f"gpu-{n}", "attributes": {"root": {"string": root}}} for n, root in enumerate("abb")]
    claim = a_resource_claim("c", exactly("a"), exactly("b"), match=f"{DRIVER}/root")
    types = (with_devices(fake_type("gpu-it"), slice_spec(gpus)),)

    plan = schedule_devices(a_claiming_pod("p", "c"), types=types, claims=[claim])

    assert devices_of(plan) == ["pool/gpu-1", "pool/gpu-2"]


@pytest.mark.parametrize(
    ("count", "chosen"),
    [
        (2, ["req/fallback-2"] * 2),
        (4, ["req/prefer-4"] * 4),
    ],
)
def test_first_alternative_that_the_node_has_is_chosen(count, chosen):
    """The plan names request and alternative of each device."""
    request = first_of({"name": "prefer-4", "count": 4}, {"name": "fallback-2", "count": 2}, name="req")

    plan = schedule_devices(a_claiming_pod("p", "c"), types=(gpu_type(count),), claims=[a_resource_claim("c", request)])

    assert [device.request for device in plan.node_of("p").devices["gpu-it"]] == chosen


BOTH_DRIVERS = with_devices(
    fake_type("multi-it"), slice_spec("gpu-0"), slice_spec("nic-0", pool="nics", driver=NIC_DRIVER)
)


@table(
    "pod, types, drivers",
    {
        "named": (a_claiming_pod("p", "c"), (fake_type("no-gpu-it"), gpu_type(1)), DRIVER),
        "from-template": (a_claiming_pod("p", made=["c"]), (gpu_type(1),), DRIVER),
        "two-drivers": (a_claiming_pod("p", "c", "nic"), (gpu_type(1), BOTH_DRIVERS), f"{DRIVER},{NIC_DRIVER}"),
        "no-claim": (tiny("p"), (gpu_type(1),), None),
        "no-claim-needed": (
            tiny(
                "p",
                spec={"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]},
                status={"resourceClaimStatuses": [{"name": "gpu"}]},
            ),
            (gpu_type(1),),
            None,
        ),
    },
)
def test_nodeclaim_has_types_with_the_devices_and_names_their_drivers(pod, types, drivers):
    """A pod without devices names none."""
    claims = [a_resource_claim("c"), a_resource_claim("nic", NIC)]

    plan = schedule_devices(pod, types=types, claims=claims)

    body = plan.manifest_of("p")
    assert plan.node_of("p").instance_types == (types[-1].name,)
    assert body["metadata"]["annotations"].get("karpenter.sh/requested-dra-drivers") == drivers


def test_pods_with_and_without_claims_are_scheduled_together():
    """The plan names the claim, its namespace, and its device."""
    plan = schedule_devices(
        a_claiming_pod("p", "c", cpu="1m"), tiny("plain"), types=(gpu_type(1),), claims=[a_resource_claim("c")]
    )

    (node,) = plan.results.new_claims
    assert node.pods == ("default/p", "default/plain")
    assert [(d.claim, d.driver, d.device) for d in node.devices["gpu-it"]] == [("default/c", DRIVER, "gpu-0")]


ARM_GPU = with_devices(fake_type("arm-gpu-it", arch="arm64"), slice_spec("gpu-0"))


@table(
    "pod, types, message",
    {
        "no-claim": (a_claiming_pod("p", "missing"), (gpu_type(1),), "ResourceClaim default/missing does not exist"),
        "no-class": (a_claiming_pod("p", "no-class"), (gpu_type(1),), "DeviceClass 'tpu' does not exist"),
        "zones": (a_claiming_pod("p", "c", "nic"), (PLAIN,), "cannot be had together on one node"),
        "architecture": (
            a_claiming_pod("p", "nic", spec=required([requirement(labels.ARCH, "In", "amd64")])),
            (with_devices(ARM_GPU, slice_spec("nic-0", driver=NIC_DRIVER)), PLAIN),
            "",
        ),
    },
)
def test_pod_without_the_devices_of_its_claims_launches_nothing(pod, types, message):
    """Its error says why. The GPUs are in one zone, the NICs in another one, and ARM nodes have both."""
    zonal = [] if types != (PLAIN,) else [in_zone("gpus", ZONES[0]), in_zone("nics", ZONES[1], driver=NIC_DRIVER)]
    claims = [a_resource_claim("c"), a_resource_claim("nic", NIC)]
    claims.append(a_resource_claim("no-class", exactly(deviceClassName="tpu")))

    plan = schedule_devices(pod, types=types, claims=claims, slices=zonal)

    assert not plan.results.new_claims
    assert message in plan.results.pod_errors["default/p"].message


def test_pod_is_scheduled_once_its_claim_exists():
    """Until then it is unschedulable."""
    pod = a_claiming_pod("p", "late")

    before = schedule_devices(pod, types=(gpu_type(1),))
    after = schedule_devices(pod, types=(gpu_type(1),), claims=[a_resource_claim("late")])

    assert (len(before.results.new_claims), len(after.results.new_claims)) == (0, 1)


# -- devices of zones, and of the whole cluster


def in_zone(name, *zones, driver=DRIVER, devices=("zoned-0",)):
    """A slice of devices that every node of these zones can use."""
    term = {"matchExpressions": [requirement(ZONE, "In", *zones)]}
    return a_slice(name, named_devices(*devices), driver=driver, nodeSelector={"nodeSelectorTerms": [term]})


def cluster_wide(*devices, name="shared"):
    """A slice of devices that every node can use."""
    return a_slice(name, named_devices(*devices), allNodes=True)


@table(
    "claims, types, slices",
    {
        "one": (("c",), (gpu_type(1),), [in_zone("gpus", ZONES[1])]),
        "two": (("c", "nic"), (PLAIN,), [in_zone("gpus", *ZONES[:2]), in_zone("nics", *ZONES[1:], driver=NIC_DRIVER)]),
    },
)
def test_new_node_is_in_the_zone_of_its_published_devices(claims, types, slices):
    """It waits for no driver: the devices are there already."""
    plan = schedule_devices(
        a_claiming_pod("p", *claims),
        types=types,
        claims=[a_resource_claim("c"), a_resource_claim("nic", NIC)],
        slices=slices,
    )

    body = plan.manifest_of("p")
    assert [r["values"] for r in body["spec"]["requirements"] if r["key"] == ZONE] == [[ZONES[1]]]
    assert "karpenter.sh/requested-dra-drivers" not in body["metadata"]["annotations"]
    assert devices_of(plan) == ["gpus/zoned-0"]


@table(
    "types, slices, devices, nodes",
    {
        "of-all-nodes": ((fake_type("single", pods=1),), [cluster_wide("gpu-0", "gpu-1")], ["shared/gpu-0"], 2),
        "of-the-node": ((gpu_type(2),), [], ["pool/gpu-0"], 1),
    },
)
def test_claim_of_two_pods_is_allocated_once(types, slices, devices, nodes):
    """A device of a node keeps the pods there; one of the cluster does not."""
    pods = [a_claiming_pod(name, "c", cpu="1m", memory="1Mi") for name in "pq"]

    plan = schedule_devices(*pods, types=types, claims=[a_resource_claim("c")], slices=slices)

    assert devices_of(plan) == devices
    assert len(plan.results.new_claims) == nodes
    assert not plan.results.pod_errors


# -- existing nodes


def a_machine(name="default-1", *, type_="gpu-it", initialized=True, leaving=False):
    """A node and its NodeClaim, which is being deleted if the node is leaving."""
    kinds = {"labels": {labels.INSTANCE_TYPE: type_, labels.INITIALIZED: "true" if initialized else "false"}}
    stages = ("Launched", "Registered", *(("Initialized",) if initialized else ()))
    deleting = NOW if leaving else None
    return {
        "nodes": (a_node(name, metadata=kinds, deleting=deleting),),
        "claims_": (a_running_claim(name, true=stages, metadata={"labels": {TYPE: type_}}, deleting=deleting),),
    }


def machines(*made):
    """The nodes and NodeClaims of these machines, as fields of a snapshot."""
    return {
        "nodes": tuple(node for each in made for node in each["nodes"]),
        "nodeclaims": tuple(claim for each in made for claim in each["claims_"]),
    }


NODE = "node-default-1"
PUBLISHED = a_slice("s", "incluster-gpu-0", node=NODE)


@table(
    "initialized, type_, expected",
    {
        "initialized": (True, "gpu-it", (NODE, [f"{NODE}/incluster-gpu-0"])),
        "starting": (False, "gpu-it", (NODE, ["pool/gpu-0"])),
        "unknown-type": (False, "unknown-it", ("new", ["pool/gpu-0"])),
    },
)
def test_node_has_its_published_devices_once_it_is_initialized(initialized, type_, expected):
    """Before that it has those of its instance type, and what it publishes already is not counted twice."""
    plan = schedule_devices(
        a_claiming_pod("p", "c"),
        types=(gpu_type(1),),
        claims=[a_resource_claim("c")],
        slices=[PUBLISHED],
        **machines(a_machine(type_=type_, initialized=initialized)),
    )

    node = plan.node_of("p")
    assert ("new" if isinstance(node, PlannedClaim) else node, devices_of(plan)) == expected


@pytest.mark.parametrize("initialized", [False, True])
def test_single_device_of_a_node_is_given_out_once(initialized):
    """The other pod gets a new node, before the node is initialized and after."""
    pods = [a_claiming_pod(name, name) for name in "pq"]

    plan = schedule_devices(
        *pods,
        types=(gpu_type(1),),
        claims=[a_resource_claim("p"), a_resource_claim("q")],
        slices=[PUBLISHED],
        **machines(a_machine(initialized=initialized)),
    )

    assert [len(plan.results.devices[NODE]), len(plan.results.new_claims)] == [1, 1]


def test_device_allocated_after_an_earlier_run_is_not_given_out_again():
    """The second pod gets a new node."""
    first = a_claiming_pod("first", "a", node=NODE)
    held = an_allocated_claim("a", (NODE, "incluster-gpu-0"), users=["uid-first"], node=NODE)

    plan = schedule_devices(
        a_claiming_pod("p", "c"),
        first,
        types=(gpu_type(1),),
        claims=[a_resource_claim("c"), held],
        slices=[PUBLISHED],
        **machines(a_machine()),
    )

    assert devices_of(plan) == ["pool/gpu-0"]


def test_pod_of_a_claim_allocated_in_an_earlier_run_gets_no_other_device():
    """It joins the pod that has the claim's device."""
    first = a_claiming_pod("first", "c", node=NODE)
    held = an_allocated_claim("c", (NODE, "incluster-gpu-0"), users=["uid-first"], node=NODE)

    plan = schedule_devices(
        a_claiming_pod("p", "c"),
        first,
        types=(gpu_type(2),),
        claims=[held],
        slices=[PUBLISHED],
        **machines(a_machine()),
    )

    assert plan.node_of("p") == NODE
    assert devices_of(plan) == []


def owned_by(*owners):
    """A slice of all nodes with these owners, by kind and name."""
    found = [{"apiVersion": "v1", "kind": kind, "name": name} for kind, name in owners]
    return replace(
        cluster_wide("gpu-0"),
        metadata=msgspec.convert({"name": "s", "ownerReferences": found}, type(PUBLISHED.metadata)),
    )


@pytest.mark.parametrize(
    ("owners", "counts"),
    [
        ([("Node", NODE)], True),
        ([("Node", "orphan-node")], False),
        ([], True),
        ([("Pod", "orphan-node")], True),
        ([("Pod", NODE), ("Node", "orphan-node")], False),
    ],
)
def test_published_devices_count_unless_their_node_is_gone(owners, counts):
    """A slice that no node owns always counts."""
    plan = schedule_devices(
        a_claiming_pod("p", "c"),
        types=(PLAIN,),
        claims=[a_resource_claim("c")],
        slices=[owned_by(*owners)],
        **machines(a_machine(type_="plain-it")),
    )

    assert (not plan.results.pod_errors) is counts


# -- allocated devices


@pytest.mark.parametrize(
    ("allocated", "free"),
    [
        ([[]], ["gpu-0", "gpu-1"]),
        ([["gpu-0"]], ["gpu-1"]),
        ([["gpu-0", "gpu-1"]], []),
        ([["gpu-0"], ["gpu-1"]], []),
        ([["gpu-0"], ["gpu-0"]], ["gpu-1"]),
    ],
)
def test_devices_that_claims_have_are_not_available(allocated, free):
    """Of two GPUs of the cluster, pods get the others."""
    held = [
        an_allocated_claim(f"held-{n}", *(("shared", name) for name in names), users=[f"uid-live-{n}"])
        if names
        else a_resource_claim(f"held-{n}")
        for n, names in enumerate(allocated)
    ]

    plan = schedule_devices(
        *(a_claiming_pod(name, name, cpu="1m") for name in "pq"),
        types=(PLAIN,),
        claims=[*held, a_resource_claim("p"), a_resource_claim("q")],
        slices=[cluster_wide("gpu-0", "gpu-1")],
    )

    assert sorted(devices_of(plan, "p") + devices_of(plan, "q")) == [f"shared/{name}" for name in free]


LEAVING = machines(a_machine("leaving", type_="plain-it", leaving=True), a_machine("staying", type_="plain-it"))


def users_of(*names):
    """The consumers of a claim: pods of this name, or a Job."""
    return [
        {"apiGroup": "batch", "resource": "jobs", "name": "job", "uid": "uid-job"}
        if name == "job"
        else {"resource": "pods", "name": name, "uid": f"uid-{name}"}
        for name in names
    ]


def held_by(name, *users, consumed=None, device="gpu-0"):
    """A claim that has a device, or a part of it, and its users."""
    found = an_allocated_claim(name, ("shared", device))
    body = msgspec.to_builtins(found)
    body["status"]["reservedFor"] = users_of(*users)
    if consumed is not None:
        body["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"] = consumed
    return msgspec.convert(body, ResourceClaim)


GONE = [a_pod(name, cpu="1m", memory="1Mi", node="node-leaving") for name in ("gone-a", "gone-b")]
LIVE = [a_pod(name, cpu="1m", memory="1Mi", node="node-staying") for name in ("live-a", "live-b")]


@pytest.mark.parametrize(
    ("users", "released"),
    [
        ([["gone-a"]], True),
        ([["gone-a", "gone-b"]], True),
        ([["gone-a"], ["gone-b"]], True),
        ([[]], False),
        ([["job"]], False),
        ([["gone-a", "job"]], False),
        ([["gone-a"], ["job"]], False),
        ([["gone-a", "live-a"]], False),
        ([["live-a"]], False),
    ],
)
def test_device_is_available_once_all_of_its_users_are_pods_that_leave(users, released):
    """Their node is being deleted; a device whose claim no pod has reserved yet, or a Job has, stays allocated."""
    plan = schedule_devices(
        a_claiming_pod("p", "c"),
        *GONE,
        *LIVE,
        types=(PLAIN,),
        claims=[a_resource_claim("c"), *(held_by(f"held-{n}", *names) for n, names in enumerate(users))],
        slices=[cluster_wide("gpu-0")],
        **LEAVING,
    )

    assert devices_of(plan) == (["shared/gpu-0"] if released else [])


def part(memory=0, connections=0):
    """The consumed capacity of a shared device, without what is zero."""
    found = {"memory": f"{memory}Gi" if memory else "", "connections": str(connections) if connections else ""}
    return {name: amount for name, amount in found.items() if amount}


@pytest.mark.parametrize(
    ("held", "free"),
    [
        ([held_by("a", "live-a", consumed=part(4, 1))], (12, 9)),
        ([held_by("a", "live-a", consumed=part(4, 1)), held_by("b", "live-b", consumed=part(2, 3))], (10, 6)),
        ([held_by("a", "live-a", consumed=part(4, 1)), held_by("b", "gone-b", consumed=part(10, 3))], (12, 9)),
        ([held_by("a", "live-a", consumed=part(4)), held_by("b", "gone-b", consumed=part(2, 3))], (12, 10)),
        ([held_by("a", "gone-a", consumed=part(4)), held_by("b", "gone-b", consumed=part(2))], (16, 10)),
        ([held_by("a", "gone-a", "live-b", consumed=part(4))], (12, 10)),
        ([held_by("a", "live-a", consumed=part(4, 1)), held_by("b", "live-b", consumed=part(2))], (10, 9)),
        ([held_by("a", "live-a", consumed=part(4)), held_by("b", "live-b", consumed=part(0, 3))], (12, 7)),
        ([held_by("a", consumed=part(4))], (12, 10)),
        ([held_by("a", "job", consumed=part(4))], (12, 10)),
    ],
)
def test_parts_of_a_shared_device_are_available_once_their_pods_leave(held, free):
    """A request for all that is free fits, and one for more does not."""
    shared = {
        "name": "gpu-0",
        "allowMultipleAllocations": True,
        "capacity": {
            "memory": {"value": "16Gi", "requestPolicy": {"default": "0"}},
            "connections": {"value": "10", "requestPolicy": {"default": "0"}},
        },
    }

    def fits(memory, connections):
        claim = a_resource_claim("c", of_capacity(**part(memory, connections)))
        plan = schedule_devices(
            a_claiming_pod("p", "c"),
            *GONE,
            *LIVE,
            types=(PLAIN,),
            claims=[claim, *held],
            slices=[a_slice("shared", [shared], allNodes=True)],
            **LEAVING,
        )
        return devices_of(plan) == ["shared/gpu-0"]

    memory, connections = free
    assert [fits(memory, connections), fits(memory + 1, 0), fits(0, connections + 1)] == [True, False, False]


def test_claim_may_have_a_whole_device_and_a_part_of_another():
    """The rest of the shared device is free."""
    shared = {"name": "gpu-0", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "16Gi"}}}
    body = msgspec.to_builtins(an_allocated_claim("held", ("shared", "gpu-0"), ("shared", "gpu-1"), users=["uid-live"]))
    body["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"] = part(12)
    small = [a_resource_claim(name, of_capacity(memory="4Gi")) for name in "pq"]

    plan = schedule_devices(
        *(a_claiming_pod(name, name) for name in "pq"),
        types=(PLAIN,),
        claims=[msgspec.convert(body, ResourceClaim), *small],
        slices=[
            a_slice("shared", [shared, {"name": "gpu-1", "capacity": {"memory": {"value": "16Gi"}}}], allNodes=True)
        ],
    )

    assert devices_of(plan, "p") + devices_of(plan, "q") == ["shared/gpu-0"]


# -- consolidation


def a_worker(claim, node, **kwargs):
    """A pod of a ReplicaSet, which uses a ResourceClaim on a node."""
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "o", "uid": "uid-o", "controller": True}
    return a_claiming_pod(
        claim, claim, node=node, cpu="1m", memory="1Mi", metadata={"ownerReferences": [owner]}, **kwargs
    )


def without(*removed, pods, types, claims, slices, staying=()):
    """The plan for the pods of nodes that consolidation would remove, which are of the type `gpu-it`."""
    there = machines(*(a_machine(name) for name in (*removed, *staying)))
    snapshot = a_snapshot(
        pods=tuple(sorted(pods, key=lambda pod: pod.key)),
        nodes=there["nodes"],
        claims=there["nodeclaims"],
        resource_claims=tuple(claims),
        resource_slices=tuple(slices),
        device_classes=(a_device_class(),),
    )
    catalogue = Catalogue({"default": types})
    names = frozenset(removed)
    candidates = find_candidates(snapshot, catalogue, consolidatable=names, in_commands=frozenset()).candidates
    simulation = Simulation(
        snapshot,
        catalogue,
        marked_for_deletion=frozenset(),
        within_consolidate_after=frozenset(),
        options=Options(ignore_dra_requests=False),
    )
    found = simulation.without([candidate for candidate in candidates if candidate.nodeclaim in names])
    assert not set(found.results.existing) & {f"node-{name}" for name in removed}
    return found


def at(node, claim="c", device="incluster-gpu-0"):
    """A claim that has a node's own device, and its pod there."""
    return an_allocated_claim(claim, (node, device), users=[f"uid-{claim}"], node=node)


@table(
    "removed, types, new_nodes",
    {
        "one": (["a"], (gpu_type(1),), 1),
        "two": (["a", "b"], (gpu_type(2),), 1),
        "no-device-elsewhere": (["a"], (PLAIN,), 0),
    },
)
def test_pods_of_removed_nodes_get_the_devices_of_a_replacement(removed, types, new_nodes):
    """Their claims are allocated again; without devices elsewhere the nodes are not removed."""
    found = without(
        *removed,
        pods=[a_worker(f"c-{name}", f"node-{name}") for name in removed],
        types=types,
        claims=[at(f"node-{name}", f"c-{name}") for name in removed],
        slices=[a_slice(f"s-{name}", named_devices("incluster-gpu-0"), node=f"node-{name}") for name in removed],
    )

    assert len(found.results.new_claims) == new_nodes
    assert bool(found.errors) is not bool(new_nodes)


def test_device_of_a_pod_that_stays_is_not_available_to_a_pod_that_moves():
    """The cluster has one device for both."""
    live = a_pod("live", cpu="1m", memory="1Mi", node="node-b")

    found = without(
        "a",
        pods=[a_worker("c", "node-a"), live],
        types=(PLAIN,),
        claims=[held_by("held", "live"), held_by("c", "c")],
        slices=[cluster_wide("gpu-0")],
        staying=["b"],
    )

    assert "default/c" in found.errors


@pytest.mark.parametrize(("of_live_pod", "moves"), [(4, True), (7, False)])
def test_pod_that_moves_keeps_its_part_of_a_shared_device(of_live_pod, moves):
    """Of 16Gi it has ten; the part of the pod that stays is still in use."""
    shared = {"name": "gpu-0", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "16Gi"}}}
    moving = msgspec.to_builtins(held_by("c", "c", consumed=part(10)))
    moving["spec"]["devices"]["requests"] = [of_capacity(memory="10Gi")]

    found = without(
        "a",
        pods=[a_worker("c", "node-a"), a_pod("live", cpu="1m", memory="1Mi", node="node-b")],
        types=(PLAIN,),
        claims=[held_by("held", "live", consumed=part(of_live_pod)), msgspec.convert(moving, ResourceClaim)],
        slices=[a_slice("shared", [shared], allNodes=True)],
        staying=["b"],
    )

    assert (not found.errors) is moves
