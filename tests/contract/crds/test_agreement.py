"""Journeyman's CRDs on a real API server, its models, and Karpenter's CRDs accept the same objects.

Journeyman's CRDs admit what Karpenter's admit, with the same defaults, and nothing else; its models accept what the CRDs admit.
`differences.py` lists the exceptions. `make nightly` judges 2,000 generated objects, `make test` 300.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, note, settings

from tests.contract.crds import upstream_crds
from tests.contract.crds.all_rules import RULES
from tests.contract.crds.conftest import MODELS
from tests.contract.crds.differences import Admitted, Refused, Reported, explained
from tests.contract.crds.generator import KINDS, generated_objects
from tests.contract.crds.rule import BASES, with_value
from tests.contract.crds.rules_huawei import ADDED_FIELDS
from tests.contract.crds.strategies import objects

pytestmark = pytest.mark.slow

KARPENTERS = ("NodePool", "NodeClaim", "NodeOverlay", "EC2NodeClass", "CapacityBuffer", "CCENodeClass")
OURS = tuple(kind for kind, base in BASES.items() if kind != "CapacityBuffer" and "spec" in base)
EXAMPLES = 60  # of each kind
GENERATED = int(os.environ.get("JOURNEYMAN_ADMISSIONS", "300"))


def rule_objects(kind, *wanted):
    """Yield (rule, kind of value, an object with it) for the values of every rule."""
    for rule in RULES:
        for said, value in rule.values() if rule.kind == kind else ():
            if said in wanted:
                yield rule, said, with_value(BASES[kind], rule.path, value)


@pytest.mark.parametrize("kind", OURS)
def test_every_rule_holds_on_the_api_server_and_in_the_models(kind, ours):
    """Both accept values that just satisfy a rule, and reject values that just violate it; differences are the listed ones."""
    for rule, said, obj in rule_objects(kind, "good", "bad", "listed"):
        there, here = ours[kind].validate(obj), MODELS[kind].validate(obj)
        because = rule.because if said == "listed" else None
        assert there.accepted is (said == "good" or isinstance(because, Reported | Admitted)), (rule.path, obj, there)
        if not isinstance(because, Refused):  # the models may read more
            assert here.accepted is (said == "good" or isinstance(because, Admitted)), (rule.path, obj, here)
        if isinstance(because, Reported):
            assert explained(here.causes, Reported), (rule.path, obj, here.causes)
        elif isinstance(because, Refused):
            assert explained(there.causes, Refused, kind), (rule.path, obj, there.causes)


@pytest.mark.parametrize("kind", KARPENTERS)
def test_karpenters_crds_have_the_same_rules(kind, karpenters):
    """If Karpenter's CRDs change their verdict on a listed value, the difference must be removed from the list."""
    for rule, said, obj in rule_objects(kind, "good", "bad", "listed"):
        theirs = karpenters[kind].validate(obj)
        expected = {"good": True, "bad": False, "listed": not isinstance(rule.because, Admitted)}[said]
        assert theirs.accepted is expected, (rule.because, rule.path, said, obj, theirs.causes)
        if said == "listed" and isinstance(rule.because, Admitted):
            assert explained(theirs.causes, Admitted), (rule.path, obj, theirs.causes)


def test_every_listed_difference_has_a_rule():
    """The rule has a value of that difference."""
    assert {rule.because for rule in RULES if rule.listed} == {*Reported, *Refused, *Admitted}


def test_generated_objects_are_admitted_as_by_karpenters_crds(ours, karpenters):
    """Each kind, with values on either side of each rule and in each field of Karpenter's schema; differences are the listed ones."""
    tally, unexplained = Counter(), []
    schemas = {kind: upstream_crds.schema(kind) for kind in KINDS}
    for obj in generated_objects(schemas, GENERATED, seed=14):
        kind = obj["kind"]
        theirs = karpenters[kind].validate(obj)
        if kind not in ours:  # the CRD is the same one: what it admits must be readable, or reported
            here = MODELS[kind].validate(obj)
            good = not theirs.accepted or here.accepted or explained(here.causes, Reported)
            mine = theirs
        else:
            mine = ours[kind].validate(obj)
            good = mine.accepted or not theirs.accepted or explained(mine.causes, Refused, kind)
            good = good and (theirs.accepted or not mine.accepted or explained(theirs.causes, Admitted))
            if mine.accepted and theirs.accepted:
                good = common_fields(mine.stored) == common_fields(theirs.stored)
        tally[theirs.accepted, mine.accepted] += 1
        if not good:
            unexplained.append((json.dumps(obj)[:2000], mine.causes, theirs.causes))
    assert not unexplained, unexplained
    assert min(tally[True, True], tally[False, False]) >= GENERATED // 5, tally


def common_fields(stored):
    """Return the stored spec as both CRDs have it.

    Only Karpenter's CRD drops unknown kubelet settings, which a CCENodeClass does not have, and the fields that ours adds.
    """
    spec = stored.get("spec", {})
    if stored["kind"] != "CCENodeClass":
        return {name: value for name, value in spec.items() if name != "kubelet"}
    image = {"imsFamily": spec["imsSelector"]["imsFamily"]}
    return {**{name: value for name, value in spec.items() if name not in ADDED_FIELDS}, "imsSelector": image}


@pytest.mark.parametrize("kind", OURS)
def test_models_accept_what_the_api_server_admits(kind, ours):
    """Except for the differences that are reported; a default of the API server never changes the meaning of an object."""
    tally = Counter()

    @given(objects(kind))
    @settings(max_examples=EXAMPLES)
    def both_agree(obj):
        there, here = ours[kind].validate(obj), MODELS[kind].validate(obj)
        note(f"{there.causes} {here.causes}")
        if there.accepted and not here.accepted:
            assert explained(here.causes, Reported)
        elif here.accepted and not there.accepted:
            assert explained(there.causes, Refused, kind)
        tally[there.accepted] += 1
        if there.accepted and here.accepted:
            assert MODELS[kind].meaning(there.stored) == MODELS[kind].meaning(obj)

    both_agree()
    assert min(tally[True], tally[False]) >= EXAMPLES // 6, tally


def test_documentation_lists_every_difference():
    """docs/differences.md has the same reasons."""
    text = (Path(__file__).parents[3] / "docs" / "differences.md").read_text()
    missing = [
        difference for kind in (Reported, Refused, Admitted) for difference in kind if difference.because not in text
    ]
    assert not missing
