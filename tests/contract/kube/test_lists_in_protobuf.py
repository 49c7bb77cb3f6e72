"""Lists in protobuf are equal to lists in JSON."""

from __future__ import annotations

import msgspec
import pytest

from journeyman.core.api.labels import READ_ANNOTATIONS
from journeyman.core.api.objects import DAEMONSET, NODE, PDB, POD, Condition, ObjectMeta
from journeyman.core.api.storage import CSI_NODE, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM
from journeyman.core.api.workloads import DEPLOYMENT, REPLICA_SET, SERVICE, STATEFUL_SET
from journeyman.errors import ForbiddenError
from journeyman.kube import protobuf
from journeyman.kube.connection_pool import Connection, client_context
from journeyman.kube.error_translation import decode_status as decode_json
from journeyman.kube.http_store import HttpKubeStore
from journeyman.kube.lists import WholeList, drop_unread_annotations
from journeyman.kube.transport import Transport
from tests.bench.crowd import put
from tests.helpers.any_objects import MARK, ObjectGenerator, fields_with_values, kubernetes_fields
from tests.helpers.waiting import wait_until

COUNT = 60
KINDS = (
    POD,
    NODE,
    DAEMONSET,
    PDB,
    CSI_NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    DEPLOYMENT,
    REPLICA_SET,
    STATEFUL_SET,
    SERVICE,
)
NOT_OF_NODES = (Condition, "observed_generation")


def transport_of(plane, token=""):
    trust = client_context(ca_file=str(plane.ca_file))
    return Transport(
        Connection(server=plane.server, ssl_context=trust, authorization=lambda: f"Bearer {token or plane.token}")
    )


@pytest.fixture
def plane(control_plane):
    """Return a control plane; tests write objects directly to its etcd, without admission."""
    if not hasattr(control_plane, "etcd"):
        pytest.skip("the cluster that is named does not show its etcd")
    return control_plane


@pytest.fixture
def drawn(plane, namespace, request):
    """Store random objects of one kind; return their resource and the selector that finds them."""
    resource, mark = request.param, namespace[-20:].lstrip("-")
    bodies = list(ObjectGenerator(resource.kind).objects(resource, COUNT, namespace=namespace, mark=mark))
    put(plane.etcd, bodies)
    selector = f"{MARK}={mark}"
    path = f"{resource.path()}?labelSelector={selector}"
    # One transaction is one version: the server's cache may be at it before it has all objects.
    wait_until(lambda: len(plane.admin.do("GET", path)["items"]) == COUNT, "the API server knows them")
    yield resource, selector
    for body in bodies:
        metadata = body["metadata"]
        plane.admin.do("DELETE", resource.path(metadata.get("namespace", ""), metadata["name"]))


@pytest.mark.parametrize("drawn", KINDS, ids=lambda resource: resource.kind, indirect=True)
def test_both_encodings_give_equal_objects(plane, drawn):
    """The random objects have each field set, empty and missing; each field of the Structs is set in at least one."""
    resource, selector = drawn
    transport = transport_of(plane)
    query = {"labelSelector": selector}
    body = transport.request("GET", resource.path(), query=query)
    wanted = msgspec.convert(msgspec.json.decode(body)["items"], tuple[resource.type, ...])
    drop_unread_annotations(wanted)
    found = HttpKubeStore(transport, page_size=4).list(resource, label_selector=selector).items
    for one, other in zip(found, wanted, strict=True):
        assert msgspec.to_builtins(one) == msgspec.to_builtins(other)
        assert one == other
    assert msgspec.json.encode(found) == msgspec.json.encode(wanted)  # compares the order of maps, too
    missing = kubernetes_fields(resource.type) - {field for one in found for field in fields_with_values(one)}
    not_there = set() if resource.namespaced else {(ObjectMeta, "namespace")}
    drops_annotations = resource.type.__name__ in READ_ANNOTATIONS  # the random ones are not read
    not_there |= {(ObjectMeta, "annotations")} if drops_annotations else set()
    assert missing == not_there | ({NOT_OF_NODES} if resource is NODE else set())
    accepted = transport.request("GET", resource.path(), query=query, accept=WholeList.ACCEPT)
    assert accepted.startswith(protobuf.MAGIC)


def test_status_is_equal_in_both_encodings(plane):
    """The server encodes a Status in the requested encoding."""
    transport = transport_of(plane, token="unknown")
    said = []
    for accept, decode_status in (("application/json", decode_json), (WholeList.ACCEPT, WholeList.decode_status)):
        with pytest.raises(ForbiddenError) as refused:
            transport.read(POD.path(), list, accept=accept, decode_status=decode_status)
        said.append(str(refused.value))
    assert said[0] == said[1]
    assert "Unauthorized" in said[0]
