"""A cluster that exists already, in the place of our own control plane: JOURNEYMAN_TEST_KUBECONFIG names its kubeconfig.

It is used as it is found: tests get namespaces of their own in it, which go afterwards, and it runs its own scheduler and
controllers. What only the owner of a control plane can do (make identities, break the API server) skips the test.
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
    """What tests use of a ControlPlane, for the current context of a kubeconfig.

    Attributes:
        server: The API server's address.
        ca_file: What its certificate is checked against.
        token: The bearer token; empty where the kubeconfig carries a certificate.
        kubeconfig: The kubeconfig's file.
        admin: Calls the API server as the kubeconfig's user.
    """

    def __init__(self, kubeconfig: Path) -> None:
        from kubernetes import client, config  # over a second

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
        """Everything else of a ControlPlane needs one of our own."""
        if name.startswith("_"):  # Python's own questions
            raise AttributeError(name)
        pytest.skip(f"`{name}` needs a control plane of our own, but {VARIABLE} names an existing cluster")


def wait_for_service_account(admin: Caller, namespace: str) -> None:
    """Return when a new namespace has its `default` service account: before that no pod is admitted to it."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
    missing = f"namespace {namespace} has no service account `default`: who makes them?"
    wait_until(lambda: admin.call("GET", path)[0] != 404, missing)


def named() -> Path | None:
    """The kubeconfig that the environment names, if it does."""
    path = os.environ.get(VARIABLE)
    return Path(path) if path else None
