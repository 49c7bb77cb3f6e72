"""What pods, labels, taints, selectors and host ports mean in Kubernetes; shares no code with the solver.

Restates: karpenter pkg/scheduling/hostportusage.go, pkg/scheduling/requirements.go, pkg/scheduling/taints.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import (
    DaemonSet,
    LabelSelector,
    LabelSelectorRequirement,
    NodeSelectorRequirement,
    Object,
    Pod,
    PodAffinityTerm,
    Taint,
    Toleration,
    TopologySpreadConstraint,
)
from journeyman.core.api.resources import pod_requests, resize_of
from journeyman.errors import InvalidQuantityError

Alternatives = tuple[tuple[NodeSelectorRequirement, ...], ...]
"""Lists of requirements; a node must meet all requirements of one list. If empty, no node does."""

_INTEGER: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_SELECTOR_OPERATORS: Final = frozenset({"In", "NotIn", "Exists", "DoesNotExist"})
_EVERY_ADDRESS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, never bound to
_NO_KEYS: Final[tuple[str, ...]] = ()
_ENCODER: Final = msgspec.msgpack.Encoder()


def normalized(key: str) -> str:
    """Return the label's current name; old manifests use others."""
    return labels.ALIASES.get(key, key)


def integer(text: str) -> int | None:
    """Return the text as an integer; None if it is none, or too large."""
    return int(text) if _INTEGER.fullmatch(text) else None


def is_met(requirement: NodeSelectorRequirement | LabelSelectorRequirement, value: str | None) -> bool:
    """Whether this value of the label meets the requirement; None is a missing label."""
    if requirement.operator == "NotIn":
        return value not in requirement.values
    if value is None or requirement.operator in {"Exists", "DoesNotExist"}:
        return (value is None) == (requirement.operator == "DoesNotExist")
    if requirement.operator == "In":
        return value in requirement.values
    number, limit = integer(value), integer(requirement.values[0]) if len(requirement.values) == 1 else None
    if number is None or limit is None:
        return False
    compared = {"Gt": number > limit, "Gte": number >= limit, "Lt": number < limit, "Lte": number <= limit}
    return compared.get(requirement.operator, False)


def selects(selector: LabelSelector | None, values: Mapping[str, str]) -> bool:
    """Whether a label selector selects these labels; a missing or malformed one selects nothing."""
    if selector is None:
        return False
    return all(values.get(key) == value for key, value in selector.match_labels.items()) and all(
        e.operator in _SELECTOR_OPERATORS and is_met(e, values.get(e.key)) for e in selector.match_expressions
    )


def untolerated(pod: Pod, taints: Iterable[Taint]) -> Taint | None:
    """Return the first taint that the pod does not tolerate; PreferNoSchedule does not count."""
    binding = (t for t in taints if t.effect != "PreferNoSchedule")
    return next((t for t in binding if not any(_tolerates(toleration, t) for toleration in pod.spec.tolerations)), None)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    if toleration.operator in {"Gt", "Lt"}:
        number, limit = integer(taint.value), integer(toleration.value)
        if not toleration.key or number is None or limit is None:
            return False
        return number > limit if toleration.operator == "Gt" else number < limit
    is_equal = toleration.operator in {"", "Equal"} and bool(toleration.key) and toleration.value == taint.value
    return is_equal or toleration.operator == "Exists"


class PortUse(NamedTuple):
    """A host port that a container takes; an empty address is every address of the node."""

    number: int
    protocol: str
    address: str


def conflicting_port(requested: Iterable[PortUse], taken: Sequence[PortUse]) -> PortUse | None:
    """Return the first requested port that is taken; None if all are free."""
    for port in requested:
        for other in taken:
            if port[:2] == other[:2] and (not port.address or not other.address or port.address == other.address):
                return port
    return None


class PodIdentity(NamedTuple):
    """Namespace and sorted labels of a pod, by which other pods' selectors select it."""

    namespace: str
    labels: tuple[tuple[str, str], ...]


class PodKind(Struct, frozen=True, eq=False):
    """Pods that differ only in their names; `pod` is one of them.

    `requests` are empty if they are `unreadable`, which says why. `node_requirements` are the node selector and the required
    node affinity. `volume_claims` are namespace and name of PersistentVolumeClaims; that of an ephemeral volume is named
    after pod and volume.
    """

    pod: Pod
    identity: PodIdentity
    requests: Mapping[str, int]
    unreadable: str
    node_requirements: tuple[Alternatives, ...]
    ports: tuple[PortUse, ...]
    volume_claims: tuple[tuple[str, str], ...]
    affinity: tuple[PodAffinityTerm, ...]
    anti_affinity: tuple[PodAffinityTerm, ...]

    @classmethod
    def of(cls, pod: Pod) -> PodKind:
        """Return the kind of a pod."""
        metadata, affinity = pod.metadata, pod.spec.affinity
        requests, unreadable = {}, ""
        try:
            requests = pod_requests(pod)
        except InvalidQuantityError as error:
            unreadable = error.message
        return cls(
            pod=pod,
            identity=PodIdentity(metadata.namespace, tuple(sorted(metadata.labels.items()))),
            requests=requests,
            unreadable=unreadable,
            node_requirements=tuple(_node_requirements(pod)),
            ports=tuple(
                PortUse(port.host_port, port.protocol or "TCP", "" if port.host_ip in _EVERY_ADDRESS else port.host_ip)
                for container in pod.spec.containers
                for port in container.ports
                if port.host_port
            ),
            volume_claims=tuple(
                (metadata.namespace, volume.persistent_volume_claim.claim_name)
                if volume.persistent_volume_claim is not None
                else (metadata.namespace, f"{metadata.name}-{volume.name}")
                for volume in pod.spec.volumes
                if volume.persistent_volume_claim is not None or volume.ephemeral is not None
            ),
            affinity=affinity.pod_affinity.required if affinity and affinity.pod_affinity else (),
            anti_affinity=affinity.pod_anti_affinity.required if affinity and affinity.pod_anti_affinity else (),
        )

    @property
    def asks_for_devices(self) -> bool:
        """Whether it has ResourceClaims."""
        containers = (*self.pod.spec.containers, *self.pod.spec.init_containers)
        return bool(self.pod.spec.resource_claims) or any(c.resources.claims for c in containers)

    def admits(self, key: str, value: str) -> bool:
        """Whether its requirements admit this value of the label."""
        return all(
            any(all(is_met(r, value) for r in terms if normalized(r.key) == key) for terms in alternatives)
            for alternatives in self.node_requirements
        )


def _node_requirements(pod: Pod) -> Iterator[Alternatives]:
    selector = sorted(pod.spec.node_selector.items())
    if selector:
        yield (tuple(NodeSelectorRequirement(key=k, operator="In", values=(v,)) for k, v in selector),)
    node_affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    if node_affinity is not None and node_affinity.required is not None:
        terms = node_affinity.required.node_selector_terms
        yield tuple(t.match_expressions for t in terms if t.match_expressions and not t.match_fields)


class PodKinds:
    """The kinds of all pods read so far."""

    def __init__(self) -> None:
        self._by_content: dict[bytes, PodKind] = {}

    def of(self, pod: Pod) -> PodKind:
        """Return the pod's kind: by all that a rule reads, and by its name if a volume is named after it."""
        metadata, spec = pod.metadata, pod.spec
        name = metadata.name if any(volume.ephemeral is not None for volume in spec.volumes) else ""
        who = (metadata.namespace, metadata.labels, name, is_daemon(pod), is_finished_or_terminating(pod))
        size = (spec.containers, spec.init_containers, spec.overhead, spec.resources, resize_of(pod), spec.volumes)
        where = (spec.node_selector, spec.affinity, spec.tolerations, spec.topology_spread_constraints)
        content = _ENCODER.encode((who, size, where, spec.resource_claims))
        kind = self._by_content.get(content)
        if kind is None:
            kind = self._by_content[content] = PodKind.of(pod)
        return kind


def is_opted_out(pod: Pod) -> bool:
    """Whether every term of its node affinity requires a node without a NodePool, so that the scheduler ignores it."""
    node_affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = node_affinity.required.node_selector_terms if node_affinity and node_affinity.required else ()
    terms = [term for term in required if term.match_expressions or term.match_fields]  # others match no node
    return bool(terms) and all(
        any(r.key == labels.NODEPOOL and r.operator == "DoesNotExist" for r in term.match_expressions) for term in terms
    )


def total_requests(kinds: Iterable[PodKind]) -> dict[str, int]:
    """Return the sum of the pods' requests."""
    total: dict[str, int] = {}
    for kind in kinds:
        for resource, amount in kind.requests.items():
            total[resource] = total.get(resource, 0) + amount
    return total


def is_finished_or_terminating(pod: Pod) -> bool:
    """Whether it has ended or is being deleted, so that no selector counts it."""
    return pod.metadata.deletion_timestamp is not None or pod.status.phase in {"Succeeded", "Failed"}


def is_daemon(pod: Pod) -> bool:
    """Whether a DaemonSet owns it."""
    return any(o.kind == "DaemonSet" and o.api_version.startswith("apps/") for o in pod.metadata.owner_references)


def daemon_of(daemon_set: DaemonSet, pods: Iterable[Pod]) -> PodKind:
    """Return the pod that a DaemonSet runs on each matching node, with the DaemonSet's name and UID.

    It is like the newest pod, resized or not, with the template's affinity.
    """
    template, uid = daemon_set.spec.template, daemon_set.metadata.uid
    own = (pod for pod in pods if any(o.controller and o.uid == uid for o in pod.metadata.owner_references))
    newest = max(own, key=_creation_order, default=Pod(metadata=template.metadata, spec=template.spec))
    metadata = replace(daemon_set.metadata, labels=newest.metadata.labels, deletion_timestamp=None)
    spec = replace(newest.spec, affinity=template.spec.affinity)
    return PodKind.of(Pod(metadata=metadata, spec=spec, status=newest.status))


def _creation_order(pod: Pod) -> tuple[float, str]:
    created = pod.metadata.creation_timestamp
    return (created.timestamp() if created is not None else 0.0), pod.key


class CountedPods(Struct, frozen=True, eq=False):
    """The pods that a constraint counts, by the values of node label `key`.

    `id` is equal if the same pods count over the same label. Namespaces are those named and those whose labels
    `namespace_selector` selects. A pod must have the values of the labels in `same`, and not those in `other`.
    """

    id: bytes
    key: str
    namespaces: frozenset[str]
    namespace_selector: LabelSelector | None
    selector: LabelSelector | None
    same: Mapping[str, str]
    other: Mapping[str, str]

    @classmethod
    def of(cls, pod: Pod, rule: PodAffinityTerm | TopologySpreadConstraint) -> CountedPods:
        """Return the pods that a spread constraint or a term of pod affinity or anti-affinity of this pod counts."""
        namespaces, selector, other = frozenset({pod.metadata.namespace}), None, _NO_KEYS
        if isinstance(rule, PodAffinityTerm):
            selector, other = rule.namespace_selector, rule.mismatch_label_keys
            if rule.namespaces or selector is not None:
                namespaces = frozenset(rule.namespaces)
        key, own = normalized(rule.topology_key), pod.metadata.labels
        same, unlike = ({k: own[k] for k in sorted(keys) if k in own} for keys in (rule.match_label_keys, other))
        parts = (key, sorted(namespaces), _sorted(selector), _sorted(rule.label_selector), same, unlike)
        return cls(_ENCODER.encode(parts), key, namespaces, selector, rule.label_selector, same, unlike)

    def counts(self, identity: PodIdentity, namespaces: Mapping[str, Object]) -> bool:
        """Whether a pod of this namespace and these labels is counted."""
        values, known = dict(identity.labels), namespaces.get(identity.namespace)
        is_covered = identity.namespace in self.namespaces or selects(
            self.namespace_selector, known.metadata.labels if known is not None else {}
        )
        return (
            is_covered
            and selects(self.selector, values)
            and all(values.get(key) == value for key, value in self.same.items())
            and all(values.get(key) != value for key, value in self.other.items())
        )


def _sorted(selector: LabelSelector | None) -> object:
    if selector is None:
        return None
    expressions = sorted((e.key, e.operator, sorted(e.values)) for e in selector.match_expressions)
    return sorted(selector.match_labels.items()), expressions
