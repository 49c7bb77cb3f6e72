"""Evaluates objects one by one, so that an object that cannot be evaluated is skipped, and no other.

Amounts, durations and times have no value that overflows (`core.api.resources`, `core.api.duration`), and models validate what
they read. Whatever is wrong with an object nevertheless must not stop the step for all others. So every loop over
objects goes through `evaluate` or `plan_for_each`: the exception becomes a `SkippedObject`, and `report_skipped` turns it into an
Event on the object, a log line with the exception and its place, and a metric. No decision is made about the object, which is always
safe: it is neither deleted nor disrupted, and its capacity is not used. The next run of the step evaluates it again; the sweep sees to
that within minutes.

An InvariantError is no object's fault: it stops the step, and the handler reports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar, cast

from msgspec import Struct

from journeyman.core.api.dra import DEVICE_CLASS, RESOURCE_CLAIM, RESOURCE_SLICE
from journeyman.core.api.objects import (
    CAPACITY_BUFFER,
    CCENODECLASS,
    CHURN_LEDGER,
    DAEMONSET,
    EC2NODECLASS,
    ECSNODECLASS,
    FLEET_GUARD,
    FLEET_PLAN,
    NODE,
    NODE_CLASSES,
    NODE_DISRUPTION,
    NODE_OVERLAY,
    NODECLAIM,
    NODEPOOL,
    OFFERING_STATE,
    PDB,
    POD,
    Resource,
)
from journeyman.core.api.storage import CSI_NODE, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, STORAGE_CLASS
from journeyman.core.plan import Event, LogLine, ObjectRef, Observation, Plan, merge_plans
from journeyman.core.state.snapshot import InvalidObject, NodeClassState
from journeyman.core.state.state_node import StateNode
from journeyman.errors import InvariantError, JourneymanError

T = TypeVar("T")
V = TypeVar("V")

_RESOURCES: Final = {
    resource.kind: resource
    for resource in cast(
        "tuple[Resource[Any], ...]",
        (
            *(NODE, NODECLAIM, POD, DAEMONSET, PDB),
            *(NODEPOOL, EC2NODECLASS, ECSNODECLASS, CCENODECLASS),
            *(NODE_OVERLAY, CAPACITY_BUFFER, NODE_DISRUPTION, FLEET_PLAN, FLEET_GUARD, OFFERING_STATE, CHURN_LEDGER),
            *(CSI_NODE, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, STORAGE_CLASS),
            *(DEVICE_CLASS, RESOURCE_CLAIM, RESOURCE_SLICE),
        ),
    )
}
_NODE_CLASSES: Final = {(resource.group, resource.kind): resource for resource in NODE_CLASSES}
_MAX_WHY: Final = 500
"""Characters of a reason: an exception may quote the whole value."""


class SkippedObject(Struct, frozen=True, kw_only=True):
    """An object that cannot be evaluated: a node is named by its NodeClaim and its Node.

    `why` is the message for its author, `error` the exception's type, and `place` the function and line that raised it; both are
    empty if the object itself is wrong.
    """

    refs: tuple[ObjectRef, ...]
    why: str
    error: str = ""
    place: str = ""


def evaluate(item: Any, function: Callable[..., V], *args: Any) -> V | SkippedObject:
    """Return the result of the function; if it raises, the object that it was to evaluate, as skipped.

    Args:
        item: The object: a Kubernetes object, a StateNode, a NodeClassState, or an ObjectRef.
        function: Evaluates it.
        args: The function's arguments.

    Raises:
        InvariantError: The function found a bug.
    """
    try:
        return function(*args)
    except InvariantError:
        raise
    except JourneymanError as error:
        return SkippedObject(refs=refs_of(item), why=error.message[:_MAX_WHY])
    except Exception as error:  # noqa: BLE001 - whatever an object does, the others are evaluated
        name = type(error).__name__
        why = f"it cannot be evaluated ({name}: {error})"
        return SkippedObject(refs=refs_of(item), why=why[:_MAX_WHY], error=name, place=_place(error))


def evaluate_each(
    items: Iterable[T], function: Callable[[T], V], about: Callable[[T], Any] | None = None
) -> tuple[tuple[V, ...], tuple[SkippedObject, ...]]:
    """Return the results for all objects that can be evaluated, in order, and the others; arguments as `plan_for_each`.

    The guard of each object costs time, which matters with 10,000 pods. So all are evaluated at once, and again one by one
    only if one of them raises; the function must be pure.
    """
    items = tuple(items)
    try:
        return tuple(map(function, items)), ()
    except InvariantError:
        raise
    except Exception:  # noqa: BLE001, S110 - found again below, with its object
        pass
    found = [evaluate(about(item) if about is not None else item, function, item) for item in items]
    skipped = tuple(one for one in found if isinstance(one, SkippedObject))
    return tuple(one for one in found if not isinstance(one, SkippedObject)), skipped


def select_each(items: Iterable[T], is_wanted: Callable[[T], bool]) -> tuple[tuple[T, ...], tuple[SkippedObject, ...]]:
    """Return the objects for which `is_wanted`, a pure function, returns True, in order, and those that cannot be evaluated."""
    found, skipped = evaluate_each(items, lambda item: (item, is_wanted(item)))
    return tuple(item for item, wanted in found if wanted), skipped


def plan_for_each(items: Iterable[T], decide: Callable[[T], Plan], about: Callable[[T], Any] | None = None) -> Plan:
    """Return the plans for all objects, merged; objects for which `decide` raises are skipped and reported.

    Args:
        items: The objects, in the order of their plans.
        decide: Returns the plan for one.
        about: Returns the Kubernetes object of an item that is none.
    """
    plans = []
    for item in items:
        plan = evaluate(about(item) if about is not None else item, decide, item)
        plans.append(report_skipped((plan,)) if isinstance(plan, SkippedObject) else plan)
    return merge_plans(plans)


def report_skipped(skipped: Iterable[SkippedObject]) -> Plan:
    """Return a plan that reports skipped objects: an Event on each, a log line and a metric."""
    events, logs, observations = [], [], []
    for found in skipped:
        named = " and ".join(map(str, found.refs))
        text = f"{named} is skipped, all other objects are handled: {found.why}"
        events += [Event(ref=ref, reason="ObjectSkipped", message=text, type="Warning") for ref in found.refs]
        fields: dict[str, Any] = {ref.resource.kind: _log_name(ref) for ref in found.refs}
        if found.error:
            fields |= {"error": found.error, "place": found.place}
        logs.append(LogLine(level="error" if found.error else "warning", message=text, fields=fields))
        kind = found.refs[0].resource.kind if found.refs else ""
        observations.append(Observation(name="journeyman_objects_skipped_total", labels={"kind": kind}))
    return Plan(events=tuple(events), logs=tuple(logs), observations=tuple(observations))


def refs_of(item: Any) -> tuple[ObjectRef, ...]:
    """Return references to the objects that an item consists of."""
    if isinstance(item, ObjectRef):
        return (item,)
    if isinstance(item, StateNode):
        return item.object_refs
    if isinstance(item, InvalidObject | NodeClassState):
        namespace, group = (item.namespace, "") if isinstance(item, InvalidObject) else ("", item.group)
        return (ref_of(item.kind, item.name, namespace, item.uid, group),)
    meta = item.metadata
    return (ref_of(type(item).__name__, meta.name, meta.namespace, meta.uid),)


def ref_of(kind: str, name: str, namespace: str = "", uid: str = "", group: str = "") -> ObjectRef:
    """Return a reference to an object of this kind; Events on a kind that is not read here have no API group.

    Args:
        kind: The kind.
        name: Its name.
        namespace: Its namespace, if the kind has any.
        uid: Its UID.
        group: The API group of a NodeClass, because two groups have the kind ECSNodeClass.
    """
    unknown: Resource[Any] = Resource(
        group="", version="v1", kind=kind, plural="", namespaced=bool(namespace), type=dict
    )
    resource = _NODE_CLASSES.get((group, kind)) or _RESOURCES.get(kind, unknown)
    return ObjectRef(resource=resource, name=name, namespace=namespace, uid=uid)


def _log_name(ref: ObjectRef) -> dict[str, str]:
    return {"name": ref.name, **({"namespace": ref.namespace} if ref.namespace else {})}


def _place(error: Exception) -> str:
    """Return the function and line that raised the exception."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_name}:{trace.tb_lineno}" if trace is not None else ""
