"""The policy Balanced: which moves it approves, and what it records."""

import math

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue
from journeyman.core.disruption.balanced_policy import BalancedScores, NodePoolTotals, score_move
from journeyman.core.disruption.candidates import by_savings
from journeyman.core.disruption.commands import Command
from journeyman.core.disruption.single_node_consolidation import eligible_candidates
from journeyman.core.plan import merge_plans
from tests.helpers import builders
from tests.helpers.disrupting import PROTECTED, SOLD_OUT, a_controller, a_roomy_member, first_evaluation, proposed
from tests.helpers.fleets import a_catalogue, a_fleet, a_member, a_pool, price
from tests.unit.core.disruption.test_emptiness import a_candidate

BALANCED = {"consolidationPolicy": "Balanced"}
EXAMPLE = NodePoolTotals(price=58.08, disruption_cost=90)
"""Eight nodes at 4.84 and two at 9.68, with 80 pods: the example of Karpenter's specs."""


HUNDRED = NodePoolTotals(price=100, disruption_cost=100)


def totals(price, disruption_cost):
    return NodePoolTotals(price=price, disruption_cost=disruption_cost)


@pytest.mark.parametrize(
    ("savings", "disruption_cost", "of", "k", "score", "approved"),
    [
        (7.26, 4, EXAMPLE, 2, 2.8125, True),
        (4.84, 5, EXAMPLE, 2, 1.5, True),
        (2.42, 9, EXAMPLE, 2, 0.41667, False),
        (2.42, 9, EXAMPLE, 3, 0.41667, True),
        (2.42, 9, EXAMPLE, 1, 0.41667, False),
        (0.0, 11, EXAMPLE, 2, 0.0, False),
        (2.42, 9, totals(48.40, 90), 2, 0.5, True),
        (4.84, 5, totals(58.08, 117), 2, 1.95, True),  # few pods
        (4.84, 32, totals(58.08, 117), 2, 0.30469, False),
        (7.26, 4, totals(580.80, 900), 2, 2.8125, True),
        (4.84, 0, EXAMPLE, 2, math.inf, True),
        (0.0, 0, EXAMPLE, 2, 0.0, False),
        (4.84, 5, totals(0, 90), 2, 0.0, False),
        (4.84, 4, totals(48.40, 90), 2, 2.25, True),  # an on-demand NodePool
        (1.45, 4, totals(14.50, 90), 2, 2.25, True),
        (20, 5, HUNDRED, 2, 4.0, True),
        (10, 10, HUNDRED, 2, 1.0, True),
        (5, 50, HUNDRED, 2, 0.1, False),
        (10, 0, HUNDRED, 2, math.inf, True),
        (0, 10, HUNDRED, 2, 0.0, False),
        (-5, 10, HUNDRED, 2, 0.0, False),
    ],
)
def test_score_is_the_share_of_savings_over_the_share_of_disruption(savings, disruption_cost, of, k, score, approved):
    """A move is approved from 1/k on, by default 0.5. It is zero without savings and infinite without disruption."""
    found = [score_move(savings, disruption_cost, of, k), *([score_move(savings, disruption_cost, of)] * (k == 2))]
    for each in found:
        assert (each.value, each.is_approved) == (pytest.approx(score, abs=1e-4), approved)


@pytest.mark.parametrize(
    ("policy", "balanced"), [("Balanced", True), ("WhenEmptyOrUnderutilized", False), ("WhenEmpty", False)]
)
def test_only_nodepools_with_the_policy_balanced_are_scored(policy, balanced):
    """All others approve every move. Balanced filters moves, not nodes: nodes of both policies are candidates."""
    snapshot = a_fleet(a_member("n", cpus=["1"]), pools=[a_pool(consolidationPolicy=policy)])
    assert bool(scores_of(snapshot).totals) is balanced
    eligible = eligible_candidates([replace(a_candidate("n", cost=2.0), zone="a")], snapshot)
    assert bool(eligible) is (policy != "WhenEmpty")


def scores_of(snapshot) -> BalancedScores:
    """The scores in a cluster with the usual instance types."""
    return BalancedScores.of(snapshot, a_catalogue(*(p.metadata.name for p in snapshot.node_pools)))


def test_totals_include_nodes_that_are_no_candidates_and_nodes_of_unknown_price():
    """DaemonSet pods cost nothing to disrupt; each node costs 1."""
    gone = of_type("gone")
    snapshot = a_fleet(
        a_member("plain", cpus=["1"]),
        a_member("joining", initialized=False),
        a_member("protected", cpus=["1"], node=PROTECTED),
        a_member("unpriced", cpus=["1"], node=gone, claim=gone),
        a_member("elsewhere", pool="other", cpus=["1"]),
        pools=[a_pool(**BALANCED), a_pool("other")],
    )

    (totals,) = scores_of(snapshot).totals.values()

    assert totals == NodePoolTotals(price=pytest.approx(3 * price("m")), disruption_cost=7)


def a_move(*candidates, **fields) -> Command:
    """A command that deletes these candidates."""
    return Command(reason="Underutilized", candidates=candidates, **fields)


def of_totals(**totals) -> BalancedScores:
    """Scores of NodePools with these prices and disruption costs."""
    return BalancedScores(totals={pool: NodePoolTotals(price=p, disruption_cost=d) for pool, (p, d) in totals.items()})


@pytest.mark.parametrize(
    ("pools", "expected"),
    [
        (["one"], {"one": 1.0}),
        (["one", "one"], {"one": 1.0}),
        (["one", "two"], {"one": 1.0, "two": 0.5}),
        (["one", "plain"], {"one": 1.0}),
        (["plain"], {}),
    ],
)
def test_each_balanced_nodepool_scores_its_share_of_the_savings(pools, expected):
    """NodePool `two` has twice as many nodes' price per pod, so that the same move is worth half."""
    candidates = [a_candidate(f"n{i}", pool=pool, cost=2.0) for i, pool in enumerate(pools)]
    scores = of_totals(one=(10, 20), two=(20, 20))
    found = scores.of_command(a_move(*candidates))
    assert {pool: score.value for pool, score in found.items()} == pytest.approx(expected)
    assert scores.why_not(a_move(*candidates)) == ""


def test_command_is_refused_when_one_nodepool_refuses_it():
    """The scores of the other NodePools are recorded too."""
    scores = of_totals(a=(1000, 20), b=(10, 20))
    command = a_move(a_candidate("a", pool="a", cost=2.0), a_candidate("b", pool="b", cost=2.0))

    assert {pool: score.is_approved for pool, score in scores.of_command(command).items()} == {"a": False, "b": True}
    assert scores.why_not(command) == (
        'NodePool "a" has consolidation policy Balanced: score 0.01 < threshold 0.50 (k: 2, savings 0.1%, '
        "disruption 10.0%)"
    )


def test_savings_count_the_price_of_nodes_also_when_their_offering_is_unavailable():
    """A node of an unknown instance type has no price, and saves nothing."""
    snapshot = a_fleet(a_member("n"), a_member("unpriced", node=of_type("gone")), pools=[a_pool(**BALANCED)])
    found = first_evaluation(snapshot, catalogue=a_catalogue(of=SOLD_OUT))
    assert {c.nodeclaim: c.price for c in found.command.candidates} == {"n": price("m"), "unpriced": 0}
    assert found.command.saving == price("m")


@pytest.mark.parametrize("pools", [["default"], ["balanced"], ["default", "balanced"]])
def test_candidates_are_sorted_by_price_per_disruption_cost(pools):
    """The policy does not matter; a node of unknown price is the last one."""
    priced = {"none": (0.0, 4.0), "few": (5.0, 4.0), "one": (10.0, 2.0), "many": (1.0, 9.0)}
    candidates = [
        a_candidate(name, price=usd, cost=cost, pool=pools[i % len(pools)])
        for i, (name, (usd, cost)) in enumerate(priced.items())
    ]

    ratios = {c.nodeclaim: c.savings_ratio for c in sorted(candidates, key=by_savings)}

    assert list(ratios.items()) == [("one", 5.0), ("few", 1.25), ("many", pytest.approx(1 / 9)), ("none", 0.0)]


def observed(plan) -> dict[tuple[str, str, str, str], float]:
    """The samples of Balanced's metrics, by name, NodePool, policy and decision."""
    prefix, keys = "karpenter_consolidation_", ("nodepool", "policy", "decision")
    found = [o for o in plan.observations if o.name.startswith(prefix)]
    return {(o.name.removeprefix(prefix), *(o.labels[key] for key in keys)): o.value for o in found}


OVERSIZED = a_member("n", size="xl", cpus=["1"])


def test_replacing_an_oversized_node_is_approved_and_recorded():
    """The Events on the node and its NodeClaim have the score; the metrics have it by NodePool and policy."""
    snapshot = a_fleet(OVERSIZED, pools=[a_pool(**BALANCED)])
    controller = a_controller(snapshot)
    found = first_evaluation(snapshot)

    plan = controller.approval(found.command)

    assert proposed(snapshot)[:2] == ("single-node", ["n"])
    score = found.command.saving / price("xl")
    text = f"score {score:.2f} >= threshold 0.50 (k: 2, savings {100 * score:.1f}%, disruption 100.0%)"
    assert {(e.reason, e.ref.name, e.message) for e in plan.events} == {
        ("ConsolidationApproved", "n", text),
        ("ConsolidationApproved", "node-n", text),
    }
    assert observed(plan) == {
        ("moves_total", "default", "Balanced", "approved"): 1,
        ("score", "default", "Balanced", "approved"): pytest.approx(score),
    }


@pytest.mark.parametrize(("policy", "replaced"), [("Balanced", False), ("WhenEmptyOrUnderutilized", True)])
def test_replacement_that_saves_little_is_refused_and_has_metrics_but_no_events(policy, replaced):
    """Its cheaper type costs 80 % on demand; as Spot, which the NodePool does not allow, it would cost 20 %."""
    types = (
        builders.an_instance_type("source", cpu=8, memory_gib=32, price=0.5),
        builders.an_instance_type("dest", cpu=4, memory_gib=16, price=0.4, spot=0.1),
    )
    member = a_member("n", size="m", cpus=["1"] * 3, node=of_type("source"), claim=of_type("source"))
    snapshot = a_fleet(member, pools=[a_pool(consolidationPolicy=policy)])
    catalogue = Catalogue({"default": types})

    plan = merged(a_controller(snapshot, catalogue=catalogue).evaluate_methods())

    assert (proposed(snapshot, catalogue=catalogue) is not None) is replaced
    assert not [e for e in plan.events if e.ref.resource.kind != "NodePool" and e.reason != "Unconsolidatable"]
    rejected = ("default", policy, "rejected")
    refused = {("moves_total", *rejected): 1, ("score", *rejected): pytest.approx(0.2)}
    assert observed(plan) == ({} if replaced else refused)


def of_type(name: str) -> dict:
    """Labels of a node or NodeClaim of this instance type."""
    return {"metadata": {"labels": {labels.INSTANCE_TYPE: name}}}


def merged(evaluations):
    """The plans of all evaluations as one."""
    return merge_plans(e.plan for e in evaluations)


def merge_pair(**disruption):
    """Two NodePools, each with an underused node; `b` also has a node that can take the pods of one of them."""
    members = (
        a_member("a1", pool="a", size="m", cpus=["1"]),
        a_member("b1", pool="b", size="m", cpus=["1"]),
        a_member("roomy", pool="b", size="m", cpus=["300m"] * 5),
    )
    return a_fleet(*members, pools=[a_pool("a", **BALANCED), a_pool("b", **disruption)])


@pytest.mark.parametrize("other", ["Balanced", "WhenEmptyOrUnderutilized"])
def test_consolidation_of_several_nodes_is_approved_on_each_balanced_nodepool(other):
    """A NodePool without the policy has neither an Event nor a score; its move counts as approved."""
    snapshot = merge_pair(consolidationPolicy=other)
    found = first_evaluation(snapshot)

    plan = a_controller(snapshot).approval(found.command)

    assert (found.method, found.command.decision.value) == ("multi-node", "delete")
    assert {c.nodeclaim for c in found.command.candidates} == {"a1", "b1"}
    scored = {"a", "b"} if other == "Balanced" else {"a"}
    assert {(e.reason, e.ref.resource.kind, e.ref.name) for e in plan.events} == {
        ("ConsolidationApproved", "NodePool", pool) for pool in scored
    }
    assert {key[:2] for key in observed(plan) if key[0] == "score"} == {("score", pool) for pool in scored}
    assert {key[1:] for key in observed(plan) if key[0] == "moves_total"} == {
        ("a", "Balanced", "approved"),
        ("b", other, "approved"),
    }


def test_several_nodes_that_save_little_are_refused_with_metrics_only():
    """Moving twelve of twelve pods would save a fifth of the price; moving six of them, a tenth."""
    members = (a_member(f"n{i}", size="s", cpus=["50m"] * 6) for i in range(2))
    snapshot = a_fleet(*members, a_roomy_member(), pools=[a_pool(**BALANCED)])

    plan = merged(a_controller(snapshot).evaluate_methods())

    assert proposed(snapshot) is None
    assert not [e for e in plan.events if e.reason == "ConsolidationApproved"]
    assert set(observed(plan)) == {(name, "default", "Balanced", "rejected") for name in ("moves_total", "score")}
    scores = [o.value for o in plan.observations if o.name == "karpenter_consolidation_score"]
    assert scores == pytest.approx([0.2 / (14 / 15)] + [0.1 / (7 / 15)] * 2)  # both nodes together, then each alone


@pytest.mark.parametrize(("nodes", "method"), [("0%", None), ("100%", "single-node")])
def test_budget_of_zero_blocks_balanced_nodepools_too(nodes, method):
    """Their NodePool has an Event that says so."""
    snapshot = a_fleet(OVERSIZED, pools=[a_pool(budgets=[{"nodes": nodes}], **BALANCED)])
    assert (proposed(snapshot) or [None])[0] == method


def test_nodes_of_a_balanced_nodepool_are_chosen_by_savings_ratio_and_empty_ones_first():
    """Of four nodes, the budget allows two: the empty ones, or those that save most per pod."""
    pools = [a_pool(budgets=[{"nodes": "2"}], **BALANCED)]
    half = [a_member(f"{kind}{i}", cpus=cpus) for kind, cpus in (("busy", ["1"]), ("empty", [])) for i in range(2)]
    full = [
        a_member("dear", size="xl", cpus=["1"]),
        a_member("good", size="l", cpus=["1"]),
        a_member("cheap", size="s", cpus=["500m"]),
        a_member("crowded", size="xl", cpus=["200m"] * 10),
    ]

    assert proposed(a_fleet(*half, pools=pools)) == ("emptiness", ["empty0", "empty1"], [])
    assert proposed(a_fleet(*full, pools=pools)) == ("multi-node", ["dear", "good"], [])
