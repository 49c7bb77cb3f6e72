"""Hibernation: which nodes one command deletes, and what others may do meanwhile."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.disruption.commands import to_node_disruption
from journeyman.core.disruption.simulation import Simulation
from journeyman.core.scheduling.scheduler import solve
from journeyman.core.state import Snapshot
from tests.helpers.builders import NOW, a_pod
from tests.helpers.disrupting import PROTECTED, controller_of
from tests.helpers.fleets import a_catalogue, a_fleet, a_member, a_pool

OPEN, CLOSED = "0 20 * * * / 2h", "0 22 * * * / 2h"  # it is nine in the evening


def a_sleeper(name: str = "default", *, hibernate: str = OPEN, **disruption):
    """A NodePool that never consolidates."""
    pool = a_pool(name, **{"consolidateAfter": "Never", **disruption})
    pool.metadata.annotations[labels.HIBERNATE] = hibernate
    return pool


def proposed(snapshot: Snapshot):
    return next((e for e in controller_of(snapshot).evaluate_methods() if e.commands), None)


def names(command):
    return [candidate.nodeclaim for candidate in command.candidates]


def test_empty_nodes_go_first_and_then_those_that_save_most():
    """Nodes of NodePools that do not hibernate stay; pods need no other node, and nothing is launched."""
    fleet = a_fleet(
        a_member("busy", size="s", cpus=["1"] * 2),
        a_member("large", size="xl", cpus=["1"]),
        a_member("empty", size="s"),
        a_member("awake", pool="awake", cpus=["1"]),
        pools=[a_sleeper(), a_pool("awake", consolidateAfter="Never")],
    )
    evaluation = proposed(fleet)

    (command,) = evaluation.commands
    assert (evaluation.method, command.reason.value) == ("hibernation", "Hibernated")
    assert names(command) == ["empty", "large", "busy"]
    assert command.replacements == ()


@pytest.mark.parametrize(
    ("budgets", "number"),
    [
        ([{"nodes": "1"}], 1),
        ([{"nodes": "50%"}], 2),
        ([{"nodes": "1", "reasons": ["Drifted", "Underutilized", "Empty"]}], 3),
        ([{"nodes": "0"}], 0),
    ],
)
def test_hibernation_stays_within_budgets_without_reasons(budgets, number):
    """A budget that lists reasons does not limit it, as it cannot list this one."""
    evaluation = proposed(
        a_fleet(*(a_member(f"n{i}", cpus=["1"]) for i in range(3)), pools=[a_sleeper(budgets=budgets)])
    )
    assert sum(len(command.candidates) for command in (evaluation.commands if evaluation else ())) == number


def test_proposal_is_validated_by_what_is_so_then():
    """Nodes that gained a protected pod are left out; once the window is closed, none qualifies."""
    members = [a_member("a", cpus=["1"]), a_member("b", cpus=["1"])]
    fleet = a_fleet(*members, pools=[a_sleeper()])
    disruption = to_node_disruption(proposed(fleet).commands[0], "hibernation", NOW)
    protected = a_pod("p", node="node-a", **PROTECTED)
    later = replace(fleet, now=NOW + timedelta(hours=1))

    assert names(controller_of(fleet).revalidate(disruption)) == ["a", "b"]
    assert names(controller_of(replace(fleet, pods=(*fleet.pods, protected))).revalidate(disruption)) == ["b"]
    rejected = controller_of(later).revalidate(disruption)
    assert (rejected.candidates, rejected.why_not.partition(":")[0]) == ((), "churn")


@pytest.mark.parametrize(("hibernate", "launches"), [(OPEN, 0), (CLOSED, 1)])
def test_hibernating_nodepool_launches_nothing(hibernate, launches):
    """The pod's error says why; independent verification agrees."""
    fleet = replace(a_fleet(pools=[a_sleeper(hibernate=hibernate)]), pods=(a_pod("p", cpu="1"),))
    results = solve(fleet, a_catalogue(*(p.metadata.name for p in fleet.node_pools)), pods=fleet.pods)
    assert len(results.new_claims) == launches
    assert ("hibernates" in str(results.pod_errors)) == (not launches)


def test_pods_of_hibernating_nodes_may_wait_while_others_consolidate():
    """Their node is terminating and they have no other; the empty node of another NodePool goes nevertheless."""
    leaving = a_member("leaving", deleting=True, cpus=["15"], size="xl")
    other = a_member("other", pool="awake", cpus=["1"], size="s")
    fleet = a_fleet(leaving, other, pools=[a_sleeper(), a_pool("awake")])
    pods = {p.key: p for p in fleet.pods}
    pinned = pods["default/leaving-0"]
    pods[pinned.key] = replace(pinned, spec=replace(pinned.spec, node_selector={labels.NODEPOOL: "default"}))

    result = Simulation(replace(fleet, pods=tuple(pods.values())), a_catalogue("awake", "default")).without(())

    assert set(result.results.pod_errors) == {"default/leaving-0"}
    assert result.errors == {}
