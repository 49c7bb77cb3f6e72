"""Invariants of pods: they are evicted only as allowed, and run if an instance type fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from journeyman.core.api.labels import PLANNED_PODS
from journeyman.core.api.objects import PDB, Node, NodeClaim, Pod, PodDisruptionBudget
from journeyman_simulator.apiserver.server import Write
from journeyman_simulator.faults.fault_scenario import CAPACITY_TYPES, OutOfStock, ShortenExpiry
from journeyman_simulator.faults.invariants.checkers import InvariantChecker
from journeyman_simulator.faults.invariants.cluster_queries import (
    DO_NOT_DISRUPT,
    DisruptedTaints,
    claim_of,
    claims,
    claims_of,
    edits_tags,
    end_of,
    has_ended,
    has_operation,
    has_true_condition,
    is_ours,
    is_terminating,
    memory_mib,
    node_named,
    parsed_time,
    pauses_at,
    pods,
    pool_of,
    pools,
    seconds,
    skew,
    staleness,
    vcpus,
)
from journeyman_simulator.faults.manifests import START
from journeyman_simulator.faults.scenario_view import ScenarioView

FULL_CPU: Final = 0.85  # of a type's; the kubelet reserves the rest
FULL_MEMORY: Final = 0.55
_TYPE: Final = "node.kubernetes.io/instance-type"


class PodsEvictedAsAllowed(InvariantChecker):
    """Runs evict unprotected pods of disrupted nodes within budgets, and delete pods only at the node's deadline.

    A run that is paused before a deletion, after it checked the deadline, may use one that its NodeClaim took along meanwhile. A
    run that is paused before an eviction may not know yet that a user removed the taint of a node that is going. Only the tags of
    its instance say whose a node is that never registered: once users edit tags, they decide about its deadline.
    """

    name = "pods are evicted only as allowed"

    def __init__(self, view: ScenarioView) -> None:
        super().__init__(view)
        self._staleness = staleness(view.scenario)
        self._skew = skew(view.scenario)
        self._has_tags = not edits_tags(view.scenario)
        self._paused_deletions = pauses_at(view.scenario, "terminate: delete Pod")
        self._protected: dict[str, datetime] = {}  # by UID: since when
        self._deadlines: dict[str, datetime] = {}  # by provider id
        self._lost_deadlines: dict[
            str, tuple[datetime, datetime]
        ] = {}  # the same, with the time when its NodeClaim went
        self._taints = DisruptedTaints(view)

    def check_write(self, write: Write) -> Iterator[str]:
        """Check evictions and deletions of pods."""
        if write.resource.kind == "NodeClaim" and self._paused_deletions:
            self._record_deadlines()
        self._taints.record(write)
        if write.resource.kind != "Pod":
            return
        if write.verb == "evict" and is_ours(write):
            yield from self._check_eviction(write)
        elif write.verb == "delete" and is_ours(write):
            yield from self._check_deletion(write)
        else:
            self._record_protection(write)

    def _record_protection(self, write: Write) -> None:
        uid = write.result["metadata"]["uid"]
        if write.result["metadata"].get("annotations", {}).get(DO_NOT_DISRUPT):
            self._protected.setdefault(uid, self.view.clock.now())
        else:
            self._protected.pop(uid, None)

    def _record_deadlines(self) -> None:
        found = ((claim.status.provider_id, end_of(claim)) for claim in claims(self.view))
        deadlines = {provider_id: end for provider_id, end in found if end is not None}
        for provider_id in self._deadlines.keys() - deadlines.keys():
            self._lost_deadlines[provider_id] = (self._deadlines[provider_id], self.view.clock.now())
        self._deadlines = deadlines

    def _check_eviction(self, write: Write) -> Iterator[str]:
        pod, who = write.result, f"{write.user} evicted {write.name}"
        uid = pod["metadata"]["uid"]
        now = self.view.clock.now()
        if _is_protected(pod, now + self._skew) and now - self._protected.get(uid, now) >= self._staleness:
            yield f"{who}, which must not be disrupted"
        if pod["status"].get("phase") == "Running":
            yield from (f"{who} against PodDisruptionBudget {name}" for name in self._violated_budgets(pod))
        node = node_named(self.view, pod["spec"].get("nodeName", ""))
        if node is None:
            return
        if not (_is_going(self.view, node) and self._taints.may_seem_tainted(node)):
            yield f"{who} from {node.metadata.name}, which is not disrupted"

    def _violated_budgets(self, pod: Mapping[str, Any]) -> Iterator[str]:
        """Yield the names of the PodDisruptionBudgets that require more healthy pods than would remain."""
        for budget in self.view.server.list(PDB).items:
            wanted = budget.spec.min_available
            if isinstance(wanted, int) and _selects(budget, pod["metadata"].get("labels", {})):
                others = sum(
                    _is_healthy(p) for p in _covered_pods(self.view, budget) if p.metadata.uid != pod["metadata"]["uid"]
                )
                if others < wanted:
                    yield budget.metadata.name

    def _check_deletion(self, write: Write) -> Iterator[str]:
        """Check that the time until the node's deadline is less than the pod's grace period plus the clock skew."""
        pod = write.result
        node = node_named(self.view, pod["spec"].get("nodeName", ""))
        related = claims_of(self.view, node) if node is not None else []
        end = self._deadline(related) if related else self._deadline_lost_in_pause(node)
        grace = timedelta(seconds=pod["spec"].get("terminationGracePeriodSeconds", 30))
        now = self.view.clock.now()
        if end is None and node is not None and not (self._has_tags or node.metadata.owner_references):
            return
        if end is None:
            yield f"{write.user} deleted {write.name}, whose node has no deadline"
        elif now + self._skew + timedelta(seconds=1) < end - grace:
            yield f"{write.user} deleted {write.name} before its grace period; its node terminates at {end:%H:%M:%S}"

    @staticmethod
    def _deadline(related: Sequence[NodeClaim]) -> datetime | None:
        """Return the deadline of a node's NodeClaim.

        If a user set the provider id of another NodeClaim to that of the node, the run that restores it drains the node, too.
        """
        provider_id = related[0].status.provider_id
        sharing = (claim for claim in related if claim is related[0] or claim.status.provider_id == provider_id)
        return next((end for claim in sharing if (end := end_of(claim)) is not None), None)

    def _deadline_lost_in_pause(self, node: Node | None) -> datetime | None:
        if node is None or node.spec.provider_id not in self._lost_deadlines:
            return None
        end, lost_at = self._lost_deadlines[node.spec.provider_id]
        return end if self.view.clock.now() - lost_at <= self._paused_deletions else None


def _is_going(view: ScenarioView, node: Node) -> bool:
    """Whether the node or its NodeClaim was deleted."""
    claim = claim_of(view, node)
    return node.metadata.deletion_timestamp is not None or (claim is not None and is_terminating(claim))


def _is_protected(pod: Mapping[str, Any], now: datetime) -> bool:
    """Whether the annotation do-not-disrupt protects the pod, always or for a duration from its start."""
    protection = (pod["metadata"].get("annotations") or {}).get(DO_NOT_DISRUPT, "")
    if protection in {"", "true"}:
        return bool(protection)
    started = pod["status"].get("startTime")
    return not started or now < parsed_time(started) + timedelta(seconds=seconds(protection) or 0)


def _selects(budget: PodDisruptionBudget, labels: Mapping[str, str]) -> bool:
    selector = budget.spec.selector
    return selector is not None and selector.match_labels.items() <= labels.items()


def _covered_pods(view: ScenarioView, budget: PodDisruptionBudget) -> Iterator[Pod]:
    return (pod for pod in pods(view) if _selects(budget, pod.metadata.labels))


def _is_healthy(pod: Pod) -> bool:
    ready = pod.status.phase == "Running" and has_true_condition(pod.status.conditions, "Ready")
    return ready and pod.metadata.deletion_timestamp is None


class SchedulablePodsRun(InvariantChecker):
    """Every pod runs that an instance type of a NodePool fits within the NodePool's limits."""

    name = "schedulable pods run"

    def check_at_rest(self) -> Iterator[str]:
        """Check pods that do not run."""
        for pod in pods(self.view):
            if pod.status.phase == "Running" or has_ended(pod):
                continue
            for pool in healthy_pools(self.view):
                if found := fitting_type(self.view, pool, pod):
                    yield f"{pod.metadata.name} does not run, but fits a {found} of {pool['metadata']['name']}"
                    break


def healthy_pools(view: ScenarioView) -> Iterator[Mapping[str, Any]]:
    """Yield the NodePools whose NodeClass is not broken."""
    broken = {pool.name for pool in view.scenario.setup.pools if pool.broken}
    yield from (pool for pool in pools(view) if pool["metadata"]["name"] not in broken)


def fitting_type(view: ScenarioView, pool: Mapping[str, Any], pod: Pod) -> str:
    """Return a type of the NodePool that certainly fits the pod within the limit; empty if there is none."""
    name = pool["metadata"]["name"]
    if pool["metadata"].get("deletionTimestamp") or pool["spec"].get("replicas") is not None:
        return ""
    if pod.spec.node_selector.get("karpenter.sh/nodepool", name) != name:
        return ""
    remaining = _remaining_vcpus(view, pool)
    offered = _offered_types(view, pool)
    return next((t for t in offered if vcpus(t) <= remaining and _fits(t, pod)), "")


def _offered_types(view: ScenarioView, pool: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the types that the NodePool allows and the account offers, smallest first."""
    requirements = pool["spec"]["template"]["spec"].get("requirements") or ()
    wanted = [r["values"] for r in requirements if r["key"] == _TYPE]
    offered = view.scenario.setup.types
    return tuple(sorted((t for t in offered if not wanted or t in wanted[0]), key=lambda t: (vcpus(t), t)))


def _remaining_vcpus(view: ScenarioView, pool: Mapping[str, Any]) -> float:
    """Return the number of vCPUs until the NodePool's limit."""
    limit = (pool["spec"].get("limits") or {}).get("cpu")
    if not limit:
        return float("inf")
    own = [c for c in claims(view) if pool_of(c) == pool["metadata"]["name"]]
    names, ids = {c.metadata.name for c in own}, {c.status.provider_id for c in own}  # users edit tags and provider ids
    used = (i for i in view.instances() if i.runs and (i.claim in names or i.provider_id in ids))
    return int(limit) - sum(vcpus(i.instance_type) for i in used)


def _fits(instance_type: str, pod: Pod) -> bool:
    wanted = [container.resources.requests for container in pod.spec.containers]
    millicores = sum(int(str(r.get("cpu", "0m")).removesuffix("m")) for r in wanted)
    mib = sum(int(str(r.get("memory", "0Mi")).removesuffix("Mi")) for r in wanted)
    return millicores <= vcpus(instance_type) * 1000 * FULL_CPU and mib <= memory_mib(instance_type) * FULL_MEMORY


class LaunchesPerPodBounded(InvariantChecker):
    """In an hour, few NodeClaims are created for a pod, whatever becomes of their launches.

    A failed launch doubles the time until the next one, from half a minute to a quarter of an hour; where stock is short, each
    offering is tried once, by a NodeClaim of its own if the cloud says so only after a node was created. Each node that expires
    is replaced, up to a minute and a half before; nodes that expire sooner than clocks jump ahead do so as soon as they are
    created, and are not counted.
    """

    name = "launches per pod are bounded"
    _PERIOD = timedelta(hours=1)
    _MOST = 12

    def __init__(self, view: ScenarioView) -> None:
        super().__init__(view)
        self._created: dict[str, list[datetime]] = {}  # NodeClaims, by the pod's name and UID
        lifetimes = [pool.expire_after_seconds for pool in view.scenario.setup.pools if pool.expire_after_seconds]
        lifetimes += [o.seconds for o in view.scenario.operations if isinstance(o, ShortenExpiry)]
        self._lifetime = timedelta(seconds=min(lifetimes)) - skew(view.scenario) if lifetimes else None
        setup, is_short = view.scenario.setup, has_operation(view.scenario, OutOfStock)
        self._offerings = len(setup.types) * setup.zones * len(CAPACITY_TYPES) if is_short else 0

    def check_write(self, write: Write) -> Iterator[str]:
        """Count each NodeClaim that a run creates, for each pod that it was planned for."""
        is_creation = write.resource.kind == "NodeClaim" and write.verb == "create" and is_ours(write)
        if not is_creation or (self._lifetime is not None and self._lifetime <= timedelta()):
            return
        now = self.view.clock.now()
        most = self._MOST + self._offerings + (0 if self._lifetime is None else 3 * (now - START) // self._lifetime)
        planned = (write.result["metadata"].get("annotations") or {}).get(PLANNED_PODS, "")
        for pod in filter(None, planned.split(",")):
            recent = [at for at in self._created.get(pod, ()) if now - at < self._PERIOD]
            self._created[pod] = [*recent, now]
            if len(recent) >= most:
                yield f"{write.name} is NodeClaim {len(recent) + 1} for pod {pod.partition(':')[0]} in an hour, {most} allowed"
