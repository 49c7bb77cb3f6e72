"""The entry of a control plane in the application's list of clusters."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from journeyman_simulator.local_aws import KUBERNETES_VERSION, REGION, SERVICE_CIDR
from tests.controlplane.plane import ControlPlane


def registration(plane: ControlPlane, name: str, kubeconfig: Path) -> dict[str, Any]:
    """Return the cluster's entry for JOURNEYMAN_CLUSTERS.

    Args:
        plane: The cluster's control plane.
        name: The cluster's name in the application.
        kubeconfig: The kubeconfig with the application's identity in the cluster.
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
