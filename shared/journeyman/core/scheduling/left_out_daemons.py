"""Chooses the DaemonSets that nodes are planned without, where beside all of them a pod gets no node.

DaemonSets that fit one by one may not fit together, or leave too little for any pod. On a node kube-scheduler binds
pods by priority: of a DaemonSet that does not fit beside those of higher priority the pod stays pending there, whatever
else the node runs; one of no higher priority than the pod does not take the capacity for which the pod is nominated.
Only such DaemonSets are left out, those of lowest priority first, in a NodePool on which every pod of the pass that
could use it would otherwise stay pending.

The decision is made again on each pass that has such pods: a node in flight for one is then counted without them, too.

Differs: Karpenter launches no node, and all pods of the NodePool stay pending.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api.resources import PODS
from journeyman.core.api.wording import describe_amount
from journeyman.core.scheduling.arrays import every
from journeyman.core.scheduling.daemon_overhead import Daemon, runs_on
from journeyman.core.scheduling.nodeclaim_templates import NodeClaimTemplate
from journeyman.core.scheduling.nodepool_options import NodeConstraints, NodeDemand, NodePoolOptions
from journeyman.core.scheduling.problem import SchedulingProblem
from journeyman.core.scheduling.results import LeftOutDaemons

_NAMED: Final = 3
_PER_TERM: Final = 60  # effort of comparing a term with a NodePool
_MOST_TRIED_AGAIN: Final = 16  # DaemonSets, after those of lowest priority were left out


class _Pods(Struct, frozen=True, eq=False):
    """Pods of one class: what they need of a node."""

    row: int
    demand: NodeDemand
    priority: int


def left_out_daemons(
    problem: SchedulingProblem, daemons: Sequence[Daemon], unschedulable: Collection[int]
) -> Mapping[str, tuple[Daemon, ...]]:
    """Return by NodePool the DaemonSets to plan without, so that pods of these classes get a node there.

    Args:
        problem: The problem, with the overhead of all DaemonSets.
        daemons: All DaemonSets.
        unschedulable: The classes with pods that got no node.

    Raises:
        EffortSpentError: The comparison takes more effort than is left.
    """
    waiting = [_pods_of(problem, c) for c in sorted(unschedulable)]
    problem.effort.spend(_PER_TERM * len(problem.pools) * sum(len(pods.demand.terms) for pods in waiting))
    short = [pods for pods in waiting if not any(_holds(problem, pool, pods) for pool in problem.pools)]
    others = [_pods_of(problem, c) for c in range(len(problem.levels)) if c not in unschedulable] if short else []
    found: dict[str, tuple[Daemon, ...]] = {}
    for pool in problem.pools if short else ():
        usable = any(_holds(problem, pool, pods) for pods in (*others, *waiting))
        choice = () if usable else _choice(problem, pool.template, daemons, short)
        if choice:
            found[pool.template.name] = choice
            without = [daemon for daemon in daemons if daemon not in choice]
            options = NodePoolOptions.of(pool.template, without, problem.axes)
            short = [pods for pods in short if not _holds(problem, options, pods)]
    return found


def leaving_out(daemons: Iterable[Daemon], left_out: Mapping[str, Collection[Daemon]]) -> tuple[Daemon, ...]:
    """Return the DaemonSets, marked with the NodePools whose nodes are planned without them."""
    pools = {daemon: frozenset(name for name, chosen in left_out.items() if daemon in chosen) for daemon in daemons}
    return tuple(replace(daemon, left_out_of=names) if names else daemon for daemon, names in pools.items())


def describe_left_out(left_out: Mapping[str, Sequence[Daemon]]) -> dict[str, LeftOutDaemons]:
    """Return what `Results` says about the DaemonSets that are left out, by NodePool."""
    return {
        name: LeftOutDaemons(names=tuple(d.pod.key for d in ds), why=_why(name, ds)) for name, ds in left_out.items()
    }


def _why(node_pool: str, daemons: Sequence[Daemon]) -> str:
    named = [f"{daemon.pod.key} ({_requests(daemon)}, priority {daemon.priority})" for daemon in daemons[:_NAMED]]
    others = f" and {len(daemons) - _NAMED} others" if len(daemons) > _NAMED else ""
    return (
        f"Nodes of NodePool {node_pool} are planned without DaemonSet {', '.join(named)}{others}, of the lowest "
        "priority there: beside all DaemonSets no instance type holds any of the pods that wait. Its pods stay pending on nodes "
        "where they do not fit. Lower the requests of the DaemonSets, keep some off the NodePool by node affinity, or "
        "allow larger instance types"
    )


def _requests(daemon: Daemon) -> str:
    amounts = (
        describe_amount(name, amount) for name, amount in sorted(daemon.requests.items()) if name != PODS and amount
    )
    return ", ".join(amounts) or "no requests"


def _pods_of(problem: SchedulingProblem, c: int) -> _Pods:
    row = problem.last_level(c)[0]
    pods = problem.rows[row]
    return _Pods(row, NodeDemand(NodeConstraints.of(pods)), min(pod.spec.priority or 0 for pod in pods.pods))


def _holds(problem: SchedulingProblem, pool: NodePoolOptions, pods: _Pods) -> bool:
    """Whether a node of any type of the NodePool, available or not, holds one of the pods beside its daemons."""
    template = pool.template
    if not pods.demand.constraints.accepts(template.taints):
        return False
    large = (template.types & every(pool.sizes >= problem.requests[pods.row]) & pool.usable)[template.table.row_type]
    return any(bool((template.rows_meeting(term) & large).any()) for term in pods.demand.terms)


def _choice(
    problem: SchedulingProblem, template: NodeClaimTemplate, daemons: Iterable[Daemon], short: Sequence[_Pods]
) -> tuple[Daemon, ...]:
    """Return the DaemonSets without which a node of the NodePool holds one of the pods; empty if there are none."""
    ordered = sorted((d for d in daemons if runs_on(template, d)), key=lambda d: (-d.priority, d.namespace, d.name))

    def options(kept: Sequence[Daemon]) -> NodePoolOptions:
        return NodePoolOptions.of(template, kept, problem.axes)

    def fit(count: int) -> bool:
        return bool((options(ordered[:count]).usable & template.types).any())

    def serves(pods: _Pods, first: int, more: int) -> bool:
        return _holds(problem, options(ordered[: first + more]), pods)

    together = _most(len(ordered), fit)
    for pods in short:
        first = next((n for n, d in enumerate(ordered[:together]) if d.priority <= pods.priority), together)
        if serves(pods, first, 0):
            kept = ordered[: first + _most(len(ordered) - first, partial(serves, pods, first))]
            for daemon in ordered[len(kept) + 1 : len(kept) + 1 + _MOST_TRIED_AGAIN]:
                if _holds(problem, options([*kept, daemon]), pods):
                    kept.append(daemon)
            return tuple(daemon for daemon in ordered if daemon not in kept)
    return ()


def _most(count: int, holds: Callable[[int], bool]) -> int:
    """Return the largest number up to `count` for which `holds` is true; it is for 0, and false from some number on."""
    low, high = 0, count
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
