"""Budgets: how many nodes of a NodePool may be disrupted now, and when that number may change.

A budget without a schedule is always active. One with a schedule is active during its windows: from each firing of its
cron expression (UTC) for its duration. The active budget that allows the fewest nodes decides.

No firing is read but those near now, so that neither the age of a schedule nor its frequency costs time.

::

    schedule  0 9 * * mon-fri     |firing                    |firing
    duration  8h                  [==== window ====)         [==== window ====)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Final

from cronsim import CronSim, CronSimError
from msgspec import Struct

from journeyman.core.api.duration import parse_duration, time_after
from journeyman.core.api.nodepool import Budget, NodePool
from journeyman.core.api.objects import is_true
from journeyman.core.disruption.candidates import DisruptionReason, NodePoolName
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.guard import SkippedObject, evaluate
from journeyman.errors import ConfigurationError

UNLIMITED: Final = 2**31 - 1  # math.MaxInt32: no budget is active

MACROS: Final[Mapping[str, str]] = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}  # robfig/cron `ParseStandard`, which Karpenter uses

WINDOW_HORIZON: Final = timedelta(days=1)
_MINUTE: Final = timedelta(minutes=1)
_MAX_DIGITS: Final = 10  # of a number of nodes; more are more than UNLIMITED
_MAX_SCHEDULE: Final = 10_000  # characters
EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


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


def allowed_nodes(budgets: Iterable[Budget], reason: DisruptionReason, total: int, now: datetime) -> int:
    """Return the number of `total` nodes that the active budgets allow; `UNLIMITED` if none is active.

    A budget whose schedule does not parse allows none.

    Restates: karpenter pkg/apis/v1/nodepool.go `GetAllowedDisruptionsByReason`.
    """
    return min(
        (_nodes_of(b, total, now) for b in budgets if not b.reasons or reason.value in b.reasons), default=UNLIMITED
    )


def schedule_error(budget: Budget) -> str:
    """Return why a budget's schedule does not parse; empty if it does, or there is none."""
    try:
        _cron(budget, EPOCH)
    except ConfigurationError as error:
        return str(error)
    return ""


def is_active(budget: Budget, now: datetime) -> bool:
    """Whether the budget is active now.

    Raises:
        ConfigurationError: The schedule does not parse.

    Restates: karpenter pkg/apis/v1/nodepool.go `Budget.IsActive`: the first firing after (now - duration) is not
    after now. That is so exactly if the last firing until now is after (now - duration).
    """
    if budget.schedule is None:
        return True
    last = _last_firing(budget, now)
    return last is not None and now - last < _duration(budget)


def has_opened(budgets: Iterable[Budget], since: datetime, now: datetime) -> bool:
    """Whether a window of a scheduled budget has opened after `since`; a schedule that does not parse has no windows.

    Adjacent and overlapping windows of one budget are one window.
    """
    scheduled = (budget for budget in budgets if budget.schedule is not None and not schedule_error(budget))
    return any(_has_opened(budget, since, now) for budget in scheduled)


def next_window_change(budgets: Iterable[Budget], now: datetime) -> datetime | None:
    """Return when a window next opens or closes; None if not within a day.

    Adjacent and overlapping windows of one budget are one window. A step requeues itself for this time. For later changes
    the sweep starts it long before.
    """
    horizon = now + WINDOW_HORIZON
    scheduled = (budget for budget in budgets if budget.schedule is not None and not schedule_error(budget))
    edges = (edge for budget in scheduled if (edge := _next_edge(budget, now, horizon)) is not None)
    return min(edges, default=None)


def _has_opened(budget: Budget, since: datetime, now: datetime) -> bool:
    firing = _last_firing(budget, now)
    while firing is not None and firing > since:
        previous = _last_firing(budget, firing - _MINUTE)
        if previous is None or firing - previous > _duration(budget):
            return True
        firing = previous
    return False


def _next_edge(budget: Budget, now: datetime, horizon: datetime) -> datetime | None:
    """Return when the budget's window next opens or closes; None if not before the horizon.

    It reads only firings until then, however long the window has been open.
    """
    last, duration = _last_firing(budget, now), _duration(budget)
    is_open = last is not None and now - last < duration
    edge = time_after(last, duration) if last is not None and is_open else None
    for firing in _cron(budget, now):
        if edge is None:
            return firing if firing < horizon else None
        if firing > edge or edge >= horizon:
            break
        edge = time_after(firing, duration)
    return edge if edge is not None and edge < horizon else None


def _counts(node: StateNode) -> bool:
    return node.managed and node.initialized and not is_true(node.conditions, "InstanceTerminating")


def _status(
    pool: NodePool, nodes: Sequence[StateNode], reason: DisruptionReason, in_commands: frozenset[str], now: datetime
) -> BudgetStatus:
    disrupting = sum(
        1 for n in nodes if not n.ready or n.is_terminating or (n.claim and n.claim.metadata.name in in_commands)
    )
    allowed = allowed_nodes(pool.spec.disruption.budgets, reason, len(nodes), now)
    return BudgetStatus(total=len(nodes), disrupting=disrupting, allowed=allowed)


def _nodes_of(budget: Budget, total: int, now: datetime) -> int:
    try:
        return _share(budget.nodes, total) if is_active(budget, now) else UNLIMITED
    except ConfigurationError:
        return 0


def _share(nodes: str, total: int) -> int:
    """Return a number of nodes: an integer as it is, a percentage of `total` rounded up, so that 1 % allows one node."""
    if nodes.endswith("%"):
        return -(-total * int(nodes[:-1]) // 100)
    digits = nodes.lstrip("0") or "0"
    return UNLIMITED if len(digits) > _MAX_DIGITS else min(int(digits), UNLIMITED)


def _duration(budget: Budget) -> timedelta:
    """Return the length of a window; CRD validation requires a duration with every schedule."""
    return parse_duration(budget.duration or "0s")


def _last_firing(budget: Budget, until: datetime) -> datetime | None:
    """Return the last firing that is not after a time; None if there is none in the 50 years before it."""
    minute = until.astimezone(timezone.utc).replace(second=0, microsecond=0)
    return next(_cron(budget, minute + _MINUTE, reverse=True), None)


def _cron(budget: Budget, after: datetime, *, reverse: bool = False) -> Iterator[datetime]:
    """Return the firings strictly after a time, in order, or those before it, last first; none without a schedule."""
    if budget.schedule is None:
        return iter(())
    expression = MACROS.get(budget.schedule.strip().lower(), budget.schedule).replace("?", "*")
    if len(expression) > _MAX_SCHEDULE or len(expression.split()) != 5:
        raise ConfigurationError("a budget's schedule is five cron fields or a macro", schedule=budget.schedule)
    try:
        return CronSim(expression, after.astimezone(timezone.utc), reverse=reverse)
    except CronSimError as error:
        raise ConfigurationError(
            "a budget's schedule does not parse", schedule=budget.schedule, why=str(error)
        ) from error
