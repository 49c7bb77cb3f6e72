"""What the scheduler declares as effort is what it takes: no spender costs many times as much CPU time as it announces.

Covers: reading pods, planning, and explaining, each with constraints at their limit. Before, one pod with 300 host ports took 4.6 s for
22,000 units, one with 5,000 resources 2.7 s and 500 MB for 900.
"""

from __future__ import annotations

import time
from contextlib import suppress

import msgspec
import pytest

from journeyman.core.api.objects import Pod
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.problem import ClusterInputs, prepare_task
from journeyman.core.scheduling.results import Effort, EffortSpentError, Options
from journeyman.core.scheduling.scheduler import best_plan, explained, solve
from journeyman.steps.context import EFFORT_PER_SECOND, MAX_EFFORT
from tests.fuzz import expensive_pods, tenants
from tests.helpers.builders import a_pool, a_snapshot, an_instance_type

MOST_TIMES = 6
"""The CPU time that a unit may take, in units of the one that the step's budget assumes."""
FREE_UNITS = 60_000
"""What small fixed costs add up to; they are not announced."""
POOLS = ("p0", "p1", "p2")
TYPES = tuple(
    an_instance_type(f"t{cpu}.{n}", cpu=cpu, memory_gib=4 * cpu, price=cpu / 20 + n / 1000, zones=expensive_pods.ZONES)
    for cpu in (2, 4, 8, 16)
    for n in range(25)
)
CATALOGUE = Catalogue(dict.fromkeys(POOLS, TYPES))
OF_TENANTS = {
    tenants.required_labels: 6400,
    tenants.forbidden_labels: 6400,
    tenants.misspelled_terms: 1000,
    tenants.instance_types: 300,
    tenants.different_zones: 150,
    tenants.different_spreads: 300,
    tenants.joining: 300,
    tenants.unknown_topology: 300,
    tenants.extended_resources: 5000,
    tenants.own_resources: 300,
    tenants.huge_requests: 600,
    tenants.selector_values: 30_000,
}
EXPENSIVE = {
    "node_terms": (20, 100),
    "spreads": (20, 100),
    "anti_affinities": (50, 50),
    "own_anti_affinity": (600, 2),
    "host_ports": (20, 300),
    "tolerations": (20, 1000),
    "many_labels": (10, 9),
}
CASES = {shape.__name__: shape(size) for shape, size in OF_TENANTS.items()} | {
    name: expensive_pods.SHAPES[name](*size) for name, size in EXPENSIVE.items()
}


def seconds_per_declared_second(effort, work):
    """Return how many times longer some work takes than it declares."""
    before, started = effort.done, time.process_time()
    with suppress(EffortSpentError):  # what was not begun is not measured
        work()
    return (time.process_time() - started) * EFFORT_PER_SECOND / (effort.done - before + FREE_UNITS)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_effort_is_what_the_work_takes(case):
    """Reading the pods, planning, and explaining those that fit nowhere."""
    pods = tuple(msgspec.convert(body, Pod) for body in CASES[case] if body["kind"] == "Pod")
    snapshot = a_snapshot(node_pools=tuple(map(a_pool, POOLS)), pods=pods)
    inputs = ClusterInputs.of(snapshot, CATALOGUE, Options(bound=False))
    effort, tasks = Effort(MAX_EFFORT), []

    times = {"read": seconds_per_declared_second(effort, lambda: tasks.append(prepare(inputs, pods, effort)))}
    times["plan"] = seconds_per_declared_second(effort, lambda: [best_plan(task) for task in tasks])
    results = solve(snapshot, CATALOGUE, options=Options(bound=False), effort=MAX_EFFORT, explain=False)
    if results.unexplained is not None:
        own, wanted = Effort(1_000_000), results.pod_errors.keys()
        times["explain"] = seconds_per_declared_second(own, lambda: results.unexplained.errors(wanted, own))

    assert {part: number for part, number in times.items() if number > MOST_TIMES} == {}
    assert explained(results).unexplained is None


def prepare(inputs, pods, effort):
    """Return the problem of scheduling the pods."""
    return prepare_task(inputs, pods, frozenset(), effort)
