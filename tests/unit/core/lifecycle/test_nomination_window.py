"""The nomination window: the taints of joining nodes are removed together, some seconds after nominations."""

from datetime import timedelta

import pytest

from journeyman.core.api import labels
from journeyman.core.lifecycle.nodeclaim import LifecycleOptions, reconcile_nodeclaims
from journeyman.core.lifecycle.nomination import (
    BATCH_WINDOW,
    MAX_WATCH_DELAY,
    RENOMINATION_DELAY,
    TAINT_TIMEOUT,
    WATCH_DELAY,
)
from journeyman.core.plan import PatchObject, RenominatePods, Requeue, Step
from tests.helpers import actions
from tests.helpers.actions import of_type, patches
from tests.helpers.builders import NOW, a_launched_claim, a_node, a_pod, a_snapshot, ago, condition, stamp
from tests.helpers.small_clusters import table

MOMENT = timedelta(milliseconds=100)
SECOND = timedelta(seconds=1)


def a_claim(name, nominated_ago=None, *, delay=timedelta(0), changes=None, **notes):
    """Return a NodeClaim for a pod of the same name: nominated so long ago, launched so much later, with annotations."""
    if nominated_ago is not None:
        notes[labels.NOMINATED_AT] = (NOW - nominated_ago).isoformat()
    metadata = {"annotations": {labels.PLANNED_PODS: f"default/{name}:uid-{name}", **notes}}
    return a_launched_claim(name, metadata=metadata, age=timedelta(minutes=1) - delay, **(changes or {}))


def a_tainted_node(name, *, joined=timedelta(seconds=12), ready=True, ready_for=timedelta(0), **changed):
    ready_condition = condition("Ready", "True" if ready else "False", since=NOW - ready_for, **changed)
    metadata = {"creationTimestamp": stamp(NOW - joined)}
    return a_node(name, registered=False, metadata=metadata, status={"conditions": [ready_condition]})


def a_nominated_pod(name, node=""):
    return a_pod(name, status={"nominatedNodeName": f"node-{node or name}"})


def decided(claims, pods, *nodes, batch_min_pods=0):
    snapshot = a_snapshot(claims=claims, nodes=nodes, pods=tuple(map(a_pod, pods)) if isinstance(pods, str) else pods)
    options = LifecycleOptions(max_nominations=100, batch_min_pods=batch_min_pods)
    return reconcile_nodeclaims(snapshot, options)


def advanced(claims, *pods, **nodes):
    """Return the plan for these NodeClaims, whose nodes have joined, or have the given values."""
    names = [c.metadata.name for c in claims]
    return decided(claims, pods, *(nodes.get(name) or a_tainted_node(name) for name in names))


def nominated(plan):
    return [pod for pod, _ in actions.nominated(plan)]


def untainted(plan):
    """Return the NodeClaims whose nodes lose the unregistered taint."""
    return [name.removeprefix("node-") for name in actions.untainted(plan)]


def requeue_delay(plan):
    """Return the delay until the step is requeued."""
    return min(each.at for each in of_type(plan, Requeue) if each.step is Step.PROVISION) - NOW


def test_nominating_run_removes_no_taint_and_requeues_the_step():
    """Annotations have the time and the pods' lowest version; nodes with nominated pods wait, too, since a removed taint
    clears other nominations."""
    waiting = a_pod("a", metadata={"resourceVersion": "41"})
    plan = advanced((a_claim("a"), a_claim("b", nominated_ago=WATCH_DELAY)), waiting, a_nominated_pod("b"))
    assert (nominated(plan), untainted(plan), requeue_delay(plan)) == (["a"], [], WATCH_DELAY)
    notes = {labels.NOMINATED_AT: NOW.isoformat(timespec="milliseconds"), labels.OLDEST_POD_VERSION: "41"}
    assert patches(plan, part="metadata") == [{"annotations": notes}]


@table(
    "claims, pods, expected",
    removed_together=(
        (a_claim("a", WATCH_DELAY), a_claim("b", WATCH_DELAY + MOMENT)),
        (a_nominated_pod("a"), a_nominated_pod("b")),
        ([], ["a", "b"], RENOMINATION_DELAY),
    ),
    kept_until_its_own_window_ends=(
        (a_claim("a", WATCH_DELAY - MOMENT),), (a_nominated_pod("a"),), ([], [], MOMENT)
    ),
    kept_while_lost_nominations_are_written_again=(
        (a_claim("a", WATCH_DELAY),), (a_pod("a"),), (["a"], [], WATCH_DELAY)
    ),
)  # fmt: skip
def test_taints_are_removed_together_after_the_window(claims, pods, expected):
    """The step is requeued soon, because a concurrent scheduling attempt may clear nominations; the window then starts again."""
    plan = advanced(claims, *pods)
    assert (nominated(plan), untainted(plan), requeue_delay(plan)) == expected


def test_nodes_of_the_pods_retried_first_lose_the_taint_last():
    """Versions are numbers. What a pod loses on a node with the taint, no other pod can take."""
    versions = {"a": 7, "b": 100, "c": 20, "d": 9, "e": 30, "f": 8}
    claims = tuple(a_claim(name, WATCH_DELAY, **{labels.OLDEST_POD_VERSION: str(v)}) for name, v in versions.items())

    plan = advanced(claims, *map(a_nominated_pod, versions))

    later = [c.actions[0].ref.name for c in plan.chains if isinstance(c.actions[0], PatchObject) and c.wave]
    assert later == ["node-a", "node-c", "node-d", "node-f"]
    assert untainted(plan) == list(versions)


def test_node_without_taint_expects_planned_pods_nominated_or_not():
    """Pods that lose their nomination are nominated again; bound and deleted ones are no longer expected."""
    remembered = ",".join(f"default/{name}:uid-{name}" for name in ("a", "b", "c", "gone"))
    claim = a_claim("a", MAX_WATCH_DELAY, **{labels.PLANNED_PODS: remembered})
    bound = a_pod("c", spec={"nodeName": "node-elsewhere"})

    plan = advanced((claim,), a_nominated_pod("a"), a_nominated_pod("b", node="a"), bound)

    assert untainted(plan) == ["a"]
    (again,) = [action for action in plan.chains[-1].actions if isinstance(action, RenominatePods)]
    assert [(n.node, [pod.name for pod in n.pods]) for n in again.nominations] == [("node-a", ["a", "b"])]


@pytest.mark.parametrize("bound", ["since its nominations", "since it joined"])
def test_window_has_a_maximum(bound):
    """The taint is removed even if nominations are missing; a node whose pods were just nominated keeps its taint."""
    late = a_claim("late", nominated_ago=MAX_WATCH_DELAY if bound == "since its nominations" else WATCH_DELAY)
    nodes = {"late": a_tainted_node("late", joined=TAINT_TIMEOUT)} if bound == "since it joined" else {}
    plan = advanced((late, a_claim("news")), a_pod("late"), a_pod("news"), **nodes)
    assert (nominated(plan), untainted(plan)) == (["late", "news"], ["late"])


@pytest.mark.parametrize("others", [(a_tainted_node("b", ready=False),), ()], ids=["not ready", "not there"])
def test_nodes_that_are_ready_wait_for_those_launched_with_them(others):
    """Until then, any change of a node makes kube-scheduler retry pending pods and clear nominations."""
    claims = (a_claim("a"), a_claim("b"))
    early, late = (
        decided(claims, "ab", a_tainted_node("a", ready_for=time), *others)
        for time in (BATCH_WINDOW - SECOND, BATCH_WINDOW)
    )
    assert (nominated(early), untainted(early), nominated(late)) == ([], [], ["a"])


STARTING = a_tainted_node("b", ready=False)


@table(
    "other, nodes, waits",
    node_is_expected=(a_claim("b"), (), True),
    deleted=(a_claim("b", changes={"deleting": NOW}), (), False),
    not_launched=(a_claim("b", changes={"provider_id": "", "true": ()}), (), False),
    node_is_starting=(a_claim("b"), (STARTING,), True),
    node_is_late=(a_claim("b"), (a_tainted_node("b", ready=False, joined=TAINT_TIMEOUT),), False),
    registered=(a_claim("b", changes={"true": ("Launched", "Registered")}), (STARTING,), False),
    same_launch=(a_claim("b", delay=2 * SECOND), (), True),
    later_launch=(a_claim("b", delay=3 * SECOND), (), False),
    launched_now=(a_claim("b", delay=60 * SECOND), (), False),
)
def test_ready_node_waits_only_for_nodes_that_may_join_with_it(other, nodes, waits):
    """It waits for NodeClaims of the same launch that have an instance and may still have the taint.

    Otherwise constantly launched nodes would wait for each other without end.
    """
    plan = decided((a_claim("a"), other), "ab", a_tainted_node("a"), *nodes)
    assert ("a" not in nominated(plan)) is waits


def test_latest_ready_node_decides_which_launches_are_waited_for():
    """Nodes of two launches are ready: a node of the second launch may still join."""
    claims = (a_claim("a"), a_claim("b", delay=30 * SECOND), a_claim("c", delay=30 * SECOND))
    assert nominated(decided(claims, "abc", a_tainted_node("a"), a_tainted_node("b"))) == []


def test_batch_window_starts_with_the_first_ready_node_with_pods():
    """A later one does not extend it, and a node without pending pods does not start it."""
    claims = (a_claim("a"), a_claim("b"), a_claim("c"))
    nodes = (a_tainted_node("a", ready_for=BATCH_WINDOW), a_tainted_node("b"))
    assert nominated(decided(claims, "abc", *nodes)) == ["a", "b"]
    assert nominated(decided(claims, "bc", *nodes)) == []


def test_batch_window_starts_now_without_a_transition_time():
    """`lastTransitionTime` is optional."""
    plan = decided((a_claim("a"), a_claim("b")), "ab", a_tainted_node("a", lastTransitionTime=None))
    assert nominated(plan) == []
    assert requeue_delay(plan) <= BATCH_WINDOW


@pytest.mark.parametrize(("batch_min_pods", "served"), [(2, []), (3, ["a"])])
def test_enough_planned_pods_make_nodes_wait_for_each_other(batch_min_pods, served):
    """The threshold counts the pods of all joining nodes. One run nominates few pods and removes the taint."""
    nodes = (a_tainted_node("a"), STARTING)
    plan = decided((a_claim("a"), a_claim("b")), "ab", *nodes, batch_min_pods=batch_min_pods)
    assert (nominated(plan), untainted(plan)) == (served, served)


def test_crash_before_the_time_was_written_delays_no_pod():
    """The pods are nominated, but the NodeClaim has no time, so the next run removes the taint."""
    assert untainted(advanced((a_claim("a"),), a_nominated_pod("a"))) == ["a"]


def test_nominations_are_removed_when_the_claim_is_deleted_unregistered():
    """The NodeClaim does not have the node's name yet, but its provider id."""
    plan = advanced((a_claim("a", changes={"deleting": ago(seconds=1)}),), a_nominated_pod("a"))
    assert actions.nominated(plan) == [("a", "")]
