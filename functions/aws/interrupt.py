"""Instances that the cloud takes away: their NodeClaims are deleted and their offerings avoided for a while.

Triggers: the standard interrupt queue, which EventBridge fills (Spot interruption, rebalance, state change, health,
capacity reservation). The events name no cluster, so every registered one looks whether the instance is its own.
Concurrency: unlimited; many warnings at once must not wait for each other.
Overlap: harmless; deleting a NodeClaim and remembering an offering are each safe to repeat.
"""

from __future__ import annotations

from typing import Any

from journeyman.runtime.lambda_entry import entry_point, run_batch
from journeyman.steps.interrupt import interrupt


@entry_point
def lambda_handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Run the step for each event, on every cluster; answer which records failed."""
    return run_batch("interrupt", interrupt, event, context)
