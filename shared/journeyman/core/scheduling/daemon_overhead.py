"""Computes the resources and host ports that DaemonSets use on each node.

Restates: karpenter pkg/controllers/provisioning/scheduling/scheduler.go `buildDaemonOverheadGroups`,
`isDaemonPodCompatible`; provisioner.go `getDaemonSetPods`.
Differs: a daemon that fits on no instance type of a NodePool is not counted there; Karpenter launches no node then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.objects import DaemonSet, ObjectMeta, Pod, PodSpec, Toleration
from journeyman.core.api.resources import absurd_request, add, pod_requests
from journeyman.core.scheduling.arrays import Bools
from journeyman.core.scheduling.nodeclaim_templates import NodeClaimTemplate, promised_labels
from journeyman.core.scheduling.pod_classes import HostPort, host_ports, requirement_terms
from journeyman.core.scheduling.pod_validation import has_resource_claims
from journeyman.core.scheduling.requirements import EMPTY, Requirements, always_meets, from_labels
from journeyman.core.state.pod_predicates import is_owned_by_daemon_set
from journeyman.core.state.skipped_objects import SkippedObject, evaluate_each, ref_of
from journeyman.core.state.state_node import StateNode
from journeyman.core.state.taints import untolerated
from journeyman.errors import ConfigurationError


class Daemon(Struct, frozen=True, kw_only=True, eq=False):
    """The pod of one DaemonSet, its requests and constraints; a node must meet one of `terms`."""

    name: str
    pod: Pod
    namespace: str = ""
    uid: str = ""
    requests: Mapping[str, int]
    tolerations: tuple[Toleration, ...]
    terms: tuple[Requirements, ...]
    ports: tuple[HostPort, ...] = ()
    priority: int = 0
    left_out_of: frozenset[str] = frozenset()
    """The NodePools whose nodes are planned without it, because it does not fit there beside others."""


def make_daemons(
    daemon_sets: Sequence[DaemonSet], pods: Iterable[Pod] = (), *, ignore_dra_requests: bool = False
) -> tuple[tuple[Daemon, ...], tuple[SkippedObject, ...]]:
    """Return one Daemon per DaemonSet, in order, and the DaemonSets whose pods no node can run.

    Args:
        daemon_sets: Each is represented by its newest pod, which a webhook may have changed; without pods, by its
            template.
        pods: The cluster's pods.
        ignore_dra_requests: Whether DaemonSets whose pods have ResourceClaims count for nothing.
    """
    newest = _newest_by_owner(pods) if daemon_sets else {}
    counted = [
        daemon_set
        for daemon_set in daemon_sets
        if not ignore_dra_requests or not has_resource_claims(_representative(daemon_set, newest))
    ]
    return evaluate_each(counted, lambda daemon_set: _daemon(daemon_set, _representative(daemon_set, newest)))


def _representative(daemon_set: DaemonSet, newest: Mapping[str, Pod]) -> Pod:
    template = daemon_set.spec.template
    return newest.get(daemon_set.metadata.uid) or Pod(metadata=template.metadata, spec=template.spec)


def _newest_by_owner(pods: Iterable[Pod]) -> dict[str, Pod]:
    """Return the newest pod of each DaemonSet, by the DaemonSet's UID."""
    owned = [
        (owner.uid, pod)
        for pod in pods
        for owner in pod.metadata.owner_references
        if owner.controller and owner.kind == "DaemonSet"
    ]
    return dict(sorted(owned, key=lambda entry: _creation_order(entry[1])))


def _creation_order(pod: Pod) -> tuple[float, str]:
    created = pod.metadata.creation_timestamp
    return (created.timestamp() if created is not None else 0.0), pod.key


def _daemon(daemon_set: DaemonSet, pod: Pod) -> Daemon:
    """Return the DaemonSet's pod.

    The node affinity is that of the template, because a running pod's affinity names its own node.

    Raises:
        ConfigurationError: The pod is invalid, or asks for more than any node can have.
    """
    requests = pod_requests(pod)
    if absurd := absurd_request(requests):
        raise ConfigurationError(f"its pod {absurd}, so no node will run it")
    affinity = daemon_set.spec.template.spec.affinity
    own = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, affinity=affinity))
    metadata = ObjectMeta(
        name=daemon_set.metadata.name, namespace=daemon_set.metadata.namespace, labels=pod.metadata.labels
    )
    return Daemon(
        name=daemon_set.metadata.name,
        pod=Pod(metadata=metadata, spec=own.spec),
        namespace=daemon_set.metadata.namespace,
        uid=daemon_set.metadata.uid,
        requests=requests,
        tolerations=pod.spec.tolerations,
        terms=requirement_terms(own),
        ports=host_ports(pod),
        priority=_priority(pod.spec),
    )


def _priority(spec: PodSpec) -> int:
    """Return the pod's priority; that of a template, as far as its class is one of Kubernetes' own."""
    return spec.priority if spec.priority is not None else _SYSTEM_PRIORITIES.get(spec.priority_class_name, 0)


_SYSTEM_PRIORITIES: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


def report_oversized(templates: Iterable[NodeClaimTemplate], daemons: Iterable[Daemon]) -> tuple[SkippedObject, ...]:
    """Return the daemons that match a template on none of whose instance types they fit."""
    usable = [template for template in templates if template.table.types]
    return tuple(
        SkippedObject(
            refs=(ref_of("DaemonSet", daemon.name, daemon.namespace, daemon.uid),),
            why=f"its pod fits on no instance type of NodePool {', '.join(names)}, so nodes are launched without it",
        )
        for daemon in daemons
        if (names := [t.name for t in usable if _types_matching(t, daemon).any() and not runs_on(t, daemon)])
    )


def runs_on(template: NodeClaimTemplate, daemon: Daemon) -> bool:
    """Return whether nodes of any instance type of the template are to run this daemon."""
    return bool(types_running(template, daemon).any())


def types_running(template: NodeClaimTemplate, daemon: Daemon) -> Bools:
    """Return for each instance type whether its nodes are to run this daemon.

    None if it fits on no type, available or not: its pods stay pending wherever nodes are launched, and must not keep
    all others pending too. If it fits on one type, the others are not launched.
    """
    matching, table = _types_matching(template, daemon), template.table
    if template.name in daemon.left_out_of:
        return np.zeros_like(matching)
    fitting = template.types & matching
    for resource, amount in daemon.requests.items():
        fitting &= table.amounts(resource, allocatable=True) >= amount
    return matching if fitting.any() else np.zeros_like(matching)


def _types_matching(template: NodeClaimTemplate, daemon: Daemon) -> Bools:
    """Return for each instance type whether its nodes suit the daemon: it tolerates them, and a term matches."""
    matching: Bools = np.zeros(len(template.table.types), dtype=bool)
    if untolerated(template.taints, daemon.tolerations) is None:
        for term in daemon.terms:
            if template.requirements.is_compatible(term, allow_undefined=labels.WELL_KNOWN):
                matching |= template.table.types_meeting(term)
    return matching


def daemons_of(node: StateNode, daemons: Iterable[Daemon]) -> Iterator[Daemon]:
    """Yield the daemons that belong on this node, running or not; before launch, those that each possible node runs."""
    offered = from_labels(node.labels)
    promised = promised_labels(node) if node.claim is not None and not node.provider_id else EMPTY
    for daemon in daemons:
        tolerates = untolerated(node.taints, daemon.tolerations) is None and node.node_pool not in daemon.left_out_of
        if tolerates and any(
            offered.is_compatible(term) or (promised and always_meets(promised, term)) for term in daemon.terms
        ):
            yield daemon


def missing_daemon_overhead(node: StateNode, daemons: Iterable[Daemon]) -> dict[str, int]:
    """Return the resources, by name, that daemons will use on this node in addition to those that already run there."""
    expected = add(*(daemon.requests for daemon in daemons_of(node, daemons)))
    running = add(*(pod_requests(pod) for pod in node.pods if is_owned_by_daemon_set(pod)))
    return {name: max(amount - running.get(name, 0), 0) for name, amount in expected.items()}
