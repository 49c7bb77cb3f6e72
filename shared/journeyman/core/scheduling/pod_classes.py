"""Groups pods into classes: pods with equal constraints become one row with a count.

The replicas of a workload differ only in name. The parts of a spec that constrain scheduling (resources, node affinity,
tolerations, constraints about other pods) are compared first as bytes, which is cheap, then by meaning, so that equal
constraints written differently are equal too. The labels that any selector of the pass selects on, and the volumes of
each pod, are compared last. A pod with an invalid or unsupported spec gets an error and is not scheduled.

Restates: karpenter pkg/scheduling/hostportusage.go, pkg/scheduling/requirements.go `newPodRequirements`,
pkg/controllers/provisioning/scheduling/queue.go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api.objects import (
    Affinity,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Object,
    Pod,
    PodAffinity,
    PodSpec,
    Toleration,
    TopologySpreadConstraint,
)
from journeyman.core.api.resources import CPU, MEMORY, absurd_request, pod_requests, resize_of
from journeyman.core.scheduling.pod_validation import (
    invalid_rules,
    invalid_selection,
    opted_out,
    required_terms,
    unlisted_claim,
    unsupported,
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


encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode
_NOTHING: Final = b""


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


class PodUsage(Struct, frozen=True, kw_only=True):
    """The resources and host ports that a pod uses on its node."""

    requests: Mapping[str, int]
    ports: tuple[HostPort, ...]

    def __hash__(self) -> int:
        return hash((frozenset(self.requests.items()), self.ports))


class NodeTerms(Struct, frozen=True, kw_only=True):
    """The nodes a pod requires: one of `terms`; and the nodes it prefers, `preferred`, heaviest first."""

    terms: tuple[Requirements, ...]
    preferred: tuple[Requirements, ...]


class PodTopologyRules(Struct, frozen=True, kw_only=True, eq=False):
    """A pod's constraints about other pods. `preferences` has no node terms."""

    spreads: tuple[TopologySpread, ...] = ()
    affinities: tuple[TopologyGroup, ...] = ()
    anti_affinities: tuple[TopologyGroup, ...] = ()
    preferences: PodPreferences = NO_PREFERENCES


_NO_RULES: Final = PodTopologyRules()


class SpecParts(Struct, frozen=True, kw_only=True, cache_hash=True):
    """A spec's parts. Its constraints about other pods depend on the pod's labels too: `PodSpecReader.rules` has them."""

    usage: PodUsage
    selection: NodeTerms
    tolerations: tuple[Toleration, ...]
    rules: bytes


class PodSpecReader:
    """Reads pod specs, each distinct part once. `label_keys` are the pod labels that the selectors read so far use."""

    def __init__(self, namespaces: NamespaceIndex, *, with_claims: bool = False) -> None:
        """Create a reader.

        Args:
            namespaces: All namespaces, for namespace selectors.
            with_claims: Whether pods with ResourceClaims are scheduled.
        """
        self.label_keys: set[str] = set()
        self._parts: dict[SpecParts, SpecParts] = {}
        self._namespaces = namespaces
        self._with_claims = with_claims
        self._usages: dict[bytes, PodUsage | PodError] = {}
        self._selections: dict[bytes, NodeTerms | PodError | None] = {}
        self._tolerations: dict[bytes, tuple[Toleration, ...]] = {_NOTHING: ()}
        self._samples: dict[bytes, PodSpec | PodError] = {}
        self._rules: dict[tuple[bytes, object], PodTopologyRules] = {}

    def read(self, pod: Pod) -> SpecParts | PodError | None:
        """Return the parts of its spec, the same object for equal ones; an error if no node can run it; None if it opted out."""
        selection = self._selection(pod)
        if selection is None or isinstance(selection, PodError):
            return selection
        usage = self._usage(pod)
        if isinstance(usage, PodError):
            return usage
        rules = self._rules_key(pod.spec)
        if isinstance(rules, PodError):
            return rules
        tolerations = self._tolerated(pod.spec.tolerations)
        parts = SpecParts(usage=usage, selection=selection, tolerations=tolerations, rules=rules)
        return self._parts.setdefault(parts, parts)

    def rules(self, key: bytes, namespace: str, own: Mapping[str, str], seen: object) -> PodTopologyRules:
        """Return the constraints with this `key` for a pod of a namespace with these labels; `seen` identifies both."""
        if key == _NOTHING:
            return _NO_RULES
        rules = self._rules.get((key, seen))
        if rules is None:
            spec = self._samples[key]
            assert isinstance(spec, PodSpec)  # noqa: S101 - invalid rules make no parts
            rules = self._rules[key, seen] = _rules(spec, namespace, own, self._namespaces)
        return rules

    def _selection(self, pod: Pod) -> NodeTerms | PodError | None:
        """Return the nodes that a pod requires and prefers."""
        affinity = pod.spec.affinity
        node_affinity = affinity.node_affinity if affinity is not None else None
        key = encode((pod.spec.node_selector, node_affinity, is_virtual_pod(pod)))
        if key not in self._selections:
            self._selections[key] = _selection(pod)
        return self._selections[key]

    def _tolerated(self, tolerations: tuple[Toleration, ...]) -> tuple[Toleration, ...]:
        """Return the tolerations sorted and without tolerationSeconds."""
        key = encode(tolerations) if tolerations else _NOTHING
        result = self._tolerations.get(key)
        if result is None:
            distinct = {(t.key, t.operator, t.value, t.effect) for t in tolerations}
            result = tuple(Toleration(key=k, operator=o, value=v, effect=e) for k, o, v, e in sorted(distinct))
            self._tolerations[key] = result
        return result

    def _usage(self, pod: Pod) -> PodUsage | PodError:
        """Return a pod's resources and host ports."""
        spec = pod.spec
        amounts = (spec.containers, spec.init_containers, spec.overhead, spec.resources, resize_of(pod))
        key = encode((amounts, bool(spec.resource_claims)))
        usage = self._usages.get(key)
        if usage is None:
            usage = self._usages[key] = _usage(pod, with_claims=self._with_claims)
        return usage

    def _rules_key(self, spec: PodSpec) -> bytes | PodError:
        """Return the bytes of a pod's constraints about other pods, or the error in them."""
        affinity, constraints = spec.affinity, spec.topology_spread_constraints
        about_pods = (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity is not None else (None, None)
        if not constraints and about_pods == (None, None):
            return _NOTHING
        key = encode((constraints, about_pods))
        sample = self._samples.get(key)
        if sample is None:
            reason = invalid_rules(constraints, affinity)
            sample = self._samples[key] = PodError(kind="invalid", message=reason) if reason else spec
            self.label_keys |= _label_keys(spec)
        return sample if isinstance(sample, PodError) else key


def alternatives(node_selector: Mapping[str, str], required: Sequence[NodeSelectorTerm]) -> tuple[Requirements, ...]:
    """Return the alternatives for a node: the node selector combined with each required term, in order.

    Raises:
        InvalidRequirementError: An expression cannot be read.
    """
    selector = from_labels(node_selector) if node_selector else EMPTY
    return tuple(selector & from_selectors(t.match_expressions) for t in required) or (selector,)


def _selection(pod: Pod) -> NodeTerms | PodError | None:
    spec = pod.spec
    if opted_out(pod):
        return None
    invalid = invalid_selection(spec.node_selector, spec.affinity, may_be_restricted=is_virtual_pod(pod))
    if invalid:
        return PodError(kind="invalid", message=invalid)
    terms = alternatives(spec.node_selector, required_terms(spec.affinity))
    return NodeTerms(terms=terms, preferred=tuple(_preferred_terms(spec.affinity)))


def _preferred_terms(affinity: Affinity | None) -> Iterable[Requirements]:
    """Return the preferred terms, heaviest first, without empty and invalid ones."""
    node_affinity = affinity.node_affinity if affinity is not None else None
    preferred = sorted(node_affinity.preferred if node_affinity is not None else (), key=lambda t: -t.weight)
    return filter(None, (_read(term.preference.match_expressions) for term in preferred))


def _read(expressions: Iterable[NodeSelectorRequirement]) -> Requirements | None:
    try:
        return from_selectors(expressions)
    except InvalidRequirementError:
        return None


def _usage(pod: Pod, *, with_claims: bool) -> PodUsage | PodError:
    refused = "" if with_claims else unsupported(pod)
    if refused:
        return PodError(kind="unsupported", message=refused)
    unlisted = unlisted_claim(pod)
    if unlisted:
        return PodError(kind="invalid", message=unlisted)
    try:
        requests = pod_requests(pod)
    except InvalidQuantityError as error:
        cause = error.__cause__  # without the pod's name: other pods share this part of the spec
        return PodError(
            kind="invalid", message=cause.message if isinstance(cause, InvalidQuantityError) else error.message
        )
    absurd = absurd_request(requests)
    if absurd:
        return PodError(kind="invalid", message=absurd)
    return PodUsage(requests=requests, ports=host_ports(pod))


def _label_keys(spec: PodSpec) -> set[str]:
    """Return the pod labels that the selectors of a spec use, including those of preferred constraints."""
    keys: set[str] = set()
    for constraint in spec.topology_spread_constraints:
        keys |= selector_keys(constraint.label_selector).union(constraint.match_label_keys)
    for rule in (spec.affinity.pod_affinity, spec.affinity.pod_anti_affinity) if spec.affinity is not None else ():
        for term in (*rule.required, *(w.pod_affinity_term for w in rule.preferred)) if rule is not None else ():
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
    soft = [spread_of(c, namespace, own) for c in _anyway(spec.topology_spread_constraints)]
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


def _anyway(constraints: Iterable[TopologySpreadConstraint]) -> Iterable[TopologySpreadConstraint]:
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


_encode_fast: Final = msgspec.msgpack.Encoder().encode
_LONG_AGO: Final = datetime(1, 1, 1, tzinfo=timezone.utc)

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

    `labels` are only those that some selector of this pass uses. The node must also meet one of `volume_terms`, the node
    requirements of the pods' volumes. `volume_counts` are the volumes that only one pod uses, by CSI driver;
    `shared_volumes` are those that other pods may use too. `claims` are what each pod's ResourceClaims request.

    Because of DaemonSets' pods, a new node must also meet one of `launch_terms`; pods with `launch_only` get no other node.

    `preferred_groups` are the ids of topology groups that are only preferred: the class requires them at this relaxation
    level, other pods do not. `avoids_prefer_no_schedule`: it avoids nodes with an untolerated PreferNoSchedule taint.
    `strict` are its terms without preferences, None if `terms` have none. `preferences` is what
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
        """The alternatives for an existing node: its own with those of the volumes, without contradictory combinations."""
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
        """Return the effort of one plan for its constraints: terms in each NodePool and on existing nodes, topology rules."""
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


def requirement_terms(pod: Pod) -> tuple[Requirements, ...]:
    """Return the alternatives for its node: its node selector combined with each required node affinity term, in order.

    Raises:
        InvalidRequirementError: An expression cannot be read.
    """
    return alternatives(pod.spec.node_selector, required_terms(pod.spec.affinity))


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
    index = NamespaceIndex(namespaces)
    reader = PodSpecReader(index, with_claims=claims_of is not None)
    ordered = sorted(pods, key=_age)
    parts = _read_all(ordered, reader, effort if effort is not None else Effort(), len(index))
    watched = tuple(sorted(reader.label_keys.union(*(r.group.label_keys for r in inverse_anti_affinities))))
    members, errors = _group_by_key(zip(ordered, parts, strict=True), volumes_of, claims_of, watched)
    classes = _PodClassBuilder(reader, watched)
    result = [classes.make(key, group) for key, group in members.items()]
    result.sort(
        key=lambda c: (-c.requests.get(CPU, 0), -c.requests.get(MEMORY, 0))
    )  # stable: equal ones stay oldest first
    return tuple(result), errors


def _read_all(
    pods: Iterable[Pod], reader: PodSpecReader, effort: Effort, namespaces: int
) -> list[SpecParts | PodError | None]:
    """Return the result of `PodSpecReader.read` for each pod; reads specs with equal bytes once, virtual pods apart."""
    cache: dict[tuple[bytes, bool], SpecParts | PodError | None] = {}
    results: list[SpecParts | PodError | None] = []
    for pod in pods:
        key = constraint_bytes(pod), is_virtual_pod(pod)
        if key not in cache:
            effort.spend(len(key[0]) // BYTES_PER_UNIT + _namespace_selectors(pod) * namespaces // _NAMESPACES_PER_UNIT)
            cache[key] = _or_error(evaluate(pod, reader.read, pod))
        results.append(cache[key])
    return results


BYTES_PER_UNIT: Final = 4  # of a spec that is read
_NAMESPACES_PER_UNIT: Final = 8  # that a namespace selector selects from; their sets take memory, too


def _namespace_selectors(pod: Pod) -> int:
    """Return how many of the pod's (anti-)affinity terms select namespaces by label."""
    affinity = pod.spec.affinity
    rules = (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity is not None else ()
    terms = [t for rule in rules if rule for t in (*rule.required, *(w.pod_affinity_term for w in rule.preferred))]
    return sum(term.namespace_selector is not None for term in terms)


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


class _PodClassBuilder:
    """Builds classes; classes with equal visible labels share them."""

    def __init__(self, reader: PodSpecReader, watched: tuple[str, ...]) -> None:
        self._reader = reader
        self._watched = watched
        self._labels: dict[_VisibleLabels, dict[str, str]] = {}

    def make(self, key: _ClassKey, pods: Iterable[Pod]) -> PodClass:
        """Return the class of the pods with this key."""
        parts, volumes, seen = key.parts, key.volumes or NO_VOLUMES, key.labels
        visible_labels = self._labels.get(seen)
        if visible_labels is None:
            values = zip(self._watched, seen[1:], strict=True)
            visible_labels = self._labels[seen] = {key: value for key, value in values if value is not None}
        namespace = seen[0] or ""
        rules = self._reader.rules(parts.rules, namespace, visible_labels, seen)
        preferred = parts.selection.preferred
        preferences = replace(rules.preferences, node_terms=preferred) if preferred else rules.preferences
        return PodClass(
            pods=tuple(pods),
            namespace=namespace,
            labels=visible_labels,
            requests=parts.usage.requests,
            terms=parts.selection.terms,
            tolerations=parts.tolerations,
            spreads=rules.spreads,
            affinities=rules.affinities,
            anti_affinities=rules.anti_affinities,
            ports=parts.usage.ports,
            volume_terms=volumes.terms,
            volume_counts=volumes.counts,
            shared_volumes=volumes.shared,
            claims=key.claims,
            preferences=preferences,
        )
