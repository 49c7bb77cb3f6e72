"""Kubernetes' own words, spelled out: does a label meet a requirement, a toleration a taint, a selector a pod?"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from journeyman.core.api import labels
from journeyman.core.api.objects import (
    LabelSelector,
    LabelSelectorRequirement,
    NodeSelectorRequirement,
    Pod,
    Taint,
    Toleration,
)

_INTEGER: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)

CORDON: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
"""What the node lifecycle controller puts on a cordoned node, sooner or later; kube-scheduler reads the field as this."""


def normalized(key: str) -> str:
    """The label's name today; old manifests carry others."""
    return labels.ALIASES.get(key, key)


def integer(text: str) -> int | None:
    """The whole number that the text is; None if it is none, or one beyond anything a label counts."""
    return int(text) if _INTEGER.fullmatch(text) else None


def is_met(requirement: NodeSelectorRequirement, value: str | None) -> bool:
    """Whether a node with this value of the label meets the requirement; None is a node without the label."""
    if requirement.operator == "NotIn":
        return value not in requirement.values
    if requirement.operator == "DoesNotExist":
        return value is None
    if value is None:
        return False
    if requirement.operator == "Exists":
        return True
    if requirement.operator == "In":
        return value in requirement.values
    return _compares(requirement, value)


def _compares(requirement: NodeSelectorRequirement, value: str) -> bool:
    number, limit = integer(value), integer(requirement.values[0]) if len(requirement.values) == 1 else None
    if number is None or limit is None:
        return False
    if requirement.operator == "Gt":
        return number > limit
    if requirement.operator == "Gte":
        return number >= limit
    if requirement.operator == "Lt":
        return number < limit
    return requirement.operator == "Lte" and number <= limit


def always_met(requirement: NodeSelectorRequirement, values: Collection[str]) -> bool:
    """Whether it is met whichever of these values the label gets; none of them is a node without the label."""
    return all(is_met(requirement, value) for value in values) if values else is_met(requirement, None)


def ever_met(requirement: NodeSelectorRequirement, values: Collection[str]) -> bool:
    """Whether one of these values meets it; none of them is a node without the label."""
    return any(is_met(requirement, value) for value in values) if values else is_met(requirement, None)


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
    return bool(toleration.key) and toleration.operator in {"", "Equal"} and toleration.value == taint.value


def _tolerates_number(toleration: Toleration, taint: Taint) -> bool:
    """Numeric tolerations: the taint's value must be above (Gt) or below (Lt) the toleration's."""
    number, limit = integer(taint.value), integer(toleration.value)
    if not toleration.key or number is None or limit is None:
        return False
    return number > limit if toleration.operator == "Gt" else number < limit


def selects(selector: LabelSelector | None, values: Mapping[str, str]) -> bool:
    """Whether a label selector selects these labels; a missing or malformed one selects nothing."""
    if selector is None:
        return False
    return all(values.get(key) == value for key, value in selector.match_labels.items()) and all(
        _expression_holds(expression, values.get(expression.key)) for expression in selector.match_expressions
    )


def _expression_holds(expression: LabelSelectorRequirement, value: str | None) -> bool:
    if expression.operator == "In":
        return value in expression.values
    if expression.operator == "NotIn":
        return value not in expression.values
    if expression.operator == "Exists":
        return value is not None
    return expression.operator == "DoesNotExist" and value is None
