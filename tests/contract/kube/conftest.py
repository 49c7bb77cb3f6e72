"""Fixtures: each test of the contract runs once for every API server that it holds for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.contract.kube import clusters
from tests.contract.kube.clusters import Cluster

if TYPE_CHECKING:
    from tests.controlplane.plane import ControlPlane

_CRDS = Path(__file__).parents[3] / "infra" / "crds"
_REAL = pytest.param("kubernetes", marks=pytest.mark.xdist_group("control-plane"))


@pytest.fixture(scope="session")
def furnished_plane(make_control_plane: Callable[..., ControlPlane]) -> Iterator[ControlPlane]:
    """A control plane with our kinds, and with the controllers that budgets, garbage and namespaces need.

    Always one of our own: the suite makes the server forget its history.
    """
    with make_control_plane(controllers=True) as plane:
        for path in sorted(_CRDS.glob("*.yaml")):
            definition = yaml.safe_load(path.read_text())
            plane.admin.do("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
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
