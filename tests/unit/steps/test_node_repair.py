"""The terminate step repairs unhealthy nodes, by their conditions and by the cloud's status checks."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.core.api.objects import NODE, PDB
from journeyman.core.plan import Step
from journeyman.core.state import InstanceStatus
from journeyman.errors import CloudProviderError, CloudUnavailableError
from journeyman.ports import RequeueDue
from journeyman.steps.context import FeatureGates
from journeyman.steps.terminate import terminate
from tests.helpers.builders import NOW, budget_body, condition, pool_body
from tests.helpers.fakes import Altered
from tests.helpers.fleets import types
from tests.helpers.simulated_cluster import SimulatedCluster

TRIGGER = RequeueDue(id="1", cluster="demo", step=Step.TERMINATE, reason="test", time=NOW)


def a_simulation(*, repair: bool = True, replicas: int = 2) -> SimulatedCluster:
    """Return a cluster with pods on one node, which a budget protects from eviction."""
    simulation = SimulatedCluster(types(), pool_body(spec={"disruption": {"consolidateAfter": "Never"}}))
    simulation.cluster.settings = replace(simulation.cluster.settings, feature_gates=FeatureGates(node_repair=repair))
    simulation.deploy("inflate", replicas, cpu="500m")
    simulation.until(lambda: simulation.running() == replicas, "the pods")
    budget = budget_body(minAvailable=replicas, selector={"matchLabels": {"app": "inflate"}})
    simulation.server.create(PDB, budget, namespace="default")
    return simulation


def break_accelerators(simulation: SimulatedCluster) -> str:
    """Set the condition of a node monitoring agent for broken devices; return the name of the node's NodeClaim."""
    (node,) = simulation.server.list(NODE).items
    conditions = [
        condition("Ready", since=simulation.clock.now()),
        condition("AcceleratedHardwareReady", "False", since=simulation.clock.now()),
    ]
    simulation.server.patch(NODE, node.metadata.name, {"status": {"conditions": conditions}}, subresource="status")
    return simulation.claims()[0].metadata.name


def test_an_unhealthy_node_is_replaced_after_its_toleration_ends():
    """The step waits ten minutes, then deletes its pods against their budget; they run on another node."""
    simulation = a_simulation()
    unhealthy = break_accelerators(simulation)

    simulation.run_for(minutes=9.5)
    assert [c.metadata.name for c in simulation.claims()] == [unhealthy]
    simulation.until(
        lambda: unhealthy not in {c.metadata.name for c in simulation.claims()} and simulation.running() == 2,
        "a well node",
        minutes=4,
    )

    assert len(simulation.cloud.list()) == 1
    assert "DisruptionTerminating" in simulation.record.reasons
    assert simulation.record.count_of("karpenter_nodeclaims_unhealthy_disrupted_total") == 1


@pytest.mark.parametrize("repair", [True, False])
def test_a_node_whose_kubelet_stops_is_repaired_after_half_an_hour(repair):
    """EC2's checks pass; force termination does not wait for the stopped kubelet to confirm the deletion of pods."""
    simulation = a_simulation(repair=repair)
    (instance,) = simulation.cloud.list()
    simulation.cloud.frozen = {instance.provider_id}
    stopped = simulation.clock.now()

    simulation.run_for(minutes=29)
    assert [i.provider_id for i in simulation.cloud.list()] == [instance.provider_id]
    simulation.run_for(minutes=5)

    ended = instance.provider_id not in {i.provider_id for i in simulation.cloud.list()}
    assert (ended, simulation.running() == 2 and ended) == (repair, repair)
    if repair:
        (taken,) = (
            o for o in simulation.record.observations if o.name == "karpenter_nodeclaims_unhealthy_disrupted_total"
        )
        assert taken.labels["condition"] == "ready"
        assert simulation.claims()[0].metadata.creation_timestamp - stopped <= timedelta(minutes=30, seconds=5)


def test_a_node_whose_status_checks_fail_is_replaced_after_two_minutes():
    """That does not need the feature gate. The step requeues itself for that time and does not wait for pods."""
    simulation = a_simulation(repair=False)
    (instance,) = simulation.cloud.list()
    since = simulation.clock.now()
    broken = InstanceStatus(
        provider_id=instance.provider_id, category="InstanceStatus", name="reachability", since=since
    )
    simulation.cloud.failed_checks = (broken,)

    simulation.until(
        lambda: bool(simulation.claims()) and any(c.metadata.deletion_timestamp for c in simulation.claims()),
        "the claim given up",
        minutes=4,
    )
    given_up = simulation.clock.now() - since
    simulation.until(
        lambda: (
            simulation.running() == 2 and instance.provider_id not in {i.provider_id for i in simulation.cloud.list()}
        ),
        "the pods elsewhere",
        minutes=4,
    )

    assert timedelta(minutes=2) <= given_up <= timedelta(minutes=2, seconds=5)
    assert simulation.record.count_of("karpenter_interruption_instance_status_unhealthy_total") == 1


def status_checks(simulation, refusal=None):
    """Return a cloud that records reads of its status checks, or refuses them; and the reads."""
    reads = []

    def statuses():
        reads.append(simulation.clock.now())
        if refusal is not None:
            raise refusal
        return simulation.cloud.statuses()

    return Altered(simulation.cloud, statuses=statuses), reads


@pytest.mark.parametrize(
    ("refusal", "asked", "warnings"),
    [
        (None, 2, 0),
        (CloudUnavailableError("no answer"), 2, 2),
        (CloudProviderError("not allowed: grant ec2:DescribeInstanceStatus"), 1, 1),
    ],
)
def test_status_checks_are_read_once_a_minute_unless_denied(refusal, asked, warnings):
    """One warning names the missing permission; the step does all its other work."""
    simulation = a_simulation()
    cloud, reads = status_checks(simulation, refusal)
    cluster = simulation.cluster
    cluster.memory.checks_due = None
    simulation.record.lines.clear()

    for _ in range(7):
        assert terminate(cluster.run(cloud=cloud), TRIGGER).status == "done"
        simulation.clock.advance(15)

    assert len(reads) == asked
    assert sum(level == "warning" for level, _, _ in simulation.record.lines) == warnings


def test_empty_cluster_reads_no_status_checks():
    simulation = SimulatedCluster(types(), pool_body())
    cloud, reads = status_checks(simulation)
    terminate(simulation.cluster.run(cloud=cloud), TRIGGER)
    assert reads == []
