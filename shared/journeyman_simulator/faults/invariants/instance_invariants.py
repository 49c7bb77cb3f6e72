"""Instances and claims are one to one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from journeyman.core.api.objects import Node, Pod
from journeyman_simulator.apiserver.server import Write
from journeyman_simulator.faults.invariants.checkers import Rule
from journeyman_simulator.faults.invariants.cluster_queries import (
    FINALIZER,
    UID_TAG,
    claim_named,
    claims,
    comes_from,
    end_of,
    has_ended,
    holds,
    lateness,
    nodes,
    pods,
    says,
    skew,
)
from journeyman_simulator.faults.scenario_view import RUNS, CloudEvent, CloudInstance, Scene

STUCK_AFTER: Final = timedelta(minutes=1)  # a pod that ends for longer than its grace period and this is on a dead node
LONGEST_WITHOUT_CLAIM: Final = timedelta(minutes=10)


class OneInstanceForAClaim(Rule):
    """No claim has two instances, ever: not even one after the other."""

    name = "no claim with two instances"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._launched: Counter[str] = Counter()

    def on_cloud(self, event: CloudEvent) -> Iterator[str]:
        """Counts launches by the claim's UID."""
        uid = event.instance.tags.get(UID_TAG)
        if event.kind != "launched" or not uid:
            return
        self._launched[uid] += 1
        if self._launched[uid] > 1:
            number = self._launched[uid]
            yield f"{event.instance.provider_id} is instance {number} of NodeClaim {event.instance.claim}, by {event.by}"


class NoInstanceWithoutAClaim(Rule):
    """An instance that nobody answers for is found within minutes; at rest there is none, and no claim without one."""

    name = "no instance without a claim"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._alone_since: dict[str, datetime] = {}

    def at_tick(self) -> Iterator[str]:
        """Instances with a Node that drains may take longer: its pods decide."""
        now = self.scene.clock.now()
        draining = {node.spec.provider_id for node in nodes(self.scene) if node.metadata.deletion_timestamp is not None}
        alone = {i.provider_id for i in self._alone()} - draining
        self._alone_since = {id_: self._alone_since.get(id_, now) for id_ in alone}
        for id_, since in sorted(self._alone_since.items()):
            if now - since > LONGEST_WITHOUT_CLAIM:
                yield f"{id_} has run without a claim since {since:%H:%M:%S}"

    def at_rest(self) -> Iterator[str]:
        """One to one to one: claims, instances, nodes."""
        yield from (f"{i.provider_id} ({i.claim}) runs without a claim" for i in self._alone())
        running = {i.provider_id for i in self.scene.instances() if i.runs}
        registered = {node.spec.provider_id for node in nodes(self.scene)}
        for claim in claims(self.scene):
            name, id_ = claim.metadata.name, claim.status.provider_id
            if id_ not in running:
                yield f"NodeClaim {name} has no instance that runs ({id_ or 'no provider id'})"
            elif id_ not in registered:
                yield f"NodeClaim {name} has no Node"
            if FINALIZER not in claim.metadata.finalizers:
                yield f"NodeClaim {name} lacks our finalizer"

    def _alone(self) -> list[CloudInstance]:
        uids = {claim.metadata.uid for claim in claims(self.scene)}
        known = {claim.status.provider_id for claim in claims(self.scene)}
        return [
            i
            for i in self.scene.instances()
            if i.runs and UID_TAG in i.tags and i.tags[UID_TAG] not in uids and i.provider_id not in known
        ]


class InstancesEndEmpty(Rule):
    """We end no instance on which pods still run, unless its end has come, it never was a node, or it is dead."""

    name = "no instance ended under its pods"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._skew = skew(scene.story)
        self._late = lateness(scene.story)
        self._registered: set[str] = set()

    def on_write(self, write: Write) -> Iterator[str]:
        """Remembers which claims ever registered, by provider id."""
        if write.resource.kind == "NodeClaim" and says(write.result, "Registered"):
            self._registered.add(write.result["status"].get("providerID", ""))
        yield from ()

    def on_cloud(self, event: CloudEvent) -> Iterator[str]:
        """When we ask for an instance's end."""
        instance = event.instance
        if event.kind != "terminate" or not event.by.startswith(RUNS) or instance.provider_id not in self._registered:
            return
        claim = claim_named(self.scene, instance.claim)
        now = self.scene.clock.now()
        end = end_of(claim) if claim is not None else None
        if end is not None and now + self._skew >= end:
            return
        for node in nodes(self.scene):
            if node.spec.provider_id == instance.provider_id and holds(node.status.conditions, "Ready"):
                running = sorted(pod.metadata.name for pod in pods(self.scene) if self._runs(pod, node, now))
                if running:
                    yield f"{event.by} ended {instance.provider_id} ({instance.claim}) under {', '.join(running)}"

    def _runs(self, pod: Pod, node: Node, now: datetime) -> bool:
        if pod.spec.node_name != node.metadata.name or has_ended(pod):
            return False
        if comes_from(pod, "DaemonSet") or comes_from(pod, "Node"):
            return False
        if pod.status.start_time is None or now - pod.status.start_time <= self._late:
            return False  # bound behind the back of a run that knew no better
        deleted = pod.metadata.deletion_timestamp
        return deleted is None or now + self._skew <= deleted + STUCK_AFTER
