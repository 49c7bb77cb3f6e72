"""Serves the HTTP API: list clusters, show what provision would do, show gauges, start provision, receive forwarders' events.

Triggers: dedicated gateways of APIG for two functions, because the two authenticate their callers in different ways. `handler`
serves all routes, and its requests are signed with Huawei Cloud credentials. `events_handler` serves forwarders' events only,
below the path `/events`, whose callers are anonymous: the cluster authenticates their sender (`runtime.receiver`).
Concurrency: one request for each instance: an application keeps its current request. Three routes only read, the others send one
message.
Overlap: harmless; a plan is a dry run, and a second requeue finds nothing to do.
"""

from __future__ import annotations

from typing import Any

from journeyman.runtime import api
from journeyman.runtime.fgs_entry import entry_point, initialize, run_api, runtime

__all__ = ["events_handler", "handler", "initialize"]

app = api.application(runtime)
events_app = api.events_application(runtime)


@entry_point
def handler(event: Any, context: Any) -> dict[str, Any]:
    """Route the request."""
    return run_api(app, event, context)


@entry_point
def events_handler(event: Any, context: Any) -> dict[str, Any]:
    """Route the request of a forwarder."""
    return run_api(events_app, event, context, base_path="/events")
