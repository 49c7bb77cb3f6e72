"""Calls Huawei Cloud's REST APIs: one value for a request, one error for a refusal.

`sdk_client` sends requests with the official SDK's generic client; the services' own packages (20 MB for the four used here) hold
nothing but the names of parameters, and lack some of them (`offloadNode` of CreateNode).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from msgspec import Struct, field

CCE: Final = "cce"  # Cloud Container Engine
ECS: Final = "ecs"
VPC: Final = "vpc"
BSS: Final = "bss"  # prices
FUNCTIONGRAPH: Final = "functiongraph"

SERVICES: Final = (CCE, ECS, VPC, BSS, FUNCTIONGRAPH)
DOMAIN_SCOPED: Final = frozenset({BSS})
"""Services whose requests are about an account, not about a project of it."""


class RestCall(Struct, frozen=True, kw_only=True):
    """One request to one service.

    `path` is complete, with the project's id and unescaped; `query` has texts and integers; `body` is JSON.
    """

    service: str  # CCE, ECS, VPC, BSS or FUNCTIONGRAPH
    operation: str  # as in the SDK and the API reference: CreateNode, ListFlavors
    method: str
    path: str
    query: Mapping[str, str | int] = field(default_factory=dict)
    body: Any = None


class RestApiError(Exception):
    """A service refused a request, or did not answer it.

    Attributes:
        code: The service's error code, such as CCE.01404001; empty if there was no answer.
        status: The HTTP status; 0 if there was no answer.
        request_id: The service's id of the request; empty if there was no answer.
    """

    def __init__(self, code: str, message: str, *, status: int = 0, request_id: str = "") -> None:
        super().__init__(f"{code}: {message}" if code else message)
        self.code = code
        self.message = message
        self.status = status
        self.request_id = request_id


class RestApi(Protocol):
    """Sends requests to one account, project and region."""

    def __call__(self, call: RestCall) -> Any:
        """Return the answer's JSON, or its text if that is no JSON. Raises RestApiError."""
        ...
