"""`journeyman solve FILE…`: schedules the pods of scenario files, and prints one line of JSON for each."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from journeyman.cli.rule_prices import price_of_rules
from journeyman.cli.scenario import Scenario, read_scenario
from journeyman.core.api.duration import parse_duration
from journeyman.core.api.objects import NodeSelectorRequirement
from journeyman.core.catalogue import Catalogue
from journeyman.core.disruption.churn_limits import ChurnSettings
from journeyman.core.disruption.consolidatable import assess_consolidatable
from journeyman.core.disruption.controller import DisruptionController, Evaluation
from journeyman.core.scheduling.results import (
    MinValuesPolicy,
    Options,
    PlannedClaim,
    PreferencePolicy,
    Results,
    Verifier,
)
from journeyman.core.scheduling.scheduler import solve as schedule
from journeyman.core.scheduling.verify import verify
from journeyman.core.state import Snapshot
from journeyman.errors import ConfigurationError

KARPENTER_METHODS: Final[Mapping[str, str]] = {
    "emptiness": "*disruption.Emptiness",
    "static-drift": "*disruption.StaticDrift",
    "drift": "*disruption.Drift",
    "multi-node": "*disruption.MultiNodeConsolidation",
    "single-node": "*disruption.SingleNodeConsolidation",
}
"""Karpenter's names of the disruption methods, as comparisons with it print them; rebalance is our own."""


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
    if scenario.options.get("disrupt") and scenario.options.get("everyMethod"):
        data["methods"] = methods(controller_of(scenario))
    elif scenario.options.get("disrupt"):
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
    evaluations = controller_of(scenario).evaluate_methods()
    first = next((e for e in evaluations if e.commands), None)
    return _commands(first) if first is not None else []


def methods(controller: DisruptionController) -> list[dict[str, Any]]:
    """Return what each disruption method finds in the cluster as it is, whatever other methods find.

    Each has its candidates by name, how many more nodes of each NodePool the budgets let it disrupt, and the commands that it
    proposes first. `alone` has its command for each candidate, and `whyNot` the Events about those without one, if it examines
    them one by one.
    """
    evaluations: dict[str, list[Evaluation]] = {}
    for evaluation in controller.evaluate_methods():
        evaluations.setdefault(evaluation.method, []).append(evaluation)
    return [
        {
            "method": KARPENTER_METHODS.get(method, method),
            "reason": examined.reason.value,
            "candidates": [
                {"name": c.node, "price": c.price, "cost": c.disruption_cost}
                for c in sorted(examined.candidates, key=lambda c: c.node)
            ],
            "budgets": dict(examined.remaining),
            "commands": next((_commands(e) for e in evaluations.get(method, ()) if e.commands), []),
            **_alone(method, evaluations.get(method, ())),
        }
        for method, examined in controller.eligible().items()
    ]


def _alone(method: str, evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    if method not in {"drift", "single-node"}:
        return {}
    found = (command for e in evaluations for command in _commands(e))
    no_ops = (e for e in evaluations if not e.commands)
    return {
        "alone": {command["candidates"][0]: command for command in found},
        "whyNot": {event.ref.name: event.message for e in no_ops for event in e.plan.events},
    }


def controller_of(scenario: Scenario, *, verify: Verifier = verify) -> DisruptionController:
    """Return the disruption methods in the scenario's cluster, which verify their commands.

    Raises:
        ConfigurationError: A policy is unknown.
    """
    return DisruptionController(
        scenario.snapshot,
        scenario.catalogue,
        assess_consolidatable(scenario.snapshot),
        spot_to_spot=bool(scenario.options.get("spotToSpotConsolidation")),
        churn=_churn_settings(scenario),
        options=options_of(scenario),
        verify=verify,
    )


def _churn_settings(scenario: Scenario) -> ChurnSettings:
    payback = scenario.options.get("consolidationPayback")
    return ChurnSettings() if payback is None else ChurnSettings(payback=parse_duration(payback))


def _commands(evaluation: Evaluation) -> list[dict[str, Any]]:
    return [
        {
            "method": KARPENTER_METHODS.get(evaluation.method, evaluation.method),
            "reason": command.reason.value,
            "decision": command.decision.value,
            "candidates": sorted(candidate.node for candidate in command.candidates),
            "replacements": [_claim(claim) for claim in command.replacements],
            "saving": command.saving,
        }
        for command in evaluation.commands
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
        "daemonSetsLeftOut": {name: found.why for name, found in results.left_out.items()},
        "remarks": dict(results.warnings),
        "podWarnings": dict(results.pod_warnings),
        "price": results.price,
        "lowerBound": results.lower_bound,
        "gap": results.gap,
        "chosenPlan": results.chosen_plan.as_data() if results.chosen_plan is not None else None,
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
