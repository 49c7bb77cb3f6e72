"""Simulates Huawei Cloud for scenarios: an account in this process with the deployed functions, and faults of its calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any, Final, cast
from zlib import crc32

from msgspec.structs import replace

from journeyman.cloud.huawei.function_queue import ATTEMPTS, FunctionQueue, read_delayed
from journeyman.cloud.huawei.huawei_settings import HuaweiSettings
from journeyman.cloud.huawei.rest_api import FUNCTIONGRAPH, RestApiError, RestCall
from journeyman.core.plan import Step
from journeyman.errors import MalformedEventError
from journeyman.events import parse_trigger
from journeyman.events.huawei_events import items_of
from journeyman.kube.clusters import RegisteredCluster
from journeyman.ports import Queue
from journeyman.runtime.environment import Environment
from journeyman.runtime.huawei import HuaweiAdapters, HuaweiEnvironment, read_huawei_environment
from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.cloud_rules.repeated_invocations import PendingInvocation
from journeyman_simulator.deployment_files import load_handler
from journeyman_simulator.faults.call_sites import cloud_site
from journeyman_simulator.faults.fault_injection import (
    NO_ANSWER,
    FaultInjector,
    InjectableCall,
    ProcessCrashed,
    RepeatedRequests,
)
from journeyman_simulator.faults.fault_scenario import FaultKind, ScenarioSetup
from journeyman_simulator.faults.sandboxes import SandboxConnections, Sandboxes, SimulatedAdapters, silent_logger
from journeyman_simulator.faults.scenario_clouds import CLUSTER, HUAWEI
from journeyman_simulator.faults.scenario_view import CloudEvent, CloudInstance, PendingMessage
from journeyman_simulator.faults.simulated_cloud import (
    KUBERNETES_VERSION,
    SCENARIO_DURATION,
    CloudOperations,
    InstanceRecords,
    Price,
    SimulatedCloud,
    Start,
    cloud_instance,
    scenario_environment,
    unknown_function,
)
from journeyman_simulator.huawei_account.ecs_servers import (
    ACTIVE,
    BUILD,
    SHUTOFF,
    HuaweiInstance,
    server_id_of,
)
from journeyman_simulator.huawei_account.fgs_stack import DELAY, FgsStack, read_description
from journeyman_simulator.huawei_account.function_graph import FgsContext, FgsHandler
from journeyman_simulator.huawei_account.huawei_account import HuaweiAccount, HuaweiClient
from journeyman_simulator.huawei_account.huawei_machines import HuaweiMachines
from journeyman_simulator.huawei_account.terraform import Block
from journeyman_simulator.in_process_account.sqs_queues import DELIVERED, MessageOutcome
from journeyman_simulator.lambda_functions import LambdaContext, LambdaFunction
from journeyman_simulator.world import Actor

REGION: Final = "cn-north-4"
_ZONES: Final = tuple(f"{REGION}{letter}" for letter in "abc")
_SPOT_SHARE: Final = 0.4
"""No API has Spot prices, so this share of the on-demand price is the price for all purposes."""
_TAGS: Final[Mapping[str, str]] = {
    "karpenter.sh/nodepool": "karpenter-nodepool",
    "karpenter.sh/nodeclaim": "karpenter-nodeclaim",
    "journeyman.dev/nodeclaim-uid": "karpenter-nodeclaim-uid",
}
"""The keys of tags that name an instance's NodeClaim on ECS, which allows neither dots nor slashes, by their keys elsewhere."""


class HuaweiCloud(SimulatedCloud):
    """An account with the functions of infra/huawei."""

    account: HuaweiAccount

    def __init__(self, clock: VirtualClock, setup: ScenarioSetup, on_instance: Callable[[CloudEvent], None]) -> None:
        """Create the account (`SimulatedCloud`)."""
        super().__init__(clock, setup, on_instance)
        self.zones = _ZONES[: setup.zones]
        self.account = HuaweiAccount(clock, region=REGION, types=setup.types or HUAWEI.types, zones=self.zones)
        seeded = self.account.seed(cluster=CLUSTER, kubernetes_version=f"v{KUBERNETES_VERSION}")
        self.machines = HuaweiMachines(self.account, seeded.cluster_id)
        self.records = instance_records(self._price, self._has_node, on_instance)
        self.operations = ServerOperations(self.account, self.records)
        self.account.instances.observers.append(self.records.record_event)
        variables = {"cluster_name": CLUSTER, "cluster_id": seeded.cluster_id}
        self._stack = FgsStack(self.account, _description(), variables)
        self._huawei = read_huawei_environment(self._stack.variables)
        self._decide: Callable[[str, str], MessageOutcome] = lambda _function, _body: DELIVERED
        self._delivering: list[Any] = []  # the events of running invocations of `delay`

    def decide_messages(self, decide: Callable[[str, str], MessageOutcome]) -> None:
        """See `SimulatedCloud`."""
        self._decide = decide

    def environment(self) -> Environment:
        """Return the environment in infra/huawei (`SimulatedCloud`)."""
        return scenario_environment(self._stack.variables, self._setup, has_sqs=False)

    def sandboxes(self, step: Step, connections: SandboxConnections) -> Sandboxes:
        """See `SimulatedCloud`."""
        self._connections = connections
        return self._sandboxes(step.value, connections)

    def _sandboxes(self, function: str, connections: SandboxConnections) -> Sandboxes:
        handler = load_handler(f"{function}.handler", "huawei")
        new_adapters = partial(SimulatedHuaweiAdapters, function, connections, self._huawei, self.account)
        return Sandboxes(function, handler, connections, new_adapters)

    def create_functions(self, sandboxes: Mapping[Step, Sandboxes], new_id: Callable[[], str]) -> None:
        """See `SimulatedCloud`."""
        by_name: dict[str, FgsHandler] = {step.value: each for step, each in sandboxes.items()}
        by_name[DELAY] = partial(self._run_delay, self._sandboxes(DELAY, self._connections))

        def handler(text: str) -> FgsHandler:
            return by_name.get(text.partition(".")[0], unknown_function)

        self._stack.create_resources(
            handler, self._clock, checks_permissions=False, fatal=(ProcessCrashed,), new_id=new_id
        )
        self._stack.graph.decide = self._decide
        self._stack.graph.function_clock = self._connections.seen_clock
        functions = self._stack.functions
        for function in functions.values():
            function.context = cast("Callable[[LambdaFunction, str], LambdaContext]", VirtualFgsContext)
        self.functions = {step: functions[step.value] for step in sandboxes}
        self.helpers = {DELAY: functions[DELAY]}
        self.queues = {functions[name].name: name for name in by_name}

    def _run_delay(self, sandboxes: Sandboxes, event: Any, context: Any) -> Any:
        """Run the function `delay`. Its messages are pending meanwhile, since its run may pause."""
        self._delivering.append(event)
        try:
            return sandboxes(event, context)
        finally:
            self._delivering.remove(event)

    def schedules(self, start: Start, new_id: Callable[[], str]) -> Sequence[Actor]:
        """See `SimulatedCloud`. The functions have no queues, so these actors pass the messages on, too."""
        self._stack.graph.start = start
        return [*([self._stack.timers] if self._setup.sweep else []), self._stack.graph]

    def send(self, step: Step, body: str, message_id: str) -> None:
        """See `SimulatedCloud`."""
        self._stack.invoke_async(step.value, json.loads(body))

    def pending_messages(self) -> Iterable[PendingMessage]:
        """See `SimulatedCloud`."""
        for pending in self._stack.graph.pending:
            yield from self._messages_of(pending)
        for event in self._delivering:
            yield from _delayed_messages(event)

    def _messages_of(self, pending: PendingInvocation) -> Iterator[PendingMessage]:
        name = self.queues.get(pending.function.name, "")
        if name == DELAY:
            yield from _delayed_messages(pending.event)
        elif name and name != Step.INTERRUPT.value:
            yield PendingMessage(step=Step(name), at=pending.at)

    def dead_letters(self) -> tuple[str, ...]:
        """Return the events of failed invocations; one of the function `delay` has the messages with which it waited."""
        return tuple(json.dumps(letter["request_payload"]) for letter in self._stack.dead_letters())

    def reasons(self, event: Any) -> list[str]:
        """See `SimulatedCloud`."""
        return [parse_trigger(item).reason for item in items_of(event)] if event else []

    def _price(self, instance_type: str, zone: str, capacity_type: str) -> float:
        on_demand = self.account.prices.price(instance_type, zone, "on-demand") or 0.0
        return on_demand * (_SPOT_SHARE if capacity_type == "spot" else 1.0)

    def _has_node(self, instance: HuaweiInstance) -> bool:
        return instance.node_id in self.account.nodes.nodes


@cache
def _description() -> tuple[Block, ...]:
    """Return infra/huawei, read once."""
    return read_description()


def _delayed_messages(event: Any) -> Iterator[PendingMessage]:
    with suppress(MalformedEventError):
        for message in read_delayed(event):
            yield PendingMessage(step=message.function, at=message.at)


# -- instances ------------------------------------------------------------------------------------------------------

_STATES: Final[Mapping[str, str]] = {BUILD: "pending", ACTIVE: "running", SHUTOFF: "stopped"}


def instance_records(
    price: Price, has_node: Callable[[HuaweiInstance], bool], on_event: Callable[[CloudEvent], None]
) -> InstanceRecords:
    """Return records of CCE nodes, with these prices.

    A node whose server is gone is stopped as long as CCE has the node (`has_node`), because it has to be deleted.
    """

    def state_of(instance: HuaweiInstance) -> str:
        if not instance.changes:
            return "pending"
        if instance.state in _STATES:
            return "shutting-down" if instance.is_deleting else _STATES[instance.state]
        return "stopped" if has_node(instance) and not instance.is_deleting else "terminated"

    def describe(instance: HuaweiInstance, launch_tags: Mapping[str, str]) -> CloudInstance:
        return cloud_instance(
            instance,
            price,
            provider_id=instance.node_id,
            state=state_of(instance),
            launched_at=instance.launched_at,
            tags=_with_common_keys(launch_tags),
        )

    return InstanceRecords(describe, on_event)


def _with_common_keys(tags: Mapping[str, str]) -> dict[str, str]:
    """Return a server's tags with the keys that other clouds have."""
    common = {key: tags[ours] for key, ours in _TAGS.items() if ours in tags}
    return {**{key: value for key, value in tags.items() if key not in _TAGS.values()}, **common}


class ServerOperations(CloudOperations):
    """Operates on the ECS servers of CCE nodes. ECS reclaims Spot servers five minutes after the trace; it has no status checks."""

    maintenance_notice = timedelta(hours=48)
    early_end_reason = "the KMS key of the root volume is disabled"
    refused_launch = ("CreateNode", "CCE.01400001")

    @staticmethod
    def instance_id(provider_id: str) -> str:
        """See `CloudOperations`."""
        return server_id_of(provider_id)

    def end_at_boot(self, instance: HuaweiInstance) -> None:
        """See `CloudOperations`: CCE decides it before it creates the server."""
        instance.build_failure = self.early_end_reason

    def edit_tags(self, provider_id: str, changes: Mapping[str, str | None]) -> None:
        """See `CloudOperations`; the keys are those of all clouds."""
        super().edit_tags(provider_id, {_TAGS.get(key, key): value for key, value in changes.items()})

    def tags(self, provider_id: str) -> Mapping[str, str]:
        """See `CloudOperations`; the keys are those of all clouds."""
        return _with_common_keys(super().tags(provider_id))

    def set_unavailable(self, pools: Sequence[tuple[str, str, str]], *, unavailable: bool) -> None:
        """Make offerings unavailable or available: CCE refuses nodes of one half of them, and fails to build those of the other."""
        now = self._account.time.now()
        until = now + SCENARIO_DURATION if unavailable else now
        for pool in pools:
            fails_late = crc32("|".join(pool).encode()) % 2 == 1
            (self._account.fails_in_job if fails_late else self._account.out_of_stock)(*pool, until)


# -- functions ------------------------------------------------------------------------------------------------------


class VirtualFgsContext(FgsContext):
    """FunctionGraph's context object, with the timeout in virtual time."""

    def __init__(self, function: LambdaFunction, request_id: str) -> None:
        super().__init__(function, request_id, None, {})
        self._clock = function.clock
        self.ends_at = function.clock.now() + timedelta(seconds=function.timeout_seconds)

    def getRemainingTimeInMilliSeconds(self) -> int:  # noqa: N802 - FunctionGraph's name
        """Return the milliseconds of virtual time until the timeout."""
        return max(0, round((self.ends_at - self._clock.now()).total_seconds() * 1000))


class SimulatedHuaweiAdapters(SimulatedAdapters, HuaweiAdapters):
    """The adapters of one sandbox: without logs and metrics, and with sequential requests, so that runs are reproducible."""

    def __init__(
        self, function: str, connections: SandboxConnections, huawei: HuaweiEnvironment, account: HuaweiAccount
    ) -> None:
        """Create the adapters of a sandbox of a function: a step's, or `delay`."""
        self.connections = connections
        self._function = function
        client = FaultyRestApi(
            HuaweiClient(account, function, None), function, connections.faults, connections.before_request
        )
        faulty_client = self._faulty_client = connections.collaborators.client(function, client)
        super().__init__(
            connections.environment,
            huawei,
            clock=connections.seen_clock,
            stores=lambda _: connections.store(function),
            rest_api=lambda _region, _project_id: faulty_client,
            pause=connections.faults.sleep,
            log_to=silent_logger(),
        )

    def queue(self) -> Queue:
        """Return the queue adapter, with serial numbers as message ids."""
        huawei = self._huawei
        queue = FunctionQueue(
            self._faulty_client,
            self.clock,
            project_id=huawei.function_project_id,
            functions={step: huawei.urn(step.value) for step in Step},
            delay_function=huawei.urn(DELAY),
            new_id=self.connections.new_id,
            pause=self.connections.faults.sleep,
        )
        return self.connections.collaborators.queue(self._function, queue)

    def huawei_settings(self, cluster: RegisteredCluster) -> HuaweiSettings:
        """Return the settings without concurrency, so that a scenario is reproducible."""
        return replace(super().huawei_settings(cluster), max_parallel_launches=1, parallel_reads=False)


# -- calls ----------------------------------------------------------------------------------------------------------


class FaultyRestApi:
    """One function's `RestApi`. An invocation of a function that gets no answer gets none as often as the queue repeats it.

    Args:
        client: The account's client.
        function: The function: a step's, or `delay`.
        faults: Decides for each call whether it fails.
        before_request: See `SandboxConnections`.
    """

    def __init__(
        self,
        client: HuaweiClient,
        function: str,
        faults: FaultInjector,
        before_request: Callable[[str, object], None] = lambda _operation, _request: None,
    ) -> None:
        self._before_request = before_request
        self._client = client
        self._function = function
        self._faults = faults
        self._invocations = RepeatedRequests(
            faults, huawei_error, attempts=ATTEMPTS, is_repeated=lambda kind: kind in NO_ANSWER
        )

    def __call__(self, call: RestCall) -> Any:
        """Send a request, or inject its fault."""

        def as_of(time: datetime) -> Any:
            return self._client.as_of(time)(call)

        def perform() -> Any:
            self._before_request(call.operation, call)
            return self._client(call)

        site = cloud_site(self._function, call.service, call.operation)
        if call.service == FUNCTIONGRAPH:
            return self._invocations.call(site, call, perform)
        return self._faults.call(InjectableCall(site=site, error=huawei_error, cached=True), perform, as_of)


def huawei_error(kind: FaultKind) -> RestApiError:
    """Return the error that `SdkRestApi` raises after its attempts."""
    if kind in NO_ANSWER:
        return RestApiError("", NO_ANSWER[kind])
    if kind is FaultKind.THROTTLE:
        return RestApiError("APIGW.0308", "The throttling threshold has been reached.", status=429)
    return RestApiError("CCE.01500001", "Internal error.", status=500)
