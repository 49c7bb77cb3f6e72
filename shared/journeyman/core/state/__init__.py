"""Snapshot: one cluster at one moment, immutable, indexed once."""

from journeyman.core.state.instances import BuildFailure, InstanceStatus, RepairPolicy
from journeyman.core.state.snapshot import InvalidObject, NodeClassState, Snapshot, Workloads
from journeyman.core.state.state_node import StateNode

__all__ = [
    "BuildFailure",
    "InstanceStatus",
    "InvalidObject",
    "NodeClassState",
    "RepairPolicy",
    "Snapshot",
    "StateNode",
    "Workloads",
]
