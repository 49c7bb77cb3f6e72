"""A real Kubernetes control plane for tests: etcd, kube-apiserver, and on request kube-scheduler and kube-controller-manager.

    with ControlPlane(scheduler=True, controllers=True) as plane:
        …  # plane.kubeconfig, or plane.server, plane.ca_file and plane.token

All programs are child processes on the loopback interface and end with this process, even if it is killed. No kubelets run:
tests create Node objects and update them as a kubelet does.
"""

from __future__ import annotations

import shutil
import ssl
import tempfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import urllib3

from tests.controlplane import flags
from tests.controlplane.caller import Caller
from tests.controlplane.certificates import Authority, new_key
from tests.controlplane.identities import ADMIN, CONTROLLER_MANAGER, SCHEDULER, Identities
from tests.controlplane.processes import Server, ServerFailedError, free_port
from tests.controlplane.program import command
from tests.helpers.waiting import wait_until

_READY_SECONDS = 120.0  # for a busy machine; an idle one takes two seconds


class ControlPlane:
    """One control plane. A context manager, which starts and stops it.

    Pods need no service account (the API server still issues and reviews service account tokens), and nodes need no
    heartbeats.

    Args:
        scheduler: Whether kube-scheduler runs.
        controllers: Whether kube-controller-manager runs.
        apiserver_flags: More flags for kube-apiserver, which override the flags before them.
        folder: Where logs and data are written; by default a temporary folder, which is deleted at the end.

    Attributes:
        server: The API server's address, `https://127.0.0.1:<port>`.
        etcd: etcd's address.
        ca_file: The authority that the API server's certificate is verified against.
        token: The admin's bearer token (group system:masters).
        kubeconfig: The admin's kubeconfig.
        admin: Calls the API server as the admin.
        logs: The folder with one log file per server.
    """

    def __init__(
        self,
        *,
        scheduler: bool = False,
        controllers: bool = False,
        apiserver_flags: Sequence[str] = (),
        folder: Path | None = None,
    ) -> None:
        optional = {"kube-scheduler": scheduler, "kube-controller-manager": controllers}
        names = ["etcd", "kube-apiserver", *(name for name, runs in optional.items() if runs)]
        self._programs = {name: command(name) for name in names}  # builds them if needed
        self._temporary = folder is None
        self.logs = folder or Path(tempfile.mkdtemp(prefix="controlplane-"))
        self._data = self.logs / "etcd"
        self._etcd_port, self._port = free_port(), free_port()
        self.server = f"https://127.0.0.1:{self._port}"
        self.etcd = f"http://127.0.0.1:{self._etcd_port}"
        self._authority = Authority(self.logs)
        self.ca_file = self._authority.certificate
        certificate, key = self._authority.issue("kube-apiserver")
        self._files = flags.Files(
            authority=self.ca_file,
            certificate=certificate,
            key=key,
            service_account_key=new_key(self.logs / "service-accounts.key"),
        )
        self._identities = Identities(self.logs, self.server, self.ca_file)
        self.token = self._identities.admin_token
        self.kubeconfig = self._identities.kubeconfig_of(ADMIN)
        self.admin = Caller(self.server, self.ca_file, token=self.token)
        token_file, webhook_file = self._identities.token_file, self._identities.webhook_file
        self._apiserver_flags = [
            *flags.kube_apiserver(self._files, self._etcd_port, self._port, token_file, webhook_file),
            *apiserver_flags,
        ]
        self._authorization = {"Authorization": f"Bearer {self.token}"}
        self._http = urllib3.PoolManager(ca_certs=str(self.ca_file), retries=False, timeout=5)
        self._servers: dict[str, Server] = {}

    def __enter__(self) -> ControlPlane:
        """Start all servers and return when they are ready.

        Raises:
            ServerFailedError: A server did not start; the message has the end of its log, and the folder is kept.
        """
        try:
            self._start_etcd()
            self.start_apiserver()
            self._start_clients()
        except BaseException:
            self._temporary = False  # keep the logs for reading
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- identities

    def kubeconfig_for(self, user: str, groups: Sequence[str] = ()) -> Path:
        """Write a kubeconfig with a token for a user in these groups and system:authenticated; return its path."""
        token = self.token_for(user, groups)
        return self._identities.kubeconfig(f"{_stem(user)}-{token[:6]}", token=token)

    def token_for(self, user: str, groups: Sequence[str] = ()) -> str:
        """Return a new bearer token for a user in these groups."""
        return self._identities.token_for(user, groups)

    def accept(self, token: str, user: str, groups: Sequence[str] = ()) -> None:
        """Map a token to this user from now on, for tokens that another program issues, as EKS does.

        If the API server rejected the token before, this takes up to a second.
        """
        self._identities.accept(token, user, groups)

    def revoke(self, token: str) -> None:
        """Reject this token from now on, as if it had expired; if it is in use, after 11 s.

        The API server caches accepted tokens for 10 s (k8s.io/kubernetes v1.36.3, pkg/kubeapiserver/options/authentication.go
        `TokenSuccessCacheTTL`) and the webhook's responses for 1 s; `restart_apiserver` empties both caches.
        """
        self._identities.revoke(token)

    def certificate_for(
        self, user: str, groups: Sequence[str] = (), lifetime: timedelta = timedelta(hours=1)
    ) -> tuple[Path, Path]:
        """Issue a client certificate for a user in these groups; a negative lifetime makes an expired one.

        Returns:
            The files of the certificate and of its key.
        """
        return self._authority.issue(user, groups, lifetime)

    # --- outages

    def start_apiserver(self) -> None:
        """Start the API server and wait until it is ready; its address and data stay the same over restarts."""
        server = self._start("kube-apiserver", self._apiserver_flags)
        server.wait_until(self._is_ready(f"{self.server}/readyz"), _READY_SECONDS)

    def stop_apiserver(self) -> None:
        """Kill the API server: connections break, as if its machine had failed."""
        self._servers["kube-apiserver"].stop()

    def restart_apiserver(self) -> None:
        """Stop and start the API server; its watch cache is empty afterwards, so watches from old resource versions fail."""
        self.stop_apiserver()
        self.start_apiserver()

    def replace_certificate(self, lifetime: timedelta) -> None:
        """Replace the API server's certificate, which it reloads by itself; return when new connections get it.

        Args:
            lifetime: How long from now the certificate is valid; if negative, how long ago it expired.
        """
        certificate, key = self._authority.issue("kube-apiserver", lifetime=lifetime)
        shutil.copyfile(key, self._files.key)
        shutil.copyfile(certificate, self._files.certificate)
        issued, address = certificate.read_text(), ("127.0.0.1", self._port)
        wait_until(
            lambda: ssl.get_server_certificate(address) == issued, "the API server does not serve the new certificate"
        )

    def compact_history(self) -> None:
        """Keep only the latest version of each object: continue tokens and watches from before get 410 Gone.

        This restarts the API server, whose cache would list old versions for a while (it polls the compacted revision every
        15 s: k8s.io/apiserver v0.36.3, pkg/storage/cacher/compactor.go `compactorPollPeriod`).
        """
        self.stop_apiserver()
        store = f"http://127.0.0.1:{self._etcd_port}/v3/kv"
        revision = self._post(f"{store}/range", {"key": "AA=="})["header"][
            "revision"
        ]  # the response for any key has it
        self._post(f"{store}/compaction", {"revision": revision, "physical": True})
        self.start_apiserver()

    def pids(self) -> dict[str, int]:
        """Return the ids of the running processes by name."""
        return {name: server.pid for name, server in self._servers.items() if server.is_running()}

    def stop(self) -> None:
        """Stop all servers and remove the data; safe to repeat."""
        for name in reversed(self._servers):
            self._servers[name].stop()
        self._servers.clear()
        self._identities.close()
        self._http.clear()
        shutil.rmtree(self.logs if self._temporary else self._data, ignore_errors=True)

    # --- parts

    def _start_etcd(self) -> None:
        etcd = self._start("etcd", flags.etcd(self._data, self._etcd_port))
        etcd.wait_until(self._is_ready(f"http://127.0.0.1:{self._etcd_port}/health"), _READY_SECONDS)

    def _start_clients(self) -> None:
        """Start the scheduler and the controllers if they are requested, both before waiting for either."""
        started: list[tuple[Server, int]] = []
        if "kube-scheduler" in self._programs:
            port, identity = free_port(), self._identities.kubeconfig_of(SCHEDULER)
            arguments = flags.kube_scheduler(self._files, port, identity, self.logs)
            started.append((self._start("kube-scheduler", arguments), port))
        if "kube-controller-manager" in self._programs:
            port, identity = free_port(), self._identities.kubeconfig_of(CONTROLLER_MANAGER)
            arguments = flags.kube_controller_manager(self._files, port, identity)
            started.append((self._start("kube-controller-manager", arguments), port))
        for server, port in started:
            server.wait_until(self._is_ready(f"https://127.0.0.1:{port}/healthz"), _READY_SECONDS)

    def _start(self, name: str, arguments: Sequence[str]) -> Server:
        self._servers[name] = Server(name, [*self._programs[name], *arguments], self.logs)
        return self._servers[name]

    def _is_ready(self, url: str) -> Callable[[], bool]:
        """Return a function that returns whether a health endpoint answers 200."""

        def is_ready() -> bool:
            try:
                return self._http.request("GET", url, headers=self._authorization).status == 200
            except urllib3.exceptions.HTTPError:  # not listening yet
                return False

        return is_ready

    def _post(self, url: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request to etcd's JSON gateway and return its response."""
        answer = self._http.request("POST", url, json=body)
        found: dict[str, Any] = answer.json()
        if answer.status != 200:
            raise ServerFailedError(f"etcd refused {url}: {found.get('message', answer.status)}")
        return found


def _stem(user: str) -> str:
    """Return a user's name as part of a file name."""
    return "".join(letter if letter.isalnum() else "-" for letter in user)
