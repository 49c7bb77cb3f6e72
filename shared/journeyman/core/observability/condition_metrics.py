"""Gauges of status conditions and deletions, for every kind with `operator_*` metrics.

Restates: awslabs/operatorpkg status/controller.go `reconcileFound`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from journeyman.core.api.objects import Condition
from journeyman.core.observability.amounts import gauge
from journeyman.core.plan import Observation
from journeyman.core.state import NodeClassState, Snapshot
from journeyman.core.state.condition_transitions import object_labels


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
    for item in _all_objects(snapshot):
        base = {"namespace": item.namespace, "name": item.name, **object_labels(item.kind, item.labels)}
        prefix = f"operator_{item.kind}"
        for condition in item.conditions:
            values = {**base, "type": condition.type, "status": condition.status, "reason": condition.reason}
            yield gauge(f"{prefix}_status_condition_count", 1, values)
            if condition.last_transition_time is not None:
                since = (snapshot.now - condition.last_transition_time).total_seconds()
                yield gauge(f"{prefix}_status_condition_current_status_seconds", since, values)
        if item.deleted is not None:
            seconds = (snapshot.now - item.deleted).total_seconds()
            yield gauge(f"{prefix}_termination_current_time_seconds", seconds, base)


def _all_objects(snapshot: Snapshot) -> Iterator[_ObservedObject]:
    yield from _objects("nodeclaim", snapshot.claims)
    yield from _objects("node", snapshot.nodes)
    yield from _objects("nodepool", snapshot.node_pools)
    yield from _objects("nodeoverlay", snapshot.node_overlays)
    yield from _objects("capacitybuffer", snapshot.capacity_buffers)
    yield from map(_node_class, snapshot.node_classes)
    kinds = {"NodePool", "NodeOverlay", "CapacityBuffer"}
    for item in snapshot.invalid_objects:
        if item.kind in kinds:
            kind = item.kind.lower()
            yield _ObservedObject(kind=kind, name=item.name, namespace=item.namespace, conditions=item.conditions)


def _objects(kind: str, objects: Iterable[Any]) -> Iterator[_ObservedObject]:
    """Yield objects of any type that has `metadata` and `status.conditions`."""
    for each in objects:
        meta = each.metadata
        yield _ObservedObject(
            kind=kind,
            name=meta.name,
            namespace=meta.namespace,
            labels=meta.labels,
            deleted=meta.deletion_timestamp,
            conditions=tuple(each.status.conditions),
        )


def _node_class(node_class: NodeClassState) -> _ObservedObject:
    return _ObservedObject(
        kind=node_class.kind.lower(),
        name=node_class.name,
        deleted=node_class.deletion_timestamp,
        conditions=node_class.conditions,
    )
