"""The scheduler: pods in, planned nodes out.

In this order: pods become classes; constraints between pods become quotas and caps; nodes that exist are filled; what
is left is packed onto new nodes, NodePools of greater weight first, by price within; every new node keeps the instance
types that would serve nearly as cheaply; and what could not be placed says why.

Pure: same snapshot, same catalogue, same answer, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from journeyman.core.api import labels
from journeyman.core.api.objects import Pod, Toleration
from journeyman.core.api.resources import PODS
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.classes import PodClass, collapse
from journeyman.core.scheduling.daemons import daemon_overhead, make_daemons
from journeyman.core.scheduling.existing import (
    Filling,
    adopt_planned,
    is_leaving,
    make_existing,
    meets_labels,
    standing_nodes,
    suitable_nodes,
)
from journeyman.core.scheduling.explain import Explainer
from journeyman.core.scheduling.limits import Headroom
from journeyman.core.scheduling.lowering import Unit, Zones, free_of_zones, lower_hostnames, lower_zones
from journeyman.core.scheduling.market import Shape, Stall, Wish
from journeyman.core.scheduling.offers import Bools, Ints
from journeyman.core.scheduling.opening import Opening
from journeyman.core.scheduling.options import Options
from journeyman.core.scheduling.pods import is_currently_reschedulable, is_provisionable
from journeyman.core.scheduling.results import PlannedClaim, PodError, Results
from journeyman.core.scheduling.taints import is_preference, untolerated
from journeyman.core.scheduling.templates import make_templates
from journeyman.core.scheduling.topology import Pins, Repelled, Spread, count_by_node, count_by_zone, repelled_by
from journeyman.core.state.snapshot import Snapshot, StateNode

__all__ = ["Options", "Scheduler", "pods_to_place", "solve"]

_GIVE_UP_AFTER = 4  # attempts to meet quotas that limits cut short; then the classes concerned are left alone
_ANY_TAINT = (Toleration(operator="Exists"),)


def solve(
    snapshot: Snapshot,
    catalogue: Catalogue,
    *,
    pods: Sequence[Pod] | None = None,
    without_nodes: frozenset[str] = frozenset(),
    options: Options = Options(),  # noqa: B008 - a frozen value
) -> Results:
    """Place pods on existing and new nodes.

    Args:
        snapshot: The cluster.
        catalogue: What can be launched, by NodePool.
        pods: The pods to place, wherever they are now; by default `pods_to_place`.
        without_nodes: Names of StateNodes that are to be thought away, with the pods on them (consolidation asks what
            would become of a cluster without them).
        options: How much choice of instance types a claim keeps.

    Returns:
        New claims by pool and pods, fillings of existing nodes, and an error for every pod without a place.
    """
    return Scheduler(snapshot, catalogue, options).solve(pods, without_nodes)


def pods_to_place(snapshot: Snapshot) -> tuple[Pod, ...]:
    """Provisionable pods, and those on nodes marked for deletion that can be moved now.

    Restates: karpenter pkg/controllers/provisioning/provisioner.go `Schedule`.
    """
    pending = [pod for pod in snapshot.pods if is_provisionable(pod)]
    leaving = [
        pod
        for node in snapshot.state_nodes
        if is_leaving(node)
        for pod in node.pods
        if is_currently_reschedulable(pod, snapshot.pdbs, snapshot.now)
    ]
    return (*pending, *leaving)


class Scheduler:
    """One snapshot and catalogue, prepared once, for one or many questions (consolidation asks many)."""

    def __init__(self, snapshot: Snapshot, catalogue: Catalogue, options: Options = Options()) -> None:  # noqa: B008
        self.snapshot = snapshot
        self.options = options
        self.templates, self.set_aside = make_templates(snapshot, catalogue)
        self.daemons = make_daemons(snapshot.daemon_sets)
        self._namespaces = {n.metadata.name: n for n in snapshot.namespaces}

    def solve(self, pods: Sequence[Pod] | None = None, without_nodes: frozenset[str] = frozenset()) -> Results:
        """See `solve`."""
        considered = pods_to_place(self.snapshot) if pods is None else tuple(pods)
        standing, adopted = adopt_planned(standing_nodes(self.snapshot, without_nodes), considered)
        kept = {key for keys in adopted.values() for key in keys}
        asking = [pod for pod in considered if pod.key not in kept]
        leaving = {pod.key for pod in asking}
        repelled = repelled_by(standing, self._namespaces, leaving)
        classes, errors = collapse(asking, self._namespaces, repelled=repelled)
        classes = _lowered(classes, repelled, errors)
        run = _Run(self, standing, classes, leaving, ceilings={}, reasons={})
        attempt = 1
        while run.place(adopted, give_up=attempt > _GIVE_UP_AFTER):
            run = _Run(self, standing, classes, leaving, ceilings=run.ceilings, reasons=run.reasons)
            attempt += 1
        errors |= run.errors()
        claims = tuple(sorted(run.claims, key=lambda c: (c.node_pool, c.pods)))
        return Results(
            new_claims=claims,
            existing=run.existing,
            pod_errors=dict(sorted(errors.items())),
            price=float(sum(claim.price for claim in claims)),
            lower_bound=run.bound,
            set_aside_pools=self.set_aside,
        )


def _lowered(
    classes: Sequence[PodClass], repelled: Sequence[Repelled], errors: dict[str, PodError]
) -> tuple[PodClass, ...]:
    """The classes whose rules this scheduler keeps; the pods of the others become errors."""
    message = "rules about other pods (affinity, anti-affinity), volumes and host ports are not supported yet"
    unsupported = PodError(kind="unsupported", message=message)
    kept = []
    for cls in classes:
        claims = any(v.persistent_volume_claim is not None or v.ephemeral is not None for v in cls.pods[0].spec.volumes)
        spread_keys = {s.key for s in cls.spreads} - {labels.ZONE, labels.HOSTNAME}
        about_pods = cls.affinities or cls.anti_affinities or spread_keys
        if claims or cls.ports or about_pods or any(r.group.counts(cls.namespace, cls.labels) for r in repelled):
            errors.update((key, unsupported) for key in cls.keys)
        else:
            kept.append(cls)
    return tuple(kept)


class _Run:
    """One question: these classes, on these nodes and whatever has to be opened."""

    def __init__(
        self,
        scheduler: Scheduler,
        standing: Sequence[StateNode],
        classes: Sequence[PodClass],
        leaving: set[str],
        *,
        ceilings: dict[tuple[int, str], int],
        reasons: dict[int, PodError],
    ) -> None:
        """An attempt that knows what earlier ones learned.

        Args:
            scheduler: Snapshot and catalogue, prepared.
            standing: Nodes whose pods count.
            classes: What to place.
            leaving: Keys of the pods of these classes.
            ceilings: By class and zone, how many pods can be had there at most (limits stopped the rest).
            reasons: By class, why that was.
        """
        self.claims: list[PlannedClaim] = []
        self.existing: dict[str, tuple[str, ...]] = {}
        self.bound = 0.0
        self.ceilings = ceilings
        self.reasons = reasons
        self._left: list[Unit] = []
        self._stuck: dict[int, int] = {}
        self._scheduler = scheduler
        self._standing = standing
        self._classes = classes
        self._leaving = leaving
        self._axes = sorted({PODS}.union(*(c.requests for c in classes), *(d.requests for d in scheduler.daemons)))
        self._caps = lower_hostnames(classes)
        requests = [[cls.requests.get(axis, 0) for axis in self._axes] for cls in classes]
        self._requests: Ints = np.array(requests, dtype=np.int64).reshape(len(classes), len(self._axes))
        self._demands: Ints = np.concatenate((self._requests, self._caps.takes), axis=1)
        self._shapes = [Shape(cls.terms, cls.tolerations) for cls in classes]
        self._stalls = [
            Stall.of(t, self._axes, daemon_overhead(t, scheduler.daemons, self._axes)) for t in scheduler.templates
        ]
        self._headroom = [Headroom(t, standing) for t in scheduler.templates]
        existing = make_existing(standing, self._axes, self._caps, scheduler.daemons, leaving)
        self._filling = Filling.start(existing, self._demands, self._caps)
        self._suitable: dict[Shape, Bools] = {}
        self._drawn = [0] * len(classes)

    def place(self, adopted: Mapping[str, tuple[str, ...]], *, give_up: bool) -> bool:
        """Plan everything. True if quotas could not be met, so that this plan may break a spread: try again.

        Each attempt lowers a ceiling; with `give_up` all those of the classes concerned fall to what they hold at
        least, nothing, so that there is a last attempt.
        """
        counts = [len(cls.pods) for cls in self._classes]
        for index in free_of_zones(self._classes):  # they take what is there, and only new nodes for them are spread
            rest = self.fill_existing([Unit(class_index=index, count=counts[index])])
            counts[index] = sum(unit.count for unit in rest)
        units, self._stuck = lower_zones(self._classes, counts, self.zones_of)
        left = self.fill_existing(units)
        self.existing = self.existing_pods(adopted)
        self._left = self.open_nodes(left)
        quotas = {(u.class_index, u.zones): u.count for u in units if u.is_quota}
        short = [u for u in self._left if u.is_quota]
        for unit in short:
            self.reasons.setdefault(unit.class_index, self._explain_unit(unit))
            for zone in unit.zones or ():
                self.ceilings[unit.class_index, zone] = quotas[unit.class_index, unit.zones] - unit.count
        if give_up:
            zones = {zone for stall in self._stalls for zone in stall.zones} | set(self._filling.existing.zones)
            self.ceilings.update({(u.class_index, zone): 0 for u in short for zone in zones})
        return bool(short)

    def zones_of(self, index: int, spreads: Sequence[Spread]) -> Zones:
        """What zone spread has to know about a class, with the counts of these spreads."""
        cls, wish = self._classes[index], Wish(self._shapes[index])
        heeding = replace(wish.shape, heeds_preferences=True)
        provisionable: set[str] = set()
        welcoming: set[str] = set()
        for stall in self._stalls:
            found = stall.zones_for(wish, self._requests[index])
            provisionable |= found
            welcoming |= found if heeding.accepts(stall.template.pool.spec.template.spec.taints) else set()
        room: dict[str, int] = {}
        for zone, pods in zip(self._filling.existing.zones, self._filling.room(index, self._suits(index)), strict=True):
            if zone:
                room[zone] = room.get(zone, 0) + int(pods)
        for zone in (provisionable | room.keys()) & {zone for i, zone in self.ceilings if i == index}:
            provisionable.discard(zone)
            room[zone] = self.ceilings[index, zone]
        counts = tuple(self._zone_counts(cls, spread) for spread in spreads)
        discouraged = frozenset(provisionable - welcoming - {zone for zone, pods in room.items() if pods})
        return Zones(provisionable=frozenset(provisionable), room=room, counts=counts, discouraged=discouraged)

    def _zone_counts(self, cls: PodClass, spread: Spread) -> Mapping[str, int]:
        def counts_node(node: StateNode) -> bool:
            if spread.untainted_only and untolerated(node.taints, cls.tolerations) is not None:
                return False
            return not spread.own_nodes_only or meets_labels(node, cls)

        by_node = count_by_node(spread, self._standing, self._leaving)
        for row, taken in self._filling.taken.items():
            name = self._filling.existing.nodes[row].name
            by_node[name] = by_node.get(name, 0) + sum(n for i, n in taken if self._counts(spread, i))
        tolerations = cls.tolerations if spread.untainted_only else _ANY_TAINT
        wish = Wish(Shape(cls.terms, tolerations))
        domains = sorted(zone for stall in self._stalls for zone in stall.zones_for(wish))
        return dict.fromkeys(domains, 0) | count_by_zone(by_node, self._standing, counts_node)

    def _counts(self, spread: Spread, index: int) -> bool:
        return spread.counts(self._classes[index].namespace, self._classes[index].labels)

    def _suits(self, index: int) -> Bools:
        shape = self._shapes[index]
        if shape not in self._suitable:
            self._suitable[shape] = suitable_nodes(self._filling.existing.nodes, self._classes[index])
        return self._suitable[shape]

    def fill_existing(self, units: Iterable[Unit]) -> list[Unit]:
        """Put what fits on existing nodes; the rest."""
        if not self._filling.existing.nodes:
            return list(units)
        left = [replace(unit, count=self._filling.fill(unit, self._suits(unit.class_index))) for unit in units]
        return [unit for unit in left if unit.count]

    def existing_pods(self, adopted: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        """Pod keys by node name, those adopted included."""
        planned: dict[str, list[str]] = {name: list(keys) for name, keys in adopted.items()}
        for row, taken in sorted(self._filling.taken.items()):
            keys = planned.setdefault(self._filling.existing.nodes[row].name, [])
            for index, count in taken:
                keys += self._draw(index, count)
        return {name: tuple(sorted(keys)) for name, keys in sorted(planned.items())}

    def _draw(self, index: int, count: int) -> list[str]:
        start = self._drawn[index]
        self._drawn[index] = start + count
        return [pod.key for pod in self._classes[index].pods[start : start + count]]

    def open_nodes(self, units: list[Unit]) -> list[Unit]:
        """Plan new nodes, tier after tier of NodePools; the units no tier took.

        What no tier takes goes round again, to NodePools whose taints only ask for other pods (PreferNoSchedule).
        """
        taints = [t for stall in self._stalls for t in stall.template.pool.spec.template.spec.taints]
        if any(is_preference(t) for t in taints):
            units = self._open_tiers(units, [replace(shape, heeds_preferences=True) for shape in self._shapes])
        return self._open_tiers(units, self._shapes)

    def _open_tiers(self, units: list[Unit], shapes: Sequence[Shape]) -> list[Unit]:
        tiers = groupby(range(len(self._stalls)), key=lambda i: self._stalls[i].template.order)
        for (_, fewest_nodes), members in tiers:
            if not units:
                break
            tier = list(members)
            opening = Opening(
                stalls=[self._stalls[i] for i in tier],
                headroom=[self._headroom[i] for i in tier],
                shapes=shapes,
                demands=self._demands,
                caps=self._caps,
                axes=self._axes,
                options=self._scheduler.options,
                draw=self._draw,
                fewest_nodes=fewest_nodes,
            )
            units = opening.open(units)
            self.claims += opening.claims
            self.bound += opening.bound
        return units

    def errors(self) -> dict[str, PodError]:
        """An error for each pod without a place."""
        errors: dict[str, PodError] = {}
        for unit in self._left:
            errors.update(dict.fromkeys(self._draw(unit.class_index, unit.count), self._explain_unit(unit)))
        for index, count in self._stuck.items():
            errors.update(dict.fromkeys(self._draw(index, count), self._stuck_error(index)))
        return errors

    def _explain_unit(self, unit: Unit) -> PodError:
        zones = unit.zones or ()
        return self._explain(unit.class_index, ((labels.ZONE, zones[0]),) if len(zones) == 1 else ())

    def _explain(self, index: int, pins: Pins) -> PodError:
        explainer = Explainer(
            axes=self._axes, stalls=self._stalls, headroom=self._headroom, set_aside=self._scheduler.set_aside
        )
        return explainer.explain(self._classes[index], self._requests[index], pins=pins)

    def _stuck_error(self, index: int) -> PodError:
        if index in self.reasons:
            return self.reasons[index]
        zones = self.zones_of(index, ())
        if not zones.provisionable and not any(zones.room.values()):
            return self._explain(index, ())
        where = ", ".join(sorted(zones.provisionable)) or "none"
        message = f"unsatisfiable topology constraint: spread over {labels.ZONE} exceeds its maxSkew (zones that can be provisioned: {where})"
        return PodError(kind="unschedulable", message=message)
