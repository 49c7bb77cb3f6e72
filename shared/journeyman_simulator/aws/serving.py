"""How requests reach moto: over connections that stay open, as AWS's do."""

from __future__ import annotations

import io
from typing import Any

from moto.moto_server.werkzeug_app import MotoRequestHandler
from werkzeug.test import run_wsgi_app


class KeepingConnections(MotoRequestHandler):
    """Answers one request after the other on each connection; werkzeug's own handler closes it after the first.

    It may, because everybody here sends as much as announced, and it is read: the next request begins where it ends.
    """

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer goes out at once, not after the client's delayed acknowledgement

    def run_wsgi(self) -> None:
        """Answer one request; one whose length nobody announced is left to werkzeug."""
        if "Transfer-Encoding" in self.headers or "Expect" in self.headers:
            super().run_wsgi()
            return
        environ = self.make_environ()
        environ["wsgi.input"] = io.BytesIO(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        self._send(*run_wsgi_app(self.server.app, environ, buffered=True))

    def _send(self, parts: Any, status: str, headers: Any) -> None:
        body = b"".join(parts)
        code, _, reason = status.partition(" ")
        self.send_response(int(code), reason)
        for name, value in headers:
            if name.lower() != "content-length":
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
