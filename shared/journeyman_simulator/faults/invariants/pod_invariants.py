"""Pods go as their people agreed: by eviction, within budgets, never while protected, and by force at the end alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from journeyman.core.api.objects import PDB, Node, Pod, PodDisruptionBudget
from journeyman_simulator.apiserver.server import Write
from journeyman_simulator.faults.invariants.checkers import Rule
from journeyman_simulator.faults.invariants.cluster_queries import (
    DO_NOT_DISRUPT,
    claim_of,
    claims,
    cpus,
    end_of,
    has_ended,
    has_taint,
    holds,
    is_leaving,
    is_ours,
    lateness,
    memory_mib,
    node_named,
    parsed_time,
    pods,
    pool_of,
    pools,
    seconds,
    skew,
)
from journeyman_simulator.faults.scenario_view import Scene

FULL_CPU: Final = 0.85  # of a type, the rest is Kubernetes' own: what fits this fits for sure
FULL_MEMORY: Final = 0.55
_TYPE: Final = "node.kubernetes.io/instance-type"


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


class AllThatFitsRuns(Rule):
    """Every pod that an instance type of a pool within its limits has room for runs."""

    name = "every pod that fits somewhere runs"

    def at_rest(self) -> Iterator[str]:
        """Looks at pods that do not run."""
        for pod in pods(self.scene):
            if pod.status.phase == "Running" or has_ended(pod):
                continue
            for pool in pools(self.scene):
                if found := fitting(self.scene, pool, pod):
                    yield f"{pod.metadata.name} does not run, and a {found} of {pool['metadata']['name']} would do"
                    break


def fitting(scene: Scene, pool: Mapping[str, Any], pod: Pod) -> str:
    """A type of the pool that the pod fits for sure, with room for it within the limit; empty if there is none."""
    name = pool["metadata"]["name"]
    if pool["metadata"].get("deletionTimestamp") or pool["spec"].get("replicas") is not None:
        return ""
    if pod.spec.node_selector.get("karpenter.sh/nodepool", name) != name:
        return ""
    room = _room(scene, pool)
    sold = _sold(scene, pool)
    return next((t for t in sold if cpus(t) <= room and _has_room(t, pod)), "")


def _sold(scene: Scene, pool: Mapping[str, Any]) -> tuple[str, ...]:
    """Types that the pool may use and the account sells, the smallest first."""
    requirements = pool["spec"]["template"]["spec"].get("requirements") or ()
    wanted = [r["values"] for r in requirements if r["key"] == _TYPE]
    sold = scene.story.setting.types
    return tuple(sorted((t for t in sold if not wanted or t in wanted[0]), key=lambda t: (cpus(t), t)))


def _room(scene: Scene, pool: Mapping[str, Any]) -> float:
    """How many vCPUs the pool may still open."""
    limit = (pool["spec"].get("limits") or {}).get("cpu")
    if not limit:
        return float("inf")
    own = {c.metadata.name for c in claims(scene) if pool_of(c) == pool["metadata"]["name"]}
    return int(limit) - sum(cpus(i.instance_type) for i in scene.instances() if i.runs and i.claim in own)


def _has_room(instance_type: str, pod: Pod) -> bool:
    wanted = [container.resources.requests for container in pod.spec.containers]
    millicores = sum(int(str(r.get("cpu", "0m")).removesuffix("m")) for r in wanted)
    mib = sum(int(str(r.get("memory", "0Mi")).removesuffix("Mi")) for r in wanted)
    return millicores <= cpus(instance_type) * 1000 * FULL_CPU and mib <= memory_mib(instance_type) * FULL_MEMORY
