"""A real Kubernetes control plane for tests: etcd and kube-apiserver; with scheduler and controller manager if asked.

    with ControlPlane(scheduler=True, controllers=True) as plane:
        …  # plane.kubeconfig, or plane.server, plane.ca_file and plane.token

Everything runs as child processes on the loopback interface and is gone with this process, however it ends. Nodes have no
kubelets: tests make Node objects and play the kubelet's part.
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

_READY_SECONDS = 120.0  # on a machine that is busy with much else; an idle one takes two


class ControlPlane:
    """One control plane; a context, which starts and stops it.

    Pods need no service account there (tokens of service accounts are issued and reviewed all the same), and nodes no
    heartbeats, which no test uses.

    Args:
        scheduler: Whether kube-scheduler runs.
        controllers: Whether kube-controller-manager runs.
        apiserver_flags: More flags for kube-apiserver; the last one wins.
        folder: For logs and data; by default a temporary one, which goes with the control plane.

    Attributes:
        server: The API server's address, `https://127.0.0.1:<port>`.
        etcd: The address of what it stores in.
        ca_file: What its certificate is checked against.
        token: The admin's bearer token (group system:masters).
        kubeconfig: The admin's kubeconfig.
        admin: Calls the API server as the admin.
        logs: The folder with a log per server.
    """

    def __init__(
        self,
        *,
        scheduler: bool = False,
        controllers: bool = False,
        apiserver_flags: Sequence[str] = (),
        folder: Path | None = None,
    ) -> None:
        wanted = {"kube-scheduler": scheduler, "kube-controller-manager": controllers}
        names = ["etcd", "kube-apiserver", *(name for name, runs in wanted.items() if runs)]
        self._programs = {name: command(name) for name in names}  # builds them if need be
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
        """Start everything, and return when it is ready.

        Raises:
            ServerFailedError: A server did not start; the text has the end of its log, and the folder stays.
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
        """A kubeconfig, with a token, for any user in any groups; system:authenticated comes by itself."""
        token = self.token_for(user, groups)
        return self._identities.kubeconfig(f"{_stem(user)}-{token[:6]}", token=token)

    def token_for(self, user: str, groups: Sequence[str] = ()) -> str:
        """A bearer token for any user in any groups."""
        return self._identities.token_for(user, groups)

    def accept(self, token: str, user: str, groups: Sequence[str] = ()) -> None:
        """Map the token to this user from now on: for tokens that are made elsewhere, as EKS's are.

        If the token was refused before, this takes up to a second.
        """
        self._identities.accept(token, user, groups)

    def revoke(self, token: str) -> None:
        """From now on this token is refused, as one that has expired; one in use, when the API server forgets it: 11 s.

        It remembers whom it let in for 10 s (k8s.io/kubernetes v1.36.3, pkg/kubeapiserver/options/authentication.go
        `TokenSuccessCacheTTL`), and the webhook's answers for one; `restart_apiserver` makes it forget at once.
        """
        self._identities.revoke(token)

    def certificate_for(
        self, user: str, groups: Sequence[str] = (), lifetime: timedelta = timedelta(hours=1)
    ) -> tuple[Path, Path]:
        """A client certificate and its key for any user in any groups; a negative lifetime makes an expired one."""
        return self._authority.issue(user, groups, lifetime)

    # --- outages

    def start_apiserver(self) -> None:
        """Start the API server, at the same address with the same data each time, and wait until it is ready."""
        server = self._start("kube-apiserver", self._apiserver_flags)
        server.wait_until(self._answers(f"{self.server}/readyz"), _READY_SECONDS)

    def stop_apiserver(self) -> None:
        """End the API server at once: connections break, as if its machine had died."""
        self._servers["kube-apiserver"].stop()

    def restart_apiserver(self) -> None:
        """A short outage; afterwards the watch cache is empty, so old resource versions are too old to watch from."""
        self.stop_apiserver()
        self.start_apiserver()

    def show_certificate(self, lifetime: timedelta) -> None:
        """Give the API server another certificate, which it notices by itself; returns when it shows it to new connections.

        Args:
            lifetime: From now; a negative one makes a certificate that ran out that long ago.
        """
        certificate, key = self._authority.issue("kube-apiserver", lifetime=lifetime)
        shutil.copyfile(key, self._files.key)
        shutil.copyfile(certificate, self._files.certificate)
        wanted, address = certificate.read_text(), ("127.0.0.1", self._port)
        wait_until(lambda: ssl.get_server_certificate(address) == wanted, "the new certificate is not shown")

    def compact_history(self) -> None:
        """Keep only the latest version of each object: lists continued from before, and old watches, get 410 Gone.

        The API server starts again on the way: its cache would go on listing old versions for a while (it asks every
        15 s what was compacted: k8s.io/apiserver v0.36.3, pkg/storage/cacher/compactor.go `compactorPollPeriod`).
        """
        self.stop_apiserver()
        store = f"http://127.0.0.1:{self._etcd_port}/v3/kv"
        revision = self._post(f"{store}/range", {"key": "AA=="})["header"]["revision"]  # any key's answer has it
        self._post(f"{store}/compaction", {"revision": revision, "physical": True})
        self.start_apiserver()

    def pids(self) -> dict[str, int]:
        """The processes that run, by name."""
        return {name: server.pid for name, server in self._servers.items() if server.is_running()}

    def stop(self) -> None:
        """End everything and remove the data; safe to repeat."""
        for name in reversed(self._servers):
            self._servers[name].stop()
        self._servers.clear()
        self._identities.close()
        self._http.clear()
        shutil.rmtree(self.logs if self._temporary else self._data, ignore_errors=True)

    # --- parts

    def _start_etcd(self) -> None:
        etcd = self._start("etcd", flags.etcd(self._data, self._etcd_port))
        etcd.wait_until(self._answers(f"http://127.0.0.1:{self._etcd_port}/health"), _READY_SECONDS)

    def _start_clients(self) -> None:
        """Start scheduler and controllers, whichever are wanted; they get ready side by side."""
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
            server.wait_until(self._answers(f"https://127.0.0.1:{port}/healthz"), _READY_SECONDS)

    def _start(self, name: str, arguments: Sequence[str]) -> Server:
        self._servers[name] = Server(name, [*self._programs[name], *arguments], self.logs)
        return self._servers[name]

    def _answers(self, url: str) -> Callable[[], bool]:
        def ready() -> bool:
            try:
                return self._http.request("GET", url, headers=self._authorization).status == 200
            except urllib3.exceptions.HTTPError:  # not listening yet
                return False

        return ready

    def _post(self, url: str, body: dict[str, Any]) -> dict[str, Any]:
        """What etcd answers over its JSON gateway."""
        answer = self._http.request("POST", url, json=body)
        found: dict[str, Any] = answer.json()
        if answer.status != 200:
            raise ServerFailedError(f"etcd refused {url}: {found.get('message', answer.status)}")
        return found


def _stem(user: str) -> str:
    """A user's name as part of a file's name."""
    return "".join(letter if letter.isalnum() else "-" for letter in user)
