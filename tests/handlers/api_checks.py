"""What the HTTP API does on every cloud whose gateway passes on all paths; the tests of the handlers send their cloud's requests."""

import json

import pytest

from tests.helpers.builders import pod_body

REFUSED = pytest.mark.parametrize(
    ("handler", "path", "method", "status"),
    [
        ("handler", "/nothing", "GET", 404),
        ("handler", "/clusters", "DELETE", 405),
        ("handler", "/clusters/nowhere/plan", "GET", 404),
        ("events_handler", "/clusters/demo/events", "POST", 401),
        ("events_handler", "/clusters/demo/plan", "GET", 404),
        ("events_handler", "/clusters/demo/requeue", "POST", 404),
    ],
)
"""Requests that the two handlers do not serve. The anonymous one serves forwarders' events only, and authenticates their sender."""


def check_plan_and_requeue(deployed, send):
    """Check what the API says of a cluster whose NodePool is ready; `send` answers a sample request, given its name."""
    deployed.adapters.cluster.add(pod_body("waits"))

    plan = send("get-plan")
    assert plan["statusCode"] == 200
    assert [claim["pods"] for claim in json.loads(plan["body"])["nodeClaims"]] == [["default/waits"]]
    assert json.loads(send("get-clusters")["body"]) == {"clusters": [{"name": "demo"}]}
    assert "karpenter_cluster_state_node_count" in send("get-metrics")["body"]
    assert send("post-requeue")["statusCode"] == 202
    assert "requested through the API" in [trigger.reason for trigger in deployed.messages("provision")]
