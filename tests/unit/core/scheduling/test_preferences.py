"""Tests of the order in which preferences of a pod class are relaxed."""

from __future__ import annotations

import pytest

from journeyman.core.api import labels
from journeyman.core.scheduling.pod_classes import group_pods
from journeyman.core.scheduling.preferences import MAX_LEVELS, relaxation_levels
from journeyman.core.scheduling.results import PreferencePolicy
from tests.helpers.builders import a_pod

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def near(key):
    """Return a term that selects the pods of the app."""
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": "web"}}}


def weighted(**weights):
    """Return preferred pod affinity terms with these weights by topology key."""
    return [{"weight": weight, "podAffinityTerm": near(key)} for key, weight in weights.items()]


def in_zone(zone, **extra):
    """Return a node affinity term for one zone."""
    return {"matchExpressions": [{"key": labels.ZONE, "operator": "In", "values": [zone]}], **extra}


def levels_of(spec, *, policy=PreferencePolicy.RESPECT, taints=False):
    """Return the relaxation levels of one pod."""
    (cls,), errors = group_pods([a_pod("p", spec=spec)], {})
    assert not errors
    return relaxation_levels(cls, policy=policy, any_preference_taint=taints)


def summary(level):
    """Return affinities, anti-affinities, zones and spreads of a level, each as a short text."""
    return (
        "".join(g.key for g in level.affinities),
        "".join(g.key for g in level.anti_affinities),
        "".join(sorted("".join(sorted(t[labels.ZONE].values)) for t in level.terms if labels.ZONE in t)),
        "".join(s.key for s in level.spreads),
    )


EVERYTHING = {
    "affinity": {
        "podAffinity": {PREFERRED: weighted(a=1, b=5)},
        "podAntiAffinity": {REQUIRED: [near("r")], PREFERRED: weighted(c=9)},
        "nodeAffinity": {
            PREFERRED: [{"weight": 1, "preference": in_zone("x")}, {"weight": 2, "preference": in_zone("y")}]
        },
    },
    "topologySpreadConstraints": [
        {"whenUnsatisfiable": "ScheduleAnyway", **near("s")},
        {"whenUnsatisfiable": "DoNotSchedule", **near("h")},
        {"whenUnsatisfiable": "ScheduleAnyway", **near("t")},
        {"whenUnsatisfiable": "ScheduleAnyway", **near("u")},
    ],
}


def test_preferences_are_relaxed_one_by_one_in_karpenters_order():
    """Pod affinity, anti-affinity, node affinity (only the heaviest left applies), ScheduleAnyway; heaviest first."""
    levels = levels_of(EVERYTHING)

    assert [summary(level) for level in levels] == [
        ("ba", "rc", "y", "hsut"),
        ("a", "rc", "y", "hsut"),
        ("", "rc", "y", "hsut"),
        ("", "r", "y", "hsut"),
        ("", "r", "x", "hsut"),
        ("", "r", "", "hsut"),
        ("", "r", "", "hut"),
        ("", "r", "", "ht"),
        ("", "r", "", "h"),
    ]
    assert levels[0].strict_terms == levels[-1].terms


def test_required_constraints_bind_on_every_relaxation_level():
    """Exactly the required anti-affinity and the DoNotSchedule spread are not in preferred_groups."""
    for level in levels_of(EVERYTHING):
        groups = (*level.affinities, *level.anti_affinities, *(s.group for s in level.spreads))

        assert {g.key for g in groups if g.id not in level.preferred_groups} == {"r", "h"}


def test_prefer_no_schedule_taints_are_avoided_until_the_last_relaxation_level():
    """This adds one level, but only if a NodePool has such a taint and the pod does not tolerate all taints."""
    spread = {"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway", **near("s")}]}

    assert [(len(r.spreads), r.avoids_prefer_no_schedule) for r in levels_of(spread, taints=True)] == [
        (1, True),
        (0, True),
        (0, False),
    ]
    assert [r.avoids_prefer_no_schedule for r in levels_of({}, taints=True)] == [True, False]
    assert [r.avoids_prefer_no_schedule for r in levels_of({})] == [False]
    assert [r.avoids_prefer_no_schedule for r in levels_of({"tolerations": [{"operator": "Exists"}]}, taints=True)] == [
        False
    ]


def test_required_node_affinity_terms_are_combined_with_the_preferred_term():
    """A required term that contradicts the preferred one is dropped; if all do, the relaxation level is dropped."""
    node = {
        REQUIRED: {"nodeSelectorTerms": [in_zone("x"), in_zone("z")]},
        PREFERRED: [{"weight": 9, "preference": in_zone("x")}, {"weight": 1, "preference": in_zone("w")}],
    }

    assert [summary(level)[2] for level in levels_of({"affinity": {"nodeAffinity": node}})] == ["x", "xz"]


def test_ignore_policy_drops_pod_preferences_but_keeps_prefer_no_schedule_levels():
    """No preference of the pod applies on any level."""
    first, last = levels_of(EVERYTHING, policy=PreferencePolicy.IGNORE, taints=True)

    assert summary(first) == summary(last) == ("", "r", "", "h")
    assert (first.avoids_prefer_no_schedule, last.avoids_prefer_no_schedule) == (True, False)


def soft_spreads(count):
    """Return a spec with that many ScheduleAnyway constraints."""
    return {
        "topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway", **near(f"s{n}")} for n in range(count)]
    }


def soft_affinity(kind, count):
    """Return a spec with that many preferred terms of a pod affinity kind."""
    return {"affinity": {kind: {PREFERRED: [{"weight": 1, "podAffinityTerm": near(f"k{n}")} for n in range(count)]}}}


def soft_node_affinity(count):
    """Return a spec with that many preferred node affinity terms."""
    return {
        "affinity": {"nodeAffinity": {PREFERRED: [{"weight": 1, "preference": in_zone(f"z{n}")} for n in range(count)]}}
    }


@pytest.mark.parametrize(
    "spec",
    [
        soft_spreads(1000),
        soft_affinity("podAffinity", 1000),
        soft_affinity("podAntiAffinity", 1000),
        soft_node_affinity(1000),
    ],
    ids=["spread", "affinity", "anti-affinity", "node affinity"],
)
def test_number_of_relaxation_levels_is_bounded(spec):
    """Each level carries all preferences left, so that a level per preference takes quadratic time and memory."""
    levels = levels_of(spec)

    assert len(levels) == MAX_LEVELS
    assert summary(levels[-1]) == ("", "", "", "")


def test_first_preferences_are_relaxed_one_by_one_and_all_others_together():
    """A class with one preference less than there are levels still relaxes every one alone."""
    together = [len(level.spreads) for level in levels_of(soft_spreads(100))]
    alone = [len(level.spreads) for level in levels_of(soft_spreads(MAX_LEVELS - 1))]

    assert together == [*range(100, 100 - MAX_LEVELS + 1, -1), 0]
    assert alone == [*range(MAX_LEVELS - 1, -1, -1)]


def test_bounded_levels_still_avoid_prefer_no_schedule_taints_until_the_last():
    """The level that tolerates the taints comes on top."""
    levels = levels_of(soft_spreads(100), taints=True)

    assert [level.avoids_prefer_no_schedule for level in levels] == [True] * MAX_LEVELS + [False]
