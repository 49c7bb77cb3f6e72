"""What a node may have at most, by the NodeClaim's instance type: checked apart from what the scheduler believes.

Differs: Karpenter believes what a node reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from journeyman.core.api import labels
from journeyman.core.api.objects import Node, NodeClaim
from journeyman.core.api.resources import to_resources

_MOST_PODS: Final = 250
_UNITS: Final = {"cpu": 1000, "memory": 1 << 20}
"""In which the label `instance-cpu` or `instance-memory` counts a resource."""


def within_machine(
    reported: Mapping[str, int], claimed: Mapping[str, int], owner: NodeClaim | Node
) -> Mapping[str, int]:
    """Return what a node reports; what is more than its machine has counts as its NodeClaim has it.

    `owner` is the NodeClaim, or the Node if there is none.
    """
    capacity = to_resources(owner.status.capacity, round_up=False) if isinstance(owner, NodeClaim) else {}
    found = dict(reported)
    for name, amount in reported.items():
        limit = _limit("memory" if name.startswith("hugepages-") else name, capacity, owner.metadata.labels)
        if limit and amount * 10 > limit * 11:
            found[name] = claimed.get(name, limit)
    return found


def _limit(name: str, capacity: Mapping[str, int], own_labels: Mapping[str, str]) -> int:
    """Return what the machine has of a resource; 0 if that is unknown, or no matter of the machine."""
    if name == "pods":
        return max(capacity["pods"], _MOST_PODS) if capacity.get("pods") else 0
    if name not in _UNITS:
        return 0
    known = [own_labels.get(f"{group}/instance-{name}", "0") for group in labels.INSTANCE_TYPE_GROUPS]
    return max(capacity.get(name, 0), *(int(n) * _UNITS[name] for n in known if n.isdecimal() and len(n) < 10), 0)
