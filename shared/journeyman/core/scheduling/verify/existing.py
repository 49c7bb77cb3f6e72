"""Pods planned onto nodes that exist or are on their way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from journeyman.core.api.objects import DaemonSet, Pod, Taint
from journeyman.core.api.resources import pod_requests, to_resources
from journeyman.core.scheduling.verify.matching import Outcome, accepts_labels, untolerated
from journeyman.core.state import Snapshot, StateNode

_CORDON = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
"""What the node lifecycle controller puts on a cordoned node, sooner or later; kube-scheduler reads the field as this."""


def check_existing(
    snapshot: Snapshot,
    existing: Mapping[str, Sequence[str]],
    known: Mapping[str, Pod],
    without_nodes: frozenset[str],
) -> Iterator[str]:
    """What is wrong with these placements, one sentence each."""
    nodes = {node.name: node for node in snapshot.state_nodes}
    for name, keys in sorted(existing.items()):
        node = nodes.get(name)
        if node is None or node.deleting or name in without_nodes:
            yield f"node {name} gets pods although it does not exist, is going, or was to be left out"
            continue
        yield from _check_node(snapshot, node, [known[key] for key in keys])


def _check_node(snapshot: Snapshot, node: StateNode, pods: Sequence[Pod]) -> Iterator[str]:
    outcome = {key: frozenset({value}) for key, value in node.labels.items()}
    for pod in pods:
        taint = untolerated(pod, node.taints)
        if taint is not None:
            yield f"node {node.name}: pod {pod.key} does not tolerate taint {taint.key}:{taint.effect}"
        if not accepts_labels(pod, outcome):
            yield f"node {node.name}: pod {pod.key} does not accept its labels"
        if node.node is not None and node.node.spec.unschedulable and untolerated(pod, [_CORDON]) is not None:
            yield f"node {node.name} is cordoned, pod {pod.key} cannot go there"
    free = _free(snapshot, node, outcome)
    for pod in pods:
        for resource, amount in pod_requests(pod).items():
            free[resource] = free.get(resource, 0) - amount
    for resource, left in sorted(free.items()):
        if left < 0 and any(pod_requests(pod).get(resource) for pod in pods):
            yield f"node {node.name}: {resource} is overbooked by {-left}"


def _free(snapshot: Snapshot, node: StateNode, outcome: Outcome) -> dict[str, int]:
    """Allocatable (the claim's word where the node does not know yet), less bound pods and daemons still to come.

    A claim that has no instance yet promises no more than what it asks for.
    """
    claimed = to_resources(node.claim.status.allocatable, round_up=False) if node.claim else {}
    if node.claim and node.node is None and not claimed:
        claimed = to_resources(node.claim.spec.resources.requests, round_up=False)
    reported = to_resources(node.node.status.allocatable, round_up=False) if node.node else {}
    free = dict(reported)
    if not node.initialized:
        free |= {name: amount for name, amount in claimed.items() if not reported.get(name)}
    for pod in node.pods:
        for resource, amount in pod_requests(pod).items():
            free[resource] = free.get(resource, 0) - amount
    for daemon_set in snapshot.daemon_sets:
        if not _runs_here(daemon_set, node):
            template = daemon_set.spec.template
            daemon = Pod(metadata=template.metadata, spec=template.spec)
            if accepts_labels(daemon, outcome) and untolerated(daemon, node.taints) is None:
                for resource, amount in pod_requests(daemon).items():
                    free[resource] = free.get(resource, 0) - amount
    return free


def _runs_here(daemon_set: DaemonSet, node: StateNode) -> bool:
    uid = daemon_set.metadata.uid
    return any(owner.uid == uid for pod in node.pods for owner in pod.metadata.owner_references)
