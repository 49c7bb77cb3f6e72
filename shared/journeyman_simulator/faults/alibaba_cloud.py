"""Simulates Alibaba Cloud for scenarios: an account in this process with the deployed functions, and faults of its calls."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import cache, partial
from typing import Any, Final, cast

from msgspec.structs import replace

from journeyman.cloud.alibaba.alibaba_settings import AlibabaSettings
from journeyman.cloud.alibaba.open_api import ApiCall, OpenApiError
from journeyman.cloud.alibaba.smq_queue import ATTEMPTS, Smq, SmqError, SmqMessage, SmqQueue
from journeyman.core.plan import Step
from journeyman.events import parse_trigger
from journeyman.events.alibaba_events import body_of
from journeyman.kube.clusters import RegisteredCluster
from journeyman.ports import Queue
from journeyman.runtime.alibaba import AlibabaAdapters, AlibabaEnvironment, read_alibaba_environment
from journeyman.runtime.environment import Environment
from journeyman_simulator.alibaba_account.alibaba_account import AlibabaAccount, AlibabaClient
from journeyman_simulator.alibaba_account.alibaba_machines import AlibabaMachines
from journeyman_simulator.alibaba_account.ecs_instance_states import DELETED, EcsInstance
from journeyman_simulator.alibaba_account.event_stream import FcHandler, FcInvocationContext
from journeyman_simulator.alibaba_account.fc_stack import DEAD_LETTERS, FcDescription, FcStack, read_description
from journeyman_simulator.alibaba_account.smq import SimulatedSmq
from journeyman_simulator.clock import VirtualClock
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
from journeyman_simulator.faults.scenario_clouds import ALIBABA, CLUSTER
from journeyman_simulator.faults.scenario_view import CloudEvent, CloudInstance, PendingMessage
from journeyman_simulator.faults.simulated_cloud import (
    KUBERNETES_VERSION,
    CloudOperations,
    InstanceRecords,
    Price,
    SimulatedCloud,
    Start,
    cloud_instance,
    scenario_environment,
)
from journeyman_simulator.in_process_account.sqs_queues import MessageOutcome
from journeyman_simulator.lambda_functions import LambdaContext, LambdaFunction
from journeyman_simulator.world import Actor

REGION: Final = "cn-hangzhou"
_ZONES: Final = tuple(f"{REGION}-{letter}" for letter in "hjk")


class AlibabaCloud(SimulatedCloud):
    """An account with the functions and queues of infra/alibaba."""

    account: AlibabaAccount

    def __init__(self, clock: VirtualClock, setup: ScenarioSetup, on_instance: Callable[[CloudEvent], None]) -> None:
        """Create the account (`SimulatedCloud`)."""
        super().__init__(clock, setup, on_instance)
        self.zones = _ZONES[: setup.zones]
        self.account = AlibabaAccount(clock, region=REGION, types=setup.types or ALIBABA.types, zones=self.zones)
        seeded = self.account.seed(cluster=CLUSTER, kubernetes_version=KUBERNETES_VERSION)
        self.machines = AlibabaMachines(self.account, seeded.cluster_id)
        prices = self.account.prices
        ends = EndingInstances()
        self.records = instance_records(lambda *offering: prices.price(*offering) or 0.0, ends, on_instance)
        self.operations = EcsOperations(self.account, self.records, ends)
        self.account.instances.observers.append(self.records.record_event)
        self.smq = SimulatedSmq(clock)
        variables = {
            "JOURNEYMAN_CLUSTER_NAME": CLUSTER,
            "JOURNEYMAN_CLUSTER_ID": seeded.cluster_id,
            "JOURNEYMAN_CLUSTER_IDS": seeded.cluster_id,
        }
        self._stack = FcStack(self.account, self.smq, _description(), variables)
        self._alibaba = read_alibaba_environment(self._stack.variables)

    def decide_messages(self, decide: Callable[[str, str], MessageOutcome]) -> None:
        """See `SimulatedCloud`."""
        self.smq.decide = decide

    def environment(self) -> Environment:
        """Return the environment in s.yaml (`SimulatedCloud`)."""
        return scenario_environment({**self._stack.variables, "FC_REGION": REGION}, self._setup, has_sqs=False)

    def sandboxes(self, step: Step, connections: SandboxConnections) -> Sandboxes:
        """See `SimulatedCloud`."""
        handler = load_handler(f"{step.value}.handler", "alibaba")
        new_adapters = partial(
            SimulatedAlibabaAdapters, step.value, connections, self._alibaba, self.account, self._stack
        )
        return Sandboxes(step.value, handler, connections, new_adapters)

    def create_functions(self, sandboxes: Mapping[Step, Sandboxes], new_id: Callable[[], str]) -> None:
        """See `SimulatedCloud`."""
        by_step = {step.value: each for step, each in sandboxes.items()}
        functions = self._stack.functions

        def handler(text: str) -> FcHandler:
            name = text.partition(".")[0]

            def run(event: bytes, context: Any) -> Any:
                if functions[name].is_throttled:
                    raise FunctionThrottledError(name)
                return by_step[name](event, context)

            return run

        self._stack.create_resources(
            handler, self._clock, checks_permissions=False, fatal=(ProcessCrashed,), new_id=new_id
        )
        for function in functions.values():
            function.context = cast("Callable[[LambdaFunction, str], LambdaContext]", VirtualFcContext)
        self.functions = {step: functions[step.value] for step in sandboxes}
        self.mappings = self._stack.mappings
        names = self._stack.queue_names
        self.queues = {names[f"{step.value.title()}Queue"]: step.value for step in sandboxes}
        self._names = {step: name for name, step in self.queues.items()}

    def schedules(self, start: Start, new_id: Callable[[], str]) -> Sequence[Actor]:
        """See `SimulatedCloud`."""
        self._stack.invocations.start = start
        subscribers = self.account.bus.subscribers
        events = UnreliableEvents(self._stack, subscribers.pop(), self._decide_event, self._clock)
        subscribers.append(events.publish)
        timers = [self._stack.timers] if self._setup.sweep else []
        return [events, *timers, self._stack.invocations]

    def _decide_event(self, event: Mapping[str, Any]) -> MessageOutcome:
        return self.smq.decide(self._names[Step.INTERRUPT.value], json.dumps(event))

    def send(self, step: Step, body: str, message_id: str) -> None:
        """See `SimulatedCloud`."""
        self.smq.send(self._names[step.value], [SmqMessage(base64.b64encode(body.encode()).decode())])

    def pending_messages(self) -> Iterable[PendingMessage]:
        """See `SimulatedCloud`."""
        return (
            PendingMessage(step=Step(step), at=datetime.fromtimestamp(message.visible_at / 1000, timezone.utc))
            for name, step in self.queues.items()
            if step != Step.INTERRUPT.value
            for message in self.smq.queues[name].messages
        )

    def dead_letters(self) -> tuple[str, ...]:
        """Return the bodies of dead letters, without the events into which EventBridge wraps them."""
        bodies = [message.text for message in self._stack.dead_letters()]
        return tuple(body_of(json.loads(body)) or body for body in bodies)

    def reasons(self, event: Any) -> list[str]:
        """See `SimulatedCloud`."""
        if not event:
            return []
        parsed = json.loads(event)
        return [parse_trigger(item).reason for item in (parsed if isinstance(parsed, list) else [parsed])]


@cache
def _description() -> FcDescription:
    """Return infra/alibaba, read once."""
    return read_description()


class FunctionThrottledError(Exception):
    """Function Compute accepts no invocation of the function now; no sandbox starts."""


class UnreliableEvents:
    """Passes ECS's events to the rules of EventBridge, with the faults of messages to `interrupt`. An `Actor`.

    Args:
        stack: Its rules select the events that have faults.
        deliver: Passes an event to the rules.
        decide: Returns the outcome of an event.
        clock: The time.
    """

    def __init__(
        self,
        stack: FcStack,
        deliver: Callable[[dict[str, Any]], object],
        decide: Callable[[Mapping[str, Any]], MessageOutcome],
        clock: VirtualClock,
    ) -> None:
        self._stack = stack
        self._deliver = deliver
        self._decide = decide
        self._clock = clock
        self._late: list[tuple[datetime, dict[str, Any]]] = []

    def publish(self, event: dict[str, Any]) -> None:
        """Deliver an event that a rule wants: as often and as late as was decided."""
        if not any(rule.matches(event) for rule in self._stack.rules):
            return
        outcome = self._decide(event)
        at = self._clock.now() + timedelta(seconds=outcome.delay_seconds)
        if outcome.delay_seconds:
            self._late.append((at, event))
            return
        for _ in range(outcome.copies):
            self._deliver(event)

    def due(self) -> datetime | None:
        """Return when the next late event is delivered."""
        return min((at for at, _ in self._late), default=None)

    def act(self) -> bool:
        """Deliver the late events that are due; return whether there was one."""
        now = self._clock.now()
        due = [event for at, event in self._late if at <= now]
        self._late = [(at, event) for at, event in self._late if at > now]
        for event in due:
            self._deliver(event)
        return bool(due)


# -- instances ------------------------------------------------------------------------------------------------------

_STATES: Final[Mapping[str, str]] = {
    "Pending": "pending",
    "Starting": "pending",
    "Running": "running",
    "Stopping": "stopping",
    "Stopped": "stopped",
    DELETED: "terminated",
}


class EndingInstances:
    """The instances that will be released once they are stopped, which ECS shows as Stopping."""

    def __init__(self) -> None:
        self.ids: set[str] = set()

    def state_of(self, instance: EcsInstance) -> str:
        """Return the instance's state in the words of `CloudInstance`."""
        if not instance.changes:
            return "pending"
        is_ending = instance.id in self.ids or "Recycling" in instance.locks
        return "shutting-down" if instance.state == "Stopping" and is_ending else _STATES[instance.state]


def instance_records(price: Price, ends: EndingInstances, on_event: Callable[[CloudEvent], None]) -> InstanceRecords:
    """Return records of ECS instances, with these prices; call `on_event` with each event."""

    def describe(instance: EcsInstance, launch_tags: Mapping[str, str]) -> CloudInstance:
        return cloud_instance(
            instance,
            price,
            provider_id=f"{REGION}.{instance.id}",
            state=ends.state_of(instance),
            launched_at=instance.created_at,
            tags=launch_tags,
        )

    return InstanceRecords(describe, on_event)


class EcsOperations(CloudOperations):
    """Operates on ECS instances. ECS reclaims Spot instances five minutes after the event; it has no status checks."""

    early_end_reason = "The instance could not be created, because its KMS key is disabled."
    refused_launch = ("CreateAutoProvisioningGroup", "InvalidImageId.NotFound")

    def __init__(self, account: AlibabaAccount, records: InstanceRecords, ends: EndingInstances) -> None:
        """Create the operations on the account; `ends` gets the instances that are deleted."""
        super().__init__(account, records)
        self._ends = ends
        account.instances.observers.append(self._record_deletion)

    def _record_deletion(self, observation: Any) -> None:
        if observation.what == "deletion-requested":
            self._ends.ids.add(observation.instance.id)

    @staticmethod
    def instance_id(provider_id: str) -> str:
        """See `CloudOperations`."""
        return provider_id.partition(".")[2]

    def terminate(self, provider_id: str) -> None:
        """See `CloudOperations`."""
        self._ends.ids.add(self.instance_id(provider_id))
        super().terminate(provider_id)


# -- functions ------------------------------------------------------------------------------------------------------


class VirtualFcContext(FcInvocationContext):
    """Function Compute's context object, with the timeout in virtual time."""

    def __init__(self, function: LambdaFunction, request_id: str) -> None:
        super().__init__(function, request_id)
        self.ends_at = function.clock.now() + timedelta(seconds=function.timeout_seconds)


class SimulatedAlibabaAdapters(SimulatedAdapters, AlibabaAdapters):
    """The adapters of one sandbox: without logs and metrics, and with sequential requests, so that runs are reproducible."""

    def __init__(
        self,
        step: str,
        connections: SandboxConnections,
        alibaba: AlibabaEnvironment,
        account: AlibabaAccount,
        stack: FcStack,
    ) -> None:
        """Create the adapters of a sandbox of the step's function."""
        self.connections = connections
        self._step = step
        self._queue_names = stack.queue_names
        client = FaultyOpenApi(AlibabaClient(account, step, None), step, connections.faults, connections.before_request)
        faulty_client = connections.collaborators.client(step, client)
        self._faulty_smq = FaultySmq(stack.smq_client(), step, connections.faults)
        super().__init__(
            connections.environment,
            alibaba,
            clock=connections.seen_clock,
            stores=lambda _: connections.store(step),
            open_api=lambda _region: faulty_client,
            smq=self._faulty_smq,
            log_to=silent_logger(),
        )

    def queue(self) -> Queue:
        """Return the queue adapter, with serial numbers as message ids."""
        queue = SmqQueue(
            self._faulty_smq,
            self.clock,
            queues={step: self._queue_names[f"{step.value.title()}Queue"] for step in Step},
            dead_letter_queue=self._queue_names[DEAD_LETTERS],
            new_id=self.connections.new_id,
        )
        return self.connections.collaborators.queue(self._step, queue)

    def alibaba_settings(self, cluster: RegisteredCluster) -> AlibabaSettings:
        """Return the settings without concurrency, so that a scenario is reproducible."""
        return replace(super().alibaba_settings(cluster), max_parallel_launches=1, parallel_reads=False)


# -- calls ----------------------------------------------------------------------------------------------------------


class FaultyOpenApi:
    """One function's `OpenApi`.

    Args:
        client: The account's client.
        step: The function's step.
        faults: Decides for each call whether it fails.
        before_request: See `SandboxConnections`.
    """

    def __init__(
        self,
        client: AlibabaClient,
        step: str,
        faults: FaultInjector,
        before_request: Callable[[str, object], None] = lambda _operation, _request: None,
    ) -> None:
        self._before_request = before_request
        self._client = client
        self._step = step
        self._faults = faults

    def __call__(self, call: ApiCall) -> Any:
        """Send a request, or inject its fault."""

        def as_of(time: datetime) -> Any:
            return self._client.as_of(time)(call)

        def perform() -> Any:
            self._before_request(call.action, call)
            return self._client(call)

        site = cloud_site(self._step, call.service, call.action)
        injectable = InjectableCall(site=site, error=alibaba_error, cached=True)
        return self._faults.call(injectable, perform, as_of)


class FaultySmq:
    """One function's `Smq`. A request that fails fails again as often as the adapter repeats it.

    Args:
        smq: The account's queues.
        step: The function's step.
        faults: Decides for each call whether it fails.
    """

    def __init__(self, smq: Smq, step: str, faults: FaultInjector) -> None:
        self._smq = smq
        self._site = cloud_site(step, "smq", "BatchSendMessage")
        self._requests = RepeatedRequests(
            faults, smq_error, attempts=ATTEMPTS, is_repeated=lambda kind: kind is not FaultKind.THROTTLE
        )

    def send(self, queue: str, messages: Sequence[SmqMessage]) -> None:
        """Send messages, or inject the fault of the request. Raises SmqError."""
        self._requests.call(self._site, messages, partial(self._smq.send, queue, messages))


def alibaba_error(kind: FaultKind) -> OpenApiError:
    """Return the error that `SdkOpenApi` raises after its attempts."""
    if kind in NO_ANSWER:
        return OpenApiError("", NO_ANSWER[kind])
    if kind is FaultKind.THROTTLE:
        return OpenApiError("Throttling.User", "Request was denied due to user flow control.", status=400)
    return OpenApiError("InternalError", "The request processing has failed due to some unknown error.", status=500)


def smq_error(kind: FaultKind) -> SmqError:
    """Return the error that `SdkSmq` raises."""
    if kind in NO_ANSWER:
        return SmqError("", NO_ANSWER[kind])
    if kind is FaultKind.THROTTLE:
        return SmqError("QpsLimitExceeded", "The QPS limit is exceeded.")
    return SmqError("InternalError", "Internal error.")
