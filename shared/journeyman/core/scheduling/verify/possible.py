"""Nodes that are, or may come to be: a row each, their labels in columns, every answer a set of rows.

A set of rows is the bits of an integer, so that one question ("which of these 2,000 launches break this requirement?")
costs a few operations whatever the number of rows. A label of a row is a set of values: the node will have one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from journeyman.core.api.objects import NodeSelectorRequirement
from journeyman.core.scheduling.verify.matching import always_met, ever_met, integer, is_met, normalized

Rows = int
"""A set of rows: bit i is row i."""

Values = frozenset[str] | None
"""Values a label may get: none of them is a label that will not be there, None one that nobody has decided on."""

Column = Mapping[Values, Rows]
"""By the values, the rows that have them; rows in no entry leave the label undecided."""

Alternatives = tuple[tuple[NodeSelectorRequirement, ...], ...]
"""One of these must hold as a whole; without any, nothing suits."""

_NOTHING: frozenset[str] = frozenset()


class Possibilities:
    """Rows and their labels. Nothing in it changes."""

    def __init__(self, rows: Rows, columns: Mapping[str, Column]) -> None:
        self.rows = rows
        self._columns = columns
        self._answers: dict[tuple[Callable[..., bool], NodeSelectorRequirement], Rows] = {}

    def column(self, key: str) -> Iterator[tuple[Values, Rows]]:
        """The label by its values, all rows in one entry each."""
        left = self.rows
        for values, rows in self._columns.get(key, {}).items():
            if rows & left:
                yield values, rows & left
                left &= ~rows
        if left:
            yield None, left

    def values(self, key: str, rows: Rows) -> frozenset[str]:
        """The values that the label may get in any of these rows."""
        found = (values for values, having in self.column(key) if values and having & rows)
        return _NOTHING.union(*found)

    def suiting(self, wishes: Iterable[Alternatives]) -> Rows:
        """The rows that suit every one of the wishes, whichever values their labels get."""
        return self._rows(wishes, always_met)

    def possibly_suiting(self, wishes: Iterable[Alternatives]) -> Rows:
        """The rows that suit every one of the wishes if their labels get the right values."""
        return self._rows(wishes, ever_met)

    def _rows(self, wishes: Iterable[Alternatives], met: Callable[..., bool]) -> Rows:
        rows = self.rows
        for alternatives in wishes:
            suiting = 0
            for requirements in alternatives:
                suiting |= self._meeting_all(requirements, met)
            rows &= suiting
        return rows

    def _meeting_all(self, requirements: Iterable[NodeSelectorRequirement], met: Callable[..., bool]) -> Rows:
        rows = self.rows
        for requirement in requirements:
            rows &= self._meeting(requirement, met)
        return rows

    def _meeting(self, requirement: NodeSelectorRequirement, met: Callable[..., bool]) -> Rows:
        known = self._answers.get((met, requirement))
        if known is None:
            entries = self.column(normalized(requirement.key))
            known = sum(rows for values, rows in entries if met(requirement, values or _NOTHING))
            self._answers[met, requirement] = known
        return known

    def narrowed(self, requirements: Sequence[NodeSelectorRequirement]) -> Possibilities:
        """Only what these requirements leave: rows and values. A label that is undecided gets what they ask for."""
        by_key: dict[str, list[NodeSelectorRequirement]] = {}
        for requirement in requirements:
            by_key.setdefault(normalized(requirement.key), []).append(requirement)
        rows, columns = self.rows, dict(self._columns)
        for key, wanted in by_key.items():
            columns[key] = _narrowed(self.column(key), wanted)
            rows &= sum(columns[key].values())
        return Possibilities(rows, columns)


def _narrowed(column: Iterable[tuple[Values, Rows]], wanted: Sequence[NodeSelectorRequirement]) -> dict[Values, Rows]:
    may_lack = all(is_met(requirement, None) for requirement in wanted)
    left: dict[Values, Rows] = {}
    for values, rows in column:
        if values:
            kept: Values = _kept(values, wanted)
        elif may_lack:
            left[values] = left.get(values, 0) | rows
            continue
        else:
            kept = _decided(wanted) if values is None else _NOTHING
        if kept:
            left[kept] = left.get(kept, 0) | rows
    return left


def _kept(values: Iterable[str], wanted: Iterable[NodeSelectorRequirement]) -> frozenset[str]:
    return frozenset(v for v in values if all(is_met(requirement, v) for requirement in wanted))


def _decided(wanted: Sequence[NodeSelectorRequirement]) -> frozenset[str]:
    """What a label that nothing defines will be if this is asked of it; one value stands for all that would do."""
    named = [r.values for r in wanted if r.operator == "In"]
    if named:
        return _kept(named[0], wanted)
    bounds = [number for r in wanted for text in r.values if (number := integer(text)) is not None]
    candidates = [str(b + step) for b in (0, *bounds) for step in (-1, 0, 1)]
    return frozenset(next(([c] for c in candidates if _kept([c], wanted)), []))
