"""Garbage collection: what is owned goes when its owners have gone, and what is in a namespace goes with it.

Restates: kubernetes `pkg/controller/garbagecollector` (background policy), `pkg/controller/namespace`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from journeyman.core.api.objects import NAMESPACE
from journeyman.simulate.apiserver.kinds import Kind
from journeyman.simulate.apiserver.metadata import is_deleting
from journeyman.simulate.apiserver.registry import Registry
from journeyman.simulate.apiserver.storage import Key

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
    namespaces = {
        name for (_, name), entry in storage.table(NAMESPACE.plural).entries.items() if not is_deleting(entry.object)
    }
    living = {
        entry.object["metadata"]["uid"] for kind in registry.kinds for entry in storage.table(kind.id).entries.values()
    }
    for kind in registry.kinds:
        for key, entry in sorted(storage.table(kind.id).entries.items()):
            homeless = kind.resource.namespaced and key[0] not in namespaces
            if (homeless or _orphaned(entry.object, living)) and not is_deleting(entry.object):
                yield kind, key


def _orphaned(obj: JSON, living: set[str]) -> bool:
    owners = [owner["uid"] for owner in obj["metadata"].get("ownerReferences") or () if owner.get("uid")]
    return bool(owners) and not any(uid in living for uid in owners)
