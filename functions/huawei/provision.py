"""Runs provision: launches nodes for unschedulable pods, and registers and initializes them.

Triggers: asynchronous invocations, each with one message (forwarder, API, requeues, sweep); an SMN topic for forwarders.
Concurrency: one message for each instance; runs of several clusters are parallel.
Overlap: fenced by the Lease, because invocations have no order; the second run ends as "busy" and its message is sent again.
A run that has lost the Lease stops before its next outside effect.
"""

from __future__ import annotations

from typing import Any

from journeyman.runtime.fgs_entry import entry_point, initialize, run_batch
from journeyman.steps.provision import provision

__all__ = ["handler", "initialize"]


@entry_point
def handler(event: Any, context: Any) -> dict[str, Any]:
    """Run the step for the message; return what became of it."""
    return run_batch("provision", provision, event, context)
