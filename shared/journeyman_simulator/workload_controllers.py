"""Simulates the controllers of Deployments, ReplicaSets, DaemonSets and PodDisruptionBudgets, and the pod garbage collector.

The ReplicaSet controller creates and deletes replicas in Kubernetes' order, at most 30 at once and 20 a second, as
kube-controller-manager's client does by default (`--kube-api-qps`, `--kube-api-burst`). The DaemonSet controller creates a pod per
node, and the pod garbage collector deletes pods whose node does not exist. A Deployment with `strategy.rollingUpdate` replaces
its pods in steps; any other one, all at once. Jobs and StatefulSets are not simulated.
Restates: kubernetes `pkg/controller/{replicaset,daemon,podgc}`, `pkg/controller/controller_utils.go` `ActivePodsWithRanks`,
`pkg/controller/deployment/rolling.go` (old pods in order of their ReplicaSets' names).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from journeyman.core.api.objects import NODE, PDB, POD, Node, Pod, Resource, is_true
from journeyman.errors import AlreadyExistsError, NotFoundError
from journeyman.ports import Clock
from journeyman_simulator.apiserver import ApiServer

DEPLOYMENT: Resource[dict[str, Any]] = Resource(
    group="apps", version="v1", kind="Deployment", plural="deployments", namespaced=True, type=dict
)
REPLICASET: Resource[dict[str, Any]] = Resource(
    group="apps", version="v1", kind="ReplicaSet", plural="replicasets", namespaced=True, type=dict
)
DAEMONSET_RAW: Resource[dict[str, Any]] = Resource(
    group="apps", version="v1", kind="DaemonSet", plural="daemonsets", namespaced=True, type=dict
)
_WATCHED_KINDS = (POD, NODE, DEPLOYMENT, REPLICASET, DAEMONSET_RAW, PDB)
_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"


CREATIONS_PER_SECOND: Final = 20
CREATION_BURST: Final = 30


class WorkloadControllers:
    """Reconciles the pods of each workload with its spec. An `Actor` that is due while ReplicaSets wait to create pods."""

    def __init__(self, server: ApiServer, clock: Clock) -> None:
        self._server = server
        self._clock = clock
        self._creations_left = float(CREATION_BURST)
        self._refilled = clock.now()
        self._waiting: list[str] = []  # UIDs of ReplicaSets that miss pods, those that have waited longest first
        self._reconciled_version = ""
        self._watched_version = -1
        self._serial = 0

    def due(self) -> datetime | None:
        """Return when waiting ReplicaSets may create a second's worth of pods; None if none waits."""
        return self._refilled + timedelta(seconds=1) if self._waiting else None

    def act(self) -> bool:
        """Run all controllers once and return whether they wrote anything."""
        due = self.due()
        is_due = due is not None and self._clock.now() >= due
        if self._server.resource_version == self._reconciled_version and not is_due:
            return False
        before = self._server.resource_version
        self._reconciled_version = before
        version = self._server.version_of(*_WATCHED_KINDS)
        has_changed, self._watched_version = version != self._watched_version, version
        if has_changed or is_due:
            self._reconcile()
        if self._server.collect_garbage() or has_changed:
            self._server.sync_disruption_budgets()
        return self._server.resource_version != before

    def _reconcile(self) -> None:
        pods = self._server.list(POD).items
        nodes = {node.metadata.name: node for node in self._server.list(NODE).items}
        self._collect(pods, nodes)
        self._deployments(pods)
        self._replica_sets(pods)
        self._daemon_sets(pods, nodes)

    def _collect(self, pods: Iterable[Pod], nodes: Mapping[str, Node]) -> None:
        """Delete pods whose node does not exist."""
        for pod in pods:
            if pod.spec.node_name and pod.spec.node_name not in nodes:
                self._remove(pod, grace_period_seconds=0)

    def _deployments(self, pods: Iterable[Pod]) -> None:
        """Create a ReplicaSet for each Deployment's current template, and scale its ReplicaSets."""
        sets = self._server.stored(REPLICASET)
        for deployment in self._server.stored(DEPLOYMENT):
            meta, spec = deployment["metadata"], deployment["spec"]
            name = f"{meta['name']}-{_digest(spec['template'])}"
            owned = sorted(
                (s for s in sets if _owned_by(s["metadata"], meta["uid"])), key=lambda s: str(s["metadata"]["name"])
            )
            if all(s["metadata"]["name"] != name for s in owned):
                rolls = bool(owned) and "rollingUpdate" in spec.get("strategy", {})
                made = _replica_set(
                    deployment, name, name.rpartition("-")[2], replicas=0 if rolls else spec.get("replicas", 1)
                )
                self._server.create(REPLICASET, made, namespace=meta["namespace"])
                if rolls:
                    continue  # the write starts another round
            for replica_set, wanted in _wanted_replicas(spec, name, owned, pods):
                if replica_set["spec"].get("replicas", 1) != wanted:
                    self._patch(REPLICASET, replica_set, {"spec": {"replicas": wanted}})

    def _replica_sets(self, pods: Iterable[Pod]) -> None:
        living = [p for p in pods if p.metadata.deletion_timestamp is None and p.status.phase not in _TERMINAL]
        missing: dict[str, tuple[Mapping[str, Any], int]] = {}
        for replica_set in self._server.stored(REPLICASET):
            meta, spec = replica_set["metadata"], replica_set["spec"]
            owned = [p for p in living if any(o.uid == meta["uid"] for o in p.metadata.owner_references)]
            surplus = len(owned) - spec.get("replicas", 1)
            if surplus < 0:
                missing[meta["uid"]] = (replica_set, -surplus)
            for pod in _pods_to_delete(owned, surplus):
                self._remove(pod)
        self._refill()
        waiting = dict.fromkeys((*(uid for uid in self._waiting if uid in missing), *missing))
        self._waiting = [uid for uid in waiting if not self._create_missing(*missing[uid])]

    def _refill(self) -> None:
        """Allow the creations of the time since the last call."""
        now = self._clock.now()
        elapsed = (now - self._refilled).total_seconds()
        self._creations_left = min(CREATION_BURST, self._creations_left + CREATIONS_PER_SECOND * elapsed)
        self._refilled = now

    def _create_missing(self, replica_set: Mapping[str, Any], count: int) -> bool:
        """Create as many of the pods as the rate allows; return whether these are all."""
        allowed = min(count, int(self._creations_left))
        self._creations_left -= allowed
        for _ in range(allowed):
            self._create_pod(replica_set)
        return allowed == count

    def _daemon_sets(self, pods: Iterable[Pod], nodes: Mapping[str, Node]) -> None:
        """Create a pod for each node that the DaemonSet's node selector matches; kube-scheduler binds it to this node only.

        Restates: kubernetes pkg/controller/daemon/util/daemonset_util.go `ReplaceDaemonSetPodNodeNameNodeAffinity`.
        """
        existing: set[tuple[str, str]] = set()
        for pod in pods:
            target = pod.spec.node_name or _target_of(pod)
            if target not in nodes and target and not pod.spec.node_name:
                self._remove(pod, grace_period_seconds=0)
            existing.update((owner.uid, target) for owner in pod.metadata.owner_references)
        for daemon_set in self._server.stored(DAEMONSET_RAW):
            uid = daemon_set["metadata"]["uid"]
            selector = daemon_set["spec"]["template"]["spec"].get("nodeSelector", {})
            for node in nodes.values():
                fits = all(node.metadata.labels.get(k) == v for k, v in selector.items())
                is_terminating = node.metadata.deletion_timestamp is not None
                if fits and not is_terminating and (uid, node.metadata.name) not in existing:
                    self._create_pod(daemon_set, node_name=node.metadata.name)

    def _create_pod(self, owner: Mapping[str, Any], node_name: str = "") -> None:
        meta, template = owner["metadata"], owner["spec"]["template"]
        self._serial += 1
        suffix = hashlib.sha256(f"{meta['uid']}/{self._serial}".encode()).hexdigest()[:5]
        spec = dict(template["spec"])
        if node_name:
            name = {"key": "metadata.name", "operator": "In", "values": [node_name]}
            required = {"nodeSelectorTerms": [{"matchFields": [name]}]}
            node_affinity = {"requiredDuringSchedulingIgnoredDuringExecution": required}
            spec["affinity"] = {**spec.get("affinity", {}), "nodeAffinity": node_affinity}
            spec["tolerations"] = [*spec.get("tolerations", ()), *_DAEMON_TOLERATIONS]
        owner_reference = {
            "apiVersion": "apps/v1",
            "kind": owner["kind"],
            "name": meta["name"],
            "uid": meta["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{meta['name']}-{suffix}",
                "namespace": meta["namespace"],
                "labels": template.get("metadata", {}).get("labels", {}),
                "annotations": template.get("metadata", {}).get("annotations", {}),
                "ownerReferences": [owner_reference],
            },
            "spec": spec,
            "status": {"phase": "Pending"},
        }
        try:
            self._server.create(POD, body, namespace=meta["namespace"])
        except AlreadyExistsError:  # another suffix, as the API server's `generateName` tries
            self._create_pod(owner, node_name)

    def _patch(self, resource: Resource[Any], body: Mapping[str, Any], patch: Mapping[str, Any]) -> None:
        meta = body["metadata"]
        self._server.patch(resource, meta["name"], patch, namespace=meta["namespace"])

    def _remove(self, pod: Pod, grace_period_seconds: int | None = None) -> None:
        meta = pod.metadata
        try:
            self._server.delete(
                POD, meta.name, namespace=meta.namespace, uid=meta.uid, grace_period_seconds=grace_period_seconds
            )
        except NotFoundError:
            return  # already deleted


_TERMINAL = frozenset({"Succeeded", "Failed"})
_DAEMON_TOLERATIONS: Final = tuple(
    {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": effect}
    for key, effect in (
        *(("not-ready", "NoExecute"), ("unreachable", "NoExecute"), ("disk-pressure", "NoSchedule")),
        *(("memory-pressure", "NoSchedule"), ("pid-pressure", "NoSchedule"), ("unschedulable", "NoSchedule")),
    )
)
"""What the DaemonSet controller adds to its pods' tolerations."""


def _target_of(pod: Pod) -> str:
    """Return the name of the node that a DaemonSet's pod is for; empty for other pods."""
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    terms = affinity.required.node_selector_terms if affinity is not None and affinity.required is not None else ()
    names = (r.values[0] for term in terms for r in term.match_fields if r.key == "metadata.name" and r.values)
    return next(names, "")


def _digest(template: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:9]


def _owned_by(meta: Mapping[str, Any], uid: str) -> bool:
    return any(owner["uid"] == uid for owner in meta.get("ownerReferences", ()))


def _wanted_replicas(
    spec: Mapping[str, Any], current: str, owned: Iterable[Mapping[str, Any]], pods: Iterable[Pod]
) -> Iterator[tuple[Mapping[str, Any], int]]:
    """Yield a Deployment's ReplicaSets with the replicas that each is to have now; the current one has its name in `current`.

    A rolling update keeps the total below replicas + maxSurge, and the ready pods above replicas - maxUnavailable.
    """
    wanted = spec.get("replicas", 1)
    old = [s for s in owned if s["metadata"]["name"] != current]
    new = [s for s in owned if s["metadata"]["name"] == current]
    running = sum(s["spec"].get("replicas", 1) for s in old)
    rolling = spec.get("strategy", {}).get("rollingUpdate")
    if rolling is None or not running:
        yield from ((s, wanted if s in new else 0) for s in owned)
        return
    surge = math.ceil(wanted * rolling["maxSurge"] / 100)
    least = wanted - math.floor(wanted * rolling["maxUnavailable"] / 100)
    for replica_set in new:
        has = replica_set["spec"].get("replicas", 1)
        yield replica_set, min(wanted, max(has, wanted + surge - running))
    ready = sum(
        is_true(pod.status.conditions, "Ready") and pod.metadata.deletion_timestamp is None
        for pod in pods
        for owner in pod.metadata.owner_references
        if any(owner.uid == s["metadata"]["uid"] for s in owned)
    )
    going = max(ready - least, 0)
    for replica_set in old:
        has = replica_set["spec"].get("replicas", 1)
        yield replica_set, has - min(has, going)
        going -= min(has, going)


def _replica_set(deployment: Mapping[str, Any], name: str, digest: str, *, replicas: int) -> dict[str, Any]:
    """Return the ReplicaSet; it, its selector and its pods have the label with the hash that is in its name."""
    meta, spec = deployment["metadata"], deployment["spec"]
    owner = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
    }
    hashed = {"pod-template-hash": digest}
    pod_meta = spec["template"].get("metadata", {})
    labels = {**pod_meta.get("labels", {}), **hashed}
    template = {**spec["template"], "metadata": {**pod_meta, "labels": labels}}
    selector = {**spec["selector"], "matchLabels": {**spec["selector"].get("matchLabels", {}), **hashed}}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "labels": labels,
            "ownerReferences": [owner],
        },
        "spec": {"replicas": replicas, "selector": selector, "template": template},
    }


def _pods_to_delete(pods: list[Pod], count: int) -> list[Pod]:
    """Return the pods to delete first: unassigned, pending, unready, of low deletion cost, doubled on their node, young."""
    if count <= 0:
        return []
    pods_per_node: dict[str, int] = {}
    for pod in pods:
        pods_per_node[pod.spec.node_name] = pods_per_node.get(pod.spec.node_name, 0) + 1

    def rank(pod: Pod) -> tuple[bool, bool, bool, int, int, float, str]:
        created = pod.metadata.creation_timestamp
        return (
            bool(pod.spec.node_name),
            pod.status.phase == "Running",
            is_true(pod.status.conditions, "Ready"),
            int(pod.metadata.annotations.get(_DELETION_COST, "0")),
            -pods_per_node[pod.spec.node_name],
            -created.timestamp() if created else 0.0,
            pod.metadata.name,
        )

    return sorted(pods, key=rank)[:count]
