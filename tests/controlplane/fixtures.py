"""Fixtures for tests that need a real API server.

`control_plane`        one per worker: etcd and kube-apiserver; cheap to share, so leave no cluster-wide objects behind
`namespace`            a namespace in it for this test alone
`make_control_plane`   makes one as wanted, at any scope; takes what ControlPlane takes

All tests that share the first go to one xdist worker, so that only one pays for it. Logs stay in pytest's temporary
folder of the run. Without Go and without another control plane (`program.py` and `existing.py` say which may be named)
the tests are skipped, and say why. This module is loaded in every test run, so what is heavy is imported in the fixtures.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.helpers.go_programs import GoProgramMissingError

if TYPE_CHECKING:
    from tests.controlplane.plane import ControlPlane

_GROUP = "control-plane"
_LONGEST = 50  # a namespace's name has at most 63 letters


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a control plane run in one worker; xdist reads the mark afterwards."""
    for item in items:
        if "control_plane" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group(_GROUP))


@pytest.fixture(scope="session")
def make_control_plane(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ControlPlane]:
    """Makes control planes that are not started yet; skips the test where there are no programs for it."""
    from tests.controlplane.plane import ControlPlane

    def make(**wanted: Any) -> ControlPlane:
        try:
            return ControlPlane(**{"folder": tmp_path_factory.mktemp("control-plane"), **wanted})
        except GoProgramMissingError as missing:
            pytest.skip(str(missing))

    return make


@pytest.fixture(scope="session")
def control_plane(make_control_plane: Callable[..., ControlPlane]) -> Iterator[ControlPlane]:
    """A shared API server, or the cluster that JOURNEYMAN_TEST_KUBECONFIG names."""
    from tests.controlplane import existing

    path = existing.named()
    if path is not None:
        yield cast("ControlPlane", existing.ExistingCluster(path))
    else:
        with make_control_plane() as plane:
            yield plane


@pytest.fixture
def namespace(control_plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a new namespace in `control_plane`, which starts with the test's name.

    It is deleted afterwards; without the namespace controller it stays as `Terminating`, and goes with the
    control plane.
    """
    from tests.controlplane import existing

    test = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).removeprefix("test-")[:_LONGEST].strip("-")
    name = f"{test}-{secrets.token_hex(3)}"
    admin = control_plane.admin
    admin.do("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    if existing.named():
        existing.wait_for_service_account(admin, name)
    yield name
    admin.do("DELETE", f"/api/v1/namespaces/{name}")
