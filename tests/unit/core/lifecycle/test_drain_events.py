"""Events about pods and volumes that block a node's termination."""

from datetime import timedelta

import pytest

from journeyman.core.api import labels
from journeyman.core.lifecycle.drain import decide_drain, do_not_disrupt_events, drain_events, volume_events
from tests.helpers.builders import NOW, a_node, a_pod, ago, stamp


def protected(value, **changes):
    return a_pod("p", node="n", metadata={"annotations": {labels.DO_NOT_DISRUPT: value}}, **changes)


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


@pytest.mark.parametrize("pod", [a_pod("p", node="n"), protected("true"), protected("1h", status={"startTime": None})])
def test_unlimited_or_missing_protection_has_no_event(pod):
    """The cases are no annotation, "true", and a duration whose pod has not started."""
    assert do_not_disrupt_events([pod], NOW) == ()


def test_pods_that_block_a_drain_get_events_on_node_and_pod():
    """Only pods of the current group get them; a daemon's annotation matters once the other pods are removed."""
    daemon = {"ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d"}]}
    later = a_pod("later", node="n", metadata={**daemon, "annotations": {labels.DO_NOT_DISRUPT: "9h"}})
    events = drain_events(decide_drain([protected("2h"), later], NOW, None), a_node(), NOW)
    assert [(e.reason, e.ref.resource.kind) for e in events] == [
        ("FailedDraining", "Node"),
        ("DoNotDisruptUntil", "Pod"),
    ]
    assert "2 pods are waiting to be evicted" in events[0].message
    assert "default/p" in events[0].message


def test_five_volumes_are_named_and_the_rest_counted():
    """A node may have dozens."""
    (event,) = volume_events([f"v{n}" for n in range(7)], a_node())
    assert (event.reason, event.type) == ("AwaitingVolumeDetachment", "Normal")
    assert event.message == "Awaiting deletion of bound volumeattachments (v0, v1, v2, v3, v4 and 2 other(s))"


def test_terminating_pod_has_no_event():
    """It is already evicted."""
    going = a_pod(
        "p",
        node="n",
        metadata={"annotations": {labels.DO_NOT_DISRUPT: "2h"}, "deletionTimestamp": stamp(ago(seconds=1))},
    )
    assert drain_events(decide_drain([going], NOW, None), a_node(), NOW) == ()
