"""The progress of a FleetPlan: which moves are done, running, ready or failed, by their NodeDisruptions."""

from datetime import timedelta

import pytest

from journeyman.core.api import labels
from journeyman.core.api.conditions import format_time
from journeyman.core.api.fleet_plan import FleetPlan
from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.disruption.budgets import BudgetStatus
from journeyman.core.disruption.candidates import find_candidates
from journeyman.core.disruption.commands import to_node_disruption
from journeyman.core.disruption.fleet_moves import Move, MoveCost
from journeyman.core.disruption.fleet_plan_progress import (
    KEPT_PLANS,
    creation_plan,
    delete_old_plans,
    evaluate_fleet_plan,
    mark_leaving_nodes,
    plans_in_progress,
    to_fleet_plan,
    validate_moves,
    waiting_plan,
)
from journeyman.core.disruption.fleet_planning import PlannedFleet, StayingNode
from journeyman.core.disruption.simulation import Simulation
from tests.helpers.actions import patches
from tests.helpers.builders import NOW, ago
from tests.helpers.disrupting import candidates_of
from tests.helpers.fleets import a_catalogue, a_fleet, a_member

MOVES = (("n0", ()), ("n1", ()), ("n2", ("n0", "n1")))


def a_plan(name="fleet-1", *, phase="Running", created=None, moves=(), finished=None):
    """A plan of three moves; the last comes after both others."""
    spec = {
        "createdAt": format_time(created or ago(minutes=10)),
        "moves": [{"name": n, "nodeClaims": [n], "after": list(after)} for n, after in MOVES],
    }
    status = {"phase": phase, "moves": [{"name": n, "state": state} for n, state in moves]}
    return FleetPlan.model_validate(
        {"metadata": {"name": name, "uid": name, "resourceVersion": "3"}, "spec": spec, "status": status}
    )


def a_command(claim, phase, *, method="fleet-plan", created=None):
    """A NodeDisruption of a move."""
    spec = {
        "reason": "Underutilized",
        "decision": "delete",
        "method": method,
        "candidates": [{"nodeClaim": claim}],
        "createdAt": format_time(created or ago(minutes=5)),
    }
    status = {"phase": phase, "messages": [f"{phase}: why"]}
    return NodeDisruption.model_validate({"metadata": {"name": f"of-{claim}"}, "spec": spec, "status": status})


def evaluated(snapshot, *, candidates=None, fresh=frozenset(), disrupting=0):
    """The evaluation of the FleetPlan with a budget for all nodes, of these candidates, by default of all nodes."""
    found = candidates_of(snapshot).values() if candidates is None else candidates
    total = len(snapshot.claims)
    budgets = {"default": BudgetStatus(total=total, disrupting=disrupting, allowed=total)}
    simulation = Simulation(snapshot, a_catalogue(), within_consolidate_after=fresh)
    return evaluate_fleet_plan(simulation, found, budgets, cost=MoveCost())


def progress_of(*commands, plans=None):
    """The progress of the plan with these commands."""
    members = [a_member(name, cpus=["1"]) for name, _ in MOVES]
    (progress,) = plans_in_progress(a_fleet(*members, fleet_plans=plans or (a_plan(),), node_disruptions=commands))
    return progress


@pytest.mark.parametrize(
    ("commands", "ready", "states"),
    [
        ((), ["n0", "n1"], []),
        ((("n0", "Replacing"),), ["n1"], [("n0", "Running")]),
        ((("n0", "Succeeded"), ("n1", "Draining")), [], [("n0", "Done"), ("n1", "Running")]),
        ((("n0", "Succeeded"), ("n1", "Succeeded")), ["n2"], [("n0", "Done"), ("n1", "Done")]),
    ],
)
def test_move_is_ready_once_the_moves_before_it_are_done(commands, ready, states):
    """A move that uses capacity on new nodes of others waits for them."""
    progress = progress_of(*(a_command(*command) for command in commands))
    assert [move.name for move in progress.ready] == ready
    assert [(move.name, move.state) for move in progress.started] == states
    assert not progress.is_done


@pytest.mark.parametrize("phase", ["RolledBack", "Rejected", "Expired"])
def test_undone_command_fails_its_move_with_the_reason(phase):
    """The plan then ends, and says why."""
    progress = progress_of(a_command("n0", phase))
    assert progress.failed == f"move n0 (NodeDisruption of-n0): {phase}: why"
    (chain,) = progress.record(NOW, superseded_because=progress.failed).chains
    assert chain.actions[0].patch["status"]["phase"] == "Superseded"


def test_commands_of_other_methods_and_earlier_plans_do_not_count():
    """A single-node command on the same node, or one from before the plan, says nothing about its move.

    Unchanged progress writes nothing: the step runs every ten seconds.
    """
    assert not progress_of(plans=(a_plan(),)).record(NOW).chains
    progress = progress_of(
        a_command("n0", "Succeeded", method="single-node"), a_command("n1", "RolledBack", created=ago(hours=1))
    )
    assert [move.name for move in progress.ready] == ["n0", "n1"]
    assert progress.failed == ""


def test_recorded_moves_count_although_their_commands_are_deleted():
    """History keeps a limited number of NodeDisruptions."""
    plan = a_plan(moves=(("n0", "Done"), ("n1", "Done")))

    progress = progress_of(a_command("n2", "Succeeded"), plans=(plan,))

    assert progress.is_done
    (chain,) = progress.record(NOW).chains
    status = chain.actions[0].patch["status"]
    assert (status["phase"], status["done"]) == ("Completed", 3)


@pytest.mark.parametrize(("minutes", "phases"), [(14, []), (16, ["Superseded"])])
def test_rest_is_planned_again_if_it_waits_too_long_for_a_move(minutes, phases):
    """A drain may last as long as a PodDisruptionBudget allows nothing; the reason names its NodeDisruption."""
    since = ago(minutes=minutes)
    commands = a_command("n0", "Draining", created=since), a_command("n1", "Succeeded", created=since)
    members = [a_member(name, cpus=["1"]) for name, _ in MOVES]
    plan = a_plan(created=since, moves=(("n0", "Running"), ("n1", "Done")))
    snapshot = a_fleet(*members, fleet_plans=(plan,), node_disruptions=commands)

    found = evaluated(snapshot, candidates=(), disrupting=1)

    ended = [status for status in patches(found.plan, part="status") if "message" in status]
    assert [status["phase"] for status in ended] == phases
    assert all("waited for move n0 (NodeDisruption of-n0)" in status["message"] for status in ended)
    assert found.is_waiting is not bool(phases)


@pytest.mark.parametrize(("changed", "is_made"), [(1, True), (2, False)])
def test_plan_is_made_once_most_nodes_are_past_their_consolidate_after(changed, is_made):
    """Until then, the others take no pods: a plan would replace nodes for capacity that is there in a moment."""
    snapshot = a_fleet(*(a_member(f"n{n}", size="l", cpus=["600m"]) for n in range(10)))
    names = [claim.metadata.name for claim in snapshot.claims]
    found = find_candidates(snapshot, a_catalogue(), consolidatable=frozenset(names[changed:]), in_commands=frozenset())
    evaluation = evaluated(snapshot, candidates=found.candidates, fresh=frozenset(names[:changed]))
    assert (bool(evaluation.commands), bool(evaluation.plan.chains)) == (is_made, is_made)


@pytest.mark.parametrize(("phase", "moved"), [("Draining", []), ("Succeeded", ["launched"])])
def test_next_plan_moves_no_pods_that_a_plan_in_progress_moved(phase, moved):
    """n0's pods went to the node that its move launched; they stay there until n2's move has ended, too."""
    commands = (a_command("n0", "Succeeded"), a_command("n1", "Succeeded"), a_command("n2", phase))
    of_n0 = {"metadata": {"annotations": {labels.DISRUPTION: "of-n0"}}}
    launched = a_member("launched", size="l", cpus=["1"], claim=of_n0)
    evaluation = evaluated(a_fleet(launched, fleet_plans=(a_plan(),), node_disruptions=commands))
    assert [c.nodeclaim for command in evaluation.commands for c in command.candidates] == moved


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_moves_are_validated_in_the_order_of_the_plan(order):
    """n1 is deleted, and n2 replaced by what is then missing; in the other order n2 would be deleted, and n1 replaced."""
    members = (
        a_member("n0", cpus=["900m", "900m"]),
        a_member("n1", size="l", cpus=["1500m"]),
        a_member("n2", size="l", cpus=["1500m", "1500m", "300m", "900m"]),
    )
    snapshot = a_fleet(*members)
    evaluation = evaluated(snapshot)
    proposed = [to_node_disruption(command, "fleet-plan", NOW) for command in evaluation.commands]
    decisions = {d.spec.candidates[0].node_claim: d.spec.decision for d in proposed}
    assert list(decisions.items()) == [("n1", "delete"), ("n2", "replace")]

    ((chain,),) = (evaluation.plan.chains,)
    made = FleetPlan.model_validate({**chain.actions[0].body, "status": {"phase": "Running"}})
    simulation = Simulation(a_fleet(*members, fleet_plans=(made,)), a_catalogue())
    found = candidates_of(snapshot).values()
    validated = validate_moves([proposed[n] for n in order], simulation, found, {"default": 3}, cost=MoveCost())

    assert [validated[d.metadata.name].why_not for d in proposed] == ["", ""]


def test_nodes_that_are_soon_gone_have_the_taint_of_nodes_that_leave():
    """It is removed from all others."""
    taint = {"key": labels.LEAVING_TAINT, "effect": "PreferNoSchedule"}
    stays = a_member("stays", node={"spec": {"taints": [taint]}})
    plan = mark_leaving_nodes(a_fleet(a_member("new"), stays), soon_gone={"new"})
    taints = {action.ref.name: action.patch["spec"]["taints"] for action in plan.actions}
    assert taints == {"node-new": [taint], "node-stays": []}


def test_note_of_a_plan_says_how_many_nodes_stay_or_go():
    """It was "planned the fleet: 0 moves delete 0 nodes"; one move speaks of one."""
    for nodes, text in ((12, "12 nodes stay"), (1, "1 node stays")):
        all_stay = [
            StayingNode(nodeclaim=f"n{n}", price=1.0, worth_of_pods=1.0, worth=1.0, why="x") for n in range(nodes)
        ]
        fleet = PlannedFleet(staying=tuple(all_stay), price_before=2.0, lower_bound=1.5)
        bound = "no fleet for these pods costs less than 1.5000/h"
        notes = creation_plan(to_fleet_plan(fleet, NOW)).notes
        assert notes == (f"no cheaper fleet: {text}, for 2.0000/h; {bound}",)

    (candidate,) = candidates_of(a_fleet(a_member("n0", cpus=["1"]))).values()
    made = to_fleet_plan(PlannedFleet(moves=(Move(candidates=(candidate,)),), price_before=2.0), NOW)
    assert creation_plan(made).notes[0].startswith("planned the fleet: 1 move deletes 1 node and evicts 1 pod, saving")


def test_only_the_newest_plans_are_kept():
    """Of several plans whose moves wait, which only a crash leaves, the newest goes on. One whose moves all started is kept, too."""
    ended = [a_plan(f"old-{n}", phase="Completed", created=ago(hours=n + 1)) for n in range(KEPT_PLANS + 2)]
    waiting = [a_plan("first", created=ago(minutes=2)), a_plan("second", created=NOW - timedelta(minutes=1))]
    draining = a_plan("draining", created=ago(minutes=3), moves=[(name, "Done") for name, _ in MOVES])
    snapshot = a_fleet(a_member("n0"), fleet_plans=(*ended, draining, *waiting))

    deleted = {chain.actions[0].ref.name for chain in delete_old_plans(snapshot).chains}

    assert deleted == {"first", f"old-{KEPT_PLANS}", f"old-{KEPT_PLANS + 1}"}
    assert waiting_plan(plans_in_progress(snapshot)).plan.metadata.name == "second"
