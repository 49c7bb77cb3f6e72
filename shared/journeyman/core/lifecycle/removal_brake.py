"""The brake on removals for inconsistency: what looks lost is removed late, and never much of the fleet within an hour.

::

    looks lost ─► recorded in the FleetGuard with the time ─► has it looked lost for long enough?
               ─► at most the larger of 2 and 10 % of the fleet within an hour: recorded as removed, then removed
               └─► more than that: held, with an Event, a metric and an alarm

Wiped NodeClaims, an API server restored from a backup, or credentials for another account look as if the whole fleet were lost.
Karpenter has no such brake: it removes all of it at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api.fleet_guard import GUARD_NAME, MAX_LOST, FleetGuard, FleetGuardStatus, LostKind, LostObject
from journeyman.core.api.objects import FLEET_GUARD, NAMESPACE
from journeyman.core.plan import (
    Action,
    Chain,
    CreateObject,
    Event,
    ObjectRef,
    Observation,
    PatchObject,
    Plan,
    Requeue,
    Step,
    chain_of,
    merge_plans,
)
from journeyman.core.state import Snapshot

WINDOW: Final = timedelta(hours=1)
"""How long a removal counts."""
MIN_REMOVALS: Final = 2
SHARE: Final = 10
"""The fleet divided by this may be removed within `WINDOW`, if that is more than `MIN_REMOVALS`."""
_NAMES_SHOWN: Final = 5
DEFAULT_NAMESPACE: Final = ObjectRef(resource=NAMESPACE, name="default")


class Lost(Struct, frozen=True, kw_only=True):
    """An object that looks lost, and how to remove it once it has looked so for `wait`."""

    kind: LostKind
    name: str
    uid: str = ""
    wait: timedelta
    removal: Plan

    @property
    def key(self) -> tuple[str, str, str]:
        """What identifies it."""
        return self.kind, self.name, self.uid


def removable(fleet: int) -> int:
    """Return how many lost objects of a fleet of so many nodes may be removed within `WINDOW`."""
    return min(max(MIN_REMOVALS, fleet // SHARE), MAX_LOST // 2)


def remove_lost(lost: Iterable[Lost], fleet: int, snapshot: Snapshot) -> Plan:
    """Remove what has looked lost for long enough, as far as the brake allows; record the rest.

    Args:
        lost: What looks lost now, any order.
        fleet: The number of nodes of the fleet, of which a part may be removed.
        snapshot: The FleetGuard.

    Returns:
        The removals, each behind the write of the FleetGuard that counts it; nothing if the FleetGuard cannot be read.
    """
    if FLEET_GUARD.kind in snapshot.unread:
        return Plan()
    found = {one.key: one for one in sorted(lost, key=lambda one: one.key)}
    guard, now = snapshot.fleet_guard or FleetGuard(), snapshot.now
    entries = _entries(found, guard, now)
    removed = [entry for entry in entries if entry.removed_at is not None and entry.removed_at > now - WINDOW]
    due = sorted(
        (e for e in entries if e.removed_at is None and now - e.since >= found[e.key].wait),
        key=lambda e: (e.since, e.key),
    )
    left = max(removable(fleet) - len(removed), 0)
    chosen, held = due[:left], due[left:]
    message = _message(held, found, fleet) if held else ""
    entries = [e.model_copy(update={"removed_at": now}) if e in chosen else e for e in entries]
    status = FleetGuardStatus(
        lost=tuple(entries), held_since=(guard.status.held_since or now) if held else None, message=message
    )
    first = merge_plans(found[entry.key].removal for entry in chosen)
    again = merge_plans(
        found[e.key].removal
        for e in entries
        if e.key in found and e.removed_at and e not in chosen and e.removed_at < now
    )
    recorded = _record(status, first.chains, snapshot)
    requeues = tuple(_requeues(entries, found, removed, held, now))
    reports = _reports(held, message)
    waits = Plan(chains=(chain_of(_SUBJECT, *requeues),)) if requeues else Plan()
    return merge_plans((recorded, replace(first, chains=()), again, waits, reports))


_SUBJECT: Final = f"FleetGuard {GUARD_NAME}"


def _entries(found: Mapping[tuple[str, str, str], Lost], guard: FleetGuard, now: datetime) -> list[LostObject]:
    """Return the entries of what looks lost now, and of what was removed within `WINDOW`; the oldest first, at most `MAX_LOST`."""
    stored = {entry.key: entry for entry in guard.status.lost}
    removed = [e for e in guard.status.lost if e.key not in found and e.removed_at and e.removed_at > now - WINDOW]
    lost = [
        stored[key].model_copy(update={"since": min(stored[key].since, now)})
        if key in stored
        else LostObject(kind=one.kind, name=one.name, uid=one.uid, since=now)
        for key, one in found.items()
    ]
    ordered = sorted((*removed, *lost), key=lambda e: (e.removed_at is None, e.since, e.key))
    return sorted(ordered[:MAX_LOST], key=lambda e: e.key)


def _record(status: FleetGuardStatus, removals: tuple[Chain, ...], snapshot: Snapshot) -> Plan:
    """Write the status, then remove what it counts as removed; nothing if it has not changed."""
    stored = snapshot.fleet_guard
    if stored is not None and stored.status == status:
        return Plan()
    if stored is None and not status.lost:
        return Plan()
    why = "what looks lost has changed"
    wire = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    patch = {"status": {"heldSince": None, "message": "", **wire}}
    actions: tuple[Action, ...] = ()
    meta = stored.metadata if stored is not None else None
    if meta is None:
        body: dict[str, Any] = {
            "apiVersion": FLEET_GUARD.api_version,
            "kind": FLEET_GUARD.kind,
            "metadata": {"name": GUARD_NAME},
        }
        actions = (CreateObject(resource=FLEET_GUARD, body=body, why=why),)
    uid, version = (meta.uid, meta.resource_version) if meta is not None else ("", "")
    ref = ObjectRef(resource=FLEET_GUARD, name=GUARD_NAME, uid=uid)
    written = PatchObject(ref=ref, patch=patch, why=why, resource_version=version, subresource="status")
    return Plan(chains=(replace(chain_of(_SUBJECT, *actions, written), then=removals),))


def _requeues(
    entries: Iterable[LostObject],
    found: Mapping[tuple[str, str, str], Lost],
    removed: Sequence[LostObject],
    held: Sequence[LostObject],
    now: datetime,
) -> Iterable[Requeue]:
    """Yield when the step is to run again: once the first object has looked lost for long enough, or the brake allows the next removal."""
    waiting = [e.since + found[e.key].wait for e in entries if e.removed_at is None and e.key in found]
    later = [at for at in waiting if at > now]
    if later:
        yield Requeue(step=Step.TERMINATE, at=min(later), reason="what looks lost may be removed")
    if held and removed:
        frees = min(e.removed_at for e in removed if e.removed_at is not None) + WINDOW
        yield Requeue(step=Step.TERMINATE, at=frees, reason="more of what looks lost may be removed")


def _message(held: Sequence[LostObject], found: Mapping[tuple[str, str, str], Lost], fleet: int) -> str:
    names = ", ".join(f"{e.kind} {e.name}" for e in held[:_NAMES_SHOWN])
    more = f" and {len(held) - _NAMES_SHOWN} more" if len(held) > _NAMES_SHOWN else ""
    return (
        f"{len(held)} of what looks lost is not removed: at most {removable(fleet)} of {fleet} nodes are removed within an hour "
        f"because something is missing. Looks lost: {names}{more}. Check that no NodeClaims were wiped, that the API server was not "
        f"restored from a backup, and that the cluster's register entry and its cloud account are right; then create what is "
        f"missing again, or delete these Nodes, NodeClaims and instances yourself if they are not needed"
    )


def _reports(held: Sequence[LostObject], message: str) -> Plan:
    """Return the Event, the log line and the metric of what is held; nothing if nothing is."""
    if not held:
        return Plan()
    return Plan(
        events=(Event(ref=DEFAULT_NAMESPACE, reason="RemovalsHeld", message=message, type="Warning"),),
        observations=(Observation(name="journeyman_lost_objects_held", value=float(len(held)), kind="gauge"),),
        notes=(message,),
    )
