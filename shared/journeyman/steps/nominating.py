"""Nominating pods: placement hints as kube-scheduler gets them, all of a run's at once, in the order of its attempts.

An attempt of kube-scheduler that fails takes a pod's nomination back, and while nodes join it attempts all the time. So
once the last pod has its nomination, those that lost theirs meanwhile get it again; and so do, while the nodes open and
once they are, those whose attempt was still under way then. kube-scheduler leaves a pod that has just failed alone for
a second at least (pkg/scheduler `podInitialBackoffSeconds`).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from msgspec import Struct

from journeyman.core.api.objects import POD
from journeyman.core.plan import NominatePods, ObjectRef
from journeyman.errors import ConflictError, ForbiddenError, InvalidError, KubeAPIError, NotFoundError
from journeyman.ports import KubeStore, Patch

_UNDECIDED: Final = "spec.nodeName=,status.nominatedNodeName="
_PART: Final = 50
"""So many are asked for before anybody looks whether it is of any use."""


class Hint(Struct, frozen=True):
    """One pod and its node."""

    pod: ObjectRef
    node: str


class Nominated(Struct, frozen=True, kw_only=True):
    """How many pods were nominated, and why others were not."""

    given: int
    refused: tuple[tuple[Hint, KubeAPIError], ...] = ()

    @property
    def is_hopeless(self) -> bool:
        """Whether further pods would be refused as well: the right to do it is missing, or nobody answers."""
        return any(
            isinstance(error, ForbiddenError) or (error.retryable and not is_gone(error)) for _, error in self.refused
        )


def is_gone(error: KubeAPIError) -> bool:
    """Whether the pod needs no nomination any more: it is gone, another one has its name, or it has been bound."""
    return isinstance(error, NotFoundError | ConflictError | InvalidError)


def nominate(store: KubeStore, actions: Sequence[NominatePods]) -> Nominated:
    """Nominate the pods to their nodes, or take their nominations back, until that is hopeless. Never raises KubeAPIError."""
    hints = _in_turn(actions)
    done = Nominated(given=0)
    for begin in range(0, len(hints), _PART):
        if not done.is_hopeless:
            part = hints[begin : begin + _PART]
            refused = _patch(store, part)
            done = Nominated(given=done.given + len(part) - len(refused), refused=done.refused + refused)
    return done


def nominate_again(store: KubeStore, actions: Sequence[NominatePods]) -> int:
    """Nominate those once more who lost their nomination since these actions were carried out; how many."""
    hints = _in_turn(actions)
    lost = _undecided(store, [hint.pod for hint in hints])
    if lost:
        _patch(store, [hint for hint in hints if hint.pod.uid in lost])
    return len(lost)


def _in_turn(actions: Sequence[NominatePods]) -> list[Hint]:
    """All of them, as kube-scheduler comes to their pods."""
    hints = [
        (turn, Hint(pod, action.node))
        for action in actions
        for turn, pod in zip(action.turns or (0,) * len(action.pods), action.pods, strict=True)
    ]
    return [hint for _, hint in sorted(hints, key=itemgetter(0))]


def _patch(store: KubeStore, hints: Sequence[Hint]) -> tuple[tuple[Hint, KubeAPIError], ...]:
    """Those that were refused. The UID is a precondition: only the pod that was meant, not a namesake."""
    patches = [
        Patch(
            name=hint.pod.name,
            namespace=hint.pod.namespace,
            body={"metadata": {"uid": hint.pod.uid}, "status": {"nominatedNodeName": hint.node or None}},
        )
        for hint in hints
    ]
    answers = store.patch_each(POD, patches, subresource="status")
    return tuple(
        (hint, answer) for hint, answer in zip(hints, answers, strict=True) if isinstance(answer, KubeAPIError)
    )


def _undecided(store: KubeStore, pods: Sequence[ObjectRef]) -> frozenset[str]:
    """UIDs of those of the pods that have neither node nor nomination now; none if that cannot be told.

    As the API server's cache has it, which answers at once: pods are being bound by the hundred meanwhile.
    """
    spaces = {pod.namespace for pod in pods}
    try:
        found = store.list(
            POD, namespace=spaces.pop() if len(spaces) == 1 else "", field_selector=_UNDECIDED, cached=True
        )
    except KubeAPIError:
        return frozenset()
    return frozenset(pod.metadata.uid for pod in found.items) & {pod.uid for pod in pods}
