"""Runs sweep: starts the steps that are due in every cluster, each minute.

Triggers: a timer every minute, and the SMQ queue `sweep` (requeues of the sweep), as batches of EventBridge.
Concurrency: any; it only sends messages.
Overlap: harmless; a duplicated message starts a run that finds nothing to do.
"""

from __future__ import annotations

from typing import Any

from journeyman.runtime.fc_entry import entry_point, initialize, run_sweep
from journeyman.steps.sweep import sweep

__all__ = ["handler", "initialize"]


@entry_point
def handler(event: Any, context: Any) -> dict[str, Any]:
    """Sweep all clusters, or those that messages name; return what was found, or what became of the messages."""
    return run_sweep(sweep, event, context)
