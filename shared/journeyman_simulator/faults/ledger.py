"""Every instance that ever was, and who did what to it: kept beside the account, which forgets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from journeyman_simulator.account.instances import Instance, InstanceEvent
from journeyman_simulator.faults.injector import current_step
from journeyman_simulator.faults.scene import CLOUD, RUNS, CloudEvent, CloudInstance

Price = Callable[[str, str, str], float]
"""Of a type in a zone by capacity type, per hour."""


class Ledger:
    """Observes the account's instances, and tells the judges.

    Args:
        price: What an instance costs.
        tell: Takes events in order.
    """

    def __init__(self, price: Price, tell: Callable[[CloudEvent], None]) -> None:
        self._price = price
        self._tell = tell
        self._by = CLOUD
        self._known: dict[str, Instance] = {}

    @contextmanager
    def hand_of(self, who: str) -> Iterator[None]:
        """What happens inside is that person's doing."""
        before, self._by = self._by, who
        try:
            yield
        finally:
            self._by = before

    def note(self, event: InstanceEvent) -> None:
        """An observer of the account."""
        self._known[event.instance.id] = event.instance
        kind: Literal["launched", "terminate", "state"] = "state"
        if event.what == "launched":
            kind = "launched"
        elif event.what == "asked-to-end":
            kind = "terminate"
        step = current_step()
        by = f"{RUNS}{step}" if step else self._by
        self._tell(CloudEvent(at=event.at, kind=kind, instance=self._described(event.instance), by=by))

    def instances(self) -> tuple[CloudInstance, ...]:
        """All, by launch."""
        return tuple(self._described(instance) for instance in self._known.values())

    def never_joining(self) -> tuple[str, ...]:
        """Provider ids of those that never become nodes."""
        return tuple(_provider_id(instance) for instance in self._known.values() if not instance.joins)

    def _described(self, instance: Instance) -> CloudInstance:
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


def _provider_id(instance: Instance) -> str:
    return f"aws:///{instance.zone}/{instance.id}"
