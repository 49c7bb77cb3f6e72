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
from journeyman.core.plan import NominatePods, PatchObject, RenominatePods, Requeue, Step
from tests.helpers.builders import NOW, a_launched_claim, a_node, a_pod, a_snapshot, ago, condition, stamp

MOMENT = timedelta(milliseconds=100)


def with_planned_pods(name, **notes):
    """Return the metadata of a NodeClaim with a planned pod and other annotations."""
    return {"annotations": {labels.PLANNED_PODS: f"default/{name}:uid-{name}", **notes}}


def a_claim(name, nominated_ago=None, **notes):
    """Return a NodeClaim for a pod of the same name, nominated so long ago, with these annotations."""
    if nominated_ago is not None:
        notes[labels.NOMINATED_AT] = (NOW - nominated_ago).isoformat()
    return a_launched_claim(name, metadata=with_planned_pods(name, **notes))


def a_tainted_node(name, *, joined=timedelta(seconds=12), ready=True, ready_for=timedelta(0)):
    conditions = [condition("Ready", "True" if ready else "False", since=NOW - ready_for)]
    return a_node(
        name,
        registered=False,
        metadata={"creationTimestamp": stamp(NOW - joined)},
        status={"conditions": conditions},
    )


def launched_after(name, delay):
    """Return a NodeClaim created so long after those of `a_claim`, which are a minute old."""
    return a_launched_claim(name, metadata=with_planned_pods(name), age=timedelta(minutes=1) - delay)


def a_nominated_pod(name):
    return a_pod(name, status={"nominatedNodeName": f"node-{name}"})


def advanced(claims, *pods, batch_min_pods=0, **nodes):
    """Return the plan for these NodeClaims, whose nodes have joined, or have the given values."""
    existing = tuple(nodes.get(c.metadata.name) or a_tainted_node(c.metadata.name) for c in claims)
    return reconcile_nodeclaims(
        a_snapshot(claims=claims, nodes=existing, pods=pods),
        LifecycleOptions(max_nominations=100, batch_min_pods=batch_min_pods),
    )


def nominated(plan):
    return [ref.name for a in plan.actions if isinstance(a, NominatePods) for ref in a.pods]


def untainted(plan):
    """Return the NodeClaims whose nodes lose the unregistered taint."""
    patches = [a for a in plan.actions if isinstance(a, PatchObject) and a.ref.resource.kind == "Node"]
    return [p.ref.name.removeprefix("node-") for p in patches if p.patch.get("spec", {}).get("taints") == []]


def requeue_delay(plan):
    """Return the delay until the step is requeued."""
    return min(a.at for a in plan.actions if isinstance(a, Requeue) and a.step is Step.PROVISION) - NOW


def test_nominating_run_removes_no_taint_and_requeues_the_step():
    """Annotations have the time and the pods' lowest version; nodes with nominated pods wait, too, since a removed taint
    clears other nominations."""
    waiting = a_pod("a", metadata={"resourceVersion": "41"})
    plan = advanced((a_claim("a"), a_claim("b", nominated_ago=WATCH_DELAY)), waiting, a_nominated_pod("b"))

    assert (nominated(plan), untainted(plan)) == (["a"], [])
    notes = [
        a.patch["metadata"]["annotations"] for a in plan.actions if isinstance(a, PatchObject) and "metadata" in a.patch
    ]
    at = NOW.isoformat(timespec="milliseconds")
    assert notes == [{labels.NOMINATED_AT: at, labels.OLDEST_POD_VERSION: "41"}]
    assert requeue_delay(plan) == WATCH_DELAY


def test_taints_are_removed_together_after_the_window():
    """The step is requeued soon, because a concurrent scheduling attempt may clear nominations."""
    claims = (a_claim("a", nominated_ago=WATCH_DELAY), a_claim("b", nominated_ago=WATCH_DELAY + MOMENT))

    plan = advanced(claims, a_nominated_pod("a"), a_nominated_pod("b"))

    assert untainted(plan) == ["a", "b"]
    assert requeue_delay(plan) == RENOMINATION_DELAY


def test_nodes_of_the_pods_retried_first_lose_the_taint_last():
    """Versions are numbers. What a pod loses on a node with the taint, no other pod can take."""
    versions = {"a": 7, "b": 100, "c": 20, "d": 9, "e": 30, "f": 8}
    claims = tuple(a_claim(name, WATCH_DELAY, **{labels.OLDEST_POD_VERSION: str(v)}) for name, v in versions.items())

    plan = advanced(claims, *map(a_nominated_pod, versions))

    waves = {
        chain.actions[0].ref.name: chain.wave for chain in plan.chains if isinstance(chain.actions[0], PatchObject)
    }
    assert [name for name, wave in waves.items() if wave] == ["node-a", "node-c", "node-d", "node-f"]
    assert untainted(plan) == list(versions)


def test_node_without_taint_expects_planned_pods_nominated_or_not():
    """Pods that lose their nomination are nominated again; bound and deleted ones are no longer expected."""
    notes = {labels.NOMINATED_AT: (NOW - MAX_WATCH_DELAY).isoformat()}
    remembered = ",".join(f"default/{name}:uid-{name}" for name in ("a", "b", "c", "gone"))
    claim = a_launched_claim("a", metadata={"annotations": {labels.PLANNED_PODS: remembered, **notes}})
    bound = a_pod("c", spec={"nodeName": "node-elsewhere"})

    plan = advanced((claim,), a_nominated_pod("a"), a_pod("b", status={"nominatedNodeName": "node-a"}), bound)

    assert untainted(plan) == ["a"]
    (again,) = [action for action in plan.chains[-1].actions if isinstance(action, RenominatePods)]
    assert [(n.node, [pod.name for pod in n.pods]) for n in again.nominations] == [("node-a", ["a", "b"])]


def test_node_keeps_its_taint_until_its_own_window_ends():
    """The cause of the run does not matter."""
    plan = advanced((a_claim("a", nominated_ago=WATCH_DELAY - MOMENT),), a_nominated_pod("a"))

    assert untainted(plan) == []
    assert requeue_delay(plan) == MOMENT


def test_lost_nominations_are_written_again_before_the_taint_goes():
    """The window starts again."""
    plan = advanced((a_claim("a", nominated_ago=WATCH_DELAY),), a_pod("a"))

    assert (nominated(plan), untainted(plan)) == (["a"], [])
    assert requeue_delay(plan) == WATCH_DELAY


@pytest.mark.parametrize("bound", ["since its nominations", "since it joined"])
def test_window_has_a_maximum(bound):
    """The taint is removed even if nominations are missing; a node whose pods were just nominated keeps its taint."""
    late = a_claim("late", nominated_ago=MAX_WATCH_DELAY if bound == "since its nominations" else WATCH_DELAY)
    nodes = {"late": a_tainted_node("late", joined=TAINT_TIMEOUT)} if bound == "since it joined" else {}

    plan = advanced((late, a_claim("news")), a_pod("late"), a_pod("news"), **nodes)

    assert (nominated(plan), untainted(plan)) == (["late", "news"], ["late"])


@pytest.mark.parametrize("other", ["not ready", "not there"])
def test_nodes_that_are_ready_wait_for_those_launched_with_them(other):
    """Until then, any change of a node makes kube-scheduler retry pending pods and clear nominations."""
    claims = (a_claim("a"), a_claim("b"))
    starting = (a_tainted_node("b", ready=False),) if other == "not ready" else ()

    def ready_for(time):
        node = a_tainted_node("a", ready_for=time)
        snapshot = a_snapshot(claims=claims, nodes=(node, *starting), pods=(a_pod("a"), a_pod("b")))
        return reconcile_nodeclaims(snapshot, LifecycleOptions(max_nominations=100))

    assert nominated(ready_for(BATCH_WINDOW - timedelta(seconds=1))) == []
    assert untainted(ready_for(BATCH_WINDOW - timedelta(seconds=1))) == []
    assert nominated(ready_for(BATCH_WINDOW)) == ["a"]


def test_nodes_do_not_wait_for_a_later_launch():
    """Otherwise constantly launched nodes would wait for each other without end."""
    later = a_launched_claim("b", metadata={**with_planned_pods("b"), "creationTimestamp": stamp(NOW)})
    snapshot = a_snapshot(claims=(a_claim("a"), later), nodes=(a_tainted_node("a"),), pods=(a_pod("a"), a_pod("b")))

    assert nominated(reconcile_nodeclaims(snapshot, LifecycleOptions(max_nominations=100))) == ["a"]


@pytest.mark.parametrize(
    ("other", "node", "waits"),
    [
        (a_launched_claim("b", metadata=with_planned_pods("b")), None, True),
        (a_launched_claim("b", metadata=with_planned_pods("b"), deleting=NOW), None, False),
        (a_launched_claim("b", provider_id="", true=(), metadata=with_planned_pods("b")), None, False),
        (a_launched_claim("b", metadata=with_planned_pods("b")), a_tainted_node("b", ready=False), True),
        (
            a_launched_claim("b", metadata=with_planned_pods("b")),
            a_tainted_node("b", ready=False, joined=TAINT_TIMEOUT),
            False,
        ),
        (
            a_launched_claim("b", metadata=with_planned_pods("b"), true=("Launched", "Registered")),
            a_tainted_node("b", ready=False),
            False,
        ),
        (launched_after("b", timedelta(seconds=2)), None, True),
        (launched_after("b", timedelta(seconds=3)), None, False),
    ],
    ids=[
        "node-is-expected",
        "deleted",
        "not-launched",
        "node-is-starting",
        "node-is-late",
        "registered",
        "same-launch",
        "later-launch",
    ],
)
def test_ready_node_waits_only_for_nodes_that_may_join_with_it(other, node, waits):
    """It waits for NodeClaims of the same launch that have an instance and may still have the taint."""
    snapshot = a_snapshot(
        claims=(a_claim("a"), other),
        nodes=(a_tainted_node("a"), *([node] if node else [])),
        pods=(a_pod("a"), a_pod("b")),
    )
    plan = reconcile_nodeclaims(snapshot, LifecycleOptions(max_nominations=100))
    assert ("a" not in nominated(plan)) is waits


def test_latest_ready_node_decides_which_launches_are_waited_for():
    """Nodes of two launches are ready: a node of the second launch may still join."""
    claims = (a_claim("a"), launched_after("b", timedelta(seconds=30)), launched_after("c", timedelta(seconds=30)))
    snapshot = a_snapshot(
        claims=claims, nodes=(a_tainted_node("a"), a_tainted_node("b")), pods=(a_pod("a"), a_pod("b"), a_pod("c"))
    )
    assert nominated(reconcile_nodeclaims(snapshot, LifecycleOptions(max_nominations=100))) == []


def test_batch_window_starts_with_the_first_ready_node_with_pods():
    """A later one does not extend it, and a node without pending pods does not start it."""
    claims = (a_claim("a"), a_claim("b"), a_claim("c"))
    nodes = (a_tainted_node("a", ready_for=BATCH_WINDOW), a_tainted_node("b"))

    def nominated_with(*pods):
        snapshot = a_snapshot(claims=claims, nodes=nodes, pods=pods)
        return nominated(reconcile_nodeclaims(snapshot, LifecycleOptions(max_nominations=100)))

    assert nominated_with(a_pod("a"), a_pod("b"), a_pod("c")) == ["a", "b"]
    assert nominated_with(a_pod("b"), a_pod("c")) == []


def test_batch_window_starts_now_without_a_transition_time():
    """`lastTransitionTime` is optional."""
    node = a_node(
        "a",
        registered=False,
        metadata={"creationTimestamp": stamp(ago(seconds=12))},
        status={"conditions": [condition("Ready", lastTransitionTime=None)]},
    )
    snapshot = a_snapshot(claims=(a_claim("a"), a_claim("b")), nodes=(node,), pods=(a_pod("a"), a_pod("b")))
    plan = reconcile_nodeclaims(snapshot, LifecycleOptions(max_nominations=100))

    assert nominated(plan) == []
    assert requeue_delay(plan) <= BATCH_WINDOW


def test_enough_planned_pods_make_nodes_wait_for_each_other():
    """The threshold counts the pods of all joining nodes."""
    slow = a_tainted_node("b", ready=False)

    plan = advanced((a_claim("a"), a_claim("b")), a_pod("a"), a_pod("b"), batch_min_pods=2, b=slow)

    assert (nominated(plan), untainted(plan)) == ([], [])


def test_few_pods_are_not_worth_waiting_for():
    """One run nominates them and removes the taint, while the node of another claim has yet to join."""
    slow = a_tainted_node("b", ready=False)

    plan = advanced((a_claim("a"), a_claim("b")), a_pod("a"), a_pod("b"), batch_min_pods=3, b=slow)

    assert (nominated(plan), untainted(plan)) == (["a"], ["a"])


def test_crash_before_the_time_was_written_delays_no_pod():
    """The pods are nominated, but the NodeClaim has no time, so the next run removes the taint."""
    assert untainted(advanced((a_claim("a"),), a_nominated_pod("a"))) == ["a"]


def test_nominations_are_removed_when_the_claim_is_deleted_unregistered():
    """The NodeClaim does not have the node's name yet, but its provider id."""
    claim = a_launched_claim("a", metadata={**with_planned_pods("a"), "deletionTimestamp": stamp(ago(seconds=1))})

    assert [a.node for a in advanced((claim,), a_nominated_pod("a")).actions if isinstance(a, NominatePods)] == [""]
