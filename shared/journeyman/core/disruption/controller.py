"""One pass of disruption: what may go now, in which order the methods look, and what a proposal must still satisfy.

Restates: karpenter pkg/controllers/disruption/controller.go `Reconcile`, `disrupt`.
Differs: a pass makes one proposal at most; it is validated by a later pass (`revalidate`), not after a wait in this one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Final

from msgspec import Struct, field

from journeyman.core.api.node_disruption import Method, NodeDisruption
from journeyman.core.api.objects import NODEPOOL
from journeyman.core.catalogue import Catalogue
from journeyman.core.disruption import explain
from journeyman.core.disruption.budgets import Allowance, allowances
from journeyman.core.disruption.candidates import Found, find_candidates
from journeyman.core.disruption.consolidatable import Consolidatability
from journeyman.core.disruption.damping import Damper
from journeyman.core.disruption.emptiness import delete_empty
from journeyman.core.disruption.in_flight import marked_for_deletion, under_way
from journeyman.core.disruption.rebalance import METHOD as REBALANCE
from journeyman.core.disruption.rebalance import rebalance, to_leave, validate_rebalance
from journeyman.core.disruption.regrets import new_regrets
from journeyman.core.disruption.simulation import Simulation
from journeyman.core.disruption.single_node_consolidation import barred, consider
from journeyman.core.disruption.types import Command, DisruptionReason, NodePoolName
from journeyman.core.disruption.validation import validate
from journeyman.core.plan import Event, ObjectRef, Plan
from journeyman.core.scheduling.options import Options
from journeyman.core.scheduling.result_cache import Question
from journeyman.core.scheduling.results import Results
from journeyman.core.state import Snapshot

BLOCKED: Final = "DisruptionBlocked"
"""The event on nodes, and NodePools, that might be disrupted but for something that passes."""


class Considered(Struct, frozen=True, kw_only=True):
    """One look at one method or node: the command it came to (perhaps without candidates), and what to tell."""

    method: Method
    command: Command
    told: Plan = field(default_factory=Plan)


class Pass(Struct, frozen=True, kw_only=True, dict=True):
    """The cluster at one moment, as all methods of a pass see it.

    `spot_to_spot` is the feature gate, `options` are the scheduler's, whose plans they all rest on. `known` are
    its answers about this very cluster, to which more are added.
    """

    snapshot: Snapshot
    catalogue: Catalogue
    judged: Consolidatability
    spot_to_spot: bool = False
    options: Options = field(default_factory=Options)
    known: dict[Question, Results] = field(default_factory=dict)

    def look(self) -> Iterator[Considered]:
        """Rebalance, emptiness, then single-node consolidation node by node: take the first command that has candidates.

        The caller may stop between any two when its time is up.
        """
        yield from self._rebalance()
        empty, _ = delete_empty(self._found.candidates, self._remaining(DisruptionReason.EMPTY))
        told = Plan(events=self._found.events) + self._budgets_told(DisruptionReason.EMPTY)
        yield Considered(method="emptiness", command=empty, told=told)
        yield from self._single_node()

    def revalidate(self, disruption: NodeDisruption) -> Command:
        """The command to carry out for a proposal now; without candidates if it no longer holds."""
        reason = DisruptionReason(disruption.spec.reason)
        candidates = self._find(under_way(self.snapshot) - frozenset(disruption.claims)).candidates
        remaining = self._remaining(reason)
        if disruption.spec.method == REBALANCE:
            return validate_rebalance(disruption, self.simulation, candidates, remaining)
        command = validate(disruption, self.simulation, candidates, remaining, spot_to_spot=self.spot_to_spot)
        return self.damper.judged(command) if reason is DisruptionReason.UNDERUTILIZED else command

    @cached_property
    def damper(self) -> Damper:
        """What consolidation has to wait for, as it was in vain before."""
        return Damper.of(self.snapshot, new_regrets(self.snapshot))

    @cached_property
    def simulation(self) -> Simulation:
        """Where commands try what would happen."""
        return Simulation(
            snapshot=self.snapshot,
            catalogue=self.catalogue,
            marked=marked_for_deletion(self.snapshot),
            waiting=self.judged.waiting,
            options=self.options,
            known=self.known,
        )

    def _rebalance(self) -> Iterator[Considered]:
        waiting = to_leave(self._found.candidates, self.snapshot)
        if not waiting:
            return
        reason = DisruptionReason.INTERRUPTED
        told = Plan(observations=(explain.eligible(waiting, reason.value),)) + self._budgets_told(reason)
        yield Considered(method=REBALANCE, command=Command(reason=reason), told=told)
        for candidates, command in rebalance(self.simulation, waiting, self._remaining(reason)):
            refused = [e for c in candidates for e in explain.about(c, BLOCKED, command.why_not)]
            yield Considered(
                method=REBALANCE, command=command, told=Plan(events=tuple(refused) if command.why_not else ())
            )

    def _single_node(self) -> Iterator[Considered]:
        reason = DisruptionReason.UNDERUTILIZED
        quiet = [c for c in self._found.candidates if c.consolidatable and not c.is_empty]
        held = {c.nodeclaim: why for c in quiet if (why := self.damper.why_not(c))}
        events = [
            event
            for candidate in quiet
            if (why := barred(candidate, self.snapshot))
            for event in explain.about(candidate, "Unconsolidatable", why)
        ]
        events += [e for c in quiet if c.nodeclaim in held for e in explain.about(c, BLOCKED, held[c.nodeclaim])]
        told = Plan(events=tuple(events), observations=(explain.eligible(quiet, reason.value),))
        yield Considered(method="single-node", command=Command(reason=reason), told=told + self._budgets_told(reason))
        free, remaining = [c for c in quiet if c.nodeclaim not in held], self._remaining(reason)
        for candidate, found in consider(self.simulation, free, remaining, spot_to_spot=self.spot_to_spot):
            command = self.damper.judged(found)
            why = BLOCKED if found.candidates else "Unconsolidatable"
            refused = explain.about(candidate, why, command.why_not) if command.why_not else ()
            yield Considered(method="single-node", command=command, told=Plan(events=refused))

    @cached_property
    def _found(self) -> Found:
        return self._find(under_way(self.snapshot))

    def _find(self, busy: frozenset[str]) -> Found:
        return find_candidates(
            self.snapshot,
            self.catalogue,
            consolidatable=self.judged.claims,
            under_way=busy,
            keeping_room=self.simulation.keeping_room,
        )

    def _allowances(self, reason: DisruptionReason) -> Mapping[NodePoolName, Allowance]:
        return allowances(self.snapshot, reason, self.simulation.marked)

    def _remaining(self, reason: DisruptionReason) -> Mapping[NodePoolName, int]:
        return {pool: allowance.remaining for pool, allowance in self._allowances(reason).items()}

    def _budgets_told(self, reason: DisruptionReason) -> Plan:
        """The gauges of every pool, and an event on those whose budgets allow nothing at all."""
        found = self._allowances(reason)
        pools = self.snapshot.node_pools_by_name
        blocked = [pool for pool, allowance in found.items() if allowance.total and not allowance.allowed]
        events = (
            Event(
                ref=ObjectRef(resource=NODEPOOL, name=pool, uid=pools[pool].metadata.uid),
                reason=BLOCKED,
                message=f"No allowed disruptions for disruption reason {reason.value} due to blocking budget",
                key=reason.value,
            )
            for pool in sorted(blocked)
        )
        return Plan(events=tuple(events), observations=explain.budgets(found, reason.value))
