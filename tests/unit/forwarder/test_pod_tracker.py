"""Pods send one notification when they become unschedulable."""

from datetime import datetime, timezone

import msgspec
import pytest

from infra.forwarder.notifications import NotificationCause
from infra.forwarder.trackers import PodTracker
from infra.forwarder.watched_objects import PendingPod, PendingPodMetadata, PendingPodStatus, PodCondition

EIGHT, NINE = (datetime(2026, 11, 21, hour, tzinfo=timezone.utc) for hour in (8, 9))


def a_pod(uid, *, reason="Unschedulable", created=NINE):
    conditions = (PodCondition("PodScheduled", "False", reason),) if reason else ()
    return PendingPod(
        PendingPodMetadata(uid=uid, resource_version="7", creation_timestamp=created), PendingPodStatus(conditions)
    )


def listed(before, *pods):
    """Return the tracker after a list of these pods, and the names of its notifications."""
    after = before.fresh()
    found = [*after.add_page(pods, before), *after.finish_list(before, "8")]
    assert {item.cause for item in found} <= {NotificationCause.POD_UNSCHEDULABLE}
    return after, [item.name for item in found]


@pytest.fixture
def tracker():
    return PodTracker()


def test_pod_notifies_once_kube_scheduler_finds_no_node(tracker):
    """Most pods are bound within milliseconds."""
    assert tracker.apply("ADDED", a_pod("a", reason="")) is None
    assert tracker.apply("MODIFIED", a_pod("a")) == (NotificationCause.POD_UNSCHEDULABLE, "a", "7")
    assert tracker.apply("MODIFIED", a_pod("a")) is None


def test_pod_with_scheduling_gates_sends_no_notification(tracker):
    """kube-scheduler would not bind it to a new node."""
    assert tracker.apply("ADDED", a_pod("a", reason="SchedulingGated")) is None


def test_list_after_an_outage_notifies_of_new_pods_only(tracker):
    """410 and new watches must not requeue provision for known pods."""
    tracker, notified = listed(tracker, a_pod("a"), a_pod("b", reason=""))
    assert notified == ["a"]
    tracker, notified = listed(tracker, a_pod("a"), a_pod("b", reason=""))
    assert notified == []
    tracker, notified = listed(tracker, a_pod("a"), a_pod("b"))
    assert notified == ["b"]


def test_bound_pod_is_no_longer_tracked(tracker):
    """The watch reports it as DELETED; a pod that comes back notifies again."""
    tracker, _ = listed(tracker, a_pod("a"), a_pod("b", created=EIGHT), a_pod("c", reason=""))
    tracker.apply("DELETED", a_pod("b"))

    assert tracker.summary() == (2, 1, NINE)
    assert tracker.apply("ADDED", a_pod("b")) is not None


def test_summary_has_the_oldest_unschedulable_pod(tracker):
    """Provisioning latency is measured from its creation."""
    tracker, _ = listed(tracker, a_pod("a"), a_pod("b", created=EIGHT), a_pod("c", reason="", created=None))

    assert tracker.summary() == (3, 2, EIGHT)


def test_summary_without_a_known_creation_time_has_no_age(tracker):
    """The cases are no pods, and a pod without a creation time."""
    assert tracker.summary() == (0, 0, None)
    tracker.apply("ADDED", a_pod("a", created=None))

    assert tracker.summary() == (1, 1, None)


def test_pods_beyond_the_limit_still_notify():
    """Memory is bounded: they notify at each change, and are listed again once half of the tracked pods are deleted."""
    tracker, notified = listed(PodTracker(max_pods=4), *(a_pod(str(i)) for i in range(6)))

    assert notified == ["0", "1", "2", "3", "4", "5"]
    assert (tracker.summary(), tracker.needs_list) == ((4, 4, NINE), False)
    assert tracker.apply("MODIFIED", a_pod("5")) is not None
    for uid in "012":
        tracker.apply("DELETED", a_pod(uid))
    assert tracker.needs_list
    tracker, notified = listed(tracker, *(a_pod(uid) for uid in "345"))
    assert (notified, tracker.needs_list) == (["4", "5"], False)


def test_pod_decodes_to_the_fields_that_are_read():
    """The decoder skips all other fields."""
    text = b"""{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web-1","uid":"u","resourceVersion":"7",
      "creationTimestamp":"2026-11-21T09:00:00Z","labels":{"app":"web"}},"spec":{"containers":[{"name":"c"}]},
      "status":{"phase":"Pending","conditions":[{"type":"PodScheduled","status":"False","reason":"Unschedulable",
      "lastProbeTime":null,"lastTransitionTime":"2026-11-21T09:00:00Z","message":"0/0 nodes are available"}]}}"""
    pod = msgspec.json.decode(text, type=PendingPod)

    assert pod.is_unschedulable
    assert pod.metadata == PendingPodMetadata(uid="u", resource_version="7", creation_timestamp=NINE)
