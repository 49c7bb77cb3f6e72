"""The brake on removals of what looks lost."""

from datetime import timedelta

import pytest

from journeyman.core.api.fleet_guard import FleetGuard, FleetGuardStatus, LostObject
from journeyman.core.api.objects import FLEET_GUARD
from journeyman.core.lifecycle.removal_brake import WINDOW, Lost, removable, remove_lost
from journeyman.core.plan import CreateObject, PatchObject, Plan, Requeue, Step, TerminateInstance, chain_of
from journeyman.errors import ForbiddenError
from tests.helpers.actions import of_type, patches
from tests.helpers.builders import NOW, a_snapshot

WAIT = timedelta(seconds=30)


def lost(*names):
    """Return instances that look lost, each with its termination."""
    ends = {name: chain_of(name, TerminateInstance(provider_id=name, claim="", why="lost")) for name in names}
    return [Lost(kind="Instance", name=n, wait=WAIT, removal=Plan(chains=(chain,))) for n, chain in ends.items()]


def guard(**ages):
    """Return a FleetGuard: how long ago each instance was first seen, or with a tuple also how long ago it was removed."""
    entries = []
    for name, age in ages.items():
        since, removed = age if isinstance(age, tuple) else (age, None)
        removed_at = NOW - removed if removed is not None else None
        entries.append(LostObject(kind="Instance", name=name, since=NOW - since, removed_at=removed_at))
    return FleetGuard(status=FleetGuardStatus(lost=tuple(entries)))


def terminated(plan):
    """Return the instances that the plan terminates."""
    return [a.provider_id for a in of_type(plan, TerminateInstance)]


def recorded(plan):
    """Return the recorded instances, and which of them are recorded as removed now."""
    [found] = [status["lost"] for status in patches(plan, part="status")]
    return [e["name"] for e in found], [e["name"] for e in found if "removedAt" in e]


def run(found, fleet=10, **kwargs):
    return remove_lost(found, fleet, a_snapshot(**kwargs))


def test_what_looks_lost_is_recorded_first_and_removed_once_it_has_looked_so_for_long_enough():
    """The FleetGuard is created with it, and the step runs again when the wait is over."""
    first = run(lost("a"))
    assert [type(a) for a in first.chains[0].actions] == [CreateObject, PatchObject]
    assert recorded(first) == (["a"], [])
    requeue = Requeue(step=Step.TERMINATE, at=NOW + WAIT, reason="what looks lost may be removed")
    assert of_type(first, Requeue) == [requeue]
    assert terminated(run(lost("a"), fleet_guard=guard(a=WAIT - timedelta(seconds=1)))) == []
    assert terminated(run(lost("a"), fleet_guard=guard(a=WAIT))) == ["a"]


def test_removals_follow_the_write_that_counts_them():
    """A conflict on the FleetGuard removes nothing; nor does a run that cannot read it, or whose cluster has no such kind yet."""
    unread = {FLEET_GUARD.kind: ForbiddenError("forbidden")}
    assert run(lost("a", "b"), unread=unread) == Plan()
    plan = run(lost("a"), fleet_guard=guard(a=WAIT))
    [chain] = plan.chains
    assert [type(a) for a in chain.actions] == [PatchObject]
    assert terminated(Plan(chains=chain.then)) == ["a"]
    assert recorded(plan) == (["a"], ["a"])


@pytest.mark.parametrize(("fleet", "allowed"), [(0, 2), (19, 2), (30, 3), (40, 4), (10**6, 500)])
def test_at_most_the_larger_of_two_and_a_tenth_of_the_fleet_is_removed(fleet, allowed):
    """The oldest go first."""
    assert removable(fleet) == allowed


def test_removals_within_the_window_count_and_the_rest_is_held_with_an_event():
    """The message says how many are held and what to check; the step runs again once a removal counts no more."""
    ages = {"a": (WAIT * 9, WINDOW / 2), "b": WAIT * 3, "c": WAIT * 2, "d": WAIT}
    plan = run(lost("b", "c", "d"), fleet_guard=guard(**ages))

    assert terminated(plan) == ["b"]
    [event] = plan.events
    assert (event.reason, event.type) == ("RemovalsHeld", "Warning")
    assert event.message.startswith("2 of what looks lost is not removed: at most 2 of 10 nodes")
    assert [o.value for o in plan.observations] == [2]
    assert NOW + WINDOW / 2 in {a.at for a in plan.actions if isinstance(a, Requeue)}


def test_a_removal_that_has_not_ended_is_repeated_and_not_counted_again():
    """The cloud may not have answered the first request."""
    ages = {"a": (WAIT * 9, timedelta(minutes=1)), "b": WAIT, "c": WAIT}
    plan = run(lost("a", "b", "c"), fleet_guard=guard(**ages))
    assert sorted(terminated(plan)) == ["a", "b"]


def test_what_is_no_longer_lost_starts_again_when_it_is_lost_again():
    """Its entry is removed; one that was removed within the window stays, as it counts."""
    plan = run((), fleet_guard=guard(a=WAIT, b=(WAIT, WINDOW / 2), c=(WAIT, WINDOW)))
    assert recorded(plan) == (["b"], ["b"])
