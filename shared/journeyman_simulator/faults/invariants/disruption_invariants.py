"""Invariants of disruption: replacements start first, and consolidation lowers the price and keeps its limits.

Pauses, caps of evictions and fleet plans hold, and unhealthy nodes are replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from journeyman.core.api.conditions import parse_time
from journeyman.core.api.objects import FLEET_PLAN, Node
from journeyman_simulator.apiserver.server import Write
from journeyman_simulator.faults.invariants.checkers import InvariantChecker
from journeyman_simulator.faults.invariants.cluster_queries import (
    COMMAND_ANNOTATION,
    candidates,
    claim_named,
    claim_of,
    claims,
    commands,
    condition_is_true,
    is_ours,
    is_terminating,
    nodes,
    parsed_time,
    phase,
    pools,
    skew,
    staleness,
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


class PausedNodePoolsKeepNodes(InvariantChecker):
    """While its annotation pauses a NodePool, no command for one of its nodes is proposed or started.

    An annotation that is neither a time nor true pauses as well.
    """

    name = "paused NodePools keep their nodes"

    def __init__(self, view: ScenarioView) -> None:
        super().__init__(view)
        self._unknown_for = staleness(view.scenario)
        self._skew = skew(view.scenario)
        self._since: dict[str, tuple[str, datetime]] = {}  # by NodePool: the annotation's value, and since when
        self._started: set[str] = set()

    def check_write(self, write: Write) -> Iterator[str]:
        """Check each NodeDisruption that a run creates or starts."""
        if write.resource.kind == "NodePool":
            self._observe()
        if write.resource.kind != "NodeDisruption" or not is_ours(write):
            return
        is_start = phase(write.result) in {"Validated", "Replacing", "Draining"} and write.name not in self._started
        if is_start:
            self._started.add(write.name)
        if is_start or write.verb == "create":
            for pool in sorted({candidate["nodePool"] for candidate in write.result["spec"]["candidates"]}):
                if self._is_paused(pool):
                    done = "started" if is_start else "proposed"
                    yield f"{write.name} was {done}, and {pool} is paused: {self._since[pool][0]!r}"

    def _observe(self) -> None:
        now, found = self.view.clock.now(), dict[str, tuple[str, datetime]]()
        for pool in pools(self.view):
            name, value = pool["metadata"]["name"], pool["metadata"].get("annotations", {}).get(_PAUSE, "")
            before = self._since.get(name, ("", now))
            if value:
                found[name] = before if before[0] == value else (value, now)
        self._since = found

    def _is_paused(self, pool: str) -> bool:
        """Whether every run that is in progress has read that the NodePool is paused, and by its clock still is."""
        if pool not in self._since:
            return False
        now, (value, since) = self.view.clock.now(), self._since[pool]
        try:
            ends = parsed_time(value)
        except ValueError:
            return now - since >= self._unknown_for
        return now - since >= self._unknown_for and now + self._skew < ends


_PAUSE: Final = "journeyman.dev/pause-disruption"
_CAP: Final = "journeyman.dev/max-evictions-per-day"


class EvictionCapsHold(InvariantChecker):
    """Consolidation evicts no more pods of a workload, or from a NodePool's nodes, in a day than their annotations allow."""

    name = "caps of evictions"

    def __init__(self, view: ScenarioView) -> None:
        super().__init__(view)
        self._evicted: dict[tuple[str, str], set[str]] = {}  # UIDs of pods by workload and by NodePool

    def check_write(self, write: Write) -> Iterator[str]:
        """Count each eviction of a pod that a consolidation moves; scenarios are shorter than a day."""
        if write.resource.kind != "Pod" or write.verb != "evict" or not is_ours(write):
            return
        pod = write.result
        key = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        candidate = next((c for c in self._consolidated() if key in c.get("pods", ())), None)
        if candidate is None:
            return
        pool = next((p for p in pools(self.view) if p["metadata"]["name"] == candidate["nodePool"]), None)
        for kind, name, annotated in (
            ("workload", pod["metadata"].get("labels", {}).get("app", ""), pod),
            ("NodePool", candidate["nodePool"], pool or {"metadata": {}}),
        ):
            evicted = self._evicted.setdefault((kind, name), set())
            evicted.add(pod["metadata"]["uid"])
            cap = annotated["metadata"].get("annotations", {}).get(_CAP)
            if cap is not None and len(evicted) > int(cap):
                yield f"{len(evicted)} pods of {kind} {name} were evicted, {cap} allowed"

    def _consolidated(self) -> Iterator[Mapping[str, Any]]:
        for command in commands(self.view):
            if command["spec"]["reason"] == "Underutilized" and phase(command) in {"Draining", "Succeeded"}:
                yield from command["spec"]["candidates"]


class FleetPlansEnd(InvariantChecker):
    """A node that a fleet plan launches is no candidate of its later moves; of the plans, one runs at rest, and only with moves left."""

    name = "fleet plans move pods once and end"

    def check_write(self, write: Write) -> Iterator[str]:
        """Check each move that is proposed."""
        if write.resource.kind != "NodeDisruption" or write.verb != "create":
            return
        if write.result["spec"]["method"] != "fleet-plan":
            return
        running = [plan for plan in self._plans() if _is_running(plan)]
        for name in candidates(write.result):
            claim = claim_named(self.view, name)
            for plan in running:
                moves = {move["nodeDisruption"] for move in (plan.get("status") or {}).get("moves", ())}
                if claim is not None and claim.metadata.annotations.get(COMMAND_ANNOTATION) in moves:
                    yield f"{write.name} has NodeClaim {name}, which FleetPlan {plan['metadata']['name']} launched"

    def check_at_rest(self) -> Iterator[str]:
        """Check plans that run; one without moves may be new, since the next run records that it ended."""
        running = [
            plan for plan in self._plans() if _is_running(plan) and (plan["spec"]["moves"] or not self._is_new(plan))
        ]
        existing = {claim.metadata.name for claim in claims(self.view)}
        if len(running) > 1:
            yield f"{len(running)} FleetPlans run"
        for plan in running:
            if not existing.intersection(name for move in plan["spec"]["moves"] for name in move["nodeClaims"]):
                yield f"FleetPlan {plan['metadata']['name']} runs, and none of its nodes exists"

    def _is_new(self, plan: Mapping[str, Any]) -> bool:
        created_at = parse_time(plan["spec"]["createdAt"])
        return created_at is not None and self.view.clock.now() - created_at <= TWO_SWEEPS

    def _plans(self) -> tuple[Mapping[str, Any], ...]:
        return self.view.server.stored(FLEET_PLAN)


def _is_running(plan: Mapping[str, Any]) -> bool:
    return phase(plan) in {"", "Running"}


TWO_SWEEPS: Final = timedelta(minutes=4)
"""Two periods in which the sweep looks at all nodes, of which the first run may fail."""


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
            if unhealthy_for > self._tolerated[condition, status] + TWO_SWEEPS + self._skew and not self._is_deleted(
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
