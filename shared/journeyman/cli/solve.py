"""`journeyman solve FILE…`: schedules the pods of scenario files, and prints one line of JSON for each."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from journeyman.cli.rule_prices import price_of_rules
from journeyman.cli.scenario import Scenario, read_scenario
from journeyman.core.api.objects import NodeSelectorRequirement
from journeyman.core.catalogue import Catalogue
from journeyman.core.disruption.consolidatable import assess_consolidatable
from journeyman.core.disruption.controller import DisruptionController
from journeyman.core.scheduling.results import MinValuesPolicy, Options, PlannedClaim, PreferencePolicy, Results
from journeyman.core.scheduling.scheduler import solve as schedule
from journeyman.core.state import Snapshot
from journeyman.errors import ConfigurationError


def solve(paths: list[Path], *, rules: bool = False) -> None:
    """Print one line per scenario, with `rules` also the price of each kind of rule.

    Raises:
        ConfigurationError: A file is not a scenario.
    """
    for path in paths:
        scenario = read_scenario(path)
        data = answer(scenario)
        print(json.dumps({**data, "rules": rule_prices(scenario)} if rules else data), flush=True)


def rule_prices(scenario: Scenario) -> list[dict[str, Any]]:
    """Return what each kind of rule costs per hour and in nodes, most expensive first."""

    def plan(snapshot: Snapshot, catalogue: Catalogue) -> Results:
        return schedule(snapshot, catalogue, options=options_of(scenario))

    gap = price_of_rules(scenario.snapshot, scenario.catalogue, plan)
    return [{"rule": price.rule, "pricePerHour": price.per_hour, "nodes": price.nodes} for price in gap.rules]


def answer(scenario: Scenario) -> dict[str, Any]:
    """Return the scheduler's results as plain data; `seconds` is the duration of the solve."""
    start = time.perf_counter()
    results = schedule(scenario.snapshot, scenario.catalogue, options=options_of(scenario))
    seconds = time.perf_counter() - start
    data = to_data(scenario.name, results, seconds)
    if scenario.options.get("disrupt"):
        data["commands"] = commands(scenario)
    return data


def options_of(scenario: Scenario) -> Options:
    """Return the scheduler's options in a scenario. Raises ConfigurationError for an unknown policy."""
    try:
        return Options(
            preferences=PreferencePolicy(scenario.options.get("preferencePolicy") or "Respect"),
            min_values=MinValuesPolicy(scenario.options.get("minValuesPolicy") or "Strict"),
            ignore_dra_requests=scenario.options.get("ignoreDRARequests") is not False,
        )
    except ValueError as error:
        raise ConfigurationError(f"{scenario.name}: {error}", scenario=scenario.name) from error


def commands(scenario: Scenario) -> list[dict[str, Any]]:
    """Return the commands of the first disruption method that finds any, in their order; empty if none does."""
    controller = DisruptionController(
        scenario.snapshot,
        scenario.catalogue,
        assess_consolidatable(scenario.snapshot),
        spot_to_spot=bool(scenario.options.get("spotToSpotConsolidation")),
        options=options_of(scenario),
    )
    found = ((e.method, e.commands) for e in controller.evaluate_methods() if e.commands)
    method, first = next(found, ("", ()))
    return [
        {
            "method": method,
            "reason": command.reason.value,
            "candidates": sorted(candidate.node for candidate in command.candidates),
            "replacements": [_claim(claim) for claim in command.replacements],
        }
        for command in first
    ]


def to_data(name: str, results: Results, seconds: float) -> dict[str, Any]:
    """Return the results under the keys that comparisons with Karpenter use."""
    return {
        "name": name,
        "nodeClaims": [_claim(claim) for claim in results.new_claims],
        "existing": {node: list(pods) for node, pods in results.existing.items()},
        "errors": {pod: error.message for pod, error in results.pod_errors.items()},
        "smallestChanges": {pod: e.smallest_change for pod, e in results.pod_errors.items() if e.smallest_change},
        "nodePoolsSetAside": dict(results.unusable_node_pools),
        "remarks": dict(results.warnings),
        "podWarnings": dict(results.pod_warnings),
        "price": results.price,
        "lowerBound": results.lower_bound,
        "gap": results.gap,
        "seconds": seconds,
    }


def _claim(claim: PlannedClaim) -> dict[str, Any]:
    return {
        "nodePool": claim.node_pool,
        "pods": list(claim.pods),
        "instanceTypes": list(claim.instance_types),
        "cheapestOffering": str(claim.offering),
        "price": claim.price,
        "requirements": [_requirement(r) for r in claim.requirements],
    }


def _requirement(entry: NodeSelectorRequirement) -> dict[str, Any]:
    return {"key": entry.key, "operator": entry.operator, "values": list(entry.values)}
