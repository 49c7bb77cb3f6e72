"""Implements the pod subresources `eviction` and `binding`, and the status of PodDisruptionBudgets.

Restates: kubernetes `pkg/registry/core/pod/storage/eviction.go` `EvictionREST.Create`, `storage.go` `assignPod`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from journeyman.core.api.objects import PDB, POD, PodDisruptionBudget
from journeyman_simulator.apiserver import api_errors, object_metadata, object_selectors, object_validation
from journeyman_simulator.apiserver.object_registry import ObjectRegistry
from journeyman_simulator.apiserver.object_storage import Key, StoredObject

JSON = Mapping[str, Any]


def evict(registry: ObjectRegistry, namespace: str, name: str, uid: str) -> StoredObject:
    """Delete a pod gracefully if its PodDisruptionBudget allows it; return its last state.

    Raises:
        NotFoundError, ConflictError: The pod does not exist, or has another UID.
        TooManyRequestsError: The PodDisruptionBudget currently forbids the eviction.
        KubeAPIError: More than one PodDisruptionBudget covers the pod (500).
    """
    kind = registry.kind(POD)
    key = (namespace, name)
    pod = registry.get(kind, key).object
    if uid and uid != pod["metadata"]["uid"]:
        raise api_errors.uid_mismatch(POD, name, uid, pod["metadata"]["uid"])
    covering = [] if _ignores_budget(pod) else _covering(registry, namespace, pod)
    if len(covering) > 1:
        raise api_errors.internal_error(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        )
    for pdb_key, pdb in covering:
        _check_budget(registry, pdb_key, pdb, pod)
    entry = registry.delete(kind, key, uid=uid)
    for pdb_key, _ in covering:
        _write_status(registry, pdb_key)
    return entry


def budget_status(registry: ObjectRegistry, key: Key) -> dict[str, Any] | None:
    """Return a budget's current status; None if it equals the stored one."""
    entry = registry.get(registry.kind(PDB), key)
    status = _status(registry, key[0], entry.decoded(PodDisruptionBudget))
    stored = entry.object.get("status") or {}
    return None if {**stored, **status} == stored else status


def bind(registry: ObjectRegistry, namespace: str, name: str, node: str, *, uid: str, now: str) -> StoredObject:
    """Assign a pod to a node, and clear its nomination.

    Raises:
        NotFoundError: The pod does not exist.
        ConflictError: The pod is assigned or terminating, or has another UID.
    """
    kind = registry.kind(POD)
    pod = registry.get(kind, (namespace, name)).object
    if uid and uid != pod["metadata"]["uid"]:
        stored_at = f"/registry/pods/{namespace}/{name}"
        raise api_errors.storage_precondition(POD, stored_at, name, uid, pod["metadata"]["uid"])
    if object_metadata.is_deleting(pod):
        raise api_errors.conflict(_BINDING, name, f"pod {name} is being deleted, cannot be assigned to a host")
    if assigned := pod["spec"].get("nodeName"):
        raise api_errors.conflict(_BINDING, name, f'pod {name} is already assigned to node "{assigned}"')
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": now}
    others = [c for c in pod["status"].get("conditions", ()) if c["type"] != "PodScheduled"]
    status = {**pod["status"], "conditions": [*others, condition]}
    status.pop("nominatedNodeName", None)
    bound = {**pod, "spec": {**pod["spec"], "nodeName": node}, "status": status}
    return registry.storage.put(kind.id, (namespace, name), bound)


_BINDING = type(POD)(group="", version="v1", kind="Binding", plural="pods/binding", namespaced=True, type=dict)


def _ignores_budget(pod: JSON) -> bool:
    """Whether an eviction ignores budgets. Restates: kubernetes pkg/registry/core/pod/storage/eviction.go `canIgnorePDB`."""
    return (
        object_validation.is_terminal(pod)
        or pod["status"].get("phase") == "Pending"
        or object_metadata.is_deleting(pod)
    )


def _covering(registry: ObjectRegistry, namespace: str, pod: JSON) -> list[tuple[Key, PodDisruptionBudget]]:
    entries = registry.storage.table(registry.kind(PDB).id).entries
    found = [(key, entry.decoded(PodDisruptionBudget)) for key, entry in sorted(entries.items()) if key[0] == namespace]
    return [(key, pdb) for key, pdb in found if covers_pod(pdb, pod)]


def _check_budget(registry: ObjectRegistry, key: Key, pdb: PodDisruptionBudget, pod: JSON) -> None:
    """Raise TooManyRequestsError if the budget forbids the eviction."""
    status = _status(registry, key[0], pdb)
    if not object_validation.is_ready(pod) and _allows_unhealthy_eviction(pdb, status):
        return
    if status["disruptionsAllowed"] > 0:
        return
    desired, healthy = status["desiredHealthy"], status["currentHealthy"]
    raise api_errors.eviction_forbidden(
        f"The disruption budget {pdb.metadata.name} needs {desired} healthy pods and has {healthy} currently"
    )


def _write_status(registry: ObjectRegistry, key: Key) -> None:
    """Write the budget's status, as kube-apiserver does for an eviction."""
    status = budget_status(registry, key)
    if status is not None:
        registry.update(
            registry.kind(PDB), key, lambda old: {**old, "status": {**old.get("status", {}), **status}}, "status"
        )


def _allows_unhealthy_eviction(pdb: PodDisruptionBudget, status: Mapping[str, int]) -> bool:
    if pdb.spec.unhealthy_pod_eviction_policy == "AlwaysAllow":
        return True
    return status["currentHealthy"] >= status["desiredHealthy"] > 0


def _status(registry: ObjectRegistry, namespace: str, pdb: PodDisruptionBudget) -> dict[str, Any]:
    entries = registry.storage.table(registry.kind(POD).id).entries
    pods = [entry.object for key, entry in entries.items() if key[0] == namespace]

    def scale_of(where: str, owner: JSON) -> tuple[str, int | None]:
        return _scale(registry, where, owner)

    return disruption_budget_status(pdb, pods, scale_of)


def _scale(registry: ObjectRegistry, namespace: str, owner: JSON) -> tuple[str, int | None]:
    """Return the UID and replicas of the workload that owns a pod; for a ReplicaSet, those of its Deployment."""
    kind = registry.kind_named("apps", owner["kind"])
    entry = registry.storage.table(kind.id).entries.get((namespace, owner["name"])) if kind is not None else None
    if entry is None or entry.object["metadata"]["uid"] != owner["uid"]:
        return owner["uid"], None
    above = [o for o in entry.object["metadata"].get("ownerReferences") or () if o.get("controller")]
    if above:
        return _scale(registry, namespace, above[0])
    return owner["uid"], entry.object["spec"].get("replicas")


Scale = Callable[[str, JSON], "tuple[str, int | None]"]
"""Returns the UID and replicas of the workload of (namespace, ownerReference); replicas are None if unknown."""


def covers_pod(pdb: PodDisruptionBudget, pod: JSON) -> bool:
    """Whether the budget covers a pod of its namespace."""
    return object_selectors.matches(pdb.spec.selector, object_selectors.labels_of(pod))


def disruption_budget_status(
    pdb: PodDisruptionBudget, namespace_pods: Iterable[JSON], scale_of: Scale
) -> dict[str, Any]:
    """Return the status that the disruption controller would write now."""
    covered = [pod for pod in namespace_pods if covers_pod(pdb, pod)]
    healthy = sum(object_validation.is_ready(pod) and not object_metadata.is_deleting(pod) for pod in covered)
    expected, desired = _expected_and_desired(pdb, covered, scale_of)
    allowed = max(healthy - desired, 0) if expected > 0 else 0
    return {
        "disruptionsAllowed": allowed,
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "expectedPods": expected,
        "observedGeneration": pdb.metadata.generation,
    }


def _expected_and_desired(pdb: PodDisruptionBudget, covered: Sequence[JSON], scale_of: Scale) -> tuple[int, int]:
    at_least, at_most = pdb.spec.min_available, pdb.spec.max_unavailable
    if at_most is not None:
        expected = _expected_pods(covered, scale_of)
        return expected, max(expected - _scaled(at_most, expected), 0)
    if isinstance(at_least, str) and at_least.endswith("%"):
        expected = _expected_pods(covered, scale_of)
        return expected, _scaled(at_least, expected)
    return len(covered), int(at_least or 0)


def _scaled(value: int | str, total: int) -> int:
    """Return a number of pods: `value`, or as a percentage of `total`, rounded up."""
    text = str(value)
    return -(-int(text[:-1]) * total // 100) if text.endswith("%") else int(text)


def _expected_pods(covered: Sequence[JSON], scale_of: Scale) -> int:
    """Return the sum of the replicas of the pods' controllers; pods without a controller do not count."""
    replicas_by_owner: dict[str, int | None] = {}
    pods_by_owner: Counter[str] = Counter()
    for pod in covered:
        for owner in pod["metadata"].get("ownerReferences") or ():
            if owner.get("controller"):
                uid, replicas = scale_of(pod["metadata"]["namespace"], owner)
                replicas_by_owner[uid] = replicas
                pods_by_owner[uid] += 1
    return sum(pods_by_owner[uid] if replicas is None else replicas for uid, replicas in replicas_by_owner.items())
