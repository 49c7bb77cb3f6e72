"""Journeyman's CRDs, its models and Karpenter's CRDs agree on immutable fields and statuses."""

import pytest

from tests.contract.crds.all_rules import STATUS_RULES
from tests.contract.crds.conftest import MODELS
from tests.contract.crds.rule import BASES, NODE_CLASS_REF, with_value

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
    ("CCENodeClass", "spec.login", {"sshKey": "other"}, True),
    ("NodeDisruption", "spec.reason", "Drifted", False),
    ("NodeDisruption", "spec.savingPerHour", "1", False),
    ("NodeDisruption", "spec.candidates", [{"nodeClaim": "default-9"}], False),
    ("NodeDisruption", "metadata.labels", {"seen": "yes"}, True),
    ("FleetPlan", "spec.evictions", 7, False),
    ("OfferingState", "spec.nodeClassRef.name", "other", True),
]
STATIC = with_value(with_value(BASES["NodePool"], "spec.replicas", 2), "metadata.name", "static")


@pytest.fixture(scope="module")
def stored(ours):
    """Store the base object of every kind under Journeyman's CRDs; return the stored objects."""
    return {
        kind: ours[kind].create(with_value(obj, "metadata.name", "stored"))
        for kind, obj in BASES.items()
        if kind in ours
    }


@pytest.mark.parametrize(("kind", "path", "value", "may"), CHANGES)
def test_immutable_fields_are_karpenters(kind, path, value, may, stored, ours):
    """They are the specs of NodeClaims and NodeDisruptions, and a NodePool's group, kind and mode."""
    assert ours[kind].validate_update(with_value(stored[kind], path, value)).accepted == may


def test_karpenters_crds_have_the_same_immutable_fields(karpenters):
    """That holds for each of Karpenter's kinds."""
    named = {kind: with_value(BASES[kind], "metadata.name", "stored") for kind in karpenters}
    kept = {kind: definition.create(named[kind]) for kind, definition in karpenters.items()}
    for kind, path, value, may in CHANGES:
        if kind in kept:
            assert karpenters[kind].validate_update(with_value(kept[kind], path, value)).accepted == may, (kind, path)


def test_static_nodepool_stays_static_and_may_be_scaled(ours, karpenters):
    """`replicas` may change but not be removed."""
    for definition in (ours["NodePool"], karpenters["NodePool"]):
        pool = definition.create(STATIC)
        assert definition.validate_update(with_value(pool, "spec.replicas", 5)).accepted
        assert not definition.validate_update(with_value(pool, "spec.replicas", None)).accepted


@pytest.mark.parametrize("kind", sorted({rule.kind for rule in STATUS_RULES}))
def test_api_server_and_models_agree_on_statuses(kind, stored, ours):
    """The statuses are those that the steps write and read."""
    for rule in STATUS_RULES:
        for said, value in rule.values() if rule.kind == kind else ():
            obj = with_value(stored[kind], rule.path, value)
            there = ours[kind].validate_update(obj, subresource="status")
            here = MODELS[kind].validate(obj)
            assert (there.accepted, here.accepted) == (said == "good",) * 2, (
                rule.path,
                value,
                there.causes,
                here.causes,
            )


@pytest.mark.parametrize("kind", [kind for kind, base in BASES.items() if kind != "CapacityBuffer" and "spec" in base])
def test_unknown_field_is_rejected_by_strict_validation_only(kind, ours):
    """Without it, a manifest of a newer version is valid."""
    newer = with_value(BASES[kind], "spec.fromAnotherVersion", {"a": [1]})
    assert MODELS[kind].validate(newer).accepted
    assert "fromAnotherVersion" not in ours[kind].validate(newer).stored["spec"]
    (cause,) = ours[kind].validate(newer, strict=True).causes
    assert 'unknown field "spec.fromAnotherVersion"' in cause
    assert ours[kind].validate(BASES[kind], strict=True).accepted
