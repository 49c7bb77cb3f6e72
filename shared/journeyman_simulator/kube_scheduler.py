"""Simulates kube-scheduler as far as node autoscaling needs it: filters, scores and binds, or marks a pod Unschedulable.

Filters: unschedulable nodes, taints, node selector and required affinity, resources, DoNotSchedule topology spread,
required pod (anti-)affinity. Scores of the default profile: free resources and their balance, default spread of a controller's
pods over nodes and zones, PreferNoSchedule taints; equal scores go by name. The scheduler tries a
pod's nominated node first, counts pods of the same or a higher priority that are nominated to a node as if they ran there,
and clears the nomination of an unschedulable pod. It does not simulate preemption, volumes and host ports: such pods stay
pending, with that reason. It shares no code with the solver, so that it can check the solver's plans.
Restates: kubernetes `pkg/scheduler/framework/plugins/{nodeaffinity,tainttoleration,noderesources,podtopologyspread,interpodaffinity}`,
`pkg/scheduler/apis/config/v1/default_plugins.go` (weights),
`pkg/scheduler/schedule_one.go` `evaluateNominatedNode`, `framework/runtime` `RunFilterPluginsWithNominatedPods`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property

from msgspec import Struct, field

from journeyman.core.api import labels
from journeyman.core.api.objects import (
    NODE,
    POD,
    LabelSelector,
    Node,
    NodeSelectorRequirement,
    Pod,
    PodAffinityTerm,
    Taint,
    TopologySpreadConstraint,
    condition_of,
)
from journeyman.core.api.resources import to_resources
from journeyman.ports import Clock
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.pod_resources import scheduled_requests

_TERMINAL = frozenset({"Succeeded", "Failed"})


class NodeInfo(Struct):
    """A node and its pods; those in `with_anti_affinity` have required anti-affinity, and may reject others.

    `by_controller` has how many pods of each controller run there, by its UID.
    """

    node: Node
    free: dict[str, int]
    total: dict[str, int]
    pods: list[Pod] = field(default_factory=list)
    with_anti_affinity: list[Pod] = field(default_factory=list)
    by_controller: Counter[str] = field(default_factory=Counter)

    def place(self, pod: Pod, requests: Mapping[str, int]) -> None:
        """Add the pod to the node, and subtract its requests from the free resources."""
        self.pods.append(pod)
        if _anti_affinity(pod):
            self.with_anti_affinity.append(pod)
        if pod.metadata.deletion_timestamp is None:
            self.by_controller[_controller(pod)] += 1
        for name, amount in requests.items():
            self.free[name] = self.free.get(name, 0) - amount

    def copy(self) -> NodeInfo:
        """Return a copy that `place` can change."""
        return NodeInfo(
            node=self.node,
            free=dict(self.free),
            total=self.total,
            pods=list(self.pods),
            with_anti_affinity=list(self.with_anti_affinity),
            by_controller=self.by_controller.copy(),
        )

    @property
    def zone(self) -> str:
        """The node's zone."""
        return self.node.metadata.labels.get(labels.ZONE, "")


class KubeScheduler:
    """Binds pending pods after each change of the cluster."""

    def __init__(self, server: ApiServer, clock: Clock) -> None:
        self._server = server
        self._clock = clock
        self._seen = -1

    def due(self) -> datetime | None:
        """Return None: the scheduler acts only after the cluster changed."""
        return None

    def act(self) -> bool:
        """Schedule all pending pods once, by priority and age, and return whether it wrote anything."""
        version = self._server.version_of(POD, NODE)
        if version == self._seen:
            return False
        self._seen = version
        pods = [p for p in self._server.list(POD).items if p.status.phase not in _TERMINAL]
        pending = [p for p in pods if not p.spec.node_name and _is_ours(p)]
        if not pending:
            return False
        infos = node_infos(self._server.list(NODE).items, pods)
        nominated = {pod.key: pod for pod in pods if pod.status.nominated_node_name and not pod.spec.node_name}
        for pod in sorted(pending, key=_queue_order):
            nominated.pop(pod.key, None)  # afterwards the pod is bound, or its nomination is cleared
            self._schedule(pod, infos, tuple(nominated.values()))
        return self._server.version_of(POD, NODE) != version

    def _schedule(self, pod: Pod, infos: Mapping[str, NodeInfo], nominated: Sequence[Pod]) -> None:
        requests = scheduled_requests(pod)
        rejections: Counter[str] = Counter()
        fitting: list[NodeInfo] = []
        filters = Filters(pod, infos)
        for info in _nominated_node_first(pod, infos):
            rejection = _rejection(filters, info, nominated)
            if rejection:
                rejections[rejection] += 1
                continue
            fitting.append(info)
            if info.node.metadata.name == pod.status.nominated_node_name:
                break  # without trying the other nodes
        if not fitting:
            self._report_unschedulable(pod, len(infos), rejections)
            return
        spread = _spread_scores(pod, fitting, infos)
        scores = [
            _resource_score(i, requests)
            + 2 * spread[i.zone, i.by_controller[_controller(pod)]]
            - 300 * _avoids(pod, i.node)
            for i in fitting
        ]
        best = fitting[scores.index(max(scores))]
        self._server.bind(pod.metadata.namespace, pod.metadata.name, best.node.metadata.name)
        best.place(pod, requests)

    def _report_unschedulable(self, pod: Pod, total: int, rejections: Counter[str]) -> None:
        details = ", ".join(f"{count} {why}" for why, count in sorted(rejections.items()))
        message = f"0/{total} nodes are available: {details}." if details else "no nodes available to schedule pods"
        known = condition_of(pod.status.conditions, "PodScheduled")
        is_reported = known is not None and known.status == "False" and known.message == message
        if is_reported and not pod.status.nominated_node_name:
            return
        now = self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
            "lastTransitionTime": now,
        }
        self._server.patch(
            POD,
            pod.metadata.name,
            {"status": {"conditions": [condition], "nominatedNodeName": None}},
            namespace=pod.metadata.namespace,
            subresource="status",
        )


def _nominated_node_first(pod: Pod, infos: Mapping[str, NodeInfo]) -> Iterator[NodeInfo]:
    """Yield all nodes, the nominated one first."""
    nominated = infos.get(pod.status.nominated_node_name)
    if nominated is not None:
        yield nominated
    yield from (info for info in infos.values() if info is not nominated)


def _rejection(filters: Filters, info: NodeInfo, nominated: Sequence[Pod]) -> str:
    """Return the text of the first filter that rejects the pod, without or with the pods nominated to the node."""
    name, priority = info.node.metadata.name, filters.pod.spec.priority or 0
    nominated_here = [
        p for p in nominated if p.status.nominated_node_name == name and (p.spec.priority or 0) >= priority
    ]
    rejection = filters.rejection(info)
    if rejection or not nominated_here:
        return rejection
    expected = info.copy()
    for other in nominated_here:
        expected.place(other, scheduled_requests(other))
    return Filters(filters.pod, {**filters.infos, name: expected}).rejection(expected)


class Filters:
    """The filters for one pod; what they need of the whole cluster is computed once, for all nodes."""

    def __init__(self, pod: Pod, infos: Mapping[str, NodeInfo]) -> None:
        """Prepare the filters; `infos` are all nodes by name, and must not change."""
        self.pod = pod
        self.infos = infos
        self._requests = sorted(scheduled_requests(pod).items())

    def rejection(self, info: NodeInfo) -> str:
        """Return kube-scheduler's text for the first filter that rejects this pod on this node; empty if the pod fits."""
        node, pod = info.node, self.pod
        if node.spec.unschedulable:
            return "node(s) were unschedulable"
        taint = _untolerated(pod, node.spec.taints)
        if taint is not None:
            return f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"
        if not _node_affinity_matches(pod, node):
            return "node(s) didn't match Pod's node affinity/selector"
        for name, amount in self._requests:
            if amount > info.free.get(name, 0):
                return "Too many pods" if name == "pods" else f"Insufficient {name}"
        if not all(spread.allows(info) for spread in self._spreads):
            return "node(s) didn't match pod topology spread constraints"
        if not self._affinity_allows(info):
            return "node(s) didn't match pod affinity/anti-affinity rules"
        if any(v.persistent_volume_claim or v.ephemeral for v in pod.spec.volumes):
            return "node(s) could not be checked for volumes, which this simulation does not support"
        return ""

    @cached_property
    def _spreads(self) -> tuple[_Spread, ...]:
        constraints = self.pod.spec.topology_spread_constraints
        return tuple(
            _Spread.of(self.pod, c, self.infos) for c in constraints if c.when_unsatisfiable == "DoNotSchedule"
        )

    def _affinity_allows(self, info: NodeInfo) -> bool:
        return all(required.allows(info) for required in self._required_affinities) and not any(
            _domain(info, key) == domain for key, domain in self._rejecting_domains
        )

    @cached_property
    def _required_affinities(self) -> tuple[_RequiredAffinity, ...]:
        affinity = self.pod.spec.affinity.pod_affinity if self.pod.spec.affinity else None
        return tuple(_RequiredAffinity.of(self.pod, term, self.infos) for term in affinity.required) if affinity else ()

    @cached_property
    def _rejecting_domains(self) -> frozenset[tuple[str, str]]:
        """Topology keys and domains that the pod's anti-affinity rejects, or the anti-affinity of the pods there."""
        rejecting = {
            (term.topology_key, _domain(info, term.topology_key))
            for info in self.infos.values()
            for other in info.with_anti_affinity
            for term in _anti_affinity(other)
            if _term_selects(other, term, self.pod)
        }
        for term in _anti_affinity(self.pod):
            rejecting |= {
                (term.topology_key, _domain(info, term.topology_key)) for info in _selected(self.pod, term, self.infos)
            }
        return frozenset((key, domain) for key, domain in rejecting if domain is not None)


def _is_ours(pod: Pod) -> bool:
    return (
        pod.spec.scheduler_name == "default-scheduler"
        and not pod.spec.scheduling_gates
        and pod.metadata.deletion_timestamp is None
    )


def _queue_order(pod: Pod) -> tuple[int, float, str]:
    created = pod.metadata.creation_timestamp
    return (-(pod.spec.priority or 0), created.timestamp() if created else 0.0, pod.key)


def node_infos(nodes: Iterable[Node], pods: Iterable[Pod]) -> dict[str, NodeInfo]:
    """Return each node with its pods and free resources, by name and in the order of names."""
    infos = {}
    for node in sorted(nodes, key=lambda n: n.metadata.name):
        total = to_resources(node.status.allocatable, round_up=False)
        infos[node.metadata.name] = NodeInfo(node=node, free=dict(total), total=total)
    for pod in pods:
        info = infos.get(pod.spec.node_name)
        if info is not None:
            info.place(pod, scheduled_requests(pod))
    return infos


def _untolerated(pod: Pod, taints: Iterable[Taint]) -> Taint | None:
    return next((t for t in taints if t.effect != "PreferNoSchedule" and not _tolerates(pod, t)), None)


def _avoids(pod: Pod, node: Node) -> bool:
    """Whether the node has a PreferNoSchedule taint that the pod does not tolerate."""
    return any(t.effect == "PreferNoSchedule" and not _tolerates(pod, t) for t in node.spec.taints)


def _controller(pod: Pod) -> str:
    """Return the UID of the pod's controller; empty without one."""
    return next((owner.uid for owner in pod.metadata.owner_references if owner.controller), "")


def _resource_score(info: NodeInfo, requests: Mapping[str, int]) -> int:
    """Return NodeResourcesFit LeastAllocated, 0 to 100, plus BalancedAllocation, 50 to 100."""
    names = [name for name in ("cpu", "memory") if info.total.get(name)]
    before = [info.free.get(name, 0) for name in names]
    after = [free - requests.get(name, 0) for name, free in zip(names, before, strict=True)]
    totals = [info.total[name] for name in names]
    least = sum(100 * free // total for free, total in zip(after, totals, strict=True)) // max(len(names), 1)
    improvement = _balance(after, totals) - _balance(before, totals)
    return least + 50 + (50 + improvement) // 2


def _balance(free: Sequence[int], totals: Sequence[int]) -> int:
    if len(totals) < 2:
        return 100
    shares = [amount / total for amount, total in zip(free, totals, strict=True)]
    return int(100 * (1 - abs(shares[0] - shares[1]) / 2))


def _spread_scores(
    pod: Pod, fitting: Sequence[NodeInfo], infos: Mapping[str, NodeInfo]
) -> Mapping[tuple[str, int], int]:
    """Return PodTopologySpread, 0 to 100, by a fitting node's zone and the number of its pods of this pod's controller."""
    controller = _controller(pod)
    if not controller:
        return Counter()
    by_zone = dict.fromkeys((info.zone for info in fitting), 0)
    for info in infos.values():
        if info.zone in by_zone:
            by_zone[info.zone] += info.by_controller[controller]
    of_node, of_zone = math.log(len(fitting) + 2), math.log(len(by_zone) + 2)
    kinds = {(info.zone, info.by_controller[controller]) for info in fitting}
    crowded = {(zone, n): int(n * of_node + 2 + by_zone[zone] * of_zone + 4 + 0.5) for zone, n in kinds}
    least, most = min(crowded.values()), max(crowded.values())
    return {kind: 100 * (most + least - amount) // most for kind, amount in crowded.items()}


def _tolerates(pod: Pod, taint: Taint) -> bool:
    return any(
        (not t.effect or t.effect == taint.effect)
        and (not t.key or t.key == taint.key)
        and (t.operator == "Exists" or (t.operator in {"", "Equal"} and bool(t.key) and t.value == taint.value))
        for t in pod.spec.tolerations
    )


def _node_affinity_matches(pod: Pod, node: Node) -> bool:
    node_labels = node.metadata.labels
    if any(node_labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return False
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    if affinity is None or affinity.required is None:
        return True
    return any(
        all(_requirement_matches(r, node_labels) for r in term.match_expressions)
        and all(_requirement_matches(r, {"metadata.name": node.metadata.name}) for r in term.match_fields)
        for term in affinity.required.node_selector_terms
        if term.match_expressions or term.match_fields
    )


def _requirement_matches(requirement: NodeSelectorRequirement, values: Mapping[str, str]) -> bool:
    value = values.get(requirement.key)
    if requirement.operator in {"Gt", "Lt"}:
        if value is None or not value.lstrip("-").isdigit():
            return False
        bound = int(requirement.values[0])
        return int(value) > bound if requirement.operator == "Gt" else int(value) < bound
    return _in_set(requirement.operator, value, requirement.values)


def _in_set(operator: str, value: str | None, wanted: tuple[str, ...]) -> bool:
    if operator == "In":
        return value is not None and value in wanted
    if operator == "NotIn":
        return value is None or value not in wanted
    return (value is not None) if operator == "Exists" else (operator == "DoesNotExist" and value is None)


def _selects(selector: LabelSelector | None, pod: Pod) -> bool:
    if selector is None:
        return False
    found = pod.metadata.labels
    return all(found.get(k) == v for k, v in selector.match_labels.items()) and all(
        _in_set(e.operator, found.get(e.key), e.values) for e in selector.match_expressions
    )


def _domain(info: NodeInfo, key: str) -> str | None:
    name = info.node.metadata.name if key == labels.HOSTNAME else None
    return info.node.metadata.labels.get(key, name)


class _Spread(Struct, frozen=True):
    """A DoNotSchedule constraint of a pod: the pods that count by domain, and the most that its domain may have already."""

    key: str
    counts: dict[str, int]
    most: int

    @classmethod
    def of(cls, pod: Pod, constraint: TopologySpreadConstraint, infos: Mapping[str, NodeInfo]) -> _Spread:
        counts: dict[str, int] = {}
        for other in infos.values():
            domain = _domain(other, constraint.topology_key)
            eligible = constraint.node_affinity_policy == "Ignore" or _node_affinity_matches(pod, other.node)
            tolerated = constraint.node_taints_policy != "Honor" or _untolerated(pod, other.node.spec.taints) is None
            if domain is None or not eligible or not tolerated:
                continue
            counts[domain] = counts.get(domain, 0) + sum(
                1
                for p in other.pods
                if p.metadata.deletion_timestamp is None
                and p.metadata.namespace == pod.metadata.namespace
                and _selects(constraint.label_selector, p)
            )
        least = 0 if len(counts) < (constraint.min_domains or 1) else min(counts.values(), default=0)
        itself = int(_selects(constraint.label_selector, pod))
        return cls(key=constraint.topology_key, counts=counts, most=constraint.max_skew + least - itself)

    def allows(self, info: NodeInfo) -> bool:
        """Whether the pod may run in this node's domain."""
        domain = _domain(info, self.key)
        return domain is not None and self.counts.get(domain, 0) <= self.most


class _RequiredAffinity(Struct, frozen=True):
    """A required affinity term of a pod: the domains of the pods that it selects, and whether the pod may be the first of them."""

    key: str
    domains: frozenset[str | None]
    may_be_first: bool

    @classmethod
    def of(cls, pod: Pod, term: PodAffinityTerm, infos: Mapping[str, NodeInfo]) -> _RequiredAffinity:
        selected = _selected(pod, term, infos)
        domains = frozenset(_domain(info, term.topology_key) for info in selected)
        may_be_first = not selected and _term_selects(pod, term, pod)
        return cls(key=term.topology_key, domains=domains, may_be_first=may_be_first)

    def allows(self, info: NodeInfo) -> bool:
        """Whether the pod may run in this node's domain."""
        domain = _domain(info, self.key)
        return domain is not None and (self.may_be_first or domain in self.domains)


def _selected(pod: Pod, term: PodAffinityTerm, infos: Mapping[str, NodeInfo]) -> list[NodeInfo]:
    """Return the nodes of pods that this term of the pod selects."""
    return [info for info in infos.values() if any(_term_selects(pod, term, other) for other in info.pods)]


def _term_selects(owner: Pod, term: PodAffinityTerm, other: Pod) -> bool:
    everywhere = term.namespace_selector is not None and term.namespace_selector == LabelSelector()
    namespaces = term.namespaces or (owner.metadata.namespace,)
    return (everywhere or other.metadata.namespace in namespaces) and _selects(term.label_selector, other)


def _anti_affinity(pod: Pod) -> tuple[PodAffinityTerm, ...]:
    """Return the required terms of a pod's anti-affinity."""
    anti = pod.spec.affinity.pod_anti_affinity if pod.spec.affinity else None
    return anti.required if anti is not None else ()
