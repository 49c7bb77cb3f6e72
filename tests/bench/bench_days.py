"""Compares what consolidation evicts and what the fleet costs over days, under the product's defaults and Karpenter's plain rules.

    python -m tests.bench.bench_days                      all three scenarios, with seven seeds each: `make bench-days`
    python -m tests.bench.bench_days NAME… [--hours N] [--seeds N] [--jobs N] [--no-fleet-plans]

`evictions` are those through the Eviction API; pods that scale-downs and rollouts delete are not among them. `pending` is the time of pods
without a node, in minutes. Both rules run the same changes on the same simulated cluster (`tests/helpers/simulated_days.py`), which has no
randomness but the seed's, so a run can be repeated exactly. The sums over the seeds count: one day is not another, because small
differences grow. The exit status is 1 if a measure is missed: a quarter of the evictions, and 3 % of the price.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

import msgspec

from tests.bench.output import say
from tests.helpers.simulated_days import PRODUCT, SCENARIOS, DayResult, run_days

MAX_EVICTIONS, MAX_PRICE = 0.25, 1.03
HOURS = {"diurnal-day": 24.0, "rolling-week": 168.0, "batch-night": 24.0}


def _run(name: str, hours: float, seed: int, karpenter: bool, fleet_plans: bool | None) -> tuple[DayResult, float]:
    """Return the result, and the CPU time that it took in seconds."""
    settings = None
    if fleet_plans is not None and not karpenter:
        settings = msgspec.structs.replace(PRODUCT, fleet_plans=fleet_plans)
    started = time.process_time()
    result = run_days(SCENARIOS[name], days=hours / 24, karpenter=karpenter, settings=settings, seed=seed)
    return result, time.process_time() - started


def _line(rules: str, result: DayResult, seconds: float) -> str:
    methods = ", ".join(f"{method} {count}" for method, count in sorted(result.commands.items()))
    return (
        f"  {rules:10} {result.dollars:9.2f} {result.evictions:10} {result.pending_pod_minutes:9.0f} {result.launches:9} "
        f"{seconds:6.0f}  {methods}"
    )


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return 1 if a measure is missed."""
    parser = argparse.ArgumentParser(description="consolidation over days, against Karpenter's plain rules")
    parser.add_argument("names", nargs="*", default=list(SCENARIOS), help=f"of {', '.join(SCENARIOS)}")
    parser.add_argument("--hours", type=float, help="of virtual time, instead of the whole scenario")
    parser.add_argument("--seeds", type=int, default=7, help="number of seeds")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--fleet-plans", action=argparse.BooleanOptionalAction, help="instead of the default")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(SCENARIOS):
        parser.error(f"unknown scenario {', '.join(sorted(unknown))}")
    missed = 0
    seeds = range(1, options.seeds + 1)
    with ProcessPoolExecutor(options.jobs) as pool:
        hours = {name: options.hours or HOURS[name] for name in options.names}
        runs = {
            (name, seed, karpenter): pool.submit(_run, name, hours[name], seed, karpenter, options.fleet_plans)
            for name in options.names
            for seed in seeds
            for karpenter in (True, False)
        }
        say(f"  {'rules':10} {'dollars':>9} {'evictions':>10} {'pending':>9} {'launches':>9} {'CPU s':>6}  commands")
        for name in options.names:
            theirs, ours = ([runs[name, seed, karpenter].result() for seed in seeds] for karpenter in (True, False))
            evictions, price = _ratio(ours, theirs, "evictions"), _ratio(ours, theirs, "dollars")
            missed += evictions > MAX_EVICTIONS or price > MAX_PRICE
            say(f"{name}, {hours[name]:g} hours: evictions × {evictions:.3f}, price × {price:.3f}")
            for their_run, our_run in zip(theirs, ours, strict=True):
                say(_line("Karpenter", *their_run))
                say(_line("ours", *our_run))
    say(f"targets: evictions × {MAX_EVICTIONS}, price × {MAX_PRICE}; missed in {missed} scenarios")
    return 1 if missed else 0


def _ratio(ours: Iterable[tuple[DayResult, float]], theirs: Iterable[tuple[DayResult, float]], amount: str) -> float:
    """Return our sum of an amount over the seeds, by theirs."""
    own, other = (sum(getattr(result, amount) for result, _ in runs) for runs in (ours, theirs))
    return float(own / max(other, 1))


if __name__ == "__main__":
    sys.exit(main())
