"""Removes one node after another from a cluster: moves its pods to the other nodes, and undoes that.

`NodeRemovals` reads the cluster once, with every pod where it runs. A removal closes the node, subtracts its pods from the
counts of topology domains, and places its pods on the other nodes class by class, largest first, each under the rules of
its relaxation level: columns of free capacity, masks of suitable nodes, and counts by domain. Every change is undone cell by
cell, so that the next removal starts from the same cluster, and thousands of removals take the time of a few simulations.

Where a class has fewer free slots on all other nodes together than it has pods on the node, no order of placing them helps.
Of the other pods without capacity, the scheduler might still have placed some in another order; it finds such an order rarely.

`NewNodePrices` finds the cheapest offering of a single new node for some pods: one `&` of bit masks per pod class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from journeyman.core.api import labels
from journeyman.core.api.objects import Pod
from journeyman.core.scheduling.arrays import Bools, Ints
from journeyman.core.scheduling.bulk_scheduling import co_located_classes
from journeyman.core.scheduling.node_filling import NodeFilling
from journeyman.core.scheduling.nodepool_options import NodeDemand
from journeyman.core.scheduling.offering_masks import OfferingMasks, as_mask
from journeyman.core.scheduling.offerings import Reservations
from journeyman.core.scheduling.placement.counters import CountPart
from journeyman.core.scheduling.placement.topology_rules import DomainChoice, Topology
from journeyman.core.scheduling.pod_classes import RowPods
from journeyman.core.scheduling.problem import ClusterInputs, SchedulingProblem, prepare_task
from journeyman.core.scheduling.results import PodError, PreferencePolicy
from journeyman.core.scheduling.topology import ABSENT, spans_nodes

_LISTED: Final = 48  # nodes of a combination of domains; most pods find capacity on the first of them
NODE_CONSTRAINTS: Final = "node constraints"
_HOST_RULES: Final = "host rules"
_PREFERENCES: Final = "preferences"


class Shortage(Struct, frozen=True, kw_only=True):
    """The pods of one class that the other nodes have too little capacity for.

    Attributes:
        pod: The key (`namespace/name`) of one of these pods.
        pods: How many pods of the class are on the node.
        without_capacity: How many of them the other nodes have no capacity for, after the node's other pods took theirs.
        resource: What is short: a resource (`cpu`), a topology label, `host rules` (anti-affinity or spread over nodes, host
            ports, volumes), `preferences` if a new node meets more of them than the other nodes do, or `node constraints` if
            no other node meets the pods' node selector, affinity and tolerations.
        amount: How much of a resource is missing, in its base unit (milli-CPU, bytes, pods), on the node that lacks least;
            0 if no resource is short.
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


_ALL_FIT: Final = Removal(left=(), least=(), domains=(), shortage=None)


class _OpenNodes(Struct, frozen=True):
    """The first nodes in a combination of domains that take pods of a row while no node is removed.

    Attributes:
        values: The combination of domains, by label.
        nodes: The nodes, in filling order.
        slots: How many pods of the row each of them takes.
        is_complete: Whether these are all such nodes.
    """

    values: Mapping[str, str]
    nodes: Sequence[int]
    slots: Sequence[int]
    is_complete: bool


class _Moved(NamedTuple):
    """Pods of a row that were placed on a node."""

    row: int
    node: int
    pods: int


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
            others: Pods that are scheduled whatever is removed: pending ones, and those of nodes that are being deleted.
            without_nodes: Names of nodes that do not exist for the pods.
            closed: Names of nodes that take none of the moving pods.
        """
        bound = (pod for pods in moving.values() for pod in pods)
        task = prepare_task(inputs, (*bound, *others), without_nodes, are_moving=False)
        self.problem: SchedulingProblem = task.problem
        problem = self.problem
        self._filling = NodeFilling(problem.existing, problem.rows, problem.requests, problem.host_constraints)
        self._topology = Topology(problem)
        self._parts = self._topology.counts.parts_by_node()
        class_of_pod = {id(pod): c for c, rows in enumerate(problem.levels) for pod in problem.rows[rows[0]].pods}
        self._moving = {
            name: tuple((class_of_pod[id(pod)], pod.key) for pod in pods if id(pod) in class_of_pod)
            for name, pods in moving.items()
        }
        self._failing = {
            name: failing[0]
            for name, pods in (moving.items() if task.errors else ())
            if (failing := [(pod.key, task.errors[pod.key]) for pod in pods if pod.key in task.errors])
        }
        self._sequential = frozenset(co_located_classes(problem))
        self._levels = _levels(problem)
        self._inverse_parts = self._parts_of_anti_affinity(inputs, without_nodes)
        self._has_counts = [
            bool(self._topology.of(row).labels or self._topology.counting(row)) for row in range(len(problem.rows))
        ]
        self._node_of_name = {node.name: n for n, node in enumerate(problem.existing.nodes)}
        self._slots: dict[int, tuple[NDArray[np.uint16], int]] = {}
        self._open_nodes: dict[int, tuple[_OpenNodes, ...]] = {}
        self._removed: int | None = None
        self._prices = NewNodePrices(problem, task.reservations)
        # Others with rules over domains are left out: where they go first, they could block a domain that the scheduler
        # gives to a moving pod.
        placed_first = Counter(class_of_pod[id(pod)] for pod in others if id(pod) in class_of_pod)
        for c, count in sorted(placed_first.items()):
            if not any(self._has_counts[row] for row in self._levels[c]):
                self._place_class(c, count, [])
        self._first = {node: tuple(entries) for node, entries in self._filling.taken.items()}
        self._closed: Bools = np.zeros(len(problem.existing.nodes), dtype=bool)
        for name in closed:
            if name in self._node_of_name:
                self._filling.close(self._node_of_name[name])
                self._closed[self._node_of_name[name]] = True

    @property
    def prices(self) -> NewNodePrices:
        """The prices of new nodes for pods of these rows."""
        return self._prices

    def is_evaluated(self, name: str) -> bool:
        """Whether all rules of the pods that move from a node are evaluated; otherwise only the scheduler can place them."""
        return self._sequential.isdisjoint(c for c, _ in self._moving[name])

    def have_preferences(self, pods: Iterable[RowPods]) -> bool:
        """Whether one of these pods can give up a preference; the scheduler's plans do so in more ways than a removal."""
        classes = (self._levels[self.problem.class_of_row[entry.row]] for entry in pods)
        return any(sum(not self.problem.rows[row].launch_only for row in levels) > 1 for levels in classes)

    def first_error(self, name: str) -> tuple[str, PodError] | None:
        """Return the first pod of a node that no node can run, with its error; None if there is none."""
        return self._failing.get(name)

    def remove(self, name: str) -> Removal:
        """Return what happens if a node, given by name, is removed, and undo it."""
        node = self._node_of_name.get(name)
        first = self._first.get(node, ()) if node is not None else ()
        displaced = [_Moved(row, node, pods) for row, pods in first] if node is not None else []
        counts = Counter(c for c, _ in self._moving[name])
        others = Counter[int]()
        for entry in displaced:
            others[self.problem.class_of_row[entry.row]] += entry.pods
        for row in (row for c in (*counts, *others) for row in self._levels[c] if row not in self._open_nodes):
            self._list_open_nodes(row)
        self._removed = node
        was_closed = node is not None and bool(self._closed[node])
        if node is not None:
            self._closed[node] = True
        free = self._filling.close(node) if node is not None else None
        parts = (*self._parts.get(name, ()), *self._inverse_parts.get(name, ()))
        for part in parts:
            part.counts[part.domain] -= part.pods
        for entry in displaced:
            self._topology.counts.record_existing(entry.node, entry.row, -entry.pods)
        moved: list[_Moved] = []
        result = self._move(name, counts, others, moved)
        for entry in reversed(moved):
            self._filling.take_back(entry.row, entry.node, entry.pods)
            self._topology.counts.record_existing(entry.node, entry.row, -entry.pods)
        for entry in displaced:
            self._topology.counts.record_existing(entry.node, entry.row, entry.pods)
        for part in parts:
            part.counts[part.domain] += part.pods
        if node is not None and free is not None:
            self._filling.reopen(node, free)
            self._closed[node] = was_closed
        return result

    # --- moving pods

    def _move(self, name: str, counts: Counter[int], others: Counter[int], moved: list[_Moved]) -> Removal:
        """Place the pods of a node, and `others` (pods by class) that were placed there; return the node's without capacity."""
        waiting = [RowPods(self._levels[c][0], pods) for c, pods in sorted((counts + others).items())]
        while waiting:
            before = sum(pods for _, pods in waiting)
            rest = [self._place_class(self.problem.class_of_row[row], pods, moved) for row, pods in waiting]
            waiting = [entry for entry in rest if entry.pods]
            if sum(pods for _, pods in waiting) == before or not any(self._has_counts[row] for row, _ in waiting):
                break
        of_class = self.problem.class_of_row
        left = [RowPods(row, pods - others[of_class[row]]) for row, pods in waiting if pods > others[of_class[row]]]
        if not left:
            return _ALL_FIT
        rows = [row for row, _ in left]
        short = [(c, self.problem.last_level(c)[0]) for c in sorted(counts)]
        least = [
            RowPods(row, counts[c] - self._free_slots(row)) for c, row in short if counts[c] > self._free_slots(row)
        ]
        return Removal(
            left=tuple(left),
            least=tuple(least),
            domains=tuple(self._domains_of_new_node(row, rows) for row in rows),
            shortage=self._shortage(left[0], name, counts[of_class[rows[0]]]),
        )

    def _place_class(self, c: int, count: int, moved: list[_Moved]) -> RowPods:
        """Place pods of a class, trying its relaxation levels in order; return those without capacity, of the last row tried."""
        rows = self._levels[c]
        for row in rows:
            count -= self._place_row(row, count, moved)
            if not count or row == rows[-1] or self._is_served(row):
                return RowPods(row, count)
        return RowPods(rows[-1], count)

    def _place_row(self, row: int, count: int, moved: list[_Moved]) -> int:
        """Place as many pods of a row as fit; return their number."""
        if not self._is_bound(row):
            done = self._place_first(row, count, moved)
            if done < count and not self._are_all_listed(row):
                placed = self._filling.place(row, count - done)
                moved += [self._counted(row, node, pods) for node, pods in placed]
                done += sum(pods for _, pods in placed)
            return done
        done = 0
        while done < count and (node := self._best_node(row, moved)) is not None:
            self._filling.put(row, node, 1)
            moved.append(self._counted(row, node, 1))
            done += 1
        return done

    def _place_first(self, row: int, count: int, moved: list[_Moved]) -> int:
        """Place pods of a row on the listed nodes, in order; return their number."""
        done = 0
        for listed in self._open_nodes.get(row, ()):
            for node, most in self._still_open(row, listed, moved):
                self._filling.put(row, node, min(most, count - done))
                moved.append(self._counted(row, node, min(most, count - done)))
                done += moved[-1].pods
                if done == count:
                    return done
        return done

    def _still_open(self, row: int, listed: _OpenNodes, moved: Sequence[_Moved]) -> Iterator[tuple[int, int]]:
        """Yield the listed nodes that still take pods of the row, each with how many."""
        changed = {entry.node for entry in moved}
        for node, slots in zip(listed.nodes, listed.slots, strict=True):
            if node == self._removed:
                continue
            most = self._filling.slots_at(row, node) if node in changed else slots
            if most:
                yield node, most

    def _are_all_listed(self, row: int) -> bool:
        listed = self._open_nodes.get(row)
        return listed is not None and all(nodes.is_complete for nodes in listed)

    def _list_open_nodes(self, row: int) -> None:
        """List the first nodes that take pods of the row while no node is removed, by combination of domains."""
        slots = self._filling.slots(row)
        keys = self._binding_keys(row)
        found = []
        for cell in self.problem.existing.columns.cells(keys):
            nodes = np.flatnonzero((slots > 0) & cell.nodes if keys else slots > 0)
            first = nodes[:_LISTED]
            if len(nodes):
                found.append(_OpenNodes(dict(cell.pins), first.tolist(), slots[first].tolist(), len(nodes) <= _LISTED))
        self._open_nodes[row] = tuple(found)
        self._slots[row] = np.minimum(slots, np.iinfo(np.uint16).max).astype(np.uint16), int(slots.sum())

    def _is_bound(self, row: int) -> bool:
        """Whether a rule over domains may restrict where the row's pods may go."""
        return bool(self._topology.of(row).labels)

    def _binding_keys(self, row: int) -> tuple[str, ...]:
        """Return the labels of the rules over domains that may restrict where the row's pods may go."""
        return tuple(rules.key for rules in self._topology.of(row).labels)

    def _counted(self, row: int, node: int, pods: int) -> _Moved:
        """Count pods of a row that were placed on a node, and return the record."""
        self._topology.counts.record_existing(node, row, pods)
        return _Moved(row, node, pods)

    def _best_node(self, row: int, moved: Sequence[_Moved]) -> int | None:
        """Return the first node in the emptiest of the domains that admit one more pod; None if there is none."""
        choices = self._topology.of(row).now()
        if choices is None:
            return None
        if row not in self._open_nodes:
            return self._search_best_node(row, choices)
        best: tuple[int, int] | None = None
        for listed in self._open_nodes[row]:
            values = [listed.values.get(choice.rules.key) for choice in choices]
            if not all(choice.admits_node(value) for choice, value in zip(choices, values, strict=True)):
                continue
            pods = sum(choice.pods(value) for choice, value in zip(choices, values, strict=True) if value is not None)
            if best is not None and best[0] < pods:
                continue
            node = next((node for node, _ in self._still_open(row, listed, moved)), None)
            if node is None and not listed.is_complete:
                return self._search_best_node(row, choices)
            if node is not None and (best is None or (pods, node) < best):
                best = pods, node
        return best[1] if best is not None else None

    def _search_best_node(self, row: int, choices: Sequence[DomainChoice]) -> int | None:
        """Return the same as `_best_node`, without the lists of open nodes."""
        is_open = self._filling.open_to(row)
        columns = self.problem.existing.columns
        ranks: Ints = np.zeros(len(is_open), dtype=np.int64)
        for choice in choices:
            codes, values = columns.label(choice.rules.key)
            is_open &= np.array([choice.admits_node(value) for value in values], dtype=bool)[codes]
            ranks += np.array([choice.pods(value) if value is not None else 0 for value in values], dtype=np.int64)[
                codes
            ]
        nodes = np.flatnonzero(is_open)
        return int(nodes[np.argmin(ranks[nodes])]) if len(nodes) else None

    # --- pods without capacity

    def _domains_of_new_node(self, row: int, beside: Collection[int] = ()) -> Mapping[str, Collection[str]]:
        """Return the values of topology labels that the row's rules allow on a new node, as far as they restrict them.

        `beside` are the rows whose pods share that node. `ABSENT` stands for a node without the label.
        """
        found: dict[str, set[str]] = {}
        for rules in self._topology.of(row).labels:
            values = self._prices.values(rules.key)
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
        return self._prices.of((RowPods(row, 1),), (self._domains_of_new_node(row),)) is not None

    def _free_slots(self, row: int) -> int:
        """Return how many pods of the row the other nodes take at most; rules over domains aside."""
        slots, total = self._slots[row]
        return total - (int(slots[self._removed]) if self._removed is not None else 0)

    def _shortage(self, tried: RowPods, name: str, pods: int) -> Shortage:
        """Return what the pods of a class lack that were left at the row `tried`, ignoring their preferences."""
        filling, problem = self._filling, self.problem
        c = problem.class_of_row[tried.row]
        row = problem.last_level(c)[0]
        suits = filling.suits(row) & ~self._closed
        resource, amount, node = NODE_CONSTRAINTS, 0, ""
        if suits.any():
            requested = np.flatnonzero(problem.requests[row])
            lacking = filling.missing(row, requested)
            shares = lacking / problem.requests[row][requested, None]
            largest = np.where(suits, shares.max(axis=0), np.inf)
            best = int(np.argmin(largest))
            if largest[best] > 0:
                axis = int(np.argmax(shares[:, best]))
                resource, amount = problem.axes[requested[axis]], int(lacking[axis, best])
                node = problem.existing.nodes[best].name
            elif (choices := self._topology.of(row).now()) is not None and self._search_best_node(
                row, choices
            ) is not None:
                resource = _PREFERENCES
            else:
                is_open = filling.open_to(row).any()
                resource = self._binding_keys(row)[0] if is_open and self._binding_keys(row) else _HOST_RULES
        return Shortage(
            pod=next(key for own, key in self._moving[name] if own == c),
            pods=pods,
            without_capacity=tried.pods,
            resource=resource,
            amount=amount,
            node=node,
        )

    def _parts_of_anti_affinity(
        self, inputs: ClusterInputs, without_nodes: frozenset[str]
    ) -> Mapping[str, list[CountPart]]:
        """Return, by node name, the exclusions that only the anti-affinity of the node's pods justifies."""
        groups = {
            entry.group.id: entry.group for entry in self.problem.inverse_anti_affinities if spans_nodes(entry.group)
        }
        if not groups:
            return {}
        by_node = inputs.inventory.anti_affinities(inputs.inventory.select((), without_nodes))
        own = {
            name: Counter((e.group.id, e.domain) for e in entries if e.group.id in groups)
            for name, entries in by_node.items()
        }
        total = Counter[tuple[bytes, str]]()
        for found in own.values():
            total.update(found)
        return {
            name: [
                self._topology.inverse_part(groups[group_id], domain)
                for (group_id, domain), pods in found.items()
                if total[group_id, domain] == pods
            ]
            for name, found in own.items()
            if found
        }


class NewNodePrices:
    """The prices of single new nodes for pods of a problem's rows, by bit masks of offerings."""

    def __init__(self, problem: SchedulingProblem, reservations: Reservations) -> None:
        """Prepare the masks of the problem's NodePools, without offerings of reservations that are full."""
        self._problem = problem
        self._available = [masks.ordinary for masks in problem.pool_masks]
        for index, masks in enumerate(problem.pool_masks):
            for name, offerings in masks.reserved:
                self._available[index] |= offerings if reservations.left.get(name, 0) > 0 else 0
        self._meeting: dict[tuple[int, int], int] = {}
        self._allowing: dict[tuple[int, str, frozenset[str]], int] = {}
        self._by_domain: dict[tuple[int, str], Mapping[str, int]] = {}

    def of(
        self,
        pods: Sequence[RowPods],
        domains: Sequence[Mapping[str, Collection[str]]] = (),
        *,
        without: Collection[str] = (),
    ) -> float | None:
        """Return the lowest price per hour of one new node that takes all these pods; None if none does.

        Limits, minValues and open labels are ignored, so the scheduler's node may be dearer, but is not cheaper.

        Args:
            pods: The pods, by row.
            domains: For each entry of `pods` the values of topology labels that its rules allow.
            without: Capacity types that are excluded.
        """
        found = ((masks, offerings) for masks, offerings in self.offerings(pods, domains, without=without) if offerings)
        return min((masks.lowest_price(offerings) for masks, offerings in found), default=None)

    def cheaper_types(
        self,
        pods: Sequence[RowPods],
        domains: Sequence[Mapping[str, Collection[str]]],
        price: float,
        *,
        only: str,
    ) -> int:
        """Return how many instance types take all these pods for less than a price, with offerings of a capacity type."""
        names: set[str] = set()
        for masks, offerings in self.offerings(pods, domains):
            kept = offerings & masks.cheaper_than(price) & masks.by_value(labels.CAPACITY_TYPE)[0].get(only, 0)
            names.update(masks.type_names(kept) if kept else ())
        return len(names)

    def offerings(
        self,
        pods: Sequence[RowPods],
        domains: Sequence[Mapping[str, Collection[str]]] = (),
        *,
        without: Collection[str] = (),
    ) -> Iterator[tuple[OfferingMasks, int]]:
        """Yield for each NodePool the offerings of which one node takes all these pods."""
        rows, counts = [row for row, _ in pods], np.array([count for _, count in pods], dtype=np.int64)
        if not self._may_share_a_node(rows, counts):
            return
        total = (counts @ self._problem.requests[rows]).tolist()
        for masks in self._problem.pool_masks:
            offerings = self._available[masks.index]
            for row in rows:
                offerings &= self._meeting_row(masks, row)
            for axis, amount in enumerate(total):
                if amount and offerings:
                    offerings &= masks.holding(axis, amount)
            for allowed in domains:
                for key, values in allowed.items() if offerings else ():
                    offerings &= self._allowed(masks, key, frozenset(values))
            for capacity_type in without:
                offerings &= ~masks.by_value(labels.CAPACITY_TYPE)[0].get(capacity_type, 0)
            yield masks, offerings

    def values(self, key: str) -> frozenset[str]:
        """Return the values of a label that new nodes can have."""
        return frozenset(value for masks in self._problem.pool_masks for value in self._domains(masks, key))

    def _domains(self, masks: OfferingMasks, key: str) -> Mapping[str, int]:
        case = masks.index, key
        if case not in self._by_domain:
            self._by_domain[case] = masks.domains(key, -1, masks.offer)
        return self._by_domain[case]

    def _may_share_a_node(self, rows: Sequence[int], counts: Ints) -> bool:
        """Whether no required rule about a single node keeps some of these pods apart."""
        caps = self._problem.host_constraints
        if len(caps.axes) and bool((counts @ caps.limited_takes[rows] > caps.caps).any()):
            return False
        apart = np.array([conflict.group is not None for conflict in caps.conflicts], dtype=bool)
        return not bool((caps.counted[rows].any(axis=0) & caps.lasting[rows].any(axis=0) & apart).any())

    def _meeting_row(self, masks: OfferingMasks, row: int) -> int:
        case = masks.index, row
        found = self._meeting.get(case)
        if found is None:
            shape = self._problem.shapes[self._problem.shape_of_row[row]]
            meeting = as_mask(masks.pool.rows(NodeDemand(shape))[masks.rows])
            found = self._meeting[case] = meeting & masks.with_free_ports(self._problem.rows[row].ports)
        return found

    def _allowed(self, masks: OfferingMasks, key: str, values: frozenset[str]) -> int:
        case = masks.index, key, values
        found = self._allowing.get(case)
        if found is None:
            found = masks.by_value(key)[1] if ABSENT in values else 0
            for value, offerings in self._domains(masks, key).items():
                found |= offerings if value in values else 0
            self._allowing[case] = found
        return found


def _levels(problem: SchedulingProblem) -> Sequence[tuple[int, ...]]:
    """Return the rows of each class that are tried, in order."""
    if problem.options.preferences is PreferencePolicy.WHEN_FREE:
        return [problem.last_level(c) for c in range(len(problem.levels))]
    return problem.levels
