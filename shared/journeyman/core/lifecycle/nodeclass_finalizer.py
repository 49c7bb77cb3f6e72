"""NodeClass finalizer: keeps a terminating NodeClass until no NodeClaim references it, then deletes its cloud resources.

The finalizer is added before cloud resources are created for the NodeClass. An Event on a terminating NodeClass names the
NodeClaims that it waits for. Then its cloud resources are deleted, and the finalizer is removed. Each stage is idempotent.

Restates: karpenter-provider-aws pkg/controllers/nodeclass/controller.go `Reconcile`, `finalize`; events.go.
Differs: a NodeClass that no NodePool or NodeClaim references gets no finalizer, as it has no cloud resources.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from journeyman.core.api.objects import Resource
from journeyman.core.plan import Chain, Event, ObjectRef, PatchObject, Plan, ReleaseNodeClass
from journeyman.core.state import NodeClassState, Snapshot
from journeyman.core.state.condition_transitions import termination_metrics

REMINDER_INTERVAL: Final = timedelta(minutes=10)  # karpenter-provider-aws repeats the Event as often
_MAX_NAMES: Final = 5


def has_finalizer(node_class: NodeClassState) -> bool:
    """Whether the NodeClass has our finalizer."""
    return node_class.finalizer in node_class.finalizers


def add_finalizer(node_class: NodeClassState, kind: Resource[Any]) -> PatchObject:
    """Return the patch that adds our finalizer to the version of the NodeClass that was read."""
    finalizers = [*node_class.finalizers, node_class.finalizer]
    return _patch_finalizers(node_class, kind, finalizers, why="delete its cloud resources when it is deleted")


def finalize_nodeclasses(snapshot: Snapshot, kind: Resource[Any]) -> Plan:
    """Finalize each terminating NodeClass without NodeClaims; for the others, an Event names the NodeClaims they wait for."""
    waiting = _claims_by_class(snapshot)
    chains: list[Chain] = []
    events: list[Event] = []
    for node_class in snapshot.node_classes:
        if not node_class.deleting or not has_finalizer(node_class):
            continue
        if claims := waiting.get(node_class.name):
            events.append(_waiting_event(node_class, kind, claims))
        else:
            chains.append(_finalize(node_class, kind, snapshot.now))
    return Plan(chains=tuple(chains), events=tuple(events))


def _claims_by_class(snapshot: Snapshot) -> Mapping[str, Sequence[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for claim in snapshot.claims:
        found[claim.spec.node_class_ref.name].append(claim.metadata.name)
    return found


def _waiting_event(node_class: NodeClassState, kind: Resource[Any], claims: Sequence[str]) -> Event:
    more = f" and {len(claims) - _MAX_NAMES} other(s)" if len(claims) > _MAX_NAMES else ""
    text = f"Waiting on NodeClaim termination for {', '.join(claims[:_MAX_NAMES])}{more}"
    return Event(ref=_ref(node_class, kind), reason="WaitingOnNodeClaimTermination", message=text)


def _finalize(node_class: NodeClassState, kind: Resource[Any], now: datetime) -> Chain:
    why = "it is being deleted, and no NodeClaim references it"
    others = [name for name in node_class.finalizers if name != node_class.finalizer]
    release = ReleaseNodeClass(name=node_class.name, raw=node_class.raw, why=why)
    return Chain(
        subject=f"{node_class.kind} {node_class.name}",
        actions=(release, _patch_finalizers(node_class, kind, others, why=why)),
        events=(Event(ref=_ref(node_class, kind), reason="Finalized", message="Finalized"),),
        observations=termination_metrics(node_class.kind.lower(), {}, node_class.deletion_timestamp, now),
    )


def _patch_finalizers(
    node_class: NodeClassState, kind: Resource[Any], names: Sequence[str], *, why: str
) -> PatchObject:
    version = str((node_class.raw.get("metadata") or {}).get("resourceVersion", ""))
    patch = {"metadata": {"finalizers": list(names)}}
    return PatchObject(ref=_ref(node_class, kind), patch=patch, why=why, resource_version=version)


def _ref(node_class: NodeClassState, kind: Resource[Any]) -> ObjectRef:
    return ObjectRef(resource=kind, name=node_class.name, uid=node_class.uid)
