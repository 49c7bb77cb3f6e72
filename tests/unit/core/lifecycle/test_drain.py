"""Drain: which pods are evicted now, which later, and which are deleted despite their protection."""

from datetime import timedelta

import pytest

from journeyman.core.api import labels
from journeyman.core.lifecycle.drain import (
    FORCEFUL,
    REQUEUE_MARGIN,
    TerminationIntervals,
    decide_drain,
    eviction_chains,
    eviction_reason,
    forced_deletion_chains,
    largest_first,
    requeue_for_drain,
    requeue_provisioning,
)
from journeyman.core.plan import DeletePod, EvictPod
from tests.helpers.builders import NOW, a_claim, a_node, a_pod, ago, condition, stamp

DAEMON = {"ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d"}]}
MIRROR = {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "n"}]}
CRITICAL = {"priorityClassName": "system-node-critical"}
PROTECTED = {"annotations": {labels.DO_NOT_DISRUPT: "true"}}


def pod(name, **changes):
    return a_pod(name, node="n", **changes)


def names(pods):
    return [p.metadata.name for p in pods]


def test_groups_of_pods_are_evicted_in_order():
    """The order is pods, daemons, critical pods, critical daemons: only the first present group is evicted."""
    groups = [
        pod("plain"),
        pod("daemon", metadata=DAEMON),
        pod("critical", spec=CRITICAL),
        pod("critical-daemon", metadata=DAEMON, spec=CRITICAL),
    ]
    order = []
    while groups:
        decided = decide_drain(groups, NOW, None)
        order.append(names(decided.evict))
        groups = [p for p in groups if p not in decided.evict]
    assert order == [["plain"], ["daemon"], ["critical"], ["critical-daemon"]]


def test_consolidation_evicts_large_pods_before_small_ones():
    """Those of the largest class of all nodes come first; later classes wait ten seconds each for pods that cannot be evicted."""
    decided = decide_drain([pod("half", cpu="500m"), pod("two", cpu="2"), pod("large", memory="16Gi")], NOW, None)

    def evicted(classes, seconds=0):
        return names(largest_first(decided, classes, timedelta(seconds=seconds)).evict)

    assert evicted((2, 1, -1)) == ["large"]
    assert evicted((1, -1)) == ["two"]
    assert evicted((3, 2, 1, -1)) == []
    assert [evicted((2, 1, -1), seconds) for seconds in (9, 10, 20)] == [
        ["large"],
        ["large", "two"],
        ["large", "two", "half"],
    ]
    assert largest_first(decided, (3,), timedelta()).protected == ()


def test_terminating_pod_blocks_the_next_group():
    """The next group waits for it, and it is not evicted again."""
    leaving = pod("leaving", metadata={"deletionTimestamp": stamp(NOW + timedelta(seconds=10))})
    decided = decide_drain([leaving, pod("daemon", metadata=DAEMON)], NOW, None)
    assert decided.evict == ()
    assert names(decided.remaining) == ["daemon", "leaving"]


@pytest.mark.parametrize(
    "ignored",
    [
        pod("done", status={"phase": "Succeeded"}),
        pod("mirror", metadata=MIRROR),
        pod("tolerant", spec={"tolerations": [{"operator": "Exists"}]}),
        pod("stuck", metadata={"deletionTimestamp": stamp(ago(seconds=61))}),
    ],
)
def test_some_pods_are_not_waited_for(ignored):
    """These are completed and mirror pods, pods that tolerate the taint, and pods stuck terminating for a minute."""
    assert decide_drain([ignored], NOW, None).remaining == ()


EQUAL = {"key": labels.DISRUPTED_TAINT, "operator": "Equal", "effect": "NoSchedule"}
UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("spec", "evicted"),
    [({"tolerations": [EQUAL]}, []), ({"tolerations": [UNSCHEDULABLE]}, ["p"]), ({}, ["p"])],
    ids=["tolerates the disrupted taint", "tolerates a cordon", "without an owner"],
)
def test_pods_are_evicted_unless_they_tolerate_the_disrupted_taint(spec, evicted):
    """A cordon has another taint; a pod without an owner is evicted, too."""
    decided = decide_drain([pod("p", spec=spec)], NOW, None)
    assert names(decided.evict) == names(decided.remaining) == evicted


def test_pod_whose_eviction_was_refused_is_forced_once_it_is_due():
    """Each run decides again; the drain is over only once the pod is gone."""
    end = NOW + timedelta(seconds=60)
    refused = pod("p", spec={"terminationGracePeriodSeconds": 30})
    assert names(decide_drain([refused], NOW, end).evict) == ["p"]
    later = decide_drain([refused], NOW + timedelta(seconds=31), end)
    assert (names(later.evict), [s for _, s in later.force]) == ([], [29])
    leaving = pod("p", metadata={"deletionTimestamp": stamp(end)}, spec={"terminationGracePeriodSeconds": 30})
    assert names(decide_drain([leaving], NOW + timedelta(seconds=45), end).remaining) == ["p"]
    assert decide_drain([], NOW + timedelta(seconds=61), end).remaining == ()


def test_protected_pod_blocks_the_drain_and_is_named():
    """Without a terminationGracePeriod it blocks without end; the Event names it."""
    decided = decide_drain([pod("precious", metadata=PROTECTED)], NOW, None)
    assert decided.evict == ()
    assert names(decided.protected) == ["precious"]
    assert decided.next_force is None


def test_near_the_end_pods_are_deleted_whatever_protects_them():
    """Once a pod's grace period would exceed the node's termination time, it is deleted with the remaining time."""
    end = NOW + timedelta(seconds=20)
    slow = pod("slow", metadata=PROTECTED, spec={"terminationGracePeriodSeconds": 60})
    quick = pod("quick", spec={**CRITICAL, "terminationGracePeriodSeconds": 5})

    decided = decide_drain([slow, quick], NOW, end)

    assert [(p.metadata.name, s) for p, s in decided.force] == [("slow", 20)]
    assert decided.next_force == end - timedelta(seconds=5)


def test_after_the_termination_time_pods_get_one_second():
    """With zero, the API server would remove the pod without waiting for the kubelet."""
    assert [s for _, s in decide_drain([pod("late")], NOW, ago(minutes=5)).force] == [1]


def test_a_terminating_pod_is_forced_only_if_it_would_outlive_the_node():
    """Its deletionTimestamp is the end of its grace period."""
    end = NOW + timedelta(seconds=20)
    outlives = pod("outlives", metadata={"deletionTimestamp": stamp(end + timedelta(seconds=1))})
    in_time = pod("in-time", metadata={"deletionTimestamp": stamp(end)})
    assert [p.metadata.name for p, _ in decide_drain([outlives, in_time], NOW, end).force] == ["outlives"]


def test_each_pod_has_a_chain_of_its_own_with_its_uid_as_precondition():
    """A refused eviction delays no other pod, and a later pod of the same name is not evicted."""
    end = NOW + timedelta(seconds=20)
    decided = decide_drain(
        [pod("a", spec={"terminationGracePeriodSeconds": 5}), pod("b", spec={"terminationGracePeriodSeconds": 60})],
        NOW,
        end,
    )
    claim = a_claim("c")
    chains = (*forced_deletion_chains(decided, claim, end), *eviction_chains(decided, a_node("n"), "Empty"))
    assert [type(c.actions[0]) for c in chains] == [DeletePod, EvictPod]
    assert [c.actions[0].ref.uid for c in chains] == ["uid-b", "uid-a"]
    assert [c.events[0].reason for c in chains] == ["Disrupted", "Evicted"]
    assert chains[1].actions[0].node.uid == a_node("n").metadata.uid
    assert (chains[0].actions[0].claim.uid, chains[0].actions[0].deadline) == (claim.metadata.uid, end)


def test_pods_that_are_due_neither_wait_for_earlier_groups_nor_hold_up_later_ones():
    """A protected pod blocks its group's eviction, but not the critical pod that is due; the next group is evicted beside it."""
    end = NOW + timedelta(seconds=20)
    blocking = pod("blocking", metadata=PROTECTED, spec={"terminationGracePeriodSeconds": 5})
    due = pod("due", spec={**CRITICAL, "terminationGracePeriodSeconds": 60})
    decided = decide_drain([blocking, due], NOW, end)
    assert [p.metadata.name for p, _ in decided.force] == ["due"]
    assert decided.evict == ()

    first = pod("first", metadata=PROTECTED, spec={"terminationGracePeriodSeconds": 60})
    later = pod("later", spec={**CRITICAL, "terminationGracePeriodSeconds": 5})
    decided = decide_drain([first, later], NOW, end)
    assert [p.metadata.name for p, _ in decided.force] == ["first"]
    assert names(decided.evict) == ["later"]


@pytest.mark.parametrize("reason", ["Empty", FORCEFUL])
def test_evicted_and_forced_pods_are_counted_by_the_reason_of_the_disruption(reason):
    """Karpenter counts forced deletions since 1.15."""
    end = NOW + timedelta(seconds=20)
    pods = [pod("a", spec={"terminationGracePeriodSeconds": 5}), pod("b", spec={"terminationGracePeriodSeconds": 60})]
    disrupted = [condition("DisruptionReason", reason=reason)] if reason != FORCEFUL else []
    decided, claim = decide_drain(pods, NOW, end), a_claim("c", status={"conditions": disrupted})
    chains = (
        *forced_deletion_chains(decided, claim, end),
        *eviction_chains(decided, a_node("n"), eviction_reason(claim)),
    )
    counted = [(o.name, o.labels) for chain in chains for o in chain.observations]
    assert counted == [("karpenter_pods_drained_total", {"reason": reason})] * 2


@pytest.mark.parametrize(("seconds", "forced"), [(-1, []), (0, []), (1, ["going"])])
def test_terminating_pod_is_forced_only_if_it_outlives_the_node(seconds, forced):
    """A pod that ends exactly at the node's termination time needs no shorter grace period."""
    end = NOW + timedelta(seconds=20)
    going = pod("going", metadata={"deletionTimestamp": stamp(end + timedelta(seconds=seconds))})

    assert [p.metadata.name for p, _ in decide_drain([going], NOW, end).force] == forced


@pytest.mark.parametrize(("seconds", "forced"), [(31, []), (30, []), (29, ["p"])])
def test_pod_is_forced_only_once_its_grace_period_no_longer_fits(seconds, forced):
    """An eviction at exactly that time leaves it its whole grace period."""
    slow = pod("p", spec={"terminationGracePeriodSeconds": 30})
    assert [p.metadata.name for p, _ in decide_drain([slow], NOW, NOW + timedelta(seconds=seconds)).force] == forced


def test_drain_is_checked_again_at_the_first_forced_deletion():
    """The next poll would be later in a long drain."""
    end = NOW + timedelta(seconds=20)
    pods = [pod(f"p{grace}", spec={"terminationGracePeriodSeconds": grace}) for grace in (5, 10)]
    decided = decide_drain(pods, NOW, end)

    assert decided.next_force == NOW + timedelta(seconds=10)
    requeue = requeue_for_drain(decided, "n", NOW, ago(hours=1), TerminationIntervals())
    assert requeue.at == decided.next_force + REQUEUE_MARGIN


def test_drain_is_checked_again_for_a_pod_that_is_forced_a_moment_later():
    """Its grace period fits exactly now; without a requeue it would wait for the next poll."""
    slow = pod("p", spec={"terminationGracePeriodSeconds": 30})
    decided = decide_drain([slow], NOW, NOW + timedelta(seconds=30))

    assert (decided.force, decided.next_force) == ((), NOW)


def test_provisioning_is_requeued_if_any_pod_needs_another_node():
    """Pods of DaemonSets need none."""
    daemon = pod("daemon", metadata=DAEMON)
    assert len(requeue_provisioning([pod("p"), daemon], "n", NOW)) == 1
    assert requeue_provisioning([daemon], "n", NOW) == ()
