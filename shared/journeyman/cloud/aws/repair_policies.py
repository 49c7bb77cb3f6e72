"""Which node conditions mean on EKS that a node must be replaced.

The kubelet's own word, and the conditions that the EKS node monitoring agent adds to it.

Restates: karpenter-provider-aws pkg/cloudprovider/cloudprovider.go `RepairPolicies`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from journeyman.core.state import RepairPolicy

_HALF_AN_HOUR: Final = timedelta(minutes=30)
_TOLERATED: Final = (
    ("Ready", "False", _HALF_AN_HOUR),
    ("Ready", "Unknown", _HALF_AN_HOUR),
    ("AcceleratedHardwareReady", "False", timedelta(minutes=10)),
    ("StorageReady", "False", _HALF_AN_HOUR),
    ("NetworkingReady", "False", _HALF_AN_HOUR),
    ("KernelReady", "False", _HALF_AN_HOUR),
    ("ContainerRuntimeReady", "False", _HALF_AN_HOUR),
)

REPAIR_POLICIES: Final = tuple(
    RepairPolicy(condition=condition, status=status, tolerated_for=duration)
    for condition, status, duration in _TOLERATED
)
