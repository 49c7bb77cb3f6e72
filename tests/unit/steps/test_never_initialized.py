"""Nodes that register and never initialize: pods say what is missing, runs become rare, and empty nodes go."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.core.api.labels import DO_NOT_DISRUPT
from journeyman.core.api.objects import NODE, POD
from journeyman.core.api.resources import format_resources
from journeyman.core.plan import Step
from journeyman_simulator.workload_controllers import DEPLOYMENT
from tests.helpers.builders import SMALL, a_body, merge, pod_body, pool_body
from tests.helpers.simulated_cluster import SimulatedCluster

TAINT = {"key": "cni.example.com/starting", "value": "x", "effect": "NoSchedule"}
GPU = "nvidia.com/gpu"


def simulate(types=(SMALL,), **spec):
    """Return a cluster whose nodes get the startup taint, which nothing removes."""
    template = {"template": {"spec": {"startupTaints": [TAINT]}}, "disruption": {"consolidateAfter": "Never"}}
    return SimulatedCluster(types, pool_body(spec=merge(template, spec)))


def provision_runs(simulation):
    return [outcome for _, outcome in simulation.functions.outcomes if outcome.step is Step.PROVISION]


def pod_patches(simulation):
    """Return how often the runs wrote or cleared a nomination."""
    names = ("nominations", "nominations repeated")
    return sum(outcome.counts.get(name, 0) for outcome in provision_runs(simulation) for name in names)


def test_a_node_with_a_startup_taint_that_stays_is_reported_and_goes_once_it_is_empty():
    """Today's node takes its pods within seconds; one that is stuck costs a run a minute and no patches.

    Twice the registration timeout after it registered, the pods get the next node; the NodePool reports two failures.
    """
    simulation = simulate()
    simulation.deploy("web", 2, cpu="0.5")
    simulation.run_for(minutes=10)
    assert len(provision_runs(simulation)) <= 36
    assert pod_patches(simulation) <= 20
    [text] = set(simulation.messages("AwaitingInitialization"))
    [first] = simulation.claims()
    assert text.startswith(f"Node {first.status.node_name} of NodeClaim {first.metadata.name}")
    assert 'StartupTaint "cni.example.com/starting=x:NoSchedule" still exists' in text
    assert len(simulation.messages("Nominated")) <= 50

    simulation.run_for(minutes=20)
    assert [claim.metadata.uid for claim in simulation.claims()] == [first.metadata.uid]
    simulation.run_for(minutes=3)

    [second] = simulation.claims()
    assert second.metadata.uid != first.metadata.uid
    [*_, text] = simulation.messages("InitializationTimedOut")
    assert "Not initialized after 30 min" in text
    assert "cni.example.com/starting" in text
    assert simulation.registration_health() == ("True", "NodeRegistrationHealthy")

    simulation.run_for(minutes=34)
    assert simulation.registration_health() == ("False", "InitializationTimedOut")


def test_pods_get_the_next_nodepool_once_nodes_of_the_first_never_initialize():
    """Two failures put the heavy NodePool into its back-off, although its nodes register; the light one serves."""
    simulation = simulate(weight=50)
    simulation.cluster.settings = replace(simulation.cluster.settings, initialization_timeout=timedelta(minutes=6))
    simulation.cluster.add(pool_body("light", spec={"weight": 1, "disruption": {"consolidateAfter": "Never"}}))
    simulation.deploy("web", 1, cpu="0.5")
    simulation.until(lambda: simulation.running() == 1, "the pod runs", minutes=20)

    [pod] = simulation.server.list(POD).items
    [claim] = [c for c in simulation.claims() if c.status.node_name == pod.spec.node_name]
    assert claim.metadata.labels["karpenter.sh/nodepool"] == "light"
    assert simulation.registration_health() == ("False", "InitializationTimedOut")
    [text] = {e.message for e in simulation.record.events if e.ref.name == "default" and "device plugin" in e.message}
    assert "cni.example.com/starting" in text


@pytest.mark.parametrize("kept", ["a pod runs there", "the annotation", "the setting"])
def test_a_node_that_is_used_or_protected_stays(kept):
    """A pod that tolerates the startup taint runs there; a user examines the node; or the timeout is zero."""
    simulation = simulate()
    if kept == "the setting":
        simulation.cluster.settings = replace(simulation.cluster.settings, initialization_timeout=timedelta(0))
    simulation.deploy("web", 1, cpu="0.5")
    simulation.run_for(minutes=2)
    [claim] = simulation.claims()
    if kept == "a pod runs there":
        tolerant = {"tolerations": [{"operator": "Exists"}]}
        simulation.cluster.add(pod_body("agent", cpu="0.1", spec=tolerant))
    if kept == "the annotation":
        annotated = {"metadata": {"annotations": {DO_NOT_DISRUPT: "true"}}}
        simulation.server.patch(NODE, claim.status.node_name, annotated)
    simulation.run_for(minutes=60)

    assert [c.metadata.uid for c in simulation.claims()] == [claim.metadata.uid]


def a_gpu_cluster():
    """Return a cluster of GPU nodes without startup taints; their device plugin has not registered the GPUs yet."""
    gpu_type = replace(SMALL, name="g.small", capacity={**SMALL.capacity, GPU: 4})
    simulation = SimulatedCluster((gpu_type,), pool_body(spec={"disruption": {"consolidateAfter": "Never"}}))
    booted = simulation.cloud.machines

    simulation.cloud.machines = lambda: tuple(
        replace(machine, allocatable={k: v for k, v in machine.allocatable.items() if k != GPU}) for machine in booted()
    )
    requests = {"requests": {"cpu": "100m", GPU: "1"}, "limits": {GPU: "1"}}
    template = {
        "metadata": {"labels": {"app": "train"}},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": requests}]},
    }
    spec = {"replicas": 4, "selector": {"matchLabels": {"app": "train"}}, "template": template}
    body = a_body("apps/v1", "Deployment", "train", namespace="default", spec=spec)
    simulation.server.create(DEPLOYMENT, body, namespace="default")
    simulation.requeue(Step.PROVISION)
    return simulation, gpu_type


def test_a_gpu_node_whose_device_plugin_starts_a_minute_later_costs_no_patches():
    """The Node has no GPU yet, its NodeClaim has: pods wait for it without a nomination that is cleared again and again."""
    simulation, gpu_type = a_gpu_cluster()
    simulation.until(lambda: bool(simulation.server.list(NODE).items), "the node joins")
    simulation.run_for(minutes=1.5)

    [claim] = simulation.claims()
    [text] = set(simulation.messages("AwaitingInitialization"))
    assert 'Resource "nvidia.com/gpu" was requested but not registered' in text
    assert claim.status.node_name in text
    assert pod_patches(simulation) <= 4

    status = {"status": {"allocatable": format_resources(gpu_type.allocatable)}}
    simulation.server.patch(NODE, claim.status.node_name, status, subresource="status")
    simulation.until(lambda: simulation.running() == 4, "the pods run", minutes=1)
    simulation.run_for(minutes=2)
    assert pod_patches(simulation) <= 8
    assert len(simulation.claims()) == 1
    assert all(pod.status.phase == "Running" for pod in simulation.server.list(POD).items)
