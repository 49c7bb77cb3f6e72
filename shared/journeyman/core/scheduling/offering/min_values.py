"""minValues: a claim must leave the cloud a choice of so many different values of a label (instance families, say).

A node of such a pool may hold no more than so many differing types do. Packing sees that as smaller offers: of every
type as much as enough others hold beside it.

Restates: karpenter pkg/cloudprovider/types.go `SatisfiesMinValues`, scheduling/nodeclaim.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from journeyman.core.scheduling.arrays import Bools, Floats, Ints
from journeyman.core.scheduling.offering.templates import Template

_ROUNDING = 1e-12


class HasTemplate(Protocol):
    """A stall, as far as minValues are concerned."""

    @property
    def template(self) -> Template:
        """Whose minValues, and whose types."""


def distinct_enough(stall: HasTemplate, types: Bools | Ints) -> bool:
    """Whether these instance types (a mask, or indices) differ in every label as much as the stall's pool asks for."""
    return _varied(stall.template, types)


def _varied(template: Template, types: Bools | Ints) -> bool:
    return all(found >= wanted for found, wanted in _found(template, types))


def achievable(stall: HasTemplate, types: Bools | Ints) -> Mapping[str, int]:
    """By label with minValues, how many different values these types have, at most as many as are asked for."""
    counts = _found(stall.template, types)
    return {key: min(pair) for key, pair in zip(stall.template.min_values, counts, strict=True)}


def _found(template: Template, types: Bools | Ints) -> list[tuple[int, int]]:
    return [
        (int(np.count_nonzero(np.logical_or.reduce(template.table.type_values(key)[types], axis=0))), wanted)
        for key, wanted in template.min_values.items()
    ]


def needed_for_variety(stall: HasTemplate, types: Ints) -> list[int]:
    """The first of these types that bring enough different values together; all that bring a new one if too few do."""
    template = stall.template
    needed: dict[int, None] = {}
    for key, wanted in template.min_values.items():
        values = template.table.type_values(key)
        seen: Bools = np.zeros(values.shape[1], dtype=bool)
        for chosen in needed:
            seen |= values[chosen]
        for candidate in types.tolist():
            if np.count_nonzero(seen) >= wanted:
                break
            if (values[candidate] & ~seen).any():
                needed[candidate] = None
                seen |= values[candidate]
    return list(needed)


def with_variety(template: Template, types: Ints, codes: Ints, patterns: Bools) -> Bools:
    """Which wishes each kind of offers may serve so that enough differing types may serve them all.

    Args:
        template: Its pool has minValues.
        types: The type of each offer.
        codes: The kind of each offer, an index into `patterns`.
        patterns: By kind and wish, whether such an offer suits it.

    Returns:
        The patterns; a kind that too few types share gives up the wishes that make it rare, and all if that is no help.
    """
    found: Bools = patterns.copy()
    for kind in range(len(patterns)):
        shared = patterns & patterns[kind]
        for other in np.argsort(-shared.sum(axis=1), kind="stable"):
            if _varied(template, types[_suiting(shared[other], patterns)[codes]]):
                found[kind] = shared[other]
                break
        else:
            found[kind] = False
    return found


def _suiting(pattern: Bools, patterns: Bools) -> Bools:
    """The patterns that suit at least all wishes of this one."""
    suiting: Bools = np.logical_and.reduce(patterns | ~pattern, axis=1)
    return suiting


def varied_sizes(template: Template, types: Ints, sizes: Ints, kinds: tuple[Ints, Bools], asked: Ints) -> Ints:
    """What enough differing types hold of each offer's size.

    Args:
        template: Its pool has minValues.
        types: The type of each offer.
        sizes: Room by type of the table and axis.
        kinds: The kind of each offer, and which wishes each kind serves (`with_variety`).
        asked: The axes that count; others stay as they are.

    Returns:
        By offer and axis; all of it is held by types with as many different values of each label as the pool asks for.
    """
    codes, patterns = kinds
    found = sizes[types]
    for kind in range(len(patterns)):
        own = np.flatnonzero(codes == kind)
        others = np.array(sorted(set(types[_suiting(patterns[kind], patterns)[codes]].tolist())), dtype=np.int64)
        shares = _shares(sizes[types[own]][:, asked], sizes[others][:, asked])
        least = np.ones(len(own))
        for key, wanted in template.min_values.items():
            least = np.minimum(least, _nth_best(shares, template.table.type_values(key)[others], wanted))
        scaled = np.floor(found[np.ix_(own, asked)] * least[:, None] * (1 - _ROUNDING)).astype(np.int64)
        found[np.ix_(own, asked)] = np.where(least[:, None] < 1, scaled, found[np.ix_(own, asked)])
    return found


def _shares(sizes: Ints, others: Ints) -> Floats:
    """By size and other size, how much of the one the other holds, at most all."""
    shares = np.ones((len(sizes), len(others)))
    for axis in range(sizes.shape[1]):
        own = sizes[:, axis]
        held = others[:, axis] / np.maximum(own, 1)[:, None]
        shares = np.minimum(shares, np.where(own[:, None] > 0, held, 1.0))
    return shares


def _nth_best(shares: Floats, values: Bools, wanted: int) -> Floats:
    """By size, the share that the best types of so many different values hold; 0 where there are fewer values."""
    best = (
        np.stack([shares[:, has].max(axis=1, initial=0.0) for has in values.T], axis=1) if values.shape[1] else shares
    )
    if best.shape[1] < wanted or not values.shape[1]:
        return np.zeros(len(shares))
    nth: Floats = np.partition(best, best.shape[1] - wanted, axis=1)[:, best.shape[1] - wanted]
    return nth
