"""Implements the in-process account's EC2 instances: records, requests, and faults.

The records keep every change of state with its time, so that a read can return the state of some seconds ago, as in EC2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import count
from typing import Any, Final

from msgspec import Struct, field

from journeyman_simulator.cloud_rules.instance_states import (
    STATE_CODES,
    InstanceFacts,
    InstanceLifecycle,
    InstanceTiming,
    StateChange,
)
from journeyman_simulator.cloud_rules.service_errors import instance_not_found
from journeyman_simulator.cloud_rules.service_time import ServiceTime
from journeyman_simulator.in_process_account.ec2_network import VPC, SimulatedNetwork
from journeyman_simulator.in_process_account.event_bridge import SimulatedEventBus
from journeyman_simulator.in_process_account.reserved_capacity import reservation_of
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

_RETIREMENT: Final = "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED"
JSON = Mapping[str, Any]


class SimulatedInstance(Struct, kw_only=True, eq=False):
    """The record of an EC2 instance."""

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
    data: JSON = field(default_factory=dict)  # the data of its launch template
    groups: tuple[JSON, ...] = ()
    profile_arn: str = ""
    joins: bool = True  # whether its kubelet registers a node
    changes: list[StateChange] = field(default_factory=list)

    @property
    def state(self) -> str:
        """Return the current state."""
        return self.changes[-1].state

    def change_at(self, moment: datetime) -> StateChange | None:
        """Return the last change of state at or before `moment`; None before the launch."""
        for change in reversed(self.changes):
            if change.at <= moment:
                return change
        return None


class InstanceEvent(Struct, frozen=True):
    """An event for observers of the account: a launch, a request to terminate, or a change of state."""

    at: datetime
    what: str  # "launched", "termination-requested", or the state
    instance: SimulatedInstance


class SimulatedInstances(InstanceLifecycle[SimulatedInstance]):
    """The instances that EC2 shows, including recently terminated ones."""

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
        super().__init__(time, bus, timing, region=region, account=account)
        self._network = network
        self._health = bus
        self._serial = count(1)
        self._never_joining = 0
        self.known: dict[str, SimulatedInstance] = {}
        self.observers: list[Callable[[InstanceEvent], object]] = []

    # -- the records of `InstanceLifecycle` -----------------------------------------------------------------------

    def facts(self, instance: SimulatedInstance) -> InstanceFacts:
        """See `InstanceLifecycle`."""
        return InstanceFacts(id=instance.id, zone=instance.zone, state=instance.state, is_spot=instance.spot)

    def find(self, instance_id: str) -> SimulatedInstance | None:
        """See `InstanceLifecycle`."""
        return self.known.get(instance_id)

    def record_state(self, instance: SimulatedInstance, state: str, reason: str) -> None:
        """See `InstanceLifecycle`."""
        instance.changes.append(StateChange(self._time.now(), state, reason))
        self._notify(state, instance)

    def release(self, instance: SimulatedInstance) -> None:
        """See `InstanceLifecycle`."""
        self._network.release_address(instance.subnet_id)

    def forget(self, instance: SimulatedInstance) -> None:
        """See `InstanceLifecycle`."""
        self.known.pop(instance.id, None)

    # -- requests and faults ------------------------------------------------------------------------------------------

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
        """Launch an instance. Raises ServiceError if its subnet has no free address."""
        address = self._network.assign_address(subnet_id)
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
        self._notify("launched", instance)
        self.start_launch(instance)
        return instance

    def prevent_next_from_joining(self, number: int = 1) -> None:
        """Prevent the instances of the next `number` launches from registering a node."""
        self._never_joining += number

    def announce_retirement(self, instance_id: str, within: timedelta) -> None:
        """Publish an AWS Health event and an instance status event that announce the retirement of the instance's host."""
        moment = self._time.now() + within
        self.checks.plan(instance_id, "instance-retirement", moment)
        self._health.announce_maintenance([instance_id], _RETIREMENT, moment)

    def terminate(self, instance_id: str) -> None:
        """Terminate an instance (TerminateInstances). Raises ServiceError if it does not exist."""
        instance = self._require(instance_id)
        self._notify("termination-requested", instance)
        self.begin_termination(instance)

    def stop(self, instance_id: str) -> None:
        """Stop an instance (StopInstances). Raises ServiceError if it does not exist or cannot be stopped."""
        self.begin_stop(self._require(instance_id))

    def start(self, instance_id: str) -> None:
        """Start an instance (StartInstances). Raises ServiceError if it does not exist or is not stopped."""
        self.start_stopped(self._require(instance_id))

    def _require(self, instance_id: str) -> SimulatedInstance:
        instance = self.known.get(instance_id)
        if instance is None:
            raise instance_not_found(instance_id)
        return instance

    def _notify(self, what: str, instance: SimulatedInstance) -> None:
        event = InstanceEvent(self._time.now(), what, instance)
        for observer in self.observers:
            observer(event)


class Ec2InstanceOperations:
    """Implements EC2's operations on instances. DescribeInstances can return an earlier state.

    An instance whose capacity reservation has ended goes on running, on demand.
    """

    def __init__(
        self,
        instances: SimulatedInstances,
        time: ServiceTime,
        *,
        lag_seconds: float,
        region: str,
        account: str,
        is_reserved: Callable[[str], bool] = bool,
    ) -> None:
        self._is_reserved = is_reserved
        self._instances = instances
        self._time = time
        self._lag = timedelta(seconds=lag_seconds)
        self._domain = "ec2.internal" if region == "us-east-1" else f"{region}.compute.internal"
        self._account = account

    def operations(self) -> ServiceOperations:
        """Return EC2's operations."""
        ids = ("InstanceIds",)
        return {
            "DescribeInstances": ServiceOperation(self._describe, accepts=("Filters", *ids, *PAGING)),
            "DescribeInstanceStatus": ServiceOperation(self._describe_status, accepts=("Filters", *PAGING)),
            "TerminateInstances": ServiceOperation(
                lambda request: self._change_each(request, self._instances.terminate, "TerminatingInstances"),
                requires=ids,
            ),
            "StopInstances": ServiceOperation(
                lambda request: self._change_each(request, self._instances.stop, "StoppingInstances"), requires=ids
            ),
            "StartInstances": ServiceOperation(
                lambda request: self._change_each(request, self._instances.start, "StartingInstances"), requires=ids
            ),
        }

    def _describe(self, request: ServiceRequest) -> dict[str, Any]:
        as_of = min(request.as_of, self._time.now() - self._lag)
        visible = {instance.id: (instance, change) for instance, change in self._visible(as_of)}
        ids = request.get("InstanceIds")
        for id_ in ids or ():
            if id_ not in visible:
                raise instance_not_found(id_)
        views = [visible[id_] for id_ in ids] if ids else list(visible.values())
        found = selected(views, request.get("Filters", ()), _INSTANCE_FILTERS)
        return paged("Reservations", [self._reservation(instance, change) for instance, change in found], request)

    def _describe_status(self, request: ServiceRequest) -> dict[str, Any]:
        """Return the status checks of running instances."""
        running = [(i.id, i.zone) for i in self._instances.known.values() if i.state == "running"]
        return paged("InstanceStatuses", self._instances.checks.statuses(running, request.get("Filters", ())), request)

    def _visible(self, as_of: datetime) -> Iterator[tuple[SimulatedInstance, StateChange]]:
        for instance in self._instances.known.values():
            change = instance.change_at(as_of)
            if change is not None:
                yield instance, change

    def _change_each(self, request: ServiceRequest, change: Callable[[str], None], key: str) -> dict[str, Any]:
        """Change the state of all instances in the request, or of none if one does not exist."""
        for id_ in request["InstanceIds"]:
            if id_ not in self._instances.known:
                raise instance_not_found(id_)
        response = []
        for id_ in request["InstanceIds"]:
            before = self._instances.known[id_].state
            change(id_)
            states = {"CurrentState": _state(self._instances.known[id_].state), "PreviousState": _state(before)}
            response.append({"InstanceId": id_, **states})
        return {key: response}

    def _reservation(self, instance: SimulatedInstance, change: StateChange) -> dict[str, Any]:
        id_ = instance.id.replace("i-", "r-", 1)
        return {"ReservationId": id_, "OwnerId": self._account, "Instances": [self.described(instance, change)]}

    def described(self, instance: SimulatedInstance, change: StateChange) -> dict[str, Any]:
        """Return an instance as in DescribeInstances' response."""
        data = instance.data
        response: dict[str, Any] = {
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
        placement = data.get("Placement") or {}
        keys = ("GroupId", "GroupName", "PartitionNumber")
        response["Placement"] |= {key: placement[key] for key in keys if key in placement}
        if self._is_reserved(reservation := reservation_of(data)):
            response["CapacityReservationId"] = reservation
            if market := (data.get("InstanceMarketOptions") or {}).get("MarketType"):
                response["InstanceLifecycle"] = market
        if instance.spot:
            response["InstanceLifecycle"] = "spot"
            response["SpotInstanceRequestId"] = instance.id.replace("i-", "sir-", 1)
        if instance.profile_arn:
            response["IamInstanceProfile"] = {"Arn": instance.profile_arn}
        if change.reason:
            response["StateReason"] = {"Code": change.reason, "Message": change.reason}
        return response


_INSTANCE_FILTERS: Final[Mapping[str, Callable[[tuple[SimulatedInstance, StateChange]], list[str]]]] = {
    "instance-id": lambda view: [view[0].id],
    "instance-state-name": lambda view: [view[1].state],
    "instance-type": lambda view: [view[0].instance_type],
    "tag": lambda view: tag_pairs(view[0].tags),
}


def _state(name: str) -> dict[str, Any]:
    return {"Code": STATE_CODES[name], "Name": name}
