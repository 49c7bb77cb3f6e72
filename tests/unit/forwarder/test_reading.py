"""Unusual responses over real HTTP: each raises its own error, and none is decoded as an object."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from infra.forwarder.watched_objects import PodResource
from infra.forwarder.watcher import read_pages, watch
from journeyman.errors import GoneError, JourneymanError, KubeAPIError, TooManyRequestsError
from journeyman.kube.connection_pool import Connection
from journeyman.kube.transport import Transport

POD = {"metadata": {"uid": "u", "resourceVersion": "7"}, "unheardOf": {"since": "v1.99"}}
ADDED = json.dumps({"type": "ADDED", "object": POD}).encode()


@pytest.fixture
def saying():
    """Return a function that makes a transport to a server with one response for all requests."""
    servers = []

    def make(body, *, status=200, headers=None, cut_short=0):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body) + cut_short), **(headers or {})}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                """Write no log line."""

        server = HTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return Transport(Connection(server=f"http://127.0.0.1:{server.server_port}"))

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


def watched(transport):
    return list(watch(transport, PodResource(), "1"))


def test_unknown_fields_are_skipped(saying):
    """A newer server has more fields."""
    (change,) = watched(saying(ADDED + b"\n"))

    assert (change.type, change.object.metadata.uid, change.version) == ("ADDED", "u", "7")


def test_object_of_a_megabyte_is_read_from_many_pieces(saying):
    """Lines may have any length."""
    large = {"type": "ADDED", "object": {**POD, "spec": {"filler": "x" * 1_000_000}}}
    changes = watched(saying(json.dumps(large).encode() + b"\n" + ADDED + b"\n"))

    assert [change.object.metadata.uid for change in changes] == ["u", "u"]


@pytest.mark.parametrize("cut_short", [0, 100], ids=["ended", "broken off"])
def test_watch_that_breaks_in_an_object_keeps_earlier_events(saying, cut_short):
    """The next watch begins after the last whole object."""
    events = watch(saying(ADDED + b"\n" + ADDED[:30], cut_short=cut_short), PodResource(), "1")

    assert next(events).version == "7"
    with pytest.raises(KubeAPIError, match=r"watch of \S+ was cut off in the middle|before the response was complete"):
        next(events)


@pytest.mark.parametrize(
    ("code", "message"),
    [(410, "too old resource version: 1 (9)"), (504, "Timeout: Too large resource version: 9, current: 1")],
)
@pytest.mark.parametrize("inside", [True, False], ids=["inside the watch", "as the answer"])
def test_unknown_resource_version_means_listing_again(saying, code, message, inside):
    """The version is too old, or the server was restored to an older state; trying again would never help."""
    status = {"kind": "Status", "code": code, "message": message}
    line = json.dumps({"type": "ERROR", "object": status}).encode() + b"\n"
    transport = saying(line) if inside else saying(json.dumps(status).encode(), status=code)

    with pytest.raises(GoneError, match=message.split(":")[0]):
        watched(transport)


def test_throttling_server_says_when_to_try_again(saying):
    """API Priority and Fairness sets the time."""
    with pytest.raises(TooManyRequestsError, match=r"HTTP 429.*too many.*GET /api/v1/pods") as refused:
        list(read_pages(saying(b"too many", status=429, headers={"Retry-After": "12"}), PodResource()))

    assert refused.value.retry_after_seconds == 12.0


def test_response_of_another_program_is_an_error(saying):
    """For example, a login page has status 200."""
    with pytest.raises(KubeAPIError, match="is not an API server's"):
        list(read_pages(saying(b"<html>sign in</html>"), PodResource()))


def test_unreachable_server_is_named():
    """The error, which is logged, has its address."""
    with pytest.raises(JourneymanError, match=r"refuses connections.*http://127\.0\.0\.1:9"):
        list(read_pages(Transport(Connection(server="http://127.0.0.1:9")), PodResource()))
