"""Runs consolidate: deletes or replaces nodes that are empty or replaceable by cheaper ones, within disruption budgets.

Triggers: asynchronous invocations, each with one message (requeues of an executing command, sweep).
Concurrency: one message for each instance; runs of several clusters are parallel.
Overlap: fenced by the Lease; a decision is a NodeDisruption before any node is tainted, so a second run continues it.
"""

from __future__ import annotations

from typing import Any

from journeyman.runtime.fgs_entry import entry_point, initialize, run_batch
from journeyman.steps.consolidate import consolidate

__all__ = ["handler", "initialize"]


@entry_point
def handler(event: Any, context: Any) -> dict[str, Any]:
    """Run the step for the message; return what became of it."""
    return run_batch("consolidate", consolidate, event, context)
