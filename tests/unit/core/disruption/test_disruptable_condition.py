"""Why nodes stay: the reason, the smallest change that would free each, and the condition that says so."""

from datetime import timedelta

import pytest

from journeyman.core.api import labels
from journeyman.core.disruption.candidates import Blocked
from journeyman.core.disruption.consolidatable import assess_consolidatable
from journeyman.core.disruption.controller import DisruptionController
from journeyman.core.disruption.disruptable_condition import WRITES_PER_RUN, NodeStays, disruptable_conditions
from journeyman.core.plan import PatchObject, Requeue
from tests.helpers import builders
from tests.helpers.actions import of_type
from tests.helpers.builders import NOW, a_snapshot, ago, condition, stamp
from tests.helpers.disrupting import PROTECTED, a_pdb, with_min_values
from tests.helpers.fleets import a_catalogue, a_fleet, a_member, a_pod, a_pool
from tests.helpers.small_clusters import table

POLL = timedelta(seconds=10)


def stays(snapshot, **options) -> dict[str, Blocked]:
    """Why each node stays, by NodeClaim, after all methods were evaluated."""
    catalogue = a_catalogue(*(p.metadata.name for p in snapshot.node_pools))
    controller = DisruptionController(snapshot, catalogue, assess_consolidatable(snapshot), **options)
    for _ in controller.evaluate_methods():
        pass
    return {one.nodeclaim: one.blocked for one in controller.why_nodes_stay()}


def with_pdbs(*pdbs):
    """A fleet whose pod these PodDisruptionBudgets protect."""
    return a_fleet(a_member("n", cpus=["1"]), pdbs=pdbs)


def a_busy_fleet(**member):
    return a_fleet(a_member("n", cpus=["1"], **member))


HEALTHY = "of PodDisruptionBudget default/web, or wait until more of its pods are healthy"
TWO = (
    "Let only one of PodDisruptionBudgets default/a, default/b select Pod default/n-0: the Eviction API refuses several"
)
NEVER, WHEN_EMPTY = {"consolidateAfter": "Never"}, {"consolidationPolicy": "WhenEmpty"}
CROWDED = (a_member("n", size="s", cpus=["1500m"]), a_member("full", size="s", cpus=["1", "800m"], node=PROTECTED))
PAUSED = builders.a_pool(metadata={"annotations": {labels.PAUSE_DISRUPTION: "true"}})


@table(
    "snapshot, reason, change",
    pdb_max_unavailable=(
        with_pdbs(a_pdb(maxUnavailable=0)), "PodDisruptionBudget", f"Raise maxUnavailable (0 now) {HEALTHY}"
    ),
    pdb_min_available=(
        with_pdbs(a_pdb(minAvailable="100%")), "PodDisruptionBudget", f"Lower minAvailable (100% now) {HEALTHY}"
    ),
    two_pdbs=(with_pdbs(a_pdb("a"), a_pdb("b")), "PodDisruptionBudget", TWO),
    pod_annotation=(
        a_fleet(a_member("n", pods=[a_pod("p", node="node-n", **PROTECTED)])),
        "PodDoNotDisrupt",
        "Remove annotation karpenter.sh/do-not-disrupt of Pod default/p",
    ),
    node_annotation=(
        a_busy_fleet(node=PROTECTED), "DoNotDisrupt", "Remove annotation karpenter.sh/do-not-disrupt of Node node-n"
    ),
    not_initialized=(a_busy_fleet(initialized=False), "NotInitialized", ""),
    no_nodepool=(a_busy_fleet(pool="gone"), "NodePoolMissing", "Create NodePool gone, or delete the NodeClaim"),
    never=(
        a_fleet(a_member("n", cpus=["1"]), pools=[a_pool(**NEVER)]),
        "ConsolidationDisabled",
        "Set consolidateAfter of NodePool default to a duration",
    ),
    when_empty=(
        a_fleet(a_member("n", cpus=["1"]), pools=[a_pool(**WHEN_EMPTY)]),
        "ConsolidationPolicy",
        "Set consolidationPolicy of NodePool default to WhenEmptyOrUnderutilized",
    ),
    budget=(
        a_fleet(a_member("n"), pools=[a_pool(budgets=[{"nodes": "0"}])]),
        "Budget",
        "Let the budgets of NodePool default allow 1 node now",
    ),
    consolidate_after=(a_busy_fleet(quiet_for=timedelta(seconds=5)), "ConsolidateAfter", ""),
    price=(a_fleet(*CROWDED), "Price", "Free 1.3 vCPU on Node node-full for Pod default/n-0"),
    min_values=(
        a_fleet(
            a_member("n", size="l", cpus=["1"]),
            pools=[with_min_values(3, consolidateAfter="30s", budgets=[{"nodes": "100%"}])],
        ),
        "MinValues",
        "Lower minValues of NodePool default",
    ),
)  # fmt: skip
def test_each_node_that_stays_has_a_reason_and_the_smallest_change(snapshot, reason, change):
    """The reason is the first obstacle, in the order in which disruption meets them."""
    blocked = stays(snapshot)["n"]
    assert (blocked.reason, blocked.change) == (reason, change)
    assert blocked.why


@pytest.mark.parametrize(
    ("size", "capacity_type", "text"),
    [
        ("s", labels.ON_DEMAND, "costs 0.2000 per hour, this one 0.2000"),
        ("s", labels.SPOT, "costs 0.2000 per hour, 0.1200 more, this one 0.0800"),
    ],
)
def test_price_says_what_the_replacement_costs_and_by_how_much_it_is_too_dear(size, capacity_type, text):
    """The NodePool launches on-demand nodes; the smallest node's cheapest replacement is its like."""
    blocked = stays(a_fleet(a_member("n", size=size, capacity_type=capacity_type, cpus=["1500m"])))["n"]
    assert blocked.reason == "Price"
    assert blocked.why.startswith("Can't replace with a cheaper node: no other node may run pod default/n-0")
    assert blocked.why.endswith(text)
    assert blocked.change.startswith("Add a node that can run Pod default/n-0")


def test_pod_that_no_node_can_run_is_named_with_what_would_help():
    """Its node keeps running it, but no other would take it."""
    pinned = a_pod("p", node="node-n", spec={"nodeSelector": {"team": "red"}})
    blocked = stays(a_fleet(a_member("n", pods=[pinned], node={"metadata": {"labels": {"team": "red"}}})))["n"]
    assert blocked.reason == "PodsDoNotFit"
    assert "default/p" in blocked.why
    assert "node selector" in blocked.change


def test_paused_nodepool_is_the_reason_of_its_nodes():
    """Emptiness does not delete them either; it takes a node that is not paused, which has no reason to stay.

    The end of a consolidateAfter is named: it passes by itself.
    """
    brief = stays(a_busy_fleet(quiet_for=timedelta(seconds=5)))["n"]
    assert f"ends at {stamp(NOW + timedelta(seconds=25))}" in brief.why
    assert brief.is_brief
    assert stays(a_fleet(a_member("n"))) == {}
    blocked = stays(a_fleet(a_member("n"), pools=[PAUSED]))["n"]
    assert blocked.reason == "Paused"
    assert labels.PAUSE_DISRUPTION in blocked.why


# -- the condition ------------------------------------------------------------------------------------------------------


def one_that_stays(name="n", *, reason="Price", why="it costs 1.0 more", change="", is_brief=False) -> NodeStays:
    return NodeStays(nodeclaim=name, blocked=Blocked(reason=reason, why=why, change=change, is_brief=is_brief))


def a_claim(name="n", *, stored: tuple[str, str] | None = None, age: timedelta = timedelta(hours=1)):
    """A NodeClaim, with the reason and message of its condition."""
    conditions = [condition(type_, since=ago(hours=1)) for type_ in ("Launched", "Registered", "Initialized", "Ready")]
    if stored is not None:
        reason, message = stored
        conditions.append(condition("Disruptable", "False", since=ago(hours=1), reason=reason, message=message))
    return builders.a_claim(name, metadata={"creationTimestamp": stamp(NOW - age)}, status={"conditions": conditions})


def written(plan) -> dict[str, dict]:
    """The condition that the plan writes on each NodeClaim; None if it removes it."""
    conditions = {p.ref.name: p.patch["status"]["conditions"] for p in of_type(plan, PatchObject)}
    return {name: next((c for c in each if c["type"] == "Disruptable"), None) for name, each in conditions.items()}


def test_condition_has_the_reason_and_the_smallest_change():
    """The other conditions and Ready stay as they are."""
    plan = disruptable_conditions(a_snapshot(claims=(a_claim(),)), [one_that_stays(change="Do this")], POLL)
    [patch] = plan.actions

    assert {c["type"]: c["status"] for c in patch.patch["status"]["conditions"]} == {
        "Launched": "True", "Registered": "True", "Initialized": "True", "Ready": "True", "Disruptable": "False",
    }  # fmt: skip
    assert written(plan)["n"]["reason"] == "Price"
    assert written(plan)["n"]["message"] == "it costs 1.0 more. Smallest change: Do this"
    assert (patch.subresource, bool(patch.resource_version)) == ("status", True)


BRIEF = one_that_stays(reason="ConsolidateAfter", is_brief=True)


@table(
    "stored, one, is_written",
    another_amount=(("Price", "it costs 7.5 more"), one_that_stays(), False),
    another_pod=(("Price", "Pod web-1 needs 200m more"), one_that_stays(why="Pod web-2 needs 200m more"), True),
    another_reason=(("Budget", "it costs 1.0 more"), one_that_stays(), True),
    a_brief_reason=(("Price", "it costs 7.5 more"), BRIEF, False),
    nothing_else_known=(None, BRIEF, True),
    deleting=(None, one_that_stays(reason="Deleting"), False),
)
def test_condition_is_written_when_its_reason_changes(stored, one, is_written):
    """Amounts and times change in every run. A brief reason of a young NodeClaim would cost each launch two more writes."""
    plan = disruptable_conditions(a_snapshot(claims=(a_claim(stored=stored),)), [one], POLL)
    assert bool(plan.actions) is is_written
    young = a_claim(stored=stored, age=timedelta(minutes=2))
    assert bool(disruptable_conditions(a_snapshot(claims=(young,)), [BRIEF], POLL).actions) is False


def test_writes_of_a_run_are_bounded_and_the_rest_is_requeued():
    """Nodes without the condition come first."""
    names = [f"n{i:04}" for i in range(WRITES_PER_RUN + 5)]
    claims = [a_claim(name, stored=("Budget", "x") if index < 9 else None) for index, name in enumerate(names)]
    plan = disruptable_conditions(a_snapshot(claims=tuple(claims)), [one_that_stays(name) for name in names], POLL)

    assert len(written(plan)) == WRITES_PER_RUN
    assert set(names[9:]) <= set(written(plan))
    [requeue] = [a for a in plan.actions if isinstance(a, Requeue)]
    assert requeue.at > NOW
    assert "5 more NodeClaims" in requeue.reason
