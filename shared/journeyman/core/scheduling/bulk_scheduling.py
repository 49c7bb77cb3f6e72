"""A plan in bulk: whole classes at once, first their domains, then what each node holds.

The few classes that must share a node with others are placed first, one by one; then every other class gets domains,
existing nodes are filled, and the rest is packed onto new nodes by price. Where limits cut short what others were
placed counting on, the whole is tried again with what was learned. What is left at last goes one by one, by the exact
rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.scheduling.demand.topology import Group, LabelIndex, Pins
from journeyman.core.scheduling.domain_assignment import assign_domains
from journeyman.core.scheduling.new_nodes import open_nodes
from journeyman.core.scheduling.node_filling import Filling
from journeyman.core.scheduling.problem import Asked, Draft, Question, Unit
from journeyman.core.scheduling.sequential import place_one_by_one

_ATTEMPTS: Final = 5  # at quotas that were cut short; after them the classes concerned are left to one by one
_MOST_ATTEMPTS: Final = 8  # after them all classes are
_MOST_GLUED: Final = 2000  # pods; more that must share nodes are placed after the others, where these leave room

_Sent = tuple[int, Pins]
Ceilings = dict[_Sent, int]


def plan_in_bulk(asked: Asked, *, is_thrifty: bool = False) -> Draft:
    """The plan, as complete as can be. `is_thrifty`: as `Draft` has it."""
    question = asked.question
    glued = glued_classes(question)
    first = glued if sum(question.counts[c] for c in glued) <= _MOST_GLUED else ()
    alone = frozenset(glued)
    ceilings: Ceilings = {}
    attempt = 1
    while True:
        draft = asked.draft()
        draft.ceilings, draft.is_thrifty = ceilings, is_thrifty
        if first:
            place_one_by_one(question, draft, first)
        cut_short = _place_classes(question, draft, alone)
        if not cut_short:
            place_one_by_one(question, draft)
            return draft
        if attempt < _ATTEMPTS:
            ceilings = _learned(cut_short, ceilings, give_up=attempt == _ATTEMPTS - 1)
        elif attempt < _MOST_ATTEMPTS:
            alone |= {question.family[row] for row, _ in cut_short}
        else:
            alone = frozenset(range(len(question.counts)))
        attempt += 1


def glued_classes(question: Question) -> tuple[int, ...]:
    """Classes that neither domains nor axes can speak of.

    Those with ResourceClaims take devices away from each other; those with an affinity per host name must be with
    others.
    """
    groups: dict[bytes, Group] = {}
    glued: set[int] = set()
    for row, cls in enumerate(question.rows):
        if cls.claims:
            glued.add(question.family[row])
        for group in cls.affinities:
            if group.key == labels.HOSTNAME:
                groups[group.id] = group
                glued.add(question.family[row])
    if groups:
        index = LabelIndex(question.rows)
        glued.update(question.family[row] for group in groups.values() for row in index.counted_by(group))
    return tuple(sorted(glued))


def _place_classes(question: Question, draft: Draft, but: frozenset[int]) -> Ceilings:
    """Place whole classes; of the quotas that could not be met, how much of each could."""
    filling = Filling(question.existing, question.rows, question.requests, question.caps, draft.on_existing)
    units, _ = assign_domains(question, draft, filling, but)
    opened = open_nodes(_filled(units, filling), question, draft.headroom, draft.reservations)
    draft.opened += opened.nodes
    asked, left = Counter[_Sent](), Counter[_Sent]()
    for unit in units:
        asked[unit.row, unit.pins] += unit.count
        draft.left[question.family[unit.row]] -= unit.count
    for unit in opened.left:
        left[unit.row, unit.pins] += unit.count
        draft.left[question.family[unit.row]] += unit.count
    quotas = dict.fromkeys((unit.row, unit.pins) for unit in units if unit.is_quota)
    return {sent: asked[sent] - left[sent] for sent in quotas if left[sent]}


def _filled(units: Sequence[Unit], filling: Filling) -> Sequence[Unit]:
    """The units with what existing nodes do not take."""
    if not filling.existing.nodes:
        return units
    return [replace(unit, count=filling.fill(unit.row, unit.count, unit.pins)) for unit in units]


def _learned(cut_short: Ceilings, known: Ceilings, *, give_up: bool) -> Ceilings:
    """Ceilings for the next attempt: what could be met; with `give_up` nothing, so that it is the last."""
    return {**known, **(dict.fromkeys(cut_short, 0) if give_up else cut_short)}
