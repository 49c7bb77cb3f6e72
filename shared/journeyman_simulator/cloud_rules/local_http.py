"""Serves requests over HTTP on 127.0.0.1, for the simulated accounts: reads each request, and writes its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlsplit

from msgspec import Struct

HOST: Final = "127.0.0.1"
_POLL_SECONDS: Final = 0.02


class ReceivedRequest(Struct, frozen=True, kw_only=True):
    """A request as it came over HTTP; the names of headers are in lower case."""

    method: str
    path: str  # as sent, percent-encoded
    query: str  # as sent, percent-encoded
    headers: Mapping[str, str]
    body: bytes


class HttpAnswer(Struct, frozen=True, kw_only=True):
    """An answer; `headers` lack Content-Length."""

    status: int
    body: bytes
    headers: Mapping[str, str]


def wall_clock() -> datetime:
    """Return the time of this machine, with which the SDKs date their requests."""
    return datetime.now(timezone.utc)  # noqa: TID251 - the SDKs have no other clock


def canonical_query(query: str) -> str:
    """Return a query sorted by name, percent-encoded as RFC 3986 requires, as signatures have it."""
    pairs = sorted(parse_qsl(query, keep_blank_values=True))
    return "&".join(f"{quote(name, safe='~')}={quote(value, safe='~')}" for name, value in pairs)


@contextmanager
def serving_requests(
    answer: Callable[[ReceivedRequest], HttpAnswer | None], *, name: str, port: int = 0
) -> Iterator[str]:
    """Serve requests in threads of their own, and yield the address: "127.0.0.1:PORT".

    Args:
        answer: Returns the answer of a request; None if the connection ends without one.
        name: The name of the server's thread.
        port: The port on which to listen; 0 selects a free one.
    """

    class BoundHandler(_RequestHandler):
        respond = staticmethod(answer)

    server = ThreadingHTTPServer((HOST, port), BoundHandler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, args=(_POLL_SECONDS,), name=name, daemon=True)
    thread.start()
    try:
        yield f"{HOST}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _RequestHandler(BaseHTTPRequestHandler):
    """Reads requests from a connection, and writes the answers."""

    protocol_version = "HTTP/1.0"  # a connection for each request, so that none outlives the server
    disable_nagle_algorithm = True  # otherwise the body waits 40 ms for the headers' acknowledgement
    respond: Callable[[ReceivedRequest], HttpAnswer | None]

    def do_GET(self) -> None:
        """Answer a GET request."""
        self._answer()

    def do_POST(self) -> None:
        """Answer a POST request."""
        self._answer()

    def do_DELETE(self) -> None:
        """Answer a DELETE request."""
        self._answer()

    def do_PUT(self) -> None:
        """Answer a PUT request."""
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Log nothing."""

    def _answer(self) -> None:
        target = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length") or 0))
        request = ReceivedRequest(
            method=self.command, path=target.path or "/", query=target.query, headers=headers, body=body
        )
        answer = self.respond(request)
        if answer is None:
            self.close_connection = True
            return
        self.send_response(answer.status)
        for header, value in answer.headers.items():
            self.send_header(header, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)
