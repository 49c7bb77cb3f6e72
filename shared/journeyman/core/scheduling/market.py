"""What can be bought for a set of pods: offerings of all NodePools of one order, reduced to those worth considering.

A *shape* is what a class wants of its node (alternatives of requirements, tolerations); a *wish* is a shape with the
zones a unit is bound to. For every wish and every offering there is one bit: may they meet? Offerings with the same
bits, the same type and pool differ in price only, so the cheapest stands for them; and one that is neither cheaper nor
larger anywhere than another of the same bits can be left out.

Labels that an offering leaves open (a custom label that the pool allows several values of, say) need more: two pods may
each suit, but not together. For those a pool is offered in *variants*, each with the open labels narrowed so far that all
wishes it admits hold at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from journeyman.core.api import labels
from journeyman.core.api.objects import Taint, Toleration
from journeyman.core.scheduling.offers import Bools, Floats, Ints, every
from journeyman.core.scheduling.requirements import EMPTY, Requirements, requirement
from journeyman.core.scheduling.taints import discouraged, untolerated
from journeyman.core.scheduling.templates import Template


@dataclass(frozen=True, slots=True)
class Shape:
    """What a class wants of its node: one of `terms`, and no taint that `tolerations` do not cover.

    `heeds_preferences`: not even a PreferNoSchedule one, for as long as there may be another place.
    """

    terms: tuple[Requirements, ...]
    tolerations: tuple[Toleration, ...]
    heeds_preferences: bool = False

    def accepts(self, taints: Sequence[Taint]) -> bool:
        """Whether it would go to a node with these taints."""
        if self.heeds_preferences and discouraged(taints, self.tolerations):
            return False
        return untolerated(taints, self.tolerations) is None


@dataclass(frozen=True, slots=True)
class Wish:
    """A shape, and the zones it must be in (None: any)."""

    shape: Shape
    zones: tuple[str, ...] | None = None

    def with_zones(self, term: Requirements) -> Requirements:
        """One of the shape's terms together with the zones."""
        return term if self.zones is None else term & {labels.ZONE: requirement(labels.ZONE, "In", self.zones)}


@dataclass(frozen=True, slots=True)
class Variant:
    """A pool with its open labels (`open_keys`, among those anyone asks for) narrowed to `narrowed`."""

    narrowed: Requirements
    open_keys: frozenset[str]

    def admits(self, term: Requirements) -> bool:
        """Whether the variant is narrow enough that the term holds on all of it, as far as open labels go."""
        for key, wish in term.items():
            if key in self.open_keys and (
                key not in self.narrowed or self.narrowed[key].intersection(wish) != self.narrowed[key]
            ):
                return False
        return True


WHOLE = Variant(EMPTY, frozenset())
"""A pool as it is, for questions about one wish alone."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stall:
    """A template with what its nodes have for pods: `sizes` by type and axis, once daemons run.

    `overhead` is what the daemons take; `usable` is False where they alone are too much.
    """

    template: Template
    sizes: Ints
    overhead: Ints
    usable: Bools

    @classmethod
    def of(cls, template: Template, axes: Sequence[str], overhead: Ints) -> Stall:
        """The template's types measured along these axes."""
        table = template.table
        allocatable = [table.amounts(axis, allocatable=True) for axis in axes]
        sizes: Ints = np.array(allocatable, dtype=np.int64).reshape(len(axes), len(table.types)).T - overhead
        return cls(template=template, sizes=sizes, overhead=overhead, usable=every(sizes >= 0))

    def rows(self, wish: Wish, variant: Variant = WHOLE) -> Bools:
        """The offerings that suit a wish in a variant, whatever their size."""
        template, table = self.template, self.template.table
        found: Bools = np.zeros(len(table.row_type), dtype=bool)
        if not wish.shape.accepts(template.pool.spec.template.spec.taints):
            return found
        for term in wish.shape.terms:
            if (
                variant.admits(term)
                and template.requirements.compatible(term, allow_undefined=labels.WELL_KNOWN) is None
            ):
                found |= table.rows_meeting(wish.with_zones(term))
        return found & template.rows & self.usable[table.row_type]

    @property
    def zones(self) -> set[str]:
        """All zones that its offerings are in."""
        return {zone for zone in self.template.table.row_values(labels.ZONE)[1] if zone is not None}

    def zones_for(self, wish: Wish, request: Ints | None = None) -> set[str]:
        """The zones in which some offering suits the wish, and holds one such pod if its request is given."""
        table = self.template.table
        rows = self.rows(wish)
        if request is not None:
            rows &= every(self.sizes >= request)[table.row_type]
        codes, values = table.row_values(labels.ZONE)
        return {zone for code in np.unique(codes[rows]) if (zone := values[code]) is not None}


def variants_of(template: Template, shapes: Iterable[Shape]) -> tuple[Variant, ...]:
    """The ways to narrow a pool's open labels so that every term of every shape is admitted by one of them."""
    terms = [term for shape in shapes for term in shape.terms]
    asked = {key for term in terms for key in term}
    open_keys = frozenset(key for key in asked if not template.table.is_single_valued(key))
    found: list[Requirements] = []
    for term in terms:
        narrowed = Requirements({key: term[key] for key in sorted(open_keys) if key in term})
        if not narrowed or template.requirements.compatible(narrowed, allow_undefined=labels.WELL_KNOWN) is not None:
            continue
        for index, variant in enumerate(found):
            if (template.requirements & variant).conflict(narrowed) is None:
                found[index] = variant & narrowed
                break
        else:
            found.append(narrowed)
    return tuple(Variant(narrowed, open_keys) for narrowed in found) or (Variant(EMPTY, open_keys),)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Market:
    """Offers for a list of wishes, by price, then pool order, then type name.

    Arrays run over offers. `stalls` are indices into the stalls given, `variants` into `variants_by_stall`, `types` into
    the template's types. `signatures` index `allowed`, which tells by signature and wish whether they may meet.
    """

    stalls: Ints
    variants: Ints
    types: Ints
    prices: Floats
    sizes: Ints
    signatures: Ints
    allowed: Bools
    variants_by_stall: tuple[tuple[Variant, ...], ...]

    def only(self, offers: Bools) -> Market:
        """The same with some of the offers."""
        return Market(
            stalls=self.stalls[offers],
            variants=self.variants[offers],
            types=self.types[offers],
            prices=self.prices[offers],
            sizes=self.sizes[offers],
            signatures=self.signatures[offers],
            allowed=self.allowed,
            variants_by_stall=self.variants_by_stall,
        )


def open_market(stalls: Sequence[Stall], wishes: Sequence[Wish]) -> Market:
    """All offers that suit any wish; per stall, variant, type and signature the cheapest."""
    shapes = list(dict.fromkeys(wish.shape for wish in wishes))
    variants = tuple(variants_of(stall.template, shapes) for stall in stalls)
    parts: list[tuple[Ints, Floats, Ints, Bools]] = []
    for s, stall in enumerate(stalls):
        for v, variant in enumerate(variants[s]):
            bits = np.array([stall.rows(wish, variant) for wish in wishes], dtype=bool)
            rows = np.flatnonzero(bits.any(axis=0))
            types = stall.template.table.row_type[rows]
            place = np.column_stack((np.full(len(rows), s), np.full(len(rows), v), types))
            parts.append((place, stall.template.table.prices[rows], stall.sizes[types], bits[:, rows]))
    place = np.concatenate([p[0] for p in parts])
    prices = np.concatenate([p[1] for p in parts])
    sizes = np.concatenate([p[2] for p in parts])
    bits = np.concatenate([p[3] for p in parts], axis=1)
    signatures, allowed = _signatures(bits)
    order = np.lexsort((place[:, 2], place[:, 1], place[:, 0], prices))
    groups = np.column_stack((place, signatures))[order]
    _, first = np.unique(groups, axis=0, return_index=True)
    chosen = order[np.sort(first)]
    return Market(
        stalls=place[chosen, 0],
        variants=place[chosen, 1],
        types=place[chosen, 2],
        prices=prices[chosen],
        sizes=sizes[chosen],
        signatures=signatures[chosen],
        allowed=allowed,
        variants_by_stall=variants,
    )


def _signatures(bits: Bools) -> tuple[Ints, Bools]:
    """Columns of equal bits numbered: the number by column, and the bits by number."""
    packed = np.packbits(bits, axis=0).T
    _, first, numbers = np.unique(packed, axis=0, return_index=True, return_inverse=True)
    return numbers.ravel().astype(np.int64), bits[:, first].T


def worth_considering(market: Market, axes: Ints) -> Bools:
    """Offers that no other of the same signature beats: at most its price and at least its size on every axis."""
    worth: Bools = np.zeros(len(market.prices), dtype=bool)
    sizes = market.sizes[:, axes]
    for signature in np.unique(market.signatures):
        kept = np.zeros((0, len(axes)), dtype=np.int64)
        for offer in np.flatnonzero(market.signatures == signature):  # by price already
            if not every(kept >= sizes[offer]).any():
                kept = np.vstack((kept, sizes[offer]))
                worth[offer] = True
    return worth


def by_resource(amounts: Ints, axes: Sequence[str]) -> Mapping[str, int]:
    """Amounts along axes as a mapping, zeros left out."""
    return {axis: int(amount) for axis, amount in zip(axes, amounts, strict=True) if amount}
