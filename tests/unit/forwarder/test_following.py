"""How an API server that lists but refuses to be watched is waited for: with growing pauses, until it is followed again."""

import json
import logging
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from infra.forwarder.apiserver import ApiServer
from infra.forwarder.following import Follower
from infra.forwarder.metrics import Metrics
from infra.forwarder.pods import Waiting
from infra.forwarder.resources import Pods
from tests.helpers.waiting import wait_until

LIST = json.dumps({"metadata": {"resourceVersion": "7"}, "items": []}).encode()


class Refusing:
    """A server whose watches are refused until it is told otherwise; `watched_at` are the times of all of them."""

    def __init__(self):
        self.refuses, self.watched_at = True, []

    def answer(self, path):
        if "watch" not in path:
            return 200, LIST
        self.watched_at.append(time.monotonic())
        return (404, b"404 page not found") if self.refuses else (200, b"")


@pytest.fixture
def refusing():
    refusing = Refusing()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            status, body = refusing.answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            """The test knows."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    refusing.url = f"http://127.0.0.1:{server.server_port}"
    yield refusing
    server.shutdown()
    server.server_close()


def test_a_watch_that_is_refused_is_asked_for_less_and_less_often(refusing, caplog):
    """As in an outage, or without the CRDs: a list that was had before is no reason to hammer the server."""
    caplog.set_level(logging.INFO, "forwarder")
    follower = Follower(
        ApiServer(refusing.url), Pods(), Waiting(), lambda _: None,
        lock=threading.Condition(), metrics=Metrics(), first_pause_seconds=0.02,
    )  # fmt: skip
    follower.start()
    try:
        wait_until(lambda: len(refusing.watched_at) >= 5, "the watch is not tried again")
        followed_too_early = "follows the pods again" in caplog.text
        refusing.refuses = False
        wait_until(lambda: "follows the pods again" in caplog.text, "the pods are not followed again")
    finally:
        follower.stop()

    fourth, fifth = refusing.watched_at[3:5]
    assert fifth - fourth >= 0.02 * 2**3 / 2  # doubled three times, of which half is left to chance
    assert not followed_too_early
