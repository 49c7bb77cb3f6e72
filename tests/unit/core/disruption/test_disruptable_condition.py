"""Why nodes stay: the reason, the smallest change that would free each, and the condition that says so."""

from __future__ import annotations

from datetime import timedelta

import pytest

from journeyman.core.api import labels
from journeyman.core.api.objects import LabelSelector, ObjectMeta, PodDisruptionBudget
from journeyman.core.api.objects import PodDisruptionBudgetSpec as PdbSpec
from journeyman.core.api.objects import PodDisruptionBudgetStatus as PdbStatus
from journeyman.core.disruption.candidates import Blocked
from journeyman.core.disruption.consolidatable import assess_consolidatable
from journeyman.core.disruption.controller import DisruptionController
from journeyman.core.disruption.disruptable_condition import WRITES_PER_RUN, NodeStays, disruptable_conditions
from journeyman.core.plan import PatchObject, Requeue
from tests.helpers import builders
from tests.helpers.builders import NOW, a_snapshot, ago, condition, stamp
from tests.helpers.fleets import a_catalogue, a_fleet, a_member, a_pod, a_pool

POLL = timedelta(seconds=10)
PROTECTED = {labels.DO_NOT_DISRUPT: "true"}


def stays(snapshot, **options) -> dict[str, Blocked]:
    """Why each node stays, by NodeClaim, after all methods were evaluated."""
    catalogue = a_catalogue(*(p.metadata.name for p in snapshot.node_pools))
    controller = DisruptionController(snapshot, catalogue, assess_consolidatable(snapshot), **options)
    for _ in controller.evaluate_methods():
        pass
    return {one.nodeclaim: one.blocked for one in controller.why_nodes_stay()}


def a_pdb(name: str, **spec) -> PodDisruptionBudget:
    """A PodDisruptionBudget of all pods of its namespace, which allows no disruption now."""
    return PodDisruptionBudget(
        metadata=ObjectMeta(name=name, namespace="default"),
        spec=PdbSpec(selector=LabelSelector(), **spec),
        status=PdbStatus(disruptions_allowed=0),
    )


def a_busy_fleet(**member):
    return a_fleet(a_member("n", cpus=["1"], **member))


@pytest.mark.parametrize(
    ("snapshot", "reason", "change"),
    [
        (
            a_fleet(a_member("n", cpus=["1"]), pdbs=(a_pdb("web", max_unavailable=0),)),
            "PodDisruptionBudget",
            "Raise maxUnavailable (0 now) of PodDisruptionBudget default/web, or wait until more of its pods are healthy",
        ),
        (
            a_fleet(a_member("n", cpus=["1"]), pdbs=(a_pdb("web", min_available="100%"),)),
            "PodDisruptionBudget",
            "Lower minAvailable (100% now) of PodDisruptionBudget default/web, or wait until more of its pods are healthy",
        ),
        (
            a_fleet(a_member("n", cpus=["1"]), pdbs=(a_pdb("a"), a_pdb("b"))),
            "PodDisruptionBudget",
            "Let only one of PodDisruptionBudgets default/a, default/b select Pod default/n-0: the Eviction API refuses several",
        ),
        (
            a_fleet(a_member("n", pods=[a_pod("p", node="node-n", metadata={"annotations": PROTECTED})])),
            "PodDoNotDisrupt",
            "Remove annotation karpenter.sh/do-not-disrupt of Pod default/p",
        ),
        (
            a_busy_fleet(node={"metadata": {"annotations": PROTECTED}}),
            "DoNotDisrupt",
            "Remove annotation karpenter.sh/do-not-disrupt of Node node-n",
        ),
        (a_busy_fleet(initialized=False), "NotInitialized", ""),
        (a_busy_fleet(pool="gone"), "NodePoolMissing", "Create NodePool gone, or delete the NodeClaim"),
        (
            a_fleet(a_member("n", cpus=["1"]), pools=[a_pool(consolidateAfter="Never")]),
            "ConsolidationDisabled",
            "Set consolidateAfter of NodePool default to a duration",
        ),
        (
            a_fleet(a_member("n", cpus=["1"]), pools=[a_pool(consolidationPolicy="WhenEmpty")]),
            "ConsolidationPolicy",
            "Set consolidationPolicy of NodePool default to WhenEmptyOrUnderutilized",
        ),
        (
            a_fleet(a_member("n"), pools=[a_pool(budgets=[{"nodes": "0"}])]),
            "Budget",
            "Let the budgets of NodePool default allow 1 node now",
        ),
        (a_busy_fleet(quiet_for=timedelta(seconds=5)), "ConsolidateAfter", ""),
        (
            a_fleet(
                a_member("n", size="s", cpus=["1500m"]),
                a_member("full", size="s", cpus=["1", "800m"], node={"metadata": {"annotations": PROTECTED}}),
            ),
            "Price",
            "Free 1.3 vCPU on Node node-full for Pod default/n-0",
        ),
    ],
    ids=[
        "pdb-max-unavailable", "pdb-min-available", "two-pdbs", "pod-annotation", "node-annotation", "not-initialized",
        "no-nodepool", "never", "when-empty", "budget", "consolidate-after", "price",
    ],
)  # fmt: skip
def test_each_node_that_stays_has_a_reason_and_the_smallest_change(snapshot, reason, change):
    """The reason is the first obstacle, in the order in which disruption meets them."""
    blocked = stays(snapshot)["n"]

    assert (blocked.reason, blocked.change) == (reason, change)
    assert blocked.why


def test_reason_names_the_end_of_consolidate_after():
    """It passes by itself, so no change is proposed."""
    blocked = stays(a_busy_fleet(quiet_for=timedelta(seconds=5)))["n"]

    assert f"ends at {stamp(NOW + timedelta(seconds=25))}" in blocked.why
    assert blocked.is_brief


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


def test_min_values_that_cheaper_types_do_not_meet_are_the_reason():
    """Only two types are cheaper, and the NodePool requires three: the replacement would have no choice."""
    types = {"key": labels.INSTANCE_TYPE, "operator": "Exists", "minValues": 3}
    on_demand = {"key": labels.CAPACITY_TYPE, "operator": "In", "values": [labels.ON_DEMAND]}
    spec = {
        "template": {"spec": {"requirements": [on_demand, types]}},
        "disruption": {"consolidateAfter": "30s", "budgets": [{"nodes": "100%"}]},
    }
    blocked = stays(a_fleet(a_member("n", size="l", cpus=["1"]), pools=[builders.a_pool(spec=spec)]))["n"]

    assert (blocked.reason, blocked.change) == ("MinValues", "Lower minValues of NodePool default")


def test_pod_that_no_node_can_run_is_named_with_what_would_help():
    """Its node keeps running it, but no other would take it."""
    pinned = a_pod("p", node="node-n", spec={"nodeSelector": {"team": "red"}})
    blocked = stays(a_fleet(a_member("n", pods=[pinned], node={"metadata": {"labels": {"team": "red"}}})))["n"]

    assert blocked.reason == "PodsDoNotFit"
    assert "default/p" in blocked.why
    assert "node selector" in blocked.change


def test_paused_nodepool_is_the_reason_of_its_nodes():
    """Emptiness does not delete them either."""
    pool = builders.a_pool(metadata={"annotations": {labels.PAUSE_DISRUPTION: "true"}})
    blocked = stays(a_fleet(a_member("n"), pools=[pool]))["n"]

    assert blocked.reason == "Paused"
    assert labels.PAUSE_DISRUPTION in blocked.why


def test_node_with_a_command_has_no_reason_to_stay():
    """Emptiness takes it."""
    assert stays(a_fleet(a_member("n"))) == {}


# -- the condition ------------------------------------------------------------------------------------------------------


def one_that_stays(name="n", *, reason="Price", why="it costs 1.0 more", change="", is_brief=False) -> NodeStays:
    return NodeStays(nodeclaim=name, blocked=Blocked(reason=reason, why=why, change=change, is_brief=is_brief))


def a_claim(name="n", *, stored: tuple[str, str] | None = None, age: timedelta = timedelta(hours=1)):
    """A NodeClaim, with the reason and message of its condition."""
    conditions = [condition(type_, since=ago(hours=1)) for type_ in ("Launched", "Registered", "Initialized", "Ready")]
    if stored is not None:
        reason, message = stored
        conditions.append(
            {**condition("Disruptable", since=ago(hours=1)), "status": "False", "reason": reason, "message": message}
        )
    return builders.a_claim(name, metadata={"creationTimestamp": stamp(NOW - age)}, status={"conditions": conditions})


def written(plan) -> dict[str, dict]:
    """The condition that the plan writes on each NodeClaim; None if it removes it."""
    patches = (a for a in plan.actions if isinstance(a, PatchObject))
    return {
        p.ref.name: next((c for c in p.patch["status"]["conditions"] if c["type"] == "Disruptable"), None)
        for p in patches
    }


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


@pytest.mark.parametrize(
    ("stored", "one", "is_written"),
    [
        (("Price", "it costs 7.5 more"), one_that_stays(), False),
        (("Price", "Pod web-1 needs 200m more"), one_that_stays(why="Pod web-2 needs 200m more"), True),
        (("Budget", "it costs 1.0 more"), one_that_stays(), True),
        (("Price", "it costs 7.5 more"), one_that_stays(reason="ConsolidateAfter", is_brief=True), False),
        (None, one_that_stays(reason="ConsolidateAfter", is_brief=True), True),
        (None, one_that_stays(reason="Deleting"), False),
    ],
    ids=["another-amount", "another-pod", "another-reason", "a-brief-reason", "nothing-else-known", "deleting"],
)
def test_condition_is_written_when_its_reason_changes(stored, one, is_written):
    """Amounts and times change in every run."""
    plan = disruptable_conditions(a_snapshot(claims=(a_claim(stored=stored),)), [one], POLL)

    assert bool(plan.actions) is is_written


def test_brief_reason_of_a_young_nodeclaim_is_not_written():
    """Otherwise each launch would cost two more writes."""
    claim = a_claim(age=timedelta(minutes=2))
    one = one_that_stays(reason="NotInitialized", is_brief=True)

    assert disruptable_conditions(a_snapshot(claims=(claim,)), [one], POLL).actions == ()


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
