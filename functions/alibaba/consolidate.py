"""Runs consolidate: deletes or replaces nodes that are empty or replaceable by cheaper ones, within disruption budgets.

Triggers: the SMQ queue `consolidate` (requeues of an executing command, sweep), as batches of EventBridge.
Concurrency: one run per cluster, clusters in parallel.
Overlap: fenced by the Lease; a decision is a NodeDisruption before any node is tainted, so a second run continues it.
"""

from __future__ import annotations

from typing import Any

from journeyman.runtime.fc_entry import entry_point, initialize, run_batch
from journeyman.steps.consolidate import consolidate

__all__ = ["handler", "initialize"]


@entry_point
def handler(event: Any, context: Any) -> dict[str, Any]:
    """Run the step once for each cluster in the batch; return what became of the messages."""
    return run_batch("consolidate", consolidate, event, context)
