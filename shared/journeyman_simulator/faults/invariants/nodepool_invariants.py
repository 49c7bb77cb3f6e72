"""Invariants of NodePools: disruption budgets, limits, and the replicas of static NodePools."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from msgspec import Struct

from journeyman.core.api.labels import ADOPTED, INITIALIZED
from journeyman.core.api.objects import NodeClaim
from journeyman_simulator.apiserver.server import Write
from journeyman_simulator.faults.fault_scenario import ScenarioPool
from journeyman_simulator.faults.invariants.checkers import InvariantChecker
from journeyman_simulator.faults.invariants.cluster_queries import (
    POOL_LABEL,
    UID_TAG,
    DisruptedTaints,
    can_repeat_launches,
    claim_named,
    claim_of,
    claims,
    has_true_condition,
    is_ours,
    is_tainted_for_disruption,
    is_terminating,
    nodes,
    pauses_at,
    pool_of,
    pools,
    seconds,
    skew,
    staleness,
    vcpus,
)
from journeyman_simulator.faults.manifests import START
from journeyman_simulator.faults.scenario_clouds import CLOUDS
from journeyman_simulator.faults.scenario_view import CloudEvent, ScenarioView

_UNLIMITED = 1_000_000


class _NodePoolState(Struct, frozen=True):
    """The number of nodes and the budgets of a NodePool at a time."""

    at: datetime
    nodes: int
    budgets: list[Mapping[str, Any]]


class DisruptionBudgetsHold(InvariantChecker):
    """The number of a NodePool's disrupted nodes never exceeds its budgets, for each reason.

    A node counts once its NodeClaim's condition or its own label says that it is initialized; a user may drop the condition. Expiration asks no budget. A node is disrupted from the time its NodeClaim has another DisruptionReason until it is drained and its instance terminates;
    after that it counts neither as a node nor as disrupted. A run with stale information may use an earlier budget. A budget
    with a schedule counts while it is active by the clock of any run.

    Restates: karpenter pkg/controllers/disruption/helpers.go `BuildDisruptionBudgetMapping`.
    """

    name = "disruption budgets"

    def __init__(self, view: ScenarioView) -> None:
        super().__init__(view)
        self._staleness = staleness(view.scenario)
        self._skew = skew(view.scenario)
        self._disruption_reasons: dict[str, str] = {}  # NodeClaims with a reason
        self._states: dict[str, deque[_NodePoolState]] = {}

    def check_write(self, write: Write) -> Iterator[str]:
        """Check each NodeClaim that gets a DisruptionReason."""
        if write.resource.kind == "NodeClaim":
            reason = _reason(write.result)
            reason = "" if reason == "Expired" else reason
            is_new = reason and write.name not in self._disruption_reasons and is_ours(write)
            self._record_reason(write.name, reason)
            if is_new:
                yield from self._check(write.name, reason)
        if write.resource.kind in {"NodeClaim", "NodePool"}:
            self._record_states()

    def _record_reason(self, name: str, reason: str) -> None:
        if reason:
            self._disruption_reasons[name] = reason
        else:
            self._disruption_reasons.pop(name, None)

    def _check(self, name: str, reason: str) -> Iterator[str]:
        all_ = claims(self.view)
        pool = next((pool_of(claim) for claim in all_ if claim.metadata.name == name), "")
        disrupted = [
            c for c in all_ if pool_of(c) == pool and c.metadata.name in self._disruption_reasons and not _has_ended(c)
        ]
        self._record_states()
        allowed = max((_allowed(state, reason) for state in self._states.get(pool, ())), default=_UNLIMITED)
        if len(disrupted) > allowed:
            names = ", ".join(sorted(claim.metadata.name for claim in disrupted))
            yield f"{len(disrupted)} nodes of {pool} are disrupted ({names}), {allowed} allowed ({reason})"

    def _record_states(self) -> None:
        """Record the NodePools' states, and drop those that are older than a run's information may be."""
        now = self.view.clock.now()
        labelled = {n.spec.provider_id for n in nodes(self.view) if n.metadata.labels.get(INITIALIZED) == "true"}
        counted = [pool_of(claim) for claim in claims(self.view) if _counts(claim, labelled)]
        for pool in pools(self.view):
            name = pool["metadata"]["name"]
            budgets = (pool["spec"].get("disruption") or {}).get("budgets") or [{"nodes": "10%"}]
            zone = pool["metadata"].get("annotations", {}).get("journeyman.dev/time-zone", "UTC")
            known = (now - self._staleness - self._skew, now + self._skew)
            budgets = [b for b in budgets if "schedule" not in b or _is_active_throughout(b, zone, *known)]
            states = self._states.setdefault(name, deque())
            states.append(_NodePoolState(now, counted.count(name), budgets))
            while len(states) > 1 and states[1].at <= now - self._staleness:
                states.popleft()


def _counts(claim: NodeClaim, initialized: Collection[str]) -> bool:
    """Whether the node of a claim counts, given the provider ids of Nodes with the label."""
    is_initialized = has_true_condition(claim.status.conditions, "Initialized")
    return (is_initialized or claim.status.provider_id in initialized) and not _has_ended(claim)


def _has_ended(claim: NodeClaim) -> bool:
    return has_true_condition(claim.status.conditions, "InstanceTerminating")


def _reason(claim: Mapping[str, Any]) -> str:
    conditions = (claim.get("status") or {}).get("conditions") or ()
    return next(
        (c.get("reason", "?") for c in conditions if c["type"] == "DisruptionReason" and c["status"] == "True"), ""
    )


def _allowed(state: _NodePoolState, reason: str) -> int:
    """Return the smallest budget for the reason: a number, or a percentage of the NodePool's nodes, rounded up."""
    counting = [b for b in state.budgets if not b.get("reasons") or reason in b["reasons"]]
    return min((_number(str(budget["nodes"]), state.nodes) for budget in counting), default=_UNLIMITED)


def _is_active_throughout(budget: Mapping[str, Any], zone: str, first: datetime, last: datetime) -> bool:
    """Whether a window of the budget, which opens once a day, contains both times."""
    minute, hour = map(int, budget["schedule"].split()[:2])
    length = timedelta(seconds=seconds(budget["duration"]) or 0)
    opens = first.astimezone(ZoneInfo(zone)).replace(hour=hour, minute=minute, second=0, microsecond=0)
    return any(day <= first and last < day + length for day in (opens, opens - timedelta(days=1)))


def _number(nodes: str, total: int) -> int:
    if not nodes.endswith("%"):
        return int(nodes)
    whole, rest = divmod(total * int(nodes[:-1]), 100)
    return whole + (rest > 0)


class NodePoolLimitsHold(InvariantChecker):
    """At a launch, the vCPUs of a NodePool's nodes do not exceed its CPU limit, now or at the creation of the NodeClaim.

    The higher of the two counts, since users may change the limit between them. Nodes that a command replaces do not count, as
    in Karpenter, nor those that lost the taint of one while a run was paused.
    """

    name = "NodePool limits"

    def __init__(self, view: ScenarioView) -> None:
        super().__init__(view)
        self._staleness = staleness(view.scenario)
        self._limits: dict[str, deque[tuple[datetime, int]]] = {}
        self._at_creation: dict[str, int] = {}
        self._taints = DisruptedTaints(view)
        self._observe()

    def check_write(self, write: Write) -> Iterator[str]:
        """Record limits, and the limit at each NodeClaim's creation."""
        kind = write.resource.kind
        self._taints.record(write)
        if kind == "NodePool":
            self._observe()
        elif kind == "NodeClaim" and write.verb == "create":
            self._observe()
            pool = write.result["metadata"].get("labels", {}).get("karpenter.sh/nodepool", "")
            self._at_creation[write.name] = self._highest_limit(pool)
        yield from ()

    def check_cloud_event(self, event: CloudEvent) -> Iterator[str]:
        """Sum the vCPUs at each launch."""
        claim = claim_named(self.view, event.instance.claim)
        if event.kind != "launched" or claim is None:
            return
        at_creation = self._at_creation.get(claim.metadata.name, _UNLIMITED)
        self._observe()
        limit = max(at_creation, self._highest_limit(pool_of(claim)))
        disrupted_nodes = [
            node for node in nodes(self.view) if node.metadata.deletion_timestamp or self._taints.may_seem_tainted(node)
        ]
        owners = (claim_of(self.view, node) for node in disrupted_nodes)
        disrupted = {owner.metadata.uid for owner in owners if owner is not None}
        counted = {
            c.metadata.uid
            for c in claims(self.view)
            if pool_of(c) == pool_of(claim) and not _is_exempt_from_limit(c, disrupted)
        }
        total = sum(self._vcpus_by_claim(counted).values())
        if total > limit:
            yield f"{pool_of(claim)} has {total} vCPUs with {event.instance.instance_type} {claim.metadata.name}, the limit is {limit}"

    def _vcpus_by_claim(self, uids: Collection[str]) -> dict[str, int]:
        """Return the vCPUs of these NodeClaims' instances; of the largest one where a stale list can lead to further ones."""
        cloud, found = CLOUDS[self.view.scenario.setup.cloud], dict[str, int]()
        add = max if not cloud.has_client_token and can_repeat_launches(self.view.scenario) else operator.add
        for instance in self.view.instances():
            uid = instance.tags.get(UID_TAG, "")
            if instance.runs and uid in uids:
                found[uid] = add(found.get(uid, 0), vcpus(instance.instance_type))
        return found

    def _highest_limit(self, pool: str) -> int:
        """Return the highest limit that a run which reads stale objects may see now."""
        return max((limit for _, limit in self._limits.get(pool, ())), default=_UNLIMITED)

    def _observe(self) -> None:
        now = self.view.clock.now()
        for pool in pools(self.view):
            limit = (pool["spec"].get("limits") or {}).get("cpu")
            known = self._limits.setdefault(pool["metadata"]["name"], deque())
            known.append((now, int(limit) if limit else _UNLIMITED))
            while len(known) > 1 and known[1][0] <= now - self._staleness:
                known.popleft()


def _is_exempt_from_limit(claim: NodeClaim, disrupted: Collection[str]) -> bool:
    """Whether the NodeClaim or its node was deleted, or a command disrupts it."""
    return (
        is_terminating(claim)
        or claim.metadata.uid in disrupted
        or has_true_condition(claim.status.conditions, "DisruptionReason")
    )


class ScheduleEntriesHaveWindows(InvariantChecker):
    """Each entry of the cloud's scheduler is for the start or end of a NodePool's window, or is deleted soon.

    It is deleted at the latest when a process lists the entries again. None is left whose time is past.
    """

    name = "schedule entries have windows"
    _LONGEST = timedelta(minutes=8)  # until the sweep lists them again, and up to three failed runs

    def __init__(self, view: ScenarioView) -> None:
        super().__init__(view)
        self._since: dict[str, datetime] = {}

    def check_every_minute(self) -> Iterator[str]:
        """Check each entry."""
        now = self.view.clock.now()
        existing = {pool["metadata"]["name"] for pool in pools(self.view)}
        edges = {
            edge for pool in self.view.scenario.setup.pools if pool.name in existing for edge in _edges_of_day(pool)
        }
        entries = self.view.schedule_entries()
        leaked = [name for name, at in entries.items() if at < now or f"{at:%H:%M:%S}" not in edges]
        self._since = {name: self._since.get(name, now) for name in leaked}
        for name, since in self._since.items():
            if now - since > self._LONGEST:
                yield f"entry {name} is for no window, since {since:%H:%M:%S}"


def _edges_of_day(pool: ScenarioPool) -> Iterator[str]:
    """Yield the times of day at which windows of the NodePool's hibernation and budgets start and end."""
    windows = [(pool.hibernates_at_minute, pool.hibernates_seconds)]
    windows += ((budget.opens_at_minute, budget.seconds) for budget in pool.budgets)
    for minute, length in windows:
        if length:
            opens = START + timedelta(minutes=minute)
            yield f"{opens:%H:%M:%S}"
            yield f"{opens + timedelta(seconds=length):%H:%M:%S}"


class StaticNodePoolsKeepReplicas(InvariantChecker):
    """A static NodePool never has more nodes than its replicas, and at rest has exactly as many.

    Nodes that are deleted or disrupted do not count, since their replacements exist at the same time.
    """

    name = "static NodePools keep their replicas"

    def __init__(self, view: ScenarioView) -> None:
        super().__init__(view)
        self._staleness = staleness(view.scenario)
        self._is_paused = bool(pauses_at(view.scenario, "provision: create NodeClaim"))
        self._replicas: dict[str, deque[tuple[datetime, int]]] = {}
        self._observe()

    def check_write(self, write: Write) -> Iterator[str]:
        """Check each NodeClaim created for a static NodePool.

        A run that is paused before it creates one has counted the others before; a later run deletes the surplus, as it does
        after a run of terminate adopted an instance: its pods run on until it is drained.
        """
        if write.resource.kind == "NodePool":
            self._observe()
        elif write.resource.kind == "NodeClaim" and write.verb == "create" and is_ours(write):
            self._observe()
            claim = claim_named(self.view, write.name)
            if claim is None or ADOPTED in claim.metadata.annotations:
                return
            if pool_of(claim) in self._replicas and not self._is_paused:
                yield from self._check(pool_of(claim))

    def check_at_rest(self) -> Iterator[str]:
        """Count the nodes of static NodePools; without a sweep, nothing but pods makes a run create missing ones."""
        for pool in pools(self.view):
            name, replicas = pool["metadata"]["name"], _replicas(pool)
            pool_claims = [claim.metadata.name for claim in claims(self.view) if pool_of(claim) == name]
            if replicas is None or pool["metadata"].get("deletionTimestamp"):
                continue
            is_short = len(pool_claims) < replicas and self.view.scenario.setup.sweep
            if is_short or len(pool_claims) > replicas:
                yield f"{name} has {len(pool_claims)} nodes, replicas is {replicas} ({', '.join(sorted(pool_claims)) or 'none'})"

    def _check(self, pool: str) -> Iterator[str]:
        counted = [c.metadata.name for c in claims(self.view) if pool_of(c) == pool and not _is_being_replaced(c)]
        counted += self._without_claim(pool)
        most = max(replicas for _, replicas in self._replicas[pool])
        if len(counted) > most:
            yield f"{pool} gets {len(counted)} nodes, replicas is {most} ({', '.join(sorted(counted))})"

    def _without_claim(self, pool: str) -> list[str]:
        """Return the names of the NodePool's nodes that have lost their NodeClaim; a run may not know them yet if it was paused."""
        if self._staleness:
            return []
        own = (n for n in nodes(self.view) if n.metadata.labels.get(POOL_LABEL) == pool)
        return [n.metadata.name for n in own if not is_tainted_for_disruption(n) and claim_of(self.view, n) is None]

    def _observe(self) -> None:
        """Record the replicas, and drop records that are older than a run's information may be."""
        now = self.view.clock.now()
        for pool in pools(self.view):
            replicas = _replicas(pool)
            if replicas is not None:
                known = self._replicas.setdefault(pool["metadata"]["name"], deque())
                known.append((now, replicas))
                while len(known) > 1 and known[1][0] <= now - self._staleness:
                    known.popleft()


def _replicas(pool: Mapping[str, Any]) -> int | None:
    """Return the replicas of a static NodePool; None for others."""
    replicas = pool["spec"].get("replicas")
    return None if replicas is None else int(replicas)


def _is_being_replaced(claim: NodeClaim) -> bool:
    return is_terminating(claim) or has_true_condition(claim.status.conditions, "DisruptionReason")
