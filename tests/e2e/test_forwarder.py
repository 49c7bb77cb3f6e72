"""The forwarder over HTTP: it reads from the in-memory API server and writes to moto's SQS and EventBridge."""

import json
import time
import urllib.request
from contextlib import ExitStack

import pytest

from infra.forwarder.aws_sinks import EVENT_SOURCE, EventBridgeSink, SqsSink, client
from infra.forwarder.forwarder import Forwarder, SendError
from infra.forwarder.notifications import Batcher, NotifiedStep
from infra.forwarder.observability import MESSAGES, WATCHES, Metrics, serve
from infra.forwarder.watched_objects import PodResource
from infra.forwarder.watcher import MAX_PAGE_BYTES, read_pages
from journeyman.core.api.objects import EC2NODECLASS, NODE, NODECLAIM, NODEPOOL, POD
from journeyman.events import parse_trigger
from journeyman.kube.access.in_cluster import with_token_file
from journeyman.kube.connection_pool import Connection
from journeyman.kube.transport import Transport
from journeyman.runtime.adapters import SystemClock
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.apiserver.http_server import HttpApiServer
from journeyman_simulator.moto_account.moto_server import MotoAccount
from tests.helpers.waiting import wait_until

CREDENTIALS = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
REFUSED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
NOWHERE = "http://127.0.0.1:9"


class ForwarderEnvironment:
    """An API server, two queues, and forwarders with short batch windows between them."""

    def __init__(self, stack):
        self.stack = stack
        self.clock = SystemClock()
        self.server = ApiServer(self.clock, history=20)
        self.aws = stack.enter_context(MotoAccount(self.clock, {}))
        self.sqs = self.aws.client("sqs")
        self.queues = {
            step: self.sqs.create_queue(QueueName=f"{step.value}.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
            for step in NotifiedStep
        }
        self.metrics = Metrics()
        self.front = None

    def serve(self, port=0, authenticate=None):
        self.front = HttpApiServer(self.server, port=port, authenticate=authenticate)
        self.stack.callback(self.close)
        return self.front

    def close(self):
        if self.front is not None:
            self.front.close()
            self.front = None

    def sink(self, endpoint=""):
        sqs = client("sqs", "us-east-1", endpoint_url=endpoint or self.aws.endpoint_url, **CREDENTIALS)
        return SqsSink(self.queues, "dev", sqs)

    def transport(self):
        return Transport(Connection(server=(self.front or self.serve()).url))

    def forward(self, *, sink=None, transport=None, watch_seconds=30, idle_seconds=0.15, max_seconds=0.6):
        forwarder = Forwarder(
            "dev",
            transport or self.transport(),
            sink or self.sink(),
            batcher=Batcher(idle_seconds, max_seconds),
            metrics=self.metrics,
            watch_seconds=watch_seconds,
            first_pause_seconds=0.05,
        )
        self.stack.callback(forwarder.stop, 1.0)
        forwarder.start()
        wait_until(lambda: forwarder.is_ready, "the forwarder does not get ready")
        return forwarder

    def add_unschedulable_pods(self, *names):
        for name in names:
            self.server.create(
                POD, {"metadata": {"name": name}, "spec": {"containers": [{"name": "c"}]}}, namespace="default"
            )
            self.server.patch(
                POD, name, {"status": {"conditions": [REFUSED]}}, namespace="default", subresource="status"
            )

    def add_node(self, name):
        self.server.create(NODE, {"metadata": {"name": name}})

    def set_ready(self, name, ready):
        conditions = [{"type": "Ready", "status": str(ready)}]
        self.server.patch(NODE, name, {"status": {"conditions": conditions}}, subresource="status")

    def message_count(self, outcome):
        """Return how many messages for the provision step had this outcome."""
        return self.metrics.value(MESSAGES, step="provision", sink="sqs", outcome=outcome)

    def failed_watches(self):
        """Return how many watches of pods failed."""
        return self.metrics.value(WATCHES, resource="pods", outcome="failed")

    def received(self, step=NotifiedStep.PROVISION, seconds=6.0):
        """Return the next message in a step's queue as the function parses it; None if there is none in time."""
        url = self.queues[step]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = self.sqs.receive_message(QueueUrl=url, MessageSystemAttributeNames=["All"]).get("Messages", [])
            if found:
                (message,) = found
                self.sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
                assert message["Attributes"]["MessageGroupId"] == "dev"
                trigger = parse_trigger(json.loads(message["Body"]))
                assert (trigger.cluster, trigger.step.value) == ("dev", step.value)
                return trigger
            time.sleep(0.02)
        return None


@pytest.fixture
def env():
    with ExitStack() as stack:
        yield ForwarderEnvironment(stack)


def test_burst_of_unschedulable_pods_is_one_message(env):
    """Both after a list and during a watch; the message has their number and the age of the oldest."""
    env.add_unschedulable_pods("before-1", "before-2")
    env.forward()
    first = env.received()
    env.add_unschedulable_pods(*(f"after-{i}" for i in range(8)))
    second = env.received()

    assert first.counts == {"pending": 2, "unschedulable": 2, "podsNewlyUnschedulable": 2}
    assert second.counts == {"pending": 10, "unschedulable": 10, "podsNewlyUnschedulable": 8}
    assert second.oldest_pending_time == first.oldest_pending_time
    assert second.reason == "10 pods are unschedulable"
    assert env.received(seconds=0.5) is None
    assert env.received(NotifiedStep.TERMINATE, 0.1) is None


def test_pod_that_is_bound_within_the_window_sends_no_message(env):
    """kube-scheduler may bind it within the batch window."""
    env.forward()
    env.add_unschedulable_pods("quick")
    env.server.bind("default", "quick", "node-1")

    assert env.received(seconds=0.8) is None
    assert env.message_count("obsolete") == 1


def test_nodes_and_nodeclaims_requeue_the_step_that_they_concern(env):
    """New and Ready nodes and deleted NodeClaims requeue provision; NotReady nodes and deleting NodeClaims, terminate."""
    env.forward()
    env.add_node("n1")
    assert env.received().counts["nodesJoined"] == 1
    env.set_ready("n1", True)
    assert env.received().counts["nodesReady"] == 1
    env.server.patch(NODE, "n1", {"metadata": {"labels": {"seen": "yes"}}})
    assert env.received(seconds=0.4) is None
    env.set_ready("n1", False)
    assert env.received(NotifiedStep.TERMINATE).counts["nodesNotReady"] == 1
    env.server.patch(NODE, "n1", {"metadata": {"finalizers": ["karpenter.sh/termination"]}})
    env.server.delete(NODE, "n1")
    assert env.received(NotifiedStep.TERMINATE).counts["nodesDeleting"] == 1
    env.server.patch(NODE, "n1", {"metadata": {"finalizers": []}})
    assert env.received().counts["nodesGone"] == env.received(NotifiedStep.TERMINATE).counts["nodesGone"] == 1

    spec = {
        "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"},
        "requirements": [],
    }
    labels = {"karpenter.sh/nodepool": "default"}
    metadata = {"name": "c1", "labels": labels, "finalizers": ["karpenter.sh/termination"]}
    env.server.create(NODECLAIM, {"metadata": metadata, "spec": spec})
    env.server.delete(NODECLAIM, "c1")
    assert env.received(NotifiedStep.TERMINATE).counts["claimsDeleting"] == 1
    env.server.patch(NODECLAIM, "c1", {"metadata": {"finalizers": []}})
    assert env.received().counts["claimsGone"] == 1


def test_changed_nodepools_and_nodeclasses_requeue_provision(env):
    """A creation, a change and a deletion send a message each; writes of the steps send none."""
    env.forward()
    reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
    template = {"spec": {"nodeClassRef": reference, "requirements": []}}
    env.server.create(NODEPOOL, {"metadata": {"name": "p"}, "spec": {"template": template, "limits": {"cpu": "1"}}})
    assert env.received().counts["nodePoolsChanged"] == 1
    env.server.patch(NODEPOOL, "p", {"status": {"nodes": 3}}, subresource="status")
    env.server.patch(NODEPOOL, "p", {"metadata": {"annotations": {"seen": "yes"}}})
    assert env.received(seconds=0.4) is None
    env.server.patch(NODEPOOL, "p", {"spec": {"limits": {"cpu": "2"}}})
    assert env.received().reason == "1 NodePool is new or changed"

    spec = {"role": "nodes", "amiSelectorTerms": [{"alias": "al2023@latest"}]}
    selectors = {"subnetSelectorTerms": [{"id": "subnet-1"}], "securityGroupSelectorTerms": [{"id": "sg-1"}]}
    finalizers = ["karpenter.k8s.aws/termination"]
    env.server.create(
        EC2NODECLASS, {"metadata": {"name": "c", "finalizers": finalizers}, "spec": {**spec, **selectors}}
    )
    assert env.received().counts["nodeClassesChanged"] == 1
    env.server.delete(EC2NODECLASS, "c")
    assert env.received().reason == "1 NodeClass is new or changed"
    assert env.received(NotifiedStep.TERMINATE, 0.1) is None


def test_outage_of_the_api_server_loses_no_pod(env):
    """The list after the outage has the pods that were created during it, even if their watch events expired (410)."""
    forwarder = env.forward()
    port = int(env.front.url.rpartition(":")[2])
    env.add_unschedulable_pods("before")
    assert env.received() is not None

    env.close()
    env.add_unschedulable_pods(*(f"during-{i}" for i in range(30)))  # more changes than the server's history
    wait_until(lambda: env.failed_watches() >= 2, "no watch failed")
    assert forwarder.is_live
    env.serve(port)

    counts = env.received().counts
    assert counts == {"pending": 31, "unschedulable": 31, "podsNewlyUnschedulable": 30}
    assert env.metrics.value(WATCHES, resource="pods", outcome="expired") == 1


class FailingSink:
    """A sink that fails while `down` is set."""

    name = "sqs"

    def __init__(self, env):
        self._works, self._broken = env.sink(), env.sink(NOWHERE)
        self.down = True

    def send(self, step, body, message_id):
        (self._broken if self.down else self._works).send(step, body, message_id)


def test_message_is_kept_while_the_queue_is_unreachable_and_arrives_once(env):
    """The message has the counts of the moment at which it is sent, with the later notifications."""
    sink = FailingSink(env)
    forwarder = env.forward(sink=sink)
    env.add_unschedulable_pods("patient")
    wait_until(lambda: env.message_count("failed"), "nothing failed to be sent")
    env.add_unschedulable_pods("impatient-1", "impatient-2")
    wait_until(lambda: forwarder.gauges()["undelivered_seconds"] > 0, "nothing is undelivered")
    sink.down = False

    counts = env.received(seconds=20).counts
    assert counts == {"pending": 3, "unschedulable": 3, "podsNewlyUnschedulable": 3}
    assert env.received(seconds=0.5) is None
    assert forwarder.gauges()["undelivered_seconds"] == 0


def test_new_process_notifies_of_what_it_lists(env):
    """So no notification is lost if the last process ended before it sent one."""
    env.forward(sink=FailingSink(env))  # it stays down
    env.add_unschedulable_pods("patient")
    wait_until(lambda: env.message_count("failed"), "nothing failed to be sent")
    env.forward()

    assert env.received().counts["unschedulable"] == 1


def test_two_replicas_send_one_message(env):
    """SQS drops the second message by its deduplication id."""
    first, second = env.forward(), env.forward()
    env.add_unschedulable_pods(*(f"pod-{i}" for i in range(5)))
    wait_until(lambda: env.message_count("sent") == 2, "not both of them have sent")

    assert env.received().counts["podsNewlyUnschedulable"] == 5
    assert env.received(seconds=0.5) is None
    assert first.is_live
    assert second.is_live


def test_event_bus_leads_to_the_queue_of_the_step(env):
    """EventBridge has a rule for each step, which matches the event's detail."""
    events = env.aws.client("events")
    bus = events.create_event_bus(Name="notifications")["EventBusArn"]
    for step, url in env.queues.items():
        pattern = {"source": [EVENT_SOURCE], "detail": {"cluster": ["dev"], "step": [step.value]}}
        events.put_rule(Name=step.value, EventBusName=bus, EventPattern=json.dumps(pattern))
        attributes = env.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]
        env.sqs.set_queue_attributes(QueueUrl=url, Attributes={"ContentBasedDeduplication": "true"})
        target = {"Id": "queue", "Arn": attributes["QueueArn"], "SqsParameters": {"MessageGroupId": "dev"}}
        events.put_targets(Rule=step.value, EventBusName=bus, Targets=[target])
    sink = EventBridgeSink(bus, client("events", "us-east-1", endpoint_url=env.aws.endpoint_url, **CREDENTIALS))
    env.forward(sink=sink)
    env.add_unschedulable_pods("a", "b")
    assert env.received().reason == "2 pods are unschedulable"
    env.add_node("n1")
    assert env.received().reason == "2 pods are unschedulable, 1 node joined"
    env.server.delete(NODE, "n1")
    assert env.received(NotifiedStep.TERMINATE).reason == "1 node is gone"


def test_missing_event_bus_is_named():
    """The sink raises an error with the bus's name, so that the forwarder keeps the message."""
    sink = EventBridgeSink("nowhere", client("events", "us-east-1", endpoint_url=NOWHERE, **CREDENTIALS))
    with pytest.raises(SendError, match="EventBridge did not accept the message for bus nowhere"):
        sink.send(NotifiedStep.PROVISION, "{}", "id")


def test_token_that_is_renewed_on_disk_is_used(env, tmp_path):
    """kubelet writes a new token before the old one expires; the forwarder reads it without a restart."""
    file = tmp_path / "token"
    accepted = {"first"}
    file.write_text("first\n")
    front = env.serve(authenticate=lambda token: token in accepted)
    transport = Transport(with_token_file(front.url, file))
    env.forward(transport=transport, watch_seconds=1)
    accepted.clear()
    wait_until(env.failed_watches, "no watch failed")
    accepted.add("second")
    file.write_text("second\n")
    env.add_unschedulable_pods("a")

    assert env.received() is not None


def test_huge_pods_are_listed_in_smaller_pages(env):
    """Forty pods have a quarter of a megabyte each; no page is larger than 4 MB."""
    for number in range(40):
        metadata = {"name": f"huge-{number}", "annotations": {"filler": f"{number:08d}" * 32_000}}
        env.server.create(POD, {"metadata": metadata, "spec": {"containers": [{"name": "c"}]}}, namespace="default")
    pages = [len(list(page.objects)) for page in read_pages(env.transport(), PodResource())]

    assert sum(pages) == 40
    assert max(pages) * 8 * 32_000 <= MAX_PAGE_BYTES


def test_open_batch_is_sent_before_the_process_ends(env):
    """SIGTERM arrives within a batch window of one minute."""
    forwarder = env.forward(idle_seconds=60, max_seconds=60)
    env.add_unschedulable_pods("late")
    wait_until(lambda: forwarder.gauges()["unschedulable_pods"] == 1, "the pod is not counted")

    assert forwarder.stop()
    assert env.received().counts["unschedulable"] == 1


def test_probes_and_metrics_are_answered(env):
    """The liveness and readiness probes succeed, and Prometheus can parse the metrics."""
    forwarder = env.forward(watch_seconds=1)
    web = serve(forwarder, env.metrics, 0, "127.0.0.1")
    env.stack.callback(web.server_close)
    env.stack.callback(web.shutdown)
    env.add_unschedulable_pods("a", "b")
    assert env.received() is not None

    def get(path):
        with urllib.request.urlopen(f"http://127.0.0.1:{web.server_port}{path}") as answer:
            return answer.status, answer.read().decode()

    assert get("/healthz") == (200, "ok\n")
    assert get("/readyz") == (200, "ok\n")
    text = get("/metrics")[1]
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    prefix = "journeyman_forwarder_"
    assert samples[f"{prefix}pending_pods"] == samples[f"{prefix}unschedulable_pods"] == "2"
    assert float(samples[f"{prefix}oldest_pending_seconds"]) >= 0
    assert samples[f'{prefix}messages_total{{outcome="sent",sink="sqs",step="provision"}}'] == "1"
    assert int(samples[f'{prefix}received_bytes_total{{resource="pods"}}']) > 0
    wait_until(lambda: "watches_total" in get("/metrics")[1], "no watch is counted")
    forwarder.stop()
    with pytest.raises(urllib.error.HTTPError, match="503"):
        get("/healthz")
