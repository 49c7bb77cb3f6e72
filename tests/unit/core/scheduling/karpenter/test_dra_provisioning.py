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
from tests.helpers.device_allocation import brought, claim, published, with_policy
from tests.helpers.devices import (
    DEVICE_CLASSES,
    DRIVER,
    NIC_DRIVER,
    a_claiming_pod,
    a_slice,
    an_allocated_claim,
    devices_of,
    listed,
    schedule_devices,
    slice_spec,
    table,
    with_devices,
)
from tests.helpers.karpenter_suite import ZONES, fake_type, required, requirement, tiny

TYPE, ZONE = labels.INSTANCE_TYPE, labels.ZONE
PLAIN = fake_type("plain-it", cpu=16, memory="64Gi")
SHARED = "gpu-0+memory=16Gi"
TINY = {"cpu": "1m", "memory": "1Mi"}


def bringing(slices, **kwargs):
    """Return an instance type whose nodes publish these slices."""
    return with_devices(fake_type("gpu-it", **kwargs), *brought(slices))


def sharing(policy):
    """Return an instance type with one GPU that several pods may share by a policy."""
    return bringing([slice_spec(with_policy(SHARED, policy))])


ONE_GPU, TWO_GPUS = bringing("gpu-0 of pool"), bringing("gpu-0..1 of pool")


# -- devices of new nodes


@table(
    "found, requests, by_node",
    {
        "two-gpus": (TWO_GPUS, ["1"] * 2, ["gpu-0 gpu-1"]),
        "one-gpu": (ONE_GPU, ["1"] * 2, ["gpu-0", "gpu-0"]),
        "all": (bringing("gpu-0..2"), ["all"], ["gpu-0 gpu-1 gpu-2"]),
        "none": (fake_type("no-gpu-it"), ["1"], []),
        "part": (bringing(SHARED), ["1*memory:4Gi"], ["gpu-0"]),
        "three-parts": (bringing(SHARED), ["1*memory:4Gi"] * 3, ["gpu-0 gpu-0 gpu-0"]),
        "parts-of-two": (
            bringing(SHARED),
            [f"1*memory:{size}Gi" for size in (4, 4, 4, 8)],
            ["gpu-0", "gpu-0 gpu-0 gpu-0"],
        ),
        "too-large-a-part": (bringing(SHARED), ["1*memory:32Gi"], []),
        "unknown-capacity": (bringing(SHARED), ["1*memory:4Gi,bandwidth:10"], []),
        "no-valid-value": (sharing("4Gi of 4Gi,8Gi,16Gi"), ["1*memory:32Gi"], []),
        "default-part": (sharing("4Gi"), ["1"] * 3, ["gpu-0 gpu-0 gpu-0"]),
        "partitions": (bringing("gpu-0..1!40Gi; with 80Gi"), ["1"] * 2, ["gpu-0 gpu-1"]),
        "partitions-of-two": (bringing("gpu-0..2!40Gi; with 80Gi"), ["1"] * 3, ["gpu-0", "gpu-0 gpu-1"]),
        "two-counters": (
            bringing("gpu-0..1!s.memory=40Gi,s.compute=50; with s.memory=80Gi,s.compute=100"),
            ["1"] * 2,
            ["gpu-0 gpu-1"],
        ),
        "too-large-a-partition": (bringing("gpu-0!80Gi; with 40Gi"), ["1"], []),
        "unknown-counters": (bringing("gpu-0!nonexistent.memory=40Gi; with 80Gi"), ["1"], []),
        "partitions-apart": (bringing("gpu-0..1!compute=60; with compute=100"), ["1"] * 2, ["gpu-0", "gpu-0"]),
    },
)
def test_pods_get_devices_of_as_few_new_nodes_as_suffice(found, requests, by_node):
    """Each pod has a claim of its own; without enough devices it is unschedulable."""
    pods = [a_claiming_pod(f"p{n}", f"c{n}", **TINY) for n in range(len(requests))]
    claims = [claim(request, f"c{n}") for n, request in enumerate(requests)]

    plan = schedule_devices(*pods, types=(found,), claims=claims)

    nodes = plan.results.new_claims
    assert sorted(" ".join(sorted(d.device for d in node.devices[found.name])) for node in nodes) == by_node
    assert bool(plan.results.pod_errors) is not bool(by_node)


def test_match_attribute_holds_for_devices_of_two_requests():
    """The two GPUs with equal roots are chosen, not the first one."""
    types = (bringing("gpu-0:root=a gpu-1:root=b gpu-2:root=b of pool"),)

    plan = schedule_devices(a_claiming_pod("p", "c"), types=types, claims=[claim("1 1 ~root")])

    assert devices_of(plan) == ["pool/gpu-1", "pool/gpu-2"]


@table("own, chosen", {"two": ("gpu-0..1", ["req/option-1"] * 2), "four": ("gpu-0..3", ["req/option-0"] * 4)})
def test_first_alternative_that_the_node_has_is_chosen(own, chosen):
    """The plan names request and alternative of each device."""
    plan = schedule_devices(a_claiming_pod("p", "c"), types=(bringing(own),), claims=[claim("req@4/2")])

    assert [device.request for device in plan.node_of("p").devices["gpu-it"]] == chosen


NEEDS_NONE = {
    "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]},
    "status": {"resourceClaimStatuses": [{"name": "gpu"}]},
}


@table(
    "pod, types, drivers",
    {
        "named": (a_claiming_pod("p", "c"), (fake_type("no-gpu-it"), ONE_GPU), DRIVER),
        "from-template": (a_claiming_pod("p", made=["c"]), (ONE_GPU,), DRIVER),
        "two-drivers": (
            a_claiming_pod("p", "c", "nic"),
            (with_devices(fake_type("one-it"), *brought("gpu-0")), bringing("gpu-0; nic-0")),
            f"{DRIVER},{NIC_DRIVER}",
        ),
        "no-claim": (tiny("p"), (ONE_GPU,), None),
        "no-claim-needed": (tiny("p", **NEEDS_NONE), (ONE_GPU,), None),
    },
)
def test_nodeclaim_has_types_with_the_devices_and_names_their_drivers(pod, types, drivers):
    """A pod without devices names none."""
    plan = schedule_devices(pod, types=types, claims=[claim("1"), claim("1*nic", "nic")])

    body = plan.manifest_of("p")
    assert plan.node_of("p").instance_types == (types[-1].name,)
    assert body["metadata"]["annotations"].get("karpenter.sh/requested-dra-drivers") == drivers


def test_pods_with_and_without_claims_are_scheduled_together():
    """The plan names the claim, its namespace, and its device."""
    plan = schedule_devices(a_claiming_pod("p", "c", cpu="1m"), tiny("plain"), types=(ONE_GPU,), claims=[claim("1")])

    (node,) = plan.results.new_claims
    assert node.pods == ("default/p", "default/plain")
    assert [(d.claim, d.driver, d.device) for d in node.devices["gpu-it"]] == [("default/c", DRIVER, "gpu-0")]


ON_AMD64 = required([requirement(labels.ARCH, "In", "amd64")])


@table(
    "pod, types, message",
    {
        "no-claim": (a_claiming_pod("p", "missing"), (ONE_GPU,), "ResourceClaim default/missing does not exist"),
        "no-class": (a_claiming_pod("p", "no-class"), (ONE_GPU,), "DeviceClass 'tpu' does not exist"),
        "zones": (a_claiming_pod("p", "c", "nic"), (PLAIN,), "cannot be had together on one node"),
        "architecture": (a_claiming_pod("p", "nic", spec=ON_AMD64), (bringing("nic-0", arch="arm64"), PLAIN), ""),
    },
)
def test_pod_without_the_devices_of_its_claims_launches_nothing(pod, types, message):
    """Its error says why. The GPUs are in one zone, the NICs in another one, and ARM nodes have NICs."""
    zonal = published(f"gpu-0 in {ZONES[0]}; nic-0 in {ZONES[1]}") if types == (PLAIN,) else []
    claims = [claim("1"), claim("1*nic", "nic"), claim("1*tpu", "no-class")]

    plan = schedule_devices(pod, types=types, claims=claims, slices=zonal)

    assert not plan.results.new_claims
    assert message in plan.results.pod_errors["default/p"].message


def test_pod_is_scheduled_once_its_claim_exists():
    """Until then it is unschedulable."""
    pod = a_claiming_pod("p", "late")

    before = schedule_devices(pod, types=(ONE_GPU,))
    after = schedule_devices(pod, types=(ONE_GPU,), claims=[claim("1", "late")])

    assert (len(before.results.new_claims), len(after.results.new_claims)) == (0, 1)


# -- devices of zones, and of the whole cluster


def in_zone(name, *zones, devices="gpu-0"):
    """Return a slice of devices that every node of these zones can use."""
    term = {"matchExpressions": [requirement(ZONE, "In", *zones)]}
    driver = NIC_DRIVER if devices.startswith("nic") else DRIVER
    return a_slice(name, devices, driver=driver, nodeSelector={"nodeSelectorTerms": [term]})


@table(
    "claims, types, slices",
    {
        "one": (("c",), (ONE_GPU,), [in_zone("gpus", ZONES[1])]),
        "two": (("c", "nic"), (PLAIN,), [in_zone("gpus", *ZONES[:2]), in_zone("nics", *ZONES[1:], devices="nic-0")]),
    },
)
def test_new_node_is_in_the_zone_of_its_published_devices(claims, types, slices):
    """It waits for no driver: the devices are there already."""
    plan = schedule_devices(
        a_claiming_pod("p", *claims), types=types, claims=[claim("1"), claim("1*nic", "nic")], slices=slices
    )

    body = plan.manifest_of("p")
    assert [r["values"] for r in body["spec"]["requirements"] if r["key"] == ZONE] == [[ZONES[1]]]
    assert "karpenter.sh/requested-dra-drivers" not in body["metadata"]["annotations"]
    assert devices_of(plan) == ["gpus/gpu-0"]


@table(
    "types, slices, devices, nodes",
    {
        "of-all-nodes": ((fake_type("single", pods=1),), published("gpu-0..1"), ["pool-a/gpu-0"], 2),
        "of-the-node": ((TWO_GPUS,), [], ["pool/gpu-0"], 1),
    },
)
def test_claim_of_two_pods_is_allocated_once(types, slices, devices, nodes):
    """A device of a node keeps the pods there; one of the cluster does not."""
    pods = [a_claiming_pod(name, "c", **TINY) for name in "pq"]

    plan = schedule_devices(*pods, types=types, claims=[claim("1")], slices=slices)

    assert devices_of(plan) == devices
    assert len(plan.results.new_claims) == nodes
    assert not plan.results.pod_errors


# -- existing nodes


def machines(*names, type_="gpu-it", initialized=True, leaving=()):
    """Return nodes and their NodeClaims as fields of a snapshot; those that leave are being deleted."""
    kinds = {"labels": {TYPE: type_, labels.INITIALIZED: "true" if initialized else "false"}}
    stages = ("Launched", "Registered", *(("Initialized",) if initialized else ()))
    deleting = {name: NOW if name in leaving else None for name in names}
    return {
        "nodes": tuple(a_node(name, metadata=kinds, deleting=deleting[name]) for name in names),
        "nodeclaims": tuple(
            a_running_claim(name, true=stages, metadata={"labels": {TYPE: type_}}, deleting=deleting[name])
            for name in names
        ),
    }


NODE = "node-default-1"
PUBLISHED = a_slice("s", "gpu-9", node=NODE)


@table(
    "initialized, type_, expected",
    {
        "initialized": (True, "gpu-it", (NODE, [f"{NODE}/gpu-9"])),
        "starting": (False, "gpu-it", (NODE, ["pool/gpu-0"])),
        "unknown-type": (False, "unknown-it", ("new", ["pool/gpu-0"])),
    },
)
def test_node_has_its_published_devices_once_it_is_initialized(initialized, type_, expected):
    """Before that it has those of its instance type, and what it publishes already is not counted twice."""
    there = machines("default-1", type_=type_, initialized=initialized)

    plan = schedule_devices(
        a_claiming_pod("p", "c"), types=(ONE_GPU,), claims=[claim("1")], slices=[PUBLISHED], **there
    )

    node = plan.node_of("p")
    assert ("new" if isinstance(node, PlannedClaim) else node, devices_of(plan)) == expected


@pytest.mark.parametrize("initialized", [False, True])
def test_single_device_of_a_node_is_given_out_once(initialized):
    """The other pod gets a new node, before the node is initialized and after."""
    plan = schedule_devices(
        *(a_claiming_pod(name, name) for name in "pq"),
        types=(ONE_GPU,),
        claims=[claim("1", "p"), claim("1", "q")],
        slices=[PUBLISHED],
        **machines("default-1", initialized=initialized),
    )

    assert [len(plan.results.devices[NODE]), len(plan.results.new_claims)] == [1, 1]


def after_an_earlier_run(name, types, *claims):
    """Return the plan for a pod beside one whose claim of this name has the node's device."""
    first = a_claiming_pod("first", name, node=NODE)
    held = an_allocated_claim(name, (NODE, "gpu-9"), users=["uid-first"], node=NODE)
    return schedule_devices(
        *(a_claiming_pod("p", "c"), first),
        types=types,
        claims=[held, *claims],
        slices=[PUBLISHED],
        **machines("default-1"),
    )


def test_device_allocated_after_an_earlier_run_is_not_given_out_again():
    """The second pod gets a new node."""
    assert devices_of(after_an_earlier_run("a", (ONE_GPU,), claim("1"))) == ["pool/gpu-0"]


def test_pod_of_a_claim_allocated_in_an_earlier_run_gets_no_other_device():
    """It joins the pod that has the claim's device."""
    plan = after_an_earlier_run("c", (TWO_GPUS,))

    assert plan.node_of("p") == NODE
    assert devices_of(plan) == []


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
    (found,) = published("gpu-0")
    references = [{"apiVersion": "v1", "kind": kind, "name": name} for kind, name in owners]
    metadata = msgspec.convert({"name": "s", "ownerReferences": references}, type(found.metadata))

    plan = schedule_devices(
        a_claiming_pod("p", "c"),
        types=(PLAIN,),
        claims=[claim("1")],
        slices=[replace(found, metadata=metadata)],
        **machines("default-1", type_="plain-it"),
    )

    assert (not plan.results.pod_errors) is counts


# -- allocated devices


@table(
    "allocated, free",
    {
        "none": ([""], "gpu-0 gpu-1"),
        "one": (["gpu-0"], "gpu-1"),
        "both": (["gpu-0 gpu-1"], ""),
        "one-each": (["gpu-0", "gpu-1"], ""),
        "the-same": (["gpu-0", "gpu-0"], "gpu-1"),
    },
)
def test_devices_that_claims_have_are_not_available(allocated, free):
    """Of two GPUs of the cluster, pods get the others."""
    held = [
        an_allocated_claim(f"held-{n}", *(("pool-a", name) for name in names.split()), users=[f"uid-live-{n}"])
        if names
        else claim("1", f"held-{n}")
        for n, names in enumerate(allocated)
    ]

    plan = schedule_devices(
        *(a_claiming_pod(name, name, cpu="1m") for name in "pq"),
        types=(PLAIN,),
        claims=[*held, claim("1", "p"), claim("1", "q")],
        slices=published("gpu-0..1"),
    )

    assert sorted(devices_of(plan, "p") + devices_of(plan, "q")) == [f"pool-a/{name}" for name in free.split()]


LEAVING = machines("leaving", "staying", type_="plain-it", leaving=["leaving"])
JOB = {"apiGroup": "batch", "resource": "jobs", "name": "job", "uid": "uid-job"}


def consuming(amounts):
    """Return amounts of capacity from text such as `memory:4Gi,connections:1`."""
    return dict(amount.split(":") for amount in amounts.split(",") if amount)


def held_by(name, users="", consumed="", requests="1"):
    """Return a claim that has a device, or a part of it, and its users, pods or a Job."""
    result = {"request": "gpu", "driver": DRIVER, "pool": "pool-a", "device": "gpu-0"}
    allocation = {"devices": {"results": [{**result, "consumedCapacity": consuming(consumed)}]}}
    pods = ({"resource": "pods", "name": user, "uid": f"uid-{user}"} for user in users.split() if user != "job")
    status = {"allocation": allocation, "reservedFor": [*pods, *([JOB] if "job" in users else [])]}
    return claim(requests, name, status=status)


OTHERS = [
    a_pod(f"{name}-{n}", node=f"node-{node}", **TINY)
    for name, node in (("gone", "leaving"), ("live", "staying"))
    for n in "ab"
]


def planned_beside(requests, held, slices):
    """Return the devices of a claim beside those in use by pods that leave and pods that stay."""
    plan = schedule_devices(
        *(a_claiming_pod("p", "c"), *OTHERS),
        types=(PLAIN,),
        claims=[claim(requests), *held],
        slices=slices,
        **LEAVING,
    )
    return devices_of(plan)


@pytest.mark.parametrize(
    ("users", "released"),
    [
        (["gone-a"], True),
        (["gone-a gone-b"], True),
        (["gone-a", "gone-b"], True),
        ([""], False),
        (["job"], False),
        (["gone-a job"], False),
        (["gone-a", "job"], False),
        (["gone-a live-a"], False),
        (["live-a"], False),
    ],
)
def test_device_is_available_once_all_of_its_users_are_pods_that_leave(users, released):
    """Their node is being deleted; a device whose claim no pod has reserved yet, or a Job has, stays allocated."""
    held = [held_by(f"held-{n}", names) for n, names in enumerate(users)]

    assert planned_beside("1", held, published("gpu-0")) == (["pool-a/gpu-0"] if released else [])


PARTS = with_policy("gpu-0+memory=16Gi,connections=10", "0")


@pytest.mark.parametrize(
    ("held", "free"),
    [
        (["live-a: memory:4Gi,connections:1"], (12, 9)),
        (["live-a: memory:4Gi,connections:1", "live-b: memory:2Gi,connections:3"], (10, 6)),
        (["live-a: memory:4Gi,connections:1", "gone-b: memory:10Gi,connections:3"], (12, 9)),
        (["live-a: memory:4Gi", "gone-b: memory:2Gi,connections:3"], (12, 10)),
        (["gone-a: memory:4Gi", "gone-b: memory:2Gi"], (16, 10)),
        (["gone-a live-b: memory:4Gi"], (12, 10)),
        (["live-a: memory:4Gi,connections:1", "live-b: memory:2Gi"], (10, 9)),
        (["live-a: memory:4Gi", "live-b: connections:3"], (12, 7)),
        ([": memory:4Gi"], (12, 10)),
        (["job: memory:4Gi"], (12, 10)),
    ],
)
def test_parts_of_a_shared_device_are_available_once_their_pods_leave(held, free):
    """A request for all that is free fits, and one for more does not."""
    claims = [held_by(f"held-{n}", *text.split(": ")) for n, text in enumerate(held)]
    slices = [a_slice("pool-a", PARTS, allNodes=True)]
    memory, connections = free

    fitting = [
        planned_beside(f"1*{amounts}", claims, slices) == ["pool-a/gpu-0"]
        for amounts in (
            f"memory:{memory}Gi,connections:{connections}",
            f"memory:{memory + 1}Gi",
            f"connections:{connections + 1}",
        )
    ]

    assert fitting == [True, False, False]


def test_claim_may_have_a_whole_device_and_a_part_of_another():
    """The rest of the shared device is free."""
    found = held_by("held", "live", "memory:12Gi")
    whole = {"request": "gpu", "driver": DRIVER, "pool": "pool-a", "device": "gpu-1"}
    body = msgspec.to_builtins(found)
    devices_of_claim = body["status"]["allocation"]["devices"]
    devices_of_claim["results"] = [*devices_of_claim["results"], whole]
    devices = [*listed(SHARED), {"name": "gpu-1", "capacity": {"memory": {"value": "16Gi"}}}]

    plan = schedule_devices(
        *(a_claiming_pod(name, name) for name in "pq"),
        types=(PLAIN,),
        claims=[msgspec.convert(body, ResourceClaim), *(claim("1*memory:4Gi", name) for name in "pq")],
        slices=[a_slice("pool-a", devices, allNodes=True)],
    )

    assert devices_of(plan, "p") + devices_of(plan, "q") == ["pool-a/gpu-0"]


# -- consolidation


def a_worker(name, node):
    """Return a pod of a ReplicaSet, which uses a ResourceClaim of its name on a node."""
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "o", "uid": "uid-o", "controller": True}
    return a_claiming_pod(name, name, node=node, metadata={"ownerReferences": [owner]}, **TINY)


def without(*removed, pods, types, claims, slices, staying=()):
    """Return the plan for the pods of nodes that consolidation would remove, which are of the type `gpu-it`."""
    there = machines(*removed, *staying)
    snapshot = a_snapshot(
        pods=tuple(sorted(pods, key=lambda pod: pod.key)),
        nodes=there["nodes"],
        claims=there["nodeclaims"],
        resource_claims=tuple(claims),
        resource_slices=tuple(slices),
        device_classes=DEVICE_CLASSES,
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


@table(
    "removed, types, new_nodes",
    {
        "one": (["a"], (ONE_GPU,), 1),
        "two": (["a", "b"], (TWO_GPUS,), 1),
        "no-device-elsewhere": (["a"], (PLAIN,), 0),
    },
)
def test_pods_of_removed_nodes_get_the_devices_of_a_replacement(removed, types, new_nodes):
    """Their claims are allocated again; without devices elsewhere the nodes are not removed."""
    found = without(
        *removed,
        pods=[a_worker(f"c-{name}", f"node-{name}") for name in removed],
        types=types,
        claims=[
            an_allocated_claim(f"c-{name}", (f"node-{name}", "gpu-9"), users=[f"uid-c-{name}"], node=f"node-{name}")
            for name in removed
        ],
        slices=[a_slice(f"s-{name}", "gpu-9", node=f"node-{name}") for name in removed],
    )

    assert len(found.results.new_claims) == new_nodes
    assert bool(found.errors) is not bool(new_nodes)


def moving(slices, *claims):
    """Return the plan for a pod that moves, with the claim `c`, beside one that stays."""
    pods = [a_worker("c", "node-a"), a_pod("live", node="node-b", **TINY)]
    return without("a", pods=pods, types=(PLAIN,), claims=claims, slices=slices, staying=["b"])


def test_device_of_a_pod_that_stays_is_not_available_to_a_pod_that_moves():
    """The cluster has one device for both."""
    assert "default/c" in moving(published("gpu-0"), held_by("held", "live"), held_by("c", "c")).errors


@pytest.mark.parametrize(("of_live_pod", "moves"), [(4, True), (7, False)])
def test_pod_that_moves_keeps_its_part_of_a_shared_device(of_live_pod, moves):
    """Of 16Gi it has ten; the part of the pod that stays is still in use."""
    own = held_by("c", "c", "memory:10Gi", "1*memory:10Gi")

    found = moving(published(SHARED), held_by("held", "live", f"memory:{of_live_pod}Gi"), own)

    assert (not found.errors) is moves
