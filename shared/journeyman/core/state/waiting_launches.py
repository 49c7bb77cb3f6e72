"""Waiting launches: pending pods for which no node is launched for a while, since those launched before were not used.

An entry of the ChurnLedger is for pods of one workload that kube-scheduler cannot distinguish: they ask for the same, of the same
volumes. It names the pods that did not use their nodes. A pod that it does not name waits, too, while no such pod runs anywhere: a
controller that creates its pods again would otherwise start anew. If one runs, a further replica may run as well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from journeyman.core.api.objects import Pod
from journeyman.core.api.resources import pod_requests
from journeyman.core.state.pod_predicates import is_active, is_virtual_pod
from journeyman.core.state.pod_workload import WorkloadKey, workload_of
from journeyman.core.state.skipped_objects import evaluate
from journeyman.core.state.snapshot import Snapshot

if TYPE_CHECKING:  # the models build validators; nothing here needs them
    from journeyman.core.api.churn_ledger import UnusedLaunches

HASH_LENGTH: Final = 16


def stored_entries(snapshot: Snapshot) -> tuple[UnusedLaunches, ...]:
    """Return the entries of the ChurnLedger as stored; none if it was not read."""
    return snapshot.churn_ledger.status.unused_launches if snapshot.churn_ledger is not None else ()


def waiting_pods(snapshot: Snapshot, entries: Iterable[UnusedLaunches]) -> frozenset[str]:
    """Return the keys of pending pods for which no node is launched now."""
    active = [entry for entry in entries if entry.until is not None and entry.until > snapshot.now]
    by_workload: dict[WorkloadKey, list[UnusedLaunches]] = {}
    for entry in active:
        by_workload.setdefault(workload_key(entry), []).append(entry)
    if not by_workload:
        return frozenset()
    running = {entry_key(entry) for entry in active if entry.pods and runs_anywhere(entry, snapshot)}
    return frozenset(
        pod.key
        for pod in snapshot.pods
        if is_pending(pod)
        for entry in by_workload.get(workload_of(pod), ())
        if _means(entry, pod, is_running=entry_key(entry) in running)
    )


def _means(entry: UnusedLaunches, pod: Pod, *, is_running: bool) -> bool:
    if pod_hash(pod) != entry.pod_hash:
        return False
    return pod.metadata.uid in entry.pods if is_running else True


def runs_anywhere(entry: UnusedLaunches, snapshot: Snapshot) -> bool:
    """Whether a pod that kube-scheduler cannot distinguish from those of the entry is bound to a node."""
    bound = snapshot.pods_by_workload.get(workload_key(entry), ())
    return any(is_active(pod) and pod_hash(pod) == entry.pod_hash for pod in bound)


def is_pending(pod: Pod) -> bool:
    """Whether the pod waits for a node, of any scheduler."""
    return not pod.spec.node_name and not pod.spec.scheduling_gates and is_active(pod) and not is_virtual_pod(pod)


def workload_key(entry: UnusedLaunches) -> WorkloadKey:
    """Return the workload of an entry."""
    return WorkloadKey(entry.kind, entry.namespace, entry.name, entry.uid)


def entry_key(entry: UnusedLaunches) -> tuple[WorkloadKey, str]:
    """Return what identifies an entry: the workload and the hash."""
    return workload_key(entry), entry.pod_hash


def pod_hash(pod: Pod) -> str:
    """Return a hash of what decides on which nodes the pod can run; empty if its amounts cannot be read."""
    spec = pod.spec
    requests = evaluate(pod, pod_requests, pod)
    if not isinstance(requests, dict):
        return ""
    ports = [port for container in (*spec.containers, *spec.init_containers) for port in container.ports]
    parts: tuple[Any, ...] = (
        requests,
        spec.node_selector,
        spec.affinity,
        spec.tolerations,
        spec.topology_spread_constraints,
        [volume for volume in spec.volumes if volume.persistent_volume_claim or volume.ephemeral],
        spec.resource_claims,
        spec.scheduler_name,
        [port for port in ports if port.host_port],
    )
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()[:HASH_LENGTH]
