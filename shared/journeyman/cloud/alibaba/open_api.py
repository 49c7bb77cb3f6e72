"""Calls Alibaba Cloud's OpenAPI: one value for a request, one error for a refusal, and the official SDK that sends it.

Each service needs only the SDK's generic client, since the services' own packages (10 MB for ECS) hold nothing but parameter
names. The SDK is imported for the first request, so that importing a handler stays fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from msgspec import Struct, field

from journeyman.cloud.api_error import CloudApiError

ECS: Final = "ecs"
VPC: Final = "vpc"
CS: Final = "cs"  # Container Service, which runs ACK
RAM: Final = "ram"

VERSIONS: Final[Mapping[str, str]] = {ECS: "2014-05-26", VPC: "2016-04-28", CS: "2015-12-15", RAM: "2015-05-01"}
"""The API version of each service."""


class ApiCall(Struct, frozen=True, kw_only=True):
    """One request to one service.

    In RPC style, `parameters` are the action's, nested as the documentation has them: lists and objects are flattened on the
    wire (`Tag.1.Key`, `SystemDisk.Size`). In ROA style, which has a `path`, they are the query, and `body` is JSON.
    """

    service: str  # ECS, VPC, CS or RAM
    action: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    method: str = "POST"
    path: str = ""
    body: Mapping[str, Any] | None = None


class OpenApiError(CloudApiError):
    """An Alibaba Cloud service refused a request, or did not answer it."""


class OpenApi(Protocol):
    """Sends requests to one account and region."""

    def __call__(self, call: ApiCall) -> Any:
        """Return the answer: JSON, or text from the actions that answer with text. Raises OpenApiError."""
        ...
