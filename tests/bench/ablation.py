"""Measures what each mechanism of the scheduler contributes: price, unschedulable pods and CPU time without it.

    make bench-ablation                                  all mechanisms; about 25 minutes on one core
    python -m tests.bench.ablation --quick               the sample alone
    python -m tests.bench.ablation NAME…                 some mechanisms
    python -m tests.bench.ablation --write NAME…         put their rows into docs/scheduling.md

A mechanism is switched off from outside: the benchmark replaces a function or an effort limit, or sets an option. All else
stays the same, so the difference is the mechanism's contribution. Each scenario is solved with the mechanism and then
without it, so that both runs see the same load of the machine.

A mechanism is measured on a sample of the scenarios first. If it has an effect in a few of them, that is enough; otherwise
it is measured on all scenarios. If price and pods are still equal, the scenarios that became slowest by difference or by
ratio are solved a few more times, to separate saved time from noise.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from msgspec.structs import replace

from journeyman.cli.scenario import Scenario, parse_scenario
from journeyman.cli.solve import options_of
from journeyman.core.scheduling import (
    bulk_scheduling,
    domain_distribution,
    new_nodes,
    packing,
    scheduler,
    sequential,
)
from journeyman.core.scheduling.packing import (
    bulk_packing,
    column_generation,
    greedy_packing,
    shadow_prices,
    strategies,
)
from journeyman.core.scheduling.results import Options, PreferencePolicy
from journeyman.core.scheduling.scheduler import Proposer
from journeyman.core.scheduling.topology import SpreadChoice
from tests.differential.clusters import clusters
from tests.helpers import karpenter_benchmark, production_trace, workloads

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "scheduling.md"
BEGIN, END = "<!-- ablation: begin -->", "<!-- ablation: end -->"
CASES: Final = Path(__file__).parents[1] / "differential" / "cases" / "regressions"
DRAWN, DRAWN_FOR_SAMPLE = 600, 100  # clusters
CLEAR: Final = 3  # if so many scenarios of the sample are worse without a mechanism, it is not measured further
TIMED_SECONDS: Final = 0.02  # times of faster scenarios are not compared
REPEAT: Final = 5  # how often a slow scenario is solved again, with and without the mechanism
CANDIDATES: Final = 3  # scenarios solved again because of their difference, and as many because of their ratio
TOLERANCE: Final = 1e-9
NEEDED_BY: Final = {
    "second try: prefer_largest_reservation": "test_the_larger_reservation_is_used_if_the_smaller_leaves_pods",
    "plans that weigh limits": "test_under_a_tight_limit_the_plan_that_places_most_pods_wins",
    "WhenFree: class by class": "test_a_free_preference_is_kept_although_that_of_other_pods_has_a_price",
}
"""The test that fails without a mechanism, where no scenario shows its effect."""
JSONDict = dict[str, Any]
Change = tuple[object, str, object]


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """A part of the scheduler that can be switched off.

    `changes` are (owner, attribute, replacement). `options` apply with and without the mechanism, `without` only without it.
    """

    name: str
    changes: tuple[Change, ...] = ()
    options: Callable[[Options], Options] = lambda options: options
    without: Callable[[Options], Options] = lambda options: options


def mechanisms() -> Iterator[Mechanism]:
    """Return all mechanisms that can be switched off, in the order of the table."""
    yield from _of_packing()
    yield from _of_domains()
    yield from _of_plans()


def _of_packing() -> Iterator[Mechanism]:
    yield Mechanism(name="column generation", changes=((strategies, "GENERATION_EFFORT", 0),))
    yield Mechanism(name="plain greedy plan", changes=((greedy_packing.GreedyPacker, "plain", lambda *_: None),))
    yield Mechanism(name="varied orders of filling", changes=((column_generation, "VARIATION", (0.0,)),))
    apart = lambda _offered, _other: False  # noqa: E731
    yield Mechanism(name="contents counted by family", changes=((column_generation, "are_nested", apart),))
    yield Mechanism(name="prices refined over whole nodes", changes=((greedy_packing, "REFINED_ITEMS", 0),))
    yield Mechanism(name="repacking the worst nodes (few items)", changes=((greedy_packing, "REPACK_ROUNDS", 0),))
    yield Mechanism(name="repacking the worst nodes (many items)", changes=((strategies, "REPACKED_PLAN", -1),))
    yield Mechanism(
        name="one node for all that is left",
        changes=((greedy_packing.GreedyPacker, "cheapest_node_for_all", lambda _self, _left: None),),
    )
    yield Mechanism(
        name="even shares of all items in a node",
        changes=(
            (
                greedy_packing.GreedyPacker,
                "even_shares",
                lambda _self, _left, suits, _room: np.zeros(suits.shape, dtype=np.int64),
            ),
        ),
    )
    yield Mechanism(name="looking at promising offers only", changes=((greedy_packing, "PROMISING_OFFERS", 1 << 30),))
    yield Mechanism(name="exact packing of few items", changes=((strategies, "EXACT_STATES", 1),))
    plain = (bulk_packing.FillOrder(),)
    yield Mechanism(name="several orders of filling", changes=((strategies, "fill_orders", lambda _p, _s: plain),))
    whole = lambda _p, prices: iter((np.floor(prices.mix + 1e-9).astype(np.int64),))  # noqa: E731
    yield Mechanism(name="several mixes of whole nodes", changes=((strategies, "whole_mixes", whole),))
    yield Mechanism(name="mixes with capacity to spare", changes=((bulk_packing, "MARGINS", (0.0,)),))
    yield Mechanism(name="further mixes for what is left", changes=((strategies, "MIX_ROUNDS", 1),))
    yield Mechanism(
        name="mixes of nodes of equal price",
        changes=((shadow_prices.OfferGroups, "prefer_equal_nodes", lambda _self, _program: None),),
    )
    yield Mechanism(name="shadow prices by size of offer", changes=((shadow_prices, "BY_SIZE", (False,)),))
    yield Mechanism(
        name="packing independent items apart",
        changes=((packing, "independent", lambda allowed: [np.arange(allowed.shape[1])] if allowed.shape[1] else []),),
    )
    yield Mechanism(name="reserved capacity first", changes=((packing, "fill_reservations", lambda _problem: []),))


def _of_domains() -> Iterator[Mechanism]:
    yield Mechanism(
        name="distributing repeated rounds at once", changes=((domain_distribution, "WORTH_A_LEAP", 1 << 60),)
    )
    yield Mechanism(name="learning from quotas that limits cut short", changes=((bulk_scheduling, "ATTEMPTS", 1),))
    yield Mechanism(name="co-located pods first", changes=((bulk_scheduling, "MOST_CO_LOCATED", -1),))
    yield Mechanism(name="plans that weigh limits", changes=((new_nodes, "LIMIT_WEIGHTS", ()),))
    yield Mechanism(
        name="smallest pods first where limits are short",
        changes=((new_nodes.WeightTier, "within_limits", lambda _self, outcome: outcome.left),),
    )


def _of_plans() -> Iterator[Mechanism]:
    for name, choice in (
        ("spread slack", SpreadChoice.CHEAPEST),
        ("pods join those that their spread counts", SpreadChoice.CHEAPEST_IF_FIRST),
    ):
        yield Mechanism(name=name, changes=((scheduler, "spread_choices", _all_but(choice, scheduler.spread_choices)),))
    yield Mechanism(
        name="pods that cannot share a node as they prefer in bulk",
        changes=((scheduler, "without_lost_preferences", lambda task, _plan: task),),
    )
    yield Mechanism(name="rival sequential plans", without=lambda options: replace(options, compare_up_to=0))
    for proposer in (Proposer.POD_BY_POD, Proposer.POD_BY_POD_LAST_POOL, Proposer.POD_BY_POD_LARGEST_RESERVATION):
        yield Mechanism(
            name=f"rival: {proposer.value}",
            changes=((scheduler, "tie_break_policies", _all_but(proposer, scheduler.tie_break_policies)),),
        )
    for change in sequential.FALLBACK_POLICIES:
        others = {name: test for name, test in sequential.FALLBACK_POLICIES.items() if name != change}
        yield Mechanism(name=f"second try: {change}", changes=((sequential, "FALLBACK_POLICIES", others),))
    yield Mechanism(
        name="second try: avoid_reservations",
        changes=((sequential, "used_reservations", lambda _problem, _attempt: False),),
    )
    for order in sequential.QUEUE_ORDERS:
        rest = tuple(other for other in sequential.QUEUE_ORDERS if other is not order)
        yield Mechanism(
            name=f"second try: queue {order.__name__.strip('_')}", changes=((sequential, "QUEUE_ORDERS", rest),)
        )
    when_free = lambda options: replace(options, preferences=PreferencePolicy.WHEN_FREE)  # noqa: E731
    yield Mechanism(name="WhenFree: class by class", changes=((scheduler, "CLASSES_TRIED", 0),), options=when_free)


def _all_but(one: object, found: Callable[..., Iterator[tuple[object, object]]]) -> Callable[..., Any]:
    return lambda task: (pair for pair in found(task) if one not in pair)


# --- scenarios


Groups = dict[str, dict[str, Scenario]]


def sample() -> Groups:
    """Return the scenarios on which every mechanism is measured first, by group and name."""
    return _parsed(
        {
            "benchmarks": [
                *(workloads.scenario(name) for name in workloads.WORKLOADS),
                karpenter_benchmark.scenario("diverse-400"),
                karpenter_benchmark.scenario("preferences-400"),
            ],
            "traces": [
                production_trace.scenario(150),
                production_trace.scenario(400),
                production_trace.scenario(400, rules=True),
            ],
            "cases": [{"name": path.stem, **json.loads(path.read_text())} for path in sorted(CASES.glob("*.json"))],
            "drawn": drawn(DRAWN)[:DRAWN_FOR_SAMPLE],
        }
    )


def further() -> Groups:
    """Return the other scenarios, by group and name."""
    return _parsed(
        {
            "benchmarks": [
                *(karpenter_benchmark.scenario(name) for name in ("diverse-2000", "preferences-1000")),
                workloads.spread_scenario(apps=2, replicas=5000, keys=(workloads.ZONE, workloads.CAPACITY_TYPE)),
                workloads.spread_scenario(apps=300, replicas=3, keys=(workloads.ZONE,)),
            ],
            "traces": [
                production_trace.scenario(1000, rules=True),
                production_trace.scenario(2000),
                production_trace.scenario(4000),
                production_trace.scenario(4000, rules=True),
                production_trace.openb_scenario(1000),
                production_trace.openb_scenario(1000, gpus=True),
                production_trace.openb_scenario(1000, zone_spread=True),
            ],
            "drawn": drawn(DRAWN)[DRAWN_FOR_SAMPLE:],
        }
    )


def _parsed(groups: dict[str, list[JSONDict]]) -> Groups:
    return {
        group: {f"{n}-{raw['name']}": parse_scenario(json.dumps(raw).encode()) for n, raw in enumerate(raws)}
        for group, raws in groups.items()
    }


@cache
def drawn(count: int, start: int = 13) -> Sequence[JSONDict]:
    """Return so many random clusters from the differential tests' generator."""
    found: list[JSONDict] = []

    @seed(start)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(clusters())
    def collect(raw: JSONDict) -> None:
        found.append(raw)

    collect()
    return found


# --- measuring


class Answer(NamedTuple):
    """A scenario's result: the number of unschedulable pods, the price of the nodes, and the CPU time."""

    pods: int
    price: float
    seconds: float

    def is_worse_than(self, other: Answer) -> bool:
        """Return whether this result has more unschedulable pods, or as many at a higher price."""
        return self.pods > other.pods or (
            self.pods == other.pods and self.price > other.price * (1 + TOLERANCE) + TOLERANCE
        )


class Pair(NamedTuple):
    """A scenario's results with and without a mechanism."""

    case: Scenario
    whole: Answer
    without: Answer


def solve_once(case: Scenario, options: Callable[[Options], Options]) -> Answer:
    """Solve a scenario."""
    chosen = replace(options(options_of(case)), bound=False)
    start = time.process_time()
    results = scheduler.solve(case.snapshot, case.catalogue, options=chosen)
    return Answer(len(results.pod_errors), results.price, time.process_time() - start)


def solve_both(case: Scenario, mechanism: Mechanism, turn: int) -> Pair:
    """Solve a scenario with and without a mechanism, without it first if `turn` is odd: the second run is a little faster."""
    if turn % 2:
        without = solve_without(case, mechanism)
        return Pair(case, solve_once(case, mechanism.options), without)
    return Pair(case, solve_once(case, mechanism.options), solve_without(case, mechanism))


def solve_without(case: Scenario, mechanism: Mechanism) -> Answer:
    """Solve a scenario with the mechanism switched off."""
    with ExitStack() as stack:
        for owner, attribute, replacement in mechanism.changes:
            stack.enter_context(mock.patch.object(owner, attribute, replacement))
        return solve_once(case, lambda options: mechanism.without(mechanism.options(options)))


@dataclass(kw_only=True)
class Measured:
    """A mechanism's pairs by group, and the slowest scenario's ratio of times without and with it (0: not measured)."""

    name: str
    pairs: dict[str, list[Pair]] = field(default_factory=dict)
    slowest: float = 0.0

    def add(self, groups: Groups, mechanism: Mechanism) -> None:
        """Solve all scenarios of these groups."""
        for group, scenarios in groups.items():
            self.pairs.setdefault(group, []).extend(
                solve_both(case, mechanism, turn) for turn, case in enumerate(scenarios.values())
            )

    @property
    def all(self) -> list[Pair]:
        """Return the pairs of all groups."""
        return [pair for pairs in self.pairs.values() for pair in pairs]

    @property
    def worse(self) -> int:
        """Return how many scenarios are worse without the mechanism."""
        return sum(pair.without.is_worse_than(pair.whole) for pair in self.all)

    @property
    def has_effect(self) -> bool:
        """Return whether a scenario has another price or other unschedulable pods without the mechanism."""
        return any(p.without.is_worse_than(p.whole) or p.whole.is_worse_than(p.without) for p in self.all)

    def repeat_slowest(self, mechanism: Mechanism) -> None:
        """Solve the scenarios that became slowest again, and keep the highest ratio of best times."""
        timed = [pair for pair in self.all if pair.whole.seconds >= TIMED_SECONDS]
        by_difference = sorted(timed, key=lambda pair: pair.whole.seconds - pair.without.seconds)
        by_ratio = sorted(timed, key=lambda pair: pair.whole.seconds / pair.without.seconds)
        for pair in (*by_difference[:CANDIDATES], *by_ratio[:CANDIDATES]):
            again = [solve_both(pair.case, mechanism, turn) for turn in range(REPEAT)]
            ratio = min(p.without.seconds for p in again) / min(p.whole.seconds for p in again)
            self.slowest = max(self.slowest, ratio)

    def cells(self, groups: Sequence[str]) -> list[str]:
        """Return the mechanism's row of the table."""
        seconds = sum(p.without.seconds for p in self.all) / sum(p.whole.seconds for p in self.all)
        most = f"{self.slowest:.2f}" if self.slowest else ""
        test = "" if self.has_effect else NEEDED_BY.get(self.name, "")
        effects = (effect(self.pairs.get(group, [])) for group in groups)
        return [self.name, *effects, str(len(self.all)), f"{seconds:.2f}", most, test and f"`{test}`"]


def effect(pairs: Sequence[Pair]) -> str:
    """Return the effect of switching a mechanism off as text: price, unschedulable pods, scenarios worse / better.

    The price is the ratio of the sums, over the scenarios with equally many unschedulable pods.
    """
    worse = sum(pair.without.is_worse_than(pair.whole) for pair in pairs)
    better = sum(pair.whole.is_worse_than(pair.without) for pair in pairs)
    if not worse and not better:
        return "-"
    equal = [pair for pair in pairs if pair.whole.pods == pair.without.pods]
    total = sum(pair.whole.price for pair in equal)
    price = sum(pair.without.price for pair in equal) / total if total else 1.0
    pods = sum(pair.without.pods - pair.whole.pods for pair in pairs)
    return f"{price:.4f}, {f'{pods:+d} pods, ' if pods else ''}{worse} / {better}"


def measure(chosen: Sequence[Mechanism], *, quick: bool) -> Iterator[Measured]:
    """Measure each mechanism on the sample, and if it has no clear effect there, on all scenarios."""
    first, more = sample(), {} if quick else further()
    for group in (first, more):
        for case in (case for scenarios in group.values() for case in scenarios.values()):
            solve_once(case, lambda options: options)  # fills the caches
    for mechanism in chosen:
        measured = Measured(name=mechanism.name)
        measured.add(first, mechanism)
        if measured.worse < CLEAR:
            measured.add(more, mechanism)
        if not measured.has_effect:
            measured.repeat_slowest(mechanism)
        yield measured


GROUPS: Final = ("benchmarks", "traces", "cases", "drawn")
HEAD: Final = ("without", *GROUPS, "scenarios", "time ×", "slowest ×", "needed by")


def table(rows: Iterable[str]) -> str:
    """The rows as a table in Markdown."""
    return "\n".join([_line(HEAD), "|" + "---|" * len(HEAD), *rows])


def write(measured: Mapping[str, str]) -> None:
    """Put the rows, by mechanism, between the marks in docs/scheduling.md; rows of mechanisms not measured stay."""
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    known, _, after = rest.partition(END)
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in known.splitlines()} | measured
    text = table(rows[mechanism.name] for mechanism in mechanisms() if mechanism.name in rows)
    DOCUMENT.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    """Measure, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="mechanisms, by a part of their name")
    parser.add_argument("--quick", action="store_true", help="the sample alone")
    parser.add_argument("--write", action="store_true", help=f"put the rows into the table in {DOCUMENT.name}")
    arguments = parser.parse_args()
    chosen = [m for m in mechanisms() if not arguments.names or any(name in m.name for name in arguments.names)]
    rows: dict[str, str] = {}
    for measured in measure(chosen, quick=arguments.quick):
        rows[measured.name] = _line(measured.cells(GROUPS))
        done = f"{len(rows)} of {len(chosen)}, {time.process_time():.0f} s of CPU"
        sys.stderr.write(f"{done}: {rows[measured.name]}\n")
    sys.stdout.write(table(rows.values()) + "\n")
    if arguments.write:
        write(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
