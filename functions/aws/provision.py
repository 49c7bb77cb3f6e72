"""Pending pods become nodes.

Triggers: the FIFO queue `provision` (forwarder, API, requeues, sweep); message group = cluster.
Concurrency: one run per cluster, clusters side by side; several messages for a cluster in a batch are one run.
Overlap: a run that outlives its visibility timeout is fenced out by the Lease before its next outside effect;
the second run answers "busy" and its message comes back.
"""

from __future__ import annotations

from typing import Any

from journeyman.runtime.lambda_entry import entry_point, run_batch
from journeyman.steps.provision import provision


@entry_point
def lambda_handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Run the step once for each cluster in the batch; answer which records failed."""
    return run_batch("provision", provision, event, context)
