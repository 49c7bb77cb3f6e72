"""Gauges computed from a snapshot, with Karpenter's names, labels and units."""

from datetime import timedelta

import msgspec
import pytest

from journeyman.core.api import labels
from journeyman.core.api.metrics import METRICS
from journeyman.core.observability.condition_metrics import condition_gauges
from journeyman.core.observability.node_metrics import cluster_gauges, node_gauges
from journeyman.core.observability.nodepool_metrics import pool_gauges
from journeyman.core.observability.offering_metrics import offering_gauges
from journeyman.core.observability.pod_metrics import pod_gauges
from journeyman.core.state import InvalidObject
from tests.helpers import builders
from tests.helpers.builders import NOW, a_node, a_node_class, a_pool, a_snapshot, ago, condition, stamp
from tests.helpers.fleets import a_catalogue, a_fleet, a_member, a_pod, price, types

GI = 2**30


def limited(pod, *, cpu, init_cpu=""):
    """The pod with CPU limits on its container and, if given, on an init container."""
    first = msgspec.structs.replace(
        pod.spec.containers[0], resources=msgspec.structs.replace(pod.spec.containers[0].resources, limits={"cpu": cpu})
    )
    starting = (
        msgspec.structs.replace(
            first, resources=type(first.resources)(requests={"cpu": "0"}, limits={"cpu": init_cpu})
        ),
    )
    spec = msgspec.structs.replace(pod.spec, containers=(first,), init_containers=starting if init_cpu else ())
    return msgspec.structs.replace(pod, spec=spec)


def values(samples, name, *of):
    """The values of a metric, by these labels."""
    return {tuple(s.labels.get(label, "") for label in of): s.value for s in samples if s.name == f"karpenter_{name}"}


@pytest.fixture
def fleet():
    """A managed node with an application and a DaemonSet pod, an unmanaged node, and a pending pod."""
    app = limited(a_pod("app", node="node-n", cpu="1", memory="1Gi"), cpu="2", init_cpu="3")
    daemon = limited(a_pod("log", node="node-n", cpu="500m", memory="1Gi", owner="DaemonSet"), cpu="1")
    other = a_node("alien", spec={"providerID": "other://1"})
    ours = a_member("n", pods=(app, daemon), node={"status": {"allocatable": {"cpu": "3500m", "memory": "15Gi"}}})
    snapshot = a_fleet(ours, pending=(a_pod("waits", metadata={"creationTimestamp": stamp(ago(minutes=2))}),))
    return msgspec.structs.replace(snapshot, nodes=(*snapshot.nodes, other))


def test_node_gauges_have_allocatable_requests_and_daemon_requests(fleet):
    """CPU is in cores and memory in bytes; pods are a resource, too."""
    samples = tuple(node_gauges(fleet))

    def of(name):
        found = values(samples, f"nodes_{name}", "node_name", "resource_type")
        return {kind: value for (node, kind), value in found.items() if node == "node-n"}

    assert (of("allocatable")["cpu"], of("allocatable")["memory"]) == (3.5, 15 * GI)
    assert of("system_overhead")["cpu"] == 0.5
    assert of("total_pod_requests") == {"cpu": 1.5, "memory": 2 * GI, "pods": 2}
    assert of("total_daemon_requests") == {"cpu": 0.5, "memory": 1 * GI, "pods": 1}
    assert of("total_pod_limits") == {"cpu": 4.0, "pods": 2}  # the init container's limit of 3 exceeds the app's 2
    assert of("total_daemon_limits") == {"cpu": 1.0, "pods": 1}


def test_node_gauges_have_well_known_labels_and_the_managed_label(fleet):
    """Dashboards group by these labels; labels without a value are omitted."""
    samples = tuple(node_gauges(fleet))

    ours, other = (
        next(s.labels for s in samples if s.labels.get("node_name") == name and "lifetime" in s.name)
        for name in ("node-n", "node-alien")
    )
    assert ours == {
        "node_name": "node-n",
        "managed": "true",
        "nodepool": "default",
        "zone": "a",
        "instance_type": "m",
        "capacity_type": "on-demand",
    }
    assert other["managed"] == "false"
    assert values(samples, "nodes_current_lifetime_seconds", "node_name")[("node-n",)] == 60


def test_utilization_is_over_all_nodes_and_cluster_state_is_synced(fleet):
    """Utilization is the requests of all pods divided by the allocatable of all nodes."""
    samples = (*node_gauges(fleet), *cluster_gauges(fleet))
    nodes = [msgspec.structs.replace(fleet, nodes=(node,)) for node in fleet.nodes]
    cpus = sum(values(node_gauges(n), "nodes_allocatable", "resource_type")[("cpu",)] for n in nodes)

    assert values(samples, "cluster_utilization_percent", "resource_type")[("cpu",)] == pytest.approx(150 / cpus)
    assert values(samples, "cluster_state_node_count") == {(): 2}
    assert values(samples, "cluster_state_synced") == {(): 1}


def test_nodepool_gauges_have_limits_usage_and_cost(fleet):
    """Usage is read from the NodePool's status; cost is the sum over its nodes with a known price."""
    pool = a_pool(spec={"limits": {"cpu": "10", "memory": "64Gi"}}, status={"resources": {"cpu": "4", "nodes": "1"}})
    snapshot = msgspec.structs.replace(fleet, node_pools=(pool,))

    samples = tuple(pool_gauges(snapshot, a_catalogue("default")))

    assert values(samples, "nodepools_limit", "resource_type") == {("cpu",): 10, ("memory",): 64 * GI}
    assert values(samples, "nodepools_usage", "resource_type") == {("cpu",): 4, ("nodes",): 1}
    assert values(samples, "nodepools_cost_total", "nodepool") == {("default",): pytest.approx(price("m"))}


def test_pod_gauges_have_state_and_unbound_and_unstarted_time(fleet):
    """A pending pod has no node labels; a ready pod has no unbound or unstarted time."""
    samples = tuple(pod_gauges(fleet))

    waits, app = (
        next(s.labels for s in samples if s.name == "karpenter_pods_state" and s.labels["name"] == name)
        for name in ("waits", "app")
    )
    assert (waits["scheduled"], waits["managed"], "node" in waits, waits["ready"]) == ("false", "false", False, "false")
    assert (app["node"], app["nodepool"], app["instance_type"], app["managed"]) == ("node-n", "default", "m", "true")
    assert app["owner"] == "/apis/apps/v1/namespaces/default/replicasets/owner"
    assert values(samples, "pods_unbound_time_seconds", "name") == {("waits",): 120}
    assert values(samples, "pods_unstarted_time_seconds", "name") == {("waits",): 120}


def test_deleted_objects_have_no_gauges(fleet):
    """Gauges are computed from the objects that exist."""
    assert {s.labels["nodepool"] for s in pool_gauges(fleet, a_catalogue("default"))} == {"default"}
    assert tuple(pool_gauges(msgspec.structs.replace(fleet, node_pools=()), a_catalogue("default"))) == ()
    assert tuple(pod_gauges(msgspec.structs.replace(fleet, pods=()))) == ()


@pytest.mark.parametrize(
    ("phase", "ready", "unbound", "unstarted"),
    [
        ("Pending", None, True, True),
        ("Running", None, False, True),
        ("Running", "Unknown", False, True),
        ("Running", "True", False, False),
        ("Succeeded", "False", False, False),
        ("Failed", "False", False, False),
    ],
)
def test_pod_waits_until_it_is_ready_or_has_ended(phase, ready, unbound, unstarted):
    """Its phase is a label of `pods_state`."""
    conditions = [condition("Ready", ready)] if ready else []
    pod = builders.a_pod(
        "p",
        metadata={"creationTimestamp": stamp(ago(minutes=2))},
        status={"phase": phase, "conditions": conditions},
    )
    samples = tuple(pod_gauges(a_snapshot(pods=(pod,))))
    assert values(samples, "pods_state", "phase") == {(phase,): 1}
    assert values(samples, "pods_unbound_time_seconds") == ({(): 120} if unbound else {})
    assert values(samples, "pods_unstarted_time_seconds") == ({(): 120} if unstarted else {})


def test_condition_gauges_have_count_and_age_for_every_kind():
    """Terminating objects and invalid NodePools have them, too."""
    said = condition("Launched", since=NOW - timedelta(minutes=3), reason="Launched")
    member = a_member("n", deleting=True, claim={"status": {"conditions": [said]}})
    bad = InvalidObject(kind="NodePool", name="bad", uid="u", why="weight", conditions=member.claim.status.conditions)

    samples = tuple(condition_gauges(a_fleet(member, invalid_objects=(bad,))))
    found = {(s.name, s.labels["name"], s.labels.get("type", "")): s for s in samples}

    claim = member.claim.metadata.name
    count = found["operator_nodeclaim_status_condition_count", claim, "Launched"]
    assert (count.value, count.labels["status"], count.labels["karpenter_sh_nodepool"]) == (1, "True", "default")
    assert found["operator_nodeclaim_status_condition_current_status_seconds", claim, "Launched"].value == 180
    assert found["operator_nodeclaim_termination_current_time_seconds", claim, ""].value == 5
    assert found["operator_node_status_condition_count", "node-n", "Ready"].labels["status"] == "True"
    assert found["operator_nodepool_status_condition_count", "bad", "Launched"].value == 1


def test_offering_gauges_have_availability_and_price():
    """An instance type of two NodeClasses has only one series."""
    samples = tuple(offering_gauges((*types(), *types())))

    available = values(
        samples, "cloudprovider_instance_type_offering_available", "instance_type", "capacity_type", "zone"
    )
    assert available["m", labels.SPOT, "a"] == 1
    assert len([s for s in samples if s.name.endswith("offering_available")]) == len(available)
    assert values(samples, "cloudprovider_instance_type_cpu_cores", "instance_type")[("m",)] > 0


def test_gauges_have_the_declared_kind_and_labels(fleet):
    """No series is repeated."""
    samples = (
        *node_gauges(fleet),
        *cluster_gauges(fleet),
        *pool_gauges(fleet, a_catalogue("default")),
        *pod_gauges(fleet),
        *condition_gauges(fleet),
        *offering_gauges(types()),
    )

    assert all(METRICS[s.name].kind == s.kind == "gauge" for s in samples)
    assert all(set(s.labels) <= set(METRICS[s.name].labels) and all(s.labels.values()) for s in samples)
    assert len({(s.name, *sorted(s.labels.items())) for s in samples}) == len(samples)


def test_unreadable_nodeclass_conditions_do_not_hide_other_gauges():
    """A NodeClass has a condition with an invalid lastTransitionTime."""
    strange = [{"type": "Ready", "status": "True", "lastTransitionTime": "lately"}]
    broken = a_node_class("broken", raw={"metadata": {"name": "broken"}, "status": {"conditions": strange}})

    found = {
        (s.name, s.labels["name"]) for s in condition_gauges(a_snapshot(node_classes=(broken,), nodes=(a_node("x"),)))
    }

    assert ("operator_node_status_condition_count", "node-x") in found


def test_object_that_cannot_be_evaluated_loses_only_its_own_gauges():
    """A gauge names it: a condition's time without a time zone, and an amount that is no number."""
    naive = {**condition("Ready"), "lastTransitionTime": "2026-03-02T21:00:00"}
    odd = a_member("odd", claim={"status": {"conditions": [naive]}})
    first, *others = types()
    broken = msgspec.structs.replace(first, capacity={"cpu": "lots"})

    conditions = tuple(condition_gauges(a_fleet(odd, a_member("n"))))
    offerings = tuple(offering_gauges((broken, *others)))

    assert {s.labels["name"] for s in conditions if s.name == "operator_nodeclaim_status_condition_count"} == {"n"}
    assert {s.labels["instance_type"] for s in offerings if s.name.endswith("cpu_cores")} == {t.name for t in others}
    skipped = [s.labels for s in (*conditions, *offerings) if s.name == "journeyman_scrape_object_skipped"]
    assert [(of["kind"], of["name"], of["error"]) for of in skipped] == [
        ("NodeClaim", "odd", "TypeError"),
        ("InstanceType", first.name, "TypeError"),
    ]


def test_requests_of_a_resized_pod_are_the_larger_amounts():
    """As Karpenter has counted them since 1.14.1."""
    shrinks = a_pod("p", node="node-n", cpu="1", status=builders.a_resize("3"))

    found = values(
        tuple(node_gauges(a_fleet(a_member("n", pods=(shrinks,))))),
        "nodes_total_pod_requests",
        "node_name",
        "resource_type",
    )

    assert found["node-n", "cpu"] == 3
