"""Digests of plans: short texts that change with any part of a plan, but not with rounding errors of another processor."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

DECIMALS = 6
_LATER_FIELDS = ("skipped", "pod_warnings", "is_truncated", "unexplained")


def digest(plan: object) -> str:
    """Return a few characters for a plan of Structs, sequences, mappings and numbers."""
    text = msgspec.json.encode(_rounded(msgspec.to_builtins(plan, str_keys=True)), order="deterministic")
    return hashlib.blake2s(text, digest_size=6).hexdigest()


def _as_recorded(key: str, value: Any) -> Any:
    """Return an offering without the reservation, which none had when most digests were recorded."""
    return value[:3] if key == "offering" and not any(value[3:]) else value


def _rounded(plan: Any) -> Any:
    if isinstance(plan, float):
        return round(plan, DECIMALS) + 0.0
    if isinstance(plan, dict):
        # most digests were recorded before plans had these fields, of clusters for which they are empty
        return {
            key: _rounded(_as_recorded(key, value)) for key, value in plan.items() if key not in _LATER_FIELDS or value
        }
    if isinstance(plan, list | tuple):
        return [_rounded(value) for value in plan]
    return plan
