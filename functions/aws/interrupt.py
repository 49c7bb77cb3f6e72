"""Runs interrupt: deletes the NodeClaims of interrupted instances and marks their offerings unavailable.

Triggers: the standard interrupt queue, to which EventBridge sends (Spot interruption, rebalance, state change, health,
capacity reservation). The events name no cluster, so the instances' tags are looked up; other clusters' instances start no run.
Concurrency: unlimited; interruptions that arrive together must not wait for each other.
Overlap: harmless; deleting a NodeClaim and marking an offering unavailable are each safe to repeat.
"""

from __future__ import annotations

from typing import Any

from journeyman.runtime.lambda_entry import entry_point, run_batch
from journeyman.steps.interrupt import interrupt


@entry_point
def lambda_handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Run the step for each event and cluster; return which records failed."""
    return run_batch("interrupt", interrupt, event, context)
