"""The forwarder against real HTTP: the in-memory API server's wire protocol on one side, moto's SQS on the other."""

import json
import time
import urllib.request
from contextlib import ExitStack

import pytest

from infra.forwarder.__main__ import serve_health
from infra.forwarder.batching import Batch
from infra.forwarder.forwarder import Forwarder
from infra.forwarder.sqs import SqsSink
from infra.forwarder.watch import PodSource
from journeyman.core.api.objects import POD
from journeyman.events import parse_trigger
from journeyman.runtime.aws import SystemClock
from journeyman.simulate.apiserver import ApiServer
from journeyman.simulate.apiserver.http import HttpFront
from journeyman.simulate.aws.server import SimulatedAws

CREDENTIALS = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
REFUSED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}


class Bench:
    """An API server, a lane, and forwarders between them with short windows."""

    def __init__(self, stack):
        self.stack = stack
        self.clock = SystemClock()
        self.server = ApiServer(self.clock, history=20)
        self.aws = stack.enter_context(SimulatedAws(self.clock, {}))
        self.sqs = self.aws.client("sqs")
        self.lane = self.sqs.create_queue(QueueName="provision.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
        self.front = None

    def serve(self, port=0):
        self.front = HttpFront(self.server, port=port)
        self.stack.callback(self.close)
        return self.front

    def close(self):
        if self.front is not None:
            self.front.close()
            self.front = None

    def forward(self, url, *, send=None, watch_seconds=30):
        sink = SqsSink(self.lane, "dev", region="us-east-1", endpoint_url=self.aws.endpoint_url, **CREDENTIALS)
        source = PodSource(url, watch_seconds=watch_seconds)
        forwarder = Forwarder(
            "dev", source, send or sink.send, batch=Batch(idle_seconds=0.15, max_seconds=0.6), first_pause_seconds=0.05
        )
        self.stack.callback(forwarder.stop)
        forwarder.start()
        return forwarder, sink

    def refuse_pods(self, *names):
        for name in names:
            self.server.create(
                POD, {"metadata": {"name": name}, "spec": {"containers": [{"name": "c"}]}}, namespace="default"
            )
            self.server.patch(
                POD, name, {"status": {"conditions": [REFUSED]}}, namespace="default", subresource="status"
            )

    def told(self, seconds=6.0):
        """The next message, as provision reads it."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = self.sqs.receive_message(QueueUrl=self.lane, MessageSystemAttributeNames=["All"]).get(
                "Messages", []
            )
            if found:
                (message,) = found
                self.sqs.delete_message(QueueUrl=self.lane, ReceiptHandle=message["ReceiptHandle"])
                assert message["Attributes"]["MessageGroupId"] == "dev"
                return parse_trigger(json.loads(message["Body"]))
            time.sleep(0.02)
        return None


@pytest.fixture
def bench():
    with ExitStack() as stack:
        yield Bench(stack)


def test_a_burst_of_unschedulable_pods_is_one_message(bench):
    """Listed ones and watched ones alike; provision learns how many, and how long the oldest waits."""
    bench.refuse_pods("before-1", "before-2")
    bench.forward(bench.serve().url)
    first = bench.told()
    bench.refuse_pods(*(f"after-{i}" for i in range(8)))
    second = bench.told()

    assert (first.cluster, first.step.value, first.details["counts"]) == (
        "dev",
        "provision",
        {"pending": 2, "unschedulable": 2},
    )
    assert second.details["counts"] == {"pending": 10, "unschedulable": 10}
    assert second.details["oldest_pending_time"] == first.details["oldest_pending_time"]
    assert bench.told(0.5) is None


def test_a_pod_that_finds_a_place_in_time_is_not_told(bench):
    """The batch window is also a chance for kube-scheduler."""
    bench.forward(bench.serve().url)
    bench.refuse_pods("quick")
    bench.server.bind("default", "quick", "node-1")

    assert bench.told(0.8) is None


def test_an_outage_of_the_api_server_loses_no_pod(bench):
    """What came up meanwhile is in the list afterwards, also when its changes have been forgotten (410)."""
    front = bench.serve()
    port = int(front.url.rpartition(":")[2])
    forwarder, _ = bench.forward(front.url)
    bench.refuse_pods("before")
    assert bench.told() is not None

    bench.close()
    bench.refuse_pods(*(f"during-{i}" for i in range(30)))  # more changes than the server remembers
    time.sleep(0.3)
    assert forwarder.healthy
    bench.serve(port)

    assert bench.told().details["counts"] == {"pending": 31, "unschedulable": 31}


def test_a_message_that_sqs_refuses_is_tried_again(bench):
    """Once the queue is back, the wake-up arrives, with the counts of that moment."""
    real: list = []

    def flaky(body, deduplication_id):
        if len(real) < 1:
            real.append(deduplication_id)
            broken.send(body, deduplication_id)
        sink.send(body, deduplication_id)

    broken = SqsSink(bench.lane, "dev", region="us-east-1", endpoint_url="http://127.0.0.1:9", **CREDENTIALS)
    sink = SqsSink(bench.lane, "dev", region="us-east-1", endpoint_url=bench.aws.endpoint_url, **CREDENTIALS)
    bench.forward(bench.serve().url, send=flaky)
    bench.refuse_pods("patient")

    assert bench.told(20).details["counts"]["unschedulable"] == 1
    assert len(real) == 1


def test_health_is_answered_until_the_threads_end(bench):
    """A probe restarts it only when that would help."""
    forwarder, _ = bench.forward(bench.serve().url, watch_seconds=1)
    health = serve_health(forwarder, 0, "127.0.0.1")
    bench.stack.callback(health.server_close)
    bench.stack.callback(health.shutdown)

    with urllib.request.urlopen(f"http://127.0.0.1:{health.server_port}/healthz") as answer:
        assert answer.status == 200
