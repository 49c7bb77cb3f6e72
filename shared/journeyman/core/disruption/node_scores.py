"""Node scores: the node that kube-scheduler binds a pod to, by its default scores.

::

    score                     weight   range       highest for
    NodeResourcesFit          1        0 to 100    the most free CPU and memory
    BalancedAllocation        1        50 to 100   CPU and memory used in more equal shares than before
    PodTopologySpread         2        0 to 100    the fewest pods of the same workload on the node and in its zone
    TaintToleration           3        0 or 100    no PreferNoSchedule taint that the pod does not tolerate

Restates: kubernetes 1.36 pkg/scheduler/framework/plugins/noderesources `leastResourceScorer`, `balancedResourceScorer`,
podtopologyspread `Score`, `NormalizeScore`, `systemDefaultConstraints`, tainttoleration `Score`;
pkg/scheduler/apis/config/v1/default_plugins.go `getDefaultPlugins`.
Differs: preferences of pods and image locality are left out; a workload's pods are spread as by default, whatever constraints
they prefer; equal scores go by position, not at random; all nodes are scored, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.scheduling.arrays import Bools, Floats, Ints

SCORED_AXES: Final = ("cpu", "memory")
NO_WORKLOAD: Final = -1
UNBOUND: Final = -1
UNFIT: Final = -(1 << 30)
_MAX: Final = 100
_TAINT_WEIGHT: Final = 3
_SPREAD_WEIGHT: Final = 2
_MAX_SKEW: Final = (3, 5)  # of the default constraints on nodes and on zones


class SchedulableNodes(Struct, frozen=True, kw_only=True, eq=False):
    """The nodes that kube-scheduler may bind pods to.

    Attributes:
        axes: The names of the resources, `SCORED_AXES` first.
        free: Free amounts by node and axis.
        total: Allocatable amounts by node and axis.
        zones: By node: the number of its zone.
        running: By workload and node: the workload's pods there.
        position: The row of each existing node by name, and of each replacement by its number.
    """

    axes: tuple[str, ...]
    free: Ints
    total: Ints
    zones: Ints
    running: Ints
    position: Mapping[str | int, int]


class PodsToBind(Struct, frozen=True, kw_only=True, eq=False):
    """Pods without a node.

    Attributes:
        requests: Amounts by pod and axis.
        workloads: By pod: its workload's row in `SchedulableNodes.running`; `NO_WORKLOAD` for none.
        allowed: By pod: which nodes its labels, taints and other rules allow.
        avoided: By pod: which nodes have a PreferNoSchedule taint that it does not tolerate.
    """

    requests: Ints
    workloads: Ints
    allowed: Sequence[Bools]
    avoided: Sequence[Bools]


def bind(order: Iterable[int], pods: PodsToBind, nodes: SchedulableNodes) -> list[int]:
    """Bind the pods in this order of their positions, each to the node with the best score.

    Returns:
        In the same order, the node of each pod; `UNBOUND` if no node has enough left.
    """
    chosen: list[int] = []
    left = replace(nodes, free=nodes.free.copy(), running=nodes.running.copy())
    for pod in order:
        scores = node_scores(pod, pods, left)
        best = int(np.argmax(scores)) if len(scores) else UNBOUND
        if best == UNBOUND or scores[best] == UNFIT:
            chosen.append(UNBOUND)
            continue
        chosen.append(best)
        left.free[best] -= pods.requests[pod]
        if pods.workloads[pod] != NO_WORKLOAD:
            left.running[pods.workloads[pod], best] += 1
    return chosen


def node_scores(pod: int, pods: PodsToBind, nodes: SchedulableNodes) -> Ints:
    """Return the score of each node for the pod in this position; `UNFIT` for nodes that it cannot be bound to."""
    requests, workload = pods.requests[pod], pods.workloads[pod]
    after = nodes.free - requests
    fitting = np.flatnonzero(pods.allowed[pod] & ((after >= 0) | (requests == 0)).all(axis=1))
    scores: Ints = np.full(len(nodes.free), UNFIT, dtype=np.int64)
    if not len(fitting):
        return scores
    found = _resource_scores(nodes.free[fitting], after[fitting], nodes.total[fitting])
    found -= _TAINT_WEIGHT * _MAX * pods.avoided[pod][fitting]
    if workload != NO_WORKLOAD:
        found += _SPREAD_WEIGHT * _spread_scores(nodes.running[workload], nodes.zones, fitting)
    scores[fitting] = found
    return scores


def _resource_scores(before: Ints, after: Ints, total: Ints) -> Ints:
    """Return the scores by node for its free amounts before and after the pod is bound to it."""
    scored = len(SCORED_AXES)
    totals = np.maximum(total[:, :scored], 1)
    free = after[:, :scored] * _MAX // totals
    improvement = _balance(after[:, :scored] / totals) - _balance(before[:, :scored] / totals)
    scores: Ints = free.sum(axis=1) // scored + _MAX // 2 + (_MAX // 2 + improvement) // 2
    return scores


def _balance(shares: Floats) -> Ints:
    """Return by node 100 for equal shares of free CPU and memory, 50 if one is free and the other is used up."""
    balance: Ints = ((1 - np.abs(shares[:, 0] - shares[:, 1]) / 2) * _MAX).astype(np.int64)
    return balance


def _spread_scores(running: Ints, zones: Ints, fitting: Ints) -> Ints:
    """Return the scores of the `fitting` nodes for the pods of the workload that run on each of all nodes."""
    in_zone = np.bincount(zones, weights=running)
    fitting_zones = zones[fitting]
    node_skew, zone_skew = _MAX_SKEW
    crowded = np.rint(
        running[fitting] * np.log(len(fitting) + 2)
        + (node_skew - 1)
        + in_zone[fitting_zones] * np.log(len(np.unique(fitting_zones)) + 2)
        + (zone_skew - 1)
    ).astype(np.int64)
    most = crowded.max()
    scores: Ints = _MAX * (most + crowded.min() - crowded) // most
    return scores
