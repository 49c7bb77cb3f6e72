"""Operations of users and EC2 in the simulated account, and records of every instance that it has had."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Final, Literal

from journeyman.errors import ConfigurationError
from journeyman_simulator.cloud_rules.service_errors import ServiceError
from journeyman_simulator.faults.fault_injection import current_step
from journeyman_simulator.faults.scenario_view import CLOUD, HUMAN, RUN_USER_PREFIX, CloudEvent, CloudInstance
from journeyman_simulator.in_process_account.account import InProcessAccount
from journeyman_simulator.in_process_account.simulated_instances import InstanceEvent, SimulatedInstance

_RETIREMENT_NOTICE: Final = timedelta(days=14)
_SCENARIO_DURATION: Final = timedelta(days=1)


class AccountOperations:
    """Operates on instances by provider id. An operation that EC2 rejects has no effect."""

    def __init__(self, account: InProcessAccount, records: InstanceRecords) -> None:
        """Create the operations on the account; `records` stores who called each."""
        self._account = account
        self._records = records

    def interrupt(self, provider_id: str) -> None:
        """Send a Spot interruption warning, and reclaim the instance two minutes later; Spot instances only."""
        with suppress(ConfigurationError):
            self._account.interrupt(_id(provider_id))

    def recommend_rebalance(self, provider_id: str) -> None:
        """Send a rebalance recommendation; Spot instances only."""
        with suppress(ConfigurationError):
            self._account.recommend_rebalance(_id(provider_id))

    def announce_retirement(self, provider_id: str) -> None:
        """Send AWS Health's announcement that the instance's host retires."""
        self._account.instances.announce_retirement(_id(provider_id), _RETIREMENT_NOTICE)

    def stop(self, provider_id: str) -> None:
        """Stop the instance as a user of the console; EC2 rejects this for Spot instances."""
        with suppress(ServiceError), self._records.attribute_to(HUMAN):
            self._account.instances.stop(_id(provider_id))

    def terminate(self, provider_id: str) -> None:
        """Terminate the instance as a user of the console."""
        with suppress(ServiceError), self._records.attribute_to(HUMAN):
            self._account.instances.terminate(_id(provider_id))

    def edit_tags(self, provider_id: str, changes: Mapping[str, str | None]) -> None:
        """Set the instance's tags, and remove those that are None, as a user of the console."""
        tags = self._account.instances.known[_id(provider_id)].tags
        for key, value in changes.items():
            if value is None:
                tags.pop(key, None)
            else:
                tags[key] = value

    def tags(self, provider_id: str) -> Mapping[str, str]:
        """Return the instance's tags; none if it does not exist."""
        instance = self._account.instances.known.get(_id(provider_id))
        return {} if instance is None else dict(instance.tags)

    def fail_check(self, provider_id: str, check: str) -> None:
        """Fail an EC2 status check of the instance from now on."""
        self._account.instances.checks.fail(_id(provider_id), check)

    def pass_checks(self, provider_id: str = "") -> None:
        """Pass all status checks of the instance, or of every instance if no provider id is given."""
        ids = [_id(provider_id)] if provider_id else list(self._account.instances.known)
        for instance_id in ids:
            self._account.instances.checks.recover(instance_id)

    def launched(self) -> Sequence[str]:
        """Return the provider ids of all instances that were launched, in order of launch."""
        return [instance.provider_id for instance in self._records.instances()]

    def prevent_next_from_joining(self) -> None:
        """Prevent the next launched instance from registering a node."""
        self._account.instances.prevent_next_from_joining()

    def set_unavailable(self, pools: Sequence[tuple[str, str, str]], *, unavailable: bool) -> None:
        """Make offerings (type, zone, capacity type) unavailable or available."""
        now = self._account.time.now()
        for pool in pools:
            self._account.out_of_stock(*pool, now + _SCENARIO_DURATION if unavailable else now)


def _id(provider_id: str) -> str:
    return provider_id.rpartition("/")[2]


Price = Callable[[str, str, str], float]
"""Returns the hourly price of an offering: instance type, zone, capacity type."""


class InstanceRecords:
    """Records the account's instances, including those that EC2 no longer lists, and reports their events.

    Args:
        price: Returns the price of an offering.
        on_event: Called with each event, in order.
    """

    def __init__(self, price: Price, on_event: Callable[[CloudEvent], None]) -> None:
        self._price = price
        self._on_event = on_event
        self._by = CLOUD
        self._known: dict[str, SimulatedInstance] = {}
        self._launch_tags: dict[str, Mapping[str, str]] = {}

    @contextmanager
    def attribute_to(self, who: str) -> Iterator[None]:
        """Attribute the events inside the context to `who`."""
        before, self._by = self._by, who
        try:
            yield
        finally:
            self._by = before

    def record_event(self, event: InstanceEvent) -> None:
        """Record an event of an instance, and report it."""
        self._known[event.instance.id] = event.instance
        self._launch_tags.setdefault(event.instance.id, dict(event.instance.tags))
        kind: Literal["launched", "terminate", "state"] = "state"
        if event.what == "launched":
            kind = "launched"
        elif event.what == "termination-requested":
            kind = "terminate"
        step = current_step()
        by = f"{RUN_USER_PREFIX}{step}" if step else self._by
        self._on_event(CloudEvent(at=event.at, kind=kind, instance=self._cloud_instance(event.instance), by=by))

    def instances(self) -> tuple[CloudInstance, ...]:
        """Return all instances, in order of launch."""
        return tuple(self._cloud_instance(instance) for instance in self._known.values())

    def never_joining(self) -> tuple[str, ...]:
        """Return the provider ids of instances that never register a node."""
        return tuple(_provider_id(instance) for instance in self._known.values() if not instance.joins)

    def _cloud_instance(self, instance: SimulatedInstance) -> CloudInstance:
        capacity_type = "spot" if instance.spot else "on-demand"
        return CloudInstance(
            provider_id=_provider_id(instance),
            instance_type=instance.instance_type,
            zone=instance.zone,
            capacity_type=capacity_type,
            price=self._price(instance.instance_type, instance.zone, capacity_type),
            state=instance.state if instance.changes else "pending",
            launched_at=instance.launched_at,
            tags=self._launch_tags[instance.id],
        )


def _provider_id(instance: SimulatedInstance) -> str:
    return f"aws:///{instance.zone}/{instance.id}"
