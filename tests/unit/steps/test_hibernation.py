"""Hibernation on a simulated cluster: nodes go when a window opens, pods wait, and nodes come back when it closes."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from journeyman.core.api import labels
from journeyman.core.api.objects import NODE, POD
from tests.helpers.builders import NOW, pool_body
from tests.helpers.fleets import types
from tests.helpers.simulated_cluster import SimulatedCluster

TYPES = {"requirements": [{"key": labels.INSTANCE_TYPE, "operator": "In", "values": ["s"]}]}
OPENS, CLOSES = NOW.replace(hour=22), NOW.replace(hour=23)
NIGHT = "0 22 * * * / 1h"  # the tests start at 21:00


def a_cluster(
    nodes: int, *, hibernate: str = NIGHT, budgets: Any = ({"nodes": "100%"},), **annotations: str
) -> SimulatedCluster:
    """Return a cluster with a pod on each of its nodes; neither is moved but for hibernation."""
    disruption = {"consolidateAfter": "Never", "budgets": list(budgets)}
    simulation = SimulatedCluster(
        types(),
        pool_body(
            metadata={"annotations": {labels.HIBERNATE: hibernate, **annotations}},
            spec={"template": {"spec": TYPES}, "disruption": disruption},
        ),
    )
    simulation.deploy("web", nodes, cpu="1500m")
    simulation.until(lambda: simulation.running() == nodes and len(simulation.claims()) == nodes, "a pod on each node")
    return simulation


def run_until(simulation: SimulatedCluster, at: datetime) -> None:
    simulation.run_for(minutes=(at - simulation.clock.now()) / timedelta(minutes=1))


def test_nodes_go_when_hibernation_starts_and_come_back_when_it_ends():
    """In between nothing runs and nothing is launched; the pods say why they wait, and the NodePool until when."""
    simulation = a_cluster(3)
    run_until(simulation, OPENS - timedelta(minutes=1))
    assert simulation.disruptions() == []

    simulation.until(lambda: not simulation.claims() and simulation.cloud.price == 0, "no nodes", minutes=10)
    launches = len(simulation.cloud.launches)
    run_until(simulation, CLOSES - timedelta(seconds=1))

    assert simulation.disruptions() == [("Hibernated", "delete", "Succeeded")]
    assert (simulation.running(), len(simulation.cloud.launches)) == (0, launches)
    assert f"NodePool default hibernates until {CLOSES:%Y-%m-%dT%H:%M:%SZ}" in simulation.messages("Hibernating")[0]
    assert any("hibernates" in message for message in simulation.messages("FailedScheduling"))

    simulation.until(lambda: simulation.running() == 3, "all pods", minutes=6)


def test_hibernation_removes_as_many_nodes_at_once_as_budgets_allow():
    """Budgets without reasons count for it: one node at a time goes, until none is left."""
    simulation = a_cluster(3, budgets=[{"nodes": "1"}])
    most = 0

    def all_gone() -> bool:
        nonlocal most
        most = max(most, sum(claim.metadata.deletion_timestamp is not None for claim in simulation.claims()))
        return not simulation.claims()

    run_until(simulation, OPENS)
    simulation.until(all_gone, "no nodes", minutes=30)

    assert most == 1
    assert len(simulation.disruptions()) == 3


@pytest.mark.parametrize("budget", [{"nodes": "0"}, {"nodes": "0%", "schedule": "30 21 * * *", "duration": "2h"}])
def test_budget_of_zero_keeps_nodes_through_hibernation(budget):
    """The two contradict each other: the nodes stay, the NodePool says why, and no further node is launched."""
    simulation = a_cluster(2, budgets=[budget])
    run_until(simulation, OPENS)
    simulation.deploy("more", 1, cpu="1500m")
    run_until(simulation, CLOSES - timedelta(minutes=1))

    assert (simulation.running(), len(simulation.claims())) == (2, 2)
    assert simulation.disruptions() == []
    why = "No allowed disruptions for disruption reason Hibernated due to blocking budget"
    assert why in simulation.messages("DisruptionBlocked")


def test_protected_pod_keeps_its_node_through_hibernation():
    simulation = a_cluster(2)
    pod = simulation.server.list(POD).items[0]
    protected = {"metadata": {"annotations": {labels.DO_NOT_DISRUPT: "true"}}}
    simulation.server.patch(POD, pod.metadata.name, protected, namespace="default")
    run_until(simulation, CLOSES - timedelta(minutes=1))

    assert [node.metadata.name for node in simulation.server.list(NODE).items] == [pod.spec.node_name]
    assert any("do-not-disrupt" in message for message in simulation.messages("DisruptionBlocked"))


@pytest.mark.parametrize(
    ("annotations", "why"),
    [
        ({"hibernate": "tonight"}, "is not a window"),
        ({"hibernate": "0 22 * * * / 24h"}, "never close"),
        ({labels.TIME_ZONE: "Europe/Berlim"}, "is not an IANA time zone"),
    ],
)
def test_invalid_hibernation_moves_nothing(annotations, why):
    """Without a valid window there is no hibernation; the NodePool's Event says what is wrong."""
    simulation = a_cluster(2, **annotations)
    run_until(simulation, OPENS + timedelta(minutes=20))
    simulation.deploy("more", 1, cpu="1500m")
    simulation.until(lambda: simulation.running() == 3, "a further pod", minutes=5)

    assert simulation.disruptions() == []
    assert any(why in message for message in simulation.messages("InvalidAnnotation"))
