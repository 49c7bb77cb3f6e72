"""Operates on an account's instances as users in the console, or the cloud itself, do: without a request of Journeyman."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Protocol

from journeyman_simulator.cloud_rules.service_errors import RequestGate


class OperableInstances(Protocol):
    """The instances of an account."""

    def settle(self) -> bool:
        """Make the transitions that are due; return whether one was due."""
        ...

    def due(self) -> datetime | None:
        """Return when the next transition is due."""
        ...

    def require(self, instance_id: str) -> Any:
        """Return an instance. Raises ServiceError if it does not exist."""
        ...

    def interrupt(self, instance_id: str) -> None:
        """Reclaim a Spot instance."""
        ...

    def terminate(self, instance_id: str) -> None:
        """Delete an instance."""
        ...

    def stop(self, instance_id: str) -> None:
        """Stop an instance."""
        ...

    def start(self, instance_id: str) -> None:
        """Start a stopped instance."""
        ...

    def cancel_maintenance(self, event_id: str) -> None:
        """Cancel a scheduled event of an instance."""
        ...

    def prevent_next_from_joining(self, number: int = 1) -> None:
        """Prevent the instances of the next launches from registering a node."""
        ...

    def end_next_early(self, number: int = 1, *, reason: str, after_seconds: float = 5) -> None:
        """End the instances of the next launches soon, for this reason in the cloud's words."""
        ...

    def launch_normally(self) -> None:
        """Let the instances of all further launches live."""
        ...


class InstanceOperations:
    """A base of accounts: an `Actor` of a simulated `World`, whose instances change without a request.

    Attributes:
        gate: Runs requests one at a time; operations wait for it, too.
        instances: The instances.
    """

    gate: RequestGate
    instances: OperableInstances

    def act(self) -> bool:
        """Make the transitions that are due; return whether one was due."""
        return self.instances.settle()

    def due(self) -> datetime | None:
        """Return when the next instance changes its state; None if no change is pending."""
        return self.instances.due()

    def calls(self) -> Mapping[str, int]:
        """Return the number of requests by operation."""
        return dict(self.gate.calls)

    def interrupt(self, instance_id: str) -> None:
        """Reclaim a Spot instance with about 5 minutes' notice. Raises ConfigurationError if no such Spot instance runs."""
        with self._current_instances():
            self.instances.interrupt(instance_id)

    def terminate(self, instance_id: str) -> None:
        """Delete an instance, as a user can in the console. Raises ServiceError if the cloud refuses it."""
        with self._current_instances():
            self.instances.terminate(instance_id)

    def stop(self, instance_id: str) -> None:
        """Stop an instance, as a user can in the console. Raises ServiceError if the cloud refuses it."""
        with self._current_instances():
            self.instances.stop(instance_id)

    def start(self, instance_id: str) -> None:
        """Start a stopped instance. Raises ServiceError if the cloud refuses it."""
        with self._current_instances():
            self.instances.start(instance_id)

    def set_tags(self, instance_id: str, tags: Mapping[str, str]) -> None:
        """Set tags of an instance, as a user can in the console. Raises ServiceError if it does not exist."""
        with self._current_instances():
            self.instances.require(instance_id).tags.update(tags)

    def remove_tags(self, instance_id: str, *keys: str) -> None:
        """Remove tags of an instance, as a user can in the console. Raises ServiceError if it does not exist."""
        with self._current_instances():
            for key in keys:
                self.instances.require(instance_id).tags.pop(key, None)

    def cancel_maintenance(self, event_id: str) -> None:
        """Cancel a scheduled event of an instance."""
        with self._current_instances():
            self.instances.cancel_maintenance(event_id)

    def prevent_next_from_joining(self, number: int = 1) -> None:
        """Prevent the instances of the next `number` launches from registering a node."""
        self.instances.prevent_next_from_joining(number)

    def end_next_early(self, number: int = 1, *, reason: str, after_seconds: float = 5) -> None:
        """End the instances of the next `number` launches soon, for this reason in the cloud's words."""
        self.instances.end_next_early(number, reason=reason, after_seconds=after_seconds)

    @contextmanager
    def _current_instances(self) -> Iterator[None]:
        """Make the transitions that are due, and let no request run inside the context."""
        with self.gate.lock:
            self.gate.before()
            yield
