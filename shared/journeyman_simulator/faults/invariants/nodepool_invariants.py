"""Invariants of NodePools: disruption budgets, limits, and the replicas of static NodePools."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from journeyman.core.api.objects import NodeClaim
from journeyman_simulator.apiserver.server import Write
from journeyman_simulator.faults.invariants.checkers import InvariantChecker
from journeyman_simulator.faults.invariants.cluster_queries import (
    UID_TAG,
    claim_named,
    claims,
    has_true_condition,
    is_ours,
    is_tainted_for_disruption,
    is_terminating,
    nodes,
    pool_of,
    pools,
    staleness,
    vcpus,
)
from journeyman_simulator.faults.scenario_view import CloudEvent, ScenarioView

_UNLIMITED = 1_000_000


class _Seen(Struct, frozen=True):
    """A NodePool at a time."""

    at: datetime
    nodes: int
    budgets: list[Mapping[str, Any]]


class DisruptionBudgetsHold(InvariantChecker):
    """A NodePool's budgets are never exceeded by its disrupted nodes, for each reason.

    Nodes are disrupted while their NodeClaims carry a DisruptionReason, until they are drained and their instances terminate; after
    that they count on neither side. A run with stale information may use an earlier budget.

    Restates: karpenter pkg/controllers/disruption/helpers.go `BuildDisruptionBudgetMapping`.
    """

    name = "disruption budgets"

    def __init__(self, view: ScenarioView) -> None:
        super().__init__(view)
        self._staleness = staleness(view.scenario)
        self._taken: dict[str, str] = {}  # NodeClaims with a reason
        self._seen: dict[str, deque[_Seen]] = {}

    def check_write(self, write: Write) -> Iterator[str]:
        """Check each NodeClaim that gets a DisruptionReason."""
        if write.resource.kind == "NodeClaim":
            taken = _reason(write.result)
            fresh = taken and write.name not in self._taken and is_ours(write)
            self._note(write.name, taken)
            if fresh:
                yield from self._check(write.name, taken)
        if write.resource.kind in {"NodeClaim", "NodePool"}:
            self._remember()

    def _note(self, name: str, taken: str) -> None:
        if taken:
            self._taken[name] = taken
        else:
            self._taken.pop(name, None)

    def _check(self, name: str, reason: str) -> Iterator[str]:
        all_ = claims(self.view)
        pool = next((pool_of(claim) for claim in all_ if claim.metadata.name == name), "")
        taken = [c for c in all_ if pool_of(c) == pool and c.metadata.name in self._taken and not _has_ended(c)]
        self._remember()
        allowed = max((_allowed(seen, reason) for seen in self._seen.get(pool, ())), default=_UNLIMITED)
        if len(taken) > allowed:
            names = ", ".join(sorted(claim.metadata.name for claim in taken))
            yield f"{len(taken)} nodes of {pool} are disrupted ({names}), {allowed} allowed ({reason})"

    def _remember(self) -> None:
        """Record NodePools and budgets, for as long as a run's information may be old."""
        now = self.view.clock.now()
        for pool in pools(self.view):
            name = pool["metadata"]["name"]
            own = [claim for claim in claims(self.view) if pool_of(claim) == name]
            budgets = (pool["spec"].get("disruption") or {}).get("budgets") or [{"nodes": "10%"}]
            seen = self._seen.setdefault(name, deque())
            seen.append(_Seen(now, sum(map(_counts, own)), budgets))
            while len(seen) > 1 and seen[1].at <= now - self._staleness:
                seen.popleft()


def _counts(claim: NodeClaim) -> bool:
    return has_true_condition(claim.status.conditions, "Initialized") and not _has_ended(claim)


def _has_ended(claim: NodeClaim) -> bool:
    return has_true_condition(claim.status.conditions, "InstanceTerminating")


def _reason(claim: Mapping[str, Any]) -> str:
    conditions = (claim.get("status") or {}).get("conditions") or ()
    return next(
        (c.get("reason", "?") for c in conditions if c["type"] == "DisruptionReason" and c["status"] == "True"), ""
    )


def _allowed(seen: _Seen, reason: str) -> int:
    """Return the smallest budget that applies: a number, or a percentage of the NodePool's nodes, rounded up."""
    counting = [b for b in seen.budgets if not b.get("reasons") or reason in b["reasons"]]
    return min((_number(str(budget["nodes"]), seen.nodes) for budget in counting), default=_UNLIMITED)


def _number(nodes: str, total: int) -> int:
    if not nodes.endswith("%"):
        return int(nodes)
    whole, rest = divmod(total * int(nodes[:-1]), 100)
    return whole + (rest > 0)


class NodePoolLimitsHold(InvariantChecker):
    """A NodePool's nodes never exceed its CPU limit as of the creation of the newest NodeClaim.

    Nodes that are being replaced do not count, as in Karpenter.
    """

    name = "NodePool limits"

    def __init__(self, view: ScenarioView) -> None:
        super().__init__(view)
        self._staleness = staleness(view.scenario)
        self._limits: dict[str, deque[tuple[datetime, int]]] = {}
        self._at_creation: dict[str, int] = {}
        self._observe()

    def check_write(self, write: Write) -> Iterator[str]:
        """Record limits, and the limit at each NodeClaim's creation."""
        kind = write.resource.kind
        if kind == "NodePool":
            self._observe()
        elif kind == "NodeClaim" and write.verb == "create":
            self._observe()
            pool = write.result["metadata"].get("labels", {}).get("karpenter.sh/nodepool", "")
            limits = self._limits.get(pool, ())
            self._at_creation[write.name] = max((limit for _, limit in limits), default=_UNLIMITED)
        yield from ()

    def check_cloud_event(self, event: CloudEvent) -> Iterator[str]:
        """Sum the vCPUs at each launch."""
        claim = claim_named(self.view, event.instance.claim)
        if event.kind != "launched" or claim is None:
            return
        limit = self._at_creation.get(claim.metadata.name, _UNLIMITED)
        gone = {
            node.spec.provider_id
            for node in nodes(self.view)
            if node.metadata.deletion_timestamp or is_tainted_for_disruption(node)
        }
        standing = {
            c.metadata.uid
            for c in claims(self.view)
            if pool_of(c) == pool_of(claim) and not _is_exempt_from_limit(c, gone)
        }
        total = sum(vcpus(i.instance_type) for i in self.view.instances() if i.runs and i.tags.get(UID_TAG) in standing)
        if total > limit:
            yield f"{pool_of(claim)} has {total} vCPUs with {event.instance.instance_type} {claim.metadata.name}, the limit is {limit}"

    def _observe(self) -> None:
        now = self.view.clock.now()
        for pool in pools(self.view):
            limit = (pool["spec"].get("limits") or {}).get("cpu")
            known = self._limits.setdefault(pool["metadata"]["name"], deque())
            known.append((now, int(limit) if limit else _UNLIMITED))
            while len(known) > 1 and known[1][0] <= now - self._staleness:
                known.popleft()


def _is_exempt_from_limit(claim: NodeClaim, gone: Collection[str]) -> bool:
    """Return whether it or its node was deleted, or a command disrupts it."""
    return (
        is_terminating(claim)
        or claim.status.provider_id in gone
        or has_true_condition(claim.status.conditions, "DisruptionReason")
    )


class StaticNodePoolsKeepReplicas(InvariantChecker):
    """A static NodePool never gets more nodes than its replicas, and at rest has exactly as many.

    Nodes that are deleted or disrupted do not count: their replacements exist beside them.
    """

    name = "static NodePools keep their replicas"

    def __init__(self, view: ScenarioView) -> None:
        super().__init__(view)
        self._staleness = staleness(view.scenario)
        self._replicas: dict[str, deque[tuple[datetime, int]]] = {}
        self._observe()

    def check_write(self, write: Write) -> Iterator[str]:
        """Check each NodeClaim created for a static NodePool."""
        if write.resource.kind == "NodePool":
            self._observe()
        elif write.resource.kind == "NodeClaim" and write.verb == "create" and is_ours(write):
            self._observe()
            claim = claim_named(self.view, write.name)
            if claim is not None and pool_of(claim) in self._replicas:
                yield from self._check(pool_of(claim))

    def check_at_rest(self) -> Iterator[str]:
        """Count the nodes of static NodePools."""
        for pool in pools(self.view):
            name, replicas = pool["metadata"]["name"], _replicas(pool)
            own = [claim.metadata.name for claim in claims(self.view) if pool_of(claim) == name]
            if replicas is not None and not pool["metadata"].get("deletionTimestamp") and len(own) != replicas:
                yield f"{name} has {len(own)} nodes, replicas is {replicas} ({', '.join(sorted(own)) or 'none'})"

    def _check(self, pool: str) -> Iterator[str]:
        standing = [c.metadata.name for c in claims(self.view) if pool_of(c) == pool and not _is_being_replaced(c)]
        most = max(replicas for _, replicas in self._replicas[pool])
        if len(standing) > most:
            yield f"{pool} gets {len(standing)} nodes, replicas is {most} ({', '.join(sorted(standing))})"

    def _observe(self) -> None:
        """Record replicas, for as long as a run's information may be old."""
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
