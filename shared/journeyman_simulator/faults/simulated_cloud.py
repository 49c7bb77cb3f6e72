"""Defines what a cloud must simulate for scenarios: an account, the functions deployed in it, and operations (`SimulatedCloud`).

It also records every instance that an account has had.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, Literal, Protocol

from journeyman.core.plan import Step
from journeyman.errors import ConfigurationError
from journeyman.runtime.environment import Environment, Variables, read_environment
from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.cloud_rules.service_errors import ServiceError
from journeyman_simulator.faults.fault_injection import current_step
from journeyman_simulator.faults.fault_scenario import BROKEN, Breakage, ScenarioSetup
from journeyman_simulator.faults.sandboxes import SandboxConnections, Sandboxes
from journeyman_simulator.faults.scenario_view import (
    CLOUD,
    HUMAN,
    RUN_USER_PREFIX,
    CloudEvent,
    CloudInstance,
    PendingMessage,
)
from journeyman_simulator.in_process_account.sqs_queues import MessageOutcome
from journeyman_simulator.kubelet import MachineSource
from journeyman_simulator.lambda_functions import LambdaFunction
from journeyman_simulator.world import Actor, WorldStuckError

KUBERNETES_VERSION: Final = "1.33"
_AT_BOOT_SECONDS: Final = 5.0
SCENARIO_DURATION: Final = timedelta(days=1)
"""Longer than any scenario."""
_KINDS: Final[Mapping[str, Literal["launched", "terminate"]]] = {
    "launched": "launched",
    "termination-requested": "terminate",
    "deletion-requested": "terminate",
}

Price = Callable[[str, str, str], float]
"""Returns the hourly price of an offering: instance type, zone, capacity type."""

Start = Callable[[LambdaFunction, Callable[[], object]], None]
"""Starts a run of a function, which may pause, given the function and a callable that invokes it."""


class RecordedInstance(Protocol):
    """An account's record of an instance."""

    id: str
    tags: dict[str, str]
    joins: bool  # whether its kubelet registers a node


class RecordedEvent(Protocol):
    """An account's event of an instance: "launched", a request to terminate, or the state."""

    @property
    def at(self) -> datetime:
        """The time."""
        ...

    @property
    def what(self) -> str:
        """The event."""
        ...

    @property
    def instance(self) -> RecordedInstance:
        """The instance, after the event."""
        ...


class OfferedInstance(Protocol):
    """An account's record of an instance, with its offering."""

    instance_type: str
    zone: str

    @property
    def capacity_type(self) -> str:
        """The capacity type: on-demand or spot."""
        ...


def cloud_instance(
    instance: OfferedInstance,
    price: Price,
    *,
    provider_id: str,
    state: str,
    launched_at: datetime,
    tags: Mapping[str, str],
) -> CloudInstance:
    """Return an instance for checkers, with the price of its offering."""
    return CloudInstance(
        provider_id=provider_id,
        instance_type=instance.instance_type,
        zone=instance.zone,
        capacity_type=instance.capacity_type,
        price=price(instance.instance_type, instance.zone, instance.capacity_type),
        state=state,
        launched_at=launched_at,
        tags=tags,
    )


class InstanceRecords:
    """Records the account's instances, including those that the cloud no longer lists, and reports their events.

    Args:
        describe: Returns an instance, given the account's record and the tags at its launch.
        on_event: Called with each event, in order.
    """

    def __init__(
        self,
        describe: Callable[[Any, Mapping[str, str]], CloudInstance],
        on_event: Callable[[CloudEvent], None],
    ) -> None:
        self._describe = describe
        self._on_event = on_event
        self._by = CLOUD
        self._known: dict[str, RecordedInstance] = {}
        self._launch_tags: dict[str, Mapping[str, str]] = {}

    @contextmanager
    def attribute_to(self, who: str) -> Iterator[None]:
        """Attribute the events inside the context to `who`."""
        before, self._by = self._by, who
        try:
            yield
        finally:
            self._by = before

    def record_event(self, event: RecordedEvent) -> None:
        """Record an event of an instance, and report it."""
        self._known[event.instance.id] = event.instance
        self._launch_tags.setdefault(event.instance.id, dict(event.instance.tags))
        kind: Literal["launched", "terminate", "state"] = _KINDS.get(event.what, "state")
        step = current_step()
        by = f"{RUN_USER_PREFIX}{step}" if step else self._by
        self._on_event(CloudEvent(at=event.at, kind=kind, instance=self._cloud_instance(event.instance), by=by))

    def instances(self) -> tuple[CloudInstance, ...]:
        """Return all instances, in order of launch."""
        return tuple(self._cloud_instance(instance) for instance in self._known.values())

    def launched(self) -> Sequence[str]:
        """Return the provider ids of all instances, in order of launch."""
        return [instance.provider_id for instance in self.instances()]

    def never_joining(self) -> tuple[str, ...]:
        """Return the provider ids of instances that never register a node."""
        return tuple(self._cloud_instance(each).provider_id for each in self._known.values() if not each.joins)

    def _cloud_instance(self, instance: RecordedInstance) -> CloudInstance:
        return self._describe(instance, self._launch_tags[instance.id])


class CloudOperations(ABC):
    """Operates on instances by provider id, as a user or as the cloud. An operation that the cloud rejects or lacks has no effect.

    Only EC2 recommends to replace instances, and has status checks.

    Args:
        account: The account, whose `instances` are as `cloud_rules.instance_states` has them.
        records: Stores who called each operation.
    """

    maintenance_notice = timedelta(days=14)
    early_end_reason = "Client.InternalError"
    """Why the cloud ends instances soon after their launch, in its own words."""
    refused_launch: ClassVar[tuple[str, str]] = ("CreateFleet", "InvalidBlockDeviceMapping")
    """The operation that launches, and the code with which the cloud refuses it because of a wrong NodeClass."""

    def __init__(self, account: Any, records: InstanceRecords) -> None:
        self._account = account
        self._records = records
        self._breakage: Breakage = ""
        account.instances.observers.append(self._break_instance)

    @staticmethod
    @abstractmethod
    def instance_id(provider_id: str) -> str:
        """Return the cloud's own id of an instance."""

    def recommend_rebalance(self, provider_id: str) -> None:  # noqa: B027 - most clouds recommend nothing
        """Recommend to replace a Spot instance."""

    def announce_maintenance(self, provider_id: str) -> None:
        """Announce that the instance will be retired or maintained."""
        with suppress(ServiceError):
            self._account.schedule_maintenance(self.instance_id(provider_id), within=self.maintenance_notice)

    def fail_check(self, provider_id: str, check: str) -> None:  # noqa: B027 - most clouds have no status checks
        """Fail a status check of the instance from now on."""

    def pass_checks(self, provider_id: str = "") -> None:  # noqa: B027 - same
        """Pass all status checks of the instance, or of every instance if no provider id is given."""

    def interrupt(self, provider_id: str) -> None:
        """Announce the interruption of a Spot instance, and reclaim it minutes later."""
        with suppress(ConfigurationError):
            self._account.interrupt(self.instance_id(provider_id))

    def stop(self, provider_id: str) -> None:
        """Stop the instance as a user of the console."""
        with suppress(ServiceError), self._records.attribute_to(HUMAN):
            self._account.instances.stop(self.instance_id(provider_id))

    def terminate(self, provider_id: str) -> None:
        """Terminate the instance as a user of the console."""
        with suppress(ServiceError), self._records.attribute_to(HUMAN):
            self._account.instances.terminate(self.instance_id(provider_id))

    def edit_tags(self, provider_id: str, changes: Mapping[str, str | None]) -> None:
        """Set the instance's tags, and remove those that are None, as a user of the console."""
        tags = self._account.instances.known[self.instance_id(provider_id)].tags
        for key, value in changes.items():
            if value is None:
                tags.pop(key, None)
            else:
                tags[key] = value

    def tags(self, provider_id: str) -> Mapping[str, str]:
        """Return the instance's tags; none if it does not exist."""
        instance = self._account.instances.known.get(self.instance_id(provider_id))
        return {} if instance is None else dict(instance.tags)

    def launched(self) -> Sequence[str]:
        """Return the provider ids of all instances that were launched, in order of launch."""
        return self._records.launched()

    def prevent_next_from_joining(self) -> None:
        """Prevent the next launched instance from registering a node."""
        self._account.instances.prevent_next_from_joining()

    def end_next_early(self, number: int, after_seconds: float) -> None:
        """End the instances of the next launches, for a reason that is their NodeClass's fault."""
        self._account.instances.end_next_early(number, reason=self.early_end_reason, after_seconds=after_seconds)

    def refuse_next_launches(self, number: int) -> None:
        """Refuse the next launches for a reason that is their NodeClass's fault."""
        operation, code = self.refused_launch
        self._account.fail_next(operation, code, number)

    def break_pool(self, breakage: Breakage) -> None:
        """Let the cloud refuse all launches of the NodePool `BROKEN`, end its instances at boot, or keep them from joining."""
        self._breakage = breakage

    def before_request(self, operation: str, request: object) -> None:
        """Refuse the request if it is a launch of the NodePool whose launches are refused."""
        launch, code = self.refused_launch
        if self._breakage == "refuses" and operation == launch and BROKEN in repr(request):
            self._account.fail_next(launch, code, 1)

    def _break_instance(self, event: RecordedEvent) -> None:
        """Break a launched instance if its NodePool's are to be."""
        if event.what != "launched" or BROKEN not in event.instance.tags.values():
            return
        if self._breakage == "never-joins":
            event.instance.joins = False
        elif self._breakage == "ends":
            self.end_at_boot(event.instance)

    def end_at_boot(self, _: Any) -> None:
        """End the instance that is being launched."""
        self.end_next_early(1, _AT_BOOT_SECONDS)

    def launch_normally(self) -> None:
        """Accept all further launches, and let their instances live."""
        self._account.stop_failing(self.refused_launch[0])
        self._account.instances.launch_normally()

    def set_unavailable(self, pools: Sequence[tuple[str, str, str]], *, unavailable: bool) -> None:
        """Make offerings (type, zone, capacity type) unavailable or available."""
        now = self._account.time.now()
        for pool in pools:
            self._account.out_of_stock(*pool, now + SCENARIO_DURATION if unavailable else now)


class QueueMapping(Protocol):
    """Takes messages from a queue for a function."""

    function: LambdaFunction

    def due(self) -> datetime | None:
        """Return when the next message can be received."""
        ...

    def act(self) -> bool:
        """Invoke the function with the next batch; return whether there was one."""
        ...


class SimulatedCloud(ABC):
    """The account of a scenario, and the functions that are deployed in it.

    Attributes:
        account: The account, which changes its instances as time passes.
        machines: The instances as machines.
        operations: Operations of users and of the cloud.
        records: All instances.
        zones: The zones, sorted.
        queues: The queue's name in scenarios by its name in the account; other queues have no faults.
        functions: The function of each step, once created.
        mappings: The queues' mappings to functions, once created.
        helpers: The functions that run no step, by their names in call sites, once created.
    """

    account: Actor
    machines: MachineSource
    operations: CloudOperations
    records: InstanceRecords
    zones: Sequence[str]

    def __init__(self, clock: VirtualClock, setup: ScenarioSetup, on_instance: Callable[[CloudEvent], None]) -> None:
        """Create the account; call `on_instance` with each event of an instance."""
        self._clock = clock
        self._setup = setup
        self._on_instance = on_instance
        self.queues: Mapping[str, str] = {}
        self.functions: Mapping[Step, LambdaFunction] = {}
        self.mappings: Sequence[QueueMapping] = ()
        self.helpers: Mapping[str, LambdaFunction] = {}

    @abstractmethod
    def decide_messages(self, decide: Callable[[str, str], MessageOutcome]) -> None:
        """Decide the outcome of each message, given the queue's name in the account and the body."""

    @abstractmethod
    def environment(self) -> Environment:
        """Return the functions' environment, with the scenario's cluster and feature gates."""

    @abstractmethod
    def sandboxes(self, step: Step, connections: SandboxConnections) -> Sandboxes:
        """Return the sandboxes of a step's function."""

    @abstractmethod
    def create_functions(self, sandboxes: Mapping[Step, Sandboxes], new_id: Callable[[], str]) -> None:
        """Deploy the functions, which run in these sandboxes; `new_id` returns request ids."""

    @abstractmethod
    def schedules(self, start: Start, new_id: Callable[[], str]) -> Sequence[Actor]:
        """Return the actors that invoke functions by time; the sweep's only if the scenario has one."""

    @abstractmethod
    def send(self, step: Step, body: str, message_id: str) -> None:
        """Send a message of the forwarder to a step's queue."""

    @abstractmethod
    def pending_messages(self) -> Iterable[PendingMessage]:
        """Return the messages that will start a step, including delayed ones."""

    def schedule_entries(self) -> Mapping[str, datetime]:
        """Return when each entry for a window's edge fires, by name; none, unless the cloud's adapters use a scheduler."""
        return {}

    @abstractmethod
    def dead_letters(self) -> tuple[str, ...]:
        """Return the bodies of the messages in dead-letter queues."""

    @abstractmethod
    def reasons(self, event: Any) -> list[str]:
        """Return the reasons in an event of a function."""


def scenario_environment(variables: Variables, setup: ScenarioSetup, *, has_sqs: bool) -> Environment:
    """Return the environment of functions with these variables, with the scenario's feature gates.

    Args:
        variables: Those of the deployment, with the registered cluster.
        setup: The scenario's setup.
        has_sqs: See `read_environment`.
    """
    gates = {"NodeRepair": setup.node_repair, "SpotToSpotConsolidation": setup.spot_to_spot, "StaticCapacity": True}
    texts = ",".join(f"{name}={str(on).lower()}" for name, on in gates.items())
    return read_environment({**variables, "FEATURE_GATES": texts}, has_sqs=has_sqs)


def unknown_function(_event: Any, _context: Any) -> Any:
    """Raise WorldStuckError: the handler of the deployed functions that no scenario has."""
    raise WorldStuckError("an unknown function was invoked")
