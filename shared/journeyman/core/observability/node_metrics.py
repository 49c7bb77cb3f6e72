"""Gauges of nodes: allocatable, requests and limits of their pods, age; and cluster utilization.

Restates: karpenter pkg/controllers/metrics/node/controller.go, pkg/controllers/state/metrics.go.
Differs: a snapshot is read completely or not at all, so the cluster state is always synced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from journeyman.core.api import labels
from journeyman.core.api.metrics import label_name
from journeyman.core.api.objects import Node
from journeyman.core.api.resources import Resources, add, subtract, to_resources, total_requests
from journeyman.core.observability.amounts import by_resource, gauge, gauges_of_each, resource_type, total_limits
from journeyman.core.plan import Observation
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.pod_predicates import is_owned_by_daemon_set


def node_gauges(snapshot: Snapshot) -> Iterator[Observation]:
    """Yield gauges of each Node, managed or not, and of the utilization of all."""
    allocatable: list[Resources] = []
    requested: list[Resources] = []

    def gauges(state: StateNode) -> Iterator[Observation]:
        if state.node is None:
            return
        requests = total_requests(state.pods)
        capacity = to_resources(state.node.status.allocatable, round_up=False)
        yield from _gauges_of_node(state, state.node, requests, capacity, snapshot)
        allocatable.append(capacity)
        requested.append(requests)

    yield from gauges_of_each(snapshot.state_nodes, gauges)
    yield from _utilization(add(*allocatable), add(*requested))


def cluster_gauges(snapshot: Snapshot) -> Iterator[Observation]:
    """Yield the number of nodes in the cluster state, and whether that is synced."""
    yield gauge("karpenter_cluster_state_node_count", len(snapshot.state_nodes), {})
    yield gauge("karpenter_cluster_state_synced", 1, {})
    yield gauge("karpenter_cluster_state_unsynced_time_seconds", 0, {})


def _gauges_of_node(
    state: StateNode, node: Node, requests: Resources, allocatable: Resources, snapshot: Snapshot
) -> Iterator[Observation]:
    values = node_labels(state, node)
    daemons = tuple(pod for pod in state.pods if is_owned_by_daemon_set(pod))
    capacity = to_resources(node.status.capacity, round_up=False)
    yield from by_resource("karpenter_nodes_allocatable", allocatable, values)
    yield from by_resource("karpenter_nodes_total_pod_requests", requests, values)
    yield from by_resource("karpenter_nodes_total_pod_limits", total_limits(state.pods), values)
    yield from by_resource("karpenter_nodes_total_daemon_requests", total_requests(daemons), values)
    yield from by_resource("karpenter_nodes_total_daemon_limits", total_limits(daemons), values)
    yield from by_resource("karpenter_nodes_system_overhead", subtract(capacity, allocatable), values)
    created = node.metadata.creation_timestamp
    if created is not None:
        age = (snapshot.now - created).total_seconds()
        yield gauge("karpenter_nodes_current_lifetime_seconds", age, values)


def node_labels(state: StateNode, node: Node) -> Mapping[str, str]:
    """Return the metric labels of a node: its name, whether it is managed, and its well-known labels."""
    own = node.metadata.labels
    well_known = {label_name(key): own[key] for key in sorted(labels.WELL_KNOWN) if key in own}
    return {"node_name": node.metadata.name, "managed": str(state.managed).lower(), **well_known}


def _utilization(allocatable: Resources, requested: Resources) -> Iterator[Observation]:
    for resource in sorted(allocatable):
        if allocatable[resource]:
            share = 100 * requested.get(resource, 0) / allocatable[resource]
            yield gauge("karpenter_cluster_utilization_percent", share, {"resource_type": resource_type(resource)})
