"""Gives moto's EC2 instances EC2's states in virtual time, from pending to terminated, and Spot interruptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError, InvalidInstanceIdError
from moto.ec2.models.instances import Instance, InstanceBackend, InstanceState, Reservation, StateReason
from moto.ec2.responses.instances import InstanceResponse

from journeyman_simulator.cloud_rules.instance_states import (
    BY_SPOT,
    BY_USER,
    STATE_CODES,
    InstanceFacts,
    InstanceLifecycle,
)
from journeyman_simulator.cloud_rules.service_errors import ServiceError, instance_not_found
from journeyman_simulator.moto_account.moto_extensions import MotoExtension

_REASONS = {
    BY_USER: ("User initiated", StateReason(f"{BY_USER}: User initiated shutdown", BY_USER)),
    BY_SPOT: (BY_SPOT, StateReason(f"{BY_SPOT}: Spot instance termination", BY_SPOT)),
}


class MotoInstances(InstanceLifecycle[Instance]):
    """Applies `InstanceLifecycle` to moto's instances."""

    _terminate_in_moto: Callable[[Instance], Any]
    _instances: dict[str, Instance]

    def facts(self, instance: Instance) -> InstanceFacts:
        """See `InstanceLifecycle`."""
        zone, is_spot = str(instance.availability_zone), instance.lifecycle == "spot"
        return InstanceFacts(id=instance.id, zone=zone, state=instance.state, is_spot=is_spot)

    def find(self, instance_id: str) -> Instance | None:
        """See `InstanceLifecycle`."""
        return self._instances.get(instance_id)

    def record_state(self, instance: Instance, state: str, reason: str) -> None:
        """See `InstanceLifecycle`."""
        instance._state = InstanceState(state, STATE_CODES[state])  # noqa: SLF001 - moto offers no setter
        if reason and state != "stopping":  # moto itself sets the reason of a stop
            by, instance.state_reason = _REASONS.get(reason) or (reason, StateReason(reason, reason))
            instance._reason = f"{by} ({self._time.now():%Y-%m-%d %H:%M:%S} GMT)"  # noqa: SLF001 - moto offers no setter

    def release(self, instance: Instance) -> None:
        """See `InstanceLifecycle`."""
        self._terminate_in_moto(instance)

    def forget(self, instance: Instance) -> None:
        """See `InstanceLifecycle`."""
        reservations = instance.ec2_backend.reservations
        for key, reservation in list(reservations.items()):
            if instance in reservation.instances:
                reservation.instances.remove(instance)
                if not reservation.instances:
                    del reservations[key]
        del self._instances[instance.id]

    def extensions(self) -> tuple[MotoExtension, ...]:
        """Return extensions that give moto's instances intermediate states, which moto skips."""
        self._instances = {}
        state_reason = "states last for virtual time, and each transition publishes an EventBridge event"
        lag_reason = "DescribeInstances may omit a new instance"
        return (
            MotoExtension(owner=Instance, name="__init__", replace=self._replace_init, reason=state_reason),
            MotoExtension(owner=Instance, name="terminate", replace=self._replace_terminate, reason=state_reason),
            MotoExtension(owner=Instance, name="stop", replace=self._replace_stop, reason=state_reason),
            MotoExtension(owner=Instance, name="start", replace=self._replace_start, reason=state_reason),
            MotoExtension(
                owner=InvalidInstanceIdError,
                name="__init__",
                replace=lambda _: _raise_instance_not_found,
                reason="returns InvalidInstanceID.Malformed for a malformed id; moto returns NotFound",
            ),
            MotoExtension(
                owner=InstanceResponse,
                name="terminate_instances",
                replace=_with_current_states,
                reason="TerminateInstances returns the instance's current state; moto always returns shutting-down",
            ),
            MotoExtension(
                owner=InstanceResponse,
                name="describe_instance_status",
                replace=self._replace_describe_status,
                reason="a scenario can fail status checks, and filters apply to them; moto's always pass",
            ),
            MotoExtension(
                owner=InstanceBackend,
                name="describe_instances",
                replace=self._replace_describe_instances,
                reason=lag_reason,
            ),
            MotoExtension(
                owner=InstanceBackend,
                name="get_reservations_by_instance_ids",
                replace=self._replace_get_reservations,
                reason=lag_reason,
            ),
        )

    def _replace_init(self, original: Callable[..., None]) -> Callable[..., None]:
        def init(
            self_: Instance, ec2_backend: Any, image_id: str, user_data: Any, security_groups: Any, **kwargs: Any
        ) -> None:
            original(self_, ec2_backend, image_id, user_data, security_groups, **kwargs)
            for nic in self_.nics.values():
                # EC2 deletes an instance's interfaces with it; moto would keep them and their addresses
                nic.delete_on_termination = True
            self._instances[self_.id] = self_
            self.start_launch(self_)

        return init

    def _replace_terminate(self, original: Callable[[Instance], Any]) -> Callable[[Instance], InstanceState]:
        self._terminate_in_moto = original

        def terminate(instance: Instance) -> InstanceState:
            previous = InstanceState(instance.state, instance.state_code)
            self.begin_termination(instance)
            return previous

        return terminate

    def _replace_stop(self, original: Callable[[Instance], Any]) -> Callable[[Instance], InstanceState]:
        def stop(instance: Instance) -> InstanceState:
            previous = InstanceState(instance.state, instance.state_code)
            try:
                self.require_stoppable(instance)
            except ServiceError as error:
                raise EC2ClientError(error.code, error.message) from error
            if previous.name not in {"stopping", "stopped"}:
                original(instance)
                instance._state = previous  # noqa: SLF001 - moto offers no setter, and has stopped it already
                self.begin_stop(instance)
            return previous

        return stop

    def _replace_start(self, original: Callable[[Instance], Any]) -> Callable[[Instance], InstanceState]:
        def start(instance: Instance) -> InstanceState:
            previous = InstanceState(instance.state, instance.state_code)
            try:
                self.start_stopped(instance)
            except ServiceError as error:
                raise EC2ClientError(error.code, error.message) from error
            pending = InstanceState(instance.state, instance.state_code)
            original(instance)
            instance._state = pending  # noqa: SLF001 - moto offers no setter, and has started it already
            return previous

        return start

    def _replace_describe_status(
        self, _original: Callable[..., ActionResult]
    ) -> Callable[[InstanceResponse], ActionResult]:
        def describe_instance_status(response: InstanceResponse) -> ActionResult:
            running = [(i.id, str(i.availability_zone)) for i in self._instances.values() if i.state == "running"]
            wanted = response._filters_from_querystring()  # noqa: SLF001 - moto's own way to read filters
            filters = [{"Name": name, "Values": values} for name, values in wanted.items()]
            return ActionResult({"InstanceStatuses": self.checks.statuses(running, filters)})

        return describe_instance_status

    def _replace_describe_instances(
        self, original: Callable[..., list[Reservation]]
    ) -> Callable[..., list[Reservation]]:
        def describe_instances(backend: Any, filters: Any = None) -> list[Reservation]:
            found = original(backend, filters)
            for reservation in found:
                reservation.instances = [i for i in reservation.instances if self._is_described(i)]
            return [reservation for reservation in found if reservation.instances]

        return describe_instances

    def _replace_get_reservations(self, original: Callable[..., list[Reservation]]) -> Callable[..., list[Reservation]]:
        def get_reservations_by_instance_ids(
            backend: Any, instance_ids: list[str], filters: Any = None
        ) -> list[Reservation]:
            for instance_id in instance_ids:
                instance = self._instances.get(instance_id)
                if instance and not self._is_described(instance):
                    raise InvalidInstanceIdError(instance_id)
            return original(backend, instance_ids, filters)

        return get_reservations_by_instance_ids

    def _is_described(self, instance: Instance) -> bool:
        return self.is_described(instance.launch_time.replace(tzinfo=self._time.now().tzinfo))


def _raise_instance_not_found(self_: InvalidInstanceIdError, instance_id: Any) -> None:
    error = instance_not_found(instance_id if isinstance(instance_id, str) else instance_id[0])
    EC2ClientError.__init__(self_, error.code, error.message)


def _with_current_states(
    original: Callable[[InstanceResponse], ActionResult],
) -> Callable[[InstanceResponse], ActionResult]:
    def terminate_instances(response: InstanceResponse) -> ActionResult:
        result: Any = original(response).result
        for item in result["TerminatingInstances"]:
            instance = response.ec2_backend.get_instance(item["InstanceId"])
            item["CurrentState"] = {"Code": instance.state_code, "Name": instance.state}
        return ActionResult(result)

    return terminate_instances
