"""Nodes that do not join: they time out, Events and NodePool report it, and their pods get new nodes."""

import pytest

from tests.helpers.builders import SMALL, pool_body
from tests.helpers.simulated_cluster import SimulatedCluster


@pytest.fixture
def simulation():
    """Return a cluster with two pods that need a node each; instances boot but do not join until `let_nodes_join`."""
    simulation = SimulatedCluster((SMALL,), pool_body(spec={"disruption": {"consolidateAfter": "Never"}}))
    simulation.cloud.machines = tuple
    simulation.deploy("web", 2, cpu="1.5")
    return simulation


def let_nodes_join(simulation):
    del simulation.cloud.machines


def test_nodes_that_never_join_are_reported_on_the_pool(simulation):
    """Both time out after 15 minutes; the NodePool reports it until enough of their replacements have joined."""
    simulation.run_for(minutes=10)
    assert simulation.registration_health() == ("Unknown", "AwaitingReconciliation")
    simulation.run_for(minutes=6)

    assert simulation.registration_health() == ("False", "RegistrationFailed")
    messages = [e.message for e in simulation.record.events if e.reason == "RegistrationTimedOut"]
    assert len(messages) == 2
    assert all(
        "Not registered after 15 min, NodeNotFound: " in text and " is terminated, its pods" in text
        for text in messages
    )

    let_nodes_join(simulation)
    simulation.until(lambda: simulation.running() == 2, "both pods run")
    simulation.deploy("more", 1, cpu="1.5")
    simulation.until(lambda: simulation.running() == 3, "a third pod runs")
    assert simulation.registration_health() == ("True", "NodeRegistrationHealthy")


@pytest.mark.parametrize("end", ["lose", "stop"])
def test_an_instance_that_ends_before_it_joins_is_replaced_at_once(simulation, end):
    """No interruption event arrived; garbage collection finds it after minutes, before the 15-minute time-out.

    Two of the last four are reported on the NodePool: an image that shuts down at boot does not recover.
    """
    simulation.run_for(minutes=2)
    first, second = simulation.claims()
    getattr(simulation.cloud, end)(first.status.provider_id)
    simulation.run_for(minutes=3)

    now = {claim.metadata.uid for claim in simulation.claims()}
    assert len(now) == 2
    assert second.metadata.uid in now
    assert first.metadata.uid not in now
    assert len(simulation.cloud.launches) == 3
    [message] = [e.message for e in simulation.record.events if e.reason == "InstanceNotFound"]
    assert first.status.provider_id in message
    assert simulation.registration_health() == ("Unknown", "AwaitingReconciliation")

    getattr(simulation.cloud, end)(second.status.provider_id)
    simulation.run_for(minutes=3)
    assert simulation.registration_health() == ("False", "RegistrationFailed")
