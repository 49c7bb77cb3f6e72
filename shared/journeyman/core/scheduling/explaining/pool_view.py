"""What one NodePool has for one pod, step by step: which types suit, are large enough, can be had, are allowed.

Made for explanations, so availability is looked at last and everything can be asked with a change. Rows of offerings
are worked out once per set of terms, however many pods ask.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import cached_property

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import Taint, Toleration
from journeyman.core.scheduling.arrays import Bools, Ints, distinct, every
from journeyman.core.scheduling.demand.classes import PodClass
from journeyman.core.scheduling.limits import Headroom
from journeyman.core.scheduling.offering.min_values import achievable, distinct_enough
from journeyman.core.scheduling.offering.stalls import Stall
from journeyman.core.scheduling.requirements import Requirements
from journeyman.core.scheduling.taints import untolerated

Terms = tuple[Requirements, ...]


class Ask(Struct, frozen=True, kw_only=True, eq=False):
    """What a pod asks of its node: one of `terms`, its tolerations, its request along the axes."""

    terms: Terms
    tolerations: tuple[Toleration, ...]
    request: Ints

    def tolerating(self, taint: Taint) -> Ask:
        """The same with one more toleration, for just this taint."""
        extra = Toleration(key=taint.key, operator="Equal", value=taint.value, effect=taint.effect)
        return replace(self, tolerations=(*self.tolerations, extra))


def ask_of(cls: PodClass, request: Ints, terms: Iterable[Requirements] | None = None) -> Ask:
    """What a pod of the class asks; with other terms of its own if given."""
    own = cls.terms if terms is None else terms
    terms = dict.fromkeys(term & volumes for term in own for volumes in cls.volume_terms)
    return Ask(terms=tuple(terms), tolerations=cls.tolerations, request=request)


class Found(Struct, frozen=True, kw_only=True, eq=False):
    """Types of a pool, each step of those before. `suiting`: whether or not it can be had, some offering suits.

    `had` are large enough and have such an offering now; `allowed` are within the limits as well. `rows` are the
    offerings that suit, of types large enough.
    """

    suiting: Bools
    fitting: Bools
    had: Bools
    allowed: Bools
    rows: Bools


class PoolView:
    """One NodePool to ask. Its limits are looked at as they stand when it is made."""

    def __init__(self, stall: Stall, headroom: Headroom, *, strict_min_values: bool = True) -> None:
        """See what the pool has for anybody."""
        self.stall = stall
        self.headroom = headroom
        self.strict_min_values = strict_min_values
        table = stall.template.table
        usable: Bools = stall.usable[table.row_type]
        self.own_rows: Bools = table.rows_meeting(stall.template.requirements) & usable
        self.room: Bools = headroom.allows()
        self.types_total = int(self._types(self.own_rows).sum())
        self._rows: dict[Terms, Bools] = {}

    @property
    def name(self) -> str:
        """The NodePool's name."""
        return self.stall.template.name

    @cached_property
    def _lack(self) -> tuple[Ints, tuple[tuple[str, datetime | None], ...]]:
        """Why each offering cannot be had, as (number, why and until when by number)."""
        numbers: dict[tuple[str, datetime | None], int] = {}
        offered = (o for t in self.stall.template.table.types for o in t.offerings)
        codes = [numbers.setdefault((o.unavailable_reason, o.unavailable_until), len(numbers)) for o in offered]
        return np.array(codes, dtype=np.int64), tuple(numbers)

    def lack(self, rows: Bools) -> tuple[tuple[str, datetime | None], ...]:
        """Why these offerings cannot be had and until when, each cause once."""
        codes, causes = self._lack
        return tuple(causes[n] for n in distinct(codes[rows]))

    @property
    def taints(self) -> tuple[Taint, ...]:
        """The taints of its nodes."""
        return tuple(self.stall.template.pool.spec.template.spec.taints)

    def untolerated(self, ask: Ask) -> Taint | None:
        """The first taint that keeps the pod away."""
        return untolerated(self.taints, ask.tolerations)

    def refusal(self, ask: Ask) -> str:
        """Why none of its terms can be met by the pool's own labels, for the first of them; empty if one can."""
        offered = self.stall.template.requirements
        refusals = [offered.compatible(t, allow_undefined=labels.WELL_KNOWN) for t in ask.terms]
        if None in refusals:
            return ""
        return next(filter(None, refusals), "contradictory requirements")

    def find(self, ask: Ask) -> Found:
        """What it has for the pod, taints aside."""
        table, rows = self.stall.template.table, self.rows(ask.terms)
        large = every(self.stall.sizes >= ask.request)
        suiting = self._types(rows)
        rows = rows & large[table.row_type]
        had = self._types(rows & table.available)
        return Found(suiting=suiting, fitting=suiting & large, had=had, allowed=had & self.room, rows=rows)

    def takes(self, ask: Ask) -> bool:
        """Whether a node of the pool could be opened for the pod now, other pods aside."""
        if self.untolerated(ask) is not None:
            return False
        found = self.find(ask)
        return bool(found.allowed.any()) and not self.only_reserved(found) and not self.too_alike(found.allowed)

    def only_reserved(self, found: Found) -> bool:
        """Whether all that it has for the pod now draws on reservations, which may run out within a pass."""
        table = self.stall.template.table
        rows = found.rows & table.available & found.allowed[table.row_type]
        return bool((table.row_reservation[rows] >= 0).all())

    def too_alike(self, types: Bools) -> str:
        """Which of the pool's minValues these types do not meet, in words; empty if they meet all that count."""
        if not self.strict_min_values or distinct_enough(self.stall, types):
            return ""
        wanted = self.stall.template.min_values
        return ", ".join(
            f"{n} of {wanted[k]} for {k}" for k, n in achievable(self.stall, types).items() if n < wanted[k]
        )

    def rows(self, terms: Terms) -> Bools:
        """The offerings that suit one of the terms, whatever their size, and whether they can be had or not."""
        known = self._rows.get(terms)
        if known is None:
            template = self.stall.template
            known = np.zeros(len(template.table.row_type), dtype=bool)
            for term in terms:
                if template.requirements.compatible(term, allow_undefined=labels.WELL_KNOWN) is None:
                    known |= template.table.rows_meeting(template.narrowed(term))
            known &= self.own_rows
            self._rows[terms] = known
        return known

    def unmet(self, ask: Ask) -> str:
        """What no type of the pool has, in words, for the first term of which that can be said."""
        template = self.stall.template
        found = (template.table.unmet(template.narrowed(term)) for term in ask.terms)
        return next(filter(None, found), "")

    def _types(self, rows: Bools) -> Bools:
        table = self.stall.template.table
        found: Bools = np.zeros(len(table.types), dtype=bool)
        found[table.row_type[rows]] = True
        return found
