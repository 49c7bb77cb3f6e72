"""`journeyman explain node`: why a node stays, from a scenario file and from a cluster."""

from __future__ import annotations

import io
import json

import pytest
from msgspec.structs import replace
from rich.console import Console

from journeyman.cli.explain import explain_in_cluster, explain_in_scenario, print_explanation
from journeyman.cli.main import node
from journeyman.core.api import labels
from journeyman.core.api.objects import NODECLAIM
from journeyman.core.scheduling.results import ChosenPlan, PlanSummary
from journeyman.errors import ConfigurationError
from tests.helpers.builders import NOW, condition, node_class_body, pool_body
from tests.helpers.fakes import Cluster
from tests.helpers.fleets import a_member, a_pod, bodies

TYPE = {
    "name": "m",
    "requirements": [
        {"key": labels.INSTANCE_TYPE, "operator": "In", "values": ["m"]},
        {"key": labels.ARCH, "operator": "In", "values": ["amd64"]},
        {"key": labels.OS, "operator": "In", "values": ["linux"]},
        {"key": labels.ZONE, "operator": "In", "values": ["a"]},
        {"key": labels.CAPACITY_TYPE, "operator": "In", "values": ["on-demand"]},
    ],
    "offerings": [
        {
            "price": 0.4,
            "requirements": [
                {"key": labels.ZONE, "operator": "In", "values": ["a"]},
                {"key": labels.CAPACITY_TYPE, "operator": "In", "values": ["on-demand"]},
            ],
        }
    ],
    "capacity": {"cpu": "4", "memory": "16Gi", "pods": "110"},
}
PDB = {
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {"selector": {}, "maxUnavailable": 0},
    "status": {"disruptionsAllowed": 0},
}


def printed(found) -> str:
    """The command's output on a console of 200 columns."""
    console = Console(file=io.StringIO(), width=200)
    print_explanation(console, *found)
    return console.file.getvalue()


@pytest.fixture
def in_scenario(tmp_path):
    """Return the command's output for a node of a scenario file with these objects."""

    def explain(name, *objects):
        path = tmp_path / "scenario.json"
        document = {"name": "s", "now": NOW.isoformat(), "instanceTypes": [TYPE], "objects": [pool_body(), *objects]}
        path.write_text(json.dumps(document, default=str))
        return printed(explain_in_scenario(path, name))

    return explain


def test_node_of_a_scenario_shows_reason_change_price_pods_and_budgets(in_scenario):
    """The NodeClaim's name is accepted as well."""
    objects = (*bodies(a_member("n", cpus=["1500m"])), PDB)
    text = in_scenario("node-n", *objects)

    assert "Node node-n  NodeClaim n" in text
    assert "m on-demand a, 0.4000 per hour" in text
    assert "Stays  PodDisruptionBudget" in text
    assert "Smallest change  Raise maxUnavailable (0 now) of PodDisruptionBudget default/web" in text
    assert "default/n-0  1500m  1Gi     PodDisruptionBudget default/web" in text
    assert "Underutilized       1        0                       1" in text
    assert in_scenario("n", *objects) == text


def test_node_of_a_scenario_shows_who_places_its_pods_without_it_and_how_the_rivals_lose(in_scenario, tmp_path):
    """The same plan as `solve` and the log name."""
    text = in_scenario("n", *bodies(a_member("n", cpus=["3000m", "500m"])))

    assert "Pods without it  whole classes by price: 1 new node, 0.4000 per hour" in text
    assert "  pod by pod: the same" in text
    _, found = explain_in_scenario(tmp_path / "scenario.json", "n")
    own = {"unschedulable": 0, "pricePerHour": 0.4, "nodes": 1}
    assert found.as_data()["chosenPlan"] == {
        "proposer": "whole classes by price",
        **own,
        "rivals": [{"proposer": "pod by pod", **own}],
    }


def test_json_has_the_same_explanation(in_scenario, tmp_path, capsys):
    """One line, for programs."""
    in_scenario("n", *bodies(a_member("n", cpus=["3500m"])))
    node("n", scenario=tmp_path / "scenario.json", as_json=True)

    found = json.loads(capsys.readouterr().out)
    assert (found["node"], found["nodeClaim"], found["pricePerHour"]) == ("node-n", "n", 0.4)
    assert (bool(found["reason"]), bool(found["message"]), found["command"]) == (True, True, "")
    assert found["chosenPlan"]["proposer"] == "whole classes by price"


def test_rivals_that_lose_show_by_how_much():
    """A pod more, a higher price and more nodes each count."""
    best = PlanSummary(proposer="by class", unschedulable=1, price=0.4, nodes=1)
    rivals = (
        replace(best, proposer="one", unschedulable=2),
        replace(best, proposer="two", price=0.65, nodes=2),
    )
    snapshot, found = explain_in_cluster(a_cluster(a_member("n")).server, "n", NOW)
    text = printed((snapshot, replace(found, chosen_plan=ChosenPlan(plan=best, rivals=rivals))))

    assert "by class: 1 new node, 0.4000 per hour, 1 unschedulable pod" in text
    assert "  one: 1 unschedulable pod more" in text
    assert "  two: 0.2500 per hour more, 1 node more" in text


def test_node_that_a_command_takes_shows_the_command(in_scenario):
    """Emptiness deletes it."""
    assert "Is disrupted  delete (Empty), saving 0.4000 per hour" in in_scenario("n", *bodies(a_member("n")))


def test_unknown_node_is_an_error_that_says_how_to_find_names(in_scenario):
    """A mistyped name must not look like a node without a reason."""
    with pytest.raises(ConfigurationError, match="there is no Node or NodeClaim other"):
        in_scenario("other", *bodies(a_member("n")))


def a_cluster(*members) -> Cluster:
    cluster = Cluster()
    pool = pool_body(metadata={"annotations": {labels.PAUSE_DISRUPTION: "true"}})
    cluster.add(pool, node_class_body(), *bodies(*members))
    return cluster


def test_node_of_a_cluster_shows_its_condition_and_a_pause():
    """Consolidate has written it; nothing is written here."""
    pods = [a_pod("p", node="node-n", metadata={"annotations": {labels.DO_NOT_DISRUPT: "true"}})]
    cluster = a_cluster(a_member("n", pods=pods))
    blocked = {
        **condition("Disruptable", since=NOW),
        "status": "False",
        "reason": "Price",
        "message": "too dear. Smallest change: wait",
    }
    cluster.server.patch(NODECLAIM, "n", {"status": {"conditions": [blocked]}}, subresource="status")
    before = cluster.server.resource_version

    text = printed(explain_in_cluster(cluster.server, "node-n", NOW))

    assert "Stays  Price, since" in text
    assert "too dear" in text
    assert "Smallest change  wait" in text
    assert f"Paused  Disruption of NodePool default is paused: annotation {labels.PAUSE_DISRUPTION}" in text
    assert f"default/p  1    1Gi     {labels.DO_NOT_DISRUPT}" in text
    assert cluster.server.resource_version == before


def test_node_without_the_condition_says_that_no_reason_is_known():
    """It is new, or about to go."""
    text = printed(explain_in_cluster(a_cluster(a_member("n")).server, "n", NOW))

    assert "No reason is known" in text
