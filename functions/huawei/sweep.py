"""Runs sweep: starts the steps that are due in every cluster, each minute.

Triggers: a timer every minute, and asynchronous invocations, each with one message (requeues of the sweep).
Concurrency: any; it only sends messages.
Overlap: harmless; a duplicated message starts a run that finds nothing to do.
"""

from __future__ import annotations

from typing import Any

from journeyman.runtime.fgs_entry import entry_point, initialize, run_sweep
from journeyman.steps.sweep import sweep

__all__ = ["handler", "initialize"]


@entry_point
def handler(event: Any, context: Any) -> dict[str, Any]:
    """Sweep all clusters, or the one that a message names; return what was found, or what became of the message."""
    return run_sweep(sweep, event, context)
