"""The forwarder's HTTP server, whose probes decide whether the kubelet restarts it."""

import socket
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from urllib.request import urlopen

import pytest

from infra.forwarder.observability import Metrics, serve


class LiveForwarder:
    """A forwarder without problems."""

    is_live = is_ready = True

    def gauges(self) -> Mapping[str, float]:
        return {"pending_pods": 3}


@pytest.fixture
def port():
    """Return the port of a server that gives a client half a second."""
    server = serve(LiveForwarder(), Metrics(), 0, "127.0.0.1", client_seconds=0.5)
    yield server.server_port
    server.shutdown()
    server.server_close()


def probe(port: int, path: str = "/healthz", *, seconds: float = 5) -> str:
    with urlopen(f"http://127.0.0.1:{port}{path}", timeout=seconds) as response:
        return response.read().decode()


def drip(connection: socket.socket, *, until: float) -> float:
    """Send a byte of a request every 50 ms, and return how long the server accepts them."""
    started_at = time.monotonic()
    with suppress(OSError):
        connection.sendall(b"GET /")
        while time.monotonic() < started_at + until:
            connection.sendall(b"x")
            time.sleep(0.05)
    return time.monotonic() - started_at


def test_probe_is_answered_beside_a_connection_that_drips(port):
    """A probe without an answer within a second would have the kubelet restart the forwarder."""
    with socket.create_connection(("127.0.0.1", port)) as dripping:
        dripper = threading.Thread(target=drip, args=(dripping,), kwargs={"until": 2})
        dripper.start()
        time.sleep(0.2)
        assert probe(port, seconds=1) == "ok\n"
        dripper.join()


def test_connection_that_drips_is_closed(port):
    """The timeout is for the whole request, not for the next byte."""
    with socket.create_connection(("127.0.0.1", port)) as dripping:
        assert drip(dripping, until=10) < 5


def test_probe_is_answered_beside_more_connections_than_the_server_keeps(port):
    """Each connection takes a thread; the oldest one gives way to a new one."""
    with ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert probe(port, seconds=5) == "ok\n"
        assert threading.active_count() < 60


def test_metrics_and_unknown_paths_are_answered(port):
    """Prometheus reads the gauges."""
    assert "journeyman_forwarder_pending_pods 3" in probe(port, "/metrics")
    with pytest.raises(OSError, match="404"):
        probe(port, "/elsewhere")
