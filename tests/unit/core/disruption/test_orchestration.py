"""Commands: what is written when, and what every later run makes of it."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.model import parse
from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.api.objects import NODE_DISRUPTION, Taint
from journeyman.core.disruption.commands import (
    claims_in_commands,
    disrupted_candidates,
    marked_for_deletion,
    proposal_plan,
    to_node_disruption,
)
from journeyman.core.disruption.consolidatable import Consolidatability
from journeyman.core.disruption.controller import DisruptionController
from journeyman.core.disruption.orchestration import deadline, reject_command, start_command, wait_or_terminate
from journeyman.core.disruption.stale_taints import delete_old_commands, remove_stale_taints
from journeyman.core.plan import CreateObject, DeleteObject, LaunchInstance, PatchObject, Plan, Requeue, Step
from tests.helpers import builders
from tests.helpers.builders import NOW, ago, condition, merge, stamp
from tests.helpers.fleets import Member, a_catalogue, a_fleet, a_member, a_pool, price

POLL = timedelta(seconds=10)
DISRUPTED = {"key": labels.DISRUPTED_TAINT, "effect": "NoSchedule"}
STAGES = ("Launched", "Registered", "Initialized")
MARKED = {"status": {"conditions": [condition(t, observedGeneration=1) for t in (*STAGES, "DisruptionReason")]}}
TAINTED = {"spec": {"taints": [DISRUPTED]}}


def a_pass(snapshot) -> DisruptionController:
    """Everything quiet."""
    names = frozenset(c.metadata.name for c in snapshot.claims)
    judged = Consolidatability(claims=names, within_window=frozenset(), next_at=None, plan=Plan())
    return DisruptionController(snapshot, a_catalogue(), judged)


def first_command(snapshot):
    """What a pass proposes: the NodeDisruption as stored, and its command."""
    found = next(c for c in a_pass(snapshot).evaluate_methods() if c.command.candidates)
    return stored(to_node_disruption(found.command, found.method, NOW)), found.command


def stored(disruption: NodeDisruption, **status) -> NodeDisruption:
    """As the API server keeps it."""
    meta = {"metadata": {"uid": "uid-d", "resourceVersion": "5", "creationTimestamp": stamp(NOW)}}
    return parse(NodeDisruption, merge(disruption.to_wire(), {**meta, "status": status}))


def an_oversized_fleet(**changes):
    """One node, three quarters empty."""
    return a_fleet(a_member("n", size="xl", cpus=["1400m"] * 5, **changes))


def executing(member: Member, *others: Member, ago_seconds: float = 20, **parts):
    """A replace command for `member` under way, and its snapshot."""
    proposed, _ = first_command(an_oversized_fleet())
    started = stamp(NOW - timedelta(seconds=ago_seconds))
    disruption = stored(proposed, phase="Executing", startedAt=started)
    return disruption, a_fleet(member, *others, node_disruptions=(disruption,), **parts)


def the_replacement(disruption: NodeDisruption, *, initialized: bool) -> Member:
    """The claim it opened, joined or on its way."""
    (stated,) = disruption.spec.replacements
    member = a_member("new", size="l", initialized=initialized)
    claim = msgspec.structs.replace(
        member.claim, metadata=msgspec.structs.replace(member.claim.metadata, name=stated.name)
    )
    return Member(node=member.node, claim=claim)


def kinds(plan) -> list[str]:
    """Action types in order, wake-ups left out."""
    return [type(a).__name__ for a in plan.actions if not isinstance(a, Requeue)]


def phase_of(plan) -> str:
    """The phase the plan writes."""
    return next(
        a.patch["status"]["phase"]
        for a in plan.actions
        if isinstance(a, PatchObject) and a.ref.resource is NODE_DISRUPTION
    )


def test_a_proposal_states_everything_and_touches_nothing_else():
    """Candidates, replacement, price and saving are in the object; its name follows from what it is about."""
    disruption, command = first_command(an_oversized_fleet())

    plan = proposal_plan(disruption, command, NOW + POLL)

    assert kinds(plan) == ["CreateObject"]
    assert disruption.metadata.name == to_node_disruption(command, "single-node", NOW).metadata.name
    assert disruption.metadata.name != to_node_disruption(command, "single-node", NOW + POLL).metadata.name
    (candidate,), (replacement,) = disruption.spec.candidates, disruption.spec.replacements
    assert (candidate.node, candidate.instance_type, len(candidate.pods)) == ("node-n", "xl", 5)
    assert (replacement.instance_type, float(replacement.price)) == ("l", pytest.approx(price("l")))
    assert disruption.spec.saving == pytest.approx(price("xl") - price("l"))
    assert "replace node-n (xl/on-demand)" in disruption.spec.explanation


def test_a_replacement_is_open_before_its_candidate_is_tainted():
    """A taint tells the provisioner to find places: with the replacement not there yet it would launch another."""
    snapshot = an_oversized_fleet()
    disruption, command = first_command(snapshot)

    plan = start_command(disruption, command, snapshot, POLL)
    told = [(e.reason, e.ref.resource.kind) for e in plan.chains[0].events if e.reason == "DisruptionReason"]
    assert told == [("DisruptionReason", "NodeClaim")] * len(command.candidates)

    subjects = [a.ref.resource.kind if isinstance(a, PatchObject) else type(a).__name__ for a in plan.actions]
    assert [s for s in subjects if s != "Requeue"] == [
        "NodeClaim",
        "NodeDisruption",
        "CreateObject",
        "Node",
        "LaunchInstance",
    ]
    create = next(a for a in plan.actions if isinstance(a, CreateObject))
    launch = next(a for a in plan.actions if isinstance(a, LaunchInstance))
    assert create.name == launch.claim == disruption.spec.replacements[0].name
    assert create.body["metadata"]["annotations"][labels.DISRUPTION] == disruption.metadata.name
    assert create.body["metadata"]["finalizers"] == [labels.TERMINATION_FINALIZER]
    assert {a.step for a in plan.actions if isinstance(a, Requeue)} == {Step.PROVISION, Step.CONSOLIDATE}


def test_a_delete_command_deletes_in_the_run_that_validated_it():
    """Nothing is awaited: marked, tainted, stated, deleted, each node by its UID."""
    snapshot = a_fleet(a_member("a"), a_member("b"))
    disruption, command = first_command(snapshot)

    plan = start_command(disruption, command, snapshot, POLL)

    assert kinds(plan) == ["PatchObject"] * 5 + ["DeleteObject"] * 2
    assert {a.ref.uid for a in plan.actions if isinstance(a, DeleteObject)} == {"uid-a", "uid-b"}
    assert Step.TERMINATE in {a.step for a in plan.actions if isinstance(a, Requeue)}


def test_candidates_go_when_every_replacement_is_initialized():
    """Not before; until then the step looks again and says what it waits for."""
    member = a_member("n", size="xl", claim=MARKED, node=TAINTED)
    disruption, _ = executing(member)

    for initialized, expected in ((False, []), (True, ["DeleteObject"])):
        snapshot = a_fleet(member, the_replacement(disruption, initialized=initialized), node_disruptions=(disruption,))
        assert kinds(wait_or_terminate(disruption, snapshot, POLL)) == expected


def test_a_taint_that_is_missing_is_put_on_while_waiting():
    """The run that began the command was cut off before it."""
    member = a_member("n", size="xl", claim=MARKED)
    disruption, _ = executing(member)
    snapshot = a_fleet(member, the_replacement(disruption, initialized=False), node_disruptions=(disruption,))

    (patch,) = (a for a in wait_or_terminate(disruption, snapshot, POLL).actions if isinstance(a, PatchObject))

    assert patch.patch == {"spec": {"taints": [DISRUPTED]}}
    assert patch.resource_version == "9"


def test_a_lost_replacement_rolls_the_command_back():
    """Marks come off before the end is written, so that a run cut off in between comes back for the rest."""
    member = a_member("n", size="xl", claim=MARKED, node=TAINTED)
    disruption, snapshot = executing(member)

    plan = wait_or_terminate(disruption, snapshot, POLL)

    cleared, untainted, ended = (a for a in plan.actions if isinstance(a, PatchObject))
    assert "DisruptionReason" not in str(cleared.patch)
    assert untainted.patch == {"spec": {"taints": []}}
    assert ended.patch["status"]["phase"] == "RolledBack"
    assert [o.name for o in plan.observations] == ["karpenter_voluntary_disruption_queue_failures_total"]


def test_a_roll_back_that_was_cut_off_is_finished_and_is_no_success():
    """The run died after the first mark was off: the node stands, its taint is still to go."""
    disruption, snapshot = executing(a_member("n", size="xl", node=TAINTED))

    plan = wait_or_terminate(disruption, snapshot, POLL)

    assert {"spec": {"taints": []}} in [a.patch for a in plan.actions if isinstance(a, PatchObject)]
    assert phase_of(plan) == "RolledBack"


@pytest.mark.parametrize(("seconds", "phase"), [(599, None), (600, "RolledBack")])
def test_a_replacement_that_is_not_ready_in_ten_minutes_is_given_up(seconds, phase):
    """The replacement itself is left: empty, it is consolidated like any other node."""
    member = a_member("n", size="xl", claim=MARKED, node=TAINTED)
    disruption, _ = executing(member, ago_seconds=seconds)
    snapshot = a_fleet(member, the_replacement(disruption, initialized=False), node_disruptions=(disruption,))

    plan = wait_or_terminate(disruption, snapshot, POLL)

    assert (phase_of(plan) if phase else kinds(plan)) == (phase or [])
    assert "DeleteObject" not in kinds(plan)


def test_the_time_a_command_may_take_grows_with_its_candidates_up_to_an_hour():
    """80 ms each, between ten minutes and an hour."""
    disruption, _ = executing(a_member("n", size="xl"), ago_seconds=0)
    (candidate,) = disruption.spec.candidates

    def limit(number: int) -> timedelta:
        spec = disruption.spec.model_copy(update={"candidates": (candidate,) * number})
        return deadline(disruption.model_copy(update={"spec": spec})) - NOW

    assert [limit(n) for n in (1, 10_000, 100_000)] == [
        timedelta(minutes=10),
        timedelta(seconds=800),
        timedelta(hours=1),
    ]


def test_a_command_has_succeeded_when_its_candidates_are_gone():
    """While they drain it only looks again, ever more rarely; a namesake of another UID is not its candidate."""
    draining = a_member("n", size="xl", claim=MARKED, node=TAINTED, deleting=True)
    disruption, snapshot = executing(draining, ago_seconds=300)
    wakes = [a.at for a in wait_or_terminate(disruption, snapshot, POLL).actions if isinstance(a, Requeue)]
    assert wakes == [NOW + timedelta(seconds=30)]

    namesake = a_member("n", size="xl", claim=merge(MARKED, {"metadata": {"uid": "another"}}))
    gone = a_fleet(namesake, node_disruptions=(disruption,))
    assert phase_of(wait_or_terminate(disruption, gone, POLL)) == "Succeeded"


def test_only_the_candidates_that_were_marked_belong_to_a_command():
    """Emptiness may lose some of its candidates between proposal and start; those are never touched."""
    fleet = a_fleet(a_member("kept", claim=MARKED, node=TAINTED), a_member("dropped"))
    proposed, _ = first_command(a_fleet(a_member("kept"), a_member("dropped")))
    disruption = stored(proposed, phase="Executing", startedAt=stamp(NOW))
    snapshot = replace(fleet, node_disruptions=(disruption,))

    plan = wait_or_terminate(disruption, snapshot, POLL)

    assert [n.name for n in disrupted_candidates(disruption, snapshot)] == ["node-kept"]
    assert [a.ref.name for a in plan.actions if isinstance(a, DeleteObject)] == ["kept"]
    assert claims_in_commands(snapshot) == {"kept", "dropped"}


def test_nodes_are_marked_for_deletion_only_once_the_replacements_exist():
    """Earlier, the provisioner would open nodes for pods that already have one coming."""
    member = a_member("n", size="xl", claim=MARKED, node=TAINTED)
    disruption, before = executing(member)
    after = a_fleet(member, the_replacement(disruption, initialized=False), node_disruptions=(disruption,))

    assert marked_for_deletion(before) == frozenset()
    assert marked_for_deletion(after) == {"n"}


def test_a_rejected_proposal_takes_its_marks_back():
    """An interrupted start may have left some; the event says why nothing happens."""
    proposed, _ = first_command(an_oversized_fleet())
    snapshot = an_oversized_fleet(claim=MARKED, node=TAINTED)

    plan = reject_command(proposed, "budget: the budgets of NodePool default allow no further disruption", snapshot)

    assert kinds(plan) == ["PatchObject"] * 3
    assert phase_of(plan) == "Rejected"
    assert {e.reason for e in plan.events} == {"ConsolidationRejected"}


REVALIDATED = [
    (an_oversized_fleet(), ""),
    (a_fleet(a_member("n", size="xl", cpus=["1400m"] * 9)), "scheduling: Can't replace with a cheaper node"),
    (a_fleet(a_member("n", size="xl")), "churn: the node is empty"),
    (an_oversized_fleet(deleting=True), "churn: a candidate no longer qualifies"),
    (
        a_fleet(a_member("n", size="xl", cpus=["1400m"] * 5), pools=[a_pool(budgets=[{"nodes": "0"}])]),
        "budget: the budgets of NodePool default allow no further disruption",
    ),
    (
        a_fleet(a_member("n", size="xl", cpus=["1400m"] * 5), a_member("roomy", size="xl", cpus=["100m"])),
        "scheduling: the decision is now delete, not replace",
    ),
]


@pytest.mark.parametrize(("later", "why"), REVALIDATED, ids=[why[:30] or "holds" for _, why in REVALIDATED])
def test_a_proposal_is_looked_at_again_before_it_is_carried_out(later, why):
    """Whatever changed in fifteen seconds: churn, budget or scheduling."""
    disruption, _ = first_command(an_oversized_fleet())

    command = a_pass(replace(later, node_disruptions=(disruption,))).revalidate(disruption)

    assert command.why_not == why
    assert bool(command.candidates) == (not why)


def test_a_replacement_whose_type_is_no_option_any_more_is_another_plan():
    """What was proposed, and shown to people, cannot be had now."""
    proposed, _ = first_command(an_oversized_fleet())
    body = proposed.to_wire()
    body["spec"]["replacements"][0]["instanceType"] = "s"

    command = a_pass(an_oversized_fleet()).revalidate(parse(NodeDisruption, body))

    assert command.why_not == "scheduling: s is no longer an option"


def test_emptiness_goes_on_with_the_candidates_that_are_still_empty():
    """One of them got a pod meanwhile; the other goes."""
    disruption, _ = first_command(a_fleet(a_member("a"), a_member("b")))
    later = a_fleet(a_member("a", cpus=["1"]), a_member("b"), node_disruptions=(disruption,))
    busy = a_fleet(a_member("a", cpus=["1"]), a_member("b", cpus=["1"]), node_disruptions=(disruption,))

    assert [c.nodeclaim for c in a_pass(later).revalidate(disruption).candidates] == ["b"]
    assert a_pass(busy).revalidate(disruption).why_not.startswith("churn")


def test_marks_without_a_command_are_taken_off_and_those_of_one_are_left():
    """Nodes that are leaving keep theirs, and so do the nodes of others."""
    marks = {"claim": MARKED, "node": TAINTED}
    disruption, _ = executing(a_member("n", size="xl"))
    snapshot = a_fleet(
        a_member("n", **marks),
        a_member("stale", **marks),
        a_member("clean"),
        a_member("leaving", deleting=True, **marks),
        node_disruptions=(disruption,),
    )

    plan = remove_stale_taints(snapshot)

    assert [(a.ref.resource.kind, a.ref.name) for a in plan.actions] == [("NodeClaim", "stale"), ("Node", "node-stale")]


def test_uncordoning_leaves_other_taints_alone():
    """The list is replaced whole, so the others are written back."""
    other = Taint(key="team", value="a", effect="NoSchedule")
    member = a_member("stale", node={"spec": {"taints": [msgspec.to_builtins(other), DISRUPTED]}})

    (patch,) = remove_stale_taints(a_fleet(member)).actions

    assert patch.patch == {"spec": {"taints": [{"key": "team", "value": "a", "effect": "NoSchedule"}]}}


def test_history_is_kept_for_a_day_and_no_longer_than_a_hundred():
    """What is under way is never forgotten."""
    proposed, _ = first_command(an_oversized_fleet())

    def ended(name: str, hours: float) -> NodeDisruption:
        at = stamp(ago(hours=hours))
        body = merge(
            proposed.to_wire(), {"metadata": {"name": name}, "status": {"phase": "Succeeded", "finishedAt": at}}
        )
        return parse(NodeDisruption, body)

    recent = [ended(f"d{i:03}", i / 100) for i in range(101)]
    snapshot = builders.a_snapshot(node_disruptions=(*recent, ended("old", 25), proposed))

    assert [a.ref.name for a in delete_old_commands(snapshot).actions] == ["d100", "old"]
