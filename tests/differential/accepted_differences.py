"""Where we mean to decide otherwise than Karpenter, by name, with the reason; test_accepted_differences.py shows each.

Most need no exception here, because they only ever place more pods or pay less: zones that cannot be had are no domains
of a spread; alternatives of required node affinity hold all at once; NodePools of equal weight compete on price; limits
are charged with what is cheapest to launch, not with the largest type that might be. Only those below make us do
something that would otherwise count as worse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tests.differential.compare import Finding

JSONDict = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One of them. `covers` says of a finding about a scenario whether this is why."""

    name: str
    why: str
    covers: Callable[[JSONDict, Finding], bool]


def _is_about_limited_nodes(scenario: JSONDict, finding: Finding) -> bool:
    limited = any("nodes" in (o["spec"].get("limits") or {}) for o in scenario["objects"] if o["kind"] == "NodePool")
    stopped_us = finding.kind == "missing" and "limits" in finding.text and "nodes" in finding.text
    stopped_them = finding.kind == "rejected" and "nodes could reach" in finding.text
    return limited and (stopped_us or stopped_them)


ACCEPTED = (
    Difference(
        name="a limit on nodes holds within a pass",
        why="Karpenter does not count the nodes that a pass itself opens, so that one burst exceeds the limit at will",
        covers=_is_about_limited_nodes,
    ),
)


def unaccepted(scenario: JSONDict, found: Iterable[Finding]) -> list[Finding]:
    """The findings that no accepted difference explains."""
    return [f for f in found if not any(difference.covers(scenario, f) for difference in ACCEPTED)]
