"""Taints and tolerations.

Restates: karpenter pkg/scheduling/taints.go.

The rule for one taint is that of `TolerationsTolerateTaint` in k8s.io/component-helpers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from journeyman.core.api.objects import Taint, Toleration


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether one toleration covers one taint; an empty key with Exists covers all, an empty effect every effect."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    match toleration.operator or "Equal":
        case "Exists":
            return True
        case "Equal":
            return bool(toleration.key) and toleration.value == taint.value
        case "Gt" | "Lt" as operator:
            return bool(toleration.key) and _compares(operator, toleration.value, taint.value)
        case _:
            return False


def _compares(operator: str, limit_text: str, value_text: str) -> bool:
    """Whether the taint's value is greater (`Gt`) or less (`Lt`) than the toleration's; both must be integers."""
    try:
        limit, value = int(limit_text), int(value_text)
    except ValueError:
        return False
    return value > limit if operator == "Gt" else value < limit


def untolerated(taints: Iterable[Taint], tolerations: Sequence[Toleration]) -> Taint | None:
    """Return the first taint that is not tolerated, None if there is none. PreferNoSchedule taints do not count."""
    return next((t for t in taints if not is_prefer_no_schedule(t) and not _covered(t, tolerations)), None)


def has_untolerated_preference(taints: Iterable[Taint], tolerations: Sequence[Toleration]) -> bool:
    """Whether the node has a PreferNoSchedule taint that the tolerations do not cover.

    Restates: karpenter pkg/controllers/provisioning/scheduling/preferences.go `toleratePreferNoScheduleTaints`.
    """
    return any(is_prefer_no_schedule(t) and not _covered(t, tolerations) for t in taints)


def is_prefer_no_schedule(taint: Taint) -> bool:
    """Whether the taint is only a preference of the node."""
    return taint.effect == "PreferNoSchedule"


def format_taint(taint: Taint) -> str:
    """Return the taint as kubectl writes it."""
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"


def _covered(taint: Taint, tolerations: Sequence[Toleration]) -> bool:
    return any(tolerates(toleration, taint) for toleration in tolerations)
