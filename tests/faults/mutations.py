"""Mutations of the product, one or more for each invariant: a changed syntax tree, or a faulty collaborator.

A syntax mutation replaces the code of one function for as long as scenarios run; it says what changes in the tree
(an operator, the whole body), and fails if nothing does. A faulty collaborator is a wrapper around the API server, the
queue or an AWS client of the deployed functions.
"""

from __future__ import annotations
import __future__

import ast
import copy
import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from types import FunctionType
from typing import Any

from botocore.exceptions import ClientError
from msgspec import Struct
from msgspec.structs import replace

from journeyman.cloud.alibaba.open_api import ApiCall
from journeyman.cloud.huawei.rest_api import RestCall
from journeyman.core.lifecycle.garbage_collection import orphaned_instances
from journeyman.core.state.pod_predicates import is_provisionable
from journeyman.errors import UnknownClusterError
from journeyman_simulator.faults.fault_scenario import (
    CallFault,
    DeleteClaim,
    DeleteNode,
    DeletePool,
    Deploy,
    FaultScenario,
    Maintenance,
    Overstate,
    PauseDisruption,
    RebuildCluster,
    Scale,
    StripFinalizer,
    Undeploy,
    UnhealthyCondition,
    WipeClaims,
)
from journeyman_simulator.faults.invariants.checkers import InvariantChecker
from journeyman_simulator.faults.invariants.cluster_queries import can_repeat_launches
from journeyman_simulator.faults.invariants.consistency_invariants import (
    CommandsSeeMachines,
    HealthyPoolsServe,
    InstancesOfOthersUntouched,
    NodesWithoutClaimKeepPods,
    RemovalsForInconsistencyBounded,
)
from journeyman_simulator.faults.invariants.disruption_invariants import (
    ConsolidationLowersPrice,
    EvictionCapsHold,
    FleetPlansEnd,
    PausedNodePoolsKeepNodes,
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
    ScheduleEntriesHaveWindows,
    StaticNodePoolsKeepReplicas,
)
from journeyman_simulator.faults.invariants.pod_invariants import (
    LaunchesPerPodBounded,
    PodsEvictedAsAllowed,
    SchedulablePodsRun,
)
from journeyman_simulator.faults.invariants.progress_invariants import (
    NothingStuck,
    OnlyExpectedErrors,
    UnfinishedWorkHasARequeue,
)
from journeyman_simulator.faults.sandboxes import Collaborators
from journeyman_simulator.faults.scenario_clouds import CLOUDS

DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"


# -- changes of a syntax tree --------------------------------------------------------------------------------------------


class SyntaxMutation(Struct, frozen=True):
    """A function of the product, and the change of its syntax tree; `change` returns how many places it changed."""

    function: Callable[..., Any]
    change: Callable[[ast.FunctionDef], int]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The product with that change."""
        assert isinstance(self.function, FunctionType)
        tree = ast.parse(textwrap.dedent(inspect.getsource(self.function)))
        (definition,) = tree.body
        assert isinstance(definition, ast.FunctionDef)
        definition.decorator_list = []
        assert self.change(definition), f"nothing to change in {self.function.__qualname__}"
        flags = __future__.annotations.compiler_flag
        code = compile(ast.fix_missing_locations(tree), self.function.__code__.co_filename, "exec", flags)
        made: dict[str, Any] = {}
        exec(code, self.function.__globals__, made)
        before = self.function.__code__
        self.function.__code__ = made[definition.name].__code__
        try:
            yield
        finally:
            self.function.__code__ = before


def function_named(module: str, qualified_name: str) -> Callable[..., Any]:
    """Return a function of the product; of a property its getter."""
    found: Any = importlib.import_module(module)
    for name in qualified_name.split("."):
        found = getattr(found, name)
    return found.fget if isinstance(found, property) else found


def returning(expression: str) -> Callable[[ast.FunctionDef], int]:
    """Make the function return that expression at once."""

    def change(function: ast.FunctionDef) -> int:
        function.body = [ast.Return(ast.parse(expression, mode="eval").body)]
        return 1

    return change


def exchanging(old: type[ast.AST], new: type[ast.AST]) -> Callable[[ast.FunctionDef], int]:
    """Exchange an operator for another wherever the function has it."""

    def change(function: ast.FunctionDef) -> int:
        changed = 0
        for node in ast.walk(function):
            if isinstance(node, ast.BinOp) and isinstance(node.op, old):
                node.op, changed = new(), changed + 1
            elif isinstance(node, ast.Compare) and any(isinstance(op, old) for op in node.ops):
                node.ops = [new() if isinstance(op, old) else op for op in node.ops]
                changed += 1
        return changed

    return change


# -- faulty collaborators ------------------------------------------------------------------------------------------------


class Wrapper:
    """Forwards all attributes; subclasses replace a method."""

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)


class AlteredLists(Wrapper):
    """A `KubeStore` whose lists of a kind show altered objects; None leaves one out."""

    def __init__(self, wrapped: Any, kind: str, alter: Callable[[Any], Any]) -> None:
        super().__init__(wrapped)
        self.kind = kind
        self.alter = alter

    def list(self, resource: Any, **options: Any) -> Any:
        listing = self.wrapped.list(resource, **options)
        if resource.kind != self.kind:
            return listing
        altered = (self.alter(item) for item in listing.items)
        return replace(listing, items=tuple(item for item in altered if item is not None))


class RefusedReads(Wrapper):
    """A `KubeStore` that answers no list, with an error for which no message is delivered again."""

    def list(self, resource: Any, **_options: Any) -> Any:
        raise UnknownClusterError("no answer", call=f"list {resource.kind}")


class LostMessages(Wrapper):
    """A `Queue` that accepts messages and sends none."""

    def send(self, messages: Any) -> None:
        list(messages)


class UnstableTokens(Wrapper):
    """A client that gives each launch a new client token: of EC2, or of all services of Alibaba Cloud."""

    serial = count()

    def create_fleet(self, **request: Any) -> Any:
        return self.wrapped.create_fleet(**self._with_new_token(request))

    def __call__(self, call: ApiCall) -> Any:
        if "ClientToken" in call.parameters:
            call = replace(call, parameters=self._with_new_token(call.parameters))
        return self.wrapped(call)

    def _with_new_token(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return {**request, "ClientToken": f"{request['ClientToken']}-{next(self.serial)}"}


class RefusedLaunches(Wrapper):
    """A client of EC2 that refuses every launch because of its NodeClass."""

    def create_fleet(self, **_request: Any) -> Any:
        error = {"Code": "InvalidBlockDeviceMapping", "Message": "the image has no such device"}
        raise ClientError({"Error": error}, "CreateFleet")


class UnseenNodes(Wrapper):
    """A client of Huawei Cloud for which CCE lists no nodes."""

    def __call__(self, call: RestCall) -> Any:
        return {"items": []} if call.operation == "ListNodes" else self.wrapped(call)


def altered_lists(kind: str, alter: Callable[[Any], Any], step: str = "") -> Collaborators:
    """Let the functions (of one step, if one is given) see altered objects of a kind."""
    return Collaborators(
        store=lambda own, store: AlteredLists(store, kind, alter) if step in {"", own} else store  # type: ignore[arg-type, return-value]
    )


def without_protection(pod: Any) -> Any:
    """The pod without its do-not-disrupt annotation."""
    annotations = {key: value for key, value in pod.metadata.annotations.items() if key != DO_NOT_DISRUPT}
    return replace(pod, metadata=replace(pod.metadata, annotations=annotations))


def with_unlimited_budgets(pool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The NodePool with a disruption budget of 100 %."""
    altered = copy.deepcopy(pool)
    altered["spec"].setdefault("disruption", {})["budgets"] = [{"nodes": "100%"}]
    return altered


def without_annotation(name: str) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """Return a function that removes this annotation of NodePools."""

    def alter(pool: Mapping[str, Any]) -> Mapping[str, Any]:
        altered = copy.deepcopy(pool)
        altered["metadata"].get("annotations", {}).pop(f"journeyman.dev/{name}", None)
        return altered

    return alter


def with_doubled_limits(pool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The NodePool with twice its CPU limit."""
    altered = copy.deepcopy(pool)
    limits = altered["spec"].get("limits") or {}
    if "cpu" in limits:
        limits["cpu"] = str(2 * int(limits["cpu"]))
    return altered


def initialized_once_registered(claim: Any) -> Any:
    """The NodeClaim with Initialized=True as soon as it is registered."""
    conditions = claim.status.conditions
    if not any(c.type == "Registered" and c.status == "True" for c in conditions):
        return claim
    altered = tuple(replace(c, status="True") if c.type == "Initialized" else c for c in conditions)
    return replace(claim, status=replace(claim.status, conditions=altered))


def with_huge_machine(claim: Any) -> Any:
    """The NodeClaim of an instance type with so many CPUs that no report of its node exceeds them."""
    huge = {key: "9000000" for key in claim.metadata.labels if key.endswith(("/instance-cpu", "/instance-memory"))}
    return replace(claim, metadata=replace(claim.metadata, labels={**claim.metadata.labels, **huge}))


def without_device_condition(node: Any) -> Any:
    """The Node without the conditions that last until its repair."""
    lasting = {cloud.lasting_condition[0] for cloud in CLOUDS.values()} - {"Ready"}
    kept = tuple(c for c in node.status.conditions if c.type not in lasting)
    return replace(node, status=replace(node.status, conditions=kept))


# -- the mutations -------------------------------------------------------------------------------------------------------


class Mutation(Struct, frozen=True, kw_only=True):
    """A broken product, the invariant that it violates, and the scenarios to look in.

    `seed` is where to look first: its scenario showed it once, most others do not. `alibaba_seed` and `huawei_seed` are the same on
    these clouds. A seed is 0 if no scenario there is known to show it.
    """

    name: str
    invariant: type[InvariantChecker]
    seed: int = 0
    alibaba_seed: int = 0
    huawei_seed: int = 0
    syntax: SyntaxMutation | None = None
    collaborators: Collaborators = Collaborators()
    where: Callable[[FaultScenario], bool] = lambda _: True  # most scenarios cannot violate most invariants

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The product with the syntax mutation, if it has one."""
        if self.syntax is None:
            yield
            return
        with self.syntax.applied():
            yield


def _has_fault_of_launch(scenario: FaultScenario) -> bool:
    site = f"provision: {CLOUDS[scenario.setup.cloud].launch}"
    return any(isinstance(fault, CallFault) and fault.site == site for fault in scenario.faults)


def _has_operation(*operations: type) -> Callable[[FaultScenario], bool]:
    return lambda scenario: any(isinstance(operation, operations) for operation in scenario.operations)


def _has_pool(**like: object) -> Callable[[FaultScenario], bool]:
    return lambda scenario: any(
        all(getattr(pool, key) == value for key, value in like.items()) for pool in scenario.setup.pools
    )


def _empties_nodes_at_once(scenario: FaultScenario) -> bool:
    return "d" in {operation.app for operation in scenario.operations if isinstance(operation, Undeploy)}


def _leaves_nodes_too_large(scenario: FaultScenario) -> bool:
    """Whether a Deployment shrinks where consolidation may replace nodes soon."""
    consolidates = any(
        p.policy == "WhenEmptyOrUnderutilized" and 0 <= p.consolidate_after_seconds < 60 for p in scenario.setup.pools
    )
    sizes = {operation.app: operation.replicas for operation in scenario.operations if isinstance(operation, Deploy)}
    shrinks = any(
        isinstance(operation, Scale) and 0 < operation.replicas < sizes.get(operation.app, 0)
        for operation in scenario.operations
    )
    return consolidates and shrinks


def _is_unhealthy_for_long(scenario: FaultScenario) -> bool:
    return any(
        isinstance(operation, UnhealthyCondition) and operation.seconds > 600 for operation in scenario.operations
    )


MUTATIONS = (
    Mutation(
        name="client token changes with each request",
        collaborators=Collaborators(client=lambda _step, client: UnstableTokens(client)),
        invariant=OneInstancePerNodeClaim,
        seed=11,
        alibaba_seed=37,
        where=_has_fault_of_launch,
    ),
    Mutation(
        name="no instance looks orphaned",
        syntax=SyntaxMutation(orphaned_instances, returning("()")),
        invariant=NoOrphanedInstance,
        seed=22,
        alibaba_seed=39,
        huawei_seed=13,
        where=_has_operation(StripFinalizer),
    ),
    Mutation(
        name="drain does not see do-not-disrupt",
        collaborators=altered_lists("Pod", without_protection, "terminate"),
        invariant=PodsEvictedAsAllowed,
        seed=45,
        alibaba_seed=17,
        huawei_seed=17,
    ),
    Mutation(
        name="termination sees no pods",
        collaborators=altered_lists("Pod", lambda _pod: None, "terminate"),
        invariant=InstancesDrainedFirst,
        seed=28,
        alibaba_seed=1,
        huawei_seed=1,
        where=_has_operation(DeleteClaim, DeleteNode, DeletePool),
    ),
    Mutation(
        name="consolidation sees budgets of 100 %",
        collaborators=altered_lists("NodePool", with_unlimited_budgets, "consolidate"),
        invariant=DisruptionBudgetsHold,
        seed=73,
        alibaba_seed=194,
        huawei_seed=4,
        where=_empties_nodes_at_once,
    ),
    Mutation(
        name="provisioning sees doubled limits",
        collaborators=altered_lists("NodePool", with_doubled_limits, "provision"),
        invariant=NodePoolLimitsHold,
        seed=58,
        alibaba_seed=17,
        huawei_seed=19,
        where=_has_pool(limit_cpus=4),
    ),
    Mutation(
        name="static NodePool adds where it must subtract",
        syntax=SyntaxMutation(
            function_named("journeyman.core.disruption.static_nodepool_state", "StaticNodePool.missing"),
            exchanging(ast.Sub, ast.Add),
        ),
        invariant=StaticNodePoolsKeepReplicas,
        seed=19,
        alibaba_seed=5,
        huawei_seed=5,
        where=_has_pool(name="static"),
    ),
    Mutation(
        name="consolidation takes a registered replacement for an initialized one",
        collaborators=altered_lists("NodeClaim", initialized_once_registered, "consolidate"),
        invariant=ReplacementsInitializedFirst,
        seed=14,
        huawei_seed=114,
        where=_leaves_nodes_too_large,
    ),
    Mutation(
        name="consolidation accepts the same price",
        syntax=SyntaxMutation(
            function_named("journeyman.core.disruption.consolidation", "_cheaper_types"), exchanging(ast.Lt, ast.LtE)
        ),
        invariant=ConsolidationLowersPrice,
        seed=145,
        alibaba_seed=193,
        huawei_seed=114,
        where=_leaves_nodes_too_large,
    ),
    Mutation(
        name="no pod is provisionable",
        syntax=SyntaxMutation(is_provisionable, returning("False")),
        invariant=SchedulablePodsRun,
        seed=1,
        alibaba_seed=1,
        huawei_seed=1,
    ),
    Mutation(
        name="refused launches are repeated at once",
        collaborators=Collaborators(
            client=lambda step, client: RefusedLaunches(client) if step == "provision" else client
        ),
        syntax=SyntaxMutation(function_named("journeyman.core.state.launch_backoff", "backoffs_of"), returning("()")),
        invariant=LaunchesPerPodBounded,
        seed=1,
    ),
    Mutation(
        name="no step sees failing devices",
        collaborators=altered_lists("Node", without_device_condition),
        invariant=UnhealthyNodesReplaced,
        seed=241,
        alibaba_seed=41,
        where=_is_unhealthy_for_long,
    ),
    Mutation(
        name="requeues are never sent",
        collaborators=Collaborators(queue=lambda _step, queue: LostMessages(queue)),  # type: ignore[arg-type, return-value]
        invariant=UnfinishedWorkHasARequeue,
        seed=28,
        alibaba_seed=1,
        where=lambda scenario: not scenario.setup.sweep,
    ),
    Mutation(
        name="interruptions are never handled",
        collaborators=Collaborators(store=lambda step, store: RefusedReads(store) if step == "interrupt" else store),  # type: ignore[arg-type, return-value]
        invariant=NothingStuck,
        seed=23,
        alibaba_seed=23,
        huawei_seed=3,
        where=_has_operation(Maintenance),
    ),
    Mutation(
        name="solver adds what counts against limits",
        syntax=SyntaxMutation(
            function_named("journeyman.core.scheduling.limits", "Headroom.__init__"), exchanging(ast.Sub, ast.Add)
        ),
        invariant=OnlyExpectedErrors,
        seed=58,
        alibaba_seed=19,
        huawei_seed=19,
        where=_has_pool(limit_cpus=4),
    ),
    Mutation(
        name="consolidation does not see pauses",
        collaborators=altered_lists("NodePool", without_annotation("pause-disruption"), "consolidate"),
        invariant=PausedNodePoolsKeepNodes,
        seed=7,
        alibaba_seed=7,
        huawei_seed=7,
        where=_has_operation(PauseDisruption),
    ),
    Mutation(
        name="consolidation does not see caps of evictions",
        collaborators=altered_lists("NodePool", without_annotation("max-evictions-per-day"), "consolidate"),
        invariant=EvictionCapsHold,
        seed=37,
        alibaba_seed=37,
        huawei_seed=37,
        where=lambda scenario: any(pool.max_evictions_per_day for pool in scenario.setup.pools),
    ),
    Mutation(
        name="fleet plans record no progress",
        syntax=SyntaxMutation(
            function_named("journeyman.core.disruption.fleet_plan_progress", "PlanProgress.record"), returning("Plan()")
        ),
        invariant=FleetPlansEnd,
        seed=15,
        alibaba_seed=15,
        huawei_seed=37,
        where=lambda scenario: scenario.setup.fleet_plans,
    ),
    Mutation(
        name="the sweep does not see time zones",
        collaborators=altered_lists("NodePool", without_annotation("time-zone"), "sweep"),
        invariant=ScheduleEntriesHaveWindows,
        seed=131,
        where=lambda scenario: any(pool.time_zone and pool.hibernates_seconds for pool in scenario.setup.pools),
    ),
    Mutation(
        name="launches do not see earlier nodes",
        collaborators=Collaborators(client=lambda step, client: UnseenNodes(client) if step == "provision" else client),
        invariant=OneInstancePerNodeClaim,
        huawei_seed=20,
        where=lambda scenario: _has_fault_of_launch(scenario) and not can_repeat_launches(scenario),
    ),
    Mutation(
        name="removals for inconsistency are not limited",
        syntax=SyntaxMutation(function_named("journeyman.core.lifecycle.removal_brake", "removable"), returning("100")),
        invariant=RemovalsForInconsistencyBounded,
        seed=83,
        where=_has_operation(WipeClaims),
    ),
    Mutation(
        name="no instance is adopted",
        syntax=SyntaxMutation(function_named("journeyman.core.lifecycle.adoption", "adoptable"), returning("iter(())")),
        invariant=NodesWithoutClaimKeepPods,
        seed=51,
        where=_has_operation(WipeClaims),
    ),
    Mutation(
        name="no instance is another cluster's",
        syntax=SyntaxMutation(function_named("journeyman.core.state.instances", "is_foreign"), returning("False")),
        invariant=InstancesOfOthersUntouched,
        seed=7,
        where=_has_operation(RebuildCluster),
    ),
    Mutation(
        name="consolidation believes whatever a node reports",
        collaborators=altered_lists("NodeClaim", with_huge_machine, "consolidate"),
        invariant=CommandsSeeMachines,
        seed=56,
        where=_has_operation(Overstate),
    ),
    Mutation(
        name="failed launches of a NodePool are not remembered",
        syntax=SyntaxMutation(function_named("journeyman.core.state.launch_backoff", "backoffs_of"), returning("()")),
        invariant=HealthyPoolsServe,
        seed=35,
        where=_has_pool(broken="never-joins"),
    ),
)
