"""Structs from message_classes. The values are those that msgspec reads from the same object's JSON.

Where Kubernetes writes JSON it leaves out what is empty; in messages it leaves out what is missing (a nil pointer), and
writes empty texts and zeros. Both end in the Struct's default, except where that is something else (`EMPTY_IS_MISSING`).
A message's fields have our Structs' defaults, so that one look says what each holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from inspect import signature
from operator import attrgetter, itemgetter
from typing import Any, Final, Generic, TypeVar, Union, get_args, get_origin

import msgspec
from google.protobuf.message import DecodeError

from journeyman.kube.api_errors import Status
from journeyman.kube.protobuf import framing, message_classes
from journeyman.kube.protobuf.columns import Column, MakeEach, Remembered, each, listed, replaced, unless, within
from journeyman.kube.protobuf.field_numbers import AS_JSON, EMPTY_IS_MISSING, NUMBERS, OWN_FIELDS, OWN_STATE
from journeyman.kube.protobuf.message_classes import MISSING_BYTES, MISSING_NUMBER, MISSING_TEXT

T = TypeVar("T")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_ENTRY: Final = attrgetter("key", "value")
_SECONDS: Final = attrgetter("seconds", "nanos")


class ProtobufList(msgspec.Struct, Generic[T], frozen=True):
    """A list that was read: what its metadata says, and the objects."""

    resource_version: str
    continue_: str
    items: list[T]


class Reader(Generic[T]):
    """Reads objects of one kind. One for each list: what is remembered is shared within it, and goes with it.

    Args:
        type_: The Struct.
    """

    def __init__(self, type_: type[T]) -> None:
        self._type = type_
        self._made: dict[Any, MakeEach] = {
            datetime: _remembered(message_classes.TIME, each(_time)),
            Union[str, int]: _remembered(message_classes.NUMBER_OR_TEXT, each(_number_or_text)),  # noqa: UP007 - not | in 3.10
        }
        self._text_entries = _remembered(message_classes.TEXT_ENTRY, each(_ENTRY))
        self._amount_entries = _remembered(message_classes.AMOUNT_ENTRY, each(attrgetter("key", "value.string")))
        self._read = self._struct(type_)

    def read(self, pieces: Iterable[bytes]) -> ProtobufList[T]:
        """A list, from an answer's body that comes in pieces, of which no more than one is held at a time.

        Raises:
            ValueError: It is no such answer, or it breaks off.
        """
        parse = message_classes.message_class(message_classes.list_name(self._type)).FromString
        metadata, items = message_classes.message_class(message_classes.LIST_META)(), list[T]()
        try:
            for part in map(parse, framing.parts(pieces)):
                metadata.MergeFrom(part.metadata)
                if found := part.items[:]:
                    items += self._read(found)
        except (DecodeError, OverflowError) as error:  # the latter: of a time that no datetime can be
            raise ValueError(str(error)) from error
        return ProtobufList(resource_version=metadata.resource_version, continue_=metadata.continue_, items=items)

    def read_one(self, body: bytes) -> T:
        """What an answer holds that is no list. Raises ValueError: it is none, or it breaks off."""
        parse = message_classes.message_class(self._type.__name__).FromString
        try:
            found: T = self._read([parse(b"".join(framing.parts([body])))])[0]
        except DecodeError as error:
            raise ValueError(str(error)) from error
        return found

    def _struct(self, type_: type) -> MakeEach:
        """Makes Structs of their message_classes."""
        own, others = message_classes.own_fields(type_), message_classes.other_fields(type_)
        build = _builder(type_, own + others)
        if not others:
            of_all = self._columns(type_, own)
            return lambda found: build(of_all(found))
        of_others, rests = self._columns(type_, others), _rests(type_)
        if not own:
            whole_of = _remembered(message_classes.rest_name(type_), lambda found: build(of_others(found)))
            return lambda found: whole_of(rests(found))
        of_own = self._columns(type_, own)
        rows_of = _remembered(message_classes.rest_name(type_), lambda found: [*zip(*of_others(found), strict=True)])
        return lambda found: build([*of_own(found), *zip(*rows_of(rests(found)), strict=True)])

    def _columns(self, type_: type[Any], names: tuple[str, ...]) -> Callable[[Column], list[Column]]:
        """Makes the columns of values of those of a Struct's fields, in that order; they are in its message_classes."""
        steps = [(at, make) for at, name in enumerate(names) if (make := self._step(type_, name)) is not None]
        look = _look(
            [f"{message_classes.SOURCE}.{name}" if isinstance(NUMBERS[type_][name], tuple) else name for name in names]
        )

        def made(found: Column) -> list[Column]:
            columns = look(found)
            for at, make in steps:
                columns[at] = make(columns[at])
            return columns

        return made

    def _step(self, type_: type, name: str) -> MakeEach | None:
        """Makes the field's values of what the messages hold; None if they are that."""
        hint, raw = message_classes.fields(type_)[name], AS_JSON.get((type_, name))
        default = message_classes.default_of(type_, name)
        if get_origin(hint) is tuple:
            return self._list(raw or get_args(hint)[0], as_json=raw is not None)
        if message_classes.is_own_map(type_, name):
            return each(_texts)
        if get_origin(hint) is dict and raw is None:
            entries = within(self._text_entries if get_args(hint)[1] is str else self._amount_entries)
            return listed(Remembered(lambda lists: [*map(dict, entries(lists))]))
        if hint in OWN_STATE:
            return self._struct(hint)
        if (type_, name) in EMPTY_IS_MISSING:
            return replaced("", default)
        if hint in {str, int} and not isinstance(default, (str, int)):
            return replaced(MISSING_TEXT if hint is str else MISSING_NUMBER, default)
        if hint in {str, int, bool}:
            return None
        make = self._value(raw or hint, as_json=raw is not None)
        return make if default is None else unless(MISSING_BYTES, default, make)

    def _list(self, type_: type[Any], *, as_json: bool) -> MakeEach:
        if type_ is str:
            return each(tuple)
        if type_ in OWN_STATE:
            return listed(within(self._struct(type_)))
        return listed(Remembered(within(self._value(type_, as_json=as_json))))

    def _value(self, type_: Any, *, as_json: bool = False) -> MakeEach:
        """Makes values of messages' bytes, of equal ones the same, where there are such."""
        if type_ not in self._made:
            made = _parsed if type_ in OWN_FIELDS else _remembered
            self._made[type_] = made(type_.__name__, self._struct(type_))
        make = self._made[type_]
        return (lambda datas: [*map(_plain, make(datas))]) if as_json else make


def refusal(body: bytes) -> Status:
    """The Status in an answer. Raises ValueError: it is none."""
    return Reader(Status).read_one(body)


def _remembered(name: str, make: MakeEach) -> MakeEach:
    """Makes something of the bytes of messages of that name, once of equal ones; nothing of missing ones."""
    return Remembered(_parsed(name, make), {MISSING_BYTES: None})


def _parsed(name: str, make: MakeEach) -> MakeEach:
    """Makes something of the bytes of messages of that name, of which none is missing."""
    parse = message_classes.message_class(name).FromString
    return lambda datas: make([*map(parse, datas)])


def _look(names: list[str]) -> Callable[[Column], list[Column]]:
    """Columns of what messages hold in those fields."""
    look = attrgetter(*names)
    if len(names) == 1:
        return lambda found: [[*map(look, found)]]
    return lambda found: [*zip(*map(look, found), strict=True)]


def _rests(type_: type[Any]) -> MakeEach:
    """What such messages hold besides the fields that their class knows, as bytes; these are gone then."""
    class_ = message_classes.message_class(type_.__name__)
    known, rest = tuple(field.name for field in class_.DESCRIPTOR.fields), class_.SerializeToString

    def taken(found: Column) -> Column:
        for message in found:
            clear = message.ClearField
            for name in known:
                clear(name)
        return [*map(rest, found)]

    return taken


def _builder(type_: type[msgspec.Struct], names: tuple[str, ...]) -> Callable[[list[Column]], Column]:
    """Makes Structs of the columns of those fields, in the order of their names."""
    ordered = _by_position(type_)
    if set(names) != set(ordered):
        return lambda columns: [type_(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]
    if names == ordered:
        return lambda columns: [*map(type_, *columns)]
    order = itemgetter(*map(names.index, ordered))
    return lambda columns: [*map(type_, *order(columns))]


@lru_cache(maxsize=256)
def _by_position(type_: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields that a Struct takes by position. Its signature is dear: it reads the hints of all."""
    return tuple(name for name, each in signature(type_).parameters.items() if each.kind is each.POSITIONAL_OR_KEYWORD)


def _plain(value: Any) -> Any:
    """As JSON has it."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _texts(entries: Any) -> dict[str, str]:
    return {entry.key: entry.value for entry in entries[:]}


def _time(message: Any) -> datetime | None:
    """A Time, or a MicroTime, which counts by the microsecond; an empty one is none."""
    seconds, nanos = _SECONDS(message)
    if seconds == MISSING_NUMBER:
        return None
    return _EPOCH + timedelta(0, seconds, nanos // 1000)


def _number_or_text(message: Any) -> int | str:
    found: int | str = message.text if message.type else message.number
    return found
