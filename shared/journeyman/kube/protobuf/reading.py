"""Structs from messages. The values are those that msgspec reads from the same object's JSON.

Where Kubernetes writes JSON it leaves out what is empty; in messages it leaves out what is missing (a nil pointer), and
writes empty texts and zeros. Both end in the Struct's default, except where that is something else (`EMPTY_IS_MISSING`).
A message's fields have our Structs' defaults, so that one look says what each holds. Lists in messages are taken by a slice:
their iterators look each item up, and end with an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from functools import lru_cache, partial
from inspect import signature
from operator import attrgetter, itemgetter
from typing import Any, Final, Generic, TypeVar, Union, get_args, get_origin

import msgspec
from google.protobuf.message import DecodeError

from journeyman.kube.errors import Status
from journeyman.kube.protobuf import framing, messages
from journeyman.kube.protobuf.messages import MISSING_BYTES, MISSING_NUMBER, MISSING_TEXT
from journeyman.kube.protobuf.numbers import AS_JSON, EMPTY_IS_MISSING, NUMBERS, OWN_FIELDS, OWN_STATE

T = TypeVar("T")
Make = Callable[[Any], Any]

_MOST: Final = 4096  # values remembered, of each kind
_LONGEST: Final = 4096  # bytes, or entries, of one


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_ENTRY: Final = attrgetter("key", "value")
_SECONDS: Final = attrgetter("seconds", "nanos")


class Found(msgspec.Struct, Generic[T], frozen=True):
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
        self._made: dict[Any, Make] = {
            datetime: _remembered(messages.TIME, _time),
            Union[str, int]: _remembered(messages.NUMBER_OR_TEXT, _number_or_text),  # noqa: UP007 - not | in 3.10
        }
        self._text_entries = _remembered(messages.TEXT_ENTRY, _ENTRY)
        self._amount_entries = _remembered(messages.AMOUNT_ENTRY, attrgetter("key", "value.string"))
        self._read = self._struct(type_)

    def read(self, pieces: Iterable[bytes]) -> Found[T]:
        """A list, from an answer's body that comes in pieces, of which no more than one is held at a time.

        Raises:
            ValueError: It is no such answer, or it breaks off.
        """
        parse = messages.message_class(messages.list_name(self._type)).FromString
        metadata, items = messages.message_class(messages.LIST_META)(), list[T]()
        try:
            for part in map(parse, framing.parts(pieces)):
                metadata.MergeFrom(part.metadata)
                items.extend(map(self._read, part.items[:]))
        except (DecodeError, OverflowError) as error:  # the latter: of a time that no datetime can be
            raise ValueError(str(error)) from error
        return Found(resource_version=metadata.resource_version, continue_=metadata.continue_, items=items)

    def read_one(self, body: bytes) -> T:
        """What an answer holds that is no list. Raises ValueError: it is none, or it breaks off."""
        parse = messages.message_class(self._type.__name__).FromString
        try:
            found: T = self._read(parse(b"".join(framing.parts([body]))))
        except DecodeError as error:
            raise ValueError(str(error)) from error
        return found

    def _struct(self, type_: type) -> Make:
        """Makes a Struct of its message."""
        own, others = messages.own_fields(type_), messages.other_fields(type_)
        build = _builder(type_, own + others)
        if type_ not in OWN_FIELDS:
            return self._values(type_, own, build)
        rest_of = _remembered(messages.rest_name(type_), self._values(type_, others, tuple if own else build))
        known = tuple(field.name for field in messages.message_class(type_.__name__).DESCRIPTOR.fields)
        if not own:
            return lambda message: rest_of(_rest(message, known))
        values = self._values(type_, own, tuple)
        return lambda message: build(values(message) + rest_of(_rest(message, known)))

    def _values(self, type_: type[Any], names: tuple[str, ...], build: Make) -> Make:
        """Builds something of the values of those of a Struct's fields, in that order; they are in its message."""
        steps = [(at, make) for at, name in enumerate(names) if (make := self._step(type_, name)) is not None]
        looks = [f"{messages.SOURCE}.{name}" if isinstance(NUMBERS[type_][name], tuple) else name for name in names]
        look = attrgetter(*looks) if len(looks) > 1 else _only(looks[0])

        def made(message: Any) -> Any:
            values = [*look(message)]
            for at, make in steps:
                values[at] = make(values[at])
            return build(values)

        return made

    def _step(self, type_: type, name: str) -> Make | None:
        """Makes the field's value of what the message holds; None if it is that."""
        hint, raw = messages.fields(type_)[name], AS_JSON.get((type_, name))
        default = messages.default_of(type_, name)
        if get_origin(hint) is tuple:
            return self._list(raw or get_args(hint)[0], as_json=raw is not None)
        if messages.is_own_map(type_, name):
            return _texts
        if get_origin(hint) is dict and raw is None:
            entries = self._text_entries if get_args(hint)[1] is str else self._amount_entries
            return _unless_empty({}, Remembered(lambda listed: dict(map(entries, listed))))
        if hint in OWN_STATE:
            return self._struct(hint)
        if (type_, name) in EMPTY_IS_MISSING:
            return partial(_replaced, "", default)
        if hint in {str, int} and not isinstance(default, (str, int)):
            return partial(_replaced, MISSING_TEXT if hint is str else MISSING_NUMBER, default)
        if hint in {str, int, bool}:
            return None
        make = self._value(raw or hint, as_json=raw is not None)
        return make if default is None else partial(_unless_missing, default, make)

    def _list(self, type_: type[Any], *, as_json: bool) -> Make:
        if type_ is str:
            return tuple
        if type_ in OWN_STATE:
            make = self._struct(type_)
            return lambda listed: tuple(map(make, listed[:])) if listed else ()
        one = self._value(type_, as_json=as_json)
        return _unless_empty((), Remembered(lambda listed: tuple(map(one, listed))))

    def _value(self, type_: Any, *, as_json: bool = False) -> Make:
        """Makes a value of a message's bytes, of equal ones the same, where there are such."""
        if type_ not in self._made:
            make = self._struct(type_)
            self._made[type_] = (_parsed if type_ in OWN_FIELDS else _remembered)(type_.__name__, make)
        make = self._made[type_]
        return (lambda data: msgspec.json.decode(msgspec.json.encode(make(data)))) if as_json else make


def refusal(body: bytes) -> Status:
    """The Status in an answer. Raises ValueError: it is none."""
    return Reader(Status).read_one(body)


class Remembered(dict[Any, Any]):
    """What was made of something, made when it is first asked for.

    Args:
        make: Makes it. Equal things make equal ones, and nobody changes them.
    """

    def __init__(self, make: Make) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: Any) -> Any:
        made = self._make(key)
        if len(self) >= _MOST:
            self.clear()
        if len(key) <= _LONGEST:
            self[key] = made
        return made


def _parsed(name: str, make: Make) -> Make:
    """Makes something of the bytes of a message of that name, and nothing of a missing one."""
    parse = messages.message_class(name).FromString
    return lambda data: None if data == MISSING_BYTES else make(parse(data))


def _remembered(name: str, make: Make) -> Make:
    """The same, made once of equal bytes."""
    return Remembered(_parsed(name, make)).__getitem__


def _builder(type_: type[msgspec.Struct], names: tuple[str, ...]) -> Make:
    """Makes a Struct of the values of those fields, in the order of their names."""
    ordered = _by_position(type_)
    if set(names) != set(ordered):
        return lambda values: type_(**dict(zip(names, values)))  # noqa: B905 - one for each
    if names == ordered:
        return lambda values: type_(*values)
    order = itemgetter(*map(names.index, ordered))
    return lambda values: type_(*order(values))


@lru_cache(maxsize=256)
def _by_position(type_: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields that a Struct takes by position. Its signature is dear: it reads the hints of all."""
    return tuple(name for name, each in signature(type_).parameters.items() if each.kind is each.POSITIONAL_OR_KEYWORD)


def _rest(message: Any, known: tuple[str, ...]) -> bytes:
    """What a message holds besides the fields that its class knows; these are gone then."""
    clear = message.ClearField
    for name in known:
        clear(name)
    rest: bytes = message.SerializeToString()
    return rest


def _unless_empty(empty: Any, remembered: Remembered) -> Make:
    return lambda listed: remembered[tuple(listed[:])] if listed else empty


def _unless_missing(default: Any, make: Make, data: bytes) -> Any:
    return default if data == MISSING_BYTES else make(data)


def _replaced(missing: Any, default: Any, value: Any) -> Any:
    return default if value == missing else value


def _only(name: str) -> Make:
    return lambda message: (getattr(message, name),)


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
