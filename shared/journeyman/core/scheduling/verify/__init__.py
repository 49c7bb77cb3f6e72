"""Verifies a plan with plain code that shares nothing with the solver; a plan with defects is not executed.

A contract in pyproject.toml keeps the two apart. The checks know no prices or preferences: an expensive plan passes, a
wrong one does not. `matching` says what pods, labels, taints and ports mean; `possible_nodes` prepares snapshot and plan
(which labels and offerings each planned node may get), `usable_node_pools` says which NodePools may launch; `check_nodes`
checks each node by itself, `check_topology` the constraints between pods, `check_daemons` those about DaemonSets' pods,
`check_devices` the devices of ResourceClaims.

Restates: karpenter pkg/controllers/provisioning/scheduling.
Differs: a domain in which no instance type can be launched and no node exists does not count for topology spread; all
terms of a required node affinity are alternatives at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from msgspec.structs import replace

from journeyman.core.api.objects import Pod
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.results import Results
from journeyman.core.scheduling.verify.check_daemons import AwaitedDaemons, check_daemons
from journeyman.core.scheduling.verify.check_devices import check_devices
from journeyman.core.scheduling.verify.check_nodes import (
    StorageIndex,
    check_claims,
    check_existing,
    check_limits,
    check_reservations,
)
from journeyman.core.scheduling.verify.check_topology import (
    PodPresences,
    check_affinity,
    check_anti_affinity,
    check_spread,
)
from journeyman.core.scheduling.verify.possible_nodes import Defect, PlanIndex, name_of_claim, name_of_node, placements
from journeyman.core.state import Snapshot

__all__ = ["Defect", "Verifier", "placements", "verify", "without_defective_nodes"]


class Verifier(Protocol):
    """Finds the defects of a plan."""

    def __call__(
        self,
        snapshot: Snapshot,
        catalogue: Catalogue,
        results: Results,
        *,
        pods: Sequence[Pod] | None = None,
        without_nodes: frozenset[str] = frozenset(),
        ignore_dra_requests: bool = True,
    ) -> tuple[Defect, ...]:
        """Return the defects of a plan, as `verify` does."""
        ...


def verify(
    snapshot: Snapshot,
    catalogue: Catalogue,
    results: Results,
    *,
    pods: Sequence[Pod] | None = None,
    without_nodes: frozenset[str] = frozenset(),
    ignore_dra_requests: bool = True,
) -> tuple[Defect, ...]:
    """Return the defects of a plan, checked against the snapshot from which the solver computed it.

    Args:
        snapshot: The snapshot that the solver saw.
        catalogue: The catalogue that the solver saw.
        results: The plan.
        pods: The pods to schedule; None to check only the pods in the plan.
        without_nodes: Names of state nodes that the solver must not use.
        ignore_dra_requests: As in the solver's options: whether DaemonSets whose pods have ResourceClaims count for nothing.

    Returns:
        The defects, each with a sentence that names pod and node; empty if there are none.
    """
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


def without_defective_nodes(results: Results, defects: Iterable[Defect]) -> Results:
    """Return the plan without the nodes that have defects, and without their pods."""
    defective = {node for defect in defects for node in defect.nodes}
    return replace(
        results,
        new_claims=tuple(claim for claim in results.new_claims if name_of_claim(claim) not in defective),
        existing={name: keys for name, keys in results.existing.items() if name_of_node(name) not in defective},
        devices={name: found for name, found in results.devices.items() if name_of_node(name) not in defective},
    )


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
        if pod.key not in placed and pod.key not in results.pod_errors and not index.kind(pod.key).opted_out:
            yield Defect(f"pod {pod.key} is missing from the plan: neither scheduled nor has it an error")


def _nodes_of(results: Results, key: str) -> tuple[str, ...]:
    return tuple(node for node, keys in placements(results) if key in keys)


def _check_pods(index: PlanIndex, storage: StorageIndex) -> Iterator[Defect]:
    """Check that the plan schedules no pod with invalid requests or volumes."""
    for kind, nodes in index.planned_by_kind.items():
        why = kind.unreadable or storage.defect(kind)
        if why:
            yield from (node.defect(f"pod {pod} is scheduled although {why}") for node, pod, _ in nodes)
