"""Runs terminate: drains nodes, terminates instances, removes finalizers, and terminates instances without a NodeClaim.

Triggers: the SMQ queue `terminate` (interruptions, expiration, requeues of a drain, sweep), as batches of EventBridge.
Concurrency: one run per cluster, clusters in parallel; a drain is many short runs, never one that waits.
Overlap: fenced by the Lease; eviction, termination and finalizer removal are each safe to repeat.
"""

from __future__ import annotations

from typing import Any

from journeyman.runtime.fc_entry import entry_point, initialize, run_batch
from journeyman.steps.terminate import terminate

__all__ = ["handler", "initialize"]


@entry_point
def handler(event: Any, context: Any) -> dict[str, Any]:
    """Run the step once for each cluster in the batch; return what became of the messages."""
    return run_batch("terminate", terminate, event, context)
