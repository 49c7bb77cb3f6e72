"""Karpenter's own CRDs keep every field that Journeyman writes.

The test sends the demo's writes to NodePools, NodeClaims and EC2NodeClasses again, to a real API server with Karpenter's
published CRDs.
"""

import pytest

from journeyman.core.api.labels import AWS_GROUP, GROUP
from journeyman_simulator.simulator_cli.demo_command import CLOUDS
from tests.contract.crds import upstream_crds
from tests.controlplane.manifests import install
from tests.helpers.go_programs import GoProgramMissingError
from tests.helpers.sampling import aws_and_nightly

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("moto")]

STRICT = "fieldValidation=Strict"  # the API server rejects unknown fields
MERGE = "application/merge-patch+json"


@pytest.fixture
def karpenters_cluster(make_control_plane):
    """Start an API server with Karpenter's CRDs."""
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
        """Send one write; return the paths of its fields that the API server did not keep."""
        path = f"/apis/{write.resource.group}/{write.resource.version}/{write.resource.plural}"
        if write.verb != "create" and (write.resource.kind, write.name) not in self._known:
            self._create(path, without_versions(write.result))  # it existed before the demo
        self._known.add((write.resource.kind, write.name))
        self.verbs.add((write.verb, write.resource.kind, write.subresource))
        if write.verb == "create":
            return lost_paths(write.body, self._create(path, write.body))
        at = "/".join(filter(None, (path, write.name, write.subresource)))
        if write.verb == "delete":
            self._caller.do("DELETE", at)
            return []
        sent = without_versions(write.body)
        return lost_paths(sent, self._caller.do("PATCH", f"{at}?{STRICT}", sent, kind=MERGE))

    def _create(self, path, body):
        return self._caller.do("POST", f"{path}?{STRICT}", body)


def without_versions(body):
    """Return the body without the preconditions and timestamps of the server on which it was recorded."""
    stamps = ("resourceVersion", "uid", "generation", "creationTimestamp", "deletionTimestamp", "managedFields")
    metadata = {key: value for key, value in body.get("metadata", {}).items() if key not in stamps}
    return {**body, "metadata": metadata}


def lost_paths(sent, stored, path=""):
    """Return the paths of fields that were sent but not stored, or removed but still stored."""
    if isinstance(sent, dict) and isinstance(stored, dict):
        return [found for key in sent for found in lost_paths(sent[key], stored.get(key), f"{path}.{key}")]
    if isinstance(sent, list) and isinstance(stored, list) and len(sent) == len(stored):
        return [
            found for index, item in enumerate(sent) for found in lost_paths(item, stored[index], f"{path}[{index}]")
        ]
    kept = sent == stored or (not sent and stored is None)
    return [] if kept else [f"{path}: {sent!r} became {stored!r}"]


@pytest.mark.parametrize("demo_run", aws_and_nightly(CLOUDS), indirect=True)
def test_karpenters_crds_keep_all_fields_that_journeyman_writes(demo_run, karpenters_cluster):
    """They keep specs, conditions, status fields, labels, annotations and finalizers from launch to deletion."""
    writes = [write for _, write in demo_run.writes if write.resource.group in (GROUP, AWS_GROUP)]
    replay = Replay(karpenters_cluster.admin)
    for write in writes:
        assert replay.send(write) == [], (write.verb, write.resource.kind, write.name)
    node_classes = {("patch", "EC2NodeClass", ""), ("patch", "EC2NodeClass", "status")}
    assert {
        ("create", "NodeClaim", ""),
        ("patch", "NodeClaim", ""),
        ("patch", "NodeClaim", "status"),
        ("delete", "NodeClaim", ""),
        ("patch", "NodePool", ""),
        ("patch", "NodePool", "status"),
        *(node_classes if demo_run.cloud is CLOUDS["aws"] else ()),  # Karpenter has no CRD for other clouds
    } <= replay.verbs
    claims = karpenters_cluster.admin.do("GET", f"/apis/{GROUP}/v1/nodeclaims")["items"]
    assert claims == []
