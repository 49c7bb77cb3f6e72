"""The simulated cluster runs: workloads, kube-scheduler and kubelets on one clock."""

from datetime import datetime, timedelta, timezone

import pytest

from journeyman.core.api.objects import NODE, POD
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.kube_scheduler import KubeScheduler
from journeyman_simulator.kubelet import Kubelets, Machine
from journeyman_simulator.workload_controllers import DEPLOYMENT, WorkloadControllers
from journeyman_simulator.world import World, WorldStuckError

START = datetime(2026, 3, 2, 21, 0, tzinfo=timezone.utc)


class Machines:
    """A machine source to which tests add machines."""

    def __init__(self):
        self.all = {}

    def machines(self):
        return tuple(self.all[name] for name in sorted(self.all))

    def start(self, name, since, zone="a", cpu="4"):
        size = {"cpu": cpu, "memory": "8Gi", "pods": "20"}
        self.all[name] = Machine(
            provider_id=f"aws:///{zone}/{name}",
            node_name=name,
            running_since=since,
            terminated=False,
            labels={"topology.kubernetes.io/zone": zone},
            capacity=size,
            allocatable=size,
        )

    def stop(self, name):
        old = self.all[name]
        self.all[name] = Machine(
            provider_id=old.provider_id, node_name=name, running_since=None, terminated=True, labels=old.labels
        )


@pytest.fixture
def cluster():
    clock = VirtualClock(START)
    server, machines = ApiServer(clock), Machines()
    world = World(
        clock, [WorkloadControllers(server, clock), KubeScheduler(server, clock), Kubelets(server, clock, machines)]
    )
    return clock, server, machines, world


def deploy(server, name, replicas, cpu="1", **spec):
    container = {"name": "c", "image": "pause", "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}}
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container], **spec}}
    body = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template},
    }
    server.create(DEPLOYMENT, body, namespace="default")


def phases(server):
    return sorted((p.status.phase, p.spec.node_name) for p in server.list(POD).items)


def test_pods_run_once_a_node_has_joined(cluster):
    """Without nodes pods are Unschedulable; a booted machine becomes a Ready node and the pods run."""
    clock, server, machines, world = cluster
    deploy(server, "web", 3)
    world.settle()
    waiting = server.list(POD).items
    assert {(c.reason, c.status) for p in waiting for c in p.status.conditions} == {("Unschedulable", "False")}

    machines.start("n1", clock.now())
    world.run_until(
        lambda: all(p.status.phase == "Running" for p in server.list(POD).items),
        within=timedelta(minutes=2),
        waiting_for="three running pods",
    )

    assert phases(server) == [("Running", "n1")] * 3
    assert timedelta(seconds=30) < clock.now() - START < timedelta(seconds=60)


def test_pods_of_a_terminated_machine_run_elsewhere(cluster):
    """The cloud controller deletes the machine's node; the pods are garbage-collected and created again."""
    clock, server, machines, world = cluster
    machines.start("n1", clock.now())
    deploy(server, "web", 2)
    world.run_for(timedelta(minutes=1))
    machines.stop("n1")
    machines.start("n2", clock.now())

    world.run_for(timedelta(minutes=2))

    assert [n.metadata.name for n in server.list(NODE).items] == ["n2"]
    assert phases(server) == [("Running", "n2")] * 2


def test_pods_are_created_at_the_rate_of_the_controller_manager(cluster):
    """Thirty at once and twenty a second, in the order in which the ReplicaSets missed them."""
    _clock, server, _machines, world = cluster
    deploy(server, "web", 45)
    world.settle()
    deploy(server, "api", 10)

    def created():
        names = [p.metadata.name.split("-")[0] for p in server.list(POD).items]
        return names.count("web"), names.count("api")

    counts = [created()]
    for _ in range(2):
        world.run_for(timedelta(seconds=1))
        counts.append(created())

    assert counts == [(30, 0), (45, 5), (45, 10)]


def test_scale_down_removes_pending_pods_first(cluster):
    """Four CPUs fit four pods; the two pending ones are deleted first, then a running one, gracefully."""
    clock, server, machines, world = cluster
    machines.start("n1", clock.now())
    deploy(server, "web", 6)
    world.run_for(timedelta(minutes=1))
    assert sum(phase == "Running" for phase, _ in phases(server)) == 4

    server.patch(DEPLOYMENT, "web", {"spec": {"replicas": 3}}, namespace="default")
    world.run_for(timedelta(seconds=30))

    assert phases(server) == [("Running", "n1")] * 3


@pytest.mark.parametrize(
    ("key", "nodes_used"),
    [("topology.kubernetes.io/zone", {"n1": 2, "n2": 2}), ("kubernetes.io/hostname", {"n1": 2, "n2": 2})],
)
def test_scheduler_keeps_topology_spread(cluster, key, nodes_used):
    """With maxSkew 1, each of two nodes gets two of four pods, although one is much larger."""
    clock, server, machines, world = cluster
    machines.start("n1", clock.now(), zone="a", cpu="64")
    machines.start("n2", clock.now(), zone="b", cpu="4")
    spread = [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "web"}},
        }
    ]
    deploy(server, "web", 4, topologySpreadConstraints=spread)
    world.run_for(timedelta(minutes=2))
    used = {}
    for _, node in phases(server):
        used[node] = used.get(node, 0) + 1
    assert used == nodes_used


def test_stuck_world_names_what_it_waits_for(cluster):
    """No machine ever starts, and the error names the condition that stays false."""
    _, server, _, world = cluster
    deploy(server, "web", 1)
    with pytest.raises(WorldStuckError, match="a running pod"):
        world.run_until(lambda: False, within=timedelta(minutes=5), waiting_for="a running pod")


def resize(server, name, cpu):
    """Resize the pod's container in place."""
    container = {"name": "c", "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}}
    server.patch(POD, name, {"spec": {"containers": [container]}}, namespace="default", subresource="resize")


def resize_of(server, name):
    """Return what the pod's container was allocated and has, and its condition about resizes."""
    status = server.get(POD, name, namespace="default").status
    (container,) = status.container_statuses
    amounts = container.allocated_resources["cpu"], container.resources.requests["cpu"]
    return (*amounts, *((c.type, c.reason) for c in status.conditions if c.type.startswith("PodResize")))


def test_kubelet_resizes_pods_as_far_as_the_node_has_space(cluster):
    """A shrinking pod keeps its CPU for some seconds, a growing one waits for it, and one beyond the node gets none."""
    clock, server, machines, world = cluster
    machines.start("n", clock.now())
    deploy(server, "web", 2, cpu="2")
    world.run_for(timedelta(minutes=2))
    small, large = sorted(pod.metadata.name for pod in server.list(POD).items)

    resize(server, large, "64")
    resize(server, small, "1")
    world.settle()
    assert resize_of(server, large) == ("2", "2", ("PodResizePending", "Infeasible"))
    assert resize_of(server, small) == ("1", "2", ("PodResizeInProgress", ""))
    resize(server, large, "3500m")
    world.settle()
    assert resize_of(server, large) == ("2", "2", ("PodResizePending", "Deferred"))
    resize(server, large, "3")
    world.run_for(timedelta(seconds=30))

    assert (resize_of(server, small), resize_of(server, large)) == (("1", "1"), ("3", "3"))


def test_pod_waits_for_the_space_that_a_shrinking_one_still_has(cluster):
    """kube-scheduler counts what the kubelet reports."""
    clock, server, machines, world = cluster
    machines.start("n", clock.now())
    deploy(server, "web", 1, cpu="3")
    world.run_for(timedelta(minutes=2))
    (web,) = server.list(POD).items
    resize(server, web.metadata.name, "500m")
    deploy(server, "next", 1, cpu="2")
    world.settle()
    (waiting,) = (pod for pod in server.list(POD).items if pod.metadata.labels["app"] == "next")

    world.run_for(timedelta(seconds=20))

    bound = server.get(POD, waiting.metadata.name, namespace="default")
    assert (waiting.spec.node_name, bound.spec.node_name) == ("", "n")
