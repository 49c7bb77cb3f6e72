"""What is due, for every cluster, each minute; and requeues whose time has come.

Triggers: EventBridge Scheduler every minute (invoked directly), and the standard requeue queue, where late
requeues wait.
Concurrency: any; it only sends messages.
Overlap: harmless; a doubled message is one run more that finds nothing to do.
"""

from __future__ import annotations

from typing import Any

from journeyman.runtime.lambda_entry import entry_point, run_sweep
from journeyman.steps.sweep import sweep


@entry_point
def lambda_handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Sweep the clusters, or hand requeues to their queues; answer what was found, or which records failed."""
    return run_sweep(sweep, event, context)
