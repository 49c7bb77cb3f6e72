"""Preferences of pods: which one is given up first if not all can be met, and what the policies make of them."""

from __future__ import annotations

import itertools

import pytest

from journeyman.core.api import labels
from journeyman.core.scheduling.results import Options, PreferencePolicy
from tests.helpers.small_clusters import (
    HOST,
    TYPE,
    ZONE,
    apart,
    at,
    both_ways,
    by_domain,
    near,
    only,
    plan,
    pool,
    prefers,
    some,
    spread,
    tolerates,
    zonal,
)

TWO = zonal("a", "b")
IN_ORDER = {
    "pod affinity": lambda zone: near(f"in-{zone}"),
    "pod anti-affinity": lambda zone: apart("in-b" if zone == "a" else "in-a"),
    "node affinity": lambda zone: only(ZONE, zone),
    "spread": lambda zone: spread(app="in-b" if zone == "a" else "in-a"),
}
"""Rules that are met in a zone, the first to be given up first, as in Karpenter."""


def beside_running_pods(*rules, options=Options()):  # noqa: B008 - a frozen value
    """Returns the zone of a pod with these rules; two pods run in each zone, on nodes that are full."""
    running = [pod for zone in "ab" for pod in some(2, f"in-{zone}", cpu="0", on=f"n-{zone}")]

    found = plan(running, some(1, "web", *rules), nodes=at("n-a/a", "n-b/b"), types=(TWO,), options=options)

    return by_domain(found).removesuffix(": 1 web")


@both_ways
@pytest.mark.parametrize(("first", "last"), [*itertools.combinations(IN_ORDER, 2)])
@pytest.mark.parametrize("zone", ["a", "b"])
def test_preferences_are_given_up_in_karpenters_order(first, last, zone, options):
    """The preference that is given up last is met in this zone, the other one is met in the other zone."""
    other = "b" if zone == "a" else "a"

    assert beside_running_pods(prefers(IN_ORDER[first](other)), prefers(IN_ORDER[last](zone)), options=options) == zone


@both_ways
@pytest.mark.parametrize("kind", IN_ORDER)
def test_preference_that_contradicts_a_required_rule_is_given_up(kind, options):
    """The pod is in the zone that it requires, and a preference that the zone meets is kept."""
    for zone in "ab":
        assert beside_running_pods(prefers(IN_ORDER[kind](zone)), only(ZONE, "b"), options=options) == "b"
        assert beside_running_pods(prefers(IN_ORDER[kind](zone)), only(ZONE, "a", "b"), options=options) == zone


@both_ways
@pytest.mark.parametrize(("kind", "kept"), [("pod affinity", "light"), ("node affinity", "heavy")])
def test_weights_decide_between_preferences_of_one_kind(kind, kept, options):
    """Of node affinity only the heaviest term that is left applies; of pod affinity the heaviest is given up first."""
    for zone, other in (("a", "b"), ("b", "a")):
        light, heavy = prefers(IN_ORDER[kind](zone)), prefers(IN_ORDER[kind](other))
        for terms in heavy["affinity"].values():
            terms["preferredDuringSchedulingIgnoredDuringExecution"][0]["weight"] = 9

        assert beside_running_pods(light, heavy, options=options) == (zone if kept == "light" else other)


@both_ways
@pytest.mark.parametrize(("rule", "expected"), [([], "plain: 1 web"), ([tolerates()], "quiet: 1 web")])
def test_prefer_no_schedule_taints_are_avoided_after_all_other_preferences_are_given_up(rule, expected, options):
    """Unless the pod tolerates them; the NodePool with the taint has the zone that the pod prefers."""
    found = plan(
        some(1, "web", prefers(only(ZONE, "a")), *rule),
        types={"quiet": (zonal("a"),), "plain": (zonal("b"),)},
        node_pools=(pool("quiet", taints=[{"key": "quiet", "effect": "PreferNoSchedule"}]), pool("plain")),
        options=options,
    )

    assert by_domain(found, labels.NODEPOOL) == expected


@pytest.mark.parametrize(
    "rule",
    [lambda n: spread(app=f"s{n}"), lambda n: near(f"s{n}"), lambda n: apart(f"s{n}"), lambda n: only(TYPE, f"s{n}")],
    ids=["spread", "affinity", "anti-affinity", "node affinity"],
)
def test_pods_with_very_many_preferences_are_scheduled_with_a_warning(rule):
    """Others are scheduled as usual."""
    extreme = some(1, "extreme", *(prefers(rule(n)) for n in range(400)))
    ordinary = some(1, "ordinary", *(prefers(rule(n)) for n in range(3)))

    found = plan(extreme, ordinary, some(3, "web"), types=(TWO,))

    assert not found.results.pod_errors
    assert found.results.pod_warnings == {
        "default/extreme0": "Pod has 400 preferences (preferred affinity terms and ScheduleAnyway constraints); "
        "the first 14 are relaxed one by one, the other 386 together"
    }


def test_ignored_preferences_give_no_warning():
    """With the policy Ignore nothing is relaxed."""
    extreme = some(1, "extreme", *(prefers(spread(app=f"s{n}")) for n in range(100)))

    assert plan(extreme, options=Options(preferences=PreferencePolicy.IGNORE)).results.pod_warnings == {}


@pytest.mark.parametrize("rule", [spread(HOST), apart(key=HOST)])
@pytest.mark.parametrize(("policy", "nodes"), [("Respect", 4), ("Ignore", 1), ("WhenFree", 1)])
def test_preference_policy_decides_whether_a_preference_opens_nodes(policy, nodes, rule):
    """Respect opens a node for each pod; Ignore drops the rule; WhenFree drops it because it costs more."""
    pods = some(4, "web", prefers(rule), cpu="100m")

    found = plan(pods, options=Options(preferences=PreferencePolicy(policy)))

    assert len(found.results.new_claims) == nodes


@pytest.mark.parametrize("others", [[], some(2, "apart", prefers(spread(HOST, app="apart")), cpu="100m")])
def test_when_free_policy_keeps_a_preference_that_costs_nothing(others):
    """Two pods prefer a zone of equal price, even if other pods prefer a node each, which they do not get."""
    pods = some(2, "web", prefers(only(ZONE, "b")), cpu="100m")

    found = plan(pods, others, types=(TWO,), options=Options(preferences=PreferencePolicy.WHEN_FREE))

    assert [claim.offering.zone for claim in found.results.new_claims] == ["b"]
