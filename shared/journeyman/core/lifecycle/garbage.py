"""Garbage: instances that no NodeClaim stands for, and NodeClaims whose instance is gone.

Restates: karpenter pkg/controllers/nodeclaim/garbagecollection/controller.go; karpenter-provider-aws
pkg/controllers/nodeclaim/garbagecollection/controller.go.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Protocol

from msgspec.structs import replace

from journeyman.core.api.objects import NodeClaim, is_true
from journeyman.core.lifecycle.explain import disrupted
from journeyman.core.lifecycle.progress import claim_ref, node_ref
from journeyman.core.plan import Action, DeleteObject, Plan, Step, TerminateInstance, Wake, merged, one
from journeyman.core.state import Snapshot


class RunningInstance(Protocol):
    """What the cloud says of an instance it runs for this cluster (`ports.Instance`)."""

    @property
    def provider_id(self) -> str:
        """The cloud's id."""

    @property
    def launched_at(self) -> datetime:
        """When it was launched."""

    @property
    def claim(self) -> str:
        """The NodeClaim it was launched for, from its tag; empty if unknown."""


def collect(snapshot: Snapshot, instances: Iterable[RunningInstance], orphan_age: timedelta) -> Plan:
    """Terminate orphans, and delete claims that lost their instance.

    Args:
        snapshot: Claims and nodes, read before the instances were listed.
        instances: All live instances of the cluster.
        orphan_age: How old an instance must be before a missing claim means anything.
    """
    live = sorted(instances, key=lambda i: i.provider_id)
    return orphans(snapshot, live, orphan_age) + lost(snapshot, frozenset(i.provider_id for i in live))


def orphans(snapshot: Snapshot, instances: Iterable[RunningInstance], orphan_age: timedelta) -> Plan:
    """Terminate instances without a claim, their nodes with them.

    An instance whose tag names a claim that has no instance yet is not an orphan: its launch was cut off before the
    claim's status was written, and the next launch finds it.
    """
    known = {c.status.provider_id for c in snapshot.claims if c.status.provider_id}
    known |= {n.provider_id for n in snapshot.state_nodes if n.managed}  # a claim's own may have been edited away
    awaiting = {c.metadata.name for c in snapshot.claims if not c.status.provider_id}
    return merged(
        _terminate_orphan(instance, snapshot)
        for instance in instances
        if instance.provider_id not in known
        and instance.claim not in awaiting
        and snapshot.now - instance.launched_at > orphan_age
    )


def lost(snapshot: Snapshot, live: frozenset[str]) -> Plan:
    """Delete registered claims whose instance is not live any more and whose node is missing or not Ready."""
    return merged(_delete_lost(claim, snapshot) for claim in snapshot.claims if is_lost(claim, snapshot, live))


def is_lost(claim: NodeClaim, snapshot: Snapshot, live: frozenset[str]) -> bool:
    """Whether the claim's instance went away under it."""
    state = snapshot.state_nodes_by_claim[claim.metadata.name]
    if claim.metadata.deletion_timestamp is not None or state.provider_id in live:
        return False
    return is_true(claim.status.conditions, "Registered") and not state.ready


def _terminate_orphan(instance: RunningInstance, snapshot: Snapshot) -> Plan:
    why = "no NodeClaim stands for this instance"
    actions: tuple[Action, ...] = (
        TerminateInstance(provider_id=instance.provider_id, claim=instance.claim, why=why),
        *(
            DeleteObject(ref=node_ref(node), why=why)
            for node in snapshot.nodes
            if node.spec.provider_id == instance.provider_id
        ),
    )
    note = f"terminated instance {instance.provider_id}: {why}"
    return Plan(chains=(one(f"instance {instance.provider_id}", *actions),), notes=(note,))


def _delete_lost(claim: NodeClaim, snapshot: Snapshot) -> Plan:
    name = claim.metadata.name
    why = f"instance {claim.status.provider_id} is gone"
    chain = one(
        f"NodeClaim {name}",
        DeleteObject(ref=claim_ref(claim), why=why),
        Wake(step=Step.PROVISION, at=snapshot.now, reason=f"NodeClaim {name}: {why}"),
    )
    counted = replace(chain, observations=(disrupted(claim, "garbage_collected"),))
    return Plan(chains=(counted,), notes=(f"deleted NodeClaim {name}: {why}",))
