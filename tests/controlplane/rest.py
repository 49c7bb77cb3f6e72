"""Whether Kubernetes' own controllers and scheduler have done what they can for now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from journeyman.core.api.objects import NODE, POD, Node, Pod, condition_of
from journeyman.core.api.resources import pod_requests
from journeyman.core.api.workloads import DEPLOYMENT
from journeyman.core.state.pod_predicates import is_active
from journeyman.ports import KubeStore
from journeyman_simulator.kube_scheduler import _node_infos, why_not
from tests.controlplane.caller import Caller


def at_rest(store: KubeStore, admin: Caller) -> bool:
    """Whether workloads have the pods they should, and each pod has a node or has been refused, with good reason.

    kube-scheduler tries a pod again a second after it refused it, ten at the latest. So a pod that the simulated scheduler
    would bind is one that the real one is about to.
    """
    pods = store.list(POD).items
    active = [*filter(is_active, pods)]
    waiting = [pod for pod in active if not pod.spec.node_name]
    if not all(map(_is_refused, waiting)) or (waiting and _any_fits(waiting, store.list(NODE).items, pods)):
        return False
    return all(_has_its_pods(deployment, active) for deployment in admin.do("GET", DEPLOYMENT.path())["items"])


def _is_refused(pod: Pod) -> bool:
    scheduled = condition_of(pod.status.conditions, "PodScheduled")
    return scheduled is not None and scheduled.status == "False"


def _any_fits(waiting: list[Pod], nodes: tuple[Node, ...], pods: tuple[Pod, ...]) -> bool:
    infos = _node_infos(nodes, pods)
    return any(not why_not(pod, pod_requests(pod), info, infos) for pod in waiting for info in infos.values())


def _has_its_pods(deployment: Mapping[str, Any], active: list[Pod]) -> bool:
    """In its status, and in truth: a pod that has just gone is in the status until its controller has seen that."""
    status, meta, spec = deployment.get("status", {}), deployment["metadata"], deployment["spec"]
    chosen = spec["selector"]["matchLabels"].items()
    own = sum(p.metadata.namespace == meta["namespace"] and chosen <= p.metadata.labels.items() for p in active)
    return (
        status.get("observedGeneration", 0) >= meta["generation"]
        and status.get("replicas", 0) == spec["replicas"] == own
    )
