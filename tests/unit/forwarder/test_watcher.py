"""A refused watch is retried with growing pauses."""

import json
import logging
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from infra.forwarder.observability import Metrics
from infra.forwarder.trackers import PodTracker
from infra.forwarder.watched_objects import PodResource
from infra.forwarder.watcher import Watcher
from journeyman.kube.connection_pool import Connection
from journeyman.kube.transport import Transport
from tests.helpers.waiting import wait_until

LIST = json.dumps({"metadata": {"resourceVersion": "7"}, "items": []}).encode()


class Refusing:
    """A server that refuses watches while `refuses` is set, and records the times of all watches in `watched_at`."""

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
            """Write no log line."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    refusing.url = f"http://127.0.0.1:{server.server_port}"
    yield refusing
    server.shutdown()
    server.server_close()


def test_refused_watch_is_tried_again_with_growing_pauses(refusing, caplog):
    """Watches fail in an outage or without the CRDs; a successful list does not reset the pause."""
    caplog.set_level(logging.INFO, "forwarder")
    watcher = Watcher(
        Transport(Connection(server=refusing.url)), PodResource(), PodTracker(), lambda _: None,
        lock=threading.Condition(), metrics=Metrics(), first_pause_seconds=0.02,
    )  # fmt: skip
    watcher.start()
    try:
        wait_until(lambda: len(refusing.watched_at) >= 5, "the watch is not tried again")
        resumed_too_early = "watching the pods again" in caplog.text
        refusing.refuses = False
        wait_until(lambda: "watching the pods again" in caplog.text, "the pods are not watched again")
    finally:
        watcher.stop()

    fourth, fifth = refusing.watched_at[3:5]
    assert fifth - fourth >= 0.02 * 2**3 / 2  # doubled three times; half of a pause is random
    assert not resumed_too_early
