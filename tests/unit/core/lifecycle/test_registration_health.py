"""NodeRegistrationHealthy: a NodePool's condition from the last outcomes of its NodeClaims."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import condition_of
from journeyman.core.lifecycle.liveness import LivenessTimeouts
from journeyman.core.lifecycle.nodepool_status import RegistrationOutcome, reconcile_nodepools, registration_outcomes
from journeyman.core.plan import PatchObject
from tests.helpers.builders import (
    a_claim,
    a_launched_claim,
    a_node_class,
    a_pool,
    a_running_claim,
    a_snapshot,
    condition,
    merge,
)

JOINED = RegistrationOutcome(registered=True)
FAILED = RegistrationOutcome(registered=False, reason="RegistrationFailed", message="Failed to register node")
OWNED = {
    "ownerReferences": [{"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "name": "default", "uid": "uid-default"}]
}


def after(pool, *news, **changes):
    """Return the NodePool after these outcomes are written, and whether there was a write."""
    snapshot = a_snapshot(node_pools=(pool,), **changes)
    body = pool.to_wire()
    patches = [a for a in reconcile_nodepools(snapshot, {"default": news}).actions if isinstance(a, PatchObject)]
    for action in patches:
        body = merge(body, action.patch)
    return a_pool(**{key: body[key] for key in ("metadata", "spec", "status")}), bool(patches)


def health(pool):
    found = condition_of(pool.status.conditions, "NodeRegistrationHealthy")
    return found.status, found.reason


def test_health_is_unknown_until_the_first_outcome():
    """It is written once with the NodeClass's generation; a second run writes nothing."""
    pool, _ = after(a_pool())
    assert health(pool) == ("Unknown", "AwaitingReconciliation")
    assert pool.status.node_class_observed_generation == 1
    assert not after(pool)[1]


@pytest.mark.parametrize(
    ("news", "expected"),
    [
        ("S", ("True", "NodeRegistrationHealthy")),
        ("F", ("Unknown", "AwaitingReconciliation")),
        ("FF", ("False", "RegistrationFailed")),
        ("SF", ("True", "NodeRegistrationHealthy")),
        ("SFSF", ("False", "RegistrationFailed")),
        ("FFS", ("False", "RegistrationFailed")),
        ("FFSS", ("False", "RegistrationFailed")),
        ("FFSSS", ("True", "NodeRegistrationHealthy")),
        ("FFSSSF", ("True", "NodeRegistrationHealthy")),
    ],
)
@pytest.mark.parametrize("together", [True, False])
def test_two_failures_among_the_last_four_are_too_many(news, expected, together):
    """They may be of one run or of several, because an annotation of the NodePool has the last outcomes."""
    row = [JOINED if letter == "S" else FAILED for letter in news]
    pool, _ = after(a_pool())
    for part in [row] if together else [[outcome] for outcome in row]:
        pool, _ = after(pool, *part)
    assert health(pool) == expected
    assert pool.metadata.annotations[labels.REGISTRATION_HISTORY] == f"1/1:{news[-4:]}"


def test_condition_has_the_reason_of_a_failed_launch():
    """A user reads on the NodePool why no node joins. It is set when it becomes False, and not again while it stays False."""
    refused = RegistrationOutcome(registered=False, reason="Unauthorized", message="grant ec2:CreateFleet")
    pool, _ = after(a_pool(), refused, refused)
    found = condition_of(pool.status.conditions, "NodeRegistrationHealthy")
    assert (found.status, found.reason, found.message) == ("False", "Unauthorized", "grant ec2:CreateFleet")
    pool, _ = after(a_pool(), FAILED, refused)
    assert health(pool) == health(after(pool, FAILED)[0]) == ("False", "Unauthorized")


@pytest.mark.parametrize("changed", ["pool", "class"])
def test_changed_template_or_node_class_resets_the_outcomes(changed):
    """Outcomes of the old template do not count for the new one."""
    pool, _ = after(a_pool(), FAILED, FAILED)
    node_class = a_node_class(generation=2 if changed == "class" else 1)
    if changed == "pool":
        pool = a_pool(**merge(pool.to_wire(), {"metadata": {"generation": 2}}))

    seen = []
    for news in ((), (FAILED,), (JOINED,)):
        pool, _ = after(pool, *news, node_classes=(node_class,))
        seen.append(health(pool))
    assert seen == [("Unknown", "AwaitingReconciliation")] * 2 + [("True", "NodeRegistrationHealthy")]


@pytest.mark.parametrize(("status", "next_", "expected"), [("True", FAILED, "True"), ("False", JOINED, "False")])
def test_karpenters_condition_is_the_initial_outcome(status, next_, expected):
    """Without the annotation, True counts as one node that joined and False as two that did not."""
    judged = condition("NodeRegistrationHealthy", status, observedGeneration=1)
    pool = a_pool(status={"nodeClassObservedGeneration": 1, "conditions": [judged]})
    pool, _ = after(pool, next_)
    assert health(pool)[0] == expected


def test_claim_counts_once_it_has_registered_or_timed_out():
    """A NodeClaim deleted for insufficient capacity, or of another or no NodePool, does not count."""
    late, unauthorized = timedelta(minutes=20), condition("Launched", "Unknown", reason="Unauthorized")
    claims = (
        a_launched_claim("a", metadata=OWNED),
        a_launched_claim("b", metadata=OWNED, age=late),
        a_claim("c", metadata=OWNED, age=late, status={"conditions": [unauthorized]}),
        a_claim("d", metadata=OWNED),
        a_launched_claim("e", age=late),
        a_running_claim("f", metadata=OWNED),
    )
    written = {"a": a_running_claim("a"), "b": None, "c": None, "d": None, "e": None, "f": claims[-1]}

    found = registration_outcomes(a_snapshot(claims=claims), written, LivenessTimeouts())

    expected = [(True, ""), (False, "RegistrationFailed"), (False, "Unauthorized")]
    assert [(o.registered, o.reason) for o in found["default"]] == expected
    assert found.keys() == {"default"}


def test_claim_whose_instance_ended_before_its_node_joined_counts():
    """A claim whose node joined long ago, or that a user deleted, does not count."""
    joined = a_running_claim("a", age=timedelta(hours=1), metadata=OWNED)
    claims = (joined, a_launched_claim("b", metadata=OWNED), a_launched_claim("c", metadata=OWNED))
    ended = {claim.status.provider_id for claim in claims[:2]}
    found = registration_outcomes(a_snapshot(claims=claims), dict.fromkeys("abc"), LivenessTimeouts(), ended)
    assert found == {"default": (FAILED,)}


@pytest.mark.parametrize("owner", [{"uid": "uid-of-its-predecessor"}, {"kind": "NodeDisruption"}])
def test_claim_counts_only_for_the_nodepool_that_owns_it(owner):
    """A deleted NodePool of the same name, and owners of other kinds, do not count."""
    metadata = {"ownerReferences": [{**OWNED["ownerReferences"][0], **owner}]}
    claim = a_launched_claim("a", metadata=metadata, age=timedelta(hours=1))
    snapshot = a_snapshot(claims=(claim,))
    for written in (a_running_claim("a"), None):
        for each in (snapshot, replace(snapshot, node_pools=())):
            assert registration_outcomes(each, {"a": written}, LivenessTimeouts()) == {}


def test_health_is_not_set_without_a_node_class():
    """Its generation is unknown, with which the outcomes are kept."""
    pool, _ = after(a_pool(), node_classes=())
    assert condition_of(pool.status.conditions, "NodeRegistrationHealthy") is None
