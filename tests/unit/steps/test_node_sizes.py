"""What nodes really offer is learned, kept in the cluster, and used by all that plans nodes."""

import pytest

from journeyman.core.api.model import parse
from journeyman.core.api.objects import NODE, NODECLAIM, OFFERING_STATE
from journeyman.core.api.offering_state import OfferingState
from journeyman.steps.load import EVERYTHING, load
from journeyman.steps.scheduling_inputs import scheduling_inputs_of
from tests.helpers.builders import CLASS, MEDIUM, POOL, SMALL, pool_body
from tests.helpers.simulated_cluster import SimulatedCluster


@pytest.fixture
def simulation():
    """A cluster whose small nodes offer 7900Mi, where the catalogue has 7680Mi; empty nodes go after a minute."""
    simulation = SimulatedCluster((MEDIUM, SMALL), pool_body(spec={"disruption": {"consolidateAfter": "1m"}}))
    simulation.cloud.offered = {SMALL.name: {"memory": "7900Mi"}}
    return simulation


def run(simulation, name, *, memory):
    before = simulation.running()
    simulation.deploy(name, 1, cpu="1", memory=memory)
    simulation.until(lambda: simulation.running() == before + 1, f"{name} runs", minutes=10)


def remove(simulation, name):
    simulation.scale(name, 0)
    simulation.until(lambda: not simulation.nodes(), "no node is left", minutes=30)


def offered_now(simulation):
    """The memory of a small node in the catalogue of the next run, in MiB."""
    inputs = scheduling_inputs_of(simulation.cluster.run(), load(simulation.cluster.run(), EVERYTHING))
    [small] = [t for t in inputs.catalogue.instance_types(POOL) if t.name == SMALL.name]
    return small.allocatable["memory"] // 2**20


def learned(simulation):
    return parse(OfferingState, simulation.server.get(OFFERING_STATE, CLASS)).status.learned_allocatable


def test_pod_gets_the_small_node_that_is_larger_than_the_catalogue_says(simulation):
    """A node that once ran is enough: its size outlives it, and processes. OfferingState says what was learned from it, once."""
    run(simulation, "first", memory="7000Mi")
    assert offered_now(simulation) == 7900
    [size] = learned(simulation)
    [node] = simulation.server.list(NODE).items
    assert (size.instance_type, size.allocatable["memory"], size.node) == (SMALL.name, "7900Mi", node.metadata.name)
    run(simulation, "like-it", memory="7000Mi")
    assert learned(simulation) == (size,)
    simulation.scale("like-it", 0)
    remove(simulation, "first")

    run(simulation, "second", memory="7800Mi")
    assert simulation.nodes() == [SMALL.name]


def test_type_that_offers_less_than_the_catalogue_says_is_not_planned_for_it(simulation):
    """The pod gets a larger node at once, not one that is too small first."""
    simulation.cloud.offered = {SMALL.name: {"memory": "7000Mi"}}
    run(simulation, "first", memory="6000Mi")
    launched = len(simulation.cloud.launches)

    run(simulation, "second", memory="7500Mi")
    assert simulation.nodes() == [MEDIUM.name, SMALL.name]
    assert len(simulation.cloud.launches) == launched + 1


def test_edited_node_class_forgets_what_was_learned_with_its_old_settings(simulation):
    """Reserved memory or a smaller disk changes what a node offers; nodes of the old settings teach nothing."""
    run(simulation, "first", memory="7000Mi")
    kind = simulation.cloud.node_class
    simulation.server.patch(kind, CLASS, {"spec": {"kubelet": {"systemReserved": {"memory": "1Gi"}}}})
    simulation.run_for(minutes=10)
    assert offered_now(simulation) == SMALL.allocatable["memory"] // 2**20


def test_node_that_lies_about_its_size_attracts_no_pods(simulation):
    """A kubelet reports 1,000 CPUs on 2: nothing is planned there beyond what the type has, and nothing is learned."""
    simulation.cloud.offered = {SMALL.name: {"cpu": "1000"}}
    run(simulation, "first", memory="1Gi")
    [claim] = simulation.server.list(NODECLAIM).items
    assert "AllocatableNotBelieved" in simulation.record.reasons
    inputs = scheduling_inputs_of(simulation.cluster.run(), load(simulation.cluster.run(), EVERYTHING))
    [small] = [t for t in inputs.catalogue.instance_types(POOL) if t.name == SMALL.name]
    assert small.allocatable == SMALL.allocatable
    assert claim.status.allocatable["cpu"] == "1920m"


def test_pods_stay_on_their_nodes_beside_a_node_that_lies(simulation):
    """Consolidation does not take the CPUs of a lie for free capacity."""
    simulation.cloud.offered = {MEDIUM.name: {"cpu": "1000"}}
    simulation.deploy("small", 1, cpu="1")
    simulation.until(lambda: simulation.running() == 1, "it runs")
    simulation.deploy("medium", 1, cpu="3")
    simulation.until(lambda: simulation.running() == 2, "both run")

    simulation.run_for(minutes=20)
    assert simulation.nodes() == [MEDIUM.name, SMALL.name]
