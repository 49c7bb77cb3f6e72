"""Runs interrupt: deletes the NodeClaims of interrupted instances and marks their offerings unavailable.

Triggers: traces of the audit log (CTS) about ECS servers, directly, by an SMN topic or by EventGrid; notices of Cloud Eye by an
SMN topic; asynchronous invocations with an interruption of one cluster. Traces name an ECS server and no cluster, so each
cluster's CCE nodes are looked up; other servers start no run.
Concurrency: any; interruptions that arrive together must not wait for each other.
Overlap: harmless; deleting a NodeClaim and marking an offering unavailable are each safe to repeat.
"""

from __future__ import annotations

from typing import Any

from journeyman.runtime.fgs_entry import entry_point, initialize, run_batch
from journeyman.steps.interrupt import interrupt

__all__ = ["handler", "initialize"]


@entry_point
def handler(event: Any, context: Any) -> dict[str, Any]:
    """Run the step for each event and cluster; return what became of them."""
    return run_batch("interrupt", interrupt, event, context)
