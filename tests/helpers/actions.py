"""What a plan does, as short values for assertions: `done` as text, and patches, conditions, requeues and Events."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeVar

from journeyman.core.api import labels
from journeyman.core.plan import (
    CreateObject,
    DeleteObject,
    DeletePod,
    Event,
    EvictPod,
    LaunchInstance,
    NominatePods,
    PatchObject,
    Plan,
    Requeue,
    Step,
    TerminateInstance,
)

A = TypeVar("A")


def of_type(plan: Plan, kind: type[A]) -> list[A]:
    """Return the plan's actions of a type, in order."""
    return [action for action in plan.actions if isinstance(action, kind)]


def done(plan: Plan) -> str:
    """Return what the plan creates, launches, evicts, deletes, finalizes and terminates: `delete Node n; terminate i-1`."""
    return "; ".join(filter(None, map(_text, plan.actions)))


def _text(action: object) -> str:
    match action:
        case CreateObject():
            return f"create {action.resource.kind} {action.name}"
        case LaunchInstance():
            return f"launch {action.claim}"
        case EvictPod():
            return f"evict {action.ref.name}"
        case DeletePod():
            return f"delete Pod {action.ref.name}"
        case DeleteObject():
            return f"delete {action.ref.resource.kind} {action.ref.name}"
        case TerminateInstance():
            return f"terminate {action.provider_id.rpartition('/')[2]}"
        case PatchObject(patch={"metadata": {"finalizers": kept}}) if labels.TERMINATION_FINALIZER not in kept:
            return f"finalize {action.ref.resource.kind} {action.ref.name}"
    return ""


def patches(plan: Plan, kind: str = "", part: str = "") -> list[Any]:
    """Return the patches of objects of a kind, or of any; with `part` what they have there, as `status`."""
    found = [each.patch for each in of_type(plan, PatchObject) if kind in {"", each.ref.resource.kind}]
    return [patch[part] for patch in found if part in patch] if part else found


def conditions(plan: Plan, kind: str = "NodeClaim") -> dict[str, tuple[str, str]]:
    """Return the status and reason of the conditions that the plan writes to the objects of a kind, by type."""
    written = [each for status in patches(plan, kind, "status") for each in status.get("conditions", ())]
    return {each["type"]: (each["status"], each["reason"]) for each in written}


def nominated(plan: Plan) -> list[tuple[str, str]]:
    """Return pod and node of the plan's nominations, in order."""
    return [(pod.name, each.node) for each in of_type(plan, NominatePods) for pod in each.pods]


def untainted(plan: Plan) -> list[str]:
    """Return the nodes that have no taint after the plan."""
    found = [each for each in of_type(plan, PatchObject) if each.ref.resource.kind == "Node"]
    return [each.ref.name for each in found if each.patch.get("spec", {}).get("taints") == []]


def requeues(plan: Plan) -> dict[Step, datetime]:
    """Return when the plan requeues which step."""
    return {each.step: each.at for each in of_type(plan, Requeue)}


def events(plan: Plan) -> list[Event]:
    """Return the Events of the plan's chains, and its own."""
    return [*(event for chain in plan.chains for event in chain.events), *plan.events]


def reasons(plan: Plan) -> list[tuple[str, str]]:
    """Return kind and reason of all Events."""
    return [(event.ref.resource.kind, event.reason) for event in events(plan)]
