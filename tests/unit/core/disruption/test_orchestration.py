"""Orchestration of disruption commands: what each run writes, and how later runs continue."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.model import parse
from journeyman.core.api.node_disruption import (
    DisruptionCandidate,
    DisruptionReplacement,
    NodeDisruption,
    NodeDisruptionSpec,
)
from journeyman.core.api.objects import NODE_DISRUPTION, ObjectMeta
from journeyman.core.disruption.cleanup import delete_old_commands, remove_stale_taints
from journeyman.core.disruption.commands import (
    claims_in_commands,
    disrupted_candidates,
    has_started,
    marked_for_deletion,
    proposal_plan,
    summary,
    to_node_disruption,
)
from journeyman.core.disruption.orchestration import (
    deadline,
    expire_command,
    has_expired,
    reject_command,
    start_command,
    wait_or_terminate,
)
from journeyman.core.plan import CreateObject, DeleteObject, LaunchInstance, PatchObject, Plan, Requeue, Step
from journeyman.core.state import Snapshot
from tests.helpers import builders
from tests.helpers.actions import done, of_type, patches, reasons, requeues
from tests.helpers.builders import NOW, ago, condition, merge, stamp
from tests.helpers.churn import an_empty_ledger, stored_ledger
from tests.helpers.disrupting import a_controller, with_min_values
from tests.helpers.fleets import Member, a_catalogue, a_fleet, a_member, a_pool, price
from tests.helpers.small_clusters import table

POLL = timedelta(seconds=10)
DAY = timedelta(days=1)
DISRUPTED = {"key": labels.DISRUPTED_TAINT, "effect": "NoSchedule"}
STAGES = ("Launched", "Registered", "Initialized")
CONDITION = {"status": {"conditions": [condition(t, observedGeneration=1) for t in (*STAGES, "DisruptionReason")]}}
TAINTED = {"spec": {"taints": [DISRUPTED]}}
UNTAINTED = {"spec": {"taints": []}}
DRAINED = a_member("n", size="xl", claim=CONDITION, node=TAINTED)
WITHOUT_TAINT = a_member("n", size="xl", claim=CONDITION)


def first_command(snapshot):
    """The first command, and its NodeDisruption as stored."""
    found = next(e for e in a_controller(snapshot).evaluate_methods() if e.commands)
    (command,) = found.commands
    return stored(to_node_disruption(command, found.method, NOW)), command


def start(disruption: NodeDisruption, command, snapshot) -> Plan:
    """The plan that starts the command."""
    return start_command(disruption, command, snapshot, POLL, a_controller(snapshot).budgets(command.reason))


def advance(disruption: NodeDisruption, snapshot) -> Plan:
    """The plan that continues the command."""
    return wait_or_terminate(disruption, snapshot, a_catalogue(), POLL)


def stored(disruption: NodeDisruption, **status) -> NodeDisruption:
    """The NodeDisruption as the API server stores it."""
    meta = {"metadata": {"uid": "uid-d", "resourceVersion": "5", "creationTimestamp": stamp(NOW)}}
    return parse(NodeDisruption, merge(disruption.to_wire(), {**meta, "status": status}))


def an_oversized_fleet(**changes):
    """One node, a quarter of which is requested."""
    return a_fleet(a_member("n", size="xl", cpus=["1400m"] * 5, **changes))


def executing(*, seconds: float = 20, name: str = "n", replacements: int = 1) -> NodeDisruption:
    """A replace command that started so long ago, for a node with this name."""
    proposed, _ = first_command(a_fleet(a_member(name, size="xl", cpus=["1400m"] * 5)))
    (first,) = proposed.spec.replacements
    named = tuple(
        first.model_copy(update={"name": f"{first.name}-{i}" if i else first.name}) for i in range(replacements)
    )
    spec = proposed.spec.model_copy(update={"replacements": named})
    return stored(proposed.model_copy(update={"spec": spec}), phase="Replacing", startedAt=stamp(ago(seconds=seconds)))


def replacements_of(disruption: NodeDisruption, *initialized: bool) -> list[Member]:
    """The replacement NodeClaims of the command, which are initialized or not."""
    found = []
    for i, (replacement, is_done) in enumerate(zip(disruption.spec.replacements, initialized, strict=True)):
        member = a_member(f"new{i}", size="l", initialized=is_done)
        named = replace(member.claim, metadata=replace(member.claim.metadata, name=replacement.name))
        found.append(Member(node=member.node, claim=named))
    return found


def continued(disruption: NodeDisruption, *initialized: bool, member: Member | None = None) -> Snapshot:
    """The snapshot of an executing command whose replacements are initialized or not."""
    return a_fleet(member or DRAINED, *replacements_of(disruption, *initialized), node_disruptions=(disruption,))


def kinds(plan) -> list[str]:
    """Action types in order, without requeues."""
    return [type(a).__name__ for a in plan.actions if not isinstance(a, Requeue)]


def phases_of(plan) -> list[str]:
    """The phases that the plan writes, in order."""
    return [patch["phase"] for patch in status_patches(plan)]


def phase_of(plan) -> str:
    """The only phase that the plan writes."""
    (phase,) = phases_of(plan)
    return phase


def status_patches(plan) -> list:
    """The patches of the NodeDisruption's status, in order."""
    return patches(plan, NODE_DISRUPTION.kind, "status")


def test_proposal_creates_the_nodedisruption_only():
    """Its spec has candidates, replacements, prices and savings; its name depends on the command and the time."""
    disruption, command = first_command(an_oversized_fleet())

    plan = proposal_plan(disruption, command, NOW + POLL)

    assert kinds(plan) == ["CreateObject"]
    assert disruption.metadata.name == to_node_disruption(command, "single-node", NOW).metadata.name
    assert disruption.metadata.name != to_node_disruption(command, "single-node", NOW + POLL).metadata.name
    (candidate,), (replacement,) = disruption.spec.candidates, disruption.spec.replacements
    assert (candidate.node, candidate.instance_type, len(candidate.pods)) == ("node-n", "xl", 5)
    assert (replacement.instance_type, float(replacement.price)) == ("l", pytest.approx(price("l")))
    assert replacement.instance_types == command.replacements[0].instance_types == ("l",)
    assert disruption.spec.saving == pytest.approx(price("xl") - price("l"))
    assert "replace node-n (xl/on-demand)" in disruption.spec.explanation


def test_replacement_is_created_before_its_candidate_is_tainted():
    """The provisioner reschedules the pods of tainted nodes, and would launch another node for them."""
    snapshot = an_oversized_fleet()
    disruption, command = first_command(snapshot)

    plan = start(disruption, command, snapshot)

    assert reasons(plan).count(("NodeClaim", "DisruptionReason")) == len(command.candidates)
    subjects = [a.ref.resource.kind if isinstance(a, PatchObject) else type(a).__name__ for a in plan.actions]
    order = ["NodeDisruption", "NodeClaim", "CreateObject", "NodeDisruption", "Node", "LaunchInstance"]
    assert [s for s in subjects if s != "Requeue"] == order
    (create,), (launch,) = of_type(plan, CreateObject), of_type(plan, LaunchInstance)
    assert create.name == launch.claim == disruption.spec.replacements[0].name
    assert create.body["metadata"]["annotations"][labels.DISRUPTION] == disruption.metadata.name
    assert create.body["metadata"]["finalizers"] == [labels.TERMINATION_FINALIZER]
    assert requeues(plan).keys() == {Step.PROVISION, Step.CONSOLIDATE}


def test_start_is_logged_with_the_fields_of_karpenters_log_line():
    """Dashboards and queries for Karpenter's logs find commands by them; the ID is the name of the NodeDisruption."""
    fleet = an_oversized_fleet()
    disruption, command = first_command(fleet)

    (line,) = start(disruption, command, fleet).logs

    assert (line.level, line.message) == ("info", "disrupting node(s)")
    assert line.note == f"disrupting node(s): {disruption.spec.explanation}"
    node = {"Node": {"name": "node-n"}, "NodeClaim": {"name": "n"}, "instance-type": "xl", "capacity-type": "on-demand"}
    assert line.fields == {
        "command": "replace: [node-n] -> [1 replacement]",
        "command-id": disruption.metadata.name,
        "reason": "Underutilized",
        "decision": "replace",
        "disrupted-node-count": 1,
        "replacement-node-count": 1,
        "pod-count": 5,
        "disrupted-nodes": [node],
        "replacement-nodes": [{"capacity-type": "on-demand", "instance-types": "l"}],
    }


def test_delete_command_deletes_in_the_run_that_validated_it():
    """The plan writes phase, conditions, taints and phase, and then deletes each NodeClaim by its UID."""
    snapshot = a_fleet(a_member("a"), a_member("b"))
    disruption, command = first_command(snapshot)

    plan = start(disruption, command, snapshot)

    assert kinds(plan) == ["PatchObject"] * 6 + ["DeleteObject"] * 2
    assert phases_of(plan) == ["Validated", "Draining"]
    assert {a.ref.uid for a in of_type(plan, DeleteObject)} == {"uid-a", "uid-b"}
    assert Step.TERMINATE in requeues(plan)


@pytest.mark.parametrize("initialized", [(False,), (True,), (False, False), (True, False), (False, True), (True, True)])
def test_candidates_are_deleted_when_every_replacement_is_initialized(initialized):
    """Until then the command deletes nothing; each replacement that it waits for has an Event."""
    disruption = executing(replacements=len(initialized))

    plan = advance(disruption, continued(disruption, *initialized))

    assert done(plan) == ("delete NodeClaim n" if all(initialized) else "")
    assert kinds(plan) == (["PatchObject", "DeleteObject"] if all(initialized) else [])
    waiting = [e.ref.name for e in plan.events if e.reason == "DisruptionWaitingReadiness"]
    names = [r.name for r in disruption.spec.replacements]
    assert waiting == [name for name, is_done in zip(names, initialized, strict=True) if not is_done]


def test_missing_disruption_taint_is_added_while_waiting_for_replacements():
    """The run that started the command crashed before it tainted the node."""
    disruption = executing()
    (patch,) = of_type(advance(disruption, continued(disruption, False, member=WITHOUT_TAINT)), PatchObject)
    assert (patch.patch, patch.resource_version) == (TAINTED, "9")


def test_command_is_rolled_back_when_its_replacement_no_longer_exists():
    """The plan removes taints before it writes the phase, so that the next run repeats a crashed rollback."""
    disruption = executing()

    plan = advance(disruption, a_fleet(DRAINED, node_disruptions=(disruption,)))

    cleared, untainted, ended = patches(plan)
    assert "DisruptionReason" not in str(cleared)
    assert (untainted, ended["status"]["phase"]) == (UNTAINTED, "RolledBack")
    assert [o.name for o in plan.observations] == ["karpenter_voluntary_disruption_queue_failures_total"]

    crashed = advance(disruption, a_fleet(a_member("n", size="xl", node=TAINTED), node_disruptions=(disruption,)))
    assert UNTAINTED in patches(crashed)  # that run had removed the condition, but not the taint
    assert phase_of(crashed) == "RolledBack"


@pytest.mark.parametrize(("seconds", "phases"), [(599, []), (600, ["RolledBack"])])
def test_command_is_rolled_back_when_replacements_are_not_initialized_in_ten_minutes(seconds, phases):
    """The rollback keeps the replacement; consolidation deletes it later if it is empty."""
    disruption = executing(seconds=seconds)
    plan = advance(disruption, continued(disruption, False))
    assert (phases_of(plan), done(plan), UNTAINTED in patches(plan)) == (phases, "", bool(phases))
    assert phases or not kinds(plan)


@pytest.mark.parametrize(
    ("candidates", "expected"),
    [(1, 600), (100, 600), (4000, 600), (10_000, 800), (40_000, 3200), (80_000, 3600), (100_000, 3600)],
)
def test_command_timeout_grows_with_its_candidates_up_to_an_hour(candidates, expected):
    """The timeout is 80 ms per candidate, but at least ten minutes. Karpenter counts the candidates of its whole queue."""
    disruption = executing(seconds=0)
    spec = disruption.spec.model_copy(update={"candidates": disruption.spec.candidates * candidates})
    assert deadline(disruption.model_copy(update={"spec": spec})) - NOW == timedelta(seconds=expected)


@pytest.mark.parametrize("initialized", [(False, False), (True, False), (False, True), (True, True)])
def test_commands_finish_each_when_its_own_replacement_is_initialized(initialized):
    """Neither waits for the other."""
    members = [a_member(name, size="xl", claim=CONDITION, node=TAINTED) for name in ("n", "m")]
    commands = [executing(name=name) for name in ("n", "m")]
    launched = [m for c, is_done in zip(commands, initialized, strict=True) for m in replacements_of(c, is_done)]
    snapshot = a_fleet(*members, *launched, node_disruptions=tuple(commands))

    deleted = [done(advance(command, snapshot)) for command in commands]

    expected = [f"delete NodeClaim {name}" if is_done else "" for name, is_done in zip("nm", initialized, strict=True)]
    assert deleted == expected


def test_command_succeeds_when_its_candidates_are_removed():
    """During a long drain it is requeued less often; a NodeClaim with the same name but another UID does not count."""
    disruption = executing(seconds=300)
    draining = a_member("n", size="xl", claim=CONDITION, node=TAINTED, deleting=True)
    waiting = advance(disruption, a_fleet(draining, node_disruptions=(disruption,)))
    assert [a.at for a in of_type(waiting, Requeue)] == [NOW + timedelta(seconds=30)]

    namesake = a_member("n", size="xl", claim=merge(CONDITION, {"metadata": {"uid": "another"}}))
    assert phase_of(advance(disruption, a_fleet(namesake, node_disruptions=(disruption,)))) == "Succeeded"


def test_command_disrupts_only_candidates_with_the_disruption_reason_condition():
    """Validation of emptiness may drop candidates, which the command does not disrupt."""
    fleet = a_fleet(a_member("kept", claim=CONDITION, node=TAINTED), a_member("dropped"))
    proposed, _ = first_command(a_fleet(a_member("kept"), a_member("dropped")))
    disruption = stored(proposed, phase="Draining", startedAt=stamp(NOW))
    snapshot = replace(fleet, node_disruptions=(disruption,))

    assert [n.name for n in disrupted_candidates(disruption, snapshot)] == ["node-kept"]
    assert done(advance(disruption, snapshot)) == "delete NodeClaim kept"
    assert claims_in_commands(snapshot) == {"kept", "dropped"}


def test_validated_command_continues_once_its_replacements_exist():
    """A run that crashed before it created them leaves a command that is validated again.

    Candidates are marked for deletion once replacements exist: before that, the provisioner would launch more nodes for pods that
    will get a replacement.
    """
    proposed, _ = first_command(an_oversized_fleet())
    validated = stored(proposed, phase="Validated", startedAt=stamp(NOW))
    for command, member in ((validated, WITHOUT_TAINT), (executing(), DRAINED)):
        without, created = a_fleet(member, node_disruptions=(command,)), continued(command, False, member=member)
        assert (marked_for_deletion(without), marked_for_deletion(created)) == (frozenset(), {"n"})

    without, created = (
        a_fleet(WITHOUT_TAINT, node_disruptions=(validated,)),
        continued(validated, False, member=WITHOUT_TAINT),
    )
    assert (has_started(validated, without), has_started(validated, created)) == (False, True)
    assert phase_of(advance(validated, created)) == "Replacing"
    assert phase_of(reject_command(validated, "churn: it is busy", without)) == "RolledBack"


def test_history_has_budgets_prices_replacements_and_evictions():
    """A person can see what a command was allowed to do, what it did, and what it saved."""
    before = an_oversized_fleet()
    disruption, command = first_command(before)
    started = status_patches(start(disruption, command, before))[0]
    assert started["budgets"] == [{"nodePool": "default", "nodes": 1, "disrupting": 0, "allowed": 1}]
    assert (started["phase"], started["startedAt"]) == ("Validated", stamp(NOW))

    replacing = stored(disruption, phase="Replacing", startedAt=stamp(NOW))
    member = a_member("n", size="xl", cpus=["1400m"] * 5, claim=CONDITION, node=TAINTED)
    (draining,) = status_patches(advance(replacing, continued(replacing, True, member=member)))

    (launched,) = draining["replacements"]
    assert (launched["instanceType"], float(launched["price"])) == ("l", pytest.approx(price("l")))
    assert float(draining["priceBefore"]) == pytest.approx(price("xl"))
    assert float(draining["priceAfter"]) == pytest.approx(price("l"))
    assert (draining["phase"], draining["evictedPods"]) == ("Draining", 5)
    assert draining["messages"][-1].endswith("Draining: deleting the candidates")


def test_proposal_reserves_its_budget_until_it_expires():
    """Other commands may be proposed while it waits; no run validated it for ten minutes."""
    proposed, command = first_command(an_oversized_fleet())
    waiting = stored(proposed)
    snapshot = a_fleet(a_member("n", size="xl", cpus=["1400m"] * 5), node_disruptions=(waiting,))

    assert a_controller(snapshot).budgets(command.reason)["default"].remaining == 0
    assert a_controller(snapshot).budgets(command.reason, without=waiting)["default"].remaining == 1
    due = NOW + timedelta(seconds=15)
    assert not has_expired(waiting, due, due + timedelta(minutes=10))
    assert has_expired(waiting, due, due + timedelta(minutes=11))
    assert not has_expired(stored(proposed, phase="Validated"), due, due + timedelta(minutes=11))
    plan = expire_command(waiting, snapshot)
    assert (phase_of(plan), requeues(plan).keys()) == ("Expired", {Step.CONSOLIDATE})


def test_rejected_proposal_removes_taints_and_conditions():
    """A run that crashed while it started the command may have left them."""
    proposed, _ = first_command(an_oversized_fleet())
    snapshot = an_oversized_fleet(claim=CONDITION, node=TAINTED)

    plan = reject_command(proposed, "budget: the budgets of NodePool default allow no further disruption", snapshot)

    assert kinds(plan) == ["PatchObject"] * 3
    assert phase_of(plan) == "Rejected"
    assert {e.reason for e in plan.events} == {"ConsolidationRejected"}


@table(
    "later, why",
    holds=(an_oversized_fleet(), ""),
    more_pods=(a_fleet(a_member("n", size="xl", cpus=["1400m"] * 9)), "scheduling: Can't replace with a cheaper node"),
    no_pods=(a_fleet(a_member("n", size="xl")), "churn: the node is empty"),
    leaving=(an_oversized_fleet(deleting=True), "churn: a candidate no longer qualifies"),
    budget=(
        a_fleet(a_member("n", size="xl", cpus=["1400m"] * 5), pools=[a_pool(budgets=[{"nodes": "0"}])]),
        "budget: the budgets of NodePool default allow no further disruption",
    ),
    capacity_elsewhere=(
        a_fleet(a_member("n", size="xl", cpus=["1400m"] * 5), a_member("roomy", size="xl", cpus=["100m"])),
        "scheduling: the decision is now delete, not replace",
    ),
)
def test_proposal_is_validated_before_it_is_executed(later, why):
    """Validation fails because of churn, a budget or scheduling."""
    disruption, _ = first_command(an_oversized_fleet())
    command = a_controller(replace(later, node_disruptions=(disruption,))).revalidate(disruption)
    assert command.why_not == why
    assert bool(command.candidates) == (not why)


@pytest.mark.parametrize(
    ("proposed", "launched", "why"),
    [
        ({"instanceTypes": ["l"]}, ("l",), ""),
        ({"instanceTypes": ["l", "xl"]}, ("l",), ""),  # xl was cheaper then
        ({"instanceTypes": ["xl"]}, (), "scheduling: no proposed instance type is cheaper any more"),
        ({"instanceTypes": ["l", "s"]}, (), "scheduling: s is no longer an option"),
        ({"instanceTypes": ["l", "s", "m"]}, (), "scheduling: s, m are no longer an option"),
        ({"instanceTypes": [], "instanceType": "l"}, ("l",), ""),  # as older versions stored it
        ({"instanceTypes": [], "instanceType": "s"}, (), "scheduling: s is no longer an option"),
    ],
)
def test_replacement_has_a_proposed_instance_type_that_is_cheaper_now(proposed, launched, why):
    """All proposed types must still suit the pods; of those, the launch may choose the ones that are cheaper now."""
    disruption, _ = first_command(an_oversized_fleet())
    body = disruption.to_wire()
    body["spec"]["replacements"][0] |= proposed

    command = a_controller(an_oversized_fleet()).revalidate(parse(NodeDisruption, body))

    assert (command.why_not, tuple(t for r in command.replacements for t in r.instance_types)) == (why, launched)
    assert bool(command.candidates) is bool(launched)


UNMET = f"minValues requirement is not met for label(s) (label(s)=[{labels.INSTANCE_TYPE}])"


@pytest.mark.parametrize(
    ("proposed", "why"), [(["s", "m"], ""), (["m", "xl"], f"scheduling: Filtering by price: {UNMET}")]
)
def test_proposed_types_that_are_cheaper_now_must_meet_min_values(proposed, why):
    """A proposed type that is no longer cheaper, as xl, counts no longer."""
    fleet = a_fleet(a_member("n", size="xl", cpus=["1"]), pools=[with_min_values(2)])
    disruption, _ = first_command(fleet)
    body = disruption.to_wire()
    body["spec"]["replacements"][0]["instanceTypes"] = proposed
    assert a_controller(fleet).revalidate(parse(NodeDisruption, body)).why_not == why


def test_emptiness_continues_with_candidates_that_are_still_empty():
    """Validation drops candidates with new pods, and fails if none is left."""
    disruption, _ = first_command(a_fleet(a_member("a"), a_member("b")))
    later = a_fleet(a_member("a", cpus=["1"]), a_member("b"), node_disruptions=(disruption,))
    busy = a_fleet(a_member("a", cpus=["1"]), a_member("b", cpus=["1"]), node_disruptions=(disruption,))
    assert [c.nodeclaim for c in a_controller(later).revalidate(disruption).candidates] == ["b"]
    assert a_controller(busy).revalidate(disruption).why_not.startswith("churn")


def test_stale_disruption_taints_are_removed_and_those_of_commands_are_kept():
    """Terminating nodes keep their taints, too. The patch replaces the whole list of taints, and keeps others."""
    both = {"claim": CONDITION, "node": TAINTED}
    stale, leaving = a_member("stale", **both), a_member("leaving", deleting=True, **both)
    members = (a_member("n", **both), stale, a_member("clean"), leaving)

    plan = remove_stale_taints(a_fleet(*members, node_disruptions=(executing(),)))

    assert [(a.ref.resource.kind, a.ref.name) for a in plan.actions] == [("NodeClaim", "stale"), ("Node", "node-stale")]

    other = {"key": "team", "value": "a", "effect": "NoSchedule"}
    (patch,) = remove_stale_taints(a_fleet(a_member("stale", node={"spec": {"taints": [other, DISRUPTED]}}))).actions
    assert patch.patch == {"spec": {"taints": [other]}}


def finished(name: str = "d", **age) -> NodeDisruption:
    """A command that succeeded so long ago."""
    proposed, _ = first_command(an_oversized_fleet())
    status = {"phase": "Succeeded", "startedAt": stamp(ago(days=2)), "finishedAt": stamp(ago(**age))}
    return parse(NodeDisruption, merge(proposed.to_wire(), {"metadata": {"name": name}, "status": status}))


def test_finished_commands_are_kept_for_a_day_and_at_most_a_hundred():
    """Unfinished commands are never deleted, nor those of a day that the churn ledger does not contain yet."""
    proposed, _ = first_command(an_oversized_fleet())
    commands = (*(finished(f"d{i:03}", hours=i / 100) for i in range(101)), finished("old", hours=25), proposed)
    snapshot = builders.a_snapshot(node_disruptions=commands, churn_ledger=an_empty_ledger())
    counted = replace(snapshot, churn_ledger=stored_ledger(snapshot))

    assert [a.ref.name for a in delete_old_commands(counted, limit=100, age=DAY).actions] == ["d100", "old"]
    assert [a.ref.name for a in delete_old_commands(snapshot, limit=100, age=DAY).actions] == ["old"]
    for age, deletions in (({"days": 1}, 0), ({"days": 1, "seconds": 1}, 1)):
        alone = a_fleet(node_disruptions=(finished(**age),))
        assert len(delete_old_commands(alone, limit=100, age=DAY).chains) == deletions


FIVE = "n0 (m/spot), n1 (m/spot), n2 (m/spot), n3 (m/spot), n4 (m/spot)"


@pytest.mark.parametrize(
    ("candidates", "replacements", "text"),
    [
        (5, 1, f"replace {FIVE} by s/spot or similar"),
        (6, 2, f"replace {FIVE} and 1 more by 2 of s/spot or similar"),
    ],
)
def test_summary_names_five_candidates_and_counts_the_rest(candidates, replacements, text):
    """Several equal replacements are shown as a number."""
    small, medium = ({"instance_type": size, "capacity_type": "spot"} for size in ("s", "m"))
    removed = tuple(DisruptionCandidate(node_claim=f"c{i}", node=f"n{i}", **medium) for i in range(candidates))
    bought = tuple(DisruptionReplacement(name=f"r{i}", **small) for i in range(replacements))
    moves = {"candidates": removed, "replacements": bought, "saving_per_hour": "0.25"}
    spec = NodeDisruptionSpec(reason="Underutilized", decision="replace", method="single-node", **moves)

    found = summary(NodeDisruption(metadata=ObjectMeta(name="d"), spec=spec))
    assert found == f"{text}, saving 0.2500/h (Underutilized)"
