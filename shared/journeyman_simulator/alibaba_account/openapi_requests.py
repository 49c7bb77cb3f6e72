"""Defines the requests that the handlers of simulated actions take, and the pages and tags of their answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Final

from msgspec import Struct

from journeyman_simulator.alibaba_account.openapi_errors import invalid_parameter

JSON = Mapping[str, Any]


class ActionRequest(Struct, frozen=True, kw_only=True):
    """A checked request. Eventually consistent reads return the account's state at `as_of`."""

    parameters: JSON
    as_of: datetime
    caller: str

    def __getitem__(self, name: str) -> Any:
        return self.parameters[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return a parameter, or the default if the request lacks it."""
        return self.parameters.get(name, default)

    def tags(self, name: str = "Tag") -> dict[str, str | None]:
        """Return the tags in a list of keys and values; a value is None if the request lacks it."""
        return {tag["Key"]: tag.get("Value") for tag in self.get(name) or ()}


ActionHandlers = Mapping[str, Callable[[ActionRequest], Any]]
"""Handlers by the name of the action. A handler raises ServiceError if the service rejects the request."""

_MINUTE: Final = "%Y-%m-%dT%H:%MZ"
_SECOND: Final = "%Y-%m-%dT%H:%M:%SZ"


def to_minute(moment: datetime) -> str:
    """Return a time in whole minutes, as in DescribeInstances."""
    return moment.strftime(_MINUTE)


def to_second(moment: datetime) -> str:
    """Return a time in whole seconds."""
    return moment.strftime(_SECOND)


def from_second(text: str) -> datetime:
    """Return the time of a text in whole seconds. Raises ServiceError if it is not a time."""
    try:
        return datetime.strptime(text, _SECOND).replace(tzinfo=timezone.utc)
    except ValueError:
        raise invalid_parameter("time", f"is not valid: {text!r}") from None


def has_tags(tags: Mapping[str, str], wanted: Mapping[str, str | None]) -> bool:
    """Whether a resource has all wanted tags; a wanted value of None or "" matches every value."""
    return all(key in tags and (not value or tags[key] == value) for key, value in wanted.items())


def tag_entries(tags: Mapping[str, str]) -> dict[str, Any]:
    """Return tags as in ECS's answers."""
    return {"Tag": [{"TagKey": key, "TagValue": value} for key, value in tags.items()]}


def token_page(
    request: ActionRequest, items: Sequence[Any], *, default: int, least: int = 1, most: int = 100
) -> tuple[list[Any], dict[str, Any]]:
    """Return the page that NextToken and MaxResults select, and the answer's NextToken ("" on the last page)."""
    start = position(request.get("NextToken") or "")
    size = min(max(request.get("MaxResults") or default, least), most)
    following = start + size
    return list(items[start:following]), {"NextToken": page_token(following) if following < len(items) else ""}


def numbered_page(request: ActionRequest, items: Sequence[Any], *, default: int = 10) -> tuple[list[Any], JSON]:
    """Return the page that PageNumber and PageSize select, and the answer's TotalCount, PageNumber and PageSize."""
    number, size = request.get("PageNumber") or 1, request.get("PageSize") or default
    page = list(items[(number - 1) * size : number * size])
    return page, {"TotalCount": len(items), "PageNumber": number, "PageSize": size}


def page_token(start: int) -> str:
    """Return the token of the page that starts at a position; callers must not read it."""
    return f"caeba0bbb2be03f8{start:08x}"


def position(token: str) -> int:
    """Return the position that a token holds; 0 for no token. Raises ServiceError for a token of no page."""
    if not token:
        return 0
    start = token.removeprefix("caeba0bbb2be03f8")
    if start == token or len(start) != 8 or not all(digit in "0123456789abcdef" for digit in start):
        raise invalid_parameter("NextToken", f"is not valid: {token!r}")
    return int(start, 16)


def known_among(known: Mapping[str, Any], ids: Iterable[str]) -> list[Any]:
    """Return the known resources with these ids, without the unknown ones."""
    return [known[id_] for id_ in ids if id_ in known]
