"""Convert messages to Structs; they equal the Structs that msgspec decodes from the same objects' JSON.

JSON leaves out empty values; messages leave out missing ones (nil pointers), and contain empty texts and zeros. Both become the
Struct's default, except where that is another value (`EMPTY_IS_MISSING`). A message's fields have the Structs' defaults.

Values are converted a column at a time: one field of many messages, then one field of their Structs. So Python's built-in functions,
which are C, iterate over objects, and our own only over fields. A converter (`ConvertColumn`) takes a column that is not empty, and
returns one of the same length in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from inspect import signature
from itertools import chain, islice
from operator import attrgetter, itemgetter
from typing import Any, Final, Generic, TypeVar, Union, get_args, get_origin

import msgspec
from google.protobuf.message import DecodeError

from journeyman.core.api.labels import READ_ANNOTATIONS
from journeyman.kube.protobuf import framing, message_classes
from journeyman.kube.protobuf.field_numbers import AS_JSON, EMPTY_IS_MISSING, NUMBERS, UNSHARED_FIELDS, UNSHARED_TYPES
from journeyman.kube.protobuf.message_classes import MISSING_BYTES, MISSING_NUMBER, MISSING_TEXT
from journeyman.kube.transport import MAX_ITEMS, check_count

Convert = Callable[[Any], Any]
Column = Sequence[Any]
ConvertColumn = Callable[[Column], Column]

_MAX_VALUES: Final = 4096  # cached by one converter, beyond those of the last column
_MAX_KEY_LENGTH: Final = 4096  # bytes, or entries


class CachedConverter:
    """A converter that returns the same value for equal keys.

    All keys of a column that are not cached are converted together, as one column.

    Args:
        convert: Converts keys to immutable values.
        preset: Values that are never converted.
    """

    def __init__(self, convert: ConvertColumn, preset: Mapping[Any, Any] | None = None) -> None:
        self._convert = convert
        self._preset = preset or {}
        self._cache = {**self._preset}

    def __call__(self, keys: Sequence[Hashable]) -> Column:
        """Return the values of bytes or tuples."""
        cache = self._cache
        try:
            return [*map(cache.__getitem__, keys)]
        except KeyError:  # rare; checking first would double the time
            new = [*set(keys).difference(cache)]
        cache.update(zip(new, self._convert(new), strict=True))
        values = [*map(cache.__getitem__, keys)]
        self._evict(new)
        return values

    def _evict(self, new: Column) -> None:
        """Drop long keys, and everything once there are too many."""
        for key in new:
            if len(key) > _MAX_KEY_LENGTH:
                del self._cache[key]
        if len(self._cache) > _MAX_VALUES:
            self._cache = {**self._preset}


def each(convert: Convert) -> ConvertColumn:
    """Return a converter that converts one value after the other."""
    return lambda column: [*map(convert, column)]


def within(convert: ConvertColumn) -> ConvertColumn:
    """Return a converter of tuples; `convert` gets the items of all tuples as one column."""

    def converted(column: Column) -> Column:
        together = [*chain.from_iterable(column)]
        if not together:
            return column
        values = convert(together)
        if len(column) == 1:
            return [tuple(values)]
        following = iter(values)
        return [tuple(islice(following, len(items))) for items in column]

    return converted


def listed(convert: ConvertColumn) -> ConvertColumn:
    """Return a converter of lists in messages, which `convert` gets as tuples. A slice is faster than the lists' iterators."""
    return lambda column: convert([tuple(found[:]) if found else () for found in column])


def replaced(old: Any, new: Any) -> ConvertColumn:
    """Return a converter that replaces one value and keeps all others."""
    return lambda column: [new if value == old else value for value in column]


def unless(missing: Any, default: Any, convert: ConvertColumn) -> ConvertColumn:
    """Return a converter that returns `default` for `missing`, and what `convert` returns for all other values."""
    return lambda column: [
        default if value == missing else converted for value, converted in zip(column, convert(column), strict=True)
    ]


T = TypeVar("T")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_ENTRY: Final = attrgetter("key", "value")
_SECONDS: Final = attrgetter("seconds", "nanos")


class ProtobufList(msgspec.Struct, Generic[T], frozen=True):
    """A list: its metadata, and the objects."""

    resource_version: str
    continue_: str
    items: list[T]


class Reader(Generic[T]):
    """Reads objects of one kind. Values are cached for one reader, so use one for each list.

    Args:
        type_: The objects' Struct.
        max_items: The most objects of a list.
    """

    def __init__(self, type_: type[T], *, max_items: int = MAX_ITEMS) -> None:
        self._max_items = max_items
        self._type = type_
        self._converters: dict[Any, ConvertColumn] = {
            datetime: _cached(message_classes.TIME, each(_time)),
            Union[str, int]: _cached(message_classes.NUMBER_OR_TEXT, each(_number_or_text)),  # noqa: UP007 - not | in 3.10
        }
        self._text_entries = _cached(message_classes.TEXT_ENTRY, each(_ENTRY))
        self._amount_entries = _cached(message_classes.AMOUNT_ENTRY, each(attrgetter("key", "value.string")))
        self._read = self._struct(type_)

    def read(self, pieces: Iterable[bytes]) -> ProtobufList[T]:
        """Return a list from the pieces of a response's body, of which it holds one at a time.

        Raises:
            ValueError: The response is not such a list, or ends too early.
            ResponseTooLargeError: It has more objects than `max_items`.
        """
        parse = message_classes.message_class(message_classes.list_name(self._type)).FromString
        metadata, items = message_classes.message_class(message_classes.LIST_META)(), list[T]()
        try:
            for part in map(parse, framing.parts(pieces)):
                metadata.MergeFrom(part.metadata)
                if found := part.items[:]:
                    items += self._read(found)
                check_count(len(items), self._type.__name__, self._max_items)
        except (DecodeError, OverflowError) as error:  # OverflowError: a time beyond datetime's range
            raise ValueError(str(error)) from error
        return ProtobufList(resource_version=metadata.resource_version, continue_=metadata.continue_, items=items)

    def read_one(self, body: bytes) -> T:
        """Return the object in a response. Raises ValueError if there is none, or the response ends too early."""
        parse = message_classes.message_class(self._type.__name__).FromString
        try:
            found: T = self._read([parse(b"".join(framing.parts([body])))])[0]
        except DecodeError as error:
            raise ValueError(str(error)) from error
        return found

    def _read_annotations(self, entries: Any) -> dict[str, str]:
        read = READ_ANNOTATIONS.get(self._type.__name__)
        return {entry.key: entry.value for entry in entries[:] if read is None or entry.key in read}

    def _struct(self, type_: type) -> ConvertColumn:
        """Return a converter from messages to Structs."""
        unshared, shared = message_classes.unshared_fields(type_), message_classes.shared_fields(type_)
        build = _builder(type_, unshared + shared)
        if not shared:
            all_columns = self._columns(type_, unshared)
            return lambda found: build(all_columns(found))
        shared_columns, shared_bytes = self._columns(type_, shared), _shared_bytes(type_)
        if not unshared:
            cached_structs = _cached(message_classes.shared_name(type_), lambda found: build(shared_columns(found)))
            return lambda found: cached_structs(shared_bytes(found))
        unshared_columns = self._columns(type_, unshared)
        cached_rows = _cached(
            message_classes.shared_name(type_), lambda found: [*zip(*shared_columns(found), strict=True)]
        )
        return lambda found: build([*unshared_columns(found), *zip(*cached_rows(shared_bytes(found)), strict=True)])

    def _columns(self, type_: type[Any], names: tuple[str, ...]) -> Callable[[Column], list[Column]]:
        """Return a function from messages to the columns of these fields of their Structs, in that order."""
        converters = [
            (i, converter) for i, name in enumerate(names) if (converter := self._field(type_, name)) is not None
        ]
        get_columns = _getter(
            [f"{message_classes.SOURCE}.{name}" if isinstance(NUMBERS[type_][name], tuple) else name for name in names]
        )

        def convert(found: Column) -> list[Column]:
            columns = get_columns(found)
            for i, converter in converters:
                columns[i] = converter(columns[i])
            return columns

        return convert

    def _field(self, type_: type, name: str) -> ConvertColumn | None:
        """Return the converter for a field's values; None if they need no conversion."""
        hint, raw = message_classes.fields(type_)[name], AS_JSON.get((type_, name))
        default = message_classes.default_of(type_, name)
        if get_origin(hint) is tuple:
            return self._list(raw or get_args(hint)[0], as_json=raw is not None)
        if message_classes.is_unshared_map(type_, name):
            return each(self._read_annotations if name == "annotations" else _texts)
        if get_origin(hint) is dict and raw is None:
            entries = within(self._text_entries if get_args(hint)[1] is str else self._amount_entries)
            return listed(CachedConverter(lambda lists: [*map(dict, entries(lists))]))
        if hint in UNSHARED_TYPES:
            return self._struct(hint)
        if (type_, name) in EMPTY_IS_MISSING:
            return replaced("", default)
        if hint in {str, int} and not isinstance(default, (str, int)):
            return replaced(MISSING_TEXT if hint is str else MISSING_NUMBER, default)
        if hint in {str, int, bool}:
            return None
        convert = self._value(raw or hint, as_json=raw is not None)
        return convert if default is None else unless(MISSING_BYTES, default, convert)

    def _list(self, type_: type[Any], *, as_json: bool) -> ConvertColumn:
        if type_ is str:
            return each(tuple)
        if type_ in UNSHARED_TYPES:
            return listed(within(self._struct(type_)))
        return listed(CachedConverter(within(self._value(type_, as_json=as_json))))

    def _value(self, type_: Any, *, as_json: bool = False) -> ConvertColumn:
        """Return a converter from messages' bytes to values; equal bytes share a value, if they are often equal."""
        if type_ not in self._converters:
            converter = _parsed if type_ in UNSHARED_FIELDS else _cached
            self._converters[type_] = converter(type_.__name__, self._struct(type_))
        convert = self._converters[type_]
        return (lambda column: [*map(_plain, convert(column))]) if as_json else convert


def _cached(name: str, convert: ConvertColumn) -> ConvertColumn:
    """Return a caching converter from the bytes of messages of that name; missing ones become None."""
    return CachedConverter(_parsed(name, convert), {MISSING_BYTES: None})


def _parsed(name: str, convert: ConvertColumn) -> ConvertColumn:
    """Return a converter from the bytes of messages of that name, none of which is missing."""
    parse = message_classes.message_class(name).FromString
    return lambda column: convert([*map(parse, column)])


def _getter(names: list[str]) -> Callable[[Column], list[Column]]:
    """Return a function from messages to the columns of these fields."""
    get_columns = attrgetter(*names)
    if len(names) == 1:
        return lambda found: [[*map(get_columns, found)]]
    return lambda found: [*zip(*map(get_columns, found), strict=True)]


def _shared_bytes(type_: type[Any]) -> ConvertColumn:
    """Return a function that clears the declared fields of messages, and returns their shared fields as bytes."""
    class_ = message_classes.message_class(type_.__name__)
    declared, serialize = tuple(field.name for field in class_.DESCRIPTOR.fields), class_.SerializeToString

    def serialize_shared(found: Column) -> Column:
        for message in found:
            clear = message.ClearField
            for name in declared:
                clear(name)
        return [*map(serialize, found)]

    return serialize_shared


def _builder(type_: type[msgspec.Struct], names: tuple[str, ...]) -> Callable[[list[Column]], Column]:
    """Return a function from the columns of these fields to Structs."""
    ordered = _by_position(type_)
    if set(names) != set(ordered):
        return lambda columns: [type_(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]
    if names == ordered:
        return lambda columns: [*map(type_, *columns)]
    order = itemgetter(*map(names.index, ordered))
    return lambda columns: [*map(type_, *order(columns))]


@lru_cache(maxsize=256)
def _by_position(type_: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the fields that a Struct takes by position. Cached, because `signature` evaluates all annotations."""
    return tuple(name for name, each in signature(type_).parameters.items() if each.kind is each.POSITIONAL_OR_KEYWORD)


def _plain(value: Any) -> Any:
    """Return the value as JSON has it."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _texts(entries: Any) -> dict[str, str]:
    return {entry.key: entry.value for entry in entries[:]}


def _time(message: Any) -> datetime | None:
    """Return a Time or MicroTime; None for an empty one."""
    seconds, nanos = _SECONDS(message)
    if seconds == MISSING_NUMBER:
        return None
    return _EPOCH + timedelta(0, seconds, nanos // 1000)


def _number_or_text(message: Any) -> int | str:
    found: int | str = message.text if message.type else message.number
    return found
