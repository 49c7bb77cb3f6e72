"""Writes pod nominations (`core.lifecycle.nomination`) in batches, and again where kube-scheduler cleared them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct

from journeyman.core.api.objects import POD
from journeyman.core.plan import NominatePods, ObjectRef, RenominatePods
from journeyman.errors import ConflictError, ForbiddenError, InvalidError, KubeAPIError, NotFoundError
from journeyman.ports import Patch
from journeyman.steps.context import RunContext

_PENDING: Final = "spec.nodeName=,status.nominatedNodeName="
_BATCH: Final = 50
"""Pods that are patched in parallel. Refusals are evaluated after each batch."""


class _Nomination(Struct, frozen=True):
    pod: ObjectRef
    node: str


class PodNominator:
    """Writes the nominations of one run. A refusal is logged and never fails the run.

    A refusal that concerns all pods (a missing permission, an API server that does not respond) ends the run's nominations.

    Args:
        run: The run.
        count: Adds a number to a count of the run.
    """

    def __init__(self, run: RunContext, count: Callable[[str, int], None]) -> None:
        self._run = run
        self._count = count
        self._has_given_up = False

    def nominate(self, *actions: NominatePods) -> None:
        """Nominate pods, or clear their nominations."""
        self._write([_Nomination(pod, action.node) for action in actions for pod in action.pods], "nominations")

    def renominate(self, action: RenominatePods) -> None:
        """Nominate those pods again that have neither a node nor a nomination."""
        pending = self._pending(pod for nomination in action.nominations for pod in nomination.pods)
        lost = [_Nomination(pod, n.node) for n in action.nominations for pod in n.pods if pod.uid in pending]
        if lost:
            self._write(lost, "nominations repeated")

    def _write(self, nominations: list[_Nomination], counted_as: str) -> None:
        written = 0
        for start in range(0, len(nominations), _BATCH):
            if not self._has_given_up:
                written += self._patch(nominations[start : start + _BATCH])
        self._count(counted_as, written)
        self._count("nominations refused", len(nominations) - written)

    def _patch(self, nominations: list[_Nomination]) -> int:
        """Write one batch; return how many the API server accepted. UIDs are preconditions, since names can be reused."""
        patches = [
            Patch(
                name=n.pod.name,
                namespace=n.pod.namespace,
                body={"metadata": {"uid": n.pod.uid}, "status": {"nominatedNodeName": n.node or None}},
            )
            for n in nominations
        ]
        results = self._run.store.patch_each(POD, patches, subresource="status")
        refused = [(n, r) for n, r in zip(nominations, results, strict=True) if isinstance(r, KubeAPIError)]
        self._has_given_up = any(_concerns_all(error) for _, error in refused)
        for nomination, error in refused[: 1 if self._has_given_up else None]:
            self._log(nomination, error)
        if self._has_given_up:
            self._run.telemetry.log("warning", "not nominating further pods in this run")
        return len(nominations) - len(refused)

    def _log(self, nomination: _Nomination, error: KubeAPIError) -> None:
        level = "debug" if _concerns_pod(error) else "warning"
        text = f"failed to nominate {nomination.pod} to node {nomination.node}: {error.message}"
        fields = {key: str(value) for key, value in error.context.items()}
        self._run.telemetry.log(level, text, error=type(error).__name__, **fields)

    def _pending(self, pods: Iterable[ObjectRef]) -> frozenset[str]:
        """Return the UIDs of pods without node and nomination, from the API server's cache; none if the list fails."""
        namespaces = {pod.namespace for pod in pods}
        if self._has_given_up or not namespaces:
            return frozenset()
        namespace = namespaces.pop() if len(namespaces) == 1 else ""
        try:
            found = self._run.store.list(POD, namespace=namespace, field_selector=_PENDING, cached=True)
        except KubeAPIError:
            return frozenset()
        return frozenset(pod.metadata.uid for pod in found.items)


def _concerns_pod(error: KubeAPIError) -> bool:
    """Whether the pod needs no nomination any more: it is deleted, another pod has its name, or it is bound."""
    return isinstance(error, NotFoundError | ConflictError | InvalidError)


def _concerns_all(error: KubeAPIError) -> bool:
    """Whether further pods would be refused, too: the permission is missing, or the API server does not respond."""
    return isinstance(error, ForbiddenError) or (error.retryable and not _concerns_pod(error))
