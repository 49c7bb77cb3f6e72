"""Reversed consolidations: commands whose pods needed a new node after all.

A consolidation is *reversed* when a NodeClaim is created, while it executes or soon after, for pods of a workload that it
moved: kube-scheduler binds evicted pods in any order, and smaller ones may take the capacity that the simulation planned for a
larger one. A workload of which more pods were created since than were moved has grown (an autoscaler raised its replicas, or a
new template is rolled out): then the consolidation is not at fault, but its repetition would delete nodes that were just
launched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.duration import time_after
from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.api.objects import NodeClaim
from journeyman.core.disruption.candidates import DisruptionReason
from journeyman.core.disruption.commands import moved_pods
from journeyman.core.plan import Event, claim_ref
from journeyman.core.scheduling.nodeclaim_templates import parse_planned_pods
from journeyman.core.state import Snapshot
from journeyman.core.state.pod_predicates import is_active
from journeyman.core.state.pod_workload import WorkloadKey, workload_of

OBSERVED_BEYOND: Final = timedelta(minutes=20)
"""How long after the reversal window a command is still checked; the step runs every two minutes."""


class ReversedConsolidation(Struct, frozen=True, kw_only=True):
    """A command after which the NodeClaim `claim` was created for pods of a workload that it moved.

    `workloads` (sorted) are all that it moved: which of them stays unschedulable depends on kube-scheduler, and may be another
    one the next time. If `is_growth`, the workloads that needed the NodeClaim have more new pods than were moved: they grew, and
    `workloads` are only those.
    """

    disruption: NodeDisruption
    claim: NodeClaim
    at: datetime
    workloads: tuple[WorkloadKey, ...]
    is_growth: bool

    @property
    def message(self) -> str:
        """What happened, for logs and Events."""
        name, claim = self.disruption.metadata.name, self.claim.metadata.name
        named = ", ".join(map(str, self.workloads[:5]))
        more = f" and {len(self.workloads) - 5} more" if len(self.workloads) > 5 else ""
        if self.is_growth:
            return f"NodeClaim {claim} was created for {named}{more}, which grew after NodeDisruption {name} had moved its pods"
        return (
            f"NodeDisruption {name} had no effect: NodeClaim {claim} was created for pods of workloads that it had moved: "
            f"{named}{more}"
        )

    @property
    def event(self) -> Event:
        """The Event on the NodeClaim."""
        return Event(ref=claim_ref(self.claim), reason="ConsolidationReversed", message=self.message, key=self.message)


def reversed_consolidations(
    snapshot: Snapshot, window: timedelta, known: frozenset[str]
) -> Iterator[ReversedConsolidation]:
    """Yield the consolidations that a NodeClaim reverses, except the known ones, each with the first such NodeClaim."""
    observed = [
        d for d in snapshot.node_disruptions if d.metadata.name not in known and _is_observed(d, window, snapshot.now)
    ]
    if not window or not observed:
        return
    since = min(_started(d) for d in observed)
    created = sorted(_created_for_pods(snapshot, since), key=lambda c: (c.at, c.claim.metadata.name))
    if not created:
        return
    moves = [(_started(d), moved_pods(d, snapshot)) for d in snapshot.node_disruptions if d.status.started_at]
    growth = _Growth(moves=moves, created=_created_pods(snapshot, since))
    for disruption in observed:
        if (found := _reversal(disruption, created, window, growth, snapshot)) is not None:
            yield found


class _CreatedClaim(Struct, frozen=True, kw_only=True):
    """A NodeClaim that was created for pending pods, and their workloads."""

    at: datetime
    claim: NodeClaim
    workloads: frozenset[WorkloadKey]


class _Growth(Struct, frozen=True, kw_only=True):
    """When commands started and which pods they moved, and when the pods of each workload were created."""

    moves: Sequence[tuple[datetime, Mapping[WorkloadKey, int]]]
    created: Mapping[WorkloadKey, Sequence[datetime]]

    def has_grown(self, key: WorkloadKey, since: datetime) -> bool:
        """Whether more pods of the workload were created since than were moved: it has more replicas, or a new template."""
        moved = sum(pods.get(key, 0) for at, pods in self.moves if at >= since)
        return sum(1 for at in self.created.get(key, ()) if at >= since) > moved


def _is_observed(disruption: NodeDisruption, window: timedelta, now: datetime) -> bool:
    """Whether the command is a consolidation that executes or succeeded lately."""
    status = disruption.status
    if not _is_consolidation(disruption) or status.started_at is None or not disruption.spec.workloads:
        return False
    if not disruption.finished:
        return True
    is_recent = status.finished_at is not None and now - status.finished_at <= window + OBSERVED_BEYOND
    return status.phase == "Succeeded" and is_recent


def _started(disruption: NodeDisruption) -> datetime:
    assert disruption.status.started_at is not None  # noqa: S101 - the callers have checked it
    return disruption.status.started_at


def _created_for_pods(snapshot: Snapshot, since: datetime) -> Iterator[_CreatedClaim]:
    """Yield the NodeClaims that were created since, except replacements."""
    for claim in snapshot.claims:
        at = claim.metadata.creation_timestamp
        if labels.DISRUPTION in claim.metadata.annotations or at is None or at < since:
            continue
        if workloads := planned_workloads(claim, snapshot):
            yield _CreatedClaim(at=at, claim=claim, workloads=workloads)


def _created_pods(snapshot: Snapshot, since: datetime) -> Mapping[WorkloadKey, Sequence[datetime]]:
    """Return when the pods that were created since were created, by workload."""
    found: dict[WorkloadKey, list[datetime]] = {}
    for pod in snapshot.pods:
        at = pod.metadata.creation_timestamp
        if at is not None and at >= since and is_active(pod):
            found.setdefault(workload_of(pod), []).append(at)
    return found


def _reversal(
    disruption: NodeDisruption,
    created: Iterable[_CreatedClaim],
    window: timedelta,
    growth: _Growth,
    snapshot: Snapshot,
) -> ReversedConsolidation | None:
    """Return the first NodeClaim that reverses the command; else the first one for workloads that have grown."""
    started, finished = _started(disruption), disruption.status.finished_at
    moved = moved_pods(disruption, snapshot)
    growing: ReversedConsolidation | None = None
    for launch in created:
        is_late = finished is not None and launch.at > time_after(finished, window)
        if launch.at < started or is_late or not (common := moved.keys() & launch.workloads):
            continue
        is_growth = all(growth.has_grown(key, started) for key in common)
        found = ReversedConsolidation(
            disruption=disruption,
            claim=launch.claim,
            at=launch.at,
            workloads=tuple(sorted(common if is_growth else moved.keys())),
            is_growth=is_growth,
        )
        if not is_growth:
            return found
        growing = growing or found
    return growing


def planned_workloads(claim: NodeClaim, snapshot: Snapshot) -> frozenset[WorkloadKey]:
    """Return the workloads of the pods that the NodeClaim was created for, as far as these pods exist."""
    pods = snapshot.pods_by_key
    planned = ((entry, pods.get(entry.key)) for entry in parse_planned_pods(claim.metadata.annotations))
    return frozenset(workload_of(pod) for entry, pod in planned if pod is not None and entry.means(pod))


def _is_consolidation(disruption: NodeDisruption) -> bool:
    return disruption.spec.reason == DisruptionReason.UNDERUTILIZED.value
