"""Keep NodeClass statuses current: what the cloud says its selectors mean now.

A NodeClass is resolved again when its spec changed, while it is not Ready, and when the last look is older than
`Settings.node_class_refresh`; the time of that look is kept in an annotation. In between, nothing is asked and nothing
is written.

One in use also gets our finalizer, before anything is made for it; one in deletion is let go once no claim needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.conditions import format_time
from journeyman.core.lifecycle.nodeclass_finalizer import held, is_held, node_class_endings
from journeyman.core.plan import ObjectRef, PatchObject, Plan, chain_of
from journeyman.core.state import NodeClassState, Snapshot
from journeyman.core.state.condition_transitions import told_with
from journeyman.errors import CloudProviderError, ConflictError, InvalidObjectError, KubeAPIError
from journeyman.steps.executor import Applier
from journeyman.steps.load import node_class_state
from journeyman.steps.offering_state_updates import note_prices
from journeyman.steps.reading import conditions_in
from journeyman.steps.scheduling_inputs import SchedulingInputs, scheduling_inputs_of

AwareTime = Annotated[datetime, msgspec.Meta(tz=True)]


def refresh_node_classes(hand: Applier, snapshot: Snapshot) -> Snapshot:
    """The snapshot with the status of every NodeClass in use current; what changed is written.

    A NodeClass that the cloud cannot be asked about keeps the status it has.
    """
    used = {(ref.kind, ref.name) for ref in (p.spec.template.spec.node_class_ref for p in snapshot.node_pools)}
    used |= {(c.spec.node_class_ref.kind, c.spec.node_class_ref.name) for c in snapshot.claims}
    period = hand.run.settings.node_class_refresh
    fresh = tuple(
        _current(hand, c, snapshot.now, period) if (c.kind, c.name) in used and not c.deleting else c
        for c in snapshot.node_classes
    )
    hand.apply(node_class_endings(snapshot, hand.run.cloud.node_class))
    return replace(snapshot, node_classes=fresh)


def catalogued(hand: Applier, snapshot: Snapshot) -> SchedulingInputs:
    """The snapshot with what could be launched now; types that the cloud does not tell are reported.

    Their NodePools sit this run out, and if that may pass, the step wakes up for them.
    """
    world = scheduling_inputs_of(hand.run, snapshot)
    for name, error in sorted(world.failures.items()):
        kind = hand.run.cloud.node_class.kind
        if error.retryable:
            hand.failed(f"instance types of {kind} {name}", error)
        else:
            text = f"instance types of {kind} {name} cannot be had, its NodePools sit this run out: {error}"
            hand.run.telemetry.log("warning", text, **{kind: {"name": name}})
    return world


def tell_prices(hand: Applier, world: SchedulingInputs) -> None:
    """Say beside each NodeClass that this run resolved how old the prices are that came with its types."""
    for node_class in world.snapshot.node_classes:
        resolved_now = _looked_at(node_class) == world.snapshot.now.replace(microsecond=0)
        if resolved_now and node_class.name not in world.failures:
            _tell_prices(hand, node_class)


def _tell_prices(hand: Applier, node_class: NodeClassState) -> None:
    """For people alone, so it must not keep a run from its work."""
    hand.run.lease.check()
    try:
        note_prices(hand.run, node_class)
    except KubeAPIError as error:
        text = f"the age of prices is not noted in OfferingState {node_class.name}: {error.message}"
        hand.run.telemetry.log("debug" if isinstance(error, ConflictError) else "warning", text)


def is_due(node_class: NodeClassState, now: datetime, period: timedelta) -> bool:
    """Whether its status must be resolved again. One that is being deleted is left as it is.

    A look that lies further ahead than a period was noted by a clock that has been set right since.
    """
    if node_class.deleting:
        return False
    looked = _looked_at(node_class)
    return not node_class.ready or looked is None or abs(now - looked) >= period


def _looked_at(node_class: NodeClassState) -> datetime | None:
    annotations = (node_class.raw.get("metadata") or {}).get("annotations") or {}
    try:
        return msgspec.convert(annotations.get(labels.RESOLVED_AT), AwareTime)
    except msgspec.ValidationError:
        return None


def _current(hand: Applier, node_class: NodeClassState, now: datetime, period: timedelta) -> NodeClassState:
    """Held by our finalizer, and resolved if that is due; as it was if it cannot be held, as nothing is made for it then."""
    if not is_held(node_class):
        action = held(node_class, hand.run.cloud.node_class)
        hand.apply(Plan(chains=(chain_of(f"{node_class.kind} {node_class.name}", action),)))
        if not hand.effects.is_written(action):
            return node_class
        metadata = {**node_class.raw["metadata"], **action.patch["metadata"]}
        node_class = node_class_state({**node_class.raw, "metadata": metadata}, hand.run.cloud.node_class)
    return _resolved(hand, node_class, now) if is_due(node_class, now, period) else node_class


def _resolved(hand: Applier, node_class: NodeClassState, now: datetime) -> NodeClassState:
    try:
        status = hand.run.cloud.resolve(node_class.raw, now)
    except CloudProviderError as error:
        hand.failed(f"{node_class.kind} {node_class.name}", error)
        return node_class
    annotations = {**_hash(hand, node_class), labels.RESOLVED_AT: format_time(now)}
    hand.apply(_writes(hand, node_class, status, annotations))
    known = node_class.raw["metadata"]
    metadata = {**known, "annotations": {**(known.get("annotations") or {}), **annotations}}
    return node_class_state({**node_class.raw, "metadata": metadata, "status": dict(status)}, hand.run.cloud.node_class)


def _hash(hand: Applier, node_class: NodeClassState) -> Mapping[str, str]:
    """What its nodes are made from, as a hash that each NodeClaim remembers; none if it does not validate."""
    try:
        return hand.run.cloud.annotations(node_class.raw)
    except InvalidObjectError:
        return {}  # resolving it has said so in a condition


def _writes(
    hand: Applier, node_class: NodeClassState, status: Mapping[str, Any], annotations: Mapping[str, str]
) -> Plan:
    """The status on the version that was read, then the hash and the time of this look."""
    before = node_class.raw.get("status") or {}
    ref = ObjectRef(resource=hand.run.cloud.node_class, name=node_class.name, uid=node_class.uid)
    gone = dict.fromkeys(before.keys() - status.keys())
    changes = {key: value for key, value in status.items() if before.get(key) != value} | gone
    actions = []
    if changes:
        version = str(node_class.raw["metadata"].get("resourceVersion", ""))
        why = "what its selectors mean now"
        actions.append(
            PatchObject(ref=ref, patch={"status": changes}, why=why, resource_version=version, subresource="status")
        )
    mark = {"metadata": {"annotations": dict(annotations)}}
    actions.append(PatchObject(ref=ref, patch=mark, why="its hash, and when it was resolved"))
    chain, wanted = chain_of(f"{node_class.kind} {node_class.name}", *actions), conditions_in({"status": status})
    return Plan(chains=(told_with(chain, ref, {}, node_class.conditions, wanted),))
