"""Labels of an instance type and its offerings as requirements, and whether an image's requirements fit them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from journeyman.core.api import labels
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


@lru_cache(maxsize=512)
def offering_requirements(zone: str, capacity_type: str, *more: tuple[str, str]) -> tuple[NodeSelectorRequirement, ...]:
    """Return the requirements of an offering: its zone, its capacity type, and more labels with their values."""
    values = ((labels.ZONE, zone), (labels.CAPACITY_TYPE, capacity_type), *more)
    return tuple(requirement(key, (value,)) for key, value in values)


def linux_labels(
    name: str,
    arch: str,
    *,
    region: str,
    zones: Iterable[str],
    capacity_types: Iterable[str],
    group: str,
    of_type: Mapping[str, str | None],
) -> dict[str, tuple[str, ...]]:
    """Return the labels of Linux nodes of an instance type.

    Args:
        name: The instance type's.
        arch: Such as `amd64`.
        region: The cloud's.
        zones: Where the type is offered.
        capacity_types: The capacity types in which it is offered.
        group: The API group of the NodeClasses.
        of_type: Values of the labels `GROUP/instance-NAME`, by `NAME`; nodes lack a label without a value.
    """
    return {
        labels.INSTANCE_TYPE: (name,),
        labels.ARCH: (arch,),
        labels.OS: ("linux",),
        labels.REGION: (region,),
        labels.ZONE: tuple(zones),
        labels.CAPACITY_TYPE: tuple(capacity_types),
        **{f"{group}/instance-{key}": (value,) if value else () for key, value in of_type.items()},
    }


def label_value(text: str) -> str:
    """Return the text as a label value: letters, digits, `-`, `_` and `.`, at most 63 characters."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:63].strip("-._")


def satisfies(values: Labels, image_requirements: Iterable[NodeSelectorRequirement]) -> bool:
    """Whether nodes with these labels meet the requirements that a NodeClass's status has for an image."""
    return all(_satisfies(values.get(r.key, ()), r) for r in image_requirements)


def _satisfies(values: tuple[str, ...], image_requirement: NodeSelectorRequirement) -> bool:
    operator, listed = image_requirement.operator, set(image_requirement.values)
    if operator == "Exists":
        return bool(values)
    if operator == "DoesNotExist":
        return not values
    return not listed.isdisjoint(values) if operator == "In" else listed.isdisjoint(values)
