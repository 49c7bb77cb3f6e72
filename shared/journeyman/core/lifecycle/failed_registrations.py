"""Instances that never join or initialize, or end as soon as they have joined: records whose fault it is, before their NodeClaims are deleted.

The cloud says of some why they ended (`BuildFailure`). Otherwise the NodePool is at fault: at once if it has no node, and none of
its last ones registered, else once two of the last four failed to, as for NodeRegistrationHealthy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.conditions import REGISTERED
from journeyman.core.api.launch_faults import FaultScope, LaunchFault
from journeyman.core.api.objects import NodeClaim, is_true
from journeyman.core.lifecycle.failed_launches import INITIALIZATION_TIMED_OUT, report_failure
from journeyman.core.lifecycle.initialization import find_blocker
from journeyman.core.lifecycle.interruption import offering_of
from journeyman.core.lifecycle.launch import OfferingBackoff
from journeyman.core.lifecycle.liveness import (
    INITIALIZATION_TIMEOUT,
    LivenessTimeouts,
    describe_early_end,
    describe_timeout,
    is_initialization_overdue,
    timeout_reason,
)
from journeyman.core.lifecycle.nodepool_status import FAILURE_THRESHOLD, is_owner, last_registrations
from journeyman.core.plan import Chain, MarkOfferingUnavailable, Plan, chain_of
from journeyman.core.state import BuildFailure, Snapshot

_REASON: Final = "RegistrationFailed"
_REMEDY: Final = (
    "Read the console output of such an instance, and check user data, image, subnets and security groups of the NodeClass, and "
    "whether the role of its nodes may join the cluster"
)

_INITIALIZATION_REMEDY: Final = (
    "Check the DaemonSet that removes the taint, or the device plugin that registers the resource"
)


class FailedRegistration(Struct, frozen=True, kw_only=True):
    """A NodeClaim whose instance did not join or initialize, or ended soon after that: what happened, and the cloud's reason, if any.

    `reason` and `remedy` are those of the fault without a reason of the cloud.
    """

    claim: NodeClaim
    what: str
    failure: BuildFailure | None = None
    reason: str = _REASON
    remedy: str = _REMEDY


def timed_out_registrations(snapshot: Snapshot, timeouts: LivenessTimeouts) -> tuple[FailedRegistration, ...]:
    """Return the NodeClaims that did not launch or register in time."""
    reasons = (
        (c, timeout_reason(c, timeouts, snapshot.now)) for c in snapshot.claims if not c.metadata.deletion_timestamp
    )
    return tuple(
        FailedRegistration(claim=c, what=describe_timeout(c, reason, snapshot.now)) for c, reason in reasons if reason
    )


def overdue_initializations(snapshot: Snapshot, timeouts: LivenessTimeouts) -> tuple[FailedRegistration, ...]:
    """Return the NodeClaims whose registered node did not initialize in time and runs no pods."""
    overdue = (state for state in snapshot.state_nodes if is_initialization_overdue(state, timeouts, snapshot.now))
    stuck = (s.claim for s in overdue if s.claim is not None and s.node is not None and find_blocker(s.node, s.claim))
    return tuple(
        FailedRegistration(
            claim=claim,
            what=describe_timeout(claim, INITIALIZATION_TIMEOUT, snapshot.now),
            reason=INITIALIZATION_TIMED_OUT,
            remedy=_INITIALIZATION_REMEDY,
        )
        for claim in stuck
    )


def ended_registrations(
    snapshot: Snapshot, ended: Collection[str], failures: Mapping[str, BuildFailure]
) -> tuple[FailedRegistration, ...]:
    """Return the NodeClaims whose instance ended before its node joined, or soon after that.

    Args:
        snapshot: The NodeClaims.
        ended: Provider ids of the instances that have ended.
        failures: Why they ended by provider id, as far as the cloud says.
    """
    return tuple(
        FailedRegistration(claim=c, what=what, failure=failures.get(c.status.provider_id))
        for c in snapshot.claims
        if c.status.provider_id in ended and (what := describe_early_end(c, snapshot.now))
    )


def record_failed_registrations(
    snapshot: Snapshot, failed: Sequence[FailedRegistration], backoff: OfferingBackoff
) -> Plan:
    """Return the plan that records the objects at fault, and the offerings without capacity. Its actions come before any deletion.

    Args:
        snapshot: NodePools and NodeClaims.
        failed: All NodeClaims that failed to join since the last run; no object is blamed for those that no NodePool owns.
        backoff: How long offerings and objects are skipped.
    """
    of_pools = [each for each in failed if _has_owner(each.claim, snapshot)]
    chains = [*_without_capacity(failed, snapshot.now, backoff)]
    reported = set()
    for each in of_pools:
        fault = _fault_of(each, of_pools, snapshot)
        if fault is not None and fault.key not in reported:
            reported.add(fault.key)
            chains.append(report_failure(each.claim, fault, snapshot, snapshot.now, backoff, counts=False).chain)
    return Plan(chains=tuple(chains))


def _has_owner(claim: NodeClaim, snapshot: Snapshot) -> bool:
    pool = snapshot.node_pools_by_name.get(claim.metadata.labels.get(labels.NODEPOOL, ""))
    return pool is not None and is_owner(pool, claim)


def _without_capacity(failed: Iterable[FailedRegistration], now: datetime, backoff: OfferingBackoff) -> Iterator[Chain]:
    """Yield a chain for each offering from which the cloud could not build an instance that it had accepted to launch."""
    for each in failed:
        offering = offering_of(each.claim)
        if each.failure is not None and each.failure.is_capacity and all(offering[:3]):
            mark = MarkOfferingUnavailable(
                node_class=each.claim.spec.node_class_ref.name,
                offerings=(offering,),
                at=now,
                first=backoff.first,
                longest=backoff.longest,
                reason=each.failure.reason,
            )
            yield chain_of(f"offerings of NodeClaim {each.claim.metadata.name}", mark)


def _fault_of(each: FailedRegistration, failed: Iterable[FailedRegistration], snapshot: Snapshot) -> LaunchFault | None:
    """Return whose fault it is; None if it is an offering's, or one failure among successes of the NodePool."""
    failure, pool = each.failure, each.claim.metadata.labels[labels.NODEPOOL]
    if failure is not None and (failure.is_capacity or failure.scope is FaultScope.OFFERING):
        return None
    names = {
        FaultScope.NODE_CLASS: each.claim.spec.node_class_ref.name,
        FaultScope.NODE_POOL: pool,
    }
    scope = failure.scope if failure is not None else FaultScope.NODE_POOL
    if scope is FaultScope.NODE_POOL and not _is_pool_at_fault(pool, failed, snapshot):
        return None
    return LaunchFault(
        scope=scope,
        name=names.get(scope, ""),
        reason=failure.reason if failure is not None else each.reason,
        message=f"{each.what}, {failure.message}" if failure is not None else each.what,
        remedy=failure.remedy if failure is not None and failure.remedy else each.remedy,
    )


def _is_pool_at_fault(name: str, failed: Iterable[FailedRegistration], snapshot: Snapshot) -> bool:
    pool = snapshot.node_pools_by_name.get(name)
    before = last_registrations(pool, snapshot) if pool is not None else ()
    now = sum(each.claim.metadata.labels[labels.NODEPOOL] == name for each in failed)
    has_nodes = True in before or any(
        is_true(claim.status.conditions, REGISTERED) and claim.metadata.labels.get(labels.NODEPOOL) == name
        for claim in snapshot.claims
    )
    return not has_nodes or before.count(False) + now >= FAILURE_THRESHOLD
