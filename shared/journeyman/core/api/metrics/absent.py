"""Declared and not emitted: metrics of Karpenter's that nothing here can say, or says yet, each with why.

They are declared all the same, so that who misses one on a dashboard finds the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

_NO_WATCHER = (
    "Needs somebody who watches each pod all the time; the gauges of waiting pods say the same while it lasts."
)
_FIRST_SEEN = "Needs a memory of when a pod was first planned for; the gauges since its creation are there instead."
_NO_QUEUE = "A pass runs from its beginning to its end in one invocation; nobody could look at it in between."
_KUBELET = "The kubelet writes a Node's conditions; nobody here sees each change. The gauges say what they are."
_OTHERS_END = "Nothing of ours keeps such an object from its end, so nobody sees it."
_NOT_BALANCED = "The Balanced policy is not there."


def _of_kinds() -> Iterator[tuple[str, str]]:
    for part in ("transition_seconds", "transitions_total"):
        yield f"operator_node_status_condition_{part}", _KUBELET
    for kind in ("nodepool", "nodeoverlay", "capacitybuffer"):
        yield f"operator_{kind}_termination_duration_seconds", _OTHERS_END


ABSENT: Final[Mapping[str, str]] = {
    "karpenter_scheduler_queue_depth": _NO_QUEUE,
    "karpenter_scheduler_unfinished_work_seconds": _NO_QUEUE,
    "karpenter_pods_scheduling_decision_duration_seconds": _FIRST_SEEN,
    "karpenter_consolidation_score": _NOT_BALANCED,
    "karpenter_consolidation_moves_total": _NOT_BALANCED,
    "karpenter_nodepools_cost_tracker_errors_total": "A price that is not known counts as nothing, without an error.",
    "karpenter_pods_startup_duration_seconds": _NO_WATCHER,
    "karpenter_pods_bound_duration_seconds": _NO_WATCHER,
    "karpenter_pods_provisioning_bound_duration_seconds": _FIRST_SEEN,
    "karpenter_pods_provisioning_startup_duration_seconds": _FIRST_SEEN,
    "karpenter_pods_provisioning_unbound_time_seconds": _FIRST_SEEN,
    "karpenter_pods_provisioning_unstarted_time_seconds": _FIRST_SEEN,
    "karpenter_pods_provisioning_scheduling_undecided_time_seconds": _FIRST_SEEN,
    **dict(_of_kinds()),
}
"""Why a metric is not there, by its name."""
