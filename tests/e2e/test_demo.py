"""The demo, end to end: deployed handlers and wiring on a simulated cluster and cloud.

Covers: zero nodes → running pods; consolidation inside a budget window, new node first; Spot interruption; scale to zero.
"""

from datetime import timedelta

import pytest

from journeyman_simulator.simulator_cli.demo_command import SPOT_NOTICE, WINDOW_OPENS

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("moto")]


def test_demo_runs_every_pod_and_leaves_nothing_over(demo_run):
    """No problem in any phase; no claim, node or instance at the end."""
    assert demo_run.scenario.problems == []
    assert demo_run.left == ((), (), ())


def test_pods_run_within_a_minute_and_move_within_the_spot_notice(demo_run):
    """From pending to running on a cluster without nodes, and from warning to running elsewhere."""
    first, burst, interrupted, _ = demo_run.scenario.phases
    assert first.seconds_to_run <= 60
    assert burst.seconds_to_run <= 60
    assert interrupted.seconds_to_run <= SPOT_NOTICE.total_seconds()


def test_price_falls_when_the_budget_window_opens_and_ends_at_zero(demo_run):
    """Consolidation saves, and an empty cluster costs nothing."""
    _, burst, _, end = demo_run.scenario.phases
    assert burst.price_after < 0.75 * (burst.price_before + 0.612)
    assert end.price_after == 0


def test_underutilized_nodes_are_disrupted_only_in_the_budget_window(demo_run):
    """The budget forbids it until 22:00, although there was something to gain since 21:31."""
    created = [
        (at, w) for at, w in demo_run.ours("create", "NodeDisruption") if w.body["spec"]["reason"] == "Underutilized"
    ]
    assert created
    assert all(at >= WINDOW_OPENS for at, _ in created)


def test_replacement_is_initialized_before_its_candidate_is_deleted(demo_run):
    """Replacement first: its claim is Initialized before any claim of the command is deleted."""
    replaced = [d for d in demo_run.disruptions if d["spec"]["decision"] == "replace"]
    assert replaced, "the demo replaces a node"
    for disruption in replaced:
        names = {r["name"] for r in disruption["spec"]["replacements"]}
        old = {c["nodeClaim"] for c in disruption["spec"]["candidates"]}
        ready = [
            at
            for at, w in demo_run.ours("patch", "NodeClaim")
            if w.name in names
            and any(
                c["type"] == "Initialized" and c["status"] == "True"
                for c in w.body.get("status", {}).get("conditions", ())
            )
        ]
        deleted = [at for at, w in demo_run.ours("delete", "NodeClaim") if w.name in old]
        assert ready
        assert min(deleted) >= min(ready)


def test_pods_are_evicted_and_never_deleted(demo_run):
    """PodDisruptionBudgets are honoured: Journeyman deletes no pod past them."""
    assert demo_run.ours("evict", "Pod")
    assert not demo_run.ours("delete", "Pod")


def test_replacement_of_an_interrupted_node_is_created_at_once(demo_run):
    """The claim of the lost node is deleted and another one created in the same second of virtual time."""
    warned = next(line for line in demo_run.lines if line["message"].startswith("initiating delete of nodeclaim"))
    name = warned["message"].split()[4]
    deleted = next(at for at, w in demo_run.ours("delete", "NodeClaim") if w.name == name)
    created = [
        at for at, _ in demo_run.ours("create", "NodeClaim") if timedelta(0) <= at - deleted <= timedelta(seconds=1)
    ]
    assert created


def test_every_invocation_succeeds_and_launches_each_nodeclaim_once(demo_run):
    """No error anywhere, and exactly one fleet call for each NodeClaim."""
    assert {i.outcome.value for i in demo_run.invocations} == {"succeeded"}
    assert demo_run.calls["CreateFleet"] == len(demo_run.ours("create", "NodeClaim"))
    assert demo_run.timeline.errors == []


def test_timeline_shows_launches_window_interruption_and_the_end(demo_run):
    """Launches, the window, the warning, and the end are on it."""
    text = demo_run.output.getvalue()
    for word in ("launched", "budget window", "Interruption", "nothing"):  # columns fold longer phrases
        assert word in text
