"""The in-cluster forwarder under virtual time: says that pods are pending, batched as the real one batches.

One second without a new pending pod sends the message, ten seconds send it in any case; it names counts and the oldest
pod's age, never the pods: the function reads the truth itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta

from journeyman.core.api.objects import POD, Pod, condition_of
from journeyman.ports import Clock
from journeyman.simulate.apiserver import ApiServer

IDLE = timedelta(seconds=1)
AT_MOST = timedelta(seconds=10)


class Forwarder:
    """Watches unassigned pods of one cluster and sends a body (JSON text) when a batch is complete."""

    def __init__(self, server: ApiServer, clock: Clock, cluster: str, send: Callable[[str], object]) -> None:
        self._server = server
        self._clock = clock
        self._cluster = cluster
        self._send = send
        self._seen_version = ""
        self._known: set[str] = set()
        self._opened: datetime | None = None
        self._latest: datetime | None = None
        self._serial = 0

    def due(self) -> datetime | None:
        """When the open batch is complete."""
        if self._opened is None or self._latest is None:
            return None
        return min(self._latest + IDLE, self._opened + AT_MOST)

    def act(self) -> bool:
        """Take in new pending pods, send a complete batch; True if one was sent."""
        now = self._clock.now()
        pending = self._look(now)
        due = self.due()
        if due is None or due > now:
            return False
        self._opened = self._latest = None
        if not pending:
            return False
        self._serial += 1
        self._send(self._message(pending, now))
        return True

    def _look(self, now: datetime) -> tuple[Pod, ...]:
        pending = tuple(p for p in self._server.list(POD, field_selector="spec.nodeName=").items if _is_unschedulable(p))
        if self._server.resource_version != self._seen_version:
            self._seen_version = self._server.resource_version
            uids = {pod.metadata.uid for pod in pending}
            if uids - self._known:
                self._opened = self._opened or now
                self._latest = now
            self._known = uids
        return pending

    def _message(self, pending: tuple[Pod, ...], now: datetime) -> str:
        oldest = min((p.metadata.creation_timestamp for p in pending if p.metadata.creation_timestamp), default=now)
        body = {
            "version": "1",
            "source": "forwarder",
            "id": f"{self._cluster}-{self._serial}",
            "time": now.isoformat(),
            "cluster": self._cluster,
            "reason": f"{len(pending)} pods are unschedulable",
            "counts": {"pending": len(pending), "unschedulable": len(pending)},
            "oldestPendingTime": oldest.isoformat(),
        }
        return json.dumps(body)


def _is_unschedulable(pod: Pod) -> bool:
    condition = condition_of(pod.status.conditions, "PodScheduled")
    return condition is not None and condition.status == "False" and condition.reason == "Unschedulable"
