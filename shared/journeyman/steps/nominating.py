"""Nominating pods: placement hints as kube-scheduler gets them, all of a node's at once.

An attempt of kube-scheduler that fails takes a pod's nomination back, and while nodes join it attempts all the time. So
once the last of a node's pods has its nomination, those that lost theirs meanwhile get it again; and so do, once the
nodes are open, those whose attempt was still under way then. kube-scheduler leaves a pod that has just failed alone for
a second at least (pkg/scheduler `podInitialBackoffSeconds`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from journeyman.core.api.objects import POD
from journeyman.core.plan import NominatePods, ObjectRef
from journeyman.errors import ConflictError, ForbiddenError, InvalidError, KubeAPIError, NotFoundError
from journeyman.ports import KubeStore, Patch

_UNDECIDED: Final = "spec.nodeName=,status.nominatedNodeName="


class Nominated(Struct, frozen=True, kw_only=True):
    """How many pods were nominated, and why the others were not, by pod."""

    given: int
    refused: tuple[tuple[ObjectRef, KubeAPIError], ...] = ()

    @property
    def is_hopeless(self) -> bool:
        """Whether further pods would be refused as well: the right to do it is missing, or nobody answers."""
        return any(
            isinstance(error, ForbiddenError) or (error.retryable and not is_gone(error)) for _, error in self.refused
        )


def is_gone(error: KubeAPIError) -> bool:
    """Whether the pod needs no nomination any more: it is gone, another one has its name, or it has been bound."""
    return isinstance(error, NotFoundError | ConflictError | InvalidError)


def nominate(store: KubeStore, action: NominatePods) -> Nominated:
    """Nominate the pods to their node, or take their nominations back. Never raises KubeAPIError: see `Nominated`."""
    refused = _patch(store, action.pods, action.node)
    return Nominated(given=len(action.pods) - len(refused), refused=refused)


def nominate_again(store: KubeStore, actions: Sequence[NominatePods]) -> int:
    """Nominate those once more who lost their nomination since these actions were carried out; how many."""
    pods = [pod for action in actions for pod in action.pods]
    lost = _undecided(store, pods)
    for action in actions:
        if mine := [pod for pod in action.pods if pod.uid in lost]:
            _patch(store, mine, action.node)
    return len(lost)


def _patch(store: KubeStore, pods: Sequence[ObjectRef], node: str) -> tuple[tuple[ObjectRef, KubeAPIError], ...]:
    """The pods that were refused. The UID is a precondition: only the pod that was meant, not a namesake."""
    patches = [
        Patch(
            name=pod.name,
            namespace=pod.namespace,
            body={"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": node or None}},
        )
        for pod in pods
    ]
    answers = store.patch_each(POD, patches, subresource="status")
    return tuple((pod, answer) for pod, answer in zip(pods, answers, strict=True) if isinstance(answer, KubeAPIError))


def _undecided(store: KubeStore, pods: Sequence[ObjectRef]) -> frozenset[str]:
    """UIDs of those of the pods that have neither node nor nomination now; none if that cannot be told."""
    spaces = {pod.namespace for pod in pods}
    try:
        found = store.list(POD, namespace=spaces.pop() if len(spaces) == 1 else "", field_selector=_UNDECIDED)
    except KubeAPIError:
        return frozenset()
    return frozenset(pod.metadata.uid for pod in found.items) & {pod.uid for pod in pods}
