"""Dynamic resource allocation: pods whose ResourceClaims need devices go where these can be had.

`claims` finds a pod's claims and what they ask for (`demands`); `pools` are the devices there are, published by drivers or
promised by instance types; `search` chooses devices for one pod on one node; `allocations` remembers who holds what
while pods are placed; `devices` puts it all together for one question, and `granting` says who got what in the end. The
pods are placed one by one, as there are few and each takes something away from the others.

Which device a pod really gets is kube-scheduler's decision. What is planned here only has to be possible, whatever
instance type is launched.
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
