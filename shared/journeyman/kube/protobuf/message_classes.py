"""Message classes for our Structs, with only the fields that these have: what protobuf's C parser fills.

A message that is often the same in many objects is a field of bytes in the one around it; on the wire that is no difference.
Entries of maps are such, too: a list keeps their order, which is that of the JSON.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, Union, get_args, get_origin

import msgspec
from google.protobuf.descriptor_pb2 import EDITION_2023, DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from journeyman.kube.protobuf.field_numbers import AS_JSON, NUMBERS, OWN_FIELDS, OWN_STATE, UNREAD

MISSING_TEXT: Final = "\0missing"
MISSING_BYTES: Final = b"\0missing"  # begins with a field number that no message can have
MISSING_NUMBER: Final = -(2**63)
TEXT_ENTRY: Final = "TextEntry"
AMOUNT_ENTRY: Final = "AmountEntry"
TIME: Final = "Time"
NUMBER_OR_TEXT: Final = "IntOrString"
LIST_META: Final = "ListMeta"
SOURCE: Final = "source"
"""The field of a message in between, whose own fields are the Struct's around it."""

UNREAD_FIELD: Final = "unread_"
"""With their numbers: fields that are only there to be left out."""

_PACKAGE: Final = "journeyman"
_TEXT, _BYTES, _NUMBER, _FLAG, _MESSAGE = (
    FieldDescriptorProto.TYPE_STRING,
    FieldDescriptorProto.TYPE_BYTES,
    FieldDescriptorProto.TYPE_INT64,  # an int32 is written like it
    FieldDescriptorProto.TYPE_BOOL,
    FieldDescriptorProto.TYPE_MESSAGE,
)


@lru_cache(maxsize=256)
def fields(type_: type[msgspec.Struct]) -> Mapping[str, Any]:
    """What each field of a Struct holds when it is there, without those that only custom resources have."""
    numbers = NUMBERS[type_]
    return {name: _present(each.type) for name, each in _declared(type_).items() if numbers[name] is not None}


@lru_cache(maxsize=256)
def own_fields(type_: type) -> tuple[str, ...]:
    """The fields in a Struct's message: all but those of its rest."""
    own = OWN_FIELDS.get(type_)
    return tuple(name for name in fields(type_) if own is None or name in own)


@lru_cache(maxsize=256)
def other_fields(type_: type) -> tuple[str, ...]:
    """The fields in the message of a Struct's rest."""
    own = own_fields(type_)
    return tuple(name for name in fields(type_) if name not in own)


def is_own_map(type_: type, name: str) -> bool:
    """Whether a map to texts makes the difference between two objects, so that its entries are not worth remembering."""
    return type_ in OWN_FIELDS and name in OWN_FIELDS[type_] and fields(type_)[name] == dict[str, str]


def rest_name(type_: type) -> str:
    """The message of a Struct's rest."""
    return f"{type_.__name__}Rest"


@lru_cache(maxsize=256)
def message_class(name: str) -> Any:
    """The class of messages of that name: a Struct's, one of those above, or `list_name` of a Struct's."""
    return GetMessageClass(_pool().FindMessageTypeByName(f"{_PACKAGE}.{name}"))


def list_name(type_: type) -> str:
    """The message of a list of such objects."""
    return f"{type_.__name__}List"


@lru_cache(maxsize=1)
def _pool() -> DescriptorPool:
    file = FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="editions", edition=EDITION_2023)
    file.message_type.extend([*_common(), *(made for type_ in NUMBERS for made in _messages(type_))])
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool


def _common() -> Iterator[DescriptorProto]:
    yield _message(TEXT_ENTRY, _field("key", 1, _TEXT), _field("value", 2, _TEXT))
    yield _message(AMOUNT_ENTRY, _field("key", 1, _TEXT), _field("value", 2, "Quantity"))
    yield _message("Quantity", _field("string", 1, _TEXT))
    seconds = _field("seconds", 1, _NUMBER)
    seconds.default_value = str(MISSING_NUMBER)
    yield _message(TIME, seconds, _field("nanos", 2, _NUMBER))
    yield _message(NUMBER_OR_TEXT, _field("type", 1, _NUMBER), _field("number", 2, _NUMBER), _field("text", 3, _TEXT))
    yield _message(LIST_META, _field("resource_version", 2, _TEXT), _field("continue_", 3, _TEXT))


def _messages(type_: type[msgspec.Struct]) -> Iterator[DescriptorProto]:
    """A Struct's message, and the one of its rest; what is between it and some fields; its list, where it is an object's."""
    name, inner = type_.__name__, [field for field in fields(type_) if isinstance(NUMBERS[type_][field], tuple)]
    own = [_of_struct(type_, field) for field in own_fields(type_) if field not in inner]
    own += [_field(f"{UNREAD_FIELD}{number}", number, _BYTES, many=True) for number in UNREAD.get(type_, ())]
    if inner:
        own.append(_field(SOURCE, _way(type_, inner[0])[0], f"{name}Source"))
        yield _message(f"{name}Source", *(_of_struct(type_, field) for field in inner))
    yield _message(name, *own)
    yield _message(rest_name(type_), *(_of_struct(type_, field) for field in other_fields(type_)))
    if "metadata" in fields(type_):
        items = _field("items", 2, name, many=True)
        yield _message(list_name(type_), _field("metadata", 1, LIST_META), items)


def _way(type_: type[msgspec.Struct], name: str) -> tuple[int, int]:
    """The number of the message in between, 0 if there is none, and the field's in it."""
    number = NUMBERS[type_][name]
    return number if isinstance(number, tuple) else (0, number or 0)


def _of_struct(type_: type[msgspec.Struct], name: str) -> FieldDescriptorProto:
    """A Struct's field, with its default where it is one value."""
    hint, number = fields(type_)[name], _way(type_, name)[1]
    if get_origin(hint) is dict and (type_, name) not in AS_JSON:
        return _field(name, number, TEXT_ENTRY if is_own_map(type_, name) else _BYTES, many=True)
    if get_origin(hint) is tuple:
        return _field(name, number, _kind(get_args(hint)[0]), many=True)
    made, default = _field(name, number, _kind(hint)), default_of(type_, name)
    if made.type == _TEXT:
        made.default_value = default if isinstance(default, str) else MISSING_TEXT
    elif made.type == _NUMBER:
        made.default_value = str(default if isinstance(default, int) else MISSING_NUMBER)
    elif made.type == _FLAG:
        made.default_value = str(bool(default)).lower()
    elif made.type == _BYTES:
        made.default_value = "\\000missing"  # MISSING_BYTES, as descriptors write it
    return made


@lru_cache(maxsize=1024)
def default_of(type_: type[msgspec.Struct], name: str) -> Any:
    """What a Struct's field holds when nothing is said; nothing for one that must be there, which then is empty."""
    found = _declared(type_)[name]
    if found.default_factory is not msgspec.NODEFAULT:
        return found.default_factory()
    return "" if found.default is msgspec.NODEFAULT else found.default


@lru_cache(maxsize=256)
def _declared(type_: type[msgspec.Struct]) -> Mapping[str, msgspec.structs.FieldInfo]:
    """A Struct's fields by name, as it declares them. Asked for once: their types are texts, which are compiled each time."""
    return {each.name: each for each in msgspec.structs.fields(type_)}


def _kind(hint: Any) -> int | str:
    if hint in OWN_STATE:
        return str(hint.__name__)
    simple: int = {str: _TEXT, int: _NUMBER, bool: _FLAG}.get(hint, _BYTES)
    return simple


def _message(name: str, *of: FieldDescriptorProto) -> DescriptorProto:
    return DescriptorProto(name=name, field=of)


def _field(name: str, number: int, kind: int | str, *, many: bool = False) -> FieldDescriptorProto:
    label = FieldDescriptorProto.LABEL_REPEATED if many else FieldDescriptorProto.LABEL_OPTIONAL
    made = FieldDescriptorProto(name=name, number=number, label=label)
    if isinstance(kind, str):
        made.type, made.type_name = _MESSAGE, f".{_PACKAGE}.{kind}"
    else:
        made.type = kind
    return made


def _present(hint: Any) -> Any:
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    there = tuple(one for one in get_args(hint) if one not in (types.NoneType, msgspec.UnsetType))
    return Union[there]  # noqa: UP007 - of any number
