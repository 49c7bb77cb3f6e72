"""Prepares the snapshot and the plan for all checks: the pods of each node, and the offerings it may be launched from.

The possible launches of a NodePool are rows, one per available offering of its instance types, cheapest first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property, lru_cache, reduce
from operator import or_
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct, field

from journeyman.core.api import labels
from journeyman.core.api.conditions import REGISTERED
from journeyman.core.api.objects import NodeSelectorRequirement, Pod, Taint, is_true
from journeyman.core.api.resources import add
from journeyman.core.catalogue import Catalogue, InstanceType, Offering
from journeyman.core.scheduling.results import Defect, PlannedClaim, Results, name_of_claim, name_of_node, placements
from journeyman.core.scheduling.verify.matching import (
    PodKind,
    Port,
    daemons_of,
    is_met,
    kinds_of,
    normalized,
    pods_by_node,
    taints_of,
    untolerated,
    why_unusable,
)
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.launch_backoff import backoffs_of, claims_of
from journeyman_simulator.judge.possible_labels import Column, PossibleLabels, Rows, Values

if TYPE_CHECKING:  # the models build validators; nothing here needs them
    from journeyman.core.api.nodepool import NodePool


class CheckedNode(Struct, eq=False):
    """A node, existing or planned. `planned` are the pods that the plan puts there, `remaining` those that stay there.

    `rows` of `possible` are what it may become. `is_schedulable`: whether pods can still be planned onto it.
    `planned_pods` are the pods (by key) for which its NodeClaim was made, if it has not registered yet.
    """

    name: str
    host: str
    planned: Mapping[str, PodKind]
    remaining: tuple[PodKind, ...]
    possible: PossibleLabels
    rows: Rows
    taints: tuple[Taint, ...]
    is_schedulable: bool
    state_node: StateNode | None = None
    claim: PlannedClaim | None = None
    planned_pods: frozenset[str] = frozenset()
    _domains: dict[str, frozenset[str]] = field(default_factory=dict)

    @property
    def is_unlaunched(self) -> bool:
        """Whether it is a NodeClaim without an instance."""
        return self.state_node is not None and self.state_node.claim is not None and not self.state_node.provider_id

    def defect(self, wrong: str) -> Defect:
        """Return a defect of this node."""
        return Defect(f"{self.name}: {wrong}", (self.name,))

    def domains(self, key: str) -> frozenset[str]:
        """The values that a label may get on this node; a new node's hostname is its own."""
        if key not in self._domains:
            self._domains[key] = (
                frozenset({self.host}) if key == labels.HOSTNAME else self.possible.values(key, self.rows)
            )
        return self._domains[key]


class AwaitedPods(Struct, frozen=True, eq=False):
    """The pod of a DaemonSet that is still to come to a node; `is_existing`: the node exists."""

    kind: PodKind
    node: CheckedNode
    is_existing: bool


class PlanIndex:
    """A plan and its cluster."""

    def __init__(
        self,
        snapshot: Snapshot,
        catalogue: Catalogue,
        results: Results,
        pods: Sequence[Pod] | None,
        *,
        without_nodes: frozenset[str],
        ignore_dra_requests: bool,
    ) -> None:
        self.snapshot = snapshot
        self.results = results
        self.pods_to_schedule = pods
        self.known = {pod.key: pod for pod in (*snapshot.pods, *(pods or ()))}
        self.namespaces = {namespace.metadata.name: namespace for namespace in snapshot.namespaces}
        self.daemons = daemons_of(snapshot, ignore_dra_requests=ignore_dra_requests)
        self.state_nodes = tuple(node for node in snapshot.state_nodes if node.name not in without_nodes)
        self._kinds = kinds_of(self.known.values())
        self._offerings_by_pool = offerings_by_node_pool(catalogue)
        self._launches: dict[str, PossibleLaunches] = {}

    def kind(self, key: str) -> PodKind:
        """The kind of a pod."""
        return self._kinds[key]

    @cached_property
    def placed(self) -> tuple[str, ...]:
        """The keys of all pods in the plan, as often as they occur."""
        return tuple(key for _, keys in placements(self.results) for key in keys)

    @cached_property
    def rescheduled(self) -> frozenset[str]:
        """The keys of the pods to schedule: they do not count where they are now."""
        return frozenset(self.placed) | {pod.key for pod in self.pods_to_schedule or ()}

    @cached_property
    def nodes(self) -> tuple[CheckedNode, ...]:
        """All existing and all planned nodes."""
        return (*self.existing_nodes, *self.new_nodes)

    @cached_property
    def existing_nodes(self) -> tuple[CheckedNode, ...]:
        """The existing nodes, by name, without those that the solver was not to use."""
        possible, pods = _node_labels(self.state_nodes), pods_by_node(self.snapshot)
        return tuple(
            CheckedNode(
                name=name_of_node(node.name),
                host=node.labels.get(labels.HOSTNAME, node.name),
                planned={key: self.kind(key) for key in self.results.existing.get(node.name, ())},
                remaining=tuple(self.kind(key) for key in pods[node.name] if key not in self.rescheduled),
                possible=possible,
                rows=1 << index,
                taints=taints_of(node),
                is_schedulable=not (node.is_being_disrupted or node.is_unusable),
                state_node=node,
                planned_pods=_planned_pods(node),
            )
            for index, node in enumerate(self.state_nodes)
        )

    @cached_property
    def new_nodes(self) -> tuple[CheckedNode, ...]:
        """The planned nodes, in the plan's order, without those of unusable NodePools."""
        found = []
        for index, claim in enumerate(self.results.new_claims):
            pool = self.usable_pools.get(claim.node_pool)
            if pool is None:
                continue
            possible, rows = self.launches(claim.node_pool).possible_for(claim.requirements)
            found.append(
                CheckedNode(
                    name=name_of_claim(claim),
                    host=f"new node {index}",
                    planned={key: self.kind(key) for key in claim.pods},
                    remaining=(),
                    possible=possible,
                    rows=rows,
                    taints=pool.spec.template.spec.taints,
                    is_schedulable=True,
                    claim=claim,
                )
            )
        return tuple(found)

    @cached_property
    def planned_by_kind(self) -> Mapping[PodKind, Sequence[tuple[CheckedNode, str, int]]]:
        """The planned pods by kind: each node that gets some, the key of the first and their number."""
        found: dict[PodKind, list[tuple[CheckedNode, str, int]]] = {}
        for node in self.nodes:
            here: dict[PodKind, tuple[str, int]] = {}
            for key, kind in node.planned.items():
                first, number = here.get(kind, (key, 0))
                here[kind] = first, number + 1
            for kind, (first, number) in here.items():
                found.setdefault(kind, []).append((node, first, number))
        return found

    @cached_property
    def usable_pools(self) -> Mapping[str, NodePool]:
        """The NodePools that may launch nodes, by name."""
        return {
            pool.metadata.name: pool for pool in self.snapshot.node_pools if not why_unlaunchable(pool, self.snapshot)
        }

    def daemons_of_pool(self, name: str) -> tuple[PodKind, ...]:
        """The daemons that count on nodes of a NodePool: without those that the plan leaves out there."""
        left_out = self.results.left_out.get(name)
        return tuple(d for d in self.daemons if left_out is None or d.pod.key not in left_out.names)

    def launches(self, name: str) -> PossibleLaunches:
        """The possible launches of a usable NodePool."""
        if name not in self._launches:
            offerings = self._offerings_by_pool.get(name, LaunchableOfferings(()))
            self._launches[name] = PossibleLaunches(self.usable_pools[name], offerings, self.daemons_of_pool(name))
        return self._launches[name]


def why_unlaunchable(pool: NodePool, snapshot: Snapshot) -> str:
    """Return why the NodePool may launch no nodes; empty if it may."""
    return why_unusable(pool, snapshot) or _why_waiting(pool, snapshot)


def _why_waiting(pool: NodePool, snapshot: Snapshot) -> str:
    """Return why the NodePool waits after a failed launch: for the end of the back-off, then for the one node that tries again."""
    for backoff in backoffs_of(pool, snapshot):
        if not backoff.is_over:
            return "launches nothing for now, because of a failed launch"
        ended = backoff.until.replace(microsecond=0)  # as the API server writes times of creation
        tries = [
            claim
            for claim in claims_of(backoff.fault.key, snapshot)
            if claim.metadata.creation_timestamp is not None and claim.metadata.creation_timestamp >= ended
        ]
        if tries and not any(is_true(claim.status.conditions, REGISTERED) for claim in tries):
            name = tries[0].metadata.name
            return f"launches nothing until the node of NodeClaim {name} registers, after a failed launch"
    return ""


def _planned_pods(node: StateNode) -> frozenset[str]:
    """The pods for which a NodeClaim that has not registered was made, as its annotation lists them."""
    if node.claim is None or node.registered:
        return frozenset()
    entries = node.claim.metadata.annotations.get(labels.PLANNED_PODS, "").split(",")
    return frozenset(entry.partition(":")[0] for entry in entries if entry)


def _node_labels(nodes: Sequence[StateNode]) -> PossibleLabels:
    """A row for each node. A label that it lacks will not appear."""
    all_rows = (1 << len(nodes)) - 1
    columns: dict[str, dict[Values, Rows]] = {}
    for index, node in enumerate(nodes):
        for key, value in node.labels.items():
            column = columns.setdefault(key, {})
            values: Values = frozenset({value})
            column[values] = column.get(values, 0) | 1 << index
    return PossibleLabels(all_rows, columns)


Columns = dict[str, dict[Values, Rows]]
Requirements = tuple[NodeSelectorRequirement, ...]
K = TypeVar("K")


class DaemonTypeOverhead(Struct, frozen=True, eq=False):
    """The requests and host ports of the DaemonSets that run on these rows' nodes."""

    rows: Rows
    requests: Mapping[str, int]
    ports: tuple[Port, ...]


class LaunchableOfferings:
    """The available offerings of a list of instance types as rows, and their sizes."""

    def __init__(self, types: Iterable[InstanceType], *, unavailable: bool = False) -> None:
        self._all_types = tuple(types)
        found = [(t, o) for t in self._all_types for o in t.offerings if o.available or unavailable]
        found.sort(key=lambda row: row[1].price)
        self.rows: Sequence[tuple[InstanceType, Offering]] = found
        self.all_rows = (1 << len(found)) - 1
        self.types = {t.name: t for t, _ in found}
        self.by_type = _grouped(t.name for t, _ in found)
        self.columns = self._columns()
        self.reserved = _grouped(o.reservation_id for _, o in found)
        self.reserved.pop("", None)
        self.reservation_capacity: dict[str, int] = {}  # the lowest node count that its offerings report
        for _, offering in found:
            if offering.reservation_id:
                capacity = self.reservation_capacity.get(offering.reservation_id, offering.reservation_capacity)
                self.reservation_capacity[offering.reservation_id] = min(capacity, offering.reservation_capacity)
        self._allocatable: dict[str, _RowsBySize] = {}
        self._capacity: dict[str, _RowsBySize] = {}

    @cached_property
    def with_unavailable(self) -> LaunchableOfferings:
        """The same with the unavailable offerings."""
        return LaunchableOfferings(self._all_types, unavailable=True)

    def _columns(self) -> Columns:
        """Labels by key; an offering's labels override its type's, so they are written last."""
        columns: Columns = {}
        for name, instance_type in self.types.items():
            for requirement in instance_type.requirements:
                _write(columns, requirement, self.by_type[name])
        offered: Columns = {}
        kinds = _grouped((o.requirements, o.zone, o.capacity_type) for _, o in self.rows)
        for (requirements, zone, capacity_type), rows in kinds.items():
            for requirement in _offering_labels(requirements, zone, capacity_type):
                _write(offered, requirement, rows)
        for key, column in offered.items():
            said = 0
            for rows in column.values():
                said |= rows
            by_type = {values: rows & ~said for values, rows in columns.get(key, {}).items()}
            columns[key] = {values: column.get(values, 0) | by_type.get(values, 0) for values in {**column, **by_type}}
        return columns

    def smaller_than(self, resource: str, amount: int) -> Rows:
        """The rows with less allocatable than this."""
        if resource not in self._allocatable:
            self._allocatable[resource] = _RowsBySize(self._by_size(resource, allocatable=True))
        return self._allocatable[resource].below(amount)

    def largest(self, resource: str, rows: Rows) -> int:
        """The largest capacity of these rows."""
        if resource not in self._capacity:
            self._capacity[resource] = _RowsBySize(self._by_size(resource, allocatable=False))
        return self._capacity[resource].largest(rows)

    def _by_size(self, resource: str, *, allocatable: bool) -> dict[int, Rows]:
        rows_by_size: dict[int, Rows] = {}
        for name, instance_type in self.types.items():
            kept = instance_type.overhead.get(resource, 0) if allocatable else 0
            size = max(instance_type.capacity.get(resource, 0) - kept, 0)
            rows_by_size[size] = rows_by_size.get(size, 0) | self.by_type[name]
        return rows_by_size


@lru_cache(maxsize=2)
def offerings_by_node_pool(catalogue: Catalogue) -> Mapping[str, LaunchableOfferings]:
    """Return a catalogue's launchable offerings, made once; NodePools with the same instance types share them."""
    lists = catalogue.by_node_pool
    made = {id(types): LaunchableOfferings(types) for types in {id(types): types for types in lists.values()}.values()}
    return {pool: made[id(types)] for pool, types in lists.items()}


class _RowsBySize:
    """One resource: the sizes in ascending order, and for each the rows below it."""

    def __init__(self, rows_by_size: Mapping[int, Rows]) -> None:
        self._sizes = sorted(rows_by_size)
        self._below = [0]
        for size in self._sizes:
            self._below.append(self._below[-1] | rows_by_size[size])

    def below(self, amount: int) -> Rows:
        """The rows that have less."""
        return self._below[bisect_left(self._sizes, amount)]

    def largest(self, rows: Rows) -> int:
        """The largest size among these rows, 0 if there are none."""
        reached = bisect_left(self._below, True, key=lambda below: rows & ~below == 0)
        return self._sizes[reached - 1] if reached else 0


def _grouped(keys: Iterable[K]) -> dict[K, Rows]:
    """By key, the rows that have it."""
    indexes: dict[K, list[int]] = {}
    for index, key in enumerate(keys):
        indexes.setdefault(key, []).append(index)
    return {key: _row_set(found) for key, found in indexes.items()}


def _row_set(indexes: Sequence[int]) -> Rows:
    """The rows with these indexes, in ascending order."""
    bits = bytearray(indexes[-1] // 8 + 1)
    for index in indexes:
        bits[index // 8] |= 1 << index % 8
    return int.from_bytes(bits, "little")


def _offering_labels(requirements: Requirements, zone: str, capacity_type: str) -> Requirements:
    """The labels of offerings; zone and capacity type also if only their fields name them."""
    said = {requirement.key for requirement in requirements}
    fields = ((key, value) for key, value in ((labels.ZONE, zone), (labels.CAPACITY_TYPE, capacity_type)) if value)
    missing = (NodeSelectorRequirement(key=k, operator="In", values=(v,)) for k, v in fields if k not in said)
    return (*requirements, *missing)


def _write(columns: Columns, requirement: NodeSelectorRequirement, rows: Rows) -> None:
    if requirement.operator in {"In", "DoesNotExist"}:
        column = columns.setdefault(normalized(requirement.key), {})
        values = frozenset(requirement.values)
        column[values] = column.get(values, 0) | rows


class PossibleLaunches:
    """The launchable offerings with the labels that a NodePool adds."""

    def __init__(self, pool: NodePool, offerings: LaunchableOfferings, daemons: Sequence[PodKind]) -> None:
        self.pool = pool
        self.offerings = offerings
        template = pool.spec.template
        ref = template.spec.node_class_ref
        self._own = {
            **template.metadata.labels,
            f"{ref.group}/{ref.kind.lower()}": ref.name,
            labels.NODEPOOL: pool.metadata.name,
            labels.REGISTERED: "true",
            labels.INITIALIZED: "true",
        }
        self.possible = self._possible(offerings)
        self.pool_requirements = (
            *template.spec.requirements,
            *(NodeSelectorRequirement(key=k, operator="In", values=(v,)) for k, v in sorted(self._own.items())),
        )
        self._tolerating = [d for d in daemons if untolerated(d.pod, template.spec.taints) is None]
        self.narrowed = cache(self.possible.narrowed)  # what can be launched under these requirements
        self.rows_of = cache(self._rows_of)  # the rows of these instance types
        self.rows_meeting_pool = cache(self._rows_meeting_pool)  # whichever values the labels of these rows get
        self.overheads = cache(self._daemon_overheads)  # that of all these rows, each of which is in one entry

    def _possible(self, offerings: LaunchableOfferings) -> PossibleLabels:
        given: dict[str, Column] = {k: {frozenset({v}): offerings.all_rows} for k, v in self._own.items()}
        return PossibleLabels(offerings.all_rows, given | offerings.columns)

    @cached_property
    def daemons(self) -> tuple[PodKind, ...]:
        """The daemons that fit on a type, available or not; nodes are launched without the others."""
        return tuple(
            daemon
            for daemon in self._tolerating
            if self._fits(daemon, self.offerings) or self._fits(daemon, self.offerings.with_unavailable)
        )

    def _fits(self, daemon: PodKind, offerings: LaunchableOfferings) -> bool:
        possible = self.possible if offerings is self.offerings else self._possible(offerings)
        rows = possible.narrowed(self.pool_requirements).rows
        for alternatives in daemon.node_requirements:
            rows &= reduce(or_, (self._rows_for(possible, wanted) for wanted in alternatives), 0)
        for resource, amount in daemon.requests.items():
            rows &= ~offerings.smaller_than(resource, amount)
        return bool(rows)

    def _rows_for(self, possible: PossibleLabels, wanted: Sequence[NodeSelectorRequirement]) -> Rows:
        """The rows that may meet these requirements; a label for which the NodePool lists no values may get any that they allow."""
        undecided = tuple(r for r in wanted if self._is_undecided(r.key))
        decided = tuple(r for r in wanted if r not in undecided)
        within = possible.narrowed((*self.pool_requirements, *undecided))
        return within.rows & within.rows_possibly_meeting(((decided,),))

    def _is_undecided(self, key: str) -> bool:
        """Whether the NodePool requires the label, and a NodeClaim says which value it gets."""
        key = normalized(key)
        known = key in labels.WELL_KNOWN or key in self._own or key in self.offerings.columns
        return not known and self.defines(key)

    def defines(self, key: str) -> bool:
        """Whether a pod may require this label: nodes have it, the NodePool allows it, or it is well-known."""
        key = normalized(key)
        return (
            key in labels.WELL_KNOWN
            or key in self._own
            or key in self.offerings.columns
            or any(normalized(r.key) == key and not is_met(r, None) for r in self.pool.spec.template.spec.requirements)
        )

    def values(self, key: str, wanted: tuple[NodeSelectorRequirement, ...]) -> frozenset[str]:
        """The listed values of a label that launched nodes may get and that meet these requirements."""
        pool_requirements = (*self.pool_requirements, *wanted)
        if key not in self.offerings.columns and not any(
            normalized(r.key) == key and r.operator == "In" for r in pool_requirements
        ):
            return frozenset()
        if not all(is_met(r, None) or self.defines(r.key) for r in wanted):
            return frozenset()
        left = self.narrowed(pool_requirements)
        return left.values(key, left.rows & ~self._too_small_for_daemons)

    @cached_property
    def _too_small_for_daemons(self) -> Rows:
        """The rows of types that cannot hold all daemons that may run on the type; no node of them is launched."""
        possible = self.narrowed(self.pool_requirements)
        running = [(daemon, possible.rows_possibly_meeting(daemon.node_requirements)) for daemon in self.daemons]
        too_small = 0
        for rows in self.offerings.by_type.values():
            requests = add(*(daemon.requests for daemon, where in running if where & rows))
            for resource, amount in requests.items():
                too_small |= rows & self.offerings.smaller_than(resource, amount)
        return too_small

    def possible_for(self, requirements: Sequence[NodeSelectorRequirement]) -> tuple[PossibleLabels, Rows]:
        """What a NodeClaim with these requirements may become: labels, and which rows.

        A custom label gets onto the node only if the NodePool defines it and the NodeClaim lists values for it.
        """
        named = {r.key for r in requirements if r.operator == "In"}
        honored_requirements = tuple(
            r
            for r in requirements
            if not (r.key == labels.INSTANCE_TYPE and r.operator == "In")
            and (
                r.key in labels.WELL_KNOWN
                or r.key in self.offerings.columns
                or (r.key in named and self.defines(r.key))
            )
        )
        possible = self.narrowed(honored_requirements)
        rows = possible.rows
        for requirement in requirements:
            if requirement.key == labels.INSTANCE_TYPE and requirement.operator == "In":
                rows &= self.rows_of(requirement.values)
        return possible, rows

    def _rows_of(self, types: tuple[str, ...]) -> Rows:
        return reduce(or_, (self.offerings.by_type.get(name, 0) for name in types), 0)

    def _rows_meeting_pool(self, possible: PossibleLabels) -> Rows:
        return possible.rows_meeting(((rule,),) for rule in self.pool_requirements)

    def _daemon_overheads(self, possible: PossibleLabels) -> list[DaemonTypeOverhead]:
        parts = [DaemonTypeOverhead(possible.rows, {}, ())]
        for daemon in self.daemons:
            running = possible.rows_possibly_meeting(daemon.node_requirements)
            parts = [half for part in parts for half in _halves(part, running, daemon) if half.rows]
        return parts


def _halves(part: DaemonTypeOverhead, running: Rows, daemon: PodKind) -> tuple[DaemonTypeOverhead, DaemonTypeOverhead]:
    """The rows with the daemon and those without."""
    requests = dict(part.requests)
    for resource, amount in daemon.requests.items():
        requests[resource] = requests.get(resource, 0) + amount
    with_it = DaemonTypeOverhead(part.rows & running, requests, (*part.ports, *daemon.ports))
    return with_it, DaemonTypeOverhead(part.rows & ~running, part.requests, part.ports)
