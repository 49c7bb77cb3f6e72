"""The nodes that are already there, or on their way: what is free on them, once all their daemons run.

Order: initialized nodes first, then by name.

Restates: karpenter pkg/controllers/provisioning/scheduling/existingnode.go `NewExistingNode`, scheduler.go
`calculateExistingNodeClaims`.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct, field

from journeyman.core.api import labels
from journeyman.core.api.resources import to_resources
from journeyman.core.scheduling.arrays import Bools, Ints
from journeyman.core.scheduling.demand.topology import Census
from journeyman.core.scheduling.demand.volumes import VolumeRoom
from journeyman.core.scheduling.standing.node_columns import NodeColumns
from journeyman.core.state.state_node import StateNode


def allocatable_of(node: StateNode) -> dict[str, int]:
    """What pods and daemons may use: the node's word, gaps filled by its claim's; before launch what the claim asked for."""
    return _amounts(node, "allocatable")


def capacity_of(node: StateNode) -> dict[str, int]:
    """The node's whole size, from the same sources."""
    return _amounts(node, "capacity")


def _amounts(node: StateNode, field: str) -> dict[str, int]:
    said = to_resources(getattr(node.node.status, field), round_up=False) if node.node is not None else {}
    if node.claim is None or (node.initialized and said):
        return said
    promised = to_resources(getattr(node.claim.status, field), round_up=False)
    if not promised and not said:
        return to_resources(node.claim.spec.resources.requests, round_up=True)
    return {**promised, **{name: amount for name, amount in said.items() if amount}}


class Existing(Struct, frozen=True, kw_only=True, eq=False):
    """Nodes that can take pods, in filling order, and all nodes whose pods count, `standing`.

    `free` has a row per node and a column per axis (resources, then the caps' axes). `counted` and `bound` tell by node
    and conflict of the caps how many running pods are of either kind, `company` by node and group followed how many are
    there. `rooms` are what the nodes can attach (none if nothing limits that), `columns` their labels and taints
    (`standing_columns`: of all standing nodes, of which those marked for deletion are not `staying`), `census` counts
    the running pods.
    """

    nodes: tuple[StateNode, ...]
    free: Ints
    standing: tuple[StateNode, ...] = ()
    staying: Bools = field(default_factory=lambda: np.zeros(0, dtype=bool))
    census: Census = field(default_factory=lambda: Census((), (), ()))
    columns: NodeColumns = field(default_factory=lambda: NodeColumns(()))
    standing_columns: NodeColumns = field(default_factory=lambda: NodeColumns(()))
    counted: Ints = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    bound: Ints = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    company: Ints = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    rooms: tuple[VolumeRoom, ...] = ()


def is_leaving(node: StateNode) -> bool:
    """Whether the node is marked for deletion, so that its pods need another place and it takes none."""
    tainted = node.node is not None and any(t.key == labels.DISRUPTED_TAINT for t in node.node.spec.taints)
    return node.deleting or tainted
