"""Checks the constraints between pods: topology spread, required pod affinity, required anti-affinity.

Topology spread: is there an order in which the pods enter their domains and keep every constraint? A pod may enter a
domain while it has fewer than maxSkew + minimum counted pods: that is the pod's *allowance*. Counted pods without the
constraint may all enter later. The pods with the constraint enter by ascending allowance: the n-th counted pod of the
domain, including running pods, needs an allowance of at least n. The minimum is over the domains the pod could be in,
with all counted pods, existing and planned; for hostname it is 0, since a new node can always be launched. A planned
node whose domain is undecided counts in every domain that it may get, and for the minimum in none. Pods that stay with
the pending NodeClaim planned for them were checked before its launch; now kube-scheduler must admit them, and it knows
only the domains of existing nodes.

Pod affinity: is there an order in which each pod finds a pod that its term selects? The first of a kind may enter an
empty domain if its own term selects it and no domain it could reach holds such a pod. On a node with an undecided
domain, it must find such pods whatever the node becomes: on the same node, or in every domain that it may get. The
likeliest orders are tried first: pods that no other pod can help start a domain first, then those that only pods with
affinity can help; then all pods without affinity come. If that fails, pods that only their own terms select are the
first of each kind.

Anti-affinity: no two pods in one domain of which one has the term and the other is selected by it. It applies both
ways, and to running pods: a running pod's term excludes new ones. A node with an undecided domain counts in all domains
that it may get.

Restates: karpenter pkg/controllers/provisioning/scheduling/topologygroup.go `nextDomainTopologySpread`,
`nextDomainAffinity`, `nextDomainAntiAffinity`; topology.go `updateInverseAffinities`.
Differs: a domain where the pod accepts no offering, and where no node exists, does not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import (
    LabelSelector,
    LabelSelectorRequirement,
    NodeSelectorRequirement,
    Object,
    Pod,
    PodAffinityTerm,
    TopologySpreadConstraint,
)
from journeyman.core.scheduling.results import Defect
from journeyman.core.scheduling.verify.matching import (
    ENCODER,
    PodKind,
    is_finished_or_terminating,
    normalized,
    selects,
    untolerated,
)
from journeyman_simulator.judge.possible_nodes import AwaitedPods, CheckedNode, PlanIndex


class CountedPods(Struct, frozen=True, eq=False):
    """The pods that a constraint counts, by the values of node label `key`.

    `id` is equal if the same pods count over the same label. Namespaces are those named and those whose labels
    `namespace_selector` selects. The `selector` includes matchLabelKeys and mismatchLabelKeys.
    """

    id: bytes
    key: str
    namespaces: frozenset[str]
    namespace_selector: LabelSelector | None
    selector: LabelSelector | None

    @classmethod
    def of(cls, pod: Pod, rule: PodAffinityTerm | TopologySpreadConstraint) -> CountedPods:
        """Return the pods that a spread constraint or a term of pod affinity or anti-affinity of this pod counts."""
        namespaces, of_namespaces = frozenset({pod.metadata.namespace}), None
        by_key = [(k, "In") for k in rule.match_label_keys]
        if isinstance(rule, PodAffinityTerm):
            of_namespaces = rule.namespace_selector
            by_key += [(k, "NotIn") for k in rule.mismatch_label_keys]
            if rule.namespaces or of_namespaces is not None:
                namespaces = frozenset(rule.namespaces)
        key, own, selector = normalized(rule.topology_key), pod.metadata.labels, rule.label_selector
        more = [LabelSelectorRequirement(key=k, operator=o, values=(own[k],)) for k, o in sorted(by_key) if k in own]
        if more and selector is not None:
            selector = replace(selector, match_expressions=(*selector.match_expressions, *more))
        parts = (key, sorted(namespaces), _sorted(of_namespaces), _sorted(selector))
        return cls(ENCODER.encode(parts), key, namespaces, of_namespaces, selector)

    def counts(self, kind: PodKind, namespaces: Mapping[str, Object]) -> bool:
        """Whether pods of this kind are counted."""
        own = kind.pod.metadata
        known = namespaces.get(own.namespace)
        is_covered = own.namespace in self.namespaces or selects(
            self.namespace_selector, known.metadata.labels if known is not None else {}
        )
        return is_covered and selects(self.selector, own.labels)


def _sorted(selector: LabelSelector | None) -> object:
    if selector is None:
        return None
    expressions = sorted((e.key, e.operator, sorted(e.values)) for e in selector.match_expressions)
    return sorted(selector.match_labels.items()), expressions


class PodPresence(Struct, frozen=True, eq=False):
    """Pods of one kind on one node: how many are planned onto it, how many remain on it."""

    node: CheckedNode
    planned: int
    remaining: int


class PodPresences:
    """The pods on all nodes, by kind."""

    def __init__(self, index: PlanIndex) -> None:
        self._namespaces, self._planned = index.namespaces, index.planned_by_kind
        self._presences: dict[PodKind, list[PodPresence]] = {}
        self._by_label: dict[tuple[str, str], list[PodKind]] = {}
        self._counted: dict[tuple[bytes, bool], Sequence[PodKind]] = {}
        for kind, where in index.planned_by_kind.items():
            self._presences[kind] = [PodPresence(node, number, 0) for node, _, number in where]
        for node in index.existing_nodes:
            for kind, number in Counter(node.remaining).items():
                if not is_finished_or_terminating(kind.pod):
                    self._presences.setdefault(kind, []).append(PodPresence(node, 0, number))
        for kind in self._presences:
            for label in kind.pod.metadata.labels.items():
                self._by_label.setdefault(label, []).append(kind)

    def counts(self, group: CountedPods, kind: PodKind) -> bool:
        """Whether the group counts pods of this kind."""
        return group.counts(kind, self._namespaces)

    def presences(self, group: CountedPods, *, planned_only: bool = False) -> Iterable[PodPresence]:
        """Return the nodes of the counted pods, or of those that are planned; a node may occur several times."""
        for kind in self.kinds(group, planned_only=planned_only):
            yield from self._presences[kind]

    def kinds(self, group: CountedPods, *, planned_only: bool = False) -> Sequence[PodKind]:
        """Return the present pods that the group counts, or those of them that are planned."""
        key = group.id, planned_only
        if key not in self._counted:
            candidates = self._candidates(group)
            wanted = (kind for kind in candidates if kind in self._planned) if planned_only else candidates
            self._counted[key] = [kind for kind in wanted if group.counts(kind, self._namespaces)]
        return self._counted[key]

    def _candidates(self, group: CountedPods) -> Iterable[PodKind]:
        """Return the pods with a label that the group's selector requires; all if it requires no label's value."""
        if group.selector is None:
            return ()
        if group.selector.match_labels:
            return self._by_label.get(min(group.selector.match_labels.items()), ())
        listed = (e for e in group.selector.match_expressions if e.operator == "In")
        shortest = min(listed, key=lambda e: len(e.values), default=None)
        if shortest is None:
            return self._presences
        return [
            kind for value in sorted(set(shortest.values)) for kind in self._by_label.get((shortest.key, value), ())
        ]


class _ConstrainedPods(Struct, frozen=True, eq=False):
    """Pods of one kind with the constraint, on one node. `stays`: its NodeClaim was planned for all of them."""

    kind: PodKind
    constraint: TopologySpreadConstraint
    node: CheckedNode
    pod: str
    number: int
    stays: bool

    @property
    def pods(self) -> tuple[PodKind, str]:
        """The pods, whatever their constraint."""
        return self.kind, self.node.host


class _Entrants(Struct, frozen=True, eq=False):
    """Pods that enter a domain while fewer than `allowance` are there: maxSkew more than the emptiest has."""

    allowance: int
    minimum: int
    owner: _ConstrainedPods


class _SpreadRule(Struct, frozen=True, eq=False):
    """Constraints that count the same pods on the same nodes, and all pods that have one of them."""

    group: CountedPods
    honors_node_affinity: bool
    honors_node_taints: bool
    owners: list[_ConstrainedPods] = field(default_factory=list)

    def counts_on(self, node: CheckedNode, sample: PodKind) -> bool:
        """Whether pods on the node count (nodeAffinityPolicy, nodeTaintsPolicy)."""
        if self.honors_node_taints and untolerated(sample.pod, node.taints) is not None:
            return False
        return not self.honors_node_affinity or bool(
            node.possible.rows_possibly_meeting(sample.node_requirements) & node.rows
        )

    def surely_counts(self, node: CheckedNode) -> bool:
        """Whether pods on the node count whatever it becomes; a pod always counts on its own node."""
        if self.group.key == labels.HOSTNAME:
            return True
        sample = self.owners[0].kind
        if self.honors_node_taints and untolerated(sample.pod, node.taints) is not None:
            return False
        return (
            not self.honors_node_affinity
            or node.rows & ~node.possible.rows_possibly_meeting(sample.node_requirements) == 0
        )


def check_spread(index: PlanIndex, presences: PodPresences) -> Iterator[Defect]:
    """Check topology spread: one defect per constraint and domain."""
    rules = tuple(_spread_rules(index).values())
    remaining: dict[_SpreadRule, Counter[str]] = {}
    entering: _Entering = {}
    for rule in rules:
        remaining[rule], surely = _counted(presences, rule)
        yield from _enter_domains(index, rule, surely, entering)
    for (_, domain), entries in sorted(entering.items(), key=lambda found: found[0]):
        for rule in dict.fromkeys(rule for rule, _ in entries):
            in_domain = [entry for other, entry in entries if other is rule or rule.surely_counts(entry.owner.node)]
            own = {entry.owner.pods: entry for other, entry in entries if other is rule}
            yield from _check_domain(presences, rule, domain, in_domain, own, present=remaining[rule][domain])


def _spread_rules(index: PlanIndex) -> dict[bytes, _SpreadRule]:
    rules: dict[bytes, _SpreadRule] = {}
    for kind, where in index.planned_by_kind.items():
        for constraint in kind.pod.spec.topology_spread_constraints:
            if constraint.when_unsatisfiable != "DoNotSchedule":
                continue
            rule = _SpreadRule(
                group=CountedPods.of(kind.pod, constraint),
                honors_node_affinity=constraint.node_affinity_policy != "Ignore",
                honors_node_taints=constraint.node_taints_policy == "Honor",
            )
            known = rules.setdefault(_rule_identity(rule, kind), rule)
            known.owners.extend(
                _ConstrainedPods(kind, constraint, node, pod, number, stays=_stays(kind, node))
                for node, pod, number in where
            )
    return rules


def _stays(kind: PodKind, node: CheckedNode) -> bool:
    return bool(node.planned_pods) and all(key in node.planned_pods for key, k in node.planned.items() if k is kind)


def _rule_identity(rule: _SpreadRule, kind: PodKind) -> bytes:
    """Return a key that is equal if the same pods count on the same nodes."""
    node_requirements = kind.node_requirements if rule.honors_node_affinity else None
    tolerations = kind.pod.spec.tolerations if rule.honors_node_taints else None
    return ENCODER.encode((rule.group.id, node_requirements, tolerations))


_Entering = dict[tuple[bytes, str], list[tuple[_SpreadRule, _Entrants]]]
"""The pods that enter each domain, by group and domain."""


def _enter_domains(
    index: PlanIndex, rule: _SpreadRule, surely: Mapping[str, int], entering: _Entering
) -> Iterator[Defect]:
    """Record a constraint's pods in the domains they enter; yield a defect for each whose domain is undecided."""
    minimums: dict[tuple[PodKind, int, bool], int] = {}
    strictest: dict[tuple[tuple[PodKind, str], str], _Entrants] = {}
    for owner in rule.owners:
        domains = owner.node.domains(rule.group.key)
        if not domains and not (owner.stays and owner.node.is_unlaunched):
            yield owner.node.defect(f"pod {owner.pod} spreads over {rule.group.key}, which is not decided there")
        case = (owner.kind, owner.constraint.min_domains or 1, owner.stays)
        if case not in minimums:
            minimums[case] = _minimum(index, rule, owner, surely)
        entry = _Entrants(minimums[case] + owner.constraint.max_skew, minimums[case], owner)
        for domain in domains:
            known = strictest.setdefault((owner.pods, domain), entry)
            if entry.allowance < known.allowance:
                strictest[owner.pods, domain] = entry
    for (_, domain), entry in strictest.items():
        entering.setdefault((rule.group.id, domain), []).append((rule, entry))


def _counted(presences: PodPresences, rule: _SpreadRule) -> tuple[Counter[str], Counter[str]]:
    """Return by domain the number of remaining pods, and of all pods that are there whatever the nodes become."""
    sample = rule.owners[0].kind
    remaining: Counter[str] = Counter()
    surely: Counter[str] = Counter()
    for presence in presences.presences(rule.group):
        domains = presence.node.domains(rule.group.key)
        if len(domains) == 1 and rule.counts_on(presence.node, sample):
            (domain,) = domains
            remaining[domain] += presence.remaining
            surely[domain] += presence.remaining + presence.planned
    return remaining, surely


def _check_domain(
    presences: PodPresences,
    rule: _SpreadRule,
    domain: str,
    entries: Iterable[_Entrants],
    own: Mapping[tuple[PodKind, str], _Entrants],
    *,
    present: int,
) -> Iterator[Defect]:
    """Admit the pods, the smallest allowance first; those with the constraint must be allowed by their `own` entry."""
    ordered: dict[tuple[PodKind, str], _ConstrainedPods] = {}  # pods may have several constraints about the group
    for entrants in sorted(entries, key=lambda entry: (entry.allowance, entry.owner.pod)):
        ordered.setdefault(entrants.owner.pods, entrants.owner)
    for pods, owner in ordered.items():
        if presences.counts(rule.group, owner.kind):
            present += owner.number
        entry = own.get(pods)
        if entry is not None and present > entry.allowance:
            yield owner.node.defect(
                f"pod {owner.pod} is one of {present} in {rule.group.key} {domain}, the emptiest domain has {entry.minimum}, "
                f"its spread allows {entry.owner.constraint.max_skew} more"
            )
            return


def _minimum(index: PlanIndex, rule: _SpreadRule, owner: _ConstrainedPods, surely: Mapping[str, int]) -> int:
    """Return the number of counted pods in the emptiest of the constraint's domains."""
    if rule.group.key == labels.HOSTNAME:
        return 0
    existing = _existing_domains(index, rule, owner.kind)
    found = _emptiest(existing | _launchable(index, owner.kind, rule.group.key), owner, surely)
    return max(found, _emptiest(existing, owner, surely)) if owner.stays else found


def _emptiest(domains: Set[str], owner: _ConstrainedPods, surely: Mapping[str, int]) -> int:
    if len(domains) < (owner.constraint.min_domains or 1):
        return 0
    return min((surely.get(domain, 0) for domain in domains), default=0)


def _existing_domains(index: PlanIndex, rule: _SpreadRule, kind: PodKind) -> frozenset[str]:
    """Return the domains of existing nodes that count and that the pod accepts."""
    key = rule.group.key
    by_node = (n.domains(key) for n in index.existing_nodes if n.is_schedulable and rule.counts_on(n, kind))
    return frozenset(domain for domains in by_node for domain in domains if kind.admits(key, domain))


def _launchable(index: PlanIndex, kind: PodKind, key: str) -> set[str]:
    """Return the domains with an offering that the pod accepts."""
    found: set[str] = set()
    for pool in index.usable_pools.values():
        if untolerated(kind.pod, pool.spec.template.spec.taints) is None:
            for requirements in _combinations(kind):
                found |= index.launches(pool.metadata.name).values(key, requirements)
    return found


def _combinations(kind: PodKind) -> Iterable[tuple[NodeSelectorRequirement, ...]]:
    """Return every combination of one alternative of each of the pod's requirements."""
    combined: list[tuple[NodeSelectorRequirement, ...]] = [()]
    for alternatives in kind.node_requirements:
        combined = [(*chosen, *more) for chosen in combined for more in alternatives]
    return combined


class _Arrival(Struct, frozen=True, eq=False):
    """Pods of one kind that come to one node. `groups` are those of their terms, `joins` those that count them."""

    kind: PodKind
    node: CheckedNode
    pod: str
    groups: tuple[CountedPods, ...]
    joins: tuple[CountedPods, ...]


class _PresentPods:
    """The pods that have come so far, by group and domain."""

    def __init__(self) -> None:
        self._domains: dict[bytes, set[str]] = {}
        self._nodes: set[tuple[bytes, str]] = set()
        self._possible: dict[bytes, set[str]] = {}

    def enter(self, group: CountedPods, node: CheckedNode, *, everywhere: bool = True) -> None:
        """Add a pod that the group counts; for pods on the same node only, unless `everywhere`."""
        domains = node.domains(group.key)
        self._nodes.add((group.id, node.host))
        if not everywhere:
            return
        self._possible.setdefault(group.id, set()).update(domains)
        if len(domains) == 1:
            self._domains.setdefault(group.id, set()).update(domains)

    def has_pod_for(self, group: CountedPods, node: CheckedNode) -> bool:
        """Whether a pod on the node has a counted pod in its domain, whatever the node becomes."""
        domains = node.domains(group.key)
        if not domains:
            return False
        return (group.id, node.host) in self._nodes or domains <= self._domains.get(group.id, set())

    def is_reachable_by(self, group: CountedPods, kind: PodKind) -> bool:
        """Whether a domain that such pods could be in may hold one that the group counts."""
        return any(kind.admits(group.key, domain) for domain in self._possible.get(group.id, ()))


def check_affinity(index: PlanIndex, presences: PodPresences, awaited: Sequence[AwaitedPods] = ()) -> Iterator[Defect]:
    """Check required pod affinity: one defect per kind of pod and node, if none of three orders lets all pods in.

    `awaited` are the DaemonSets' pods that come to the nodes; those of planned nodes are found on the same node only.
    """
    arrivals = _arrivals(index, presences)
    if not any(arrival.groups for arrival in arrivals):
        return
    unsatisfied = _unsatisfied(arrivals, presences, awaited)
    if (
        unsatisfied
        and _unsatisfied(sorted(arrivals, key=_is_selected_by_others), presences, awaited)
        and _unsatisfied(arrivals, presences, awaited, first=[arrival for arrival, _ in unsatisfied])
    ):
        for arrival, group in unsatisfied:
            yield arrival.node.defect(
                f"pod {arrival.pod} finds none of the pods in its {group.key} that its affinity asks for"
            )


def _is_selected_by_others(arrival: _Arrival) -> bool:
    """Whether terms that these pods do not have select them."""
    return any(group not in arrival.groups for group in arrival.joins)


def _unsatisfied(
    arrivals: Sequence[_Arrival],
    presences: PodPresences,
    awaited: Sequence[AwaitedPods],
    first: Sequence[_Arrival] = (),
) -> list[tuple[_Arrival, CountedPods]]:
    """Return the pods that find no pod for one of their terms, if they come in about this order.

    `first` come before all others, even if other pods could satisfy their terms.
    """
    groups = {group.id: group for arrival in arrivals for group in arrival.groups}
    present = _PresentPods()
    for group in groups.values():
        for presence in presences.presences(group):
            if presence.remaining:
                present.enter(group, presence.node)
        for pods in awaited:
            if presences.counts(group, pods.kind):
                present.enter(group, pods.node, everywhere=pods.is_existing)
    early = [arrival for arrival in first if _admit_one(arrival, present, _PresentPods())]
    waiting = [arrival for arrival in arrivals if arrival.groups and arrival not in early]
    free = [arrival for arrival in arrivals if not arrival.groups]
    for helpers in (arrivals, free):
        waiting = _admit(waiting, present, _help_from(helpers))
    for arrival in free:
        _enter(arrival, present)
    left = _admit(waiting, present, _PresentPods())
    return [(a, next(g for g in a.groups if not present.has_pod_for(g, a.node))) for a in left]


def _arrivals(index: PlanIndex, presences: PodPresences) -> list[_Arrival]:
    groups_of_kind: dict[PodKind, tuple[CountedPods, ...]] = {}
    groups: dict[bytes, CountedPods] = {}
    for kind in index.planned_by_kind:
        own = tuple(CountedPods.of(kind.pod, term) for term in kind.affinity)
        groups_of_kind[kind] = tuple(groups.setdefault(group.id, group) for group in own)
    joined: dict[PodKind, list[CountedPods]] = {kind: [] for kind in index.planned_by_kind}
    for group in groups.values():
        for kind in presences.kinds(group, planned_only=True):
            joined[kind].append(group)
    return [
        _Arrival(kind, node, pod, groups_of_kind[kind], tuple(joined[kind]))
        for kind, where in index.planned_by_kind.items()
        for node, pod, _ in where
    ]


def _help_from(helpers: Sequence[_Arrival]) -> _PresentPods:
    """Return the pods that could satisfy the affinity of pods with different terms."""
    helped = _PresentPods()
    for arrival in helpers:
        for group in arrival.joins:
            if group not in arrival.groups:
                helped.enter(group, arrival.node)
    return helped


def _admit(waiting: Sequence[_Arrival], present: _PresentPods, helped: _PresentPods) -> list[_Arrival]:
    """Admit pods until no more are admissible; return the rest. Pods that other pods can help do not start a domain."""
    left = list(waiting)
    while True:
        still = [arrival for arrival in left if not _admit_one(arrival, present, helped)]
        if len(still) == len(left):
            return left
        left = still


def _admit_one(arrival: _Arrival, present: _PresentPods, helped: _PresentPods) -> bool:
    for group in arrival.groups:
        if present.has_pod_for(group, arrival.node):
            continue
        starts = (
            group in arrival.joins
            and bool(arrival.node.domains(group.key))
            and not helped.has_pod_for(group, arrival.node)
            and not present.is_reachable_by(group, arrival.kind)
        )
        if not starts:
            return False
    _enter(arrival, present)
    return True


def _enter(arrival: _Arrival, present: _PresentPods) -> None:
    for group in arrival.joins:
        present.enter(group, arrival.node)


class _AntiAffinityRule(Struct, eq=False):
    """Terms about the same pods; the planned pods that have one, and the domains of running pods that have one."""

    group: CountedPods
    owners: list[tuple[PodKind, CheckedNode, str]] = field(default_factory=list)
    guarded: dict[str, PodKind] = field(default_factory=dict)


def check_anti_affinity(index: PlanIndex, presences: PodPresences) -> Iterator[Defect]:
    """Check required anti-affinity: one defect per term and node."""
    for rule in _anti_affinity_rules(index).values():
        yield from _check_anti_affinity_rule(presences, rule)


def _anti_affinity_rules(index: PlanIndex) -> dict[bytes, _AntiAffinityRule]:
    rules: dict[bytes, _AntiAffinityRule] = {}

    def rules_of(kind: PodKind) -> Iterator[_AntiAffinityRule]:
        for term in kind.anti_affinity:
            group = CountedPods.of(kind.pod, term)
            yield rules.setdefault(group.id, _AntiAffinityRule(group))

    for kind, where in index.planned_by_kind.items():
        for rule in rules_of(kind):
            rule.owners.extend((kind, node, pod) for node, pod, _ in where)
    for node in index.existing_nodes:
        for kind in node.remaining:
            if kind.anti_affinity and not is_finished_or_terminating(kind.pod):
                for rule in rules_of(kind):
                    rule.guarded.update(dict.fromkeys(node.domains(rule.group.key), kind))
    return rules


def _check_anti_affinity_rule(presences: PodPresences, rule: _AntiAffinityRule) -> Iterator[Defect]:
    counted: Counter[str] = Counter()
    # the rules of running pods are many, and concern planned pods only
    for presence in presences.presences(rule.group, planned_only=not rule.owners):
        for domain in presence.node.domains(rule.group.key):
            counted[domain] += presence.planned + presence.remaining
            if presence.planned and domain in rule.guarded:
                pod = rule.guarded[domain].pod.key
                yield presence.node.defect(
                    f"in {rule.group.key} {domain} runs pod {pod}, whose anti-affinity selects a pod planned there"
                )
    for kind, node, pod in rule.owners:
        itself = 1 if presences.counts(rule.group, kind) else 0
        for domain in sorted(node.domains(rule.group.key)):
            if counted[domain] > itself:
                others = counted[domain] - itself
                yield node.defect(
                    f"the anti-affinity of pod {pod} selects {others} other pod(s) in {rule.group.key} {domain}"
                )
                break
