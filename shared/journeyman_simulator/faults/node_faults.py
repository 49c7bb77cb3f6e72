"""Injects faults of nodes: machines that never join, stopped kubelets, and conditions that an agent reports."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from msgspec.structs import replace

from journeyman.core.api.objects import NODE, Resource
from journeyman.errors import NotFoundError
from journeyman.ports import Clock
from journeyman_simulator.apiserver import ApiServer, object_metadata
from journeyman_simulator.kubelet import Machine, MachineSource

AGENT = "node-problem-agent"
_RAW_NODE: Resource[dict[str, Any]] = Resource(
    group=NODE.group, version=NODE.version, kind=NODE.kind, plural=NODE.plural, namespaced=False, type=dict
)


class NodeFaults:
    """A `MachineSource` that hides machines from the kubelets, and an agent that reports conditions of nodes."""

    def __init__(
        self, machines: MachineSource, server: ApiServer, clock: Clock, never_join: Callable[[], Collection[str]]
    ) -> None:
        """Create the faults; `never_join` returns the provider ids of machines that never register a node."""
        self._machines = machines
        self._server = server.acting_as(AGENT)
        self._clock = clock
        self._never_join = never_join
        self._stopped: set[str] = set()
        self._reported: dict[str, dict[str, str]] = {}

    def machines(self) -> tuple[Machine, ...]:
        """Return the machines; those with a stopped kubelet appear as not running."""
        hidden = self._stopped.union(self._never_join())
        return tuple(
            replace(machine, running_since=None) if machine.provider_id in hidden else machine
            for machine in self._machines.machines()
        )

    def stop_kubelet(self, provider_id: str) -> None:
        """Stop a machine's kubelet."""
        self._stopped.add(provider_id)

    def start_kubelet(self, provider_id: str) -> None:
        """Start a machine's kubelet again."""
        self._stopped.discard(provider_id)

    def set_condition(self, node: str, condition: str, status: str) -> None:
        """Make the agent report a condition of a node."""
        self._reported.setdefault(node, {})[condition] = status
        self._write(node, condition, status)

    def clear_condition(self, node: str, condition: str) -> None:
        """Remove a reported condition."""
        if self._reported.get(node, {}).pop(condition, None) is not None:
            self._write(node, condition, "")

    def restore(self) -> None:
        """Start all kubelets and remove all reported conditions."""
        self._stopped.clear()
        for node, conditions in sorted(self._reported.items()):
            for condition in sorted(conditions):
                self.clear_condition(node, condition)

    def _write(self, node: str, condition: str, status: str) -> None:
        """Replace the condition in the node's status; an empty `status` removes it."""
        try:
            found = self._server.get(_RAW_NODE, node)
        except NotFoundError:
            return
        others = [c for c in found["status"].get("conditions", ()) if c["type"] != condition]
        since = object_metadata.text(self._clock.now())
        entry = {"type": condition, "status": status, "reason": "Reported", "lastTransitionTime": since}
        conditions = [*others, entry] if status else others
        self._server.patch(NODE, node, {"status": {"conditions": conditions}}, subresource="status")
