"""Snapshot: one cluster at one moment, immutable, indexed once."""

from journeyman.core.state.snapshot import NodeClassState, SetAside, Snapshot, StateNode, Workloads

__all__ = ["NodeClassState", "SetAside", "Snapshot", "StateNode", "Workloads"]
