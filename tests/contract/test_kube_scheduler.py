"""Pod nomination and anti-affinity: one suite for the simulated kube-scheduler and for the real one.

Journeyman relies on this behaviour, so the simulated kube-scheduler must have it, too.
"""

import itertools
import time

import pytest

from journeyman.core.api.objects import NODE, POD, Resource, condition_of
from journeyman.core.lifecycle.nomination import WATCH_DELAY
from journeyman.kube.access.kubeconfig import from_kubeconfig
from journeyman.kube.http_store import HttpKubeStore
from journeyman.kube.transport import Transport
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.kube_scheduler import KubeScheduler
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

    def add_node(self, name, cpu="2", taints=()):
        size = {"cpu": cpu, "memory": "8Gi", "pods": "20"}
        full = f"{self.name}-{name}"
        self.store.create(
            NODE, {"metadata": {"name": full, "labels": {"stage": self.name}}, "spec": {"taints": list(taints)}}
        )
        status = {"capacity": size, "allocatable": size, "conditions": [condition("Ready")]}
        self.store.patch(NODE, full, {"status": status}, subresource="status")
        self.store.patch(NODE, full, {"spec": {"taints": list(taints)}})  # admission adds the `not-ready` taint
        return full

    def remove_taints(self, node):
        self.store.patch(NODE, node, {"spec": {"taints": []}})

    def add_pod(self, name, cpu="1", **spec):
        container = {"name": "c", "image": "pause", "resources": {"requests": {"cpu": cpu}}}
        body = {
            "metadata": {
                "name": f"{self.name}-{name}",
                "namespace": "default",
                "labels": {"pod": f"{self.name}-{name}"},
            },
            "spec": {"containers": [container], "nodeSelector": {"stage": self.name}, **spec},
        }
        self.store.create(POD, body, namespace="default")

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
    cluster.add_pod("alone", affinity=rules)
    cluster.add_pod("z-rejected")

    cluster.side.until(lambda: cluster.is_on("alone", node) and cluster.is_unschedulable("z-rejected"))
