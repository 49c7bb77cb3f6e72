"""The in-cluster forwarder under virtual time: its own rules for what is news, when to send and what to say.

Only its threads and its wire are replaced: it sees the pods of an in-memory API server and acts when the world does.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import msgspec

from journeyman.core.api.objects import POD
from journeyman.ports import Clock
from journeyman.runtime.checkout import imported
from journeyman.simulate.apiserver import ApiServer


class LocalForwarder:
    """An `Actor` around `infra/forwarder`.

    Args:
        server: Whose unassigned pods are watched.
        clock: Virtual time.
        cluster: Its name in the messages.
        send: Takes the body of a message.
    """

    def __init__(self, server: ApiServer, clock: Clock, cluster: str, send: Callable[[str], object]) -> None:
        self._server = server
        self._clock = clock
        self._cluster = cluster
        self._send = send
        self._pods: Any = imported("infra.forwarder.pods")
        self._message: Any = imported("infra.forwarder.forwarder").message
        self._batch: Any = imported("infra.forwarder.batching").Batch()
        self._waiting: Any = self._pods.Waiting()
        self._raw_pods = msgspec.structs.replace(POD, type=dict)
        self._seen = ""
        self._serial = 0

    def due(self) -> datetime | None:
        """When the open batch is complete."""
        due = self._batch.due()
        return None if due is None else datetime.fromtimestamp(due, timezone.utc)

    def act(self) -> bool:
        """Take in what changed, send a complete batch; True if one was sent."""
        now = self._clock.now()
        self._look(now.timestamp())
        if not self._batch.take(now.timestamp()):
            return False
        summary = self._waiting.summary()
        if not summary.unschedulable:
            return False
        self._serial += 1
        self._send(self._message(self._cluster, summary, f"{self._cluster}-{self._serial}", now))
        self._batch.sent()
        return True

    def _look(self, now: float) -> None:
        version = self._server.resource_version
        if version == self._seen:
            return
        self._seen = version
        raw = self._server.list(self._raw_pods, field_selector="spec.nodeName=").items
        pods = (msgspec.convert(pod, self._pods.Pod) for pod in raw)
        if self._waiting.replace(self._pods.Waiting.of([pods])):
            self._batch.add(now)
