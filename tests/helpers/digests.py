"""Digests of plans: short texts that change with any part of a plan, but not with rounding errors of another processor."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

DECIMALS = 6


def digest(plan: object) -> str:
    """Return a few characters for a plan of Structs, sequences, mappings and numbers."""
    text = msgspec.json.encode(_rounded(msgspec.to_builtins(plan, str_keys=True)), order="deterministic")
    return hashlib.blake2s(text, digest_size=6).hexdigest()


def _rounded(plan: Any) -> Any:
    if isinstance(plan, float):
        return round(plan, DECIMALS) + 0.0
    if isinstance(plan, dict):
        # digests are recorded of plans that skip nothing, from a time when plans did not say so
        return {key: _rounded(value) for key, value in plan.items() if key != "skipped" or value}
    if isinstance(plan, list | tuple):
        return [_rounded(value) for value in plan]
    return plan
