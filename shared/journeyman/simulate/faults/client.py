"""boto3 clients as runs see them: each call may go wrong. What is below is in this process, and answers in one page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from typing import Any

from journeyman.simulate.faults.errors import aws_error
from journeyman.simulate.faults.injector import Call, Faults
from journeyman.simulate.faults.sites import aws_site

AsOf = Callable[[datetime], AbstractContextManager[Any]]
"""Inside of it the account answers reads as of that moment."""


class FaultyClient:
    """One function's client of one service.

    Args:
        client: The account's.
        service: As boto3 names it.
        step: The function's.
        faults: Decides.
        as_of: For answers that are stale.
    """

    def __init__(self, client: Any, service: str, step: str, faults: Faults, as_of: AsOf) -> None:
        self._client = client
        self._service = service
        self._step = step
        self._faults = faults
        self._as_of = as_of

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """An operation, by its Python name."""
        return partial(self.call, name)

    def get_paginator(self, name: str) -> Pages:
        """All pages of an operation."""
        return Pages(self, name)

    def call(self, name: str, **parameters: Any) -> Any:
        """One call of an operation."""
        operation = "".join(word.capitalize() for word in name.split("_"))
        act = partial(getattr(self._client, name), **parameters)

        def as_of(moment: datetime) -> Any:
            with self._as_of(moment):
                return act()

        def error(kind: Any) -> Exception:
            return aws_error(kind, self._service, operation)

        site = aws_site(self._step, self._service, operation)
        return self._faults.call(Call(site=site, error=error, cached=True), act, as_of)


class Pages:
    """A paginator whose answers have one page."""

    def __init__(self, client: FaultyClient, operation: str) -> None:
        self._client = client
        self._operation = operation

    def paginate(self, **parameters: Any) -> Iterator[Any]:
        """The page."""
        parameters.pop("PaginationConfig", None)
        yield self._client.call(self._operation, **parameters)
