"""Journeyman's CRDs and Karpenter's, installed together on a real API server."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from journeyman.core.api import crds
from journeyman.core.api.capacity_buffer import CapacityBuffer
from tests.contract.crds import upstream_crds
from tests.contract.crds.rule import kind_of
from tests.contract.crds.validators import Definition, Models
from tests.helpers.go_programs import GoProgramMissingError

if TYPE_CHECKING:
    from tests.controlplane.plane import ControlPlane

MODELS = {kind_of(definition.resource): Models(definition.model) for definition in crds.DEFINITIONS}
MODELS["CapacityBuffer"] = Models(CapacityBuffer)  # its CRD is the Kubernetes autoscalers'


@pytest.fixture(scope="session")
def ours(control_plane: ControlPlane, shared_planes: ExitStack) -> Mapping[str, Definition]:
    """Return Journeyman's CRDs by kind."""
    documents = {kind_of(d.resource): crds.custom_resource_definition(d) for d in crds.DEFINITIONS}
    return _installed(control_plane, documents, "ours", shared_planes)


@pytest.fixture(scope="session")
def karpenters(control_plane: ControlPlane, shared_planes: ExitStack) -> Mapping[str, Definition]:
    """Return Karpenter's CRDs by kind."""
    return _installed(control_plane, karpenters_documents(), "karpenters", shared_planes)


def karpenters_documents() -> dict[str, dict[str, Any]]:
    """Return Karpenter's published CRDs by kind; skip the test if they cannot be downloaded."""
    try:
        return upstream_crds.documents()
    except GoProgramMissingError as missing:
        pytest.skip(str(missing))


def _installed(
    plane: ControlPlane, documents: Mapping[str, dict[str, Any]], prefix: str, until: ExitStack
) -> dict[str, Definition]:
    found = {kind: Definition(plane.admin, document, prefix) for kind, document in documents.items()}
    for definition in found.values():
        definition.install()
        until.callback(definition.remove)
    for definition in found.values():
        definition.wait()
    return found
