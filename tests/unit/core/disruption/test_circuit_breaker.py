"""Circuit breaker: annotations and alarms pause NodePools, and replacements that do not join pause further ones."""

import json
from datetime import timedelta

import pytest

from journeyman.core.api import labels
from journeyman.core.disruption.candidates import DisruptionReason
from journeyman.core.disruption.circuit_breaker import Alarm, CircuitBreaker, record_alarm, report_pauses
from journeyman.core.disruption.commands import Command
from journeyman.core.plan import PatchObject, Requeue
from tests.helpers import churn
from tests.helpers.builders import NOW, a_pool, a_snapshot, ago, stamp
from tests.helpers.churn import a_candidate, a_planned_claim

IN_AN_HOUR = NOW + timedelta(hours=1)


def an_ended_command(name: str, *, phase: str = "RolledBack", **changes):
    """A command that replaced a node by one of the NodePool `default`."""
    return churn.a_command(name, moved={}, phase=phase, **changes)


def a_command(of: str = "default", by: str = "") -> Command:
    """A command for a node of one NodePool, by a replacement of another one."""
    replacements = (a_planned_claim(by),) if by else ()
    return Command(reason=DisruptionReason.UNDERUTILIZED, candidates=(a_candidate(pool=of),), replacements=replacements)


def an_annotated_pool(name="default", **annotations: str):
    keys = {"pause": labels.PAUSE_DISRUPTION, "alarms": labels.ALARMS, "on_alarms": labels.PAUSE_ON_ALARMS}
    return a_pool(name, metadata={"annotations": {keys[key]: value for key, value in annotations.items()}})


def a_breaker(*pools, commands=(), now=NOW) -> CircuitBreaker:
    return CircuitBreaker.of(
        a_snapshot(node_pools=pools or (a_pool(), a_pool("other")), node_disruptions=commands, now=now)
    )


# -- annotation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "is_paused"),
    [
        ("true", True),
        ("false", False),
        (stamp(IN_AN_HOUR), True),
        (stamp(ago(hours=1)), False),
        ("paused", True),
        ("", True),
    ],
)
def test_annotation_pauses_all_commands_for_nodes_of_the_nodepool(text, is_paused):
    """A time pauses until then, and what does not parse pauses, too; other NodePools go on."""
    breaker = a_breaker(an_annotated_pool(pause=text), a_pool("other"))
    assert bool(breaker.checked(a_command("default")).candidates) is not is_paused
    assert breaker.checked(a_command("other", by="default")).candidates
    assert breaker.unpaused([a_candidate(), a_candidate(pool="other")])[-1:] == (a_candidate(pool="other"),)


def test_pause_is_reported_on_the_nodepool_and_requeued_for_its_end():
    """A value that does not parse has an Event of its own, which says what to write."""
    pools = (an_annotated_pool("until", pause=stamp(IN_AN_HOUR)), an_annotated_pool("broken", pause="2h"), a_pool())
    plan = report_pauses(a_snapshot(node_pools=pools))

    paused = [("until", "DisruptionPaused"), ("broken", "DisruptionPaused")]
    assert [(e.ref.name, e.reason) for e in plan.events] == [*paused, ("broken", "InvalidAnnotation")]
    assert any("'2h' is neither true, false nor an RFC 3339 time" in e.message for e in plan.events)
    assert [a.at for a in plan.actions if isinstance(a, Requeue)] == [IN_AN_HOUR]
    gauges = {(o.labels["nodepool"], o.labels["scope"]): o.value for o in plan.observations}
    assert gauges["until", "all"] == gauges["broken", "all"] == 1.0
    assert gauges["default", "all"] == gauges["until", "replacements"] == 0.0


# -- alarms -----------------------------------------------------------------------------------------------------------


def after(snapshot_pools, alarm: Alarm):
    """The NodePools after the alarm's state was recorded."""
    plan = record_alarm(a_snapshot(node_pools=snapshot_pools), alarm)
    patches = {a.ref.name: a.patch["metadata"]["annotations"] for a in plan.actions if isinstance(a, PatchObject)}
    kept = {p.metadata.name: p.metadata.annotations for p in snapshot_pools}
    return tuple(a_pool(name, metadata={"annotations": {**kept[name], **patches.get(name, {})}}) for name in kept)


def test_alarm_pauses_nodepools_until_it_is_over():
    """It is stored in every NodePool; a new NodePool without the annotation is paused as well.

    A late message changes nothing: EventBridge may deliver ALARM behind OK.
    """
    pools = after((a_pool(), a_pool("other")), Alarm(name="errors", is_firing=True, at=ago(minutes=5)))
    breaker = a_breaker(*pools, a_pool("new"))
    assert sorted(breaker.paused) == ["default", "new", "other"]
    assert "errors" in breaker.why_paused("new")

    pools = after(pools, Alarm(name="errors", is_firing=False, at=ago(minutes=1)))
    assert a_breaker(*pools).paused == {}
    assert after(pools, Alarm(name="errors", is_firing=True, at=ago(minutes=2))) == pools


@pytest.mark.parametrize(
    ("listens_to", "is_paused"), [("errors", True), ("latency, errors", True), ("latency", False), ("", False)]
)
def test_nodepool_may_name_the_alarms_that_pause_it(listens_to, is_paused):
    """Several clusters share the rule that passes alarms on."""
    pools = after((an_annotated_pool(on_alarms=listens_to),), Alarm(name="errors", is_firing=True, at=ago(minutes=5)))
    assert bool(a_breaker(*pools).paused) is is_paused


def test_stored_alarms_are_bounded_and_firing_ones_stay():
    """Annotations hold 256 KiB; an alarm that is over for a day is dropped."""
    stored = {f"old-{i}": f"OK {stamp(ago(days=2))}" for i in range(80)} | {"firing": f"ALARM {stamp(ago(days=9))}"}
    pools = (an_annotated_pool(alarms=json.dumps(stored)),)
    (pool,) = after(pools, Alarm(name="new", is_firing=False, at=NOW))
    assert sorted(json.loads(pool.metadata.annotations[labels.ALARMS])) == ["firing", "new"]


@pytest.mark.parametrize("text", ["not json", "[]", '{"errors": "ALARM yesterday"}', '{"errors": 7}'])
def test_stored_alarms_that_do_not_parse_are_ignored(text):
    """A user edited the annotation; the next message of the alarm corrects it."""
    assert a_breaker(an_annotated_pool(alarms=text)).paused == {}


# -- replacements -----------------------------------------------------------------------------------------------------


def test_replacements_that_did_not_join_pause_further_ones():
    """Nodes may still be deleted, or replaced by nodes of another NodePool.

    Drift is paused as well: an image that does not boot must not be rolled out every ten minutes.
    """
    breaker = a_breaker(commands=(an_ended_command("c"),))

    refused = breaker.checked(a_command("other", by="default"))
    assert refused.candidates == ()
    assert refused.why_not == (
        "Replacements are paused until 21:02:00 UTC: replacements of NodePool default did not join in 1 of its last 1 "
        "commands, last in NodeDisruption c"
    )
    assert breaker.checked(a_command("default", by="other")).candidates
    assert breaker.checked(a_command("default")).candidates
    drift = an_ended_command("c", reason="Drifted", method="drift")
    assert a_breaker(commands=(drift,)).why_no_replacement("default")


def test_pause_of_replacements_doubles_with_each_failure_up_to_an_hour():
    """Failures among the last six commands count, those of the last six hours."""
    earlier = [ago(hours=4, minutes=minute) for minute in range(9)]
    for times, minutes in enumerate((2, 4, 8, 16, 32, 60, 60), start=1):
        ends = (NOW, *earlier[: times - 1])
        commands = tuple(an_ended_command(f"c{index}", ended=end) for index, end in enumerate(ends))
        for seconds, is_paused in ((-1, True), (0, False)):
            now = NOW + timedelta(minutes=minutes, seconds=seconds)
            assert bool(a_breaker(commands=commands, now=now).why_no_replacement("default")) is is_paused, times


def test_success_ends_the_pause_and_failures_before_it_still_count():
    """A NodePool in which every other node fails is paused for longer each time."""
    outcomes = ["RolledBack", "Succeeded", "RolledBack", "Succeeded"]
    commands = [an_ended_command(f"c{i}", phase=p, ended=ago(minutes=9 - i)) for i, p in enumerate(outcomes)]
    assert a_breaker(commands=commands).failed == {}
    failed = a_breaker(commands=[*commands, an_ended_command("last")]).failed["default"]
    assert (failed.failures, failed.counted, failed.until) == (3, 5, NOW + timedelta(minutes=8))


def test_one_command_tries_again_after_the_pause():
    """Others wait for its result, also those that static drift proposes at once; it does not wait for itself."""
    failed = an_ended_command("failed", ended=ago(minutes=3))
    breaker = a_breaker(commands=(failed, an_ended_command("trial", phase="Proposed", ended=None)))
    again = a_breaker(commands=(failed,))

    assert again.checked(a_command(by="default")).candidates
    assert "wait for NodeDisruption trial" in breaker.checked(a_command(by="default")).why_not
    assert breaker.checked(a_command(by="default"), without="trial").candidates
    many = [(a_candidate(), a_command(by=pool)) for pool in ("default", "default", "other")]
    assert [bool(command.candidates) for _, command in again.checked_each(many)] == [True, False, True]


@pytest.mark.parametrize(
    "changes", [{"phase": "Rejected"}, {"phase": "Succeeded"}, {"replacements": ()}, {"ended": ago(hours=7)}]
)
def test_other_ends_of_commands_pause_nothing(changes):
    """A rejected command launched nothing, and a command without replacements says nothing about joining."""
    assert a_breaker(commands=(an_ended_command("c", **changes),)).failed == {}
