"""EC2 instances on moto that take time: pending, running, shutting-down, terminated, forgotten; and Spot interruptions."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import InvalidInstanceIdError
from moto.ec2.models.instances import Instance, InstanceBackend, InstanceState, Reservation, StateReason
from moto.ec2.responses.instances import InstanceResponse

from journeyman.errors import ConfigurationError
from journeyman_simulator.cloud_rules.instance_states import InstanceStatusChecks, InstanceTiming
from journeyman_simulator.cloud_rules.service_time import ServiceTime
from journeyman_simulator.moto_account.moto_events import MotoEventBus
from journeyman_simulator.moto_account.moto_extensions import MotoExtension

_CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}
_USER = StateReason("Client.UserInitiatedShutdown: User initiated shutdown", "Client.UserInitiatedShutdown")
_SPOT = StateReason("Server.SpotInstanceTermination: Spot instance termination", "Server.SpotInstanceTermination")


class MotoInstances:
    """Moves instances through their states as time passes, and tells EventBridge."""

    def __init__(self, time: ServiceTime, bus: MotoEventBus, timing: InstanceTiming) -> None:
        self._time = time
        self._bus = bus
        self._timing = timing
        self._agenda: list[tuple[datetime, int, Callable[[], None]]] = []
        self._order = count()
        self._instances: dict[str, Instance] = {}
        self.checks = InstanceStatusChecks(time)

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

    def interrupt(self, instance_id: str) -> None:
        """Reclaim a Spot instance: rebalance recommendation and two-minute warning now, shutdown after the notice.

        Raises:
            ConfigurationError: No such Spot instance is pending or running.
        """
        instance = self._spot(instance_id)
        self.recommend_rebalance(instance_id)
        self._announce(
            instance,
            "EC2 Spot Instance Interruption Warning",
            {"instance-id": instance_id, "instance-action": "terminate"},
        )
        self._later(self._timing.interruption_notice_seconds, lambda: self._begin_termination(instance, _SPOT))

    def recommend_rebalance(self, instance_id: str) -> None:
        """Say that a Spot instance is at elevated risk. Raises ConfigurationError as `interrupt`."""
        instance = self._spot(instance_id)
        self._announce(instance, "EC2 Instance Rebalance Recommendation", {"instance-id": instance_id})

    def extensions(self) -> tuple[MotoExtension, ...]:
        """Where moto's instances jump between states, they walk."""
        at_once = "states take virtual time and every transition is an EventBridge event"
        return (
            MotoExtension(owner=Instance, name="__init__", replace=self._launching, reason=at_once),
            MotoExtension(owner=Instance, name="terminate", replace=self._terminating, reason=at_once),
            MotoExtension(owner=Instance, name="stop", replace=self._stopping, reason=at_once),
            MotoExtension(owner=Instance, name="start", replace=self._starting, reason=at_once),
            MotoExtension(
                owner=InstanceResponse,
                name="terminate_instances",
                replace=_true_states,
                reason="TerminateInstances answers the state an instance is in, not always shutting-down",
            ),
            MotoExtension(
                owner=InstanceResponse,
                name="describe_instance_status",
                replace=self._telling_checks,
                reason="checks fail when a scenario says so, and can be filtered by that; moto's always pass",
            ),
            MotoExtension(
                owner=InstanceBackend,
                name="describe_instances",
                replace=self._describing_all,
                reason="DescribeInstances may not know a new instance yet",
            ),
            MotoExtension(
                owner=InstanceBackend,
                name="get_reservations_by_instance_ids",
                replace=self._describing_some,
                reason="DescribeInstances may not know a new instance yet",
            ),
        )

    def _launching(self, original: Callable[..., None]) -> Callable[..., None]:
        def init(
            self_: Instance, ec2_backend: Any, image_id: str, user_data: Any, security_groups: Any, **kwargs: Any
        ) -> None:
            original(self_, ec2_backend, image_id, user_data, security_groups, **kwargs)
            for nic in self_.nics.values():
                # Interfaces made at launch go with the instance; moto keeps them, and their addresses, for ever.
                nic.delete_on_termination = True
            self._instances[self_.id] = self_
            self._enter(self_, "pending")
            self._later(self._timing.pending_seconds, lambda: self._advance(self_, "pending", "running"))

        return init

    def _terminating(self, original: Callable[[Instance], InstanceState]) -> Callable[[Instance], InstanceState]:
        self._release = original

        def terminate(instance: Instance) -> InstanceState:
            previous = InstanceState(instance.state, instance.state_code)
            self._begin_termination(instance, _USER)
            return previous

        return terminate

    def _stopping(self, original: Callable[[Instance], InstanceState]) -> Callable[[Instance], InstanceState]:
        def stop(instance: Instance) -> InstanceState:
            previous = InstanceState(instance.state, instance.state_code)
            original(instance)
            self._enter(instance, "stopping")
            self._later(self._timing.shutting_down_seconds, lambda: self._advance(instance, "stopping", "stopped"))
            return previous

        return stop

    def _starting(self, original: Callable[[Instance], InstanceState]) -> Callable[[Instance], InstanceState]:
        def start(instance: Instance) -> InstanceState:
            previous = InstanceState(instance.state, instance.state_code)
            original(instance)
            self._enter(instance, "pending")
            self._later(self._timing.pending_seconds, lambda: self._advance(instance, "pending", "running"))
            return previous

        return start

    def _begin_termination(self, instance: Instance, reason: StateReason) -> None:
        if instance.state in {"shutting-down", "terminated"}:
            return
        self._enter(instance, "shutting-down")
        self._explain(instance, reason)
        self._later(self._timing.shutting_down_seconds, lambda: self._end(instance, reason))

    def _end(self, instance: Instance, reason: StateReason) -> None:
        self._release(instance)
        self._enter(instance, "terminated")
        self._explain(instance, reason)
        self._later(self._timing.terminated_visible_seconds, lambda: self._forget(instance))

    def _explain(self, instance: Instance, reason: StateReason) -> None:
        by = "User initiated" if reason is _USER else reason.code
        instance._reason = f"{by} ({self._time.now():%Y-%m-%d %H:%M:%S} GMT)"  # noqa: SLF001 - moto offers no setter
        instance.state_reason = reason

    def _forget(self, instance: Instance) -> None:
        reservations = instance.ec2_backend.reservations
        for key, reservation in list(reservations.items()):
            if instance in reservation.instances:
                reservation.instances.remove(instance)
                if not reservation.instances:
                    del reservations[key]
        del self._instances[instance.id]

    def _advance(self, instance: Instance, before: str, after: str) -> None:
        if instance.state == before:
            self._enter(instance, after)

    def _enter(self, instance: Instance, state: str) -> None:
        instance._state = InstanceState(state, _CODES[state])  # noqa: SLF001 - moto offers no setter
        account, region = instance.ec2_backend.account_id, instance.ec2_backend.region_name
        self._bus.publish(
            "aws.ec2",
            "EC2 Instance State-change Notification",
            {"instance-id": instance.id, "state": state},
            [f"arn:aws:ec2:{region}:{account}:instance/{instance.id}"],
        )

    def _announce(self, instance: Instance, detail_type: str, detail: dict[str, str]) -> None:
        # These two name the zone where an ARN has the region, and no account: so AWS documents and sends them.
        self._bus.publish(
            "aws.ec2", detail_type, detail, [f"arn:aws:ec2:{instance.availability_zone}:instance/{instance.id}"]
        )

    def _spot(self, instance_id: str) -> Instance:
        instance = self._instances.get(instance_id)
        if instance is None or instance.lifecycle != "spot" or instance.state not in {"pending", "running"}:
            raise ConfigurationError("only a pending or running Spot instance can be interrupted", instance=instance_id)
        return instance

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        moment = self._time.now() + timedelta(seconds=seconds)
        heapq.heappush(self._agenda, (moment, next(self._order), action))

    def _telling_checks(
        self, original: Callable[[InstanceResponse], ActionResult]
    ) -> Callable[[InstanceResponse], ActionResult]:
        def describe_instance_status(response: InstanceResponse) -> ActionResult:
            running = [(i.id, str(i.availability_zone)) for i in self._instances.values() if i.state == "running"]
            asked = response._filters_from_querystring()  # noqa: SLF001 - moto's own way to ask
            filters = [{"Name": name, "Values": values} for name, values in asked.items()]
            return ActionResult({"InstanceStatuses": self.checks.told(running, filters)})

        return describe_instance_status

    def _describing_all(self, original: Callable[..., list[Reservation]]) -> Callable[..., list[Reservation]]:
        def describe_instances(backend: Any, filters: Any = None) -> list[Reservation]:
            found = original(backend, filters)
            for reservation in found:
                reservation.instances = [i for i in reservation.instances if self._is_known(i)]
            return [reservation for reservation in found if reservation.instances]

        return describe_instances

    def _describing_some(self, original: Callable[..., list[Reservation]]) -> Callable[..., list[Reservation]]:
        def get_reservations_by_instance_ids(
            backend: Any, instance_ids: list[str], filters: Any = None
        ) -> list[Reservation]:
            for instance_id in instance_ids:
                instance = self._instances.get(instance_id)
                if instance and not self._is_known(instance):
                    raise InvalidInstanceIdError(instance_id)
            return original(backend, instance_ids, filters)

        return get_reservations_by_instance_ids

    def _is_known(self, instance: Instance) -> bool:
        launched = instance.launch_time.replace(tzinfo=self._time.now().tzinfo)
        return bool(launched + timedelta(seconds=self._timing.describe_lag_seconds) <= self._time.now())


def _true_states(original: Callable[[InstanceResponse], ActionResult]) -> Callable[[InstanceResponse], ActionResult]:
    def terminate_instances(response: InstanceResponse) -> ActionResult:
        result: Any = original(response).result
        for item in result["TerminatingInstances"]:
            instance = response.ec2_backend.get_instance(item["InstanceId"])
            item["CurrentState"] = {"Code": instance.state_code, "Name": instance.state}
        return ActionResult(result)

    return terminate_instances
