"""Kubernetes Events: one per reason and object with a count of repeats, limited in number, and without exceptions."""

from collections import Counter
from datetime import datetime, timedelta, timezone

import msgspec
import pytest

from journeyman.core.api.objects import EVENT, NAMESPACE, NODE, NODECLAIM, POD
from journeyman.core.plan import Event, ObjectRef
from journeyman.errors import ForbiddenError
from journeyman.observe.kube_events import RATE_LIMITS, WRITES_PER_RUN, EventRecorder, name_of
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


def test_event_has_object_and_component(recorder, server, clock):
    """`kubectl describe` and alerts on Karpenter's reasons need them."""
    record(recorder, clock, an_event())

    (event,) = stored(server)
    assert event["involvedObject"] == {
        "apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "web-1", "uid": "u-1"
    }  # fmt: skip
    assert (event["reason"], event["type"], event["message"]) == ("FailedScheduling", "Warning", "no type fits")
    assert (event["reportingComponent"], event["source"]["component"]) == ("karpenter", "karpenter")
    assert (event["count"], event["firstTimestamp"]) == (1, "2026-11-21T09:00:00Z")


def test_event_component_is_configurable(server, clock):
    """A cluster in which Karpenter runs, too, needs another component."""
    ours = EventRecorder(server, clock, instance="run-1", log=print, component="journeyman")

    record(ours, clock, an_event())

    (event,) = stored(server)
    assert (event["reportingComponent"], event["source"]["component"]) == ("journeyman", "journeyman")


def test_no_event_is_written_before_the_flush(recorder, server, clock):
    """Events do not delay a launch."""
    recorder.record(an_event())

    assert stored(server) == ()


def test_event_of_a_cluster_scoped_object_is_in_default(recorder, server, clock):
    """The API server requires it."""
    record(recorder, clock, an_event(ref=ObjectRef(resource=NODECLAIM, name="default-1", uid="u-2")))

    (event,) = stored(server)
    assert event["metadata"]["namespace"] == "default"
    assert "namespace" not in event["involvedObject"]


def test_repeat_within_the_dedupe_window_writes_nothing(recorder, server, clock):
    """FailedScheduling is written every 5 minutes at most."""
    record(recorder, clock, an_event())
    clock.advance(299)
    record(recorder, clock, an_event(message="still none"))

    (event,) = stored(server)
    assert (event["count"], event["message"]) == (1, "no type fits")


def test_repeat_after_the_dedupe_window_increments_the_count(recorder, server, clock):
    """The existing Event is patched, whichever function wrote it."""
    record(recorder, clock, an_event())
    clock.advance(300)
    record(recorder, clock, an_event(message="still none"))

    (event,) = stored(server)
    assert (event["count"], event["message"]) == (2, "still none")
    assert (event["firstTimestamp"], event["lastTimestamp"]) == ("2026-11-21T09:00:00Z", "2026-11-21T09:05:00Z")


def test_repeats_in_one_run_are_one_event(recorder, server, clock):
    """The Event has their count."""
    record(recorder, clock, an_event(), an_event(), an_event(message="last"))

    (event,) = stored(server)
    assert (event["count"], event["message"]) == (3, "last")


def test_events_with_different_keys_are_not_repeats(recorder, server, clock):
    """For example, a consistency check reports two resources."""
    ref = ObjectRef(resource=NODECLAIM, name="default-1", uid="u-2")
    lacking = [Event(ref=ref, reason="FailedConsistencyCheck", message=m, key=m) for m in ("too little cpu", "no disk")]
    record(recorder, clock, *lacking)
    record(recorder, clock, *lacking)

    assert sorted((event["message"], event["count"]) for event in stored(server)) == [
        ("no disk", 1),
        ("too little cpu", 1),
    ]


def test_object_with_another_uid_has_its_own_event(recorder, server, clock):
    """A pod of the same name is another pod."""
    record(recorder, clock, an_event(), an_event(ref=a_pod_ref(uid="u-2")))

    assert len(stored(server)) == 2


class CountedCalls:
    """An API server that counts the calls of each method, and refuses those in `refused`."""

    def __init__(self, server, refused=()):
        self._server = server
        self._refused = refused
        self.calls = Counter()

    def __getattr__(self, verb):
        def call(*args, **kwargs):
            self.calls[verb] += 1
            if verb in self._refused:
                raise ForbiddenError(f"events may not be {verb}ed", status=403)
            return getattr(self._server, verb)(*args, **kwargs)

        return call


def blocked_nodes(number, message="Pdb prevents pod evictions"):
    refs = (ObjectRef(resource=NODE, name=f"node-{i:04}", uid=f"u-{i}") for i in range(number))
    return [an_event("DisruptionBlocked", message, ref=ref, type_="Normal") for ref in refs]


def test_each_node_of_a_fleet_has_its_event(recorder, server, clock):
    """Karpenter writes one per node, too: it deduplicates this reason, and does not limit its rate."""
    record(recorder, clock, *blocked_nodes(300))

    assert len({event["involvedObject"]["name"] for event in stored(server)}) == 300


def test_repeats_of_a_fleet_cost_one_list_and_no_write(recorder, server, clock):
    """Otherwise each run reads every Event by itself."""
    record(recorder, clock, *blocked_nodes(300))
    counted = CountedCalls(server)

    record(EventRecorder(counted, clock, instance="run-2", log=print), clock, *blocked_nodes(300))

    assert counted.calls == {"list": 1}


def test_changed_events_of_a_fleet_are_patched_after_the_window(recorder, server, clock):
    """Those of other components are not ours to read."""
    record(recorder, clock, *blocked_nodes(300))
    clock.advance(120)
    record(recorder, clock, *blocked_nodes(300, "Node isn't initialized"))

    assert {(event["count"], event["message"]) for event in stored(server)} == {(2, "Node isn't initialized")}


def test_events_over_the_limit_of_a_run_follow_in_the_next_run(recorder, server, clock, lines):
    """They are counted meanwhile; the next run finds the others written."""
    events = blocked_nodes(WRITES_PER_RUN + 20)
    for event in events:
        recorder.record(event)
    omitted = recorder.flush(until=clock.now() + SOON)

    assert [(o.name, o.value, o.labels) for o in omitted] == [
        ("journeyman_events_omitted_total", 20.0, {"reason": "DisruptionBlocked"})
    ]
    assert len(stored(server)) == WRITES_PER_RUN

    record(recorder, clock, *events)

    assert len(stored(server)) == WRITES_PER_RUN + 20


def test_first_events_are_written_before_repeats(recorder, server, clock):
    """A repeat says less: its Event exists."""
    old, new = blocked_nodes(WRITES_PER_RUN), blocked_nodes(WRITES_PER_RUN + 1)
    record(recorder, clock, *old)
    clock.advance(120)
    record(recorder, clock, *new)

    assert len(stored(server)) == WRITES_PER_RUN + 1


def test_first_events_are_written_without_the_permission_to_list(server, clock, lines):
    """The chart of an earlier version lacks it: repeats are then not counted."""
    counted = CountedCalls(server, refused=("list",))
    recorder = EventRecorder(counted, clock, instance="run", log=lambda *a, **f: lines.append(a))
    record(recorder, clock, *blocked_nodes(12))
    clock.advance(120)
    record(recorder, clock, *blocked_nodes(12))

    assert [event["count"] for event in stored(server)] == [1] * 12
    assert lines[0][0] == "warning"
    assert "update the roles of the chart" in lines[0][1]


def test_events_of_a_rate_limited_reason_are_limited_and_counted(recorder, server, clock, lines):
    """Other reasons are still written."""
    nominations = [an_event("Nominated", ref=a_pod_ref(f"web-{i}", f"u-{i}")) for i in range(25)]
    record(recorder, clock, *nominations, an_event())

    reasons = [event["reason"] for event in stored(server)]
    assert reasons.count("Nominated") == RATE_LIMITS["Nominated"]
    assert "FailedScheduling" in reasons
    assert lines == [(("debug", "events omitted"), {"reasons": {"Nominated": 25 - RATE_LIMITS["Nominated"]}})]


def test_no_event_is_written_past_the_deadline(recorder, server, clock, lines):
    """The remaining time is reserved for the run's end."""
    recorder.record(an_event())
    recorder.flush(until=clock.now())

    assert stored(server) == ()
    assert lines[0][1] == {"reasons": {"FailedScheduling": 1}}


def test_rejected_event_is_a_log_line(clock, lines):
    """The rejection must not stop the run."""

    class Refusing:
        def create_each(self, _resource, bodies):
            return [ForbiddenError("events may not be created", status=403) for _ in bodies]

    record(
        EventRecorder(Refusing(), clock, instance="run-1", log=lambda *a, **f: lines.append((a, f))), clock, an_event()
    )

    assert lines[0][0] == ("debug", "event not recorded")
    assert "Pod shop/web-1" in lines[0][1]["object"]


def test_event_name_is_deterministic_and_bounded():
    """A repeat finds its Event by name."""
    ref = a_pod_ref(name="w" * 253)

    assert name_of(ref, "Evicted") == name_of(a_pod_ref(name="w" * 253), "Evicted")
    assert name_of(ref, "Evicted") != name_of(ref, "Nominated")
    assert len(name_of(ref, "Evicted")) <= 253
