"""How a planned NodeClaim may turn out: every instance type and offering that its requirements leave open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from journeyman.core.api import labels
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import DaemonSet, NodeSelectorRequirement, Pod
from journeyman.core.api.resources import pod_requests
from journeyman.core.catalogue import Catalogue, InstanceType, Offering
from journeyman.core.scheduling.results import PlannedClaim
from journeyman.core.scheduling.verify.matching import Outcome, accepts_labels, holds, untolerated


def possible_outcomes(
    pool: NodePool, catalogue: Catalogue, claim: PlannedClaim
) -> Iterator[tuple[InstanceType, Offering, Outcome]]:
    """All (type, available offering, labels) that a launch of this claim may end in, whatever types the plan lists."""
    named = [set(r.values) for r in claim.requirements if r.key == labels.INSTANCE_TYPE and r.operator == "In"]
    for instance_type in catalogue.instance_types(pool.metadata.name):
        if not all(instance_type.name in names for names in named):
            continue
        for offering in instance_type.offerings:
            if offering.available:
                outcome = outcome_of(pool, instance_type, offering, claim.requirements)
                if all(_admits(requirement, outcome) for requirement in claim.requirements):
                    yield instance_type, offering, outcome


def outcome_of(
    pool: NodePool,
    instance_type: InstanceType,
    offering: Offering,
    requirements: tuple[NodeSelectorRequirement, ...] = (),
) -> Outcome:
    """Labels a node of this pool, type and offering comes up with."""
    template = pool.spec.template
    outcome: dict[str, frozenset[str]] = {key: frozenset({value}) for key, value in template.metadata.labels.items()}
    outcome[labels.NODEPOOL] = frozenset({pool.metadata.name})
    ref = template.spec.node_class_ref
    outcome[f"{ref.group}/{ref.kind.lower()}"] = frozenset({ref.name})
    for requirement in instance_type.requirements:
        if requirement.operator == "In":
            outcome[requirement.key] = frozenset(requirement.values)
    outcome[labels.ZONE] = frozenset({offering.zone})
    outcome[labels.CAPACITY_TYPE] = frozenset({offering.capacity_type})
    for requirement in offering.requirements:
        if requirement.operator == "In":
            outcome[requirement.key] = frozenset(requirement.values)
    for requirement in requirements:
        if requirement.operator == "In" and requirement.key not in outcome:
            outcome[requirement.key] = frozenset(requirement.values)  # a custom label that the claim will carry
    return outcome


def _admits(requirement: NodeSelectorRequirement, outcome: Outcome) -> bool:
    """Whether a claim with this requirement may launch this: a label nobody defines does not hinder a launch."""
    if requirement.key not in outcome and requirement.operator not in {"In", "Exists"}:
        return True
    return holds(requirement, outcome)


def daemon_overhead(daemon_sets: tuple[DaemonSet, ...], pool: NodePool, outcome: Outcome) -> Mapping[str, int]:
    """What the DaemonSets that will run on such a node take."""
    total: dict[str, int] = {}
    for daemon_set in daemon_sets:
        template = daemon_set.spec.template
        pod = Pod(metadata=template.metadata, spec=template.spec)
        if untolerated(pod, pool.spec.template.spec.taints) is None and accepts_labels(pod, outcome):
            for name, amount in pod_requests(pod).items():
                total[name] = total.get(name, 0) + amount
    return total


def pool_admits(pool: NodePool, outcome: Outcome) -> bool:
    """Whether a node with these labels keeps the pool's requirements; labels that nobody defines are left to the claim."""
    return all(
        holds(requirement, outcome)
        for requirement in pool.spec.template.spec.requirements
        if requirement.key in outcome
    )
