"""The handlers of Function Compute behind SMQ queues: each sample event has its intended effect.

Handlers, parsers, steps, queue adapter and queues are real, over a fake cloud provider and the in-memory API server.
"""

import ast
import importlib
import json
from datetime import timedelta
from pathlib import Path

import pytest

from journeyman.cloud.alibaba.smq_queue import SmqQueue
from journeyman.core.api.objects import NODECLAIM
from journeyman.core.plan import Step
from journeyman.errors import KubeUnavailableError
from journeyman.events import parse_trigger
from journeyman.ports import Message
from journeyman.runtime.composition import Runtime, installed
from journeyman.steps.context import Settings
from journeyman_simulator.alibaba_account.event_stream import EventStreamMapping, fc_function
from journeyman_simulator.alibaba_account.smq import InProcessSmq, SimulatedSmq, SmqAttributes
from journeyman_simulator.lambda_functions import InvocationOutcome
from journeyman_simulator.world import World
from tests.handlers.api_checks import REFUSED, check_plan_and_requeue
from tests.helpers.builders import condition, node_class_body, pod_body, pool_body
from tests.unit.runtime.test_batch import Adapters

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "events" / "alibaba"
HANDLERS = sorted(path for cloud in ("alibaba", "huawei") for path in (ROOT / "functions" / cloud).glob("*.py"))
STEPS = (Step.PROVISION, Step.TERMINATE, Step.CONSOLIDATE, Step.INTERRUPT, Step.SWEEP)


class SmqAdapters(Adapters):
    """Fake adapters with the queues of SMQ; the API server does not respond while it `is_down`."""

    is_down = False

    def __post_init__(self):
        super().__post_init__()
        self.smq = SimulatedSmq(self.clock)
        self.names = {step: f"journeyman-{step.value}" for step in STEPS}
        for name in (*self.names.values(), "journeyman-dead"):
            self.smq.create(name, SmqAttributes(retention_seconds=604_800))

    def store(self, cluster):
        if self.is_down:
            raise KubeUnavailableError("the API server does not respond")
        return super().store(cluster)

    def queue(self):
        return SmqQueue(InProcessSmq(self.smq), self.clock, queues=self.names, dead_letter_queue="journeyman-dead")


class Deployment:
    """The functions with their event streams."""

    def __init__(self, adapters):
        self.adapters, self.smq, self.clock = adapters, adapters.smq, adapters.clock
        self.functions = {name: self._function(name) for name in (*(step.value for step in STEPS), "api")}
        streams = [
            EventStreamMapping(self.smq, f"journeyman-{step.value}", self.functions[step.value]) for step in STEPS
        ]
        self.world = World(self.clock, streams)

    def _function(self, name, handler="handler"):
        module = importlib.import_module(f"functions.alibaba.{name}")
        return fc_function(
            name, getattr(module, handler), self.clock, initializer=module.initialize, timeout_seconds=60
        )

    def invoke(self, function, event, handler="handler"):
        invocation = self._function(function, handler).invoke(event)
        assert invocation.outcome is InvocationOutcome.SUCCEEDED, invocation.error
        return invocation.response

    def messages(self, queue):
        """Return the triggers in a queue, delayed ones too."""
        messages = self.smq.queues[f"journeyman-{queue}"].messages
        return [parse_trigger(json.loads(message.text)) for message in messages]

    @property
    def claims(self):
        return self.adapters.cluster.server.list(NODECLAIM).items


@pytest.fixture
def deployed():
    adapters = SmqAdapters()
    adapters.cluster.add(pool_body(), node_class_body(status={"conditions": [condition("Ready")]}))
    with installed(Runtime({"demo": Settings(cluster_name="demo")}, adapters)):
        yield Deployment(adapters)


def sample(path):
    return json.loads((SAMPLES / path).read_text())


def test_pending_pods_get_claims_beside_a_malformed_message(deployed):
    """The malformed message becomes a dead letter; provision requeues itself while nodes join."""
    deployed.adapters.cluster.add(pod_body("waits"))

    answer = deployed.invoke("provision", sample("smq/provision-batch-one-malformed.json"))

    assert (answer["messages"], answer["retried"], len(answer["deadLetters"])) == (3, [], 1)
    assert [bool(claim.status.provider_id) for claim in deployed.claims] == [True]
    assert (Step.PROVISION, "demo") in {(t.step, t.cluster) for t in deployed.messages("provision")}
    assert len(deployed.smq.queues["journeyman-dead"].messages) == 1


def test_timer_sweeps_and_the_message_it_sends_starts_provision(deployed):
    """From the timer to the claim, through the queue and its event stream."""
    deployed.adapters.cluster.add(pod_body("waits"))

    answer = deployed.invoke("sweep", sample("timer/minute-sweep.json"))
    assert [(swept["cluster"], swept["status"]) for swept in answer["clusters"]] == [("demo", "done")]
    assert [t.step for t in deployed.messages("provision")] == [Step.PROVISION]
    assert deployed.claims == ()

    deployed.world.run_for(timedelta(seconds=5))
    assert len(deployed.claims) == 1


def test_preemption_deletes_the_claim_of_its_instance_only(deployed):
    """The message of another account's instance is acknowledged without effect."""
    deployed.adapters.cluster.add(pod_body("waits"))
    deployed.invoke("provision", sample("smq/provision-batch.json"))
    (claim,) = deployed.claims
    instance = claim.status.provider_id
    ours = sample("ecs/preemption.json")
    ours["data"]["instanceId"] = f"i-{instance.rpartition('/')[2]}"
    deployed.adapters.owners = {ours["id"]: {"demo": (instance.rpartition("/")[2],)}}
    other = {**ours, "id": "other"}
    deployed.adapters.owners["other"] = {}

    batch = sample("smq/interrupt-batch.json")
    for item, event in zip(batch, (ours, other), strict=True):
        item["data"]["messageBody"] = json.dumps(event)
    answer = deployed.invoke("interrupt", batch)

    assert answer == {"messages": 2, "retried": [], "deadLetters": []}
    (claim,) = deployed.claims
    assert claim.metadata.deletion_timestamp is not None
    assert [t.step for t in deployed.messages("terminate")] == [Step.TERMINATE]


def test_failed_run_is_sent_again_until_its_receives_are_used_up(deployed):
    """An API server that is gone: the message moves through its queue and becomes a dead letter, and none is lost."""
    deployed.adapters.is_down = True
    deployed.adapters.queue().send([Message(cluster="demo", step=Step.PROVISION, reason="test")])
    deployed.world.run_for(timedelta(minutes=30))

    assert deployed.messages("provision") == []
    assert [t.reason for t in deployed.messages("dead")] == ["test"]
    assert len(deployed.functions["provision"].invocations) == 50


def test_api_returns_the_plan_and_requeues(deployed):
    """The routes are those of API Gateway."""
    deployed.invoke("provision", sample("smq/provision-batch.json"))  # marks the NodePool as ready
    check_plan_and_requeue(deployed, lambda name: deployed.invoke("api", sample(f"http/{name}.json")))


@REFUSED
def test_api_refuses_what_it_does_not_serve(deployed, handler, path, method, status):
    """The anonymous function serves forwarders' events only, and authenticates their sender."""
    event = sample("http/post-event.json")
    event["rawPath"] = event["requestContext"]["http"]["path"] = path
    event["requestContext"]["http"]["method"] = method

    answer = deployed.invoke("api", event, handler)

    assert answer["statusCode"] == status
    assert json.loads(answer["body"])


@pytest.mark.parametrize("path", HANDLERS, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_handler_has_at_most_60_lines_and_no_logic(path):
    """It imports entry points only: no SDK, no core module, no adapter."""
    text = path.read_text()
    imported = {node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom) and node.module}

    assert len(text.splitlines()) <= 60
    assert all(
        name.startswith(("journeyman.runtime", "journeyman.steps.")) for name in imported - {"__future__", "typing"}
    )
    assert "initialize" in text
    for heading in ("Triggers:", "Concurrency:", "Overlap:"):
        assert heading in text
