"""Plain calls to an API server, as one identity: what a test needs to set the stage and to look behind the product."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import urllib3


class Caller:
    """One identity that calls one API server.

    Args:
        server: Its address.
        ca_file: What its certificate is checked against.
        token: The bearer token; empty for none.
        certificate: The client certificate's file and its key's, if that is who the caller is.
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
        """The answer's status and object; for a refusal that object is Kubernetes' Status, or has only its `message`.

        Args:
            method: Of HTTP.
            path: With its query, from `/`.
            body: Sent as JSON.
            kind: The body's content type, which for PATCH says how it is merged.
            accept: The form of the answer: some kind of JSON.
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
        """The object that came back. Fails the test, with what the API server said, on a refusal."""
        status, found = self.call(method, path, body, kind=kind, accept=accept)
        assert status < 300, f"{method} {path}: {status} {found.get('message', found)}"
        return found
