"""What people and EC2 do in the simulated account, and the record of every instance that it ever had."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Final, Literal

from journeyman.errors import ConfigurationError
from journeyman_simulator.cloud_rules.service_errors import ServiceError
from journeyman_simulator.faults.fault_injection import current_step
from journeyman_simulator.faults.scenario_view import CLOUD, HUMAN, RUN_USER_PREFIX, CloudEvent, CloudInstance
from journeyman_simulator.in_process_account.account import InProcessAccount
from journeyman_simulator.in_process_account.simulated_instances import InstanceEvent, SimulatedInstance

_RETIRED_WITHIN: Final = timedelta(days=14)
_FOR_THE_SCENARIO: Final = timedelta(days=1)


class AccountOperations:
    """Acts on instances by provider id; an operation that EC2 refuses does nothing."""

    def __init__(self, account: InProcessAccount, records: InstanceRecords) -> None:
        """Args: `ledger` records who did it."""
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
        """Let AWS Health announce the retirement of its host."""
        self._account.instances.announce_retirement(_id(provider_id), _RETIRED_WITHIN)

    def stop(self, provider_id: str) -> None:
        """Stop it in the console; EC2 refuses that for Spot instances."""
        with suppress(ServiceError), self._records.attributed_to(HUMAN):
            self._account.instances.stop(_id(provider_id))

    def terminate(self, provider_id: str) -> None:
        """Terminate it in the console."""
        with suppress(ServiceError), self._records.attributed_to(HUMAN):
            self._account.instances.terminate(_id(provider_id))

    def fail_check(self, provider_id: str, check: str) -> None:
        """Fail one of its EC2 status checks from now on."""
        self._account.instances.checks.fail(_id(provider_id), check)

    def pass_checks(self, provider_id: str = "") -> None:
        """Let it pass all status checks; without a provider id every instance does."""
        ids = [_id(provider_id)] if provider_id else list(self._account.instances.known)
        for instance_id in ids:
            self._account.instances.checks.recover(instance_id)

    def launched(self) -> Sequence[str]:
        """Return the provider ids of all instances ever launched, by launch."""
        return [instance.provider_id for instance in self._records.instances()]

    def prevent_next_from_joining(self) -> None:
        """Let the next launched instance never become a node."""
        self._account.instances.prevent_next_from_joining()

    def set_stock(self, pools: Sequence[tuple[str, str, str]], *, sold_out: bool) -> None:
        """Make offerings (type, zone, capacity type) unavailable or available."""
        now = self._account.time.now()
        for pool in pools:
            self._account.out_of_stock(*pool, now + _FOR_THE_SCENARIO if sold_out else now)


def _id(provider_id: str) -> str:
    return provider_id.rpartition("/")[2]


Price = Callable[[str, str, str], float]
"""Returns the hourly price of a type in a zone by capacity type."""


class InstanceRecords:
    """Observes the account's instances, keeps them after EC2 forgets them, and reports their events.

    Args:
        price: Returns the price of an offering.
        on_event: Called with each event, in order.
    """

    def __init__(self, price: Price, on_event: Callable[[CloudEvent], None]) -> None:
        self._price = price
        self._on_event = on_event
        self._by = CLOUD
        self._known: dict[str, SimulatedInstance] = {}

    @contextmanager
    def attributed_to(self, who: str) -> Iterator[None]:
        """Attribute everything inside to that person."""
        before, self._by = self._by, who
        try:
            yield
        finally:
            self._by = before

    def note(self, event: InstanceEvent) -> None:
        """Record an event of the account."""
        self._known[event.instance.id] = event.instance
        kind: Literal["launched", "terminate", "state"] = "state"
        if event.what == "launched":
            kind = "launched"
        elif event.what == "termination-requested":
            kind = "terminate"
        step = current_step()
        by = f"{RUN_USER_PREFIX}{step}" if step else self._by
        self._on_event(CloudEvent(at=event.at, kind=kind, instance=self._described(event.instance), by=by))

    def instances(self) -> tuple[CloudInstance, ...]:
        """Return all instances, by launch."""
        return tuple(self._described(instance) for instance in self._known.values())

    def never_joining(self) -> tuple[str, ...]:
        """Return the provider ids of instances that never become nodes."""
        return tuple(_provider_id(instance) for instance in self._known.values() if not instance.joins)

    def _described(self, instance: SimulatedInstance) -> CloudInstance:
        capacity_type = "spot" if instance.spot else "on-demand"
        return CloudInstance(
            provider_id=_provider_id(instance),
            instance_type=instance.instance_type,
            zone=instance.zone,
            capacity_type=capacity_type,
            price=self._price(instance.instance_type, instance.zone, capacity_type),
            state=instance.state if instance.changes else "pending",
            launched_at=instance.launched_at,
            tags=dict(instance.tags),
        )


def _provider_id(instance: SimulatedInstance) -> str:
    return f"aws:///{instance.zone}/{instance.id}"
