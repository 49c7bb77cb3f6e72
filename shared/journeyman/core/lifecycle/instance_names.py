"""Names instances on AWS after their Nodes once these registered: the tag `Name`, which EC2's console shows.

Restates: karpenter-provider-aws pkg/controllers/nodeclaim/tagging/controller.go `Reconcile`.
Differs: NodeClaim and cluster are tags from the launch on. Nothing is read: a `Name` among the NodeClass's tags stays.
"""

from __future__ import annotations

from typing import Final

from journeyman.core.api import labels
from journeyman.core.api.conditions import REGISTERED
from journeyman.core.api.objects import NodeClaim, is_true
from journeyman.core.plan import Chain, NameInstance, PatchObject, Plan, chain_of, claim_ref
from journeyman.core.state import Snapshot

MAX_NAMES: Final = 50
"""Instances that one run names, each with one request; later runs name the others."""
NAME_TAG: Final = "Name"


def name_instances(snapshot: Snapshot) -> Plan:
    """Return the plan that names the instances of registered NodeClaims, and records in an annotation that it did."""
    own_names = {
        (each.group, each.kind, each.name)
        for each in snapshot.node_classes
        if NAME_TAG in ((each.raw.get("spec") or {}).get("tags") or {})
    }
    due = sorted((c for c in snapshot.claims if _is_due(c)), key=lambda c: c.metadata.name)
    unnamed = [c for c in due if _class_of(c) not in own_names]
    return Plan(chains=tuple(_chain(claim) for claim in unnamed[:MAX_NAMES]))


def _is_due(claim: NodeClaim) -> bool:
    metadata, status = claim.metadata, claim.status
    return (
        claim.spec.node_class_ref.group == labels.AWS_GROUP
        and metadata.deletion_timestamp is None
        and metadata.annotations.get(labels.TAGGED) != "true"
        and bool(status.node_name and status.provider_id)
        and is_true(status.conditions, REGISTERED)
    )


def _class_of(claim: NodeClaim) -> tuple[str, str, str]:
    ref = claim.spec.node_class_ref
    return (ref.group, ref.kind, ref.name)


def _chain(claim: NodeClaim) -> Chain:
    name = NameInstance(provider_id=claim.status.provider_id, name=claim.status.node_name, why="its node registered")
    patch = {"metadata": {"annotations": {labels.TAGGED: "true"}}}
    record = PatchObject(ref=claim_ref(claim), patch=patch, why="its instance has the node's name")
    return chain_of(f"NodeClaim {claim.metadata.name}", name, record)
