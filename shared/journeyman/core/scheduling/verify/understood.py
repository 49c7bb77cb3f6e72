"""Which pods the planner may place at all: every hard rule of theirs must be one that is understood."""

from __future__ import annotations

from journeyman.core.api import labels
from journeyman.core.api.objects import Pod
from journeyman.core.scheduling.verify.matching import selects
from journeyman.core.state import Snapshot

_SPREAD_KEYS = frozenset({labels.ZONE, labels.HOSTNAME})


def not_understood(pod: Pod, snapshot: Snapshot) -> str:
    """The first hard rule of this pod that the planner cannot honour yet; empty if there is none."""
    spec = pod.spec
    affinity = spec.affinity
    if affinity and affinity.pod_affinity and affinity.pod_affinity.required:
        return "it requires pod affinity"
    if affinity and affinity.pod_anti_affinity and affinity.pod_anti_affinity.required:
        return "it requires pod anti-affinity"
    if any(v.persistent_volume_claim or v.ephemeral is not None for v in spec.volumes):
        return "it has a persistent or ephemeral volume"
    if spec.resource_claims:
        return "it has resource claims"
    if any(port.host_port for container in spec.containers for port in container.ports):
        return "it has host ports"
    for constraint in spec.topology_spread_constraints:
        hard = constraint.when_unsatisfiable == "DoNotSchedule"
        if hard and labels.ALIASES.get(constraint.topology_key, constraint.topology_key) not in _SPREAD_KEYS:
            return f"it spreads over {constraint.topology_key}"
    return _repelled(pod, snapshot)


def _repelled(pod: Pod, snapshot: Snapshot) -> str:
    """A running pod's required anti-affinity that selects this pod."""
    for other in snapshot.pods:
        anti = other.spec.affinity.pod_anti_affinity if other.spec.affinity else None
        if anti is None or not other.spec.node_name or other.key == pod.key:
            continue
        for term in anti.required:
            everywhere = term.namespace_selector is not None
            here = pod.metadata.namespace in (term.namespaces or (other.metadata.namespace,))
            if (everywhere or here) and selects(term.label_selector, pod.metadata.labels):
                return f"the anti-affinity of pod {other.key} selects it"
    return ""
