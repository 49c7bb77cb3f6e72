"""Pods go as their people agreed: by eviction, within budgets, never while protected, and by force at the end alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from journeyman.core.api.objects import PDB, Node, Pod, PodDisruptionBudget
from journeyman_simulator.apiserver.server import Write
from journeyman_simulator.faults.rules import Rule
from journeyman_simulator.faults.rules.looking import (
    DO_NOT_DISRUPT,
    claim_named,
    claim_of,
    comes_from,
    end_of,
    has_ended,
    has_taint,
    holds,
    is_leaving,
    is_ours,
    lateness,
    node_named,
    nodes,
    parsed_time,
    pods,
    says,
    seconds,
    skew,
)
from journeyman_simulator.faults.scene import RUNS, CloudEvent, Scene

STUCK_AFTER: Final = timedelta(minutes=1)  # a pod that ends for longer than its grace period and this is on a dead node


class PodsGoAsAgreed(Rule):
    """Evictions respect budgets and protection, and come to nodes that are on their way out; force waits for the end."""

    name = "no pod evicted against its people's will"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._late = lateness(scene.story)
        self._skew = skew(scene.story)
        self._protected: dict[str, datetime] = {}  # by UID: since when

    def on_write(self, write: Write) -> Iterator[str]:
        """Only pods are looked at."""
        if write.resource.kind != "Pod":
            return
        if write.verb == "evict" and is_ours(write):
            yield from self._evicted(write)
        elif write.verb == "delete" and is_ours(write):
            yield from self._deleted(write)
        else:
            self._remember(write)

    def _remember(self, write: Write) -> None:
        uid = write.result["metadata"]["uid"]
        if write.result["metadata"].get("annotations", {}).get(DO_NOT_DISRUPT):
            self._protected.setdefault(uid, self.scene.clock.now())
        else:
            self._protected.pop(uid, None)

    def _evicted(self, write: Write) -> Iterator[str]:
        pod, who = write.result, f"{write.user} evicted {write.name}"
        uid = pod["metadata"]["uid"]
        now = self.scene.clock.now()
        if _is_protected(pod, now + self._skew) and now - self._protected.get(uid, now) >= self._late:
            yield f"{who}, which must not be disrupted"
        if pod["status"].get("phase") == "Running":
            yield from (f"{who} against PodDisruptionBudget {name}" for name in self._against(pod))
        node = node_named(self.scene, pod["spec"].get("nodeName", ""))
        if node is not None and not _on_its_way_out(self.scene, node):
            yield f"{who} from {node.metadata.name}, which is to stay"

    def _against(self, pod: Mapping[str, Any]) -> Iterator[str]:
        """Names of budgets that want more healthy pods than are left without it."""
        for budget in self.scene.server.list(PDB).items:
            wanted = budget.spec.min_available
            if isinstance(wanted, int) and _selects(budget, pod["metadata"].get("labels", {})):
                others = sum(
                    _is_healthy(p) for p in _of(self.scene, budget) if p.metadata.uid != pod["metadata"]["uid"]
                )
                if others < wanted:
                    yield budget.metadata.name

    def _deleted(self, write: Write) -> Iterator[str]:
        """By force: when what is left to the node's end is less than the pod wants, for whatever the clocks are off."""
        pod = write.result
        node = node_named(self.scene, pod["spec"].get("nodeName", ""))
        claim = claim_of(self.scene, node) if node is not None else None
        end = end_of(claim) if claim is not None else None
        grace = timedelta(seconds=pod["spec"].get("terminationGracePeriodSeconds", 30))
        now = self.scene.clock.now()
        if end is None:
            yield f"{write.user} deleted {write.name}, whose node has no end"
        elif now + self._skew + timedelta(seconds=1) < end - grace:
            yield f"{write.user} deleted {write.name} although its node ends at {end:%H:%M:%S} only"


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


def _on_its_way_out(scene: Scene, node: Node) -> bool:
    """Whether it or its claim was deleted, and nothing new comes to it."""
    if node.metadata.deletion_timestamp is not None:
        return has_taint(node)
    claim = claim_of(scene, node)
    return claim is not None and is_leaving(claim) and has_taint(node)


def _is_protected(pod: Mapping[str, Any], now: datetime) -> bool:
    """For good, or for so long from its start."""
    protection = (pod["metadata"].get("annotations") or {}).get(DO_NOT_DISRUPT, "")
    if protection in {"", "true"}:
        return bool(protection)
    started = pod["status"].get("startTime")
    return not started or now < parsed_time(started) + timedelta(seconds=seconds(protection) or 0)


def _selects(budget: PodDisruptionBudget, labels: Mapping[str, str]) -> bool:
    selector = budget.spec.selector
    return selector is not None and selector.match_labels.items() <= labels.items()


def _of(scene: Scene, budget: PodDisruptionBudget) -> Iterator[Pod]:
    return (pod for pod in pods(scene) if _selects(budget, pod.metadata.labels))


def _is_healthy(pod: Pod) -> bool:
    ready = pod.status.phase == "Running" and holds(pod.status.conditions, "Ready")
    return ready and pod.metadata.deletion_timestamp is None
