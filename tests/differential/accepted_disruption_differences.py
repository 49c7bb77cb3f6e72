"""Intended differences from Karpenter's disruption decisions, with the reasons.

Each removes its cause from a scenario. It explains a difference that is gone when the cause is; a difference that stays, or
a scenario without the cause, has another reason. test_accepted_disruption_differences.py shows each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.differential.compare_disruption import Comparison, Difference, compare_disruption
from tests.differential.karpenter import Karpenter

JSONDict = dict[str, Any]
DECISIONS = frozenset({"class", "alone", "saving"})


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """An intended difference: `without_cause` returns the scenario without what causes it."""

    name: str
    why: str
    without_cause: Callable[[JSONDict], JSONDict]


def _without_starting_nodes(scenario: JSONDict) -> JSONDict:
    """Return the scenario without NodeClaims whose Node is not initialized, their Nodes and their pods."""
    names = {
        o["status"]["nodeName"] for o in scenario["objects"] if o["kind"] == "NodeClaim" and not _is(o, "Initialized")
    }
    return {
        **scenario,
        "objects": [o for o in scenario["objects"] if not _belongs_to(o, names - {""}) and _has_node(o)],
    }


def _belongs_to(raw: JSONDict, nodes: set[str]) -> bool:
    name = {
        "Node": lambda: raw["metadata"]["name"],
        "NodeClaim": lambda: raw["status"]["nodeName"],
        "Pod": lambda: raw["spec"].get("nodeName", ""),
    }.get(raw["kind"], lambda: "")()
    return name in nodes


def _has_node(raw: JSONDict) -> bool:
    return raw["kind"] != "NodeClaim" or bool(raw["status"]["nodeName"])


def _is(raw: JSONDict, condition: str) -> bool:
    return any(c["type"] == condition and c["status"] == "True" for c in raw["status"]["conditions"])


ACCEPTED = (
    Accepted(
        name="starting nodes",
        why=(
            "Karpenter schedules candidates' pods on nodes that are not initialized too, and then gives the candidate up, "
            "because such a node may never be. We leave these nodes out and find other room, so that a node that does not "
            "start blocks no consolidation."
        ),
        without_cause=_without_starting_nodes,
    ),
)


def explanation(scenario: JSONDict, difference: Difference, karpenter: Karpenter) -> Accepted | None:
    """Return the accepted difference that explains this one; None if there is none."""
    if difference.kind not in DECISIONS:
        return None
    for accepted in ACCEPTED:
        changed = accepted.without_cause(scenario)
        if changed["objects"] != scenario["objects"] and not _has(compare_disruption(changed, karpenter), difference):
            return accepted
    return None


def _has(comparison: Comparison, difference: Difference) -> bool:
    return any(found.key == difference.key or found.kind in {"oracle", "crash"} for found in comparison.differences)
