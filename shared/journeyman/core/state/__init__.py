"""Snapshot: one cluster at one moment, immutable, indexed once."""

from journeyman.core.state.health import InstanceStatus, RepairPolicy
from journeyman.core.state.snapshot import NodeClassState, SetAside, Snapshot, StateNode, Workloads

__all__ = ["InstanceStatus", "NodeClassState", "RepairPolicy", "SetAside", "Snapshot", "StateNode", "Workloads"]
