"""What nodes that exist or may be launched have in common: they are rows, with their labels in columns.

A set of rows is the bits of an integer, so that a requirement is checked for 2,000 offerings with a few operations. A label
of a row is a set of values: the node will have one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from journeyman.core.api.objects import NodeSelectorRequirement
from journeyman.core.scheduling.verify.matching import Alternatives, integer, is_met, normalized

Rows = int
"""A set of rows: bit i is row i."""

Values = frozenset[str] | None
"""Values that a label may get: empty if the node will not have the label, None if the label is undecided."""

Column = Mapping[Values, Rows]
"""Rows by values of the label; rows in no entry leave the label undecided."""

_NO_VALUES: frozenset[str] = frozenset()


def always_met(requirement: NodeSelectorRequirement, values: Collection[str]) -> bool:
    """Whether each of these values meets the requirement; no values stand for a node without the label."""
    return all(is_met(requirement, value) for value in values) if values else is_met(requirement, None)


def ever_met(requirement: NodeSelectorRequirement, values: Collection[str]) -> bool:
    """Whether one of these values meets the requirement; no values stand for a node without the label."""
    return any(is_met(requirement, value) for value in values) if values else is_met(requirement, None)


class PossibleLabels:
    """Rows and their labels, immutable; results are cached."""

    def __init__(self, rows: Rows, columns: Mapping[str, Column]) -> None:
        self.rows = rows
        self._columns = columns
        self._cache: dict[tuple[Callable[..., bool], NodeSelectorRequirement], Rows] = {}

    def column(self, key: str) -> Iterator[tuple[Values, Rows]]:
        """Yield the label's values with their rows; each row occurs in one entry."""
        left = self.rows
        for values, rows in self._columns.get(key, {}).items():
            if rows & left:
                yield values, rows & left
                left &= ~rows
        if left:
            yield None, left

    def values(self, key: str, rows: Rows) -> frozenset[str]:
        """Return the values that the label may get in any of these rows."""
        found = (values for values, having in self.column(key) if values and having & rows)
        return _NO_VALUES.union(*found)

    def rows_meeting(self, node_requirements: Iterable[Alternatives]) -> Rows:
        """Return the rows that meet all of these, whichever values their labels get."""
        return self._rows(node_requirements, always_met)

    def rows_possibly_meeting(self, node_requirements: Iterable[Alternatives]) -> Rows:
        """Return the rows that meet all of these if their labels get the right values."""
        return self._rows(node_requirements, ever_met)

    def _rows(self, node_requirements: Iterable[Alternatives], met: Callable[..., bool]) -> Rows:
        rows = self.rows
        for alternatives in node_requirements:
            in_any = 0
            for requirements in alternatives:
                in_any |= self._meeting_all(requirements, met)
            rows &= in_any
        return rows

    def _meeting_all(self, requirements: Iterable[NodeSelectorRequirement], met: Callable[..., bool]) -> Rows:
        rows = self.rows
        for requirement in requirements:
            rows &= self._meeting(requirement, met)
        return rows

    def _meeting(self, requirement: NodeSelectorRequirement, met: Callable[..., bool]) -> Rows:
        found = self._cache.get((met, requirement))
        if found is None:
            entries = self.column(normalized(requirement.key))
            found = sum(rows for values, rows in entries if met(requirement, values or _NO_VALUES))
            self._cache[met, requirement] = found
        return found

    def narrowed(self, requirements: Sequence[NodeSelectorRequirement]) -> PossibleLabels:
        """Return the rows and values that meet these requirements. An undecided label gets a value that meets them."""
        by_key: dict[str, list[NodeSelectorRequirement]] = {}
        for requirement in requirements:
            by_key.setdefault(normalized(requirement.key), []).append(requirement)
        rows, columns = self.rows, dict(self._columns)
        for key, of_key in by_key.items():
            columns[key] = _narrowed(self.column(key), of_key)
            rows &= sum(columns[key].values())
        return PossibleLabels(rows, columns)


def _narrowed(
    column: Iterable[tuple[Values, Rows]], requirements: Sequence[NodeSelectorRequirement]
) -> dict[Values, Rows]:
    is_optional = all(is_met(requirement, None) for requirement in requirements)
    left: dict[Values, Rows] = {}
    for values, rows in column:
        if values:
            kept: Values = _meeting(values, requirements)
        elif is_optional:
            left[values] = left.get(values, 0) | rows
            continue
        else:
            kept = _undecided_values(requirements) if values is None else _NO_VALUES
        if kept:
            left[kept] = left.get(kept, 0) | rows
    return left


def _meeting(values: Iterable[str], requirements: Iterable[NodeSelectorRequirement]) -> frozenset[str]:
    return frozenset(v for v in values if all(is_met(requirement, v) for requirement in requirements))


def _undecided_values(requirements: Sequence[NodeSelectorRequirement]) -> frozenset[str]:
    """Return the values of an undecided label under these requirements; without In, one value stands for all."""
    listed = [r.values for r in requirements if r.operator == "In"]
    if listed:
        return _meeting(listed[0], requirements)
    bounds = [number for r in requirements for text in r.values if (number := integer(text)) is not None]
    candidates = [str(b + step) for b in (0, *bounds) for step in (-1, 0, 1)]
    return frozenset(next(([c] for c in candidates if _meeting([c], requirements)), []))
