"""Journeyman's CRDs on a real API server, its models, and Karpenter's CRDs accept the same objects.

Journeyman's CRDs and models must agree on every object. Journeyman's CRDs must accept all that Karpenter's accept, with the
same defaults, except for the differences that are listed with their reasons.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, note, settings

from tests.contract.crds.all_rules import RULES
from tests.contract.crds.conftest import MODELS
from tests.contract.crds.differences import Difference, explained
from tests.contract.crds.rule import BASES, with_value
from tests.contract.crds.strategies import objects

pytestmark = pytest.mark.slow

KARPENTERS = ("NodePool", "NodeClaim", "NodeOverlay", "EC2NodeClass")
EXAMPLES = 60  # of each kind


def rule_objects(kind, *wanted):
    """Yield (rule, kind of value, an object with it) for the values of every rule."""
    for rule in RULES:
        for said, value in rule.values() if rule.kind == kind else ():
            if said in wanted:
                yield rule, said, with_value(BASES[kind], rule.path, value)


@pytest.mark.parametrize("kind", BASES)
def test_every_rule_holds_on_the_api_server_and_in_the_models(kind, ours):
    """Both accept values that just satisfy a rule, and reject values that just violate it."""
    for rule, said, obj in rule_objects(kind, "good", "bad", "accepted_by_karpenter"):
        there, here = ours[kind].validate(obj), MODELS[kind].validate(obj)
        assert (there.accepted, here.accepted) == (said == "good",) * 2, (rule.path, said, obj, there, here)
        if said == "accepted_by_karpenter":
            assert explained(there.causes), (rule.path, obj, there.causes)


@pytest.mark.parametrize("kind", KARPENTERS)
def test_values_that_only_ours_reject_are_listed_differences(kind, karpenters):
    """If Karpenter rejects a listed value, the difference must be removed from the list."""
    for rule, _, obj in rule_objects(kind, "accepted_by_karpenter"):
        assert karpenters[kind].validate(obj).accepted, (rule.because, rule.path, obj)


def test_every_listed_difference_has_a_rule():
    """The rule has a value that only Karpenter accepts."""
    assert {rule.because for rule in RULES if rule.accepted_by_karpenter} == set(Difference)


@pytest.mark.parametrize("kind", BASES)
def test_api_server_and_models_agree_on_any_object(kind, ours):
    """A default of the API server never changes the meaning of an object."""
    tally = Counter()

    @given(objects(kind))
    @settings(max_examples=EXAMPLES)
    def both_agree(obj):
        there, here = ours[kind].validate(obj), MODELS[kind].validate(obj)
        note(f"{there.causes} {here.causes}")
        assert there.accepted == here.accepted
        tally[here.accepted] += 1
        if there.accepted:
            assert MODELS[kind].meaning(there.stored) == MODELS[kind].meaning(obj)

    both_agree()
    assert min(tally[True], tally[False]) >= EXAMPLES // 6, tally


@pytest.mark.parametrize("kind", KARPENTERS)
def test_objects_that_karpenters_crds_accept_are_accepted(kind, ours, karpenters):
    """The only exceptions are the listed differences."""
    tally = Counter()

    @given(objects(kind))
    @settings(max_examples=EXAMPLES)
    def ours_accept(obj):
        theirs = karpenters[kind].validate(obj)
        tally[theirs.accepted] += 1
        if theirs.accepted:
            mine = ours[kind].validate(obj)
            note(str(mine.causes))
            assert mine.accepted or explained(mine.causes)
            if mine.accepted:
                assert mine.stored["spec"] == theirs.stored["spec"]

    ours_accept()
    assert tally[True] >= EXAMPLES // 6, tally
