"""Unusual and invalid protobuf responses; the contract tests have the normal ones."""

from __future__ import annotations

import gzip
import itertools
import socket
import tracemalloc
from functools import cache

import msgspec
import pytest
import urllib3
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import example, given
from hypothesis import strategies as st

from journeyman.core.api.objects import NODECLAIM, PDB, POD, Pod, PodDisruptionBudget
from journeyman.core.api.storage import PERSISTENT_VOLUME_CLAIM
from journeyman.errors import (
    InvalidObjectError,
    KubeAPIError,
    KubeUnavailableError,
    NotFoundError,
    ResponseTooLargeError,
)
from journeyman.kube import protobuf
from journeyman.kube.connection_pool import Connection, ConnectionPool
from journeyman.kube.protobuf import message_classes as messages
from journeyman.kube.protobuf.field_numbers import LISTED, NUMBERS, UNSHARED_FIELDS
from journeyman.kube.protobuf.framing import parts
from journeyman.kube.protobuf.reader import Reader
from journeyman.kube.request_budget import RequestBudget


def structs_in(type_, found):
    """Return a Struct and the Structs in its fields, recursively."""
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct) and type_ not in found:
        found.add(type_)
        for hint in msgspec.inspect.type_info(type_).fields:
            for held in held_by(hint.type):
                structs_in(held, found)
    return found


def held_by(info):
    if isinstance(info, msgspec.inspect.StructType):
        return [info.cls]
    inner = [*getattr(info, "types", ()), *(getattr(info, part, None) for part in ("item_type", "value_type"))]
    return [one for part in inner if part is not None for one in held_by(part)]


@pytest.mark.parametrize("listed", sorted(LISTED, key=lambda type_: type_.__name__))
def test_each_field_of_a_struct_has_a_number(listed):
    """The decoder would ignore a new field without a number."""
    for struct in structs_in(listed, set()):
        assert struct in NUMBERS, f"{struct.__name__} has no numbers"
        fields = {field.name for field in msgspec.structs.fields(struct)}
        assert set(NUMBERS[struct]) == fields, f"the numbers of {struct.__name__} are of other fields than it has"
        assert UNSHARED_FIELDS.get(struct, set()) <= fields


def page(*items, unknown=b""):
    """Return a page of encoded pods as bytes, with unknown fields in the list and in the envelope."""
    head = b"\x12\x017\x1a\x00"
    raw = field(1, head) + unknown + b"".join(field(2, item) for item in items)
    return protobuf.MAGIC + field(1, b"\x0a\x02v1") + unknown + field(2, raw) + b"\x1a\x00\x22\x00"


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(number):
    low, high = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(high) if high else bytes([low])


def whole_number(number, value):
    return varint(number << 3) + varint(value)


def pod(name, namespace="default", status=b""):
    meta = field(1, name) + field(3, namespace.encode())
    return field(1, meta) + field(3, status)


@pytest.mark.parametrize(("near", "asked"), [(True, "identity"), (False, "gzip")])
def test_list_is_compressed_if_the_server_has_a_public_address(script, store_for, monkeypatch, near, asked):
    """On the same network, compression takes an API server longer than sending."""
    monkeypatch.setattr(ConnectionPool, "is_private", near)
    script.add_response(200, page(pod(b"a")))
    store_for(script.url).list(POD)
    assert script.requests[0][2]["Accept-Encoding"] == asked


@pytest.mark.parametrize(
    ("addresses", "near"),
    [(["10.1.2.3", "fd00::1"], True), (["100.64.0.7"], True), (["10.1.2.3", "52.1.2.3"], False), (OSError, False)],
    ids=["private", "shared", "public", "unknown"],
)
def test_server_is_private_if_all_its_addresses_are(monkeypatch, addresses, near):
    """A private server is on the same network, or on a connected one."""

    def resolved(host, _):
        assert host == "prod.example"
        if addresses is OSError:
            raise OSError
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 443)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    connection = Connection(server="https://prod.example:6443")
    assert ConnectionPool(connection, size=1, timeout=urllib3.Timeout(1)).is_private is near


def test_annotations_of_pods_that_nobody_reads_are_not_kept():
    """1,500 pods with 250 kB of them would end the function for its memory; equal values are shared, as objects are immutable."""
    kept = field(12, field(1, b"karpenter.sh/do-not-disrupt") + field(2, b"true"))
    dropped = field(12, field(1, b"example.com/notes") + field(2, b"x" * 100))
    phase = field(3, field(1, b"Running") + field(2, field(1, b"Ready") + field(2, b"True")))
    one, other = Reader(Pod).read([page(field(1, field(1, b"a") + dropped + kept) + phase, pod(b"b") + phase)]).items
    assert one.metadata.annotations == {"karpenter.sh/do-not-disrupt": "true"}
    assert one.status.conditions[0].status == "True"
    assert one.status.conditions is other.status.conditions


def test_object_that_never_ends_is_not_collected(script, store_for):
    """Its length is not to be believed; the list is read in JSON instead."""
    head = protobuf.MAGIC + b"\x12" + b"\xff\xff\xff\x7f" + b"\x12" + b"\xf0\xff\xff\x7f"
    script.add_response(200, gzip.compress(head + bytes(40 << 20)), Content_Encoding="gzip")
    annotations = {"karpenter.sh/do-not-disrupt": "true", "example.com/notes": "x"}
    listed = {"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "a", "annotations": annotations}}]}
    script.add_response(200, listed)
    tracemalloc.start()
    (one,) = store_for(script.url).list(POD).items
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 << 20
    assert one.metadata.annotations == {"karpenter.sh/do-not-disrupt": "true"}
    assert "limit=500" in script.requests[1][1]


def template(data_source):
    """Return an encoded volume with the template of a claim that has this source, and the same as JSON."""
    spec = field(2, field(2, field(1, b"storage") + field(2, field(1, b"1Gi")))) + field(7, data_source)
    claim = field(29, field(1, field(1, field(11, field(1, b"app") + field(2, b"db"))) + field(2, spec)))
    return field(1, b"data") + field(2, claim)


@pytest.mark.parametrize(
    ("encoded", "as_json"),
    [
        (field(3, b""), {"status": {}}),
        (field(1, field(8, whole_number(1, 1_700_000_000))), {"metadata": {"creationTimestamp": "2023-11-14T22:13:20Z"}}),
        (field(1, field(8, b"")), {"metadata": {"creationTimestamp": None}}),
        (
            field(3, field(7, whole_number(1, 5) + whole_number(2, 250_000_999))),
            {"status": {"startTime": "1970-01-01T00:00:05.250000Z"}},
        ),
        (field(2, whole_number(25, 0) + whole_number(4, 0)), {"spec": {"priority": 0, "terminationGracePeriodSeconds": 0}}),
        (field(2, whole_number(11, 0) + field(19, b"") + field(24, b"")), {"spec": {"hostNetwork": False}}),
        (field(2, whole_number(11, 1) + field(19, b"other")), {"spec": {"hostNetwork": True, "schedulerName": "other"}}),
        (field(2, field(22, field(1, b"a") + field(2, b""))), {"spec": {"tolerations": [{"key": "a"}]}}),
        (
            field(2, field(22, field(2, b"Exists") + whole_number(5, 0)) + field(22, b"")),
            {"spec": {"tolerations": [{"operator": "Exists", "tolerationSeconds": 0}, {}]}},
        ),
        (
            field(2, field(7, field(1, b"b") + field(2, b"1")) + field(7, field(1, b"a") + field(2, b""))),
            {"spec": {"nodeSelector": {"b": "1", "a": ""}}},
        ),
        (
            field(2, field(2, field(1, b"c") + field(8, field(2, field(1, b"cpu") + field(2, field(1, b"100m")))))),
            {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "100m"}}}]}},
        ),
        (field(2, field(2, field(1, b"c"))), {"spec": {"containers": [{"name": "c"}]}}),
        (field(2, field(38, field(1, b"quota")) + field(38, b"")), {"spec": {"schedulingGates": [{"name": "quota"}, {"name": ""}]}}),
        (
            field(2, field(1, template(field(2, b"Snapshot") + field(3, b"s")))),
            {"spec": {"volumes": [{"name": "data", "ephemeral": {"volumeClaimTemplate": {
                "metadata": {"labels": {"app": "db"}},
                "spec": {"resources": {"requests": {"storage": "1Gi"}}, "dataSource": {"apiGroup": None, "kind": "Snapshot", "name": "s"}},
            }}}]}},
        ),
        (
            field(2, field(1, field(1, b"data") + field(2, field(10, field(1, b"claim"))))),
            {"spec": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "claim"}}]}},
        ),
        (
            field(2, field(18, field(1, field(1, field(1, field(1, field(1, b"zone") + field(2, b"In") + field(3, b"a") + field(3, b"b"))))))),
            {"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]},
            ]}}}}},
        ),
    ],
)  # fmt: skip
def test_set_empty_and_missing_values_are_those_of_json(encoded, as_json):
    """JSON leaves out empty values, protobuf missing ones; the numbers of the fields are those of Kubernetes."""
    (one,) = Reader(Pod).read([page(encoded)]).items
    assert one == msgspec.convert({"metadata": {}, **as_json}, Pod)


@pytest.mark.parametrize(
    ("encoded", "value"),
    [
        (whole_number(1, 0) + whole_number(2, 3) + field(3, b""), 3),
        (whole_number(1, 0) + whole_number(2, 0) + field(3, b""), 0),
        (whole_number(1, 1) + whole_number(2, 0) + field(3, b"50%"), "50%"),
    ],
)
def test_bound_of_a_pdb_is_a_number_or_a_text(encoded, value):
    (one,) = Reader(PodDisruptionBudget).read([page(field(2, field(1, encoded)))]).items
    assert (one.spec.min_available, one.spec.max_unavailable) == (value, None)


def test_unknown_protobuf_fields_are_skipped():
    """Newer servers send more fields, of each wire type."""
    (one,) = Reader(Pod).read([page(pod(b"a", status=UNKNOWN) + UNKNOWN, unknown=UNKNOWN)]).items
    assert one == msgspec.convert({"metadata": {"name": "a", "namespace": "default"}}, Pod)


@pytest.mark.parametrize(
    "answer",
    [
        page(pod(b"a"), pod(b"b"))[:-9],
        page(pod(b"a"), pod(b"\xff")),
        page(pod(b"a"), pod(b"b", status=field(2, field(1, b"\xff")))),
        page(pod(b"a"), pod(b"b", status=field(2, b"\x0a\x05a"))),
        page(pod(b"a"), pod(b"b", status=field(7, b"\x08" + b"\xff" * 8 + b"\x7f"))),
    ],
    ids=["cut", "no-text", "no-text-within", "cut-within", "no-time"],
)
def test_unreadable_protobuf_list_is_read_in_json(script, store_for, answer):
    """The JSON decoder replaces invalid text, and its errors have the object and the field."""
    script.add_response(200, answer)
    script.add_response(
        200, {"metadata": {}, "items": [{"metadata": {"name": "b", "namespace": "default", "labels": {"x": 5}}}]}
    )
    with pytest.raises(InvalidObjectError, match=r"Pod default/b cannot be read: .*labels"):
        store_for(script.url).list(POD)
    assert [headers["Accept"] for _, _, headers in script.requests][1:] == ["application/json"]
    assert "limit=500" in script.requests[1][1]


UNKNOWN = b"".join((b"\xf8\x07" + b"\xff" * 9 + b"\x01", b"\xfd\x07abcd", b"\xf9\x07abcdefgh", b"\xfa\x07\x02ab"))
"""A field that no Struct has, in each type that a value may have on the wire; a number has up to ten bytes."""
SIZES = (1, 40, 94, 300, 2)
BODY = page(*(pod(b"a" * size, status=field(1, b"Running") + UNKNOWN) for size in SIZES), unknown=UNKNOWN)
END = len(BODY) - len(b"\x1a\x00\x22\x00")  # an error in the list itself, not in an object


@cache
def reader():
    return Reader(Pod)


@cache
def whole():
    return reader().read([BODY])


@given(st.sets(st.integers(0, len(BODY))))
@example(set(range(len(BODY))))
def test_body_may_be_cut_anywhere(cuts):
    """No field is lost or read twice; numbers of several bytes may be cut, too."""
    bounds = [0, *sorted(cuts), len(BODY)]
    pieces = [BODY[one:other] for one, other in itertools.pairwise(bounds)]
    assert reader().read(pieces) == whole()
    assert [len(one.metadata.name) for one in whole().items] == list(SIZES)


def test_each_part_of_a_body_has_a_field_however_many_bytes_its_length_has():
    """The first byte of 128 has no bit but the one that says that another byte follows."""
    assert all(parts([bytes([byte]) for byte in BODY]))
    for size in (127, 128, 129, 256, 16_384):
        body = page(pod(b"a"), unknown=field(99, bytes(size)))
        (one,) = reader().read(bytes([byte]) for byte in body).items
        assert one.metadata.name == "a"


def test_field_is_held_up_to_a_length():
    """Its own tag and length count, too; an object has a tenth of that."""
    most = 16 << 20
    begun = protobuf.MAGIC + b"\x12" + b"\xff\xff\xff\x7f" + b"\x12" + b"\xf0\xff\xff\x7f"
    fits = begun + bytes(most - len(b"\x12\xf0\xff\xff\x7f"))
    with pytest.raises(ValueError, match="ends too early"):
        list(parts([fits]))
    with pytest.raises(ValueError, match=f"has over {most} bytes"):
        list(parts([fits + b"a"]))


@pytest.mark.parametrize("size", [1, 7, len(BODY)])
def test_truncated_list_is_an_error(size):
    """It may end anywhere, also between two objects."""
    for end in range(END):
        with pytest.raises(ValueError, match="ends too early"):
            reader().read([BODY[at : min(at + size, end)] for at in range(0, end, size)])


@pytest.mark.parametrize(
    "raw", [b"\x13", b"\x80" * 10 + b"\x01", field(1, b"\x08")], ids=["group", "endless", "no-list"]
)
def test_invalid_message_is_an_error(raw):
    """Another program, or a future version, sent it."""
    with pytest.raises(ValueError, match=r"\w"):
        reader().read([protobuf.MAGIC + field(2, raw)])


def chunked(*pieces):
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


def test_list_that_breaks_off_is_read_again(script, store_for):
    """The client reads the whole list again, and the run's budget counts a retry."""
    broken = chunked(BODY[:100], BODY[100:400])
    script.add_response(200, broken, Transfer_Encoding="chunked", Connection="close")
    script.add_response(200, broken[:-50], Transfer_Encoding="chunked", Connection="close")
    script.add_response(200, chunked(BODY[:400], BODY[400:]) + b"0\r\n\r\n", Transfer_Encoding="chunked")
    budget = RequestBudget()
    listing = store_for(script.url).for_run(budget).list(POD)
    assert listing.items == tuple(whole().items)
    assert (budget.usage.requests, budget.usage.retries, budget.usage.writes) == (3, 2, 0)


def test_list_that_always_breaks_off_is_an_error(script, store_for):
    """The client never returns a shorter list, and makes no more retries than the budget has."""
    script.add_response(200, chunked(BODY[:400]), Transfer_Encoding="chunked", Connection="close")
    for store, requests in ((store_for(script.url), 3), (store_for(script.url).for_run(RequestBudget(retries=0)), 4)):
        with pytest.raises(KubeUnavailableError, match="closed the connection before the response was complete"):
            store.list(POD)
        assert len(script.requests) == requests


def test_list_is_read_without_pages_and_keeps_its_connection(script, store_for):
    """Kubernetes' own kinds are requested in protobuf; the body is read to its end, compressed or not."""
    script.add_response(200, page(pod(b"a"), pod(b"b")))
    script.add_response(200, BODY)
    script.add_response(200, gzip.compress(BODY), Content_Encoding="gzip")
    store = store_for(script.url)
    listing = store.list(POD, namespace="default")
    assert [one.key for one in listing.items] == ["default/a", "default/b"]
    assert [store.list(POD).resource_version for _ in range(3)] == [listing.resource_version] * 3 == ["7"] * 3
    (_, asked, headers), *_ = script.requests
    assert headers["Accept"] == f"{protobuf.MEDIA_TYPE}, application/json"
    assert asked == "/api/v1/namespaces/default/pods"
    assert len(set(script.ports)) == 1


def test_server_may_answer_in_json(script, store_for):
    """Older servers do, whole or in pages; any other body is an error."""
    names = [f"p-{number}" for number in range(9)]
    items = [{"metadata": {"name": name}} for name in names]
    script.add_response(200, {"metadata": {"resourceVersion": "7"}, "items": items})
    assert [one.metadata.name for one in store_for(script.url).list(POD).items] == names
    assert len(script.requests) == 1

    script.answers.clear()
    for _ in range(2):
        script.add_response(200, {"metadata": {"continue": "more"}, "items": [{"metadata": {"name": "a"}}]})
    script.add_response(200, {"metadata": {}, "items": [{"metadata": {"name": "b"}}]})
    assert [one.metadata.name for one in store_for(script.url).list(POD).items] == ["a", "b"]
    assert ["limit" in path for _, path, _ in script.requests] == [False, False, True, True]

    for nothing in (b"", b"k8", b"<html>"):
        script.answers.clear()
        script.add_response(200, nothing)
        with pytest.raises(KubeAPIError, match="not an API server's"):
            store_for(script.url).list(POD)


def test_status_may_come_in_either_encoding(script, store_for):
    status = field(3, b'namespaces "x" not found') + field(4, b"NotFound") + b"\x30\x94\x03"
    script.add_response(404, protobuf.MAGIC + field(2, status))
    with pytest.raises(NotFoundError, match='namespaces "x" not found') as refused:
        store_for(script.url).list(POD, namespace="x")
    assert refused.value.reason == "NotFound"


def test_protobuf_messages_are_parsed_in_c():
    """protobuf's fallback in Python would take twenty times as long."""
    from google.protobuf.internal import api_implementation

    assert api_implementation.Type() == "upb"
    assert messages.message_class("Pod").DESCRIPTOR.fields_by_name["spec"].type == FieldDescriptor.TYPE_MESSAGE


def test_annotations_that_nobody_reads_are_dropped_of_every_kind(script, store_for):
    """Those of a PersistentVolumeClaim's binding are kept, and all of a NodeClaim, which are copied to its Node."""
    annotations = {"pv.kubernetes.io/bind-completed": "yes", "example.com/notes": "x"}
    body = {"metadata": {"name": "a", "annotations": annotations}}
    kept = {}
    for resource in (PDB, PERSISTENT_VOLUME_CLAIM, NODECLAIM):
        script.add_response(200, {"metadata": {"resourceVersion": "7"}, "items": [body]})
        (one,) = store_for(script.url).list(resource).items
        kept[resource.kind] = set(one.metadata.annotations)
    assert kept["PodDisruptionBudget"] == set()
    assert kept["PersistentVolumeClaim"] == {"pv.kubernetes.io/bind-completed"}
    assert kept["NodeClaim"] == set(annotations)


def test_list_of_too_many_objects_is_not_held():
    """Each may be a few bytes long, so the bound of bytes does not help."""
    items = [field(1, field(1, b"a"))] * 3
    assert len(Reader(Pod, max_items=3).read([page(*items)]).items) == 3
    with pytest.raises(ResponseTooLargeError, match="over 2 objects of kind Pod"):
        Reader(Pod, max_items=2).read([page(*items)])
