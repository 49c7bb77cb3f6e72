"""Failed launches: records whose fault they are, with Events on that object, its NodePool, and the pods that wait.

Differs: Karpenter launches the same NodeClaim again and again, and never skips its NodePool.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.conditions import INITIALIZED, REGISTERED
from journeyman.core.api.duration import time_after
from journeyman.core.api.launch_faults import FaultScope, LaunchBackoff, LaunchFault
from journeyman.core.api.objects import NODEPOOL, NodeClaim, condition_of, is_true
from journeyman.core.plan import (
    Chain,
    ClearLaunchFaults,
    Event,
    ObjectRef,
    Observation,
    Plan,
    RecordLaunchFault,
    chain_of,
    pod_ref,
)
from journeyman.core.scheduling.nodeclaim_templates import parse_planned_pods
from journeyman.core.state import Snapshot
from journeyman.core.state.launch_backoff import claims_of, generations_of
from journeyman.core.state.skipped_objects import ref_of

if TYPE_CHECKING:  # it imports this module
    from journeyman.core.lifecycle.launch import OfferingBackoff

LAUNCH_FAILED: Final = "LaunchFailed"
INITIALIZATION_TIMED_OUT: Final = "InitializationTimedOut"
"""The reason of a NodePool's fault whose nodes register and never initialize."""
MAX_POD_EVENTS: Final = 20
"""How many of a NodeClaim's pods get the Event; each scheduling says why the others wait."""
SETTLED_AFTER: Final = timedelta(minutes=5)
"""How long a node must have been registered for its launch to count as a success: some instances end seconds after that."""


class FailureReport(Struct, frozen=True, kw_only=True):
    """A failed launch, to be recorded before its NodeClaim is deleted: the action, and the Events and the metric for it."""

    action: RecordLaunchFault
    events: tuple[Event, ...]
    observation: Observation

    @property
    def chain(self) -> Chain:
        """A chain that only records the failure."""
        chain = chain_of(f"launches of {self.action.fault.key}", self.action)
        return replace(chain, events=self.events, observations=(self.observation,))


def report_failure(
    claim: NodeClaim, fault: LaunchFault, snapshot: Snapshot, now: datetime, backoff: OfferingBackoff, *, counts: bool
) -> FailureReport:
    """Return the report of a launch that failed through an object's fault.

    Args:
        claim: The NodeClaim.
        fault: Whose fault it is; not an offering's.
        snapshot: For the generations and UIDs of the objects, and the pods.
        now: The time.
        backoff: The first back-off, and the longest.
        counts: Whether the failure counts for NodeRegistrationHealthy; that of a NodeClaim that did not register does so anyway.
    """
    pool = claim.metadata.labels.get(labels.NODEPOOL, "")
    text = f"Launch of NodeClaim {claim.metadata.name} failed because of {fault.key}, {fault.reason}: {fault.text}"
    return FailureReport(
        action=RecordLaunchFault(
            node_class=claim.spec.node_class_ref.name,
            fault=fault,
            node_pool=pool,
            generations=generations_of(fault.scope, pool, snapshot),
            at=now,
            first=backoff.first_of_object,
            longest=backoff.longest_of(fault),
            counts=counts,
        ),
        events=tuple(
            Event(ref=ref, reason=LAUNCH_FAILED, message=text, type="Warning", key=f"{fault.key}/{fault.reason}")
            for ref in _concerned(claim, fault, pool, snapshot)
        ),
        observation=Observation(
            name="journeyman_launch_failures_total", labels={"scope": fault.scope.value, "reason": fault.reason}
        ),
    )


def clear_settled_faults(snapshot: Snapshot) -> Plan:
    """Forget the faults of objects that have launched a node since their back-off that has been registered for five minutes."""
    chains = (
        chain_of(
            f"launches of {backoff.fault.key}",
            ClearLaunchFaults(node_class=backoff.node_class, keys=(backoff.fault.key,), at=snapshot.now),
        )
        for backoff in snapshot.launch_backoffs
        if backoff.is_over and backoff.node_class and _has_settled(backoff, snapshot)
    )
    return Plan(chains=tuple(chains))


def _has_settled(backoff: LaunchBackoff, snapshot: Snapshot) -> bool:
    """Whether a node launched since registered long enough ago; any new node of its subnet or account."""
    if backoff.fault.scope is FaultScope.SUBNET:
        return False  # it only chooses among subnets, and is forgotten with time
    since = backoff.until.replace(microsecond=0)
    must_initialize = backoff.fault.reason == INITIALIZATION_TIMED_OUT
    return any(
        (claim.metadata.creation_timestamp or since) >= since
        and _registered_long_ago(claim, snapshot.now)
        and (not must_initialize or is_true(claim.status.conditions, INITIALIZED))
        for claim in claims_of(backoff.fault.key, snapshot)
    )


def _registered_long_ago(claim: NodeClaim, now: datetime) -> bool:
    since = registered_at(claim)
    return since is not None and now >= time_after(since, SETTLED_AFTER)


def registered_at(claim: NodeClaim) -> datetime | None:
    """Return when the NodeClaim's node registered; None if it has not."""
    condition = condition_of(claim.status.conditions, REGISTERED)
    return condition.last_transition_time if condition is not None and condition.status == "True" else None


def _concerned(claim: NodeClaim, fault: LaunchFault, pool: str, snapshot: Snapshot) -> Iterator[ObjectRef]:
    """Yield the object at fault, the NodePool, and the pods that the NodeClaim was planned for."""
    ref = claim.spec.node_class_ref
    if (
        fault.scope is not FaultScope.NODE_POOL
    ):  # subnets and accounts are no objects of the cluster: the NodeClass leads to them
        uid = next((n.uid for n in snapshot.node_classes if n.name == ref.name), "")
        yield ref_of(ref.kind, ref.name, uid=uid, group=ref.group)
    if pool:
        found = snapshot.node_pools_by_name.get(pool)
        yield ObjectRef(resource=NODEPOOL, name=pool, uid=found.metadata.uid if found is not None else "")
    planned = (snapshot.pods_by_key.get(pod.key) for pod in parse_planned_pods(claim.metadata.annotations))
    waiting = [pod for pod in planned if pod is not None and not pod.spec.node_name]
    yield from (pod_ref(pod) for pod in waiting[:MAX_POD_EVENTS])
