"""The demo, end to end: deployed handlers and wiring on a simulated cluster and cloud.

Covers: zero nodes → running pods; consolidation inside a budget window, new node first; Spot interruption; scale to zero.
"""

from datetime import timedelta

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("moto")]


def test_demo_runs_every_pod_and_leaves_nothing_over(demo_run):
    """No phase reports a problem; no NodeClaim, node or instance is left at the end."""
    assert demo_run.scenario.problems == []
    assert demo_run.left == ((), (), ())


def test_pods_run_within_a_minute_and_move_within_the_spot_notice(demo_run):
    """The first is the time from pending to running without nodes, the second from the warning to running on other nodes."""
    first, burst, interrupted, _ = demo_run.scenario.phases
    assert first.seconds_to_run <= 60
    assert burst.seconds_to_run <= 60
    assert interrupted.seconds_to_run <= demo_run.facts.notice.total_seconds()


def test_price_falls_when_the_budget_window_opens_and_ends_at_zero(demo_run):
    """Consolidation lowers the price, and an empty cluster costs nothing."""
    _, burst, _, end = demo_run.scenario.phases
    assert burst.price_after < 0.75 * burst.price_peak
    assert end.price_after == 0


def test_underutilized_nodes_are_disrupted_only_in_the_budget_window(demo_run):
    """The budget forbids it until then, although consolidation would save money for half an hour."""
    if demo_run.window_opens is None:
        pytest.skip("the published NodePool has no budget with a schedule")
    created = [
        (at, w) for at, w in demo_run.ours("create", "NodeDisruption") if w.body["spec"]["reason"] == "Underutilized"
    ]
    assert created
    assert all(at >= demo_run.window_opens for at, _ in created)


def test_replacement_is_initialized_before_its_candidate_is_deleted(demo_run):
    """The replacement's NodeClaim is Initialized before any candidate's NodeClaim is deleted."""
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
    """Journeyman respects PodDisruptionBudgets: it deletes no pod directly."""
    assert demo_run.ours("evict", "Pod")
    assert not demo_run.ours("delete", "Pod")


def test_replacement_of_an_interrupted_node_is_created_at_once(demo_run):
    """The interrupted NodeClaim is deleted and its replacement created in the same second of virtual time."""
    warned = next(line for line in demo_run.lines if line["message"].startswith("initiating delete of nodeclaim"))
    name = warned["message"].split()[4]
    deleted = next(at for at, w in demo_run.ours("delete", "NodeClaim") if w.name == name)
    created = [
        at for at, _ in demo_run.ours("create", "NodeClaim") if timedelta(0) <= at - deleted <= timedelta(seconds=1)
    ]
    assert created


def test_every_invocation_succeeds_and_launches_each_nodeclaim_once(demo_run):
    """No invocation fails, and the cloud receives exactly one launch request for each NodeClaim."""
    assert {i.outcome.value for i in demo_run.invocations} == {"succeeded"}
    assert demo_run.launches == len(demo_run.ours("create", "NodeClaim"))
    assert demo_run.timeline.errors == []


def test_timeline_shows_launches_window_interruption_and_the_end(demo_run):
    """It has a line for the launches, the budget window, the interruption warning and the end."""
    text = demo_run.output.getvalue()
    window = ["budget window"] if demo_run.window_opens is not None else []
    for word in (
        "launched",
        *window,
        demo_run.facts.spot_warning.split()[-1],
        "nothing",
    ):  # the columns wrap longer phrases
        assert word in text


@pytest.mark.parametrize("demo_run", ["huawei"], indirect=True)
def test_published_cce_manifests_scale_to_ten_pods_and_to_five(demo_run):
    """The smaller node is initialized before the larger one is deleted; both are of the published NodePool's types."""
    pool = "demo-cce-elastic-cpu"
    launched = [
        line
        for line in demo_run.lines
        if line["message"] == "launched nodeclaim" and line["NodeClaim"]["name"].startswith(pool)
    ]
    [replaced] = [d for d in demo_run.disruptions if d["spec"]["decision"] == "replace"]

    assert [line["instance-type"] for line in launched] == ["c9.4xlarge.4", "c9.2xlarge.4"]
    assert [c["instanceType"] for c in replaced["spec"]["candidates"]] == ["c9.4xlarge.4"]
    assert replaced["status"]["phase"] == "Succeeded"
    assert {line["capacity-type"] for line in launched} == {"on-demand"}
