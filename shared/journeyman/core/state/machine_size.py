"""What the machine of a NodeClaim has: its node is not believed to offer more, also while the NodeClaim is lost.

A kubelet may report any amount. One that reports 1,000 CPUs on a machine of 4 would attract all pods of the cluster: each other
node looks as if its pods fit there. So a node's CPU, memory and huge pages are at most those of the NodeClaim's instance type, and
its number of pods at most the usual limit, with a tolerance; beyond that, what the NodeClaim was launched with counts.

Ephemeral storage is that of disks, and extended resources are what device plugins make of their devices (time slices of a GPU,
say); neither is limited by the machine, so that these amounts are believed.

Differs: Karpenter believes what a node reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from journeyman.core.api import labels
from journeyman.core.api.objects import Node, NodeClaim
from journeyman.core.api.resources import CPU, MEMORY, PODS, Resources, to_resources

TOLERANCE: Final = 10
"""By how many percent a node may exceed its machine: the memory of machines of one type differs a little."""
USUAL_PODS: Final = 250
"""Pods that a large node usually may have; settings outside the NodeClass may allow more than its instance type's default."""
_MIB: Final = 2**20
_HUGEPAGES: Final = "hugepages-"


def machine_size(owner: NodeClaim | Node) -> dict[str, int]:
    """Return CPU, memory and pods of a machine, without those that are unknown.

    They are those of the instance type: its labels have all of the memory, its capacity what is left of it to the operating
    system.

    Args:
        owner: The machine's NodeClaim; its Node, which has the same labels, if there is none.

    Raises:
        InvalidQuantityError: A quantity of the NodeClaim does not parse.
    """
    capacity = to_resources(owner.status.capacity, round_up=False) if isinstance(owner, NodeClaim) else {}
    own = owner.metadata.labels
    labelled = {CPU: _label(own, "instance-cpu") * 1000, MEMORY: _label(own, "instance-memory") * _MIB}
    found = {name: max(amount, capacity.get(name, 0)) for name, amount in labelled.items()}
    if capacity.get(PODS):
        found[PODS] = max(capacity[PODS], USUAL_PODS)
    return {name: amount for name, amount in found.items() if amount}


def excess(reported: Resources, owner: NodeClaim | Node) -> dict[str, int]:
    """Return the resources of which a node reports more than its machine has, with what it has. Raises InvalidQuantityError."""
    size = machine_size(owner)
    has = {name: size.get(MEMORY if name.startswith(_HUGEPAGES) else name) for name in reported}
    return {n: limit for n, limit in has.items() if limit is not None and reported[n] * 100 > limit * (100 + TOLERANCE)}


def believable(reported: Resources, launched: Resources, owner: NodeClaim | Node) -> dict[str, int]:
    """Return what a node reports, without what its machine cannot have.

    Args:
        reported: The node's capacity or allocatable.
        launched: The same, with which the NodeClaim was launched; it counts in place of what is not believed.
        owner: The NodeClaim, or the Node if there is none.

    Raises:
        InvalidQuantityError: A quantity of the NodeClaim does not parse.
    """
    beyond = excess(reported, owner)
    return {name: launched.get(name, beyond[name]) if name in beyond else n for name, n in reported.items()}


def _label(found: Mapping[str, str], name: str) -> int:
    """Return a label of the instance type as a number; 0 if it is missing or none."""
    texts = (found.get(f"{group}/{name}", "") for group in labels.INSTANCE_TYPE_GROUPS)
    return max((int(text) for text in texts if text.isdecimal() and len(text) <= _MAX_DIGITS), default=0)


_MAX_DIGITS: Final = 9
