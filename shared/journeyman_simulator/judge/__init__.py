"""The exhaustive judge of plans, for tests: what it accepts is right for every node that a NodeClaim may become.

`journeyman.core.scheduling.verify` reports what is certainly wrong in the final placement; the judge also reports what only
may go wrong. It tries orders in which pods come, whichever offerings are launched, with each device of the ResourceClaims.
It knows no preferences: an expensive plan passes. It shares with the production check what pods, labels, taints, ports
and NodePools mean (`matching`), and no rules. `possible_nodes` prepares snapshot and plan (which labels and offerings
each planned node may get); `check_nodes` checks each node by itself, `check_topology` the constraints between pods,
`check_daemons` those about DaemonSets' pods, `check_devices` the devices of ResourceClaims.

Restates: karpenter pkg/controllers/provisioning/scheduling.
Differs: a domain in which no instance type can be launched and no node exists does not count for topology spread; all
terms of a required node affinity are alternatives at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from journeyman.core.api.objects import Pod
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.results import Defect, Results, name_of_claim, placements
from journeyman.core.scheduling.verify import verify
from journeyman.core.scheduling.verify.matching import is_opted_out
from journeyman.core.state import Snapshot
from journeyman_simulator.judge.check_daemons import AwaitedDaemons, check_daemons
from journeyman_simulator.judge.check_devices import check_devices
from journeyman_simulator.judge.check_nodes import (
    StorageIndex,
    check_claims,
    check_existing,
    check_limits,
    check_reservations,
)
from journeyman_simulator.judge.check_topology import PodPresences, check_affinity, check_anti_affinity, check_spread
from journeyman_simulator.judge.possible_nodes import PlanIndex

__all__ = ["judge", "verify_strictly"]


def verify_strictly(snapshot: Snapshot, catalogue: Catalogue, results: Results, **options: Any) -> tuple[Defect, ...]:
    """Return the judge's defects of a plan, or if there are none those that the production check reports, then wrongly.

    The parameters are those of `results.Verifier`.
    """
    return judge(snapshot, catalogue, results, **options) or verify(snapshot, catalogue, results, **options)


def judge(
    snapshot: Snapshot,
    catalogue: Catalogue,
    results: Results,
    *,
    pods: Sequence[Pod] | None = None,
    without_nodes: frozenset[str] = frozenset(),
    ignore_dra_requests: bool = True,
) -> tuple[Defect, ...]:
    """Return the defects of a plan. The parameters are those of `results.Verifier`."""
    index = PlanIndex(
        snapshot, catalogue, results, pods, without_nodes=without_nodes, ignore_dra_requests=ignore_dra_requests
    )
    found = list(_check_completeness(index))
    if found:
        return tuple(found)  # placements of unknown pods cannot be checked
    storage, presences = StorageIndex(snapshot), PodPresences(index)
    awaited = AwaitedDaemons.of(index)
    found += _check_pods(index, storage)
    found += check_claims(index, storage)
    found += check_existing(index, storage)
    found += check_limits(index)
    found += check_reservations(index)
    found += check_spread(index, presences)
    found += check_affinity(index, presences, awaited.certain)
    found += check_anti_affinity(index, presences)
    found += check_daemons(index, awaited)
    found += check_devices(index, catalogue)
    return tuple(found)


def _check_completeness(index: PlanIndex) -> Iterator[Defect]:
    """Check that each pod exists, is scheduled at most once, and is either scheduled or has an error."""
    results = index.results
    for claim in results.new_claims:
        if not claim.pods:
            yield Defect(f"a NodeClaim of NodePool {claim.node_pool} has no pods", (name_of_claim(claim),))
    placed = Counter(index.placed)
    for key, times in sorted(placed.items()):
        if times > 1:
            yield Defect(f"pod {key} is scheduled {times} times", _nodes_of(results, key))
        if key in results.pod_errors:
            yield Defect(f"pod {key} is scheduled and has an error")
        if key not in index.known:
            yield Defect(f"pod {key} is scheduled but does not exist", _nodes_of(results, key))
    for pod in index.pods_to_schedule or ():
        if pod.key not in placed and pod.key not in results.pod_errors and not is_opted_out(pod):
            yield Defect(f"pod {pod.key} is missing from the plan: neither scheduled nor has it an error")


def _nodes_of(results: Results, key: str) -> tuple[str, ...]:
    return tuple(node for node, keys in placements(results) if key in keys)


def _check_pods(index: PlanIndex, storage: StorageIndex) -> Iterator[Defect]:
    """Check that the plan schedules no pod with invalid requests or volumes."""
    for kind, nodes in index.planned_by_kind.items():
        why = kind.unreadable or storage.defect(kind)
        if why:
            yield from (node.defect(f"pod {pod} is scheduled although {why}") for node, pod, _ in nodes)
