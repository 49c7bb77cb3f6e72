"""Provisioning: turns scheduling results into actions that create and launch NodeClaims, and into Events on the pods.

Restates: karpenter pkg/controllers/provisioning/provisioner.go `Create`, scheduling/scheduler.go `Results.Record`.
Differs: names are derived from the decision, so that a repeated decision creates each NodeClaim once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.conditions import INITIALIZED, REGISTERED
from journeyman.core.api.duration import time_after
from journeyman.core.api.hashes import NODEPOOL_HASH_VERSION, node_pool_hash
from journeyman.core.api.launch_faults import FaultKey
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import DAEMONSET, NODECLAIM, NODEPOOL, Pod, condition_of
from journeyman.core.api.wording import counted, verb_of
from journeyman.core.catalogue import NO_STOCK, STOCK_LISTED_FOR, Catalogue
from journeyman.core.plan import (
    Chain,
    CreateObject,
    Event,
    LaunchInstance,
    ObjectRef,
    Plan,
    Requeue,
    Step,
    chain_of,
    pod_ref,
)
from journeyman.core.scheduling.nodeclaim_templates import NO_TYPES, claim_name, to_node_claim
from journeyman.core.scheduling.results import PlannedClaim, Results
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.launch_backoff import keys_to_try
from journeyman.core.state.nodeclaim_metrics import nodeclaim_created
from journeyman.core.state.pod_predicates import is_virtual_pod

USUAL_SET_UP: Final = timedelta(minutes=1)
"""From a node's registration to its initialization, at most: image pulls of the CNI and of drivers included."""
_WHAT_TO_CHECK: Final = "Check the DaemonSet that removes the taint, or the device plugin that registers the resource"
_MESSAGE_LENGTH: Final = 1000  # of the 1,024 characters that an Event may have


def create_nodeclaims(snapshot: Snapshot, planned: Iterable[PlannedClaim], requeue_at: datetime) -> Plan:
    """Return a chain for each planned NodeClaim: create it, launch it, and requeue for its registration.

    Args:
        snapshot: The snapshot that the scheduler used.
        planned: The NodeClaims to create, verified.
        requeue_at: When the first of their nodes may have joined.
    """
    seed = decision_seed(snapshot)
    pods = {pod.key: pod for pod in snapshot.pods}
    chains = tuple(_create_nodeclaim(claim, snapshot, seed, pods, requeue_at) for claim in planned)
    return Plan(chains=chains)


def scheduling_events(snapshot: Snapshot, results: Results) -> Plan:
    """Return Events on scheduled pods, on pods with too many preferences, and on NodePools.

    NodePools get one if they have no instance types, or an invalid annotation.
    """
    pods = {pod.key: pod for pod in snapshot.pods}
    nodes = {node.name: node for node in snapshot.state_nodes if node.name in results.existing}
    events = [
        _placement_event(pods[key], nodes[name], snapshot.now)
        for name, keys in sorted(results.existing.items())
        for key in keys
        if key in pods and not pods[key].spec.node_name
    ]
    events += [
        _event(pods[key], "TooManyPreferences", warning, type_="Warning")
        for key, warning in sorted(results.pod_warnings.items())
        if key in pods
    ]
    return Plan(
        events=(
            *events,
            *_incompatible_pool_events(snapshot, results),
            *_invalid_annotation_events(snapshot, results),
            *_left_out_events(snapshot, results),
        )
    )


def _placement_event(pod: Pod, state: StateNode, now: datetime) -> Event:
    """Return the Event of a pod that is planned for a node: what that is missing, if it is late; else that it is nominated."""
    if missing := _overdue_initialization(state, now):
        waits = f"{_node_of_claim(state)}, for which the pod waits, is not initialized: {missing}"
        return _event(pod, "AwaitingInitialization", f"{waits}. {_WHAT_TO_CHECK}", type_="Warning")
    return _event(pod, "Nominated", f"Pod should schedule on: {_node_and_claim(state)}")


def _overdue_initialization(state: StateNode, now: datetime) -> str:
    """Return what a node is missing that has been registered for a while and is not initialized; empty for any other node."""
    registered, missing = (condition_of(state.conditions, type_) for type_ in (REGISTERED, INITIALIZED))
    if registered is None or registered.status != "True" or missing is None or missing.status == "True":
        return ""
    since = registered.last_transition_time
    is_late = state.node is not None and since is not None and now >= time_after(since, USUAL_SET_UP)
    return missing.message if is_late else ""


def _node_of_claim(state: StateNode) -> str:
    claim = state.claim.metadata.name if state.claim is not None else ""
    return f"Node {state.name} of NodeClaim {claim}"


def failed_scheduling_events(snapshot: Snapshot, results: Results) -> Plan:
    """Return an Event on each unschedulable pod: why it is unschedulable."""
    pods = {pod.key: pod for pod in snapshot.pods}
    return Plan(
        events=tuple(
            _event(
                pods[key],
                "FailedScheduling",
                f"Failed to schedule pod, {error.message_within(_MESSAGE_LENGTH)}",
                type_="Warning",
            )
            for key, error in sorted(results.pod_errors.items())
            if key in pods
        )
    )


def _node_and_claim(state: StateNode) -> str:
    """Return NodeClaim and Node as messages name them, as far as they exist."""
    claim = f"nodeclaim/{state.claim.metadata.name}" if state.claim is not None else ""
    node = f"node/{state.node.metadata.name}" if state.node is not None else ""
    return ", ".join(filter(None, (claim, node)))


def _left_out_events(snapshot: Snapshot, results: Results) -> Iterator[Event]:
    """Yield an Event on each NodePool whose nodes are planned without some DaemonSets, and on the first of these."""
    uids = {f"{ds.metadata.namespace}/{ds.metadata.name}": ds.metadata.uid for ds in snapshot.daemon_sets}
    for name, left_out in sorted(results.left_out.items()):
        pool = ObjectRef(resource=NODEPOOL, name=name, uid=snapshot.node_pools_by_name[name].metadata.uid)
        yield Event(ref=pool, reason="DaemonSetLeftOut", message=left_out.why, type="Warning")
        for key in left_out.names[:_MOST_NAMED]:
            namespace, _, own = key.partition("/")
            ref = ObjectRef(resource=DAEMONSET, name=own, namespace=namespace, uid=uids.get(key, ""))
            yield Event(ref=ref, reason="DaemonSetLeftOut", message=left_out.why, type="Warning")


_MOST_NAMED: Final = 10  # DaemonSets that get an Event; the NodePool's counts them all


def _incompatible_pool_events(snapshot: Snapshot, results: Results) -> Iterator[Event]:
    """Restates: karpenter pkg/controllers/provisioning/scheduling/events.go `NoCompatibleInstanceTypes`."""
    for name, why in results.unusable_node_pools.items():
        if why.startswith(NO_TYPES):
            ref = ObjectRef(resource=NODEPOOL, name=name, uid=snapshot.node_pools_by_name[name].metadata.uid)
            message = f"NodePool requirements filtered out all compatible available instance types: {why}"
            yield Event(ref=ref, reason="NoCompatibleInstanceTypes", message=message, type="Warning")


def _invalid_annotation_events(snapshot: Snapshot, results: Results) -> Iterator[Event]:
    for name, warning in results.warnings.items():
        ref = ObjectRef(resource=NODEPOOL, name=name, uid=snapshot.node_pools_by_name[name].metadata.uid)
        yield Event(ref=ref, reason="InvalidAnnotation", message=f"NodePool {name}: {warning}", type="Warning")


def next_offering_retry(snapshot: Snapshot, results: Results, catalogue: Catalogue) -> datetime | None:
    """Return when the first unavailable offering or NodePool may be used again; None if there is none, or every pod is scheduled.

    Whether the cloud still lists an offering as sold out is known only when it is read again.
    """
    if not results.pod_errors:
        return None
    ends = [*(u.until for u in snapshot.unavailable), *(b.until for b in snapshot.launch_backoffs)]
    types = (instance_type for offered in catalogue.by_node_pool.values() for instance_type in offered)
    if any(offering.unavailable_reason == NO_STOCK for instance_type in types for offering in instance_type.offerings):
        ends.append(snapshot.now + STOCK_LISTED_FOR)
    return min((until for until in ends if until > snapshot.now), default=None)


def one_try_each(snapshot: Snapshot, planned: Sequence[PlannedClaim]) -> tuple[PlannedClaim, ...]:
    """Return the planned NodeClaims to launch now; the others wait for the first node after a back-off.

    Of the NodePools with the same fault, whose back-off is over, only one NodeClaim is launched, to try whether it is mended.
    """
    tried: set[FaultKey] = set()
    now: list[PlannedClaim] = []
    for claim in planned:
        keys = keys_to_try(snapshot.node_pools_by_name[claim.node_pool], snapshot)
        if not tried.intersection(keys):
            now.append(claim)
        tried.update(keys)
    return tuple(now)


def decision_seed(snapshot: Snapshot) -> str:
    """Return a seed that differs between decisions for the same pods: a hash of all NodeClaims and unavailable offerings."""
    claims = sorted(claim.metadata.uid for claim in snapshot.claims)
    unavailable = sorted(
        f"{u.instance_type}/{u.zone}/{u.capacity_type}/{u.until.isoformat()}" for u in snapshot.unavailable
    )
    failed = sorted(f"{b.fault.key}/{b.failures}/{b.until.isoformat()}" for b in snapshot.launch_backoffs)
    return hashlib.sha256("\0".join((*claims, "", *unavailable, *failed)).encode()).hexdigest()


def _create_nodeclaim(
    planned: PlannedClaim, snapshot: Snapshot, seed: str, pods: Mapping[str, Pod], requeue_at: datetime
) -> Chain:
    pool = snapshot.node_pools_by_name[planned.node_pool]
    name = claim_name(planned.node_pool, seed, [pods[key].metadata.uid for key in planned.pods])
    real = tuple(key for key in planned.pods if not is_virtual_pod(pods[key]))
    without_virtual = replace(planned, pods=real)
    uids = {key: pods[key].metadata.uid for key in real}
    number = len(planned.pods)
    why = f"{counted(number, 'pod')} {verb_of(number, 'needs', 'need')} a node"
    chain = chain_of(
        f"NodeClaim {name}",
        CreateObject(resource=NODECLAIM, body=nodeclaim_manifest(without_virtual, pool, name, uids), why=why),
        LaunchInstance(claim=name, why=why),
        Requeue(step=Step.PROVISION, at=requeue_at, reason=f"NodeClaim {name} starts"),
    )
    return replace(
        chain,
        events=tuple(_nominations(without_virtual, name, pods)),
        observations=(nodeclaim_created(planned.node_pool, "provisioned"),),
    )


def nodeclaim_manifest(planned: PlannedClaim, pool: NodePool, name: str, uids: Mapping[str, str]) -> dict[str, Any]:
    """Return the NodeClaim manifest, with the termination finalizer, so that no instance can leak."""
    body = to_node_claim(
        planned, pool, name=name, hash=node_pool_hash(pool), hash_version=NODEPOOL_HASH_VERSION, uids=uids
    )
    return {**body, "metadata": {**body["metadata"], "finalizers": [labels.TERMINATION_FINALIZER]}}


def _nominations(planned: PlannedClaim, name: str, pods: Mapping[str, Pod]) -> Iterator[Event]:
    for key in planned.pods:
        if not pods[key].spec.node_name:
            yield _event(pods[key], "Nominated", f"Pod should schedule on: nodeclaim/{name}")


def _event(pod: Pod, reason: str, message: str, *, type_: str = "Normal") -> Event:
    return Event(ref=pod_ref(pod), reason=reason, message=message, type=type_)
