"""What an API server may answer besides what was asked for: each is told apart, and none is taken for an object.

The server here says over real HTTP what a test gives it to say.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from infra.forwarder.apiserver import ApiServer, ApiServerError, ExpiredError
from infra.forwarder.resources import Pods

POD = {"metadata": {"uid": "u", "resourceVersion": "7"}, "unheardOf": {"since": "v1.99"}}
ADDED = json.dumps({"type": "ADDED", "object": POD}).encode()


@pytest.fixture
def saying():
    """Makes an `ApiServer` whose server answers every request alike."""
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
                """The test knows."""

        server = HTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return ApiServer(f"http://127.0.0.1:{server.server_port}")

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


def watched(api):
    return list(api.watch(Pods(), "1"))


def test_fields_that_nobody_knows_are_skipped(saying):
    """A newer server has more of them."""
    (change,) = watched(saying(ADDED + b"\n"))

    assert (change.type, change.object.metadata.uid, change.version) == ("ADDED", "u", "7")


def test_an_object_of_a_megabyte_comes_in_many_pieces_and_is_one(saying):
    """Lines have no length that could be counted on."""
    large = {"type": "ADDED", "object": {**POD, "spec": {"filler": "x" * 1_000_000}}}
    changes = watched(saying(json.dumps(large).encode() + b"\n" + ADDED + b"\n"))

    assert [change.object.metadata.uid for change in changes] == ["u", "u"]


@pytest.mark.parametrize("cut_short", [0, 100], ids=["ended", "broken off"])
def test_a_watch_that_is_cut_in_the_middle_of_an_object_keeps_what_came_before(saying, cut_short):
    """The rest is asked for again, from the last whole object on."""
    watch = saying(ADDED + b"\n" + ADDED[:30], cut_short=cut_short).watch(Pods(), "1")

    assert next(watch).version == "7"
    with pytest.raises(ApiServerError, match=r"watch of pods (was cut off in the middle|broke off)"):
        next(watch)


@pytest.mark.parametrize(
    ("code", "message"),
    [(410, "too old resource version: 1 (9)"), (504, "Timeout: Too large resource version: 9, current: 1")],
)
@pytest.mark.parametrize("inside", [True, False], ids=["inside the watch", "as the answer"])
def test_a_version_that_the_server_does_not_have_means_listing_anew(saying, code, message, inside):
    """It forgot it, or was set back to an older state; trying again would never help."""
    status = {"kind": "Status", "code": code, "message": message}
    line = json.dumps({"type": "ERROR", "object": status}).encode() + b"\n"
    api = saying(line) if inside else saying(json.dumps(status).encode(), status=code)

    with pytest.raises(ExpiredError, match=message.split(":")[0]):
        watched(api)


def test_a_server_that_is_too_busy_says_when_to_come_back(saying):
    """API priority and fairness."""
    with pytest.raises(ApiServerError, match="429 for pods: too many") as refused:
        list(saying(b"too many", status=429, headers={"Retry-After": "12"}).pages(Pods()))

    assert refused.value.retry_after == 12.0


def test_what_is_no_api_server_is_told_so(saying):
    """A login page with status 200, say."""
    with pytest.raises(ApiServerError, match="is not an API server's"):
        list(saying(b"<html>sign in</html>").pages(Pods()))


def test_a_server_that_is_away_is_named():
    """Whoever reads the log knows which."""
    with pytest.raises(ApiServerError, match=r"http://127\.0\.0\.1:9 cannot be reached"):
        list(ApiServer("http://127.0.0.1:9").pages(Pods()))
