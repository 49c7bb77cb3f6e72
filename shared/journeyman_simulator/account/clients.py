"""Clients that look like boto3's: methods by AWS's operations, paginators, botocore's exceptions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, cast

from botocore.exceptions import ClientError, ParamValidationError

from journeyman_simulator.account.asking import Ask, NotSimulatedError, Operation, Operations
from journeyman_simulator.aws.gate import BAD_REQUEST, HTTP_STATUS, Gate
from journeyman_simulator.aws.refusal import RefusedError
from journeyman_simulator.aws.timekeeper import Timekeeper

# What botocore's "standard" retries try again, as far as this account answers it.
_RETRIED: Final = frozenset(
    {
        *("InternalError", "InternalFailure", "ServiceUnavailable", "RequestLimitExceeded"),
        *("Throttling", "ThrottlingException", "RequestThrottled", "TooManyRequestsException", "SlowDown"),
    }
)
_NOW: Final = timedelta(0)


def operation_of(method: str) -> str:
    """AWS's name of the operation behind a client's method: "DescribeInstances" of "describe_instances"."""
    return "".join(part.title() for part in method.split("_"))


class Client:
    """One service. Requests pass the gate one at a time, on the account's current state.

    Args:
        service: boto3's name for it.
        operations: All that it knows.
        gate: Counts requests, and refuses what a scenario wants refused.
        time: Virtual.
        max_attempts: Including the first; more than 1 hides failures that botocore would try again, without waiting.
        lag: How old what eventually consistent reads show is.
    """

    def __init__(
        self,
        service: str,
        operations: Operations,
        gate: Gate,
        time: Timekeeper,
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

    def as_of(self, moment: datetime) -> Client:
        """The same client, whose eventually consistent reads show the account as it was at `moment`."""
        lag = max(_NOW, self._time.now() - moment)
        return Client(self.service, self._operations, self._gate, self._time, max_attempts=self._max_attempts, lag=lag)

    def __getattr__(self, method: str) -> Callable[..., dict[str, Any]]:
        if method.startswith("_"):
            raise AttributeError(method)
        name = operation_of(method)
        if name not in self._operations:
            known = ", ".join(sorted(self._operations))
            raise NotSimulatedError(f"{self.service}:{name} is not simulated here, only {known}")
        operation = self._operations[name]
        return lambda **given: self._call(name, operation, given)

    def get_paginator(self, method: str) -> Paginator:
        """Pages of an operation's answer."""
        return Paginator(getattr(self, method))

    def _call(self, name: str, operation: Operation, given: Mapping[str, Any]) -> dict[str, Any]:
        _check(f"{self.service}:{name}", operation, given)
        for attempt in range(1, self._max_attempts + 1):
            try:
                return self._answer(name, operation, given)
            except ClientError as error:  # noqa: PERF203 - each attempt for itself
                if attempt == self._max_attempts or error.response["Error"]["Code"] not in _RETRIED:
                    raise
        raise AssertionError("max_attempts is at least 1")

    def _answer(self, name: str, operation: Operation, given: Mapping[str, Any]) -> dict[str, Any]:
        with self._gate.lock:
            self._gate.before()
            if code := self._gate.refused(name):
                raise _client_error(name, code, f"simulated failure of {name}")
            try:
                answer = operation.run(Ask(operation=name, given=given, as_of=self._time.now() - self._lag))
            except RefusedError as error:
                raise _client_error(name, error.code, error.message) from error
        return {**answer, "ResponseMetadata": {"HTTPStatusCode": 200, "RetryAttempts": 0}}


class Paginator:
    """Asks again as long as there is a next page."""

    def __init__(self, call: Callable[..., dict[str, Any]]) -> None:
        self._call = call

    def paginate(self, PaginationConfig: Mapping[str, Any] | None = None, **given: Any) -> Iterator[dict[str, Any]]:  # noqa: N803 - boto3's name
        """Every page, asked for when it is needed."""
        if size := (PaginationConfig or {}).get("PageSize"):
            given["MaxResults"] = size
        while True:
            page = self._call(**given)
            yield page
            if not page.get("NextToken"):
                return
            given["NextToken"] = page["NextToken"]


def _check(name: str, operation: Operation, given: Mapping[str, Any]) -> None:
    """Refuse what botocore refuses before it asks, and what this account would not heed."""
    if missing := [parameter for parameter in operation.requires if parameter not in given]:
        raise ParamValidationError(report=f'Missing required parameter in input: "{missing[0]}"')
    if unknown := sorted(set(given) - {*operation.requires, *operation.accepts}):
        raise NotSimulatedError(f"the parameter {unknown[0]} of {name} is not simulated here")


def _client_error(operation: str, code: str, message: str) -> ClientError:
    status = HTTP_STATUS.get(code, BAD_REQUEST)
    answer = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(cast("Any", answer), operation)
