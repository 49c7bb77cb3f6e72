"""Fixtures: each contract test runs once for every API server to which it applies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.contract.kube import clusters
from tests.contract.kube.clusters import Cluster
from tests.controlplane.manifests import install_crds

if TYPE_CHECKING:
    from tests.controlplane.plane import ControlPlane

_REAL = pytest.param("kubernetes", marks=pytest.mark.xdist_group("control-plane"))


@pytest.fixture(scope="session")
def plane_with_crds(make_control_plane: Callable[..., ControlPlane], shared_planes: ExitStack) -> ControlPlane:
    """Start a control plane with the CRDs and with the controllers for budgets, garbage collection and namespaces.

    It is never an existing cluster, because tests compact the server's history.
    """
    plane: ControlPlane = shared_planes.enter_context(make_control_plane(controllers=True))
    install_crds(plane.admin)
    return plane


def _opened(kind: str, request: pytest.FixtureRequest) -> AbstractContextManager[Cluster]:
    if kind == "kubernetes":
        return clusters.kubernetes(request.getfixturevalue("plane_with_crds"))
    return clusters.in_memory() if kind == "in-memory" else clusters.over_http()


@pytest.fixture(params=["in-memory", "http", _REAL])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Return each API server in turn."""
    with _opened(request.param, request) as opened:
        yield opened


@pytest.fixture(params=["http", _REAL])
def served(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Return each API server with HTTP in turn, for tests of HTTP responses."""
    with _opened(request.param, request) as opened:
        yield opened
