"""The handlers of FunctionGraph: each sample event has its intended effect.

Handlers, parsers, steps, queue adapter and invocations are real, over a fake cloud provider and the in-memory API server.
"""

import importlib
import json
from datetime import timedelta
from pathlib import Path

import pytest

from journeyman.cloud.huawei.function_queue import FunctionQueue
from journeyman.core.api.objects import NODECLAIM
from journeyman.core.plan import Step
from journeyman.errors import CloudUnavailableError, KubeUnavailableError
from journeyman.events import parse_trigger
from journeyman.ports import Message
from journeyman.runtime.composition import Runtime, installed
from journeyman.steps.context import Settings
from journeyman_simulator.cloud_rules.repeated_invocations import AsyncInvokeConfig
from journeyman_simulator.huawei_account.function_graph import FunctionGraph, fgs_function, stored_letters
from journeyman_simulator.huawei_account.huawei_account import PROJECT_ID, HuaweiAccount
from journeyman_simulator.lambda_functions import InvocationOutcome
from journeyman_simulator.world import World
from tests.handlers.api_checks import REFUSED, check_plan_and_requeue
from tests.helpers.builders import condition, node_class_body, pod_body, pool_body
from tests.unit.runtime.test_batch import Adapters

SAMPLES = Path(__file__).parents[2] / "events" / "huawei"
STEPS = (Step.PROVISION, Step.TERMINATE, Step.CONSOLIDATE, Step.INTERRUPT, Step.SWEEP)
PREFIX = f"urn:fss:cn-north-4:{PROJECT_ID}:function:default:journeyman-"
DEAD_LETTERS = "obs/dead-letters"


class FunctionAdapters(Adapters):
    """Fake adapters with functions as queues; the API server does not respond while it `is_down`."""

    is_down = False

    def __post_init__(self):
        super().__post_init__()
        self.account = HuaweiAccount(self.clock, types=[])

    def store(self, cluster):
        if self.is_down:
            raise KubeUnavailableError("the API server does not respond")
        return super().store(cluster)

    def queue(self):
        return FunctionQueue(
            self.account.rest_api(),
            self.clock,
            project_id=PROJECT_ID,
            functions={step: f"{PREFIX}{step.value}" for step in STEPS},
            delay_function=f"{PREFIX}delay",
        )


class Deployment:
    """The functions, and FunctionGraph's queue of asynchronous invocations."""

    def __init__(self, adapters):
        self.adapters, self.clock = adapters, adapters.clock
        self.graph = FunctionGraph(self.clock)
        adapters.account.async_invocations = self.graph.invoke
        for name in (*(step.value for step in STEPS), "delay"):
            function = self._function(name)
            self.graph.add(function, waits=name == "delay")
            self.graph.configure(function, AsyncInvokeConfig(on_failure=DEAD_LETTERS))
        self.world = World(self.clock, [self.graph])

    def _function(self, name, handler="handler"):
        module = importlib.import_module(f"functions.huawei.{name}")
        return fgs_function(
            f"journeyman-{name}",
            getattr(module, handler),
            self.clock,
            initializer=module.initialize,
            timeout_seconds=60,
            project_id=PROJECT_ID,
        )

    def function(self, name):
        return self.graph.functions[f"{PREFIX}{getattr(name, 'value', name)}"]

    def invoke(self, function, event, handler="handler"):
        invocation = self._function(function, handler).invoke(event)
        assert invocation.outcome is InvocationOutcome.SUCCEEDED, invocation.error
        return invocation.response

    def messages(self, step):
        """Return the triggers of the invocations of a step's function that are yet to come, delayed ones too."""
        found = [each.event for each in self.graph.pending if each.function is self.function(step)]
        delayed = (
            m for each in self.graph.pending if each.function.name == "journeyman-delay" for m in each.event["messages"]
        )
        return [
            parse_trigger(event)
            for event in (*found, *(json.loads(m["body"]) for m in delayed if m["function"] == step))
        ]

    @property
    def dead_letters(self):
        return [letter["request_payload"] for letter in stored_letters(self.graph.objects, DEAD_LETTERS)]

    @property
    def claims(self):
        return self.adapters.cluster.server.list(NODECLAIM).items


@pytest.fixture
def deployed():
    adapters = FunctionAdapters()
    adapters.cluster.add(pool_body(), node_class_body(status={"conditions": [condition("Ready")]}))
    with installed(Runtime({"demo": Settings(cluster_name="demo")}, adapters)):
        yield Deployment(adapters)


def sample(path):
    return json.loads((SAMPLES / path).read_text())


@pytest.mark.parametrize("path", ["async/pods-unschedulable.json", "smn/pods-unschedulable.json"])
def test_pending_pods_get_claims(deployed, path):
    """Provision requeues itself while nodes join."""
    deployed.adapters.cluster.add(pod_body("waits"))

    assert deployed.invoke("provision", sample(path))["retried"] == []
    assert [bool(claim.status.provider_id) for claim in deployed.claims] == [True]
    assert (Step.PROVISION, "demo") in {(t.step, t.cluster) for t in deployed.messages("provision")}


def test_timer_sweeps_and_the_message_it_sends_starts_provision(deployed):
    """From the timer to the claim, through an asynchronous invocation."""
    deployed.adapters.cluster.add(pod_body("waits"))

    answer = deployed.invoke("sweep", sample("timer/minute-sweep.json"))
    assert [(swept["cluster"], swept["status"]) for swept in answer["clusters"]] == [("demo", "done")]
    assert [t.step for t in deployed.messages("provision")] == [Step.PROVISION]
    assert deployed.claims == ()

    deployed.world.run_for(timedelta(seconds=5))
    assert len(deployed.claims) == 1


def test_window_of_a_budget_starts_consolidate(deployed):
    """Its timer has the message as user event."""
    assert deployed.invoke("consolidate", sample("timer/consolidation-window.json")) == {"messages": 1, "retried": []}
    assert {call.partition(" ")[2] for call in deployed.adapters.made} == {"demo"}


def one_claim(deployed):
    """Launch a node for a pod, and return the id by which its NodeClaim knows the instance."""
    deployed.adapters.cluster.add(pod_body("waits"))
    deployed.invoke("provision", sample("async/pods-unschedulable.json"))
    (claim,) = deployed.claims
    return claim.status.provider_id.rpartition("/")[2]


@pytest.mark.parametrize(
    "path",
    [
        "cts/interrupt-server.json",
        "cts/delete-server.json",
        "cts/stop-two-servers.json",
        "smn/interrupt-server.json",
        "smn/cloud-eye-reboot-scheduled.json",
        "smn/two-traces.json",
        "eventgrid/interrupt-server.json",
        "eventgrid/two-events.json",
    ],
)
def test_interruption_deletes_the_claim_of_its_server(deployed, path):
    """The clusters' nodes are looked up by the server's id; terminate drains the node, provision replaces it."""
    instance = one_claim(deployed)
    deployed.adapters.owners = Owners(instance)

    answer = deployed.invoke("interrupt", sample(path))

    assert answer["retried"] == []
    (claim,) = deployed.claims
    assert claim.metadata.deletion_timestamp is not None
    assert [t.step for t in deployed.messages("terminate")] == [Step.TERMINATE]


class Owners(dict):
    """The owners of the servers of every event: cluster demo, which knows them all as one instance."""

    def __init__(self, instance):
        super().__init__()
        self._instance = instance

    def get(self, _id, _default):
        return {"demo": (self._instance,)}


@pytest.mark.parametrize("path", ["cts/reboot-server.json", "cts/create-server.json", "cts/delete-server-refused.json"])
def test_trace_without_effect_starts_no_run(deployed, path):
    """Also for a server of the cluster."""
    deployed.adapters.owners = Owners(one_claim(deployed))

    assert deployed.invoke("interrupt", sample(path)) == {"messages": 1, "retried": []}
    assert [claim.metadata.deletion_timestamp for claim in deployed.claims] == [None]
    assert deployed.adapters.looked_up == []


def test_interruption_of_one_cluster_is_not_looked_up_again(deployed):
    """A run sent it again with the ids by which the cluster knows its instances."""
    instance = one_claim(deployed)
    event = {**sample("async/interruption-of-one-cluster.json"), "instanceIds": [instance]}

    assert deployed.invoke("interrupt", event) == {"messages": 1, "retried": []}
    assert [claim.metadata.deletion_timestamp is None for claim in deployed.claims] == [False]
    assert deployed.adapters.looked_up == []


def test_interruption_is_handled_once_its_server_can_be_looked_up(deployed):
    """CCE does not answer for a minute; the trace waits in the function `delay`, in its own shape."""
    instance = one_claim(deployed)
    deployed.adapters.look_up_error = CloudUnavailableError("CCE does not answer")
    deployed.adapters.owners = Owners(instance)
    deployed.graph.accept(deployed.function("interrupt"), sample("cts/interrupt-server.json"))

    deployed.world.run_for(timedelta(minutes=1))
    assert instance in [claim.status.provider_id.rpartition("/")[2] for claim in deployed.claims]
    deployed.adapters.look_up_error = None
    deployed.world.run_for(timedelta(minutes=1))
    assert instance not in [claim.status.provider_id.rpartition("/")[2] for claim in deployed.claims]


def test_failed_run_is_sent_again_until_its_receives_are_used_up(deployed):
    """An API server that is gone: the message becomes a dead letter after 50 receives, and none is lost."""
    deployed.adapters.is_down = True
    deployed.adapters.queue().send([Message(cluster="demo", step=Step.PROVISION, reason="test")])
    deployed.world.run_for(timedelta(minutes=30))

    assert deployed.messages("provision") == []
    (letter,) = deployed.dead_letters
    assert (letter["reason"], letter["receives"]) == ("test", 49)
    assert len(deployed.function("provision").invocations) == 50 + 3  # FunctionGraph repeats the last one


def test_message_that_was_received_before_keeps_its_count(deployed):
    """A failure counts one receive more, and waits longer."""
    deployed.adapters.is_down = True

    assert deployed.invoke("terminate", sample("async/requeue-received-again.json"))["retried"]
    ((waiting,),) = [each.event["messages"] for each in deployed.graph.pending]
    assert json.loads(waiting["body"])["receives"] == 5
    assert deployed.invoke("terminate", sample("async/requeue-terminate.json"))["retried"]


def test_malformed_message_becomes_a_dead_letter(deployed):
    """FunctionGraph stores the event in the failure destination, as it was sent."""
    event = {**sample("async/pods-unschedulable.json"), "cluster": 7}
    deployed.graph.accept(deployed.function("provision"), event)
    deployed.world.run_for(timedelta(minutes=2))

    assert deployed.dead_letters == [event]


def test_lost_invocations_of_delay_are_repeated(deployed):
    """FunctionGraph refuses the request at first: the run's function fails, and is invoked again."""
    deployed.adapters.is_down = True
    deployed.adapters.account.fail_next("functiongraph AsyncInvokeFunction", "500", 2)
    deployed.graph.accept(deployed.function("provision"), sample("async/pods-unschedulable.json"))
    deployed.world.run_for(timedelta(seconds=30))

    deployed.adapters.is_down = False
    deployed.adapters.cluster.add(pod_body("waits"))
    deployed.world.run_for(timedelta(minutes=2))
    assert len(deployed.claims) == 1
    assert deployed.dead_letters == []


def test_delayed_messages_start_their_steps_when_they_are_due(deployed):
    """One of them is due 28 seconds after the other."""
    deployed.graph.accept(deployed.function("delay"), sample("async/delayed-messages.json"))

    deployed.world.run_for(timedelta(seconds=10))
    assert [len(deployed.function(step).invocations) > 0 for step in ("provision", "terminate")] == [True, False]
    deployed.world.run_for(timedelta(seconds=25))
    assert [i.event["step"] for i in deployed.function("terminate").invocations] == ["terminate"]


def test_api_returns_the_plan_and_requeues(deployed):
    """The routes are those of API Gateway."""
    deployed.invoke("provision", sample("async/pods-unschedulable.json"))  # marks the NodePool as ready

    check_plan_and_requeue(deployed, lambda name: deployed.invoke("api", sample(f"apig/{name}.json")))


@REFUSED
def test_api_refuses_what_it_does_not_serve(deployed, handler, path, method, status):
    """The gateway passes forwarders' requests on with the path of the trigger before their own."""
    base = "/events" if handler == "events_handler" else ""
    event = {**sample("apig/post-event.json"), "path": f"{base}{path}", "httpMethod": method}

    answer = deployed.invoke("api", event, handler)

    assert answer["statusCode"] == status
    assert json.loads(answer["body"])
    assert set(answer) == {"statusCode", "headers", "body", "isBase64Encoded"}
