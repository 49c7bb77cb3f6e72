"""What a node must be for all of its pods at once: pool, variant and one alternative of every wish, put together."""

from __future__ import annotations

from collections.abc import Sequence

from journeyman.core.api import labels
from journeyman.core.scheduling.arrays import Bools
from journeyman.core.scheduling.offering.stalls import Stall
from journeyman.core.scheduling.offering.wishes import Variant, Wish
from journeyman.core.scheduling.requirements import Requirements, requirement


def settled(
    stall: Stall, type_index: int, variant: Variant, wishes: Sequence[Wish], reservation: str = ""
) -> Requirements:
    """Pool, variant, reservation and every wish together; of a wish's alternatives the first that suits the others too.

    Only offerings of the type that suit every wish count, so that no choice leaves a later wish without one.
    """
    together = stall.template.requirements & variant.narrowed
    if reservation:
        together = held(together, reservation)
    if all(len(wish.terms) == 1 for wish in wishes):
        for wish in wishes:
            together &= wish.terms[0]
        return together
    table = stall.template.table
    possible: Bools = table.row_type == type_index
    for wish in wishes:
        possible &= stall.rows(wish, variant)
    for wish in wishes:
        for term in wish.terms:
            candidate = together & term
            if together.compatible(term, allow_undefined=labels.WELL_KNOWN) is None and (
                (table.rows_meeting(candidate) & possible).any()
            ):
                together = candidate
                break
    return together


def held(requirements: Requirements, reservation: str) -> Requirements:
    """The same on reserved capacity, of this reservation and no other."""
    return requirements & {
        labels.CAPACITY_TYPE: requirement(labels.CAPACITY_TYPE, "In", (labels.RESERVED,)),
        labels.RESERVATION_ID: requirement(labels.RESERVATION_ID, "In", (reservation,)),
    }


def reservation_of(requirements: Requirements) -> str:
    """The reservation that a node with these requirements holds; empty if none."""
    capacity_type = requirements.get(labels.CAPACITY_TYPE)
    reservation = requirements.get(labels.RESERVATION_ID)
    if capacity_type is None or reservation is None or capacity_type.single != labels.RESERVED:
        return ""
    return reservation.single or ""
