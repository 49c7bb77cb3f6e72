"""The identities that may call the API server: tokens, the webhook that reviews them, and kubeconfigs with them.

kube-apiserver reads its token file once, at start. So the file has only the control plane's own identities, and the API
server reviews every other token through the webhook, as on EKS: tests may add identities at any time.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ADMIN = "admin"
CONTROLLER_MANAGER = "system:kube-controller-manager"
SCHEDULER = "system:kube-scheduler"


class Identities:
    """The identities of one control plane. `close` ends the webhook.

    Args:
        folder: Where the files are written.
        server: The API server's address.
        ca_file: The authority that the API server's certificate is verified against.
    """

    def __init__(self, folder: Path, server: str, ca_file: Path) -> None:
        self._folder = folder
        self._server = server
        self._ca_file = ca_file
        self._users: dict[str, dict[str, Any]] = {}
        self.admin_token = secrets.token_hex(16)
        self.token_file = folder / "tokens.csv"
        self._built_in = {ADMIN: self.admin_token, CONTROLLER_MANAGER: _token(), SCHEDULER: _token()}
        groups = {ADMIN: "system:masters"}
        rows = (f'{token},{user},{user},"{groups.get(user, "")}"\n' for user, token in self._built_in.items())
        self.token_file.write_text("".join(rows))
        self._webhook = _Webhook(self._users)
        self.webhook_file = self.kubeconfig("webhook", server=self._webhook.address)

    def kubeconfig_of(self, user: str) -> Path:
        """Write a kubeconfig for one of the control plane's own identities; return its path."""
        return self.kubeconfig(user.replace(":", "-"), token=self._built_in[user])

    def accept(self, token: str, user: str, groups: Sequence[str]) -> None:
        """Map the token to this user in these groups from now on."""
        self._users[token] = {"username": user, "groups": list(groups)}

    def revoke(self, token: str) -> None:
        """Reject the token from now on."""
        self._users.pop(token, None)

    def token_for(self, user: str, groups: Sequence[str]) -> str:
        """Return a new token for a user in these groups."""
        token = _token()
        self.accept(token, user, groups)
        return token

    def kubeconfig(self, name: str, *, token: str = "", server: str = "") -> Path:
        """Write a kubeconfig with one context; return its path.

        Args:
            name: The file's name, without suffix.
            token: The bearer token; empty for none.
            server: Another server than the API server; clients then do not verify its certificate.
        """
        cluster = (
            {"server": server} if server else {"server": self._server, "certificate-authority": str(self._ca_file)}
        )
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": "tests", "user": {"token": token} if token else {}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
            "current-context": "tests",
        }
        path = self._folder / f"{name}.kubeconfig"
        path.write_text(json.dumps(config, indent=2))  # JSON is YAML
        return path

    def close(self) -> None:
        """End the webhook."""
        self._webhook.close()


class _Webhook:
    """Answers TokenReviews from a table."""

    def __init__(self, users: dict[str, dict[str, Any]]) -> None:
        class Answer(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                user = users.get(review["spec"]["token"])
                review["status"] = {"authenticated": user is not None, "user": user or {}}
                body = json.dumps(review).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Write no log line; the API server logs the request."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _token() -> str:
    return secrets.token_hex(16)
