"""Fixtures for tests that need a real API server.

`control_plane`        etcd and kube-apiserver, shared by the tests of a worker; tests must delete their cluster-wide objects
`namespace`            a namespace in it for this test alone
`make_control_plane`   makes a ControlPlane from the arguments of its constructor, at any scope

All tests that use `control_plane` run in one xdist worker, one after the other, so that only one worker starts it. It ends
with the last of them, because an idle one takes a twentieth of a core. The logs stay in pytest's temporary folder of the
run. Without Go and without another control plane (see `program.py` and `existing.py`) the tests are skipped with a
message. pytest loads this module in every run, so the fixtures import the slow modules themselves.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.helpers.go_programs import GoProgramMissingError

if TYPE_CHECKING:
    from tests.controlplane.plane import ControlPlane

_GROUP = "control-plane"
_shared = ExitStack()  # the control planes that all tests of the group share
_LONGEST = 50  # a namespace's name has at most 63 letters


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that share a control plane into one worker; xdist reads the marker afterwards."""
    for item in items:
        if "control_plane" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group(_GROUP))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the shared control planes after the last test that uses them, and after its fixtures have ended."""
    if _is_in_group(item) and not (nextitem is not None and _is_in_group(nextitem)):
        _shared.close()


def _is_in_group(item: pytest.Item) -> bool:
    return any(_GROUP in mark.args for mark in item.iter_markers("xdist_group"))


@pytest.fixture(scope="session")
def shared_planes() -> ExitStack:
    """Return the stack of shared control planes; a fixture enters its own, which ends with the last test of the group."""
    return _shared


@pytest.fixture(scope="session")
def make_control_plane(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ControlPlane]:
    """Return a function that makes control planes, not started yet; it skips the test if the programs are missing."""
    from tests.controlplane.plane import ControlPlane

    def make(**wanted: Any) -> ControlPlane:
        try:
            return ControlPlane(**{"folder": tmp_path_factory.mktemp("control-plane"), **wanted})
        except GoProgramMissingError as missing:
            pytest.skip(str(missing))

    return make


@pytest.fixture(scope="session")
def control_plane(make_control_plane: Callable[..., ControlPlane], shared_planes: ExitStack) -> ControlPlane:
    """Start the shared API server, or use the cluster that JOURNEYMAN_TEST_KUBECONFIG names."""
    from tests.controlplane import existing

    path = existing.kubeconfig_path()
    if path is not None:
        return cast("ControlPlane", existing.ExistingCluster(path))
    return shared_planes.enter_context(make_control_plane())


@pytest.fixture
def namespace(control_plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[str]:
    """Create a namespace in `control_plane` and return its name, which starts with the test's name.

    The fixture deletes it afterwards; without the namespace controller it stays `Terminating` until the control plane ends.
    """
    from tests.controlplane import existing

    test = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).removeprefix("test-")[:_LONGEST].strip("-")
    name = f"{test}-{secrets.token_hex(3)}"
    admin = control_plane.admin
    admin.do("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    if existing.kubeconfig_path():
        existing.wait_for_service_account(admin, name)
    yield name
    admin.do("DELETE", f"/api/v1/namespaces/{name}")
