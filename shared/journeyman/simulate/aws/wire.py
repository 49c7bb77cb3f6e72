"""Answers in EC2's XML, written straight from plain values: moto's own serializer takes seconds for long lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any
from xml.sax.saxutils import escape

from moto.core.utils import get_service_model

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
