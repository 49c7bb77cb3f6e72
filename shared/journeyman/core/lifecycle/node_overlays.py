"""Applies NodeOverlays to the catalogue: other prices, and extended resources that the provider does not know.

Overlays apply by weight, then name, both descending. The first overlay that prices an offering wins, and the first that
adds a resource to an instance type. Of two overlays of equal weight that set the same field of the same thing, the
later one is in conflict: it is not applied at all, and its status says so.

Restates: karpenter pkg/controllers/nodeoverlay/controller.go, store.go.
Differs: overlays are evaluated in every pass, so no NodePool waits for an evaluation; an overlay is compared with all
overlays of the same weight before it, not with the last one only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue, InstanceType, Offering
from journeyman.core.scheduling.requirements import Requirements, from_labels, from_selectors
from journeyman.core.state.skipped_objects import SkippedObject, evaluate_each

if TYPE_CHECKING:  # the models build validators; nothing here needs them
    from journeyman.core.api.nodeoverlay import NodeOverlay
    from journeyman.core.api.nodepool import NodePool


class Overlaid(Struct, frozen=True, kw_only=True, eq=False):
    """A catalogue with overlays applied. `conflicts`: by name of each overlay left out, the one it conflicts with."""

    catalogue: Catalogue
    conflicts: Mapping[str, str]
    skipped: tuple[SkippedObject, ...] = ()  # overlays that cannot be evaluated


class _Changes(Struct):
    """The changes that overlays make to one instance type in one NodePool; the first of each kind is the heaviest.

    `price` has by offering (its position) the overlay that prices it; `seen` by offering, and by resource added, the
    last overlay that set it.
    """

    price: dict[int, NodeOverlay] = field(default_factory=dict)
    capacity: dict[str, int] = field(default_factory=dict)
    seen: dict[int | str, NodeOverlay] = field(default_factory=dict)

    def subjects(self, overlay: NodeOverlay, offerings: Iterable[int]) -> list[int | str]:
        """What the overlay sets: these offerings if it changes prices, and the resources it adds."""
        priced = list(offerings) if overlay.spec.changes_price else []
        return [*priced, *sorted(overlay.spec.capacity)]

    def conflict(self, overlay: NodeOverlay, offerings: Iterable[int]) -> str:
        """The overlay of equal weight that set the same before, empty if there is none."""
        before = (self.seen.get(subject) for subject in self.subjects(overlay, offerings))
        return next((o.metadata.name for o in before if o is not None and o.spec.weight == overlay.spec.weight), "")

    def add(self, overlay: NodeOverlay, offerings: Sequence[int]) -> None:
        """Add the changes of an overlay that no heavier one has made."""
        if overlay.spec.changes_price:
            for index in offerings:
                self.price.setdefault(index, overlay)
        self.capacity = {**overlay.spec.capacity_amounts, **self.capacity}
        self.seen.update(dict.fromkeys(self.subjects(overlay, offerings), overlay))

    def applied_to(self, instance_type: InstanceType) -> InstanceType:
        """The instance type with these changes."""
        if not self.price and not self.capacity:
            return instance_type
        offerings = tuple(
            _repriced(offering, self.price[index]) if index in self.price else offering
            for index, offering in enumerate(instance_type.offerings)
        )
        if not self.capacity:
            return replace(instance_type, offerings=offerings)
        capacity = {**instance_type.capacity, **self.capacity}
        return replace(instance_type, offerings=offerings, capacity=capacity, capacity_overlaid=True)


def _repriced(offering: Offering, overlay: NodeOverlay) -> Offering:
    return replace(offering, price=overlay.spec.adjusted(offering.price), price_overlaid=True)


def apply_overlays(pools: Iterable[NodePool], catalogue: Catalogue, overlays: Iterable[NodeOverlay]) -> Overlaid:
    """Return the catalogue with overlays applied; the same object if no overlay matches anything.

    Args:
        pools: The NodePools, whose names and template labels overlays may select.
        catalogue: The instance types by NodePool, as the provider reports them.
        overlays: Those that validate.
    """
    heaviest_first = sorted(overlays, key=lambda o: (o.spec.weight, o.metadata.name), reverse=True)
    selections, skipped = evaluate_each(heaviest_first, _selection_of)
    if not selections:
        return Overlaid(catalogue=catalogue, conflicts={}, skipped=skipped)
    stocks = _stocks(pools, catalogue, frozenset(key for _, selected in selections for key in selected))
    conflicts: dict[str, str] = {}
    for overlay, selected in selections:
        matching = _matching(stocks, selected)
        if other := next((name for change, at in matching if (name := change.conflict(overlay, at))), ""):
            conflicts[overlay.metadata.name] = other
            continue
        for change, offerings in matching:
            change.add(overlay, offerings)
    return Overlaid(catalogue=_changed(catalogue, stocks), conflicts=dict(sorted(conflicts.items())), skipped=skipped)


def _selection_of(overlay: NodeOverlay) -> tuple[NodeOverlay, Requirements]:
    """Return an overlay with its requirements, after its amounts and its price have been read once."""
    if overlay.spec.changes_price:
        overlay.spec.adjusted(1.0)
    overlay.spec.capacity_amounts  # noqa: B018 - raises for an amount that cannot be read
    return overlay, from_selectors(overlay.spec.requirements)


class _Stock(Struct, frozen=True, kw_only=True):
    """NodePools with the same instance types and the same labels, as far as overlays select by them.

    `types_number` numbers the list of types. `described` has for each type its nodes' labels, as far as overlays select
    by them, `changes` what overlays change of it.
    """

    types_number: int
    pools: list[str]
    pool_labels: Requirements
    types: tuple[InstanceType, ...]
    described: tuple[Requirements, ...]
    changes: tuple[_Changes, ...]

    @property
    def changed_types(self) -> tuple[InstanceType, ...]:
        """The types as overlays have them; the very same ones if nothing changes."""
        if not any(change.price or change.capacity for change in self.changes):
            return self.types
        return tuple(change.applied_to(t) for t, change in zip(self.types, self.changes, strict=True))


def _stocks(pools: Iterable[NodePool], catalogue: Catalogue, keys: frozenset[str]) -> list[_Stock]:
    """Group the NodePools by their instance types and by the labels that overlays select."""
    stocks: dict[object, _Stock] = {}
    type_lists: list[tuple[InstanceType, ...]] = []
    described: list[tuple[Requirements, ...]] = []
    for pool in sorted(pools, key=lambda p: p.metadata.name):
        name = pool.metadata.name
        types = catalogue.instance_types(name)
        number = next((n for n, other in enumerate(type_lists) if other is types), len(type_lists))
        if number == len(type_lists):
            type_lists.append(types)
            described.append(tuple(_only(from_selectors(t.requirements), keys) for t in types))
        pool_labels = _only(from_labels({labels.NODEPOOL: name, **pool.spec.template.metadata.labels}), keys)
        stock = stocks.get((number, pool_labels))
        if stock is None:
            changes = tuple(_Changes() for _ in types)
            stock = _Stock(
                types_number=number,
                pools=[],
                pool_labels=pool_labels,
                types=types,
                described=described[number],
                changes=changes,
            )
            stocks[number, pool_labels] = stock
        stock.pools.append(name)
    return list(stocks.values())


def _only(requirements: Requirements, keys: Collection[str]) -> Requirements:
    return Requirements({key: requirement for key, requirement in requirements.items() if key in keys})


def _matching(stocks: Iterable[_Stock], required: Requirements) -> list[tuple[_Changes, list[int]]]:
    """The instance types that an overlay selects, each with the positions of the offerings that it selects."""
    cache: dict[object, list[tuple[int, list[int]]]] = {}
    matching: list[tuple[_Changes, list[int]]] = []
    for stock in stocks:
        pool_labels = _only(stock.pool_labels, required)
        if pool_labels.conflict(required) is not None:
            continue
        if (stock.types_number, pool_labels) not in cache:
            cache[stock.types_number, pool_labels] = [
                (position, offerings)
                for position, (instance_type, description) in enumerate(zip(stock.types, stock.described, strict=True))
                if (offerings := _matching_offerings(instance_type, pool_labels & description, required))
            ]
        matching += [
            (stock.changes[position], offerings) for position, offerings in cache[stock.types_number, pool_labels]
        ]
    return matching


def _matching_offerings(instance_type: InstanceType, description: Requirements, required: Requirements) -> list[int]:
    """The positions of the offerings that an overlay selects; none if it does not select the type.

    Args:
        instance_type: The type.
        description: The labels of its nodes in the NodePool, as far as overlays select by them.
        required: The overlay's requirements.
    """
    if not description.is_compatible(required):
        return []
    return [
        index
        for index, offering in enumerate(instance_type.offerings)
        if required.is_compatible(from_selectors(offering.requirements), allow_undefined=labels.WELL_KNOWN)
    ]


def _changed(catalogue: Catalogue, stocks: Iterable[_Stock]) -> Catalogue:
    changed = {name: types for stock in stocks for types in (stock.changed_types,) for name in stock.pools}
    if all(catalogue.instance_types(name) is types for name, types in changed.items()):
        return catalogue
    return Catalogue({**catalogue.by_node_pool, **changed})
