"""Runs provision: launches nodes for unschedulable pods, and registers and initializes them.

Triggers: the FIFO queue `provision` (forwarder, API, requeues, sweep); message group = cluster.
Concurrency: one run per cluster, clusters in parallel; several messages for a cluster in a batch are one run.
Overlap: while a run outlives its message's visibility timeout, the second run ends as "busy" and its message is delivered
again. A run that has lost the Lease stops before its next outside effect.
"""

from __future__ import annotations

from typing import Any

from journeyman.runtime.lambda_entry import entry_point, run_batch
from journeyman.steps.provision import provision


@entry_point
def lambda_handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Run the step once for each cluster in the batch; return which records failed."""
    return run_batch("provision", provision, event, context)
