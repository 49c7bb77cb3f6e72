"""Runs interrupt: deletes the NodeClaims of interrupted instances and marks their offerings unavailable.

Triggers: ECS events of EventBridge (preemption, state change, maintenance, failure), through the SMQ queue `interrupt` or
directly. The events name no cluster, so the instances' tags are looked up; other clusters' instances start no run.
Concurrency: any; interruptions that arrive together must not wait for each other.
Overlap: harmless; deleting a NodeClaim and marking an offering unavailable are each safe to repeat.
"""

from __future__ import annotations

from typing import Any

from journeyman.runtime.fc_entry import entry_point, initialize, run_batch
from journeyman.steps.interrupt import interrupt

__all__ = ["handler", "initialize"]


@entry_point
def handler(event: Any, context: Any) -> dict[str, Any]:
    """Run the step for each event and cluster; return what became of the messages."""
    return run_batch("interrupt", interrupt, event, context)
