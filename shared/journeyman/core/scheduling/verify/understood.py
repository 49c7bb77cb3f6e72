"""Which pods the planner may place at all: every hard rule of theirs must be one that is understood."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from journeyman.core.api import labels
from journeyman.core.api.objects import Pod, PodAffinityTerm
from journeyman.core.scheduling.verify.matching import selects

_SPREAD_KEYS = frozenset({labels.ZONE, labels.HOSTNAME})


def not_understood(pod: Pod, repelling: Sequence[Pod]) -> str:
    """The first hard rule of this pod that the planner cannot honour yet; empty if there is none.

    Args:
        pod: The pod that was placed.
        repelling: Running pods with required anti-affinity, which may concern this one.
    """
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
    return next((f"the anti-affinity of pod {o.key} selects it" for o in repelling if _repels(o, pod)), "")


def repelling_pods(pods: Iterable[Pod]) -> tuple[Pod, ...]:
    """The running pods that have required anti-affinity."""
    return tuple(p for p in pods if p.spec.node_name and _anti_affinity(p))


def _anti_affinity(pod: Pod) -> tuple[PodAffinityTerm, ...]:
    anti = pod.spec.affinity.pod_anti_affinity if pod.spec.affinity else None
    return anti.required if anti else ()


def _repels(other: Pod, pod: Pod) -> bool:
    """Whether the other pod's anti-affinity selects this one."""
    if other.key == pod.key:
        return False
    for term in _anti_affinity(other):
        everywhere = term.namespace_selector is not None
        here = pod.metadata.namespace in (term.namespaces or (other.metadata.namespace,))
        if (everywhere or here) and selects(term.label_selector, pod.metadata.labels):
            return True
    return False
