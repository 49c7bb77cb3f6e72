"""The deployed application within Lambda's limits: recursive-loop detection.

Template, queues and handlers are the deployed ones, on the in-memory API server and moto, in virtual time.
"""

from datetime import datetime, timedelta, timezone

import pytest

from journeyman.core.api.objects import NODE, NODECLAIM, Resource
from journeyman_simulator.local_deployment import LocalDeployment
from tests.helpers.deployed_application import DeployedApplication, SandboxCrashes

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("moto")]

START = datetime(2026, 3, 2, 9, 0, 20, tzinfo=timezone.utc)
BUDGET = Resource(
    group="policy", version="v1", kind="PodDisruptionBudget", plural="poddisruptionbudgets", namespaced=True, type=dict
)


@pytest.fixture(scope="module", params=["Allow", "Terminate"])
def application(request):
    """Deploy the application with and without loop detection; nodes need ten minutes to join."""
    logs: list = []
    parameters = {"RecursiveLoop": request.param}
    with LocalDeployment(
        start=START, parameters=parameters, boot=timedelta(minutes=10), on_log=logs.append
    ) as deployment:
        application = DeployedApplication(deployment, logs, SandboxCrashes())
        application.node_class()
        application.pool()
        application.deploy("web", 1)
        yield application


def test_slowest_join_and_longest_drain_pass_with_and_without_loop_detection(application):
    """Both poll for ten minutes; no message is a dead letter, and the end is noticed within a sweep."""
    joined = application.until_running("web", 1, minutes=14)
    budget = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "web"}}}
    meta = {"name": "web", "namespace": "default"}
    application.server.load(
        [{"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta, "spec": budget}]
    )
    (claim,) = application.claims()
    application.server.delete(NODECLAIM, claim.metadata.name)
    application.run(minutes=10)
    (before,) = application.server.list(NODE).items
    application.server.delete(BUDGET, "web", namespace="default")

    def is_drained():
        return before.metadata.name not in {n.metadata.name for n in application.server.list(NODE).items}

    drained = application.until(is_drained, "the node to be drained", minutes=5)

    assert sum(function.stopped for function in application.deployment.stack.functions.values()) == 0
    assert [entry for entry in application.deployment.leftovers() if entry.startswith("dead letter")] == []
    assert joined <= 10 * 60 + 120
    assert drained <= 120
