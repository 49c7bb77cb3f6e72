"""Manifests of Karpenter's public documentation, blueprints and workshops are admitted, reported or refused as listed.

The API server validates strictly, as `kubectl apply` asks it to. Karpenter's CRDs give the same verdict on each manifest.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from journeyman.core.api import crds
from tests.contract.crds import upstream_crds
from tests.contract.crds.conftest import MODELS, karpenters_documents
from tests.contract.crds.differences import Reported, explained
from tests.contract.crds.rule import BASES, kind_of, with_value
from tests.helpers.go_programs import GoProgramMissingError

pytestmark = pytest.mark.slow

LISTED = yaml.safe_load(Path(__file__).with_name("public_manifests.yaml").read_text())
RESTATED = [entry for entry in LISTED["restated"] if "version" not in entry]
ALIBABA = [*yaml.safe_load_all(Path(__file__).with_name("alibaba_manifests.yaml").read_text())]
_HUAWEI = (Path(__file__).parents[3] / "docs" / "examples" / "huawei-cluster.yaml").read_text()
HUAWEI = [obj for obj in yaml.safe_load_all(_HUAWEI) if obj["kind"] != "Deployment"]
SERVED = {(f"{d.resource.group}/{d.resource.version}", d.resource.kind) for d in crds.DEFINITIONS}
WORKLOADS = {"Deployment": "apis/apps/v1", "PodDisruptionBudget": "apis/policy/v1"}


def published():
    """Return the objects of the published examples by file; skip the test if they cannot be downloaded."""
    try:
        return upstream_crds.examples()
    except GoProgramMissingError as missing:
        pytest.skip(str(missing))


def object_of(entry):
    """Return the manifest of an entry."""
    obj = with_value(BASES[entry["kind"]], "metadata.name", "public")
    for path, value in entry["sets"].items():
        obj = with_value(obj, path, value)
    return obj


@pytest.mark.parametrize("entry", RESTATED, ids=lambda entry: f"{entry['source']} {entry['kind']}")
def test_restated_manifest_is_treated_as_listed(entry, ours, karpenters):
    """A condition's message is the model's error (`test_reported.py`)."""
    obj, kind, expect = object_of(entry), entry["kind"], entry.get("expect", "admitted")
    theirs = karpenters[kind].validate(obj, strict=True)
    there = ours.get(kind, karpenters[kind]).validate(obj, strict=True)
    here = MODELS[kind].validate(obj)
    assert there.accepted is theirs.accepted is (expect != "refused"), (there.causes, theirs.causes)
    if expect == "refused":
        assert entry["says"] in " ".join(there.causes)
    else:
        assert here.accepted is (expect == "admitted"), here.causes
    if expect == "condition":
        assert entry["says"] in " ".join(here.causes)
        assert explained(here.causes, Reported)


@pytest.mark.parametrize("file", LISTED["published"])
def test_published_example_is_treated_as_listed(file, ours, karpenters, control_plane):
    """Each object of the file; of workloads the API server ignores unknown fields, which some have."""
    expect = LISTED["published"][file]
    refused = {} if expect == "admitted" else expect
    for obj in published()[file]:
        kind = obj["kind"]
        if kind in WORKLOADS:
            path = f"/{WORKLOADS[kind]}/namespaces/default/{kind.lower()}s"
            control_plane.admin.do("POST", f"{path}?dryRun=All", obj)
            continue
        there, theirs = ours[kind].validate(obj, strict=True), karpenters[kind].validate(obj, strict=True)
        assert there.accepted is theirs.accepted is (kind not in refused), (there.causes, theirs.causes)
        assert MODELS[kind].validate(obj).accepted is (kind not in refused)
        assert refused.get(kind, "") in " ".join(there.causes)


@pytest.mark.parametrize("obj", [*ALIBABA, *HUAWEI], ids=lambda obj: f"{obj['kind']} {obj['metadata']['name']}")
def test_manifest_for_another_cloud_is_admitted(obj, ours):
    """The NodeClasses of Alibaba Cloud's two API groups and of Huawei Cloud, and NodePools that select instances by their labels."""
    (kind,) = (
        kind_of(d.resource)
        for d in crds.DEFINITIONS
        if (d.resource.api_version, d.resource.kind) == (obj["apiVersion"], obj["kind"])
    )
    there = ours[kind].validate(obj, strict=True)

    assert there.accepted, there.causes
    assert MODELS[kind].validate(obj).accepted, MODELS[kind].validate(obj).causes
    assert MODELS[kind].meaning(there.stored) == MODELS[kind].meaning(obj)


def test_every_published_example_is_listed():
    """A new version of Karpenter may have more."""
    assert set(LISTED["published"]) == set(published())


@pytest.mark.parametrize("entry", [e for e in LISTED["restated"] if "version" in e], ids=lambda entry: entry["version"])
def test_other_versions_are_not_served(entry):
    """There is no such kind for the API server, nor with Karpenter's CRDs."""
    theirs = {
        (f"{document['spec']['group']}/{version['name']}", kind)
        for kind, document in karpenters_documents().items()
        for version in document["spec"]["versions"]
    }
    assert (entry["version"], entry["kind"]) not in SERVED | theirs
