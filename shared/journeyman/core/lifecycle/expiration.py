"""Expiration: deletes NodeClaims that reach their expireAfter, or whose capacity block ends, regardless of budgets.

Nodes of one burst do not expire together, and what their pods need is launched before they are drained::

    90 % of expireAfter                                                              expireAfter
    ├──────────────── jitter, by the NodeClaim's UID ──────────────┼──────────────── lead ──────┤
                    replaced_from ─────► deleted as soon as its pods have capacity ─────► deleted_by

From `replaced_from` on the node has the disrupted taint and its NodeClaim the DisruptionReason ``Expired``, so provision launches
what its pods need, as for each node that leaves. Once initialized nodes have capacity for them, provision deletes the NodeClaim, of
each NodePool a tenth of the nodes at a time. A node whose pods must not be evicted now, or find no capacity, goes at `deleted_by`.
Nothing else is stored: the times follow from the NodeClaim, and a run that died is continued by the next one.

Restates: karpenter pkg/controllers/nodeclaim/expiration/controller.go `Reconcile`, karpenter-provider-aws
pkg/controllers/capacityreservation/expiration/controller.go `Reconcile`.
Differs: Karpenter deletes nodes of one burst together, and launches for their pods once these are evicted. Events on NodeClaim and
Node record it, since a clock that is ahead lets many NodeClaims expire at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.conditions import DISRUPTION_REASON, EXPIRED, INITIALIZED, format_time
from journeyman.core.api.objects import NodeClaim, is_true
from journeyman.core.lifecycle.progress import NodeClaimProgress, with_node
from journeyman.core.plan import Chain, DeleteObject, Event, Plan, Requeue, Step, chain_of, claim_ref, next_requeue
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.disrupted_taint import with_disrupted_taint
from journeyman.core.state.expiration_times import ExpirationTimes, expiration_times, expires_soon, is_expired
from journeyman.core.state.nodeclaim_metrics import disruption_started
from journeyman.core.state.pod_predicates import is_currently_reschedulable, is_reschedulable
from journeyman.core.state.skipped_objects import evaluate, plan_for_each

DRAIN_POLL: Final = timedelta(seconds=10)

DELETED_BEFORE_BLOCK_ENDS: Final = timedelta(minutes=40)
"""Ten minutes before EC2 starts to terminate the instances of a capacity block."""


def expire_nodeclaims(snapshot: Snapshot) -> Plan:
    """Delete every expired NodeClaim; the terminate step drains its node. The pods of those nodes are counted."""
    states, now = snapshot.state_nodes_by_claim, snapshot.now
    return plan_for_each(
        snapshot.claims, lambda c: _expire(c, states[c.metadata.name]) if is_expired(c, now) else Plan()
    )


def replace_expiring(snapshot: Snapshot) -> Plan:
    """Mark nodes that expire soon, so that no pods are bound to them, and provision launches what their pods need."""

    def decide(claim: NodeClaim) -> Plan:
        state, times = snapshot.state_nodes_by_claim[claim.metadata.name], expiration_times(claim)
        in_command = is_true(claim.status.conditions, DISRUPTION_REASON) and not state.is_expiring
        if times is None or in_command or not expires_soon(claim, snapshot.now) or is_expired(claim, snapshot.now):
            return Plan()
        name = claim.metadata.name
        wake = Requeue(step=Step.TERMINATE, at=times.deleted_by, reason=f"NodeClaim {name} expires")
        return Plan(chains=(*_mark(claim, state, times, snapshot.now), chain_of(f"NodeClaim {name}", wake)))

    return plan_for_each(snapshot.claims, decide)


def _mark(claim: NodeClaim, state: StateNode, times: ExpirationTimes, now: datetime) -> tuple[Chain, ...]:
    """Return the patches of NodeClaim and Node; nothing if both are marked, or there is no Node."""
    if state.node is None or state.is_terminating:
        return ()
    progress = NodeClaimProgress.of(claim, now).with_found_node(state.node)
    tainted = with_node(state.node, spec={"taints": with_disrupted_taint(state.node.spec.taints)})
    progress = replace(progress, node=tainted).with_condition(DISRUPTION_REASON, "True", EXPIRED, EXPIRED)
    name, why = claim.metadata.name, f"NodeClaim {claim.metadata.name} expires soon"
    if not progress.chain(why=why).actions:
        return ()
    text = (
        f"Expires at {format_time(times.deleted_by)} at the latest: what its pods need is launched before it is drained"
    )
    events = (Event(ref=ref, reason="Expiring", message=text) for ref in state.object_refs)
    wake = Requeue(
        step=Step.PROVISION, at=now, reason=f"pods of NodeClaim {name}, which expires soon, need another node"
    )
    return (progress.with_events(*events).chain(wake, why=why),)


def drain_replaced(snapshot: Snapshot, existing: Mapping[str, Sequence[str]]) -> Plan:
    """Delete NodeClaims that expire soon and whose pods have capacity on initialized nodes; of each NodePool a few at a time.

    Args:
        snapshot: The cluster, all pods included.
        existing: Verified placements: keys of pods by the name of their node or NodeClaim.
    """
    # by the condition: this run may have initialized a node, and the label is on the Node, which was read before
    ready = (n for n in snapshot.state_nodes if n.ready and (n.initialized or is_true(n.conditions, INITIALIZED)))
    usable = {node.name for node in ready if not node.is_being_disrupted}
    placed = {key for name, keys in existing.items() if name in usable for key in keys}
    left = _drains_left(snapshot)
    plan = Plan()
    for state, times in _expiring(snapshot):
        claim, now = state.claim, snapshot.now
        due = times.deleted_from if times.deleted_from > now else next_requeue(now, DRAIN_POLL)
        has_capacity = evaluate(state, _have_capacity, state, placed, snapshot)
        if claim is None or has_capacity is not True:
            continue
        if now < times.deleted_from or left[state.node_pool] <= 0:
            why = f"NodeClaim {claim.metadata.name} expires soon and waits for its drain"
            plan += Plan(
                chains=(chain_of(f"NodeClaim {claim.metadata.name}", Requeue(step=Step.PROVISION, at=due, reason=why)),)
            )
            continue
        left[state.node_pool] -= 1
        plan += _deleted(
            claim, state, f"expireAfter is {claim.spec.expire_after}, and its pods have capacity elsewhere"
        )
        wake = Requeue(step=Step.TERMINATE, at=now, reason=f"NodeClaim {claim.metadata.name} is replaced")
        plan += Plan(chains=(chain_of(f"NodeClaim {claim.metadata.name}", wake),))
    return plan


def _expiring(snapshot: Snapshot) -> list[tuple[StateNode, ExpirationTimes]]:
    """Return the nodes that are marked and not being deleted, earliest first."""
    found = []
    for state in snapshot.state_nodes_by_claim.values():
        times = expiration_times(state.claim) if state.claim is not None and state.is_expiring else None
        if times is not None and not state.is_terminating:
            found.append((state, times))
    return sorted(found, key=lambda item: (item[1].deleted_by, item[0].name))


def _have_capacity(state: StateNode, placed: set[str], snapshot: Snapshot) -> bool:
    """Whether all pods that need another node were placed on `placed`; False if one of them cannot be evicted now."""
    pods = [pod for pod in state.pods if is_reschedulable(pod)]
    return all(is_currently_reschedulable(pod, snapshot.pdbs, snapshot.now) and pod.key in placed for pod in pods)


def _drains_left(snapshot: Snapshot) -> Counter[str]:
    """Return how many more nodes of each NodePool may be drained now: a tenth of its nodes, rounded up, drain at a time.

    Of a static NodePool, only those go beside which as many nodes as its replicas are initialized.
    """
    own = [n for n in snapshot.state_nodes if n.claim is not None and n.node is not None]
    nodes = Counter(n.node_pool for n in own)
    draining = Counter(n.node_pool for n in own if n.is_terminating)
    staying = Counter(n.node_pool for n in own if not n.is_terminating and is_true(n.conditions, INITIALIZED))
    left = Counter({name: -(-number // 10) - draining[name] for name, number in nodes.items()})
    for pool in snapshot.node_pools:
        if pool.spec.replicas is not None:
            name = pool.metadata.name
            left[name] = min(left[name], staying[name] - pool.spec.replicas)
    return left


def delete_claims_of_ending_blocks(snapshot: Snapshot) -> Plan:
    """Delete NodeClaims on a capacity block that ends soon, so that their nodes are drained before EC2 ends the instances."""
    states = snapshot.state_nodes_by_claim

    def decide(claim: NodeClaim) -> Plan:
        block = ending_block(claim, snapshot)
        return _deleted(claim, states[claim.metadata.name], f"capacity block {block} ends soon") if block else Plan()

    return plan_for_each(snapshot.claims, decide)


def ending_block(claim: NodeClaim, snapshot: Snapshot) -> str:
    """Return the id of the NodeClaim's capacity block if that ends soon; empty if not, or if the claim has a deletionTimestamp."""
    block = claim.metadata.labels.get(labels.RESERVATION_ID, "")
    if not block or claim.metadata.deletion_timestamp is not None:
        return ""
    ends = (node_class.block_ends.get(block) for node_class in snapshot.node_classes)
    return block if any(at is not None and at - snapshot.now <= DELETED_BEFORE_BLOCK_ENDS for at in ends) else ""


def _expire(claim: NodeClaim, state: StateNode) -> Plan:
    return _deleted(claim, state, f"expireAfter is {claim.spec.expire_after}")


def _deleted(claim: NodeClaim, state: StateNode, why: str) -> Plan:
    name = claim.metadata.name
    chain = chain_of(f"NodeClaim {name}", DeleteObject(ref=claim_ref(claim), why=why))
    events = tuple(
        Event(
            ref=ref,
            reason="DisruptionTerminating",
            message=f"Disrupting {ref.resource.kind}: Expired ({why})",
            key="Expired",
        )
        for ref in state.object_refs
    )
    return Plan(
        chains=(replace(chain, events=events, observations=disruption_started(claim, "expired", state.pods)),),
        notes=(f"NodeClaim {name} expired: {why}",),
    )
