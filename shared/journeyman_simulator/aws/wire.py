"""Reading and writing EC2's wire format where moto takes seconds: long requests, long lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any
from xml.sax.saxutils import escape

from moto.core.parse import QueryParser
from moto.core.utils import get_service_model

from journeyman_simulator.aws.patching import Patch

_NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
_REQUEST_ID = "59dbff89-35bd-4eac-99ed-be587EXAMPLE"  # the one in EC2's documentation; nobody reads it


def ec2_answer(operation: str, result: Mapping[str, Any]) -> str:
    """The body of a successful EC2 response.

    Args:
        operation: As "DescribeInstanceTypes".
        result: Its output by the names boto3 uses; what EC2 does not know is left out.
    """
    shape = get_service_model("ec2").operation_model(operation).output_shape
    body = "".join(_written(shape, result))
    return (
        f'<?xml version="1.0" encoding="UTF-8"?><{operation}Response xmlns="{_NAMESPACE}">'
        f"<requestId>{_REQUEST_ID}</requestId>{body}</{operation}Response>"
    )


def _written(shape: Any, value: Any) -> Iterator[str]:
    if shape.type_name == "structure":
        for name, member in shape.members.items():
            if (inner := value.get(name)) is not None:
                tag = member.serialization.get("name", name)
                yield f"<{tag}>{''.join(_written(member, inner))}</{tag}>"
    elif shape.type_name == "list":
        tag = shape.member.serialization.get("name", "member")
        for item in value:
            yield f"<{tag}>{''.join(_written(shape.member, item))}</{tag}>"
    else:
        yield _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return escape(str(value))


def patches() -> tuple[Patch, ...]:
    """Moto's query parser asks for every structure whether any parameter begins with its name, one after the other."""
    reason = "a CreateFleet of hundreds of overrides is read in milliseconds, not in half a second"
    return (
        Patch(owner=QueryParser, name="_do_parse", replace=_remembering_prefixes, reason=reason),
        Patch(owner=QueryParser, name="_gonna_recurse", replace=lambda _: _is_absent, reason=reason),
    )


def _remembering_prefixes(original: Callable[..., Any]) -> Callable[..., Any]:
    def parse(parser: Any, request_dict: Mapping[str, Any], shape: Any) -> Any:
        values = dict(request_dict["values"].items())
        parser.dotted_prefixes = {
            name[:end] for name in values for end in (*_dots(name), len(name))
        }  # a parser serves one request
        return original(parser, {**request_dict, "values": values}, shape)

    return parse


def _dots(name: str) -> Iterator[int]:
    return (index for index, character in enumerate(name) if character == ".")


def _is_absent(parser: Any, query_params: Mapping[str, Any], prefix: str) -> bool:
    return prefix != "" and prefix not in parser.dotted_prefixes
