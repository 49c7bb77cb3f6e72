"""Defines the scheduling problem, its inputs and the partial solution, which all schedulers share.

`ClusterInputs` holds the inputs common to all problems about one cluster (consolidation simulates hundreds),
`SchedulingProblem` one problem, and `PartialSolution` the decisions made so far.

Pods with equal specs form a *class*. A class has relaxation levels: the first requires every preference, each further
one has one preference fewer. One class at one level is a *row*: arrays of the problem have one entry per row. The pods
of a class are scheduled in queue order, regardless of level.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import Affinity, Pod, PodSpec
from journeyman.core.api.resources import PODS
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.arrays import Ints
from journeyman.core.scheduling.daemon_overhead import Daemon, make_daemons, report_oversized
from journeyman.core.scheduling.daemon_pods import DaemonPods
from journeyman.core.scheduling.existing_nodes import ExistingNodes, NodeInventory, NodeSelection
from journeyman.core.scheduling.host_constraints import HostConstraints, host_constraints_of
from journeyman.core.scheduling.limits import Headroom
from journeyman.core.scheduling.nodeclaim_templates import NodeClaimTemplate, make_templates
from journeyman.core.scheduling.nodepool_options import NodeConstraints, NodeDemand, NodePoolOptions
from journeyman.core.scheduling.offering_masks import OfferingMasks, RequirementsInterner
from journeyman.core.scheduling.offerings import Reservations
from journeyman.core.scheduling.packing.packing_problem import packing_work
from journeyman.core.scheduling.pod_classes import PodClass, RowPods, group_pods
from journeyman.core.scheduling.pod_validation import has_resource_claims, required_terms
from journeyman.core.scheduling.preferences import MAX_LEVELS, relaxation_levels
from journeyman.core.scheduling.requirements import Requirements
from journeyman.core.scheduling.results import Effort, Options, PodError
from journeyman.core.scheduling.topology import (
    DecidedLabels,
    InverseAntiAffinity,
    LabelIndex,
    SpreadChoice,
    TopologyGroup,
)
from journeyman.core.scheduling.volumes import StorageObjects, resolve_volumes
from journeyman.core.state.pod_predicates import is_terminating
from journeyman.core.state.skipped_objects import SkippedObject
from journeyman.core.state.snapshot import Snapshot
from journeyman.core.state.taints import is_prefer_no_schedule

if TYPE_CHECKING:  # imported at run time only where pods have ResourceClaims
    from journeyman.core.scheduling.dra import ClaimReader, DeviceAllocator


class AxisAmount(NamedTuple):
    """A pod's request along one axis."""

    axis: int
    amount: int


def amounts_of(request: Sequence[int]) -> tuple[AxisAmount, ...]:
    """Return the nonzero entries of a pod's request by axis."""
    return tuple(AxisAmount(axis, amount) for axis, amount in enumerate(request) if amount)


class PodBatch(Struct, frozen=True, kw_only=True):
    """`count` pods of one row for nodes with these labels. `is_quota`: the placement of others depends on this number.

    No two batches of one assignment are equal.
    """

    row: int
    count: int
    decided: DecidedLabels = ()
    is_quota: bool = False


class PlannedNode(Struct, frozen=True, kw_only=True, eq=False):
    """A new node. `total` is the sum of its pods' requests by axis.

    `requirements` are those of its NodeClaim: the NodePool's, the decided labels, and one alternative of each row.
    `share` is the part of the NodePool's limits reserved for it (by limited resource, as in `limits.type_costs`); its
    NodeClaim lists no instance type that exceeds it. None if the NodePool has no limits.
    """

    pool: int
    requirements: Requirements
    pods: tuple[RowPods, ...]
    total: Ints
    share: Ints | None = None


class SchedulingProblem(Struct, frozen=True, kw_only=True, eq=False):
    """One scheduling problem, immutable.

    `rows[r]` is a class at one relaxation level (two rows if pods may join DaemonSets' pods on new nodes),
    `class_of_row[r]` the index of that class, `levels[c]` the rows of class c from the first relaxation level to the
    last, `counts[c]` the number of its pods to schedule. `requests` is indexed by row and axis. `pool_masks` are the
    NodePools' offerings as bit masks. `inverse_anti_affinities` are the domains that the anti-affinity of running pods
    excludes. `host_constraints` are the rows' constraints on a single node. `row_index` finds the rows that a topology
    group counts. `node_constraints` are the distinct requirements of rows on a node, `serving_pools` by these the
    NodePools with an offering for it. `allocator` is None if no row has ResourceClaims. `work` is by row the effort
    that each plan takes for it, `effort` what is left of the pass's effort, which every plan for the problem counts
    down.
    """

    rows: tuple[PodClass, ...]
    class_of_row: tuple[int, ...]
    levels: tuple[tuple[int, ...], ...]
    counts: tuple[int, ...]
    axes: tuple[str, ...]
    requests: Ints
    pools: tuple[NodePoolOptions, ...]
    pool_masks: tuple[OfferingMasks, ...]
    interner: RequirementsInterner
    existing: ExistingNodes
    inverse_anti_affinities: tuple[InverseAntiAffinity, ...]
    options: Options
    host_constraints: HostConstraints
    row_index: LabelIndex
    node_constraints: tuple[NodeConstraints, ...]
    node_constraints_of_row: tuple[int, ...]
    serving_pools: tuple[frozenset[int], ...]
    work: tuple[int, ...] = ()
    allocator: DeviceAllocator | None = None
    effort: Effort = field(default_factory=Effort)

    @property
    def has_topology_rules(self) -> bool:
        """Whether pods have topology spread or (anti-)affinity, or the anti-affinity of running pods is about them."""
        return bool(self.inverse_anti_affinities) or any(row.groups for row in self.rows)

    def co_located_classes(self) -> tuple[int, ...]:
        """Return the classes that only the sequential scheduler can place, ascending.

        These are pods with ResourceClaims, which compete for devices, and pods on either side of an affinity over
        hostnames.
        """
        groups: dict[bytes, TopologyGroup] = {}
        co_located: set[int] = set()
        for row in (row for level_rows in self.levels for row in level_rows):
            cls = self.rows[row]
            if cls.claims:
                co_located.add(self.class_of_row[row])
            for group in cls.affinities:
                if group.key == labels.HOSTNAME:
                    groups[group.id] = group
                    co_located.add(self.class_of_row[row])
        counted = (row for group in groups.values() for row in self.row_index.counted_by(group))
        return tuple(sorted(co_located | {self.class_of_row[row] for row in counted}))

    def last_level(self, c: int) -> tuple[int, ...]:
        """Return the rows of a class's last relaxation level."""
        return last_level(self.levels[c], self.rows)

    def spend_on(self, classes: Iterable[int]) -> None:
        """Spend the effort of one plan for these classes. Raises EffortSpentError."""
        self.effort.spend(sum(self.work[row] for c in classes for row in self.levels[c]))


def last_level(level_rows: Sequence[int], rows: Sequence[PodClass]) -> tuple[int, ...]:
    """Return the rows of the last relaxation level of a class with these rows."""
    return tuple(level_rows[-2:] if rows[level_rows[-1]].launch_only else level_rows[-1:])


class PartialSolution(Struct, frozen=True, kw_only=True, eq=False):
    """An unfinished plan. `left[c]` pods of class c are not scheduled yet; `on_existing[n]` are the pods on node n.

    `headroom[s]` is the remainder of NodePool s's limits, `reservations` the remaining reserved capacity. `reasons`
    says by class why pods are unschedulable. `allocator` has what the pods' ResourceClaims get on the nodes; their
    indices are those of existing nodes, then of new ones. `spread_choice` says which domains pods with topology spread
    get.
    """

    left: Sequence[int]
    headroom: Sequence[Headroom]
    reservations: Reservations
    on_existing: Mapping[int, Sequence[RowPods]] = field(default_factory=dict)
    new_nodes: Sequence[PlannedNode] = ()
    reasons: Mapping[int, str] = field(default_factory=dict)
    allocator: DeviceAllocator | None = None
    spread_choice: SpreadChoice = SpreadChoice.EMPTIEST


class ClusterInputs(Struct, kw_only=True, eq=False, dict=True):
    """The inputs that all problems about one cluster share."""

    snapshot: Snapshot
    options: Options
    templates: tuple[NodeClaimTemplate, ...]
    invalid_objects: Mapping[str, str]
    daemons: tuple[Daemon, ...]
    skipped_daemon_sets: tuple[SkippedObject, ...]
    storage: StorageObjects
    inventory: NodeInventory
    daemon_pods: DaemonPods
    interner: RequirementsInterner = field(default_factory=RequirementsInterner)
    _pools: dict[tuple[str, ...], tuple[NodePoolOptions, ...]] = field(default_factory=dict)
    _masks: dict[tuple[str, ...], tuple[OfferingMasks, ...]] = field(default_factory=dict)

    def pools(self, axes: tuple[str, ...]) -> tuple[NodePoolOptions, ...]:
        """Return the NodePools' options along these axes; cached, together with the results they cache."""
        if axes not in self._pools:
            self._pools[axes] = tuple(NodePoolOptions.of(template, self.daemons, axes) for template in self.templates)
        return self._pools[axes]

    def pool_masks(self, axes: tuple[str, ...]) -> tuple[OfferingMasks, ...]:
        """Return the NodePools' offerings along these axes as bit masks; cached, with the results they cache."""
        if axes not in self._masks:
            pools = enumerate(self.pools(axes))
            self._masks[axes] = tuple(OfferingMasks(index, pool, self.interner) for index, pool in pools)
        return self._masks[axes]

    @cached_property
    def _headroom(self) -> tuple[Headroom, ...]:
        return tuple(Headroom(template, self.inventory.nodes) for template in self.templates)

    def headroom(self, selection: NodeSelection) -> tuple[Headroom, ...]:
        """Return what is left of each NodePool's limits if only these nodes exist."""
        return tuple(headroom.without(selection.removed_nodes) for headroom in self._headroom)

    def domains(self, key: str) -> int:
        """Return how many domains of a label offerings have, at least 1; 1 for hostnames, which none has."""
        columns = (template.table.row_values(key)[1] for template in self.templates)
        return max((len(column) for column in columns), default=1)

    @property
    def skipped(self) -> tuple[SkippedObject, ...]:
        """The DaemonSets and, so far, the nodes that cannot be evaluated."""
        return (*self.skipped_daemon_sets, *(found for _, found in sorted(self.inventory.skipped.items())))

    @property
    def warnings(self) -> Mapping[str, str]:
        """The invalid settings of each usable NodePool that are ignored, by its name."""
        return {template.name: template.warning for template in self.templates if template.warning}

    @classmethod
    def of(cls, snapshot: Snapshot, catalogue: Catalogue, options: Options) -> ClusterInputs:
        """Prepare the inputs from a snapshot and a catalogue."""
        templates, invalid_objects = make_templates(snapshot, catalogue)
        daemons, skipped = make_daemons(
            snapshot.daemon_sets, snapshot.pods, ignore_dra_requests=options.ignore_dra_requests
        )
        storage = StorageObjects.of(snapshot)
        inventory = NodeInventory(snapshot, daemons, storage)
        return cls(
            snapshot=snapshot,
            options=options,
            templates=templates,
            invalid_objects=invalid_objects,
            daemons=daemons,
            skipped_daemon_sets=(*skipped, *report_oversized(templates, daemons)),
            storage=storage,
            inventory=inventory,
            daemon_pods=DaemonPods(daemons, templates, inventory.namespaces),
        )

    def with_daemons(self, daemons: tuple[Daemon, ...]) -> ClusterInputs:
        """Return the inputs with other DaemonSets' pods."""
        inventory = NodeInventory(self.snapshot, daemons, self.storage)
        return replace(
            self,
            daemons=daemons,
            inventory=inventory,
            daemon_pods=DaemonPods(daemons, self.templates, inventory.namespaces),
            interner=RequirementsInterner(),
            _pools={},
            _masks={},
        )


class ReservedPlacement(Struct, frozen=True, kw_only=True):
    """Pods of a row that stay on the NodeClaim planned for them: its index among the existing nodes, and their keys."""

    node: int
    row: int
    keys: tuple[str, ...]


class SchedulingTask(Struct, frozen=True, kw_only=True, eq=False):
    """A problem, with the pods that are decided before it is solved.

    `errors` are the pods with an invalid spec, by key; `reserved` those that stay on the NodeClaim planned for them.
    """

    problem: SchedulingProblem
    headroom: tuple[Headroom, ...]
    reservations: Reservations
    errors: Mapping[str, PodError]
    reserved: tuple[ReservedPlacement, ...] = ()

    def with_levels(self, levels: Sequence[tuple[int, ...]]) -> SchedulingTask:
        """Return the same problem with other relaxation levels, of the same rows."""
        return replace(self, problem=replace(self.problem, levels=tuple(levels)))

    def initial_solution(self) -> PartialSolution:
        """Return a solution that contains only the reserved placements."""
        left = list(self.problem.counts)
        on_existing: dict[int, list[RowPods]] = {}
        for reserved in self.reserved:
            left[self.problem.class_of_row[reserved.row]] -= len(reserved.keys)
            on_existing.setdefault(reserved.node, []).append(RowPods(reserved.row, len(reserved.keys)))
        return PartialSolution(
            left=left,
            on_existing=on_existing,
            headroom=[pool_headroom.copy() for pool_headroom in self.headroom],
            reservations=self.reservations.copy(),
            allocator=self.problem.allocator.copy() if self.problem.allocator is not None else None,
        )


def prepare_task(
    inputs: ClusterInputs,
    pods: Sequence[Pod],
    without_nodes: frozenset[str],
    effort: Effort | None = None,
    *,
    are_moving: bool = True,
) -> SchedulingTask:
    """Return the problem of scheduling these pods.

    Args:
        inputs: The cluster.
        pods: Pods to schedule, bound or not.
        without_nodes: Names of StateNodes to treat as deleted, with the pods on them.
        effort: What the pass may do; by default all that it needs.
        are_moving: Whether bound pods leave their nodes; otherwise they count there, and their classes are prepared
            only.

    Raises:
        EffortSpentError: Reading the pods takes more.
    """
    effort = effort if effort is not None else Effort()
    snapshot, inventory = inputs.snapshot, inputs.inventory
    selection = inventory.select(pods if are_moving else (), without_nodes)
    rescheduled = selection.rescheduled
    namespaces = {n.metadata.name: n for n in snapshot.namespaces}
    inverse_anti_affinities = inventory.inverse_anti_affinities(selection)
    claims = _claims(inputs, pods, without_nodes)
    classes, errors = group_pods(
        pods,
        namespaces,
        inverse_anti_affinities=(*inverse_anti_affinities, *inputs.daemon_pods.inverse_anti_affinities),
        volumes_of=lambda pod: resolve_volumes(pod, inputs.storage),
        claims_of=claims.read if claims is not None else None,
        effort=effort,
    )
    nodes = len(selection.nodes)
    per_plan = sum(
        cls.work(len(inputs.templates), nodes) * min(cls.preferences.count + 1, MAX_LEVELS) for cls in classes
    )
    effort.require(_PLANS * per_plan)
    effort.spend(per_plan // 2)
    relaxation = _RelaxationRows.of(classes, inputs)
    work_of_rows = _work(relaxation.rows, len(inputs.templates), nodes)
    effort.require(_PLANS * sum(work_of_rows))
    effort.spend(sum(work_of_rows))
    axes = tuple(sorted({PODS}.union(*(c.requests for c in classes), *(d.requests for d in inputs.daemons))))
    types = sum(len(template.table.types) for template in inputs.templates)
    effort.require(_PLANS * len(axes) * (types + nodes) // _AMOUNTS_PER_UNIT)
    effort.spend(len(axes) * (types + nodes + len(relaxation.rows)) // _AMOUNTS_PER_UNIT)
    has_ports = any(cls.ports for cls in classes)
    used_ports = inventory.used_ports(selection) if has_ports else frozenset()
    pod_counts = inventory.pod_counts(selection, relaxation.rows)
    about_pods = (group for row in relaxation.rows for group in (*row.affinities, *row.anti_affinities))
    expected_counts = inventory.expected_counts(
        selection, relaxation.rows, inputs.daemon_pods.counted_by(about_pods), pod_counts
    )
    row_index = LabelIndex(relaxation.rows)
    host_constraints = host_constraints_of(
        relaxation.rows,
        inverse_anti_affinities,
        used_ports,
        row_index=row_index,
        is_running=lambda group: bool(expected_counts.by_node(group)),
        spend_on_columns=lambda columns: _spend_on_tables(effort, len(relaxation.rows), nodes, columns),
    )
    existing = inventory.survey(
        selection, pod_counts, expected_counts, axes=axes, host_constraints=host_constraints, has_ports=has_ports
    )
    node_constraints: dict[NodeConstraints, int] = {}
    node_constraints_of_row = tuple(
        node_constraints.setdefault(NodeConstraints.of(row), len(node_constraints)) for row in relaxation.rows
    )
    pools, demands = inputs.pools(axes), [NodeDemand(constraints) for constraints in node_constraints]
    problem = SchedulingProblem(
        rows=tuple(relaxation.rows),
        class_of_row=tuple(relaxation.class_of_row),
        levels=tuple(relaxation.levels),
        counts=tuple(len(cls.pods) for cls in classes),
        axes=axes,
        requests=_requests(relaxation.rows, axes),
        pools=pools,
        pool_masks=inputs.pool_masks(axes),
        interner=inputs.interner,
        existing=existing,
        inverse_anti_affinities=inverse_anti_affinities,
        options=inputs.options,
        host_constraints=host_constraints,
        row_index=row_index,
        node_constraints=tuple(node_constraints),
        node_constraints_of_row=node_constraints_of_row,
        serving_pools=tuple(frozenset(s for s, pool in enumerate(pools) if pool.serves(demand)) for demand in demands),
        work=work_of_rows,
        effort=effort,
        allocator=_allocator(inputs, claims, classes, existing, rescheduled),
    )
    return SchedulingTask(
        problem=problem,
        headroom=inputs.headroom(selection),
        reservations=Reservations.of((t.table for t in inputs.templates), snapshot.claims),
        errors=errors,
    )


_PLANS: Final = 2  # the least: the rows are made for the work of one plan, and one plan is made
_AMOUNTS_PER_UNIT: Final = (
    8  # entries of the tables of resources by instance type, node and row that take one unit of effort
)
_CELLS_PER_UNIT: Final = 20  # entries of the tables of rules about a single node that take one unit of effort


def _spend_on_tables(effort: Effort, rows: int, nodes: int, columns: int) -> None:
    """Spend the effort of the tables of host constraints, if enough is left for packing with so many, too."""
    tables = (rows + nodes) * columns // _CELLS_PER_UNIT
    effort.require(tables + packing_work(rows, columns // 2))
    effort.spend(tables)


def _work(rows: Sequence[PodClass], node_pools: int, nodes: int) -> tuple[int, ...]:
    """Return the effort of a plan by row.

    A group whose selector requires no label's value is compared with all distinct labels; this counts for its first
    row.
    """
    distinct_labels = len({(row.namespace, frozenset(row.labels.items())) for row in rows})
    known: set[bytes] = set()
    work: list[int] = []
    for row in rows:
        groups = {g.id: g for g in row.groups}
        new = [group for group_id, group in groups.items() if group_id not in known and not group.required_labels]
        known.update(groups)
        work.append(row.work(node_pools, nodes) + _PER_COMPARISON * len(new) * distinct_labels)
    return tuple(work)


_PER_COMPARISON: Final = 1  # effort of comparing a selector with one set of labels
_PER_COMBINATION: Final = 60  # effort of a term or rule in a NodePool, or of one combination of domains
_CHARGES: Final = 2  # the levels are built, then rows are made of them and at least one plan


def estimated_work(spec: PodSpec, inputs: ClusterInputs) -> int:
    """Return roughly how much effort a plan takes for pods of this spec, before its constraints are read."""
    affinity = spec.affinity or Affinity()
    node = affinity.node_affinity
    terms = max(len(required_terms(spec.affinity)), 1)
    rules = [constraint.topology_key for constraint in spec.topology_spread_constraints]
    preferences = len(node.preferred) if node is not None else 0
    preferences += sum(c.when_unsatisfiable == "ScheduleAnyway" for c in spec.topology_spread_constraints)
    for about_pods in (affinity.pod_affinity, affinity.pod_anti_affinity):
        if about_pods is not None:
            rules += [term.topology_key for term in about_pods.required]
            rules += [weighted.pod_affinity_term.topology_key for weighted in about_pods.preferred]
            preferences += len(about_pods.preferred)
    offerings = sum(len(template.table.row_type) for template in inputs.templates)
    keys = {labels.ALIASES.get(key, key) for key in rules}
    combinations = min(prod(map(inputs.domains, keys)), offerings)
    per_level = terms * _PER_COMBINATION * len(inputs.templates) + len(rules) * (_PER_COMBINATION + terms)
    return _CHARGES * per_level * min(1 + preferences, MAX_LEVELS) + _PER_COMBINATION * combinations * terms


def _claims(inputs: ClusterInputs, pods: Sequence[Pod], without_nodes: frozenset[str]) -> ClaimReader | None:
    """Return a reader of ResourceClaims without the pods that leave their nodes; None if no pod's claims count."""
    if inputs.options.ignore_dra_requests or not any(map(has_resource_claims, pods)):
        return None
    from journeyman.core.scheduling.dra import ClaimReader  # noqa: PLC0415 - only with ResourceClaims

    snapshot = inputs.snapshot
    removed = (pod for n in snapshot.state_nodes if n.name in without_nodes or n.is_being_disrupted for pod in n.pods)
    moved = (pod for pod in pods if pod.spec.node_name)
    terminating = (pod for pod in snapshot.pods if pod.spec.resource_claims and is_terminating(pod))
    return ClaimReader(snapshot, frozenset(pod.metadata.uid for pods in (removed, moved, terminating) for pod in pods))


def _allocator(
    inputs: ClusterInputs,
    claims: ClaimReader | None,
    classes: Sequence[PodClass],
    existing: ExistingNodes,
    rescheduled: frozenset[str],
) -> DeviceAllocator | None:
    """Return what allocates for the ResourceClaims of these classes; None if they have none."""
    if claims is None or not any(cls.claims for cls in classes):
        return None
    from journeyman.core.scheduling.dra import DeviceAllocator  # noqa: PLC0415 - only with ResourceClaims

    types = {(t.name, instance_type.name): instance_type for t in inputs.templates for instance_type in t.table.types}
    return DeviceAllocator(claims, inputs.snapshot.resource_slices, existing.nodes, types, rescheduled)


class _RelaxationRows(Struct, kw_only=True, eq=False):
    """The rows of a problem; the fields are those of `SchedulingProblem`."""

    rows: list[PodClass] = field(default_factory=list)
    class_of_row: list[int] = field(default_factory=list)
    levels: list[tuple[int, ...]] = field(default_factory=list)

    @classmethod
    def of(cls, classes: Sequence[PodClass], inputs: ClusterInputs) -> _RelaxationRows:
        """Return every class at every relaxation level."""
        result = cls()
        taints = (t for template in inputs.templates for t in template.taints)
        has_preference_taints = any(is_prefer_no_schedule(taint) for taint in taints)
        for number, pods in enumerate(classes):
            levels = inputs.daemon_pods.with_rules(
                relaxation_levels(pods, policy=inputs.options.preferences, any_preference_taint=has_preference_taints)
            )
            first = len(result.rows)
            result.rows += levels
            result.class_of_row += [number] * len(levels)
            result.levels.append(tuple(range(first, len(result.rows))))
        return result


def _requests(rows: Sequence[PodClass], axes: Sequence[str]) -> Ints:
    """Return the requests of one pod, by row and axis."""
    amounts = [[row.requests.get(axis, 0) for axis in axes] for row in rows]
    return np.array(amounts, dtype=np.int64).reshape(len(rows), len(axes))
