"""What others ask the process: `/healthz` (would a restart help?), `/readyz` (is everything watched?), `/metrics`."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Final

from infra.forwarder.forwarder import Forwarder
from infra.forwarder.metrics import CONTENT_TYPE, Metrics

_PLAIN: Final = "text/plain; charset=utf-8"
_SLOWEST_SECONDS: Final = 5.0


def serve(forwarder: Forwarder, metrics: Metrics, port: int, host: str = "") -> HTTPServer:
    """Answer in the background, one request at a time, until `shutdown`."""

    class Handler(BaseHTTPRequestHandler):
        timeout = _SLOWEST_SECONDS  # whoever connects and says nothing does not keep the probes out

        def do_GET(self) -> None:
            status, body, content_type = _answer(self.path, forwarder, metrics)
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Probes are not worth a line."""

    server = HTTPServer((host, port), Handler)
    threading.Thread(target=server.serve_forever, name="serve", daemon=True).start()
    return server


def _answer(path: str, forwarder: Forwarder, metrics: Metrics) -> tuple[int, bytes, str]:
    if path == "/metrics":
        return 200, metrics.text(forwarder.gauges).encode(), CONTENT_TYPE
    asked = {"/healthz": forwarder.is_live, "/readyz": forwarder.is_ready}
    if path not in asked:
        return 404, b"there are /healthz, /readyz and /metrics\n", _PLAIN
    return (200, b"ok\n", _PLAIN) if asked[path] else (503, b"no\n", _PLAIN)
