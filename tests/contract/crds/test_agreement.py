"""The CRDs on a real API server, the models in our code, and Karpenter's CRDs beside ours: who accepts what.

Our CRDs and our models must give the same verdict on every object, and whatever Karpenter's CRDs accept ours accept, with
the same defaults, but for the differences that are listed with their reasons.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, note, settings

from tests.contract.crds.conftest import MODELS
from tests.contract.crds.differences import Difference, explained
from tests.contract.crds.drawing import objects
from tests.contract.crds.rule import BASES, with_value
from tests.contract.crds.specimens import RULES

pytestmark = pytest.mark.slow

KARPENTERS = ("NodePool", "NodeClaim", "NodeOverlay", "EC2NodeClass")
EXAMPLES = 60  # of each kind


def specimens(kind, *wanted):
    """(rule, what is said of the value, an object with it) for the values of every rule."""
    for rule in RULES:
        for said, value in rule.values() if rule.kind == kind else ():
            if said in wanted:
                yield rule, said, with_value(BASES[kind], rule.path, value)


@pytest.mark.parametrize("kind", BASES)
def test_every_rule_holds_on_the_api_server_and_in_the_models(kind, ours):
    """What just keeps a rule is accepted by both, what just breaks it is refused by both."""
    for rule, said, obj in specimens(kind, "good", "bad", "strays"):
        there, here = ours[kind].judge(obj), MODELS[kind].judge(obj)
        assert (there.accepted, here.accepted) == (said == "good",) * 2, (rule.path, said, obj, there, here)
        if said == "strays":
            assert explained(there.causes), (rule.path, obj, there.causes)


@pytest.mark.parametrize("kind", KARPENTERS)
def test_what_ours_refuse_and_karpenters_do_not_is_listed_and_still_true(kind, karpenters):
    """Once Karpenter refuses it, too, it is no difference any more."""
    for rule, _, obj in specimens(kind, "strays"):
        assert karpenters[kind].judge(obj).accepted, (rule.because, rule.path, obj)


def test_no_difference_is_listed_that_no_rule_knows():
    """Each has a value that shows it."""
    assert {rule.because for rule in RULES if rule.strays} == set(Difference)


@pytest.mark.parametrize("kind", BASES)
def test_the_api_server_and_the_models_agree_on_any_object(kind, ours):
    """Whatever is mixed, left out or put in; and a default of the API server never changes what an object means."""
    tally = Counter()

    @given(objects(kind))
    @settings(max_examples=EXAMPLES)
    def both_agree(obj):
        there, here = ours[kind].judge(obj), MODELS[kind].judge(obj)
        note(f"{there.causes} {here.causes}")
        assert there.accepted == here.accepted
        tally[here.accepted] += 1
        if there.accepted:
            assert MODELS[kind].meaning(there.stored) == MODELS[kind].meaning(obj)

    both_agree()
    assert min(tally[True], tally[False]) >= EXAMPLES // 6, tally


@pytest.mark.parametrize("kind", KARPENTERS)
def test_what_karpenters_accept_ours_accept_with_the_same_defaults(kind, ours, karpenters):
    """The drop-in promise; what is refused is refused for a listed reason."""
    tally = Counter()

    @given(objects(kind))
    @settings(max_examples=EXAMPLES)
    def ours_accept(obj):
        theirs = karpenters[kind].judge(obj)
        tally[theirs.accepted] += 1
        if theirs.accepted:
            mine = ours[kind].judge(obj)
            note(str(mine.causes))
            assert mine.accepted or explained(mine.causes)
            if mine.accepted:
                assert mine.stored["spec"] == theirs.stored["spec"]

    ours_accept()
    assert tally[True] >= EXAMPLES // 6, tally
