"""Single-node consolidation: finds one node that can be deleted, or replaced by a cheaper one.

Restates: karpenter pkg/controllers/disruption/singlenodeconsolidation.go `ComputeCommands`.
Differs: candidates are yielded one by one, so that the caller can stop at its deadline; the next run continues behind the last
one, or at its place in the order if that node is no longer a candidate. NodePools that a run did not reach are therefore
the first ones of the next run, as with Karpenter's `PreviouslyUnseenNodePools`; but Karpenter examines the nodes that it
reached again before the later nodes of any NodePool, so that a pass that always takes too long never reaches these. Each node
is examined first (`fleet_examination`), and only nodes that the examination does not exclude are simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from journeyman.core.api import labels
from journeyman.core.disruption.candidates import Candidate, DisruptionReason, NodePoolName, by_savings
from journeyman.core.disruption.commands import Command
from journeyman.core.disruption.consolidatable import consolidate_after
from journeyman.core.disruption.consolidation import compute_consolidation, too_few_spot_types, with_larger_replacement
from journeyman.core.disruption.fleet_examination import FleetExaminer, NodeExamination
from journeyman.core.disruption.simulation import Simulation
from journeyman.core.state import Snapshot


class Examined(NamedTuple):
    """A candidate with its command, a no-op if it can't be consolidated; `cursor` continues behind it.

    `examination` is what the examination of the fleet found about it, None if it was not needed.
    """

    candidate: Candidate
    command: Command
    cursor: str
    examination: NodeExamination | None = None


def single_node_commands(
    simulation: Simulation,
    candidates: Iterable[Candidate],
    allowed_disruptions: Mapping[NodePoolName, int],
    *,
    spot_to_spot: bool = False,
    after: str = "",
    why_never: Callable[[Candidate], str] = lambda candidate: "",
    unbound: Callable[[Command], str] = lambda command: "",
) -> Iterator[Examined]:
    """Yield each candidate that may be consolidated now with its command, in the order of `interleaved`.

    Args:
        simulation: The cluster to schedule their pods in.
        candidates: Disruptable nodes, any order.
        allowed_disruptions: Nodes each NodePool may still lose for ``Underutilized``; missing means 0.
        spot_to_spot: Gate SpotToSpotConsolidation.
        after: The cursor with which an earlier run stopped: only the candidates behind it are left.
        why_never: Returns why a candidate is not worth a simulation, empty if it may be.
        unbound: Returns the key of a pod that may find no capacity, empty if there is none; a larger replacement is then tried, but not
            for Spot by Spot, which would have too few types.

    Yields:
        Candidate, command and cursor; the caller takes the first command that has candidates and stops.
    """
    order = interleaved(eligible_candidates(candidates, simulation.snapshot))
    first = _start(order, after)
    examiner = FleetExaminer(simulation, order, spot_to_spot=spot_to_spot)
    for place, candidate in enumerate(order[first:], start=first + 1):
        if allowed_disruptions.get(candidate.nodepool, 0) <= 0:
            continue
        why = why_never(candidate)
        examination = None if why else examiner.examine(candidate)
        if why := why or (examination.why_not if examination is not None else ""):
            command = Command(reason=DisruptionReason.UNDERUTILIZED, why_not=why)
        else:
            command = compute_consolidation(simulation, (candidate,), spot_to_spot=spot_to_spot)
            if command.replacements and unbound(command):
                command = with_larger_replacement(command, simulation, unbound, too_few_spot_types) or command
        yield Examined(candidate, command, f"{candidate.nodeclaim}/{place}", examination)


def _start(order: Sequence[Candidate], cursor: str) -> int:
    """Return the number of candidates in front of those that are left: up to the cursor's NodeClaim, or else its place."""
    name, _, place = cursor.partition("/")
    found = next((number for number, c in enumerate(order, start=1) if c.nodeclaim == name), None)
    if found is not None:
        return found
    return int(place) - 1 if place.isdecimal() and 0 < int(place) <= len(order) else 0


def eligible_candidates(candidates: Iterable[Candidate], snapshot: Snapshot) -> list[Candidate]:
    """Return the candidates that consolidation may delete or replace now, in their order.

    Restates: karpenter pkg/controllers/disruption/consolidation.go `ShouldDisrupt`.
    """
    return [c for c in candidates if c.consolidatable and not c.is_empty and not unconsolidatable_reason(c, snapshot)]


def unconsolidatable_reason(candidate: Candidate, snapshot: Snapshot) -> str:
    """Return why a node or its NodePool excludes consolidation, now and later; empty if it may be consolidated.

    Restates: karpenter pkg/controllers/disruption/consolidation.go `ShouldDisrupt`.
    """
    pool = snapshot.node_pools_by_name[candidate.nodepool]
    if pool.spec.static:
        return ""  # its nodes are never consolidatable, which a user of a static NodePool expects
    if not candidate.instance_type:
        node = snapshot.state_nodes_by_claim[candidate.nodeclaim]
        return f'Instance Type "{node.labels.get(labels.INSTANCE_TYPE, "")}" not found'
    for key, value in ((labels.CAPACITY_TYPE, candidate.capacity_type), (labels.ZONE, candidate.zone)):
        if not value:
            return f'Node does not have label "{key}"'
    if consolidate_after(pool) is None:
        return f'NodePool "{candidate.nodepool}" has consolidation disabled'
    if candidate.is_empty:
        return ""  # emptiness deletes it
    if pool.spec.disruption.consolidation_policy == "WhenEmpty":
        return f'NodePool "{candidate.nodepool}" has consolidation policy WhenEmpty, but node is not empty'
    return ""


def interleaved(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return candidates round-robin over the NodePools by name, highest savings first in each."""
    by_pool: dict[str, list[Candidate]] = {}
    for candidate in sorted(candidates, key=by_savings):
        by_pool.setdefault(candidate.nodepool, []).append(candidate)
    ranks = zip_longest(*(by_pool[name] for name in sorted(by_pool)))
    return [candidate for rank in ranks for candidate in rank if candidate is not None]
