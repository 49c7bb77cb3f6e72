"""Create message classes for our Structs, with the fields that the Structs have; protobuf's C parser fills them.

A message that many objects share is declared as bytes in its parent message, which is the same on the wire, so that equal ones
are parsed once. Entries of maps are declared as a list, which keeps their order, the order of the JSON.
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

from journeyman.kube.protobuf.field_numbers import AS_JSON, NUMBERS, UNREAD, UNSHARED_FIELDS, UNSHARED_TYPES

MISSING_TEXT: Final = "\0missing"
MISSING_BYTES: Final = b"\0missing"  # begins with a field number that no message can have
MISSING_NUMBER: Final = -(2**63)
TEXT_ENTRY: Final = "TextEntry"
AMOUNT_ENTRY: Final = "AmountEntry"
TIME: Final = "Time"
NUMBER_OR_TEXT: Final = "IntOrString"
LIST_META: Final = "ListMeta"
SOURCE: Final = "source"
"""The field of an intermediate message, whose fields belong to the Struct of the outer one."""

UNREAD_FIELD: Final = "unread_"
"""Prefix of fields that are declared only to be cleared."""

_PACKAGE: Final = "journeyman"
_TEXT, _BYTES, _NUMBER, _FLAG, _MESSAGE = (
    FieldDescriptorProto.TYPE_STRING,
    FieldDescriptorProto.TYPE_BYTES,
    FieldDescriptorProto.TYPE_INT64,  # int32 has the same encoding
    FieldDescriptorProto.TYPE_BOOL,
    FieldDescriptorProto.TYPE_MESSAGE,
)


@lru_cache(maxsize=256)
def fields(type_: type[msgspec.Struct]) -> Mapping[str, Any]:
    """Return the types of a Struct's fields without None, except fields that only custom resources have."""
    numbers = NUMBERS[type_]
    return {name: _without_none(each.type) for name, each in _declared(type_).items() if numbers[name] is not None}


@lru_cache(maxsize=256)
def unshared_fields(type_: type) -> tuple[str, ...]:
    """Return the fields of a Struct's own message: all but its shared fields."""
    unshared = UNSHARED_FIELDS.get(type_)
    return tuple(name for name in fields(type_) if unshared is None or name in unshared)


@lru_cache(maxsize=256)
def shared_fields(type_: type) -> tuple[str, ...]:
    """Return a Struct's shared fields, which have a message of their own."""
    unshared = unshared_fields(type_)
    return tuple(name for name in fields(type_) if name not in unshared)


def is_unshared_map(type_: type, name: str) -> bool:
    """Return whether a map to texts differs between objects as a rule, so that its entries are not worth caching."""
    return type_ in UNSHARED_FIELDS and name in UNSHARED_FIELDS[type_] and fields(type_)[name] == dict[str, str]


def shared_name(type_: type) -> str:
    """Return the name of the message of a Struct's shared fields."""
    return f"{type_.__name__}Shared"


@lru_cache(maxsize=256)
def message_class(name: str) -> Any:
    """Return the class of messages of that name: a Struct's, one of those above, or `list_name` of a Struct."""
    return GetMessageClass(_pool().FindMessageTypeByName(f"{_PACKAGE}.{name}"))


def list_name(type_: type) -> str:
    """Return the name of the message of a list of such objects."""
    return f"{type_.__name__}List"


@lru_cache(maxsize=1)
def _pool() -> DescriptorPool:
    file = FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="editions", edition=EDITION_2023)
    file.message_type.extend([*_common_messages(), *(message for type_ in NUMBERS for message in _messages(type_))])
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool


def _common_messages() -> Iterator[DescriptorProto]:
    yield _message(TEXT_ENTRY, _field("key", 1, _TEXT), _field("value", 2, _TEXT))
    yield _message(AMOUNT_ENTRY, _field("key", 1, _TEXT), _field("value", 2, "Quantity"))
    yield _message("Quantity", _field("string", 1, _TEXT))
    seconds = _field("seconds", 1, _NUMBER)
    seconds.default_value = str(MISSING_NUMBER)
    yield _message(TIME, seconds, _field("nanos", 2, _NUMBER))
    yield _message(NUMBER_OR_TEXT, _field("type", 1, _NUMBER), _field("number", 2, _NUMBER), _field("text", 3, _TEXT))
    yield _message(LIST_META, _field("resource_version", 2, _TEXT), _field("continue_", 3, _TEXT))


def _messages(type_: type[msgspec.Struct]) -> Iterator[DescriptorProto]:
    """Yield a Struct's message, that of its shared fields, the intermediate one of some fields, and for objects the list's."""
    name, inlined = type_.__name__, [field for field in fields(type_) if isinstance(NUMBERS[type_][field], tuple)]
    own_fields = [_struct_field(type_, field) for field in unshared_fields(type_) if field not in inlined]
    own_fields += [_field(f"{UNREAD_FIELD}{number}", number, _BYTES, many=True) for number in UNREAD.get(type_, ())]
    if inlined:
        own_fields.append(_field(SOURCE, _numbers(type_, inlined[0])[0], f"{name}Source"))
        yield _message(f"{name}Source", *(_struct_field(type_, field) for field in inlined))
    yield _message(name, *own_fields)
    yield _message(shared_name(type_), *(_struct_field(type_, field) for field in shared_fields(type_)))
    if "metadata" in fields(type_):
        items = _field("items", 2, name, many=True)
        yield _message(list_name(type_), _field("metadata", 1, LIST_META), items)


def _numbers(type_: type[msgspec.Struct], name: str) -> tuple[int, int]:
    """Return the number of the intermediate message, 0 without one, and the field's number in it."""
    number = NUMBERS[type_][name]
    return number if isinstance(number, tuple) else (0, number or 0)


def _struct_field(type_: type[msgspec.Struct], name: str) -> FieldDescriptorProto:
    """Return the declaration of a Struct's field, with its default if it is one value."""
    hint, number = fields(type_)[name], _numbers(type_, name)[1]
    if get_origin(hint) is dict and (type_, name) not in AS_JSON:
        return _field(name, number, TEXT_ENTRY if is_unshared_map(type_, name) else _BYTES, many=True)
    if get_origin(hint) is tuple:
        return _field(name, number, _kind(get_args(hint)[0]), many=True)
    descriptor, default = _field(name, number, _kind(hint)), default_of(type_, name)
    if descriptor.type == _TEXT:
        descriptor.default_value = default if isinstance(default, str) else MISSING_TEXT
    elif descriptor.type == _NUMBER:
        descriptor.default_value = str(default if isinstance(default, int) else MISSING_NUMBER)
    elif descriptor.type == _FLAG:
        descriptor.default_value = str(bool(default)).lower()
    elif descriptor.type == _BYTES:
        descriptor.default_value = "\\000missing"  # MISSING_BYTES, escaped
    return descriptor


@lru_cache(maxsize=1024)
def default_of(type_: type[msgspec.Struct], name: str) -> Any:
    """Return the default of a Struct's field; an empty text for a required one."""
    found = _declared(type_)[name]
    if found.default_factory is not msgspec.NODEFAULT:
        return found.default_factory()
    return "" if found.default is msgspec.NODEFAULT else found.default


@lru_cache(maxsize=256)
def _declared(type_: type[msgspec.Struct]) -> Mapping[str, msgspec.structs.FieldInfo]:
    """Return a Struct's fields by name. Cached, because msgspec evaluates their annotations each time."""
    return {each.name: each for each in msgspec.structs.fields(type_)}


def _kind(hint: Any) -> int | str:
    if hint in UNSHARED_TYPES:
        return str(hint.__name__)
    simple: int = {str: _TEXT, int: _NUMBER, bool: _FLAG}.get(hint, _BYTES)
    return simple


def _message(name: str, *declared: FieldDescriptorProto) -> DescriptorProto:
    return DescriptorProto(name=name, field=declared)


def _field(name: str, number: int, kind: int | str, *, many: bool = False) -> FieldDescriptorProto:
    label = FieldDescriptorProto.LABEL_REPEATED if many else FieldDescriptorProto.LABEL_OPTIONAL
    descriptor = FieldDescriptorProto(name=name, number=number, label=label)
    if isinstance(kind, str):
        descriptor.type, descriptor.type_name = _MESSAGE, f".{_PACKAGE}.{kind}"
    else:
        descriptor.type = kind
    return descriptor


def _without_none(hint: Any) -> Any:
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    present = tuple(option for option in get_args(hint) if option not in (types.NoneType, msgspec.UnsetType))
    return Union[present]  # noqa: UP007 - of any number
