"""Pods collapsed into classes: pods that nothing in scheduling can tell apart become one row with a count.

A thousand replicas differ in name only. First the parts of their specs that constrain placement are compared byte by
byte (cheap), then the labels that any selector in this pass looks at. A pod that cannot be scheduled whatever the
nodes, because it is malformed or asks for something not understood, is an error here and takes no further part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from journeyman.core.api.objects import LabelSelector, Object, Pod, PodAffinityTerm, Toleration
from journeyman.core.api.resources import CPU, MEMORY, pod_requests
from journeyman.core.scheduling.host_ports import HostPort
from journeyman.core.scheduling.pods import invalid_reason, is_terminal, opted_out, selects, unsupported_reason
from journeyman.core.scheduling.requirements import (
    EMPTY,
    InvalidRequirementError,
    Requirements,
    from_labels,
    from_selectors,
)
from journeyman.core.scheduling.results import PodError
from journeyman.core.scheduling.topology import Group, Spread, spreads_of
from journeyman.errors import InvalidQuantityError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PodClass:
    """Pods that are alike. `pods` are in queue order; one of `terms` must hold for their node.

    `labels` are only those that some selector of this pass looks at. One of `volume_terms` must hold as well: where the
    pods' volumes can be had (`node_terms` are both together). `volume_counts` are volumes of its own that each pod
    attaches, by CSI driver; `shared_volumes` are (driver, claim key) of those it may share with others.

    Of the rules between pods `soft` names the groups (by id) that are only preferred: the class itself keeps to them as
    long as it is on this rung of its ladder, nobody else has to. `heeds_preferences`: it stays off nodes with an
    untolerated PreferNoSchedule taint.
    """

    pods: tuple[Pod, ...]
    namespace: str
    labels: Mapping[str, str]
    requests: Mapping[str, int]
    terms: tuple[Requirements, ...]
    tolerations: tuple[Toleration, ...]
    spreads: tuple[Spread, ...]
    affinities: tuple[Group, ...] = ()
    anti_affinities: tuple[Group, ...] = ()
    soft: frozenset[bytes] = frozenset()
    ports: tuple[HostPort, ...] = ()
    volume_terms: tuple[Requirements, ...] = (EMPTY,)
    volume_counts: Mapping[str, int] = field(default_factory=dict)
    shared_volumes: tuple[tuple[str, str], ...] = ()
    heeds_preferences: bool = False

    @property
    def node_terms(self) -> tuple[Requirements, ...]:
        """The alternatives for its node, its volumes' included; contradictory combinations are left out."""
        if self.volume_terms == (EMPTY,):
            return self.terms
        both = (term & volumes for term in self.terms for volumes in self.volume_terms)
        return tuple(wanted for wanted in both if not any(r.impossible for r in wanted.values()))

    @property
    def keys(self) -> tuple[str, ...]:
        """The pods' `namespace/name`, in queue order."""
        return tuple(pod.key for pod in self.pods)


@dataclass(frozen=True, slots=True, kw_only=True)
class AntiAffinity:
    """A required anti-affinity term of a pod that runs: pods it selects must keep away from that pod's domain."""

    owner: str
    namespace: str
    term: PodAffinityTerm

    def selects(self, namespace: str, values: Mapping[str, str], namespaces: Mapping[str, Object]) -> bool:
        """Whether it is about a pod of this namespace with these labels."""
        return self._covers(namespace, namespaces) and selects(self.term.label_selector, values)

    def _covers(self, namespace: str, namespaces: Mapping[str, Object]) -> bool:
        if namespace in (
            self.term.namespaces or (() if self.term.namespace_selector is not None else (self.namespace,))
        ):
            return True
        known = namespaces.get(namespace)
        return selects(self.term.namespace_selector, known.metadata.labels if known is not None else {})


def requirement_terms(pod: Pod) -> tuple[Requirements, ...]:
    """The alternatives for its node: its node selector together with each required node affinity term, in order.

    Raises:
        InvalidRequirementError: An expression cannot be read.
    """
    selector = from_labels(pod.spec.node_selector) if pod.spec.node_selector else EMPTY
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    if affinity is None or affinity.required is None:
        return (selector,)
    return tuple(selector & from_selectors(t.match_expressions) for t in affinity.required.node_selector_terms)


def running_anti_affinities(pods: Iterable[Pod]) -> tuple[AntiAffinity, ...]:
    """The required anti-affinity terms of pods on nodes, each distinct term once."""
    found: dict[bytes, AntiAffinity] = {}
    for pod in pods:
        affinity = pod.spec.affinity.pod_anti_affinity if pod.spec.affinity is not None else None
        if affinity is None or not pod.spec.node_name or is_terminal(pod):
            continue
        for term in affinity.required:
            entry = AntiAffinity(owner=pod.key, namespace=pod.metadata.namespace, term=term)
            found.setdefault(msgspec.msgpack.encode((entry.namespace, term)), entry)
    return tuple(found.values())


def collapse(
    pods: Sequence[Pod], anti_affinities: Sequence[AntiAffinity], namespaces: Mapping[str, Object]
) -> tuple[tuple[PodClass, ...], dict[str, PodError]]:
    """Classes in queue order (CPU descending, memory descending, oldest first), and errors by pod key.

    Pods that opted out of our nodes are in neither.

    Restates: karpenter pkg/controllers/provisioning/scheduling/queue.go `byCPUAndMemoryDescending`, per class.
    """
    alike: dict[bytes, list[Pod]] = {}
    for pod in sorted(pods, key=_age):
        alike.setdefault(_constraints(pod), []).append(pod)
    watched = _watched_labels((group[0] for group in alike.values()), anti_affinities)
    classes: list[PodClass] = []
    errors: dict[str, PodError] = {}
    for group in alike.values():
        for members in _by_labels(group, watched):
            made = _class_of(members, watched, anti_affinities, namespaces)
            if isinstance(made, PodClass):
                classes.append(made)
            elif made is not None:
                errors.update((pod.key, made) for pod in members)
    classes.sort(key=lambda c: (-c.requests.get(CPU, 0), -c.requests.get(MEMORY, 0), _age(c.pods[0])))
    return tuple(classes), errors


def _age(pod: Pod) -> tuple[float, str, str]:
    created = pod.metadata.creation_timestamp
    return (created.timestamp() if created is not None else 0.0, pod.metadata.uid, pod.key)


def _constraints(pod: Pod) -> bytes:
    """Everything in the spec that decides where it may run, as bytes; per-pod volume names are left out."""
    spec = pod.spec
    volumes = [v for v in spec.volumes if v.persistent_volume_claim is not None or v.ephemeral is not None]
    return msgspec.msgpack.encode(
        (
            spec.containers,
            spec.init_containers,
            spec.overhead,
            spec.resources,
            spec.node_selector,
            spec.affinity,
            spec.tolerations,
            spec.topology_spread_constraints,
            volumes,
            spec.resource_claims,
        )
    )


def _watched_labels(samples: Iterable[Pod], anti_affinities: Sequence[AntiAffinity]) -> tuple[str, ...]:
    """The label keys that any selector looks at, sorted."""
    keys: set[str] = set()
    for pod in samples:
        for constraint in pod.spec.topology_spread_constraints:
            keys |= _keys(constraint.label_selector) | set(constraint.match_label_keys)
    for entry in anti_affinities:
        keys |= _keys(entry.term.label_selector)
    return tuple(sorted(keys))


def _keys(selector: LabelSelector | None) -> set[str]:
    if selector is None:
        return set()
    return {*selector.match_labels, *(e.key for e in selector.match_expressions)}


def _by_labels(group: list[Pod], watched: tuple[str, ...]) -> Iterable[list[Pod]]:
    """The group split by namespace and watched labels; order within and between is kept."""
    split: dict[tuple[str | None, ...], list[Pod]] = {}
    for pod in group:
        own = pod.metadata.labels
        split.setdefault((pod.metadata.namespace, *(own.get(key) for key in watched)), []).append(pod)
    return split.values()


def _class_of(
    pods: list[Pod],
    watched: tuple[str, ...],
    anti_affinities: Sequence[AntiAffinity],
    namespaces: Mapping[str, Object],
) -> PodClass | PodError | None:
    """The class of pods that are alike, or why none of them can be scheduled; None if they opted out."""
    sample = pods[0]
    if opted_out(sample):
        return None
    invalid = invalid_reason(sample)
    if invalid:
        return PodError(kind="invalid", message=invalid)
    unsupported = unsupported_reason(sample)
    if unsupported:
        return PodError(kind="unsupported", message=unsupported)
    own = {key: sample.metadata.labels[key] for key in watched if key in sample.metadata.labels}
    for entry in anti_affinities:
        if entry.selects(sample.metadata.namespace, own, namespaces):
            message = (
                f"required anti-affinity of running pod {entry.owner} selects this pod, which is not supported yet"
            )
            return PodError(kind="unsupported", message=message)
    try:
        return PodClass(
            pods=tuple(pods),
            namespace=sample.metadata.namespace,
            labels=own,
            requests=pod_requests(sample),
            terms=requirement_terms(sample),
            tolerations=sample.spec.tolerations,
            spreads=spreads_of(sample),
        )
    except (InvalidQuantityError, InvalidRequirementError) as error:
        return PodError(kind="invalid", message=error.message)
