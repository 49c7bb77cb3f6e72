"""Dynamic resource allocation: pods whose ResourceClaims need devices are scheduled where these are available.

The scheduler sees only a `DeviceAllocator`, and a `ClaimReader` for the requests of each pod: `fits_existing` and
`propose` say whether a node has the devices, `commit` takes them, `planned` adds them to the plan. `requests` reads a
pod's ResourceClaims; `devices` are the device pools, published by drivers or promised by instance types; `search`
chooses devices for one pod on one node; `allocation` tracks which node's pods hold which devices.

kube-scheduler decides in the end which device a pod gets. A plan only has to be possible, whichever of a NodeClaim's
instance types is launched.
"""

from journeyman.core.scheduling.dra.allocation import AllocationProposal, DeviceAllocator
from journeyman.core.scheduling.dra.requests import ClaimReader, ClaimRequests

__all__ = ["AllocationProposal", "ClaimReader", "ClaimRequests", "DeviceAllocator"]
