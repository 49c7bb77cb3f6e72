"""Assigns topology domains to pod classes; the rules that remain afterwards are about one node alone.

Each class tries its relaxation levels in order. A row that no rule over domains concerns may go to any node. Every
other row is distributed over *cells*, the combinations of domains it can reach: on existing nodes at once, the rest as
batches that state the labels of their future node.

The order keeps repairs rare: first the classes that others must follow or avoid, among them those with the fewest
cells; then anti-affinity; then affinity, repeated until no more pods are placed. Classes whose domains overlap in part
may still invalidate each other's rules: these are placed again, and pods for which that does not help are left.

Restates: karpenter pkg/controllers/provisioning/scheduling/topologygroup.go `nextDomainTopologySpread`,
`nextDomainAffinity`, `nextDomainAntiAffinity`, scheduler.go `Solve` (the retries of its queue).
Differs: whole classes at once; an affinity's first domain is chosen by price; all domains of an anti-affinity are used
in one pass; a domain in which nothing can be launched does not count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct, field

from journeyman.core.scheduling.arrays import Ints
from journeyman.core.scheduling.domain_counts import DomainCounts, is_wide
from journeyman.core.scheduling.domain_distribution import DomainCell, distribute
from journeyman.core.scheduling.domain_supply import DomainSupply
from journeyman.core.scheduling.node_filling import NodeFilling
from journeyman.core.scheduling.problem import PartialSolution, PodBatch, SchedulingProblem
from journeyman.core.scheduling.topology import Pins, TopologyGroup

REPAIR_ROUNDS: Final = 4


class AssignedDomains(Struct, frozen=True, kw_only=True, eq=False):
    """Where pods are to go.

    Attributes:
        batches: Pods for new nodes, and those that may go anywhere, by class, relaxation level and domains.
        on_existing: By class, how many pods were placed on existing nodes.
        left: By class, how many pods no domain may take.
        reasons: By class, why that is; not where nothing could take them in the first place.
    """

    batches: tuple[PodBatch, ...]
    on_existing: Mapping[int, int]
    left: Mapping[int, int]
    reasons: Mapping[int, str]


def assign_domains(
    problem: SchedulingProblem, solution: PartialSolution, filling: NodeFilling, but: Collection[int] = ()
) -> AssignedDomains:
    """Choose domains for all pods that are not scheduled yet.

    Pods of rows whose domains matter are put on existing nodes here (`filling`, and `solution.left` is less by them); the
    batches are for the rest. Batches without pins may go wherever their row may, existing nodes included.

    Args:
        problem: What the pass is about.
        solution: What was placed before; its `ceilings` hold for batches. Classes of which pods stay behind get a word
            in `reasons`, unless there is nothing that could take them in the first place.
        filling: The existing nodes, with `solution.on_existing` in it.
        but: Classes to be left alone.

    Returns:
        Batches by class, relaxation level and pins; and by class how many pods no domain may take.
    """
    return DomainAssignment(problem, solution, filling, but).assign()


class _DomainPlacement(Struct):
    """Pods of one row in one cell: on existing nodes as (node, pods), and how many on new nodes."""

    row: int
    cell: DomainCell
    on_nodes: list[tuple[int, int]]
    new: int

    @property
    def count(self) -> int:
        """All of them."""
        return self.new + sum(n for _, n in self.on_nodes)


class _ClassProgress(Struct):
    """How far a class has come."""

    left: int
    placed: list[_DomainPlacement] = field(default_factory=list)
    anywhere: dict[int, int] = field(default_factory=dict)


class DomainAssignment:
    """The classes whose domains are being chosen, how many of their pods went where, and what each rule counts."""

    def __init__(
        self, problem: SchedulingProblem, solution: PartialSolution, filling: NodeFilling, but: Collection[int]
    ) -> None:
        self._problem = problem
        self._solution = solution
        self._filling = filling
        self._rows = problem.rows
        self._levels = problem.levels
        self._supply = DomainSupply(problem, solution, filling)
        self._domain_counts = DomainCounts(problem)
        self._classes = [_ClassProgress(0 if c in but else left) for c, left in enumerate(solution.left)]
        self._keys: dict[int, tuple[str, ...]] = {}
        self._needs: dict[int, frozenset[str]] = {}
        self._reaches_of: dict[tuple[int, str], set[str]] = {}
        self._domain_counts.enter_solution(solution)  # What was placed before

    def assign(self) -> AssignedDomains:
        """All classes, in an order of their own."""
        bound: list[int] = []
        for c, progress in enumerate(self._classes):
            if progress.left <= 0:
                continue
            if any(self._keys_of(row) for row in self._levels[c]):
                bound.append(c)
            else:
                self._place_anywhere(c)
        if bound:
            order = sorted(bound, key=self._order_of)
            self._place_all(order)
            self._replace_broken(order)
        left = {c: progress.left for c, progress in enumerate(self._classes) if progress.left > 0}
        reasons = {c: self._why(self._levels[c][-1]) for c in left}
        return AssignedDomains(
            batches=self._batches(),
            on_existing={
                c: sum(n for placed in progress.placed for _, n in placed.on_nodes)
                for c, progress in enumerate(self._classes)
            },
            left=left,
            reasons={c: why for c, why in reasons.items() if why},
        )

    # --- what concerns whom

    @cached_property
    def _hard(self) -> frozenset[bytes]:
        """The groups of rules that bind others too: not merely preferred."""
        found = {entry.group.id for entry in self._problem.repelled}
        for row in self._rows:
            groups = (*(s.group for s in row.spreads), *row.affinities, *row.anti_affinities)
            found.update(group.id for group in groups if group.id not in row.preferred_groups)
        return frozenset(found)

    def _keys_of(self, r: int) -> tuple[str, ...]:
        """The labels whose domains matter for a row, sorted."""
        found = self._keys.get(r)
        if found is None:
            counting = (group.key for group in self._domain_counts.counting(r) if group.id in self._hard)
            found = self._keys[r] = tuple(sorted(self._needed(r).union(counting)))
        return found

    def _needed(self, r: int) -> frozenset[str]:
        """The labels that the row's own rules are about."""
        found = self._needs.get(r)
        if found is None:
            row = self._rows[r]
            groups = (*(s.group for s in self._domain_counts.spreads(r)), *row.affinities, *row.anti_affinities)
            found = self._needs[r] = frozenset(group.key for group in groups if is_wide(group))
        return found

    def _affinities(self, r: int) -> list[TopologyGroup]:
        found = self._rows[r].affinities
        return [group for group in found if is_wide(group)] if found else []

    def _order_of(self, c: int) -> tuple[object, ...]:
        """When it is a class's turn."""
        r = self._levels[c][0]
        row = self._rows[r]
        wide = self._domain_counts.spreads(r)
        counting = {group.id for group in self._domain_counts.counting(r)}
        leads = all(group.id in counting for group in self._affinities(r))
        return (
            bool(self._affinities(r)),
            any(map(is_wide, row.anti_affinities)),
            not leads,
            bool(wide),
            self._supply.reach(r, self._keys_of(r), self._needed(r)) if wide else 0,
            -min((s.max_skew for s in wide), default=0),
            c,
        )

    @cached_property
    def _followers(self) -> dict[bytes, list[int]]:
        """The classes that go only where a pod is that a group counts, by group."""
        found: dict[bytes, list[int]] = {}
        for c, level_rows in enumerate(self._levels):
            if self._classes[c].left > 0:
                for group in self._affinities(level_rows[0]):
                    found.setdefault(group.id, []).append(c)
        return found

    # --- placing

    def _place_anywhere(self, c: int) -> None:
        progress = self._classes[c]
        for row in self._levels[c]:
            if self._supply.takes(row):
                progress.anywhere[row] = progress.left
                progress.left = 0
                return

    def _place_all(self, order: Sequence[int]) -> None:
        """Place class after class, and go round again for those left while that gets anywhere."""
        waiting = list(order)
        while waiting:
            before = sum(self._classes[c].left for c in waiting)
            for c in waiting:
                self._place(c)
            waiting = [c for c in waiting if self._classes[c].left]
            if sum(self._classes[c].left for c in waiting) == before:
                break

    def _place(self, c: int) -> None:
        """Place what is left of a class, down its relaxation levels."""
        progress = self._classes[c]
        for row in self._levels[c]:
            if not progress.left:
                return
            if self._keys_of(row):
                self._distribute(progress, row)
            elif self._supply.takes(row):
                progress.anywhere[row] = progress.anywhere.get(row, 0) + progress.left
                progress.left = 0

    def _distribute(self, progress: _ClassProgress, row: int) -> None:
        cells = self._admitted(row, self._cells(row))
        if not cells:
            return
        self.charge_followers(row, cells)
        rules = self._domain_counts.rules(row)
        given = distribute(
            progress.left,
            cells,
            rules,
            has_no_spread=not self._domain_counts.spreads(row),
            use_spread_slack=self._solution.use_spread_slack,
        )
        for cell, count in zip(cells, given, strict=True):
            if count:
                self._place_in(progress, row, cell, count)

    def _place_in(self, progress: _ClassProgress, row: int, cell: DomainCell, count: int) -> None:
        on_nodes = self._filling.put_first(row, min(count, cell.free_pods), cell.nodes)
        placed = _DomainPlacement(row, cell, on_nodes, count - sum(n for _, n in on_nodes))
        progress.placed.append(placed)
        progress.left -= count
        self._domain_counts.enter(row, cell.values, count, cell.pins)

    def _cells(self, row: int) -> list[DomainCell]:
        pods = self._classes[self._problem.class_of_row[row]].left
        return self._supply.cells(row, self._keys_of(row), self._needed(row), pods)

    # --- affinity

    def _admitted(self, row: int, cells: list[DomainCell]) -> list[DomainCell]:
        """The cells in which every affinity of the row finds a pod it asks for, or may be the first."""
        for group in self._affinities(row):
            pods_by_domain = self._domain_counts.pods_by_domain(group)
            inhabited = {v for v, n in pods_by_domain.items() if n > 0 and self._reaches(row, group.key, v)}
            if not inhabited and any(known.id == group.id for known in self._domain_counts.counting(row)):
                inhabited = self._first_domain(row, group, cells)
            cells = [cell for cell in cells if cell.values.get(group.key) in inhabited]
        return cells

    def _reaches(self, row: int, key: str, value: str) -> bool:
        return any(key not in term or term[key].has(value) for term in self._rows[row].terms)

    def _first_domain(self, row: int, group: TopologyGroup, cells: Sequence[DomainCell]) -> set[str]:
        """The domain that suits all who must go there best: fewest left out, then the price of all."""
        values = sorted({cell.values[group.key] for cell in cells})
        if len(values) < 2:
            return set(values)
        members = [c for c in self._followers.get(group.id, ()) if self._classes[c].left]
        costs = dict.fromkeys(values, (0, 0.0))
        for c in members:
            here = cells if self._levels[c][0] == row else self._cells(self._levels[c][0])
            for value, (lost, price) in costs.items():
                more_lost, more_price = _cost(self._classes[c].left, [x for x in here if x.values[group.key] == value])
                costs[value] = (lost + more_lost, price + more_price)
        for value in values if members else ():
            if not any(x.free_pods for x in cells if x.values[group.key] == value):
                lost, price = costs[value]
                costs[value] = lost, max(price, self._fleet_price(row, (group.key, value), members))
        orders = {value: min(x.order for x in cells if x.values[group.key] == value) for value in values}
        return {min(values, key=lambda value: (costs[value][0], orders[value], costs[value][1], value))}

    def _fleet_price(self, row: int, domain: tuple[str, str], classes: Sequence[int]) -> float:
        """What whole new nodes in a domain cost that hold all of these classes together."""
        first = [self._levels[c][0] for c in classes]
        pods = np.array([self._classes[c].left for c in classes], dtype=np.int64)
        total: Ints = pods @ self._problem.requests[first]
        return self._supply.fleet_price(row, self._keys_of(row), self._needed(row), domain, total)

    def charge_followers(self, row: int, cells: Sequence[DomainCell]) -> None:
        """Add to each cell the price of the pods that must follow the row's pods, and count those that cannot."""
        own = {group.id for group in self._affinities(row)}
        for group in self._domain_counts.counting(row):
            if group.id in own or group.id not in self._followers:
                continue
            inhabited = {value for value, n in self._domain_counts.pods_by_domain(group).items() if n > 0}
            for c in self._followers[group.id]:
                if self._classes[c].left and inhabited.isdisjoint(self._reach(c, group.key)):
                    self._charge(row, cells, c, group.key)

    def _charge(self, row: int, cells: Sequence[DomainCell], follower: int, key: str) -> None:
        theirs = self._cells(self._levels[follower][0])
        pods = self._classes[self._problem.class_of_row[row]].left
        for cell in cells:
            value = cell.values.get(key)
            lost, price = _cost(self._classes[follower].left, [x for x in theirs if x.values.get(key) == value])
            cell.apart += lost
            cell.price += price / max(pods, 1)

    def _reach(self, c: int, key: str) -> set[str]:
        """The domains that a class could be in, other pods aside; as they were when first asked."""
        known = self._reaches_of.get((c, key))
        if known is None:
            cells = self._cells(self._levels[c][0])
            known = self._reaches_of[c, key] = {cell.values[key] for cell in cells if key in cell.values}
        return known

    # --- after all are placed

    def _replace_broken(self, order: Sequence[int]) -> None:
        """Place those anew whose rules others broke; whom that does not help stays behind."""
        for _ in range(REPAIR_ROUNDS):
            upset = [c for c in order if any(self._is_broken(p) for p in self._classes[c].placed)]
            if not upset:
                return
            for c in upset:
                self._withdraw(c, self._classes[c].placed)
                self._place(c)
            self._place_all([c for c in order if self._classes[c].left])
        for _ in order:
            broken = [(c, [p for p in self._classes[c].placed if self._is_broken(p)]) for c in order]
            if not any(placed for _, placed in broken):
                return
            for c, placed in broken:
                self._withdraw(c, placed)

    def _withdraw(self, c: int, placed: Iterable[_DomainPlacement]) -> None:
        progress = self._classes[c]
        for entry in list(placed):
            progress.placed.remove(entry)
            progress.left += entry.count
            self._domain_counts.enter(entry.row, entry.cell.values, -entry.count, entry.cell.pins)
            for node, count in entry.on_nodes:
                self._filling.take_back(entry.row, node, count)

    def _is_broken(self, placed: _DomainPlacement) -> bool:
        """Whether a rule of these pods does not hold any more, now that all others are placed."""
        values = placed.cell.values
        if any(self._domain_counts.pods_by_domain(g).get(values[g.key], 0) < 1 for g in self._affinities(placed.row)):
            return True
        return self._domain_counts.is_over(placed.row, values)

    # --- the answer

    def _batches(self) -> tuple[PodBatch, ...]:
        batches: list[PodBatch] = []
        for c, progress in enumerate(self._classes):
            totals: dict[tuple[int, Pins], int] = {}
            for placed in progress.placed:
                key = (self._level(placed.row), placed.cell.pins)
                totals[key] = totals.get(key, 0) + placed.new
            for row, count in progress.anywhere.items():
                batches.append(PodBatch(row=row, count=count))
            level_rows = self._levels[c]
            batches += [
                PodBatch(row=level_rows[level], count=n, pins=pins, is_quota=True)
                for (level, pins), n in sorted(totals.items())
                if n
            ]
        return tuple(batches)

    def _level(self, row: int) -> int:
        return self._levels[self._problem.class_of_row[row]].index(row)

    def _why(self, row: int) -> str:
        """Which rule between pods keeps a row from what it could reach otherwise; empty if there is nothing at all."""
        cells = self._cells(row)
        if not cells:
            return ""
        for group in self._affinities(row):
            pods_by_domain = self._domain_counts.pods_by_domain(group)
            if not any(pods_by_domain.get(cell.values[group.key], 0) > 0 for cell in cells):
                return (
                    f"unsatisfiable pod affinity: no domain of {group.key} that it can reach holds any of the "
                    f"{group.in_words} that it asks for"
                )
        return self._domain_counts.why_blocked(row, cells)


def _cost(pods: int, cells: Sequence[DomainCell]) -> tuple[int, float]:
    """Of pods that must go to these cells: how many cannot, and the price of those that need a new node."""
    capacity = sum(cell.free_pods for cell in cells)
    new = [cell.price for cell in cells if cell.more > 0]
    needed = max(pods - capacity, 0)
    return (0, needed * min(new)) if new else (needed, 0.0)
