"""boto3 clients as runs see them: each call may go wrong, each page is a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any

from journeyman_simulator.faults.errors import aws_error
from journeyman_simulator.faults.injector import Call, Faults
from journeyman_simulator.faults.sites import aws_site


class FaultyClient:
    """One function's client of one service.

    Args:
        client: The account's (`account.clients.Client`).
        service: As boto3 names it.
        step: The function's.
        faults: Decides.
    """

    def __init__(self, client: Any, service: str, step: str, faults: Faults) -> None:
        self._client = client
        self._service = service
        self._step = step
        self._faults = faults

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """An operation, by its Python name."""
        return partial(self.call, name)

    def get_paginator(self, name: str) -> Pages:
        """All pages of an operation."""
        return Pages(self, name)

    def call(self, name: str, **parameters: Any) -> Any:
        """One call of an operation."""
        operation = "".join(word.capitalize() for word in name.split("_"))

        def as_of(moment: datetime) -> Any:
            return getattr(self._client.as_of(moment), name)(**parameters)

        def error(kind: Any) -> Exception:
            return aws_error(kind, self._service, operation)

        site = aws_site(self._step, self._service, operation)
        act = partial(getattr(self._client, name), **parameters)
        return self._faults.call(Call(site=site, error=error, cached=True), act, as_of)


class Pages:
    """A paginator."""

    def __init__(self, client: FaultyClient, operation: str) -> None:
        self._client = client
        self._operation = operation

    def paginate(self, PaginationConfig: Mapping[str, Any] | None = None, **given: Any) -> Iterator[Any]:  # noqa: N803 - boto3's name
        """Every page, asked for when it is needed."""
        if size := (PaginationConfig or {}).get("PageSize"):
            given["MaxResults"] = size
        while True:
            page = self._client.call(self._operation, **given)
            yield page
            if not page.get("NextToken"):
                return
            given["NextToken"] = page["NextToken"]
