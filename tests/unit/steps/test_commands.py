"""What runs of consolidate and provision do with commands, on nodes that are there from the start."""

from __future__ import annotations

from datetime import timedelta

import pytest

from journeyman.core.api.objects import NODE, NODE_DISRUPTION, NODECLAIM, NODEPOOL, is_true
from journeyman.core.plan import Step
from journeyman.ports import RequeueDue
from journeyman.steps.consolidate import consolidate
from journeyman.steps.provision import provision
from tests.helpers.builders import NOW, node_class_body, pod_body, pool_body, stamp
from tests.helpers.fakes import Altered, Cluster, FakeCloud
from tests.helpers.fleets import a_member, an_unlaunched_member, bodies, types

TRIGGER = RequeueDue(id="1", cluster="demo", step=Step.CONSOLIDATE, reason="test", time=NOW)


def a_cluster(*members):
    """Return a cluster with these nodes, which may be consolidated."""
    cluster = Cluster()
    cluster.cloud = FakeCloud(cluster.clock, types(spot=False))
    budgets = {"consolidateAfter": "30s", "budgets": [{"nodes": "100%"}]}
    cluster.add(pool_body(spec={"disruption": budgets}), node_class_body(), *bodies(*members))
    return cluster


@pytest.fixture
def cluster():
    """Return a cluster with an empty node `n`."""
    return a_cluster(a_member("n"))


def run(cluster):
    cluster.queue.sent.clear()
    return consolidate(cluster.run(), TRIGGER)


def proposals(cluster):
    return sorted(cluster.server.list(NODE_DISRUPTION).items, key=lambda raw: raw["spec"]["createdAt"])


def phases(cluster):
    return [(raw.get("status") or {}).get("phase", "") for raw in proposals(cluster)]


def reject(cluster, raw):
    status = {"status": {"phase": "Rejected"}}
    cluster.server.patch(NODE_DISRUPTION, raw["metadata"]["name"], status, subresource="status")


def conditions(cluster):
    return {c.type for c in cluster.server.get(NODECLAIM, "n").status.conditions if c.status == "True"}


@pytest.mark.parametrize(("age", "starts"), [(14, False), (15, True), (0, False), (-15, False), (-16, True)])
def test_proposal_starts_when_it_is_old_enough_or_dated_by_a_wrong_clock(cluster, age, starts):
    """One that is dated further ahead than clocks differ would keep all others waiting until then."""
    run(cluster)
    [raw] = proposals(cluster)
    cluster.server.delete(NODE_DISRUPTION, raw["metadata"]["name"])
    cluster.add({**raw, "spec": {**raw["spec"], "createdAt": stamp(NOW - timedelta(seconds=age))}})

    run(cluster)

    assert phases(cluster) == (["Draining"] if starts else [""])


def test_nodes_of_a_proposal_that_was_rejected_are_proposed_again_a_second_later(cluster):
    """The name of a NodeDisruption has its second, so in the same second there can be no other one; earlier ones do not matter."""
    for number in (1, 2):
        run(cluster)
        assert len(proposals(cluster)) == number
        reject(cluster, proposals(cluster)[-1])

        outcome = run(cluster)
        assert "CreateObject" not in outcome.counts
        assert cluster.fence.next_run > cluster.clock.now()
        cluster.clock.advance(1)


def test_status_of_a_claim_is_written_once_in_a_run(cluster):
    """Drift and consolidation patch the same list of conditions; the second one waits for the next run. The budget keeps the node."""
    cluster.server.patch(NODEPOOL, "default", {"spec": {"disruption": {"budgets": [{"nodes": "0"}]}}})
    cluster.cloud.drifted = {"n": "AMIDrift"}
    seen = []
    for number in range(4):
        if number == 2:
            cluster.server.patch(NODEPOOL, "default", {"spec": {"disruption": {"consolidateAfter": "Never"}}})
            cluster.cloud.drifted = {}
        outcome = run(cluster)
        seen.append(conditions(cluster) & {"Drifted", "Consolidatable"})
        assert "conflicts" not in outcome.counts
    assert seen == [{"Drifted"}, {"Drifted", "Consolidatable"}, {"Consolidatable"}, set()]


def test_conditions_of_a_claim_are_left_to_the_command_that_starts(cluster):
    """The proposal requeues the step for its validation fifteen seconds later, as Karpenter; until then nothing happens.

    The node drifts meanwhile; what the command writes would undo that condition, and the Event with it would be wrong.
    """
    run(cluster)
    assert phases(cluster) == [""]
    assert [(m.step, m.at) for m in cluster.queue.sent] == [(Step.CONSOLIDATE, NOW + timedelta(seconds=15))]
    cluster.cloud.drifted = {"n": "AMIDrift"}
    cluster.clock.advance(15)

    outcome = run(cluster)

    assert phases(cluster) == ["Draining"]
    assert "conflicts" not in outcome.counts
    assert is_true(cluster.server.get(NODECLAIM, "n").status.conditions, "DisruptionReason")
    assert "Drifted" not in conditions(cluster)
    assert not [event for event in cluster.record.events if "Type: Drifted" in event.message]


@pytest.mark.parametrize(
    ("members", "asked"),
    [
        ([a_member("n"), a_member("going", deleting=True), an_unlaunched_member("coming")], [["n"]]),
        ([an_unlaunched_member("coming")], []),
    ],
)
def test_cloud_is_asked_about_the_drift_of_launched_nodes_that_stay(members, asked):
    """Others are not replaced, and without any the cloud is not asked."""
    cluster, names = a_cluster(*members), []

    def is_drifted(claims, node_classes):
        names.append([claim.metadata.name for claim in claims])
        return cluster.cloud.is_drifted(claims, node_classes)

    consolidate(cluster.run(cloud=Altered(cluster.cloud, is_drifted=is_drifted)), TRIGGER)

    assert names == asked


@pytest.fixture
def replacing():
    """Return a cluster that replaces its large node by one of two CPUs, of which the large node's pod needs one."""
    cluster = a_cluster(a_member("n", size="xl", cpus=["1"]))
    provision(cluster.run(), TRIGGER)
    run(cluster)
    cluster.clock.advance(15)
    run(cluster)
    assert phases(cluster) == ["Replacing"]
    assert len(cluster.cloud.launches) == 1
    return cluster


@pytest.mark.parametrize("taint", ["there", "removed"])
@pytest.mark.parametrize(("cpu", "launches"), [("500m", 0), ("1500m", 1)])
def test_replacement_has_room_only_beside_the_pods_that_move_there(replacing, cpu, launches, taint):
    """They still run on the old node, which takes no further pods, whether or not a user removed its taint."""
    if taint == "removed":
        replacing.server.patch(NODE, "node-n", {"spec": {"taints": []}})
    replacing.add(pod_body("late", cpu=cpu))
    provision(replacing.run(), TRIGGER)
    assert len(replacing.cloud.launches) == 1 + launches
