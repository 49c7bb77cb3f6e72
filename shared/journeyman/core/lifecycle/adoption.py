"""Adoption: creates the NodeClaim of an instance again that has lost it, so that its pods run on.

NodeClaims are wiped by accident, or missing from a backup from which the API server was restored. The instance's tags have the
NodeClaim's name, its Node has the labels, annotations and taints that registration wrote, and the NodePool has the rest:

=============  ==========================================================================================
name           as in the instance's tag, or as the Node names its owner, unless it was given again since
spec           the NodePool's template, with the instance type, zone and capacity type in the Node's labels
hashes         those of the Node, so that a node that was up to date has not drifted
conditions     Launched; Registered and Initialized as the Node's labels say
=============  ==========================================================================================

The annotation `adopted` names the instance from the first write on: a run that crashes before it wrote the status launches nothing.
A Node that Kubernetes has deleted since, because its owner did not exist, is kept by our finalizer (`StateNode.is_held`).
Karpenter terminates such instances.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from journeyman.core.api import labels
from journeyman.core.api.conditions import INITIALIZED, LAUNCHED, REGISTERED, to_wire
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import NODECLAIM, Node, NodeClaim, NodeClaimStatus
from journeyman.core.lifecycle.drain import REQUEUE_MARGIN
from journeyman.core.lifecycle.progress import NodeClaimProgress
from journeyman.core.plan import (
    Chain,
    CreateObject,
    Event,
    ObjectRef,
    Observation,
    PatchObject,
    Plan,
    Requeue,
    Step,
    node_ref,
)
from journeyman.core.scheduling.nodeclaim_templates import adopted_spec, claim_name
from journeyman.core.state import Snapshot
from journeyman.core.state.instances import NOT_RUNNING_STATES, RunningInstance
from journeyman.core.state.skipped_objects import plan_for_each

Adoptable = tuple[RunningInstance, Node, NodePool]

_LABELS_OF_NODES: Final = frozenset(
    {labels.HOSTNAME, labels.REGISTERED, labels.INITIALIZED, labels.DO_NOT_SYNC_TAINTS, labels.EXCLUDE_BALANCERS}
)
_COPIED_ANNOTATIONS: Final = (
    f"{labels.GROUP}/",
    f"{labels.AWS_GROUP}/",
    f"{labels.ALIBABA_GROUP}/",
    f"{labels.ACS_GROUP}/",
    f"{labels.HUAWEI_GROUP}/",
)


def adoptable(snapshot: Snapshot, orphans: Iterable[RunningInstance]) -> Iterator[Adoptable]:
    """Yield the instances whose NodeClaim can be created again, each with its Node and NodePool.

    Its Node must have joined and not be draining, and its NodePool must exist and not be deleted. No other NodeClaim may have the
    name, unless it has another UID than the one in the instance's tags: then the name was given again, and this instance gets another
    one. An instance without a Node runs no pods; it waits for its kubelet to register again.
    """
    for instance in orphans:
        nodes = [n for n in snapshot.state_nodes if n.node is not None and n.provider_id == instance.provider_id]
        if len(nodes) != 1 or instance.state in NOT_RUNNING_STATES or not nodes[0].may_be_adopted:
            continue
        node = nodes[0].node
        assert node is not None  # noqa: S101 - looked at above
        pool = snapshot.node_pools_by_name.get(instance.node_pool or node.metadata.labels.get(labels.NODEPOOL, ""))
        if pool is None or pool.metadata.deletion_timestamp is not None:
            continue
        if any(_is_free(name, instance, snapshot) for name in _names(instance, node, pool, snapshot)):
            yield instance, node, pool


def adopt_instances(snapshot: Snapshot, orphans: Iterable[RunningInstance]) -> Plan:
    """Create the NodeClaims of instances again that have lost them.

    Args:
        snapshot: NodeClaims, Nodes and NodePools.
        orphans: Instances without a NodeClaim.
    """
    found = {instance.provider_id: (instance, node, pool) for instance, node, pool in adoptable(snapshot, orphans)}
    states = [n for n in snapshot.state_nodes if n.node is not None and n.provider_id in found]
    return plan_for_each(states, lambda state: _adopt(*found[state.provider_id], snapshot))


def _adopt(instance: RunningInstance, node: Node, pool: NodePool, snapshot: Snapshot) -> Plan:
    now = snapshot.now
    name = next(name for name in _names(instance, node, pool, snapshot) if _is_free(name, instance, snapshot))
    body = _manifest(name, instance, node, pool)
    why = f"instance {instance.provider_id} has lost its NodeClaim"
    claim = msgspec.convert({**body, "metadata": {**body["metadata"], "generation": 1}}, NodeClaim)
    ref = ObjectRef(resource=NODECLAIM, name=name)
    text = f"NodeClaim {name} of instance {instance.provider_id} did not exist any more; it was created again, and the pods of Node {node.metadata.name} run on"
    chain = Chain(
        subject=f"NodeClaim {name}",
        actions=(
            CreateObject(resource=NODECLAIM, body=body, why=why),
            PatchObject(ref=ref, patch={"status": _status(claim, instance, node, now)}, why=why, subresource="status"),
            Requeue(step=Step.TERMINATE, at=now + REQUEUE_MARGIN, reason=f"NodeClaim {name} was adopted"),
            Requeue(step=Step.PROVISION, at=now + REQUEUE_MARGIN, reason=f"NodeClaim {name} was adopted"),
        ),
        events=tuple(
            Event(ref=of, reason="NodeClaimAdopted", message=text, type="Warning") for of in (ref, node_ref(node))
        ),
        observations=(
            Observation(name="journeyman_nodeclaims_adopted_total", labels={"nodepool": pool.metadata.name}),
        ),
    )
    return Plan(chains=(chain,), notes=(text,))


def _names(instance: RunningInstance, node: Node, pool: NodePool, snapshot: Snapshot) -> Iterator[str]:
    """Yield the NodeClaim's possible names: of the instance's tag, else as the Node names its owner; else one made of the provider id.

    A further instance of a NodeClaim that exists has none, unless its Node has another owner: a user has edited the tags.
    """
    owner = next((o for o in node.metadata.owner_references if o.kind == NODECLAIM.kind), None)
    own = instance.claim or (owner.name if owner is not None else "")
    if own:
        yield own
    taken = snapshot.claims_by_name.get(own)
    if (
        taken is None
        or instance.claim_uid not in ("", taken.metadata.uid)
        or (owner is not None and owner.uid != taken.metadata.uid)
    ):
        yield claim_name(pool.metadata.name, "adopted", (instance.provider_id,))


def _is_free(name: str, instance: RunningInstance, snapshot: Snapshot) -> bool:
    """Whether no NodeClaim has the name, or one that an earlier run created for this instance."""
    taken = snapshot.claims_by_name.get(name)
    return taken is None or taken.metadata.annotations.get(labels.ADOPTED) == instance.provider_id


def _manifest(name: str, instance: RunningInstance, node: Node, pool: NodePool) -> dict[str, Any]:
    """Return the NodeClaim. Its annotations are Karpenter's on the Node, where registration copied them, with the hashes."""
    meta = node.metadata
    copied = {key: value for key, value in meta.annotations.items() if key.startswith(_COPIED_ANNOTATIONS)}
    copied.pop(labels.TERMINATION_TIMESTAMP, None)
    own = {
        key: value for key, value in meta.labels.items() if key not in _LABELS_OF_NODES and not key.startswith("beta.")
    }
    owner = {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "name": pool.metadata.name,
        "uid": pool.metadata.uid,
        "blockOwnerDeletion": True,
    }
    return {
        "apiVersion": NODECLAIM.api_version,
        "kind": NODECLAIM.kind,
        "metadata": {
            "name": name,
            "labels": {**own, labels.NODEPOOL: pool.metadata.name},
            "annotations": {**copied, labels.ADOPTED: instance.provider_id},
            "finalizers": [labels.TERMINATION_FINALIZER],
            "ownerReferences": [owner],
        },
        "spec": adopted_spec(pool, meta.labels),
    }


def _status(claim: NodeClaim, instance: RunningInstance, node: Node, now: datetime) -> Mapping[str, Any]:
    """Return the status: as launched, and registered and initialized as the Node's labels say."""
    is_registered = node.metadata.labels.get(labels.REGISTERED) == "true"
    is_initialized = is_registered and node.metadata.labels.get(labels.INITIALIZED) == "true"
    progress = NodeClaimProgress.of(claim, now).with_condition(LAUNCHED, "True")
    for type_, holds in ((REGISTERED, is_registered), (INITIALIZED, is_initialized)):
        progress = progress.with_condition(type_, "True") if holds else progress
    status = NodeClaimStatus(
        provider_id=instance.provider_id,
        node_name=node.metadata.name if is_registered else "",
        image_id=instance.image_id,
        capacity=node.status.capacity,
        allocatable=node.status.allocatable,
    )
    wire = msgspec.to_builtins(status)
    return {**wire, "conditions": to_wire(progress.claim.status.conditions)}
