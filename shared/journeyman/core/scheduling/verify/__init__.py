"""The second opinion: every placement of a plan, checked again by plain code.

It shares nothing with the solver (a contract in pyproject.toml holds that), knows no quotas, prices or preferences, and
is written to be read. What it rejects is never applied. It checks facts, not quality: a dear plan passes, a wrong one
does not. The order of thought: `index` prepares snapshot and plan once (`kinds` of pods, `launches` that a claim may
become, `possible` labels); each other module has the rules of one subject: `claims`, `existing`, `volumes`, `ports`,
`limits`, `devices`; and between pods (`counting` says whom they are about) `spread`, `affinity`, `anti_affinity`.

Rules: facts of Karpenter's scheduling, restated from `pkg/controllers/provisioning/scheduling`.
Differs: a domain in which nothing can be launched and where no node stands is no domain for topology spread; all terms
of a required node affinity are alternatives at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from journeyman.core.api.objects import Pod
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.results import Results
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

__all__ = ["Defect", "placements", "verify", "without_accused"]


def verify(
    snapshot: Snapshot,
    catalogue: Catalogue,
    results: Results,
    *,
    pods: Sequence[Pod] | None = None,
    without_nodes: frozenset[str] = frozenset(),
) -> tuple[Defect, ...]:
    """Check a plan against the snapshot it was made from.

    Args:
        snapshot: The same snapshot that the solver saw.
        catalogue: The same catalogue.
        results: The plan.
        pods: The pods that were to be placed; None if only what the plan mentions can be checked.
        without_nodes: Names of state nodes that were not to be used.

    Returns:
        What is wrong, each with a sentence that names pod and node; empty if nothing is.
    """
    index = PlanIndex(snapshot, catalogue, results, pods, without_nodes)
    found = list(_check_bookkeeping(index))
    if found:
        return tuple(found)  # placements of unknown pods cannot be judged any further
    storage, presences = StorageIndex(snapshot), PodPresences(index)
    found += _check_pods(index, storage)
    found += check_claims(index, storage)
    found += check_existing(index, storage)
    found += check_limits(index)
    found += check_reservations(index)
    found += check_spread(index, presences)
    found += check_affinity(index, presences)
    found += check_anti_affinity(index, presences)
    found += check_devices(index, catalogue)
    return tuple(found)


def without_defective_nodes(results: Results, defects: Iterable[Defect]) -> Results:
    """What is left of a plan without the nodes that are wrong, and without their pods."""
    accused = {node for defect in defects for node in defect.nodes}
    return replace(
        results,
        new_claims=tuple(claim for claim in results.new_claims if name_of_claim(claim) not in accused),
        existing={name: keys for name, keys in results.existing.items() if name_of_node(name) not in accused},
        devices={name: found for name, found in results.devices.items() if name_of_node(name) not in accused},
    )


def _check_bookkeeping(index: PlanIndex) -> Iterator[Defect]:
    """Each pod is placed at most once, is known, and is either placed or has an error."""
    results = index.results
    for claim in results.new_claims:
        if not claim.pods:
            yield Defect(f"a NodeClaim of NodePool {claim.node_pool} was opened for no pod", (name_of_claim(claim),))
    placed = Counter(index.placed)
    for key, times in sorted(placed.items()):
        if times > 1:
            yield Defect(f"pod {key} is placed {times} times", _places_of(results, key))
        if key in results.pod_errors:
            yield Defect(f"pod {key} is placed and yet has an error")
        if key not in index.known:
            yield Defect(f"pod {key} is placed but does not exist", _places_of(results, key))
    for pod in index.pods_to_schedule or ():
        if pod.key not in placed and pod.key not in results.pod_errors and not index.kind(pod.key).opted_out:
            yield Defect(f"pod {pod.key} was forgotten: neither placed nor explained")


def _places_of(results: Results, key: str) -> tuple[str, ...]:
    return tuple(node for node, keys in placements(results) if key in keys)


def _check_pods(index: PlanIndex, storage: StorageIndex) -> Iterator[Defect]:
    """Pods that no node can serve must be left alone."""
    for kind, where in index.planned_by_kind.items():
        why = kind.unreadable or storage.defect(kind)
        if why:
            yield from (node.defect(f"pod {pod} is placed although {why}") for node, pod, _ in where)
