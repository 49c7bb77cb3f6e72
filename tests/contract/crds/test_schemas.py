"""Journeyman's CRD schemas have the fields, types and defaults of Karpenter's published ones."""

import pytest

from journeyman.core.api import crds
from tests.contract.crds.conftest import karpenters_documents
from tests.contract.crds.rules_huawei import ADDED_FIELDS

OURS = {d.resource.kind: crds.custom_resource_definition(d) for d in crds.DEFINITIONS}
KARPENTERS = ("NodePool", "NodeClaim", "NodeOverlay", "EC2NodeClass")
HUAWEI = "CCENodeClass"
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


def test_ccenodeclass_has_the_published_fields_and_only_adds_optional_ones():
    """Types, defaults, allowed values, patterns and bounds of the published fields are the same; no field is required in addition."""
    ours, theirs = fields(OURS[HUAWEI]), fields(karpenters_documents()[HUAWEI])
    added = {path for path in ours.keys() - theirs.keys() if not path.startswith("spec.metadataOptions.")}
    assert added == {"spec.imsSelector.imageID", *(f"spec.{name}" for name in ADDED_FIELDS)}
    assert theirs.keys() <= ours.keys()
    for path, published in theirs.items():
        same = ("type", "format", "default", "required", "enum", "pattern", "minimum", "minLength", "maxItems")
        if not path.startswith("status.conditions"):  # ours are the same for all kinds
            wanted = {name: published.get(name) for name in same}
            found = {name: ours[path].get(name) for name in same}
            assert {**found, "required": sorted(found["required"] or ())} == {
                **wanted,
                "required": sorted(wanted["required"] or ()),
            }, path


def test_ccenodeclass_has_the_published_names_and_scope():
    """`kubectl get ccenodeclasses`; the category and the columns are additions."""
    ours, theirs = OURS[HUAWEI]["spec"], karpenters_documents()[HUAWEI]["spec"]
    assert {**theirs["names"], "categories": ["karpenter"]} == ours["names"]
    for name in ("group", "scope"):
        assert ours[name] == theirs[name]
    for name in ("name", "subresources"):
        assert ours["versions"][0][name] == theirs["versions"][0][name]
