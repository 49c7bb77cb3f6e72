"""Patience: real clients against a server that does not do well."""

import threading
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from journeyman.errors import CloudUnavailableError, DeadlineError
from journeyman.runtime.patience import CALL_SECONDS, CONNECT_SECONDS, READ_SECONDS, Patience
from journeyman.steps.invocation import Settings
from journeyman_simulator.clock import VirtualClock

START = datetime(2026, 11, 22, 3, 0, tzinfo=timezone.utc)
ATTEMPTS = 3


@pytest.fixture
def clock():
    return VirtualClock(START)


@contextmanager
def asked(clock, *, seconds_each, until=None):
    """(A call to EC2, which fails inside after so long each time; when it was asked)."""
    times = []

    class Failing(BaseHTTPRequestHandler):
        def do_POST(self):
            times.append(clock.now())
            clock.advance(seconds_each)
            self.send_response(503)
            self.end_headers()

        def log_message(self, *_):
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Failing) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        patience = Patience(clock)
        patience.until = until
        client = boto3.client(
            "ec2",
            region_name="us-east-1",
            endpoint_url=f"http://127.0.0.1:{server.server_port}",
            aws_access_key_id="x",
            aws_secret_access_key="y",
            config=Config(retries={"mode": "standard", "total_max_attempts": ATTEMPTS}),
        )
        yield patience.watch(client).describe_instances, times
        server.shutdown()
        thread.join()


def test_what_fails_at_once_is_asked_again(clock):
    """As often as the SDK does by itself; the error is AWS's own."""
    with asked(clock, seconds_each=1) as (call, times), pytest.raises(ClientError):
        call()
    assert len(times) == ATTEMPTS


def test_what_takes_long_is_left_to_the_next_run(clock):
    """Another attempt might outlast the Lease."""
    with asked(clock, seconds_each=READ_SECONDS) as (call, times), pytest.raises(CloudUnavailableError) as caught:
        call()
    assert caught.value.retryable
    assert len(times) == 1


def test_no_attempt_is_begun_that_may_outlast_the_run_but_for_the_first(clock):
    """The message about what is left is sent at the very end."""
    end = START + timedelta(seconds=10)
    with asked(clock, seconds_each=1, until=end) as (call, times), pytest.raises(CloudUnavailableError):
        call()
    assert len(times) == 1


def test_once_the_run_is_over_nothing_is_asked(clock):
    """The platform may end the process at any moment."""
    with asked(clock, seconds_each=1, until=START) as (call, times), pytest.raises(DeadlineError):
        call()
    assert times == []


def test_one_call_is_over_before_the_lease_has_to_be_renewed():
    """A launch is begun only if there is time for all of its attempts."""
    assert CONNECT_SECONDS + READ_SECONDS < CALL_SECONDS
    assert Settings(cluster_name="demo").launch_patience >= timedelta(seconds=CALL_SECONDS)
