"""Measures which mechanisms of the scheduler pay together: price, unschedulable pods and CPU time without them.

    make bench-ablation                                  all mechanisms; an hour or more on one core
    python -m tests.bench.ablation --quick               on a sample of the scenarios
    python -m tests.bench.ablation NAME…                 some mechanisms
    python -m tests.bench.ablation --write               put the table into docs/scheduling.md

A mechanism is switched off from outside: the benchmark replaces a function or an effort limit, or sets an option. Switched
off one at a time, mechanisms that stand in for each other all look worthless. So this is a backward elimination: each
mechanism in turn is switched off beside those that are off already, and stays off if the price over all scenarios of a
group stays within its bound and no scenario loses a pod. Each line of the table compares with all mechanisms.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
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
from journeyman.core.scheduling.results import Options
from journeyman.core.scheduling.scheduler import Proposer
from journeyman.core.scheduling.topology import SpreadChoice
from tests.differential.clusters import clusters
from tests.helpers import karpenter_benchmark, production_trace, workloads

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "scheduling.md"
BEGIN, END = "<!-- ablation: begin -->", "<!-- ablation: end -->"
CASES: Final = Path(__file__).parents[1] / "differential" / "cases" / "regressions"
DRAWN, DRAWN_FOR_SAMPLE = 600, 100  # clusters
TOLERANCE: Final = 1e-9
BOUNDS: Final = {"benchmarks": 1.0015, "traces": 1.0015, "cases": 1.005, "drawn": 1.005}
"""The highest ratio of the prices, over the scenarios of a group with as many unschedulable pods."""
JSONDict = dict[str, Any]


class Change(NamedTuple):
    """An attribute of a module or class, and its replacement for the value that it has."""

    owner: object
    attribute: str
    replaced: Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """A part of the scheduler that can be switched off, by changes or by an option."""

    name: str
    changes: tuple[Change, ...] = ()
    without: Callable[[Options], Options] = lambda options: options


def _set(owner: object, attribute: str, value: object) -> tuple[Change, ...]:
    return (Change(owner, attribute, lambda _: value),)


def mechanisms() -> Iterator[Mechanism]:
    """Return all mechanisms that can be switched off, in the order of the table."""
    yield from _of_packing()
    yield from _of_domains()
    yield from _of_plans()


def _of_packing() -> Iterator[Mechanism]:
    yield Mechanism(name="column generation", changes=_set(strategies, "GENERATION_EFFORT", 0))
    yield Mechanism(name="plain greedy plan", changes=_set(greedy_packing.GreedyPacker, "plain", lambda *_: None))
    yield Mechanism(name="varied orders of filling", changes=_set(column_generation, "VARIATION", (0.0,)))
    apart = lambda _offered, _other: False  # noqa: E731
    yield Mechanism(name="contents counted by family", changes=_set(column_generation, "are_nested", apart))
    yield Mechanism(name="prices refined over whole nodes", changes=_set(greedy_packing, "REFINED_ITEMS", 0))
    yield Mechanism(name="repacking the worst nodes (few items)", changes=_set(greedy_packing, "REPACK_ROUNDS", 0))
    yield Mechanism(name="repacking the worst nodes (many items)", changes=_set(strategies, "REPACKED_PLAN", -1))
    yield Mechanism(
        name="one node for all that is left",
        changes=_set(greedy_packing.GreedyPacker, "cheapest_node_for_all", lambda _self, _left: None),
    )
    yield Mechanism(
        name="even shares of all items in a node",
        changes=_set(
            greedy_packing.GreedyPacker,
            "even_shares",
            lambda _self, _left, suits, _room: np.zeros(suits.shape, dtype=np.int64),
        ),
    )
    yield Mechanism(name="looking at promising offers only", changes=_set(greedy_packing, "PROMISING_OFFERS", 1 << 30))
    yield Mechanism(name="exact packing of few items", changes=_set(strategies, "EXACT_STATES", 1))
    plain = (bulk_packing.FillOrder(),)
    yield Mechanism(name="several orders of filling", changes=_set(strategies, "fill_orders", lambda _p, _s: plain))
    whole = lambda _p, prices: iter((np.floor(prices.mix + 1e-9).astype(np.int64),))  # noqa: E731
    yield Mechanism(name="several mixes of whole nodes", changes=_set(strategies, "whole_mixes", whole))
    yield Mechanism(name="mixes with capacity to spare", changes=_set(bulk_packing, "MARGINS", (0.0,)))
    yield Mechanism(name="further mixes for what is left", changes=_set(strategies, "MIX_ROUNDS", 1))
    yield Mechanism(
        name="mixes of nodes of equal price",
        changes=_set(shadow_prices.OfferGroups, "prefer_equal_nodes", lambda _self, _program: None),
    )
    yield Mechanism(name="shadow prices by size of offer", changes=_set(shadow_prices, "BY_SIZE", (False,)))
    yield Mechanism(
        name="packing independent items apart",
        changes=_set(packing, "independent", lambda allowed: [np.arange(allowed.shape[1])] if allowed.shape[1] else []),
    )
    yield Mechanism(name="reserved capacity first", changes=_set(packing, "fill_reservations", lambda _problem: []))


def _of_domains() -> Iterator[Mechanism]:
    yield Mechanism(
        name="distributing repeated rounds at once", changes=_set(domain_distribution, "WORTH_A_LEAP", 1 << 60)
    )
    yield Mechanism(name="co-located pods first", changes=_set(bulk_scheduling, "MOST_CO_LOCATED", -1))
    yield Mechanism(name="plans that weigh limits", changes=_set(new_nodes, "LIMIT_WEIGHTS", ()))
    yield Mechanism(
        name="smallest pods first where limits are short",
        changes=_set(new_nodes.PoolsOfWeight, "within_limits", lambda _self, outcome: outcome.left),
    )


def _of_plans() -> Iterator[Mechanism]:
    for name, choice in (
        ("spread slack", SpreadChoice.CHEAPEST),
        ("pods join those that their spread counts", SpreadChoice.CHEAPEST_IF_FIRST),
    ):
        yield Mechanism(name=name, changes=(_without_yields(scheduler, "spread_choices", choice),))
    yield Mechanism(
        name="pods that cannot share a node as they prefer in bulk",
        changes=_set(scheduler, "without_lost_preferences", lambda task, _plan: task),
    )
    for proposer in (Proposer.POD_BY_POD_LAST_POOL, Proposer.POD_BY_POD_LARGEST_RESERVATION, Proposer.POD_BY_POD):
        changes = (_without_yields(scheduler, "tie_break_policies", proposer),)
        yield Mechanism(name=f"rival: {proposer.value}", changes=changes)
    for change in sequential.FALLBACK_POLICIES:
        yield Mechanism(name=f"second try: {change}", changes=(_without_key(change),))
    yield Mechanism(
        name="second try: avoid_reservations",
        changes=_set(sequential, "used_reservations", lambda _problem, _attempt: False),
    )
    for order in sequential.QUEUE_ORDERS:
        yield Mechanism(name=f"second try: queue {order.__name__.strip('_')}", changes=(_without_order(order),))
    yield Mechanism(name="rival sequential plans", without=lambda options: replace(options, compare_up_to=0))


def _without_yields(owner: object, attribute: str, one: object) -> Change:
    """Return the change by which a function no longer yields the pairs with a value."""
    return Change(owner, attribute, lambda found: lambda task: (pair for pair in found(task) if one not in pair))


def _without_key(key: str) -> Change:
    keep = lambda policies: {name: may_help for name, may_help in policies.items() if name != key}  # noqa: E731
    return Change(sequential, "FALLBACK_POLICIES", keep)


def _without_order(order: object) -> Change:
    return Change(sequential, "QUEUE_ORDERS", lambda orders: tuple(other for other in orders if other is not order))


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
    """A scenario's result: the number of unschedulable pods, the price of the nodes, and the CPU time in seconds."""

    pods: int
    price: float
    seconds: float

    def is_worse_than(self, other: Answer) -> bool:
        """Return whether this result has more unschedulable pods, or as many at a higher price."""
        return self.pods > other.pods or (
            self.pods == other.pods and self.price > other.price * (1 + TOLERANCE) + TOLERANCE
        )


def answers(groups: Groups, off: Sequence[Mechanism]) -> dict[str, list[Answer]]:
    """Solve all scenarios with these mechanisms switched off; return the results by group."""
    with ExitStack() as stack:
        for change in (change for mechanism in off for change in mechanism.changes):
            value = change.replaced(getattr(change.owner, change.attribute))
            stack.enter_context(mock.patch.object(change.owner, change.attribute, value))
        return {group: [_solve(case, off) for case in scenarios.values()] for group, scenarios in groups.items()}


def _solve(case: Scenario, off: Sequence[Mechanism]) -> Answer:
    chosen = replace(options_of(case), bound=False)
    for mechanism in off:
        chosen = mechanism.without(chosen)
    start = time.process_time()
    results = scheduler.solve(case.snapshot, case.catalogue, options=chosen)
    return Answer(len(results.pod_errors), results.price, time.process_time() - start)


class Effect(NamedTuple):
    """What is different in the scenarios of a group: the ratio of the prices where as many pods are unschedulable, and pods lost."""

    price: float
    lost: int
    worse: int
    better: int

    @classmethod
    def of(cls, whole: Sequence[Answer], without: Sequence[Answer]) -> Effect:
        """Compare the results of the same scenarios."""
        pairs = list(zip(whole, without, strict=True))
        equal = [(a, b) for a, b in pairs if a.pods == b.pods]
        total = sum(a.price for a, _ in equal)
        return cls(
            price=sum(b.price for _, b in equal) / total if total else 1.0,
            lost=sum(max(b.pods - a.pods, 0) for a, b in pairs),
            worse=sum(b.is_worse_than(a) for a, b in pairs),
            better=sum(a.is_worse_than(b) for a, b in pairs),
        )

    def __str__(self) -> str:
        if not self.worse and not self.better:
            return "-"
        return f"{self.price:.4f}, {f'{self.lost} pods lost, ' if self.lost else ''}{self.worse} / {self.better}"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A mechanism that was switched off beside those that are off, compared with all mechanisms."""

    name: str
    effects: Mapping[str, Effect]
    time: float

    @property
    def stays_off(self) -> bool:
        """Return whether no pod is lost, and the price of each group is within its bound."""
        return all(not e.lost and e.price <= BOUNDS[group] for group, e in self.effects.items())

    @property
    def cells(self) -> list[str]:
        """Return the line of the table."""
        effects = (str(self.effects[group]) for group in BOUNDS)
        return [self.name, *effects, f"{self.time:.2f}", "off" if self.stays_off else "kept"]


def eliminate(candidates: Sequence[Mechanism], groups: Groups) -> Iterator[Trial]:
    """Switch one mechanism after another off; yield each trial. Those that stay off are off in the later ones."""
    answers(groups, ())  # fills the caches
    whole, off = answers(groups, ()), list[Mechanism]()
    for mechanism in candidates:
        without = answers(groups, (*off, mechanism))
        trial = Trial(
            name=mechanism.name,
            effects={group: Effect.of(whole[group], without[group]) for group in groups},
            time=_seconds(without) / _seconds(whole),
        )
        if trial.stays_off:
            off.append(mechanism)
        yield trial


def _seconds(found: Mapping[str, Sequence[Answer]]) -> float:
    return sum(answer.seconds for group in found.values() for answer in group)


HEAD: Final = ("also off", *BOUNDS, "time ×", "result")


def table(rows: Iterable[str]) -> str:
    """The rows as a table in Markdown."""
    return "\n".join([_line(HEAD), "|" + "---|" * len(HEAD), *rows])


def write(rows: Iterable[str]) -> None:
    """Put the rows between the marks in docs/scheduling.md."""
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text(f"{before}{BEGIN}\n{table(rows)}\n{END}{after}")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    """Measure, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="mechanisms, by a part of their name")
    parser.add_argument("--quick", action="store_true", help="the sample alone")
    parser.add_argument("--write", action="store_true", help=f"put the table into {DOCUMENT.name}")
    arguments = parser.parse_args()
    chosen = [m for m in mechanisms() if not arguments.names or any(name in m.name for name in arguments.names)]
    groups = sample()
    for group, scenarios in ({} if arguments.quick else further()).items():
        groups[group] = {**groups[group], **{f"further-{name}": case for name, case in scenarios.items()}}
    rows: list[str] = []
    for trial in eliminate(chosen, groups):
        rows.append(_line(trial.cells))
        sys.stderr.write(f"{len(rows)} of {len(chosen)}, {time.process_time():.0f} s of CPU: {rows[-1]}\n")
    sys.stdout.write(table(rows) + "\n")
    if arguments.write:
        write(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
