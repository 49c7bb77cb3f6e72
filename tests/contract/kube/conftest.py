"""Fixtures: each test of the contract runs once for every API server that it holds for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import pytest

from tests.contract.kube import clusters
from tests.contract.kube.clusters import Cluster
from tests.controlplane.manifests import install_crds

if TYPE_CHECKING:
    from tests.controlplane.plane import ControlPlane

_REAL = pytest.param("kubernetes", marks=pytest.mark.xdist_group("control-plane"))


@pytest.fixture(scope="session")
def furnished_plane(make_control_plane: Callable[..., ControlPlane]) -> Iterator[ControlPlane]:
    """A control plane with our kinds, and with the controllers that budgets, garbage and namespaces need.

    Always one of our own: the suite makes the server forget its history.
    """
    with make_control_plane(controllers=True) as plane:
        install_crds(plane.admin)
        yield plane


def _opened(kind: str, request: pytest.FixtureRequest) -> AbstractContextManager[Cluster]:
    if kind == "kubernetes":
        return clusters.kubernetes(request.getfixturevalue("furnished_plane"))
    return clusters.in_memory() if kind == "in-memory" else clusters.over_http()


@pytest.fixture(params=["in-memory", "http", _REAL])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Every API server."""
    with _opened(request.param, request) as opened:
        yield opened


@pytest.fixture(params=["http", _REAL])
def served(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Those that listen, for what only shows on the wire."""
    with _opened(request.param, request) as opened:
        yield opened
