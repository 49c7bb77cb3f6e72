"""Which pods are news: those that have just become unschedulable, once."""

from datetime import datetime, timezone

import msgspec
import pytest

from infra.forwarder.news import Cause
from infra.forwarder.pods import Condition, Metadata, Pod, PodStatus, Waiting

EIGHT, NINE = (datetime(2026, 11, 21, hour, tzinfo=timezone.utc) for hour in (8, 9))


def a_pod(uid, *, reason="Unschedulable", created=NINE):
    conditions = (Condition("PodScheduled", "False", reason),) if reason else ()
    return Pod(Metadata(uid=uid, resource_version="7", creation_timestamp=created), PodStatus(conditions))


def listed(before, *pods):
    """What is known after a list of these pods, and which of them are news."""
    after = before.fresh()
    news = [*after.take_page(pods, before), *after.ended(before, "8")]
    assert {item.cause for item in news} <= {Cause.POD_UNSCHEDULABLE}
    return after, [item.name for item in news]


@pytest.fixture
def waiting():
    return Waiting()


def test_a_pod_is_news_when_the_scheduler_gives_up_on_it_not_before(waiting):
    """Most pods find a place on their own within milliseconds."""
    assert waiting.apply("ADDED", a_pod("a", reason="")) is None
    assert waiting.apply("MODIFIED", a_pod("a")) == (Cause.POD_UNSCHEDULABLE, "a", "7")
    assert waiting.apply("MODIFIED", a_pod("a")) is None


def test_a_gated_pod_is_no_news(waiting):
    """Its author holds it back; a node would not help."""
    assert waiting.apply("ADDED", a_pod("a", reason="SchedulingGated")) is None


def test_a_list_after_an_outage_tells_only_what_is_new(waiting):
    """410 and restarts of the watch must not wake provision for pods it knows of."""
    waiting, news = listed(waiting, a_pod("a"), a_pod("b", reason=""))
    assert news == ["a"]
    waiting, news = listed(waiting, a_pod("a"), a_pod("b", reason=""))
    assert news == []
    waiting, news = listed(waiting, a_pod("a"), a_pod("b"))
    assert news == ["b"]


def test_a_pod_that_got_a_node_is_forgotten(waiting):
    """It leaves the watched set as DELETED; if it came back, it would be news again."""
    waiting, _ = listed(waiting, a_pod("a"), a_pod("b", created=EIGHT), a_pod("c", reason=""))
    waiting.apply("DELETED", a_pod("b"))

    assert waiting.summary() == (2, 1, NINE)
    assert waiting.apply("ADDED", a_pod("b")) is not None


def test_the_summary_names_the_oldest_unschedulable_pod(waiting):
    """The latency that a person feels starts there."""
    waiting, _ = listed(waiting, a_pod("a"), a_pod("b", created=EIGHT), a_pod("c", reason="", created=None))

    assert waiting.summary() == (3, 2, EIGHT)


def test_nothing_waiting_and_a_pod_of_unknown_age_have_no_age(waiting):
    """No date is better than a made-up one."""
    assert waiting.summary() == (0, 0, None)
    waiting.apply("ADDED", a_pod("a", created=None))

    assert waiting.summary() == (1, 1, None)


def test_pods_beyond_the_most_that_are_remembered_still_wake_provision():
    """Memory is bounded: what does not fit is told each time it is seen, and listed anew once there is room."""
    waiting, news = listed(Waiting(most=4), *(a_pod(str(i)) for i in range(6)))

    assert news == ["0", "1", "2", "3", "4", "5"]
    assert (waiting.summary(), waiting.wants_list) == ((4, 4, NINE), False)
    assert waiting.apply("MODIFIED", a_pod("5")) is not None
    for uid in "012":
        waiting.apply("DELETED", a_pod(uid))
    assert waiting.wants_list
    waiting, news = listed(waiting, *(a_pod(uid) for uid in "345"))
    assert (news, waiting.wants_list) == (["4", "5"], False)


def test_a_pod_as_the_api_server_sends_it_decodes_to_the_few_fields_we_read():
    """Everything else is skipped, not stored."""
    text = b"""{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web-1","uid":"u","resourceVersion":"7",
      "creationTimestamp":"2026-11-21T09:00:00Z","labels":{"app":"web"}},"spec":{"containers":[{"name":"c"}]},
      "status":{"phase":"Pending","conditions":[{"type":"PodScheduled","status":"False","reason":"Unschedulable",
      "lastProbeTime":null,"lastTransitionTime":"2026-11-21T09:00:00Z","message":"0/0 nodes are available"}]}}"""
    pod = msgspec.json.decode(text, type=Pod)

    assert pod.is_unschedulable
    assert pod.metadata == Metadata(uid="u", resource_version="7", creation_timestamp=NINE)
