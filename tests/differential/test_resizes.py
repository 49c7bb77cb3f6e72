"""In-place resizes of running pods: our decisions equal Karpenter's, and are those that a user expects."""

import pytest

from journeyman.cli.solve import controller_of, methods
from tests.differential.compare import compare_plans, parse, solve_scenario
from tests.differential.draw.words import (
    ARCH,
    CAPACITY_TYPE,
    HOSTNAME,
    INSTANCE_TYPE,
    NODE_CLASS,
    NODE_CLASS_LABEL,
    NODEPOOL,
    OS,
    TRANSITION_TIME,
    ZONE,
    an_object,
    require,
)
from tests.differential.hunt_disruption import tally

CREATED = "2026-01-05T09:00:00Z"


def a_type(name, cpu, price):
    labels = {INSTANCE_TYPE: name, ARCH: "amd64", OS: "linux", ZONE: "a", CAPACITY_TYPE: "on-demand"}
    offering = {"price": price, "requirements": [require(key, "In", labels[key]) for key in (ZONE, CAPACITY_TYPE)]}
    return {
        "name": name,
        "requirements": [require(key, "In", value) for key, value in labels.items()],
        "offerings": [{**offering, "available": True}],
        "capacity": {"cpu": str(cpu), "memory": f"{4 * cpu}Gi", "pods": "58"},
        "overhead": {"cpu": "100m", "memory": "500Mi"},
    }


TYPES = [a_type("m.large", 2, 0.1), a_type("m.xlarge", 4, 0.21), a_type("m.2xlarge", 8, 0.43)]


def a_node(name, *, drifted=False):
    """Return an initialized m.xlarge and its NodeClaim."""
    labels = {INSTANCE_TYPE: "m.xlarge", ARCH: "amd64", OS: "linux", ZONE: "a", CAPACITY_TYPE: "on-demand"}
    labels |= {NODEPOOL: "default", NODE_CLASS_LABEL: NODE_CLASS["name"]}
    kinds = ["Launched", "Registered", "Initialized", "Consolidatable", *(["Drifted"] if drifted else [])]
    done = {"status": "True", "reason": "Done", "message": "", "lastTransitionTime": TRANSITION_TIME}
    size = {
        "capacity": {"cpu": "4", "memory": "16Gi", "pods": "58"},
        "allocatable": {"cpu": "3900m", "memory": "15884Mi", "pods": "58"},
    }
    provider_id = f"test:///a/{name}"
    claim = an_object(
        "NodeClaim",
        f"c-{name}",
        "karpenter.sh/v1",
        metadata={"labels": labels, "creationTimestamp": CREATED, "finalizers": ["karpenter.sh/termination"]},
        spec={"nodeClassRef": NODE_CLASS, "requirements": [], "expireAfter": "Never"},
        status={
            **size,
            "providerID": provider_id,
            "nodeName": name,
            "conditions": [{"type": kind, **done} for kind in kinds],
        },
    )
    marks = {HOSTNAME: name, "karpenter.sh/registered": "true", "karpenter.sh/initialized": "true"}
    node = an_object(
        "Node",
        name,
        metadata={"labels": {**labels, **marks}, "creationTimestamp": CREATED},
        spec={"providerID": provider_id},
        status={**size, "conditions": [{"type": "Ready", "status": "True"}]},
    )
    return [claim, node]


def a_pod(name, cpu, *, node="", status=None, **spec):
    """Return a pod of one container `c`, pending or running on the node."""
    resources = {"requests": {"cpu": cpu, "memory": "1Gi"}} if cpu else {}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": f"rs-{name}", "controller": True}
    container = {"name": "c", "image": "i", "resources": resources}
    spec = {"containers": [container], **spec, **({"nodeName": node} if node else {})}
    scheduled = {"type": "PodScheduled", "status": "True"}
    running = {"phase": "Running", "startTime": "2026-01-05T11:00:00Z", **(status or {})}
    running["conditions"] = [scheduled, *running.get("conditions", [])]
    more = {"status": running} if node else {}
    return an_object("Pod", name, namespace="default", metadata={"ownerReferences": [owner]}, spec=spec, **more)


def holds(actual, allocated="", *, reason="", where="containerStatuses", name="c"):
    """Return the status of a container that has so much CPU."""
    has, given = ({"cpu": cpu, "memory": "1Gi"} for cpu in (actual, allocated or actual))
    status = {where: [{"name": name, "allocatedResources": given, "resources": {"requests": has}}]}
    pending = [{"type": "PodResizePending", "status": "True", "reason": reason}] if reason else []
    in_progress = [{"type": "PodResizeInProgress", "status": "True"}] if allocated and allocated != actual else []
    return {**status, "conditions": [*pending, *in_progress]}


def beside(cpu, **more):
    """Return the part of a spec with an init container that requests so much."""
    requests = {"cpu": cpu, "memory": "1Gi"}
    return {"initContainers": [{"name": "s", "image": "i", "resources": {"requests": requests}, **more}]}


def a_scenario(*objects, **options):
    disruption = {"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]}
    on_demand = [require(CAPACITY_TYPE, "In", "on-demand")]
    template = {"spec": {"nodeClassRef": NODE_CLASS, "requirements": on_demand, "expireAfter": "Never"}}
    pool = an_object("NodePool", "default", "karpenter.sh/v1", spec={"template": template, "disruption": disruption})
    return {
        "name": "resize",
        "now": "2026-01-05T12:00:00Z",
        "instanceTypes": TYPES,
        "objects": [pool, *objects],
        "options": options,
    }


of_sidecar, always = {"where": "initContainerStatuses", "name": "s"}, {"restartPolicy": "Always"}
RESIZES = {  # what the spec requests and the status says, and whether a pod of 2 CPU has space beside it on 3.9 CPU
    "shrinks": ("500m", {}, holds("3", "500m"), False),
    "shrinks, not yet allocated": ("500m", {}, holds("3"), False),
    "shrank": ("500m", {}, holds("500m"), True),
    "grows": ("3", {}, holds("1", "3"), False),
    "growth deferred": ("3", {}, holds("1", reason="Deferred"), False),
    "growth infeasible": ("30", {}, holds("1", reason="Infeasible"), True),
    "growth infeasible after a growth": ("30", {}, holds("1", "3", reason="Infeasible"), False),
    "sidecar shrinks": ("", beside("500m", **always), holds("3", "500m", **of_sidecar), False),
    "sidecar infeasible": ("", beside("30", **always), holds("1", reason="Infeasible", **of_sidecar), True),
    "init container": ("500m", beside("1"), holds("3", **of_sidecar), True),
}


@pytest.mark.parametrize(("cpu", "spec", "status", "fits"), RESIZES.values(), ids=RESIZES)
def test_pending_pod_shares_the_node_of_a_resized_one_only_where_it_has_space(karpenter, cpu, spec, status, fits):
    """The node keeps what the resized pod holds; otherwise a new node is launched."""
    resized = a_pod("resized", cpu, node="n", status=status, **spec)
    scenario = a_scenario(*a_node("n"), resized, a_pod("new", "2"))

    assert compare_plans(scenario, karpenter) == []
    assert (solve_scenario(parse(scenario)).existing == {"n": ("default/new",)}) == fits


def decided(scenario, karpenter):
    """Return our decision of each method, which is Karpenter's unless a known difference explains another one."""
    assert tally([scenario], karpenter).unexplained == []
    found = methods(controller_of(parse(scenario)))
    return {m["method"].rpartition(".")[2]: m["commands"][0]["decision"] for m in found if m["commands"]}


@pytest.mark.parametrize(
    ("cpu", "status", "decision"),
    [
        ("30", holds("1", reason="Infeasible"), "replace"),
        ("500m", holds("3", "500m"), "replace"),
        ("30", holds("1", reason="Deferred"), None),
    ],
    ids=["infeasible", "shrinks", "deferred"],
)
def test_drifted_node_of_a_resized_pod_is_replaced_where_a_type_has_what_it_holds(karpenter, cpu, status, decision):
    """No type has the 30 CPU of the deferred growth, which the pod may still get."""
    scenario = a_scenario(
        *a_node("n", drifted=True), a_pod("resized", cpu, node="n", status=status), disrupt=True, everyMethod=True
    )

    assert decided(scenario, karpenter).get("Drift") == decision


@pytest.mark.parametrize(
    ("cpu", "status", "decisions"),
    [
        ("64", holds("1", reason="Infeasible"), {"delete"}),
        ("500m", holds("2500m", "500m"), set()),
        ("1", holds("1"), {"delete"}),
    ],
    ids=["infeasible", "shrinks", "not resized"],
)
def test_two_nodes_become_one_where_their_pods_fit_with_what_they_hold(karpenter, cpu, status, decisions):
    """One pod of 2 CPU and one that is resized."""
    pods = a_pod("resized", cpu, node="n1", status=status), a_pod("other", "2", node="n2")
    scenario = a_scenario(*a_node("n1"), *a_node("n2"), *pods, disrupt=True, everyMethod=True)

    found = decided(scenario, karpenter)

    assert {found[method] for method in found if "Consolidation" in method} == decisions
