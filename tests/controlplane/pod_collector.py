"""The pod garbage collector, by the scenario's clock.

Kubernetes' own one runs as well, but waits by real time, in which hours may pass by the scenario's clock.
Restates: kubernetes `pkg/controller/podgc/gc_controller.go` `gcOrphaned`, `quarantineTime`.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

from journeyman.core.api.objects import NODE, POD
from journeyman.errors import NotFoundError
from journeyman.ports import Clock, KubeStore

_QUARANTINE: Final = timedelta(seconds=40)
"""From when a Node is first missed until its pods are removed: its Node may only not be there yet."""


class PodCollector:
    """Removes pods whose Node does not exist. An `Actor`.

    Args:
        store: The cluster.
        clock: The scenario's.
    """

    def __init__(self, store: KubeStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._missed_since: dict[str, datetime] = {}

    def due(self) -> datetime | None:
        """Return when pods of the first missed Node are removed."""
        return min((since + _QUARANTINE for since in self._missed_since.values()), default=None)

    def act(self) -> bool:
        """Look for missing Nodes; return whether a pod was removed."""
        nodes, now = {node.metadata.name for node in self._store.list(NODE).items}, self._clock.now()
        orphans = [p for p in self._store.list(POD).items if p.spec.node_name and p.spec.node_name not in nodes]
        self._missed_since = {p.spec.node_name: self._missed_since.get(p.spec.node_name, now) for p in orphans}
        due = [pod for pod in orphans if self._missed_since[pod.spec.node_name] + _QUARANTINE <= now]
        for pod in due:
            with suppress(NotFoundError):
                meta = pod.metadata
                self._store.delete(POD, meta.name, namespace=meta.namespace, uid=meta.uid, grace_period_seconds=0)
        return bool(due)
