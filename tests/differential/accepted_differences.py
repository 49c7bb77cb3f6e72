"""Where we mean to decide otherwise than Karpenter. Each has a name, a reason, and a test that shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tests.differential.compare import Finding

JSONDict = dict[str, Any]
Difference = Callable[[JSONDict, Finding], bool]

ACCEPTED: tuple[Difference, ...] = ()


def unaccepted(scenario: JSONDict, found: Iterable[Finding]) -> list[Finding]:
    """The findings that no accepted difference explains."""
    return [f for f in found if not any(accepts(scenario, f) for accepts in ACCEPTED)]
