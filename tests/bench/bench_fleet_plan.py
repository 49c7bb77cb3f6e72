"""Compares fleet plans with Karpenter's consolidation on under-used fleets, in one run on one machine.

    python -m tests.bench.bench_fleet_plan            under-used-20, -100 and -300: half a minute
    python -m tests.bench.bench_fleet_plan NAME… [--without-karpenter]

`first s` is the time from a snapshot to the first moves, in a process that has made a decision with the same instance types before,
as Karpenter's has; `verify s` is their verification, and `cold s` the sum in a process that has not. `ratio` is Karpenter's time by
`first s` and `verify s`. `saving` and `karpenter saves` are per hour, of the first decision. `/bound` is the price once all
moves are done over the linear-programming bound; `evictions` are per pod, `minutes` of virtual time until nothing changes any
more. `scoring` is the same if evicted pods run where kube-scheduler's least-allocated scoring puts them.

`--through-the-steps` runs the fleets through consolidate, provision and terminate on the simulated cluster instead, with all limits on
churn: the same measures. under-used-300 takes about ten minutes there, nearly all of it the simulated cluster.

The exit status is 1 if a measure is missed: Karpenter's time (of its search alone, without reads from an API server) and saving,
1.03 of the bound, one eviction per pod, ten minutes. Times are compared within one run only.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from journeyman.cli.scenario import Scenario
from journeyman.core.disruption.fleet_planning import plan_fleet
from journeyman.core.disruption.single_node_consolidation import eligible_candidates
from tests.bench.output import say
from tests.differential.karpenter import Karpenter, OracleMissingError
from tests.helpers.fleet_rollout import FleetPlanner, Rollout
from tests.helpers.fleet_steps import FleetCluster
from tests.helpers.under_used_fleets import NAMES, current_price, lower_bound, parsed, scenario

JSONDict = dict[str, Any]
MAX_PRICE, MAX_EVICTIONS, MAX_MINUTES, MIN_SPEEDUP = 1.03, 1.0, 10.0, 1.0
SMALL = "under-used-20"
"""Too few pods for 1.03: the cheapest fleet of whole nodes costs more than that."""
REPEAT = 3
TRIFLE = 1e-9


@dataclass(frozen=True, kw_only=True)
class FirstDecision:
    """The first moves: the seconds that they took, and that their verification took, and what they save per hour."""

    planning: float
    verification: float
    saving: float
    defects: int

    @property
    def seconds(self) -> float:
        """Both times."""
        return self.planning + self.verification


def first_decisions(made: JSONDict) -> tuple[FirstDecision, FirstDecision]:
    """Return the decision of a new process, and the fastest of several later ones with the same instance types."""
    read = parsed(made)
    cold = _decide(read)
    later = (_decide(replace(parsed(made), catalogue=read.catalogue)) for _ in range(REPEAT))
    return cold, min(later, key=lambda decision: decision.seconds)


def _decide(read: Scenario) -> FirstDecision:
    rollout = Rollout.of(read)
    start = time.perf_counter()
    simulation = rollout.simulation()
    eligible = eligible_candidates(rollout.candidates(), rollout.snapshot)
    plan = plan_fleet(simulation, eligible, rollout.allowed())
    first = [move for move in plan.moves if not move.after]
    decided = time.perf_counter()
    defects = sum(len(simulation.verify(move.command)) for move in first)
    end = time.perf_counter()
    return FirstDecision(
        planning=decided - start,
        verification=end - decided,
        saving=sum(move.saving for move in first),
        defects=defects,
    )


def karpenters(made: JSONDict) -> tuple[float, float]:
    """Return the seconds of Karpenter's first decision, and what it saves per hour."""
    with Karpenter() as karpenter:
        answer = karpenter.solve(made)
    prices = {o.node: o.price for o in Rollout.of(parsed(made)).candidates()}
    saving = 0.0
    for command in answer.get("commands") or []:
        saving += sum(prices[node] for node in command["candidates"])
        saving -= sum(claim["price"] for claim in command["replacements"])
    return answer["disruptSeconds"], saving


def main(names: Iterable[str], *, with_karpenter: bool) -> int:
    """Print a line per fleet; return 1 if a measure is missed."""
    say(
        f"{'fleet':15} {'pods':>5} {'today':>8} {'first s':>8} {'verify s':>8} {'cold s':>8} {'karpenter s':>11} {'ratio':>6} {'saving':>8}"
        f" {'karpenter saves':>15} {'moves':>5} {'/bound':>7} {'evictions':>9} {'minutes':>7}   scoring: /bound evictions"
    )
    missed: list[str] = []
    for name in names:
        made = scenario(name)
        cold, ours = first_decisions(made)
        seconds, saving = karpenters(made) if with_karpenter else (0.0, 0.0)
        rollout, planner = Rollout.of(parsed(made)), FleetPlanner()
        rollout.run(planner)
        scored = Rollout.of(parsed(made), by_scoring=True)
        scored.run(FleetPlanner())
        bound, pods = lower_bound(made), len(rollout.snapshot.pods)
        ratio = seconds / ours.seconds
        price, evictions = rollout.price / bound, rollout.evictions.total() / pods
        say(
            f"{name:15} {pods:5} {current_price(made):8.3f} {ours.planning:8.3f} {ours.verification:8.3f} {cold.seconds:8.3f} {seconds:11.2f} {ratio:6.0f}"
            f" {ours.saving:8.3f} {saving:15.3f} {len(planner.plans[0].moves):5} {price:7.4f} {evictions:9.3f}"
            f" {rollout.minutes:7.1f}   {scored.price / bound:15.4f} {scored.evictions.total() / pods:9.3f}",
        )
        checks = {
            "speed": not with_karpenter or ratio >= MIN_SPEEDUP,
            "saving": ours.saving >= saving - TRIFLE,
            "price": name == SMALL or price <= MAX_PRICE,
            "evictions": evictions <= MAX_EVICTIONS,
            "minutes": rollout.minutes <= MAX_MINUTES,
            "verification": not ours.defects,
        }
        missed += [f"{name}: {check}" for check, passed in checks.items() if not passed]
    say("missed: " + ", ".join(missed) if missed else "all measures are met")
    return 1 if missed else 0


def through_the_steps(names: Iterable[str]) -> int:
    """Print a line per fleet that the real steps consolidated; return 1 if a measure is missed."""
    say(f"{'fleet':15} {'pods':>5} {'/bound':>7} {'evictions':>9} {'minutes':>7} {'launched again':>14} commands")
    missed: list[str] = []
    for name in names:
        found = FleetCluster(name, fleet_plans=True).run()
        price, evictions = found.price / lower_bound(scenario(name)), found.evictions / found.pods
        say(
            f"{name:15} {found.pods:5} {price:7.4f} {evictions:9.3f} {found.minutes:7.1f} {found.launched_again:14}"
            f" {dict(found.commands)}"
        )
        checks = {
            "price": name == SMALL or price <= MAX_PRICE,
            "evictions": evictions <= MAX_EVICTIONS,
            "minutes": found.minutes <= MAX_MINUTES,
        }
        missed += [f"{name}: {check}" for check, passed in checks.items() if not passed]
    say("missed: " + ", ".join(missed) if missed else "all measures are met")
    return 1 if missed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fleet plans against Karpenter's consolidation.")
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--without-karpenter", action="store_true")
    parser.add_argument("--through-the-steps", action="store_true")
    arguments = parser.parse_args()
    if arguments.through_the_steps:
        sys.exit(through_the_steps(arguments.names))
    try:
        sys.exit(main(arguments.names, with_karpenter=not arguments.without_karpenter))
    except OracleMissingError as missing:
        sys.exit(str(missing))
