"""Detect when Kubernetes' own controllers and scheduler have nothing left to do until time passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from journeyman.core.api.objects import NODE, POD, Node, Pod, condition_of
from journeyman.core.api.workloads import DEPLOYMENT
from journeyman.core.state.pod_predicates import is_active
from journeyman.ports import KubeStore
from journeyman_simulator.kube_scheduler import Filters, node_infos
from tests.controlplane.caller import Caller


def is_idle(store: KubeStore, admin: Caller) -> bool:
    """Return whether each Deployment has its pods, and each pod has a node or is unschedulable on the current nodes.

    kube-scheduler retries an unschedulable pod after one to ten seconds. So if the simulated scheduler would bind a pod, the
    real one is about to bind it.
    """
    pods = store.list(POD).items
    active = [*filter(is_active, pods)]
    pending = [pod for pod in active if not pod.spec.node_name]
    if not all(map(_is_unschedulable, pending)) or (pending and _any_fits(pending, store.list(NODE).items, pods)):
        return False
    return all(_has_all_pods(deployment, active) for deployment in admin.do("GET", DEPLOYMENT.path())["items"])


def _is_unschedulable(pod: Pod) -> bool:
    scheduled = condition_of(pod.status.conditions, "PodScheduled")
    return scheduled is not None and scheduled.status == "False"


def _any_fits(pending: list[Pod], nodes: tuple[Node, ...], pods: tuple[Pod, ...]) -> bool:
    infos = node_infos(nodes, pods)
    filters = [Filters(pod, infos) for pod in pending]
    return any(not of_pod.rejection(info) for of_pod in filters for info in infos.values())


def _has_all_pods(deployment: Mapping[str, Any], active: list[Pod]) -> bool:
    """Return whether a Deployment has all its pods by its status and by the list of pods.

    The status counts a deleted pod until the Deployment's controller has observed the deletion.
    """
    status, meta, spec = deployment.get("status", {}), deployment["metadata"], deployment["spec"]
    selected = spec["selector"]["matchLabels"].items()
    own = sum(p.metadata.namespace == meta["namespace"] and selected <= p.metadata.labels.items() for p in active)
    return (
        status.get("observedGeneration", 0) >= meta["generation"]
        and status.get("replicas", 0) == spec["replicas"] == own
    )
