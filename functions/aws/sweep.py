"""Runs sweep: starts the steps that are due in every cluster, each minute; and forwards requeue messages that are due.

Triggers: EventBridge Scheduler every minute (invoked directly), and the standard requeue queue, in which requeue messages
wait until they are due.
Concurrency: any; it only sends messages.
Overlap: harmless; a duplicated message starts a run that finds nothing to do.
"""

from __future__ import annotations

from typing import Any

from journeyman.runtime.lambda_entry import entry_point, run_sweep
from journeyman.steps.sweep import sweep


@entry_point
def lambda_handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Sweep the clusters, or forward requeue messages; return what was found, or which records failed."""
    return run_sweep(sweep, event, context)
