"""Runs the deployed application on a simulated cluster and account for a fault scenario.

The resources come from the deployment's template (`SimulatedCloud`); the handlers and the adapters are the deployed ones. The
module uses no random numbers: the same scenario has the same history, including every byte of every write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from typing import Any, Final

from msgspec.structs import replace

from journeyman.core.api.labels import CLUSTER_UID_TAG
from journeyman.core.api.objects import NAMESPACE, NODE_DISRUPTION
from journeyman.core.plan import Step
from journeyman.errors import JourneymanError
from journeyman.ports import Clock
from journeyman.runtime.environment import Environment
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.clock import SkewedClock, VirtualClock
from journeyman_simulator.faults.alibaba_cloud import AlibabaCloud
from journeyman_simulator.faults.aws_cloud import AwsCloud
from journeyman_simulator.faults.call_sites import UNFINISHED_PHASES, FaultCoverage
from journeyman_simulator.faults.cooperative_scheduler import CooperativeScheduler
from journeyman_simulator.faults.fault_injection import FaultInjector, FunctionRun, MessageFaultInjector, current_name
from journeyman_simulator.faults.fault_scenario import (
    CallFault,
    FaultScenario,
    FunctionThrottle,
    MessageFault,
    ScenarioSetup,
)
from journeyman_simulator.faults.history import History, HistoryEntry
from journeyman_simulator.faults.huawei_cloud import HuaweiCloud
from journeyman_simulator.faults.invariants.checkers import InvariantChecker, InvariantCheckers
from journeyman_simulator.faults.manifests import START, initial_manifests
from journeyman_simulator.faults.node_faults import NodeFaults
from journeyman_simulator.faults.operations import Operations
from journeyman_simulator.faults.sandboxes import ORIGINALS, Collaborators, SandboxConnections, Sandboxes
from journeyman_simulator.faults.scenario_clouds import CLOUDS, CLUSTER
from journeyman_simulator.faults.scenario_view import HUMAN, CloudEvent, CloudInstance, PendingMessage, RunError
from journeyman_simulator.faults.simulated_cloud import QueueMapping, SimulatedCloud, Start
from journeyman_simulator.kube_scheduler import KubeScheduler
from journeyman_simulator.kubelet import Kubelets
from journeyman_simulator.lambda_functions import LambdaFunction
from journeyman_simulator.local_forwarder import LocalForwarder
from journeyman_simulator.workload_controllers import WorkloadControllers
from journeyman_simulator.world import World

MAX_RUNS: Final = 100
RUNS_PER_SECOND: Final = 3
"""Detect a hot loop: so many runs, and so many more per second of virtual time.

NodeClaims that expire every minute, with drains that are polled every two seconds, need 1.9 runs per second for as long as they
do.
"""
_CLOUDS: Final[Mapping[str, type[SimulatedCloud]]] = {
    "aws": AwsCloud,
    "alibaba": AlibabaCloud,
    "huawei": HuaweiCloud,
}


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
        self._cluster_uid = self.server.get(NAMESPACE, "kube-system").metadata.uid
        self.checkers = InvariantCheckers(self, checkers)
        self.server.on_write(self.history.on_write)
        self.server.on_write(self.checkers.check_write)
        self.cloud = _CLOUDS[scenario.setup.cloud](self.clock, scenario.setup, self._record_instance)
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
        return "; ".join(f"{s.step} {s.runs} times, last for {self._reason(s.last)}" for s in by_runs)

    def _reason(self, event: Any) -> str:
        return " and ".join(self.cloud.reasons(event)) or "no reason"

    def instances(self) -> tuple[CloudInstance, ...]:
        """Return `ScenarioView.instances`."""
        uid = self._cluster_uid
        return tuple(i for i in self.cloud.records.instances() if i.tags.get(CLUSTER_UID_TAG, uid) == uid)

    def pending_messages(self) -> tuple[PendingMessage, ...]:
        """Return `ScenarioView.waiting`."""
        return tuple(sorted(self.cloud.pending_messages(), key=lambda w: (w.at, w.step.value)))

    def active_runs(self) -> tuple[str, ...]:
        """Return `ScenarioView.busy`."""
        return tuple(run.name for sandboxes in self._sandboxes for run in sandboxes.active_runs.values())

    def schedule_entries(self) -> Mapping[str, datetime]:
        """Return `ScenarioView.schedule_entries`."""
        return self.cloud.schedule_entries()

    def dead_letters(self) -> tuple[str, ...]:
        """Return `ScenarioView.dead_letters`."""
        return self.cloud.dead_letters()

    # -- construction -------------------------------------------------------------------------------------------------------

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
            on_crash=self._count_phases,
        )
        message_faults = [fault for fault in scenario.faults if isinstance(fault, MessageFault)]
        self._messages = MessageFaultInjector(message_faults, self.coverage, record)
        self.cloud.decide_messages(self._messages.decide)
        machines, records = self.cloud.machines, self.cloud.records
        self._node_faults = NodeFaults(
            machines, self.server, self.clock, lambda: (*records.never_joining(), *self._machines_of_others())
        )
        breakages = [pool.broken for pool in scenario.setup.pools if pool.broken]
        if breakages:
            self.cloud.operations.break_pool(breakages[0])
        self._skew = SkewedClock(self.clock)
        self._operations = Operations(
            scenario,
            server=self.server,
            clock=self.clock,
            cloud=self.cloud.operations,
            node_faults=self._node_faults,
            skew=self._skew,
            types=sorted(scenario.setup.types or CLOUDS[scenario.setup.cloud].types),
            zones=self.cloud.zones,
            on_operation=partial(record, who=HUMAN),
            on_other_cluster=self._on_other_cluster,
        )

    def _machines_of_others(self) -> Iterator[str]:
        """Yield the provider ids of machines whose kubelets know another cluster."""
        for instance in self.cloud.records.instances():
            if instance.tags.get(CLUSTER_UID_TAG, self._cluster_uid) != self._cluster_uid:
                yield instance.provider_id

    def _on_other_cluster(self) -> None:
        """Note the cluster's UID; the functions, whose settings have the register's entry, start cold."""
        self._cluster_uid = self.server.get(NAMESPACE, "kube-system").metadata.uid
        for sandboxes in self._sandboxes:
            sandboxes.restart()

    def _make_functions(self) -> None:
        self._sandboxes: list[Sandboxes] = []
        self._ids = count(1)
        connections = self._connections()
        sandboxes = {step: self.cloud.sandboxes(step, connections) for step in Step}
        self._sandboxes = [*sandboxes.values()]
        self.cloud.create_functions(sandboxes, connections.new_id)
        self._steps = {function.name: step.value for step, function in self.cloud.functions.items()}
        self._steps |= {function.name: name for name, function in self.cloud.helpers.items()}
        self._throttles = FunctionThrottles(self.scenario.setup.throttles, self.cloud.functions, self.clock)
        self._messages.queues = self.cloud.queues

    def _connections(self) -> SandboxConnections:
        return SandboxConnections(
            environment=_with_settings(self.cloud.environment(), self.scenario.setup),
            clock=self.clock,
            seen_clock=self._skew,
            server=self.server,
            version_at=self.history.version_at,
            faults=self._faults,
            on_error=self._record_error,
            ids=self._ids,
            collaborators=self._collaborators,
            before_request=self.cloud.operations.before_request,
        )

    def _actors(self) -> list[Any]:
        node_class = CLOUDS[self.scenario.setup.cloud].node_class
        return [
            self._run_limit,
            self._operations,
            self._throttles,
            WorkloadControllers(self.server.acting_as("kube-controller-manager"), self.clock),
            KubeScheduler(self.server.acting_as("kube-scheduler"), self.clock),
            Kubelets(self.server.acting_as("kubelet"), self.clock, self._node_faults),
            self.cloud.account,
            LocalForwarder(self.server, self.clock, CLUSTER, self.cloud.send, node_class),
            MinuteTicker(self.clock, self.checkers.check_every_minute),
            *self.cloud.schedules(self._start, lambda: f"tick-{next(self._ids)}"),
            self._scheduler,
            *(QueuePoller(mapping, self.clock, self._start, self.history.record) for mapping in self.cloud.mappings),
        ]

    def _start(self, function: LambdaFunction, work: Callable[[], object]) -> None:
        """Run `work`, which invokes the function, until it ends or a fault pauses it."""
        step = self._steps.get(function.name, "")
        self._scheduler.start(work, can_pause=bool(step) and self._faults.can_pause(step))

    def _record_instance(self, event: CloudEvent) -> None:
        self.history.record(f"{event.kind} {event.instance.provider_id} {event.instance.state}", event.by)
        self.checkers.check_cloud_event(event)

    def _count_phases(self, run: FunctionRun) -> None:
        """Count the phases of unfinished commands when a process that continues them crashes."""
        if run.step != Step.CONSOLIDATE.value:
            return
        for command in self.server.stored(NODE_DISRUPTION):
            phase = str((command.get("status") or {}).get("phase") or "Proposed")
            if phase in UNFINISHED_PHASES:
                self.coverage.count_crash_in_phase(command["spec"]["method"], phase)

    def _record_error(self, error: RunError) -> None:
        self.history.record(f"{error.error}: {error.message}")
        self.checkers.check_error(error)


def _with_settings(environment: Environment, setup: ScenarioSetup) -> Environment:
    """Return the functions' environment with the scenario's settings."""
    settings = replace(
        environment.settings[CLUSTER],
        pod_nomination=setup.pod_nomination,
        registration_poll=timedelta(seconds=setup.registration_poll_seconds),
        drain_poll=timedelta(seconds=setup.drain_poll_seconds),
        instance_poll=timedelta(seconds=setup.instance_poll_seconds),
        registration_timeout=timedelta(seconds=setup.registration_timeout_seconds),
        reversal_window=timedelta(seconds=setup.reversal_window_seconds),
        fleet_plans=setup.fleet_plans,
    )
    return replace(environment, defaults=settings)


MINUTE: Final = timedelta(minutes=1)


class QueuePoller:
    """Polls for a queue's mapping whose function may pause during a batch."""

    def __init__(self, mapping: QueueMapping, clock: Clock, start: Start, record: Callable[[str, str], None]) -> None:
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


class FunctionThrottles:
    """Throttles functions at the scenario's times. An `Actor`."""

    def __init__(
        self, throttles: Sequence[FunctionThrottle], functions: Mapping[Step, LambdaFunction], clock: Clock
    ) -> None:
        self._clock = clock
        start = clock.now()
        self._spans = [
            (functions[Step(t.step)], begins, begins + timedelta(seconds=t.seconds))
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
