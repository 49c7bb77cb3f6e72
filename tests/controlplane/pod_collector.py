"""A pod garbage collector that follows the scenario's clock.

Kubernetes' own runs as well, but in real time, while the scenario's clock may jump by hours.
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
"""The time from the first missing Node to the deletion of its pods: the Node may not have been created yet."""


class PodCollector:
    """Deletes pods whose Node does not exist. An `Actor`.

    Args:
        store: The cluster.
        clock: The scenario's clock.
    """

    def __init__(self, store: KubeStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._missing_since: dict[str, datetime] = {}

    def due(self) -> datetime | None:
        """Return when the collector deletes pods of the first missing Node."""
        return min((since + _QUARANTINE for since in self._missing_since.values()), default=None)

    def act(self) -> bool:
        """Delete the pods whose Node is missing for long enough; return whether there were any."""
        nodes, now = {node.metadata.name for node in self._store.list(NODE).items}, self._clock.now()
        orphans = [p for p in self._store.list(POD).items if p.spec.node_name and p.spec.node_name not in nodes]
        self._missing_since = {p.spec.node_name: self._missing_since.get(p.spec.node_name, now) for p in orphans}
        due = [pod for pod in orphans if self._missing_since[pod.spec.node_name] + _QUARANTINE <= now]
        for pod in due:
            with suppress(NotFoundError):
                meta = pod.metadata
                self._store.delete(POD, meta.name, namespace=meta.namespace, uid=meta.uid, grace_period_seconds=0)
        return bool(due)
