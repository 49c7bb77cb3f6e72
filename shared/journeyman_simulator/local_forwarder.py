"""The in-cluster forwarder under virtual time: its own rules for what is news, when to send and what to say.

Only its threads and its wire are replaced: it sees the objects of an in-memory API server and acts when the world does.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import msgspec

from journeyman.core.api.objects import EC2NODECLASS, NODE, NODECLAIM, NODEPOOL, POD, Resource
from journeyman.core.plan import Step
from journeyman.ports import Clock
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.deployment_files import import_deployed

Send = Callable[[Step, str, str], object]
"""Takes the step that is woken, the body of a message, and its deduplication id."""


class LocalForwarder:
    """An `Actor` around `infra/forwarder`.

    Args:
        server: What is watched.
        clock: Virtual time.
        cluster: Its name in the messages.
        send: Takes the messages.
    """

    def __init__(self, server: ApiServer, clock: Clock, cluster: str, send: Send) -> None:
        self._server = server
        self._clock = clock
        self._cluster = cluster
        self._send = send
        self._message: Any = import_deployed("infra.forwarder.message")
        self._ledger: Any = import_deployed("infra.forwarder.news").Ledger()
        resources, fleet = import_deployed("infra.forwarder.resources"), import_deployed("infra.forwarder.fleet")
        specs, cause = import_deployed("infra.forwarder.specs").Specs, import_deployed("infra.forwarder.news").Cause
        self._pods = _WatchedKind(server, POD, resources.Pods(), import_deployed("infra.forwarder.pods").Waiting())
        self._watched = (
            self._pods,
            _WatchedKind(server, NODE, resources.Nodes(), fleet.Nodes()),
            _WatchedKind(server, NODECLAIM, resources.NodeClaims(), fleet.Claims()),
            _WatchedKind(server, NODEPOOL, resources.NodePools(), specs(cause.POOL_CHANGED)),
            _WatchedKind(server, EC2NODECLASS, resources.NodeClasses(), specs(cause.CLASS_CHANGED)),
        )
        self._seen = ""

    def due(self) -> datetime | None:
        """When the open batch is complete."""
        due = self._ledger.due()
        return None if due is None else datetime.fromtimestamp(due, timezone.utc)

    def act(self) -> bool:
        """Take in what changed, send complete batches; True if one was sent."""
        now = self._clock.now()
        self._look(now.timestamp())
        sent = False
        for parcel in self._ledger.take(now.timestamp()):
            summary = self._pods.tracker.summary()
            if not self._message.is_needless(parcel, summary):
                body = self._message.message(self._cluster, parcel, summary, now)
                self._send(Step(parcel.step.value), body, parcel.id)
                sent = True
            self._ledger.delivered(parcel)
        return sent

    def _look(self, now: float) -> None:
        version = self._server.resource_version
        if version == self._seen:
            return
        self._seen = version
        for watched in self._watched:
            self._ledger.note(watched.news(version), now)


class _WatchedKind:
    """One kind of object: listed anew at each look, as the forwarder does after an outage."""

    def __init__(self, server: ApiServer, kind: Resource[Any], resource: Any, tracker: Any) -> None:
        self.tracker = tracker
        self._server = server
        self._kind = kind
        self._resource = resource
        self._seen: tuple[Any, ...] | None = None
        self._seen_at = -1

    def news(self, version: str) -> list[Any]:
        """What has happened since the last look."""
        there = self._server.version_of(self._kind)
        if there == self._seen_at:
            return []
        self._seen_at = there
        entries = self._server.page(self._kind, field_selector=self._resource.selector).entries
        if self._seen is not None and _same(self._seen, entries):
            return []
        self._seen = entries
        page = self._resource.page(msgspec.json.encode({"items": [entry.encoded() for entry in entries]}))
        before, self.tracker = self.tracker, self.tracker.fresh()
        return [*self.tracker.take_page(page.objects, before), *self.tracker.ended(before, version)]


def _same(before: tuple[Any, ...], entries: tuple[Any, ...]) -> bool:
    """Whether none was written: an entry is never changed, only replaced."""
    return len(before) == len(entries) and all(old is new for old, new in zip(before, entries, strict=True))
