"""Budgets: how many nodes of a NodePool may be disrupted now.

A budget without a schedule is always active. One with a schedule is active during its windows (`core.api.windows`), in the
NodePool's time zone or UTC. The active budget that allows the fewest nodes decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone, tzinfo
from typing import Final

from msgspec import Struct

from journeyman.core.api.duration import parse_duration
from journeyman.core.api.nodepool import Budget, NodePool
from journeyman.core.api.objects import is_true
from journeyman.core.api.windows import Window, zone_of
from journeyman.core.disruption.candidates import DisruptionReason, NodePoolName
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.skipped_objects import SkippedObject, evaluate
from journeyman.errors import ConfigurationError

UNLIMITED: Final = 2**31 - 1  # math.MaxInt32: no budget is active

_MAX_DIGITS: Final = 10  # of a number of nodes; more are more than UNLIMITED


class BudgetStatus(Struct, frozen=True, kw_only=True):
    """The budgets of one NodePool for one reason at one moment.

    `total` are its initialized nodes, `disrupting` those of them that are deleting, not ready or in a command, `allowed` the number
    that the budgets allow (`UNLIMITED` if none is active).
    """

    total: int
    disrupting: int
    allowed: int

    @property
    def remaining(self) -> int:
        """How many more nodes may be disrupted now."""
        return max(self.allowed - self.disrupting, 0)


def budget_status(
    snapshot: Snapshot, reason: DisruptionReason, in_commands: frozenset[str]
) -> Mapping[NodePoolName, BudgetStatus]:
    """Return the status of every NodePool's budgets for this reason, by NodePool name; budgets that cannot be evaluated allow none.

    Args:
        snapshot: The cluster; `snapshot.now` is the time.
        reason: Budgets that list other reasons only are ignored.
        in_commands: Names of NodeClaims in unfinished commands; they count as disrupting, proposed ones too.

    Restates: karpenter pkg/controllers/disruption/helpers.go `BuildDisruptionBudgetMapping`.
    Differs: a proposal reserves its budget while it waits for validation, since others may be proposed beside it.
    """
    by_pool: dict[str, list[StateNode]] = {}
    for node in snapshot.state_nodes:
        if _counts(node):
            by_pool.setdefault(node.node_pool, []).append(node)
    found: dict[NodePoolName, BudgetStatus] = {}
    for pool in snapshot.node_pools:
        name, nodes = NodePoolName(pool.metadata.name), by_pool.get(pool.metadata.name, [])
        status = evaluate(pool, _status, pool, nodes, reason, in_commands, snapshot.now)
        none_allowed = BudgetStatus(total=len(nodes), disrupting=0, allowed=0)
        found[name] = none_allowed if isinstance(status, SkippedObject) else status
    return found


def allowed_nodes(
    budgets: Iterable[Budget],
    reason: DisruptionReason,
    total: int,
    now: datetime,
    zone: tzinfo | None = timezone.utc,
) -> int:
    """Return the number of `total` nodes that the active budgets allow; `UNLIMITED` if none is active.

    Args:
        budgets: The budgets; one whose schedule does not parse allows none.
        reason: Budgets that list other reasons only are ignored.
        total: The number of nodes.
        now: The time.
        zone: The time zone of the schedules; None if it is unknown, so that budgets with a schedule allow none.

    Restates: karpenter pkg/apis/v1/nodepool.go `GetAllowedDisruptionsByReason`.
    Differs: schedules may have another time zone than UTC.
    """
    applying = (budget for budget in budgets if not budget.reasons or reason.value in budget.reasons)
    return min((_nodes_of(budget, total, now, zone) for budget in applying), default=UNLIMITED)


def window_of(budget: Budget, zone: tzinfo = timezone.utc) -> Window | None:
    """Return the windows in which the budget is active; None if it has no schedule and is always active.

    CRD validation requires a duration with every schedule. The schedule may not parse (`Window.check`).
    """
    if budget.schedule is None:
        return None
    return Window(schedule=budget.schedule, duration=parse_duration(budget.duration or "0s"), zone=zone)


def is_active(budget: Budget, now: datetime, zone: tzinfo = timezone.utc) -> bool:
    """Whether the budget is active now.

    Raises:
        ConfigurationError: The schedule does not parse.

    Restates: karpenter pkg/apis/v1/nodepool.go `Budget.IsActive`: the first firing after (now - duration) is not
    after now. That is so exactly if the last firing until now is after (now - duration).
    """
    window = window_of(budget, zone)
    return window is None or window.is_open(now)


def _counts(node: StateNode) -> bool:
    return node.managed and node.initialized and not is_true(node.conditions, "InstanceTerminating")


def _status(
    pool: NodePool, nodes: Sequence[StateNode], reason: DisruptionReason, in_commands: frozenset[str], now: datetime
) -> BudgetStatus:
    disrupting = sum(
        1
        for n in nodes
        if not n.ready or n.is_terminating or n.is_expiring or (n.claim and n.claim.metadata.name in in_commands)
    )
    allowed = allowed_nodes(pool.spec.disruption.budgets, reason, len(nodes), now, _zone_of(pool))
    return BudgetStatus(total=len(nodes), disrupting=disrupting, allowed=allowed)


def _zone_of(pool: NodePool) -> tzinfo | None:
    try:
        return zone_of(pool.metadata.annotations)
    except ConfigurationError:
        return None


def _nodes_of(budget: Budget, total: int, now: datetime, zone: tzinfo | None) -> int:
    if zone is None:
        return _share(budget.nodes, total) if budget.schedule is None else 0
    try:
        return _share(budget.nodes, total) if is_active(budget, now, zone) else UNLIMITED
    except ConfigurationError:
        return 0


def _share(nodes: str, total: int) -> int:
    """Return a number of nodes: an integer as it is, a percentage of `total` rounded up, so that 1 % allows one node."""
    if nodes.endswith("%"):
        return -(-total * int(nodes[:-1]) // 100)
    digits = nodes.lstrip("0") or "0"
    return UNLIMITED if len(digits) > _MAX_DIGITS else min(int(digits), UNLIMITED)
