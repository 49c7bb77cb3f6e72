"""A cluster that exists already, in the place of our own control plane: JOURNEYMAN_TEST_KUBECONFIG names its kubeconfig.

It is used as it is found: tests get namespaces of their own in it, which go afterwards, and it runs its own scheduler and
controllers. What only the owner of a control plane can do (make identities, break the API server) skips the test.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest
from kubernetes import client, config

VARIABLE = "JOURNEYMAN_TEST_KUBECONFIG"


class ExistingCluster:
    """What tests use of a ControlPlane, for the current context of a kubeconfig.

    Attributes:
        server: The API server's address.
        ca_file: What its certificate is checked against.
        token: The bearer token; empty where the kubeconfig carries a certificate.
        kubeconfig: The kubeconfig's file.
    """

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        found = client.Configuration()
        load: Any = config.load_kube_config
        load(str(kubeconfig), client_configuration=found)
        self.server = str(found.host)
        self.ca_file = Path(found.ssl_ca_cert or os.devnull)
        setting: dict[str, Any] = found.auth_settings().get("BearerToken") or {}
        self.token = str(setting.get("value") or "").removeprefix("Bearer ")

    def __getattr__(self, name: str) -> NoReturn:
        """Everything else of a ControlPlane needs one of our own."""
        if name.startswith("_"):  # Python's own questions
            raise AttributeError(name)
        pytest.skip(f"`{name}` needs a control plane of our own, but {VARIABLE} names an existing cluster")


def wait_for_service_account(core: client.CoreV1Api, namespace: str, seconds: float = 30) -> None:
    """Return when a new namespace has its `default` service account: before that no pod is admitted to it."""
    deadline = time.monotonic() + seconds
    chosen = "metadata.name=default"
    while not core.list_namespaced_service_account(namespace, field_selector=chosen).items:
        assert time.monotonic() < deadline, f"namespace {namespace} has no service account `default`: who makes them?"
        time.sleep(0.1)


def named() -> Path | None:
    """The kubeconfig that the environment names, if it does."""
    path = os.environ.get(VARIABLE)
    return Path(path) if path else None
