"""Registration health: whether the nodes of a pool come to join their cluster, for people alone to know.

The last outcomes of a pool's claims, oldest first, stand in an annotation of the pool beside the generations that they
are about: "<NodeClass generation>/<NodePool generation>:SSFS". Each change of either begins a new row.

Restates: karpenter pkg/state/nodepoolhealth/tracker.go, pkg/controllers/nodepool/registrationhealth/controller.go,
pkg/controllers/nodeclaim/lifecycle/{registration,liveness}.go `updateNodePoolRegistrationHealth`.
Differs: the row outlives the process; an outcome is lost if the run dies between the claim's write and the pool's. A claim
whose instance ended before its node joined is given up, and counts, at once; Karpenter lets its time pass first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Final

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.conditions import LAUNCHED, NODE_REGISTRATION_HEALTHY, REGISTERED, ConditionSet
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import NODEPOOL, NodeClaim, condition_of, is_true
from journeyman.core.lifecycle.liveness import Timeouts, awaits_node, timed_out
from journeyman.core.state import Snapshot

ROW: Final = 4  # tracker.go `BufferSize`
MOST_FAILURES: Final = 2  # tracker.go `ThresholdFalse`: half of the buffer, however few outcomes are in it

_JOINED, _FAILED = "S", "F"


class Outcome(Struct, frozen=True, kw_only=True):
    """One claim has become a node, or was given up before, for this reason."""

    registered: bool
    reason: str = ""
    message: str = ""


class Health(Struct, frozen=True, kw_only=True):
    """A pool's conditions with its registration health judged, and the annotation to go with them (empty: none)."""

    conditions: ConditionSet
    annotation: str


def outcomes(
    before: Snapshot,
    written: Mapping[str, NodeClaim | None],
    timeouts: Timeouts,
    ended: Collection[str] = frozenset(),
) -> Mapping[str, tuple[Outcome, ...]]:
    """What came of claims in this run, by NodePool, in the order of their names.

    Args:
        before: Claims as the run found them, and the pools: only what a pool still owns, by its UID, says something of it.
        written: Claims that the run wrote, as they are stored now; None once deleted.
        timeouts: How long claims may take.
        ended: Provider ids of instances that have ended: a claim that awaited the node of one would not have had it in
            time.
    """
    found: dict[str, list[Outcome]] = {}
    for claim in before.claims:
        name = claim.metadata.name
        pool = before.node_pools_by_name.get(claim.metadata.labels.get(labels.NODEPOOL, ""))
        if pool is None or name not in written or not _owns(pool, claim):
            continue
        late = bool(timed_out(claim, timeouts, before.now))
        failed = late or (awaits_node(claim) and claim.status.provider_id in ended)
        for outcome in _outcome(claim, written[name], failed=failed):
            found.setdefault(pool.metadata.name, []).append(outcome)
    return {name: tuple(of_pool) for name, of_pool in found.items()}


def judged(pool: NodePool, conditions: ConditionSet, generation: int, news: Iterable[Outcome], now: datetime) -> Health:
    """The pool's NodeRegistrationHealthy, given what came of its claims.

    Args:
        pool: The pool as it is stored.
        conditions: Its conditions so far.
        generation: Its NodeClass's.
        news: Outcomes of this run, oldest first.
        now: The time.

    Returns:
        Unknown at first and after each change of pool or NodeClass; True once an outcome is a node and at most one of
        the last four is none; False once two of them are none.
    """
    known = conditions.get(NODE_REGISTRATION_HEALTHY)
    observed = known is not None and known.observed_generation == pool.metadata.generation
    if observed and pool.status.node_class_observed_generation == generation:
        row = _row(pool, generation, conditions)
    else:
        row = ""
        conditions = conditions.set_unknown(
            NODE_REGISTRATION_HEALTHY, now, "AwaitingReconciliation", "object is awaiting reconciliation"
        )
    for outcome in news:
        row = (row + (_JOINED if outcome.registered else _FAILED))[-ROW:]
        conditions = _with(outcome, row, conditions, now)
    return Health(conditions=conditions, annotation=f"{_about(pool, generation)}:{row}" if row else "")


def _with(outcome: Outcome, row: str, conditions: ConditionSet, now: datetime) -> ConditionSet:
    healthy = row.count(_FAILED) < MOST_FAILURES
    if outcome.registered and healthy:
        return conditions.set_true(NODE_REGISTRATION_HEALTHY, now)
    known = conditions.get(NODE_REGISTRATION_HEALTHY)
    if not outcome.registered and not healthy and (known is None or known.status != "False"):
        return conditions.set_false(NODE_REGISTRATION_HEALTHY, now, outcome.reason, outcome.message)
    return conditions


def _row(pool: NodePool, generation: int, conditions: ConditionSet) -> str:
    """What is known of the last outcomes; where that is lost, what Karpenter takes up of the condition at a restart."""
    about, _, row = pool.metadata.annotations.get(labels.REGISTRATION_HISTORY, "").partition(":")
    if about == _about(pool, generation) and row and set(row) <= {_JOINED, _FAILED}:
        return row[-ROW:]
    known = conditions.get(NODE_REGISTRATION_HEALTHY)
    taken_up = {"True": _JOINED, "False": _FAILED * MOST_FAILURES}
    return taken_up.get(known.status, "") if known is not None else ""


def _about(pool: NodePool, generation: int) -> str:
    return f"{generation}/{pool.metadata.generation}"


def _owns(pool: NodePool, claim: NodeClaim) -> bool:
    return any(o.kind == NODEPOOL.kind and o.uid == pool.metadata.uid for o in claim.metadata.owner_references)


def _outcome(before: NodeClaim, after: NodeClaim | None, *, failed: bool) -> Iterator[Outcome]:
    if after is not None:
        if is_true(after.status.conditions, REGISTERED) and not is_true(before.status.conditions, REGISTERED):
            yield Outcome(registered=True)
    elif before.metadata.deletion_timestamp is None and failed:
        launched = condition_of(before.status.conditions, LAUNCHED)
        if launched is None or launched.status == "True":
            yield Outcome(registered=False, reason="RegistrationFailed", message="Failed to register node")
        else:
            yield Outcome(registered=False, reason=launched.reason, message=launched.message)
