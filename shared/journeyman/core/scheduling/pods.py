"""Which pods a decision is about: provisionable, active, reschedulable, disruptable; and which ask for the impossible.

Restates: karpenter pkg/utils/pod/scheduling.go, pkg/utils/pdb/pdb.go, pkg/controllers/provisioning/provisioner.go
`Validate`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from journeyman.core.api import labels
from journeyman.core.api.objects import (
    LabelSelector,
    LabelSelectorRequirement,
    NodeSelectorRequirement,
    Pod,
    PodDisruptionBudget,
    condition_of,
    is_true,
)
from journeyman.core.scheduling.requirements import InvalidRequirementError, requirement

_QUALIFIED_NAME: Final = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII
)
_LABEL_VALUE: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", re.ASCII)
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|h|m|s)", re.ASCII)
_DURATION_SECONDS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_CAPACITY_TYPES: Final = frozenset({labels.ON_DEMAND, labels.SPOT, labels.RESERVED})
_SPREAD_KEYS: Final = frozenset({labels.ZONE, labels.HOSTNAME})


def is_terminal(pod: Pod) -> bool:
    """Whether it has run to its end."""
    return pod.status.phase in {"Succeeded", "Failed"}


def is_terminating(pod: Pod) -> bool:
    """Whether it is being deleted."""
    return pod.metadata.deletion_timestamp is not None


def is_active(pod: Pod) -> bool:
    """Whether it neither ended nor is being deleted."""
    return not is_terminal(pod) and not is_terminating(pod)


def is_owned_by(pod: Pod, kind: str, group: str) -> bool:
    """Whether an owner of that kind is among its owner references; `group` "" is the core group."""
    prefix = f"{group}/" if group else "v1"
    return any(o.kind == kind and o.api_version.startswith(prefix) for o in pod.metadata.owner_references)


def is_owned_by_daemon_set(pod: Pod) -> bool:
    """Whether a DaemonSet made it."""
    return is_owned_by(pod, "DaemonSet", "apps")


def is_owned_by_node(pod: Pod) -> bool:
    """Whether it is the mirror of a static pod."""
    return is_owned_by(pod, "Node", "")


def is_provisionable(pod: Pod) -> bool:
    """Whether kube-scheduler found no node for it and a new node may help."""
    scheduled = condition_of(pod.status.conditions, "PodScheduled")
    return (
        scheduled is not None
        and scheduled.reason == "Unschedulable"
        and not pod.spec.node_name
        and not pod.status.nominated_node_name
        and is_active(pod)
        and not is_owned_by_daemon_set(pod)
        and not is_owned_by_node(pod)
    )


def is_reschedulable(pod: Pod) -> bool:
    """Whether it will need another place when its node goes (a StatefulSet's pod even while it terminates)."""
    comes_back = is_active(pod) or (
        is_terminating(pod) and not is_terminal(pod) and is_owned_by(pod, "StatefulSet", "apps")
    )
    return comes_back and not is_owned_by_daemon_set(pod) and not is_owned_by_node(pod)


def is_disruptable(pod: Pod, now: datetime) -> bool:
    """Whether no active `karpenter.sh/do-not-disrupt` protects it ("true", or a duration counted from its start)."""
    value = pod.metadata.annotations.get(labels.DO_NOT_DISRUPT, "")
    if value == "true":
        return False
    protection = parse_duration(value)
    if protection is None or protection <= timedelta(0) or pod.status.start_time is None:
        return True
    return now >= pod.status.start_time + protection


def parse_duration(text: str) -> timedelta | None:
    """A Go duration such as `1h30m`; None if it is none."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return timedelta(seconds=sum(float(number) * _DURATION_SECONDS[unit] for number, unit in parts))


def is_currently_reschedulable(pod: Pod, pdbs: Iterable[PodDisruptionBudget], now: datetime) -> bool:
    """Whether it is worth planning a new place now: it will come back, and nothing keeps it where it is for good."""
    return is_reschedulable(pod) and is_disruptable(pod, now) and not is_fully_blocked(pod, pdbs)


def is_fully_blocked(pod: Pod, pdbs: Iterable[PodDisruptionBudget]) -> bool:
    """Whether PodDisruptionBudgets forbid its eviction whatever happens: one allows none ever, or several match."""
    matching = [
        p
        for p in pdbs
        if p.metadata.namespace == pod.metadata.namespace and selects(p.spec.selector, pod.metadata.labels)
    ]
    if len(matching) > 1:
        return True
    return any(_allows_none(pdb) and not _exempts(pdb, pod) for pdb in matching)


def _allows_none(pdb: PodDisruptionBudget) -> bool:
    return str(pdb.spec.max_unavailable) in {"0", "0%"} or str(pdb.spec.min_available) == "100%"


def _exempts(pdb: PodDisruptionBudget, pod: Pod) -> bool:
    return pdb.spec.unhealthy_pod_eviction_policy == "AlwaysAllow" and not is_true(pod.status.conditions, "Ready")


def selects(selector: LabelSelector | None, values: Mapping[str, str]) -> bool:
    """Whether a label selector selects these labels; none selects nothing, an empty one everything."""
    if selector is None:
        return False
    return all(values.get(key) == value for key, value in selector.match_labels.items()) and all(
        _expression_holds(expression, values) for expression in selector.match_expressions
    )


def _expression_holds(expression: LabelSelectorRequirement, values: Mapping[str, str]) -> bool:
    value = values.get(expression.key)
    match expression.operator:
        case "In":
            return value in expression.values
        case "NotIn":
            return value not in expression.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            return False


def opted_out(pod: Pod) -> bool:
    """Whether it asks for a node without `karpenter.sh/nodepool`, so that it is silently none of our business."""
    return any(e.key == labels.NODEPOOL and e.operator == "DoesNotExist" for e in required_expressions(pod))


def required_expressions(pod: Pod) -> tuple[NodeSelectorRequirement, ...]:
    """All expressions of its required node affinity, over all terms."""
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    if affinity is None or affinity.required is None:
        return ()
    return tuple(e for term in affinity.required.node_selector_terms for e in term.match_expressions)


def invalid_reason(pod: Pod) -> str:
    """What is wrong with its node selector or affinity, for the person who wrote it; empty if nothing."""
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    if affinity is not None and affinity.required is not None:
        if any(term.match_fields for term in affinity.required.node_selector_terms):
            return "node affinity matchFields is not supported"
        if not affinity.required.node_selector_terms:
            return "required node affinity has no terms, so it matches no node"
    selectors = [NodeSelectorRequirement(key=k, operator="In", values=(v,)) for k, v in pod.spec.node_selector.items()]
    reasons = (_invalid_expression(e) for e in (*selectors, *required_expressions(pod)))
    return next((reason for reason in reasons if reason), "")


def _invalid_expression(expression: NodeSelectorRequirement) -> str:
    key = labels.ALIASES.get(expression.key, expression.key)
    if not _QUALIFIED_NAME.fullmatch(key):
        return f"{key!r} is not a valid label key"
    if labels.is_restricted(key):
        return f"label {key} is restricted: pods cannot select nodes by it"
    try:
        requirement(key, expression.operator, expression.values)
    except InvalidRequirementError as error:
        return error.message
    bad = next((v for v in expression.values if not _LABEL_VALUE.fullmatch(v)), None)
    if bad is not None:
        return f"{key}: {bad!r} is not a valid label value"
    if key == labels.CAPACITY_TYPE and expression.operator == "In" and not _CAPACITY_TYPES & set(expression.values):
        return f"{key}: none of {list(expression.values)} is a capacity type (on-demand, spot, reserved)"
    return ""


def unsupported_reason(pod: Pod) -> str:
    """Which of its required constraints this scheduler does not understand yet; empty if it understands them all."""
    spec = pod.spec
    if any(v.persistent_volume_claim is not None or v.ephemeral is not None for v in spec.volumes):
        return "persistent volume claims are not supported yet"
    if any(p.host_port for c in spec.containers for p in c.ports):
        return "host ports are not supported yet"
    if spec.resource_claims or any(c.resources.claims for c in (*spec.containers, *spec.init_containers)):
        return "resource claims (dynamic resource allocation) are not supported"
    if spec.affinity is not None:
        if spec.affinity.pod_affinity is not None and spec.affinity.pod_affinity.required:
            return "required pod affinity is not supported yet"
        if spec.affinity.pod_anti_affinity is not None and spec.affinity.pod_anti_affinity.required:
            return "required pod anti-affinity is not supported yet"
    for constraint in spec.topology_spread_constraints:
        if constraint.when_unsatisfiable == "DoNotSchedule":
            key = labels.ALIASES.get(constraint.topology_key, constraint.topology_key)
            if key not in _SPREAD_KEYS:
                return f"topology spread over {key} is not supported yet (only {labels.ZONE} and {labels.HOSTNAME})"
    return ""
