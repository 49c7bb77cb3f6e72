"""The simulated account's instances in time: pending, running, shutting-down, terminated, forgotten; and what befalls them.

Every change of state is kept with its moment, so that a read can be answered as of some seconds ago, as EC2 may do.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import count
from typing import Any, Final

from msgspec import Struct, field

from journeyman.errors import ConfigurationError
from journeyman_simulator.cloud_rules.instance_states import InstanceStatusChecks, InstanceTiming
from journeyman_simulator.cloud_rules.service_errors import ServiceError
from journeyman_simulator.cloud_rules.service_time import ServiceTime
from journeyman_simulator.in_process_account.ec2_network import VPC, SimulatedNetwork
from journeyman_simulator.in_process_account.event_bridge import SimulatedEventBus
from journeyman_simulator.in_process_account.service_client import (
    PAGING,
    ServiceOperation,
    ServiceOperations,
    ServiceRequest,
    paged,
    selected,
    tag_pairs,
    to_pairs,
)

_ENDING: Final = frozenset({"shutting-down", "terminated"})
_BY_USER: Final = "Client.UserInitiatedShutdown"
_BY_SPOT: Final = "Server.SpotInstanceTermination"
_ID: Final = re.compile(r"i-([0-9a-f]{8}|[0-9a-f]{17})")
_RETIREMENT: Final = "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED"
JSON = Mapping[str, Any]


class StateChange(Struct, frozen=True):
    """A state, since when, and why."""

    at: datetime
    state: str
    reason: str = ""


class SimulatedInstance(Struct, kw_only=True, eq=False):
    """A virtual machine."""

    id: str
    instance_type: str
    architecture: str
    zone: str
    subnet_id: str
    address: str
    image_id: str
    spot: bool
    launched_at: datetime
    tags: dict[str, str]
    data: JSON = field(default_factory=dict)  # of its launch template
    groups: tuple[JSON, ...] = ()
    profile_arn: str = ""
    joins: bool = True  # False: its machine never becomes a node
    changes: list[StateChange] = field(default_factory=list)

    @property
    def state(self) -> str:
        """Now."""
        return self.changes[-1].state

    def change_at(self, moment: datetime) -> StateChange | None:
        """The state that held then, and why; None before its launch."""
        for change in reversed(self.changes):
            if change.at <= moment:
                return change
        return None


class InstanceEvent(Struct, frozen=True):
    """What observers of the account are told: an instance was `launched`, `asked-to-end`, or is now in a `state`."""

    at: datetime
    what: str  # "launched", "asked-to-end", or the state
    instance: SimulatedInstance


class SimulatedInstances:
    """All instances that EC2 still remembers."""

    def __init__(
        self,
        time: ServiceTime,
        bus: SimulatedEventBus,
        network: SimulatedNetwork,
        timing: InstanceTiming,
        *,
        region: str,
        account: str,
    ) -> None:
        self._time = time
        self._bus = bus
        self._network = network
        self._timing = timing
        self._region = region
        self._account = account
        self._serial = count(1)
        self._order = count()
        self._agenda: list[tuple[datetime, int, Callable[[], object]]] = []
        self._never_joining = 0
        self.known: dict[str, SimulatedInstance] = {}
        self.checks = InstanceStatusChecks(time)
        self.observers: list[Callable[[InstanceEvent], object]] = []

    # -- time ---------------------------------------------------------------------------------------------------

    def settle(self) -> bool:
        """Do what is due by now, each thing as of its own moment; True if there was any."""
        now = self._time.now()
        busy = False
        while self._agenda and self._agenda[0][0] <= now:
            moment, _, action = heapq.heappop(self._agenda)
            with self._time.at(moment):
                action()
            busy = True
        return busy

    def due(self) -> datetime | None:
        """When the next instance changes its state."""
        return self._agenda[0][0] if self._agenda else None

    def _later(self, seconds: float, action: Callable[[], object]) -> None:
        moment = self._time.now() + timedelta(seconds=seconds)
        heapq.heappush(self._agenda, (moment, next(self._order), action))

    # -- what happens to instances --------------------------------------------------------------------------------

    def launch(
        self,
        *,
        instance_type: str,
        architecture: str,
        subnet_id: str,
        image_id: str,
        spot: bool,
        tags: Mapping[str, str],
        data: JSON = {},  # noqa: B006 - never written
        groups: tuple[JSON, ...] = (),
        profile_arn: str = "",
    ) -> SimulatedInstance:
        """One more. Raises RefusedError if its subnet has no address left."""
        address = self._network.take_address(subnet_id)
        instance = SimulatedInstance(
            id=f"i-{next(self._serial):017x}",
            instance_type=instance_type,
            architecture=architecture,
            zone=self._network.zone_of(subnet_id),
            subnet_id=subnet_id,
            address=address,
            image_id=image_id,
            spot=spot,
            launched_at=self._time.now(),
            tags=dict(tags),
            data=data,
            groups=groups,
            profile_arn=profile_arn,
            joins=self._never_joining == 0,
        )
        self._never_joining = max(0, self._never_joining - 1)
        self.known[instance.id] = instance
        self._tell("launched", instance)
        self._enter(instance, "pending")
        self._later(self._timing.pending_seconds, lambda: self._advance(instance, "pending", "running"))
        return instance

    def let_next_never_join(self, number: int = 1) -> None:
        """The machines of the next launches never become nodes."""
        self._never_joining += number

    def interrupt(self, instance_id: str) -> None:
        """Reclaim a Spot instance: rebalance recommendation and two-minute warning now, shutdown after the notice.

        Raises:
            ConfigurationError: No such Spot instance is pending or running.
        """
        instance = self._spot(instance_id)
        self.recommend_rebalance(instance_id)
        detail = {"instance-id": instance_id, "instance-action": "terminate"}
        self._announce(instance, "EC2 Spot Instance Interruption Warning", detail)
        self._later(self._timing.interruption_notice_seconds, lambda: self._begin_end(instance, _BY_SPOT))

    def recommend_rebalance(self, instance_id: str) -> None:
        """Say that a Spot instance is at risk. Raises ConfigurationError as `interrupt`."""
        instance = self._spot(instance_id)
        self._announce(instance, "EC2 Instance Rebalance Recommendation", {"instance-id": instance_id})

    def announce_retirement(self, instance_id: str, within: timedelta) -> None:
        """AWS Health says that the instance's host is going to be retired, and so does the instance's status."""
        moment = self._time.now() + within
        self.checks.plan(instance_id, "instance-retirement", moment)
        starts_at = moment.strftime("%a, %d %b %Y %H:%M:%S GMT")
        self._bus.announce_maintenance([instance_id], _RETIREMENT, starts_at)

    def end(self, instance_id: str) -> None:
        """Terminate it, as somebody does in the console. Raises RefusedError if EC2 does not know it."""
        instance = self.known.get(instance_id)
        if instance is None:
            raise not_found(instance_id)
        self._tell("asked-to-end", instance)
        self._begin_end(instance, _BY_USER)

    def stop(self, instance_id: str) -> None:
        """Stop it, as somebody does in the console. Raises RefusedError if EC2 does not know it, or it cannot be."""
        instance = self.known.get(instance_id)
        if instance is None:
            raise not_found(instance_id)
        if instance.spot:
            message = f"You can't stop the Spot Instance '{instance_id}' because it is associated with a one-time Spot Instance request."
            raise ServiceError("UnsupportedOperation", message)
        if instance.state in _ENDING:
            raise _wrong_state(instance_id, "stopped")
        if instance.state in {"stopping", "stopped"}:
            return
        self._enter(instance, "stopping", _BY_USER)
        seconds = self._timing.shutting_down_seconds
        self._later(seconds, lambda: self._advance(instance, "stopping", "stopped"))

    def start(self, instance_id: str) -> None:
        """Start a stopped one. Raises RefusedError if EC2 does not know it, or it is on its way."""
        instance = self.known.get(instance_id)
        if instance is None:
            raise not_found(instance_id)
        if instance.state != "stopped":
            raise _wrong_state(instance_id, "started")
        self._enter(instance, "pending")
        self._later(self._timing.pending_seconds, lambda: self._advance(instance, "pending", "running"))

    def _begin_end(self, instance: SimulatedInstance, reason: str) -> None:
        if instance.state in _ENDING:
            return
        self._enter(instance, "shutting-down", reason)
        self._later(self._timing.shutting_down_seconds, lambda: self._end(instance, reason))

    def _end(self, instance: SimulatedInstance, reason: str) -> None:
        self._network.return_address(instance.subnet_id)
        self._enter(instance, "terminated", reason)
        self._later(self._timing.terminated_visible_seconds, lambda: self.known.pop(instance.id, None))

    def _advance(self, instance: SimulatedInstance, before: str, after: str) -> None:
        if instance.state == before:
            self._enter(instance, after)

    def _enter(self, instance: SimulatedInstance, state: str, reason: str = "") -> None:
        instance.changes.append(StateChange(self._time.now(), state, reason))
        self._tell(state, instance)
        self._bus.publish(
            "aws.ec2",
            "EC2 Instance State-change Notification",
            {"instance-id": instance.id, "state": state},
            [f"arn:aws:ec2:{self._region}:{self._account}:instance/{instance.id}"],
        )

    def _announce(self, instance: SimulatedInstance, detail_type: str, detail: JSON) -> None:
        # These two name the zone where an ARN has the region, and no account: so AWS documents and sends them.
        self._bus.publish("aws.ec2", detail_type, detail, [f"arn:aws:ec2:{instance.zone}:instance/{instance.id}"])

    def _tell(self, what: str, instance: SimulatedInstance) -> None:
        event = InstanceEvent(self._time.now(), what, instance)
        for observer in self.observers:
            observer(event)

    def _spot(self, instance_id: str) -> SimulatedInstance:
        instance = self.known.get(instance_id)
        if instance is None or not instance.spot or instance.state not in {"pending", "running"}:
            raise ConfigurationError("only a pending or running Spot instance can be interrupted", instance=instance_id)
        return instance


def not_found(instance_id: str) -> ServiceError:
    """EC2's words for an id that it does not know."""
    if not _ID.fullmatch(instance_id):
        return ServiceError("InvalidInstanceID.Malformed", f'Invalid id: "{instance_id}"')
    return ServiceError("InvalidInstanceID.NotFound", f"The instance ID '{instance_id}' does not exist")


def _wrong_state(instance_id: str, done: str) -> ServiceError:
    message = f"The instance '{instance_id}' is not in a state from which it can be {done}."
    return ServiceError("IncorrectInstanceState", message)


STATE_CODES: Final = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}


class Ec2InstanceOperations:
    """Answers from the instances; DescribeInstances as of a moment, less the lag that the account has by itself."""

    def __init__(
        self, instances: SimulatedInstances, time: ServiceTime, *, lag_seconds: float, region: str, account: str
    ) -> None:
        self._instances = instances
        self._time = time
        self._lag = timedelta(seconds=lag_seconds)
        self._domain = "ec2.internal" if region == "us-east-1" else f"{region}.compute.internal"
        self._account = account

    def operations(self) -> ServiceOperations:
        """Of EC2."""
        ids = ("InstanceIds",)
        return {
            "DescribeInstances": ServiceOperation(self._describe, accepts=("Filters", *ids, *PAGING)),
            "DescribeInstanceStatus": ServiceOperation(self._describe_status, accepts=("Filters", *PAGING)),
            "TerminateInstances": ServiceOperation(
                lambda request: self._each(request, self._instances.end, "TerminatingInstances"), requires=ids
            ),
            "StopInstances": ServiceOperation(
                lambda request: self._each(request, self._instances.stop, "StoppingInstances"), requires=ids
            ),
            "StartInstances": ServiceOperation(
                lambda request: self._each(request, self._instances.start, "StartingInstances"), requires=ids
            ),
        }

    def _describe(self, request: ServiceRequest) -> dict[str, Any]:
        as_of = min(request.as_of, self._time.now() - self._lag)
        shown = {instance.id: (instance, change) for instance, change in self._shown(as_of)}
        ids = request.get("InstanceIds")
        for id_ in ids or ():
            if id_ not in shown:
                raise not_found(id_)
        views = [shown[id_] for id_ in ids] if ids else list(shown.values())
        found = selected(views, request.get("Filters", ()), _INSTANCE_FILTERS)
        return paged("Reservations", [self._reservation(instance, change) for instance, change in found], request)

    def _describe_status(self, request: ServiceRequest) -> dict[str, Any]:
        """Of those that run, unless others are asked for."""
        running = [(i.id, i.zone) for i in self._instances.known.values() if i.state == "running"]
        return paged("InstanceStatuses", self._instances.checks.told(running, request.get("Filters", ())), request)

    def _shown(self, as_of: datetime) -> Iterator[tuple[SimulatedInstance, StateChange]]:
        for instance in self._instances.known.values():
            change = instance.change_at(as_of)
            if change is not None:
                yield instance, change

    def _each(self, request: ServiceRequest, act: Callable[[str], None], key: str) -> dict[str, Any]:
        """All or, if one of them is unknown, none."""
        for id_ in request["InstanceIds"]:
            if id_ not in self._instances.known:
                raise not_found(id_)
        told = []
        for id_ in request["InstanceIds"]:
            before = self._instances.known[id_].state
            act(id_)
            states = {"CurrentState": _state(self._instances.known[id_].state), "PreviousState": _state(before)}
            told.append({"InstanceId": id_, **states})
        return {key: told}

    def _reservation(self, instance: SimulatedInstance, change: StateChange) -> dict[str, Any]:
        id_ = instance.id.replace("i-", "r-", 1)
        return {"ReservationId": id_, "OwnerId": self._account, "Instances": [self.described(instance, change)]}

    def described(self, instance: SimulatedInstance, change: StateChange) -> dict[str, Any]:
        """As DescribeInstances tells it."""
        data = instance.data
        told = {
            "InstanceId": instance.id,
            "InstanceType": instance.instance_type,
            "Architecture": instance.architecture,
            "ImageId": instance.image_id,
            "LaunchTime": instance.launched_at,
            "State": _state(change.state),
            "Placement": {"AvailabilityZone": instance.zone, "Tenancy": "default"},
            "SubnetId": instance.subnet_id,
            "VpcId": VPC,
            "PrivateIpAddress": instance.address,
            "PrivateDnsName": f"ip-{instance.address.replace('.', '-')}.{self._domain}",
            "SecurityGroups": [dict(group) for group in instance.groups],
            "Tags": to_pairs(instance.tags),
            "MetadataOptions": dict(data.get("MetadataOptions") or {}),
            "Monitoring": {"State": "enabled" if (data.get("Monitoring") or {}).get("Enabled") else "disabled"},
        }
        if instance.spot:
            told["InstanceLifecycle"] = "spot"
            told["SpotInstanceRequestId"] = instance.id.replace("i-", "sir-", 1)
        if instance.profile_arn:
            told["IamInstanceProfile"] = {"Arn": instance.profile_arn}
        if change.reason:
            told["StateReason"] = {"Code": change.reason, "Message": change.reason}
        return told


_INSTANCE_FILTERS: Final[Mapping[str, Callable[[tuple[SimulatedInstance, StateChange]], list[str]]]] = {
    "instance-id": lambda view: [view[0].id],
    "instance-state-name": lambda view: [view[1].state],
    "instance-type": lambda view: [view[0].instance_type],
    "tag": lambda view: tag_pairs(view[0].tags),
}


def _state(name: str) -> dict[str, Any]:
    return {"Code": STATE_CODES[name], "Name": name}
