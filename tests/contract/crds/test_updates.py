"""What may change once it is stored, and what a status may say: the same under our CRDs, in our models, under Karpenter's."""

import pytest

from tests.contract.crds.conftest import MODELS
from tests.contract.crds.rule import BASES, NODE_CLASS_REF, with_value
from tests.contract.crds.specimens import STATUS_RULES

pytestmark = pytest.mark.slow

REF = "spec.template.spec.nodeClassRef"
CHANGES = [
    ("NodePool", f"{REF}.name", "other", True),
    ("NodePool", f"{REF}.group", "karpenter.example.com", False),
    ("NodePool", f"{REF}.kind", "ECSNodeClass", False),
    ("NodePool", "spec.template.spec.expireAfter", "1h", True),
    ("NodePool", "spec.weight", 7, True),
    ("NodePool", "spec.replicas", 3, False),
    ("NodePool", "metadata.labels", {"team": "b"}, True),
    ("NodeClaim", "spec.expireAfter", "1h", False),
    ("NodeClaim", "spec.requirements", [], False),
    ("NodeClaim", "spec.taints", [], False),
    ("NodeClaim", "spec.nodeClassRef", {**NODE_CLASS_REF, "name": "other"}, False),
    ("NodeClaim", "spec.terminationGracePeriod", "1h", False),
    ("NodeClaim", "metadata.annotations", {"karpenter.sh/do-not-disrupt": "true"}, True),
    ("NodeOverlay", "spec.price", "0.1", True),
    ("EC2NodeClass", "spec.role", "AnotherRole", True),
    ("EC2NodeClass", "spec.amiFamily", "Bottlerocket", True),
    ("NodeDisruption", "spec.reason", "Drifted", False),
    ("NodeDisruption", "spec.savingPerHour", "1", False),
    ("NodeDisruption", "spec.candidates", [{"nodeClaim": "default-9"}], False),
    ("NodeDisruption", "metadata.labels", {"seen": "yes"}, True),
    ("OfferingState", "spec.nodeClassRef.name", "other", True),
]
STATIC = with_value(with_value(BASES["NodePool"], "spec.replicas", 2), "metadata.name", "static")


@pytest.fixture(scope="module")
def stored(ours):
    """The base object of every kind, as ours store it."""
    return {kind: ours[kind].create(with_value(obj, "metadata.name", "stored")) for kind, obj in BASES.items()}


@pytest.mark.parametrize(("kind", "path", "value", "may"), CHANGES)
def test_what_may_change_is_as_karpenter_has_it(kind, path, value, may, stored, ours):
    """A claim's and a decision's spec never; of a pool not the cloud it is in, nor whether it is static."""
    assert ours[kind].judge_update(with_value(stored[kind], path, value)).accepted == may


def test_karpenters_crds_say_the_same_of_changes(karpenters):
    """For the kinds that are Karpenter's."""
    named = {kind: with_value(BASES[kind], "metadata.name", "stored") for kind in karpenters}
    kept = {kind: definition.create(named[kind]) for kind, definition in karpenters.items()}
    for kind, path, value, may in CHANGES:
        if kind in kept:
            assert karpenters[kind].judge_update(with_value(kept[kind], path, value)).accepted == may, (kind, path)


def test_a_static_pool_stays_static_and_may_be_scaled(ours, karpenters):
    """`replicas` may change and not go."""
    for definition in (ours["NodePool"], karpenters["NodePool"]):
        pool = definition.create(STATIC)
        assert definition.judge_update(with_value(pool, "spec.replicas", 5)).accepted
        assert not definition.judge_update(with_value(pool, "spec.replicas", None)).accepted


@pytest.mark.parametrize("kind", sorted({rule.kind for rule in STATUS_RULES}))
def test_a_status_is_judged_alike_by_the_api_server_and_the_models(kind, stored, ours):
    """What runs write into it, and what they read."""
    for rule in STATUS_RULES:
        for said, value in rule.values() if rule.kind == kind else ():
            obj = with_value(stored[kind], rule.path, value)
            there = ours[kind].judge_update(obj, subresource="status")
            here = MODELS[kind].judge(obj)
            assert (there.accepted, here.accepted) == (said == "good",) * 2, (
                rule.path,
                value,
                there.causes,
                here.causes,
            )


@pytest.mark.parametrize("kind", BASES)
def test_an_unknown_field_is_an_error_only_for_whoever_wants_it_to_be(kind, ours):
    """A manifest of a newer version loads, here as there; strict validation names the field."""
    newer = with_value(BASES[kind], "spec.fromAnotherVersion", {"a": [1]})
    assert MODELS[kind].judge(newer).accepted
    assert "fromAnotherVersion" not in ours[kind].judge(newer).stored["spec"]
    (cause,) = ours[kind].judge(newer, strict=True).causes
    assert 'unknown field "spec.fromAnotherVersion"' in cause
    assert ours[kind].judge(BASES[kind], strict=True).accepted
