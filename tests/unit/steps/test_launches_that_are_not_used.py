"""Launches that pods do not use: the next one waits, twice as long each time, and other pods are not affected."""

import pytest

from journeyman.core.api.churn_ledger import LEDGER_NAME, ChurnLedger
from journeyman.core.api.model import parse
from journeyman.core.api.objects import CHURN_LEDGER, NODEPOOL, POD
from journeyman.core.api.storage import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM
from journeyman.errors import NotFoundError
from tests.helpers.builders import MEDIUM, POOL, SMALL, pod_body, pool_body
from tests.helpers.simulated_cluster import SimulatedCluster

GIB = 2**30


def a_simulation(*types, consolidate_after="30s"):
    return SimulatedCluster(types or (SMALL,), pool_body(spec={"disruption": {"consolidateAfter": consolidate_after}}))


def entries(simulation):
    try:
        stored = simulation.server.get(CHURN_LEDGER, LEDGER_NAME)
    except NotFoundError:
        return ()
    return parse(ChurnLedger, stored).status.unused_launches


def delays(simulation):
    return [event.message for event in simulation.record.events if event.reason == "LaunchDelayed"]


def add_pod_that_is_bound_nowhere(simulation, name="data-0"):
    """Add a pod with a bound volume, which the simulated kube-scheduler refuses on every node."""
    volume = {"metadata": {"name": f"pv-{name}"}, "spec": {"csi": {"driver": "ebs.csi.aws.com"}}}
    bound = {"pv.kubernetes.io/bind-completed": "yes"}
    claim = {
        "metadata": {"name": name, "namespace": "default", "annotations": bound},
        "spec": {"volumeName": f"pv-{name}", "accessModes": ["ReadWriteOncePod"]},
        "status": {"phase": "Bound"},
    }
    simulation.server.create(PERSISTENT_VOLUME, volume)
    simulation.server.create(PERSISTENT_VOLUME_CLAIM, claim, namespace="default")
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]
    simulation.server.create(POD, pod_body(name, spec={"volumes": volumes}), namespace="default")


def test_pod_that_kube_scheduler_binds_nowhere_gets_fewer_and_fewer_nodes():
    """The volume is in use elsewhere: in four hours eight nodes, not a hundred."""
    simulation = a_simulation(consolidate_after="0s")
    add_pod_that_is_bound_nowhere(simulation)
    simulation.run_for(minutes=4 * 60)

    assert 5 <= len(simulation.cloud.launches) <= 10
    [entry] = entries(simulation)
    assert (entry.kind, entry.name, entry.launches) == ("Pod", "data-0", len(simulation.cloud.launches))
    assert "kube-scheduler did not bind it" in delays(simulation)[-1]
    assert any("could not be checked for volumes" in message for message in delays(simulation))
    assert len(delays(simulation)) == len(simulation.cloud.launches)


def test_node_that_is_smaller_than_planned_is_not_launched_again():
    """What it offers is learned; the next node is of a larger type, at once."""
    simulation = a_simulation(MEDIUM, SMALL)
    simulation.cloud.offered = {SMALL.name: {"memory": "7000Mi"}}
    simulation.deploy("web", 1, cpu="1", memory="7400Mi")
    simulation.until(lambda: simulation.running() == 1, "it runs", minutes=5)

    assert len(simulation.cloud.launches) == 2
    assert MEDIUM.name in simulation.nodes()
    [message] = set(delays(simulation))
    assert "of type m.small offers 6.836Gi memory, planned 7.5Gi" in message
    simulation.run_for(minutes=5)
    assert entries(simulation) == ()


def test_node_that_is_smaller_than_planned_and_the_only_type_is_launched_seldom():
    """Once its size is known, nothing is launched that cannot hold the pod: two nodes in four hours, not 515."""
    simulation = a_simulation()
    simulation.cloud.offered = {SMALL.name: {"memory": "1000"}}
    simulation.deploy("web", 1, cpu="1", memory="7400Mi")
    simulation.run_for(minutes=4 * 60)
    assert len(simulation.cloud.launches) <= 2


def test_other_pods_are_launched_for_at_once():
    """Also further replicas like it, once one of them runs."""
    simulation = a_simulation()
    add_pod_that_is_bound_nowhere(simulation)
    simulation.until(lambda: bool(entries(simulation)), "its launch is counted", minutes=10)
    simulation.deploy("web", 3, cpu="1.5")
    simulation.until(lambda: simulation.running() == 3, "the others run", minutes=3)


@pytest.mark.parametrize("change", ["pod", "NodePool"])
def test_wait_ends_when_something_changes(change):
    """Another template of the pod, or another generation of the NodePool."""
    simulation = a_simulation()
    add_pod_that_is_bound_nowhere(simulation)
    simulation.run_for(minutes=60)
    launched = len(simulation.cloud.launches)
    if change == "pod":
        simulation.server.delete(POD, "data-0", namespace="default", grace_period_seconds=0)
        simulation.server.create(POD, pod_body("data-0"), namespace="default")
        simulation.until(lambda: simulation.running() == 1, "it runs", minutes=3)
    else:
        simulation.server.patch(NODEPOOL, POOL, {"spec": {"weight": 7}})
        simulation.run_for(minutes=3)
    assert len(simulation.cloud.launches) == launched + 1


def test_burst_of_pods_that_are_bound_is_never_delayed():
    """Ninety nodes for as many pods, each on its own; none is counted."""
    simulation = a_simulation(consolidate_after="Never")
    simulation.deploy("web", 60, cpu="1.5")
    simulation.until(lambda: simulation.running() == 60, "all run", minutes=10)
    simulation.run_for(minutes=3)
    assert (len(simulation.cloud.launches), entries(simulation), delays(simulation)) == (60, (), [])
