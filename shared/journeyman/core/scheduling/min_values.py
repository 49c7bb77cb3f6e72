"""minValues: a claim must leave the cloud a choice of so many different values of a label (instance families, say).

Restates: karpenter pkg/cloudprovider/types.go `SatisfiesMinValues`, scheduling/nodeclaim.go.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from journeyman.core.scheduling.market import Stall
from journeyman.core.scheduling.offers import Bools, Ints


def distinct_enough(stall: Stall, types: Bools | Ints) -> bool:
    """Whether these instance types (a mask, or indices) differ in every label as much as the stall's pool asks for."""
    return all(found >= wanted for found, wanted in _found(stall, types))


def achievable(stall: Stall, types: Bools | Ints) -> Mapping[str, int]:
    """By label with minValues, how many different values these types have, at most as many as are asked for."""
    counts = _found(stall, types)
    return {key: min(pair) for key, pair in zip(stall.template.min_values, counts, strict=True)}


def _found(stall: Stall, types: Bools | Ints) -> list[tuple[int, int]]:
    table = stall.template.table
    return [
        (int(np.count_nonzero(np.logical_or.reduce(table.type_values(key)[types], axis=0))), wanted)
        for key, wanted in stall.template.min_values.items()
    ]


def needed_for_variety(stall: Stall, types: Ints) -> list[int]:
    """The first of these types that bring enough different values together; all that bring a new one if too few do."""
    needed: dict[int, None] = {}
    for key, wanted in stall.template.min_values.items():
        values = stall.template.table.type_values(key)
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
