"""A NodePool as explanations see it: which of its instance types pass each filter for a pod, and what comparing them costs.

Comparisons are charged to the `Effort` of the pod's requirements before they are made. What they cost depends on the terms and
on the offerings, so the offerings of a term are remembered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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

Terms = tuple[Requirements, ...]

_PER_TERM: Final = 12  # effort of comparing a term with a NodePool, without what grows with the term or the offerings
_ENTRIES_PER_UNIT: Final = 2  # of terms: requirements, and values in tens
_ROWS_PER_UNIT: Final = 400  # offerings that are combined
_DISTINCT_PER_UNIT: Final = 3  # values of a label that a requirement is compared with
_CELLS_PER_UNIT: Final = 400  # amounts of instance types that a request is compared with


class PodRequirements(Struct, frozen=True, kw_only=True, eq=False):
    """What a pod requires of its node: one of `terms`, its tolerations, its requests by axis.

    What comparing them costs is charged to `effort`.
    """

    terms: Terms
    tolerations: tuple[Toleration, ...]
    request: Ints
    effort: Effort

    def tolerating(self, taint: Taint) -> PodRequirements:
        """Return the requirements with a toleration for this taint added."""
        extra = Toleration(key=taint.key, operator="Equal", value=taint.value, effect=taint.effect)
        return replace(self, tolerations=(*self.tolerations, extra))


def pod_requirements_of(
    cls: PodClass, request: Ints, effort: Effort, terms: Iterable[Requirements] | None = None
) -> PodRequirements:
    """Return the requirements of a class's pods; `terms` replaces the class's own terms. Raises EffortSpentError."""
    own = cls.terms if terms is None else tuple(terms)
    effort.spend(entries_of(own) * len(cls.volume_terms) // _ENTRIES_PER_UNIT + len(cls.tolerations) // 8)
    combined = dict.fromkeys(term & volumes for term in own for volumes in cls.volume_terms)
    return PodRequirements(terms=tuple(combined), tolerations=cls.tolerations, request=request, effort=effort)


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
        self, pool: NodePoolOptions, headroom: Headroom, *, strict_min_values: bool, remembered_bytes: int
    ) -> None:
        """Prepare the NodePool for queries.

        Args:
            pool: The NodePool.
            headroom: What is left of its limits.
            strict_min_values: Whether it launches no node if its minValues cannot be met.
            remembered_bytes: What the view remembers at most: of a term a byte for each offering.
        """
        self.pool = pool
        self.headroom = headroom
        self.strict_min_values = strict_min_values
        table = pool.template.table
        usable: Bools = pool.usable[table.row_type]
        self.own_rows: Bools = table.rows_meeting(pool.template.requirements) & usable
        self.within_limits: Bools = headroom.allows()
        self.types_total = int(self._types(self.own_rows).sum())
        self._remembered_bytes = remembered_bytes
        self._rows: dict[Requirements, Bools] = {}

    @property
    def name(self) -> str:
        """Return the name of the NodePool."""
        return self.pool.template.name

    @property
    def known_labels(self) -> frozenset[str]:
        """Return the labels that the NodePool's requirements, its types or its offerings define."""
        return self.pool.template.table.labels | self.pool.template.requirements.keys()

    @cached_property
    def _lack(self) -> tuple[Ints, tuple[tuple[str, datetime | None], ...]]:
        """Return why offerings are unavailable, as (cause number per offering, (reason, until) by number)."""
        numbers: dict[tuple[str, datetime | None], int] = {}
        offered = (o for t in self.pool.template.table.types for o in t.offerings)
        codes = [numbers.setdefault((o.unavailable_reason, o.unavailable_until), len(numbers)) for o in offered]
        return np.array(codes, dtype=np.int64), tuple(numbers)

    def lack(self, rows: Bools) -> tuple[tuple[str, datetime | None], ...]:
        """Return the distinct (reason, until) for which these offerings are unavailable."""
        codes, causes = self._lack
        return tuple(causes[n] for n in distinct(codes[rows]))

    @property
    def taints(self) -> tuple[Taint, ...]:
        """Return the taints of the NodePool's nodes."""
        return tuple(self.pool.template.node_pool.spec.template.spec.taints)

    def untolerated(self, pod_requirements: PodRequirements) -> Taint | None:
        """Return the first taint that the pod does not tolerate."""
        pod_requirements.effort.spend(len(self.taints) * len(pod_requirements.tolerations) // 4)
        return untolerated(self.taints, pod_requirements.tolerations)

    def refusal(self, pod_requirements: PodRequirements) -> str:
        """Return why the NodePool's own labels exclude the first term, as text; empty if they admit any term."""
        offered, terms = self.pool.template.requirements, pod_requirements.terms
        pod_requirements.effort.spend(entries_of(terms) // _ENTRIES_PER_UNIT + 2 * _PER_TERM)
        if any(offered.is_compatible(term, allow_undefined=labels.WELL_KNOWN) for term in terms):
            return ""
        first = offered.compatible(terms[0], allow_undefined=labels.WELL_KNOWN) if terms else None
        return first or "contradictory requirements"

    def find(self, pod_requirements: PodRequirements) -> FilteredTypes:
        """Return the types that pass each filter for the pod; taints are ignored."""
        sizes, table = self.pool.sizes, self.pool.template.table
        rows = self.rows(pod_requirements)
        pod_requirements.effort.spend(_PER_TERM + sizes.size // _CELLS_PER_UNIT + 4 * len(rows) // _ROWS_PER_UNIT)
        large = every(sizes >= pod_requirements.request)
        suiting = self._types(rows)
        rows = rows & large[table.row_type]
        available = self._types(rows & table.available)
        return FilteredTypes(
            suiting=suiting,
            fitting=suiting & large,
            available=available,
            allowed=available & self.within_limits,
            rows=rows,
        )

    def takes(self, pod_requirements: PodRequirements) -> bool:
        """Return whether the NodePool can launch a node for the pod now; constraints about other pods are ignored."""
        if self.untolerated(pod_requirements) is not None:
            return False
        found = self.find(pod_requirements)
        return bool(found.allowed.any()) and not self.only_reserved(found) and not self.too_alike(found.allowed)

    def only_reserved(self, found: FilteredTypes) -> bool:
        """Return whether only reserved capacity, which may run out within a pass, is available for the pod."""
        table = self.pool.template.table
        rows = found.rows & table.available & found.allowed[table.row_type]
        return bool((table.row_reservation[rows] >= 0).all())

    def too_alike(self, types: Bools) -> str:
        """Return the NodePool's minValues that these types do not meet, as text; empty if none or if minValues may be relaxed."""
        if not self.strict_min_values or distinct_enough(self.pool, types):
            return ""
        min_values = self.pool.template.min_values
        return ", ".join(
            f"{n} of {min_values[k]} for {k}" for k, n in achievable(self.pool, types).items() if n < min_values[k]
        )

    def rows(self, pod_requirements: PodRequirements) -> Bools:
        """Return the offerings that meet one of the terms, available or not, of any size. Raises EffortSpentError."""
        found = np.zeros(len(self.own_rows), dtype=bool)
        for term in pod_requirements.terms:
            rows = self._rows.get(term)
            pod_requirements.effort.spend(1 + len(found) // _ROWS_PER_UNIT if rows is not None else self._work(term))
            if rows is None:
                rows = self._remember(term, self._rows_of(term))
            found |= rows
        return found

    def types_for(self, pod_requirements: PodRequirements) -> Bools:
        """Return the types with an offering that meets one of the terms, even if they are too small for their daemons."""
        template = self.pool.template
        rows = np.zeros(len(self.own_rows), dtype=bool)
        for term in pod_requirements.terms:
            pod_requirements.effort.spend(self._work(term))
            rows |= self._meeting(term)
        return self._types(rows & template.table.rows_meeting(template.requirements))

    def _rows_of(self, term: Requirements) -> Bools:
        return self._meeting(term) & self.own_rows

    def _meeting(self, term: Requirements) -> Bools:
        template = self.pool.template
        if not template.requirements.is_compatible(term, allow_undefined=labels.WELL_KNOWN):
            return np.zeros(len(self.own_rows), dtype=bool)
        return template.table.rows_meeting(template.narrowed(term))

    def _remember(self, term: Requirements, rows: Bools) -> Bools:
        if (len(self._rows) + 1) * max(len(rows), 1) > self._remembered_bytes:
            self._rows.clear()
        self._rows[term] = rows
        return rows

    def _work(self, term: Requirements) -> int:
        """Return the effort of comparing a term with the offerings."""
        table = self.pool.template.table
        columns = [table.row_columns.get(key) or table.type_columns.get(key) for key in term]
        values = sum(len(column.distinct) for column in columns if column is not None)
        entries = entries_of((term,)) // _ENTRIES_PER_UNIT
        return (
            _PER_TERM
            + entries
            + values // _DISTINCT_PER_UNIT
            + (2 + len(columns)) * len(table.row_type) // _ROWS_PER_UNIT
        )

    def unmet(self, pod_requirements: PodRequirements) -> str:
        """Return a requirement that no type of the NodePool meets, as text; empty if there is no single one."""
        template = self.pool.template
        for term in pod_requirements.terms:
            pod_requirements.effort.spend(self._work(term))
            found = template.table.unmet(template.narrowed(term))
            if found:
                return found
        return ""

    def _types(self, rows: Bools) -> Bools:
        table = self.pool.template.table
        types: Bools = np.zeros(len(table.types), dtype=bool)
        types[table.row_type[rows]] = True
        return types


def values_offered(views: Sequence[NodePoolView], pod_requirements: PodRequirements, key: str) -> frozenset[str]:
    """Return the values of a label that new nodes for the pod can have."""
    found: set[str] = set()
    for view in views:
        template = view.pool.template
        rows = np.flatnonzero(view.find(pod_requirements).rows & template.table.available)
        codes, values = template.table.row_values(key)
        pool_requirement = template.requirements.get(key)
        single = pool_requirement.single if pool_requirement is not None else None
        found.update(value for code in distinct(codes[rows]) if (value := values[code] or single))
    return frozenset(found)
