"""The examination of a fleet beside the simulation, on random clusters with every kind of rule.

The examination is a filter. It may let a node pass that the simulation keeps, which costs a simulation. It should exclude no
node that the simulation removes; because it places pods in one order it may exclude one in a hundred (`DOCUMENTED_RATE`).
JOURNEYMAN_EXAMINED_CLUSTERS=1000 measures the rate.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any

import pytest

from journeyman.cli.scenario import parse_scenario
from journeyman.cli.solve import options_of
from journeyman.core.disruption.candidates import Candidate, find_candidates
from journeyman.core.disruption.commands import Command, Decision
from journeyman.core.disruption.consolidation import compute_consolidation
from journeyman.core.disruption.fleet_examination import FleetExaminer, NodeVerdict
from journeyman.core.disruption.simulation import Simulation
from tests.helpers import random_clusters

SEEDS = int(os.environ.get("JOURNEYMAN_EXAMINED_CLUSTERS", "40"))
DOCUMENTED_RATE = 0.01


def read(seed: int, *, with_pending: bool) -> tuple[Simulation, tuple[Candidate, ...]]:
    """Return a random cluster and its candidates."""
    raw: dict[str, Any] = random_clusters.scenario(seed)
    if not with_pending:
        raw["objects"] = [o for o in raw["objects"] if o["kind"] != "Pod" or o["spec"].get("nodeName")]
    scenario = parse_scenario(json.dumps(raw).encode())
    simulation = Simulation(scenario.snapshot, scenario.catalogue, options=options_of(scenario))
    names = frozenset(c.metadata.name for c in scenario.snapshot.claims)
    found = find_candidates(scenario.snapshot, scenario.catalogue, consolidatable=names, in_commands=frozenset())
    return simulation, found.candidates


@pytest.mark.parametrize("with_pending", [False, True])
def test_examination_excludes_hardly_a_node_that_the_simulation_removes(with_pending):
    """Of the nodes that the simulation deletes or replaces, at most the documented part is excluded."""
    counts = Counter[tuple[NodeVerdict, bool]]()
    for seed in range(SEEDS):
        simulation, candidates = read(seed, with_pending=with_pending)
        examiner = FleetExaminer(simulation, candidates, spot_to_spot=seed % 2 == 0)
        for candidate in candidates:
            command = compute_consolidation(simulation, (candidate,), spot_to_spot=seed % 2 == 0)
            counts[examiner.examine(candidate).verdict, command.decision is not Decision.NO_OP] += 1

    removed = sum(count for (_, is_removed), count in counts.items() if is_removed)
    assert removed > SEEDS // 4
    assert counts[NodeVerdict.STAYS, True] <= DOCUMENTED_RATE * removed
    assert counts[NodeVerdict.STAYS, False] > SEEDS // 6  # nodes that no simulation is spent on


@pytest.mark.parametrize("with_pending", [False, True])
def test_simulations_of_one_run_decide_as_a_simulation_of_its_own(with_pending):
    """What the simulations of a run share does not change what they decide."""

    def essence(command: Command) -> tuple[object, ...]:
        result = command.simulation_result
        assert result is not None
        return command.decision, command.why_not, command.replacements, result.results, result.errors

    for seed in range(SEEDS // 3):
        shared, candidates = read(seed, with_pending=with_pending)
        assert len(list(FleetExaminer(shared, candidates).examine_all())) == len(candidates)
        for candidate in candidates:
            alone, _ = read(seed, with_pending=with_pending)
            assert essence(compute_consolidation(shared, (candidate,))) == essence(
                compute_consolidation(alone, (candidate,))
            )
