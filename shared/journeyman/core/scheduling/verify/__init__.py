"""The second opinion: every placement of a plan, checked again by plain per-pod code.

It shares nothing with the solver (a contract in pyproject.toml holds that), knows no classes, quotas or prices, and is
written to be read. What it rejects is never applied. It checks facts, not quality: a dear plan passes, a wrong one does not.

Rules: facts of Karpenter's scheduling, restated from `pkg/controllers/provisioning/scheduling/{nodeclaim,existingnode,topology}.go`.
Differs: a zone in which nothing can be launched and where no node stands is no domain for topology spread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from journeyman.core.api.objects import Pod
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.results import Results
from journeyman.core.scheduling.verify.claims import check_claim
from journeyman.core.scheduling.verify.existing import check_existing
from journeyman.core.scheduling.verify.limits import check_limits
from journeyman.core.scheduling.verify.spread import check_spread
from journeyman.core.scheduling.verify.understood import not_understood, repelling_pods
from journeyman.core.state import Snapshot

__all__ = ["verify"]


def verify(
    snapshot: Snapshot,
    catalogue: Catalogue,
    results: Results,
    *,
    pods: Sequence[Pod] | None = None,
    without_nodes: frozenset[str] = frozenset(),
) -> tuple[str, ...]:
    """Check a plan against the snapshot it was made from.

    Args:
        snapshot: The same snapshot that the solver saw.
        catalogue: The same catalogue.
        results: The plan.
        pods: The pods that were to be placed; None if only what the plan mentions can be checked.
        without_nodes: Names of state nodes that were not to be used.

    Returns:
        What is wrong, one sentence each, naming pod and node; empty if nothing is.
    """
    known = {pod.key: pod for pod in (*snapshot.pods, *(pods or ()))}
    found: list[str] = list(_check_bookkeeping(results, known.keys(), pods))
    if found:
        return tuple(found)  # placements of unknown pods cannot be judged any further
    found += _check_understood(snapshot, results, known)
    for claim in results.new_claims:
        found += check_claim(snapshot, catalogue, claim, [known[key] for key in claim.pods])
    found += check_existing(snapshot, results.existing, known, without_nodes)
    found += check_limits(snapshot, catalogue, results.new_claims)
    found += check_spread(snapshot, catalogue, results, known, without_nodes)
    return tuple(found)


def _check_bookkeeping(results: Results, known: object, pods: Sequence[Pod] | None) -> Iterator[str]:
    """Each pod is placed at most once, is known, and is either placed or has an error."""
    placed: Counter[str] = Counter()
    for claim in results.new_claims:
        placed.update(claim.pods)
        if not claim.pods:
            yield f"a NodeClaim of NodePool {claim.node_pool} was opened for no pod"
    for keys in results.existing.values():
        placed.update(keys)
    for key, times in sorted(placed.items()):
        if times > 1:
            yield f"pod {key} is placed {times} times"
        if key in results.pod_errors:
            yield f"pod {key} is placed and yet has an error"
        if key not in known:  # type: ignore[operator]  # a keys view
            yield f"pod {key} is placed but does not exist"
    for pod in pods or ():
        if pod.key not in placed and pod.key not in results.pod_errors:
            yield f"pod {pod.key} was forgotten: neither placed nor explained"


def _check_understood(snapshot: Snapshot, results: Results, known: dict[str, Pod]) -> Iterator[str]:
    """A pod with a rule that the planner does not understand yet must be left alone."""
    placed = [key for claim in results.new_claims for key in claim.pods]
    placed += [key for keys in results.existing.values() for key in keys]
    repelling = repelling_pods(snapshot.pods)
    for key in sorted(placed):
        why = not_understood(known[key], repelling)
        if why:
            yield f"pod {key} is placed although {why}"
