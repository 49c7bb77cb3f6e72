"""A NodePool as explanations see it: which instance types pass each filter for a pod, and what comparing costs.

Comparisons are charged to the `Effort` of the pod's requirements before they are made. What they cost depends on the
terms and on the offerings, so the offerings of a term are remembered.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import Taint, Toleration
from journeyman.core.scheduling.arrays import Bools, Ints, distinct, every
from journeyman.core.scheduling.limits import Headroom
from journeyman.core.scheduling.nodeclaim_templates import achievable, distinct_enough
from journeyman.core.scheduling.nodepool_options import NodePoolOptions
from journeyman.core.scheduling.pod_classes import PodClass
from journeyman.core.scheduling.requirements import Requirements
from journeyman.core.scheduling.results import Effort
from journeyman.core.state.taints import untolerated

_PER_TERM: Final = 12  # effort of comparing a term with a NodePool, without what grows with the term or the offerings
ENTRIES_PER_UNIT: Final = 2  # of terms: requirements, and values in tens
_ROWS_PER_UNIT: Final = 400  # offerings that are combined
_DISTINCT_PER_UNIT: Final = 3  # values of a label that a requirement is compared with
_CELLS_PER_UNIT: Final = 400  # amounts of instance types that a request is compared with


class UnschedulablePod(Struct, frozen=True, kw_only=True, eq=False):
    """What a pod requires: its class, its requests by axis, and one of `terms`, the class's with its volumes'.

    What comparing them costs is charged to `effort`.
    """

    cls: PodClass
    request: Ints
    effort: Effort
    terms: tuple[Requirements, ...] = ()

    def with_terms(self, terms: Iterable[Requirements]) -> UnschedulablePod:
        """Return the pod with other terms, combined with those of its volumes. Raises EffortSpentError."""
        own, volumes = tuple(terms), self.cls.volume_terms
        self.effort.spend(entries_of(own) * len(volumes) // ENTRIES_PER_UNIT + len(self.cls.tolerations) // 8)
        return replace(self, terms=tuple(dict.fromkeys(term & reached for term in own for reached in volumes)))

    def tolerating(self, taint: Taint) -> UnschedulablePod:
        """Return the pod with a toleration for this taint added."""
        extra = Toleration(key=taint.key, operator="Equal", value=taint.value, effect=taint.effect)
        return replace(self, cls=replace(self.cls, tolerations=(*self.cls.tolerations, extra)))


def entries_of(terms: Iterable[Requirements]) -> int:
    """Return the number of requirements in these terms, with each ten values as one more."""
    return sum(1 + len(r.values) // 10 for term in terms for r in term.values())


class FilteredTypes(Struct, frozen=True, kw_only=True, eq=False):
    """The instance types of a NodePool that pass each filter.

    Attributes:
        suiting: Types with an offering that meets the requirements, available or not.
        fitting: Of these, the types that are large enough.
        available: Of these, the types with such an offering available.
        allowed: Of these, the types within the limits.
        rows: The offerings, available or not, that meet the requirements and whose types are large enough.
    """

    suiting: Bools
    fitting: Bools
    available: Bools
    allowed: Bools
    rows: Bools


class NodePoolView:
    """Filters the instance types of one NodePool; limits are evaluated once, by the constructor."""

    def __init__(
        self, options: NodePoolOptions, headroom: Headroom, *, strict_min_values: bool, remembered_bytes: int
    ) -> None:
        """Prepare the NodePool for queries.

        Args:
            options: The NodePool.
            headroom: What is left of its limits.
            strict_min_values: Whether it launches no node if its minValues cannot be met.
            remembered_bytes: What the view remembers at most: of a term a byte for each offering.
        """
        self.options = options
        self.template = options.template
        self.name = options.template.name
        self.taints = options.template.taints
        self.table = options.template.table
        self.headroom = headroom
        self.within_limits: Bools = headroom.allows()
        self._launched_rows: Bools = self.table.rows_meeting(self.template.requirements)
        self._own_rows: Bools = self._launched_rows & options.usable[self.table.row_type]
        self.types_total = int(self._types(self._own_rows).sum())
        self._strict_min_values = strict_min_values
        self._remembered_bytes = remembered_bytes
        self._rows: dict[Requirements, Bools] = {}

    @cached_property
    def _causes(self) -> tuple[Ints, tuple[tuple[str, datetime | None], ...]]:
        """Return why offerings are unavailable, as (cause number per offering, (reason, until) by number)."""
        numbers: dict[tuple[str, datetime | None], int] = {}
        offered = (o for t in self.table.types for o in t.offerings)
        codes = [numbers.setdefault((o.unavailable_reason, o.unavailable_until), len(numbers)) for o in offered]
        return np.array(codes, dtype=np.int64), tuple(numbers)

    def causes(self, rows: Bools) -> tuple[tuple[str, datetime | None], ...]:
        """Return the distinct (reason, until) for which these offerings are unavailable."""
        codes, causes = self._causes
        return tuple(causes[n] for n in distinct(codes[rows]))

    def untolerated(self, pod: UnschedulablePod) -> Taint | None:
        """Return the first taint that the pod does not tolerate."""
        pod.effort.spend(len(self.taints) * len(pod.cls.tolerations) // 4)
        return untolerated(self.taints, pod.cls.tolerations)

    def refusal(self, pod: UnschedulablePod) -> str:
        """Return why no type suits the pod: a label of the NodePool, or a requirement that no type meets, as text."""
        own, terms = self.template.requirements, pod.terms
        pod.effort.spend(entries_of(terms) // ENTRIES_PER_UNIT + 2 * _PER_TERM)
        if not any(own.is_compatible(term, allow_undefined=labels.WELL_KNOWN) for term in terms):
            first = own.compatible(terms[0], allow_undefined=labels.WELL_KNOWN) if terms else None
            return first or "contradictory requirements"
        unmet = next(
            filter(None, (self._unmet(term, pod.effort) for term in terms)), "all labels that the pod requires"
        )
        return f"no instance type met all requirements (none of its {self.types_total} has {unmet})"

    def _unmet(self, term: Requirements, effort: Effort) -> str:
        effort.spend(self._work(term))
        return self.table.unmet(self.template.narrowed(term))

    def find(self, pod: UnschedulablePod) -> FilteredTypes:
        """Return the types that pass each filter for the pod; taints are ignored. Raises EffortSpentError."""
        sizes = self.options.sizes
        rows = self._rows_for(pod)
        pod.effort.spend(_PER_TERM + sizes.size // _CELLS_PER_UNIT + 4 * len(rows) // _ROWS_PER_UNIT)
        large = every(sizes >= pod.request)
        suiting = self._types(rows)
        rows = rows & large[self.table.row_type]
        available = self._types(rows & self.table.available)
        allowed = available & self.within_limits
        return FilteredTypes(suiting=suiting, fitting=suiting & large, available=available, allowed=allowed, rows=rows)

    def takes(self, pod: UnschedulablePod) -> bool:
        """Return whether the NodePool can launch a node for the pod now; constraints about other pods are ignored."""
        if self.untolerated(pod) is not None:
            return False
        found = self.find(pod)
        return bool(found.allowed.any()) and not self.only_reserved(found) and not self.unmet_min_values(found.allowed)

    def launchable(self, found: FilteredTypes) -> Ints:
        """Return the offerings that pass every filter."""
        return np.flatnonzero(found.rows & self.table.available & found.allowed[self.table.row_type])

    def only_reserved(self, found: FilteredTypes) -> bool:
        """Return whether only reserved capacity, which may run out within a pass, is available for the pod."""
        return bool((self.table.row_reservation[self.launchable(found)] >= 0).all())

    def unmet_min_values(self, types: Bools) -> str:
        """Return the minValues that these types do not meet, as text; empty if none or if they may be relaxed."""
        if not self._strict_min_values or distinct_enough(self.options, types):
            return ""
        least = self.template.min_values
        return ", ".join(
            f"{n} of {least[k]} for {k}" for k, n in achievable(self.options, types).items() if n < least[k]
        )

    def values(self, key: str, rows: Ints) -> frozenset[str]:
        """Return the values of a label that nodes on these offerings have; "" for offerings that leave it open."""
        codes, values = self.table.row_values(key)
        own = self.template.requirements.get(key)
        single = own.single if own is not None else None
        return frozenset(values[code] or single or "" for code in distinct(codes[rows]))

    def types_without_daemons(self, pod: UnschedulablePod) -> Bools:
        """Return the types with an offering that meets one of the terms, also if too small for their daemons."""
        rows = np.zeros(len(self._own_rows), dtype=bool)
        for term in pod.terms:
            pod.effort.spend(self._work(term))
            rows |= self.template.rows_meeting(term)
        return self._types(rows & self._launched_rows)

    def _rows_for(self, pod: UnschedulablePod) -> Bools:
        """Return the offerings that meet one of the terms, available or not, of any size."""
        found = np.zeros(len(self._own_rows), dtype=bool)
        for term in pod.terms:
            rows = self._rows.get(term)
            pod.effort.spend(1 + len(found) // _ROWS_PER_UNIT if rows is not None else self._work(term))
            if rows is None:
                if (len(self._rows) + 1) * max(len(found), 1) > self._remembered_bytes:
                    self._rows.clear()
                rows = self._rows[term] = self.template.rows_meeting(term) & self._own_rows
            found |= rows
        return found

    def _work(self, term: Requirements) -> int:
        """Return the effort of comparing a term with the offerings."""
        columns = [self.table.row_columns.get(key) or self.table.type_columns.get(key) for key in term]
        values = sum(len(column.distinct) for column in columns if column is not None)
        combined = (2 + len(columns)) * len(self.table.row_type) // _ROWS_PER_UNIT
        return _PER_TERM + entries_of((term,)) // ENTRIES_PER_UNIT + values // _DISTINCT_PER_UNIT + combined

    def _types(self, rows: Bools) -> Bools:
        types: Bools = np.zeros(len(self.table.types), dtype=bool)
        types[self.table.row_type[rows]] = True
        return types
