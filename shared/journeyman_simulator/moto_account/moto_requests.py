"""Passes requests to moto through the gate and in virtual time, and parses large requests faster than moto."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any
from xml.sax.saxutils import escape

from moto.core import utils
from moto.core.exceptions import ServiceException
from moto.core.parse import QueryParser
from moto.core.responses import ActionResult, BaseResponse
from moto.core.utils import get_service_model
from moto.ec2.models import amis, elastic_block_store, fleets, instances, key_pairs, launch_templates, vpcs
from moto.eks import models as eks
from moto.scheduler import models as scheduler
from moto.sqs import models as sqs
from moto.sts import models as sts

from journeyman_simulator.cloud_rules.service_errors import BAD_REQUEST, HTTP_STATUS, RequestGate
from journeyman_simulator.cloud_rules.service_time import ServiceTime
from journeyman_simulator.moto_account.moto_extensions import MotoExtension


class _SimulatedFailure(ServiceException):
    """An injected error of any service. Its class is outside moto, so that moto does not derive the service from it."""


def gate_extensions(gate: RequestGate) -> tuple[MotoExtension, ...]:
    """Return the extension that passes every request through the gate."""

    def replace(original: Callable[[BaseResponse], Any]) -> Callable[[BaseResponse], Any]:
        def call_action(response: BaseResponse) -> Any:
            with gate.lock:
                gate.before()
                return _injected_failure(gate, response) or original(response)

        return call_action

    return (
        MotoExtension(
            owner=BaseResponse,
            name="call_action",
            replace=replace,
            reason="runs one request at a time, on current state, and fails the requests that a scenario selects",
        ),
    )


def _injected_failure(gate: RequestGate, response: BaseResponse) -> tuple[int, dict[str, str], Any] | None:
    operation = response._get_action()  # noqa: SLF001 - moto has no public way
    error = gate.injected_error(operation)
    if error is None:
        return None
    _, headers, body = response.serialized(ActionResult(_SimulatedFailure(error.code, error.message)))
    status = HTTP_STATUS.get(error.code, BAD_REQUEST)
    return status, {**headers, "status": str(status)}, body


def time_extensions(time: ServiceTime) -> tuple[MotoExtension, ...]:
    """Return extensions that replace the two functions by which moto's modules read the time."""

    def utcnow() -> datetime:
        return time.now().replace(tzinfo=None)

    def unix_time_millis(dt: datetime | None = None) -> int:
        return time.milliseconds() if dt is None else int(utils.unix_time(dt) * 1000)

    readers = (
        utils,
        amis,
        elastic_block_store,
        fleets,
        instances,
        key_pairs,
        launch_templates,
        vpcs,
        eks,
        scheduler,
        sts,
    )
    return (
        *(
            MotoExtension(owner=module, name="utcnow", replace=lambda _: utcnow, reason="reads the virtual clock")
            for module in readers
        ),
        MotoExtension(
            owner=sqs,
            name="unix_time_millis",
            replace=lambda _: unix_time_millis,
            reason="returns whole milliseconds, so that a deadline computed from one is met exactly",
        ),
    )


_NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
_REQUEST_ID = "59dbff89-35bd-4eac-99ed-be587EXAMPLE"  # from EC2's documentation; no code reads it


def ec2_response(operation: str, result: Mapping[str, Any]) -> str:
    """Return the body of a successful EC2 response.

    Args:
        operation: The operation, such as "DescribeInstanceTypes".
        result: The output with boto3's names; names that EC2's model lacks are left out.
    """
    shape = get_service_model("ec2").operation_model(operation).output_shape
    body = "".join(_xml(shape, result))
    return (
        f'<?xml version="1.0" encoding="UTF-8"?><{operation}Response xmlns="{_NAMESPACE}">'
        f"<requestId>{_REQUEST_ID}</requestId>{body}</{operation}Response>"
    )


def _xml(shape: Any, value: Any) -> Iterator[str]:
    if shape.type_name == "structure":
        for name, member in shape.members.items():
            if (inner := value.get(name)) is not None:
                tag = member.serialization.get("name", name)
                yield f"<{tag}>{''.join(_xml(member, inner))}</{tag}>"
    elif shape.type_name == "list":
        tag = shape.member.serialization.get("name", "member")
        for item in value:
            yield f"<{tag}>{''.join(_xml(shape.member, item))}</{tag}>"
    else:
        yield _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return escape(str(value))


def wire_extensions() -> tuple[MotoExtension, ...]:
    """Return extensions with a faster query parser; moto compares each structure's name with every parameter."""
    reason = "parses a CreateFleet with hundreds of overrides in milliseconds, not in half a second"
    return (
        MotoExtension(owner=QueryParser, name="_do_parse", replace=_with_cached_prefixes, reason=reason),
        MotoExtension(owner=QueryParser, name="_gonna_recurse", replace=lambda _: _is_absent, reason=reason),
    )


def _with_cached_prefixes(original: Callable[..., Any]) -> Callable[..., Any]:
    def parse(parser: Any, request_dict: Mapping[str, Any], shape: Any) -> Any:
        values = dict(request_dict["values"].items())
        parser.dotted_prefixes = {
            name[:end] for name in values for end in (*_dots(name), len(name))
        }  # each request has its own parser
        return original(parser, {**request_dict, "values": values}, shape)

    return parse


def _dots(name: str) -> Iterator[int]:
    return (index for index, character in enumerate(name) if character == ".")


def _is_absent(parser: Any, query_params: Mapping[str, Any], prefix: str) -> bool:
    return prefix != "" and prefix not in parser.dotted_prefixes
