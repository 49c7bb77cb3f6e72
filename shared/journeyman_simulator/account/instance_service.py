"""EC2's operations on the simulated account's instances, and how it tells them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from journeyman_simulator.account.asking import PAGING, Ask, Operation, Operations, paged, selected, tag_pairs, to_pairs
from journeyman_simulator.account.instances import Change, Instance, Instances, not_found
from journeyman_simulator.account.network import VPC
from journeyman_simulator.aws.timekeeper import Timekeeper

_CODES: Final = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}


class InstanceService:
    """Answers from the instances; DescribeInstances as of a moment, less the lag that the account has by itself."""

    def __init__(
        self, instances: Instances, time: Timekeeper, *, lag_seconds: float, region: str, account: str
    ) -> None:
        self._instances = instances
        self._time = time
        self._lag = timedelta(seconds=lag_seconds)
        self._domain = "ec2.internal" if region == "us-east-1" else f"{region}.compute.internal"
        self._account = account

    def operations(self) -> Operations:
        """Of EC2."""
        ids = ("InstanceIds",)
        return {
            "DescribeInstances": Operation(self._describe, accepts=("Filters", *ids, *PAGING)),
            "DescribeInstanceStatus": Operation(self._describe_status, accepts=("Filters", *PAGING)),
            "TerminateInstances": Operation(
                lambda ask: self._each(ask, self._instances.end, "TerminatingInstances"), requires=ids
            ),
            "StopInstances": Operation(
                lambda ask: self._each(ask, self._instances.stop, "StoppingInstances"), requires=ids
            ),
            "StartInstances": Operation(
                lambda ask: self._each(ask, self._instances.start, "StartingInstances"), requires=ids
            ),
        }

    def _describe(self, ask: Ask) -> dict[str, Any]:
        as_of = min(ask.as_of, self._time.now() - self._lag)
        shown = {instance.id: (instance, change) for instance, change in self._shown(as_of)}
        ids = ask.get("InstanceIds")
        for id_ in ids or ():
            if id_ not in shown:
                raise not_found(id_)
        views = [shown[id_] for id_ in ids] if ids else list(shown.values())
        found = selected(views, ask.get("Filters", ()), _READERS)
        return paged("Reservations", [self._reservation(instance, change) for instance, change in found], ask)

    def _describe_status(self, ask: Ask) -> dict[str, Any]:
        """Of those that run, unless others are asked for."""
        running = [(i.id, i.zone) for i in self._instances.known.values() if i.state == "running"]
        return paged("InstanceStatuses", self._instances.checks.told(running, ask.get("Filters", ())), ask)

    def _shown(self, as_of: datetime) -> Iterator[tuple[Instance, Change]]:
        for instance in self._instances.known.values():
            change = instance.change_at(as_of)
            if change is not None:
                yield instance, change

    def _each(self, ask: Ask, act: Callable[[str], None], key: str) -> dict[str, Any]:
        """All or, if one of them is unknown, none."""
        for id_ in ask["InstanceIds"]:
            if id_ not in self._instances.known:
                raise not_found(id_)
        told = []
        for id_ in ask["InstanceIds"]:
            before = self._instances.known[id_].state
            act(id_)
            states = {"CurrentState": _state(self._instances.known[id_].state), "PreviousState": _state(before)}
            told.append({"InstanceId": id_, **states})
        return {key: told}

    def _reservation(self, instance: Instance, change: Change) -> dict[str, Any]:
        id_ = instance.id.replace("i-", "r-", 1)
        return {"ReservationId": id_, "OwnerId": self._account, "Instances": [self.described(instance, change)]}

    def described(self, instance: Instance, change: Change) -> dict[str, Any]:
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


_READERS: Final[Mapping[str, Callable[[tuple[Instance, Change]], list[str]]]] = {
    "instance-id": lambda view: [view[0].id],
    "instance-state-name": lambda view: [view[1].state],
    "instance-type": lambda view: [view[0].instance_type],
    "tag": lambda view: tag_pairs(view[0].tags),
}


def _state(name: str) -> dict[str, Any]:
    return {"Code": _CODES[name], "Name": name}
