"""PodDisruptionBudgets: how many pods each may lose now, computed from the pods as they are.

Restates: kubernetes `pkg/controller/disruption/disruption.go` `trySync`, `getExpectedPodCount`, `countHealthyPods`.
Differs: computed on demand, so no `status.disruptedPods` bookkeeping is needed; a controller that is not in the store
(a cluster loaded from a file that holds pods only) counts as wanting the pods it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from journeyman.core.api.objects import PodDisruptionBudget
from journeyman_simulator.apiserver import metadata, pods, selectors

JSON = Mapping[str, Any]
Scale = Callable[[str, JSON], "tuple[str, int | None]"]
"""For (namespace, ownerReference): the UID of the workload behind it and the pods it wants; None if unknown."""


def guards(pdb: PodDisruptionBudget, pod: JSON) -> bool:
    """Whether the budget covers this pod (of its own namespace)."""
    return selectors.matches(pdb.spec.selector, selectors.labels_of(pod))


def status(pdb: PodDisruptionBudget, namespace_pods: Iterable[JSON], scale_of: Scale) -> dict[str, Any]:
    """The budget's status as the disruption controller would write it at this moment."""
    covered = [pod for pod in namespace_pods if guards(pdb, pod)]
    healthy = sum(pods.is_ready(pod) and not metadata.is_deleting(pod) for pod in covered)
    expected, desired = _expected_and_desired(pdb, covered, scale_of)
    allowed = max(healthy - desired, 0) if expected > 0 else 0
    return {
        "disruptionsAllowed": allowed,
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "expectedPods": expected,
        "observedGeneration": pdb.metadata.generation,
    }


def _expected_and_desired(pdb: PodDisruptionBudget, covered: Sequence[JSON], scale_of: Scale) -> tuple[int, int]:
    at_least, at_most = pdb.spec.min_available, pdb.spec.max_unavailable
    if at_most is not None:
        expected = _wanted(covered, scale_of)
        return expected, max(expected - _scaled(at_most, expected), 0)
    if isinstance(at_least, str) and at_least.endswith("%"):
        expected = _wanted(covered, scale_of)
        return expected, _scaled(at_least, expected)
    return len(covered), int(at_least or 0)


def _scaled(value: int | str, total: int) -> int:
    """A count, or a percentage of `total` rounded up."""
    text = str(value)
    return -(-int(text[:-1]) * total // 100) if text.endswith("%") else int(text)


def _wanted(covered: Sequence[JSON], scale_of: Scale) -> int:
    """The sum over the pods' controllers of the replicas each asks for; pods without one do not count."""
    wants: dict[str, int | None] = {}
    has: Counter[str] = Counter()
    for pod in covered:
        for owner in pod["metadata"].get("ownerReferences") or ():
            if owner.get("controller"):
                uid, replicas = scale_of(pod["metadata"]["namespace"], owner)
                wants[uid] = replicas
                has[uid] += 1
    return sum(has[uid] if replicas is None else replicas for uid, replicas in wants.items())
