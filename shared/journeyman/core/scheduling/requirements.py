"""Implements node requirements: the values that a label may have, and whether one node can meet two requirements.

A requirement is a set of label values: finite (`In`, and `DoesNotExist` for the empty set) or the complement of a
finite set (`NotIn`, `Exists`); a complement may have integer bounds (`Gt`, `Gte`, `Lt`, `Lte`).

Restates: karpenter pkg/scheduling/requirement.go, requirements.go.
Differs: an intersection records that the label must exist (a node without the label does not meet `Exists` and
`NotIn [a]` together; no node meets `In [a]` and `In [b]`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from typing import Final

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeSelectorRequirement
from journeyman.errors import ConfigurationError

_INTEGER: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_BOUNDS: Final = frozenset({"Gt", "Gte", "Lt", "Lte"})
_SHOWN_VALUES: Final = 5


class InvalidRequirementError(ConfigurationError):
    """A requirement that cannot be read: an unknown operator, or values that the operator does not take."""


class Requirement(Struct, frozen=True):
    """The values that label `key` may have.

    `complement` False: one of `values`, or no label if `values` is empty. True: any value not in `values`, and an
    integer between `lower` and `upper` (inclusive) if they are set. `present`: the label must exist; all operators but
    NotIn and DoesNotExist require it. No node meets a requirement that is `present` and allows no value.
    """

    key: str
    complement: bool
    values: frozenset[str]
    lower: int | None = None
    upper: int | None = None
    min_values: int | None = None
    present: bool = False

    @property
    def operator(self) -> str:
        """The API operator; Exists for a requirement with bounds."""
        if self.complement:
            return "NotIn" if self.values else "Exists"
        return "In" if self.values else "DoesNotExist"

    @property
    def allows_absence(self) -> bool:
        """Whether a node without the label meets it."""
        return not self.present

    @property
    def impossible(self) -> bool:
        """Whether no node meets it: the label must exist, and no value is allowed."""
        return self.present and not self.complement and not self.values

    @property
    def single(self) -> str | None:
        """The only value that it allows; None if there are several or none."""
        return next(iter(self.values)) if not self.complement and len(self.values) == 1 else None

    def has(self, value: str) -> bool:
        """Whether a label of this value meets it."""
        if not self.complement:
            return value in self.values
        return value not in self.values and _within(value, self.lower, self.upper)

    def any_value(self) -> str:
        """Return the smallest non-negative integer that meets a complement."""
        number = max(self.lower or 0, 0)
        while not self.has(str(number)):
            number += 1
        return str(number)

    def intersection(self, other: Requirement) -> Requirement:
        """Return the requirement that allows the values that both allow."""
        lower = _tighter(max, self.lower, other.lower)
        upper = _tighter(min, self.upper, other.upper)
        min_values = _tighter(max, self.min_values, other.min_values)
        if lower is not None and upper is not None and lower > upper:
            return Requirement(self.key, False, frozenset(), min_values=min_values, present=True)
        present = self.present or other.present
        if self.complement and other.complement:
            excluded = self.values | other.values
            if _excludes_all(excluded, lower, upper):
                return Requirement(self.key, False, frozenset(), min_values=min_values, present=True)
            return Requirement(self.key, True, excluded, lower, upper, min_values, present)
        if self.complement:
            values = other.values - self.values
        elif other.complement:
            values = self.values - other.values
        else:
            values = self.values & other.values
        kept = frozenset(v for v in values if _within(v, lower, upper))
        return Requirement(self.key, False, kept, min_values=min_values, present=present)

    def admits(self, other: Requirement) -> bool:
        """Whether some node meets both, with a value or without the label."""
        return not (self.present or other.present) or self.intersects(other)

    def intersects(self, other: Requirement) -> bool:
        """Whether some value meets both; true for two complements unless their bounds are disjoint."""
        if self.complement and other.complement:
            lower, upper = _tighter(max, self.lower, other.lower), _tighter(min, self.upper, other.upper)
            return lower is None or upper is None or lower <= upper
        finite, judge = (other, self) if self.complement else (self, other)
        return any(judge.has(value) for value in finite.values)

    def to_selectors(self) -> tuple[NodeSelectorRequirement, ...]:
        """Return the API form: two entries for two bounds; a bounded requirement loses its NotIn values."""
        entry = NodeSelectorRequirement(
            key=self.key, operator=self.operator, values=tuple(sorted(self.values)), min_values=self.min_values
        )
        bounds = [("Gte", self.lower), ("Lte", self.upper)]
        bounded = tuple(
            NodeSelectorRequirement(key=self.key, operator=op, values=(str(n),), min_values=self.min_values)
            for op, n in bounds
            if n is not None
        )
        return bounded or (entry,)

    def __str__(self) -> str:
        shown = sorted(self.values)[:_SHOWN_VALUES]
        more = len(self.values) - len(shown)
        values = f" [{' '.join(shown)}{f' and {more} others' if more else ''}]" if self.values else ""
        bounds = "".join(f" {sign}{n}" for sign, n in ((">=", self.lower), ("<=", self.upper)) if n is not None)
        return f"{self.key} {self.operator}{values}{bounds}"


def _within(value: str, lower: int | None, upper: int | None) -> bool:
    if lower is None and upper is None:
        return True
    if not _INTEGER.fullmatch(value):
        return False
    number = int(value)
    return (lower is None or number >= lower) and (upper is None or number <= upper)


def _excludes_all(excluded: Collection[str], lower: int | None, upper: int | None) -> bool:
    """Return whether every value between these bounds is excluded; a label's value cannot be negative."""
    first = max(lower or 0, 0)
    if upper is None or upper - first >= len(excluded):
        return False
    return all(str(number) in excluded for number in range(first, upper + 1))


def _tighter(choose: Callable[[int, int], int], a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return b if a is None else a
    return choose(a, b)


def requirement(key: str, operator: str, values: Iterable[str] = (), min_values: int | None = None) -> Requirement:
    """Return a requirement from its API form; deprecated label keys are normalised.

    Raises:
        InvalidRequirementError: Unknown operator, `In` without values, or a bound that is not one non-negative integer.
    """
    key = labels.ALIASES.get(key, key)
    given = tuple(values)
    if operator in _BOUNDS:
        return _bounded(key, operator, given, min_values)
    if operator in {"In", "NotIn"}:
        if operator == "In" and not given:
            raise InvalidRequirementError(f"{key}: In needs at least one value")
        present = operator == "In"
        return Requirement(key, not present, frozenset(given), min_values=min_values, present=present)
    if operator in {"Exists", "DoesNotExist"}:
        present = operator == "Exists"
        return Requirement(key, present, frozenset(), min_values=min_values, present=present)
    raise InvalidRequirementError(
        f"{key}: operator {operator!r} is not one of In, NotIn, Exists, DoesNotExist, Gt, Gte, Lt, Lte"
    )


def _bounded(key: str, operator: str, values: tuple[str, ...], min_values: int | None) -> Requirement:
    if len(values) != 1 or not _INTEGER.fullmatch(values[0]) or values[0].startswith("-"):
        raise InvalidRequirementError(f"{key}: {operator} needs exactly one non-negative integer, not {list(values)}")
    bound = int(values[0]) + {"Gt": 1, "Lt": -1}.get(operator, 0)
    lower, upper = (bound, None) if operator.startswith("G") else (None, bound)
    if _excludes_all((), lower, upper):
        return Requirement(key, False, frozenset(), min_values=min_values, present=True)
    return Requirement(key, True, frozenset(), lower, upper, min_values, present=True)


class Requirements(dict[str, Requirement]):
    """Requirements by key. Never changed once made; combining two requirements on one key intersects them."""

    __slots__ = ("_hash",)

    def __hash__(self) -> int:  # type: ignore[override]
        try:
            return self._hash
        except AttributeError:  # few requirements are hashed, but those often
            self._hash: int = hash(frozenset(self.values()))
            return self._hash

    def __and__(self, other: Mapping[str, Requirement]) -> Requirements:
        """Return the requirements that meet both sets."""
        merged = Requirements(self)
        for key, extra in other.items():
            merged[key] = merged[key].intersection(extra) if key in merged else extra
        return merged

    def compatible(self, required: Mapping[str, Requirement], *, allow_undefined: Collection[str] = ()) -> str | None:
        """Return why a node with these requirements cannot meet `required`; None if it can.

        Args:
            required: The requirements of a pod.
            allow_undefined: Keys that `required` may name although these requirements do not define them.
        """
        for key, wanted in required.items():
            if wanted.impossible:
                return f"contradictory requirements, key {key}: no value meets all that is asked of it"
            if key not in self and key not in allow_undefined and wanted.present:
                meant = likely_meant(key, self)
                hint = f' (typo of "{meant}"?)' if meant else ""
                return f'label "{key}" does not have known values{hint}'
        return self.conflict(required)

    def is_compatible(self, required: Mapping[str, Requirement], *, allow_undefined: Collection[str] = ()) -> bool:
        """Whether a node with these requirements can meet `required`: `compatible` without its text, and faster."""
        for key, wanted in required.items():
            offered = self.get(key)
            if offered is None:
                if wanted.present and (key not in allow_undefined or not (wanted.complement or wanted.values)):
                    return False
            elif wanted.impossible or not offered.admits(wanted):
                return False
        return True

    def conflict(self, required: Mapping[str, Requirement]) -> str | None:
        """Return, as text, the first key that both sides name with no value that meets both; None if there is none."""
        for key, wanted in required.items():
            if key in self and not self[key].admits(wanted):
                return f"incompatible requirements, key {key}, {wanted} not in {self[key]}"
        return None

    def to_selectors(self) -> tuple[NodeSelectorRequirement, ...]:
        """Return the API form, sorted by key."""
        return tuple(entry for key in sorted(self) for entry in self[key].to_selectors())


EMPTY: Final = Requirements()


def of(entries: Iterable[Requirement]) -> Requirements:
    """Return these requirements combined; those on the same key are intersected."""
    merged = Requirements()
    for entry in entries:
        merged[entry.key] = merged[entry.key].intersection(entry) if entry.key in merged else entry
    return merged


def from_selectors(entries: Iterable[NodeSelectorRequirement]) -> Requirements:
    """Return requirements from their API form. Raises InvalidRequirementError."""
    return of(requirement(e.key, e.operator, e.values, e.min_values) for e in entries)


def from_labels(values: Mapping[str, str]) -> Requirements:
    """Return one requirement per label: `In` with its value."""
    return of(requirement(key, "In", (value,)) for key, value in values.items())


def always_meets(promised: Mapping[str, Requirement], term: Mapping[str, Requirement]) -> bool:
    """Whether every node with the promised labels meets a term."""
    for key, required in term.items():
        possible = promised.get(key)
        if possible is None:
            if required.present:
                return False
        elif possible.complement or not possible.values or not all(required.has(value) for value in possible.values):
            return False
    return True


def with_values(wanted: Requirements, defined: Collection[str]) -> Requirements:
    """Return the requirements, with a value for each required label that no instance type defines.

    A NodeClaim has these values as labels, so that its node meets the requirements.

    Args:
        wanted: The requirements of a node.
        defined: The labels that instance types or their offerings define.

    Restates: karpenter pkg/scheduling/requirement.go `Any`. Differs: the value is not random.
    """
    own = {key: r for key, r in wanted.items() if r.complement and r.present and key not in defined}
    values = {key: r.any_value() for key, r in own.items() if not labels.is_restricted(key)}
    return wanted & {
        key: requirement(key, "In", (value,)) for key, value in values.items() if key not in labels.WELL_KNOWN
    }


def likely_meant(key: str, known: Iterable[str]) -> str:
    """Return the known or well-known key that an unknown one probably misspells; empty if none is similar.

    Restates: karpenter pkg/scheduling/requirements.go `labelHint`.
    Differs: a key that differs by one typing error is similar too; of several keys the most similar is returned (a
    typing error, then the same last part, then the shortest), where Karpenter returns any.
    """
    return _likeliest(key, frozenset(known))


@lru_cache(maxsize=1024)  # called for every pod class and NodePool
def _likeliest(key: str, known: frozenset[str]) -> str:
    last = _last_part(key)
    candidates = (known | labels.WELL_KNOWN) - {key}
    alike = [c for c in candidates if key in c or c.endswith(last) or _differs_by_typo(key, c)]
    return min(alike, key=lambda c: (not _differs_by_typo(key, c), _last_part(c) != last, len(c), c), default="")


def _differs_by_typo(written: str, meant: str) -> bool:
    """Whether the texts differ by one inserted, missing or wrong letter, or by two swapped letters."""
    if abs(len(written) - len(meant)) > 1:
        return False
    start = next((n for n, (a, b) in enumerate(zip(written, meant, strict=False)) if a != b), None)
    if start is None:
        return True
    rest, meant_rest = written[start:], meant[start:]
    swapped = rest[:2] == meant_rest[1::-1] and rest[2:] == meant_rest[2:]
    return swapped or rest[1:] == meant_rest[1:] or rest[1:] == meant_rest or rest == meant_rest[1:]


def _last_part(key: str) -> str:
    return key.rsplit("/", 1)[-1]
