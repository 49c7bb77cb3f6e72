"""Kubernetes Events: one per reason and object, repeats counted, floods cut off, nothing raised."""

from datetime import datetime, timedelta, timezone

import msgspec
import pytest

from journeyman.core.api.objects import EVENT, NAMESPACE, NODECLAIM, POD
from journeyman.core.plan import Event, ObjectRef
from journeyman.errors import ForbiddenError
from journeyman.observe.kube_events import WRITES_PER_REASON, EventRecorder, name_of
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.clock import VirtualClock

RAW = msgspec.structs.replace(EVENT, type=dict)
START = datetime(2026, 11, 21, 9, 0, tzinfo=timezone.utc)
SOON = timedelta(seconds=30)


@pytest.fixture
def clock():
    return VirtualClock(START)


@pytest.fixture
def server(clock):
    server = ApiServer(clock)
    server.create(NAMESPACE, {"metadata": {"name": "shop"}})
    return server


@pytest.fixture
def lines():
    return []


@pytest.fixture
def recorder(server, clock, lines):
    return EventRecorder(server, clock, instance="run-1", log=lambda *args, **fields: lines.append((args, fields)))


def a_pod_ref(name="web-1", uid="u-1"):
    return ObjectRef(resource=POD, namespace="shop", name=name, uid=uid)


def an_event(reason="FailedScheduling", message="no type fits", ref=None, type_="Warning"):
    return Event(ref=ref or a_pod_ref(), reason=reason, message=message, type=type_)


def record(recorder, clock, *events):
    for event in events:
        recorder.record(event)
    recorder.flush(until=clock.now() + SOON)


def stored(server):
    return server.list(RAW).items


def test_an_event_names_its_object_and_who_says_it(recorder, server, clock):
    """What `kubectl describe` needs to show it, and Karpenter's reason for those who match on it."""
    record(recorder, clock, an_event())

    (event,) = stored(server)
    assert event["involvedObject"] == {
        "apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "web-1", "uid": "u-1"
    }  # fmt: skip
    assert (event["reason"], event["type"], event["message"]) == ("FailedScheduling", "Warning", "no type fits")
    assert (event["reportingComponent"], event["source"]["component"]) == ("karpenter", "karpenter")
    assert (event["count"], event["firstTimestamp"]) == (1, "2026-11-21T09:00:00Z")


def test_who_says_it_can_be_set(server, clock):
    """Where Karpenter itself runs beside us, say."""
    ours = EventRecorder(server, clock, instance="run-1", log=print, component="journeyman")

    record(ours, clock, an_event())

    (event,) = stored(server)
    assert (event["reportingComponent"], event["source"]["component"]) == ("journeyman", "journeyman")


def test_nothing_is_written_before_the_flush(recorder, server, clock):
    """An explanation never delays the launch that it explains."""
    recorder.record(an_event())

    assert stored(server) == ()


def test_a_cluster_scoped_objects_event_lives_in_default(recorder, server, clock):
    """As the API server demands."""
    record(recorder, clock, an_event(ref=ObjectRef(resource=NODECLAIM, name="default-1", uid="u-2")))

    (event,) = stored(server)
    assert event["metadata"]["namespace"] == "default"
    assert "namespace" not in event["involvedObject"]


def test_a_repeat_within_the_window_writes_nothing(recorder, server, clock):
    """FailedScheduling is told every 5 minutes at most."""
    record(recorder, clock, an_event())
    clock.advance(299)
    record(recorder, clock, an_event(message="still none"))

    (event,) = stored(server)
    assert (event["count"], event["message"]) == (1, "no type fits")


def test_a_repeat_after_the_window_counts_up_and_tells_the_latest(recorder, server, clock):
    """No new Event: the one that is there is patched, whichever sandbox wrote it."""
    record(recorder, clock, an_event())
    clock.advance(300)
    record(recorder, clock, an_event(message="still none"))

    (event,) = stored(server)
    assert (event["count"], event["message"]) == (2, "still none")
    assert (event["firstTimestamp"], event["lastTimestamp"]) == ("2026-11-21T09:00:00Z", "2026-11-21T09:05:00Z")


def test_repeats_in_one_run_are_one_event(recorder, server, clock):
    """The count says how often."""
    record(recorder, clock, an_event(), an_event(), an_event(message="last"))

    (event,) = stored(server)
    assert (event["count"], event["message"]) == (3, "last")


def test_events_that_a_key_tells_apart_are_no_repeats_of_each_other(recorder, server, clock):
    """Two resources of which a node has too little, say; each is told once in its window."""
    ref = ObjectRef(resource=NODECLAIM, name="default-1", uid="u-2")
    lacking = [Event(ref=ref, reason="FailedConsistencyCheck", message=m, key=m) for m in ("too little cpu", "no disk")]
    record(recorder, clock, *lacking)
    record(recorder, clock, *lacking)

    assert sorted((event["message"], event["count"]) for event in stored(server)) == [
        ("no disk", 1),
        ("too little cpu", 1),
    ]


def test_another_incarnation_of_the_object_has_its_own_event(recorder, server, clock):
    """A pod of the same name but another UID is another pod."""
    record(recorder, clock, an_event(), an_event(ref=a_pod_ref(uid="u-2")))

    assert len(stored(server)) == 2


def test_a_flood_of_one_reason_is_cut_off_and_counted(recorder, server, clock, lines):
    """A thousand nominations must not cost a thousand writes; other reasons still get through."""
    nominations = [an_event("Nominated", ref=a_pod_ref(f"web-{i}", f"u-{i}")) for i in range(25)]
    record(recorder, clock, *nominations, an_event())

    reasons = [event["reason"] for event in stored(server)]
    assert reasons.count("Nominated") == WRITES_PER_REASON
    assert "FailedScheduling" in reasons
    assert lines == [(("debug", "events omitted"), {"reasons": {"Nominated": 25 - WRITES_PER_REASON}})]


def test_a_run_that_is_out_of_time_writes_no_event(recorder, server, clock, lines):
    """The deadline belongs to the work."""
    recorder.record(an_event())
    recorder.flush(until=clock.now())

    assert stored(server) == ()
    assert lines[0][1] == {"reasons": {"FailedScheduling": 1}}


def test_a_refused_event_is_a_log_line_not_an_error(clock, lines):
    """An explanation that is lost must not stop the work."""

    class Refusing:
        def create(self, *_args, **_kwargs):
            raise ForbiddenError("events may not be created", status=403)

    record(
        EventRecorder(Refusing(), clock, instance="run-1", log=lambda *a, **f: lines.append((a, f))), clock, an_event()
    )

    assert lines[0][0] == ("debug", "event not recorded")
    assert "Pod shop/web-1" in lines[0][1]["object"]


def test_names_are_the_same_every_time_and_never_too_long():
    """A repeat finds its Event by name, so the name is a function of reason and object alone."""
    ref = a_pod_ref(name="w" * 253)

    assert name_of(ref, "Evicted") == name_of(a_pod_ref(name="w" * 253), "Evicted")
    assert name_of(ref, "Evicted") != name_of(ref, "Nominated")
    assert len(name_of(ref, "Evicted")) <= 253
