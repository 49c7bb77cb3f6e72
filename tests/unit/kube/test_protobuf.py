"""Answers in the API server's own encoding, where they are not as they should be; the healthy ones are in the contract suite."""

from __future__ import annotations

import msgspec
import pytest
from google.protobuf.descriptor import FieldDescriptor

from journeyman.core.api.objects import POD, Pod
from journeyman.errors import InvalidObjectError, NotFoundError
from journeyman.kube import protobuf
from journeyman.kube.protobuf import messages
from journeyman.kube.protobuf.numbers import LISTED, NUMBERS, OWN_FIELDS
from journeyman.kube.protobuf.reading import Reader


def structs_in(type_, found):
    """A Struct and all that its fields hold."""
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct) and type_ not in found:
        found.add(type_)
        for hint in msgspec.inspect.type_info(type_).fields:
            for held in held_by(hint.type):
                structs_in(held, found)
    return found


def held_by(info):
    """The Structs in a field's type."""
    if isinstance(info, msgspec.inspect.StructType):
        return [info.cls]
    inner = [*getattr(info, "types", ()), *(getattr(info, part, None) for part in ("item_type", "value_type"))]
    return [one for part in inner if part is not None for one in held_by(part)]


@pytest.mark.parametrize("listed", sorted(LISTED, key=lambda type_: type_.__name__))
def test_every_field_of_our_structs_has_its_number(listed):
    """A field that somebody adds to a Struct would be left out silently without one."""
    for struct in structs_in(listed, set()):
        assert struct in NUMBERS, f"{struct.__name__} has no numbers"
        fields = {field.name for field in msgspec.structs.fields(struct)}
        assert set(NUMBERS[struct]) == fields, f"the numbers of {struct.__name__} are of other fields than it has"
        assert OWN_FIELDS.get(struct, set()) <= fields


def page(*items):
    """A page of pods as bytes; an item is bytes, too."""
    head = b"\x12\x017\x1a\x00"
    raw = field(1, head) + b"".join(field(2, item) for item in items)
    return protobuf.MAGIC + field(1, b"\x0a\x02v1") + field(2, raw)


def field(number, content):
    """A field of bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


def pod(name, namespace="default", status=b""):
    """A pod as bytes."""
    meta = field(1, name) + field(3, namespace.encode())
    return field(1, meta) + field(3, status)


def test_the_whole_list_comes_at_once(script, store_for):
    """Kubernetes' own kinds are asked for in its own encoding, without pages."""
    script.say(200, page(pod(b"a"), pod(b"b")))
    listing = store_for(script.url).list(POD, namespace="default")
    assert [one.key for one in listing.items] == ["default/a", "default/b"]
    assert listing.resource_version == "7"
    ((_, asked, headers),) = script.requests
    assert headers["Accept"] == f"{protobuf.MEDIA_TYPE}, application/json"
    assert asked == "/api/v1/namespaces/default/pods"


def test_what_is_the_same_is_shared():
    """Between objects, as nobody changes it."""
    reader = Reader(Pod)
    phase = field(1, b"Running") + field(2, field(1, b"Ready") + field(2, b"True"))
    one, other = map(reader.read, reader.open(page(pod(b"a", status=phase), pod(b"b", status=phase))).items)
    assert one.status.conditions[0].status == "True"
    assert one.status.conditions is other.status.conditions


def test_a_field_that_nobody_knows_is_passed_over():
    """Newer servers have more of them, of every kind there is."""
    reader = Reader(Pod)
    unknown = b"\xf8\x07\x01" + b"\xfd\x07abcd" + b"\xf9\x07abcdefgh" + b"\xfa\x07\x02ab"
    (one,) = map(reader.read, reader.open(page(pod(b"a", status=unknown) + unknown)).items)
    assert one == msgspec.convert({"metadata": {"name": "a", "namespace": "default"}}, Pod)


@pytest.mark.parametrize(
    "answer",
    [
        page(pod(b"a"), pod(b"b"))[:-3],
        page(pod(b"a"), pod(b"\xff")),
        page(pod(b"a"), pod(b"b", status=field(2, field(1, b"\xff")))),
        page(pod(b"a"), pod(b"b", status=field(2, b"\x0a\x05a"))),
    ],
    ids=["cut", "no-text", "no-text-within", "cut-within"],
)
def test_what_cannot_be_read_is_asked_for_as_json(script, store_for, answer):
    """Which replaces what is no text, and of which an error names object and field."""
    script.say(200, answer)
    script.say(
        200, {"metadata": {}, "items": [{"metadata": {"name": "b", "namespace": "default", "labels": {"x": 5}}}]}
    )
    with pytest.raises(InvalidObjectError, match=r"Pod default/b cannot be read: .*labels"):
        store_for(script.url).list(POD)
    assert [headers["Accept"] for _, _, headers in script.requests][1:] == ["application/json"]
    assert "limit=500" in script.requests[1][1]


def test_a_refusal_may_come_in_either_encoding(script, store_for):
    """With its reason and its words."""
    status = field(3, b'namespaces "x" not found') + field(4, b"NotFound") + b"\x30\x94\x03"
    script.say(404, protobuf.MAGIC + field(2, status))
    with pytest.raises(NotFoundError, match='namespaces "x" not found') as refused:
        store_for(script.url).list(POD, namespace="x")
    assert refused.value.reason == "NotFound"


def test_messages_are_parsed_in_c():
    """Protobuf's own fallback in Python would take twenty times as long."""
    from google.protobuf.internal import api_implementation

    assert api_implementation.Type() == "upb"
    assert messages.message_class("Pod").DESCRIPTOR.fields_by_name["spec"].type == FieldDescriptor.TYPE_MESSAGE
