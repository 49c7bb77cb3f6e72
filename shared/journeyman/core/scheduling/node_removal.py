"""Removes one node after another from a cluster: moves its pods to the other nodes, and undoes that.

`NodeRemovals` reads the cluster once, with every pod where it runs. A removal closes the node, subtracts its pods from the
counts of topology domains, and places its pods on the other nodes class by class, largest first, each under the rules of
its relaxation level: columns of free capacity, masks of suitable nodes, and counts by domain. Every change is undone cell by
cell, so that the next removal starts from the same cluster, and thousands of removals take the time of a few simulations.

Where a class has fewer free slots on all other nodes together than it has pods on the node, no order of placing them helps.
Of the other pods without room, the scheduler might still have placed some in another order; it finds such an order rarely.

`NewNodePrices` finds the cheapest offering of a single new node for some pods: one `&` of bit masks per pod class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.objects import Pod
from journeyman.core.scheduling.arrays import Ints
from journeyman.core.scheduling.bulk_scheduling import co_located_classes
from journeyman.core.scheduling.domain_counts import CountPart, DomainCounts, is_wide
from journeyman.core.scheduling.domain_distribution import DomainRule
from journeyman.core.scheduling.node_filling import NodeFilling
from journeyman.core.scheduling.nodepool_options import NodeDemand
from journeyman.core.scheduling.offering_masks import OfferingMasks, as_mask
from journeyman.core.scheduling.pod_classes import RowPods
from journeyman.core.scheduling.problem import ClusterInputs, SchedulingProblem, prepare_task
from journeyman.core.scheduling.results import PodError, PreferencePolicy
from journeyman.core.scheduling.topology import Pin, TopologyGroup

_NOTHING: Final = "node constraints"
_HOST_RULES: Final = "host rules"
_VOLUMES: Final = "volumes"


class Shortage(Struct, frozen=True, kw_only=True):
    """The pods of one class that the other nodes have too little room for.

    Attributes:
        pod: The key (`namespace/name`) of one of these pods.
        pods: How many pods of the class are on the node.
        without_room: How many of them the other nodes have no room for, after the node's other pods took theirs.
        resource: What is short: a resource (`cpu`), a topology label, `host rules` (anti-affinity or spread over nodes, host
            ports), `volumes`, or `node constraints` if no other node meets the pods' node selector, affinity and tolerations.
        amount: How much of a resource is missing, in its base unit (milli-CPU, bytes, pods), on the node that lacks least;
            0 if no resource is short.
        node: The name of that node; empty if no resource is short.
    """

    pod: str
    pods: int
    without_room: int
    resource: str
    amount: int = 0
    node: str = ""


class Removal(Struct, frozen=True, kw_only=True, eq=False):
    """What happens to the pods of a node that is removed.

    Attributes:
        left: The pods without room on the other nodes, by row; they need new nodes.
        least: Pods that need new nodes in whatever order pods are placed; at most those of `left`.
        domains: For each entry of `left` the values of topology labels that its rules allow on a new node.
        unschedulable: Whether no new node takes some of them either.
        shortage: The first class with pods in `left`; None if all have room.
    """

    left: tuple[RowPods, ...]
    least: tuple[RowPods, ...]
    domains: tuple[Mapping[str, Collection[str]], ...]
    unschedulable: bool
    shortage: Shortage | None


_ALL_FIT: Final = Removal(left=(), least=(), domains=(), unschedulable=False, shortage=None)


class _Moved(NamedTuple):
    """Pods of a row that were placed on a node, with the domains that counted them."""

    row: int
    node: int
    count: int
    values: Mapping[str, str]
    pins: tuple[Pin, ...]


class NodeRemovals:
    """The nodes of a cluster, from which one at a time is removed."""

    def __init__(
        self,
        inputs: ClusterInputs,
        moving: Sequence[Pod],
        others: Sequence[Pod],
        without_nodes: frozenset[str],
        closed: Collection[str],
    ) -> None:
        """Read the cluster, and place the other pods.

        Args:
            inputs: The cluster.
            moving: The pods that move when their nodes are removed.
            others: Pods that are scheduled whatever is removed: pending ones, and those of nodes that are being deleted.
            without_nodes: Names of nodes that do not exist for the pods.
            closed: Names of nodes that take none of the moving pods.
        """
        task = prepare_task(inputs, (*moving, *others), without_nodes, are_moving=False)
        self.problem: SchedulingProblem = task.problem
        self.errors: Mapping[str, PodError] = task.errors
        """The pods that no node can run, by key."""
        problem = self.problem
        self._filling = NodeFilling(problem.existing, problem.rows, problem.requests, problem.host_constraints)
        self._counts = DomainCounts(problem)
        self._parts = self._counts.parts_by_node()
        self._class_of_pod = {pod.key: c for c, rows in enumerate(problem.levels) for pod in problem.rows[rows[0]].pods}
        self._sequential = frozenset(co_located_classes(problem))
        self._levels = _levels(problem)
        self._repelling = self._repelling_parts(inputs, without_nodes)
        self._keys = [self._rule_keys(row) for row in range(len(problem.rows))]
        self._node_of_name = {node.name: n for n, node in enumerate(problem.existing.nodes)}
        self._slots: dict[int, tuple[Ints, int]] = {}
        self._prices = NewNodePrices(problem)
        for c, count in sorted(
            Counter(self._class_of_pod[p.key] for p in others if p.key in self._class_of_pod).items()
        ):
            self._place_class(c, count, [])
        self._first = {node: tuple(entries) for node, entries in self._filling.taken.items()}
        for name in closed:
            if name in self._node_of_name:
                self._filling.close(self._node_of_name[name])

    @property
    def prices(self) -> NewNodePrices:
        """The prices of new nodes for pods of these rows."""
        return self._prices

    def is_evaluated(self, keys: Iterable[str]) -> bool:
        """Whether all rules of these pods, given by key, are evaluated; a removal that moves others is not decided."""
        return not self._sequential or all(self._class_of_pod.get(key) not in self._sequential for key in keys)

    def first_error(self, keys: Iterable[str]) -> tuple[str, PodError] | None:
        """Return the first of these pods that no node can run, with its error; None if there is none."""
        return next(((key, self.errors[key]) for key in keys if key in self.errors), None) if self.errors else None

    def remove(self, name: str, keys: Sequence[str]) -> Removal:
        """Return what happens if a node is removed, and undo it.

        Args:
            name: The node.
            keys: The keys of the pods that move.
        """
        classes = [(self._class_of_pod[key], key) for key in keys if key in self._class_of_pod]
        counts = Counter(c for c, _ in classes)
        node = self._node_of_name.get(name)
        free = self._filling.close(node) if node is not None else None
        parts = (*self._parts.get(name, ()), *self._repelling.get(name, ()))
        for part in parts:
            part.counts[part.value] -= part.pods
        displaced = (
            [self._record(row, node, pods) for row, pods in self._first.get(node, ())] if node is not None else []
        )
        for entry in displaced:
            counts[self.problem.class_of_row[entry.row]] += entry.count
            self._counts.enter(entry.row, entry.values, -entry.count, entry.pins)
        moved: list[_Moved] = []
        result = self._move(counts, dict(reversed(classes)), node, moved)
        for entry in reversed(moved):
            self._filling.take_back(entry.row, entry.node, entry.count)
            self._counts.enter(entry.row, entry.values, -entry.count, entry.pins)
        for entry in displaced:
            self._counts.enter(entry.row, entry.values, entry.count, entry.pins)
        for part in parts:
            part.counts[part.value] += part.pods
        if node is not None and free is not None:
            self._filling.reopen(node, free)
        return result

    # --- moving pods

    def _move(
        self, counts: Mapping[int, int], sample: Mapping[int, str], node: int | None, moved: list[_Moved]
    ) -> Removal:
        left: list[RowPods] = []
        domains: list[Mapping[str, Collection[str]]] = []
        least: list[RowPods] = []
        unschedulable = False
        shortage: Shortage | None = None
        for c, count in sorted(counts.items()):
            rest = self._place_class(c, count, moved)
            if not rest:
                continue
            for row, pods in rest:
                left.append(RowPods(row, pods))
                domains.append(self._domains_of_new_node(row))
                unschedulable |= not self._is_served(row)
            last = self.problem.levels[c][-1]
            pods = count - self._free_slots(last, node)
            if pods > 0:
                least.append(RowPods(last, pods))
            if shortage is None:
                shortage = self._shortage(last, sample.get(c, ""), count, sum(pods for _, pods in rest))
        if not left:
            return _ALL_FIT
        return Removal(
            left=tuple(left),
            least=tuple(least),
            domains=tuple(domains),
            unschedulable=unschedulable,
            shortage=shortage,
        )

    def _place_class(self, c: int, count: int, moved: list[_Moved]) -> list[RowPods]:
        """Place pods of a class, trying its relaxation levels in order; return those without room, by row."""
        rows = self._levels[c]
        for row in rows:
            count -= self._place_row(row, count, moved)
            if not count:
                return []
            if row == rows[-1] or self._is_served(row):
                return [RowPods(row, count)]
        return [RowPods(rows[-1], count)]

    def _place_row(self, row: int, count: int, moved: list[_Moved]) -> int:
        """Place as many pods of a row as fit; return their number."""
        if not self._is_bound(row):
            placed = self._filling.place(row, count)
            moved += [self._counted(row, node, pods) for node, pods in placed]
            return sum(pods for _, pods in placed)
        done = 0
        while done < count and (node := self._best_node(row)) is not None:
            self._filling.put(row, node, 1)
            moved.append(self._counted(row, node, 1))
            done += 1
        return done

    def _is_bound(self, row: int) -> bool:
        """Whether a rule over domains restricts where the row's pods may go."""
        if not self._keys[row]:
            return False
        return bool(self._wide_affinities(row)) or any(rule.skew is not None for rule in self._counts.rules(row))

    def _counted(self, row: int, node: int, pods: int) -> _Moved:
        """Count pods of a row that were placed on a node, and return the record."""
        moved = self._record(row, node, pods)
        if moved.pins:
            self._counts.enter(row, moved.values, pods, moved.pins)
        return moved

    def _record(self, row: int, node: int, pods: int) -> _Moved:
        own = self.problem.existing.nodes[node].labels
        values = {key: own[key] for key in self._keys[row] if key in own}
        return _Moved(row, node, pods, values, tuple(map(Pin._make, values.items())))

    def _best_node(self, row: int) -> int | None:
        """Return the first node in the emptiest of the domains that admit one more pod; None if there is none."""
        is_open = self._filling.open_to(row)
        if not is_open.any():
            return None
        columns = self.problem.existing.columns
        ranks: Ints | None = None
        for rule in self._counts.rules(row):
            if rule.skew is None:
                continue
            codes, values = columns.label(rule.key)
            is_admitted = [_admits(rule, value) for value in values]
            if not all(is_admitted):
                is_open = is_open & np.array(is_admitted, dtype=bool)[codes]
            if not rule.is_ban and len(values) > 1:
                pods = np.array([rule.rivals.get(value, 0) if value is not None else 0 for value in values])[codes]
                ranks = pods if ranks is None else ranks + pods
        for group in self._wide_affinities(row):
            codes, values = columns.label(group.key)
            occupied = self._occupied(row, group)
            if occupied is not None:
                is_open = is_open & np.array([value in occupied for value in values], dtype=bool)[codes]
            else:
                is_open = is_open & np.array([value is not None for value in values], dtype=bool)[codes]
        nodes = np.flatnonzero(is_open)
        if not len(nodes):
            return None
        return int(nodes[0]) if ranks is None else int(nodes[np.argmin(ranks[nodes])])

    def _occupied(self, row: int, group: TopologyGroup) -> Collection[str] | None:
        """Return the domains in which an affinity is met; None if pods of the row may choose the first one."""
        occupied = {value for value, pods in self._counts.pods_by_domain(group).items() if pods > 0}
        if not occupied and any(counting.id == group.id for counting in self._counts.counting(row)):
            return None
        return occupied

    # --- pods without room

    def _domains_of_new_node(self, row: int) -> Mapping[str, Collection[str]]:
        """Return the values of topology labels that the row's rules allow on a new node, as far as they restrict them."""
        if not self._keys[row]:
            return {}
        found: dict[str, set[str]] = {}
        for rule in self._counts.rules(row):
            if rule.skew is not None:
                known = {v for masks in self.problem.pool_masks for v in masks.by_value(rule.key)[0]}
                admitted = {value for value in known if rule.admits(value)}
                found[rule.key] = found[rule.key] & admitted if rule.key in found else admitted
        for group in self._wide_affinities(row):
            occupied = self._occupied(row, group)
            if occupied is not None:
                found[group.key] = found[group.key] & set(occupied) if group.key in found else set(occupied)
        return found

    def _is_served(self, row: int) -> bool:
        """Whether a new node takes a pod of the row, where its rules allow one."""
        return self._prices.of((RowPods(row, 1),), (self._domains_of_new_node(row),)) is not None

    def _free_slots(self, row: int, node: int | None) -> int:
        """Return how many pods of the row the other nodes take if no other pods are placed, at most; rules over domains aside."""
        if row not in self._slots:
            is_open = self._filling.suits(row)
            nodes = np.flatnonzero(is_open)
            slots: Ints = np.zeros(len(is_open), dtype=np.int64)
            amounts = np.flatnonzero(self.problem.requests[row])
            if len(nodes):
                free = self.problem.existing.free[nodes][:, amounts]
                slots[nodes] = np.maximum(free // self.problem.requests[row][amounts], 0).min(axis=1)
            self._slots[row] = slots, int(slots.sum())
        slots, total = self._slots[row]
        return total - (int(slots[node]) if node is not None else 0)

    def _shortage(self, row: int, pod: str, pods: int, without_room: int) -> Shortage:
        filling, problem = self._filling, self.problem
        suits = filling.suits(row)
        resource, amount, node = _NOTHING, 0, ""
        if suits.any():
            lacking = filling.missing(row)[:, suits]
            requests = np.maximum(problem.requests[row], 1)[:, None]
            shares = (lacking / requests).max(axis=0)
            best = int(np.argmin(shares))
            if shares[best] > 0:
                axis = int(np.argmax(lacking[:, best] / requests[:, 0]))
                resource, amount = problem.axes[axis], int(lacking[axis, best])
                node = problem.existing.nodes[int(np.flatnonzero(suits)[best])].name
            elif filling.open_to(row).any():
                resource = self._keys[row][0] if self._keys[row] else _HOST_RULES
            else:
                resource = _HOST_RULES
        return Shortage(pod=pod, pods=pods, without_room=without_room, resource=resource, amount=amount, node=node)

    # --- rules

    def _wide_affinities(self, row: int) -> list[TopologyGroup]:
        affinities = self.problem.rows[row].affinities
        return [group for group in affinities if is_wide(group)] if affinities else []

    def _rule_keys(self, row: int) -> tuple[str, ...]:
        """Return the labels of all rules over domains that concern a row, or that count its pods."""
        pods = self.problem.rows[row]
        own = (*(s.group for s in self._counts.spreads(row)), *pods.affinities, *pods.anti_affinities)
        return tuple(sorted({group.key for group in (*own, *self._counts.counting(row)) if is_wide(group)}))

    def _repelling_parts(self, inputs: ClusterInputs, without_nodes: frozenset[str]) -> Mapping[str, list[CountPart]]:
        """Return, by node name, the exclusions that only the anti-affinity of the node's pods justifies."""
        if not self.problem.repelled:
            return {}
        groups = {entry.group.id: entry.group for entry in self.problem.repelled if is_wide(entry.group)}
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
                CountPart(self._counts.repelling(groups[group_id]), domain, 1)
                for (group_id, domain), pods in found.items()
                if total[group_id, domain] == pods
            ]
            for name, found in own.items()
            if found
        }


class NewNodePrices:
    """The prices of single new nodes for pods of a problem's rows, by bit masks of offerings."""

    def __init__(self, problem: SchedulingProblem) -> None:
        """Prepare the masks of the problem's NodePools; everything is computed on first use."""
        self._problem = problem
        self._meeting: dict[tuple[int, int], int] = {}
        self._allowing: dict[tuple[int, str, frozenset[str]], int] = {}

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
            offerings = -1
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

    def _may_share_a_node(self, rows: Sequence[int], counts: Ints) -> bool:
        """Whether no rule about a single node keeps some of these pods apart."""
        caps = self._problem.host_constraints
        if len(caps.axes) and bool((counts @ caps.takes[rows] > caps.caps).any()):
            return False
        return not bool((caps.counted[rows].any(axis=0) & caps.bound[rows].any(axis=0)).any())

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
            by_value, undecided = masks.by_value(key)
            found = undecided
            for value in values:
                found |= by_value.get(value, 0)
            self._allowing[case] = found
        return found


def _levels(problem: SchedulingProblem) -> Sequence[tuple[int, ...]]:
    """Return the rows of each class that are tried, in order."""
    if problem.options.preferences is PreferencePolicy.WHEN_FREE:
        return [rows[-1:] for rows in problem.levels]
    return problem.levels


def _admits(rule: DomainRule, value: str | None) -> bool:
    """Whether a rule admits one more pod on nodes with this value of its label, or without the label."""
    if value is None:
        return rule.is_ban and rule.step == 0
    return rule.admits(value)
