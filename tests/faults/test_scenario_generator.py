"""Generated scenarios: rare features are frequent enough, and edits come together."""

from itertools import combinations

import pytest

from journeyman_simulator.faults.call_sites import CALL_SITES
from journeyman_simulator.faults.fault_scenario import (
    CallFault,
    Deploy,
    Drift,
    EditClaim,
    EditNode,
    EditTags,
    FailCheck,
    ForgeNode,
    MessageFault,
    Overstate,
    PauseDisruption,
    Rebalance,
    RebuildCluster,
    RestoreBackup,
    WipeClaims,
    WipeNodes,
    WipePools,
)
from journeyman_simulator.faults.scenario_clouds import CLOUDS
from journeyman_simulator.faults.scenario_generator import generate_scenario

SCENARIOS = [generate_scenario(seed) for seed in range(500)]
EDITS = (EditClaim, EditNode, EditTags)
AROUND = 10  # seconds


def edits_together(scenario):
    """Return the pairs of edits of the Node, NodeClaim and instance with the same ordinal within some seconds."""
    edits = [operation for operation in scenario.operations if isinstance(operation, EDITS)]
    targets = [(operation.at_seconds, getattr(operation, "claim", None), operation) for operation in edits]
    return [
        (one, other)
        for (at, claim, one), (later, other_claim, other) in combinations(targets, 2)
        if later - at <= AROUND
        and (one.node if claim is None else claim) == (other.node if other_claim is None else other_claim)
    ]


ON_OTHERS = {cloud: [generate_scenario(seed, cloud) for seed in range(500)] for cloud in ("alibaba", "huawei")}


def test_a_seed_always_gives_the_same_scenario():
    """Scenarios can be run again by their cloud and seed alone."""
    assert [generate_scenario(scenario.seed) for scenario in SCENARIOS[:50]] == SCENARIOS[:50]
    for cloud, scenarios in ON_OTHERS.items():
        assert [generate_scenario(scenario.seed, cloud) for scenario in scenarios[:50]] == scenarios[:50]


@pytest.mark.parametrize(("cloud", "scenarios"), ON_OTHERS.items())
def test_scenarios_have_only_what_their_cloud_has(cloud, scenarios):
    """Its types, call sites and queues; other clouds than AWS recommend no rebalancing, have no status checks, and stop no chains."""
    facts = CLOUDS[cloud]
    types = {type_ for scenario in scenarios for type_ in scenario.setup.types}
    sites = {fault.site for scenario in scenarios for fault in scenario.faults if isinstance(fault, CallFault)}
    queues = {fault.queue for scenario in scenarios for fault in scenario.faults if isinstance(fault, MessageFault)}
    operations = {type(operation) for scenario in scenarios for operation in scenario.operations}

    assert types == {*facts.generated_types}
    assert sites == {*CALL_SITES[cloud]}
    assert queues == {*facts.queues}
    assert not operations & {Rebalance, FailCheck}
    assert not any(pool.rebalance for scenario in scenarios for pool in scenario.setup.pools)
    assert {scenario.setup.recursive_loops for scenario in scenarios} == {"Allow"}
    assert {scenario.setup.sweep for scenario in scenarios} == ({True} if facts.needs_sweep else {True, False})
    assert operations >= {type(o) for s in SCENARIOS for o in s.operations} - {Rebalance, FailCheck} - facts.missing


def test_every_tenth_scenario_combines_edits_of_related_objects():
    """Half of those also have slow calls, during which others edit objects."""
    combined = [scenario for scenario in SCENARIOS if edits_together(scenario)]
    slow = [s for s in combined if any(isinstance(fault, CallFault) and 0 < fault.seconds <= 20 for fault in s.faults)]
    kinds = {frozenset((type(one), type(other))) for s in combined for one, other in edits_together(s)}

    assert len(combined) > len(SCENARIOS) / 10
    assert len(slow) > len(combined) / 3
    assert kinds >= {frozenset(pair) for pair in combinations(EDITS, 2)}


def test_lambda_stops_chains_or_throttles_functions_in_every_tenth_scenario():
    """Without a sweep no chain is stopped, since nothing would continue it."""
    loops = [scenario.setup.recursive_loops for scenario in SCENARIOS]
    throttles = [throttle for scenario in SCENARIOS for throttle in scenario.setup.throttles]

    assert min(loops.count("Terminate"), loops.count("Stopped")) > len(SCENARIOS) / 50
    assert {throttle.step for throttle in throttles} == {"provision", "terminate", "consolidate", "interrupt", "sweep"}
    assert sum(bool(scenario.setup.throttles) for scenario in SCENARIOS) > len(SCENARIOS) / 20
    assert all(s.setup.recursive_loops == "Allow" for s in SCENARIOS if not s.setup.sweep)


def test_every_tenth_scenario_disrupts_under_used_nodes_within_limits():
    """With and without fleet plans: policies, windows in time zones, drift, pauses and caps all occur."""
    under_used = [s for s in SCENARIOS if any(type(o).__name__ == "Undeploy" and o.app == "d" for o in s.operations)]
    pools = [pool for scenario in under_used for pool in scenario.setup.pools]
    operations = {type(operation) for scenario in under_used for operation in scenario.operations}
    planned = [scenario for scenario in under_used if scenario.setup.fleet_plans]

    assert len(under_used) > len(SCENARIOS) / 10
    assert 3 * len(planned) > len(under_used)
    assert {pool.policy for pool in pools} == {"WhenEmpty", "WhenEmptyOrUnderutilized", "Balanced"}
    assert operations >= {Drift, PauseDisruption}
    assert any(pool.replicas for pool in pools)
    assert any(pool.max_evictions_per_day for pool in pools)
    assert any(pool.time_zone and pool.hibernates_seconds for pool in pools)
    assert any(pool.time_zone and budget.seconds for pool in pools for budget in pool.budgets)


@pytest.mark.parametrize(
    ("feature", "percent"),
    [
        ((WipeClaims, WipeNodes, WipePools), 2),
        ((RestoreBackup,), 2),
        ((RebuildCluster,), 1),
        ((ForgeNode, Overstate), 3),
    ],
    ids=lambda feature: feature[0].__name__ if isinstance(feature, tuple) else "",
)
def test_worlds_are_lost_and_nodes_lie_in_some_scenarios(feature, percent):
    """Only where a sweep finds what no event reports."""
    found = [s for s in SCENARIOS if any(isinstance(operation, feature) for operation in s.operations)]

    assert len(found) >= len(SCENARIOS) * percent / 100
    assert all(scenario.setup.sweep for scenario in found)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_broken_nodepool_comes_before_the_others_in_some_scenarios(cloud):
    """Each of its faults is drawn, and pods may use any NodePool."""
    scenarios = SCENARIOS if cloud == "aws" else ON_OTHERS[cloud]
    found = [s for s in scenarios if any(pool.broken for pool in s.setup.pools)]
    pools = [pool for scenario in found for pool in scenario.setup.pools]

    assert len(found) >= len(scenarios) / 50
    assert {pool.broken for pool in pools} == {"", "refuses", "ends", "never-joins"}
    assert max(pool.weight for pool in pools if not pool.broken) < min(pool.weight for pool in pools if pool.broken)
    assert not [o for s in found for o in s.operations if isinstance(o, Deploy) and o.pool]


def test_scenarios_without_a_sweep_have_no_edits():
    """No event reports a missing field, so only the sweep finds it."""
    without_sweep = [scenario for scenario in SCENARIOS if not scenario.setup.sweep]
    assert without_sweep
    assert not any(isinstance(operation, EDITS) for s in without_sweep for operation in s.operations)
