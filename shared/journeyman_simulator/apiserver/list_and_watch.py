"""Implements lists, in pages of one version, and watches."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from msgspec import Struct

from journeyman.errors import GoneError
from journeyman_simulator.apiserver import api_errors
from journeyman_simulator.apiserver.object_metadata import with_metadata
from journeyman_simulator.apiserver.object_selectors import Predicate, everything
from journeyman_simulator.apiserver.object_storage import Key, ObjectStorage, StoredChange, StoredObject


class ListPage(Struct, frozen=True, kw_only=True):
    """Objects in order of (namespace, name) at `version`. `next` is empty on the last page; `remaining` is 0 if unknown."""

    entries: tuple[StoredObject, ...]
    version: int
    next: str = ""
    remaining: int = 0


def list_page(
    storage: ObjectStorage, kind: str, selected: Predicate, *, limit: int = 0, token: str = "", selective: bool = False
) -> ListPage:
    """Return up to `limit` selected objects (0 for all), starting at `token`; a `selective` list does not count the rest.

    Raises:
        KubeAPIError: The token is invalid (400).
        GoneError: The version of the token is no longer in the history; the client must list again.
    """
    table = storage.table(kind)
    if not token and not limit:
        objects = table.in_order()
        chosen = objects if selected is everything else tuple(entry for entry in objects if selected(entry.object))
        return ListPage(entries=chosen, version=storage.version)
    if token:
        version, start = _parse_token(token)
        try:
            entries = table.at(version)
        except GoneError as error:
            raise GoneError(_EXPIRED, status=410, reason="Expired") from error
    else:
        version, start, entries = storage.version, ("", ""), table.entries
    rest = [(key, entries[key]) for key in sorted(entries) if key > start and selected(entries[key].object)]
    chosen = tuple(entry for _, entry in rest[: limit or None])
    if len(chosen) == len(rest):
        return ListPage(entries=chosen, version=version)
    following = _format_token(version, rest[len(chosen) - 1][0])
    remaining = 0 if selective else len(rest) - len(chosen)
    return ListPage(entries=chosen, version=version, next=following, remaining=remaining)


_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. "
    "You must start a new list without the continue parameter."
)


def _format_token(version: int, last: Key) -> str:
    return base64.urlsafe_b64encode(json.dumps({"v": version, "start": last}).encode()).decode()


def _parse_token(token: str) -> tuple[int, Key]:
    try:
        content: Any = json.loads(base64.urlsafe_b64decode(token.encode()))
        namespace, name = content["start"]
        return int(content["v"]), (str(namespace), str(name))
    except (binascii.Error, ValueError, KeyError, TypeError) as error:
        raise api_errors.bad_request(f"invalid continue token: continue key is not valid: {error}") from error


class WatchStream:
    """A position in one kind's history. The client has received all changes up to `version`."""

    def __init__(self, storage: ObjectStorage, kind: str, selected: Predicate, resource_version: str) -> None:
        """Start after `resource_version`; "" and "0" start with an ADDED event for each existing object."""
        self._storage = storage
        self._kind = kind
        self._selected = selected
        self._from_now = resource_version in {"", "0"}
        self.version = 0 if self._from_now else int(resource_version)

    def take(self) -> list[tuple[str, StoredObject]]:
        """Return the events since the last call as (type, object), oldest first. Raises GoneError if the history lacks some."""
        with self._storage.lock:
            table = self._storage.table(self._kind)
            if self._from_now:
                self._from_now = False
                entries = (entry for _, entry in sorted(table.entries.items()))
                events = [("ADDED", entry) for entry in entries if self._selected(entry.object)]
            else:
                changes = table.since(self.version)
                events = [event for change in changes if (event := _watch_event_of(change, self._selected)) is not None]
            self.version = max(self.version, self._storage.version)
            return events

    def wait(self, seconds: float) -> None:
        """Return after a change, or after `seconds` of real time."""
        with self._storage.changed:
            if self._storage.version == self.version:
                self._storage.changed.wait(seconds)


def _watch_event_of(change: StoredChange, selected: Predicate) -> tuple[str, StoredObject] | None:
    before = change.before is not None and selected(change.before.object)
    after = change.after is not None and selected(change.after.object)
    if after:
        return ("MODIFIED" if before else "ADDED", change.last)
    if not before:
        return None
    return ("DELETED", change.last if change.after is None else _last_state(change))


def _last_state(change: StoredChange) -> StoredObject:
    assert change.before is not None  # noqa: S101 - it was selected before
    stamped: dict[str, Any] = with_metadata(change.before.object, resourceVersion=str(change.version))
    return StoredObject(stamped, change.version)
