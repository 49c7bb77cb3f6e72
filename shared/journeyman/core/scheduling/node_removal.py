"""Removes one node after another from a cluster: moves its pods to the other nodes, and undoes that.

`NodeRemovals` reads the cluster once, with every pod where it runs. A removal closes the node, subtracts its pods from
the counts of topology domains, and places its pods on the other nodes class by class, largest first, each under the
rules of its relaxation level: columns of free capacity, masks of suitable nodes, and counts by domain. Every change is
undone cell by cell, so that the next removal starts from the same cluster, and thousands of removals take the time of a
few simulations.

Where a class has fewer free slots on all other nodes together than it has pods on the node, no order of placing them
helps. Of the other pods without capacity, the scheduler might still have placed some in another order; it finds such an
order rarely.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from journeyman.core.api.objects import Pod
from journeyman.core.scheduling.arrays import Bools
from journeyman.core.scheduling.new_node_prices import NewNodePrices
from journeyman.core.scheduling.node_filling import NodeFilling, NodePods
from journeyman.core.scheduling.placement.counters import CountPart
from journeyman.core.scheduling.placement.topology_rules import Topology
from journeyman.core.scheduling.pod_classes import RowPods
from journeyman.core.scheduling.problem import ClusterInputs, SchedulingProblem, prepare_task
from journeyman.core.scheduling.results import PodError, PreferencePolicy
from journeyman.core.scheduling.topology import ABSENT, spans_nodes

NODE_CONSTRAINTS: Final = "node constraints"
_HOST_RULES: Final = "host rules"
_PREFERENCES: Final = "preferences"


class Shortage(Struct, frozen=True, kw_only=True):
    """The pods of one class that the other nodes have too little capacity for.

    Attributes:
        pod: The key (`namespace/name`) of one of these pods.
        pods: How many pods of the class are on the node.
        without_capacity: How many of them the other nodes have no capacity for, after the node's other pods took
            theirs.
        resource: What is short: a resource (`cpu`), a topology label, `host rules` (anti-affinity or spread over nodes,
            host ports, volumes), `preferences` if a new node meets more of them than the other nodes do, or `node
            constraints` if no other node meets the pods' node selector, affinity and tolerations.
        amount: How much of a resource is missing, in its base unit (milli-CPU, bytes, pods), on the node that lacks
            least; 0 if no resource is short.
        node: The name of that node; empty if no resource is short.
    """

    pod: str
    pods: int
    without_capacity: int
    resource: str
    amount: int = 0
    node: str = ""


class Removal(Struct, frozen=True, kw_only=True, eq=False):
    """What happens to the pods of a node that is removed.

    Attributes:
        left: The pods without capacity on the other nodes, by row; they need new nodes.
        least: Pods that need new nodes in whatever order pods are placed; at most those of `left`.
        domains: For each entry of `left` the values of topology labels that its rules allow on a new node.
        shortage: The first class with pods in `left`; None if all have capacity.
    """

    left: tuple[RowPods, ...]
    least: tuple[RowPods, ...]
    domains: tuple[Mapping[str, Collection[str]], ...]
    shortage: Shortage | None


_Undo = list[Callable[[], None]]
"""What takes back the changes made so far, in their order."""


class _OpenNodes(NamedTuple):
    """The nodes in a combination of domains that take pods of a row while no node is removed, in filling order."""

    values: Mapping[str, str]
    nodes: NDArray[np.integer[Any]]


class NodeRemovals:
    """The nodes of a cluster, from which one at a time is removed."""

    def __init__(
        self,
        inputs: ClusterInputs,
        moving: Mapping[str, Sequence[Pod]],
        others: Sequence[Pod],
        without_nodes: frozenset[str],
        closed: Collection[str],
    ) -> None:
        """Read the cluster, and place the other pods.

        Args:
            inputs: The cluster.
            moving: The pods that move when their node is removed, by the name of the node.
            others: Pods that are scheduled whatever is removed: pending ones, and those of nodes that are being
                deleted.
            without_nodes: Names of nodes that do not exist for the pods.
            closed: Names of nodes that take none of the moving pods.
        """
        bound = (pod for pods in moving.values() for pod in pods)
        task = prepare_task(inputs, (*bound, *others), without_nodes, are_moving=False)
        problem = task.problem
        self.problem: SchedulingProblem = problem
        self.prices = NewNodePrices(problem, task.reservations)
        self._moving = moving
        self._errors = task.errors
        self._filling = NodeFilling(problem.existing, problem.rows, problem.requests, problem.host_constraints)
        self._topology = Topology(problem)
        self._class_of_pod = {id(pod): c for c, rows in enumerate(problem.levels) for pod in problem.rows[rows[0]].pods}
        self._sequential = frozenset(problem.co_located_classes())
        last_only = problem.options.preferences is PreferencePolicy.WHEN_FREE
        self._levels = [problem.last_level(c) if last_only else rows for c, rows in enumerate(problem.levels)]
        self._parts = self._parts_of_running_pods(inputs, without_nodes)
        self._has_counts = [
            bool(self._topology.of(row).labels or self._topology.counting(row)) for row in range(len(problem.rows))
        ]
        self._node_of_name = {node.name: n for n, node in enumerate(problem.existing.nodes)}
        self._slots: dict[int, int] = {}
        self._open_nodes: dict[int, list[_OpenNodes]] = {}
        # Others with rules over domains are left out: where they go first, they could block a domain that the scheduler
        # gives to a moving pod.
        placed_first = self._classes(others)
        for c, count in sorted(placed_first.items()):
            if not any(self._has_counts[row] for row in self._levels[c]):
                self._list_open_nodes(self._levels[c])
                self._place_class(c, count, [])  # they stay
        self._open_nodes.clear()
        self._closed: Bools = np.array([node.name in closed for node in problem.existing.nodes], dtype=bool)
        for node in np.flatnonzero(self._closed).tolist():
            self._filling.close(node)

    def _classes(self, pods: Iterable[Pod]) -> Counter[int]:
        """Return the number of pods by class; those that no node can run have none."""
        return Counter(self._class_of_pod[id(pod)] for pod in pods if id(pod) in self._class_of_pod)

    def is_evaluated(self, name: str) -> bool:
        """Whether all rules of a node's moving pods are evaluated; otherwise only the scheduler can place them."""
        return self._sequential.isdisjoint(self._classes(self._moving[name]))

    def have_preferences(self, pods: Iterable[RowPods]) -> bool:
        """Whether one of these pods can give up a preference, which plans do in more ways than a removal."""
        classes = (self._levels[self.problem.class_of_row[entry.row]] for entry in pods)
        return any(sum(not self.problem.rows[row].launch_only for row in levels) > 1 for levels in classes)

    def first_error(self, name: str) -> tuple[str, PodError] | None:
        """Return the first pod of a node that no node can run, with its error; None if there is none."""
        keys = (pod.key for pod in self._moving[name]) if self._errors else ()
        return next(((key, self._errors[key]) for key in keys if key in self._errors), None)

    def remove(self, name: str) -> Removal:
        """Return what happens if a node, given by name, is removed, and undo it."""
        node = self._node_of_name.get(name)
        displaced = tuple(self._filling.taken.get(node, ())) if node is not None else ()
        counts, others = self._classes(self._moving[name]), Counter[int]()
        for row, pods in displaced:
            others[self.problem.class_of_row[row]] += pods
        self._list_open_nodes(row for c in (*counts, *others) for row in self._levels[c])
        undo: _Undo = []
        if node is not None:
            undo.append(partial(self._filling.reopen, node, self._filling.close(node)))
            for row, pods in displaced:
                self._record(row, node, -pods, undo)
        for part in self._parts.get(name, ()):
            part.add(-1)
            undo.append(partial(part.add, 1))
        left = self._move(counts, others, undo)
        rows = [row for row, _ in left]
        domains = tuple(self._domains_of_new_node(row, rows) for row in rows)
        shortage = self._shortage(left[0], name, node) if left else None
        for take_back in reversed(undo):
            take_back()
        least = self._least(counts, node) if left else ()
        return Removal(left=left, least=tuple(least), domains=domains, shortage=shortage)

    # --- moving pods

    def _move(self, counts: Counter[int], others: Counter[int], undo: _Undo) -> tuple[RowPods, ...]:
        """Place a node's pods (by class), and `others` placed there; return the node's without capacity."""
        of_class = self.problem.class_of_row
        waiting = [RowPods(self._levels[c][0], pods) for c, pods in sorted((counts + others).items())]
        while waiting:
            before = sum(pods for _, pods in waiting)
            rest = [self._place_class(of_class[row], pods, undo) for row, pods in waiting]
            waiting = [entry for entry in rest if entry.pods]
            if sum(pods for _, pods in waiting) == before or not any(self._has_counts[row] for row, _ in waiting):
                break
        missing = (RowPods(row, pods - others[of_class[row]]) for row, pods in waiting)
        return tuple(entry for entry in missing if entry.pods > 0)

    def _place_class(self, c: int, count: int, undo: _Undo) -> RowPods:
        """Place pods of a class, level by level; return those without capacity, of the last row tried."""
        rows = self._levels[c]
        for row in rows:
            count = self._place_row(row, count, undo)
            if not count or row == rows[-1] or self._is_served(row):
                return RowPods(row, count)
        return RowPods(rows[-1], count)

    def _place_row(self, row: int, count: int, undo: _Undo) -> int:
        """Place as many pods of a row as fit; return how many are left."""
        if self._topology.of(row).labels:
            while count and (node := self._best_node(row)) is not None:
                self._put(row, node, 1, undo)
                count -= 1
            return count
        for listed in self._open_nodes[row]:
            for node, most in self._still_open(row, listed):
                self._put(row, node, min(most, count), undo)
                count -= min(most, count)
                if not count:
                    return 0
        return count

    def _put(self, row: int, node: int, pods: int, undo: _Undo) -> None:
        self._filling.put(row, node, pods)
        undo.append(partial(self._filling.take_back, row, node, pods))
        self._record(row, node, pods, undo)

    def _record(self, row: int, node: int, pods: int, undo: _Undo) -> None:
        if self._has_counts[row]:
            self._topology.counts.record_existing(node, row, pods)
            undo.append(partial(self._topology.counts.record_existing, node, row, -pods))

    def _list_open_nodes(self, rows: Iterable[int]) -> None:
        """List the nodes that take pods of these rows while no node is removed, by combination of domains."""
        columns, index = self.problem.existing.columns, np.min_scalar_type(self._filling.size)
        for row in rows:
            if row not in self._open_nodes:
                slots = self._filling.slots(row)
                combinations = columns.combinations(tuple(rules.key for rules in self._topology.of(row).labels))
                is_open = [
                    (combination.decided, np.flatnonzero((slots > 0) & combination.nodes))
                    for combination in combinations
                ]
                self._open_nodes[row] = [
                    _OpenNodes(dict(decided), nodes.astype(index)) for decided, nodes in is_open if len(nodes)
                ]
                self._slots[row] = int(slots.sum())

    def _still_open(self, row: int, listed: _OpenNodes) -> Iterator[NodePods]:
        """Yield the listed nodes that still take pods of the row, each with how many."""
        for node in map(int, listed.nodes):
            if most := self._filling.slots_at(row, node):
                yield NodePods(node, most)

    def _best_node(self, row: int) -> int | None:
        """Return the first node in the emptiest of the domains that admit one more pod; None if there is none."""
        choices = self._topology.of(row).now()
        if choices is None:
            return None
        best: list[tuple[int, int]] = []
        for listed in self._open_nodes[row]:
            chosen = [(choice, listed.values.get(choice.rules.key)) for choice in choices]
            if all(choice.admits_node(value) for choice, value in chosen):
                first = next(self._still_open(row, listed), None)
                if first is not None:
                    pods = sum(choice.pods(value) for choice, value in chosen if value is not None)
                    best.append((pods, first.node))
        return min(best)[1] if best else None

    # --- pods without capacity

    def _domains_of_new_node(self, row: int, beside: Collection[int] = ()) -> Mapping[str, Collection[str]]:
        """Return the values of topology labels that the row's rules allow on a new node, as far as they restrict them.

        `beside` are the rows whose pods share that node. `ABSENT` stands for a node without the label.
        """
        found: dict[str, set[str]] = {}
        for rules in self._topology.of(row).labels:
            values = self.prices.values(rules.key)
            choice = rules.ignoring_affinity()
            allowed = {value for value in values if choice.admits(value)}
            for rule in rules.affinities:
                is_met_there = not set(self.problem.row_index.counted_by(rule.group)).isdisjoint(beside)
                options = rule.options
                if not is_met_there and (options or not rule.starts):
                    allowed &= options
            found[rules.key] = allowed if rules.needs_label else allowed | {ABSENT}
        return found

    def _is_served(self, row: int) -> bool:
        """Whether a new node takes a pod of the row, where its rules allow one."""
        return self.prices.of((RowPods(row, 1),), (self._domains_of_new_node(row),)) is not None

    def _least(self, counts: Mapping[int, int], removed: int | None) -> Iterator[RowPods]:
        """Yield the pods (given by class) that exceed the free slots of all other nodes, rules over domains aside."""
        for c in sorted(counts):
            row = self.problem.last_level(c)[0]
            free = self._slots[row]
            if free and removed is not None and self._filling.suits(row)[removed]:
                free -= self._filling.slots_at(row, removed)
            if counts[c] > free:
                yield RowPods(row, counts[c] - free)

    def _shortage(self, tried: RowPods, name: str, removed: int | None) -> Shortage:
        """Return what the pods of a class lack that were left at the row `tried`, ignoring their preferences."""
        filling, problem = self._filling, self.problem
        c = problem.class_of_row[tried.row]
        row = problem.last_level(c)[0]
        keys = [pod.key for pod in self._moving[name] if self._class_of_pod.get(id(pod)) == c]
        suits = filling.suits(row) & ~self._closed
        if removed is not None:
            suits[removed] = False
        resource, amount, node = NODE_CONSTRAINTS, 0, ""
        if suits.any():
            requested = np.flatnonzero(problem.requests[row])
            lacking = filling.missing(row, requested)
            shares = lacking / problem.requests[row][requested, None]
            largest = np.where(suits, shares.max(axis=0), np.inf)
            best = int(np.argmin(largest))
            rules = self._topology.of(row).labels
            if largest[best] > 0:
                axis = int(np.argmax(shares[:, best]))
                resource, amount = problem.axes[requested[axis]], int(lacking[axis, best])
                node = problem.existing.nodes[best].name
            elif self._best_node(row) is not None:
                resource = _PREFERENCES
            else:
                resource = rules[0].key if rules and filling.open_to(row).any() else _HOST_RULES
        return Shortage(
            pod=keys[0],
            pods=len(keys),
            without_capacity=tried.pods,
            resource=resource,
            amount=amount,
            node=node,
        )

    def _parts_of_running_pods(
        self, inputs: ClusterInputs, without_nodes: frozenset[str]
    ) -> Mapping[str, Sequence[CountPart]]:
        """Return by node name what its running pods add to counts, and the domains that only they exclude."""
        parts = dict(self._topology.counts.parts_by_node())
        inverse = self.problem.inverse_anti_affinities
        groups = {entry.group.id: entry.group for entry in inverse if spans_nodes(entry.group)}
        inventory = inputs.inventory
        excluded = {
            name: Counter((entry.group.id, entry.domain) for entry in entries if entry.group.id in groups)
            for name, entries in (
                inventory.anti_affinities(inventory.select((), without_nodes)) if groups else {}
            ).items()
        }
        total = Counter[tuple[bytes, str]]()
        for found in excluded.values():
            total.update(found)
        for name, found in excluded.items():
            only_here = [case for case, pods in found.items() if total[case] == pods]
            own = [self._topology.inverse_part(groups[group_id], domain) for group_id, domain in only_here]
            parts[name] = [*parts.get(name, ()), *own]
        return parts
