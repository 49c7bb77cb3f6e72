"""Taints of disruption: one keeps new pods off a node that is being disrupted, one off a node that leaves later.

`karpenter.sh/disrupted:NoSchedule` is a command's; `journeyman.dev/leaving:PreferNoSchedule` asks kube-scheduler for other
nodes, because this one will soon be deleted: by a fleet plan, or where nodes come and go.

Restates: karpenter pkg/utils/state `RequireNoScheduleTaint`.
Differs: Karpenter knows no node that leaves later.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from journeyman.core.api import labels
from journeyman.core.api.objects import Node, Taint
from journeyman.core.plan import PatchObject, node_ref

DISRUPTED: Final = Taint(key=labels.DISRUPTED_TAINT, effect="NoSchedule")
LEAVING: Final = Taint(key=labels.LEAVING_TAINT, effect="PreferNoSchedule")


def has_disrupted_taint(node: Node) -> bool:
    """Whether the node carries the disrupted taint."""
    return any(_is_disrupted(taint) for taint in node.spec.taints)


def add_disrupted_taint(node: Node, why: str) -> PatchObject | None:
    """Return the patch that adds the taint; None if the node has it."""
    if has_disrupted_taint(node):
        return None
    return _with_taints(node, with_disrupted_taint(node.spec.taints), why)


def with_disrupted_taint(taints: tuple[Taint, ...]) -> tuple[Taint, ...]:
    """Return the taints with `karpenter.sh/disrupted` added; it replaces a taint of its key with another effect."""
    if any(_is_disrupted(taint) for taint in taints):
        return taints
    return (*(taint for taint in taints if taint.key != DISRUPTED.key), DISRUPTED)


def remove_disrupted_taint(node: Node, why: str) -> PatchObject | None:
    """Return the patch that removes the taint; None if the node does not have it."""
    if not has_disrupted_taint(node):
        return None
    return _with_taints(node, (t for t in node.spec.taints if not _is_disrupted(t)), why)


def has_leaving_taint(node: Node) -> bool:
    """Whether the node carries the taint of nodes that leave later."""
    return any((taint.key, taint.effect) == (LEAVING.key, LEAVING.effect) for taint in node.spec.taints)


def mark_leaving(node: Node, why: str, *, leaving: bool) -> PatchObject | None:
    """Return the patch that adds or removes the taint of nodes that leave; None if the node is as it should be."""
    others = tuple(t for t in node.spec.taints if t.key != LEAVING.key)
    wanted = (*others, LEAVING) if leaving else others
    if {t for t in node.spec.taints if t.key == LEAVING.key} == ({LEAVING} if leaving else set()):
        return None
    return _with_taints(node, wanted, why)


def _is_disrupted(taint: Taint) -> bool:
    return (taint.key, taint.effect) == (DISRUPTED.key, DISRUPTED.effect)


def _with_taints(node: Node, taints: Iterable[Taint], why: str) -> PatchObject:
    """Return the patch of the taints, for this resourceVersion only: a merge patch replaces the whole list."""
    patch: dict[str, Any] = {"spec": {"taints": [msgspec.to_builtins(taint) for taint in taints]}}
    return PatchObject(
        ref=node_ref(node),
        patch=patch,
        why=why,
        resource_version=node.metadata.resource_version,
    )
