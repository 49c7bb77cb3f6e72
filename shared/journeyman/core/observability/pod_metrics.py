"""Gauges of pods: their state, and how long they have been waiting.

Restates: karpenter pkg/controllers/metrics/pod/controller.go.
Differs: running pods that are not ready count as not started, even if they were never observed as pending.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from journeyman.core.api import labels
from journeyman.core.api.objects import Node, Pod, is_true
from journeyman.core.observability.amounts import gauge, gauges_of_each
from journeyman.core.plan import Observation
from journeyman.core.state import Snapshot
from journeyman.core.state.pod_predicates import is_terminal, is_virtual_pod

_NODE_LABELS = {
    "nodepool": labels.NODEPOOL,
    "zone": labels.ZONE,
    "arch": labels.ARCH,
    "capacity_type": labels.CAPACITY_TYPE,
    "instance_type": labels.INSTANCE_TYPE,
}
"""Metric labels that come from the pod's node, with its Kubernetes labels."""


def pod_gauges(snapshot: Snapshot) -> Iterator[Observation]:
    """Yield gauges of each pod, without virtual pods of CapacityBuffers."""
    nodes = {node.metadata.name: node for node in snapshot.nodes}

    def gauges(pod: Pod) -> Iterator[Observation]:
        yield gauge("karpenter_pods_state", 1, _state(pod, nodes.get(pod.spec.node_name)))
        yield from _waiting_times(pod, snapshot.now)

    yield from gauges_of_each((pod for pod in snapshot.pods if not is_virtual_pod(pod)), gauges)


def _state(pod: Pod, node: Node | None) -> Mapping[str, str]:
    node_labels = node.metadata.labels if node is not None else {}
    return {
        "name": pod.metadata.name,
        "namespace": pod.metadata.namespace,
        "owner": _owner(pod),
        "node": pod.spec.node_name,
        "scheduled": _bool_text(bool(pod.spec.node_name)),
        **{name: node_labels.get(key, "") for name, key in _NODE_LABELS.items()},
        "phase": pod.status.phase,
        "ready": _bool_text(is_true(pod.status.conditions, "Ready")),
        "managed": _bool_text(bool(node_labels.get(labels.NODEPOOL))),
    }


def _owner(pod: Pod) -> str:
    """Return the API path of the first owner, in the form of the former selfLink."""
    for owner in pod.metadata.owner_references:
        kind = f"{owner.kind.lower()}s"
        return f"/apis/{owner.api_version}/namespaces/{pod.metadata.namespace}/{kind}/{owner.name}"
    return ""


def _waiting_times(pod: Pod, now: datetime) -> Iterator[Observation]:
    created = pod.metadata.creation_timestamp
    if created is None or is_terminal(pod):
        return
    own = {"name": pod.metadata.name, "namespace": pod.metadata.namespace}
    age = (now - created).total_seconds()
    if pod.status.phase == "Pending" and not is_true(pod.status.conditions, "PodScheduled"):
        yield gauge("karpenter_pods_unbound_time_seconds", age, own)
    if pod.status.phase == "Pending" or not is_true(pod.status.conditions, "Ready"):
        yield gauge("karpenter_pods_unstarted_time_seconds", age, own)


def _bool_text(value: bool) -> str:
    return "true" if value else "false"
