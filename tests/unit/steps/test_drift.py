"""Drift on a simulated cluster: conditions, replacement one by one, static NodePools, and a cloud that does not answer."""

from __future__ import annotations

import msgspec
import pytest

from journeyman.core.api import labels
from journeyman.core.api.conditions import DISRUPTION_REASON, DRIFTED, INSTANCE_TERMINATING
from journeyman.core.api.objects import NODE, NODECLAIM, NODEPOOL, condition_of, is_true
from journeyman.core.plan import Step
from journeyman.errors import CloudProviderError, RateLimitedError
from journeyman.steps.consolidate import consolidate
from tests.helpers.builders import pool_body
from tests.helpers.fleets import types
from tests.helpers.simulated_cluster import SimulatedCluster

MARK = {"spec": {"template": {"metadata": {"labels": {"example.com/generation": "2"}}}}}


def a_simulated_cluster(*, budget="100%", replicas=None, **spec) -> SimulatedCluster:
    """Return a cluster whose NodePool has nodes of one size and never consolidates."""
    sizes = [{"key": labels.INSTANCE_TYPE, "operator": "In", "values": ["s"]}]
    disruption = {"consolidateAfter": "Never", "budgets": [{"nodes": budget}]}
    template = {"template": {"spec": {"requirements": sizes}}, "disruption": disruption}
    extra = {} if replicas is None else {"replicas": replicas}
    simulation = SimulatedCluster(types(), pool_body(spec={**template, **extra, **spec}))
    gates = msgspec.structs.replace(simulation.cluster.settings.feature_gates, static_capacity=True)
    simulation.cluster.settings = msgspec.structs.replace(simulation.cluster.settings, feature_gates=gates)
    return simulation


def with_pods(simulation: SimulatedCluster, number: int) -> SimulatedCluster:
    """Run a pod on each of so many nodes."""
    simulation.deploy("web", number, cpu="1500m")
    simulation.until(lambda: simulation.running() == number == len(simulation.settled()), "a pod on each node")
    simulation.run_for(minutes=2)
    return simulation


def drifted(simulation: SimulatedCluster) -> dict[str, str]:
    """Return the reasons of the Drifted conditions by NodeClaim."""
    found = {c.metadata.name: condition_of(c.status.conditions, DRIFTED) for c in simulation.claims()}
    return {name: condition.reason for name, condition in found.items() if condition is not None}


def replaced(simulation: SimulatedCluster, before: set[str], number: int) -> bool:
    """Whether all nodes of before are gone, and as many pods run as before."""
    return not before & {c.metadata.name for c in simulation.claims()} and len(simulation.settled()) == number


def test_changed_nodepool_replaces_all_its_nodes_within_the_budget():
    """Two of four go at a time, each after its replacement is ready; the new nodes stay."""
    simulation = with_pods(a_simulated_cluster(budget="2"), 4)
    before = set(simulation.settled())
    simulation.server.patch(NODEPOOL, "default", MARK)
    most, least = 0, 4

    def done() -> bool:
        nonlocal most, least
        disrupted = [c for c in simulation.claims() if is_true(c.status.conditions, DISRUPTION_REASON)]
        counted = [c for c in disrupted if not is_true(c.status.conditions, INSTANCE_TERMINATING)]
        most, least = max(most, len(counted)), min(least, len(simulation.settled()))
        return replaced(simulation, before, 4) and simulation.running() == 4

    simulation.until(done, "four other nodes")

    assert (most, least) == (2, 4)
    simulation.until(lambda: len(simulation.cloud.list()) == 4, "four instances")
    launches = len(simulation.cloud.launches)
    simulation.run_for(minutes=30)
    assert len(simulation.cloud.launches) == launches == 8
    assert drifted(simulation) == {}
    assert simulation.disruptions() == [("Drifted", "replace", "Succeeded")] * 4
    assert all(node.metadata.labels["example.com/generation"] == "2" for node in simulation.server.list(NODE).items)


def test_drift_starts_without_waiting_for_validation():
    """Consolidation waits for fifteen seconds; the next run of drift starts its command at once."""
    simulation = with_pods(a_simulated_cluster(), 1)
    simulation.cloud.drifted = {simulation.settled()[0]: "AMIDrift"}
    simulation.requeue(Step.CONSOLIDATE)
    simulation.until(lambda: bool(simulation.disruptions()), "a proposal")
    proposed_at = simulation.clock.now()

    simulation.until(lambda: simulation.disruptions()[0][2] in ("Validated", "Replacing"), "its start")

    assert (simulation.clock.now() - proposed_at).total_seconds() < 2


@pytest.mark.parametrize(
    "error", [RateLimitedError("throttled"), CloudProviderError("the role lacks ec2:DescribeInstances")]
)
def test_cloud_that_does_not_answer_changes_no_condition(error):
    """A marked node stays marked, and NodePool drift and consolidation go on."""
    simulation = with_pods(a_simulated_cluster(budget="0"), 2)
    first, second = simulation.settled()
    simulation.cloud.drifted = {first: "AMIDrift"}
    simulation.until(lambda: drifted(simulation) == {first: "AMIDrift"}, "the condition")

    simulation.cloud.drift_error = error
    outcome = consolidate(simulation.cluster.run(), simulation.functions.trigger(Step.CONSOLIDATE))
    assert (drifted(simulation), outcome.status) == ({first: "AMIDrift"}, "done")
    assert any("drift of instances" in note for note in outcome.notes)
    simulation.server.patch(NODEPOOL, "default", MARK)
    consolidate(simulation.cluster.run(), simulation.functions.trigger(Step.CONSOLIDATE))
    assert drifted(simulation) == {first: "NodePoolDrifted", second: "NodePoolDrifted"}

    simulation.cloud.drift_error, simulation.cloud.drifted = None, {}
    simulation.server.patch(NODEPOOL, "default", {"spec": {"template": {"metadata": {"labels": None}}}})
    simulation.until(lambda: drifted(simulation) == {}, "no condition")


def test_replacement_that_never_joins_leaves_the_drifted_node():
    """The taint is removed; the node still runs its pod, and is replaced again only while it has drifted."""
    simulation = with_pods(a_simulated_cluster(), 1)
    (old,) = simulation.settled()
    launched = {i.provider_id for i in simulation.cloud.list()}
    simulation.cloud.drifted = {old: "SubnetDrift"}
    simulation.until(lambda: bool(simulation.disruptions()), "a proposal")
    simulation.until(lambda: len(simulation.cloud.list()) == 2, "the replacement's instance")
    simulation.cloud.frozen = {i.provider_id for i in simulation.cloud.list()} - launched
    simulation.cloud.drifted = {}

    simulation.until(lambda: simulation.disruptions()[0][2] == "RolledBack", "the end", minutes=20)

    simulation.until(lambda: not any(n.spec.taints for n in simulation.server.list(NODE).items), "no taint")
    assert old in simulation.settled()
    assert simulation.running() == 1


def test_static_nodes_are_replaced_together_within_limits_nodes():
    """Two of three at a time, because the limit is five; the NodePool never has fewer than three ready nodes."""
    simulation = a_simulated_cluster(replicas=3, limits={"nodes": "5"})
    simulation.until(lambda: len(simulation.settled()) == 3, "three nodes")
    simulation.run_for(minutes=3)
    before = set(simulation.settled())
    indexes = {c.metadata.annotations[labels.REPLICA_INDEX] for c in simulation.claims()}
    simulation.server.patch(NODEPOOL, "default", MARK)
    most, least = 0, 3

    def done() -> bool:
        nonlocal most, least
        most, least = max(most, len(simulation.claims())), min(least, len(simulation.settled()))
        return replaced(simulation, before, 3) and len(simulation.claims()) == 3

    simulation.until(done, "three other nodes")

    assert (most, least) == (5, 3)
    assert {c.metadata.annotations[labels.REPLICA_INDEX] for c in simulation.claims()} == indexes
    launches = len(simulation.cloud.launches)
    simulation.run_for(minutes=20)
    assert len(simulation.cloud.launches) == launches == 6
    assert simulation.disruptions() == [("Drifted", "replace", "Succeeded")] * 3
    assert simulation.record.count_of("karpenter_nodeclaims_created_total") == 6


def test_static_node_whose_replacement_is_lost_stays():
    """The command is rolled back; the NodePool has as many nodes as before."""
    simulation = a_simulated_cluster(replicas=2)
    simulation.until(lambda: len(simulation.settled()) == 2, "two nodes")
    simulation.run_for(minutes=3)
    before = simulation.settled()
    simulation.cloud.drifted = {before[0]: "AMIDrift"}
    simulation.until(lambda: len(simulation.claims()) == 3, "the replacement")
    simulation.cloud.drifted = {}
    (new,) = {c.metadata.name for c in simulation.claims()} - set(before)
    simulation.server.delete(NODECLAIM, new)

    simulation.until(lambda: simulation.disruptions()[0][2] == "RolledBack", "the end")

    simulation.until(lambda: len(simulation.claims()) == 2 == len(simulation.settled()), "two nodes")
    simulation.run_for(minutes=10)
    assert simulation.settled() == before
