"""The main job, end to end, as the demo tells it: deployed handlers and wiring on a simulated cluster and cloud.

Covers: zero nodes → running pods; consolidation inside a budget window, new node first; Spot interruption; scale to zero.
"""

from datetime import timedelta

import pytest

from journeyman_simulator.simulator_cli.demo_command import SPOT_NOTICE, WINDOW_OPENS

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("moto")]


def test_every_pod_ran_and_nothing_is_left_over(told):
    """No problem in any chapter; no claim, node or instance at the end."""
    assert told.story.problems == []
    assert told.left == ((), (), ())


def test_pods_ran_within_a_minute_and_moved_within_the_spot_notice(told):
    """From pending to running on a cluster without nodes, and from warning to running elsewhere."""
    first, burst, interrupted, _ = told.story.chapters
    assert first.seconds_to_run <= 60
    assert burst.seconds_to_run <= 60
    assert interrupted.seconds_to_run <= SPOT_NOTICE.total_seconds()


def test_the_bill_falls_when_the_window_opens_and_ends_at_zero(told):
    """Consolidation saves, and an empty cluster costs nothing."""
    _, burst, _, end = told.story.chapters
    assert burst.price_after < 0.75 * (burst.price_before + 0.612)
    assert end.price_after == 0


def test_under_used_nodes_go_only_inside_the_window(told):
    """The budget forbids it until 22:00, although there was something to gain since 21:31."""
    created = [
        (at, w) for at, w in told.ours("create", "NodeDisruption") if w.body["spec"]["reason"] == "Underutilized"
    ]
    assert created
    assert all(at >= WINDOW_OPENS for at, _ in created)


def test_the_smaller_node_was_ready_before_the_larger_one_was_drained(told):
    """Replacement first: its claim is Initialized before any claim of the command is deleted."""
    replaced = [d for d in told.disruptions if d["spec"]["decision"] == "replace"]
    assert replaced, "the story is about a replacement"
    for disruption in replaced:
        names = {r["name"] for r in disruption["spec"]["replacements"]}
        old = {c["nodeClaim"] for c in disruption["spec"]["candidates"]}
        ready = [
            at
            for at, w in told.ours("patch", "NodeClaim")
            if w.name in names
            and any(
                c["type"] == "Initialized" and c["status"] == "True"
                for c in w.body.get("status", {}).get("conditions", ())
            )
        ]
        deleted = [at for at, w in told.ours("delete", "NodeClaim") if w.name in old]
        assert ready
        assert min(deleted) >= min(ready)


def test_pods_leave_through_the_eviction_api_only(told):
    """PodDisruptionBudgets are honoured: nothing of ours deletes a pod past them."""
    assert told.ours("evict", "Pod")
    assert not told.ours("delete", "Pod")


def test_the_replacement_of_an_interrupted_node_is_launched_at_once(told):
    """The claim of the lost node is deleted and another one created in the same second of virtual time."""
    warned = next(line for line in told.lines if line["message"].startswith("initiating delete of nodeclaim"))
    name = warned["message"].split()[4]
    deleted = next(at for at, w in told.ours("delete", "NodeClaim") if w.name == name)
    created = [at for at, _ in told.ours("create", "NodeClaim") if timedelta(0) <= at - deleted <= timedelta(seconds=1)]
    assert created


def test_every_invocation_succeeded_and_none_launched_twice(told):
    """No error anywhere, and exactly one fleet call for each NodeClaim."""
    assert {i.outcome.value for i in told.invocations} == {"succeeded"}
    assert told.calls["CreateFleet"] == len(told.ours("create", "NodeClaim"))
    assert told.timeline.errors == []


def test_the_timeline_names_the_moments_a_reader_looks_for(told):
    """Launches, the window, the warning, and the end are on it."""
    text = told.output.getvalue()
    for word in ("launched", "budget window", "Interruption", "nothing"):  # columns fold longer phrases
        assert word in text
