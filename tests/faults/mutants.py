"""Rules broken on purpose: one line of the product is exchanged for as long as a scenario is told, to see that a checker objects.

The product has no hooks for this. The code of one function is replaced, and the line must be found exactly once: a mutant
whose line has gone fails its test, and is rewritten.
"""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from msgspec import Struct

from journeyman.cloud.aws import instance_launch as launching
from journeyman.core.api.nodepool import NodePoolSpec
from journeyman.core.disruption import budgets, consolidation, orchestration, static_nodepools
from journeyman.core.lifecycle import drain, garbage, repair, termination
from journeyman.core.scheduling.limits import Headroom
from journeyman.core.state.pod_predicates import is_provisionable
from journeyman.steps import interrupt
from journeyman.steps.executor import Applier
from journeyman_simulator.faults.fault_scenario import (
    CallFault,
    DeleteClaim,
    DeleteNode,
    DeletePool,
    Deploy,
    FaultScenario,
    Maintenance,
    Scale,
    StripFinalizer,
    Undeploy,
    UnhealthyCondition,
)
from journeyman_simulator.faults.invariants.checkers import InvariantChecker
from journeyman_simulator.faults.invariants.disruption_invariants import (
    ConsolidationLowersPrice,
    ReplacementsInitializedFirst,
    UnhealthyNodesReplaced,
)
from journeyman_simulator.faults.invariants.instance_invariants import (
    InstancesDrainedFirst,
    NoOrphanedInstance,
    OneInstancePerNodeClaim,
)
from journeyman_simulator.faults.invariants.nodepool_invariants import (
    DisruptionBudgetsHold,
    NodePoolLimitsHold,
    StaticNodePoolsKeepReplicas,
)
from journeyman_simulator.faults.invariants.pod_invariants import PodsEvictedAsAllowed, SchedulablePodsRun
from journeyman_simulator.faults.invariants.progress_invariants import (
    NothingStuck,
    OnlyExpectedErrors,
    UnfinishedWorkHasARequeue,
)


class Mutation(Struct, frozen=True, kw_only=True):
    """`old` becomes `new` in that function; `rule` is the checker who must see it, in a scenario of this kind.

    `seed` is where to look first: its scenario showed it once, most others do not.
    """

    name: str
    function: Callable[..., Any]
    old: str
    new: str
    invariant: type[InvariantChecker]
    seed: int
    where: Callable[[FaultScenario], bool] = lambda _: True  # most scenarios have nothing to do with most promises


def _goes_wrong(*sites: str) -> Callable[[FaultScenario], bool]:
    return lambda scenario: any(isinstance(fault, CallFault) and fault.site in sites for fault in scenario.faults)


def _does(*operations: type) -> Callable[[FaultScenario], bool]:
    return lambda scenario: any(isinstance(operation, operations) for operation in scenario.operations)


def _has_pool(**like: object) -> Callable[[FaultScenario], bool]:
    return lambda scenario: any(
        all(getattr(pool, key) == value for key, value in like.items()) for pool in scenario.setup.pools
    )


def _empties_nodes_at_once(scenario: FaultScenario) -> bool:
    return "d" in {operation.app for operation in scenario.operations if isinstance(operation, Undeploy)}


def _makes_nodes_too_large(scenario: FaultScenario) -> bool:
    """What is left after pods went may fit a cheaper node."""
    looked_at = any(
        p.policy == "WhenEmptyOrUnderutilized" and 0 <= p.consolidate_after_seconds < 60 for p in scenario.setup.pools
    )
    sizes = {operation.app: operation.replicas for operation in scenario.operations if isinstance(operation, Deploy)}
    shrinks = any(
        isinstance(operation, Scale) and 0 < operation.replicas < sizes.get(operation.app, 0)
        for operation in scenario.operations
    )
    return looked_at and shrinks


def _is_ill_for_long(scenario: FaultScenario) -> bool:
    return any(
        isinstance(operation, UnhealthyCondition) and operation.seconds > 600 for operation in scenario.operations
    )


MUTATIONS = (
    Mutation(
        name="a token that changes with the claim",
        function=launching.client_token,
        old="answered = answered_failures(claim)",
        new="answered = int(claim.metadata.resource_version)",
        invariant=OneInstancePerNodeClaim,
        seed=11,
        where=_goes_wrong("provision: ec2 CreateFleet"),
    ),
    Mutation(
        name="no garbage collection",
        function=garbage.collect,
        old="return orphans(snapshot, cloud, orphan_age) + lost(snapshot, cloud)",
        new="return Plan()",
        invariant=NoOrphanedInstance,
        seed=44,
        where=_does(StripFinalizer),
    ),
    Mutation(
        name="a drain that is deaf to do-not-disrupt",
        function=drain.drain,
        old=" if is_disruptable(p, now)",
        new="",
        invariant=PodsEvictedAsAllowed,
        seed=45,
    ),
    Mutation(
        name="a drain that does not wait for its pods",
        function=termination._drain,
        old="if decided.remaining or not rested:",
        new="if not rested:",
        invariant=InstancesDrainedFirst,
        seed=28,
        where=_does(DeleteClaim, DeleteNode, DeletePool),
    ),
    Mutation(
        name="a budget of so many nodes that allows all of them",
        function=budgets._share,
        old="return int(nodes)",
        new="return total",
        invariant=DisruptionBudgetsHold,
        seed=73,
        where=_empties_nodes_at_once,
    ),
    Mutation(
        name="limits that count double",
        function=NodePoolSpec.limit_amounts.fget,
        old="return resources.to_resources(self.limits, round_up=False)",
        new="return {k: 2 * v for k, v in resources.to_resources(self.limits, round_up=False).items()}",
        invariant=NodePoolLimitsHold,
        seed=58,
        where=_has_pool(limit_cpus=4),
    ),
    Mutation(
        name="a static pool that does not count those that are replaced, nor all that run",
        function=static_nodepools.StaticNodePool.missing.fget,
        old="len(self.running) - len(self.replaced)",
        new="len(self.running[1:])",
        invariant=StaticNodePoolsKeepReplicas,
        seed=19,
        where=_has_pool(name="static"),
    ),
    Mutation(
        name="a command that takes a registered replacement for a ready one",
        function=orchestration.wait_or_terminate,
        old="is_true(c.status.conditions, INITIALIZED)",
        new="is_true(c.status.conditions, 'Registered')",
        invariant=ReplacementsInitializedFirst,
        seed=14,
        where=_makes_nodes_too_large,
    ),
    Mutation(
        name="consolidation that takes what costs the same",
        function=consolidation._below,
        old="p < price",
        new="p <= price",
        invariant=ConsolidationLowersPrice,
        seed=25,
        where=_makes_nodes_too_large,
    ),
    Mutation(
        name="pods of which every third is overlooked",
        function=is_provisionable,
        old="return is_active(pod)",
        new="return int(pod.metadata.uid[-1], 16) % 3 and is_active(pod)",
        invariant=SchedulablePodsRun,
        seed=1,
    ),
    Mutation(
        name="a hospital that is full with one patient",
        function=repair._Ward._too_many,
        old="if sick <= allowed:",
        new="if sick < allowed:",
        invariant=UnhealthyNodesReplaced,
        seed=50,
        where=_is_ill_for_long,
    ),
    Mutation(
        name="requeues that are never sent",
        function=Applier.send_requeues,
        old="if not messages:",
        new="if messages:",
        invariant=UnfinishedWorkHasARequeue,
        seed=28,
        where=lambda scenario: not scenario.setup.sweep,
    ),
    Mutation(
        name="a notice of maintenance that is handed back for ever",
        function=interrupt.interrupt,
        old="kind, instance_ids, event_time = _read(trigger)",
        new="kind, instance_ids, event_time = _read(trigger)\n"
        "    if kind is InterruptionKind.SCHEDULED_CHANGE: raise JourneymanError('not now')",
        invariant=NothingStuck,
        seed=23,
        where=_does(Maintenance),
    ),
    Mutation(
        name="a scheduler that knows no limits",
        function=Headroom.__init__,
        old="self.left: Ints = whole - sum(self._used.values())",
        new="self.left: Ints = 2 * whole",
        invariant=OnlyExpectedErrors,
        seed=58,
        where=_has_pool(limit_cpus=4),
    ),
)


@contextmanager
def applied(mutant: Mutation) -> Iterator[None]:
    """The product with that line exchanged."""
    function = mutant.function
    assert isinstance(function, FunctionType)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(mutant.old) == 1, f"{mutant.name}: {mutant.old!r} is not there exactly once"
    flags = __future__.annotations.compiler_flag
    made: dict[str, Any] = {}
    exec(
        compile(source.replace(mutant.old, mutant.new), function.__code__.co_filename, "exec", flags),
        function.__globals__,
        made,
    )
    before = function.__code__
    twin = made[function.__name__]
    function.__code__ = (twin.fget if isinstance(twin, property) else twin).__code__
    try:
        yield
    finally:
        function.__code__ = before
