"""Journeyman's CRD schemas have the fields, types and defaults of Karpenter's published ones."""

import pytest

from journeyman.core.api import crds
from tests.contract.crds.conftest import karpenters_documents

OURS = {d.resource.kind: crds.custom_resource_definition(d) for d in crds.DEFINITIONS}
KARPENTERS = ("NodePool", "NodeClaim", "NodeOverlay", "EC2NodeClass")
OPEN = "spec.kubelet"  # Journeyman accepts every kubelet setting and validates it when it resolves the NodeClass


def fields(document):
    """Return each field's schema by path."""
    (version,) = document["spec"]["versions"]
    found = {}

    def walk(part, path):
        found[path] = part
        for name, below in part.get("properties", {}).items():
            walk(below, f"{path}.{name}".lstrip("."))
        if isinstance(part.get("items"), dict):
            walk(part["items"], f"{path}[]")

    walk(version["schema"]["openAPIV3Schema"], "")
    return found


@pytest.mark.parametrize("kind", KARPENTERS)
def test_crds_have_the_same_fields_as_karpenters(kind):
    """Then neither product's CRDs drop a field of the other's objects."""
    ours, theirs = fields(OURS[kind]), fields(karpenters_documents()[kind])
    assert {path for path in theirs if not path.startswith(f"{OPEN}.")} == set(ours)


@pytest.mark.parametrize("kind", KARPENTERS)
def test_types_and_defaults_are_karpenters(kind):
    """The only exception is a default of Karpenter's next version: `consolidateAfter` inside `disruption`."""
    ours, theirs = fields(OURS[kind]), fields(karpenters_documents()[kind])
    for path, mine in ours.items():
        assert mine.get("type") == theirs[path].get("type"), path
        if path != "spec.disruption.consolidateAfter":
            assert mine.get("default") == theirs[path].get("default"), path


@pytest.mark.parametrize("kind", KARPENTERS)
def test_names_columns_and_subresources_are_karpenters(kind):
    """These are short names, categories, scope, printer columns and scale."""
    ours, theirs = OURS[kind]["spec"], karpenters_documents()[kind]["spec"]
    for name in ("group", "scope", "names"):
        assert ours[name] == theirs[name]
    for name in ("name", "additionalPrinterColumns", "subresources"):
        assert ours["versions"][0][name] == theirs["versions"][0][name]
