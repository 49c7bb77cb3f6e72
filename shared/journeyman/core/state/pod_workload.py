"""The workload of a pod: the controller that creates it again elsewhere, and how often a day its pods may be moved.

======================================================  ===================================================
controller of the pod                                   workload
======================================================  ===================================================
a ReplicaSet of a Deployment                            the Deployment, by namespace and name
a ReplicaSet of an Argo Rollout                         the Rollout, by namespace and name
any other (StatefulSet, Job, ReplicaSet, ...)           that controller, by namespace, name and UID
none                                                    the pod itself
======================================================  ===================================================

ReplicaSets are not read. They need not be: a Deployment names its ReplicaSets `<Deployment>-<hash>` and labels their pods with
that hash (`pod-template-hash`), so that the Deployment's name follows from the two exactly. Its UID does not, and that of the
ReplicaSet changes with every rollout. Without that label, or with another name, the ReplicaSet is the workload.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.objects import Pod

_HASH_LABELS: Final = (("pod-template-hash", "Deployment"), ("rollouts-pod-template-hash", "Rollout"))
"""The label with the hash in the name of a ReplicaSet, by the kind of the ReplicaSet's owner."""


class WorkloadKey(NamedTuple):
    """Identifies a workload; `uid` is empty for a Deployment and a Rollout."""

    kind: str
    namespace: str
    name: str
    uid: str = ""

    def __str__(self) -> str:
        """Return the name as in messages."""
        return f"{self.kind} {self.namespace}/{self.name}"


class MovedWorkload(Struct, frozen=True, kw_only=True):
    """Pods of one workload that a disruption moves, and how many evictions a day the workload allows; None: any number."""

    key: WorkloadKey
    pods: int
    limit: int | None = None


def workload_of(pod: Pod) -> WorkloadKey:
    """Return the workload of a pod."""
    meta = pod.metadata
    owner = meta.controller
    if owner is None:
        return WorkloadKey("Pod", meta.namespace, meta.name, meta.uid)
    name = owner.name
    if owner.kind == "ReplicaSet":
        for label, kind in _HASH_LABELS:
            suffix = meta.labels.get(label)
            if suffix and name.endswith(f"-{suffix}") and len(name) > len(suffix) + 1:
                return WorkloadKey(kind, meta.namespace, name[: -len(suffix) - 1], "")
    return WorkloadKey(owner.kind, meta.namespace, name, owner.uid)


def movable_workloads(pods: Iterable[Pod]) -> tuple[MovedWorkload, ...]:
    """Return the workloads of these pods in the order of their first pods; the lowest limit of a workload's pods counts."""
    counts: dict[WorkloadKey, int] = {}
    limits: dict[WorkloadKey, int] = {}
    for pod in pods:
        key = workload_of(pod)
        counts[key] = counts.get(key, 0) + 1
        if pod.metadata.annotations and (limit := max_evictions(pod.metadata.annotations)) is not None:
            limits[key] = min(limit, limits.get(key, limit))
    return tuple(MovedWorkload(key=key, pods=n, limit=limits.get(key)) for key, n in counts.items())


def max_evictions(annotations: dict[str, str]) -> int | None:
    """Return the value of `journeyman.dev/max-evictions-per-day`; None if it is not set.

    It is 0 if it is no whole number: who wrote it wanted fewer evictions, and a pod that stays can go later.
    """
    text = annotations.get(labels.MAX_EVICTIONS_PER_DAY)
    if text is None:
        return None
    if not _is_whole(text):
        return 0
    return int(text) if len(text) <= _MAX_DIGITS else _MOST


def has_invalid_max_evictions(annotations: dict[str, str]) -> bool:
    """Whether the annotation is set, but not to a whole number."""
    text = annotations.get(labels.MAX_EVICTIONS_PER_DAY)
    return text is not None and not _is_whole(text)


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdecimal()


_MAX_DIGITS: Final = 9
_MOST: Final = 10**9
