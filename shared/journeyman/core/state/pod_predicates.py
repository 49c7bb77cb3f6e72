"""Pod predicates: provisionable, active, reschedulable, disruptable; and label selectors.

Restates: karpenter pkg/utils/pod/scheduling.go, pkg/utils/pdb/pdb.go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from journeyman.core.api import labels
from journeyman.core.api.duration import parse_go_duration, time_after
from journeyman.core.api.objects import (
    Condition,
    LabelSelector,
    LabelSelectorRequirement,
    Pod,
    PodDisruptionBudget,
    condition_of,
)
from journeyman.core.state.disrupted_taint import DISRUPTED
from journeyman.core.state.taints import untolerated

_TERMINAL: Final = frozenset({"Succeeded", "Failed"})


def is_terminal(pod: Pod) -> bool:
    """Whether the pod succeeded or failed."""
    return pod.status.phase in _TERMINAL


def is_terminating(pod: Pod) -> bool:
    """Whether the pod has a deletionTimestamp."""
    return pod.metadata.deletion_timestamp is not None


def is_active(pod: Pod) -> bool:
    """Whether the pod is neither terminal nor terminating."""
    return not is_terminal(pod) and not is_terminating(pod)


def is_owned_by(pod: Pod, kind: str, group: str) -> bool:
    """Whether an owner of that kind is among its owner references; `group` "" is the core group."""
    owners = pod.metadata.owner_references
    if not owners:
        return False
    for owner in owners:  # noqa: SIM110 - called for every pod of the cluster: a plain loop is the fastest
        if owner.kind == kind and owner.api_version.startswith(f"{group}/" if group else "v1"):
            return True
    return False


def is_owned_by_daemon_set(pod: Pod) -> bool:
    """Whether a DaemonSet owns the pod."""
    return is_owned_by(pod, "DaemonSet", "apps")


def is_owned_by_node(pod: Pod) -> bool:
    """Whether a Node owns the pod: it mirrors a static pod."""
    return is_owned_by(pod, "Node", "")


def is_provisionable(pod: Pod) -> bool:
    """Whether kube-scheduler marked the pod as unschedulable, so that a new node may help."""
    status = pod.status
    if pod.spec.node_name or status.nominated_node_name or not _is_unschedulable(status.conditions):
        return False
    return is_active(pod) and not _stays_on_its_node(pod)


def _stays_on_its_node(pod: Pod) -> bool:
    """Whether a DaemonSet or a Node owns the pod, so that no other node ever runs it."""
    return bool(pod.metadata.owner_references) and (is_owned_by_daemon_set(pod) or is_owned_by_node(pod))


def _is_unschedulable(conditions: tuple[Condition, ...]) -> bool:
    for condition in conditions:  # called for every pod of the cluster: a plain loop is the fastest
        if condition.type == "PodScheduled":
            return condition.reason == "Unschedulable"
    return False


def is_reschedulable(pod: Pod) -> bool:
    """Whether the pod needs another node when its node is removed (a StatefulSet's pod even while it terminates)."""
    comes_back = is_active(pod) or (
        is_terminating(pod) and not is_terminal(pod) and is_owned_by(pod, "StatefulSet", "apps")
    )
    return comes_back and not _stays_on_its_node(pod)


def is_disruptable(pod: Pod, now: datetime) -> bool:
    """Whether no active `karpenter.sh/do-not-disrupt` protects the pod: "true", or a duration counted from the pod's start.

    A duration also protects a pod that has not started.
    """
    value = pod.metadata.annotations.get(labels.DO_NOT_DISRUPT)
    if value is None:
        return True
    if value == "true":
        return False
    protection = parse_go_duration(value)
    if protection is None or protection <= timedelta(0):
        return True
    return pod.status.start_time is not None and now >= time_after(pod.status.start_time, protection)


def tolerates_disrupted_taint(pod: Pod) -> bool:
    """Whether the pod may run on a node that is being disrupted, so that a drain leaves it there."""
    return bool(pod.spec.tolerations) and untolerated((DISRUPTED,), pod.spec.tolerations) is None


def is_evictable(pod: Pod, now: datetime) -> bool:
    """Whether a drain would evict the pod now.

    Restates: karpenter pkg/utils/pod/scheduling.go `IsEvictable`.
    """
    return (
        is_active(pod) and not tolerates_disrupted_taint(pod) and not is_owned_by_node(pod) and is_disruptable(pod, now)
    )


def is_currently_reschedulable(pod: Pod, pdbs: Iterable[PodDisruptionBudget], now: datetime) -> bool:
    """Whether the pod needs a new node now: it will be recreated, and nothing blocks its eviction for good."""
    return is_reschedulable(pod) and is_disruptable(pod, now) and not is_fully_blocked(pod, pdbs, now)


def is_fully_blocked(pod: Pod, pdbs: Iterable[PodDisruptionBudget], now: datetime) -> bool:
    """Whether PodDisruptionBudgets block the pod's eviction for good."""
    return bool(preventing_pdbs(pod, pdbs, now, _allows_none_ever))


def preventing_pdbs(
    pod: Pod,
    pdbs: Iterable[PodDisruptionBudget],
    now: datetime,
    prevents: Callable[[PodDisruptionBudget], bool] = lambda pdb: pdb.status.disruptions_allowed == 0,
) -> tuple[str, ...]:
    """Return the PodDisruptionBudgets (`namespace/name`) that prevent the pod's eviction.

    Several that select one pod prevent it always. A single one prevents it if `prevents` holds, by default while it allows no
    disruption, and if it does not exempt the pod as unhealthy. A pod that no drain evicts has none.

    Restates: karpenter pkg/utils/pdb/pdb.go `isEvictable`.
    """
    matching = [
        pdb
        for pdb in pdbs
        if pdb.metadata.namespace == pod.metadata.namespace and selects(pdb.spec.selector, pod.metadata.labels)
    ]
    if not matching or not is_evictable(pod, now):
        return ()
    if len(matching) == 1 and (_exempts(matching[0], pod) or not prevents(matching[0])):
        return ()
    return tuple(f"{pdb.metadata.namespace}/{pdb.metadata.name}" for pdb in matching)


def _allows_none_ever(pdb: PodDisruptionBudget) -> bool:
    return str(pdb.spec.max_unavailable) in {"0", "0%"} or str(pdb.spec.min_available) == "100%"


def _exempts(pdb: PodDisruptionBudget, pod: Pod) -> bool:
    if pdb.spec.unhealthy_pod_eviction_policy != "AlwaysAllow":
        return False
    ready = condition_of(pod.status.conditions, "Ready")
    return ready is not None and ready.status == "False"


def selects(selector: LabelSelector | None, values: Mapping[str, str]) -> bool:
    """Whether a label selector selects these labels; none selects nothing, an empty one everything."""
    if selector is None:
        return False
    for key, value in selector.match_labels.items():
        if values.get(key) != value:
            return False
    expressions = selector.match_expressions
    return not expressions or all(_expression_holds(expression, values) for expression in expressions)


def _expression_holds(expression: LabelSelectorRequirement, values: Mapping[str, str]) -> bool:
    value = values.get(expression.key)
    match expression.operator:
        case "In":
            return value in expression.values
        case "NotIn":
            return bool(expression.values) and value not in expression.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            return False


def is_virtual_pod(pod: Pod) -> bool:
    """Return whether the pod is a virtual pod of a CapacityBuffer, which keeps capacity free and never runs."""
    return pod.metadata.annotations.get(labels.BUFFER_POD) == "true"
