"""Wishes: what pods want of their node, as markets judge it.

A *shape* is what a class wants of its node (alternatives of requirements, tolerations); a *wish* is a shape with the
labels that a unit is pinned to.

Labels that an offering leaves open (a custom label that the pool allows several values of, say) need more than a
verdict for each wish: two pods may each suit, but not together. For those a pool is offered in *variants*, each with
the open labels narrowed so far that all wishes it admits hold at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.objects import Taint, Toleration
from journeyman.core.scheduling.demand.classes import PodClass
from journeyman.core.scheduling.demand.topology import Pins
from journeyman.core.scheduling.offering.templates import Template
from journeyman.core.scheduling.requirements import EMPTY, Requirement, Requirements, requirement
from journeyman.core.scheduling.taints import discouraged, untolerated


class Shape(Struct, frozen=True, cache_hash=True):
    """What a class wants of its node: one of `terms`, and no taint that `tolerations` do not cover.

    `heeds_preferences`: not even a PreferNoSchedule one, for as long as there may be another place.
    """

    terms: tuple[Requirements, ...]
    tolerations: tuple[Toleration, ...]
    heeds_preferences: bool = False

    @classmethod
    def of(cls, pods: PodClass) -> Shape:
        """What the class wants, its volumes' nodes included."""
        return cls(pods.node_terms, pods.tolerations, pods.heeds_preferences)

    def accepts(self, taints: Sequence[Taint]) -> bool:
        """Whether it would go to a node with these taints."""
        if self.heeds_preferences and discouraged(taints, self.tolerations):
            return False
        return untolerated(taints, self.tolerations) is None


class Wish(Struct, frozen=True, dict=True):
    """A shape, and labels that its node must carry."""

    shape: Shape
    pins: Pins = ()

    @cached_property
    def terms(self) -> tuple[Requirements, ...]:
        """The shape's alternatives with these labels, those that contradict them left out."""
        if not self.pins:
            return self.shape.terms
        fixed = {key: requirement(key, "In", (value,)) for key, value in self.pins}
        pinned = (term & fixed for term in self.shape.terms)
        return tuple(term for term in pinned if not any(term[key].impossible for key in fixed))


class Variant(Struct, frozen=True):
    """A pool with its open labels (`open_keys`, among those anyone asks for) narrowed to `narrowed`."""

    narrowed: Requirements
    open_keys: frozenset[str]

    def admits(self, term: Requirements) -> bool:
        """Whether the variant is narrow enough that the term holds on all of it, as far as open labels go."""
        for key in self.open_keys:
            wish, own = term.get(key), self.narrowed.get(key)
            if wish is not None and (own is None or not _within(own, wish)):
                return False
        return True


def _within(narrow: Requirement, wide: Requirement) -> bool:
    """Whether whatever meets the one meets the other."""
    if narrow.present and not narrow.complement:
        return all(wide.has(value) for value in narrow.values)
    return narrow.intersection(wide) == narrow


WHOLE = Variant(EMPTY, frozenset())
"""A pool as it is, for questions about one wish alone."""


def variants_of(template: Template, wishes: Iterable[Wish]) -> tuple[Variant, ...]:
    """The ways to narrow a pool's open labels so that every term of every wish is admitted by one of them."""
    terms = list(dict.fromkeys(term for wish in wishes for term in wish.terms))
    open_keys = frozenset(key for key in {key for term in terms for key in term} if _is_open(template, key))
    asked = dict.fromkeys(Requirements({k: term[k] for k in sorted(open_keys) if k in term}) for term in terms)
    found: list[Requirements] = []
    for narrowed in asked:
        if not narrowed or template.requirements.compatible(narrowed, allow_undefined=labels.WELL_KNOWN) is not None:
            continue
        for index, variant in enumerate(found):
            if _agree(template, variant, narrowed):
                found[index] = variant & narrowed
                break
        else:
            found.append(narrowed)
    return tuple(Variant(narrowed, open_keys) for narrowed in found) or (Variant(EMPTY, open_keys),)


def _agree(template: Template, variant: Requirements, narrowed: Requirements) -> bool:
    """Whether a node of the pool can be of the variant and meet these requirements as well."""
    for key, wish in narrowed.items():
        own = variant.get(key)
        if own is not None and not own.intersects(wish) and not (own.allows_absence and wish.allows_absence):
            return False
    return (template.requirements & variant).conflict(narrowed) is None


def _is_open(template: Template, key: str) -> bool:
    """Whether a node of the pool could still have several values of a label once its offering is chosen."""
    offered = template.requirements.get(key)
    if (offered is not None and offered.single is not None) or template.table.is_single_valued(key):
        return False
    return offered is not None or key in template.table.labels or key in labels.WELL_KNOWN
