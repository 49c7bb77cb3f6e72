"""Invariants of progress: unfinished work is requeued, nothing is stuck at rest, and runs raise only expected errors."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

import msgspec

from journeyman.core.api.labels import ADOPTED
from journeyman.core.api.objects import Node
from journeyman.core.plan import Step
from journeyman_simulator.faults.fault_scenario import CallFault, FaultKind, FaultScenario
from journeyman_simulator.faults.invariants.checkers import InvariantChecker
from journeyman_simulator.faults.invariants.cluster_queries import (
    candidates,
    claim_of,
    claims,
    commands,
    has_true_condition,
    is_tainted_for_disruption,
    is_terminating,
    nodes,
    phase,
    skew,
)
from journeyman_simulator.faults.scenario_clouds import CLOUDS
from journeyman_simulator.faults.scenario_view import RunError, ScenarioView

LONGEST_SWEEP: Final = timedelta(minutes=4)
"""The maximum time until the sweep finds unfinished work: a minute, and a minute for each of up to three failed runs."""
LONGEST_WITHOUT_CLAIMS: Final = timedelta(minutes=12)
"""The same for a cluster without NodeClaims, which the sweep reads every ten minutes."""
_FAULTS_WITHOUT_ERROR: Final = frozenset({FaultKind.STALE, FaultKind.LAG})  # faults that do not make a run fail
_ACTIVE_PHASES: Final = frozenset({"", "Proposed", "Validated", "Replacing", "Draining"})


class UnfinishedWorkHasARequeue(InvariantChecker):
    """Unfinished work has a message to its step or a run in progress; where a sweep runs, after at most some minutes."""

    name = "unfinished work has a requeue"

    def __init__(self, view: ScenarioView) -> None:
        super().__init__(view)
        self._since: dict[tuple[Step, str], datetime] = {}
        self._had_claims = False

    def check_every_minute(self) -> Iterator[str]:
        """Check unfinished NodeClaims, Nodes and NodeDisruptions."""
        now = self.view.clock.now()
        expected = {message.step for message in self.view.pending_messages()}
        expected |= {Step(run.partition("#")[0]) for run in self.view.active_runs()}
        without_message = {(step, what) for step, what in self._unfinished() if step not in expected}
        known = self._since if bool(claims(self.view)) == self._had_claims else {}  # the sweep's interval has changed
        self._had_claims = bool(claims(self.view))
        self._since = {work: known.get(work, now) for work in without_message}
        longest = self._longest()
        for (step, what), since in sorted(self._since.items()):
            if now - since > longest:
                yield f"{what}, without a message to {step.value} since {since:%H:%M:%S}"

    def _longest(self) -> timedelta:
        if not self.view.scenario.setup.sweep:
            return timedelta()
        return LONGEST_SWEEP if claims(self.view) else LONGEST_WITHOUT_CLAIMS

    def _unfinished(self) -> Iterator[tuple[Step, str]]:
        for claim in claims(self.view):
            if is_terminating(claim):
                yield Step.TERMINATE, f"NodeClaim {claim.metadata.name} is terminating"
            elif not has_true_condition(claim.status.conditions, "Initialized"):
                yield Step.PROVISION, f"NodeClaim {claim.metadata.name} is not initialized"
        for node in nodes(self.view):
            if node.metadata.deletion_timestamp is not None and not self._is_held(node):
                yield Step.TERMINATE, f"Node {node.metadata.name} is terminating"
        for command in commands(self.view):
            if phase(command) in _ACTIVE_PHASES:
                yield Step.CONSOLIDATE, f"NodeDisruption {command['metadata']['name']} has not ended"

    def _is_held(self, node: Node) -> bool:
        """Whether Kubernetes deleted the Node with its NodeClaim, which was created again or may be; a command may mark it."""
        owner = claim_of(self.view, node)
        if owner is None:
            return not is_tainted_for_disruption(node)
        return ADOPTED in owner.metadata.annotations and not is_terminating(owner)


class NothingStuck(InvariantChecker):
    """At rest, no node is marked for disruption without a command, and no message is in a dead-letter queue.

    SQS may move a message there if faults made each run that received it fail. Where clocks jump, the Lease of a crashed run
    may be dated minutes ahead; SQS moves the messages that wait for it there, and the sweep runs their steps. Where Lambda stops
    chains that the stack allows, it moves their last message there.
    """

    name = "nothing is stuck"

    def check_at_rest(self) -> Iterator[str]:
        """Check taints, DisruptionReasons and dead-letter queues."""
        disrupted = {name for c in commands(self.view) if phase(c) in _ACTIVE_PHASES for name in candidates(c)}
        for claim in claims(self.view):
            name = claim.metadata.name
            if name not in disrupted and has_true_condition(claim.status.conditions, "DisruptionReason"):
                yield f"NodeClaim {name} carries a DisruptionReason, without a command"
        for node in nodes(self.view):
            if is_tainted_for_disruption(node) and node.metadata.deletion_timestamp is None:
                owner = claim_of(self.view, node)
                if owner is None or owner.metadata.name not in disrupted:
                    yield f"Node {node.metadata.name} is tainted, and is not replaced"
        if not skew(self.view.scenario) and self.view.scenario.setup.recursive_loops != "Stopped":
            most = CLOUDS[self.view.scenario.setup.cloud].max_receives
            for dead_letter in self.view.dead_letters():
                if _max_failed_runs(self.view.scenario, dead_letter) < most:
                    yield f"a message is in a dead-letter queue: {dead_letter}"


def _max_failed_runs(scenario: FaultScenario, dead_letter: str) -> int:
    """Return the number of faults that may make a run of the message's step, or of the function that waits with it, fail."""
    body = msgspec.json.decode(dead_letter)
    step = "delay" if body.get("source") == "delay" else body.get("step", Step.INTERRUPT.value)
    faults = (
        fault for fault in scenario.faults if isinstance(fault, CallFault) and fault.kind not in _FAULTS_WITHOUT_ERROR
    )
    return sum(fault.site.startswith(f"{step}: ") for fault in faults)


class OnlyExpectedErrors(InvariantChecker):
    """Runs raise only errors of `journeyman.errors`, and verification rejects no plan."""

    name = "only expected errors"

    def check_error(self, error: RunError) -> Iterator[str]:
        """Check each error that a run reports."""
        if not error.expected or error.error == "InvariantError":
            last = error.stack.strip().rpartition("\n")[2]
            yield f"{error.run}: {error.error}: {error.message} {last}".rstrip()
