"""Hibernation: which nodes one command deletes, and what others may do meanwhile."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue
from journeyman.core.disruption.commands import to_node_disruption
from journeyman.core.disruption.consolidatable import Consolidatability
from journeyman.core.disruption.controller import DisruptionController
from journeyman.core.disruption.simulation import Simulation
from journeyman.core.plan import Plan
from journeyman.core.scheduling.scheduler import solve
from journeyman.core.state import Snapshot
from tests.helpers.builders import NOW, a_pod
from tests.helpers.fleets import TYPES, a_fleet, a_member, a_pool

OPEN, CLOSED = "0 20 * * * / 2h", "0 22 * * * / 2h"  # it is nine in the evening


def a_sleeper(name: str = "default", *, hibernate: str = OPEN, **disruption):
    """A NodePool that never consolidates."""
    pool = a_pool(name, **{"consolidateAfter": "Never", **disruption})
    pool.metadata.annotations[labels.HIBERNATE] = hibernate
    return pool


def a_catalogue(snapshot: Snapshot) -> Catalogue:
    return Catalogue({pool.metadata.name: TYPES for pool in snapshot.node_pools})


def a_controller(snapshot: Snapshot) -> DisruptionController:
    unsettled = Consolidatability(claims=frozenset(), within_window=frozenset(), plan=Plan(), next_at=None)
    return DisruptionController(snapshot, a_catalogue(snapshot), unsettled)


def proposed(snapshot: Snapshot):
    return next((e for e in a_controller(snapshot).evaluate_methods() if e.commands), None)


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
    protected = a_pod("p", node="node-a", metadata={"annotations": {labels.DO_NOT_DISRUPT: "true"}})
    later = replace(fleet, now=NOW + timedelta(hours=1))

    assert names(a_controller(fleet).revalidate(disruption)) == ["a", "b"]
    assert names(a_controller(replace(fleet, pods=(*fleet.pods, protected))).revalidate(disruption)) == ["b"]
    rejected = a_controller(later).revalidate(disruption)
    assert (rejected.candidates, rejected.why_not.partition(":")[0]) == ((), "churn")


@pytest.mark.parametrize(("hibernate", "launches"), [(OPEN, 0), (CLOSED, 1)])
def test_hibernating_nodepool_launches_nothing(hibernate, launches):
    """The pod's error says why; independent verification agrees."""
    fleet = replace(a_fleet(pools=[a_sleeper(hibernate=hibernate)]), pods=(a_pod("p", cpu="1"),))
    results = solve(fleet, a_catalogue(fleet), pods=fleet.pods)

    assert len(results.new_claims) == launches
    assert ("hibernates" in str(results.pod_errors)) == (not launches)


def test_pods_of_hibernating_nodes_may_wait_while_others_consolidate():
    """Their node is terminating and they have no other; the empty node of another NodePool goes nevertheless."""
    leaving = a_member("leaving", deleting=True, cpus=["15"], size="xl")
    other = a_member("other", pool="awake", cpus=["1"], size="s")
    fleet = a_fleet(leaving, other, pools=[a_sleeper(), a_pool("awake")])
    selective = {"nodeSelector": {labels.NODEPOOL: "default"}}
    pods = tuple(
        replace(p, spec=replace(p.spec, node_selector=selective["nodeSelector"]))
        if p.spec.node_name == "node-leaving"
        else p
        for p in fleet.pods
    )
    fleet = replace(fleet, pods=pods)

    result = Simulation(fleet, a_catalogue(fleet)).without(())

    assert set(result.results.pod_errors) == {p.key for p in pods if p.spec.node_name == "node-leaving"}
    assert result.errors == {}
