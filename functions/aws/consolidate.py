"""Runs consolidate: deletes or replaces nodes that are empty or replaceable by cheaper ones, within disruption budgets.

Triggers: the FIFO queue `consolidate` (scheduled windows, requeues of an executing command, sweep); message group = cluster.
Concurrency: one run per cluster, clusters in parallel.
Overlap: fenced by the Lease; a decision is a NodeDisruption before any node is tainted, so a second run continues it.
"""

from __future__ import annotations

from typing import Any

from journeyman.runtime.lambda_entry import entry_point, run_batch
from journeyman.steps.consolidate import consolidate


@entry_point
def lambda_handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Run the step once for each cluster in the batch; return which records failed."""
    return run_batch("consolidate", consolidate, event, context)
