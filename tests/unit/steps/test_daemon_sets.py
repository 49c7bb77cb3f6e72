"""Whole scenarios with DaemonSets: pods that must be with their pods, and DaemonSets that do not fit together on a node."""

from __future__ import annotations

from journeyman.core.api.labels import HOSTNAME
from journeyman.core.api.objects import NODECLAIM, POD
from journeyman.core.plan import Step
from journeyman_simulator.workload_controllers import DAEMONSET_RAW, DEPLOYMENT
from tests.helpers.builders import an_instance_type, pool_body
from tests.helpers.simulated_cluster import SimulatedCluster

MEDIUM = an_instance_type("m.medium", cpu=4, memory_gib=16, price=0.2)
LARGE = an_instance_type("m.4xlarge", cpu=16, memory_gib=64, price=0.8)


def a_simulation(*types):
    return SimulatedCluster(types, pool_body(spec={"disruption": {"consolidateAfter": "Never"}}))


def create(simulation, resource, name, *, cpu, namespace="default", replicas=None, **spec):
    """Create a workload whose pods have the label `app`."""
    container = {"name": "c", "image": "pause", "resources": {"requests": {"cpu": cpu, "memory": "128Mi"}}}
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container], **spec}}
    body = {"selector": {"matchLabels": {"app": name}}, "template": template}
    if replicas is not None:
        body["replicas"] = replicas
    meta = {"name": name, "namespace": namespace}
    made = {"apiVersion": "apps/v1", "kind": resource.kind, "metadata": meta, "spec": body}
    simulation.server.create(resource, made, namespace=namespace)


def pods_of(simulation, app):
    return [pod for pod in simulation.server.list(POD).items if pod.metadata.labels.get("app") == app]


def test_pods_with_affinity_to_a_daemon_set_run_on_the_nodes_launched_for_them():
    """On an empty cluster; the DaemonSet's pod comes after the node, the pods that wait for it are bound then."""
    simulation = a_simulation(MEDIUM)
    create(
        simulation, DAEMONSET_RAW, "agent", cpu="100m", namespace="kube-system", tolerations=[{"operator": "Exists"}]
    )
    rule = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"app": "agent"}}, "namespaces": ["kube-system"]}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [rule]}}
    create(simulation, DEPLOYMENT, "relay", cpu="1500m", replicas=4, affinity=affinity)

    simulation.requeue(Step.PROVISION)
    simulation.until(lambda: simulation.running() == 6, "all pods run")
    simulation.run_for(minutes=10)

    assert len(simulation.server.list(NODECLAIM).items) == 2
    agents = {pod.spec.node_name for pod in pods_of(simulation, "agent")}
    assert agents == {pod.spec.node_name for pod in pods_of(simulation, "relay")}


def test_of_daemon_sets_that_do_not_fit_together_one_stays_pending_and_the_pods_run():
    """The node of 16 CPU holds one of 8 and the pod, for which it was launched; it is not launched again."""
    simulation = a_simulation(MEDIUM, LARGE)
    for name, priority in (("first", 10), ("second", 0)):
        spec = {"priority": priority, "tolerations": [{"operator": "Exists"}]}
        create(simulation, DAEMONSET_RAW, name, cpu="8", namespace="kube-system", **spec)
    create(simulation, DEPLOYMENT, "web", cpu="2", replicas=2)

    simulation.requeue(Step.PROVISION)
    simulation.until(lambda: all(p.status.phase == "Running" for p in pods_of(simulation, "web")), "all pods run")
    simulation.run_for(minutes=30)

    assert len(simulation.server.list(NODECLAIM).items) == 1
    assert [p.status.phase for p in pods_of(simulation, "first")] == ["Running"]
    assert [p.spec.node_name for p in pods_of(simulation, "second")] == [""]
    said = {str(e.ref) for e in simulation.record.events if e.reason == "DaemonSetLeftOut"}
    assert said == {"NodePool default", "DaemonSet kube-system/second"}
