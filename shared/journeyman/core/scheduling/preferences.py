"""Relaxes a pod class's preferences level by level, in Karpenter's order.

The first level requires every preference. Each further level removes one: first the heaviest preferred pod affinity,
then the heaviest preferred pod anti-affinity, then the heaviest preferred node affinity (the next heaviest replaces
it), then one ScheduleAnyway spread constraint, and last the avoidance of PreferNoSchedule taints.

Restates: karpenter pkg/controllers/provisioning/scheduling/preferences.go `Relax`,
`toleratePreferNoScheduleTaints`, pkg/scheduling/requirements.go
`newPodRequirements`.
Differs: terms of a required node affinity are alternatives on every level, where Karpenter removes the first of them
before any preference; levels with contradictory requirements are left out; a class has at most `MAX_LEVELS` levels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from msgspec.structs import replace

from journeyman.core.api.objects import Taint
from journeyman.core.scheduling.pod_classes import NO_PREFERENCES, PodClass, PodPreferences, combined_terms
from journeyman.core.scheduling.results import PreferencePolicy
from journeyman.core.state.taints import tolerates

MAX_LEVELS: Final = 16
"""The relaxation levels of a class, not counting the one for PreferNoSchedule taints.

A class with more preferences relaxes the first 14 one by one and all others together on the last level. Each level is a
row of the problem that carries all preferences left, so that a level per preference takes quadratic time: a pod with
1,000 of them would use up the time of all pods. Workloads have a handful.
"""

_ANY_WISH: Final = Taint(key="", effect="PreferNoSchedule")


def relaxation_levels(cls: PodClass, *, policy: PreferencePolicy, any_preference_taint: bool) -> tuple[PodClass, ...]:
    """Return the class at every relaxation level, from all its preferences to none; only the class if it has none.

    Args:
        cls: As `pod_classes.group_pods` made it.
        policy: With IGNORE the preferences of the pods count for nothing; that of taints does, as in Karpenter.
        any_preference_taint: Whether any NodePool has a PreferNoSchedule taint; if not, no level avoids them.
    """
    covers_all = (t.operator == "Exists" and tolerates(t, _ANY_WISH) for t in cls.tolerations)
    heeds = any_preference_taint and not any(covers_all)
    if policy is PreferencePolicy.IGNORE or cls.preferences == NO_PREFERENCES:
        return (replace(cls, avoids_prefer_no_schedule=True), cls) if heeds else (cls,)
    kept_by_level: Iterable[PodPreferences] = _given_up(cls.preferences)
    if relaxed_together(cls, policy):
        kept_by_level = (*islice(kept_by_level, MAX_LEVELS - 1), NO_PREFERENCES)
    levels = [level for kept in kept_by_level if (level := _level(cls, kept, heeds)) is not None]
    return (*levels, cls) if heeds else tuple(levels)


def relaxed_together(cls: PodClass, policy: PreferencePolicy) -> int:
    """Return how many of the class's preferences the last relaxation level removes together; 0 if it removes one."""
    if policy is PreferencePolicy.IGNORE:
        return 0
    one_by_one = MAX_LEVELS - 2
    return max(cls.preferences.count - one_by_one, 0) if cls.preferences.count > one_by_one + 1 else 0


def preference_warnings(classes: Iterable[PodClass], policy: PreferencePolicy) -> dict[str, str]:
    """Return a warning by the key of the first pod of each class of which `relaxed_together` is not 0."""
    return {
        cls.pods[0].key: f"Pod has {cls.preferences.count} preferences (preferred affinity terms and ScheduleAnyway "
        f"constraints); the first {cls.preferences.count - together} are relaxed one by one, the other {together} "
        "together"
        for cls in classes
        if (together := relaxed_together(cls, policy))
    }


def _given_up(all_of_them: PodPreferences) -> Iterator[PodPreferences]:
    """Yield all preferences, then one fewer at a time, down to none."""
    left = all_of_them
    yield left
    for kind in ("affinities", "anti_affinities", "node_terms", "spreads"):
        while kept := getattr(left, kind):
            left = replace(left, **{kind: kept[1:]})
            yield left


def _level(cls: PodClass, kept: PodPreferences, heeds: bool) -> PodClass | None:
    """Return the class with these preferences required; None if its node terms contradict the heaviest."""
    terms = combined_terms(cls.terms, kept.node_terms[:1]) if kept.node_terms else cls.terms
    if not terms:
        return None
    soft = (*kept.affinities, *kept.anti_affinities, *(s.group for s in kept.spreads))
    affinities, anti_affinities = (
        {g.id: g for g in groups}.values() for groups in (kept.affinities, kept.anti_affinities)
    )
    return replace(
        cls,
        terms=terms,
        strict=cls.terms if kept.node_terms else None,
        spreads=(*cls.spreads, *kept.spreads),
        affinities=(*cls.affinities, *affinities),
        anti_affinities=(*cls.anti_affinities, *anti_affinities),
        preferred_groups=frozenset(group.id for group in soft),
        avoids_prefer_no_schedule=heeds,
    )
