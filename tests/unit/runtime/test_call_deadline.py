"""Call deadlines: real boto3 clients with a slow server, and several runs in one process."""

import json
import threading
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from moto import mock_aws

from journeyman.core.plan import Step
from journeyman.errors import CloudUnavailableError, DeadlineError
from journeyman.ports import ScheduledRun
from journeyman.runtime.aws import AwsAdapters
from journeyman.runtime.call_deadline import (
    CALL_SECONDS,
    CONNECT_SECONDS,
    READ_SECONDS,
    CallDeadline,
    calls_end_by,
)
from journeyman.runtime.composition import Runtime
from journeyman.runtime.environment import read_environment
from journeyman.steps.context import Settings
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.clock import VirtualClock
from tests.unit.runtime.test_environment import MINIMAL

START = datetime(2026, 11, 22, 3, 0, tzinfo=timezone.utc)
ATTEMPTS = 3


@pytest.fixture
def clock():
    return VirtualClock(START)


@contextmanager
def failing_call(clock, *, seconds_each, until=None):
    """Return an EC2 call that fails each time after so many seconds, and the list of its request times."""
    times = []

    class Failing(BaseHTTPRequestHandler):
        def do_POST(self):
            times.append(clock.now())
            clock.advance(seconds_each)
            self.send_response(503)
            self.end_headers()

        def log_message(self, *_):
            """Write no log line."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Failing) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        client = boto3.client(
            "ec2",
            region_name="us-east-1",
            endpoint_url=f"http://127.0.0.1:{server.server_port}",
            aws_access_key_id="x",
            aws_secret_access_key="y",
            config=Config(retries={"mode": "standard", "total_max_attempts": ATTEMPTS}),
        )
        with calls_end_by(until) if until else nullcontext():
            yield CallDeadline(clock).watch(client).describe_instances, times
        server.shutdown()
        thread.join()


LATEST_RETRY_SECONDS = CALL_SECONDS - CONNECT_SECONDS - READ_SECONDS


@pytest.mark.parametrize(
    ("seconds_each", "until", "error", "attempts"),
    [
        (1, None, ClientError, ATTEMPTS),  # as often as by the SDK, and the error is AWS's
        (LATEST_RETRY_SECONDS, None, CloudUnavailableError, 2),
        (LATEST_RETRY_SECONDS + 1, None, CloudUnavailableError, 1),
        (1, START + timedelta(seconds=10), CloudUnavailableError, 1),
        (1, START, DeadlineError, 0),
    ],
)
def test_failed_call_is_retried_as_long_as_neither_lease_nor_run_may_end(clock, seconds_each, until, error, attempts):
    """The run needs its last seconds to send its requeue messages; after it the platform may end the process."""
    with failing_call(clock, seconds_each=seconds_each, until=until) as (call, times), pytest.raises(error) as caught:
        call()
    assert len(times) == attempts
    assert error is ClientError or caught.value.retryable


def test_call_ends_before_the_lease_must_be_renewed():
    """A launch starts only if there is time for all of its attempts."""
    assert CONNECT_SECONDS + READ_SECONDS < CALL_SECONDS
    assert Settings(cluster_name="demo").launch_call_timeout >= timedelta(seconds=CALL_SECONDS)


# -- runs of several clusters in one process ------------------------------------------------------------------------

TWO_CLUSTERS = json.dumps(
    [{"name": name, "region": "us-east-1", "access": {"kind": "kubeconfig", "path": "x"}} for name in ("blue", "green")]
)
TEN_SECONDS = SimpleNamespace(aws_request_id="req-1", get_remaining_time_in_millis=lambda: 10_000)


@pytest.fixture
def aws_runtime(clock, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "example")
    environment = read_environment({**MINIMAL, "JOURNEYMAN_CLUSTERS": TWO_CLUSTERS})
    with mock_aws():
        yield Runtime(environment.settings, AwsAdapters(environment, clock=clock, stores=lambda _: ApiServer(clock)))


def run_of(runtime, cluster):
    trigger = ScheduledRun(id="m-1", cluster=cluster, step=Step.TERMINATE, reason="garbage collection", time=START)
    return runtime.invocation(trigger, TEN_SECONDS)


def test_end_of_a_run_keeps_the_deadlines_of_other_runs(aws_runtime, clock):
    """Up to 16 clusters run in one process; the first run's end must not remove the deadlines of the others."""

    def run_green():
        with run_of(aws_runtime, "green") as run:
            run.cloud.list()

    with run_of(aws_runtime, "blue") as blue:
        other = threading.Thread(target=run_green)
        other.start()
        other.join()
        assert blue.cloud.list() == ()
        clock.advance(9)
        with pytest.raises(DeadlineError):
            blue.cloud.list()


def test_threads_of_a_run_share_its_deadline(aws_runtime, clock):
    """The adapter reads instance types in two threads."""
    selectors = {f"{kind}SelectorTerms": [{"tags": {"team": "web"}}] for kind in ("subnet", "securityGroup", "ami")}
    node_class = {"metadata": {"name": "default"}, "spec": {"amiFamily": "AL2023", "role": "node", **selectors}}
    node_class["status"] = {"subnets": [{"id": "subnet-1", "zone": "us-east-1a"}]}
    with run_of(aws_runtime, "blue") as run:
        clock.advance(9)
        with pytest.raises(DeadlineError):
            run.cloud.get_instance_types(node_class)


def test_calls_after_a_run_have_no_deadline(aws_runtime, clock):
    """Malformed messages are returned to their queue after the runs."""
    with suppress(ZeroDivisionError), run_of(aws_runtime, "blue") as run:
        clock.advance(9)
        raise ZeroDivisionError
    assert run.cloud.list() == ()
