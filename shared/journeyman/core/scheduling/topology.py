"""Topology spread constraints: read from a pod, made comparable, and counted over the pods that already run.

Restates: karpenter pkg/controllers/provisioning/scheduling/topology.go `newForTopologies`, topologygroup.go `Hash`.
Differs: ScheduleAnyway is a preference of kube-scheduler's and does not shape the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from journeyman.core.api import labels
from journeyman.core.api.objects import LabelSelector, LabelSelectorRequirement, Pod, TopologySpreadConstraint
from journeyman.core.scheduling.pods import is_terminating, selects
from journeyman.core.state.snapshot import StateNode

Pins = tuple[tuple[str, str], ...]
"""Domains chosen for pods, as (label key, value) sorted by key: their node must carry these labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Pods that a rule counts, by the values of node label `key` (their domains).

    They are those that `selector` selects in `namespaces` (None: in all of them).
    `id` is equal for groups that count the same pods over the same label.
    """

    key: str
    namespaces: frozenset[str] | None
    selector: LabelSelector | None
    id: bytes

    def counts(self, namespace: str, values: Mapping[str, str]) -> bool:
        """Whether a pod of this namespace with these labels is one of those counted."""
        return (self.namespaces is None or namespace in self.namespaces) and selects(self.selector, values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """One topology spread constraint. The pods counted in a domain, less those in the emptiest, are at most `max_skew`.

    `own_nodes_only`: only nodes that suit the pod's own node affinity count; `untainted_only`: only nodes whose taints
    it tolerates.
    """

    group: Group
    max_skew: int
    min_domains: int
    own_nodes_only: bool
    untainted_only: bool

    @property
    def key(self) -> str:
        """The label whose values are the domains."""
        return self.group.key

    def counts(self, namespace: str, values: Mapping[str, str]) -> bool:
        """Whether a pod of this namespace with these labels is one of those counted."""
        return self.group.counts(namespace, values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repelled:
    """Required anti-affinity of pods that run: pods that `group` counts keep away from these of its domains."""

    group: Group
    domains: frozenset[str]


def spreads_of(pod: Pod) -> tuple[Spread, ...]:
    """The pod's DoNotSchedule constraints, in the order written."""
    return tuple(
        _spread(constraint, pod)
        for constraint in pod.spec.topology_spread_constraints
        if constraint.when_unsatisfiable == "DoNotSchedule"
    )


def _spread(constraint: TopologySpreadConstraint, pod: Pod) -> Spread:
    key = labels.ALIASES.get(constraint.topology_key, constraint.topology_key)
    selector = _with_label_keys(constraint, pod)
    return Spread(
        group=Group(
            key=key,
            namespaces=frozenset({pod.metadata.namespace}),
            selector=selector,
            id=msgspec.msgpack.encode((key, pod.metadata.namespace, _canonical(selector))),
        ),
        max_skew=constraint.max_skew,
        min_domains=constraint.min_domains or 1,
        own_nodes_only=(constraint.node_affinity_policy or "Honor") == "Honor",
        untainted_only=(constraint.node_taints_policy or "Ignore") == "Honor",
    )


def _with_label_keys(constraint: TopologySpreadConstraint, pod: Pod) -> LabelSelector | None:
    """The selector, narrowed to pods that share this pod's values of `matchLabelKeys`."""
    selector, own = constraint.label_selector, pod.metadata.labels
    if selector is None:
        return None
    narrowed = tuple(
        LabelSelectorRequirement(key=key, operator="In", values=(own[key],))
        for key in constraint.match_label_keys
        if key in own
    )
    return LabelSelector(match_labels=selector.match_labels, match_expressions=(*selector.match_expressions, *narrowed))


def _canonical(selector: LabelSelector | None) -> object:
    if selector is None:
        return None
    expressions = sorted((e.key, e.operator, sorted(e.values)) for e in selector.match_expressions)
    return sorted(selector.match_labels.items()), expressions


def count_by_node(spread: Spread, nodes: Iterable[StateNode], leaving: Collection[str]) -> dict[str, int]:
    """How many pods the spread counts on each node, by the node's name; nodes without any are left out.

    Args:
        spread: Whose selector counts.
        nodes: Nodes with the pods bound to them.
        leaving: Keys of pods that are being placed anew in this pass, and so do not count where they are.
    """
    counts: dict[str, int] = {}
    for node in nodes:
        found = sum(
            1
            for pod in node.pods
            if spread.counts(pod.metadata.namespace, pod.metadata.labels)
            and not is_terminating(pod)
            and pod.key not in leaving
        )
        if found:
            counts[node.name] = found
    return counts


def count_by_zone(
    by_node: Mapping[str, int], nodes: Iterable[StateNode], counts_node: Callable[[StateNode], bool]
) -> dict[str, int]:
    """The same by zone, over the nodes that have one and that count; every such zone is a key, if only with 0."""
    counts: dict[str, int] = {}
    for node in nodes:
        zone = node.labels.get(labels.ZONE)
        if zone is not None and counts_node(node):
            counts[zone] = counts.get(zone, 0) + by_node.get(node.name, 0)
    return counts
