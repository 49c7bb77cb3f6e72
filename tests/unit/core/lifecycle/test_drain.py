"""Drain: which pods are evicted now, which later, which are deleted despite their protection, and the Events about it."""

from datetime import timedelta

import pytest

from journeyman.core.api import labels
from journeyman.core.lifecycle.drain import (
    FORCEFUL,
    REQUEUE_MARGIN,
    TerminationIntervals,
    decide_drain,
    do_not_disrupt_events,
    drain_events,
    eviction_chains,
    eviction_reason,
    forced_deletion_chains,
    largest_first,
    requeue_for_drain,
    requeue_provisioning,
    volume_events,
)
from journeyman.core.plan import DeletePod, EvictPod
from tests.helpers.builders import NOW, a_claim, a_node, a_pod, ago, condition, stamp
from tests.helpers.small_clusters import table

DAEMON = {"ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d"}]}
MIRROR = {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "n"}]}
CRITICAL = {"priorityClassName": "system-node-critical"}
PROTECTED = {"annotations": {labels.DO_NOT_DISRUPT: "true"}}
END = NOW + timedelta(seconds=20)


def pod(name="p", *, grace=None, **changes):
    """Return a pod of node `n`, with a terminationGracePeriodSeconds."""
    limits = {"terminationGracePeriodSeconds": grace} if grace is not None else {}
    return a_pod(name, node="n", **{**changes, "spec": {**changes.get("spec", {}), **limits}})


def leaving(name="p", *, until, **changes):
    return pod(name, metadata={"deletionTimestamp": stamp(until)}, **changes)


def names(pods):
    return [p.metadata.name for p in pods]


def forced(pods, now=NOW, end=END):
    """Return the pods that are deleted whatever protects them, with the seconds that they get."""
    return [(p.metadata.name, seconds) for p, seconds in decide_drain(pods, now, end).force]


def test_groups_of_pods_are_evicted_in_order():
    """The order is pods, daemons, critical pods, critical daemons: only the first present group is evicted."""
    critical = pod("critical", spec=CRITICAL)
    groups = [pod("plain"), pod("daemon", metadata=DAEMON), critical, pod("last", metadata=DAEMON, spec=CRITICAL)]
    order = []
    while groups:
        decided = decide_drain(groups, NOW, None)
        order.append(names(decided.evict))
        groups = [p for p in groups if p not in decided.evict]
    assert order == [["plain"], ["daemon"], ["critical"], ["last"]]


@pytest.mark.parametrize(
    ("classes", "seconds", "evicted"),
    [
        ((2, 1, -1), 0, ["large"]),
        ((1, -1), 0, ["two"]),
        ((3, 2, 1, -1), 0, []),
        ((3,), 0, []),
        ((2, 1, -1), 9, ["large"]),
        ((2, 1, -1), 10, ["large", "two"]),
        ((2, 1, -1), 20, ["large", "two", "half"]),
    ],
)
def test_consolidation_evicts_large_pods_before_small_ones(classes, seconds, evicted):
    """Those of the largest class of all nodes come first; later classes wait ten seconds each for pods that cannot be evicted."""
    decided = decide_drain([pod("half", cpu="500m"), pod("two", cpu="2"), pod("large", memory="16Gi")], NOW, None)
    found = largest_first(decided, classes, timedelta(seconds=seconds))
    assert (names(found.evict), found.protected) == (evicted, ())


def test_terminating_pod_blocks_the_next_group():
    """The next group waits for it, and it is not evicted again, nor has it an Event."""
    decided = decide_drain(
        [leaving("leaving", until=NOW + timedelta(seconds=10)), pod("d", metadata=DAEMON)], NOW, None
    )
    assert (decided.evict, names(decided.remaining)) == ((), ["d", "leaving"])
    going = {**PROTECTED, "deletionTimestamp": stamp(ago(seconds=1))}
    assert drain_events(decide_drain([pod(metadata=going)], NOW, None), a_node(), NOW) == ()


def tolerating(key, operator):
    return {"tolerations": [{"key": key, "operator": operator, "effect": "NoSchedule"}]}


@table(
    "each, evicted",
    done=(pod(status={"phase": "Succeeded"}), False),
    mirror=(pod(metadata=MIRROR), False),
    tolerates_everything=(pod(spec={"tolerations": [{"operator": "Exists"}]}), False),
    stuck_terminating_for_a_minute=(leaving(until=ago(seconds=61)), False),
    tolerates_the_disrupted_taint=(pod(spec=tolerating(labels.DISRUPTED_TAINT, "Equal")), False),
    tolerates_a_cordon=(pod(spec=tolerating("node.kubernetes.io/unschedulable", "Exists")), True),
    without_an_owner=(pod(), True),
)
def test_pods_are_evicted_and_waited_for_unless_they_ended_or_tolerate_the_disrupted_taint(each, evicted):
    """A cordon has another taint; a pod without an owner is evicted, too."""
    decided = decide_drain([each], NOW, None)
    assert names(decided.evict) == names(decided.remaining) == ["p"] * evicted


def test_pod_whose_eviction_was_refused_is_forced_once_it_is_due():
    """Each run decides again; the drain is over only once the pod is gone."""
    end, refused = NOW + timedelta(seconds=60), pod(grace=30)
    assert names(decide_drain([refused], NOW, end).evict) == ["p"]
    later = decide_drain([refused], NOW + timedelta(seconds=31), end)
    assert (names(later.evict), [s for _, s in later.force]) == ([], [29])
    assert names(decide_drain([leaving(until=end, grace=30)], NOW + timedelta(seconds=45), end).remaining) == ["p"]
    assert decide_drain([], NOW + timedelta(seconds=61), end).remaining == ()


def test_protected_pod_blocks_the_drain_and_is_named():
    """Without a terminationGracePeriod it blocks without end; the Event names it."""
    decided = decide_drain([pod("precious", metadata=PROTECTED)], NOW, None)
    assert (decided.evict, names(decided.protected), decided.next_force) == ((), ["precious"], None)


BEFORE = leaving(until=END - timedelta(seconds=1))
AT_THE_END, A_MOMENT_LATER = leaving("in-time", until=END), leaving("outlives", until=END + timedelta(seconds=1))


@table(
    "pods, seconds_left, expected",
    whatever_protects_it=([pod("slow", metadata=PROTECTED, grace=60), pod(spec=CRITICAL, grace=5)], 20, [("slow", 20)]),
    with_one_second_after_the_end=([pod("late")], -300, [("late", 1)]),
    unless_they_end_in_time=([A_MOMENT_LATER, AT_THE_END, BEFORE], 20, [("outlives", 20)]),
    beside_a_protected_pod_that_is_not_due=(
        [pod("blocking", metadata=PROTECTED, grace=5), pod("due", spec=CRITICAL, grace=60)], 20, [("due", 20)]
    ),
    not_while_the_grace_period_fits=([pod(grace=30)], 31, []),
    not_at_exactly_that_time=([pod(grace=30)], 30, []),
    once_the_grace_period_no_longer_fits=([pod(grace=30)], 29, [("p", 29)]),
)  # fmt: skip
def test_near_the_end_pods_are_deleted_that_would_outlive_the_node(pods, seconds_left, expected):
    """With the remaining time; with zero, the API server would remove the pod without waiting for the kubelet.

    The deletionTimestamp of a terminating pod is the end of its grace period.
    """
    assert forced(pods, end=NOW + timedelta(seconds=seconds_left)) == expected


def test_pods_that_are_due_neither_wait_for_earlier_groups_nor_hold_up_later_ones():
    """A protected pod blocks its group's eviction, but not the critical pod that is due; the next group is evicted beside it."""
    blocking, due = pod("blocking", metadata=PROTECTED, grace=5), pod("due", spec=CRITICAL, grace=60)
    assert decide_drain([blocking, due], NOW, END).evict == ()
    pods = [pod("first", metadata=PROTECTED, grace=60), pod("later", spec=CRITICAL, grace=5)]
    assert [name for name, _ in forced(pods)] == ["first"]
    assert names(decide_drain(pods, NOW, END).evict) == ["later"]


@pytest.mark.parametrize("reason", ["Empty", FORCEFUL])
def test_each_pod_has_a_chain_of_its_own_with_its_uid_as_precondition(reason):
    """A refused eviction delays no other pod, and a later pod of the same name is not evicted.

    Both are counted by the reason of the disruption; Karpenter counts forced deletions since 1.15.
    """
    disrupted = [condition("DisruptionReason", reason=reason)] if reason != FORCEFUL else []
    decided, claim = (
        decide_drain([pod("a", grace=5), pod("b", grace=60)], NOW, END),
        a_claim("c", status={"conditions": disrupted}),
    )

    deletion, eviction = chains = (
        *forced_deletion_chains(decided, claim, END),
        *eviction_chains(decided, a_node("n"), eviction_reason(claim)),
    )

    assert [type(c.actions[0]) for c in chains] == [DeletePod, EvictPod]
    assert [c.actions[0].ref.uid for c in chains] == ["uid-b", "uid-a"]
    assert [c.events[0].reason for c in chains] == ["Disrupted", "Evicted"]
    assert eviction.actions[0].node.uid == a_node("n").metadata.uid
    assert (deletion.actions[0].claim.uid, deletion.actions[0].deadline) == (claim.metadata.uid, END)
    counted = [(o.name, o.labels) for chain in chains for o in chain.observations]
    assert counted == [("karpenter_pods_drained_total", {"reason": reason})] * 2


def test_drain_is_checked_again_at_the_first_forced_deletion():
    """The next poll would be later in a long drain. One whose grace period fits exactly now is forced a moment later."""
    decided = decide_drain([pod("p5", grace=5), pod("p10", grace=10)], NOW, END)
    assert decided.next_force == NOW + timedelta(seconds=10)
    requeue = requeue_for_drain(decided, "n", NOW, ago(hours=1), TerminationIntervals())
    assert requeue.at == decided.next_force + REQUEUE_MARGIN
    protected = decide_drain([pod(metadata=PROTECTED, grace=60), pod(spec=CRITICAL, grace=5)], NOW, END)
    assert protected.next_force == END - timedelta(seconds=5)
    at_once = decide_drain([pod(grace=30)], NOW, NOW + timedelta(seconds=30))
    assert (at_once.force, at_once.next_force) == ((), NOW)


def test_provisioning_is_requeued_if_any_pod_needs_another_node():
    """Pods of DaemonSets need none."""
    daemon = pod("daemon", metadata=DAEMON)
    assert len(requeue_provisioning([pod("p"), daemon], "n", NOW)) == 1
    assert requeue_provisioning([daemon], "n", NOW) == ()


# -- Events about pods and volumes that block a node's termination


def protected(value, **changes):
    return pod(metadata={"annotations": {labels.DO_NOT_DISRUPT: value}}, **changes)


@pytest.mark.parametrize(
    ("value", "reason", "said"),
    [
        ("soon", "InvalidDoNotDisruptAnnotation", '"soon"'),
        ("-5m", "InvalidDoNotDisruptAnnotation", '"-5m"'),
        ("0s", "InvalidDoNotDisruptAnnotation", '"0s"'),
        ("90m", "DoNotDisruptUntil", stamp(NOW + timedelta(minutes=30))),
        ("30m", "DoNotDisruptGracePeriodElapsed", "has elapsed"),
    ],
)
def test_event_on_a_pod_has_the_effect_of_its_annotation(value, reason, said):
    """The pod has run for an hour; a value that is neither "true" nor a duration has no effect and emits a warning."""
    (event,) = do_not_disrupt_events([protected(value)], NOW)
    assert (event.reason, event.ref.uid) == (reason, "uid-p")
    assert said in event.message
    assert event.type == ("Warning" if reason.startswith("Invalid") else "Normal")


@pytest.mark.parametrize("each", [pod(), protected("true"), protected("1h", status={"startTime": None})])
def test_unlimited_or_missing_protection_has_no_event(each):
    """The cases are no annotation, "true", and a duration whose pod has not started."""
    assert do_not_disrupt_events([each], NOW) == ()


def test_pods_that_block_a_drain_get_events_on_node_and_pod():
    """Only pods of the current group get them; a daemon's annotation matters once the other pods are removed."""
    later = pod("later", metadata={**DAEMON, "annotations": {labels.DO_NOT_DISRUPT: "9h"}})
    on_node, on_pod = drain_events(decide_drain([protected("2h"), later], NOW, None), a_node(), NOW)
    assert (on_node.reason, on_node.ref.resource.kind) == ("FailedDraining", "Node")
    assert (on_pod.reason, on_pod.ref.resource.kind) == ("DoNotDisruptUntil", "Pod")
    assert "2 pods are waiting to be evicted" in on_node.message
    assert "default/p" in on_node.message


def test_five_volumes_are_named_and_the_rest_counted():
    """A node may have dozens."""
    (event,) = volume_events([f"v{n}" for n in range(7)], a_node())
    assert (event.reason, event.type) == ("AwaitingVolumeDetachment", "Normal")
    assert event.message == "Awaiting deletion of bound volumeattachments (v0, v1, v2, v3, v4 and 2 other(s))"
