"""Runs terminate: drains nodes, terminates instances, removes finalizers, and terminates instances without a NodeClaim.

Triggers: the FIFO queue `terminate` (interruptions, expiration, requeues of a drain, sweep); message group = cluster.
Concurrency: one run per cluster, clusters in parallel; a drain is many short runs, never one that waits.
Overlap: fenced by the Lease; eviction, termination and finalizer removal are each safe to repeat.
"""

from __future__ import annotations

from typing import Any

from journeyman.runtime.lambda_entry import entry_point, run_batch
from journeyman.steps.terminate import terminate


@entry_point
def lambda_handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Run the step once for each cluster in the batch; return which records failed."""
    return run_batch("terminate", terminate, event, context)
