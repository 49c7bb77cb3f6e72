"""Karpenter's own CRDs keep every field that we write.

The demo's writes to NodePools, NodeClaims and EC2NodeClasses are sent once more, to a real API server with the CRDs that
Karpenter publishes.
"""

import pytest

from journeyman.core.api.labels import AWS_GROUP, GROUP
from tests.contract.crds import upstream_crds
from tests.controlplane.manifests import install
from tests.helpers.go_programs import GoProgramMissingError

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("moto")]

STRICT = "fieldValidation=Strict"  # a field that would be dropped is an error
MERGE = "application/merge-patch+json"


@pytest.fixture
def karpenters_cluster(make_control_plane):
    """An API server with Karpenter's CRDs."""
    try:
        definitions = upstream_crds.documents()
    except GoProgramMissingError as missing:
        pytest.skip(str(missing))
    with make_control_plane() as plane:
        install(plane.admin, definitions.values())
        yield plane


class Replay:
    """Sends recorded writes to another API server."""

    def __init__(self, caller):
        self._caller = caller
        self._known = set()
        self.verbs = set()

    def send(self, write):
        """One write; returns what was lost of it."""
        path = f"/apis/{write.resource.group}/{write.resource.version}/{write.resource.plural}"
        if write.verb != "create" and (write.resource.kind, write.name) not in self._known:
            self._create(path, without_versions(write.result))  # it existed before the demo
        self._known.add((write.resource.kind, write.name))
        self.verbs.add((write.verb, write.resource.kind, write.subresource))
        if write.verb == "create":
            return lost(write.body, self._create(path, write.body))
        at = "/".join(filter(None, (path, write.name, write.subresource)))
        if write.verb == "delete":
            self._caller.do("DELETE", at)
            return []
        sent = without_versions(write.body)
        return lost(sent, self._caller.do("PATCH", f"{at}?{STRICT}", sent, kind=MERGE))

    def _create(self, path, body):
        return self._caller.do("POST", f"{path}?{STRICT}", body)


def without_versions(body):
    """Without the preconditions and stamps of the server that it was recorded on."""
    stamps = ("resourceVersion", "uid", "generation", "creationTimestamp", "deletionTimestamp", "managedFields")
    metadata = {key: value for key, value in body.get("metadata", {}).items() if key not in stamps}
    return {**body, "metadata": metadata}


def lost(sent, stored, path=""):
    """Paths of what was sent and is not stored, or removed and still there."""
    if isinstance(sent, dict) and isinstance(stored, dict):
        return [found for key in sent for found in lost(sent[key], stored.get(key), f"{path}.{key}")]
    if isinstance(sent, list) and isinstance(stored, list) and len(sent) == len(stored):
        return [found for index, item in enumerate(sent) for found in lost(item, stored[index], f"{path}[{index}]")]
    kept = sent == stored or (not sent and stored is None)
    return [] if kept else [f"{path}: {sent!r} became {stored!r}"]


def test_karpenters_crds_keep_all_fields_that_we_write(demo_run, karpenters_cluster):
    """Specs, conditions, status fields, labels, annotations and finalizers, from launch to deletion of every claim."""
    writes = [write for _, write in demo_run.writes if write.resource.group in (GROUP, AWS_GROUP)]
    replay = Replay(karpenters_cluster.admin)
    for write in writes:
        assert replay.send(write) == [], (write.verb, write.resource.kind, write.name)
    assert {
        ("create", "NodeClaim", ""),
        ("patch", "NodeClaim", ""),
        ("patch", "NodeClaim", "status"),
        ("delete", "NodeClaim", ""),
        ("patch", "NodePool", ""),
        ("patch", "NodePool", "status"),
        ("patch", "EC2NodeClass", ""),
        ("patch", "EC2NodeClass", "status"),
    } <= replay.verbs
    claims = karpenters_cluster.admin.do("GET", f"/apis/{GROUP}/v1/nodeclaims")["items"]
    assert claims == []
