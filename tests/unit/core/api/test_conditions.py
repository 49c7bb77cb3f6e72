"""Conditions: when they change, and how Ready is derived."""

from datetime import datetime, timedelta, timezone

import pytest

from journeyman.core.api.conditions import ConditionSet, set_condition, to_wire
from journeyman.core.api.objects import Condition, NodeClaim, NodeClaimStatus, ObjectMeta

CREATED = datetime(2026, 3, 1, 12, 0, tzinfo=timezone.utc)
LATER = CREATED + timedelta(minutes=3)
LATEST = CREATED + timedelta(minutes=7)


def a_set(*, generation=1, deleting=False):
    """The conditions of a new object with two dependent conditions."""
    return ConditionSet(
        conditions=(), dependents=("A", "B"), generation=generation, created=CREATED, deleting=deleting
    ).initialised(LATER)


def summary(conditions, type_="Ready"):
    """(status, reason, message) of one condition."""
    found = conditions.get(type_)
    return (found.status, found.reason, found.message)


def test_new_object_awaits_reconciliation():
    """Ready and every dependent condition exist from the start."""
    conditions = a_set()
    assert {c.type: (c.status, c.reason, c.last_transition_time) for c in conditions.conditions} == {
        "A": ("Unknown", "AwaitingReconciliation", CREATED),
        "B": ("Unknown", "AwaitingReconciliation", CREATED),
        "Ready": ("Unknown", "ReconcilingDependents", CREATED),
    }


def test_ready_is_true_when_all_dependents_are_true():
    """Its transition time is that of the last dependent."""
    conditions = a_set().set_true("A", LATER)
    assert summary(conditions) == ("Unknown", "ReconcilingDependents", "B=Unknown")
    conditions = conditions.set_true("B", LATEST)
    assert summary(conditions) == ("True", "Ready", "")
    assert conditions.get("Ready").last_transition_time == LATEST
    assert conditions.is_true("A", "B", "Ready")


def test_one_false_dependent_makes_ready_false():
    """The message names all dependents that are not True, latest transition first."""
    conditions = a_set().set_false("B", LATER, "Broken", "no subnets")
    assert summary(conditions) == ("False", "UnhealthyDependents", "B=False, A=Unknown")


def test_false_dependent_of_an_older_generation_leaves_ready_unknown():
    """The dependent condition refers to the previous spec."""
    before = a_set().set_true("A", LATER).set_false("B", LATER, "Broken")
    edited = ConditionSet(conditions=before.conditions, dependents=("A", "B"), generation=2, created=CREATED)
    assert summary(edited.set_true("A", LATEST)) == ("Unknown", "ReconcilingDependents", "B=False")


def test_transition_time_changes_with_the_status_only():
    """A new reason or message does not change it."""
    first = a_set().set_unknown("A", LATER, "NodeNotFound", "waiting")
    assert first.get("A").last_transition_time == CREATED
    again = first.set_false("A", LATER, "MultipleNodesFound").set_false("A", LATEST, "Other", "text")
    assert again.get("A").last_transition_time == LATER
    assert summary(again, "A") == ("False", "Other", "text")


def test_setting_an_equal_condition_changes_nothing():
    """No write is needed."""
    conditions = a_set().set_true("A", LATER)
    assert conditions.set_true("A", LATEST) is conditions
    assert not conditions.changed_from(reversed(conditions.conditions))
    assert conditions.set_true("B", LATEST).changed_from(conditions.conditions)


def test_independent_conditions_do_not_change_ready():
    """A new independent condition has the current time, not the creation time."""
    ready = a_set().set_true("A", LATER).set_true("B", LATER)
    drifted = ready.set_true("Drifted", LATEST, "AMIDrift", "AMIDrift")
    assert drifted.get("Drifted").last_transition_time == LATEST
    assert summary(drifted) == ("True", "Ready", "")
    assert drifted.clear("Drifted", "Consolidatable").conditions == ready.conditions


def test_ready_and_dependents_cannot_be_cleared():
    """An object always has them."""
    with pytest.raises(ValueError, match="A cannot be removed"):
        a_set().clear("A")


def test_ready_is_the_last_condition():
    """The others are sorted by transition time, then type."""
    conditions = a_set().set_true("Drifted", LATEST).set_true("B", LATER)
    assert [c.type for c in conditions.conditions] == ["A", "B", "Drifted", "Ready"]


def test_deleting_object_observes_all_conditions():
    """All conditions get the current generation, although only some are still reconciled."""
    old = a_set().set_true("A", LATER).set_true("B", LATER)
    deleting = ConditionSet(
        conditions=old.conditions, dependents=("A", "B"), generation=2, created=CREATED, deleting=True
    )
    assert {c.observed_generation for c in deleting.set_true("Drained", LATEST).conditions} == {2}


def test_condition_set_of_a_nodeclaim():
    """The NodeClaim gives it generation, creation time and three dependent conditions."""
    claim = NodeClaim(
        metadata=ObjectMeta(name="a", generation=4, creation_timestamp=CREATED),
        status=NodeClaimStatus(conditions=(Condition(type="Launched", status="True", last_transition_time=LATER),)),
    )
    conditions = ConditionSet.of_claim(claim, LATEST)
    assert [c.type for c in conditions.conditions] == ["Initialized", "Registered", "Launched", "Ready"]
    assert conditions.get("Initialized").observed_generation == 4


def test_set_condition_does_not_derive_ready():
    """It returns the same tuple if nothing changes; the default reason is the type."""
    once = set_condition((), "Consolidatable", "True", now=LATER, generation=1)
    assert (once[0].reason, once[0].last_transition_time) == ("Consolidatable", LATER)
    assert set_condition(once, "Consolidatable", "True", now=LATEST, generation=1) is once
    since = set_condition((), "Launched", "Unknown", now=LATER, generation=1, since=CREATED)
    assert since[0].last_transition_time == CREATED


def test_condition_json_has_every_field_and_whole_seconds():
    """The API server requires status and time; messages are cut at its limit."""
    moment = LATER.replace(microsecond=999_999).astimezone(timezone(timedelta(hours=2)))
    conditions = set_condition((), "A", "Unknown", now=moment, generation=3, message="x" * 40_000)
    assert to_wire(conditions) == [
        {
            "type": "A",
            "status": "Unknown",
            "reason": "A",
            "message": "x" * 32_768,
            "lastTransitionTime": "2026-03-01T12:03:00Z",
            "observedGeneration": 3,
        }
    ]
