"""Runs terminate: drains nodes, terminates instances, removes finalizers, and terminates instances without a NodeClaim.

Triggers: asynchronous invocations, each with one message (interruptions, expiration, requeues of a drain, sweep).
Concurrency: one message for each instance; a drain is many short runs, never one that waits.
Overlap: fenced by the Lease; eviction, termination and finalizer removal are each safe to repeat.
"""

from __future__ import annotations

from typing import Any

from journeyman.runtime.fgs_entry import entry_point, initialize, run_batch
from journeyman.steps.terminate import terminate

__all__ = ["handler", "initialize"]


@entry_point
def handler(event: Any, context: Any) -> dict[str, Any]:
    """Run the step for the message; return what became of it."""
    return run_batch("terminate", terminate, event, context)
