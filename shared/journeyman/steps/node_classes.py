"""Keeps NodeClass statuses current: resolves selectors to subnets, security groups and images.

A NodeClass is resolved again when its spec changed, while it is not Ready, and `Settings.node_class_refresh` after it was
last resolved; an annotation records that time. In between, nothing is read from the cloud and nothing is written. A
NodeClass in use gets the finalizer before anything is created for it in the cloud, and loses it when the NodeClass is being
deleted and no NodeClaim uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Annotated, Any, Final

import msgspec

from journeyman.core.api import labels
from journeyman.core.api.conditions import READY, format_time, set_condition, to_wire
from journeyman.core.api.objects import condition_of
from journeyman.core.lifecycle.nodeclass_finalizer import add_finalizer, finalize_nodeclasses, has_finalizer
from journeyman.core.plan import (
    Action,
    Chain,
    DeleteUnusedResources,
    ObjectRef,
    Observation,
    PatchObject,
    Plan,
    RecordPriceAge,
    RefreshPrices,
    Requeue,
    ResolveNodeClass,
    Step,
    chain_of,
)
from journeyman.core.state import NodeClassState
from journeyman.core.state.condition_transitions import with_transitions
from journeyman.errors import CloudProviderError, InvalidObjectError
from journeyman.ports import CloudProvider
from journeyman.steps.load import conditions_in, node_class_state
from journeyman.steps.scheduling_inputs import StepInputs

CLEANUP_PERIOD: Final = timedelta(days=1)
"""How often unused launch templates and instance profiles of a cluster are deleted (Karpenter: every 30 minutes)."""
AwareTime = Annotated[datetime, msgspec.Meta(tz=True)]


def refresh_node_classes(inputs: StepInputs) -> Plan:
    """Return the plan that resolves NodeClasses in use that are due, and finalizes those being deleted.

    If resolving fails, the NodeClass keeps its status.
    """
    snapshot, period = inputs.snapshot, inputs.settings.node_class_refresh
    used = {(ref.kind, ref.name) for ref in (p.spec.template.spec.node_class_ref for p in snapshot.node_pools)}
    used |= {(c.spec.node_class_ref.kind, c.spec.node_class_ref.name) for c in snapshot.claims}
    chains = []
    for node_class in snapshot.node_classes:
        if (node_class.kind, node_class.name) in used and not node_class.deleting:
            actions = _refresh(inputs, node_class, snapshot.now, period)
            chains += [chain_of(f"{node_class.kind} {node_class.name}", *actions)] if actions else []
    return Plan(chains=tuple(chains)) + finalize_nodeclasses(snapshot, inputs.node_class_kind)


def _refresh(inputs: StepInputs, node_class: NodeClassState, now: datetime, period: timedelta) -> list[Action]:
    """Return the actions that are due: first add the finalizer, without which nothing is created, then resolve."""
    actions: list[Action] = []
    raw = node_class.raw
    if not has_finalizer(node_class):
        patch = add_finalizer(node_class, inputs.node_class_kind)
        actions.append(patch)
        raw = {**raw, "metadata": {**raw["metadata"], **patch.patch["metadata"]}}
    if is_due(node_class, now, period):
        actions.append(ResolveNodeClass(name=node_class.name, raw=raw, at=now))
    return actions


def record_price_ages(inputs: StepInputs) -> Plan:
    """Return the plan that records the age of prices for each NodeClass that this run resolved.

    If on-demand prices are due, it requeues consolidate, which reads them: it takes seconds, and no pod waits for that step.
    """
    now, prices = inputs.snapshot.now, inputs.catalogued.prices
    resolved = [
        c
        for c in inputs.snapshot.node_classes
        if _resolved_at(c) == now.replace(microsecond=0) and c.name not in inputs.catalogued.failures
    ]
    if not resolved:
        return Plan()
    chains = [_price_record(node_class) for node_class in resolved]
    if prices.on_demand_due_at is not None and prices.on_demand_due_at <= now:
        requeue = Requeue(step=Step.CONSOLIDATE, at=now, reason="on-demand prices are due")
        chains.append(chain_of("requeues", requeue))
    estimated = Observation(name="journeyman_on_demand_prices_estimated", value=float(prices.estimated), kind="gauge")
    return Plan(chains=tuple(chains), observations=(estimated,))


def refresh_prices(inputs: StepInputs) -> Plan:
    """Return the plan that reads on-demand prices and records them for each NodeClass, if they are due."""
    due_at = inputs.catalogued.prices.on_demand_due_at
    ready = [c for c in inputs.snapshot.node_classes if c.ready and not c.deleting]
    if due_at is None or due_at > inputs.snapshot.now or not ready:
        return Plan()
    records = tuple(_price_record(node_class) for node_class in ready)
    return Plan(chains=(Chain(subject="on-demand prices", actions=(RefreshPrices(),), then=records),))


def _price_record(node_class: NodeClassState) -> Chain:
    kind, name = node_class.kind, node_class.name
    return chain_of(f"prices of {kind} {name}", RecordPriceAge(node_class=name, kind=kind, uid=node_class.uid))


def delete_unused_resources(inputs: StepInputs) -> Plan:
    """Return the plan that deletes the cluster's unused cloud resources, once a day.

    It comes last of all: launches create them, and no pod waits for their deletion. The time is recorded first, on a NodeClass, so
    that a deletion that fails does not slow every run down. A cluster without NodeClasses has no such resources, because
    the finalizer of a NodeClass releases them.
    """
    snapshot = inputs.snapshot
    recorded = [at for c in snapshot.node_classes if (at := _annotated_time(c, labels.CLEANED_UP_AT)) is not None]
    keeper = min((c for c in snapshot.node_classes if not c.deleting), key=attrgetter("name"), default=None)
    if keeper is None or any(abs(snapshot.now - at) < CLEANUP_PERIOD for at in recorded):
        return Plan()
    ref = ObjectRef(resource=inputs.node_class_kind, name=keeper.name, uid=keeper.uid)
    patch = {"metadata": {"annotations": {labels.CLEANED_UP_AT: format_time(snapshot.now)}}}
    record = PatchObject(ref=ref, patch=patch, why="when unused cloud resources were deleted")
    delete = DeleteUnusedResources(why="no launch, NodeClass or NodeClaim uses them")
    return Plan(chains=(chain_of("unused cloud resources", record, delete),))


def is_due(node_class: NodeClassState, now: datetime, period: timedelta) -> bool:
    """Whether its status must be resolved again; not while it is being deleted.

    A recorded time far in the future comes from a wrong clock, so the NodeClass is resolved then as well.
    """
    if node_class.deleting:
        return False
    resolved_at = _resolved_at(node_class)
    return not node_class.ready or resolved_at is None or abs(now - resolved_at) >= period


def _resolved_at(node_class: NodeClassState) -> datetime | None:
    return _annotated_time(node_class, labels.RESOLVED_AT)


def _annotated_time(node_class: NodeClassState, annotation: str) -> datetime | None:
    annotations = (node_class.raw.get("metadata") or {}).get("annotations") or {}
    try:
        return msgspec.convert(annotations.get(annotation), AwareTime)
    except msgspec.ValidationError:
        return None


def resolve_node_class(
    cloud: CloudProvider, action: ResolveNodeClass
) -> tuple[NodeClassState, Chain, CloudProviderError | None]:
    """Resolve a NodeClass; return it with its new status, the chain that writes the status, and the cloud's error.

    After an error of the cloud, the conditions of an earlier generation are Unknown: the cloud has not said whether they hold
    for the present spec. Those of this generation stay: what was found for it is still the best that is known.
    """
    before = node_class_state(action.raw, cloud.node_class)
    try:
        status = cloud.resolve(action.raw, action.at)
    except CloudProviderError as error:
        status = _unresolved_status(before, action, error)
        after = node_class_state({**action.raw, "status": status}, cloud.node_class)
        return after, _writes(cloud, before, status, {}), error
    annotations = {**_hash(cloud, action.raw), labels.RESOLVED_AT: format_time(action.at)}
    metadata = action.raw["metadata"]
    metadata = {**metadata, "annotations": {**(metadata.get("annotations") or {}), **annotations}}
    after = node_class_state({**action.raw, "metadata": metadata, "status": dict(status)}, cloud.node_class)
    return after, _writes(cloud, before, status, annotations), None


def _unresolved_status(
    node_class: NodeClassState, action: ResolveNodeClass, error: CloudProviderError
) -> Mapping[str, Any]:
    conditions = node_class.conditions
    outdated = {c.type for c in conditions if c.observed_generation != node_class.generation}
    if condition_of(conditions, READY) is None:
        outdated.add(READY)
    status = action.raw.get("status") or {}
    if not outdated:
        return status
    for type_ in sorted(outdated):
        conditions = set_condition(
            conditions,
            type_,
            "Unknown",
            now=action.at,
            generation=node_class.generation,
            reason="ResolutionFailed",
            message=f"the cloud could not be asked: {error.message}",
        )
    return {**status, "conditions": to_wire(conditions)}


def _hash(cloud: CloudProvider, raw: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the annotations with the NodeClass's hash; none if it does not validate."""
    try:
        return cloud.annotations(raw)
    except InvalidObjectError:
        return {}  # `resolve` has set the condition that reports it


def _writes(
    cloud: CloudProvider, node_class: NodeClassState, status: Mapping[str, Any], annotations: Mapping[str, str]
) -> Chain:
    """Return the chain that writes the status, with the version that was read as precondition, then the annotations."""
    before = node_class.raw.get("status") or {}
    ref = ObjectRef(resource=cloud.node_class, name=node_class.name, uid=node_class.uid)
    removed = dict.fromkeys(before.keys() - status.keys())
    changes = {key: value for key, value in status.items() if before.get(key) != value} | removed
    actions = []
    if changes:
        version = str(node_class.raw["metadata"].get("resourceVersion", ""))
        why = "the resolved status"
        actions.append(
            PatchObject(ref=ref, patch={"status": changes}, why=why, resource_version=version, subresource="status")
        )
    if annotations:
        patch = {"metadata": {"annotations": dict(annotations)}}
        actions.append(PatchObject(ref=ref, patch=patch, why="its hash, and when it was resolved"))
    chain = chain_of(f"{node_class.kind} {node_class.name}", *actions)
    return with_transitions(chain, ref, {}, node_class.conditions, conditions_in({"status": status}))
