"""`python -m infra.forwarder`: the process in the pod. Settings come from the environment; `/healthz` answers probes.

CLUSTER_NAME and QUEUE_URL must be set. BATCH_IDLE_SECONDS (1), BATCH_MAX_SECONDS (10), HEALTH_PORT (8081),
AWS_REGION. The API server and its token are those of the pod's service account, or KUBERNETES_URL without a token.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from infra.forwarder.batching import Batch
from infra.forwarder.forwarder import Forwarder
from infra.forwarder.sqs import SqsSink
from infra.forwarder.watch import PodSource

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class JsonLines(logging.Formatter):
    """The keys of the functions' log lines."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        time = self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z")
        line = {"level": record.levelname, "time": time, "logger": record.name, "message": record.getMessage()}
        return json.dumps(line)


def main(variables: Mapping[str, str]) -> None:
    """Run until SIGTERM."""
    lines = logging.StreamHandler(sys.stdout)
    lines.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[lines])
    cluster = _required(variables, "CLUSTER_NAME")
    sink = SqsSink(_required(variables, "QUEUE_URL"), cluster, region=variables.get("AWS_REGION", ""))
    batch = Batch(float(variables.get("BATCH_IDLE_SECONDS", "1")), float(variables.get("BATCH_MAX_SECONDS", "10")))
    forwarder = Forwarder(cluster, _pods(variables), sink.send, batch=batch)
    forwarder.start()
    health = serve_health(forwarder, int(variables.get("HEALTH_PORT", "8081")))
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    ended.wait()
    forwarder.stop()
    health.shutdown()


def serve_health(forwarder: Forwarder, port: int, host: str = "") -> ThreadingHTTPServer:
    """Answer `GET /healthz` in the background: 200 while the forwarder works, 503 when a restart would help."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == "/healthz"
            self.send_response((200 if forwarder.healthy else 503) if known else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Probes are not worth a line."""

    server = ThreadingHTTPServer((host, port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def _pods(variables: Mapping[str, str]) -> PodSource:
    if url := variables.get("KUBERNETES_URL"):
        return PodSource(url)
    server = f"https://{variables['KUBERNETES_SERVICE_HOST']}:{variables.get('KUBERNETES_SERVICE_PORT', '443')}"
    token = SERVICE_ACCOUNT / "token"
    return PodSource(server, token=lambda: token.read_text().strip(), ca_file=str(SERVICE_ACCOUNT / "ca.crt"))


def _required(variables: Mapping[str, str], name: str) -> str:
    if not variables.get(name):
        sys.exit(f"{name} is not set: deployment.yaml shows where")
    return variables[name]


if __name__ == "__main__":
    main(os.environ)
