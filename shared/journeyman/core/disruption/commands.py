"""Disruption commands, the NodeDisruptions that store them, and the nodes in unfinished commands.

A command is written to the cluster as a NodeDisruption before any node is touched. The DisruptionReason condition on a
NodeClaim says that its command has started. Candidates that one object cannot hold are left to further commands (`pages`).

Restates: karpenter pkg/controllers/disruption/types.go `Command`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from enum import Enum
from hashlib import blake2b
from typing import Final

import msgspec
from msgspec import Struct

from journeyman.core.api.churn_ledger import EvictedWorkload
from journeyman.core.api.conditions import DISRUPTION_REASON
from journeyman.core.api.node_disruption import (
    MAX_WORKLOADS_LISTED,
    DisruptionCandidate,
    DisruptionReplacement,
    Method,
    NodeDisruption,
    NodeDisruptionSpec,
    price_text,
)
from journeyman.core.api.objects import NODE_DISRUPTION, NodeClaim, ObjectMeta, Pod, is_true
from journeyman.core.api.wording import counted, verb_of
from journeyman.core.disruption.candidates import Candidate, DisruptionReason
from journeyman.core.disruption.disruption_events import consolidation_candidate
from journeyman.core.disruption.disruption_metrics import consolidation_type
from journeyman.core.plan import Chain, CreateObject, Plan, Requeue, Step
from journeyman.core.scheduling.nodeclaim_templates import claim_name
from journeyman.core.scheduling.results import PlannedClaim, Results
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.pod_workload import MovedWorkload, WorkloadKey

PROPOSED: Final = "Proposed"
VALIDATED: Final = "Validated"
REPLACING: Final = "Replacing"
DRAINING: Final = "Draining"
NEVER_STARTED: Final = frozenset({"Rejected", "Expired"})
MAX_PODS_LISTED: Final = 1000  # per candidate, as the CRD allows
MAX_CANDIDATES: Final = 100  # of one command, as in Karpenter's multi-node consolidation
MAX_CANDIDATE_BYTES: Final = 900_000
"""Size of all candidates as JSON: etcd takes objects of 1.5 MiB, status included."""


class Decision(str, Enum):
    """What a command does to its candidates."""

    NO_OP = "no-op"
    DELETE = "delete"
    REPLACE = "replace"


class NoOpCause(str, Enum):
    """Why a consolidation is a no-op, where a user can change that by a setting; `Command.why_not` is the text for people."""

    SPOT_TO_SPOT_DISABLED = "SpotToSpotDisabled"
    TOO_FEW_SPOT_TYPES = "TooFewSpotTypes"
    MIN_VALUES = "MinValues"


class SimulationResult(Struct, frozen=True, kw_only=True):
    """The result of scheduling `pods` without the nodes `excluded_nodes`.

    `errors` (by pod key) forbid the disruption. Pods that were pending before the disruption have none.
    """

    pods: tuple[Pod, ...]
    excluded_nodes: frozenset[str]
    results: Results
    errors: Mapping[str, str]


class Command(Struct, frozen=True, kw_only=True):
    """Launch the replacements, then delete the candidates. Without candidates, it is a no-op.

    `simulation_result` is what the command is based on, None if no pods must be rescheduled. `why_not` explains a no-op, and
    `cause` is its cause if that is one of `NoOpCause`.
    """

    reason: DisruptionReason
    candidates: tuple[Candidate, ...] = ()
    replacements: tuple[PlannedClaim, ...] = ()
    simulation_result: SimulationResult | None = None
    why_not: str = ""
    cause: NoOpCause | None = None

    @property
    def decision(self) -> Decision:
        """Delete without replacements, replace with them."""
        if not self.candidates:
            return Decision.NO_OP
        return Decision.REPLACE if self.replacements else Decision.DELETE

    @property
    def saving(self) -> float:
        """Price per hour that it saves; a replacement counts at its cheapest offering."""
        return sum(c.price for c in self.candidates) - sum(r.price for r in self.replacements)


# -- from a command to its NodeDisruption -----------------------------------------------------------------------------


def to_node_disruption(command: Command, method: Method, now: datetime) -> NodeDisruption:
    """Return the NodeDisruption of a command. Its name is derived from the reason, the candidates and the time."""
    seed = " ".join((command.reason.value, *(c.nodeclaim_uid for c in command.candidates), now.isoformat()))
    digest = blake2b(seed.encode(), digest_size=5).hexdigest()
    name = f"{command.reason.value.lower()}-{digest}"
    spec = NodeDisruptionSpec(
        reason=command.reason.value,
        decision="replace" if command.decision is Decision.REPLACE else "delete",
        method=method,
        candidates=tuple(_to_disruption_candidate(c) for c in command.candidates),
        replacements=tuple(
            DisruptionReplacement(
                name=replacement_name(name, claim.node_pool, index),
                instance_type=claim.offering.instance_type,
                instance_types=claim.instance_types,
                zone=claim.offering.zone,
                capacity_type=claim.offering.capacity_type,
                price=price_text(claim.price),
            )
            for index, claim in enumerate(command.replacements)
        ),
        workloads=_evicted_workloads(command.candidates),
        saving_per_hour=price_text(command.saving),
        created_at=now,
    )
    disruption = NodeDisruption(metadata=ObjectMeta(name=name), spec=spec)
    return disruption.model_copy(update={"spec": spec.model_copy(update={"explanation": summary(disruption)})})


def pages(candidates: Iterable[Candidate]) -> Iterator[tuple[Candidate, ...]]:
    """Yield the candidates in order, in groups that one NodeDisruption can hold; at least one candidate in each."""
    page: list[Candidate] = []
    size = 0
    for candidate in candidates:
        added = len(msgspec.json.encode(_to_disruption_candidate(candidate).to_wire()))
        if page and (len(page) == MAX_CANDIDATES or size + added > MAX_CANDIDATE_BYTES):
            yield tuple(page)
            page, size = [], 0
        page.append(candidate)
        size += added
    if page:
        yield tuple(page)


def replacement_name(disruption: str, node_pool: str, index: int) -> str:
    """Return the name of a replacement NodeClaim, derived from the NodeDisruption's name."""
    return claim_name(node_pool, disruption, [str(index)])


def summary(disruption: NodeDisruption) -> str:
    """Return the command in one line, for people."""
    spec = disruption.spec
    nodes = ", ".join(f"{c.node} ({c.instance_type}/{c.capacity_type})" for c in spec.candidates[:5])
    more = f" and {len(spec.candidates) - 5} more" if len(spec.candidates) > 5 else ""
    by_offering = Counter(f"{r.instance_type}/{r.capacity_type}" for r in spec.replacements if r.instance_type)
    replacements = ", ".join(
        f"{n} of {name} or similar" if n > 1 else f"{name} or similar" for name, n in sorted(by_offering.items())
    )
    if spec.replacements and not by_offering:
        replacements = "a node of the NodePool's template"  # of a static NodePool, whose launch chooses the type
    by = f" by {replacements}" if replacements else ""
    return f"{spec.decision} {nodes}{more}{by}, saving {spec.saving:.4f}/h ({spec.reason})"


def proposal_plan(disruption: NodeDisruption, command: Command, validate_at: datetime) -> Plan:
    """Return the plan that creates the NodeDisruption and requeues the step at `validate_at`."""
    explanation = disruption.spec.explanation
    create = CreateObject(resource=NODE_DISRUPTION, body=disruption.to_wire(), why=explanation)
    requeue = Requeue(step=Step.CONSOLIDATE, at=validate_at, reason=f"validate {disruption.metadata.name}")
    events = tuple(
        event
        for candidate in command.candidates
        if consolidation_type(disruption)
        for event in consolidation_candidate(candidate, disruption)
    )
    subject = f"NodeDisruption {disruption.metadata.name}"
    # without the margin, a search that needs all of a run's time would be repeated by each run, and never propose anything
    chain = Chain(subject=subject, actions=(create, requeue), events=events, in_margin=True)
    return Plan(chains=(chain,), notes=(f"proposed: {explanation}",))


def difference(disruption: NodeDisruption, command: Command) -> str:
    """Return how a command that was computed later differs from the proposal; empty if it does not.

    Its simulation must still have all proposed instance types, whatever they cost now.

    Restates: karpenter pkg/controllers/disruption/validation.go `validateCommand`.
    """
    if not command.candidates:
        return command.why_not
    if command.decision.value != disruption.spec.decision:
        return f"the decision is now {command.decision.value}, not {disruption.spec.decision}"
    if len(command.replacements) != len(disruption.spec.replacements):
        number = len(command.replacements)
        return f"{counted(number, 'replacement')} {verb_of(number, 'is', 'are')} needed now"
    simulated = command.simulation_result.results.new_claims if command.simulation_result is not None else ()
    for index, (proposed, now) in enumerate(zip(disruption.spec.replacements, simulated, strict=True)):
        if proposed.name != replacement_name(disruption.metadata.name, now.node_pool, index):
            return f"the replacement would now belong to NodePool {now.node_pool}"
        options = frozenset(now.instance_types)
        if gone := [name for name in proposed_types(proposed) if name not in options]:
            return f"{', '.join(gone[:5])} {'is' if len(gone) == 1 else 'are'} no longer an option"
    return ""


def proposed_types(replacement: DisruptionReplacement) -> tuple[str, ...]:
    """Return the instance types that a proposal allows; only the cheapest if an older version of Journeyman stored it."""
    return replacement.instance_types or (replacement.instance_type,)


def _to_disruption_candidate(candidate: Candidate) -> DisruptionCandidate:
    return DisruptionCandidate(
        node_claim=candidate.nodeclaim,
        node_claim_uid=candidate.nodeclaim_uid,
        node=candidate.node,
        node_pool=candidate.nodepool,
        instance_type=candidate.instance_type,
        zone=candidate.zone,
        capacity_type=candidate.capacity_type,
        price=price_text(candidate.price),
        pods=candidate.reschedulable_pods[:MAX_PODS_LISTED],
    )


def moved_workloads(candidates: Iterable[Candidate]) -> tuple[MovedWorkload, ...]:
    """Return the workloads of several candidates, each once: those with a limit first, then those with most pods."""
    pods: Counter[WorkloadKey] = Counter()
    limits: dict[WorkloadKey, int] = {}
    for workload in (w for c in candidates for w in c.workloads):
        pods[workload.key] += workload.pods
        if workload.limit is not None:
            limits[workload.key] = min(workload.limit, limits.get(workload.key, workload.limit))
    keys = sorted(pods, key=lambda key: (key not in limits, -pods[key], key))
    return tuple(MovedWorkload(key=key, pods=pods[key], limit=limits.get(key)) for key in keys)


def _evicted_workloads(candidates: Iterable[Candidate]) -> tuple[EvictedWorkload, ...]:
    return tuple(
        EvictedWorkload(**moved.key._asdict(), pods=moved.pods)
        for moved in moved_workloads(candidates)[:MAX_WORKLOADS_LISTED]
    )


# -- unfinished commands ----------------------------------------------------------------------------------------------


def unfinished_commands(snapshot: Snapshot) -> tuple[NodeDisruption, ...]:
    """Return the NodeDisruptions that have not ended, by name."""
    return tuple(d for d in snapshot.node_disruptions if not d.finished)


def has_started(disruption: NodeDisruption, snapshot: Snapshot) -> bool:
    """Whether an unfinished command continues without another validation.

    A validated command whose run ended before it had created all replacements, or before it deleted its candidates, is
    validated again.
    """
    phase = disruption.status.phase
    return phase in (REPLACING, DRAINING) or (phase == VALIDATED and _has_all_replacements(disruption, snapshot))


def claims_in_commands(snapshot: Snapshot) -> frozenset[str]:
    """Return the names of NodeClaims in unfinished commands.

    They are not candidates of another command, and use up their NodePools' budgets.
    """
    return frozenset(name for d in unfinished_commands(snapshot) for name in d.claims)


def marked_for_deletion(snapshot: Snapshot) -> frozenset[str]:
    """Return the names of NodeClaims that a started command will delete, once all its replacements exist.

    Not earlier: the scheduler reschedules the pods of nodes that are marked for deletion, and without the replacements
    it would launch nodes for them twice.

    Restates: karpenter pkg/controllers/disruption/queue.go `StartCommand` (MarkForDeletion after the replacements).
    """
    ready = _started_with_replacements(snapshot)
    return frozenset(n.claim.metadata.name for d in ready for n in disrupted_candidates(d, snapshot) if n.claim)


def pods_with_capacity(snapshot: Snapshot) -> frozenset[str]:
    """Return the keys of the pods that started commands move: while their replacements stay, these pods have what they need.

    Differs: Karpenter provisions for all pods of deleting nodes. Another order of packing may then need a node more than the command.
    """
    ready, nodes_of = _started_with_replacements(snapshot), snapshot.state_nodes_by_claim
    staying = (d for d in ready if not any(nodes_of[r.name].is_terminating for r in d.spec.replacements))
    return frozenset(pod.key for d in staying for node in disrupted_candidates(d, snapshot) for pod in node.pods)


def kept_after_rollback(snapshot: Snapshot) -> frozenset[str]:
    """Return the names of NodeClaims that the next rollback of a command will keep, because a replacement is missing.

    Their nodes still have the disruption taint, but their pods will not move.
    """
    lost = (d for d in _started(snapshot) if missing_replacements(d, snapshot))
    nodes = (n for d in lost for n in disrupted_candidates(d, snapshot) if not n.is_terminating)
    return frozenset(n.claim.metadata.name for n in nodes if n.claim is not None)


def disrupted_candidates(disruption: NodeDisruption, snapshot: Snapshot) -> tuple[StateNode, ...]:
    """Return the candidates that exist and have the DisruptionReason condition."""
    return tuple(n for n in existing_candidates(disruption, snapshot) if is_true(n.conditions, DISRUPTION_REASON))


def existing_candidates(disruption: NodeDisruption, snapshot: Snapshot) -> tuple[StateNode, ...]:
    """Return the candidates that exist, with or without the DisruptionReason condition."""
    nodes = (snapshot.state_nodes_by_claim.get(c.node_claim) for c in disruption.spec.candidates)
    uids = {c.node_claim: c.node_claim_uid for c in disruption.spec.candidates}
    return tuple(n for n in nodes if n is not None and n.claim and n.claim.metadata.uid == uids[n.claim.metadata.name])


def missing_replacements(disruption: NodeDisruption, snapshot: Snapshot) -> tuple[str, ...]:
    """Return the names of replacement NodeClaims that do not exist or are deleting."""
    claims = snapshot.claims_by_name
    names = (r.name for r in disruption.spec.replacements)
    return tuple(n for n in names if n not in claims or claims[n].metadata.deletion_timestamp is not None)


def replacement_claims(disruption: NodeDisruption, snapshot: Snapshot) -> tuple[NodeClaim, ...]:
    """Return the replacement NodeClaims; all of them must exist."""
    return tuple(snapshot.claims_by_name[r.name] for r in disruption.spec.replacements)


def moved_pods(disruption: NodeDisruption, snapshot: Snapshot) -> dict[WorkloadKey, int]:
    """Return how many pods of each workload a command moves; none if it has ended without that."""
    if not _may_have_moved(disruption, snapshot):
        return {}
    return {WorkloadKey(w.kind, w.namespace, w.name, w.uid): w.pods for w in disruption.spec.workloads}


def moved_by_pool(disruption: NodeDisruption, snapshot: Snapshot) -> Counter[str]:
    """Return how many pods of each NodePool's nodes a command moves; none if it has ended without that."""
    pods: Counter[str] = Counter()
    if _may_have_moved(disruption, snapshot):
        for candidate in disruption.spec.candidates:
            if candidate.node_pool and candidate.pods:
                pods[candidate.node_pool] += len(candidate.pods)
    return pods


def _may_have_moved(disruption: NodeDisruption, snapshot: Snapshot) -> bool:
    """Whether pods were or will be evicted: not if the command never started, or was rolled back with all candidates in place."""
    if disruption.status.phase in NEVER_STARTED:
        return False
    if disruption.status.phase != "RolledBack":
        return True
    kept = [n for n in existing_candidates(disruption, snapshot) if not n.is_terminating]
    return len(kept) < len(disruption.spec.candidates)


def _started(snapshot: Snapshot) -> tuple[NodeDisruption, ...]:
    return tuple(d for d in unfinished_commands(snapshot) if has_started(d, snapshot))


def _started_with_replacements(snapshot: Snapshot) -> tuple[NodeDisruption, ...]:
    return tuple(d for d in _started(snapshot) if not missing_replacements(d, snapshot))


def _has_all_replacements(disruption: NodeDisruption, snapshot: Snapshot) -> bool:
    return bool(disruption.spec.replacements) and not missing_replacements(disruption, snapshot)
