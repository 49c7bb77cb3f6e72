"""What each mechanism of the scheduler is worth: price, unschedulable pods and time without it.

    make bench-ablation                                  all mechanisms; about ten minutes on one core
    python -m tests.bench.ablation --quick               a tenth of the clusters
    python -m tests.bench.ablation NAME…                 some mechanisms
    python -m tests.bench.ablation --write               put the table into docs/scheduling.md

A mechanism is switched off from outside: a collaborator or an effort limit is replaced by one that does without it, or
an option is set. Everything else stays, so the difference is what the mechanism contributes. Scenarios are those of the
benchmark, production-like traces, and a sample of the clusters that the differential tests draw.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest import mock

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from msgspec.structs import replace

from journeyman.cli.scenario import Scenario, parse_scenario
from journeyman.cli.solve import options_of
from journeyman.core.scheduling import (
    bulk_scheduling,
    domain_assignment,
    domain_distribution,
    domain_supply,
    new_nodes,
    packing,
    scheduler,
    sequential,
)
from journeyman.core.scheduling.packing import bulk_packing, column_generation, shadow_prices, strategies
from journeyman.core.scheduling.results import Options, PreferencePolicy
from journeyman.core.scheduling.sequential import TieBreakPolicy
from tests.differential.clusters import clusters
from tests.helpers import karpenter_benchmark, production_trace, workloads

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "scheduling.md"
BEGIN, END = "<!-- ablation: begin -->", "<!-- ablation: end -->"
CASES: Final = Path(__file__).parents[1] / "differential" / "cases" / "regressions"
DRAWN: Final = 100  # clusters drawn, of at most so many pods:
PODS_PER_CLUSTER: Final = 60
TOLERANCE: Final = 1e-9
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


@dataclass(kw_only=True)
class Outcome:
    """Price and unschedulable pods by scenario, and the time all of them took."""

    answers: dict[str, tuple[int, float]] = field(default_factory=dict)
    seconds: float = 0.0


def mechanisms() -> Iterator[Mechanism]:
    """All that can be switched off, in the order of the table."""
    yield from _of_packing()
    yield from _of_domains()
    yield from _of_plans()


def _of_packing() -> Iterator[Mechanism]:
    yield Mechanism(name="column generation", changes=((column_generation, "REFINED_ITEMS", 0),))
    yield Mechanism(name="repacking the worst nodes (few items)", changes=((column_generation, "REPACK_ROUNDS", 0),))
    yield Mechanism(name="repacking the worst nodes (many items)", changes=((strategies, "REPACKED_PLAN", -1),))
    yield Mechanism(
        name="one node for all that is left",
        changes=((column_generation.ColumnGenerationSolver, "cheapest_node_for_all", lambda _self, _left: None),),
    )
    yield Mechanism(
        name="even shares of all items in a node",
        changes=(
            (
                column_generation.ColumnGenerationSolver,
                "even_shares",
                lambda _self, _left, suits, _room: np.zeros(suits.shape, dtype=np.int64),
            ),
        ),
    )
    yield Mechanism(
        name="looking at promising offers only", changes=((column_generation, "PROMISING_OFFERS", 1 << 30),)
    )
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
    yield Mechanism(name="shadow prices by size of offer", changes=((shadow_prices, "DETAILS", ((False, False),)),))
    yield Mechanism(name="stopping near the lower bound", changes=((strategies, "GOOD_ENOUGH", 0.0),))
    yield Mechanism(name="merging equal items", changes=((packing.MergedItems, "of", staticmethod(_every_item_apart)),))
    yield Mechanism(
        name="packing independent items apart",
        changes=((packing, "independent", lambda allowed: [np.arange(allowed.shape[1])] if allowed.shape[1] else []),),
    )
    yield Mechanism(name="reserved capacity first", changes=((packing, "fill_stocks", lambda _problem: []),))


def _every_item_apart(problem: packing.PackingProblem, items: Any) -> packing.MergedItems:
    members = tuple(items[n : n + 1] for n in range(len(items)))
    part = problem.of_items(items)
    return packing.MergedItems(problem=part, members=members, width=len(problem.counts), counts=problem.counts)


def _of_domains() -> Iterator[Mechanism]:
    yield Mechanism(
        name="repairing domains that others made invalid", changes=((domain_assignment, "REPAIR_ROUNDS", 0),)
    )
    yield Mechanism(
        name="domains chosen with regard to followers",
        changes=((domain_assignment.DomainAssignment, "charge_followers", lambda _self, _row, _cells: None),),
    )
    yield Mechanism(
        name="first domain of an affinity by the price of whole nodes",
        changes=((domain_supply.DomainSupply, "fleet_price", lambda *_: 0.0),),
    )
    yield Mechanism(
        name="crossed spreads tried in several turns", changes=((domain_distribution, "are_crossed", lambda _: False),)
    )
    yield Mechanism(
        name="distributing repeated rounds at once", changes=((domain_distribution, "WORTH_A_LEAP", 1 << 60),)
    )
    yield Mechanism(
        name="the short way where one spread decides",
        changes=((domain_distribution.Distribution, "has_one_rule", lambda _self, _pods: False),),
    )
    yield Mechanism(name="learning from quotas that limits cut short", changes=((bulk_scheduling, "ATTEMPTS", 1),))
    yield Mechanism(name="co-located pods first", changes=((bulk_scheduling, "MOST_CO_LOCATED", -1),))
    yield Mechanism(name="plans that weigh limits", changes=((new_nodes, "LIMIT_WEIGHTS", ()),))
    yield Mechanism(
        name="equal offers of other NodePools",
        changes=((new_nodes.WeightTier, "equal_offers", lambda _self, offer, _kinds: iter((offer,))),),
    )
    yield Mechanism(
        name="smallest pods first where limits are short",
        changes=((new_nodes.WeightTier, "within_limits", lambda _self, outcome: outcome.left),),
    )


def _of_plans() -> Iterator[Mechanism]:
    yield Mechanism(name="spread slack", changes=((scheduler, "has_spread_slack", lambda _problem: False),))
    yield Mechanism(name="rival sequential plans", without=lambda options: replace(options, compare_up_to=0))
    for policy in (
        TieBreakPolicy(),
        TieBreakPolicy(prefer_cheapest_domain=True),
        TieBreakPolicy(prefer_second_domain=True),
        TieBreakPolicy(prefer_last_pool_name=True),
        TieBreakPolicy(prefer_largest_reservation=True),
    ):
        yield Mechanism(
            name=f"rival: {_named(policy)}",
            changes=((scheduler, "tie_break_policies", _all_but(policy, scheduler.tie_break_policies)),),
        )
    for change in sequential.FALLBACK_POLICIES:
        others = {name: test for name, test in sequential.FALLBACK_POLICIES.items() if name != change}
        yield Mechanism(name=f"second try: {change}", changes=((sequential, "FALLBACK_POLICIES", others),))
    for order in sequential.QUEUE_ORDERS:
        rest = tuple(other for other in sequential.QUEUE_ORDERS if other is not order)
        yield Mechanism(
            name=f"second try: queue {order.__name__.strip('_')}", changes=((sequential, "QUEUE_ORDERS", rest),)
        )
    when_free = lambda options: replace(options, preferences=PreferencePolicy.WHEN_FREE)  # noqa: E731
    yield Mechanism(name="WhenFree: class by class", changes=((scheduler, "CLASSES_TRIED", 0),), options=when_free)


def _named(policy: TieBreakPolicy) -> str:
    changed = [
        f"{name}={value}" if value is not True else name
        for name, value in ((name, getattr(policy, name)) for name in TieBreakPolicy.__struct_fields__)
        if value
    ]
    return ", ".join(changed) or "Karpenter's own choices"


def _all_but(policy: TieBreakPolicy, policies: Callable[..., Iterator[TieBreakPolicy]]) -> Callable[..., Any]:
    return lambda task: (other for other in policies(task) if other != policy)


# --- scenarios


def groups(*, quick: bool) -> dict[str, dict[str, Scenario]]:
    """The scenarios by group and name."""
    benchmarks = [workloads.scenario(name) for name in workloads.WORKLOADS]
    traces = [production_trace.scenario(150), production_trace.scenario(400, rules=True)]
    if not quick:
        benchmarks += [karpenter_benchmark.scenario(name) for name in ("diverse-400", "preferences-400")]
        traces.append(production_trace.scenario(400))
    corpus = [{"name": path.stem, **json.loads(path.read_text())} for path in sorted(CASES.glob("*.json"))]
    corpus += drawn(DRAWN // 10 if quick else DRAWN)
    found = {"benchmarks": benchmarks, "traces": traces, "differential": corpus}
    return {
        group: {f"{n}-{raw['name']}": parse_scenario(json.dumps(raw).encode()) for n, raw in enumerate(raws)}
        for group, raws in found.items()
    }


def drawn(count: int, start: int = 13) -> list[JSONDict]:
    """So many clusters as the differential tests draw them."""
    found: list[JSONDict] = []

    @seed(start)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(clusters(PODS_PER_CLUSTER))
    def collect(raw: JSONDict) -> None:
        found.append(raw)

    collect()
    return found


# --- measuring


def solve_all(scenarios: dict[str, Scenario], options: Callable[[Options], Options]) -> Outcome:
    """Solve each scenario once."""
    outcome = Outcome()
    for name, case in scenarios.items():
        chosen = replace(options(options_of(case)), bound=False)
        start = time.process_time()
        results = scheduler.solve(case.snapshot, case.catalogue, options=chosen)
        outcome.seconds += time.process_time() - start
        outcome.answers[name] = len(results.pod_errors), results.price
    return outcome


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What a group of scenarios becomes without a mechanism.

    `price` is the ratio of the sums, over the scenarios with equally many unschedulable pods; `worse` and `better` count
    scenarios with more unschedulable pods, or a higher price at equally many, and the opposite.
    """

    price: float
    pods: int
    worse: int
    better: int
    seconds: float

    @classmethod
    def between(cls, whole: Outcome, without: Outcome) -> Difference:
        """Compare the outcome with all mechanisms to that without one."""
        pairs = [(whole.answers[name], without.answers[name]) for name in whole.answers]
        equal = [(a[1], b[1]) for a, b in pairs if a[0] == b[0]]
        total = sum(a for a, _ in equal)
        return cls(
            price=sum(b for _, b in equal) / total if total else 1.0,
            pods=sum(b[0] - a[0] for a, b in pairs),
            worse=sum(_is_worse(b, a) for a, b in pairs),
            better=sum(_is_worse(a, b) for a, b in pairs),
            seconds=without.seconds / whole.seconds if whole.seconds else 1.0,
        )

    def cells(self) -> list[str]:
        """As text: price, pods, worse and better scenarios, time."""
        price = f"{self.price:.4f}" if abs(self.price - 1) > TOLERANCE else "1"
        counts = f"{self.worse} / {self.better}" if self.worse or self.better else "-"
        return [price, f"{self.pods:+d}" if self.pods else "0", counts, f"{self.seconds:.2f}"]


def _is_worse(a: tuple[int, float], b: tuple[int, float]) -> bool:
    return a[0] > b[0] or (a[0] == b[0] and a[1] > b[1] * (1 + TOLERANCE))


def measure(
    chosen: Sequence[Mechanism], scenarios: dict[str, dict[str, Scenario]]
) -> Iterator[tuple[str, dict[str, Difference]]]:
    """Each mechanism's difference by group."""
    wholes: dict[PreferencePolicy | None, dict[str, Outcome]] = {}
    for group in scenarios.values():
        for _ in range(2):
            solve_all(group, lambda options: options)  # so that all that is cached is there
    for mechanism in chosen:
        kind = mechanism.options(Options()).preferences
        if kind not in wholes:
            wholes[kind] = {name: solve_all(group, mechanism.options) for name, group in scenarios.items()}
        with ExitStack() as stack:
            for owner, attribute, replacement in mechanism.changes:
                stack.enter_context(mock.patch.object(owner, attribute, replacement))
            both = lambda options, m=mechanism: m.without(m.options(options))  # noqa: E731
            without = {name: solve_all(group, both) for name, group in scenarios.items()}
        yield mechanism.name, {name: Difference.between(wholes[kind][name], without[name]) for name in scenarios}


def table(rows: Sequence[tuple[str, dict[str, Difference]]], names: Sequence[str]) -> str:
    """The differences as a table in Markdown."""
    head = [
        "without",
        *(f"{name}: {what}" for name in names for what in ("price ×", "pods", "worse / better", "time ×")),
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for mechanism, by_group in rows:
        cells = [mechanism, *(cell for name in names for cell in by_group[name].cells())]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write(text: str) -> None:
    """Put the table between the marks in docs/scheduling.md."""
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def main() -> int:
    """Measure, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="mechanisms, by a part of their name")
    parser.add_argument("--quick", action="store_true", help="a tenth of the clusters")
    parser.add_argument("--write", action="store_true", help=f"put the table into {DOCUMENT.name}")
    arguments = parser.parse_args()
    chosen = [m for m in mechanisms() if not arguments.names or any(name in m.name for name in arguments.names)]
    scenarios = groups(quick=arguments.quick)
    rows = []
    for name, by_group in measure(chosen, scenarios):
        rows.append((name, by_group))
        sys.stderr.write(f"{name}: {[difference.cells() for difference in by_group.values()]}\n")
    text = table(rows, list(scenarios))
    sys.stdout.write(text + "\n")
    if arguments.write:
        write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
