"""The CustomResourceDefinitions: current, structural, and no narrower than Karpenter's."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
import yaml

from journeyman.core.api import crds
from journeyman.core.api.objects import ACS_ECSNODECLASS

ROOT = Path(__file__).parents[4]
RECORDED = json.loads((Path(__file__).parent / "recorded" / "karpenter_crds.json").read_text())["kinds"]
ACS = "ECSNodeClass.karpenter.alibabacloud.com"
DEFINITIONS = {ACS if d.resource == ACS_ECSNODECLASS else d.resource.kind: d for d in crds.DEFINITIONS}
SCHEMAS = {kind: crds.object_schema(definition.model) for kind, definition in DEFINITIONS.items()}

BOUNDS = {"maxItems", "maxProperties", "minItems", "minimum", "maximum"}


def generator():
    """`infra/crds/generate.py` as a module."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "infra" / "crds" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def nodes(schema, path=""):
    """Every part of a schema with its path."""
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from nodes(part, f"{path}.{name}" if path else name)
    if isinstance(schema.get("items"), dict):
        yield from nodes(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


def test_crd_files_are_up_to_date():
    """`make crds` generates them."""
    expected = dict(generator().rendered())
    folder = ROOT / "infra" / "crds"
    assert {path.name: path.read_text() for path in folder.glob("*.yaml")} == expected


def test_crd_files_are_valid_yaml_with_the_right_name():
    """`<plural>.<group>`, as the API server requires."""
    for path in (ROOT / "infra" / "crds").glob("*.yaml"):
        document = yaml.safe_load(path.read_text())
        names, group = document["spec"]["names"], document["spec"]["group"]
        assert document["metadata"]["name"] == f"{names['plural']}.{group}"
        assert path.name == f"{group}_{names['plural']}.yaml"
        assert document["spec"]["scope"] == "Cluster"


@pytest.mark.parametrize("kind", SCHEMAS)
def test_schemas_are_structural(kind):
    """They have no references, alternatives or untyped parts, which the API server rejects."""
    for path, part in nodes(SCHEMAS[kind]):
        if part.get("x-kubernetes-int-or-string"):
            assert part["anyOf"] == [{"type": "integer"}, {"type": "string"}], path
            continue
        unknown = {"$ref", "$defs", "anyOf", "oneOf", "allOf", "const", "title", "nullable", "propertyNames"}
        assert not part.keys() & unknown, path
        assert part.keys() & {"type", "x-kubernetes-preserve-unknown-fields"}, path
        assert not (part.get("properties") and part.get("additionalProperties")), path
        assert part["type"] != "array" or "items" in part, path
        assert set(part.get("required", ())) <= part.get("properties", {}).keys(), path
        assert "x-crd" not in part, path


@pytest.mark.parametrize("kind", SCHEMAS)
def test_only_kubelet_preserves_unknown_fields(kind):
    """The API server prunes all other unknown fields."""
    opened = [path for path, part in nodes(SCHEMAS[kind]) if part.get("x-kubernetes-preserve-unknown-fields")]
    assert opened == (["spec.kubelet"] if kind == "EC2NodeClass" else [])


@pytest.mark.parametrize("kind", SCHEMAS)
def test_lists_under_a_cel_rule_are_bounded(kind):
    """The API server estimates the cost of a CEL rule from the bounds; it accepts rules for a map's keys without any."""
    for path, part in nodes(SCHEMAS[kind]):
        if part.get("type") == "array" and part.get("x-kubernetes-validations"):
            assert part["maxItems"] <= 1000, path


@pytest.mark.parametrize("kind", RECORDED)
def test_crds_have_every_field_of_karpenters_and_are_no_narrower(kind):
    """Path, type, default, allowed values, required fields and bounds are compared."""
    ours = dict(nodes(SCHEMAS[kind]))
    for path, theirs in RECORDED[kind]["fields"].items():
        assert path in ours, f"{kind} lacks {path}"
        mine = ours[path]
        assert mine.get("type", "int-or-string") == theirs["type"], path
        assert set(theirs.get("enum", mine.get("enum", ()))) <= set(mine.get("enum", theirs.get("enum", ()))), path
        if "default" in theirs:
            assert mine.get("default") == theirs["default"], path
        assert set(mine.get("required", [])) <= set(theirs.get("required", [])), path
        for bound in BOUNDS & theirs.keys():
            assert mine[bound] == theirs[bound], (path, bound)


@pytest.mark.parametrize("kind", RECORDED)
def test_crds_have_karpenters_printer_columns(kind):
    """They have the same names, paths, types and priorities, in the same order."""
    shown = [[c.name, c.path, c.type, int(c.wide)] for c in DEFINITIONS[kind].columns]
    assert shown == RECORDED[kind]["columns"]


def test_columns_show_fields_that_exist():
    """A column of another field would always be empty."""
    for kind, definition in DEFINITIONS.items():
        known = {path.replace("[]", "") for path, _ in nodes(SCHEMAS[kind])} | {"metadata.creationTimestamp"}
        for column in definition.columns:
            path = re.sub(r"\[[^]]*\]", "", column.path).lstrip(".")
            of_map = f"{path.rpartition('.')[0]}{{}}"
            assert {path, of_map} & known or path.startswith("metadata.labels."), (kind, column.path)


def test_nodepool_has_the_scale_subresource():
    """`kubectl scale nodepool` sets replicas and reads nodes."""
    document = dict(crds.documents())["karpenter.sh_nodepools.yaml"]
    (version,) = document["spec"]["versions"]
    assert version["subresources"] == {
        "status": {},
        "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.nodes"},
    }


def test_immutable_fields_have_a_cel_rule():
    """Specs of NodeClaims and NodeDisruptions are immutable, and group, kind and mode of a NodePool."""
    for kind in ("NodeClaim", "NodeDisruption"):
        assert {"message": "spec is immutable", "rule": "self == oldSelf"} in SCHEMAS[kind]["properties"]["spec"][
            "x-kubernetes-validations"
        ]
    pool = dict(nodes(SCHEMAS["NodePool"]))
    assert "self.group == oldSelf.group" in str(pool["spec.template.spec.nodeClassRef"]["x-kubernetes-validations"])
    assert "oldSelf.replicas" in str(pool["spec"]["x-kubernetes-validations"])
