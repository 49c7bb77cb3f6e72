"""A run's request budget: time, retries, and the metrics of its requests."""

import gzip
import json
import time
from datetime import datetime, timedelta, timezone

import pytest
import urllib3

from journeyman.core.api.metrics import METRICS
from journeyman.core.api.objects import NODE, POD
from journeyman.errors import DeadlineError, KubeUnavailableError, TooManyRequestsError
from journeyman.kube.connection_pool import Connection, ConnectionPool
from journeyman.kube.request_budget import READS, RequestBudget, RequestUsage
from journeyman.runtime.composition import request_metrics
from journeyman_simulator.clock import VirtualClock

NOW = datetime(2026, 3, 1, tzinfo=timezone.utc)
BUSY = {"kind": "Status", "code": 429, "reason": "TooManyRequests", "message": "please wait"}
NODES = {"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "n"}}]}


def ends_in(seconds, **more):
    return RequestBudget(clock=VirtualClock(NOW), until=NOW + timedelta(seconds=seconds), **more)


def test_no_request_is_sent_after_the_deadline(script, store_for):
    """A requeue message is better than a request that the platform interrupts, or a wait beyond the run's end.

    Retry-After is 5 seconds, the run has 2: the step gets the error with the wait.
    """
    with pytest.raises(DeadlineError):
        store_for(script.url).for_run(ends_in(0)).list(NODE)
    assert script.requests == []
    script.add_response(429, BUSY, Retry_After="5")
    with pytest.raises(TooManyRequestsError) as caught:
        store_for(script.url).for_run(ends_in(2)).list(NODE)
    assert caught.value.retry_after_seconds == 5
    assert len(script.requests) == 1


def test_budget_without_an_end_limits_no_time():
    """With a clock or without one."""
    for unlimited in (RequestBudget(), RequestBudget(clock=VirtualClock(NOW))):
        assert unlimited.limit(30) == 30
        assert unlimited.take_retry(wait_seconds=3600)


def test_response_timeout_is_limited_by_the_deadline(script, store_for):
    """The default timeout is 30 seconds; this run has less than one. The error says more than that no retries are left."""
    script.delay_responses(seconds=3)
    script.add_response(200, NODES)
    began = time.monotonic()
    with pytest.raises(KubeUnavailableError, match="did not answer in time"):
        store_for(script.url).for_run(ends_in(0.3, retries=0)).list(NODE)
    assert time.monotonic() - began < 2


def test_retry_is_taken_if_its_wait_ends_before_the_run():
    """And if one is left; each is a further request."""
    budget = ends_in(2, retries=2)
    taken = [budget.take_retry(wait_seconds=seconds) for seconds in (2, 1.9, 0, 0)]
    assert taken == [False, True, True, False]
    assert budget.usage == RequestUsage(requests=2, retries=2)


@pytest.mark.parametrize(("header", "waited"), [("3", 3), ("8", 8), ("3600", 8), (None, None)])
def test_server_determines_the_wait_up_to_a_bound(header, waited):
    """An hour would be longer than any run."""
    response = urllib3.HTTPResponse(status=429, headers={"Retry-After": header} if header else {})
    assert READS.get_retry_after(response) == waited


def test_requests_of_a_run_share_its_retries(script, store_for):
    """Hundreds of throttled writes do not cause thousands of requests."""
    script.add_response(429, BUSY, Retry_After="0")
    store = store_for(script.url).for_run(ends_in(60, retries=4))
    for _ in range(10):
        with pytest.raises(TooManyRequestsError):
            store.patch(NODE, "n", {"metadata": {}})
    assert len(script.requests) == 10 + 4


def test_requests_and_bytes_are_counted_as_on_the_wire(script, store_for):
    """Bytes are compressed, and retries count; each is a declared metric by step."""
    body = gzip.compress(json.dumps({**NODES, "padding": "x" * 5000}).encode())
    script.add_response(503, b"")
    script.add_response(200, body, Content_Encoding="gzip")
    script.add_response(200, {"metadata": {"name": "n"}})
    budget = ends_in(60)
    store = store_for(script.url).for_run(budget)
    store.list(NODE)
    store.patch(NODE, "n", {"spec": {}})

    assert budget.usage == RequestUsage(
        requests=3,
        writes=1,
        retries=1,
        sent_bytes=len(b'{"spec":{}}'),
        received_bytes=len(body) + len(b'{"metadata": {"name": "n"}}'),
    )
    seen = request_metrics(budget.usage, "provision")
    assert [o.value for o in seen] == [3, 1, 11, budget.usage.received_bytes]
    assert all(tuple(o.labels) == METRICS[o.name].labels for o in seen)
    assert request_metrics(RequestUsage(), "provision") == ()


def test_watch_is_counted_while_it_arrives(script, store_for):
    line = b'{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"8"}}}\n'
    script.add_response(200, b"%x\r\n%b\r\n" % (len(line), line) + b"0\r\n\r\n", Transfer_Encoding="chunked")
    budget = ends_in(60)
    next(store_for(script.url).for_run(budget).watch(POD, resource_version="7"))
    assert budget.usage == RequestUsage(requests=1, received_bytes=len(line))


def test_retries_wait_with_jitter():
    """Sandboxes that fail together must not retry together."""
    waits = set()
    for _ in range(20):
        policy = READS
        for _ in range(3):
            policy = policy.increment("GET", "/", error=urllib3.exceptions.ConnectTimeoutError(), _pool=None)
        waits.add(policy.get_backoff_time())
    assert len(waits) > 10


def test_idle_connections_are_not_used_again(script):
    """Sandboxes freeze, and a write that is lost on a broken connection could not be retried."""
    script.add_response(200, b"{}")
    pool = ConnectionPool(Connection(server=script.url), size=1, timeout=urllib3.Timeout(5), idle_seconds=0.05)
    pool.request("GET", script.url)
    soon = pool.connection_from_url(script.url)
    assert soon is pool.connection_from_url(script.url)
    time.sleep(0.1)
    assert pool.connection_from_url(script.url) is not soon
    pool.clear()
