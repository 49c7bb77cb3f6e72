"""Tests on an existing cluster instead of a control plane of their own: JOURNEYMAN_TEST_KUBECONFIG names its kubeconfig.

Each test creates a namespace in the cluster and deletes it afterwards; the cluster runs its own scheduler and controllers.
A test is skipped if it needs to own the control plane, for example to add identities or to stop the API server.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.controlplane.caller import Caller
from tests.helpers.waiting import wait_until

VARIABLE = "JOURNEYMAN_TEST_KUBECONFIG"


class ExistingCluster:
    """The part of ControlPlane's interface that works on any cluster, for the current context of a kubeconfig.

    Attributes:
        server: The API server's address.
        ca_file: The authority that its certificate is verified against.
        token: The bearer token; empty if the kubeconfig has a client certificate.
        kubeconfig: The kubeconfig's path.
        admin: Calls the API server as the kubeconfig's user.
    """

    def __init__(self, kubeconfig: Path) -> None:
        from kubernetes import client, config  # the import takes over a second

        self.kubeconfig = kubeconfig
        found = client.Configuration()
        load: Any = config.load_kube_config
        load(str(kubeconfig), client_configuration=found)
        self.server = str(found.host)
        self.ca_file = Path(found.ssl_ca_cert or os.devnull)
        setting: Any = found.auth_settings().get("BearerToken")
        self.token = str(setting["value"] if setting else "").removeprefix("Bearer ")
        certificate = (Path(found.cert_file), Path(found.key_file)) if found.cert_file and found.key_file else None
        self.admin = Caller(self.server, self.ca_file, token=self.token, certificate=certificate)

    def __getattr__(self, name: str) -> NoReturn:
        """Skip the test: the rest of ControlPlane's interface needs a control plane that the tests own."""
        if name.startswith("_"):  # Python looks up its own protocol methods
            raise AttributeError(name)
        pytest.skip(f"`{name}` needs a control plane that the tests own, but {VARIABLE} names an existing cluster")


def wait_for_service_account(admin: Caller, namespace: str) -> None:
    """Return when a new namespace has its `default` service account: before that no pod is admitted to it."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
    missing = f"namespace {namespace} has no service account `default`; is its controller running?"
    wait_until(lambda: admin.call("GET", path)[0] != 404, missing)


def kubeconfig_path() -> Path | None:
    """Return the kubeconfig that the environment variable names; None if it is not set."""
    path = os.environ.get(VARIABLE)
    return Path(path) if path else None
