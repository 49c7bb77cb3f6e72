"""Scores, pod nomination and anti-affinity: one suite for the simulated kube-scheduler and for the real one.

Journeyman relies on this behaviour, so the simulated kube-scheduler must have it, too.
"""

import itertools
import random
import time

import numpy as np
import pytest

from journeyman.core.api import labels
from journeyman.core.api.objects import NODE, POD, Resource, condition_of
from journeyman.core.disruption.node_scores import NO_WORKLOAD, PodsToBind, SchedulableNodes, node_scores
from journeyman.core.lifecycle.nomination import WATCH_DELAY
from journeyman.kube.access.kubeconfig import from_kubeconfig
from journeyman.kube.http_store import HttpKubeStore
from journeyman.kube.transport import Transport
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.kube_scheduler import KubeScheduler
from journeyman_simulator.workload_controllers import REPLICASET
from tests.helpers.builders import NOW, condition
from tests.helpers.waiting import wait_until

PATIENCE_SECONDS = 60
PRIORITY_CLASS: Resource = Resource(
    group="scheduling.k8s.io", version="v1", kind="PriorityClass", plural="priorityclasses", namespaced=False, type=dict
)
CLOSED = {"key": "example.com/closed", "effect": "NoSchedule"}
_numbers = itertools.count()


class Simulated:
    """An API server and a simulated kube-scheduler in this process."""

    def __init__(self):
        clock = VirtualClock(NOW)
        self.store = ApiServer(clock)
        self._scheduler = KubeScheduler(self.store, clock)

    def until(self, holds):
        self._scheduler.act()
        assert holds()

    def wait_for_watches(self):
        """Return at once: the simulated kube-scheduler reads the API server."""


class Real:
    """A real control plane with kube-scheduler."""

    def __init__(self, plane):
        self.store = HttpKubeStore(Transport(from_kubeconfig(str(plane.kubeconfig))))
        self.store.create(PRIORITY_CLASS, {"metadata": {"name": "important"}, "value": 1000})

    def until(self, holds):
        wait_until(holds, "kube-scheduler has not done it", PATIENCE_SECONDS)

    def wait_for_watches(self):
        """Wait until kube-scheduler has seen all pods: its watch of pods may lag behind its watch of nodes."""
        time.sleep(WATCH_DELAY.total_seconds())


@pytest.fixture(scope="module")
def real(make_control_plane):
    with make_control_plane(scheduler=True) as plane:
        yield Real(plane)


@pytest.fixture(
    params=["simulated", pytest.param("real", marks=[pytest.mark.slow, pytest.mark.xdist_group("scheduler")])]
)
def cluster(request):
    """Return the test's own nodes and pods; no other test's pods fit the nodes."""
    return LabeledCluster(Simulated() if request.param == "simulated" else request.getfixturevalue("real"))


class LabeledCluster:
    """A test's nodes and pods, which only fit each other because of a label."""

    def __init__(self, side):
        self.side, self.store, self.name = side, side.store, f"t{next(_numbers)}"

    def add_node(self, name, cpu="2", memory="8Gi", zone="", taints=()):
        size = {"cpu": cpu, "memory": memory, "pods": "20"}
        full = f"{self.name}-{name}"
        marks = {"stage": self.name, "kubernetes.io/hostname": full, **({labels.ZONE: zone} if zone else {})}
        self.store.create(NODE, {"metadata": {"name": full, "labels": marks}, "spec": {"taints": list(taints)}})
        status = {"capacity": size, "allocatable": size, "conditions": [condition("Ready")]}
        self.store.patch(NODE, full, {"status": status}, subresource="status")
        self.store.patch(NODE, full, {"spec": {"taints": list(taints)}})  # admission adds the `not-ready` taint
        return full

    def remove_taints(self, node):
        self.store.patch(NODE, node, {"spec": {"taints": []}})

    def add_replica_set(self, name):
        """Create a ReplicaSet that has no replicas of its own, and return the metadata of its pods."""
        marks = {"app": f"{self.name}-{name}"}
        container = {"name": "c", "image": "pause"}
        spec = {
            "replicas": 0,
            "selector": {"matchLabels": marks},
            "template": {"metadata": {"labels": marks}, "spec": {"containers": [container]}},
        }
        body = {"metadata": {"name": marks["app"], "namespace": "default"}, "spec": spec}
        made = self.store.create(REPLICASET, body, namespace="default")
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": marks["app"], "uid": made["metadata"]["uid"]}
        return {"labels": marks, "ownerReferences": [{**owner, "controller": True}]}

    def add_pod(self, name, cpu="1", memory="0", metadata=None, **spec):
        container = {"name": "c", "image": "pause", "resources": {"requests": {"cpu": cpu, "memory": memory}}}
        own = {"name": f"{self.name}-{name}", "namespace": "default", "labels": {"pod": f"{self.name}-{name}"}}
        body = {
            "metadata": {**own, **(metadata or {})},
            "spec": {"containers": [container], "nodeSelector": {"stage": self.name}, **spec},
        }
        self.store.create(POD, body, namespace="default")

    def report(self, name, cpu, allocated="", reason=""):
        """Set what the kubelet reports: the container has so much CPU, and a resize is pending for that reason."""
        has = {"requests": {"cpu": cpu, "memory": "0"}}
        status = {
            "name": "c",
            "image": "pause",
            "imageID": "",
            "ready": True,
            "restartCount": 0,
            "allocatedResources": {"cpu": allocated or cpu, "memory": "0"},
            "resources": has,
        }
        pending = [{"type": "PodResizePending", "status": "True", "reason": reason}] if reason else []
        patch = {"status": {"containerStatuses": [status], "conditions": pending}}
        self.store.patch(POD, f"{self.name}-{name}", patch, namespace="default", subresource="status")
        self.side.wait_for_watches()

    def nominate(self, name, node):
        patch = {"status": {"nominatedNodeName": node}}
        self.store.patch(POD, f"{self.name}-{name}", patch, namespace="default", subresource="status")

    def pod(self, name):
        return self.store.get(POD, f"{self.name}-{name}", namespace="default")

    def is_on(self, name, node):
        return self.pod(name).spec.node_name == node

    def is_unschedulable(self, name):
        found = condition_of(self.pod(name).status.conditions, "PodScheduled")
        return found is not None and found.reason == "Unschedulable"


def test_pods_are_bound_to_the_node_with_the_highest_score(cluster):
    """The scores with which binding orders are checked: resources, their balance, spread and PreferNoSchedule taints."""
    rng = random.Random(7)
    sizes = [(4, 16), (8, 16), (8, 32), (4, 8), (16, 32), (6, 40)]
    zones = [number % 2 for number in range(len(sizes))]
    for number, (cpu, memory) in enumerate(sizes):
        taints = [{"key": "example.com/avoid", "effect": "PreferNoSchedule"}] if number == 4 else []
        cluster.add_node(
            str(number), cpu=str(cpu), memory=f"{memory}Gi", zone=f"{cluster.name}-{zones[number]}", taints=taints
        )
    owners = [None, *(cluster.add_replica_set(name) for name in "abc")]
    cluster.side.wait_for_watches()
    total = np.array([[cpu * 1_000, memory << 30] for cpu, memory in sizes])
    nodes = SchedulableNodes(
        axes=("cpu", "memory"),
        free=total.copy(),
        total=total,
        zones=np.array(zones),
        running=np.zeros((len(owners) - 1, len(sizes)), dtype=np.int64),
        position={},
    )

    places = []
    for number in range(40):
        workload, cpu, memory = (
            rng.randrange(len(owners)) - 1,
            rng.choice([250, 500, 1_000]),
            rng.choice([256, 1_024, 3_072]),
        )
        cluster.add_pod(str(number), cpu=f"{cpu}m", memory=f"{memory}Mi", metadata=owners[workload + 1])
        cluster.side.until(lambda number=number: cluster.pod(str(number)).spec.node_name)
        place = int(cluster.pod(str(number)).spec.node_name.rpartition("-")[2])
        pod = PodsToBind(
            requests=np.array([[cpu, memory << 20]]),
            workloads=np.array([workload]),
            allowed=[np.ones(len(sizes), dtype=bool)],
            avoided=[np.arange(len(sizes)) == 4],
        )
        scores = node_scores(0, pod, nodes)
        assert scores[place] == scores.max(), f"pod {number} of workload {workload} is on node {place}: {scores}"
        places.append(place)
        nodes.free[place] -= pod.requests[0]
        if workload != NO_WORKLOAD:
            nodes.running[workload, place] += 1

    assert set(places) >= {0, 1, 2, 3, 5}


def test_nominated_node_is_preferred_to_one_with_a_higher_score(cluster):
    """The larger node has the higher score; binding clears the nomination."""
    small, _large = cluster.add_node("small"), cluster.add_node("large", cpu="16")
    cluster.add_pod("nominated", schedulingGates=[{"name": "later"}])
    cluster.nominate("nominated", small)
    cluster.store.patch(POD, f"{cluster.name}-nominated", {"spec": {"schedulingGates": []}}, namespace="default")
    cluster.side.until(lambda: cluster.is_on("nominated", small))
    assert cluster.pod("nominated").status.nominated_node_name == ""


def test_nominated_pods_keep_their_capacity_against_older_pods(cluster):
    """Their order in the queue does not matter once the node's taint is removed."""
    node = cluster.add_node("n", taints=[CLOSED])
    for name in ("older", "nominated"):
        cluster.add_pod(name, cpu="2")
        cluster.side.until(lambda name=name: cluster.is_unschedulable(name))

    cluster.nominate("nominated", node)
    cluster.side.wait_for_watches()
    cluster.remove_taints(node)

    cluster.side.until(lambda: cluster.is_on("nominated", node))
    assert cluster.is_unschedulable("older")


def test_pods_with_higher_priority_ignore_nominations(cluster):
    """They take the capacity; the nominated pod has a scheduling gate, so that it cannot be bound first."""
    node = cluster.add_node("n")
    cluster.add_pod("nominated", cpu="2", schedulingGates=[{"name": "later"}])
    cluster.nominate("nominated", node)
    cluster.add_pod("important", cpu="2", priorityClassName="important", priority=1000)
    cluster.side.until(lambda: cluster.is_on("important", node))


def test_failed_scheduling_attempt_clears_the_nomination(cluster):
    """kube-scheduler clears a nomination to a node that is still tainted."""
    node = cluster.add_node("closed", taints=[CLOSED])
    cluster.add_pod("nominated", schedulingGates=[{"name": "later"}])
    cluster.nominate("nominated", node)
    cluster.store.patch(POD, f"{cluster.name}-nominated", {"spec": {"schedulingGates": []}}, namespace="default")

    cluster.side.until(
        lambda: cluster.is_unschedulable("nominated") and cluster.pod("nominated").status.nominated_node_name == ""
    )


def test_pods_that_another_one_bound_just_before_rejects_stay_pending(cluster):
    """Its anti-affinity counts for the pods behind it in the queue, which have none themselves."""
    node = cluster.add_node("n", cpu="8")
    others = {"matchLabels": {"pod": f"{cluster.name}-z-rejected"}}
    term = {"topologyKey": "stage", "labelSelector": others}
    rules = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    cluster.add_pod("first")
    cluster.side.until(
        lambda: cluster.is_on("first", node)
    )  # a scheduler that does not know the node yet reorders pods

    cluster.add_pod("alone", affinity=rules)
    cluster.add_pod("z-rejected")

    cluster.side.until(lambda: cluster.is_on("alone", node) and cluster.is_unschedulable("z-rejected"))


@pytest.mark.parametrize(("has", "allocated"), [("3", "500m"), ("500m", "3"), ("3", "3")])
def test_pod_that_shrinks_keeps_its_resources_until_it_has_shrunk(cluster, has, allocated):
    """The larger of the spec, what the kubelet allocated, and what the container has counts."""
    node = cluster.add_node("n", cpu="4")
    cluster.add_pod("resized", cpu="500m")
    cluster.side.until(lambda: cluster.is_on("resized", node))
    cluster.report("resized", has, allocated)

    cluster.add_pod("next", cpu="2")
    cluster.side.until(lambda: cluster.is_unschedulable("next"))
    cluster.report("resized", "500m")
    cluster.side.until(lambda: cluster.is_on("next", node))


def test_pod_whose_growth_is_deferred_has_its_resources_reserved(cluster):
    """The kubelet lets it grow as soon as other pods have gone."""
    node = cluster.add_node("n", cpu="4")
    cluster.add_pod("resized", cpu="3")
    cluster.side.until(lambda: cluster.is_on("resized", node))
    cluster.report("resized", "1", reason="Deferred")
    cluster.add_pod("next", cpu="2")
    cluster.side.until(lambda: cluster.is_unschedulable("next"))


def test_pod_whose_growth_is_infeasible_counts_with_what_it_has(cluster):
    """It never gets more on this node."""
    node = cluster.add_node("n", cpu="4")
    cluster.add_pod("resized", cpu="3")
    cluster.side.until(lambda: cluster.is_on("resized", node))
    cluster.report("resized", "1", reason="Infeasible")
    cluster.add_pod("next", cpu="2")
    cluster.side.until(lambda: cluster.is_on("next", node))
