"""The deployed handlers on the deployed template: each recorded event has its intended effect.

Handlers, parsers, steps, AWS adapter, queues and template are real, over moto and the in-memory API server.
"""

import ast
import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import yaml

from journeyman.core.api.objects import NODE, NODECLAIM
from journeyman.core.plan import Step
from journeyman.events import parse_trigger
from journeyman_simulator.lambda_functions import InvocationOutcome
from journeyman_simulator.local_aws import LocalAwsDeployment
from tests.helpers.deployed_application import FEW_FAMILIES

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "events"
HANDLERS = sorted((ROOT / "functions" / "aws").glob("*.py"))
NINE = datetime(2026, 11, 21, 9, 0, tzinfo=timezone.utc)


@pytest.fixture
def deployed() -> Iterator[LocalAwsDeployment]:
    with LocalAwsDeployment(start=NINE, families=FEW_FAMILIES) as deployment:
        yield deployment


@pytest.fixture
def writes(deployed) -> list:
    """Return a list that receives the functions' writes to the API server, in order."""
    found: list = []
    deployed.server.on_write(lambda write: found.append(write) if write.user == "journeyman" else None)
    return found


def load_cluster(deployed: LocalAwsDeployment, name: str) -> None:
    deployed.server.load(list(yaml.safe_load_all((SAMPLES / "clusters" / f"{name}.yaml").read_text())))


def sample(path: str) -> dict:
    return json.loads((SAMPLES / path).read_text())


def invoke(deployed, function, event):
    invocation = deployed.stack.functions[f"{function}Function"].invoke(event)
    assert invocation.outcome is InvocationOutcome.SUCCEEDED, invocation.error
    return invocation.response


def failed_messages(answer) -> list[str]:
    return [failure["itemIdentifier"] for failure in answer["batchItemFailures"]]


def messages(deployed, queue: str) -> list[dict]:
    """Return the parsed messages of a queue, delayed ones too; the clock moves past the longest delay."""
    deployed.clock.advance(900)
    url = deployed.stack.queue_urls[f"{queue}Queue"]
    found = deployed.aws.client("sqs").receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", [])
    return [parse_trigger(json.loads(message["Body"])) for message in found]


def test_pending_pods_get_instances_beside_a_malformed_record(deployed):
    """Zero nodes, ten pods; the malformed message of the batch becomes a dead letter. Provision requeues itself while nodes join."""
    load_cluster(deployed, "zero-nodes")

    answer = invoke(deployed, "Provision", sample("sqs/provision-batch-one-malformed.json"))

    assert failed_messages(answer) == []
    claims = deployed.server.list(NODECLAIM).items
    assert claims
    assert all(claim.status.provider_id for claim in claims)
    assert deployed.price_per_hour > 0
    assert (Step.PROVISION, "demo") in {(trigger.step, trigger.cluster) for trigger in messages(deployed, "Requeue")}


def test_second_delivery_of_an_event_launches_nothing(deployed):
    """SQS delivers at least once."""
    load_cluster(deployed, "zero-nodes")
    event = sample("sqs/provision-batch.json")

    invoke(deployed, "Provision", event)
    before = deployed.price_per_hour
    invoke(deployed, "Provision", event)

    assert deployed.price_per_hour == before


def test_spot_interruption_deletes_the_claim_of_its_instance_only(deployed):
    """The other record of the batch is about a foreign instance: it is acknowledged without effect."""
    load_cluster(deployed, "two-spot-nodes")

    answer = invoke(deployed, "Interrupt", sample("sqs/interrupt-batch.json"))

    assert failed_messages(answer) == []
    going = {c.metadata.name: c.metadata.deletion_timestamp is not None for c in deployed.server.list(NODECLAIM).items}
    assert going == {"default-b4m9q": False, "default-x7k2p": True}
    tainted = [n.metadata.name for n in deployed.server.list(NODE).items if n.spec.taints or n.spec.unschedulable]
    assert tainted == ["ip-10-0-1-17.ec2.internal"]
    woken = {trigger.step for queue in ("Provision", "Terminate", "Requeue") for trigger in messages(deployed, queue)}
    assert woken >= {Step.TERMINATE}


def test_sweep_finds_pending_pods_without_a_notification(deployed):
    """A lost message costs a minute at most."""
    load_cluster(deployed, "zero-nodes")

    answer = invoke(deployed, "Sweep", sample("schedule/minute-sweep.json"))

    assert [(swept["cluster"], swept["status"]) for swept in answer["clusters"]] == [("demo", "done")]
    assert [(t.step, t.cluster) for t in messages(deployed, "Provision")] == [(Step.PROVISION, "demo")]


def test_requeue_messages_are_forwarded_when_due_and_sent_back_when_not(deployed):
    """One message is due, the other is due in an hour."""
    answer = invoke(deployed, "Sweep", sample("sqs/requeue-batch.json"))

    assert failed_messages(answer) == []
    assert [t.reason for t in messages(deployed, "Terminate")] == ["node default-x7k2p is draining"]
    (early,) = messages(deployed, "Requeue")
    assert (early.step, early.at) == (Step.CONSOLIDATE, NINE + timedelta(hours=1))


@pytest.mark.parametrize(
    ("function", "event"),
    [("Consolidate", "sqs/consolidate-window-batch.json"), ("Provision", "sqs/provision-batch.json")],
)
def test_messages_fail_while_another_run_holds_the_lease(deployed, function, event):
    """The function itself does not fail, and it changes nothing."""
    load_cluster(deployed, "zero-nodes")
    hold_lease(deployed, function.lower())

    answer = invoke(deployed, function, sample(event))

    assert failed_messages(answer) == [record["messageId"] for record in sample(event)["Records"]]
    assert deployed.server.list(NODECLAIM).items == ()


def hold_lease(deployed, step: str) -> None:
    now = deployed.clock.now().isoformat().replace("+00:00", ".000000Z")
    spec = {"holderIdentity": "another-run", "leaseDurationSeconds": 60, "renewTime": now, "acquireTime": now}
    meta = {"name": f"journeyman-{step}", "namespace": "kube-system"}
    deployed.server.load([{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}])


def test_api_returns_the_plan_of_provision_and_writes_nothing(deployed, writes):
    """The plan has nodes, price, and the errors of unschedulable pods."""
    load_cluster(deployed, "zero-nodes")
    invoke(deployed, "Sweep", sample("schedule/minute-sweep.json"))
    writes.clear()

    answer = invoke(deployed, "Api", sample("api/get-plan.json"))

    assert answer["statusCode"] == 200
    plan = json.loads(answer["body"])
    assert plan["cluster"] == "demo"
    assert len(plan["errors"]) + sum(len(claim["pods"]) for claim in plan["nodeClaims"]) == 10
    assert writes == []
    assert deployed.price_per_hour == 0


def test_api_lists_clusters_and_requeues_one(deployed):
    """Any client of the API may start provision."""
    assert json.loads(invoke(deployed, "Api", sample("api/get-clusters.json"))["body"]) == {
        "clusters": [{"name": "demo"}]
    }
    assert invoke(deployed, "Api", sample("api/post-requeue.json"))["statusCode"] == 202
    assert [t.step for t in messages(deployed, "Provision")] == [Step.PROVISION]


def test_events_are_rejected_until_a_sender_is_configured(deployed):
    """API Gateway does not authenticate this route."""
    answer = invoke(deployed, "Api", sample("api/post-event.json"))

    assert (answer["statusCode"], json.loads(answer["body"])["error"]) == (401, "Refused")
    assert messages(deployed, "Terminate") == []


def test_api_answers_404_with_the_registered_clusters_for_an_unknown_one(deployed):
    """The user sees which names are valid."""
    answer = invoke(deployed, "Api", sample("api/get-plan-unknown-cluster.json"))

    body = json.loads(answer["body"])
    assert (answer["statusCode"], body["cluster"], body["registered"]) == (404, "nowhere", "demo")


@pytest.mark.parametrize("path", HANDLERS, ids=lambda p: p.name)
def test_handler_has_at_most_60_lines_and_no_logic(path):
    """It imports entry points only: no SDK, no core module, no adapter."""
    text = path.read_text()
    imported = {node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom) and node.module}

    assert len(text.splitlines()) <= 60
    allowed = ("journeyman.runtime", "journeyman.steps.")
    assert all(name.startswith(allowed) or name in {"__future__", "typing", "chalice.app"} for name in imported)
    assert "Triggers:" in text
    assert "Overlap:" in text
