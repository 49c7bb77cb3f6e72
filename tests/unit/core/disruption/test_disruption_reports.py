"""Events and metrics of disruption: what is recorded for a node, a NodePool and a command, with Karpenter's texts."""

import msgspec
import pytest

from journeyman.core.api import labels
from journeyman.core.api.model import parse
from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.disruption.commands import proposal_plan
from journeyman.core.disruption.disruption_metrics import (
    CONSOLIDATION_TYPES,
    command_started,
    consolidation_timeout,
    nodeclaim_disrupted,
)
from journeyman.core.disruption.orchestration import reject_command, start_command
from journeyman.core.plan import merge_plans
from tests.helpers.builders import NOW
from tests.helpers.disrupting import PROTECTED, a_controller, a_roomy_member, disruption_of, first_evaluation
from tests.helpers.fleets import Member, a_fleet, a_member, a_pod, a_pool
from tests.unit.core.disruption.test_orchestration import POLL

EMPTY = (a_member("a"), a_member("b"))
SINGLE = (a_member("n", size="xl", cpus=["1"]),)
MULTI = (a_member("n0", size="l", cpus=["1"]), a_member("n1", size="l", cpus=["1"]))


def evaluated(snapshot, **options):
    """The plans of all evaluations as one."""
    return merge_plans(e.plan for e in a_controller(snapshot, **options).evaluate_methods())


def messages(plan, reason: str) -> dict[str, set[str]]:
    """The Events with this reason: messages by object."""
    found: dict[str, set[str]] = {}
    for event in plan.events:
        if event.reason == reason:
            found.setdefault(event.ref.name, set()).add(event.message)
    return found


def samples(observations, name: str) -> list[tuple[dict[str, str], float]]:
    """Labels and values of a metric."""
    return [(dict(o.labels), o.value) for o in observations if o.name == f"karpenter_{name}"]


def started(disruption, command, snapshot):
    """All observations of the run that starts the command."""
    plan = start_command(disruption, command, snapshot, POLL, a_controller(snapshot).budgets(command.reason))
    return [o for chain in plan.chains for o in chain.observations]


# -- nodes that consolidation leaves alone ----------------------------------------------------------------------------


def without_label(member: Member, key: str) -> Member:
    """The member; neither its Node nor its NodeClaim has the label."""

    def stripped(item):
        kept = {k: v for k, v in item.metadata.labels.items() if k != key}
        return msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, labels=kept))

    return Member(node=stripped(member.node), claim=stripped(member.claim), pods=member.pods)


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (labels.INSTANCE_TYPE, 'Instance Type "" not found'),
        (labels.CAPACITY_TYPE, f'Node does not have label "{labels.CAPACITY_TYPE}"'),
        (labels.ZONE, f'Node does not have label "{labels.ZONE}"'),
    ],
)
def test_node_of_unknown_price_is_not_consolidated_and_may_be_deleted_when_empty(label, message):
    """It is a candidate, whose Events say what is missing."""
    busy, empty = (without_label(a_member("n", size="xl", cpus=cpus), label) for cpus in (["1"], []))
    assert first_evaluation(a_fleet(busy)) is None
    assert messages(evaluated(a_fleet(busy)), "Unconsolidatable") == {"n": {message}, "node-n": {message}}
    assert first_evaluation(a_fleet(empty)).method == "emptiness"


@pytest.mark.parametrize("policy", ["WhenEmptyOrUnderutilized", "Balanced"])
def test_empty_node_has_no_event_when_its_nodepool_allows_consolidation(policy):
    """Emptiness deletes it."""
    snapshot = a_fleet(a_member("n"), pools=[a_pool(consolidationPolicy=policy)])
    assert messages(evaluated(snapshot), "Unconsolidatable") == {}


def test_ineligible_nodes_are_reported_once_in_each_run():
    """Also by a run that continues an earlier one, and does not evaluate multi-node consolidation."""
    snapshot = a_fleet(a_member("n", cpus=["1"]), pools=[a_pool(consolidateAfter="Never")])
    for cursor in ("", "other/1"):
        events = [e for e in evaluated(snapshot, examined_until=cursor).events if e.reason == "Unconsolidatable"]
        assert sorted(e.ref.name for e in events) == ["n", "node-n"]


@pytest.mark.parametrize(("reason", "cpus"), [("underutilized", ["1"]), ("empty", [])])
@pytest.mark.parametrize(("protected", "number"), [(True, 0), (False, 1)])
def test_gauge_has_the_number_of_eligible_nodes_by_reason(reason, cpus, protected, number):
    """A pod with do-not-disrupt makes its node ineligible; a node is eligible for one of the two reasons."""
    daemon = a_pod("daemon", node="node-n", owner="DaemonSet", **(PROTECTED if protected else {}))
    plan = evaluated(a_fleet(a_member("n", cpus=cpus, pods=[daemon])))
    found = samples(plan.observations, "voluntary_disruption_eligible_nodes")
    values = {labels_["reason"]: value for labels_, value in found if labels_["reason"] in {"empty", "underutilized"}}
    assert values == {"empty": 0, "underutilized": 0, reason: number}


# -- commands ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "command"),
    [
        (SINGLE, "replace: [{node}] -> [1 replacement]"),
        (MULTI, "replace: [{node}] (part of 2-node consolidation)"),
        (EMPTY, "delete: [{node}] (part of 2-node consolidation)"),
        (EMPTY[:1], "delete: [{node}]"),
    ],
    ids=["single", "multi", "empty", "one empty"],
)
def test_consolidation_has_events_when_it_is_proposed_and_when_it_is_rejected(members, command):
    """They are repeats only for the same command, and a rejection only for the same kind of failure."""
    snapshot = a_fleet(*members)
    found = first_evaluation(snapshot)
    disruption = disruption_of(found)
    savings = f"savings: {found.command.saving:.2f} per hour"

    candidates = proposal_plan(disruption, found.command, NOW).chains[0]
    rejected = [reject_command(disruption, f"churn: {why}", snapshot) for why in ("a pod came", "a node went")]

    for claim in disruption.claims:
        text = command.format(node=f"node-{claim}")
        why = {f"Consolidation rejected: {text}, reason: churn: a pod came ({savings})"}
        for name in (claim, f"node-{claim}"):
            proposed = messages(candidates, "ConsolidationCandidate")[name]
            assert proposed == {f"Consolidation candidate: {text} ({savings})"}
            assert messages(rejected[0], "ConsolidationRejected")[name] == why
    keys = [{e.key for e in plan.events if e.ref.name == disruption.claims[0]} for plan in rejected]
    assert keys[0] == keys[1] != {e.key for e in candidates.events if e.ref.name == disruption.claims[0]}


def with_late_pods(members):
    """The members, each with another pod that must not be evicted."""
    late = [a_pod(f"late-{m.claim.metadata.name}", node=m.node.metadata.name, **PROTECTED) for m in members]
    return [Member(m.node, m.claim, (*m.pods, pod)) for m, pod in zip(members, late, strict=True)]


def nominated_to(members):
    return [a_pod(f"waits-{i}", status={"nominatedNodeName": m.node.metadata.name}) for i, m in enumerate(members)]


@pytest.mark.parametrize(("members", "type_"), [(EMPTY, "empty"), (MULTI, "multi"), (SINGLE, "single")])
@pytest.mark.parametrize("later", ["no budget", "protected", "nominated"])
def test_candidates_that_fail_validation_are_counted_by_consolidation_type(members, type_, later):
    """Budgets, pods that must not be evicted, or pods that are nominated for the nodes keep all candidates."""
    proposal = disruption_of(first_evaluation(a_fleet(*members)))
    snapshot = a_fleet(
        *(with_late_pods(members) if later == "protected" else members),
        pools=[a_pool(budgets=[{"nodes": "0"}])] if later == "no budget" else [],
        pending=nominated_to(members) if later == "nominated" else [],
        node_disruptions=(proposal,),
    )

    command = a_controller(snapshot).revalidate(proposal)
    plan = reject_command(proposal, command.why_not, snapshot)

    assert command.why_not.startswith("budget" if later == "no budget" and type_ != "empty" else "churn")
    failed = samples(plan.observations, "voluntary_disruption_failed_validations_total")
    assert failed == [({"consolidation_type": type_}, len(members))]


def test_empty_nodes_that_validation_drops_are_counted():
    """The command starts with the others."""
    proposal = disruption_of(first_evaluation(a_fleet(*EMPTY)))
    later = a_fleet(a_member("a", cpus=["1"]), a_member("b"), node_disruptions=(proposal,))
    command = a_controller(later).revalidate(proposal)
    failed = samples(started(proposal, command, later), "voluntary_disruption_failed_validations_total")
    assert failed == [({"consolidation_type": "empty"}, 1)]


@pytest.mark.parametrize(
    ("method", "reason", "decision", "type_"),
    [
        ("drift", "Drifted", "delete", ""),
        ("drift", "Drifted", "replace", ""),
        ("static-drift", "Drifted", "replace", ""),
        ("single-node", "Underutilized", "delete", "single"),
    ],
)
def test_started_command_of_each_method_is_counted_by_decision_and_reason(method, reason, decision, type_):
    """The reason is in lower case; only kinds of consolidation have a type."""
    body = disruption_of(first_evaluation(a_fleet(*SINGLE))).to_wire()
    body["spec"] |= {"method": method, "reason": reason, "decision": decision}

    counted = command_started(parse(NodeDisruption, body))

    values = {"decision": decision, "reason": reason.lower(), "consolidation_type": type_}
    assert samples(counted, "voluntary_disruption_decisions_total") == [(values, 1)]
    of_pool = samples(counted, "voluntary_disruption_decisions_by_nodepool_total")
    assert of_pool == [({**values, "nodepool": "default"}, 1)]


@pytest.mark.parametrize(
    ("members", "decision", "reason", "type_"),
    [
        (EMPTY[:1], "delete", "empty", "empty"),
        (EMPTY, "delete", "empty", "empty"),
        ((*MULTI, a_roomy_member()), "delete", "underutilized", "multi"),
        (MULTI, "replace", "underutilized", "multi"),
    ],
)
def test_started_consolidation_is_counted_with_its_nodes_and_pods(members, decision, reason, type_):
    """A deleted node is counted in the run that starts the command, with its policy and mode of termination."""
    snapshot = a_fleet(*members)
    found = first_evaluation(snapshot)
    observations = started(disruption_of(found), found.command, snapshot)

    values = {"decision": decision, "reason": reason, "consolidation_type": type_}
    assert samples(observations, "voluntary_disruption_decisions_total") == [(values, 1)]
    deleted = found.command.candidates if decision == "delete" else ()
    by_node = {
        "reason": reason,
        "nodepool": "default",
        "capacity_type": "on-demand",
        "consolidation_policy": "when_empty_or_underutilized",
        "termination_mode": "graceful",
    }
    assert samples(observations, "nodeclaims_disrupted_total") == [(by_node, 1)] * len(deleted)
    pods = [(by_node, len(c.reschedulable_pods)) for c in deleted]
    assert samples(observations, "pods_disruption_initiated_total") == pods


@pytest.mark.parametrize(
    ("method", "reason", "policy"),
    [("single-node", "Underutilized", "balanced"), ("emptiness", "Empty", "balanced"), ("drift", "Drifted", "")],
)
def test_deleted_node_is_counted_with_its_policy_only_if_it_was_consolidated(method, reason, policy):
    """Drift flows through the same queue, and the policy has nothing to do with it (queue.go `waitOrTerminate`)."""
    body = disruption_of(first_evaluation(a_fleet(*SINGLE))).to_wire()
    body["spec"] |= {"method": method, "reason": reason}
    pool = a_pool(consolidationPolicy="Balanced")
    counted = nodeclaim_disrupted(parse(NodeDisruption, body), SINGLE[0].claim, pool, 1)
    assert {o.labels["consolidation_policy"] for o in counted} == {policy}


@pytest.mark.parametrize("method", sorted({*CONSOLIDATION_TYPES, "rebalance", "drift"}))
def test_only_passes_of_consolidation_that_can_be_cut_short_count_as_timeouts(method):
    """Karpenter has a time-out for multi-node and for single-node consolidation."""
    expected = {"multi-node": ["multi"], "single-node": ["single"]}.get(method, [])
    assert [o.labels["consolidation_type"] for o in consolidation_timeout(method)] == expected
