"""Labels of an instance type as requirements, and whether an image's requirements fit them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from journeyman.core.api.objects import NodeSelectorRequirement

Labels = Mapping[str, tuple[str, ...]]
"""Label values that a node of a type may have; an empty tuple means the node lacks the label."""


def requirements_of(values: Labels) -> tuple[NodeSelectorRequirement, ...]:
    """Return the labels as requirements: `In` their values, `DoesNotExist` without any. Equal results are one object."""
    return tuple(requirement(key, values[key]) for key in values)


@lru_cache(maxsize=65536)
def requirement(key: str, values: tuple[str, ...]) -> NodeSelectorRequirement:
    """Return the requirement `In` these values, or `DoesNotExist` if there are none."""
    if not values:
        return NodeSelectorRequirement(key=key, operator="DoesNotExist")
    return NodeSelectorRequirement(key=key, operator="In", values=values)


def satisfies(values: Labels, image_requirements: Iterable[Mapping[str, Any]]) -> bool:
    """Whether nodes with these labels meet the requirements that a NodeClass's status has for an image."""
    return all(_satisfies(values.get(str(r["key"]), ()), r) for r in image_requirements)


def _satisfies(values: tuple[str, ...], image_requirement: Mapping[str, Any]) -> bool:
    operator = image_requirement.get("operator")
    if operator == "Exists":
        return bool(values)
    if operator == "DoesNotExist":
        return not values
    listed = set(image_requirement.get("values") or ())
    return not listed.isdisjoint(values) if operator == "In" else listed.isdisjoint(values)
