"""What pods, labels, taints, selectors, ports, volumes and NodePools mean; shares no code with the solver.

Restates: karpenter pkg/scheduling/hostportusage.go, pkg/scheduling/requirements.go, pkg/scheduling/taints.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import (
    LabelSelector,
    LabelSelectorRequirement,
    NodeSelectorRequirement,
    Pod,
    PodAffinityTerm,
    Taint,
    Toleration,
)
from journeyman.core.api.resources import absurd_request, add, pod_requests, resize_of
from journeyman.core.state import Snapshot, StateNode
from journeyman.errors import InvalidQuantityError

if TYPE_CHECKING:  # the models build validators; nothing here needs them
    from journeyman.core.api.nodepool import NodePool

Alternatives = tuple[tuple[NodeSelectorRequirement, ...], ...]
"""Lists of requirements; a node must meet all requirements of one list. If empty, no node does."""

_CORDON: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
"""The taint of a cordoned node, which the node lifecycle controller adds; kube-scheduler treats the field the same."""

_INTEGER: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_SELECTOR_OPERATORS: Final = frozenset({"In", "NotIn", "Exists", "DoesNotExist"})
_EVERY_ADDRESS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, never bound to
ENCODER: Final = msgspec.msgpack.Encoder(order="deterministic")


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
    operator = "In" if toleration.operator in {"", "Equal"} else toleration.operator
    required = NodeSelectorRequirement(key=taint.key, operator=operator, values=(toleration.value,))
    compares = bool(toleration.key) and operator in {"In", "Gt", "Lt"} and is_met(required, taint.value)
    return compares or operator == "Exists"


Port = tuple[int, str, str]
"""A host port that a container takes: number, protocol and address; an empty address is every address of the node."""


def conflicting_port(requested: Iterable[Port], taken: Sequence[Port]) -> str:
    """Return the first requested port that is taken, as `number/protocol`; empty if all are free."""
    for number, protocol, address in requested:
        for *port, other in taken:
            if port == [number, protocol] and (address == other or "" in (address, other)):
                return f"{number}/{protocol}"
    return ""


class PodKind(Struct, frozen=True, eq=False):
    """Pods that differ only in their names; `pod` is one of them.

    `requests` are empty if they are `unreadable`, which says why. `node_requirements` are the node selector and the
    required node affinity. `volume_claims` are namespace and name of PersistentVolumeClaims; that of an ephemeral
    volume is named after pod and volume.
    """

    pod: Pod
    requests: Mapping[str, int]
    unreadable: str
    node_requirements: tuple[Alternatives, ...]
    ports: tuple[Port, ...]
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
            requests=requests,
            unreadable=unreadable,
            node_requirements=tuple(_node_requirements(pod)),
            ports=tuple(
                (port.host_port, port.protocol or "TCP", "" if port.host_ip in _EVERY_ADDRESS else port.host_ip)
                for container in pod.spec.containers
                for port in container.ports
                if port.host_port
            ),
            volume_claims=tuple(
                (metadata.namespace, source.claim_name if source is not None else f"{metadata.name}-{volume.name}")
                for volume in pod.spec.volumes
                for source in (volume.persistent_volume_claim,)
                if source is not None or volume.ephemeral is not None
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


def kinds_of(pods: Iterable[Pod]) -> dict[str, PodKind]:
    """Return the kinds of pods by key: by all that a rule reads, and by the name if a volume is named after it."""
    found: dict[str, PodKind] = {}
    by_content: dict[bytes, PodKind] = {}
    for pod in pods:
        name = pod.metadata.name if any(volume.ephemeral is not None for volume in pod.spec.volumes) else ""
        status = is_daemon(pod), is_finished_or_terminating(pod), resize_of(pod)
        spec = replace(pod.spec, node_name="")
        content = ENCODER.encode((pod.metadata.namespace, pod.metadata.labels, name, status, spec))
        kind = by_content.get(content)
        found[pod.key] = by_content[content] = kind if kind is not None else PodKind.of(pod)
    return found


def total_requests(kinds: Iterable[PodKind]) -> dict[str, int]:
    """Return the sum of the pods' requests."""
    return add(*(kind.requests for kind in kinds))


def taints_of(state: StateNode) -> tuple[Taint, ...]:
    """Return the taints that pods on an existing node must tolerate."""
    is_cordoned = state.node is not None and state.node.spec.unschedulable
    return (*state.taints, _CORDON) if is_cordoned else state.taints


def pods_by_node(snapshot: Snapshot) -> dict[str, list[str]]:
    """Return the keys of the pods that are bound or nominated to each existing node, by its name."""
    found = {state.name: [pod.key for pod in state.pods] for state in snapshot.state_nodes}
    for pod in snapshot.pods:
        if pod.status.nominated_node_name in found and not pod.spec.node_name and not is_finished_or_terminating(pod):
            found[pod.status.nominated_node_name].append(pod.key)
    return found


def is_finished_or_terminating(pod: Pod) -> bool:
    """Whether it has ended or is being deleted, so that no selector counts it."""
    return pod.metadata.deletion_timestamp is not None or pod.status.phase in {"Succeeded", "Failed"}


def is_opted_out(pod: Pod) -> bool:
    """Whether every term of its node affinity requires a node without a NodePool, so that the scheduler ignores it."""
    node_affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = node_affinity.required.node_selector_terms if node_affinity and node_affinity.required else ()
    terms = [term for term in required if term.match_expressions or term.match_fields]  # others match no node
    return bool(terms) and all(
        any(r.key == labels.NODEPOOL and r.operator == "DoesNotExist" for r in term.match_expressions) for term in terms
    )


def is_daemon(pod: Pod) -> bool:
    """Whether a DaemonSet owns it."""
    return any(o.kind == "DaemonSet" and o.api_version.startswith("apps/") for o in pod.metadata.owner_references)


def daemons_of(snapshot: Snapshot, *, ignore_dra_requests: bool) -> tuple[PodKind, ...]:
    """Return the pod that each DaemonSet runs on each matching node, with the DaemonSet's name and UID.

    It is like the newest pod, resized or not, with the template's affinity. One with invalid requests, or requests
    beyond any node, never runs; those with ResourceClaims are left out if these are ignored.
    """
    newest: dict[str, Pod] = {}
    for pod in sorted(filter(is_daemon, snapshot.pods), key=_creation_order):
        newest.update({owner.uid: pod for owner in pod.metadata.owner_references if owner.controller})
    found = []
    for daemon_set in snapshot.daemon_sets:
        template = daemon_set.spec.template
        pod = newest.get(daemon_set.metadata.uid, Pod(metadata=template.metadata, spec=template.spec))
        metadata = replace(daemon_set.metadata, labels=pod.metadata.labels, deletion_timestamp=None)
        spec = replace(pod.spec, affinity=template.spec.affinity)
        found.append(PodKind.of(Pod(metadata=metadata, spec=spec, status=pod.status)))
    running = (kind for kind in found if not (kind.unreadable or absurd_request(kind.requests)))
    return tuple(kind for kind in running if not (ignore_dra_requests and kind.asks_for_devices))


def _creation_order(pod: Pod) -> tuple[float, str]:
    created = pod.metadata.creation_timestamp
    return (created.timestamp() if created is not None else 0.0), pod.key


def why_unusable(pool: NodePool, snapshot: Snapshot) -> str:
    """Return why the NodePool may launch no nodes; empty if it may, or if it only waits after failed launches."""
    node_class = snapshot.node_class_of(pool)
    is_ready = node_class is not None and node_class.ready and not node_class.deleting
    reasons = {
        "has a fixed number of nodes": pool.spec.static,
        "is being deleted": pool.metadata.deletion_timestamp is not None,
        "hibernates": pool.is_hibernating(snapshot.now),
        "has no NodeClass that is ready": not is_ready,
    }
    return next((why for why, is_so in reasons.items() if is_so), "")


class Volumes:
    """The volumes of a snapshot, and how many each CSI driver attaches to a Node (`limits`)."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._claims = {(c.metadata.namespace, c.metadata.name): c for c in snapshot.persistent_volume_claims}
        self._volumes = {volume.metadata.name: volume for volume in snapshot.persistent_volumes}
        self._classes = {found.metadata.name: found for found in snapshot.storage_classes}
        self.limits = {
            node.metadata.name: {d.name: d.allocatable.count for d in node.spec.drivers if d.allocatable is not None}
            for node in snapshot.csi_nodes
        }

    def of(self, name: tuple[str, str]) -> tuple[str, Alternatives] | None:
        """Return the CSI driver of a claim's volume, and the requirements on nodes that reach it; None without any."""
        claim = self._claims.get(name)
        if claim is None or claim.metadata.deletion_timestamp is not None or claim.status.phase == "Lost":
            return None
        if not claim.spec.volume_name:
            found = self._classes.get(claim.spec.storage_class_name or "")
            if found is None or found.volume_binding_mode == "Immediate":
                return None
            allowed = (t.match_label_expressions for t in found.allowed_topologies if t.match_label_expressions)
            return found.provisioner, tuple(
                tuple(NodeSelectorRequirement(key=e.key, operator="In", values=e.values) for e in t) for t in allowed
            )
        volume = self._volumes.get(claim.spec.volume_name)
        is_bound = labels.BIND_COMPLETED in claim.metadata.annotations
        if volume is None or volume.metadata.deletion_timestamp is not None or not is_bound:
            return None
        affinity = volume.spec.node_affinity.required if volume.spec.node_affinity is not None else None
        terms = [term.match_expressions for term in (affinity.node_selector_terms if affinity is not None else ())]
        if volume.spec.local is not None or volume.spec.host_path is not None:
            terms = [tuple(e for e in term if normalized(e.key) != labels.HOSTNAME) for term in terms]
        return volume.spec.csi.driver if volume.spec.csi is not None else "", tuple(terms) if all(terms) else ()
