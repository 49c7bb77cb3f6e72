"""Gauges of status conditions and deletions, for every kind with `operator_*` metrics.

Restates: awslabs/operatorpkg status/controller.go `reconcileFound`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, TypeVar

from msgspec import Struct

from journeyman.core.api.objects import Condition
from journeyman.core.observability.amounts import gauge, gauges_of_each
from journeyman.core.plan import Observation
from journeyman.core.state import InvalidObject, NodeClassState, Snapshot
from journeyman.core.state.condition_transitions import object_labels

T = TypeVar("T")


class _ObservedObject(Struct, frozen=True, kw_only=True):
    """The fields of an object that its gauges need."""

    kind: str  # in lower case
    name: str
    namespace: str = ""
    labels: Mapping[str, str] = {}
    deleted: datetime | None = None
    conditions: tuple[Condition, ...] = ()


def condition_gauges(snapshot: Snapshot) -> Iterator[Observation]:
    """Yield gauges of each condition of each object, and of the time that objects have been terminating."""

    def of(observed: Callable[[T], _ObservedObject], items: Iterable[T]) -> Iterator[Observation]:
        return gauges_of_each(items, lambda item: _gauges(observed(item), snapshot.now))

    yield from of(_object, snapshot.claims)
    yield from of(_object, snapshot.nodes)
    yield from of(_object, snapshot.node_pools)
    yield from of(_object, snapshot.node_overlays)
    yield from of(_object, snapshot.capacity_buffers)
    yield from of(_node_class, snapshot.node_classes)
    kinds = {"NodePool", "NodeOverlay", "CapacityBuffer"}
    yield from of(_invalid_object, (item for item in snapshot.invalid_objects if item.kind in kinds))


def _gauges(item: _ObservedObject, now: datetime) -> Iterator[Observation]:
    base = {"namespace": item.namespace, "name": item.name, **object_labels(item.kind, item.labels)}
    prefix = f"operator_{item.kind}"
    for condition in item.conditions:
        values = {**base, "type": condition.type, "status": condition.status, "reason": condition.reason}
        yield gauge(f"{prefix}_status_condition_count", 1, values)
        if condition.last_transition_time is not None:
            since = (now - condition.last_transition_time).total_seconds()
            yield gauge(f"{prefix}_status_condition_current_status_seconds", since, values)
    if item.deleted is not None:
        yield gauge(f"{prefix}_termination_current_time_seconds", (now - item.deleted).total_seconds(), base)


def _object(item: Any) -> _ObservedObject:
    """Return the fields of an object of any type that has `metadata` and `status.conditions`."""
    meta = item.metadata
    return _ObservedObject(
        kind=type(item).__name__.lower(),
        name=meta.name,
        namespace=meta.namespace,
        labels=meta.labels,
        deleted=meta.deletion_timestamp,
        conditions=tuple(item.status.conditions),
    )


def _node_class(item: NodeClassState) -> _ObservedObject:
    return _ObservedObject(
        kind=item.kind.lower(), name=item.name, deleted=item.deletion_timestamp, conditions=item.conditions
    )


def _invalid_object(item: InvalidObject) -> _ObservedObject:
    return _ObservedObject(kind=item.kind.lower(), name=item.name, namespace=item.namespace, conditions=item.conditions)
