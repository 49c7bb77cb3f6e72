"""Churn limits: what consolidation leaves alone for a while, because of what disruption has moved lately.

==========================  ==========================================================================================
payback                     a move must save, within CONSOLIDATION_PAYBACK, what it costs: a replacement is paid for while it
                            boots, a candidate while images are pulled elsewhere, and each eviction has a price
life of a saving            where new nodes are soon gone again, capacity that is given up is soon needed again: until then, a move must
                            save what the capacity of its pods costs in MOVED_TIME
reversed consolidations     after one (`reversed_consolidations`), nodes with pods of a workload that it moved stay for
                            CONSOLIDATION_REVERSAL_WINDOW, twice as long each time within six hours, at most four hours
launched nodes              a node stays for CONSOLIDATION_REVERSAL_WINDOW while pods of a workload run there for which it was
                            launched, and a replacement for CONSOLIDATION_PAYBACK: neither an autoscaler's growth nor a move is
                            reversed at once
nodes soon gone             where nodes come and go, those launched lately for pods have the taint of nodes that leave: a pod that
                            kube-scheduler can bind elsewhere is then one eviction less
evictions a day             `journeyman.dev/max-evictions-per-day` of pods caps the evictions of their workload, that of a
                            NodePool the evictions from all of its nodes
==========================  ==========================================================================================

These limits apply to consolidation (Underutilized), which moves pods only to save money. Emptiness, drift and rebalance are
counted and never limited: the first moves no pods, and the others are necessary.

Commands that have not ended count with all of their pods. A command that is validated counts beside those that have started,
and those that were proposed before it.

Differs: Karpenter has none of these limits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from statistics import median
from typing import Final, TypeVar

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.churn_ledger import HOURS
from journeyman.core.api.conditions import INITIALIZED
from journeyman.core.api.duration import time_after
from journeyman.core.api.node_disruption import MAX_WORKLOADS_LISTED, NodeDisruption
from journeyman.core.api.objects import NODEPOOL, condition_of
from journeyman.core.api.resources import CPU, MEMORY, Resources, total_requests
from journeyman.core.api.wording import counted
from journeyman.core.disruption.candidates import Candidate
from journeyman.core.disruption.churn_counts import (
    HOUR,
    RECENT_HOURS,
    ChurnCounts,
    count_churn,
)
from journeyman.core.disruption.commands import Command, moved_by_pool, moved_pods, moved_workloads
from journeyman.core.disruption.reversed_consolidations import planned_workloads
from journeyman.core.plan import Event, ObjectRef, Plan
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.pod_workload import WorkloadKey, has_invalid_max_evictions, max_evictions

K = TypeVar("K")

DEFAULT_BOOT_TIME: Final = timedelta(minutes=2)
MAX_BOOT_TIME: Final = timedelta(minutes=15)
IMAGE_PULL_TIME: Final = timedelta(seconds=30)
"""How long the moved pods occupy capacity elsewhere before they serve."""
MOVED_TIME: Final = timedelta(minutes=12)
"""A pod that moves costs what its capacity costs in this time: it restarts, and is slow until its caches are filled."""
LONGEST_LIFE: Final = timedelta(minutes=20)
"""How long a saving is expected to last at most where nodes come and go: a low rate does not say when the next node is needed."""
QUIET_INTERVALS: Final = 3
"""Intervals without a launch after which none is expected for as long again."""


class ChurnSettings(Struct, frozen=True, kw_only=True):
    """The limits' settings: 0 disables `payback` or `reversal_window`; `eviction_cost` is in the provider's currency."""

    payback: timedelta = timedelta(hours=1)
    eviction_cost: float = 0.0001
    reversal_window: timedelta = timedelta(minutes=10)


class ChurnLimits:
    """The limits in one snapshot of the cluster."""

    def __init__(
        self,
        snapshot: Snapshot,
        settings: ChurnSettings,
        *,
        validated: NodeDisruption | None = None,
        counts: ChurnCounts | None = None,
    ) -> None:
        """Prepare the limits.

        Args:
            snapshot: The cluster with its ChurnLedger and NodeDisruptions.
            settings: The limits' settings.
            validated: The proposal that is validated; neither it nor proposals after it count.
            counts: What has been counted in this cluster; None to count it when it is needed.
        """
        self._known_counts = counts
        self._snapshot = snapshot
        self._settings = settings
        self._validated = validated

    def validating(self, disruption: NodeDisruption) -> ChurnLimits:
        """Return the limits for the validation of this proposal."""
        return ChurnLimits(self._snapshot, self._settings, validated=disruption, counts=self._counts)

    def why_not(self, candidate: Candidate) -> str:
        """Return why consolidation leaves the candidate alone now, and until when; empty if it need not."""
        return self._why_held(candidate) or self._why_launched(candidate) or self._why_capped((candidate,))

    def checked(self, command: Command) -> Command:
        """Return the command, or a no-op if a limit forbids it."""
        reasons = (
            *(self._why_held(c) or self._why_launched(c) for c in command.candidates),
            self._why_capped(command.candidates),
            self._why_no_payback(command) or self._why_short_lived(command),
        )
        why = next(filter(None, reasons), "")
        return Command(reason=command.reason, why_not=why) if why else command

    def _why_held(self, candidate: Candidate) -> str:
        held = []
        for workload in candidate.workloads:
            churn = self._counts.workloads.get(workload.key)
            if churn is not None and churn.held_until is not None and churn.held_until > self._snapshot.now:
                held.append((churn.held_until, workload.key, churn.recent_reversals))
        if not held:
            return ""
        until, key, times = max(held)
        often = "once" if times == 1 else f"{times} times"
        cause = f"had no effect {often} in {RECENT_HOURS} hours" if times else "was followed by its growth"
        return (
            f"Consolidation backs off until {_time(until)} from {key}: its consolidation {cause}, and a node was "
            "launched again"
        )

    def _why_launched(self, candidate: Candidate) -> str:
        """Return that the node was launched lately for workloads that run there; a replacement for those that were moved."""
        claim, now = self._snapshot.claims_by_name.get(candidate.nodeclaim), self._snapshot.now
        if claim is None or claim.metadata.creation_timestamp is None or not candidate.workloads:
            return ""
        window = self._settings.reversal_window
        if labels.DISRUPTION in claim.metadata.annotations:  # a replacement
            window = max(window, self._settings.payback)
        until = time_after(claim.metadata.creation_timestamp, window)
        if until <= now:
            return ""
        launched_for = set(planned_workloads(claim, self._snapshot))
        if disruption := self._disruptions.get(claim.metadata.annotations.get(labels.DISRUPTION, "")):
            launched_for |= moved_pods(disruption, self._snapshot).keys()
        still_there = sorted(w.key for w in candidate.workloads if w.key in launched_for)
        if not still_there:
            return ""
        return (
            f"NodeClaim {candidate.nodeclaim} was launched for pods of {still_there[0]}, which run there: consolidation "
            f"leaves it alone until {_time(until)}"
        )

    def _why_capped(self, candidates: Sequence[Candidate]) -> str:
        """Return which workload or NodePool allows no such move now, because of its evictions in the last 24 hours."""
        moved = moved_workloads(candidates)
        if len(moved) > MAX_WORKLOADS_LISTED:
            return f"The command would move {len(moved)} workloads; a NodeDisruption lists {MAX_WORKLOADS_LISTED}"
        for workload in moved:
            if workload.limit is not None:
                evictions = self._counts.of_workload(workload.key).evictions
                planned = self._planned_by_workload[workload.key]
                if why := self._exceeded(str(workload.key), workload.limit, evictions, planned, workload.pods):
                    return why
        pods = Counter[str]()
        for candidate in candidates:
            pods[candidate.nodepool] += len(candidate.reschedulable_pods)
        for name in sorted(pods):
            if (limit := self._pool_limits.get(name)) is not None and pods[name]:
                evictions = self._counts.of_node_pool(name).evictions
                planned = self._planned_by_pool[name]
                if why := self._exceeded(f"NodePool {name}", limit, evictions, planned, pods[name]):
                    return why
        return ""

    def _exceeded(self, subject: str, limit: int, evictions: Sequence[int], planned: int, moving: int) -> str:
        if (over := sum(evictions) + planned + moving - limit) <= 0:
            return ""
        counted = f"{sum(evictions)} in the last 24 hours"
        if planned:
            counted += f", {planned} by commands in progress"
        return (
            f"{subject} allows {limit} evictions a day ({labels.MAX_EVICTIONS_PER_DAY}): {counted}, and this moves "
            f"{moving} more{self._allowed_again(evictions, over)}"
        )

    def _allowed_again(self, evictions: Sequence[int], over: int) -> str:
        """Return when enough evictions will be older than a day; empty if that is not enough."""
        for hours_ago in reversed(range(len(evictions))):
            over -= evictions[hours_ago]
            if over <= 0:
                again = time_after(self._counts.hour, (HOURS - hours_ago) * HOUR)
                return f"; possible again from {again:%Y-%m-%d %H:%M} UTC"
        return ""

    def _why_no_payback(self, command: Command) -> str:
        """Return that the move costs more than it saves within the payback time; unknown prices are not compared."""
        hours = self._settings.payback / HOUR
        if not hours or not all(c.price > 0 for c in command.candidates):
            return ""
        boot = sum(r.price * (self._boot_time(r.node_pool) / HOUR) for r in command.replacements)
        pulls = sum(c.price * (IMAGE_PULL_TIME / HOUR) for c in command.candidates if c.reschedulable_pods)
        pods = sum(len(c.reschedulable_pods) for c in command.candidates)
        cost = boot + pulls + pods * self._settings.eviction_cost
        if command.saving * hours >= cost:
            return ""
        return (
            f"The move does not pay back within {_duration(self._settings.payback)}: it saves {command.saving:.4f}/h, and costs "
            f"{cost:.4f} (boot {boot:.4f}, image pulls {pulls:.4f}, {counted(pods, 'eviction')} "
            f"{pods * self._settings.eviction_cost:.4f})"
        )

    def _why_short_lived(self, command: Command) -> str:
        """Return that the saving will be lost before it is worth that pods move, judged by what the NodePools launched lately."""
        if not all(c.price > 0 for c in command.candidates):
            return ""
        moved = sum(map(self.moved_cost, command.candidates))
        if command.saving >= moved:
            return ""
        lives = ((self._lives_of_savings.get(c.nodepool), c.nodepool) for c in command.candidates)
        life, pool = min((life, name) for life, name in lives if life is not None)
        return (
            f"The move is not worth it: it saves {command.saving:.4f}/h for about {_duration(life)}, until capacity is needed again "
            f"({self._short_lived(pool)} nodes that NodePool {pool} launched since {self._observed_since(pool):%H:%M} UTC are gone). It "
            f"must save {moved:.4f}/h, which is then what its pods' capacity costs in {_duration(MOVED_TIME)}"
        )

    def moved_cost(self, candidate: Candidate) -> float:
        """Return what moving the candidate's pods costs, per hour of the life of the saving; 0 if new nodes stay."""
        life = self._lives_of_savings.get(candidate.nodepool) if self._settings.payback else None
        return candidate.price * self._moved_share(candidate) * (MOVED_TIME / life) if life is not None else 0.0

    def nodes_soon_gone(self) -> frozenset[str]:
        """Return the names of the NodeClaims that will soon be deleted, judged by others of their NodePools that are gone.

        They were launched for pods within twice CONSOLIDATION_REVERSAL_WINDOW. Consolidation deletes such a node when it can,
        and evicts each pod that kube-scheduler has bound there meanwhile.
        """
        window = 2 * self._settings.reversal_window if self._settings.payback else timedelta(0)
        static = {pool.metadata.name for pool in self._snapshot.node_pools if pool.spec.static}
        come_and_go = {name for name, life in self._lives_of_savings.items() if life is not None} - static
        return frozenset(
            claim.metadata.name
            for claim in self._snapshot.claims
            if claim.metadata.labels.get(labels.NODEPOOL, "") in come_and_go
            and labels.DISRUPTION not in claim.metadata.annotations  # no replacement
            and claim.metadata.creation_timestamp is not None
            and time_after(claim.metadata.creation_timestamp, window) > self._snapshot.now
        )

    def _moved_share(self, candidate: Candidate) -> float:
        """Return the share of the node's capacity that its moved pods request, by the resource of which they request most."""
        node = self._snapshot.state_nodes_by_claim.get(candidate.nodeclaim)
        if node is None or not candidate.reschedulable_pods:
            return 1.0 if candidate.reschedulable_pods else 0.0
        moved = (self._snapshot.pods_by_key.get(key) for key in candidate.reschedulable_pods)
        return _requested_share(node, total_requests(pod for pod in moved if pod is not None))

    @cached_property
    def _lives_of_savings(self) -> Mapping[str, timedelta | None]:
        """`_life_of_saving` of each NodePool that has nodes: it reads all NodeClaims, and every candidate asks for it."""
        return {name: self._life_of_saving(name) for name in self._nodes_by_pool}

    def _life_of_saving(self, node_pool: str) -> timedelta | None:
        """Return how soon the NodePool needs capacity that is given up now; None if its new nodes stay.

        Capacity is needed at the rate at which new nodes come and go again, and first what is free on the nodes that stand. With
        two nodes of free capacity, and a node that is replaced by another one every ten minutes, that is in 20 minutes. The first
        node that is gone may be an exception, and is not counted.
        """
        gone = self._short_lived(node_pool) - 1
        if gone < 1:
            return None
        interval = max(self._snapshot.now - self._observed_since(node_pool), timedelta(minutes=1)) / gone
        free, quiet = max(self._free_capacity.get(node_pool, 0.0), 1.0), self._quiet_for(node_pool)
        return free * quiet if quiet >= QUIET_INTERVALS * interval else min(free * interval, LONGEST_LIFE)

    def _quiet_for(self, node_pool: str) -> timedelta:
        """Return the full hours since the NodePool last launched a node."""
        return next((hours_ago for hours_ago, number in self._recent_launches(node_pool)), 0) * HOUR

    @cached_property
    def _free_capacity(self) -> Mapping[str, float]:
        """The free capacity by NodePool, in nodes: of each node the share of CPU or memory that less is free of."""
        free: defaultdict[str, float] = defaultdict(float)
        for node in self._snapshot.state_nodes:
            if not node.is_being_disrupted:
                free[node.node_pool] += 1.0 - _requested_share(node, total_requests(node.pods))
        return free

    def _short_lived(self, node_pool: str) -> int:
        """Return how many nodes were launched in the last hours and are gone."""
        since = self._observed_since(node_pool)
        launched = sum(number for _, number in self._recent_launches(node_pool))
        alive = sum(
            claim.metadata.creation_timestamp is not None and claim.metadata.creation_timestamp >= since
            for claim in self._snapshot.claims
            if claim.metadata.labels.get(labels.NODEPOOL, "") == node_pool and claim.metadata.deletion_timestamp is None
        )
        return max(launched - alive - self._rolled_back(node_pool, since), 0)

    def _rolled_back(self, node_pool: str, since: datetime) -> int:
        """Return how many replacements were deleted because their commands failed, which says nothing about a saving's life."""
        return sum(
            len(d.spec.replacements)
            for d in self._snapshot.node_disruptions
            if d.status.phase == "RolledBack" and d.status.finished_at is not None and d.status.finished_at >= since
            if any(c.node_pool == node_pool for c in d.spec.candidates)
        )

    def _observed_since(self, node_pool: str) -> datetime:
        """Return the first of the last hours in which the NodePool launched nodes."""
        oldest = max((hours_ago for hours_ago, _ in self._recent_launches(node_pool)), default=0)
        return self._counts.hour - oldest * HOUR

    def _recent_launches(self, node_pool: str) -> list[tuple[int, int]]:
        """Return how many hours ago the NodePool launched nodes lately, and how many; the latest hour first."""
        launches = self._counts.of_node_pool(node_pool).launches[:RECENT_HOURS]
        return [(hours_ago, number) for hours_ago, number in enumerate(launches) if number]

    @cached_property
    def _nodes_by_pool(self) -> Counter[str]:
        return Counter(claim.metadata.labels.get(labels.NODEPOOL, "") for claim in self._snapshot.claims)

    def _boot_time(self, node_pool: str) -> timedelta:
        """Return the median time from creation to initialization of the NodePool's NodeClaims."""
        measured = self._boot_seconds.get(node_pool, ())
        return min(timedelta(seconds=median(measured)), MAX_BOOT_TIME) if measured else DEFAULT_BOOT_TIME

    @cached_property
    def _boot_seconds(self) -> Mapping[str, Sequence[float]]:
        found: dict[str, list[float]] = {}
        for claim in self._snapshot.claims:
            created, initialized = claim.metadata.creation_timestamp, condition_of(claim.status.conditions, INITIALIZED)
            if created is None or initialized is None or initialized.status != "True":
                continue
            if initialized.last_transition_time is not None and initialized.last_transition_time > created:
                pool = claim.metadata.labels.get(labels.NODEPOOL, "")
                found.setdefault(pool, []).append((initialized.last_transition_time - created).total_seconds())
        return found

    @cached_property
    def _counts(self) -> ChurnCounts:
        return self._known_counts or count_churn(self._snapshot, self._settings.reversal_window).counts

    @cached_property
    def _disruptions(self) -> Mapping[str, NodeDisruption]:
        return {d.metadata.name: d for d in self._snapshot.node_disruptions}

    @cached_property
    def _planned(self) -> Sequence[NodeDisruption]:
        """The commands that are not in the counters, but have moved or will move pods."""
        counted = {name for name, command in self._counts.commands.items() if command.is_counted}
        return [d for d in self._snapshot.node_disruptions if d.metadata.name not in counted and not self._is_later(d)]

    def _is_later(self, disruption: NodeDisruption) -> bool:
        """Whether the command is the validated one, or a proposal after it."""
        if self._validated is None:
            return False
        has_started = disruption.finished or disruption.status.started_at is not None
        return disruption.metadata.name == self._validated.metadata.name or (
            not has_started and _proposal_order(disruption) > _proposal_order(self._validated)
        )

    @cached_property
    def _planned_by_workload(self) -> Counter[WorkloadKey]:
        return _total(moved_pods(d, self._snapshot) for d in self._planned)

    @cached_property
    def _planned_by_pool(self) -> Counter[str]:
        return _total(moved_by_pool(d, self._snapshot) for d in self._planned)

    @cached_property
    def _pool_limits(self) -> Mapping[str, int | None]:
        return {p.metadata.name: max_evictions(p.metadata.annotations) for p in self._snapshot.node_pools}


def _requested_share(node: StateNode, requests: Resources) -> float:
    """Return the share of the node's CPU or memory that these requests are, of the one of which it is larger; at most 1."""
    allocatable = node.allocatable()
    shares = (min(requests.get(name, 0) / allocatable[name], 1.0) for name in (CPU, MEMORY) if allocatable.get(name))
    return max(shares, default=1.0)


def invalid_annotations(snapshot: Snapshot) -> Plan:
    """Return an Event on each NodePool, and on each node with pods, whose annotation of the cap is no whole number."""
    events = [
        _invalid_annotation(ObjectRef(resource=NODEPOOL, name=pool.metadata.name, uid=pool.metadata.uid), str(value))
        for pool in snapshot.node_pools
        if has_invalid_max_evictions(pool.metadata.annotations)
        for value in (pool.metadata.annotations[labels.MAX_EVICTIONS_PER_DAY],)
    ]
    for node in (
        snapshot.state_nodes if any(has_invalid_max_evictions(p.metadata.annotations) for p in snapshot.pods) else ()
    ):
        invalid = [pod for pod in node.pods if has_invalid_max_evictions(pod.metadata.annotations)]
        if node.claim is not None and invalid:
            value = invalid[0].metadata.annotations[labels.MAX_EVICTIONS_PER_DAY]
            events += [_invalid_annotation(ref, value, f" of pod {invalid[0].key}") for ref in node.object_refs]
    return Plan(events=tuple(events))


def _invalid_annotation(ref: ObjectRef, value: str, of_pod: str = "") -> Event:
    message = (
        f"{ref.resource.kind} {ref.name}: {labels.MAX_EVICTIONS_PER_DAY}{of_pod} is {value[:100]!r}, so consolidation moves "
        "none of its pods; give a whole number, such as 5"
    )
    return Event(ref=ref, reason="InvalidAnnotation", message=message, type="Warning")


def _proposal_order(disruption: NodeDisruption) -> tuple[float, str]:
    return (disruption.since.timestamp() if disruption.since is not None else 0.0, disruption.metadata.name)


def _total(counts: Iterable[Mapping[K, int]]) -> Counter[K]:
    total: Counter[K] = Counter()
    for each in counts:
        total.update(each)
    return total


def _time(at: datetime) -> str:
    return f"{at:%H:%M:%S} UTC"


def _duration(duration: timedelta) -> str:
    minutes = int(duration.total_seconds() // 60)
    return f"{minutes // 60}h{minutes % 60:02}m" if minutes >= 60 else f"{minutes}m"
