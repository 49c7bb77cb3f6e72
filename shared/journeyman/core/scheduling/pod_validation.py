"""Validates pods before scheduling: pods that no node can run get an error, pods that opted out are ignored.

Restates: karpenter pkg/controllers/provisioning/provisioner.go `Validate`, pkg/apis/v1/nodeclaim_validation.go
`ValidateRequirement`, pkg/controllers/provisioning/scheduling/scheduler.go `NewDRAError`.
Differs: fields that the API server validates (a skew of zero, a term without a key, amounts beyond any node) are
validated here too, for pods that no API server has seen; a pod opts out only if all alternatives of its node affinity
do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from journeyman.core.api import labels
from journeyman.core.api.objects import (
    Affinity,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Pod,
    PodAffinityTerm,
    TopologySpreadConstraint,
)
from journeyman.core.scheduling.requirements import InvalidRequirementError, requirement

_QUALIFIED_NAME: Final = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII
)
_LABEL_VALUE: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", re.ASCII)
_CLOSED_SETS: Final[Mapping[str, tuple[str, ...]]] = {
    labels.CAPACITY_TYPE: (labels.ON_DEMAND, labels.SPOT, labels.RESERVED),
    f"{labels.AWS_GROUP}/instance-tenancy": ("default", "dedicated"),
}
_WHEN_UNSATISFIABLE: Final = frozenset({"DoNotSchedule", "ScheduleAnyway"})


def opted_out(pod: Pod) -> bool:
    """Whether every alternative requires a node without `karpenter.sh/nodepool`; such pods are ignored."""
    terms = required_terms(pod.spec.affinity)
    return bool(terms) and all(
        any(e.key == labels.NODEPOOL and e.operator == "DoesNotExist" for e in term.match_expressions) for term in terms
    )


def required_terms(affinity: Affinity | None) -> tuple[NodeSelectorTerm, ...]:
    """Return the alternatives of a required node affinity, without empty ones, which match no node."""
    if affinity is None or affinity.node_affinity is None or affinity.node_affinity.required is None:
        return ()
    terms = affinity.node_affinity.required.node_selector_terms
    return tuple(term for term in terms if term.match_expressions or term.match_fields)


def invalid_selection(
    node_selector: Mapping[str, str], affinity: Affinity | None, *, may_be_restricted: bool = False
) -> str:
    """Return what is wrong with a pod's node selector or required node affinity; empty if it is valid.

    Args:
        node_selector: The pod's node selector.
        affinity: The pod's affinity.
        may_be_restricted: Whether restricted labels are valid: Karpenter adds the virtual pods of CapacityBuffers after
            it validated pods (provisioner.go `Schedule`), so one that selects a host name may run on an existing node.
    """
    terms = required_terms(affinity)
    if any(term.match_fields for term in terms):
        return "node affinity matchFields is not supported"
    if not terms and affinity is not None and affinity.node_affinity is not None and affinity.node_affinity.required:
        return "required node affinity has only empty terms, so it matches no node"
    selectors = [NodeSelectorRequirement(key=k, operator="In", values=(v,)) for k, v in node_selector.items()]
    expressions = (*selectors, *(e for term in terms for e in term.match_expressions))
    return next((reason for e in expressions if (reason := _invalid_expression(e, may_be_restricted))), "")


def _invalid_expression(expression: NodeSelectorRequirement, may_be_restricted: bool) -> str:
    key = labels.ALIASES.get(expression.key, expression.key)
    if not _QUALIFIED_NAME.fullmatch(key):
        return f"{key!r} is not a valid label key"
    if not may_be_restricted and labels.is_restricted(key):
        return f"label {key} is restricted: pods cannot select nodes by it"
    try:
        requirement(key, expression.operator, expression.values)
    except InvalidRequirementError as error:
        return error.message
    bad = next((v for v in expression.values if not _LABEL_VALUE.fullmatch(v)), None)
    if bad is not None:
        return f"{key}: {bad!r} is not a valid label value"
    known = _CLOSED_SETS.get(key)
    if known is not None and expression.operator == "In" and not set(known) & set(expression.values):
        return f"{key}: none of {list(expression.values)} is one of its values ({', '.join(known)})"
    return ""


def invalid_rules(constraints: Iterable[TopologySpreadConstraint], affinity: Affinity | None) -> str:
    """Return what is wrong with a pod's spread constraints or pod (anti-)affinity; empty if they are valid."""
    reasons = (*map(_invalid_spread, constraints), *map(_invalid_term, pod_terms(affinity)))
    return next((reason for reason in reasons if reason), "")


def _invalid_spread(constraint: TopologySpreadConstraint) -> str:
    if not _QUALIFIED_NAME.fullmatch(constraint.topology_key):
        return f"topology spread: topologyKey {constraint.topology_key!r} is not a valid label key"
    if constraint.when_unsatisfiable not in _WHEN_UNSATISFIABLE:
        wrong = f"whenUnsatisfiable {constraint.when_unsatisfiable!r}"
        return f"topology spread: {wrong} is not DoNotSchedule or ScheduleAnyway"
    if constraint.max_skew < 1 or (constraint.min_domains is not None and constraint.min_domains < 1):
        return "topology spread: maxSkew and minDomains must be at least 1"
    return ""


def pod_terms(affinity: Affinity | None) -> tuple[PodAffinityTerm, ...]:
    """Return the required and preferred terms of pod affinity and anti-affinity."""
    if affinity is None:
        return ()
    rules = [rule for rule in (affinity.pod_affinity, affinity.pod_anti_affinity) if rule is not None]
    return tuple(t for rule in rules for t in (*rule.required, *(w.pod_affinity_term for w in rule.preferred)))


def _invalid_term(term: PodAffinityTerm) -> str:
    if not _QUALIFIED_NAME.fullmatch(term.topology_key):
        return f"pod affinity: topologyKey {term.topology_key!r} is not a valid label key"
    return ""


def has_resource_claims(pod: Pod) -> bool:
    """Whether the pod, or one of its containers, uses a ResourceClaim.

    Restates: karpenter pkg/utils/pod/scheduling.go `HasDRARequirements`.
    """
    spec = pod.spec
    return bool(spec.resource_claims) or any(c.resources.claims for c in (*spec.containers, *spec.init_containers))


CLAIMS_ARE_IGNORED: Final = (
    "pod has Dynamic Resource Allocation requirements (resource claims), which are ignored unless "
    "IGNORE_DRA_REQUESTS is false"
)
"""The error for a pod with ResourceClaims while they are ignored."""


def unlisted_claim(pod: Pod) -> str:
    """Return the error for a container whose resource claim the pod does not list; empty if all are listed."""
    spec = pod.spec
    used = () if spec.resource_claims else (*spec.containers, *spec.init_containers)
    name = next((claim.get("name", "") for c in used for claim in c.resources.claims), None)
    return "" if name is None else f"a container uses {name!r}, which is not among the pod's resourceClaims"
