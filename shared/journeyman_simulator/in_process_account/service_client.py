"""Implements clients with boto3's interface: operations, filters, pages, paginators and botocore's errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, TypeVar, cast

from botocore.exceptions import ClientError, ParamValidationError
from msgspec import Struct

from journeyman_simulator.cloud_rules.fleet_allocation import tags_by_resource
from journeyman_simulator.cloud_rules.service_errors import (
    BAD_REQUEST,
    HTTP_STATUS,
    NotSimulatedError,
    RequestGate,
    ServiceError,
)
from journeyman_simulator.cloud_rules.service_time import ServiceTime

T = TypeVar("T")
JSON = Mapping[str, Any]
Readers = Mapping[str, Callable[[T], Iterable[str]]]
"""Functions by filter name, which return an item's values for the filter."""


class ServiceRequest(Struct, frozen=True, kw_only=True):
    """A request. Eventually consistent reads return the account's state at `as_of`."""

    operation: str
    parameters: JSON
    as_of: datetime

    def __getitem__(self, name: str) -> Any:
        return self.parameters[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return a parameter, or the default if the request lacks it."""
        return self.parameters.get(name, default)

    def tags(self, resource_type: str) -> dict[str, str]:
        """Return the tags in TagSpecifications for a type of resource."""
        return tags_by_resource(self.get("TagSpecifications") or ()).get(resource_type, {})


class ServiceOperation(NamedTuple):
    """An operation with its required and optional parameters."""

    run: Callable[[ServiceRequest], JSON]
    requires: tuple[str, ...] = ()
    accepts: tuple[str, ...] = ()


ServiceOperations = Mapping[str, ServiceOperation]
"""Operations by AWS's name."""

PAGING = ("MaxResults", "NextToken")


def selected(items: Iterable[T], filters: Sequence[JSON], readers: Readers[T]) -> list[T]:
    """Return the items that match every filter by any of its values, which may contain the wildcards `*` and `?`.

    Raises:
        NotSimulatedError: The simulation does not support a filter.
    """
    found = list(items)
    for wanted in filters:
        read = _reader(wanted["Name"], readers)
        matches = _matcher(wanted["Values"])
        found = [item for item in found if any(map(matches, read(item)))]
    return found


def _reader(name: str, readers: Readers[T]) -> Callable[[T], Iterable[str]]:
    if name in readers:
        return readers[name]
    if name.startswith("tag:") and "tag" in readers:
        prefix = f"{name.removeprefix('tag:')}="
        return lambda item: [pair[len(prefix) :] for pair in readers["tag"](item) if pair.startswith(prefix)]
    if name == "tag-key" and "tag" in readers:
        return lambda item: [pair.partition("=")[0] for pair in readers["tag"](item)]
    raise NotSimulatedError(f"the simulation does not support the filter {name!r}, only {', '.join(sorted(readers))}")


def tag_pairs(tags: Mapping[str, str]) -> list[str]:
    """Return tags as "key=value", as required of a reader named "tag"."""
    return [f"{key}={value}" for key, value in tags.items()]


def _matcher(values: Sequence[str]) -> Callable[[str], bool]:
    if not any("*" in value or "?" in value for value in values):
        return frozenset(values).__contains__
    wild = "|".join(re.escape(value).replace(r"\*", ".*").replace(r"\?", ".") for value in values)
    pattern = re.compile(wild, re.DOTALL)
    return lambda text: pattern.fullmatch(text) is not None


def paged(key: str, items: Sequence[Any], request: ServiceRequest, max_page_size: int = 1000) -> dict[str, Any]:
    """Return a response with the requested page of items under the key."""
    start = int(request.get("NextToken") or 0)
    end = start + min(int(request.get("MaxResults") or max_page_size), max_page_size)
    response: dict[str, Any] = {key: list(items[start:end])}
    if end < len(items):
        response["NextToken"] = str(end)
    return response


def to_pairs(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return tags as in EC2's responses."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


# the errors of this account that botocore's "standard" retry mode retries
_RETRIED: Final = frozenset(
    {
        *("InternalError", "InternalFailure", "ServiceUnavailable", "RequestLimitExceeded"),
        *("Throttling", "ThrottlingException", "RequestThrottled", "TooManyRequestsException", "SlowDown"),
    }
)
_NOW: Final = timedelta(0)


def operation_of(method: str) -> str:
    """Return AWS's name of a client method's operation: "DescribeInstances" for "describe_instances"."""
    return "".join(part.title() for part in method.split("_"))


class SimulatedClient:
    """A client of one service. Requests pass the gate one at a time and see the account's current state.

    Args:
        service: boto3's name of the service.
        operations: The supported operations.
        gate: Counts requests, and injects the failures of a scenario.
        time: The account's time.
        max_attempts: The number of attempts, including the first; retries of failures that botocore would retry do not
            wait.
        lag: The age of the state that eventually consistent reads return.
    """

    def __init__(
        self,
        service: str,
        operations: ServiceOperations,
        gate: RequestGate,
        time: ServiceTime,
        *,
        max_attempts: int = 1,
        lag: timedelta = _NOW,
    ) -> None:
        self.service = service
        self._operations = operations
        self._gate = gate
        self._time = time
        self._max_attempts = max_attempts
        self._lag = lag

    def as_of(self, moment: datetime) -> SimulatedClient:
        """Return a client whose eventually consistent reads return the account's state at `moment`."""
        lag = max(_NOW, self._time.now() - moment)
        return SimulatedClient(
            self.service, self._operations, self._gate, self._time, max_attempts=self._max_attempts, lag=lag
        )

    def __getattr__(self, method: str) -> Callable[..., dict[str, Any]]:
        if method.startswith("_"):
            raise AttributeError(method)
        name = operation_of(method)
        if name not in self._operations:
            known = ", ".join(sorted(self._operations))
            raise NotSimulatedError(f"the simulation does not support {self.service}:{name}, only {known}")
        operation = self._operations[name]
        return lambda **parameters: self._call(name, operation, parameters)

    def get_paginator(self, method: str) -> SimulatedPaginator:
        """Return a paginator of an operation's response."""
        return SimulatedPaginator(getattr(self, method))

    def _call(self, name: str, operation: ServiceOperation, parameters: Mapping[str, Any]) -> dict[str, Any]:
        _check(f"{self.service}:{name}", operation, parameters)
        for attempt in range(1, self._max_attempts + 1):
            try:
                return self._respond(name, operation, parameters)
            except ClientError as error:  # noqa: PERF203 - each attempt fails separately
                if attempt == self._max_attempts or error.response["Error"]["Code"] not in _RETRIED:
                    raise
        raise AssertionError("max_attempts is at least 1")

    def _respond(self, name: str, operation: ServiceOperation, parameters: Mapping[str, Any]) -> dict[str, Any]:
        with self._gate.lock:
            self._gate.before()
            if error := self._gate.injected_error(name):
                raise _client_error(name, error)
            try:
                response = operation.run(
                    ServiceRequest(operation=name, parameters=parameters, as_of=self._time.now() - self._lag)
                )
            except ServiceError as error:
                raise _client_error(name, error) from error
        return {**response, "ResponseMetadata": {"HTTPStatusCode": 200, "RetryAttempts": 0}}


class SimulatedPaginator:
    """Yields all pages of an operation's response."""

    def __init__(self, call: Callable[..., dict[str, Any]]) -> None:
        self._call = call

    def paginate(
        self,
        PaginationConfig: Mapping[str, Any] | None = None,  # noqa: N803 - boto3's name
        **parameters: Any,
    ) -> Iterator[dict[str, Any]]:
        """Yield the pages, requesting each when the caller takes it."""
        if size := (PaginationConfig or {}).get("PageSize"):
            parameters["MaxResults"] = size
        while True:
            page = self._call(**parameters)
            yield page
            if not page.get("NextToken"):
                return
            parameters["NextToken"] = page["NextToken"]


def _check(name: str, operation: ServiceOperation, parameters: Mapping[str, Any]) -> None:
    """Raise botocore's error for missing parameters, and NotSimulatedError for parameters that are not simulated."""
    if missing := [parameter for parameter in operation.requires if parameter not in parameters]:
        raise ParamValidationError(report=f'Missing required parameter in input: "{missing[0]}"')
    if unknown := sorted(set(parameters) - {*operation.requires, *operation.accepts}):
        raise NotSimulatedError(f"the simulation does not support the parameter {unknown[0]} of {name}")


def _client_error(operation: str, error: ServiceError) -> ClientError:
    status = HTTP_STATUS.get(error.code, BAD_REQUEST)
    response = {
        "Error": {"Code": error.code, "Message": error.message},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(cast("Any", response), operation)
