"""What a node must know to join the cluster, before it is written in its family's way.

Restates: karpenter-provider-aws pkg/providers/amifamily/bootstrap/bootstrap.go, resolver.go `resolveLaunchTemplates`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from journeyman.cloud.aws.families import CUSTOM, Family
from journeyman.core.api import labels
from journeyman.core.api.objects import NodeClaim, Taint

_UNREGISTERED: Final = Taint(key=labels.UNREGISTERED_TAINT, effect="NoExecute")


class Bootstrap(Struct, frozen=True, kw_only=True):
    """All that user data is made of. `kubelet` is `spec.kubelet` with maxPods (and clusterDNS, if known) filled in."""

    family: Family
    cluster_name: str
    cluster_endpoint: str
    cluster_ca: str
    service_cidr: str
    kubelet: Mapping[str, Any]
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    custom: str = ""
    raid0: bool = False
    ami_name: str = ""


def node_labels(claim: NodeClaim, capacity_type: str, family: Family) -> dict[str, str]:
    """Labels that the kubelet sets itself when it registers.

    The API server lets no kubelet set labels of the kubernetes.io and k8s.io domains; those follow at registration.
    """
    wanted = {**claim.metadata.labels, labels.CAPACITY_TYPE: capacity_type}
    if family is not CUSTOM:
        wanted[labels.DO_NOT_SYNC_TAINTS] = "true"
    return {key: wanted[key] for key in sorted(wanted) if not _is_kubernetes_domain(key)}


def _is_kubernetes_domain(key: str) -> bool:
    domain = key.split("/", 1)[0] if "/" in key else ""
    return any(domain == d or domain.endswith(f".{d}") for d in ("kubernetes.io", "k8s.io"))


def boot_taints(claim: NodeClaim) -> tuple[Taint, ...]:
    """Taints that the node registers with: the claim's, and the one that keeps pods off until we have seen it."""
    taints = (*claim.spec.taints, *claim.spec.startup_taints)
    known = any((t.key, t.effect) == (_UNREGISTERED.key, _UNREGISTERED.effect) for t in taints)
    return taints if known else (*taints, _UNREGISTERED)
