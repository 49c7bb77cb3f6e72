"""The consolidate step on a simulated cluster: replacement and deletion within budgets, resumption and rollback."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.conditions import parse_time
from journeyman.core.api.objects import (
    CHURN_LEDGER,
    FLEET_PLAN,
    NODE,
    NODE_DISRUPTION,
    NODECLAIM,
    NODEPOOL,
    POD,
    is_true,
)
from journeyman.core.plan import Step
from journeyman.errors import NOT_SERVED, ForbiddenError, NotFoundError
from journeyman.ports import ScheduledRun
from journeyman.steps.consolidate import consolidate
from journeyman.steps.phases import MAX_PARALLEL_PATCHES
from journeyman.steps.provision import provision
from tests.helpers import builders
from tests.helpers.builders import pool_body
from tests.helpers.fakes import Altered
from tests.helpers.fleets import a_member, bodies
from tests.helpers.simulated_cluster import SimulatedCluster

TYPES = tuple(
    builders.an_instance_type(name, cpu=cpus, memory_gib=4 * cpus, price=price, zones=("a",))
    for name, cpus, price in (("s", 2, 0.25), ("m", 4, 0.45), ("l", 8, 0.8), ("xl", 16, 1.5))
)
ALWAYS = [{"nodes": "100%"}]
TRIGGER = ScheduledRun(id="t", cluster="demo", step=Step.CONSOLIDATE, reason="test", time=builders.NOW)


def a_simulated_cluster(**disruption) -> SimulatedCluster:
    """Return a cluster whose NodePool consolidates after thirty seconds with a budget of 100 %."""
    settings = {"consolidateAfter": "30s", "budgets": ALWAYS, **disruption}
    return SimulatedCluster(TYPES, pool_body(spec={"disruption": settings}))


def with_cpu_burst(simulation: SimulatedCluster) -> SimulatedCluster:
    """Run ten pods on one node, then scale to five."""
    simulation.deploy("cpu-burst", 10, cpu="1400m", memory="1200Mi")
    simulation.until(lambda: simulation.running() == 10, "ten pods")
    assert simulation.nodes() == ["xl"]
    simulation.scale("cpu-burst", 5)
    return simulation


def test_an_oversized_node_is_replaced_after_its_replacement_is_ready():
    """The step proposes, validates, launches a replacement, drains and terminates; five pods run throughout."""
    simulation = with_cpu_burst(a_simulated_cluster())
    seen: list[list[str]] = []

    def done() -> bool:
        if simulation.nodes() not in seen:
            seen.append(simulation.nodes())
        return simulation.nodes() == ["l"] and simulation.running() == 5

    simulation.until(lambda: simulation.disruptions() == [("Underutilized", "replace", "")], "a proposal")
    assert all(n.spec.taints == () for n in simulation.server.list(NODE).items)
    simulation.until(done, "the smaller node")
    assert seconds_until_start(simulation) >= 15
    simulation.until(lambda: simulation.cloud.price == pytest.approx(0.8), "the price of the smaller one")

    assert seen == [["xl"], ["l", "xl"], ["l"]]
    simulation.run_for(minutes=10)
    assert simulation.disruptions() == [("Underutilized", "replace", "Succeeded")]
    assert simulation.record.count_of("karpenter_voluntary_disruption_decisions_total") == 1
    looked = {
        (s.labels["reason"], s.labels["consolidation_type"])
        for s in simulation.record.observations
        if s.name == "karpenter_voluntary_disruption_decision_evaluation_duration_seconds"
    }
    of_consolidation = {("underutilized", kind) for kind in ("fleet", "multi", "single")}
    assert looked == {("empty", "empty"), ("drifted", ""), *of_consolidation}
    expected = {"ConsolidationCandidate", "DisruptionLaunching", "DisruptionWaitingReadiness", "DisruptionTerminating"}
    assert expected <= set(simulation.record.reasons)


def test_empty_nodes_are_deleted_and_the_price_is_zero():
    """After scaling to zero no NodeClaim, node, instance or disruption taint is left; the proposal alone touches no node."""
    simulation = a_simulated_cluster()
    simulation.deploy("inflate", 4, cpu="1")
    simulation.until(lambda: simulation.running() == 4, "four pods")
    simulation.scale("inflate", 0)

    simulation.until(lambda: simulation.disruptions() == [("Empty", "delete", "")], "a proposal")
    assert all(n.spec.taints == () for n in simulation.server.list(NODE).items)
    simulation.until(lambda: not simulation.claims() and simulation.cloud.price == 0, "an empty cluster")

    assert simulation.nodes() == []
    simulation.run_for(minutes=2)
    assert simulation.disruptions() == [("Empty", "delete", "Succeeded")]
    assert seconds_until_start(simulation) >= 15


def test_new_kinds_that_cannot_be_read_are_reported_and_nothing_stops():
    """A function may be newer than the chart: nodes are consolidated without fleet plans and ledger, with one Event for each kind."""
    simulation = a_simulated_cluster()
    simulation.cluster.settings = replace(simulation.cluster.settings, fleet_plans=True)
    missing = NotFoundError("the API server does not serve fleetplans", reason=NOT_SERVED, to_do="see the chart")
    denied = ForbiddenError("churnledgers is forbidden", status=403, resource="churnledgers", to_do="see the chart")

    def listed(resource, **kwargs):
        for kind, error in ((FLEET_PLAN, missing), (CHURN_LEDGER, denied)):
            if resource is kind:
                raise error
        return simulation.server.list(resource, **kwargs)

    simulation.cluster.server = Altered(simulation.server, list=listed)
    with_cpu_burst(simulation)

    simulation.until(lambda: simulation.nodes() == ["l"] and simulation.running() == 5, "the smaller node")

    assert ("Underutilized", "replace") in {found[:2] for found in simulation.disruptions()}
    assert simulation.server.list(CHURN_LEDGER).items == simulation.server.list(FLEET_PLAN).items == ()
    warned = {(e.reason, e.message) for e in simulation.record.events if e.message.startswith("consolidate: ")}
    assert warned == {
        ("CRDNotInstalled", "consolidate: the API server does not serve fleetplans; see the chart"),
        ("PermissionDenied", "consolidate: churnledgers is forbidden; see the chart"),
    }


def test_missing_permission_for_pods_is_reported_once_and_nothing_else_stops():
    """Deletion costs of pods are the only thing that is missing; a run does not try each pod."""
    simulation = a_simulated_cluster()

    def patch_each(resource, patches, *, subresource=""):
        if resource is not POD or subresource:
            return simulation.server.patch_each(resource, patches, subresource=subresource)
        return [ForbiddenError("pods is forbidden", status=403, resource="pods", verb="patch") for _ in patches]

    simulation.cluster.server = Altered(simulation.server, patch_each=patch_each)
    simulation.deploy("web", 60, cpu="50m", memory="50Mi")
    simulation.until(lambda: simulation.running() == 60, "sixty pods")
    simulation.run_for(minutes=3)

    outcome = consolidate(simulation.cluster.run(), TRIGGER)

    assert (outcome.counts["errors"], outcome.counts["patches of pods refused"]) == (1, MAX_PARALLEL_PATCHES)
    denied = [e.message for e in simulation.record.events if e.reason == "PermissionDenied"]
    assert set(denied) == {"consolidate: pods is forbidden"}


def test_the_step_starts_when_the_window_of_a_zero_budget_closes():
    """The budget is zero from 21:00 for an hour; at 22:00 the sweep starts the step, which deletes the node."""
    closed = [{"nodes": "0", "schedule": "0 21 * * *", "duration": "1h"}, *ALWAYS]
    simulation = a_simulated_cluster(budgets=closed)
    simulation.deploy("inflate", 1, cpu="1")
    simulation.until(lambda: simulation.running() == 1, "the pod")
    simulation.scale("inflate", 0)
    simulation.requeue(Step.CONSOLIDATE)

    simulation.run_for(minutes=50)
    assert simulation.disruptions() == []
    assert "DisruptionBlocked" in simulation.record.reasons

    simulation.until(lambda: bool(simulation.disruptions()), "the end of the window", minutes=11)
    assert timedelta(0) <= simulation.clock.now() - builders.NOW - timedelta(hours=1) < timedelta(seconds=75)


def test_proposal_is_rejected_when_the_cluster_changed():
    """Fifteen seconds later the pods exist again: the node is not tainted, and the NodeDisruption has the reason."""
    simulation = with_cpu_burst(a_simulated_cluster())
    simulation.until(lambda: simulation.disruptions() == [("Underutilized", "replace", "")], "a proposal")
    assert not any(is_true(c.status.conditions, "DisruptionReason") for c in simulation.claims())

    simulation.scale("cpu-burst", 10)
    simulation.until(lambda: simulation.disruptions()[0][2] == "Rejected", "its end")

    assert simulation.nodes() == ["xl"]
    (node,) = simulation.server.list(NODE).items
    assert node.spec.taints == ()
    (disruption,) = simulation.server.list(NODE_DISRUPTION).items
    assert "churn" in disruption["status"]["messages"][-1]
    assert "ConsolidationRejected" in simulation.record.reasons


def test_command_with_an_unavailable_replacement_is_rolled_back():
    """The candidate keeps its pods and loses its taint; a later attempt succeeds."""
    simulation = with_cpu_burst(a_simulated_cluster())
    simulation.cloud.out_of_stock = {(t.name, "a", "on-demand") for t in TYPES}

    simulation.until(lambda: ("Underutilized", "replace", "RolledBack") in simulation.disruptions(), "the rollback")
    (node,) = simulation.server.list(NODE).items
    (claim,) = simulation.claims()
    assert node.spec.taints == ()
    assert not is_true(claim.status.conditions, "DisruptionReason")

    simulation.cloud.out_of_stock = set()
    simulation.until(lambda: simulation.nodes() == ["l"], "the second try", minutes=90)
    assert simulation.running() == 5


@pytest.mark.slow
def test_next_run_finishes_or_rolls_back_an_interrupted_run():
    """The executing run loses its Lease before its nth write, for every n: no object or instance leaks or is lost."""
    for effects in itertools.count():
        simulation = with_cpu_burst(a_simulated_cluster())
        simulation.until(
            lambda simulation=simulation: simulation.disruptions() == [("Underutilized", "replace", "")], "a proposal"
        )
        simulation.clock.advance(15)
        simulation.cluster.fence.checks_left = effects
        outcome = consolidate(simulation.cluster.run(), TRIGGER)
        simulation.cluster.fence.checks_left = None
        simulation.requeue(Step.CONSOLIDATE)

        simulation.until(
            lambda simulation=simulation: simulation.nodes() == ["l"], f"the end after {effects} effects", minutes=60
        )
        simulation.run_for(minutes=5)

        assert simulation.running() == 5
        assert simulation.cloud.price == pytest.approx(0.8)
        assert len(simulation.cloud.launches) <= 3  # the first node, and at most one replacement launched twice
        assert all(phase in {"Succeeded", "RolledBack", "Rejected"} for _, _, phase in simulation.disruptions())
        assert all(n.spec.taints == () for n in simulation.server.list(NODE).items)
        if outcome.status == "done":
            break
    assert effects >= 5  # condition, phase, claim, taint, launch


def test_a_disruption_taint_without_a_nodedisruption_is_removed():
    """A user deleted the NodeDisruption of a running command; the step removes the node's taint."""
    simulation = with_cpu_burst(a_simulated_cluster())
    simulation.until(lambda: ("Underutilized", "replace", "Replacing") in simulation.disruptions(), "the command")
    for raw in simulation.server.list(NODE_DISRUPTION).items:
        simulation.server.delete(NODE_DISRUPTION, raw["metadata"]["name"])

    consolidate(simulation.cluster.run(), TRIGGER)

    assert all(
        n.spec.taints == () for n in simulation.server.list(NODE).items if n.metadata.labels.get(labels.REGISTERED)
    )
    assert not any(is_true(c.status.conditions, "DisruptionReason") for c in simulation.claims())


def test_a_claim_without_an_instance_does_not_stop_consolidation():
    """While offerings are out of stock its launch repeats without end; pods of candidates may not go there."""
    simulation = with_cpu_burst(a_simulated_cluster())
    simulation.until(lambda: simulation.running() == 5, "five pods")
    simulation.server.create(NODECLAIM, builders.claim_body("waiting"))
    simulation.clock.advance(600)  # consolidation leaves nodes alone that were just launched

    consolidate(simulation.cluster.run(), TRIGGER)

    assert simulation.disruptions() == [("Underutilized", "replace", "")]


def test_a_hundred_and_fifty_empty_nodes_are_deleted_at_once():
    """One object holds a hundred candidates; both commands are proposed, validated and started together."""
    simulation = a_simulated_cluster()
    for number in range(150):
        simulation.cluster.add(*bodies(a_member(f"n{number:03}")))
    simulation.clock.advance(120)
    consolidate(simulation.cluster.run(), TRIGGER)
    assert simulation.disruptions() == [("Empty", "delete", "")] * 2

    simulation.clock.advance(15)
    consolidate(simulation.cluster.run(), TRIGGER)
    consolidate(simulation.cluster.run(), TRIGGER)

    assert simulation.disruptions() == [("Empty", "delete", "Draining")] * 2
    assert all(claim.metadata.deletion_timestamp is not None for claim in simulation.claims())


def test_node_stays_if_its_pods_need_one_order_of_binding_to_fit():
    """The third node's pods are of one size class; the smaller one may take the core that only the larger one needs."""
    simulation = a_simulated_cluster()
    for name, cpus in (("a", ["3"]), ("b", ["3400m"]), ("n", ["1", "600m"])):
        simulation.cluster.add(*bodies(a_member(name, cpus=cpus)))
    simulation.clock.advance(120)

    consolidate(simulation.cluster.run(), TRIGGER)

    assert simulation.disruptions() == []
    messages = {e.message for e in simulation.record.events if e.reason == "Unconsolidatable" and e.ref.name == "n"}
    assert messages == {
        "pod default/n-0 has no capacity left if kube-scheduler binds the evicted pods in another order"
    }


class TickingClock:
    """A clock that advances by a second each time it is read, so that every evaluation takes seconds."""

    def __init__(self, clock):
        self._clock = clock

    def now(self):
        self._clock.advance(1)
        return self._clock.now()


def test_evaluation_that_runs_out_of_time_continues_behind_the_last_examined_node():
    """The next run starts at once, so that the last nodes of a large fleet are examined, too."""
    simulation = a_simulated_cluster()
    simulation.cluster.add(*bodies(*(a_member(name, size="xl", cpus=["15"]) for name in "abcd")))
    simulation.clock.advance(120)
    consolidate(simulation.cluster.run(), TRIGGER)  # writes what it finds, which takes time only once

    examined, starts = [], []
    while not examined or examined[-1]:
        now = simulation.clock.now()
        run = simulation.cluster.run(clock=TickingClock(simulation.clock), deadline=now + timedelta(seconds=37))
        outcome = consolidate(run, TRIGGER)
        examined.append(simulation.cluster.fence.examined_until)
        starts.append([requeue.at <= simulation.clock.now() for requeue in outcome.requeues])

    nodes = sorted(claim.metadata.name for claim in simulation.claims())
    assert len(nodes) == 4
    assert len(examined) > 2
    assert len(set(examined)) == len(examined), "no node is examined twice"
    assert {cursor.partition("/")[0] for cursor in examined} < {*nodes, "multi-node", ""}
    assert starts == [*([True] for _ in examined[:-1]), []]


def with_three_underused_nodes() -> SimulatedCluster:
    """Three nodes, each with one small pod, after the large ones have gone; without a fleet plan, which comes before multi-node."""
    simulation = a_simulated_cluster()
    simulation.cluster.settings = replace(simulation.cluster.settings, fleet_plans=False)
    simulation.deploy("large", 3, cpu="15")
    simulation.until(lambda: simulation.running() == 3, "three large pods")
    simulation.deploy("small", 3, cpu="700m")
    simulation.until(lambda: simulation.running() == 6, "three small pods")
    assert simulation.nodes() == ["xl"] * 3
    simulation.scale("large", 0)
    return simulation


def test_several_nodes_are_replaced_by_one_in_one_command():
    """The command waits for fifteen seconds, then for its replacement; three pods run on the one node in the end."""
    simulation = with_three_underused_nodes()

    simulation.until(lambda: simulation.nodes() == ["m"] and simulation.running() == 3, "one smaller node")

    simulation.run_for(minutes=5)
    assert simulation.disruptions() == [("Underutilized", "replace", "Succeeded")]
    (disruption,) = simulation.server.list(NODE_DISRUPTION).items
    assert (disruption["spec"]["method"], len(disruption["spec"]["candidates"])) == ("multi-node", 3)
    assert seconds_until_start(simulation) >= 15
    counted = [
        o.labels for o in simulation.record.observations if o.name == "karpenter_voluntary_disruption_decisions_total"
    ]
    assert counted == [{"decision": "replace", "reason": "underutilized", "consolidation_type": "multi"}]


def seconds_until_start(simulation) -> float:
    """Return how long the only NodeDisruption was proposed before it started."""
    (made,) = simulation.server.list(NODE_DISRUPTION).items
    return (parse_time(made["status"]["startedAt"]) - parse_time(made["spec"]["createdAt"])).total_seconds()


def test_search_that_runs_out_of_time_proposes_its_best_command_so_far():
    """The search examines two of three nodes, then all three; the NodeDisruption is written within the deadline's margin."""
    simulation = with_three_underused_nodes()
    simulation.until(lambda: len(simulation.server.list(POD).items) == 3, "the end of the large pods")
    simulation.clock.advance(60)

    found = []
    for seconds in range(25, 50):
        simulation.cluster.fence.examined_until = ""
        simulation.record.observations.clear()
        now = simulation.clock.now()
        run = simulation.cluster.run(clock=TickingClock(simulation.clock), deadline=now + timedelta(seconds=seconds))
        consolidate(run, TRIGGER)
        timeouts = [o.labels for o in simulation.record.observations if o.name.endswith("consolidation_timeouts_total")]
        candidates = [len(d["spec"]["candidates"]) for d in simulation.server.list(NODE_DISRUPTION).items]
        found.append((timeouts, candidates, simulation.cluster.fence.examined_until))
        for raw in simulation.server.list(NODE_DISRUPTION).items:
            simulation.server.delete(NODE_DISRUPTION, raw["metadata"]["name"])

    multi = [{"consolidation_type": "multi"}]
    in_order = [outcome for outcome, _ in itertools.groupby(found)]
    assert in_order == [([], [], ""), (multi, [], ""), (multi, [2], ""), (multi, [3], ""), ([], [3], "")]


@pytest.mark.parametrize("seems_smaller", [False, True])
def test_pods_that_come_while_a_node_is_replaced_need_no_third_node(seems_smaller):
    """They run on the replacement; the pods of the node that is being replaced are not provisioned for twice.

    A replacement may seem to have less capacity than was planned; kube-scheduler finds it large enough once they are evicted.
    """
    simulation = with_cpu_burst(a_simulated_cluster())
    simulation.until(lambda: ("Underutilized", "replace", "Replacing") in simulation.disruptions(), "the command")
    if seems_smaller:
        replacement = max(simulation.claims(), key=lambda claim: claim.metadata.creation_timestamp)
        less = {"status": {"allocatable": {"cpu": "4"}}}
        simulation.server.patch(NODECLAIM, replacement.metadata.name, less, subresource="status")
    simulation.requeue(Step.PROVISION)
    if seems_smaller:
        simulation.run_for(minutes=1 / 6)
    simulation.deploy("late", 1, cpu="200m")
    simulation.until(lambda: simulation.nodes() == ["l"] and simulation.running() == 6, "the replacement")

    assert len(simulation.cloud.launches) == 2


def a_drain_beside_a_pending_pod() -> SimulatedCluster:
    """Return a cluster whose large node is being deleted, with five pods that the smaller one is to take; another pod fits nowhere."""
    simulation = with_cpu_burst(a_simulated_cluster())
    simulation.deploy("large", 1, cpu="32")
    simulation.until(lambda: len([c for c in simulation.claims() if is_initialized(c)]) == 2, "the replacement")
    consolidate(simulation.cluster.run(), TRIGGER)
    assert [c for c in simulation.claims() if c.metadata.deletion_timestamp]
    return simulation


def name_of_replacement(simulation: SimulatedCluster) -> str:
    nodes = simulation.server.list(NODE).items
    return next(n.metadata.name for n in nodes if n.metadata.labels[labels.INSTANCE_TYPE] == "l")


@pytest.mark.parametrize("is_deleted", [False, True])
def test_pods_of_a_node_that_drains_need_a_third_node_once_they_are_evicted_or_their_replacement_is_deleted(is_deleted):
    """Another pod took the capacity of their replacement: kube-scheduler might still find some elsewhere. Or a user deletes it."""
    simulation = a_drain_beside_a_pending_pod()
    if is_deleted:
        simulation.server.delete(NODE, name_of_replacement(simulation))
    else:
        taken = builders.pod_body("taken", cpu="4", node=name_of_replacement(simulation))
        simulation.server.create(POD, taken, namespace="default")

    provision(simulation.cluster.run(), simulation.functions.trigger(Step.PROVISION))

    assert len(simulation.cloud.launches) == (3 if is_deleted else 2)
    if not is_deleted:
        simulation.until(lambda: len(simulation.cloud.launches) > 2, "a third node", minutes=1)
        simulation.until(lambda: "xl" not in simulation.nodes() and simulation.running() == 6, "the pods")


def is_initialized(claim) -> bool:
    return is_true(claim.status.conditions, "Initialized")


def why_nodes_stay(simulation: SimulatedCluster) -> list[str]:
    """The reason of the condition Disruptable of each NodeClaim that has it."""
    found = (c for claim in simulation.claims() for c in claim.status.conditions if c.type == "Disruptable")
    return [c.reason for c in found]


def test_node_that_stays_has_the_reason_until_a_command_disrupts_it():
    """A cluster at rest is not written to; a NodePool that is no longer paused goes on."""
    simulation = a_simulated_cluster()
    simulation.server.patch(NODEPOOL, "default", {"metadata": {"annotations": {labels.PAUSE_DISRUPTION: "true"}}})
    simulation = with_cpu_burst(simulation)
    simulation.run_for(minutes=3)
    assert (simulation.nodes(), why_nodes_stay(simulation)) == (["xl"], ["Paused"])
    (claim,) = simulation.claims()
    simulation.run_for(minutes=3)
    assert simulation.claims()[0].metadata.resource_version == claim.metadata.resource_version

    simulation.server.patch(NODEPOOL, "default", {"metadata": {"annotations": {labels.PAUSE_DISRUPTION: None}}})
    simulation.until(lambda: simulation.nodes() == ["l"], "the smaller node")
    simulation.run_for(minutes=5)
    assert why_nodes_stay(simulation) == ["BackOff"], "the smaller node must pay back first"
    simulation.run_for(minutes=60)
    assert why_nodes_stay(simulation) == ["Price"]


def test_nodepool_whose_replacements_do_not_join_is_paused_longer_each_time():
    """The node stays without taint, and says so. One command tries again after each pause; its success ends them."""
    simulation = with_cpu_burst(a_simulated_cluster())
    joined = [m.provider_id for m in simulation.cloud.machines()]
    machines = simulation.cloud.machines
    simulation.cloud.machines = lambda: tuple(m for m in machines() if m.provider_id in joined)
    simulation.until(lambda: ("Underutilized", "replace", "RolledBack") in simulation.disruptions(), "the rollback")
    simulation.run_for(minutes=1)
    given_up = [d for d in simulation.server.list(NODE_DISRUPTION).items if d["status"]["phase"] == "RolledBack"]
    assert ["were not initialized in time" in d["status"]["messages"][-1] for d in given_up] == [True]
    assert not any(node.spec.taints for node in simulation.server.list(NODE).items)
    assert "ReplacementsPaused" in why_nodes_stay(simulation)
    simulation.run_for(minutes=60)

    tries = [phase for _, _, phase in simulation.disruptions() if phase != "Rejected"]
    assert 3 <= len(tries) <= 5, "without a pause there would be seven"
    assert simulation.nodes() == ["xl"]
    assert simulation.running() == 5
    assert "DisruptionPaused" in simulation.record.reasons

    del simulation.cloud.machines
    simulation.run_for(minutes=75)
    assert simulation.nodes() == ["l"]
