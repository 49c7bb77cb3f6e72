"""Paths and queries as both clouds sign them: escaped as RFC 3986 has it, sorted by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

_UNRESERVED: Final = "-_.~"  # letters and digits are implied


def escaped_path(path: str) -> str:
    """The path as it is signed and sent."""
    return quote(path, safe=f"/{_UNRESERVED}") or "/"


def escaped_query(query: Mapping[str, str]) -> str:
    """The query as it is signed and sent."""
    pairs = sorted((quote(name, safe=_UNRESERVED), quote(value, safe=_UNRESERVED)) for name, value in query.items())
    return "&".join(f"{name}={value}" for name, value in pairs)
