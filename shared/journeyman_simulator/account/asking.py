"""One request of a simulated account: what was asked, how it is filtered and paged, and how it is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct

T = TypeVar("T")
JSON = Mapping[str, Any]
Readers = Mapping[str, Callable[[T], Iterable[str]]]
"""How to read the values that a filter's name stands for."""


class NotSimulatedError(NotImplementedError):
    """AWS may well know it; the simulated account does not. Outside the product's errors, so that nobody handles it."""


class Ask(Struct, frozen=True, kw_only=True):
    """A request. Reads that AWS answers from replicas show the account as it was at `as_of`."""

    operation: str
    given: JSON
    as_of: datetime

    def __getitem__(self, name: str) -> Any:
        return self.given[name]

    def get(self, name: str, default: Any = None) -> Any:
        """A parameter that may be left out."""
        return self.given.get(name, default)


class Operation(NamedTuple):
    """What an operation does, and the parameters it understands."""

    run: Callable[[Ask], JSON]
    requires: tuple[str, ...] = ()
    accepts: tuple[str, ...] = ()


Operations = Mapping[str, Operation]
"""By AWS's name."""

PAGING = ("MaxResults", "NextToken")


def selected(items: Iterable[T], filters: Sequence[JSON], readers: Readers[T]) -> list[T]:
    """The items that match every filter; a filter is matched by any of its values, which may hold `*` and `?`.

    Raises:
        NotSimulatedError: There is no reader for a filter.
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
    raise NotSimulatedError(f"the filter {name!r} is not simulated here, only {', '.join(sorted(readers))}")


def tag_pairs(tags: Mapping[str, str]) -> list[str]:
    """Tags as the reader named "tag" gives them: "key=value"."""
    return [f"{key}={value}" for key, value in tags.items()]


def _matcher(values: Sequence[str]) -> Callable[[str], bool]:
    if not any("*" in value or "?" in value for value in values):
        return frozenset(values).__contains__
    wild = "|".join(re.escape(value).replace(r"\*", ".*").replace(r"\?", ".") for value in values)
    pattern = re.compile(wild, re.DOTALL)
    return lambda text: pattern.fullmatch(text) is not None


def paged(key: str, items: Sequence[Any], ask: Ask, largest: int = 1000) -> dict[str, Any]:
    """The page of an answer that was asked for, under its key."""
    start = int(ask.get("NextToken") or 0)
    end = start + min(int(ask.get("MaxResults") or largest), largest)
    answer: dict[str, Any] = {key: list(items[start:end])}
    if end < len(items):
        answer["NextToken"] = str(end)
    return answer


def tags_given(ask: Ask, resource_type: str) -> dict[str, str]:
    """The tags that a request's TagSpecifications have for a kind of resource."""
    return {
        tag["Key"]: tag["Value"]
        for specification in ask.get("TagSpecifications") or ()
        if specification["ResourceType"] == resource_type
        for tag in specification["Tags"]
    }


def to_pairs(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Tags as EC2 tells them."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]
