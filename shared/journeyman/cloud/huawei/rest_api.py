"""Calls Huawei Cloud's REST APIs: one value for a request, one error for a refusal.

`sdk_client` sends requests with the official SDK's generic client; the services' own packages (20 MB for the four used here) hold
nothing but the names of parameters, and lack some of them (`offloadNode` of CreateNode).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from msgspec import Struct, field

from journeyman.cloud.api_error import CloudApiError

CCE: Final = "cce"  # Cloud Container Engine
ECS: Final = "ecs"
VPC: Final = "vpc"
BSS: Final = "bss"  # prices
FUNCTIONGRAPH: Final = "functiongraph"

SERVICES: Final = (CCE, ECS, VPC, BSS, FUNCTIONGRAPH)
DOMAIN_SCOPED: Final = frozenset({BSS})
"""Services whose requests are about an account, not about a project of it."""


Query = Mapping[str, str | int]


class RestCall(Struct, frozen=True, kw_only=True):
    """One request to one service.

    `path` is complete, with the project's id and unescaped; `query` has texts and integers; `body` is JSON.
    """

    service: str  # CCE, ECS, VPC, BSS or FUNCTIONGRAPH
    operation: str  # as in the SDK and the API reference: CreateNode, ListFlavors
    method: str
    path: str
    query: Query = field(default_factory=dict)
    body: Any = None


class RestApiError(CloudApiError):
    """A Huawei Cloud service refused a request, or did not answer it. A code is such as CCE.01404001."""


class RestApi(Protocol):
    """Sends requests to one account, project and region."""

    def __call__(self, call: RestCall) -> Any:
        """Return the answer's JSON, or its text if that is no JSON. Raises RestApiError."""
        ...


def pages(read: Callable[[Query], Any], next_marker: Callable[[Any], str | None]) -> Iterator[Any]:
    """Yield the answers of a list that is divided into pages.

    Args:
        read: Reads a page, given the query's `marker`; that of the first page is missing.
        next_marker: Returns the marker of the page behind an answer; nothing for the last one.
    """
    query: Query = {}
    while True:
        answer = read(query)
        yield answer
        marker = next_marker(answer)
        if not marker:
            return
        query = {"marker": marker}


def last_id(entries: Sequence[Mapping[str, Any]], *, of: int) -> str | None:
    """Return the marker of a list whose marker is the id of the last entry; None if the page has less than `of` entries."""
    return str(entries[-1]["id"]) if len(entries) >= of else None
