"""For people and scripts: which clusters, what would provision do now, gauges, look at it now. And for forwarders that send over HTTPS.

Triggers: API Gateway (REST), signed with AWS credentials; each route is a path of its own in the template. Events are
        not signed: the cluster that they are about says who sent them (`runtime.receiver`).
Concurrency: any; three routes read, the others send one message.
Overlap: harmless; a plan is a dry run, and a doubled requeue finds nothing to do.
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
    """The clusters served here."""
    return api.answer(runtime(), lambda: api.clusters(runtime()))


@app.route("/clusters/{name}/plan", methods=["GET"])
def plan(name: str) -> Response:
    """What provision would do now; writes nothing."""
    return api.answer(runtime(), lambda: api.plan(runtime(), name, app.lambda_context))


@app.route("/clusters/{name}/metrics", methods=["GET"])
def metrics(name: str) -> Response:
    """The cluster's gauges for Prometheus; writes nothing."""
    of = (app.current_request.query_params or {}).get("of", "")
    return api.answer(runtime(), lambda: api.metrics(runtime(), name, of, app.lambda_context))


@app.route("/clusters/{name}/requeue", methods=["POST"])
def requeue(name: str) -> Response:
    """Have provision look at the cluster now."""
    return api.answer(runtime(), lambda: api.requeue(runtime(), name), status=202)


@app.route("/clusters/{name}/events", methods=["POST"])
def events(name: str) -> Response:
    """A forwarder's event: its step looks at the cluster."""
    request = app.current_request
    return api.receive(runtime(), name, request.headers.get("authorization", ""), request.raw_body)


@entry_point
def lambda_handler(event: dict[str, Any], context: Any) -> Any:
    """Route the request."""
    return app(event, context)
