"""Dynamic resource allocation: pods whose ResourceClaims need devices are scheduled where these are available.

`requests` reads a pod's ResourceClaims; `devices` are the device pools, published by drivers or promised by instance
types; `search` chooses devices for one pod on one node; `allocation` tracks which node's pods hold which devices while
pods are scheduled one by one.

kube-scheduler decides in the end which device a pod gets. A plan only has to be possible, whichever of a NodeClaim's
instance types is launched.
"""

from journeyman.core.scheduling.dra.allocation import (
    AllocatedDevice,
    AllocationOption,
    AllocationProposal,
    AllocationTarget,
    AllocationTracker,
    DeviceInventory,
    drivers_of,
    planned_devices,
)
from journeyman.core.scheduling.dra.requests import ClaimReader, DeviceDemand

__all__ = [
    "AllocatedDevice",
    "AllocationOption",
    "AllocationProposal",
    "AllocationTarget",
    "AllocationTracker",
    "ClaimReader",
    "DeviceDemand",
    "DeviceInventory",
    "drivers_of",
    "planned_devices",
]
