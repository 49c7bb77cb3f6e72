"""HTTP calls to an API server as one identity. Tests create and read objects with it, without the product's client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import urllib3


class Caller:
    """Calls one API server as one identity.

    Args:
        server: The API server's address.
        ca_file: The authority that the API server's certificate is verified against.
        token: The bearer token; empty for none.
        certificate: The files of the client certificate and its key, if the identity has one.
    """

    def __init__(
        self, server: str, ca_file: Path, *, token: str = "", certificate: tuple[Path, Path] | None = None
    ) -> None:
        cert_file, key_file = map(str, certificate) if certificate else (None, None)
        self._server = server
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._pool = urllib3.PoolManager(
            ca_certs=str(ca_file), cert_file=cert_file, key_file=key_file, retries=False, timeout=30
        )

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        kind: str = "application/json",
        accept: str = "application/json",
    ) -> tuple[int, dict[str, Any]]:
        """Send a request; return the response's status code and object, for an error a `Status` or an object with a `message`.

        Args:
            method: The HTTP method.
            path: The path with its query, from `/`.
            body: The body, which is sent as JSON.
            kind: The body's content type, which selects the kind of PATCH.
            accept: The media type of the response: some kind of JSON.
        """
        headers = {**self._headers, "Content-Type": kind, "Accept": accept}
        content = None if body is None else json.dumps(body)
        answer = self._pool.request(method, self._server + path, headers=headers, body=content)
        if not answer.headers.get("Content-Type", "").startswith("application/json"):
            return answer.status, {"message": answer.data.decode(errors="replace").strip()}
        return answer.status, answer.json()

    def do(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        kind: str = "application/json",
        accept: str = "application/json",
    ) -> dict[str, Any]:
        """Send a request and return the response's object; fail the test with the API server's message if it is an error."""
        status, found = self.call(method, path, body, kind=kind, accept=accept)
        assert status < 300, f"{method} {path}: {status} {found.get('message', found)}"
        return found
