"""Implements ECS instances: their records, states and events, and what happens to them without a request of Journeyman.

States: Pending, Starting, Running, Stopping, Stopped; a released instance is Deleted, and no answer shows it. The records keep
every change of state with its time, so that a read can return the state of some seconds ago.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import count
from typing import Any, Final

from msgspec import Struct, field

from journeyman.errors import ConfigurationError
from journeyman_simulator.alibaba_account.ecs_events import EcsEventBus
from journeyman_simulator.alibaba_account.openapi_errors import instance_does_not_exist
from journeyman_simulator.alibaba_account.vpc_network import VpcNetwork
from journeyman_simulator.cloud_rules.instance_states import (
    EarlyEnd,
    InstanceObservation,
    StateChange,
    StateHistory,
    TimedTransitions,
)
from journeyman_simulator.cloud_rules.service_errors import ServiceError
from journeyman_simulator.cloud_rules.service_time import ServiceTime

JSON = Mapping[str, Any]
DELETED: Final = "Deleted"
STARTING_UP: Final = frozenset({"Pending", "Starting"})
_RECYCLING: Final = "Recycling"


class EcsTiming(Struct, frozen=True, kw_only=True):
    """The duration of each instance state, in seconds, and the delay until DescribeInstances shows a change."""

    pending_seconds: float = 5
    starting_seconds: float = 15
    forced_stop_seconds: float = 20
    clean_stop_seconds: float = 90
    interruption_notice_seconds: float = 300  # "about 5 minutes"
    describe_lag_seconds: float = 0
    deleted_known_seconds: float = 3600  # for observers of the account; no answer shows a deleted instance


class EcsInstance(StateHistory, kw_only=True, eq=False):
    """The record of an instance."""

    id: str
    instance_type: str
    zone: str
    vswitch_id: str
    address: str
    image_id: str
    security_groups: tuple[str, ...]
    spot_strategy: str  # "NoSpot" for an on-demand instance
    created_at: datetime
    tags: dict[str, str]
    settings: JSON = field(default_factory=dict)  # the launch's other parameters, by RunInstances' names
    deletion_protection: bool = False
    locks: list[str] = field(default_factory=list)  # of OperationLocks
    joins: bool = True  # whether its kubelet registers a node

    @property
    def capacity_type(self) -> str:
        """Return "spot" or "on-demand"."""
        return "on-demand" if self.spot_strategy == "NoSpot" else "spot"

    @property
    def running_since(self) -> datetime | None:
        """Return when the instance began to run; None if it does not run."""
        return self.since("Running")


class SimulatedEcsInstances(TimedTransitions):
    """The account's instances, including recently deleted ones."""

    def __init__(self, time: ServiceTime, bus: EcsEventBus, network: VpcNetwork, timing: EcsTiming) -> None:
        super().__init__(time)
        self._bus = bus
        self._network = network
        self._timing = timing
        self._serial = count(1)
        self._never_joining = 0
        self._early_ends: list[EarlyEnd] = []
        self.known: dict[str, EcsInstance] = {}
        self.observers: list[Callable[[InstanceObservation], object]] = []

    # -- reads ---------------------------------------------------------------------------------------------------

    def require(self, instance_id: str) -> EcsInstance:
        """Return an instance that is not deleted. Raises ServiceError if it does not exist."""
        instance = self.known.get(instance_id)
        if instance is None or instance.state == DELETED:
            raise instance_does_not_exist(instance_id)
        return instance

    def visible(self, as_of: datetime) -> Iterator[tuple[EcsInstance, str]]:
        """Yield the instances that existed at a moment, with their state then."""
        for instance in self.known.values():
            state = instance.state_at(as_of)
            if state and state != DELETED:
                yield instance, state

    def alive(self, capacity_type: str) -> Iterator[EcsInstance]:
        """Yield the instances of a capacity type that are not deleted."""
        for instance in self.known.values():
            if instance.state != DELETED and instance.capacity_type == capacity_type:
                yield instance

    # -- requests ------------------------------------------------------------------------------------------------

    def launch(
        self,
        *,
        instance_type: str,
        vswitch_id: str,
        image_id: str,
        security_groups: Sequence[str],
        spot_strategy: str,
        tags: Mapping[str, str],
        settings: JSON,
        deletion_protection: bool = False,
    ) -> EcsInstance:
        """Create an instance in a vSwitch that has a free address."""
        vswitch = self._network.vswitches[vswitch_id]
        instance = EcsInstance(
            id=f"i-bp1{next(self._serial):017d}",
            instance_type=instance_type,
            zone=vswitch.zone,
            vswitch_id=vswitch_id,
            address=self._network.assign_address(vswitch),
            image_id=image_id,
            security_groups=tuple(security_groups),
            spot_strategy=spot_strategy,
            created_at=self._time.now(),
            tags=dict(tags),
            settings=settings,
            deletion_protection=deletion_protection,
            joins=self._never_joining == 0,
        )
        self._never_joining = max(0, self._never_joining - 1)
        self.known[instance.id] = instance
        self._notify("launched", instance)
        self._enter(instance, "Pending")
        self._schedule(self._timing.pending_seconds, lambda: self._begin_start(instance, "Pending"))
        if self._early_ends:
            end = self._early_ends.pop(0)
            self._schedule(end.after_seconds, lambda: self._end_early(instance, end.reason))
        return instance

    def delete(self, instance: EcsInstance, *, force: bool, force_stop: bool) -> None:
        """Release an instance. Repeating it while the instance stops has no effect.

        Args:
            instance: The instance.
            force: Whether to release it although it is not Stopped.
            force_stop: Whether to switch it off, instead of shutting down its operating system.

        Raises:
            ServiceError: The instance is protected, still starting, or not Stopped.
        """
        self.require_deletable(instance, force=force)
        self._notify("deletion-requested", instance)
        if instance.state == "Stopped":
            self._release(instance)
        else:
            seconds = self._timing.forced_stop_seconds if force_stop else self._timing.clean_stop_seconds
            self._begin_release(instance, seconds)

    def require_deletable(self, instance: EcsInstance, *, force: bool) -> None:
        """Raise ServiceError if `delete` rejects an instance."""
        if instance.deletion_protection:
            message = f"The instance {instance.id} is protected; disable its deletion protection first."
            raise ServiceError("InvalidOperation.DeletionProtection", message)
        if instance.state in STARTING_UP:
            message = f"The instance {instance.id} is {instance.state}; release it once it is Running."
            raise ServiceError("IncorrectInstanceStatus.Initializing", message)
        if instance.state != "Stopped" and not force:
            message = f"The instance {instance.id} is {instance.state}; only Force=true releases it."
            raise ServiceError("IncorrectInstanceStatus", message)

    # -- without a request -----------------------------------------------------------------------------------------

    def interrupt(self, instance_id: str) -> None:
        """Reclaim a Spot instance with about 5 minutes' notice: publish an event, lock it, and release or stop it later.

        Raises:
            ConfigurationError: No Spot instance with that id is starting or running.
        """
        instance = self.known.get(instance_id)
        if instance is None or instance.capacity_type != "spot" or instance.state not in {*STARTING_UP, "Running"}:
            raise ConfigurationError("only a running Spot instance can be reclaimed", instance=instance_id)
        if _RECYCLING in instance.locks:
            return
        instance.locks.append(_RECYCLING)
        stops = instance.settings.get("SpotInterruptionBehavior") == "Stop"
        self._bus.publish(
            "Instance:PreemptibleInstanceInterruption",
            instance_id,
            {"instanceId": instance_id, "action": "stop" if stops else "delete"},
        )
        end = self._begin_stop if stops else self._begin_release
        seconds = self._timing.forced_stop_seconds
        self._schedule(self._timing.interruption_notice_seconds, lambda: end(instance, seconds))

    def terminate(self, instance_id: str) -> None:
        """Release an instance, as a user can in the console, also while it starts. Raises ServiceError if it does not exist."""
        self._begin_release(self.require(instance_id), self._timing.forced_stop_seconds)

    def stop(self, instance_id: str) -> None:
        """Stop an instance, as a user can in the console. Raises ServiceError if it does not exist or still starts."""
        instance = self.require(instance_id)
        if instance.state in STARTING_UP:
            raise ServiceError("IncorrectInstanceStatus.Initializing", f"The instance {instance_id} is initializing.")
        self._begin_stop(instance, self._timing.clean_stop_seconds)

    def start(self, instance_id: str) -> None:
        """Start a stopped instance. Raises ServiceError if it does not exist or is not Stopped."""
        instance = self.require(instance_id)
        if instance.state != "Stopped":
            raise ServiceError("IncorrectInstanceStatus", f"The instance {instance_id} is {instance.state}.")
        self._begin_start(instance, "Stopped")

    def prevent_next_from_joining(self, number: int = 1) -> None:
        """Prevent the instances of the next `number` launches from registering a node."""
        self._never_joining += number

    def end_next_early(self, number: int = 1, *, reason: str, after_seconds: float = 5) -> None:
        """Release the instances of the next `number` launches, with a system event that has this reason."""
        self._early_ends += [EarlyEnd(reason=reason, after_seconds=after_seconds)] * number

    def launch_normally(self) -> None:
        """Let the instances of all further launches live."""
        self._early_ends.clear()

    def schedule_maintenance(self, instance_id: str, event_type: str, within: timedelta) -> str:
        """Schedule a system event of an instance, publish it, and return its id.

        Args:
            instance_id: The instance.
            event_type: "SystemMaintenance.Reboot", "SystemMaintenance.Redeploy", "SystemFailure.Delete", and so on.
            within: The time until the event is carried out.

        Raises:
            ServiceError: The instance does not exist.
        """
        self.require(instance_id)
        event = self._bus.plan(instance_id, event_type, self._time.now() + within)
        self._schedule(within.total_seconds(), lambda: self._carry_out(event.id))
        return event.id

    def cancel_maintenance(self, event_id: str) -> None:
        """Cancel a scheduled event, and publish that."""
        self._bus.set_status(event_id, "Canceled")

    # -- transitions ---------------------------------------------------------------------------------------------

    def _end_early(self, instance: EcsInstance, reason: str) -> None:
        if instance.state != DELETED:
            event = self._bus.plan(instance.id, "SystemFailure.Delete", self._time.now(), reason)
            self._bus.set_status(event.id, "Executing")
            self._release(instance)
            self._bus.set_status(event.id, "Executed")

    def _begin_start(self, instance: EcsInstance, before: str) -> None:
        if self._advance(instance, before, "Starting"):
            self._schedule(self._timing.starting_seconds, lambda: self._advance(instance, "Starting", "Running"))

    def _begin_stop(self, instance: EcsInstance, seconds: float) -> None:
        if instance.state in {"Stopping", "Stopped", DELETED}:
            return
        self._enter(instance, "Stopping")
        self._schedule(seconds, lambda: self._advance(instance, "Stopping", "Stopped"))

    def _begin_release(self, instance: EcsInstance, seconds: float) -> None:
        if instance.state in {"Stopped", DELETED}:
            self._release(instance)
            return
        if instance.state != "Stopping":
            self._enter(instance, "Stopping")
        self._schedule(seconds, lambda: self._release(instance))

    def _release(self, instance: EcsInstance) -> None:
        if instance.state == DELETED:
            return
        self._network.vswitches[instance.vswitch_id].free += 1
        self._enter(instance, DELETED)
        self._schedule(self._timing.deleted_known_seconds, lambda: self.known.pop(instance.id, None))

    def _carry_out(self, event_id: str) -> None:
        """Carry out a scheduled event: release the instance, or reboot it, which leaves it Running."""
        event = self._bus.planned[event_id]
        if event.status != "Scheduled":
            return
        self._bus.set_status(event_id, "Executing")
        instance = self.known.get(event.instance_id)
        action = event.event_type.partition(".")[2]
        if instance is not None and action == "Delete":
            self._begin_release(instance, self._timing.forced_stop_seconds)
        elif instance is not None and action == "Stop":
            self._begin_stop(instance, self._timing.forced_stop_seconds)
        self._bus.set_status(event_id, "Executed")

    def _advance(self, instance: EcsInstance, before: str, after: str) -> bool:
        if instance.state != before:
            return False
        self._enter(instance, after)
        return True

    def _enter(self, instance: EcsInstance, state: str) -> None:
        instance.changes.append(StateChange(self._time.now(), state))
        self._notify(state, instance)
        data = {"resourceId": instance.id, "resourceType": "ALIYUN::ECS::Instance", "state": state}
        self._bus.publish("Instance:StateChange", instance.id, data)

    def _notify(self, what: str, instance: EcsInstance) -> None:
        if self.observers:
            event = InstanceObservation(self._time.now(), what, instance)
            for observer in self.observers:
                observer(event)
