"""Invariants of progress: unfinished work is requeued, nothing is stuck at rest, and runs raise only expected errors."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

import msgspec

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
from journeyman_simulator.faults.scenario_view import RunError, ScenarioView

LONGEST_SWEEP: Final = timedelta(minutes=4)
"""The sweep finds unfinished work within so long: a minute, and a failed run or two."""
LONGEST_WITHOUT_CLAIMS: Final = timedelta(minutes=12)
"""The sweep reads a cluster without NodeClaims every ten minutes."""
MOST_RECEIVES: Final = 4
"""template.yaml's `maxReceiveCount`: a message is received so often before it goes to the dead-letter queue."""
_ANSWERED: Final = frozenset({FaultKind.STALE, FaultKind.LAG})  # faults that fail no run
_UNENDED: Final = frozenset({"", "Proposed", "Executing"})


class UnfinishedWorkHasARequeue(InvariantChecker):
    """Unfinished work always has a message to its step or a run in progress; with a sweep, within minutes."""

    name = "unfinished work has a requeue"

    def __init__(self, view: ScenarioView) -> None:
        super().__init__(view)
        self._since: dict[tuple[Step, str], datetime] = {}
        self._had_claims = False

    def check_every_minute(self) -> Iterator[str]:
        """Check unfinished NodeClaims, Nodes and NodeDisruptions."""
        now = self.view.clock.now()
        expected = {waiting.step for waiting in self.view.waiting()}
        expected |= {Step(run.partition("#")[0]) for run in self.view.busy()}
        alone = {(step, what) for step, what in self._unfinished() if step not in expected}
        known = self._since if bool(claims(self.view)) == self._had_claims else {}  # the sweep's interval has changed
        self._had_claims = bool(claims(self.view))
        self._since = {thing: known.get(thing, now) for thing in alone}
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
            if node.metadata.deletion_timestamp is not None:
                yield Step.TERMINATE, f"Node {node.metadata.name} is terminating"
        for command in commands(self.view):
            if phase(command) in _UNENDED:
                yield Step.CONSOLIDATE, f"NodeDisruption {command['metadata']['name']} has not ended"


class NothingStuck(InvariantChecker):
    """At rest no node is marked for a disruption without a command, and no message is in a dead-letter queue.

    A message may go there if each run that received it failed because of faults. Where clocks jump, a crashed run's Lease may be
    dated minutes ahead; messages that wait for it are given up, and the sweep does their work.
    """

    name = "nothing is stuck"

    def check_at_rest(self) -> Iterator[str]:
        """Check taints, DisruptionReasons and dead-letter queues."""
        taken = {name for c in commands(self.view) if phase(c) in _UNENDED for name in candidates(c)}
        for claim in claims(self.view):
            name = claim.metadata.name
            if name not in taken and has_true_condition(claim.status.conditions, "DisruptionReason"):
                yield f"NodeClaim {name} carries a DisruptionReason, without a command"
        for node in nodes(self.view):
            if is_tainted_for_disruption(node) and node.metadata.deletion_timestamp is None:
                owner = claim_of(self.view, node)
                if owner is None or owner.metadata.name not in taken:
                    yield f"Node {node.metadata.name} is tainted, and is not replaced"
        if not skew(self.view.scenario):
            for letter in self.view.dead_letters():
                if _max_failed_runs(self.view.scenario, letter) < MOST_RECEIVES:
                    yield f"a message is in a dead-letter queue: {letter}"


def _max_failed_runs(scenario: FaultScenario, letter: str) -> int:
    """Return how many faults may fail runs of the step that the message is for."""
    step = msgspec.json.decode(letter).get("step", Step.INTERRUPT.value)
    faults = (fault for fault in scenario.faults if isinstance(fault, CallFault) and fault.kind not in _ANSWERED)
    return sum(fault.site.startswith(f"{step}: ") for fault in faults)


class OnlyExpectedErrors(InvariantChecker):
    """Runs raise no errors but those of `journeyman.errors`, and verification refuses no plan."""

    name = "only expected errors"

    def check_error(self, error: RunError) -> Iterator[str]:
        """Check each error that a run reports."""
        if not error.expected or error.error == "InvariantError":
            last = error.stack.strip().rpartition("\n")[2]
            yield f"{error.run}: {error.error}: {error.message} {last}".rstrip()
