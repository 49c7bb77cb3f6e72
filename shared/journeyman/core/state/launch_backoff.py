"""Which NodePools launch nothing because of earlier failed launches, and which may launch one node to try again.

After a failed launch, what has the fault (`core.api.launch_faults`) is skipped until its back-off ends. Then one NodeClaim tries:
until its node has registered, the NodePools launch no other.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from journeyman.core.api import labels
from journeyman.core.api.conditions import REGISTERED
from journeyman.core.api.launch_faults import FaultKey, FaultScope, LaunchBackoff
from journeyman.core.api.objects import NodeClaim, is_true
from journeyman.core.state.snapshot import Snapshot

if TYPE_CHECKING:  # the models build validators; nothing here needs them
    from journeyman.core.api.nodepool import NodePool


def backoffs_of(pool: NodePool, snapshot: Snapshot) -> tuple[LaunchBackoff, ...]:
    """Return the recorded faults of the NodePool, its NodeClass and the account, those that end last first.

    A fault of another generation of NodePool or NodeClass does not count: a user changed the object since.
    """
    keys = {
        FaultKey(FaultScope.NODE_POOL, pool.metadata.name),
        FaultKey(FaultScope.NODE_CLASS, pool.spec.template.spec.node_class_ref.name),
        FaultKey(FaultScope.ACCOUNT, ""),
    }
    found = (
        each
        for each in snapshot.launch_backoffs
        if each.fault.key in keys
        and each.generations in ("", generations_of(each.fault.scope, pool.metadata.name, snapshot))
    )
    return tuple(sorted(found, key=lambda each: (-each.until.timestamp(), each.fault.key)))


def generations_of(scope: FaultScope, node_pool: str, snapshot: Snapshot) -> str:
    """Return the generations of the objects that a fault of a NodePool's launch depends on; empty if they are unknown."""
    pool = snapshot.node_pools_by_name.get(node_pool)
    if pool is None or scope not in (FaultScope.NODE_CLASS, FaultScope.NODE_POOL):
        return ""
    node_class = snapshot.node_class_of(pool)
    of_class = node_class.generation if node_class is not None else pool.status.node_class_observed_generation
    if not of_class:
        return ""
    return f"{of_class}" if scope is FaultScope.NODE_CLASS else f"{of_class}/{pool.metadata.generation}"


def why_backed_off(pool: NodePool, snapshot: Snapshot) -> str:
    """Return why the NodePool launches nothing now, with the remedy and the time of the next launch; empty if it may launch."""
    for backoff in backoffs_of(pool, snapshot):
        if not backoff.is_over:
            return f"{_cause(backoff)} It launches again at {backoff.until:%Y-%m-%d %H:%M:%S} UTC, or once {_cured_by(backoff)}"
        tries = _tries(backoff, snapshot)
        if tries and not _has_succeeded(tries):
            return f"{_cause(backoff)} NodeClaim {tries[0].metadata.name} tries again; further ones wait for its node"
    return ""


def next_launch_at(pool: NodePool, snapshot: Snapshot) -> datetime | None:
    """Return when the NodePool may launch again; None if it may now."""
    return next((each.until for each in backoffs_of(pool, snapshot) if not each.is_over), None)


def full_subnets(snapshot: Snapshot) -> frozenset[str]:
    """Return the ids of the subnets that had no free address at a launch a short while ago."""
    return frozenset(
        b.fault.name for b in snapshot.launch_backoffs if b.fault.scope is FaultScope.SUBNET and not b.is_over
    )


def keys_to_try(pool: NodePool, snapshot: Snapshot) -> tuple[FaultKey, ...]:
    """Return the faults of the NodePool whose back-off is over and that no node has tried since: it may launch one node."""
    return tuple(b.fault.key for b in backoffs_of(pool, snapshot) if b.is_over and not _tries(b, snapshot))


def claims_of(key: FaultKey, snapshot: Snapshot) -> Iterator[NodeClaim]:
    """Yield the NodeClaims whose launch would have this fault, without terminating ones, by name."""
    for claim in snapshot.claims:
        if claim.metadata.deletion_timestamp is None and _concerns(key, claim):
            yield claim


def _concerns(key: FaultKey, claim: NodeClaim) -> bool:
    if key.scope is FaultScope.NODE_POOL:
        return claim.metadata.labels.get(labels.NODEPOOL) == key.name
    return key.scope is FaultScope.ACCOUNT or claim.spec.node_class_ref.name == key.name


def _tries(backoff: LaunchBackoff, snapshot: Snapshot) -> list[NodeClaim]:
    """Return the NodeClaims that were created since the back-off ended; the API server's times are whole seconds."""
    since = backoff.until.replace(microsecond=0)
    claims = claims_of(backoff.fault.key, snapshot)
    return [c for c in claims if c.metadata.creation_timestamp is not None and c.metadata.creation_timestamp >= since]


def _has_succeeded(tries: list[NodeClaim]) -> bool:
    return any(is_true(claim.status.conditions, REGISTERED) for claim in tries)


def _cause(backoff: LaunchBackoff) -> str:
    fault = backoff.fault
    times = "1 launch" if backoff.failures == 1 else f"{backoff.failures} launches"
    return f"{times} failed because of {fault.key}, {fault.reason}: {fault.text}".rstrip(".") + "."


def _cured_by(backoff: LaunchBackoff) -> str:
    """Return which change ends the back-off at once."""
    changes = {
        FaultScope.NODE_CLASS: "the NodeClass changes",
        FaultScope.NODE_POOL: "the NodePool or its NodeClass changes",
    }
    name = backoff.node_class
    return changes.get(backoff.fault.scope, f"OfferingState {name} is deleted")
