"""Damping: what consolidation did in vain is not tried again at once, and after each time not for twice as long.

======================================  =================================================================
in vain                                 held back
======================================  =================================================================
a node was opened again for some of     nodes with pods of the workloads that moved
the pods that moved (`regrets`)
replacements never came, or not in      replacements of the same NodePool
time (RolledBack)
======================================  =================================================================

Two minutes after the first time in six hours, then four, eight and so on, an hour at most. Without that, nodes would
come and go every minute where kube-scheduler packs otherwise than was planned, and a NodePool whose nodes cannot join
would pay for one every ten minutes. Emptiness moves nobody, and drift and interruption do not ask for the price: they
are not held back. All of it follows from the NodeDisruptions that are kept as history.

Karpenter has no such thing: there both go on for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.disruption.proposals import replacement_name
from journeyman.core.disruption.regrets import Regret, workload_of
from journeyman.core.disruption.types import Candidate, Command, DisruptionReason
from journeyman.core.state import Snapshot

MEMORY: Final = timedelta(hours=6)
SHORTEST: Final = timedelta(minutes=2)
LONGEST: Final = timedelta(hours=1)


class Hold(Struct, frozen=True, kw_only=True):
    """Nothing of the kind until then, after it was in vain so many times."""

    until: datetime
    times: int


class Damper(Struct, frozen=True, kw_only=True):
    """What is held back at one moment: workloads (`namespace/name`), and NodePools by name."""

    workloads: Mapping[str, Hold]
    node_pools: Mapping[str, Hold]

    @classmethod
    def of(cls, snapshot: Snapshot, regrets: Iterable[Regret] = ()) -> Damper:
        """What history says.

        Args:
            snapshot: The cluster with its NodeDisruptions.
            regrets: Those that are not in the NodeDisruptions yet.
        """
        fresh = {r.disruption.metadata.name: r.workloads for r in regrets}
        remembered = [d for d in snapshot.node_disruptions if is_remembered(d, snapshot.now)]
        workloads = [
            (workload, d)
            for d in remembered
            for workload in d.status.reprovisioned_workloads or fresh.get(d.metadata.name, ())
        ]
        undone = [d for d in remembered if d.status.phase == "RolledBack"]
        pools = [(pool, d) for d in undone for pool in sorted(_opened_in(d, snapshot))]
        return cls(workloads=_held(workloads, snapshot.now), node_pools=_held(pools, snapshot.now))

    def why_not(self, candidate: Candidate) -> str:
        """Why its pods are not moved now, empty if they may be."""
        held = sorted({workload_of(pod) for pod in candidate.reschedulable_pods} & self.workloads.keys())
        if not held:
            return ""
        workload = max(held, key=lambda name: (self.workloads[name].until, name))
        return (
            f"Consolidation waits {_in_words(self.workloads[workload])}: a node was opened again for pods of {workload} "
            "or others that had moved with them"
        )

    def judged(self, command: Command) -> Command:
        """The command, or one without candidates if its replacements or its pods are held back."""
        whys = (*(self._not_opened(r.node_pool) for r in command.replacements), *map(self.why_not, command.candidates))
        why = next(filter(None, whys), "")
        return Command(reason=command.reason, why_not=why) if why else command

    def _not_opened(self, node_pool: str) -> str:
        if node_pool not in self.node_pools:
            return ""
        return (
            f"Consolidation waits {_in_words(self.node_pools[node_pool])}: replacements of NodePool {node_pool} did not "
            "become ready"
        )


def is_remembered(disruption: NodeDisruption, now: datetime) -> bool:
    """Whether it may be a reason to hold something back: consolidation, of the last six hours."""
    since = _since(disruption)
    return disruption.spec.reason == DisruptionReason.UNDERUTILIZED.value and since is not None and now - since < MEMORY


def was_in_vain(disruption: NodeDisruption) -> bool:
    """Whether its end, or what came after, says so."""
    return disruption.status.phase == "RolledBack" or bool(disruption.status.reprovisioned_workloads)


def _since(disruption: NodeDisruption) -> datetime | None:
    return disruption.status.finished_at or disruption.status.started_at or disruption.since


def _opened_in(disruption: NodeDisruption, snapshot: Snapshot) -> frozenset[str]:
    """The NodePools of its replacements, which their names follow from."""
    pools = [pool.metadata.name for pool in snapshot.node_pools]
    name, stated = disruption.metadata.name, enumerate(disruption.spec.replacements)
    return frozenset(p for index, r in stated for p in pools if replacement_name(name, p, index) == r.name)


def _held(entries: Iterable[tuple[str, NodeDisruption]], now: datetime) -> dict[str, Hold]:
    """What has to wait still, by name, each counted over all its commands."""
    ends: dict[str, list[datetime]] = {}
    for name, disruption in entries:
        if (end := _since(disruption)) is not None:
            ends.setdefault(name, []).append(end)
    holds = {name: _hold(times) for name, times in sorted(ends.items())}
    return {name: hold for name, hold in holds.items() if hold.until > now}


def _hold(ends: list[datetime]) -> Hold:
    wait = min(SHORTEST * 2 ** min(len(ends) - 1, 10), LONGEST)
    return Hold(until=max(ends) + wait, times=len(ends))


def _in_words(hold: Hold) -> str:
    times = "once" if hold.times == 1 else f"{hold.times} times"
    return f"until {hold.until:%H:%M:%S} UTC, as it was in vain {times} in {MEMORY // timedelta(hours=1)} hours"
