"""kube-scheduler's default scores: which node each pod is bound to, in order."""

import numpy as np
import pytest

from journeyman.core.disruption.node_scores import NO_WORKLOAD, UNBOUND, PodsToBind, SchedulableNodes, bind

GIB = 1 << 30
HALF = (0.5, 2)


def amounts(pairs) -> np.ndarray:
    """CPUs and GiB as millicores and bytes."""
    return np.array([[cpu * 1_000, memory * GIB] for cpu, memory in pairs], dtype=np.int64).reshape(-1, 2)


def bound(pods, *used, running=(), zones="", avoided="") -> list[int]:
    """Bind pods of one workload to nodes of 4 CPUs and 16 GiB that have `used` in use.

    `running` are the workload's pods on each node, none for pods without one; `zones` and `avoided` have a letter for each node.
    """
    count = len(used)
    total = amounts([(4, 16)] * count)
    nodes = SchedulableNodes(
        axes=("cpu", "memory"),
        free=total - amounts(used),
        total=total,
        zones=np.array([ord(zone) - ord("a") for zone in zones or "a" * count]),
        running=np.array([running or (0,) * count], dtype=np.int64),
        position={f"n{number}": number for number in range(count)},
    )
    to_bind = PodsToBind(
        requests=amounts(pods),
        workloads=np.full(len(pods), 0 if running else NO_WORKLOAD),
        allowed=[np.ones(count, dtype=bool)] * len(pods),
        avoided=[np.array([c == "x" for c in avoided or "." * count])] * len(pods),
    )
    return bind(range(len(pods)), to_bind, nodes)


def test_pods_go_to_the_emptiest_node_until_none_has_enough_left():
    """One after the other, as each leaves less."""
    assert bound([(1, 4), (1, 4), (2, 8), (1.5, 6)], (2, 8), (1, 4)) == [1, 0, 1, UNBOUND]


def test_pod_goes_where_cpu_and_memory_are_then_used_in_more_equal_shares():
    """Both nodes have as much free: 125 points where much memory is used and little CPU, 113 on the other one."""
    assert bound([(1, 1)], (2, 4), (1, 8)) == [1]


def test_pods_of_a_workload_are_spread_over_nodes_and_zones():
    """The emptiest node has one of its pods: it gets 25 points more for that, and 26 fewer for the pod.

    Nodes in a zone without its pods come first, even if they have less free. Without nodes no pod is bound.
    """
    assert bound([HALF], (1, 4), (2, 8)) == [0]
    assert bound([HALF], (1, 4), (2, 8), running=(1, 0)) == [1]
    assert bound([HALF] * 3, (1, 4), (1, 4), running=(0, 0)) == [0, 1, 0]
    assert bound([HALF], (0, 0), (0, 0), (0.5, 2), running=(0, 1, 0), zones="aab") == [2]
    assert bound([HALF]) == [UNBOUND]


@pytest.mark.parametrize(("running", "expected"), [((0, 0), 1), ((0, 9), 1), ((), 1)])
def test_untolerated_prefer_no_schedule_taint_weighs_most(running, expected):
    """It outweighs the spread of a workload, unless the other node is fuller as well."""
    assert bound([HALF], (1, 4), (1, 4), running=running, avoided="x.") == [expected]
