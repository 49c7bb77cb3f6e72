"""Runs provision: launches nodes for unschedulable pods, and registers and initializes them.

Triggers: the SMQ queue `provision` (forwarder, API, requeues, sweep), as batches of EventBridge.
Concurrency: one run per cluster, clusters in parallel; several messages for a cluster in a batch are one run.
Overlap: fenced by the Lease, because the queue has no order; the second run ends as "busy" and its message is sent again.
A run that has lost the Lease stops before its next outside effect.
"""

from __future__ import annotations

from typing import Any

from journeyman.runtime.fc_entry import entry_point, initialize, run_batch
from journeyman.steps.provision import provision

__all__ = ["handler", "initialize"]


@entry_point
def handler(event: Any, context: Any) -> dict[str, Any]:
    """Run the step once for each cluster in the batch; return what became of the messages."""
    return run_batch("provision", provision, event, context)
