"""Lists, whole or in pages that all show the same version."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from msgspec import Struct

from journeyman.errors import GoneError
from journeyman_simulator.apiserver import refusals
from journeyman_simulator.apiserver.selectors import Predicate, everything
from journeyman_simulator.apiserver.storage import Entry, Key, Storage


class Page(Struct, frozen=True, kw_only=True):
    """Entries by (namespace, name), all at `version`; `next` is empty on the last page. `remaining` 0 is "not known"."""

    entries: tuple[Entry, ...]
    version: int
    next: str = ""
    remaining: int = 0


def page(
    storage: Storage, kind: str, selected: Predicate, *, limit: int = 0, token: str = "", selective: bool = False
) -> Page:
    """Up to `limit` selected entries (0: all), continuing where `token` says; nobody counts the rest of a `selective` one.

    Raises:
        KubeAPIError: 400, the token is not one of ours.
        GoneError: The version the token continues is no longer in the history; start again.
    """
    table = storage.table(kind)
    if not token and not limit:
        whole = table.in_order()
        chosen = whole if selected is everything else tuple(entry for entry in whole if selected(entry.object))
        return Page(entries=chosen, version=storage.version)
    if token:
        version, start = _read(token)
        try:
            entries = table.at(version)
        except GoneError as error:
            raise GoneError(_EXPIRED, status=410, reason="Expired") from error
    else:
        version, start, entries = storage.version, ("", ""), table.entries
    rest = [(key, entries[key]) for key in sorted(entries) if key > start and selected(entries[key].object)]
    chosen = tuple(entry for _, entry in rest[: limit or None])
    if len(chosen) == len(rest):
        return Page(entries=chosen, version=version)
    following = _write(version, rest[len(chosen) - 1][0])
    remaining = 0 if selective else len(rest) - len(chosen)
    return Page(entries=chosen, version=version, next=following, remaining=remaining)


_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. "
    "You must start a new list without the continue parameter."
)


def _write(version: int, last: Key) -> str:
    return base64.urlsafe_b64encode(json.dumps({"v": version, "start": last}).encode()).decode()


def _read(token: str) -> tuple[int, Key]:
    try:
        content: Any = json.loads(base64.urlsafe_b64decode(token.encode()))
        namespace, name = content["start"]
        return int(content["v"]), (str(namespace), str(name))
    except (binascii.Error, ValueError, KeyError, TypeError) as error:
        raise refusals.bad_request(f"invalid continue token: continue key is not valid: {error}") from error
