"""Multi-node consolidation: deletes several nodes at once, with at most one replacement.

Candidates are sorted by savings ratio, and a binary search finds a long prefix of them that can be consolidated together:
if a prefix can, a longer one is tried, otherwise a shorter one.

::

    candidates   c1 c2 c3 c4 c5 c6 c7 c8      (budgets already allow all of them)
    1st          [c1 … c4]                     consolidates ─► remembered, try longer
    2nd          [c1 … c6]                     does not      ─► try shorter
    3rd          [c1 … c5]                     consolidates ─► the command

Restates: karpenter pkg/controllers/disruption/multinodeconsolidation.go `ComputeCommands`, `firstNConsolidationOption`,
`filterOutSameInstanceType`.
Differs: each evaluation is yielded with the best command so far, so that the caller can stop at its deadline and take it;
Karpenter stops after a minute. Budgets passed in are not changed. As many candidates are considered as one NodeDisruption can
hold, at most 100, where Karpenter considers 101.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.disruption.candidates import Candidate, NodePoolName, by_savings, within_budgets
from journeyman.core.disruption.commands import Command, pages
from journeyman.core.disruption.consolidation import compute_consolidation, without_same_type
from journeyman.core.disruption.simulation import Simulation


class Attempt(Struct, frozen=True, kw_only=True):
    """One evaluation of the search.

    `command` is for the prefix `candidates`: a no-op with the reason if these can't be consolidated together. `best` is the
    last command found so far, and `refused` the last one that the caller's check refused; both may be None. The search ends
    with the attempt that `is_last`.
    """

    command: Command
    candidates: tuple[Candidate, ...]
    best: Command | None
    refused: Command | None
    is_last: bool


def multi_node_commands(
    simulation: Simulation,
    candidates: Iterable[Candidate],
    allowed_disruptions: Mapping[NodePoolName, int],
    *,
    spot_to_spot: bool = False,
    check: Callable[[Command], str] = lambda command: "",
) -> Iterator[Attempt]:
    """Yield the evaluations of the binary search, at most seven; none for fewer than two candidates.

    Args:
        simulation: The cluster to schedule their pods in.
        candidates: Nodes that consolidation may disrupt now, any order.
        allowed_disruptions: Nodes each NodePool may still lose for ``Underutilized``; missing means 0.
        spot_to_spot: Gate SpotToSpotConsolidation.
        check: Returns why a command is refused, empty if it is not.
    """
    considered = next(pages(within_budgets(sorted(candidates, key=by_savings), allowed_disruptions)), ())
    fewest, most = 2, len(considered)
    best: Command | None = None
    refused: Command | None = None
    while fewest <= most:
        length = (fewest + most) // 2
        chosen = considered[:length]
        command = compute_consolidation(simulation, chosen, spot_to_spot=spot_to_spot, single_node=False)
        command = without_same_type(command, simulation) if command.replacements else command
        if command.candidates and (why := check(command)):
            command, refused = replace(command, candidates=(), replacements=(), why_not=why), command
        if command.candidates:
            best, fewest = command, length + 1
        else:
            most = length - 1
        yield Attempt(command=command, candidates=chosen, best=best, refused=refused, is_last=fewest > most)
