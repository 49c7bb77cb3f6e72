"""Whether Kubernetes' own controllers and scheduler have done what they can for now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.controlplane.caller import Caller

_KEEPING_AWAY = {"NoSchedule", "NoExecute"}


def at_rest(admin: Caller) -> bool:
    """Whether workloads have the pods they should, and each pod has a node or has been refused by all there are.

    kube-scheduler tries a pod again a second after it refused it, ten at the latest; so while there is a node that
    takes pods and a pod without one, it is not at rest.
    """
    pods = admin.do("GET", "/api/v1/pods")["items"]
    waiting = [pod for pod in pods if not pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]]
    if not all(map(_is_refused, waiting)) or (waiting and _any_node_takes_pods(admin)):
        return False
    return all(map(_has_its_pods, admin.do("GET", "/apis/apps/v1/deployments")["items"]))


def _is_refused(pod: Mapping[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(c["type"] == "PodScheduled" and c["status"] == "False" for c in conditions)


def _any_node_takes_pods(admin: Caller) -> bool:
    for node in admin.do("GET", "/api/v1/nodes")["items"]:
        effects = {taint["effect"] for taint in node["spec"].get("taints", ())}
        if not effects & _KEEPING_AWAY:
            return True
    return False


def _has_its_pods(deployment: Mapping[str, Any]) -> bool:
    status, meta = deployment.get("status", {}), deployment["metadata"]
    return (
        status.get("observedGeneration", 0) >= meta["generation"]
        and status.get("replicas", 0) == deployment["spec"]["replicas"]
    )
