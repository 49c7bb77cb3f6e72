"""The snapshot and the plan, prepared once for all rules: who goes where, what stays there, what it may become."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct, field

from journeyman.core.api import labels
from journeyman.core.api.objects import Pod, Taint
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.results import PlannedClaim, Results
from journeyman.core.scheduling.verify.defect import Defect
from journeyman.core.scheduling.verify.kinds import Kind, Kinds, daemon_of, is_daemon, is_going
from journeyman.core.scheduling.verify.launches import Launches, markets_of
from journeyman.core.scheduling.verify.matching import CORDON
from journeyman.core.scheduling.verify.possible import Possibilities, Rows, Values
from journeyman.core.state import Snapshot, StateNode

if TYPE_CHECKING:  # the models build validators; nothing here needs them
    from journeyman.core.api.nodepool import NodePool


class Place(Struct, frozen=True, eq=False):
    """A node, standing or planned. `planned` are the pods that the plan puts there, `staying` those that are there.

    `rows` of `possible` are what it may turn out to be. `open`: whether pods can still be planned onto it. `opened_for`
    are the pods (by key) for which a claim was made that is still on its way.
    """

    name: str
    host: str
    planned: Mapping[str, Kind]
    staying: tuple[Kind, ...]
    possible: Possibilities
    rows: Rows
    taints: tuple[Taint, ...]
    open: bool
    node: StateNode | None = None
    claim: PlannedClaim | None = None
    opened_for: frozenset[str] = frozenset()
    _domains: dict[str, frozenset[str]] = field(default_factory=dict)

    @property
    def is_unlaunched(self) -> bool:
        """Whether it is a claim that has no instance yet."""
        return self.node is not None and self.node.claim is not None and not self.node.provider_id

    def defect(self, wrong: str) -> Defect:
        """What is wrong here."""
        return Defect(f"{self.name}: {wrong}", (self.name,))

    def domains(self, key: str) -> frozenset[str]:
        """The values that a label may get here; a new node's name is its own."""
        if key not in self._domains:
            self._domains[key] = (
                frozenset({self.host}) if key == labels.HOSTNAME else self.possible.values(key, self.rows)
            )
        return self._domains[key]


class Index:
    """One plan and the cluster it is for."""

    def __init__(
        self,
        snapshot: Snapshot,
        catalogue: Catalogue,
        results: Results,
        pods: Sequence[Pod] | None,
        without_nodes: frozenset[str],
    ) -> None:
        self.snapshot = snapshot
        self.results = results
        self.asked = pods
        self.known = {pod.key: pod for pod in (*snapshot.pods, *(pods or ()))}
        self.standing = tuple(node for node in snapshot.state_nodes if node.name not in without_nodes)
        self._kinds = Kinds()
        self._markets = markets_of(catalogue)
        self._launches: dict[str, Launches] = {}

    def kind(self, key: str) -> Kind:
        """What the pod asks for."""
        return self._kinds.of(self.known[key])

    @cached_property
    def placed(self) -> tuple[str, ...]:
        """The keys of all pods that have a place in the plan, once for each."""
        new = (key for claim in self.results.new_claims for key in claim.pods)
        return (*new, *(key for keys in self.results.existing.values() for key in keys))

    @cached_property
    def moving(self) -> frozenset[str]:
        """The keys of the pods to be placed: they do not count where they are now."""
        return frozenset(self.placed) | {pod.key for pod in self.asked or ()}

    @cached_property
    def daemons(self) -> tuple[Kind, ...]:
        """What DaemonSets put on nodes; one whose requests cannot be read never runs."""
        owned = [pod for pod in self.snapshot.pods if is_daemon(pod)]
        found = (daemon_of(daemon_set, owned) for daemon_set in self.snapshot.daemon_sets)
        return tuple(daemon for daemon in found if not daemon.unreadable)

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """All nodes that stand and all that are planned."""
        return (*self.standing_places, *self.new_places)

    @cached_property
    def standing_places(self) -> tuple[Place, ...]:
        """The nodes that stand, by name; those thought away are not among them."""
        possible = _labels_of(self.standing)
        return tuple(
            Place(
                name=name_of_node(node.name),
                host=node.labels.get(labels.HOSTNAME, node.name),
                planned={key: self.kind(key) for key in self.results.existing.get(node.name, ())},
                staying=self._staying(node),
                possible=possible,
                rows=1 << index,
                taints=(*node.taints, *_cordon(node)),
                open=not (is_leaving(node) or node.is_unusable),
                node=node,
                opened_for=_opened_for(node),
            )
            for index, node in enumerate(self.standing)
        )

    def _staying(self, node: StateNode) -> tuple[Kind, ...]:
        """The pods that are there, or that kube-scheduler has promised a place there, and that nobody moves."""
        pods = (*node.pods, *self._nominated.get(node.name, ()))
        return tuple(self._kinds.of(pod) for pod in pods if pod.key not in self.moving)

    @cached_property
    def _nominated(self) -> Mapping[str, Sequence[Pod]]:
        found: dict[str, list[Pod]] = {}
        for pod in self.snapshot.pods:
            if pod.status.nominated_node_name and not pod.spec.node_name and not is_going(pod):
                found.setdefault(pod.status.nominated_node_name, []).append(pod)
        return found

    @cached_property
    def new_places(self) -> tuple[Place, ...]:
        """The planned nodes, in the plan's order; those of NodePools that cannot be used are not among them."""
        found = []
        for index, claim in enumerate(self.results.new_claims):
            pool = self.usable_pools.get(claim.node_pool)
            if pool is None:
                continue
            possible, rows = self.launches(pool).claimed(claim.requirements)
            found.append(
                Place(
                    name=name_of_claim(claim),
                    host=f"new node {index}",
                    planned={key: self.kind(key) for key in claim.pods},
                    staying=(),
                    possible=possible,
                    rows=rows,
                    taints=pool.spec.template.spec.taints,
                    open=True,
                    claim=claim,
                )
            )
        return tuple(found)

    @cached_property
    def planned_by_kind(self) -> Mapping[Kind, Sequence[tuple[Place, str, int]]]:
        """The planned pods by kind: each place that gets some, the key of the first and how many they are."""
        found: dict[Kind, list[tuple[Place, str, int]]] = {}
        for place in self.places:
            here: dict[Kind, tuple[str, int]] = {}
            for key, kind in place.planned.items():
                first, number = here.get(kind, (key, 0))
                here[kind] = first, number + 1
            for kind, (first, number) in here.items():
                found.setdefault(kind, []).append((place, first, number))
        return found

    @cached_property
    def usable_pools(self) -> Mapping[str, NodePool]:
        """The NodePools that may open nodes, by name."""
        return {pool.metadata.name: pool for pool in self.snapshot.node_pools if not self.why_unusable(pool)}

    def why_unusable(self, pool: NodePool) -> str:
        """Why the pool may open no nodes; empty if it may."""
        if pool.spec.static:
            return "has a fixed number of nodes"
        if pool.metadata.deletion_timestamp is not None:
            return "is being deleted"
        node_class = self.snapshot.node_class_of(pool)
        if node_class is None or node_class.deleting or not node_class.ready:
            return "has no NodeClass that is ready"
        return ""

    def launches(self, pool: NodePool) -> Launches:
        """What a usable pool may launch."""
        name = pool.metadata.name
        if name not in self._launches:
            self._launches[name] = Launches(pool, self._markets.of(name), self.daemons)
        return self._launches[name]


def placements(results: Results) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The nodes that get pods, by their names in sentences, and which."""
    yield from ((name_of_claim(claim), claim.pods) for claim in results.new_claims)
    yield from ((name_of_node(name), keys) for name, keys in results.existing.items())


def name_of_node(name: str) -> str:
    """What a standing node is called in sentences."""
    return f"node {name}"


def name_of_claim(claim: PlannedClaim) -> str:
    """What a planned node is called in sentences."""
    shown = f"{', '.join(claim.pods[:3])}{'…' if len(claim.pods) > 3 else ''}"
    return f"the NodeClaim of NodePool {claim.node_pool} for {shown}"


def is_leaving(node: StateNode) -> bool:
    """Whether the node is on its way out, so that it takes no pods."""
    tainted = node.node is not None and any(t.key == labels.DISRUPTED_TAINT for t in node.node.spec.taints)
    return node.is_terminating or tainted


def _opened_for(node: StateNode) -> frozenset[str]:
    """The pods that a claim on its way remembers, as `namespace/name:<beginning of the UID>`."""
    if node.claim is None or node.registered:
        return frozenset()
    entries = node.claim.metadata.annotations.get(labels.PLANNED_PODS, "").split(",")
    return frozenset(entry.partition(":")[0] for entry in entries if entry)


def _cordon(node: StateNode) -> tuple[Taint, ...]:
    return (CORDON,) if node.node is not None and node.node.spec.unschedulable else ()


def _labels_of(nodes: Sequence[StateNode]) -> Possibilities:
    """A row for each node. A label that it lacks will not appear."""
    everything = (1 << len(nodes)) - 1
    columns: dict[str, dict[Values, Rows]] = {}
    for index, node in enumerate(nodes):
        for key, value in node.labels.items():
            column = columns.setdefault(key, {})
            values: Values = frozenset({value})
            column[values] = column.get(values, 0) | 1 << index
    return Possibilities(everything, columns)
