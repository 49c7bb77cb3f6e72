"""Runs the in-cluster forwarder in virtual time, with the trackers, batches and messages of `infra/forwarder`.

It replaces the forwarder's threads and connections: it lists the objects of an in-memory API server after each change.
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
"""Sends a message, given the step, the body and the deduplication id."""


class LocalForwarder:
    """An `Actor` that runs the code of `infra/forwarder`.

    Args:
        server: The API server to watch.
        clock: The virtual clock.
        cluster: The cluster's registered name.
        send: Sends a message.
        node_class: The kind of NodeClass to watch.
    """

    def __init__(
        self, server: ApiServer, clock: Clock, cluster: str, send: Send, node_class: Resource[Any] = EC2NODECLASS
    ) -> None:
        self._server = server
        self._clock = clock
        self._cluster = cluster
        self._send = send
        notifications = import_deployed("infra.forwarder.notifications")
        objects, trackers = (
            import_deployed("infra.forwarder.watched_objects"),
            import_deployed("infra.forwarder.trackers"),
        )
        specs, cause = trackers.SpecTracker, notifications.NotificationCause
        self._batcher: Any = notifications.Batcher()
        self._pods = _WatchedKind(server, POD, objects.PodResource(), trackers.PodTracker())
        self._watched = (
            self._pods,
            _WatchedKind(server, NODE, objects.NodeResource(), trackers.NodeTracker()),
            _WatchedKind(server, NODE, objects.UninitializedNodeResource(), trackers.UninitializedNodeTracker()),
            _WatchedKind(server, NODECLAIM, objects.NodeClaimResource(), trackers.NodeClaimTracker()),
            _WatchedKind(server, NODEPOOL, objects.NodePoolResource(), specs(cause.POOL_CHANGED)),
            _WatchedKind(
                server,
                node_class,
                objects.NodeClassResource(node_class.kind, node_class.group, node_class.version),
                specs(cause.CLASS_CHANGED),
            ),
        )
        self._listed_version = ""

    def due(self) -> datetime | None:
        """Return when the next batch is sent; None if no batch is open."""
        due = self._batcher.due()
        return None if due is None else datetime.fromtimestamp(due, timezone.utc)

    def act(self) -> bool:
        """List the changed objects and send the batches that are due; return whether it sent any."""
        now = self._clock.now()
        self._list_changes(now.timestamp())
        sent = False
        for batch in self._batcher.take(now.timestamp()):
            pods = self._pods.tracker.summary()
            if not batch.is_obsolete(pods):
                self._send(Step(batch.step.value), batch.message(self._cluster, pods, now), batch.id)
                sent = True
            self._batcher.delivered(batch)
        return sent

    def _list_changes(self, now: float) -> None:
        version = self._server.resource_version
        if version == self._listed_version:
            return
        self._listed_version = version
        for watched in self._watched:
            self._batcher.add(watched.notifications(version), now)


class _WatchedKind:
    """A watched kind, which is listed again after each change, as the forwarder does after an outage."""

    def __init__(self, server: ApiServer, kind: Resource[Any], resource: Any, tracker: Any) -> None:
        self.tracker = tracker
        self._server = server
        self._kind = kind
        self._resource = resource
        self._listed: tuple[Any, ...] | None = None
        self._listed_version = -1

    def notifications(self, version: str) -> list[Any]:
        """Return the notifications for the changes since the last call."""
        current = self._server.version_of(self._kind)
        if current == self._listed_version:
            return []
        self._listed_version = current
        fields, labels = (self._resource.parameters.get(name, "") for name in ("fieldSelector", "labelSelector"))
        entries = self._server.page(self._kind, label_selector=labels, field_selector=fields).entries
        if self._listed is not None and _are_same(self._listed, entries):
            return []
        self._listed = entries
        page = self._resource.decode_page(msgspec.json.encode({"items": [entry.encoded() for entry in entries]}))
        before, self.tracker = self.tracker, self.tracker.fresh()
        return [*self.tracker.add_page(page.objects, before), *self.tracker.finish_list(before, version)]


def _are_same(before: tuple[Any, ...], entries: tuple[Any, ...]) -> bool:
    """Whether no entry was written: the API server replaces entries and never changes one."""
    return len(before) == len(entries) and all(old is new for old, new in zip(before, entries, strict=True))
