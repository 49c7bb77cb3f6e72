"""Garbage collection: what is owned goes when its owners have gone, and what is in a namespace goes with it.

Restates: kubernetes `pkg/controller/garbagecollector` (background policy), `pkg/controller/namespace`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

from journeyman.core.api.objects import NAMESPACE
from journeyman_simulator.apiserver.kinds import Kind
from journeyman_simulator.apiserver.metadata import is_deleting
from journeyman_simulator.apiserver.registry import Registry
from journeyman_simulator.apiserver.storage import Key

JSON = Mapping[str, Any]


Delete = Callable[[Kind, Key], None]
"""Asks the server for one deletion."""


def collect(registry: Registry, delete: Delete) -> int:
    """Delete what lost all its owners or its namespace, until nothing more falls due; the number of deletions.

    An owner counts as gone if no stored object has its UID.
    """
    deleted = 0
    while due := tuple(_due(registry)):
        for kind, key in due:
            delete(kind, key)
        deleted += len(due)
    return deleted


def empty_namespaces(registry: Registry) -> tuple[str, ...]:
    """The namespaces that are going and in which nothing is left, by name."""
    storage = registry.storage
    spaces = storage.table(NAMESPACE.plural).entries.items()
    going = sorted(name for (_, name), entry in spaces if is_deleting(entry.object))
    if not going:
        return ()
    inhabited = {key[0] for kind in registry.kinds for key in storage.table(kind.id).entries}
    return tuple(name for name in going if name not in inhabited)


def _due(registry: Registry) -> Iterator[tuple[Kind, Key]]:
    storage = registry.storage
    homes = {"", *(key[1] for key, e in storage.table(NAMESPACE.plural).entries.items() if not is_deleting(e.object))}
    for kind in registry.kinds:
        found = (
            key
            for key, entry in storage.table(kind.id).entries.items()
            if (key[0] not in homes or _orphaned(entry.object, storage.uids)) and not is_deleting(entry.object)
        )
        yield from ((kind, key) for key in sorted(found))


def _orphaned(obj: JSON, living: Container[str]) -> bool:
    owners = obj["metadata"].get("ownerReferences")
    if not owners:
        return False
    uids = [owner["uid"] for owner in owners if owner.get("uid")]
    return bool(uids) and not any(uid in living for uid in uids)
