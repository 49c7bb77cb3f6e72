"""An HTTP server for a fake cloud API that verifies request signatures."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl, urlsplit


class Request(NamedTuple):
    """A received request; header names are in lower case, path and query are still percent-encoded."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def parameters(self) -> dict[str, str]:
        """Return the query parameters, decoded."""
        return dict(parse_qsl(self.query))


class Api(Protocol):
    """The fake service behind the HTTP server."""

    def answer(self, request: Request) -> tuple[int, Any]:
        """Return the response's status and JSON body."""
        ...


@contextmanager
def served(api: Api) -> Iterator[str]:
    """Serve the API inside the context; yield its address."""

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, content = api.answer(Request(self.command, parts.path, parts.query, headers, body))
            encoded = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(encoded)))
            self.end_headers()
            self.wfile.write(encoded)

        do_GET = do_POST = handle_any  # noqa: N815 - names of http.server

        def log_message(self, *_: object) -> None:
            """Write no log line; tests assert on the responses."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
