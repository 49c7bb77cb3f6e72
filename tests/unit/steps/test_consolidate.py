"""Consolidate on a living cluster: nodes are given back carefully, and whatever happens in between is made good."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest

from journeyman.core.api import labels
from journeyman.core.api.objects import NODE, NODE_DISRUPTION, NODECLAIM, is_true
from journeyman.core.plan import Step
from journeyman.ports import ScheduledRun
from journeyman.steps.consolidate import consolidate
from tests.helpers import builders
from tests.helpers.builders import pool_body
from tests.helpers.living import Living

TYPES = tuple(
    builders.an_instance_type(name, cpu=cpus, memory_gib=4 * cpus, price=price, zones=("a",))
    for name, cpus, price in (("s", 2, 0.25), ("m", 4, 0.45), ("l", 8, 0.8), ("xl", 16, 1.5))
)
ALWAYS = [{"nodes": "100%"}]
TRIGGER = ScheduledRun(id="t", cluster="demo", step=Step.CONSOLIDATE, reason="test", time=builders.NOW)


def a_living_cluster(**disruption) -> Living:
    """With a pool that consolidates after thirty seconds and has budgets enough."""
    settings = {"consolidateAfter": "30s", "budgets": ALWAYS, **disruption}
    return Living(TYPES, pool_body(spec={"disruption": settings}))


def with_cpu_burst(living: Living) -> Living:
    """Ten pods on one node, of which five remain."""
    living.deploy("cpu-burst", 10, cpu="1400m", memory="1200Mi")
    living.until(lambda: living.running() == 10, "ten pods")
    assert living.nodes() == ["xl"]
    living.scale("cpu-burst", 5)
    return living


def test_an_oversized_node_is_replaced_after_its_replacement_is_ready():
    """Propose, validate, launch a replacement, drain, terminate; the capacity always suffices for five pods."""
    living = with_cpu_burst(a_living_cluster())
    seen: list[list[str]] = []

    def done() -> bool:
        if living.nodes() not in seen:
            seen.append(living.nodes())
        return living.nodes() == ["l"] and living.running() == 5

    living.until(done, "the smaller node")
    living.until(lambda: living.cloud.price == pytest.approx(0.8), "the price of the smaller one")

    assert seen == [["xl"], ["l", "xl"], ["l"]]
    living.live(minutes=10)
    assert living.disruptions() == [("Underutilized", "replace", "Succeeded")]
    assert living.record.count_of("karpenter_voluntary_disruption_decisions_total") == 1
    looked = {
        (s.labels["reason"], s.labels["consolidation_type"])
        for s in living.record.observations
        if s.name == "karpenter_voluntary_disruption_decision_evaluation_duration_seconds"
    }
    assert looked == {("empty", "empty"), ("underutilized", "single")}
    expected = {"ConsolidationCandidate", "DisruptionLaunching", "DisruptionWaitingReadiness", "DisruptionTerminating"}
    assert expected <= set(living.record.reasons)


def test_empty_nodes_go_and_the_bill_is_nothing():
    """Everything scaled to zero: no claims, no nodes, no instances, no marks."""
    living = a_living_cluster()
    living.deploy("inflate", 4, cpu="1")
    living.until(lambda: living.running() == 4, "four pods")
    living.scale("inflate", 0)

    living.until(lambda: not living.claims() and living.cloud.price == 0, "an empty cluster")

    assert living.nodes() == []
    living.live(minutes=2)
    assert living.disruptions() == [("Empty", "delete", "Succeeded")]


def test_the_step_requeues_itself_for_the_start_of_the_budget_window():
    """A budget of zero from nine in the evening for an hour: at ten the node goes, without waiting for a sweep to see it."""
    closed = [{"nodes": "0", "schedule": "0 21 * * *", "duration": "1h"}, *ALWAYS]
    living = a_living_cluster(budgets=closed)
    living.deploy("inflate", 1, cpu="1")
    living.until(lambda: living.running() == 1, "the pod")
    living.scale("inflate", 0)
    living.requeue(Step.CONSOLIDATE)

    living.live(minutes=50)
    assert living.disruptions() == []
    assert "DisruptionBlocked" in living.record.reasons
    opens = builders.NOW + timedelta(hours=1)
    assert any(w.step is Step.CONSOLIDATE and w.at == opens for _, o in living.functions.outcomes for w in o.requeues)

    living.until(lambda: bool(living.disruptions()), "the window", minutes=11)
    assert living.clock.now() == opens


def test_a_proposal_is_dropped_when_the_cluster_changed():
    """Fifteen seconds later the pods are back: the node is never tainted, and the proposal says why it was dropped."""
    living = with_cpu_burst(a_living_cluster())
    living.until(lambda: living.disruptions() == [("Underutilized", "replace", "")], "a proposal")
    assert not any(is_true(c.status.conditions, "DisruptionReason") for c in living.claims())

    living.scale("cpu-burst", 10)
    living.until(lambda: living.disruptions()[0][2] == "Rejected", "its end")

    assert living.nodes() == ["xl"]
    (node,) = living.server.list(NODE).items
    assert node.spec.taints == ()
    (disruption,) = living.server.list(NODE_DISRUPTION).items
    assert "churn" in disruption["status"]["messages"][-1]
    assert "ConsolidationRejected" in living.record.reasons


def test_a_replacement_that_cannot_be_had_is_undone():
    """Out of stock: the candidate keeps its pods and loses its marks; later it is tried again and succeeds."""
    living = with_cpu_burst(a_living_cluster())
    living.cloud.out_of_stock = {(t.name, "a", "on-demand") for t in TYPES}

    living.until(lambda: ("Underutilized", "replace", "RolledBack") in living.disruptions(), "the rollback")
    (node,) = living.server.list(NODE).items
    (claim,) = living.claims()
    assert node.spec.taints == ()
    assert not is_true(claim.status.conditions, "DisruptionReason")

    living.cloud.out_of_stock = set()
    living.until(lambda: living.nodes() == ["l"], "the second try", minutes=60)
    assert living.running() == 5


@pytest.mark.slow
def test_a_run_cut_off_anywhere_is_finished_or_undone_by_the_next():
    """The run that carries the proposal out loses its fence before its nth effect, for every n: nothing leaks or is lost."""
    for effects in itertools.count():
        living = with_cpu_burst(a_living_cluster())
        living.until(lambda living=living: living.disruptions() == [("Underutilized", "replace", "")], "a proposal")
        living.clock.advance(15)
        living.cluster.fence.checks_left = effects
        outcome = consolidate(living.cluster.run(), TRIGGER)
        living.cluster.fence.checks_left = None
        living.requeue(Step.CONSOLIDATE)

        living.until(lambda living=living: living.nodes() == ["l"], f"the end after {effects} effects", minutes=60)
        living.live(minutes=5)

        assert living.running() == 5
        assert living.cloud.price == pytest.approx(0.8)
        assert len(living.cloud.launches) <= 3  # the first node, and at most one replacement asked for twice
        assert all(phase in {"Succeeded", "RolledBack", "Rejected"} for _, _, phase in living.disruptions())
        assert all(n.spec.taints == () for n in living.server.list(NODE).items)
        if outcome.status == "done":
            break
    assert effects >= 5  # condition, phase, claim, taint, launch


def test_a_disruption_taint_without_a_nodedisruption_is_removed():
    """A user deleted the NodeDisruption of a command under way; the step removes the node's taint."""
    living = with_cpu_burst(a_living_cluster())
    living.until(lambda: ("Underutilized", "replace", "Executing") in living.disruptions(), "the command")
    for raw in living.server.list(NODE_DISRUPTION).items:
        living.server.delete(NODE_DISRUPTION, raw["metadata"]["name"])

    consolidate(living.cluster.run(), TRIGGER)

    assert all(n.spec.taints == () for n in living.server.list(NODE).items if n.metadata.labels.get(labels.REGISTERED))
    assert not any(is_true(c.status.conditions, "DisruptionReason") for c in living.claims())


def test_nothing_is_disrupted_while_a_claim_is_not_launched():
    """The capacity of a claim that is not launched is uncertain; the step requeues itself."""
    living = with_cpu_burst(a_living_cluster())
    living.server.create(NODECLAIM, builders.claim_body("waiting"))
    living.clock.advance(120)

    outcome = consolidate(living.cluster.run(), TRIGGER)

    assert living.disruptions() == []
    assert "not disrupting while NodeClaim waiting" in outcome.notes[-1]
    assert [w.step for w in outcome.requeues if w.at <= living.clock.now() + timedelta(seconds=15)] == [
        Step.CONSOLIDATE
    ]


def test_while_another_run_holds_the_step_nothing_is_written():
    """The fence answers busy; the message that woke this run comes back."""
    living = with_cpu_burst(a_living_cluster())
    living.cluster.fence.held_by_other = True
    before = living.server.resource_version

    outcome = consolidate(living.cluster.run(), TRIGGER)

    assert (outcome.status, living.server.resource_version) == ("busy", before)
