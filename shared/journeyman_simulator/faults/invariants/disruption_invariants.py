"""Invariants of disruption: replacements start first, consolidation lowers the price, unhealthy nodes are replaced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from journeyman.core.api.objects import Node
from journeyman_simulator.apiserver.server import Write
from journeyman_simulator.faults.invariants.checkers import InvariantChecker
from journeyman_simulator.faults.invariants.cluster_queries import (
    COMMAND_ANNOTATION,
    candidates,
    claim_named,
    claim_of,
    commands,
    condition_is_true,
    is_ours,
    is_terminating,
    nodes,
    phase,
    skew,
)
from journeyman_simulator.faults.scenario_clouds import CLOUDS, ConditionStatus, NodeCondition
from journeyman_simulator.faults.scenario_view import CloudEvent, CloudInstance, ScenarioView


class ReplacementsInitializedFirst(InvariantChecker):
    """A node is disrupted only after all replacements of its command are initialized.

    A replacement that is deleted before its launch does not count.
    """

    name = "replacements are initialized first"

    def __init__(self, view: ScenarioView) -> None:
        super().__init__(view)
        self._initialized: set[str] = set()

    def check_write(self, write: Write) -> Iterator[str]:
        """Check each NodeClaim that the consolidate step deletes."""
        if write.resource.kind != "NodeClaim":
            return
        if condition_is_true(write.result, "Initialized"):
            self._initialized.add(write.name)
        if write.verb == "delete" and is_ours(write, "consolidate") and condition_is_true(write.result, "Launched"):
            yield from self._check(write.name)

    def _check(self, name: str) -> Iterator[str]:
        draining = [c for c in commands(self.view) if name in candidates(c) and phase(c) == "Draining"]
        if not draining:
            yield f"NodeClaim {name} was deleted, and no draining command has it as candidate"
        for command in draining:
            replacements = [r["name"] for r in command["spec"].get("replacements", ())]
            if missing := [r for r in replacements if r not in self._initialized]:
                command_name = command["metadata"]["name"]
                yield f"NodeClaim {name} was deleted before {', '.join(missing)} of {command_name} was initialized"


class ConsolidationLowersPrice(InvariantChecker):
    """The replacements of a consolidation cost less than its candidates."""

    name = "consolidation lowers the price"

    def check_cloud_event(self, event: CloudEvent) -> Iterator[str]:
        """Compare the prices when a replacement is launched."""
        claim = claim_named(self.view, event.instance.claim)
        if event.kind != "launched" or claim is None:
            return
        name = claim.metadata.annotations.get(COMMAND_ANNOTATION, "")
        for command in commands(self.view):
            if command["metadata"]["name"] == name and command["spec"]["reason"] == "Underutilized":
                yield from self._check(command)

    def _check(self, command: Mapping[str, Any]) -> Iterator[str]:
        by_claim: dict[str, CloudInstance] = {i.claim: i for i in self.view.instances()}
        new = [by_claim.get(r["name"]) for r in command["spec"].get("replacements", ())]
        old = [by_claim.get(name) for name in candidates(command)]
        before = sum(i.price for i in old if i is not None)
        after = sum(i.price for i in new if i is not None)
        if None not in old and after >= before:
            yield f"{command['metadata']['name']} replaces {before:.4f} an hour by {after:.4f}"


REPAIR_DELAY: Final = timedelta(minutes=4)
"""Two periods of the sweep, of which the first run may fail."""


class UnhealthyNodesReplaced(InvariantChecker):
    """With node repair, a node that is unhealthy for longer than its toleration is replaced, if all others are healthy."""

    name = "unhealthy nodes are replaced"

    def __init__(self, view: ScenarioView) -> None:
        super().__init__(view)
        self._skew = skew(view.scenario)
        self._tolerated = CLOUDS[view.scenario.setup.cloud].tolerated
        self._since: dict[tuple[str, str, ConditionStatus], datetime] = {}

    def check_write(self, write: Write) -> Iterator[str]:
        """Record when nodes become unhealthy."""
        if write.resource.kind == "Node":
            self._observe()
        yield from ()

    def check_every_minute(self) -> Iterator[str]:
        """Check a single unhealthy node; several may be an outage of the cluster, during which no node is repaired."""
        self._observe()
        if not self.view.scenario.setup.node_repair or len({name for name, _, _ in self._since}) != 1:
            return
        for (name, condition, status), since in sorted(self._since.items()):
            unhealthy_for = self.view.clock.now() - since
            if unhealthy_for > self._tolerated[condition, status] + REPAIR_DELAY + self._skew and not self._is_deleted(
                name
            ):
                yield f"Node {name} has been {condition}={status} since {since:%H:%M:%S}, and is not replaced"

    def _observe(self) -> None:
        now = self.view.clock.now()
        unhealthy = {(n.metadata.name, c, s) for n in nodes(self.view) for c, s in self._unhealthy_conditions(n)}
        self._since = {key: self._since.get(key, now) for key in unhealthy}

    def _is_deleted(self, name: str) -> bool:
        node = next(node for node in nodes(self.view) if node.metadata.name == name)
        claim = claim_of(self.view, node)
        return claim is None or is_terminating(claim) or node.metadata.deletion_timestamp is not None

    def _unhealthy_conditions(self, node: Node) -> list[NodeCondition]:
        reported = {(condition.type, condition.status) for condition in node.status.conditions}
        return [key for key in self._tolerated if key in reported]
