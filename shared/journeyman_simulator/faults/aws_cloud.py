"""Simulates AWS for scenarios: an account in this process with the deployed stack of template.yaml, and faults of its calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from functools import cache, partial
from typing import Any, Final

from botocore.exceptions import ClientError, ConnectionClosedError, ReadTimeoutError
from msgspec.structs import replace

from journeyman.cloud.aws.aws_settings import AwsSettings
from journeyman.cloud.aws.sqs_queue import SQSQueue
from journeyman.core.plan import Step
from journeyman.errors import ConfigurationError
from journeyman.events import parse_trigger
from journeyman.kube.clusters import RegisteredCluster
from journeyman.ports import KubeStore, Queue
from journeyman.runtime.aws import AwsAdapters
from journeyman.runtime.environment import Environment
from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.cloud_rules.schedule_runner import ScheduleRunner
from journeyman_simulator.deployment_files import deployment_file, load_handler
from journeyman_simulator.ec2_machines import Ec2Machines
from journeyman_simulator.faults.call_sites import cloud_site
from journeyman_simulator.faults.fault_injection import FaultInjector, InjectableCall, ProcessCrashed
from journeyman_simulator.faults.fault_scenario import FaultKind, ScenarioSetup
from journeyman_simulator.faults.sandboxes import SandboxConnections, Sandboxes, SimulatedAdapters, silent_logger
from journeyman_simulator.faults.scenario_clouds import CLUSTER
from journeyman_simulator.faults.scenario_view import CloudEvent, CloudInstance, PendingMessage
from journeyman_simulator.faults.simulated_cloud import (
    KUBERNETES_VERSION,
    CloudOperations,
    InstanceRecords,
    Price,
    SimulatedCloud,
    Start,
    scenario_environment,
    unknown_function,
)
from journeyman_simulator.in_process_account.account import ACCOUNT_ID, REGION, ZONES, InProcessAccount
from journeyman_simulator.in_process_account.ec2_catalogue import SMALL_SELECTION
from journeyman_simulator.in_process_account.simulated_instances import SimulatedInstance
from journeyman_simulator.in_process_account.sqs_queues import MessageOutcome, SimulatedMessage
from journeyman_simulator.lambda_functions import LambdaContext, LambdaFunction, LambdaHandler
from journeyman_simulator.sam_stack import SamStack, read_template
from journeyman_simulator.world import Actor

SERVICE_CIDR: Final = "10.100.0.0/16"
_RETIREMENT_NOTICE: Final = timedelta(days=14)


class AwsCloud(SimulatedCloud):
    """An account with the stack of template.yaml."""

    account: InProcessAccount
    machines: Ec2Machines

    def __init__(self, clock: VirtualClock, setup: ScenarioSetup, on_instance: Callable[[CloudEvent], None]) -> None:
        """Create the account (`SimulatedCloud`)."""
        super().__init__(clock, setup, on_instance)
        zones = dict(list(ZONES.items())[: setup.zones])
        types = setup.types or SMALL_SELECTION
        self.account = InProcessAccount(clock, types=types, zones=zones, on_event=self._record_event)
        self._endpoint = self.account.seed(cluster=CLUSTER, kubernetes_version=KUBERNETES_VERSION).endpoint
        self.machines = Ec2Machines(self.account, CLUSTER)
        self.zones: Sequence[str] = self.account.prices.zones()
        prices = self.account.prices
        self.records = instance_records(lambda *offering: prices.price(*offering) or 0.0, on_instance)
        self.account.instances.observers.append(self.records.record_event)
        self.operations = Ec2Operations(self.account, self.records)
        parameters = {
            "ClusterName": CLUSTER,
            "NodeRoleArn": f"arn:aws:iam::{ACCOUNT_ID}:role/KarpenterNodeRole-{CLUSTER}",
            "RecursiveLoop": "Terminate" if setup.recursive_loops == "Terminate" else "Allow",
        }
        self._stack = SamStack(self.account, _template(), parameters)

    def decide_messages(self, decide: Callable[[str, str], MessageOutcome]) -> None:
        """See `SimulatedCloud`."""
        self.account.queues.decide = decide

    def environment(self) -> Environment:
        """Return the template's environment (`SimulatedCloud`)."""
        registered = {
            "name": CLUSTER,
            "region": REGION,
            "endpoint": self._endpoint,
            "kubernetesVersion": KUBERNETES_VERSION,
            "serviceCidr": SERVICE_CIDR,
            "access": {"kind": "kubeconfig"},
        }
        clusters = {"JOURNEYMAN_CLUSTERS": json.dumps([registered]), "JOURNEYMAN_CLUSTERS_PATH": ""}
        return scenario_environment({**self._stack.variables, **clusters}, self._setup, has_sqs=True)

    def sandboxes(self, step: Step, connections: SandboxConnections) -> Sandboxes:
        """See `SimulatedCloud`."""
        return Sandboxes(
            step.value,
            load_handler(f"{step.value}.lambda_handler"),
            connections,
            lambda: SimulatedAwsAdapters(step.value, connections, self.account),
        )

    def create_functions(self, sandboxes: Mapping[Step, Sandboxes], new_id: Callable[[], str]) -> None:
        """See `SimulatedCloud`."""
        by_step = {step.value: each for step, each in sandboxes.items()}

        def handler(text: str) -> LambdaHandler:
            return by_step.get(text.partition(".")[0], unknown_function)

        self._stack.create_resources(handler, self._clock, self.account.queues.due)
        for function in self._stack.functions.values():
            function.allows_loops &= self._setup.recursive_loops == "Allow"
            function.fatal, function.new_id, function.context = (ProcessCrashed,), new_id, VirtualLambdaContext
        self.functions = {step: self._stack.functions[f"{step.value.title()}Function"] for step in sandboxes}
        self.mappings = self._stack.mappings
        self.queues = {
            url.rsplit("/", 1)[-1]: name.removesuffix("Queue").lower()
            for name, url in self._stack.queue_urls.items()
            if name.endswith("Queue")
        }

    def schedules(self, start: Start, new_id: Callable[[], str]) -> Sequence[Actor]:
        """See `SimulatedCloud`."""
        ticker = ScheduleRunner(
            self.account.client("events"),
            self.account.client("scheduler"),
            self._clock,
            self.account.deliver,
            version=self.account.schedule_version,
            new_id=new_id,
        )
        return [*([ticker] if self._setup.sweep else []), _ScheduledInvocations(self.account, self._stack, start)]

    def send(self, step: Step, body: str, message_id: str) -> None:
        """See `SimulatedCloud`."""
        self.account.client("sqs").send_message(
            QueueUrl=self._stack.queue_urls[f"{step.value.title()}Queue"],
            MessageBody=body,
            MessageGroupId=CLUSTER,
            MessageDeduplicationId=message_id,
        )

    def pending_messages(self) -> Iterable[PendingMessage]:
        """See `SimulatedCloud`."""
        return (
            _pending_message(queue, message)
            for name, queue in self.queues.items()
            if queue != Step.INTERRUPT.value
            for message in self.account.queues.known[name].messages
        )

    def schedule_entries(self) -> Mapping[str, datetime]:
        """See `SimulatedCloud`."""
        group = self._stack.variables["JOURNEYMAN_SCHEDULE_GROUP"]
        return {
            name: datetime.fromisoformat(f"{entry['ScheduleExpression'][3:-1]}+00:00")
            for (of_group, name), entry in self.account.schedules.known.items()
            if of_group == group
        }

    def dead_letters(self) -> tuple[str, ...]:
        """See `SimulatedCloud`."""
        names = (url.rsplit("/", 1)[-1] for url in self._stack.dead_letter_urls)
        return tuple(message.body for name in names for message in self.account.queues.known[name].messages)

    def reasons(self, event: Any) -> list[str]:
        """See `SimulatedCloud`."""
        return [parse_trigger(record).reason for record in event.get("Records", [event])]

    def _record_event(self, event: Mapping[str, Any]) -> None:
        self.machines.record_event(event)


def _pending_message(queue: str, message: SimulatedMessage) -> PendingMessage:
    """Return the step of a message and the time when it is due, which a message in the requeue queue contains."""
    receivable = datetime.fromtimestamp(message.visible_at / 1000, timezone.utc)
    body = json.loads(message.body)
    at = datetime.fromisoformat(body["at"]) if body.get("at") else receivable
    step = Step(body["step"]) if queue == "requeue" else Step(queue)
    return PendingMessage(step=step, at=max(at, receivable))


@cache
def _template() -> dict[str, Any]:
    """Return template.yaml, read once."""
    return read_template(deployment_file("template.yaml"))


class _ScheduledInvocations:
    """Invokes the functions that EventBridge schedules target directly."""

    def __init__(self, account: InProcessAccount, stack: SamStack, start: Start) -> None:
        self._account = account
        self._functions: dict[str, LambdaFunction] = {function.arn: function for function in stack.functions.values()}
        self._start = start

    def due(self) -> datetime | None:
        """Return None: the `ScheduleRunner` is due when a schedule fires."""
        return None

    def act(self) -> bool:
        """Invoke the function of each delivery; return whether there was one."""
        deliveries = self._account.take_deliveries()
        for delivery in deliveries:
            function = self._functions[delivery.function_arn]
            if function.is_throttled:
                continue  # the schedule allows no retry; the next minute sweeps again
            self._start(function, partial(function.invoke, delivery.event))
        return bool(deliveries)


# -- instances ------------------------------------------------------------------------------------------------------


def instance_records(price: Price, on_event: Callable[[CloudEvent], None]) -> InstanceRecords:
    """Return records of EC2 instances, with these prices; call `on_event` with each event."""

    def describe(instance: SimulatedInstance, launch_tags: Mapping[str, str]) -> CloudInstance:
        capacity_type = "spot" if instance.spot else "on-demand"
        return CloudInstance(
            provider_id=f"aws:///{instance.zone}/{instance.id}",
            instance_type=instance.instance_type,
            zone=instance.zone,
            capacity_type=capacity_type,
            price=price(instance.instance_type, instance.zone, capacity_type),
            state=instance.state if instance.changes else "pending",
            launched_at=instance.launched_at,
            tags=launch_tags,
        )

    return InstanceRecords(describe, on_event)


class Ec2Operations(CloudOperations):
    """Operates on EC2 instances. EC2 interrupts Spot instances two minutes after the warning, and stops no Spot instance."""

    @staticmethod
    def instance_id(provider_id: str) -> str:
        """See `CloudOperations`."""
        return provider_id.rpartition("/")[2]

    def recommend_rebalance(self, provider_id: str) -> None:
        """See `CloudOperations`."""
        with suppress(ConfigurationError):
            self._account.recommend_rebalance(self.instance_id(provider_id))

    def announce_maintenance(self, provider_id: str) -> None:
        """Send AWS Health's announcement that the instance's host retires."""
        self._account.instances.announce_retirement(self.instance_id(provider_id), _RETIREMENT_NOTICE)

    def fail_check(self, provider_id: str, check: str) -> None:
        """See `CloudOperations`."""
        self._account.instances.checks.fail(self.instance_id(provider_id), check)

    def pass_checks(self, provider_id: str = "") -> None:
        """See `CloudOperations`."""
        ids = [self.instance_id(provider_id)] if provider_id else list(self._account.instances.known)
        for instance_id in ids:
            self._account.instances.checks.recover(instance_id)


# -- functions ------------------------------------------------------------------------------------------------------


class VirtualLambdaContext(LambdaContext):
    """Lambda's context object, with the remaining time in virtual time."""

    def __init__(self, function: LambdaFunction, request_id: str) -> None:
        super().__init__(function, request_id)
        self._clock = function.clock
        self.ends_at = function.clock.now() + timedelta(seconds=function.timeout_seconds)

    def get_remaining_time_in_millis(self) -> int:
        """Return the milliseconds of virtual time until the timeout."""
        return max(0, round((self.ends_at - self._clock.now()).total_seconds() * 1000))


class SimulatedAwsAdapters(SimulatedAdapters, AwsAdapters):
    """The adapters of one sandbox: without logs and metrics, and with sequential requests, so that runs are reproducible."""

    renew_seconds = 0

    def __init__(self, step: str, connections: SandboxConnections, account: InProcessAccount) -> None:
        """Create the adapters of a sandbox of the step's function."""
        self.connections = connections
        self._account = account
        self._client_by_service: dict[str, Any] = {}
        self._step = step
        super().__init__(
            connections.environment,
            clock=connections.seen_clock,
            stores=lambda _: connections.store(step),
            clients=self._client,
            log_to=silent_logger(),
        )

    def queue(self) -> Queue:
        """Return the queue adapter, with serial numbers as message ids, and without a thread."""
        queue = SQSQueue(
            self._client("sqs", self.environment.region),
            self.clock,
            queues=self.environment.queues,
            requeue_url=self.environment.requeue_url,
            new_id=self.connections.new_id,
            renew_seconds=self.renew_seconds,
        )
        return self.connections.collaborators.queue(self._step, queue)

    def aws_settings(self, cluster: RegisteredCluster, store: KubeStore) -> AwsSettings:
        """Return the settings without concurrency, so that a scenario is reproducible."""
        return replace(super().aws_settings(cluster, store), max_parallel_launches=1, parallel_reads=False)

    def _client(self, service: str, _region: str) -> Any:
        if service not in self._client_by_service:
            client = FaultyClient(
                self._account.client(service),
                service,
                self._step,
                self.connections.faults,
                self.connections.before_request,
            )
            self._client_by_service[service] = self.connections.collaborators.client(self._step, client)
        return self._client_by_service[service]


# -- calls ----------------------------------------------------------------------------------------------------------


class FaultyClient:
    """One function's client of one AWS service.

    Args:
        client: The account's client.
        service: boto3's name of the service.
        step: The function's step.
        faults: Decides for each call whether it fails.
        before_request: See `SandboxConnections`.
    """

    def __init__(
        self,
        client: Any,
        service: str,
        step: str,
        faults: FaultInjector,
        before_request: Callable[[str, object], None] = lambda _operation, _request: None,
    ) -> None:
        self._before_request = before_request
        self._client = client
        self._service = service
        self._step = step
        self._faults = faults

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return the operation with that Python name, such as `create_fleet`."""
        return partial(self.call, name)

    def get_paginator(self, name: str) -> FaultyPaginator:
        """Return a paginator of an operation."""
        return FaultyPaginator(self, name)

    def call(self, name: str, **parameters: Any) -> Any:
        """Call an operation once."""
        operation = "".join(word.capitalize() for word in name.split("_"))

        def as_of(time: datetime) -> Any:
            return getattr(self._client.as_of(time), name)(**parameters)

        def error(kind: Any) -> Exception:
            return aws_error(kind, self._service, operation)

        def perform() -> Any:
            self._before_request(operation, parameters)
            return getattr(self._client, name)(**parameters)

        site = cloud_site(self._step, self._service, operation)
        return self._faults.call(InjectableCall(site=site, error=error, cached=True), perform, as_of)


class FaultyPaginator:
    """A paginator that makes a call for each page."""

    def __init__(self, client: FaultyClient, operation: str) -> None:
        self._client = client
        self._operation = operation

    def paginate(self, PaginationConfig: Mapping[str, Any] | None = None, **arguments: Any) -> Iterator[Any]:  # noqa: N803 - boto3's name
        """Yield the pages, requesting each when the caller takes it."""
        if size := (PaginationConfig or {}).get("PageSize"):
            arguments["MaxResults"] = size
        while True:
            page = self._client.call(self._operation, **arguments)
            yield page
            if not page.get("NextToken"):
                return
            arguments["NextToken"] = page["NextToken"]


_THROTTLED: Final = {"ec2": "RequestLimitExceeded"}  # EC2 has its own error code; the others use ThrottlingException


def aws_error(kind: FaultKind, service: str, operation: str) -> Exception:
    """Return the error that botocore raises after its retries."""
    url = f"https://{service}.us-east-1.amazonaws.com/"
    if kind is FaultKind.FAIL_AFTER:
        return ConnectionClosedError(endpoint_url=url)
    if kind in {FaultKind.TIMEOUT_BEFORE, FaultKind.TIMEOUT_AFTER}:
        return ReadTimeoutError(endpoint_url=url)
    if kind is FaultKind.THROTTLE:
        return _client_error(_THROTTLED.get(service, "ThrottlingException"), "Request limit exceeded.", 503, operation)
    return _client_error("InternalError", "An internal error has occurred", 500, operation)


def _client_error(code: str, message: str, status: int, operation: str) -> ClientError:
    response = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(response, operation)  # type: ignore[arg-type]  # the stubs require headers
