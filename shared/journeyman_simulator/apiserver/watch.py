"""A watch: the changes of one kind since a version, as seen through a selector.

Restates: k8s.io/apiserver `pkg/storage/cacher/cache_watcher.go` `convertToWatchEvent`: an object that leaves the
selector is reported as DELETED in the state it was last selected in, one that enters it as ADDED.
"""

from __future__ import annotations

from typing import Any

from journeyman_simulator.apiserver.metadata import with_metadata
from journeyman_simulator.apiserver.selectors import Predicate
from journeyman_simulator.apiserver.storage import Change, Entry, Storage


class Watch:
    """A position in one kind's history. `version` is what everything up to there has been delivered for."""

    def __init__(self, storage: Storage, kind: str, selected: Predicate, resource_version: str) -> None:
        """Start behind `resource_version`; "" or "0" start with every object that exists, as ADDED."""
        self._storage = storage
        self._kind = kind
        self._selected = selected
        self._from_now = resource_version in {"", "0"}
        self.version = 0 if self._from_now else int(resource_version)

    def take(self) -> list[tuple[str, Entry]]:
        """The (type, object) pairs not yet taken, oldest first. Raises GoneError if some of them are forgotten."""
        with self._storage.changed:
            table = self._storage.table(self._kind)
            if self._from_now:
                self._from_now = False
                entries = (entry for _, entry in sorted(table.entries.items()))
                taken = [("ADDED", entry) for entry in entries if self._selected(entry.object)]
            else:
                changes = table.since(self.version)
                taken = [event for change in changes if (event := _seen(change, self._selected)) is not None]
            self.version = max(self.version, self._storage.version)
            return taken

    def wait(self, seconds: float) -> None:
        """Return when anything at all has changed, or after that much real time."""
        with self._storage.changed:
            if self._storage.version == self.version:
                self._storage.changed.wait(seconds)


def _seen(change: Change, selected: Predicate) -> tuple[str, Entry] | None:
    before = change.before is not None and selected(change.before.object)
    after = change.after is not None and selected(change.after.object)
    if after:
        return ("MODIFIED" if before else "ADDED", change.last)
    if not before:
        return None
    return ("DELETED", change.last if change.after is None else _as_left(change))


def _as_left(change: Change) -> Entry:
    assert change.before is not None  # noqa: S101 - it was selected before
    stamped: dict[str, Any] = with_metadata(change.before.object, resourceVersion=str(change.version))
    return Entry(stamped, change.version)
