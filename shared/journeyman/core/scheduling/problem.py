"""Holds the scheduling problem, its inputs, and the solution so far, as values that all planners share.

`ClusterInputs` is what many problems about one cluster have in common (consolidation simulates hundreds),
`SchedulingProblem` what one of them is about, and `PartialSolution` what has been decided.

Pods of equal specification are a *class*. A class has relaxation levels: the first has every preference as a
requirement, each further one has one preference fewer. One class at one level is a *row*: arrays of the problem have
one entry per row. Within a class pods are taken in queue order, at whatever level.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api.objects import Pod
from journeyman.core.api.resources import PODS
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.arrays import Ints
from journeyman.core.scheduling.daemon_overhead import Daemon, make_daemons, nodepool_options_of
from journeyman.core.scheduling.existing_nodes import ExistingNodes, NodeInventory, NodeSelection
from journeyman.core.scheduling.host_constraints import HostConstraints, host_constraints_of
from journeyman.core.scheduling.limits import Headroom
from journeyman.core.scheduling.nodeclaim_templates import NodeClaimTemplate, make_templates
from journeyman.core.scheduling.nodepool_options import NodeConstraints, NodePoolOptions
from journeyman.core.scheduling.offerings import Reservations
from journeyman.core.scheduling.pod_classes import PodClass, group_pods
from journeyman.core.scheduling.preferences import relaxation_levels
from journeyman.core.scheduling.requirements import Requirements
from journeyman.core.scheduling.results import Options, PodError
from journeyman.core.scheduling.topology import InverseAntiAffinity, Pins
from journeyman.core.scheduling.volumes import StorageObjects, resolve_volumes
from journeyman.core.state.pod_predicates import is_terminating
from journeyman.core.state.snapshot import Snapshot
from journeyman.core.state.taints import is_prefer_no_schedule

if TYPE_CHECKING:
    from journeyman.core.scheduling.dra import AllocationTracker, ClaimReader, DeviceInventory


class PodBatch(Struct, frozen=True, kw_only=True):
    """`count` pods of one row that go to nodes with these labels. `is_quota`: others were placed counting on it."""

    row: int
    count: int
    pins: Pins = ()
    is_quota: bool = False

    @property
    def target(self) -> tuple[int, Pins, bool]:
        """What distinguishes it from other batches of one assignment."""
        return self.row, self.pins, self.is_quota


class PlannedNode(Struct, frozen=True, kw_only=True, eq=False):
    """A new node. `pods` are (row, how many); `total` is what they ask for along the axes.

    `requirements` are all that its claim will ask for: the pool's, the pins', and for each row one of its alternatives.
    `share` is what the pool's limits set aside for it (by limited resource, as `limits.type_costs` has them), so that
    its claim lists no type that would take more; None if the pool has no limits.
    """

    pool: int
    requirements: Requirements
    pods: tuple[tuple[int, int], ...]
    total: Ints
    share: Ints | None = None


class SchedulingProblem(Struct, frozen=True, kw_only=True, eq=False):
    """What a pass is about. Nothing in it changes while it is answered.

    `rows[r]` is a class at one relaxation level, `pod_class[r]` the class it belongs to, `levels[c]` the rows of class c from the
    first relaxation level to the last, `counts[c]` how many pods of it are to be placed. `requests` has a row per row and a column
    per axis. `leaving` are the keys of the pods to be placed, wherever they are now. `repelled` are the domains from
    which running pods keep others away. `caps` are the rows' rules about one node alone. `devices` are there if any row
    has ResourceClaims.
    """

    rows: tuple[PodClass, ...]
    class_of_row: tuple[int, ...]
    levels: tuple[tuple[int, ...], ...]
    counts: tuple[int, ...]
    axes: tuple[str, ...]
    requests: Ints
    pools: tuple[NodePoolOptions, ...]
    existing: ExistingNodes
    leaving: frozenset[str]
    repelled: tuple[InverseAntiAffinity, ...]
    options: Options
    host_constraints: HostConstraints
    shapes: tuple[NodeConstraints, ...]
    shape_of_row: tuple[int, ...]
    devices: DeviceInventory | None = None


class PartialSolution(Struct, frozen=True, kw_only=True, eq=False):
    """A plan in the making. `left[c]` pods of class c are not scheduled yet; `on_existing[n]` are (row, how many) on node n.

    `headroom[s]` is what is left of the limits of NodePool s, `reservations` of reserved capacity. `reasons` says by class
    why pods of it cannot be placed. `ceilings` limit by row and pins how many pods may be sent there. `devices` say
    who has which, existing nodes being numbered first and then those opened. `use_spread_slack`: pods are spread no more evenly
    than they must be, where one domain is cheaper than another.
    """

    left: Sequence[int]
    headroom: Sequence[Headroom]
    reservations: Reservations
    on_existing: Mapping[int, Sequence[tuple[int, int]]] = field(default_factory=dict)
    new_nodes: Sequence[PlannedNode] = ()
    reasons: Mapping[int, str] = field(default_factory=dict)
    ceilings: Mapping[tuple[int, Pins], int] = field(default_factory=dict)
    devices: AllocationTracker | None = None
    use_spread_slack: bool = False


class ClusterInputs(Struct, kw_only=True, eq=False, dict=True):
    """What all problems about one cluster have in common."""

    snapshot: Snapshot
    options: Options
    templates: tuple[NodeClaimTemplate, ...]
    invalid_objects: Mapping[str, str]
    daemons: tuple[Daemon, ...]
    storage: StorageObjects
    inventory: NodeInventory
    _pools: dict[tuple[str, ...], tuple[NodePoolOptions, ...]] = field(default_factory=dict)

    def pools(self, axes: tuple[str, ...]) -> tuple[NodePoolOptions, ...]:
        """What the NodePools have along these axes; kept, with all that has been found out about them."""
        if axes not in self._pools:
            self._pools[axes] = tuple(nodepool_options_of(template, self.daemons, axes) for template in self.templates)
        return self._pools[axes]

    @cached_property
    def _headroom(self) -> tuple[Headroom, ...]:
        return tuple(Headroom(template, self.inventory.nodes) for template in self.templates)

    def headroom(self, standing: NodeSelection) -> tuple[Headroom, ...]:
        """What is left of each NodePool's limits while only these nodes stand."""
        return tuple(headroom.without(standing.gone) for headroom in self._headroom)

    @property
    def warnings(self) -> Mapping[str, str]:
        """By NodePool, what of its requirements could not be understood though it is used."""
        return {template.name: template.warning for template in self.templates if template.warning}

    @classmethod
    def of(cls, snapshot: Snapshot, catalogue: Catalogue, options: Options) -> ClusterInputs:
        """Prepare a cluster."""
        templates, invalid_objects = make_templates(snapshot, catalogue)
        daemons, storage = make_daemons(snapshot.daemon_sets, snapshot.pods), StorageObjects.of(snapshot)
        return cls(
            snapshot=snapshot,
            options=options,
            templates=templates,
            invalid_objects=invalid_objects,
            daemons=daemons,
            storage=storage,
            inventory=NodeInventory(snapshot, daemons, storage),
        )


class ReservedPlacement(Struct, frozen=True, kw_only=True):
    """Pods of a row that stay with the claim opened for them: its number among the existing nodes, and their keys."""

    node: int
    row: int
    keys: tuple[str, ...]


class SchedulingTask(Struct, frozen=True, kw_only=True, eq=False):
    """A problem, with what is settled before it is answered.

    `errors` are the pods that nothing could place, by key; `reserved` those that stay with the claim opened for them.
    """

    problem: SchedulingProblem
    headroom: tuple[Headroom, ...]
    reservations: Reservations
    errors: Mapping[str, PodError]
    reserved: tuple[ReservedPlacement, ...] = ()

    def with_levels(self, levels: Sequence[tuple[int, ...]]) -> SchedulingTask:
        """The same problem with other relaxation levels, of the same rows."""
        return replace(self, problem=replace(self.problem, levels=tuple(levels)))

    def without_reserved(self, reserved: Collection[ReservedPlacement]) -> SchedulingTask:
        """The same problem without keeping these in their places."""
        return replace(self, reserved=tuple(entry for entry in self.reserved if entry not in reserved))

    def initial_solution(self) -> PartialSolution:
        """A plan in which nothing is decided yet but who is kept."""
        left = list(self.problem.counts)
        on_existing: dict[int, list[tuple[int, int]]] = {}
        for reserved in self.reserved:
            left[self.problem.class_of_row[reserved.row]] -= len(reserved.keys)
            on_existing.setdefault(reserved.node, []).append((reserved.row, len(reserved.keys)))
        return PartialSolution(
            left=left,
            on_existing=on_existing,
            headroom=[pool_headroom.copy() for pool_headroom in self.headroom],
            reservations=self.reservations.copy(),
            devices=self.problem.devices.begin() if self.problem.devices is not None else None,
        )


def prepare_task(inputs: ClusterInputs, pods: Sequence[Pod], without_nodes: frozenset[str]) -> SchedulingTask:
    """The problem where these pods are to go.

    Args:
        inputs: The cluster.
        pods: Pods to place, wherever they are now.
        without_nodes: Names of StateNodes to be assumed gone, with the pods on them.
    """
    snapshot, inventory = inputs.snapshot, inputs.inventory
    standing = inventory.standing(pods, without_nodes)
    asking, leaving = standing.asking, standing.leaving
    namespaces = {n.metadata.name: n for n in snapshot.namespaces}
    repelled = inventory.repelled(standing)
    claims = _claims(inputs, asking, without_nodes)
    classes, errors = group_pods(
        asking,
        namespaces,
        repelled=repelled,
        volumes_of=lambda pod: resolve_volumes(pod, inputs.storage),
        claims_of=claims.read if claims is not None else None,
    )
    climb = _RelaxationRows.of(classes, inputs)
    axes = tuple(sorted({PODS}.union(*(c.requests for c in classes), *(d.requests for d in inputs.daemons))))
    used_ports = inventory.used_ports(standing) if any(cls.ports for cls in classes) else frozenset()
    caps = host_constraints_of(climb.rows, repelled, used_ports)
    existing = inventory.survey(standing, climb.rows, axes=axes, caps=caps)
    shapes: dict[NodeConstraints, int] = {}
    shape_of_row = tuple(shapes.setdefault(NodeConstraints.of(row), len(shapes)) for row in climb.rows)
    problem = SchedulingProblem(
        rows=tuple(climb.rows),
        class_of_row=tuple(climb.class_of_row),
        levels=tuple(climb.levels),
        counts=tuple(len(cls.pods) for cls in classes),
        axes=axes,
        requests=_requests(climb.rows, axes),
        pools=inputs.pools(axes),
        existing=existing,
        leaving=leaving,
        repelled=repelled,
        options=inputs.options,
        host_constraints=caps,
        shapes=tuple(shapes),
        shape_of_row=shape_of_row,
        devices=_devices(inputs, claims, classes, existing, leaving),
    )
    return SchedulingTask(
        problem=problem,
        headroom=inputs.headroom(standing),
        reservations=Reservations.of((t.table for t in inputs.templates), snapshot.claims),
        errors=errors,
    )


def _claims(inputs: ClusterInputs, asking: Sequence[Pod], without_nodes: frozenset[str]) -> ClaimReader | None:
    """The ResourceClaims of the cluster, as it will be once pods have left their nodes; None if they are ignored."""
    if inputs.options.ignore_dra_requests:
        return None
    from journeyman.core.scheduling.dra import ClaimReader  # noqa: PLC0415 - only who asks for it pays for it

    snapshot = inputs.snapshot
    gone = (pod for n in snapshot.state_nodes if n.name in without_nodes or n.is_being_disrupted for pod in n.pods)
    moved = (pod for pod in asking if pod.spec.node_name)
    going = (pod for pod in snapshot.pods if pod.spec.resource_claims and is_terminating(pod))
    return ClaimReader(snapshot, frozenset(pod.metadata.uid for pods in (gone, moved, going) for pod in pods))


def _devices(
    inputs: ClusterInputs,
    claims: ClaimReader | None,
    classes: Sequence[PodClass],
    existing: ExistingNodes,
    leaving: frozenset[str],
) -> DeviceInventory | None:
    """What there is for the claims of these classes, None if they have none."""
    if claims is None or not any(cls.claims for cls in classes):
        return None
    from journeyman.core.scheduling.dra import DeviceInventory  # noqa: PLC0415 - only who has claims pays for it

    types = {(t.name, found.name): found for t in inputs.templates for found in t.table.types}
    return DeviceInventory.of(claims, inputs.snapshot.resource_slices, existing.nodes, types, leaving)


class _RelaxationRows(Struct, kw_only=True, eq=False):
    rows: list[PodClass] = field(default_factory=list)
    class_of_row: list[int] = field(default_factory=list)
    levels: list[tuple[int, ...]] = field(default_factory=list)

    @classmethod
    def of(cls, classes: Sequence[PodClass], inputs: ClusterInputs) -> _RelaxationRows:
        """Every class at every relaxation level."""
        made = cls()
        taints = (t for template in inputs.templates for t in template.node_pool.spec.template.spec.taints)
        has_preference_taints = any(is_prefer_no_schedule(taint) for taint in taints)
        for number, pods in enumerate(classes):
            levels = relaxation_levels(
                pods, policy=inputs.options.preferences, any_preference_taint=has_preference_taints
            )
            first = len(made.rows)
            made.rows += levels
            made.class_of_row += [number] * len(levels)
            made.levels.append(tuple(range(first, len(made.rows))))
        return made


def _requests(rows: Sequence[PodClass], axes: Sequence[str]) -> Ints:
    """Return amounts by row and axis."""
    amounts = [[row.requests.get(axis, 0) for axis in axes] for row in rows]
    return np.array(amounts, dtype=np.int64).reshape(len(rows), len(axes))
