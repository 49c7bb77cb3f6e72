"""What holds a node up that is to go, said on the node and on the pods it is about.

Restates: karpenter pkg/controllers/node/termination/terminator/events/events.go, pkg/utils/pod/events.go,
pkg/utils/pod/scheduling.go `IsDoNotDisruptActive`.
Differs: FailedDraining names pods that hold the drain; Karpenter tells it of every drain that has not ended at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from journeyman.core.api import labels
from journeyman.core.api.conditions import format_time
from journeyman.core.api.objects import POD, Node, Pod
from journeyman.core.lifecycle.drain import Drain
from journeyman.core.lifecycle.progress import node_ref
from journeyman.core.plan import Event, ObjectRef
from journeyman.core.state.pod_predicates import parse_duration

_SHOWN: Final = 5


def drain_events(decided: Drain, node: Node, now: datetime) -> tuple[Event, ...]:
    """Which pods the drain waits for without asking them to go, and how long what their annotation says protects them."""
    return (*_waiting(decided, node), *protection_events(decided.asked, now))


def volume_events(volumes: Sequence[str], node: Node) -> tuple[Event, ...]:
    """Which volumes are still attached."""
    text = f"Awaiting deletion of bound volumeattachments ({_some(volumes)})"
    return (Event(ref=node_ref(node), reason="AwaitingVolumeDetachment", message=text),)


def protection_events(pods: Iterable[Pod], now: datetime) -> tuple[Event, ...]:
    """What comes of each pod's do-not-disrupt annotation, where that is not plainly "true"."""
    return tuple(event for pod in pods for event in _protection(pod, now))


def _waiting(decided: Drain, node: Node) -> Iterator[Event]:
    if decided.protected:
        named = _some([pod.key for pod in decided.protected])
        text = (
            f"Failed to drain node, {len(decided.remaining)} pods are waiting to be evicted; not evictable now: {named}"
        )
        yield Event(ref=node_ref(node), reason="FailedDraining", message=text, type="Warning")


def _protection(pod: Pod, now: datetime) -> Iterator[Event]:
    value = pod.metadata.annotations.get(labels.DO_NOT_DISRUPT)
    if value is None or value == "true":
        return
    ref = ObjectRef(resource=POD, name=pod.metadata.name, namespace=pod.metadata.namespace, uid=pod.metadata.uid)
    duration = parse_duration(value)
    if duration is None or duration <= timedelta(0):
        text = f'Invalid {labels.DO_NOT_DISRUPT} annotation: "{value}" is neither "true" nor a positive duration such as 1h30m, ignoring annotation'
        yield Event(ref=ref, reason="InvalidDoNotDisruptAnnotation", message=text, type="Warning", key=value)
    elif pod.status.start_time is None:
        return
    elif now < (end := pod.status.start_time + duration):
        text = f"The {labels.DO_NOT_DISRUPT} grace period will elapse at {format_time(end)}"
        yield Event(ref=ref, reason="DoNotDisruptUntil", message=text, key=format_time(end))
    else:
        text = f"The {labels.DO_NOT_DISRUPT} grace period has elapsed, pod is now disruptable"
        yield Event(ref=ref, reason="DoNotDisruptGracePeriodElapsed", message=text)


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} other(s)" if rest > 0 else "")
