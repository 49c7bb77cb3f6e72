"""Eviction order: consolidation evicts large pods before small ones, so that its plan comes true.

kube-scheduler binds the pod that follows an evicted one at once, to the node with the best score. A small pod that comes first may
take the capacity that was planned for a large one, for which a node would be launched again; one that comes last finds what is left.
So consolidation evicts the pods of all of its nodes by size class, the largest first::

    class 1    more than 1 CPU or 4 GiB, at most 2 CPUs and 8 GiB      evicted at once
    class 0    more than 500m or 2 GiB, at most 1 CPU and 4 GiB        evicted by the next run, two seconds later
    class -1   …

Within a class, the order is as good as random: controllers create the pods that follow. binding_orders checks such orders.

Differs: Karpenter evicts the pods of a group all at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from journeyman.core.api.objects import Pod, PodDisruptionBudget
from journeyman.core.api.resources import CPU, MEMORY, pod_requests
from journeyman.core.state.pod_predicates import is_owned_by_daemon_set, selects
from journeyman.errors import InvalidQuantityError

_MEMORY_PER_MILLICORE: Final = (4 << 30) // 1000  # of general-purpose instance types
_SMALLEST: Final = -9  # a 512th of a CPU
_CRITICAL: Final = frozenset({"system-cluster-critical", "system-node-critical"})


def drain_group(pod: Pod) -> tuple[bool, bool]:
    """Return the sort key of the pod's group: pods, pods of DaemonSets, critical pods, critical DaemonSet pods.

    Restates: karpenter pkg/controllers/node/termination/terminator/terminator.go `groupPodsByPriority`.
    """
    return pod.spec.priority_class_name in _CRITICAL, is_owned_by_daemon_set(pod)


def size_class(pod: Pod) -> int:
    """Return the least n for which the pod requests at most 2ⁿ CPUs and 4 · 2ⁿ GiB of memory; -9 if that is nothing or invalid."""
    try:
        requests = pod_requests(pod)
    except InvalidQuantityError:
        return _SMALLEST
    millicores = max(requests.get(CPU, 0), requests.get(MEMORY, 0) // _MEMORY_PER_MILLICORE, 1)
    return ((millicores * 1024 - 1) // 1000).bit_length() + _SMALLEST - 1


def pods_evicted_late(pods: Iterable[Pod], budgets: Iterable[PodDisruptionBudget]) -> frozenset[str]:
    """Return the keys of those of these pods that their PodDisruptionBudgets do not allow to evict all at once now."""
    found: set[str] = set()
    listed = tuple(pods)
    for budget in budgets:
        selected = [
            pod.key
            for pod in listed
            if pod.metadata.namespace == budget.metadata.namespace
            and selects(budget.spec.selector, pod.metadata.labels)
        ]
        if len(selected) > budget.status.disruptions_allowed:
            found.update(selected)
    return frozenset(found)
