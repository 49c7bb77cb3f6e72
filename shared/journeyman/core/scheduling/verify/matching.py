"""Evaluates requirements, taints, selectors and host ports, and groups pods by kind.

Nodes that exist or may be launched are rows, with their labels in columns; every result is a set of rows. A set of rows
is the bits of an integer, so that a requirement is checked for 2,000 offerings with a few operations. A label of a row is
a set of values: the node will have one of them.

Restates: karpenter pkg/scheduling/hostportusage.go, pkg/scheduling/requirements.go, pkg/scheduling/taints.go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.objects import (
    DaemonSet,
    LabelSelector,
    LabelSelectorRequirement,
    NodeSelectorRequirement,
    Pod,
    PodAffinityTerm,
    PodSpec,
    Taint,
    Toleration,
)
from journeyman.core.api.resources import pod_requests, resize_of
from journeyman.errors import InvalidQuantityError

_INTEGER: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)

CORDON: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
"""The taint of a cordoned node, which the node lifecycle controller adds; kube-scheduler treats the field the same."""


def normalized(key: str) -> str:
    """Return the label's current name; old manifests use others."""
    return labels.ALIASES.get(key, key)


def integer(text: str) -> int | None:
    """Return the text as an integer; None if it is none, or too large."""
    return int(text) if _INTEGER.fullmatch(text) else None


def is_met(requirement: NodeSelectorRequirement, value: str | None) -> bool:
    """Whether a node with this value of the label meets the requirement; None is a node without the label."""
    if requirement.operator == "NotIn":
        return value not in requirement.values
    if requirement.operator == "DoesNotExist":
        return value is None
    if value is None:
        return False
    if requirement.operator == "Exists":
        return True
    if requirement.operator == "In":
        return value in requirement.values
    return _value_compares(requirement, value)


def _value_compares(requirement: NodeSelectorRequirement, value: str) -> bool:
    number, limit = integer(value), integer(requirement.values[0]) if len(requirement.values) == 1 else None
    if number is None or limit is None:
        return False
    if requirement.operator == "Gt":
        return number > limit
    if requirement.operator == "Gte":
        return number >= limit
    if requirement.operator == "Lt":
        return number < limit
    return requirement.operator == "Lte" and number <= limit


def always_met(requirement: NodeSelectorRequirement, values: Collection[str]) -> bool:
    """Whether each of these values meets the requirement; no values stand for a node without the label."""
    return all(is_met(requirement, value) for value in values) if values else is_met(requirement, None)


def ever_met(requirement: NodeSelectorRequirement, values: Collection[str]) -> bool:
    """Whether one of these values meets the requirement; no values stand for a node without the label."""
    return any(is_met(requirement, value) for value in values) if values else is_met(requirement, None)


def untolerated(pod: Pod, taints: Iterable[Taint]) -> Taint | None:
    """Return the first taint that the pod does not tolerate; PreferNoSchedule does not count."""
    binding = [t for t in taints if t.effect != "PreferNoSchedule"]
    return next((t for t in binding if not any(_tolerates(toleration, t) for toleration in pod.spec.tolerations)), None)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    if toleration.operator in {"Gt", "Lt"}:
        return _tolerates_number(toleration, taint)
    return bool(toleration.key) and toleration.operator in {"", "Equal"} and toleration.value == taint.value


def _tolerates_number(toleration: Toleration, taint: Taint) -> bool:
    """Numeric tolerations: the taint's value must be above (Gt) or below (Lt) the toleration's."""
    number, limit = integer(taint.value), integer(toleration.value)
    if not toleration.key or number is None or limit is None:
        return False
    return number > limit if toleration.operator == "Gt" else number < limit


def selects(selector: LabelSelector | None, values: Mapping[str, str]) -> bool:
    """Whether a label selector selects these labels; a missing or malformed one selects nothing."""
    if selector is None:
        return False
    return all(values.get(key) == value for key, value in selector.match_labels.items()) and all(
        _expression_holds(expression, values.get(expression.key)) for expression in selector.match_expressions
    )


def _expression_holds(expression: LabelSelectorRequirement, value: str | None) -> bool:
    if expression.operator == "In":
        return value in expression.values
    if expression.operator == "NotIn":
        return value not in expression.values
    if expression.operator == "Exists":
        return value is not None
    return expression.operator == "DoesNotExist" and value is None


Rows = int
"""A set of rows: bit i is row i."""

Values = frozenset[str] | None
"""Values that a label may get: empty if the node will not have the label, None if the label is undecided."""

Column = Mapping[Values, Rows]
"""Rows by values of the label; rows in no entry leave the label undecided."""

Alternatives = tuple[tuple[NodeSelectorRequirement, ...], ...]
"""Lists of requirements; a node must meet all requirements of one list. If empty, no node does."""

_NO_VALUES: frozenset[str] = frozenset()


class PossibleLabels:
    """Rows and their labels, immutable; results are cached."""

    def __init__(self, rows: Rows, columns: Mapping[str, Column]) -> None:
        self.rows = rows
        self._columns = columns
        self._cache: dict[tuple[Callable[..., bool], NodeSelectorRequirement], Rows] = {}

    def column(self, key: str) -> Iterator[tuple[Values, Rows]]:
        """Yield the label's values with their rows; each row occurs in one entry."""
        left = self.rows
        for values, rows in self._columns.get(key, {}).items():
            if rows & left:
                yield values, rows & left
                left &= ~rows
        if left:
            yield None, left

    def values(self, key: str, rows: Rows) -> frozenset[str]:
        """Return the values that the label may get in any of these rows."""
        found = (values for values, having in self.column(key) if values and having & rows)
        return _NO_VALUES.union(*found)

    def rows_meeting(self, node_requirements: Iterable[Alternatives]) -> Rows:
        """Return the rows that meet all of these, whichever values their labels get."""
        return self._rows(node_requirements, always_met)

    def rows_possibly_meeting(self, node_requirements: Iterable[Alternatives]) -> Rows:
        """Return the rows that meet all of these if their labels get the right values."""
        return self._rows(node_requirements, ever_met)

    def _rows(self, node_requirements: Iterable[Alternatives], met: Callable[..., bool]) -> Rows:
        rows = self.rows
        for alternatives in node_requirements:
            in_any = 0
            for requirements in alternatives:
                in_any |= self._meeting_all(requirements, met)
            rows &= in_any
        return rows

    def _meeting_all(self, requirements: Iterable[NodeSelectorRequirement], met: Callable[..., bool]) -> Rows:
        rows = self.rows
        for requirement in requirements:
            rows &= self._meeting(requirement, met)
        return rows

    def _meeting(self, requirement: NodeSelectorRequirement, met: Callable[..., bool]) -> Rows:
        found = self._cache.get((met, requirement))
        if found is None:
            entries = self.column(normalized(requirement.key))
            found = sum(rows for values, rows in entries if met(requirement, values or _NO_VALUES))
            self._cache[met, requirement] = found
        return found

    def narrowed(self, requirements: Sequence[NodeSelectorRequirement]) -> PossibleLabels:
        """Return the rows and values that meet these requirements. An undecided label gets a value that meets them."""
        by_key: dict[str, list[NodeSelectorRequirement]] = {}
        for requirement in requirements:
            by_key.setdefault(normalized(requirement.key), []).append(requirement)
        rows, columns = self.rows, dict(self._columns)
        for key, of_key in by_key.items():
            columns[key] = _narrowed(self.column(key), of_key)
            rows &= sum(columns[key].values())
        return PossibleLabels(rows, columns)


def _narrowed(
    column: Iterable[tuple[Values, Rows]], requirements: Sequence[NodeSelectorRequirement]
) -> dict[Values, Rows]:
    is_optional = all(is_met(requirement, None) for requirement in requirements)
    left: dict[Values, Rows] = {}
    for values, rows in column:
        if values:
            kept: Values = _meeting(values, requirements)
        elif is_optional:
            left[values] = left.get(values, 0) | rows
            continue
        else:
            kept = _undecided_values(requirements) if values is None else _NO_VALUES
        if kept:
            left[kept] = left.get(kept, 0) | rows
    return left


def _meeting(values: Iterable[str], requirements: Iterable[NodeSelectorRequirement]) -> frozenset[str]:
    return frozenset(v for v in values if all(is_met(requirement, v) for requirement in requirements))


def _undecided_values(requirements: Sequence[NodeSelectorRequirement]) -> frozenset[str]:
    """Return the values of an undecided label under these requirements; without In, one value stands for all."""
    listed = [r.values for r in requirements if r.operator == "In"]
    if listed:
        return _meeting(listed[0], requirements)
    bounds = [number for r in requirements for text in r.values if (number := integer(text)) is not None]
    candidates = [str(b + step) for b in (0, *bounds) for step in (-1, 0, 1)]
    return frozenset(next(([c] for c in candidates if _meeting([c], requirements)), []))


class PortUse(NamedTuple):
    """A host port that a container takes; an empty address is every address of the node."""

    number: int
    protocol: str
    address: str


_EVERY_ADDRESS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, never bound to


def ports_of(pod: Pod) -> tuple[PortUse, ...]:
    """Return the host ports of the pod's containers, init containers excluded."""
    return tuple(
        PortUse(port.host_port, port.protocol or "TCP", "" if port.host_ip in _EVERY_ADDRESS else port.host_ip)
        for container in pod.spec.containers
        for port in container.ports
        if port.host_port
    )


def conflicting_port(requested: Iterable[PortUse], taken: Iterable[PortUse]) -> PortUse | None:
    """Return the first requested port that is taken; None if all are free."""
    by_number: dict[tuple[int, str], list[str]] = {}
    for port in taken:
        by_number.setdefault((port.number, port.protocol), []).append(port.address)
    for port in requested:
        others = by_number.get((port.number, port.protocol), ())
        if any(not port.address or not other or port.address == other for other in others):
            return port
    return None


class PodIdentity(NamedTuple):
    """Namespace and sorted labels of a pod, by which other pods' selectors select it."""

    namespace: str
    labels: tuple[tuple[str, str], ...]


_KIND_ENCODER = msgspec.msgpack.Encoder()


class PodKind(Struct, eq=False, dict=True):
    """Pods that differ only in their names; `pod` is one of them. Derived facts are cached."""

    pod: Pod

    @cached_property
    def identity(self) -> PodIdentity:
        """The namespace and labels by which other pods' selectors count it."""
        return PodIdentity(self.pod.metadata.namespace, tuple(sorted(self.pod.metadata.labels.items())))

    @cached_property
    def requests(self) -> Mapping[str, int]:
        """Its resource requests; empty if they are invalid (`unreadable` says so)."""
        try:
            return pod_requests(self.pod)
        except InvalidQuantityError:
            return {}

    @cached_property
    def unreadable(self) -> str:
        """Why its requests are invalid; empty if they are valid."""
        try:
            pod_requests(self.pod)
        except InvalidQuantityError as error:
            return error.message
        return ""

    @cached_property
    def node_requirements(self) -> tuple[Alternatives, ...]:
        """Its requirements on a node's labels: its node selector, and one of the terms of its required node affinity."""
        spec = self.pod.spec
        selector = tuple(
            NodeSelectorRequirement(key=key, operator="In", values=(value,))
            for key, value in sorted(spec.node_selector.items())
        )
        node_requirements: list[Alternatives] = [(selector,)] if selector else []
        node_affinity = spec.affinity.node_affinity if spec.affinity else None
        if node_affinity is not None and node_affinity.required is not None:
            terms = node_affinity.required.node_selector_terms
            node_requirements.append(
                tuple(t.match_expressions for t in terms if t.match_expressions and not t.match_fields)
            )
        return tuple(node_requirements)

    def admits(self, key: str, value: str) -> bool:
        """Whether its requirements admit this value of the label."""
        values = (value,)
        return all(
            any(
                all(always_met(r, values) for r in requirements if normalized(r.key) == key)
                for requirements in alternatives
            )
            for alternatives in self.node_requirements
        )

    @cached_property
    def ports(self) -> tuple[PortUse, ...]:
        """Its host ports."""
        return ports_of(self.pod)

    @property
    def affinity(self) -> tuple[PodAffinityTerm, ...]:
        """Its required pod affinity."""
        affinity = self.pod.spec.affinity
        return affinity.pod_affinity.required if affinity and affinity.pod_affinity else ()

    @property
    def anti_affinity(self) -> tuple[PodAffinityTerm, ...]:
        """Its required pod anti-affinity."""
        affinity = self.pod.spec.affinity
        return affinity.pod_anti_affinity.required if affinity and affinity.pod_anti_affinity else ()

    @property
    def asks_for_devices(self) -> bool:
        """Whether it has ResourceClaims."""
        spec = self.pod.spec
        containers = (*spec.containers, *spec.init_containers)
        return bool(spec.resource_claims) or any(c.resources.claims for c in containers)

    @property
    def opted_out(self) -> bool:
        """Whether every term of its node affinity requires a node without a NodePool, so that the scheduler ignores it."""
        node_affinity = self.pod.spec.affinity.node_affinity if self.pod.spec.affinity else None
        required = node_affinity.required.node_selector_terms if node_affinity and node_affinity.required else ()
        terms = [term for term in required if term.match_expressions or term.match_fields]  # others match no node
        return bool(terms) and all(
            any(r.key == labels.NODEPOOL and r.operator == "DoesNotExist" for r in term.match_expressions)
            for term in terms
        )


class PodKinds:
    """The kinds of all pods read so far."""

    def __init__(self) -> None:
        self._by_content: dict[bytes, PodKind] = {}

    def of(self, pod: Pod) -> PodKind:
        """Return the pod's kind."""
        content = _kind_content(pod)
        kind = self._by_content.get(content)
        if kind is None:
            kind = self._by_content[content] = PodKind(pod)
        return kind


def _kind_content(pod: Pod) -> bytes:
    """Return everything in the pod that the checks use, including the name if a volume is named after it."""
    spec: PodSpec = pod.spec
    named = any(volume.ephemeral is not None for volume in spec.volumes)
    return _KIND_ENCODER.encode(
        (
            pod.metadata.namespace,
            pod.metadata.labels,
            pod.metadata.name if named else "",
            is_finished_or_terminating(pod),
            is_daemon(pod),
            spec.containers,
            spec.init_containers,
            spec.overhead,
            spec.resources,
            resize_of(pod),
            spec.node_selector,
            spec.affinity,
            spec.tolerations,
            spec.topology_spread_constraints,
            spec.volumes,
            spec.resource_claims,
        )
    )


def is_finished_or_terminating(pod: Pod) -> bool:
    """Whether it has ended or is being deleted, so that no selector counts it."""
    return pod.metadata.deletion_timestamp is not None or pod.status.phase in {"Succeeded", "Failed"}


def is_daemon(pod: Pod) -> bool:
    """Whether a DaemonSet owns it."""
    return any(o.kind == "DaemonSet" and o.api_version.startswith("apps/") for o in pod.metadata.owner_references)


def daemon_of(daemon_set: DaemonSet, pods: Iterable[Pod]) -> PodKind:
    """Return the pod that a DaemonSet runs on each matching node: like its newest, resized or not, with the template's affinity.

    It has the name and the UID of the DaemonSet.
    """
    template = daemon_set.spec.template
    own = (pod for pod in pods if _is_controlled_by(pod, daemon_set))
    newest = max(own, key=_creation_order, default=Pod(metadata=template.metadata, spec=template.spec))
    metadata = msgspec.structs.replace(daemon_set.metadata, labels=newest.metadata.labels, deletion_timestamp=None)
    spec = msgspec.structs.replace(newest.spec, affinity=template.spec.affinity)
    return PodKind(Pod(metadata=metadata, spec=spec, status=newest.status))


def _is_controlled_by(pod: Pod, daemon_set: DaemonSet) -> bool:
    return any(o.controller and o.uid == daemon_set.metadata.uid for o in pod.metadata.owner_references)


def _creation_order(pod: Pod) -> tuple[float, str]:
    created = pod.metadata.creation_timestamp
    return (created.timestamp() if created is not None else 0.0), pod.key
