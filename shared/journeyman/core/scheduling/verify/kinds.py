"""What one pod asks for. Pods that differ in nothing but their names are of one kind, and are read once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

import msgspec
from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.objects import DaemonSet, NodeSelectorRequirement, Pod, PodAffinityTerm, PodSpec
from journeyman.core.api.resources import pod_requests
from journeyman.core.scheduling.verify.matching import always_met, normalized
from journeyman.core.scheduling.verify.ports import Port, ports_of
from journeyman.core.scheduling.verify.possible import Alternatives
from journeyman.errors import InvalidQuantityError

Identity = tuple[str, tuple[tuple[str, str], ...]]
"""Namespace and labels of a pod, sorted: all that other pods' selectors look at."""

_ENCODER = msgspec.msgpack.Encoder()


class Kind(Struct, frozen=True, eq=False, dict=True):
    """One of the pods that are alike stands for all of them."""

    pod: Pod

    @cached_property
    def identity(self) -> Identity:
        """What makes it counted by other pods' rules."""
        return self.pod.metadata.namespace, tuple(sorted(self.pod.metadata.labels.items()))

    @cached_property
    def requests(self) -> Mapping[str, int]:
        """What it takes of a node; nothing if that cannot be read (`unreadable` says so)."""
        try:
            return pod_requests(self.pod)
        except InvalidQuantityError:
            return {}

    @cached_property
    def unreadable(self) -> str:
        """Why its requests cannot be read; empty if they can."""
        try:
            pod_requests(self.pod)
        except InvalidQuantityError as error:
            return error.message
        return ""

    @cached_property
    def wishes(self) -> tuple[Alternatives, ...]:
        """What it asks of a node's labels: its node selector, and one of the terms of its required node affinity."""
        spec = self.pod.spec
        selector = tuple(
            NodeSelectorRequirement(key=key, operator="In", values=(value,))
            for key, value in sorted(spec.node_selector.items())
        )
        wishes: list[Alternatives] = [(selector,)] if selector else []
        node_affinity = spec.affinity.node_affinity if spec.affinity else None
        if node_affinity is not None and node_affinity.required is not None:
            terms = node_affinity.required.node_selector_terms
            wishes.append(tuple(t.match_expressions for t in terms if t.match_expressions and not t.match_fields))
        return tuple(wishes)

    def admits(self, key: str, value: str) -> bool:
        """Whether it asks for nothing else of this label."""
        values = (value,)
        return all(
            any(all(always_met(r, values) for r in requirements if normalized(r.key) == key) for requirements in wish)
            for wish in self.wishes
        )

    @cached_property
    def ports(self) -> tuple[Port, ...]:
        """The ports of the node that it takes."""
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
        """Whether it needs resource claims (dynamic resource allocation)."""
        spec = self.pod.spec
        containers = (*spec.containers, *spec.init_containers)
        return bool(spec.resource_claims) or any(c.resources.claims for c in containers)

    @property
    def opted_out(self) -> bool:
        """Whether it insists on a node without a NodePool, and so is none of our business."""
        return any(
            requirement.key == labels.NODEPOOL and requirement.operator == "DoesNotExist"
            for alternatives in self.wishes
            for requirements in alternatives
            for requirement in requirements
        )


class Kinds:
    """The kinds of all pods met so far."""

    def __init__(self) -> None:
        self._by_content: dict[bytes, Kind] = {}
        self._by_pod: dict[int, Kind] = {}

    def of(self, pod: Pod) -> Kind:
        """The pod's kind."""
        known = self._by_pod.get(id(pod))
        if known is None:
            known = self._by_pod[id(pod)] = self._by_content.setdefault(_content(pod), Kind(pod))
        return known


def _content(pod: Pod) -> bytes:
    """All of the pod that matters here. The name does where a volume is called after it."""
    spec: PodSpec = pod.spec
    named = any(volume.ephemeral is not None for volume in spec.volumes)
    return _ENCODER.encode(
        (
            pod.metadata.namespace,
            pod.metadata.labels,
            pod.metadata.name if named else "",
            is_going(pod),
            is_daemon(pod),
            spec.containers,
            spec.init_containers,
            spec.overhead,
            spec.resources,
            spec.node_selector,
            spec.affinity,
            spec.tolerations,
            spec.topology_spread_constraints,
            spec.volumes,
            spec.resource_claims,
        )
    )


def is_going(pod: Pod) -> bool:
    """Whether it has ended or is being deleted, so that no selector counts it."""
    return pod.metadata.deletion_timestamp is not None or pod.status.phase in {"Succeeded", "Failed"}


def is_daemon(pod: Pod) -> bool:
    """Whether a DaemonSet owns it."""
    return any(o.kind == "DaemonSet" and o.api_version.startswith("apps/") for o in pod.metadata.owner_references)


def daemon_of(daemon_set: DaemonSet, pods: Iterable[Pod]) -> Kind:
    """The pod that a DaemonSet puts on each node that suits it: like its newest, but on the nodes the template names."""
    template = daemon_set.spec.template
    own = (pod for pod in pods if _is_controlled_by(pod, daemon_set))
    newest = max(own, key=_made, default=Pod(metadata=template.metadata, spec=template.spec))
    return Kind(
        msgspec.structs.replace(newest, spec=msgspec.structs.replace(newest.spec, affinity=template.spec.affinity))
    )


def _is_controlled_by(pod: Pod, daemon_set: DaemonSet) -> bool:
    return any(o.controller and o.uid == daemon_set.metadata.uid for o in pod.metadata.owner_references)


def _made(pod: Pod) -> tuple[float, str]:
    created = pod.metadata.creation_timestamp
    return (created.timestamp() if created is not None else 0.0), pod.key
