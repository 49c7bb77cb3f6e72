"""Device allocation in random clusters."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.results import Options
from journeyman.core.scheduling.scheduler import pods_to_schedule, solve
from journeyman_simulator.judge import verify_strictly
from tests.helpers.builders import a_launched_claim, a_node, a_pod, a_running_claim, a_snapshot, an_instance_type
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
    selecting,
    slice_spec,
    with_devices,
)

PLANNING = Options(ignore_dra_requests=False)
MODELS = ("A100", "H100", "T4")


@st.composite
def devices(draw):
    """A few GPUs; some are parts of one, some are shared."""
    found = []
    for index in range(draw(st.integers(0, 4))):
        attributes = {
            "model": {"string": draw(st.sampled_from(MODELS))},
            "root": {"string": draw(st.sampled_from("xy"))},
        }
        more = {"attributes": attributes}
        if draw(st.booleans()):
            amount = draw(st.sampled_from(("10Gi", "20Gi")))
            more["consumesCounters"] = [{"counterSet": "all", "counters": {"memory": {"value": amount}}}]
        if draw(st.integers(0, 3)) == 0:
            more["allowMultipleAllocations"] = True
        found.append(gpu(f"gpu-{index}", **more))
    return found


COUNTERS = [{"name": "all", "counters": {"memory": {"value": "40Gi"}}}]


@st.composite
def requests(draw, name):
    """A request: some devices, all of them, or one of two alternatives."""
    form = draw(st.integers(0, 4))
    select = selecting(draw(st.sampled_from(MODELS)))
    if form == 0:
        return exactly(name, allocationMode="All", select=select)
    if form == 1:
        other = {"selectors": [{"cel": {"expression": select}}]}
        return first_of({"count": draw(st.integers(1, 3)), **other}, {"count": 1}, name=name)
    if form == 2:
        return exactly(name, capacity={"requests": {"memory": draw(st.sampled_from(("5Gi", "25Gi")))}})
    return exactly(name, count=draw(st.integers(1, 2)), select=draw(st.sampled_from(("", select))))


@st.composite
def claims(draw, name):
    """A claim with one or two requests."""
    wanted = [draw(requests(f"r{n}")) for n in range(draw(st.integers(1, 2)))]
    return a_resource_claim(name, *wanted, match=f"{DRIVER}/root" if draw(st.booleans()) else "")


@st.composite
def clusters(draw):
    """Nodes with devices, some in use, a node on its way, types that bring devices, and pods that want them."""
    types = tuple(
        with_devices(
            an_instance_type(f"t{n}", cpu=8, memory_gib=32, price=1.0 + n, zones=("a", "b")),
            slice_spec(draw(devices())),
            slice_spec([], sharedCounters=COUNTERS),
        )
        for n in range(draw(st.integers(1, 3)))
    )
    slices = []
    for name in ("node-a", "node-b"):
        slices += [a_slice(f"{name}-d", draw(devices()), node=name, of=2)]
        slices += [a_slice(f"{name}-c", [], node=name, of=2, sharedCounters=COUNTERS)]
    zone = {"matchExpressions": [{"key": labels.ZONE, "operator": "In", "values": [draw(st.sampled_from("ab"))]}]}
    slices.append(a_slice("fabric-d", draw(devices()), pool="f", of=2, nodeSelector={"nodeSelectorTerms": [zone]}))
    slices.append(a_slice("fabric-c", [], pool="f", of=2, allNodes=True, sharedCounters=COUNTERS))
    own = [draw(claims(f"own-{n}")) for n in range(draw(st.integers(0, 4)))]
    shared = draw(claims("shared"))
    held = an_allocated_claim("held", ("node-a", "gpu-0"), node="node-a")
    pods = [a_claiming_pod(f"own-{n}", made=[f"own-{n}"]) for n in range(len(own))]
    pods += [a_claiming_pod(f"shared-{n}", "shared", cpu="2") for n in range(draw(st.integers(0, 3)))]
    pods += [a_claiming_pod("held", "held")] if draw(st.booleans()) else []
    pods += [a_pod(f"plain-{n}", cpu="2") for n in range(draw(st.integers(0, 2)))]
    on_its_way = {"labels": {labels.NODEPOOL: "default", labels.INSTANCE_TYPE: "t0", labels.ZONE: "a"}}
    snapshot = a_snapshot(
        pods=tuple(sorted(pods, key=lambda p: p.key)),
        resource_claims=(*own, shared, held),
        resource_slices=tuple(slices),
        device_classes=(a_device_class(),),
        claims=(a_running_claim("a"), a_running_claim("b"), a_launched_claim("c", metadata=on_its_way)),
        nodes=(a_node("a"), a_node("b")),
    )
    return snapshot, Catalogue({"default": types})


@settings(max_examples=40, deadline=None)
@given(clusters())
def test_each_device_is_allocated_once_and_no_pod_is_missed(cluster):
    """Verified plans; a pod with a claim of its own that finds no place would find none on a node to itself either."""
    snapshot, catalogue = cluster

    results = solve(snapshot, catalogue, options=PLANNING)

    assert (
        verify_strictly(snapshot, catalogue, results, pods=pods_to_schedule(snapshot), ignore_dra_requests=False) == ()
    )
    bare = replace(snapshot, resource_slices=())  # a new node brings its own devices
    every = {f"default/{c.metadata.name}" for c in snapshot.resource_claims if "All" in repr(c.spec)}
    for pod in pods_to_schedule(snapshot):
        if pod.key in results.pod_errors and pod.metadata.name.startswith("own") and pod.key not in every:
            alone = solve(bare, catalogue, pods=[pod], options=PLANNING)
            assert not alone.new_claims


@settings(max_examples=25, deadline=None)
@given(clusters(), st.randoms(use_true_random=False))
def test_order_of_lists_does_not_matter(cluster, chance):
    """Same cluster, same plan."""
    snapshot, catalogue = cluster
    shuffled = {}
    for kind in ("pods", "resource_claims", "resource_slices"):
        listed = list(getattr(snapshot, kind))
        chance.shuffle(listed)
        shuffled[kind] = tuple(listed)

    again = solve(replace(snapshot, **shuffled), catalogue, options=PLANNING)

    assert again == solve(snapshot, catalogue, options=PLANNING)
