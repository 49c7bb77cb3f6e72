"""Serves the HTTP API: list clusters, show what provision would do, show gauges, start provision, receive forwarders' events.

Triggers: API Gateway (REST); each route is a path of its own in the template. Requests are signed with AWS credentials,
        except forwarders' events, whose sender the cluster authenticates (`runtime.receiver`).
Concurrency: any; three routes only read, the others send one message.
Overlap: harmless; a plan is a dry run, and a second requeue finds nothing to do.
"""

from __future__ import annotations

from typing import Any

from chalice.app import Chalice, Response

from journeyman.runtime import api
from journeyman.runtime.aws import runtime
from journeyman.runtime.lambda_entry import entry_point

app = Chalice(app_name="journeyman", configure_logs=False)


@app.route("/clusters", methods=["GET"])
def clusters() -> Response:
    """List the clusters of this deployment."""
    return api.respond(runtime(), lambda: api.clusters(runtime()))


@app.route("/clusters/{name}/plan", methods=["GET"])
def plan(name: str) -> Response:
    """Show what provision would do now; write nothing."""
    return api.respond(runtime(), lambda: api.plan(runtime(), name, app.lambda_context))


@app.route("/clusters/{name}/metrics", methods=["GET"])
def metrics(name: str) -> Response:
    """Show the cluster's gauges for Prometheus; write nothing."""
    of = (app.current_request.query_params or {}).get("of", "")
    return api.respond(runtime(), lambda: api.metrics(runtime(), name, of, app.lambda_context))


@app.route("/clusters/{name}/requeue", methods=["POST"])
def requeue(name: str) -> Response:
    """Start provision for the cluster."""
    return api.respond(runtime(), lambda: api.requeue(runtime(), name), status=202)


@app.route("/clusters/{name}/events", methods=["POST"])
def events(name: str) -> Response:
    """Receive a forwarder's event, and start the step that it names."""
    request = app.current_request
    return api.receive(runtime(), name, request.headers.get("authorization", ""), request.raw_body)


@entry_point
def lambda_handler(event: dict[str, Any], context: Any) -> Any:
    """Route the request."""
    return app(event, context)
