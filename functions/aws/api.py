"""Serves the HTTP API: list clusters, show what provision would do, show gauges, start provision, receive forwarders' events.

Triggers: API Gateway (REST); each route is a path of its own in the template. Requests are signed with AWS credentials,
        except forwarders' events, whose sender the cluster authenticates (`runtime.receiver`).
Concurrency: any; three routes only read, the others send one message.
Overlap: harmless; a plan is a dry run, and a second requeue finds nothing to do.
"""

from __future__ import annotations

from typing import Any

from journeyman.runtime import api
from journeyman.runtime.aws import runtime
from journeyman.runtime.lambda_entry import entry_point

app = api.application(runtime)


@entry_point
def lambda_handler(event: dict[str, Any], context: Any) -> Any:
    """Route the request."""
    return app(event, context)
