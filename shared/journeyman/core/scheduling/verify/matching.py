"""Does one pod accept one set of labels and taints? Kubernetes' own rules, spelled out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from journeyman.core.api import labels
from journeyman.core.api.objects import LabelSelector, NodeSelectorRequirement, Pod, Taint, Toleration

Outcome = Mapping[str, frozenset[str]]
"""Labels a node may come up with: the values each key may have; a key that is missing will be absent."""


def accepts_labels(pod: Pod, outcome: Outcome) -> bool:
    """Whether node selector and required node affinity hold, whichever of the possible values the node gets."""
    selector = (
        NodeSelectorRequirement(key=key, operator="In", values=(value,))
        for key, value in sorted(pod.spec.node_selector.items())
    )
    if not all(holds(requirement, outcome) for requirement in selector):
        return False
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    if affinity is None or affinity.required is None:
        return True
    return any(
        not term.match_fields and all(holds(requirement, outcome) for requirement in term.match_expressions)
        for term in affinity.required.node_selector_terms
    )


def holds(requirement: NodeSelectorRequirement, outcome: Outcome) -> bool:
    """Whether the requirement holds for every value the label may have."""
    values = outcome.get(labels.ALIASES.get(requirement.key, requirement.key), frozenset())
    if requirement.operator == "DoesNotExist":
        return not values
    if requirement.operator == "NotIn":
        return values.isdisjoint(requirement.values)
    if not values:
        return False
    if requirement.operator == "Exists":
        return True
    if requirement.operator == "In":
        return values <= set(requirement.values)
    return all(_compares(requirement, value) for value in values)


def _compares(requirement: NodeSelectorRequirement, value: str) -> bool:
    if not value.lstrip("-").isdigit() or len(requirement.values) != 1 or not requirement.values[0].isdigit():
        return False
    number, bound = int(value), int(requirement.values[0])
    if requirement.operator == "Gt":
        return number > bound
    if requirement.operator == "Gte":
        return number >= bound
    if requirement.operator == "Lt":
        return number < bound
    return requirement.operator == "Lte" and number <= bound


def untolerated(pod: Pod, taints: Iterable[Taint]) -> Taint | None:
    """The first taint that keeps the pod away; PreferNoSchedule never does."""
    binding = [t for t in taints if t.effect != "PreferNoSchedule"]
    return next((t for t in binding if not any(_tolerates(toleration, t) for toleration in pod.spec.tolerations)), None)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    if toleration.operator in {"Gt", "Lt"}:
        return _tolerates_number(toleration, taint)
    return bool(toleration.key) and toleration.value == taint.value


def _tolerates_number(toleration: Toleration, taint: Taint) -> bool:
    """Numeric tolerations: the taint's value must be above (Gt) or below (Lt) the toleration's."""
    if not (taint.value.isdigit() and toleration.value.isdigit()):
        return False
    if toleration.operator == "Gt":
        return int(taint.value) > int(toleration.value)
    return int(taint.value) < int(toleration.value)


def selects(selector: LabelSelector | None, pod_labels: Mapping[str, str]) -> bool:
    """Whether a label selector selects these labels; a missing selector selects nothing."""
    if selector is None:
        return False
    if any(pod_labels.get(key) != value for key, value in selector.match_labels.items()):
        return False
    for expression in selector.match_expressions:
        value = pod_labels.get(expression.key)
        if expression.operator == "In" and value not in expression.values:
            return False
        if expression.operator == "NotIn" and value is not None and value in expression.values:
            return False
        if expression.operator == "Exists" and value is None:
            return False
        if expression.operator == "DoesNotExist" and value is not None:
            return False
    return True
