"""EC2's answers, read in half the time: what is there is gone through, not what might be.

An instance type has some forty members, most of them structures, and an answer names a few of each. botocore asks for
every one, for every type; a cold start reads a thousand types.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from botocore import parsers
from botocore.utils import parse_timestamp as guess

_Botocores: Any = parsers.EC2QueryParser  # typed as if it could do nothing but parse
_Reading = tuple[str, Any, Any]
"""A member's name, its shape, and what reads it."""
_BEYOND = ("location", "eventheader", "xmlAttribute", "flattened")  # EC2 has none of these; botocore knows them all


def with_fast_answers(session: Any) -> Any:
    """The botocore session, whose clients read EC2's answers so from now on, and times in all answers."""
    factory = _Factory()
    factory.set_parser_defaults(timestamp_parser=parse_timestamp)
    session.register_component("response_parser_factory", factory)
    return session


class _Factory(parsers.ResponseParserFactory):
    def create_parser(self, protocol_name: str) -> Any:
        parser = super().create_parser(protocol_name)
        return _Ec2Answers(timestamp_parser=parse_timestamp) if type(parser) is _Botocores else parser


class _Ec2Answers(_Botocores):  # type: ignore[misc]
    """What is not plain, and what is said twice, is left to botocore."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._readings: dict[Any, Mapping[str, _Reading] | None] = {}  # by shape

    def _handle_structure(self, shape: Any, node: Any) -> Any:
        if shape not in self._readings:
            self._readings[shape] = self._readings_of(shape)
        readings = self._readings[shape]
        if readings is None or isinstance(node, list):
            return super()._handle_structure(shape, node)
        parsed: dict[str, Any] = {}
        for child in node:
            reading = readings.get(child.tag.rpartition("}")[2])
            if reading is None:
                continue
            name, member, read = reading
            if name in parsed:
                return super()._handle_structure(shape, node)
            parsed[name] = read(member, child)
        return parsed

    def _readings_of(self, shape: Any) -> dict[str, _Reading] | None:
        """By the element's name; None if there is more to the structure than elements."""
        plain = not any(trait in member.serialization for member in shape.members.values() for trait in _BEYOND)
        if not plain or shape.is_tagged_union or shape.metadata.get("exception"):
            return None
        return {
            self._member_key_name(member, name): (
                name,
                member,
                getattr(self, f"_handle_{member.type_name}", self._default_handle),
            )
            for name, member in shape.members.items()
        }


def parse_timestamp(value: Any) -> datetime:
    """The time, aware.

    Args:
        value: As a response has it: RFC 3339 in UTC, or whatever else a protocol writes (seconds, RFC 822).

    Raises:
        ValueError: It is no time.
    """
    if isinstance(value, str) and value.endswith("Z"):
        try:
            return datetime.fromisoformat(f"{value[:-1]}+00:00")  # Python 3.10 does not know the Z
        except ValueError:
            pass  # more or fewer digits than it takes
    guessed: datetime = guess(value)
    return guessed
