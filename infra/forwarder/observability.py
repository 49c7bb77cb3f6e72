"""Log lines, metrics, and the HTTP server for probes and Prometheus."""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Protocol, TextIO

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "journeyman_forwarder_"

MESSAGES: Final = "messages_total"
WATCHES: Final = "watches_total"
BYTES: Final = "received_bytes_total"
_HELP: Final[Mapping[str, tuple[str, str]]] = {
    "pending_pods": ("gauge", "Number of pods without a node."),
    "unschedulable_pods": ("gauge", "Number of pods that kube-scheduler found no node for."),
    "oldest_pending_seconds": ("gauge", "Age of the oldest unschedulable pod; 0 without one."),
    "undelivered_seconds": ("gauge", "Time since the oldest undelivered message failed to be sent; 0 without one."),
    MESSAGES: ("counter", "Number of messages by step, sink and outcome (sent, failed, obsolete)."),
    WATCHES: ("counter", "Number of watches by resource and outcome (ended, expired, failed)."),
    BYTES: ("counter", "Bytes received from the API server by resource, compressed as on the wire."),
}
_PLAIN: Final = "text/plain; charset=utf-8"
_CLIENT_SECONDS: Final = 5.0
_MAX_CONNECTIONS: Final = 16
"""Connections at once; each takes a thread. The kubelet and Prometheus need one each."""


class JsonLines(logging.Formatter):
    """One line of JSON for each record, with the keys of the functions' lines; `extra` fields named in `FIELDS` are added."""

    FIELDS = ("id",)

    def __init__(self, cluster: str) -> None:
        super().__init__()
        self._cluster = cluster

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        line = {
            "level": record.levelname,
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "logger": record.name,
            "message": record.getMessage(),
            "cluster": self._cluster,
            **{name: getattr(record, name) for name in self.FIELDS if hasattr(record, name)},
        }
        if record.exc_info:
            line["stacktrace"] = self.formatException(record.exc_info)
        return json.dumps(line)


def set_up_logging(cluster: str, level: str, stream: TextIO = sys.stdout) -> None:
    """Log to `stream`; an exception that ends a thread is logged as well."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines(cluster))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("forwarder").setLevel(level)
    threading.excepthook = _log_failed_thread


def _log_failed_thread(failure: threading.ExceptHookArgs) -> None:
    name = failure.thread.name if failure.thread else "a thread"
    exc_info = (failure.exc_type, failure.exc_value or failure.exc_type(), failure.exc_traceback)
    logging.getLogger("forwarder").error("thread %s ended with an error; /healthz reports it", name, exc_info=exc_info)


class Metrics:
    """Counters, and gauges that are computed for each scrape, in Prometheus' text format 0.0.4; safe to use from several threads.

    prometheus_client would need 2.7 of the 64 MiB for these seven metrics.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}

    def count(self, name: str, number: int = 1, **labels: str) -> None:
        """Add to a counter."""
        key = (name, tuple(sorted(labels.items())))
        with self._lock:
            self._counters[key] = self._counters.get(key, 0) + number

    def value(self, name: str, **labels: str) -> int:
        """Return a counter's value."""
        with self._lock:
            return self._counters.get((name, tuple(sorted(labels.items()))), 0)

    def text(self, gauges: Callable[[], Mapping[str, float]]) -> str:
        """Return all metrics as Prometheus reads them."""
        with self._lock:
            counters = dict(self._counters)
        samples = {(name, ()): value for name, value in gauges().items()} | counters
        lines: list[str] = []
        for name, (kind, explained) in _HELP.items():
            lines += [f"# HELP {PREFIX}{name} {explained}", f"# TYPE {PREFIX}{name} {kind}"]
            lines += [_sample(name, labels, value) for (n, labels), value in sorted(samples.items()) if n == name]
        return "\n".join(lines) + "\n"


def _sample(name: str, labels: tuple[tuple[str, str], ...], value: float) -> str:
    label_text = ",".join(f'{key}="{text}"' for key, text in labels)
    return f"{PREFIX}{name}{{{label_text}}} {value:g}" if label_text else f"{PREFIX}{name} {value:g}"


class Probed(Protocol):
    """The state that probes and scrapes read; `Forwarder` implements it."""

    @property
    def is_live(self) -> bool:
        """Whether no restart is needed."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether everything was listed once."""
        ...

    def gauges(self) -> Mapping[str, float]:
        """Return the gauges."""
        ...


class ProbeServer(ThreadingHTTPServer):
    """Answers each connection in a thread, so that no client delays the probes of the kubelet.

    A connection ends after `client_seconds`, however slowly its client sends. The oldest one ends early when a client connects
    while there are as many connections as allowed.

    Args:
        address: Host and port.
        handler: Answers a request.
        client_seconds: How long a connection may last.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], client_seconds: float) -> None:
        self._client_seconds = client_seconds
        self._lock = threading.Lock()
        self._opened: dict[Any, float] = {}  # by connection, the oldest first
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread."""
        request.settimeout(self._client_seconds)
        with self._lock:
            if len(self._opened) >= _MAX_CONNECTIONS:
                self._end(next(iter(self._opened)))
            self._opened[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._opened.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End the connections that lasted too long; called twice a second and after each new connection."""
        with self._lock:
            for request in [each for each, at in self._opened.items() if time.monotonic() - at > self._client_seconds]:
                self._end(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error, except of a client that disconnected or was too slow."""
        if not isinstance(sys.exc_info()[1], OSError):
            logging.getLogger("forwarder").exception("a request for probes or metrics failed")

    def _end(self, request: Any) -> None:
        """End a connection; its thread reads the end of the request, and closes it."""
        del self._opened[request]
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)


def serve(
    forwarder: Probed, metrics: Metrics, port: int, host: str = "", *, client_seconds: float = _CLIENT_SECONDS
) -> ProbeServer:
    """Serve `/healthz`, `/readyz` and `/metrics` in threads until `shutdown`; a connection may last for `client_seconds`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body, content_type = _response(self.path, forwarder, metrics)
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing for probes."""

    server = ProbeServer((host, port), Handler, client_seconds)
    threading.Thread(target=server.serve_forever, name="serve", daemon=True).start()
    return server


def _response(path: str, forwarder: Probed, metrics: Metrics) -> tuple[int, bytes, str]:
    if path == "/metrics":
        return 200, metrics.text(forwarder.gauges).encode(), CONTENT_TYPE
    probes = {"/healthz": forwarder.is_live, "/readyz": forwarder.is_ready}
    if path not in probes:
        return 404, b"use /healthz, /readyz or /metrics\n", _PLAIN
    return (200, b"ok\n", _PLAIN) if probes[path] else (503, b"no\n", _PLAIN)
