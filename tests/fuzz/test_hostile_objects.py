"""One hostile object harms no other: it stops no step, takes no time, and costs no other object what it is owed.

Covers: amounts, durations, times and schedules beyond any range, all of which an API server admits. Each row stopped a
step, or made it plan wrongly, before amounts and durations saturated and objects were read under a guard.
"""

from __future__ import annotations

from typing import Any

import pytest

from journeyman.core.api import labels
from journeyman.core.api.objects import NODECLAIM
from journeyman.core.plan import Step
from tests.fuzz.expensive_pods import SHAPES, namespace_selectors
from tests.fuzz.healthy_cluster import HealthyCluster
from tests.helpers import fleets
from tests.helpers.builders import condition, merge, pod_body, pool_body

MAX_SECONDS = 10.0
"""CPU seconds of one run of a step."""


def daemon_set(name: str = "greedy", **requests: str) -> dict[str, Any]:
    """Return a DaemonSet with these requests, by resource; `__` stands for a slash."""
    amounts = {resource.replace("__", "/"): amount for resource, amount in requests.items()}
    pod = pod_body(name)["spec"] | {"tolerations": [{"operator": "Exists"}]}
    pod["containers"] = [{"name": "c", "image": "pause", "resources": {"requests": amounts}}]
    spec = {
        "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": pod},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": "hostile"},
        "spec": spec,
    }


def running_pod(node: str, **changes: Any) -> dict[str, Any]:
    """Return a pod of a tenant that runs on one of the healthy cluster's nodes."""
    return pod_body("tenant", cpu="10m", node=node, **merge({"metadata": {"namespace": "hostile"}}, changes))


def protected_for(duration: str, node: str) -> dict[str, Any]:
    """Return a running pod with a do-not-disrupt annotation."""
    return running_pod(node, metadata={"annotations": {labels.DO_NOT_DISRUPT: duration}})


def unnamed_claim() -> dict[str, Any]:
    """Return a pending pod with a volume that names no PersistentVolumeClaim."""
    volume = {"name": "data", "persistentVolumeClaim": {}}
    return pod_body("tenant", cpu="10m", metadata={"namespace": "hostile"}, spec={"volumes": [volume]})


def proposal(created: str, phase: str = "Proposed", claim: str = "none", uid: str = "x") -> dict[str, Any]:
    """Return a NodeDisruption without replacements that waits for its validation, or is in another phase."""
    candidate = {"nodeClaim": claim, "nodeClaimUID": uid, "price": "1", "pods": []}
    spec = {
        "reason": "Empty",
        "decision": "delete",
        "method": "emptiness",
        "replacements": [],
        "candidates": [candidate],
        "createdAt": created,
    }
    return {
        "apiVersion": "journeyman.dev/v1alpha1",
        "kind": "NodeDisruption",
        "metadata": {"name": "later"},
        "spec": spec,
        "status": {"phase": phase},
    }


def odd_pod_on_a_node_that_a_disruption_removes() -> tuple[dict[str, Any], ...]:
    """Return a node, its NodeClaim and NodeDisruption, and a pod whose start time has no time zone."""
    disrupted = {"status": {"conditions": [condition("DisruptionReason")]}}
    member = fleets.a_member("removed", claim=disrupted)
    protected = {"metadata": {"annotations": {labels.DO_NOT_DISRUPT: "1h"}}}
    pod = running_pod("node-removed", status={"phase": "Running", "startTime": "2026-03-02T20:59:00"}, **protected)
    uid = member.claim.metadata.uid
    return *fleets.bodies(member), pod, proposal("2026-03-02T20:59:00Z", "Draining", "removed", uid)


def node_with_an_odd_condition() -> tuple[dict[str, Any], ...]:
    """Return a node and its NodeClaim, of which a condition's time has no time zone."""
    odd = {**condition("Odd"), "lastTransitionTime": "2026-03-02T21:00:00"}
    return fleets.bodies(fleets.a_member("odd", claim={"status": {"conditions": [odd]}}))


def node_with(**amounts: str) -> tuple[dict[str, Any], ...]:
    """Return a node with these amounts, and its NodeClaim."""
    changes = {"status": {"allocatable": amounts, "capacity": amounts}}
    return fleets.bodies(fleets.a_member("huge", claim=changes, node=changes))


def second_pool(**spec: Any) -> dict[str, Any]:
    """Return a NodePool that the scheduler tries before the healthy one."""
    return pool_body("hostile", spec={"weight": 50, **spec})


def budget(duration: str) -> dict[str, Any]:
    """Return the healthy NodePool with a budget that opens every minute for so long."""
    always = {"nodes": "100%", "schedule": "* * * * *", "duration": duration}
    return {"budgets": [always]}


ROWS: dict[str, tuple[dict[str, Any], ...]] = {
    "DaemonSet requests cpu 9E": (daemon_set(cpu="9E"),),
    "DaemonSet requests memory 10E": (daemon_set(memory="10E"),),
    "DaemonSet requests 9E of an extended resource": (daemon_set(example__com="9E", **{"example.com/gadget": "9E"}),),
    "two DaemonSets request memory 8E": (daemon_set("one", memory="8E"), daemon_set("two", memory="8E")),
    "DaemonSet requests a resource that no instance type has": (daemon_set(**{"hugepages-2Mi": "2Mi"}),),
    "DaemonSet requests more than any instance type has": (daemon_set(cpu="1000"),),
    "pod with a volume whose claim has no name": (unnamed_claim(),),
    "NodeDisruption decided in the year 2262": (proposal("2262-04-11T23:47:16Z"),),
    "NodeDisruption decided in the year 9999": (proposal("9999-12-31T23:59:59-14:00"),),
    "pod on a leaving node protected for 99999999h": (protected_for("99999999h", "node-spot"),),
    "NodePool limit 1e99": (second_pool(limits={"cpu": "1e99", "memory": "9E"}),),
    "odd pod on a node that a disruption removes": odd_pod_on_a_node_that_a_disruption_removes(),
    "NodeClaim with an odd condition": node_with_an_odd_condition(),
    "node allocatable 9999999999999E": node_with(cpu="9999999999999E", memory="9999999999999E", pods="9E"),
}


@pytest.mark.parametrize("row", ROWS)
def test_hostile_object_stops_nothing(row):
    """All five steps run, and every healthy object gets what it gets without the hostile one."""
    cluster = HealthyCluster(ROWS[row])

    findings = cluster.run()

    assert findings.stopped == {}
    assert findings.rejected == []
    assert all(findings.served.values()), findings.served
    assert findings.slowest < MAX_SECONDS


@pytest.mark.parametrize("protected", [None, "99999999h", "9" * 400 + "h", "9" * 9999 + "h"])
def test_pod_with_an_endless_protection_keeps_its_node(protected):
    """Without the annotation the node is disrupted, because its pod fits on another one."""
    annotations = {labels.DO_NOT_DISRUPT: protected} if protected else {}
    pod = running_pod("node-protected", metadata={"annotations": annotations})
    cluster = HealthyCluster((*fleets.bodies(fleets.a_member("protected")), pod))
    (claim,) = [c for c in cluster.cluster.server.list(NODECLAIM).items if c.metadata.name == "protected"]
    cluster.run_instance("protected", claim.metadata.uid)

    cluster.run()
    findings = cluster.run()

    assert findings.stopped == {}
    assert ("protected" in cluster.disrupted()) is (protected is None)
    assert findings.served["the empty node is disrupted"]


def test_endless_grace_period_does_not_stop_a_drain():
    """The claim has a terminationGracePeriod, so the pod's own one decides when it is deleted by force: at once."""
    leaving = {"spec": {"terminationGracePeriod": "30m"}}
    pod = running_pod("node-draining", spec={"terminationGracePeriodSeconds": 100_000_000_000})
    cluster = HealthyCluster((*fleets.bodies(fleets.a_member("draining", deleting=True, claim=leaving)), pod))
    (claim,) = [c for c in cluster.cluster.server.list(NODECLAIM).items if c.metadata.name == "draining"]
    cluster.run_instance("draining", claim.metadata.uid)

    findings = cluster.run()

    assert findings.stopped == {}
    assert all(findings.served.values()), findings.served
    assert "hostile/tenant" not in {p.key for p in cluster.running_pods()}


@pytest.mark.parametrize("duration", ["17520h", "87600h", "2562047h"])
def test_long_budget_window_is_not_walked(duration):
    """A window that opens every minute for years is open: nodes are disrupted, and no step takes long."""
    cluster = HealthyCluster()
    cluster.change_pool(budget(duration))

    findings = cluster.run(Step.CONSOLIDATE, Step.SWEEP)

    assert findings.stopped == {}
    assert findings.served["the empty node is disrupted"]
    assert findings.slowest < 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "pods", "size"),
    [
        ("node_terms", 20, 30),
        pytest.param("node_terms", 20, 300, marks=pytest.mark.nightly),
        ("node_terms_and_spread", 20, 10),
        pytest.param("node_terms_and_spread", 20, 30, marks=pytest.mark.nightly),
        pytest.param("node_terms_and_spread", 20, 100, marks=pytest.mark.nightly),
        ("values", 20, 10_000),
        ("spreads", 20, 100),
        pytest.param("spreads", 20, 300, marks=pytest.mark.nightly),
        ("shared_spreads", 100, 20),
        pytest.param("shared_spreads", 300, 20, marks=pytest.mark.nightly),
        ("anti_affinities", 100, 30),
        pytest.param("anti_affinities", 100, 100, marks=pytest.mark.nightly),
        ("own_anti_affinity", 1000, 1),
        pytest.param("own_anti_affinity", 8000, 1, marks=pytest.mark.nightly),
        ("own_anti_affinity", 300, 2),
        pytest.param("own_anti_affinity", 8000, 2, marks=pytest.mark.nightly),
        ("namespace_selectors", 100, 20),
        ("zone_anti_affinities", 20, 100),
        ("affinity_chain", 60, 5),
        ("preferences", 20, 100),
        pytest.param("preferences", 20, 300, marks=pytest.mark.nightly),
        ("preferred_node_terms", 20, 10),
        pytest.param("preferred_node_terms", 20, 300, marks=pytest.mark.nightly),
        ("impossible_terms", 20, 10),
        pytest.param("impossible_terms", 20, 100, marks=pytest.mark.nightly),
        pytest.param("impossible_terms", 20, 300, marks=pytest.mark.nightly),
        ("many_labels", 10, 9),
        ("host_ports", 20, 100),
        pytest.param("host_ports", 20, 300, marks=pytest.mark.nightly),
        ("tolerations", 20, 1000),
    ],
)
def test_expensive_pods_keep_no_other_pod_waiting(shape, pods, size):
    """The healthy pod gets its node in the first run, and the expensive ones a node or an error."""
    assert len(SHAPES) == 16
    cluster = HealthyCluster(SHAPES[shape](pods, size))

    findings = cluster.run(Step.PROVISION, Step.CONSOLIDATE)

    assert findings.stopped == {}
    assert findings.rejected == []
    assert findings.served["the pending pod has a NodeClaim with an instance"]
    assert findings.slowest < MAX_SECONDS


@pytest.mark.slow
def test_namespace_selectors_over_thousands_of_namespaces_take_no_time():
    """Each of 150 pods has ten terms of its own that select nearly all of 5,000 namespaces; 300 took 20 s and 1 GB."""
    names = [f"ns-{n}" for n in range(5000)]
    namespaces = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"team": f"t{n % 100}"}}}
        for n, name in enumerate(names)
    ]
    cluster = HealthyCluster((*namespaces, *namespace_selectors(150, 10)))

    findings = cluster.run(Step.PROVISION)

    assert findings.stopped == {}
    assert findings.rejected == []
    assert findings.served["the pending pod has a NodeClaim with an instance"]
    assert findings.slowest < MAX_SECONDS


@pytest.mark.slow
def test_running_pods_with_their_own_anti_affinity_take_no_time():
    """Each of 2,000 running pods keeps other pods away; verification compared each with all of them."""
    away = {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["healthy"]}]}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": away}
    pods = [
        running_pod(
            "node-busy",
            metadata={"name": f"running-{n}", "uid": f"uid-{n}", "labels": {"app": f"tenant-{n}"}},
            spec={
                "affinity": {
                    "podAntiAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": [{**term, "namespaces": [f"elsewhere-{n}"]}]
                    }
                },
                "containers": [{"name": "c", "image": "pause"}],
            },
        )
        for n in range(2000)
    ]
    cluster = HealthyCluster(pods)

    findings = cluster.run(Step.PROVISION)

    assert findings.stopped == {}
    assert findings.served["the pending pod has a NodeClaim with an instance"]
    assert findings.slowest < 1
