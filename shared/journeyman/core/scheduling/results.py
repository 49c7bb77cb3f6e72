"""What the scheduler answers: planned NodeClaims, pods for existing nodes, and why the rest stays pending."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct, field

from journeyman.core.api.objects import NodeSelectorRequirement
from journeyman.core.catalogue import Resources


class PlannedDevice(Struct, frozen=True, kw_only=True):
    """A device that is there for a ResourceClaim (`namespace/name`); kube-scheduler may well give it another of the kind.

    `request` is the claim's request, or the alternative of it that was chosen (`request/alternative`). A device that is
    not `published` is to come with the node.
    """

    claim: str
    request: str
    driver: str
    pool: str
    device: str
    published: bool


class PlannedClaim(Struct, frozen=True, kw_only=True):
    """One node to open.

    `pods` are keys (`namespace/name`), sorted. `instance_types` are by price of their cheapest usable offering, then
    name; every one of them can hold all the pods plus its daemons. `requirements` are what the NodeClaim's spec gets
    (pool, zone if pinned, capacity types, instance types…), sorted by key. `requests` are the pods' sum plus the
    smallest daemon overhead among the types. `offering` is the cheapest (instance type, zone, capacity type) and
    `price` its hourly price. `min_values_relaxed`: the pool's minValues could not be met and were lowered.
    `reservations` are the ids of the reserved capacity that it holds, `overlays` the annotations that tell of
    NodeOverlays on its instance types. `devices` are there by instance type for its pods' ResourceClaims, and
    `dra_drivers` are to publish their devices before the node is ready for them.
    """

    node_pool: str
    pods: tuple[str, ...]
    instance_types: tuple[str, ...]
    requirements: tuple[NodeSelectorRequirement, ...]
    requests: Resources
    offering: tuple[str, str, str]
    price: float
    min_values_relaxed: bool = False
    reservations: tuple[str, ...] = ()
    overlays: tuple[str, ...] = ()
    devices: Mapping[str, tuple[PlannedDevice, ...]] = field(default_factory=dict)
    dra_drivers: tuple[str, ...] = ()


class PoolReason(Struct, frozen=True, kw_only=True):
    """Why one NodePool has no node for a pod.

    `kind` is for machines: taints, requirements, resources, offerings, limits, min-values, rules (about other pods),
    not-usable. Of the pool's `types_total` instance types `types_suiting` have the labels asked for, `types_fitting`
    are large enough as well, `types_available` can be had now too. `detail` says it in words. `unavailable_until` is
    the earliest time at which an offering that would do is tried again.
    """

    node_pool: str
    kind: str
    detail: str
    types_total: int = 0
    types_suiting: int = 0
    types_fitting: int = 0
    types_available: int = 0
    unavailable_until: datetime | None = None


class PodError(Struct, frozen=True, kw_only=True):
    """Why one pod is not placed. `kind` is for machines: unsupported, invalid, unschedulable, limits, no-nodepool, refused.

    `by_node_pool` gives each pool's own reason, ranked most helpful first; `reasons` are the same as data.
    `smallest_change` is what would be enough to give it a place, in words; empty if nobody looked for it.
    """

    kind: str
    message: str
    by_node_pool: Mapping[str, str] = field(default_factory=dict)
    reasons: tuple[PoolReason, ...] = ()
    smallest_change: str = ""

    def message_within(self, length: int) -> str:
        """The message in so many characters: where many NodePools have reasons, what would help is told all the same."""
        if len(self.message) <= length or not self.smallest_change:
            return self.message
        end = f"… Smallest change: {self.smallest_change}"
        return f"{self.message[: max(length - len(end), 0)]}{end}"


class Results(Struct, frozen=True, kw_only=True):
    """One pass of the scheduler.

    `existing` maps a StateNode's `name` to the pod keys planned onto it; `pod_errors` has every pod considered and not
    placed. `price` is the sum over `new_claims`; `lower_bound` is the linear-programming bound on it (0 if nothing
    new, or if nobody asks). `devices` are there by node name for the ResourceClaims of the pods in `existing`. `warnings`
    tell by NodePool what of its wishes could not be understood, though it is used.
    """

    new_claims: tuple[PlannedClaim, ...] = ()
    existing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pod_errors: Mapping[str, PodError] = field(default_factory=dict)
    price: float = 0.0
    lower_bound: float = 0.0
    unusable_node_pools: Mapping[str, str] = field(default_factory=dict)  # NodePools not used in this pass, with why
    warnings: Mapping[str, str] = field(default_factory=dict)
    devices: Mapping[str, tuple[PlannedDevice, ...]] = field(default_factory=dict)

    @property
    def gap(self) -> float:
        """By how much the plan is dearer than the bound, as a share of the bound; 0 without a bound."""
        return self.price / self.lower_bound - 1 if self.lower_bound > 0 else 0.0
