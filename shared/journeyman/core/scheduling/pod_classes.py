"""Groups pods into classes: pods with equal constraints become one row with a count.

The replicas of a workload differ only in name. The parts of a spec that constrain scheduling (resources, node affinity,
tolerations, constraints about other pods) are compared first as bytes, which is cheap, then by meaning, so that equal
constraints written differently are equal too. The labels that any selector of the pass selects on, and the volumes of
each pod, are compared last. A pod with an invalid or unsupported spec gets an error and is not scheduled.

Restates: karpenter pkg/scheduling/hostportusage.go, pkg/scheduling/requirements.go `newPodRequirements`,
pkg/controllers/provisioning/scheduling/queue.go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api.objects import (
    Affinity,
    Object,
    Pod,
    PodAffinity,
    PodSpec,
    Toleration,
    TopologySpreadConstraint,
)
from journeyman.core.api.resources import CPU, MEMORY, absurd_request, pod_requests, resize_of
from journeyman.core.scheduling.pod_validation import (
    CLAIMS_ARE_IGNORED,
    has_resource_claims,
    invalid_rules,
    invalid_selection,
    opted_out,
    pod_terms,
    required_terms,
    unlisted_claim,
)
from journeyman.core.scheduling.requirements import (
    EMPTY,
    InvalidRequirementError,
    Requirements,
    from_labels,
    from_selectors,
)
from journeyman.core.scheduling.results import Effort, PodError
from journeyman.core.scheduling.topology import (
    InverseAntiAffinity,
    NamespaceIndex,
    TopologyGroup,
    TopologySpread,
    group_of,
    selector_keys,
    spread_of,
)
from journeyman.core.scheduling.volumes import NO_VOLUMES, PodVolumes, SharedVolume
from journeyman.core.state.pod_predicates import is_virtual_pod
from journeyman.core.state.skipped_objects import SkippedObject, evaluate
from journeyman.errors import InvalidQuantityError

if TYPE_CHECKING:  # imported at run time only where pods have ResourceClaims
    from journeyman.core.scheduling.dra import ClaimRequests

encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode
_encode_fast: Final = msgspec.msgpack.Encoder().encode
_LONG_AGO: Final = datetime(1, 1, 1, tzinfo=timezone.utc)
_ANY_ADDRESS: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared with, never bound to


class HostPort(Struct, frozen=True, kw_only=True, order=True):
    """One port of the node that a container requests."""

    port: int
    protocol: str
    address: str

    def conflicts(self, other: HostPort) -> bool:
        """Whether two pods with these ports cannot share a node: same port and protocol, overlapping addresses."""
        if (self.port, self.protocol) != (other.port, other.protocol):
            return False
        return self.address == other.address or bool({self.address, other.address} & _ANY_ADDRESS)


def host_ports(pod: Pod) -> tuple[HostPort, ...]:
    """Return the distinct host ports of a pod's containers, sorted; init containers are ignored."""
    requested = {
        HostPort(port=p.host_port, protocol=p.protocol or "TCP", address=p.host_ip)
        for container in pod.spec.containers
        for p in container.ports
        if p.host_port
    }
    return tuple(sorted(requested))


class PodPreferences(Struct, frozen=True, kw_only=True):
    """What pods prefer, each kind in the order of relaxation.

    Only the heaviest of `node_terms` applies at a time; the other kinds apply all at once.
    """

    affinities: tuple[TopologyGroup, ...] = ()
    anti_affinities: tuple[TopologyGroup, ...] = ()
    node_terms: tuple[Requirements, ...] = ()
    spreads: tuple[TopologySpread, ...] = ()

    @property
    def count(self) -> int:
        """The number of preferences."""
        return len(self.affinities) + len(self.anti_affinities) + len(self.node_terms) + len(self.spreads)


NO_PREFERENCES: Final = PodPreferences()


class NodeTerms(Struct, frozen=True, kw_only=True):
    """The nodes a pod requires (one of `terms`) and prefers (heaviest first); its tolerations, sorted."""

    terms: tuple[Requirements, ...]
    preferred: tuple[Requirements, ...] = ()
    tolerations: tuple[Toleration, ...] = ()


_ANY_NODE: Final = NodeTerms(terms=(EMPTY,))


class SpecParts(Struct, frozen=True, kw_only=True, cache_hash=True):
    """What a spec says about scheduling, equal for specs that mean the same.

    `requests` are sorted. `rules` are the constraints about other pods as bytes; which pods they count depends on the
    pod's labels, too.
    """

    requests: tuple[tuple[str, int], ...]
    ports: tuple[HostPort, ...]
    nodes: NodeTerms
    rules: bytes


class PodTopologyRules(Struct, frozen=True, kw_only=True, eq=False):
    """A pod's constraints about other pods. `preferences` has no node terms."""

    spreads: tuple[TopologySpread, ...] = ()
    affinities: tuple[TopologyGroup, ...] = ()
    anti_affinities: tuple[TopologyGroup, ...] = ()
    preferences: PodPreferences = NO_PREFERENCES


_NO_RULES: Final = PodTopologyRules()

T = TypeVar("T")

VolumesOf = Callable[[Pod], PodVolumes | str]
"""Returns the node requirements of a pod's volumes, or why the pod cannot be scheduled."""

ClaimsOf = Callable[[Pod], "tuple[ClaimRequests, ...] | PodError"]
"""Returns what each of a pod's ResourceClaims requests (the same object for equal requests), or a pod error."""

_VisibleLabels = tuple[str | None, ...]
"""A pod's namespace and its values of the labels that selectors use, in their order."""


class _ClassKey(Struct, frozen=True):
    """What the pods of a class have in common; `volumes` are None if they constrain nothing."""

    parts: SpecParts
    volumes: PodVolumes | None
    claims: tuple[ClaimRequests, ...]
    labels: _VisibleLabels


class PodClass(Struct, frozen=True, kw_only=True, eq=False):
    """Pods with equal constraints. `pods` are in queue order; their node must meet one of `terms`.

    `labels` are only those that some selector of this pass uses. The node must also meet one of `volume_terms`, the
    node requirements of the pods' volumes. `volume_counts` are the volumes that only one pod uses, by CSI driver;
    `shared_volumes` are those that other pods may use too. `claims` are what each pod's ResourceClaims
    request.

    Because of DaemonSets' pods, a new node must also meet one of `launch_terms`; pods with `launch_only` get no other
    node.

    `preferred_groups` are the ids of topology groups that are only preferred: the class requires them at this
    relaxation level, other pods do not. `avoids_prefer_no_schedule`: it avoids nodes with an untolerated
    PreferNoSchedule taint. `strict` are its terms without preferences, None if `terms` have none. `preferences` is what
    `preferences.relaxation_levels` builds the levels from.
    """

    pods: tuple[Pod, ...]
    namespace: str
    labels: Mapping[str, str]
    requests: Mapping[str, int]
    terms: tuple[Requirements, ...]
    tolerations: tuple[Toleration, ...]
    spreads: tuple[TopologySpread, ...]
    affinities: tuple[TopologyGroup, ...] = ()
    anti_affinities: tuple[TopologyGroup, ...] = ()
    preferred_groups: frozenset[bytes] = frozenset()
    ports: tuple[HostPort, ...] = ()
    volume_terms: tuple[Requirements, ...] = (EMPTY,)
    launch_terms: tuple[Requirements, ...] = (EMPTY,)
    launch_only: bool = False
    volume_counts: Mapping[str, int] = field(default_factory=dict)
    shared_volumes: tuple[SharedVolume, ...] = ()
    claims: tuple[ClaimRequests, ...] = ()
    avoids_prefer_no_schedule: bool = False
    strict: tuple[Requirements, ...] | None = None
    preferences: PodPreferences = NO_PREFERENCES

    @property
    def strict_terms(self) -> tuple[Requirements, ...]:
        """The alternatives without preferences; topology spread counts nodes that meet one of them."""
        return self.terms if self.strict is None else self.strict

    @property
    def node_terms(self) -> tuple[Requirements, ...]:
        """The alternatives for an existing node: its own with those of the volumes, without contradictions."""
        return () if self.launch_only else combined_terms(self.terms, self.volume_terms)

    @property
    def new_node_terms(self) -> tuple[Requirements, ...]:
        """The alternatives for a new node, which DaemonSets' pods will join."""
        return combined_terms(combined_terms(self.terms, self.volume_terms), self.launch_terms)

    @property
    def groups(self) -> tuple[TopologyGroup, ...]:
        """The groups of all its topology rules."""
        return (*(spread.group for spread in self.spreads), *self.affinities, *self.anti_affinities)

    @property
    def keys(self) -> tuple[str, ...]:
        """The pods' `namespace/name`, in queue order."""
        return tuple(pod.key for pod in self.pods)

    def work(self, node_pools: int, nodes: int = 0) -> int:
        """Return the effort of one plan for its constraints: terms by NodePool and existing node, topology rules."""
        others = len(self.volume_terms) * max(len(self.launch_terms), 1)
        terms = len(self.terms) * others
        values = sum(1 + len(r.values) // 16 for term in self.terms for r in term.values()) * others
        rules = len(self.spreads) + len(self.affinities) + len(self.anti_affinities)
        places = node_pools + nodes // _NODES_PER_POOL + 1
        ports = _PER_PORT * len(self.ports)
        return _PER_ROW + (_PER_TERM * terms + values) * places + rules * (_PER_RULE + 2 * terms) + ports


def combined_terms(terms: tuple[Requirements, ...], others: tuple[Requirements, ...]) -> tuple[Requirements, ...]:
    """Return each combination of two kinds of alternatives, without those that contradict each other."""
    if others == (EMPTY,):
        return terms
    both = (term & other for term in terms for other in others)
    return tuple(wanted for wanted in both if not any(r.impossible for r in wanted.values()))


# Effort of a plan, measured in microseconds and rounded.
_PER_ROW: Final = 20
_PER_TERM: Final = 25
_NODES_PER_POOL: Final = 500  # the existing nodes that a term is compared with in the time of one NodePool
_PER_RULE: Final = 10
_PER_PORT: Final = 10


class RowPods(NamedTuple):
    """A number of pods of one row."""

    row: int
    pods: int


def group_pods(
    pods: Sequence[Pod],
    namespaces: Mapping[str, Object],
    *,
    inverse_anti_affinities: Iterable[InverseAntiAffinity] = (),
    volumes_of: VolumesOf | None = None,
    claims_of: ClaimsOf | None = None,
    effort: Effort | None = None,
) -> tuple[tuple[PodClass, ...], dict[str, PodError]]:
    """Return classes in queue order (CPU descending, memory descending, oldest first), and errors by pod key.

    Pods that opted out of Karpenter nodes appear in neither. The classes contain required constraints only;
    `relaxation_levels` adds the preferred ones.

    Args:
        pods: The pods to schedule, in any order.
        namespaces: All namespaces by name, for namespace selectors.
        inverse_anti_affinities: Required anti-affinity of running pods; its selectors also separate pods into classes.
        volumes_of: The node requirements of a pod's volumes; by default none.
        claims_of: What a pod's ResourceClaims request; by default pods that have any get an error.
        effort: Limits the work; by default nothing does. Raises EffortSpentError.

    Restates: karpenter pkg/controllers/provisioning/scheduling/queue.go `byCPUAndMemoryDescending`, per class.
    """
    effort = effort if effort is not None else Effort()
    ordered = sorted(pods, key=_age)
    cache = _SpecCache({}, {})
    known: dict[tuple[bytes, bool], SpecParts | PodError | None] = {}
    parts: list[SpecParts | PodError | None] = []
    for pod in ordered:
        key = constraint_bytes(pod), is_virtual_pod(pod)  # specs with equal bytes are read once
        if key not in known:
            selectors = sum(term.namespace_selector is not None for term in pod_terms(pod.spec.affinity))
            effort.spend(len(key[0]) // BYTES_PER_UNIT + selectors * len(namespaces) // _NAMESPACES_PER_UNIT)
            known[key] = _or_error(evaluate(pod, _read, pod, cache, claims_of is not None))
        parts.append(known[key])
    specs = {key: spec for key, (spec, _) in cache.rules.items()}
    selecting = (*map(_label_keys, specs.values()), *(r.group.label_keys for r in inverse_anti_affinities))
    watched = tuple(sorted(frozenset[str]().union(*selecting)))
    members, errors = _group_by_key(zip(ordered, parts, strict=True), volumes_of, claims_of, watched)
    classes = _classes_of(members, watched, specs, NamespaceIndex(namespaces if specs else {}))
    classes.sort(key=lambda c: (-c.requests.get(CPU, 0), -c.requests.get(MEMORY, 0)))  # stable: equal ones by age
    return tuple(classes), errors


BYTES_PER_UNIT: Final = 4  # of a spec that is read
_NAMESPACES_PER_UNIT: Final = 8  # that a namespace selector selects from; their sets take memory, too


def _or_error(found: T | SkippedObject) -> T | PodError:
    """Return what was read of a pod, or the error of a pod that cannot be evaluated."""
    return PodError(kind="invalid", message=found.why) if isinstance(found, SkippedObject) else found


def _group_by_key(
    pods: Iterable[tuple[Pod, SpecParts | PodError | None]],
    volumes_of: VolumesOf | None,
    claims_of: ClaimsOf | None,
    watched: tuple[str, ...],
) -> tuple[dict[_ClassKey, list[Pod]], dict[str, PodError]]:
    """Group pods by spec, volumes, claims and the labels that selectors use; return the groups and the errors."""
    members: dict[_ClassKey, list[Pod]] = {}
    errors: dict[str, PodError] = {}
    for pod, parts in pods:
        if not isinstance(parts, SpecParts):
            if parts is not None:
                errors[pod.key] = parts
            continue
        volumes: PodVolumes | None = None
        if volumes_of is not None and pod.spec.volumes:
            found: PodVolumes | str | PodError = _or_error(evaluate(pod, volumes_of, pod))
            if isinstance(found, str | PodError):
                errors[pod.key] = PodError(kind="invalid", message=found) if isinstance(found, str) else found
                continue
            volumes = found
        claims: tuple[ClaimRequests, ...] | PodError = ()
        if claims_of is not None and pod.spec.resource_claims:
            claims = _or_error(evaluate(pod, claims_of, pod))
        if isinstance(claims, PodError):
            errors[pod.key] = claims
            continue
        metadata = pod.metadata
        seen = (metadata.namespace, *map(metadata.labels.get, watched))
        key = _ClassKey(parts, None if volumes == NO_VOLUMES else volumes, claims, seen)
        members.setdefault(key, []).append(pod)
    return members, errors


def _classes_of(
    members: Mapping[_ClassKey, Sequence[Pod]],
    watched: Sequence[str],
    specs: Mapping[bytes, PodSpec],
    namespaces: NamespaceIndex,
) -> list[PodClass]:
    """Return a class for each key; classes with equal rules and visible labels share them."""
    labels_by_key: dict[_VisibleLabels, dict[str, str]] = {}
    rules_by_key: dict[tuple[bytes, _VisibleLabels], PodTopologyRules] = {}
    classes: list[PodClass] = []
    for key, pods in members.items():
        parts, volumes, seen = key.parts, key.volumes or NO_VOLUMES, key.labels
        namespace = seen[0] or ""
        if seen not in labels_by_key:
            values = zip(watched, seen[1:], strict=True)
            labels_by_key[seen] = {name: value for name, value in values if value is not None}
        rules = rules_by_key.get((parts.rules, seen), _NO_RULES)
        if parts.rules and rules is _NO_RULES:
            rules = _rules(specs[parts.rules], namespace, labels_by_key[seen], namespaces)
            rules_by_key[parts.rules, seen] = rules
        preferences = rules.preferences
        classes.append(
            PodClass(
                pods=tuple(pods),
                namespace=namespace,
                labels=labels_by_key[seen],
                requests=dict(parts.requests),
                terms=parts.nodes.terms,
                tolerations=parts.nodes.tolerations,
                spreads=rules.spreads,
                affinities=rules.affinities,
                anti_affinities=rules.anti_affinities,
                ports=parts.ports,
                volume_terms=volumes.terms,
                volume_counts=volumes.counts,
                shared_volumes=volumes.shared,
                claims=key.claims,
                preferences=replace(preferences, node_terms=parts.nodes.preferred)
                if parts.nodes.preferred
                else preferences,
            )
        )
    return classes


def _age(pod: Pod) -> tuple[datetime, str, str, str]:
    metadata = pod.metadata
    return (metadata.creation_timestamp or _LONG_AGO, metadata.uid, metadata.namespace, metadata.name)


def constraint_bytes(pod: Pod) -> bytes:
    """Return everything in the spec that constrains scheduling, except volumes, and the pod's resize, as bytes."""
    spec = pod.spec
    return _encode_fast(
        (
            spec.containers,
            spec.init_containers,
            spec.overhead,
            spec.resources,
            resize_of(pod),
            spec.node_selector,
            spec.affinity,
            spec.tolerations,
            spec.topology_spread_constraints,
            spec.resource_claims,
        )
    )


class _SpecCache(Struct):
    """What was read of specs, by the bytes of the part: many specs differ in their resources only.

    `rules` has a spec for each kind of constraints about other pods, and what is wrong with these.
    """

    nodes: dict[bytes, NodeTerms | PodError | None]
    rules: dict[bytes, tuple[PodSpec, str]]


def _read(pod: Pod, cache: _SpecCache, with_claims: bool) -> SpecParts | PodError | None:
    """Return what the pod's spec says; an error if no node can run it, None if it opted out of Karpenter's nodes."""
    spec, affinity, constraints = pod.spec, pod.spec.affinity, pod.spec.topology_spread_constraints
    nodes: NodeTerms | PodError | None = _ANY_NODE
    if spec.node_selector or spec.tolerations or affinity is not None:
        node_affinity = affinity.node_affinity if affinity is not None else None
        key = encode((spec.node_selector, node_affinity, spec.tolerations, is_virtual_pod(pod)))
        if key not in cache.nodes:
            cache.nodes[key] = _node_terms(pod)
        nodes = cache.nodes[key]
    if nodes is None or isinstance(nodes, PodError):
        return nodes
    requests = _requests(pod, with_claims=with_claims)
    if isinstance(requests, PodError):
        return requests
    rules = b""
    about_pods = (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity is not None else (None, None)
    if constraints or about_pods != (None, None):
        rules = encode((constraints, about_pods))
        if rules not in cache.rules:
            cache.rules[rules] = spec, invalid_rules(constraints, affinity)
        if invalid := cache.rules[rules][1]:
            return PodError(kind="invalid", message=invalid)
    return SpecParts(requests=tuple(sorted(requests.items())), ports=host_ports(pod), nodes=nodes, rules=rules)


def _node_terms(pod: Pod) -> NodeTerms | PodError | None:
    spec, affinity = pod.spec, pod.spec.affinity
    if opted_out(pod):
        return None
    if invalid := invalid_selection(spec.node_selector, affinity, may_be_restricted=is_virtual_pod(pod)):
        return PodError(kind="invalid", message=invalid)
    distinct = sorted({(t.key, t.operator, t.value, t.effect) for t in spec.tolerations})
    return NodeTerms(
        terms=requirement_terms(pod),
        preferred=tuple(_preferred_terms(affinity)),
        tolerations=tuple(Toleration(key=k, operator=o, value=v, effect=e) for k, o, v, e in distinct),
    )


def _requests(pod: Pod, *, with_claims: bool) -> Mapping[str, int] | PodError:
    """Return the resources that the pod uses on its node."""
    if has_resource_claims(pod):
        if not with_claims:
            return PodError(kind="unsupported", message=CLAIMS_ARE_IGNORED)
        if unlisted := unlisted_claim(pod):
            return PodError(kind="invalid", message=unlisted)
    try:
        requests = pod_requests(pod)
    except InvalidQuantityError as error:
        cause = error.__cause__  # without the pod's name: other pods share this part of the spec
        text = cause.message if isinstance(cause, InvalidQuantityError) else error.message
        return PodError(kind="invalid", message=text)
    absurd = absurd_request(requests)
    return PodError(kind="invalid", message=absurd) if absurd else requests


def requirement_terms(pod: Pod) -> tuple[Requirements, ...]:
    """Return the alternatives for its node: its node selector combined with each required node affinity term, in order.

    Raises:
        InvalidRequirementError: An expression cannot be read.
    """
    selector = from_labels(pod.spec.node_selector)
    return tuple(selector & from_selectors(t.match_expressions) for t in required_terms(pod.spec.affinity)) or (
        selector,
    )


def _preferred_terms(affinity: Affinity | None) -> Iterator[Requirements]:
    """Yield the preferred terms, heaviest first, without empty and invalid ones."""
    node_affinity = affinity.node_affinity if affinity is not None else None
    for term in sorted(node_affinity.preferred if node_affinity is not None else (), key=lambda t: -t.weight):
        with suppress(InvalidRequirementError):
            if wanted := from_selectors(term.preference.match_expressions):
                yield wanted


def _label_keys(spec: PodSpec) -> set[str]:
    """Return the pod labels that the selectors of a spec use, including those of preferred constraints."""
    keys: set[str] = set()
    for constraint in spec.topology_spread_constraints:
        keys |= selector_keys(constraint.label_selector).union(constraint.match_label_keys)
    for term in pod_terms(spec.affinity):
        keys |= selector_keys(term.label_selector).union(term.match_label_keys, term.mismatch_label_keys)
    return keys


def _rules(spec: PodSpec, namespace: str, own: Mapping[str, str], namespaces: NamespaceIndex) -> PodTopologyRules:
    affinity = spec.affinity or Affinity()

    def required(rule: PodAffinity | None) -> tuple[TopologyGroup, ...]:
        groups = (group_of(t, namespace, own, namespaces) for t in (rule.required if rule is not None else ()))
        return tuple({group.id: group for group in groups}.values())

    def preferred(rule: PodAffinity | None) -> tuple[TopologyGroup, ...]:
        terms = sorted(rule.preferred if rule is not None else (), key=lambda t: -t.weight)
        return tuple(group_of(t.pod_affinity_term, namespace, own, namespaces).preferred for t in terms)

    hard = [c for c in spec.topology_spread_constraints if c.when_unsatisfiable == "DoNotSchedule"]
    soft = [spread_of(c, namespace, own) for c in _schedule_anyway(spec.topology_spread_constraints)]
    return PodTopologyRules(
        spreads=tuple(spread_of(c, namespace, own) for c in hard),
        affinities=required(affinity.pod_affinity),
        anti_affinities=required(affinity.pod_anti_affinity),
        preferences=PodPreferences(
            affinities=preferred(affinity.pod_affinity),
            anti_affinities=preferred(affinity.pod_anti_affinity),
            spreads=tuple(replace(s, group=s.group.preferred) for s in soft),
        ),
    )


def _schedule_anyway(constraints: Iterable[TopologySpreadConstraint]) -> Iterable[TopologySpreadConstraint]:
    """Return the ScheduleAnyway constraints in relaxation order: removing one moves the last constraint to its index.

    Restates: karpenter pkg/controllers/provisioning/scheduling/preferences.go `removeTopologySpreadScheduleAnyway`.
    """
    left = list(constraints)
    index = 0
    while index < len(left):
        if left[index].when_unsatisfiable == "DoNotSchedule":
            index += 1
            continue
        yield left[index]
        left[index] = left[-1]
        left.pop()
