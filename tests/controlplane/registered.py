"""The registration of a control plane as a cluster of the application."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from journeyman_simulator.local_deployment import KUBERNETES_VERSION, REGION, SERVICE_CIDR
from tests.controlplane.plane import ControlPlane


def registered(plane: ControlPlane, name: str, kubeconfig: Path) -> dict[str, Any]:
    """An entry of JOURNEYMAN_CLUSTERS.

    Args:
        plane: The cluster.
        name: What the application calls it.
        kubeconfig: Who the application is there.
    """
    return {
        "name": name,
        "region": REGION,
        "endpoint": plane.server,
        "certificateAuthority": base64.b64encode(plane.ca_file.read_bytes()).decode(),
        "kubernetesVersion": KUBERNETES_VERSION,
        "serviceCidr": SERVICE_CIDR,
        "access": {"kind": "kubeconfig", "path": str(kubeconfig)},
    }
