"""Regrets: consolidations after which a node had to be opened for the very pods that had moved.

kube-scheduler binds evicted pods as it sees fit, before anybody could tell it how they were thought to be packed. Where
they fit in one way only, the smaller ones may take the room of a larger, which then needs a new node; and the next look
finds that one node too many. That a command came to this is seen from outside: a claim is opened soon after for pods of
a workload that it moved. It is written into the NodeDisruption, for that claim may be gone by the next time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.api.objects import NODE_DISRUPTION, NodeClaim
from journeyman.core.disruption.types import DisruptionReason
from journeyman.core.plan import Chain, ObjectRef, PatchObject, Plan, chain_of
from journeyman.core.scheduling.claims import planned_pods
from journeyman.core.state import Snapshot

SOON: Final = timedelta(minutes=10)
"""A node opened so long after a command is put down to it, if it is for the same workload."""

JUDGED_FOR: Final = timedelta(minutes=30)
"""So long after its end a command is still looked at; consolidation looks every two minutes."""


class Regret(Struct, frozen=True, kw_only=True):
    """A command after which `claim` was opened for pods that it had moved.

    `workloads` (as `namespace/name`, sorted) are all that it moved: which of them is left without a place is kube-scheduler's
    choice, and another one the next time.
    """

    disruption: NodeDisruption
    claim: str
    workloads: tuple[str, ...]


def workload_of(pod: str) -> str:
    """What a pod belongs to, by its name alone: `namespace/name` without the last part, which its owner made up.

    Pods come back under other names, and a NodeDisruption knows them by name only.
    """
    owner, _, last = pod.rpartition("-")
    return owner if "/" in owner and last else pod


def moved_workloads(disruption: NodeDisruption) -> frozenset[str]:
    """The workloads whose pods had to find another place."""
    return frozenset(workload_of(pod) for candidate in disruption.spec.candidates for pod in candidate.pods)


def new_regrets(snapshot: Snapshot) -> tuple[Regret, ...]:
    """Commands that turn out now to have been in vain and do not say so yet, by name; the first claim opened tells."""
    recent = [d for d in snapshot.node_disruptions if _is_judged(d, snapshot.now)]
    if not recent:
        return ()
    opened = sorted(_opened(snapshot.claims), key=lambda entry: entry[:2])
    return tuple(regret for d in recent if (regret := _regret(d, opened)) is not None)


def record(regrets: Iterable[Regret]) -> Plan:
    """Write into each NodeDisruption whom it is regretted for."""
    found = tuple(regrets)
    notes = (
        f"{r.disruption.metadata.name} was in vain: NodeClaim {r.claim} was opened for pods that it had moved, "
        f"of {', '.join(r.workloads)}"
        for r in found
    )
    return Plan(chains=tuple(_written(r) for r in found), notes=tuple(notes))


def _is_judged(disruption: NodeDisruption, now: datetime) -> bool:
    """Whether it moves or moved pods for money's sake, and not so long ago that nobody would put anything down to it."""
    status = disruption.status
    if disruption.spec.reason != DisruptionReason.UNDERUTILIZED.value or status.reprovisioned_workloads:
        return False
    if status.phase == "Succeeded":
        return status.finished_at is not None and now - status.finished_at <= JUDGED_FOR
    return status.phase == "Executing"


def _opened(claims: Iterable[NodeClaim]) -> Iterator[tuple[datetime, str, frozenset[str]]]:
    """When each claim that was opened for pods was created, its name, and the workloads; replacements are none."""
    for claim in claims:
        meta = claim.metadata
        if labels.DISRUPTION in meta.annotations or meta.creation_timestamp is None:
            continue
        if workloads := frozenset(workload_of(pod) for pod in planned_pods(meta.annotations)):
            yield meta.creation_timestamp, meta.name, workloads


def _regret(disruption: NodeDisruption, opened: Iterable[tuple[datetime, str, frozenset[str]]]) -> Regret | None:
    status, moved = disruption.status, moved_workloads(disruption)
    for at, claim, workloads in opened:
        late = status.finished_at is not None and at > status.finished_at + SOON
        if status.started_at is None or at < status.started_at or late:
            continue
        if moved & workloads:
            return Regret(disruption=disruption, claim=claim, workloads=tuple(sorted(moved)))
    return None


def _written(regret: Regret) -> Chain:
    meta = regret.disruption.metadata
    patch: Mapping[str, object] = {"status": {"reprovisionedWorkloads": list(regret.workloads)[:1000]}}
    return chain_of(
        f"NodeDisruption {meta.name}",
        PatchObject(
            ref=ObjectRef(resource=NODE_DISRUPTION, name=meta.name, uid=meta.uid),
            patch=patch,
            why=f"NodeClaim {regret.claim} was opened for pods that had moved",
            resource_version=meta.resource_version,
            subresource="status",
        ),
    )
