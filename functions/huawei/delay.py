"""Runs delay: waits until messages are due, and then invokes their steps' functions, because FunctionGraph has no delays.

Triggers: asynchronous invocations by the other functions, each with messages that are due within a minute.
Concurrency: any; an instance waits with the messages of one invocation.
Overlap: harmless; a duplicated message starts a run that finds nothing to do.
"""

from __future__ import annotations

from typing import Any

from journeyman.runtime.fgs_entry import entry_point, initialize_delay, run_delay

__all__ = ["handler", "initialize"]

initialize = initialize_delay


@entry_point
def handler(event: Any, context: Any) -> dict[str, Any]:
    """Send each message when it is due; return how many wait on in another invocation."""
    return run_delay(event, context)
