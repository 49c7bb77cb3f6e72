"""Multi-node consolidation: deletes several nodes at once, with at most one replacement.

Candidates are sorted by savings ratio, and a binary search finds a long prefix of them that can be consolidated together:
if a prefix can, a longer one is tried, otherwise a shorter one.

::

    candidates   c1 c2 c3 c4 c5 c6 c7 c8      (budgets already allow all of them)
    1st          [c1 … c4]                     consolidates ─► remembered, try longer
    2nd          [c1 … c6]                     does not      ─► try shorter
    3rd          [c1 … c5]                     consolidates ─► the command

If kube-scheduler might leave a pod of a prefix without capacity (core/disruption/binding_orders.py), the prefix is not proposed,
but longer ones are still tried, because they often have more free capacity. If the longest one is such a prefix, the search
is repeated: with shorter ones instead, and, twice, without the node of that pod. Of what passes, the command is taken that
saves most.

Restates: karpenter pkg/controllers/disruption/multinodeconsolidation.go `ComputeCommands`, `firstNConsolidationOption`,
`filterOutSameInstanceType`.
Differs: each evaluation is yielded with the best command so far, so that the caller can stop at its deadline and take it;
Karpenter stops after a minute. Budgets passed in are not changed. As many candidates are considered as one NodeDisruption can
hold, at most 100, where Karpenter considers 101. Karpenter does not ask in which order pods are bound.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.disruption.candidates import Candidate, NodePoolName, by_savings, within_budgets
from journeyman.core.disruption.commands import Command, pages
from journeyman.core.disruption.consolidation import (
    compute_consolidation,
    with_larger_replacement,
    without_same_type,
)
from journeyman.core.disruption.simulation import Simulation

MOST_LEFT_OUT: Final = 2
"""How many nodes are left out, one after the other, because one of their pods may find no capacity."""


class Attempt(Struct, frozen=True, kw_only=True):
    """One evaluation of the search.

    `command` is for `candidates`: a no-op with the reason if these can't be consolidated together. `best` is the command to take if
    the search ends here, and `refused` the last one that the caller's check refused; both may be None.
    """

    command: Command
    candidates: tuple[Candidate, ...]
    best: Command | None
    refused: Command | None


def multi_node_commands(
    simulation: Simulation,
    candidates: Iterable[Candidate],
    allowed_disruptions: Mapping[NodePoolName, int],
    *,
    spot_to_spot: bool = False,
    check: Callable[[Command], str] = lambda command: "",
    unbound: Callable[[Command], str] = lambda command: "",
) -> Iterator[Attempt]:
    """Yield the evaluations of the search, at most seven if no pod may be left without capacity; none for fewer than two candidates.

    Args:
        simulation: The cluster to schedule their pods in.
        candidates: Nodes that consolidation may disrupt now, any order.
        allowed_disruptions: Nodes each NodePool may still lose for ``Underutilized``; missing means 0.
        spot_to_spot: Gate SpotToSpotConsolidation.
        check: Returns why a command is refused, empty if it is not; shorter prefixes are then tried.
        unbound: Returns the key of a pod that may find no capacity, empty if there is none; longer prefixes are still tried.
    """
    considered = next(pages(within_budgets(sorted(candidates, key=by_savings), allowed_disruptions)), ())

    def decide(chosen: Sequence[Candidate]) -> Command:
        command = compute_consolidation(simulation, chosen, spot_to_spot=spot_to_spot, single_node=False)
        return without_same_type(command, simulation) if command.replacements else command

    yield from _Search(simulation, decide, check, unbound).attempts(considered)


class _Search:
    """The best command found so far, and each command by its candidates, so that none is computed twice."""

    def __init__(
        self,
        simulation: Simulation,
        decide: Callable[[Sequence[Candidate]], Command],
        check: Callable[[Command], str],
        unbound: Callable[[Command], str],
    ) -> None:
        self._simulation = simulation
        self._decide = decide
        self._check = check
        self._unbound = unbound
        self._best: Command | None = None
        self._refused: Command | None = None
        self._evaluated: dict[tuple[Candidate, ...], tuple[Command, str]] = {}

    def attempts(self, considered: tuple[Candidate, ...]) -> Iterator[Attempt]:
        """Yield the evaluations for these candidates."""
        problem = yield from self._binary_search(considered)
        if problem is not None:
            yield from self._binary_search(considered, shorter_without_capacity=True)
        for _ in range(MOST_LEFT_OUT):
            if problem is None:
                return
            considered = tuple(c for c in considered if c is not problem)
            problem = yield from self._binary_search(considered)

    def _binary_search(
        self, considered: tuple[Candidate, ...], *, shorter_without_capacity: bool = False
    ) -> Generator[Attempt, None, Candidate | None]:
        """Yield new evaluations; return whose pod of the longest valid prefix may find no capacity; None if all find some.

        For a pod on none of the nodes, such as a pending one, it is the last node of the prefix.
        """
        fewest, most = 2, len(considered)
        problem: Candidate | None = None
        while fewest <= most:
            chosen = considered[: (fewest + most) // 2]
            is_new = chosen not in self._evaluated
            command, without_capacity = self._evaluated.get(chosen) or self._evaluate(chosen)
            if command.candidates or (without_capacity and not shorter_without_capacity):
                fewest, problem = len(chosen) + 1, _node_of(without_capacity, chosen) if without_capacity else None
            else:
                most = len(chosen) - 1
            if is_new:
                yield Attempt(command=command, candidates=chosen, best=self._best, refused=self._refused)
        return problem

    def _evaluate(self, chosen: tuple[Candidate, ...]) -> tuple[Command, str]:
        """Return the command, and a pod that may find no capacity, for which it is a no-op; empty if there is none."""
        command = self._decide(chosen)
        pod = ""
        if command.candidates and (why := self._check(command)):
            command, self._refused = _no_op(command, why), command
        if command.candidates and (pod := self._unbound(command)):
            larger = with_larger_replacement(command, self._simulation, self._unbound, self._check)
            pod = "" if larger is not None else pod
            command = larger if larger is not None else _no_op(command, f"pod {pod} may find no capacity")
        if command.candidates:
            self._note(command)
        self._evaluated[chosen] = command, pod
        return command, pod

    def _note(self, command: Command) -> None:
        """Note a command as the best one, if it is: the last one as long as none was left without capacity, as in Karpenter."""
        is_as_karpenters = not any(pod for _, pod in self._evaluated.values())
        if self._best is None or is_as_karpenters or command.saving > self._best.saving:
            self._best = command


def _node_of(pod: str, candidates: Sequence[Candidate]) -> Candidate:
    return next((c for c in candidates if pod in c.reschedulable_pods), candidates[-1])


def _no_op(command: Command, why: str) -> Command:
    return replace(command, candidates=(), replacements=(), why_not=why)
