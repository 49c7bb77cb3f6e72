"""Topology spread and pod (anti-)affinity as groups of pods counted per domain, and the counts of running pods.

A constraint counts a *group* of pods by the values of a node label. Equal groups have equal ids however their pods
wrote them, so that thousands of pods share few groups.

Restates: karpenter pkg/controllers/provisioning/scheduling/topology.go `newForTopologies`, `newForAffinities`,
`buildNamespaceList`, `updateInverseAffinities`, `countDomains`, topologygroup.go `Hash`; kubernetes
pkg/registry/core/pod/strategy.go `applyMatchLabelKeysAndMismatchLabelKeys`.
Differs: key aliases are normalised here too; a term without a label selector counts no pods.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import (
    LabelSelector,
    LabelSelectorRequirement,
    Object,
    Pod,
    PodAffinityTerm,
    TopologySpreadConstraint,
)
from journeyman.core.api.wording import listed
from journeyman.core.state.pod_predicates import is_terminal, is_terminating, selects
from journeyman.core.state.state_node import StateNode

ABSENT: Final = "<absent>"
"""The value of a `DecidedLabel` of nodes without the label; no label has this value."""


class DecidedLabel(NamedTuple):
    """A domain chosen for pods: their node must carry this label, or must not have it (`ABSENT`)."""

    key: str
    value: str


DecidedLabels = tuple[DecidedLabel, ...]
"""Domains chosen for pods, sorted by label key."""


def present(decided: DecidedLabels) -> DecidedLabels:
    """Return the decided labels that nodes have."""
    return tuple(label for label in decided if label.value != ABSENT)


class NodeMatch(NamedTuple):
    """Whether a rule counts the node that pods get: certainly, or possibly."""

    is_certain: bool
    is_possible: bool


class TopologyGroup(Struct, frozen=True, kw_only=True):
    """Pods that a constraint counts, by the values of node label `key` (their domains).

    The pods are those that `selector` selects in `namespaces` (None: in all of them). `id` is equal for groups that
    count the same pods over the same label; a preferred group has an id of its own, because a class may have a required
    and a preferred rule about the same pods.
    """

    key: str
    namespaces: frozenset[str] | None
    selector: LabelSelector | None
    id: bytes

    def counts(self, namespace: str, values: Mapping[str, str]) -> bool:
        """Whether the group counts a pod of this namespace with these labels."""
        return (self.namespaces is None or namespace in self.namespaces) and selects(self.selector, values)

    @property
    def label_keys(self) -> frozenset[str]:
        """The keys of the pod labels that the selector uses."""
        return selector_keys(self.selector)

    @property
    def required_labels(self) -> Sequence[Sequence[tuple[str, str]]]:
        """The labels by which `LabelIndex` finds the pods: of each entry, a selected pod has one label."""
        if self.selector is None:
            return ((),)
        exact = [(label,) for label in self.selector.match_labels.items()]
        listed = (e for e in self.selector.match_expressions if e.operator == "In")
        return (*exact, *(tuple((e.key, value) for value in e.values) for e in listed))

    @property
    def in_words(self) -> str:
        """The counted pods, as text."""
        return f"pods {_in_words(self.selector)}{_namespaces_in_words(self.namespaces)}"

    @property
    def preferred(self) -> TopologyGroup:
        """The same group as a preference."""
        return replace(self, id=b"preferred" + self.id)


def spans_nodes(group: TopologyGroup) -> bool:
    """Return whether a domain of the group can have more than one node, that is, its key is not the hostname."""
    return group.key != labels.HOSTNAME


class TopologySpread(Struct, frozen=True, kw_only=True):
    """One topology spread constraint: the skew between a domain and the emptiest one is at most `max_skew`.

    `honors_node_affinity` (nodeAffinityPolicy): only nodes that meet the pod's own node affinity count;
    `honors_node_taints` (nodeTaintsPolicy): only nodes whose taints the pod tolerates.
    """

    group: TopologyGroup
    max_skew: int
    min_domains: int
    honors_node_affinity: bool
    honors_node_taints: bool

    @property
    def key(self) -> str:
        """The label whose values are the domains."""
        return self.group.key


class SpreadChoice(Enum):
    """Which of the admitted domains pods with a topology spread constraint get.

    EMPTIEST: the emptiest. CHEAPEST: the cheapest that admits the pods in whatever order pods are bound, which uses the
    whole maxSkew. CHEAPEST_IF_FIRST: the cheapest that admits them if bound before pods that the constraint only
    counts.
    """

    EMPTIEST = "emptiest"
    CHEAPEST = "cheapest"
    CHEAPEST_IF_FIRST = "cheapest if first"


class InverseAntiAffinity(Struct, frozen=True, kw_only=True):
    """Required anti-affinity of running pods: pods that `group` counts must stay out of these of its domains."""

    group: TopologyGroup
    domains: frozenset[str]


class HasLabels(Protocol):
    """The namespace and labels of a pod, or of pods that are equal in them."""

    @property
    def namespace(self) -> str:
        """The namespace."""

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels, at least those that any selector uses."""


def _in_words(selector: LabelSelector | None) -> str:
    if selector is None:
        return "that no selector selects"
    exact = [f"{key}={value}" for key, value in sorted(selector.match_labels.items())]
    others = [
        f"{e.key} {e.operator} {f'[{listed(e.values)}]' if e.values else ''}".rstrip()
        for e in selector.match_expressions
    ]
    return f"with {listed((*exact, *others), 'and')}" if exact or others else "of any labels"


def _namespaces_in_words(namespaces: frozenset[str] | None) -> str:
    if namespaces is None:
        return ""
    if not namespaces:
        return " in no namespace (its namespaceSelector selects none)"
    return f" in {'namespace' if len(namespaces) == 1 else 'namespaces'} {listed(sorted(namespaces))}"


def spread_of(constraint: TopologySpreadConstraint, namespace: str, pod_labels: Mapping[str, str]) -> TopologySpread:
    """Return a pod's spread constraint, given the pod's namespace and labels."""
    return TopologySpread(
        group=_group(
            constraint.topology_key,
            frozenset({namespace}),
            _with_label_keys(constraint.label_selector, pod_labels, constraint.match_label_keys, ()),
        ),
        max_skew=constraint.max_skew,
        min_domains=constraint.min_domains or 1,
        honors_node_affinity=(constraint.node_affinity_policy or "Honor") == "Honor",
        honors_node_taints=(constraint.node_taints_policy or "Ignore") == "Honor",
    )


def group_of(
    term: PodAffinityTerm, namespace: str, pod_labels: Mapping[str, str], namespaces: NamespaceIndex
) -> TopologyGroup:
    """Return the group of a pod's (anti-)affinity term.

    Args:
        term: The term.
        namespace: The pod's namespace.
        pod_labels: The pod's labels.
        namespaces: All namespaces, for the term's namespace selector.
    """
    return _group(
        term.topology_key,
        namespaces.of(term, namespace),
        _with_label_keys(term.label_selector, pod_labels, term.match_label_keys, term.mismatch_label_keys),
    )


def _group(key: str, namespaces: frozenset[str] | None, selector: LabelSelector | None) -> TopologyGroup:
    key = labels.ALIASES.get(key, key)
    return TopologyGroup(
        key=key,
        namespaces=namespaces,
        selector=selector,
        id=msgspec.msgpack.encode((key, _id_of(namespaces), _canonical(selector))),
    )


@lru_cache(maxsize=64)
def _id_of(namespaces: frozenset[str] | None) -> object:
    """Return what identifies these namespaces: a short list itself, and a digest of a long one."""
    if namespaces is None or len(namespaces) <= _LISTED_NAMESPACES:
        return sorted(namespaces) if namespaces is not None else None
    return hashlib.sha256(msgspec.msgpack.encode(sorted(namespaces))).digest()


_LISTED_NAMESPACES: Final = 8


class NamespaceIndex:
    """All namespaces by label, for the namespace selectors of pod (anti-)affinity terms.

    A selector is evaluated once, by set algebra over the label values, and terms that mean the same namespaces share
    one set: a tenant may write thousands of selectors that each select thousands of namespaces.
    """

    def __init__(self, namespaces: Mapping[str, Object]) -> None:
        """Index the namespaces, given by name."""
        self._names = frozenset(namespaces)
        self._by_label: dict[str, dict[str, set[str]]] = {}
        for name, namespace in namespaces.items():
            for key, value in namespace.metadata.labels.items():
                self._by_label.setdefault(key, {}).setdefault(value, set()).add(name)
        self._selected: dict[bytes, frozenset[str]] = {}
        self._shared: dict[frozenset[str], frozenset[str]] = {}

    def __len__(self) -> int:
        return len(self._names)

    def of(self, term: PodAffinityTerm, pod_namespace: str) -> frozenset[str] | None:
        """Return the listed and selected namespaces of a term, None for all; the pod's own if the term names none."""
        selector = term.namespace_selector
        if selector is None:
            return frozenset(term.namespaces) or frozenset({pod_namespace})
        if not selector.match_labels and not selector.match_expressions:
            return None
        key = msgspec.msgpack.encode((_canonical(selector), sorted(set(term.namespaces))))
        if key not in self._selected:
            found = self._meeting(selector).union(term.namespaces)
            self._selected[key] = self._shared.setdefault(found, found)
        return self._selected[key]

    def _meeting(self, selector: LabelSelector) -> frozenset[str]:
        """Return the namespaces that a selector selects, as `selects` does."""
        chosen = self._names
        for key, value in selector.match_labels.items():
            chosen &= self._having(key, (value,))
        for expression in selector.match_expressions:
            match expression.operator:
                case "In":
                    chosen &= self._having(expression.key, expression.values)
                case "NotIn" if expression.values:
                    chosen -= self._having(expression.key, expression.values)
                case "Exists":
                    chosen &= self._having(expression.key, self._by_label.get(expression.key, ()))
                case "DoesNotExist":
                    chosen -= self._having(expression.key, self._by_label.get(expression.key, ()))
                case _:
                    return frozenset()
        return chosen

    def _having(self, key: str, values: Iterable[str]) -> frozenset[str]:
        by_value = self._by_label.get(key, {})
        return frozenset().union(*(by_value.get(value, ()) for value in values))


def _with_label_keys(
    selector: LabelSelector | None, pod_labels: Mapping[str, str], same: Iterable[str], different: Iterable[str]
) -> LabelSelector | None:
    """Return the selector, narrowed to pods with the `same` or `different` values of these labels as this pod."""
    if selector is None:
        return None
    narrowed = [
        LabelSelectorRequirement(key=k, operator="In", values=(pod_labels[k],)) for k in same if k in pod_labels
    ]
    narrowed += [
        LabelSelectorRequirement(key=k, operator="NotIn", values=(pod_labels[k],)) for k in different if k in pod_labels
    ]
    if not narrowed:
        return selector
    return LabelSelector(match_labels=selector.match_labels, match_expressions=(*selector.match_expressions, *narrowed))


def _canonical(selector: LabelSelector | None) -> object:
    """Return a value that is equal for equivalent selectors."""
    if selector is None:
        return None
    expressions = {(key, "In", (value,)) for key, value in selector.match_labels.items()}
    return sorted(expressions | {(e.key, e.operator, tuple(sorted(set(e.values)))) for e in selector.match_expressions})


def selector_keys(selector: LabelSelector | None) -> frozenset[str]:
    """Return the keys of the labels that a selector uses."""
    if selector is None:
        return frozenset()
    return frozenset({*selector.match_labels, *(e.key for e in selector.match_expressions)})


# -- running pods -----------------------------------------------------------------------------------------------------


def domain_of(node: StateNode, key: str) -> str | None:
    """Return the domain of a node; the node's name replaces a missing hostname label."""
    value = node.labels.get(key)
    return node.name if value is None and key == labels.HOSTNAME else value


class RunningAntiAffinity(Struct, frozen=True, eq=False):
    """The key of a running pod, a group that its required anti-affinity excludes, and the domain of its node."""

    pod: str
    group: TopologyGroup
    domain: str


def running_anti_affinities(node: StateNode, namespaces: NamespaceIndex) -> tuple[RunningAntiAffinity, ...]:
    """Return the required anti-affinity of a node's pods.

    Args:
        node: A node with the pods bound to it.
        namespaces: All namespaces.
    """
    return tuple(
        RunningAntiAffinity(pod.key, group, domain)
        for pod in node.pods
        if pod.spec.affinity is not None and not is_terminal(pod)
        for group in required_anti_affinities(pod, namespaces)
        if (domain := domain_of(node, group.key)) is not None
    )


class InverseAntiAffinityCounts:
    """The domains from which running pods exclude others, by group, with the number of pods that do."""

    def __init__(self, running: Iterable[RunningAntiAffinity]) -> None:
        """Count the running pods' anti-affinity."""
        self._groups: dict[bytes, TopologyGroup] = {}
        self._pods: dict[bytes, dict[str, int]] = {}
        for entry in running:
            self._groups[entry.group.id] = entry.group
            by_domain = self._pods.setdefault(entry.group.id, {})
            by_domain[entry.domain] = by_domain.get(entry.domain, 0) + 1
        self._inverse = {
            id_: InverseAntiAffinity(group=group, domains=frozenset(self._pods[id_]))
            for id_, group in sorted(self._groups.items())
        }

    def without(
        self, leaving: Iterable[RunningAntiAffinity], staying: Iterable[RunningAntiAffinity] = ()
    ) -> tuple[InverseAntiAffinity, ...]:
        """Return the domains without the anti-affinity of some pods, by group; `staying` ones stay all the same."""
        changes: dict[bytes, dict[str, int]] = {}
        for entries, change in ((leaving, -1), (staying, 1)):
            for entry in entries:
                by_domain = changes.setdefault(entry.group.id, {})
                by_domain[entry.domain] = by_domain.get(entry.domain, 0) + change
        if not changes:
            return tuple(self._inverse.values())
        found: list[InverseAntiAffinity] = []
        for id_, inverse in self._inverse.items():
            gone = {d for d, change in changes.get(id_, {}).items() if self._pods[id_][d] + change <= 0}
            if domains := inverse.domains - gone if gone else inverse.domains:
                found.append(InverseAntiAffinity(group=inverse.group, domains=domains) if gone else inverse)
        return tuple(found)


def required_anti_affinities(pod: Pod, namespaces: NamespaceIndex) -> Iterable[TopologyGroup]:
    """Return the groups that the required anti-affinity of a pod excludes."""
    rules = pod.spec.affinity.pod_anti_affinity if pod.spec.affinity is not None else None
    metadata = pod.metadata
    return (
        group_of(t, metadata.namespace, metadata.labels, namespaces)
        for t in (rules.required if rules is not None else ())
    )


class LabelIndex:
    """Finds the pods that a group counts by label value, without testing every pod."""

    def __init__(self, entries: Iterable[HasLabels]) -> None:
        """Index entries; `counted_by` returns their positions."""
        self._distinct: list[tuple[str, Mapping[str, str]]] = []
        self._positions: list[list[int]] = []
        self._by_value: dict[tuple[str, str], set[int]] = {}
        self._positions_by_group: dict[bytes, tuple[int, ...]] = {}
        numbers: dict[tuple[str, frozenset[tuple[str, str]]], int] = {}
        for position, entry in enumerate(entries):
            items = frozenset(entry.labels.items())
            number = numbers.setdefault((entry.namespace, items), len(numbers))
            if number == len(self._distinct):
                self._distinct.append((entry.namespace, entry.labels))
                self._positions.append([])
                for item in items:
                    self._by_value.setdefault(item, set()).add(number)
            self._positions[number].append(position)

    def counted_by(self, group: TopologyGroup) -> tuple[int, ...]:
        """Return the positions of the entries that the group counts, ascending."""
        positions = self._positions_by_group.get(group.id)
        if positions is None:
            # the entries with the rarest of the labels that the group's selector requires
            found = ([self._by_value.get(label, set()) for label in required] for required in group.required_labels)
            rarest = min(found, key=lambda entries: sum(map(len, entries)), default=None)
            candidates = set[int]().union(*rarest) if rarest is not None else range(len(self._distinct))
            numbers = [n for n in candidates if group.counts(*self._distinct[n])]
            positions = self._positions_by_group[group.id] = tuple(
                sorted(p for n in numbers for p in self._positions[n])
            )
        return positions


class _VisibleLabels(Struct, frozen=True):
    """The namespace and visible labels of running pods."""

    namespace: str
    labels: Mapping[str, str]


class RunningPodCounts:
    """Counts the pods on nodes for any group; reads each pod once.

    Pods that are being deleted do not count, nor do the pods in `rescheduled`, which this pass reschedules.
    """

    def __init__(self, nodes: Iterable[StateNode], rescheduled: Collection[str], watched: Iterable[str]) -> None:
        """Count the nodes' pods; `watched` are the keys of all labels that the groups select on."""
        keys = tuple(sorted(set(watched)))
        counts: dict[tuple[str | None, ...], dict[str, int]] = {}
        for node in nodes:
            for pod in node.pods:
                if is_terminating(pod) or pod.key in rescheduled:
                    continue
                visible = (pod.metadata.namespace, *map(pod.metadata.labels.get, keys))
                by_node = counts.setdefault(visible, {})
                by_node[node.name] = by_node.get(node.name, 0) + 1
        self._by_node = tuple(counts.values())
        self._index = LabelIndex(
            _VisibleLabels(namespace or "", {k: v for k, v in zip(keys, values, strict=True) if v is not None})
            for namespace, *values in counts
        )
        self._counted: dict[bytes, Mapping[str, int]] = {}

    def without(self, nodes: Collection[str]) -> RunningPodCounts:
        """Return the counts without the pods on these nodes, given by name."""
        return _RemainingPodCounts(self, nodes) if nodes else self

    def by_node(self, group: TopologyGroup) -> Mapping[str, int]:
        """Return the number of pods that the group counts, by node name; nodes without any are omitted."""
        counts = self._counted.get(group.id)
        if counts is None:
            counts = self._counted[group.id] = self._count(group)
        return counts

    def _count(self, group: TopologyGroup) -> Mapping[str, int]:
        total: dict[str, int] = {}
        for position in self._index.counted_by(group):
            for name, n in self._by_node[position].items():
                total[name] = total.get(name, 0) + n
        return total


class _RemainingPodCounts(RunningPodCounts):
    """The counts without the pods on some nodes."""

    def __init__(self, all_counts: RunningPodCounts, removed: Collection[str]) -> None:
        self._all, self._removed = all_counts, removed
        self._counted = {}

    def _count(self, group: TopologyGroup) -> Mapping[str, int]:
        return {name: n for name, n in self._all.by_node(group).items() if name not in self._removed}
