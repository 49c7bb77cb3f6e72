"""Runs the deployed application on a simulated cluster and account for a fault scenario.

The resources come from template.yaml; the handlers and the AWS adapter are the deployed ones. The module uses no random
numbers: the same scenario has the same history, including every byte of every write.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import cache, partial
from itertools import count
from typing import Any, Final

from msgspec.structs import replace

from journeyman.core.plan import Step
from journeyman.errors import JourneymanError
from journeyman.events import parse_trigger
from journeyman.ports import Clock
from journeyman.runtime.environment import Environment, read_environment
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.clock import SkewedClock, VirtualClock
from journeyman_simulator.cloud_rules.schedule_runner import ScheduleRunner
from journeyman_simulator.deployment_files import deployment_file
from journeyman_simulator.ec2_machines import Ec2Machines
from journeyman_simulator.faults.account_operations import AccountOperations, InstanceRecords
from journeyman_simulator.faults.call_sites import FaultCoverage
from journeyman_simulator.faults.cooperative_scheduler import CooperativeScheduler
from journeyman_simulator.faults.fault_injection import (
    FaultInjector,
    MessageFaultInjector,
    ProcessCrashed,
    current_name,
)
from journeyman_simulator.faults.fault_scenario import (
    CallFault,
    FaultScenario,
    FunctionThrottle,
    MessageFault,
    ScenarioSetup,
)
from journeyman_simulator.faults.history import History, HistoryEntry
from journeyman_simulator.faults.invariants.checkers import InvariantChecker, InvariantCheckers
from journeyman_simulator.faults.manifests import CLUSTER, initial_manifests
from journeyman_simulator.faults.node_faults import NodeFaults
from journeyman_simulator.faults.operations import Operations
from journeyman_simulator.faults.sandboxes import (
    ORIGINALS,
    Collaborators,
    SandboxConnections,
    Sandboxes,
    VirtualLambdaContext,
)
from journeyman_simulator.faults.scenario_view import HUMAN, CloudEvent, CloudInstance, PendingMessage, RunError
from journeyman_simulator.in_process_account.account import ACCOUNT_ID, REGION, ZONES, InProcessAccount
from journeyman_simulator.in_process_account.ec2_catalogue import SMALL_SELECTION
from journeyman_simulator.in_process_account.sqs_queues import SimulatedMessage
from journeyman_simulator.kube_scheduler import KubeScheduler
from journeyman_simulator.kubelet import Kubelets
from journeyman_simulator.lambda_functions import EventSourceMapping, LambdaFunction, LambdaHandler
from journeyman_simulator.local_forwarder import LocalForwarder
from journeyman_simulator.sam_stack import SamStack, read_template
from journeyman_simulator.workload_controllers import WorkloadControllers
from journeyman_simulator.world import World, WorldStuckError

START: Final = datetime(2026, 1, 5, 12, tzinfo=timezone.utc)
MAX_RUNS: Final = 100
RUNS_PER_SECOND: Final = 3
"""Detect a hot loop: so many runs, and so many more per second of virtual time.

NodeClaims that expire every minute, with drains that are polled every two seconds, need 1.9 runs per second for as long as they
do.
"""
KUBERNETES_VERSION: Final = "1.33"
SERVICE_CIDR: Final = "10.100.0.0/16"


class FaultWorld:
    """The cluster, account and functions of a scenario. A `ScenarioView`."""

    def __init__(
        self,
        scenario: FaultScenario,
        checkers: Sequence[type[InvariantChecker]],
        on_entry: Callable[[HistoryEntry], None] | None = None,
        *,
        max_runs: int = MAX_RUNS,
        collaborators: Collaborators = ORIGINALS,
    ) -> None:
        """Create the world in its state at the scenario's start."""
        self.scenario = scenario
        self._collaborators = collaborators
        self.clock = VirtualClock(START)
        self.coverage = FaultCoverage(scenarios=1)
        self.history = History(self.clock, current_name, on_entry)
        self.server = ApiServer(self.clock)
        self.server.load(initial_manifests(scenario.setup))
        self.checkers = InvariantCheckers(self, checkers)
        self.server.on_write(self.history.on_write)
        self.server.on_write(self.checkers.check_write)
        self._make_account(scenario.setup)
        self._make_faults(scenario)
        self._make_functions()
        self._run_limit = RunLimit(self.clock, max_runs, lambda: self.runs, self._describe_runs)
        self._world = World(self.clock, self._actors())

    # -- time and faults ----------------------------------------------------------------------------------------------------

    def run_for(self, span: timedelta) -> None:
        """Run for `span` of virtual time, or until an invariant is violated.

        Raises:
            WorldStuckError: The actors do not settle.
            TooManyRunsError: The functions run too often.
        """
        self._world.run_for(span, unless=lambda: bool(self.checkers.violations))

    def paused_until(self) -> datetime | None:
        """Return when the next paused run resumes; None if none is paused."""
        return self._scheduler.due()

    def restore(self) -> None:
        """End all faults, undo their lasting effects, and resume paused runs."""
        self._faults.enabled = self._messages.enabled = False
        self._operations.restore()
        self._throttles.end()
        self._scheduler.release()

    def end(self) -> None:
        """End the scenario: paused runs crash when they resume."""
        self._faults.end()
        self._scheduler.release()

    # -- the view -----------------------------------------------------------------------------------------------------------

    @property
    def runs(self) -> int:
        """Return the number of invocations so far."""
        return sum(sandboxes.runs for sandboxes in self._sandboxes)

    def _describe_runs(self) -> str:
        """Return the number of runs of each function and the reason of its last run, most runs first."""
        by_runs = sorted((s for s in self._sandboxes if s.runs), key=lambda s: -s.runs)
        return "; ".join(f"{s.step} {s.runs} times, last for {_reason(s.last)}" for s in by_runs)

    def instances(self) -> tuple[CloudInstance, ...]:
        """Return `ScenarioView.instances`."""
        return self._records.instances()

    def pending_messages(self) -> tuple[PendingMessage, ...]:
        """Return `ScenarioView.waiting`."""
        pending_messages = [
            _pending_message(queue, message)
            for name, queue in self._messages.queues.items()
            if queue != Step.INTERRUPT.value
            for message in self.account.queues.known[name].messages
        ]
        return tuple(sorted(pending_messages, key=lambda w: (w.at, w.step.value)))

    def active_runs(self) -> tuple[str, ...]:
        """Return `ScenarioView.busy`."""
        return tuple(run.name for sandboxes in self._sandboxes for run in sandboxes.active_runs.values())

    def dead_letters(self) -> tuple[str, ...]:
        """Return `ScenarioView.dead_letters`."""
        names = (url.rsplit("/", 1)[-1] for url in self._stack.dead_letter_urls)
        return tuple(message.body for name in names for message in self.account.queues.known[name].messages)

    # -- construction -------------------------------------------------------------------------------------------------------

    def _make_account(self, setup: ScenarioSetup) -> None:
        zones = dict(list(ZONES.items())[: setup.zones])
        types = setup.types or SMALL_SELECTION
        self.account = InProcessAccount(self.clock, types=types, zones=zones, on_event=self._record_cloud_event)
        seeded = self.account.seed(cluster=CLUSTER, kubernetes_version=KUBERNETES_VERSION)
        self._endpoint = seeded.endpoint
        self._machines = Ec2Machines(self.account, CLUSTER)
        prices = self.account.prices
        self._records = InstanceRecords(lambda *offering: prices.price(*offering) or 0.0, self._record_instance)
        self.account.instances.observers.append(self._records.record_event)

    def _make_faults(self, scenario: FaultScenario) -> None:
        """Create the fault injectors and the operations."""
        record = self.history.record
        self._scheduler = CooperativeScheduler(self.clock)
        self._faults = FaultInjector(
            [fault for fault in scenario.faults if isinstance(fault, CallFault)],
            clock=self.clock,
            scheduler=self._scheduler,
            coverage=self.coverage,
            on_fault=record,
            thaw=scenario.setup.thaw,
        )
        message_faults = [fault for fault in scenario.faults if isinstance(fault, MessageFault)]
        self._messages = MessageFaultInjector(message_faults, self.coverage, record)
        self.account.queues.decide = self._messages.decide
        self._node_faults = NodeFaults(self._machines, self.server, self.clock, self._records.never_joining)
        self._skew = SkewedClock(self.clock)
        self._operations = Operations(
            scenario,
            server=self.server,
            clock=self.clock,
            cloud=AccountOperations(self.account, self._records),
            node_faults=self._node_faults,
            skew=self._skew,
            types=sorted(scenario.setup.types or SMALL_SELECTION),
            zones=self.account.prices.zones(),
            on_operation=partial(record, who=HUMAN),
        )

    def _make_functions(self) -> None:
        parameters = {
            "ClusterName": CLUSTER,
            "NodeRoleArn": f"arn:aws:iam::{ACCOUNT_ID}:role/KarpenterNodeRole-{CLUSTER}",
            "RecursiveLoop": "Terminate" if self.scenario.setup.recursive_loops == "Terminate" else "Allow",
        }
        self._stack = SamStack(self.account, _template(), parameters)
        self._sandboxes: list[Sandboxes] = []
        self._ids = count(1)
        connections = self._connections()
        sandboxes = {step.value: Sandboxes(f"{step.value}.lambda_handler", connections) for step in Step}
        self._sandboxes = [*sandboxes.values()]

        def handler(text: str) -> LambdaHandler:
            return sandboxes.get(text.partition(".")[0], _unknown_function)

        self._stack.create_resources(handler, self.clock, self.account.queues.due)
        self._throttles = FunctionThrottles(self.scenario.setup.throttles, self._stack.functions, self.clock)
        for function in self._stack.functions.values():
            function.allows_loops &= self.scenario.setup.recursive_loops == "Allow"
            function.fatal, function.new_id, function.context = (
                (ProcessCrashed,),
                connections.new_id,
                VirtualLambdaContext,
            )
        self._messages.queues = {
            url.rsplit("/", 1)[-1]: name.removesuffix("Queue").lower()
            for name, url in self._stack.queue_urls.items()
            if name.endswith("Queue")
        }

    def _connections(self) -> SandboxConnections:
        return SandboxConnections(
            environment=_environment(self._stack.variables, self.scenario.setup, self._endpoint),
            clock=self.clock,
            seen_clock=self._skew,
            server=self.server,
            account=self.account,
            version_at=self.history.version_at,
            faults=self._faults,
            on_error=self._record_error,
            ids=self._ids,
            collaborators=self._collaborators,
        )

    def _actors(self) -> list[Any]:
        ticker = ScheduleRunner(
            self.account.client("events"),
            self.account.client("scheduler"),
            self.clock,
            self.account.deliver,
            version=self.account.schedule_version,
            new_id=lambda: f"tick-{next(self._ids)}",
        )
        return [
            self._run_limit,
            self._operations,
            self._throttles,
            WorkloadControllers(self.server.acting_as("kube-controller-manager")),
            KubeScheduler(self.server.acting_as("kube-scheduler"), self.clock),
            Kubelets(self.server.acting_as("kubelet"), self.clock, self._node_faults),
            self.account,
            LocalForwarder(self.server, self.clock, CLUSTER, self._forward),
            MinuteTicker(self.clock, self.checkers.check_every_minute),
            *([ticker] if self.scenario.setup.sweep else []),
            ScheduledInvocations(self.account, self._stack, self._start),
            self._scheduler,
            *(QueuePoller(mapping, self.clock, self._start, self.history.record) for mapping in self._stack.mappings),
        ]

    def _start(self, function: LambdaFunction, work: Callable[[], object]) -> None:
        """Run `work`, which invokes the function, until it ends or a fault pauses it."""
        handler = function.handler
        can_pause = isinstance(handler, Sandboxes) and self._faults.can_pause(handler.step)
        self._scheduler.start(work, can_pause=can_pause)

    def _forward(self, step: Step, body: str, message_id: str) -> None:
        """Send a message of the forwarder to a step's queue."""
        self.account.client("sqs").send_message(
            QueueUrl=self._stack.queue_urls[f"{step.value.title()}Queue"],
            MessageBody=body,
            MessageGroupId=CLUSTER,
            MessageDeduplicationId=message_id,
        )

    def _record_cloud_event(self, event: Any) -> None:
        self._machines.record_event(event)

    def _record_instance(self, event: CloudEvent) -> None:
        self.history.record(f"{event.kind} {event.instance.provider_id} {event.instance.state}", event.by)
        self.checkers.check_cloud_event(event)

    def _record_error(self, error: RunError) -> None:
        self.history.record(f"{error.error}: {error.message}")
        self.checkers.check_error(error)


def _reason(event: dict[str, Any]) -> str:
    """Return the reason in an event."""
    return " and ".join(parse_trigger(record).reason for record in event.get("Records", [event])) or "no reason"


def _pending_message(queue: str, message: SimulatedMessage) -> PendingMessage:
    """Return the step of a message and the time when it is due, which a message in the requeue queue contains."""
    receivable = datetime.fromtimestamp(message.visible_at / 1000, timezone.utc)
    body = json.loads(message.body)
    at = datetime.fromisoformat(body["at"]) if body.get("at") else receivable
    step = Step(body["step"]) if queue == "requeue" else Step(queue)
    return PendingMessage(step=step, at=max(at, receivable))


def _unknown_function(_event: dict[str, Any], _context: Any) -> Any:
    raise WorldStuckError("an unknown function was invoked")


@cache
def _template() -> dict[str, Any]:
    """Return template.yaml, read once."""
    return read_template(deployment_file("template.yaml"))


def _environment(variables: dict[str, str], setup: ScenarioSetup, endpoint: str) -> Environment:
    """Return the functions' environment: the template's, with the scenario's settings."""
    registered = {
        "name": CLUSTER,
        "region": REGION,
        "endpoint": endpoint,
        "kubernetesVersion": KUBERNETES_VERSION,
        "serviceCidr": SERVICE_CIDR,
        "access": {"kind": "kubeconfig"},
    }
    gates = {"NodeRepair": setup.node_repair, "SpotToSpotConsolidation": setup.spot_to_spot, "StaticCapacity": True}
    read = read_environment(
        {
            **variables,
            "JOURNEYMAN_CLUSTERS": json.dumps([registered]),
            "JOURNEYMAN_CLUSTERS_PATH": "",
            "FEATURE_GATES": ",".join(f"{name}={str(on).lower()}" for name, on in gates.items()),
        }
    )
    settings = replace(
        read.settings[CLUSTER],
        pod_nomination=setup.pod_nomination,
        registration_poll=timedelta(seconds=setup.registration_poll_seconds),
        drain_poll=timedelta(seconds=setup.drain_poll_seconds),
        instance_poll=timedelta(seconds=setup.instance_poll_seconds),
        registration_timeout=timedelta(seconds=setup.registration_timeout_seconds),
    )
    return replace(read, defaults=settings)


MINUTE: Final = timedelta(minutes=1)


Start = Callable[[LambdaFunction, Callable[[], object]], None]
"""Starts a run of a function, which may pause, given the function and a callable that invokes it."""


class QueuePoller:
    """Polls for an event source mapping whose function may pause during a batch."""

    def __init__(
        self, mapping: EventSourceMapping, clock: Clock, start: Start, record: Callable[[str, str], None]
    ) -> None:
        self._mapping = mapping
        self._clock = clock
        self._start = start
        self._record = record
        self.due = mapping.due

    def act(self) -> bool:
        """Poll if a message can be received; return whether one could."""
        due = self.due()
        if due is None or due > self._clock.now():
            return False
        self._start(self._mapping.function, self._poll)
        return True

    def _poll(self) -> None:
        function = self._mapping.function
        stopped = function.stopped
        self._mapping.act()
        if function.stopped > stopped:
            self._record(f"Lambda stopped {function.stopped - stopped} chain(s) of {function.name}", "cloud")


class ScheduledInvocations:
    """Invokes the functions that EventBridge schedules target directly."""

    def __init__(self, account: InProcessAccount, stack: SamStack, start: Start) -> None:
        self.account = account
        self._functions: dict[str, LambdaFunction] = {function.arn: function for function in stack.functions.values()}
        self._start = start

    def due(self) -> datetime | None:
        """Return None: the `ScheduleRunner` is due when a schedule fires."""
        return None

    def act(self) -> bool:
        """Invoke the function of each delivery; return whether there was one."""
        deliveries = self.account.take_deliveries()
        for delivery in deliveries:
            function = self._functions[delivery.function_arn]
            if function.is_throttled:
                continue  # the schedule allows no retry; the next minute sweeps again
            self._start(function, partial(function.invoke, delivery.event))
        return bool(deliveries)


class FunctionThrottles:
    """Throttles functions at the scenario's times. An `Actor`."""

    def __init__(
        self, throttles: Sequence[FunctionThrottle], functions: Mapping[str, LambdaFunction], clock: Clock
    ) -> None:
        self._clock = clock
        start = clock.now()
        self._spans = [
            (functions[f"{t.step.title()}Function"], begins, begins + timedelta(seconds=t.seconds))
            for t in throttles
            for begins in [start + timedelta(seconds=t.at_seconds)]
        ]

    def due(self) -> datetime | None:
        """Return when the next throttling begins or ends."""
        now = self._clock.now()
        return min((at for _, *span in self._spans for at in span if at > now), default=None)

    def act(self) -> bool:
        """Throttle the functions whose time it is; return False, since messages wait as they did."""
        now = self._clock.now()
        throttled = {id(function) for function, begins, ends in self._spans if begins <= now < ends}
        for function, *_ in self._spans:
            function.is_throttled = id(function) in throttled
        return False

    def end(self) -> None:
        """Throttle no function any more."""
        for function, *_ in self._spans:
            function.is_throttled = False
        self._spans = []


class TooManyRunsError(JourneymanError):
    """The functions of a scenario run too often."""


class RunLimit:
    """Ends a scenario whose functions run more often than in any scenario that comes to rest.

    Args:
        clock: The scenario's clock.
        max_runs: The maximum number of runs of all functions together; RUNS_PER_SECOND are added as time passes.
        runs: Returns the number of runs so far.
        describe_runs: Returns how often each function ran, for the error.
    """

    def __init__(self, clock: Clock, max_runs: int, runs: Callable[[], int], describe_runs: Callable[[], str]) -> None:
        self._clock = clock
        self._max_runs = max_runs
        self._runs = runs
        self._describe_runs = describe_runs

    def due(self) -> datetime | None:
        """Return None: the limit is checked whenever another actor acts."""
        return None

    def act(self) -> bool:
        """Raise TooManyRunsError if the number of runs exceeds the limit."""
        seconds = int((self._clock.now() - START).total_seconds())
        limit = self._max_runs + RUNS_PER_SECOND * seconds
        if self._runs() > limit:
            raise TooManyRunsError(f"more than {limit} runs in {seconds} seconds: {self._describe_runs()}")
        return False


class MinuteTicker:
    """Runs the checks of each minute."""

    def __init__(self, clock: Clock, run_checks: Callable[[], None]) -> None:
        self._clock = clock
        self._run_checks = run_checks
        self._next = clock.now() + MINUTE

    def due(self) -> datetime | None:
        """Return the next full minute."""
        return self._next

    def act(self) -> bool:
        """Run the checks if a minute has passed; return False, since checks change nothing."""
        if self._clock.now() >= self._next:
            self._next += MINUTE
            self._run_checks()
        return False
