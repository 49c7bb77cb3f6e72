"""Consolidation back-off: a consolidation that had no effect is not repeated at once, and each time for longer.

======================================  =================================================================
had no effect                            backs off from
======================================  =================================================================
a node was launched for pods of a        nodes with pods of the workloads that the command moved
workload that the command moved
(a reversed consolidation)
replacements were lost or not            replacements of the same NodePool
initialized in time (RolledBack)
======================================  =================================================================

The first time within six hours backs off for two minutes, then four, eight and so on, up to an hour. Without that, nodes
would be deleted and launched every few minutes where kube-scheduler binds pods otherwise than the simulation planned, and
a NodePool whose nodes cannot register would pay for one every ten minutes. Emptiness, drift and rebalance do not back off.

kube-scheduler binds evicted pods in any order, and smaller ones may take the capacity that the simulation planned for a
larger one, which then needs a new node. So a NodeClaim that is created soon after a command, for pods of a workload that the
command moved, is its reversal. The NodeDisruption stores it, because that NodeClaim may not exist in the next run.

Differs: Karpenter has no such back-off; it repeats both without end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.duration import time_after
from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.api.objects import NODE_DISRUPTION, NodeClaim
from journeyman.core.disruption.candidates import Candidate, DisruptionReason
from journeyman.core.disruption.commands import DRAINING, REPLACING, Command, replacement_name
from journeyman.core.plan import Chain, ObjectRef, PatchObject, Plan, chain_of
from journeyman.core.scheduling.nodeclaim_templates import planned_pods
from journeyman.core.state import Snapshot

HISTORY_WINDOW: Final = timedelta(hours=6)
MIN_BACKOFF: Final = timedelta(minutes=2)
MAX_BACKOFF: Final = timedelta(hours=1)

REVERSAL_WINDOW: Final = timedelta(minutes=10)
"""How long after a command a NodeClaim for a workload that it moved counts as its reversal."""

OBSERVED_FOR: Final = timedelta(minutes=30)
"""How long after its end a command is checked for a reversal; the step runs every two minutes."""


class ReversedConsolidation(Struct, frozen=True, kw_only=True):
    """A command after which the NodeClaim `claim` was created for pods of a workload that it moved.

    `workloads` (`namespace/name`, sorted) are all that it moved: which of them stays unschedulable depends on
    kube-scheduler, and may be another one the next time.
    """

    disruption: NodeDisruption
    claim: str
    workloads: tuple[str, ...]


class BackoffEntry(Struct, frozen=True, kw_only=True):
    """Consolidation backs off until `until`, after it had no effect `times` times."""

    until: datetime
    times: int


class ConsolidationBackoff(Struct, frozen=True, kw_only=True):
    """Workloads (`namespace/name`) and NodePools (by name) from which consolidation backs off now."""

    workloads: Mapping[str, BackoffEntry]
    node_pools: Mapping[str, BackoffEntry]

    @classmethod
    def from_history(
        cls, snapshot: Snapshot, reversed_now: Iterable[ReversedConsolidation] = ()
    ) -> ConsolidationBackoff:
        """Return the back-off that follows from the NodeDisruptions.

        Args:
            snapshot: The cluster with its NodeDisruptions.
            reversed_now: Reversed consolidations that are not stored in the NodeDisruptions yet.
        """
        unstored = {r.disruption.metadata.name: r.workloads for r in reversed_now}
        history = [d for d in snapshot.node_disruptions if is_in_history(d, snapshot.now)]
        workloads = [
            (workload, d)
            for d in history
            for workload in d.status.reprovisioned_workloads or unstored.get(d.metadata.name, ())
        ]
        rolled_back = [d for d in history if d.status.phase == "RolledBack"]
        pools = [(pool, d) for d in rolled_back for pool in sorted(_replacement_pools(d, snapshot))]
        return cls(workloads=_entries(workloads, snapshot.now), node_pools=_entries(pools, snapshot.now))

    def why_not(self, candidate: Candidate) -> str:
        """Return why the candidate is not consolidated now; empty if none of its workloads is in back-off."""
        in_backoff = {workload_of(pod) for pod in candidate.reschedulable_pods} & self.workloads.keys()
        if not in_backoff:
            return ""
        workload = max(in_backoff, key=lambda name: (self.workloads[name].until, name))
        return (
            f"Consolidation backs off {_describe(self.workloads[workload])}: a node was launched again for pods of "
            f"{workload} or of workloads that moved with it"
        )

    def checked(self, command: Command) -> Command:
        """Return the command, or a no-op if a NodePool of its replacements or a workload of its candidates is in back-off."""
        reasons = (
            *(self._why_no_replacement(r.node_pool) for r in command.replacements),
            *map(self.why_not, command.candidates),
        )
        why = next(filter(None, reasons), "")
        return Command(reason=command.reason, why_not=why) if why else command

    def _why_no_replacement(self, node_pool: str) -> str:
        if node_pool not in self.node_pools:
            return ""
        return (
            f"Consolidation backs off {_describe(self.node_pools[node_pool])}: replacements of NodePool {node_pool} were "
            "not initialized"
        )


# -- the history ------------------------------------------------------------------------------------------------------


def is_in_history(disruption: NodeDisruption, now: datetime) -> bool:
    """Whether the command is a consolidation of the last six hours."""
    end = _end(disruption)
    is_consolidation = disruption.spec.reason == DisruptionReason.UNDERUTILIZED.value
    return is_consolidation and end is not None and now - end < HISTORY_WINDOW


def had_no_effect(disruption: NodeDisruption) -> bool:
    """Whether the command was rolled back or reversed."""
    return disruption.status.phase == "RolledBack" or bool(disruption.status.reprovisioned_workloads)


def _end(disruption: NodeDisruption) -> datetime | None:
    return disruption.status.finished_at or disruption.status.started_at or disruption.since


def _replacement_pools(disruption: NodeDisruption, snapshot: Snapshot) -> frozenset[str]:
    """Return the NodePools of the replacements, whose names are derived from them."""
    pools = [pool.metadata.name for pool in snapshot.node_pools]
    name, replacements = disruption.metadata.name, enumerate(disruption.spec.replacements)
    return frozenset(p for index, r in replacements for p in pools if replacement_name(name, p, index) == r.name)


def _entries(commands: Iterable[tuple[str, NodeDisruption]], now: datetime) -> dict[str, BackoffEntry]:
    """Return the entries that have not expired, by name, each counted over all its commands."""
    ends: dict[str, list[datetime]] = {}
    for name, disruption in commands:
        if (end := _end(disruption)) is not None:
            ends.setdefault(name, []).append(end)
    entries = {name: _entry(times) for name, times in sorted(ends.items())}
    return {name: entry for name, entry in entries.items() if entry.until > now}


def _entry(ends: list[datetime]) -> BackoffEntry:
    wait = min(MIN_BACKOFF * 2 ** min(len(ends) - 1, 10), MAX_BACKOFF)
    return BackoffEntry(until=time_after(max(ends), wait), times=len(ends))


def _describe(entry: BackoffEntry) -> str:
    times = "once" if entry.times == 1 else f"{entry.times} times"
    return (
        f"until {entry.until:%H:%M:%S} UTC, as it had no effect {times} in {HISTORY_WINDOW // timedelta(hours=1)} hours"
    )


# -- reversed consolidations ------------------------------------------------------------------------------------------


def workload_of(pod: str) -> str:
    """Return the workload of a pod key: `namespace/name` without the generated last part of the name.

    Evicted pods come back under other names, and a NodeDisruption has only their names.
    """
    owner, _, last = pod.rpartition("-")
    return owner if "/" in owner and last else pod


def moved_workloads(disruption: NodeDisruption) -> frozenset[str]:
    """Return the workloads whose pods had to be rescheduled."""
    return frozenset(workload_of(pod) for candidate in disruption.spec.candidates for pod in candidate.pods)


def find_reversed(snapshot: Snapshot) -> tuple[ReversedConsolidation, ...]:
    """Return the reversed commands that are not stored as such, by name, each with the first NodeClaim that reverses it."""
    recent = [d for d in snapshot.node_disruptions if _is_observed(d, snapshot.now)]
    if not recent:
        return ()
    created = sorted(_created_for_pods(snapshot.claims), key=lambda c: (c.at, c.name))
    return tuple(found for d in recent if (found := _reversal(d, created)) is not None)


def record_reversed(found: Iterable[ReversedConsolidation]) -> Plan:
    """Return the plan that stores `reprovisionedWorkloads` in each NodeDisruption."""
    found = tuple(found)
    notes = (
        f"{r.disruption.metadata.name} had no effect: NodeClaim {r.claim} was created for pods that it had moved, "
        f"of {', '.join(r.workloads)}"
        for r in found
    )
    return Plan(chains=tuple(_reprovisioned_patch(r) for r in found), notes=tuple(notes))


class _CreatedClaim(Struct, frozen=True, kw_only=True):
    """A NodeClaim that was created for pending pods, and their workloads."""

    at: datetime
    name: str
    workloads: frozenset[str]


def _is_observed(disruption: NodeDisruption, now: datetime) -> bool:
    """Whether the command is a consolidation that executes or succeeded lately, and is not stored as reversed."""
    status = disruption.status
    if disruption.spec.reason != DisruptionReason.UNDERUTILIZED.value or status.reprovisioned_workloads:
        return False
    if status.phase == "Succeeded":
        return status.finished_at is not None and now - status.finished_at <= OBSERVED_FOR
    return status.phase in (REPLACING, DRAINING)


def _created_for_pods(claims: Iterable[NodeClaim]) -> Iterator[_CreatedClaim]:
    for claim in claims:
        meta = claim.metadata
        if labels.DISRUPTION in meta.annotations or meta.creation_timestamp is None:
            continue  # a replacement
        if workloads := frozenset(workload_of(pod) for pod in planned_pods(meta.annotations)):
            yield _CreatedClaim(at=meta.creation_timestamp, name=meta.name, workloads=workloads)


def _reversal(disruption: NodeDisruption, created: Iterable[_CreatedClaim]) -> ReversedConsolidation | None:
    status, moved = disruption.status, moved_workloads(disruption)
    for claim in created:
        is_late = status.finished_at is not None and claim.at > time_after(status.finished_at, REVERSAL_WINDOW)
        if status.started_at is None or claim.at < status.started_at or is_late:
            continue
        if moved & claim.workloads:
            return ReversedConsolidation(disruption=disruption, claim=claim.name, workloads=tuple(sorted(moved)))
    return None


def _reprovisioned_patch(found: ReversedConsolidation) -> Chain:
    meta = found.disruption.metadata
    patch: Mapping[str, object] = {"status": {"reprovisionedWorkloads": list(found.workloads)[:1000]}}
    return chain_of(
        f"NodeDisruption {meta.name}",
        PatchObject(
            ref=ObjectRef(resource=NODE_DISRUPTION, name=meta.name, uid=meta.uid),
            patch=patch,
            why=f"NodeClaim {found.claim} was created for pods that had moved",
            resource_version=meta.resource_version,
            subresource="status",
        ),
    )
