"""The Drifted condition: a node differs from what its NodePool and NodeClass ask for now.

The first of these that applies is the condition's reason:

====================  =============================================================================================
NodePoolDrifted       the NodePool's template changed: its hash differs, and both hashes have the same version
RequirementsDrifted   the NodeClaim's labels do not meet the NodePool's requirements any more
InstanceTypeNotFound  after an hour: the NodeClass has no such instance type any more, or not in this zone and capacity type
the cloud's reason    `CloudProvider.is_drifted`: NodeClassDrift, SubnetDrift, …
====================  =============================================================================================

An unknown answer of the cloud leaves the condition as it is. Nothing else is remembered: the condition says since when, and
every run evaluates all NodeClaims.

Restates: karpenter pkg/controllers/nodeclaim/disruption/drift.go `Reconcile`, `isDrifted`, `instanceTypeNotFound`,
`areStaticFieldsDrifted`, `areRequirementsDrifted`.
Differs: the NodePool's hash is computed, and not read from its annotation, which may be older than its spec. The instance
type is looked up in every run, since that costs no request. A zone and capacity type in which no instance type at all is
offered says nothing: its prices could not be read, or the NodeClass left the zone, which the cloud reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.conditions import DRIFTED, LAUNCHED, ConditionSet
from journeyman.core.api.hashes import NODEPOOL_KEYS, node_pool_hash_annotations
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import Condition, NodeClaim, condition_of, is_true
from journeyman.core.catalogue import Catalogue, InstanceType
from journeyman.core.plan import LogLine, PatchObject, Plan, chain_of, claim_ref
from journeyman.core.scheduling import requirements as algebra
from journeyman.core.scheduling.requirements import Requirements
from journeyman.core.state import Snapshot
from journeyman.core.state.condition_transitions import with_transitions
from journeyman.core.state.skipped_objects import SkippedObject, evaluate_each, plan_for_each, report_skipped

NODEPOOL_DRIFTED: Final = "NodePoolDrifted"
REQUIREMENTS_DRIFTED: Final = "RequirementsDrifted"
INSTANCE_TYPE_NOT_FOUND: Final = "InstanceTypeNotFound"

TYPE_CHECKED_AFTER: Final = timedelta(hours=1)  # drift.go: no instance type check before


class _Wanted(Struct, frozen=True, kw_only=True):
    """What a NodePool asks of its nodes; `types` by name are empty if they are unknown."""

    hashes: Mapping[str, str]
    requirements: Requirements
    types: Mapping[str, InstanceType]
    offered: frozenset[tuple[str, str]]  # zones and capacity types of any instance type


class _Finding(Struct, frozen=True, kw_only=True):
    """One NodeClaim: since when it has drifted, None if it has not; and the reason to write, empty to remove the condition."""

    claim: NodeClaim
    now: datetime
    since: datetime | None
    new_reason: str | None = None  # None if the condition stays as it is


class DriftAssessment(Struct, frozen=True, kw_only=True):
    """Since when NodeClaims (by name) have drifted, and what `plan` writes: the conditions that changed."""

    since: Mapping[str, datetime]
    findings: tuple[_Finding, ...]
    skipped: tuple[SkippedObject, ...]

    @property
    def changed(self) -> frozenset[str]:
        """Names of the NodeClaims whose conditions the plan writes."""
        return frozenset(finding.claim.metadata.name for finding in self.findings)

    def plan(self) -> Plan:
        """Return the plan with one chain for each NodeClaim whose condition changed."""
        return report_skipped(self.skipped) + plan_for_each(self.findings, _plan, about=lambda f: f.claim)


def assess_drift(
    snapshot: Snapshot,
    catalogue: Catalogue,
    cloud_reasons: Mapping[str, str],
    without_writes: frozenset[str] = frozenset(),
) -> DriftAssessment:
    """Return which NodeClaims have drifted at `snapshot.now`.

    Args:
        snapshot: The cluster's NodeClaims and NodePools.
        catalogue: The instance types of each NodePool, unavailable offerings included; none if they could not be listed.
        cloud_reasons: The answer of `CloudProvider.is_drifted`; empty if the cloud could not answer.
        without_writes: Names of NodeClaims whose conditions this run writes elsewhere: the plan leaves them out.
    """
    pools, invalid = evaluate_each(snapshot.node_pools, lambda pool: (pool.metadata.name, _wanted(pool, catalogue)))
    wanted = dict(pools)

    def assess(claim: NodeClaim) -> _Finding | None:
        pool = wanted.get(claim.metadata.labels.get(labels.NODEPOOL, ""))
        if claim.metadata.deletion_timestamp is not None or pool is None:
            return None
        return _assess(claim, pool, cloud_reasons.get(claim.metadata.name), snapshot.now)

    found, skipped = evaluate_each(snapshot.claims, assess)
    findings = [one for one in found if one is not None]
    return DriftAssessment(
        since={f.claim.metadata.name: f.since for f in findings if f.since is not None},
        findings=tuple(f for f in findings if f.new_reason is not None and f.claim.metadata.name not in without_writes),
        skipped=(*invalid, *skipped),
    )


def drifted_since(snapshot: Snapshot) -> Mapping[str, datetime]:
    """Return since when NodeClaims (by name) have drifted, as their conditions say."""
    since = {
        claim.metadata.name: _since(condition_of(claim.status.conditions, DRIFTED), snapshot.now)
        for claim in snapshot.claims
    }
    return {name: at for name, at in since.items() if at is not None}


def _since(condition: Condition | None, now: datetime) -> datetime | None:
    if condition is None or condition.status != "True":
        return None
    return condition.last_transition_time or now


def _wanted(pool: NodePool, catalogue: Catalogue) -> _Wanted:
    types = catalogue.instance_types(pool.metadata.name)
    return _Wanted(
        hashes=node_pool_hash_annotations(pool),
        requirements=algebra.from_selectors(pool.spec.template.spec.requirements),
        types={t.name: t for t in types},
        offered=frozenset((o.zone, o.capacity_type) for t in types for o in t.offerings),
    )


def _assess(claim: NodeClaim, pool: _Wanted, cloud_reason: str | None, now: datetime) -> _Finding:
    """Return the NodeClaim's condition now; it stays as it is if it is unknown whether the NodeClaim has drifted."""
    before = condition_of(claim.status.conditions, DRIFTED)
    is_launched = is_true(claim.status.conditions, LAUNCHED)
    since = _since(before, now)
    reason = _reason(claim, pool, cloud_reason, now) if is_launched else ""
    if reason is None or (not reason and before is None):
        return _Finding(claim=claim, now=now, since=since)
    if not reason:
        return _Finding(claim=claim, now=now, since=None, new_reason="")
    is_same = before is not None and since is not None and before.reason == reason
    return _Finding(claim=claim, now=now, since=since or now, new_reason=None if is_same else reason)


def _reason(claim: NodeClaim, pool: _Wanted, cloud_reason: str | None, now: datetime) -> str | None:
    """Return why a launched NodeClaim has drifted; empty if it has not, None if that is unknown."""
    if NODEPOOL_KEYS.differ(pool.hashes, claim.metadata.annotations):
        return NODEPOOL_DRIFTED
    if not _meets(claim, pool.requirements):
        return REQUIREMENTS_DRIFTED
    created = claim.metadata.creation_timestamp
    if created is not None and now - created > TYPE_CHECKED_AFTER:
        if not pool.types:
            return None
        if _is_type_gone(claim, pool):
            return INSTANCE_TYPE_NOT_FOUND
    return cloud_reason


def _meets(claim: NodeClaim, requirements: Requirements) -> bool:
    """Whether the NodeClaim's labels meet the requirements: with a value that is allowed, or without the label if that is."""
    values = claim.metadata.labels
    return all(
        wanted.has(values[key]) if key in values else wanted.allows_absence for key, wanted in requirements.items()
    )


def _is_type_gone(claim: NodeClaim, pool: _Wanted) -> bool:
    """Whether the instance type, or every offering of it that the NodeClaim may have, does not exist any more.

    A node whose capacity reservation has ended may still be labelled as reserved, so it may be on-demand as well.
    """
    instance_type = pool.types.get(claim.metadata.labels.get(labels.INSTANCE_TYPE, ""))
    if instance_type is None:
        return True
    zone, capacity_type = (claim.metadata.labels.get(key, "") for key in (labels.ZONE, labels.CAPACITY_TYPE))
    capacity_types = {labels.RESERVED, labels.ON_DEMAND} if capacity_type == labels.RESERVED else {capacity_type}

    def is_meant(offered: tuple[str, str]) -> bool:
        return (not zone or offered[0] == zone) and (not capacity_type or offered[1] in capacity_types)

    if any(is_meant((offering.zone, offering.capacity_type)) for offering in instance_type.offerings):
        return False
    return any(map(is_meant, pool.offered))


def _plan(finding: _Finding) -> Plan:
    claim, now, reason = finding.claim, finding.now, finding.new_reason
    before, conditions = claim.status.conditions, ConditionSet.of_claim(claim, now)
    after = conditions.set_true(DRIFTED, now, reason, reason) if reason else conditions.clear(DRIFTED)
    text = "marking drifted" if reason else "removing drifted status condition, not drifted"
    fields: dict[str, Any] = {"NodeClaim": {"name": claim.metadata.name}} | ({"reason": reason} if reason else {})
    patch = PatchObject(
        ref=claim_ref(claim),
        patch={"status": {"conditions": after.to_wire()}},
        why=text,
        resource_version=claim.metadata.resource_version,
        subresource="status",
    )
    chain = chain_of(f"NodeClaim {claim.metadata.name}", patch)
    chain = with_transitions(chain, claim_ref(claim), claim.metadata.labels, before, after.conditions)
    return Plan(chains=(chain,), logs=(LogLine(level="debug", message=text, fields=fields),))
