"""Garbage collection: what is owned goes when its owners have gone, and what is in a namespace goes with it.

Restates: kubernetes `pkg/controller/garbagecollector` (background policy), `pkg/controller/namespace`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from journeyman.core.api.objects import NAMESPACE
from journeyman.simulate.apiserver import metadata
from journeyman.simulate.apiserver.registry import Registry

JSON = Mapping[str, Any]


def collect(registry: Registry) -> int:
    """Delete what lost all its owners or its namespace, until nothing more falls due; the number of deletions.

    An owner counts as gone if no stored object has its UID; references without a UID are never followed.
    """
    deleted = 0
    while round_deleted := _one_round(registry):
        deleted += round_deleted
    return deleted


def _one_round(registry: Registry) -> int:
    storage = registry.storage
    namespaces = {name for _, name in storage.table(NAMESPACE.plural).entries}
    living = {
        entry.object["metadata"]["uid"] for kind in registry.kinds for entry in storage.table(kind.id).entries.values()
    }
    deleted = 0
    for kind in registry.kinds:
        for key, entry in sorted(storage.table(kind.id).entries.items()):
            homeless = kind.resource.namespaced and key[0] not in namespaces
            if (homeless or _orphaned(entry.object, living)) and not metadata.is_deleting(entry.object):
                registry.delete(kind, key)
                deleted += 1
    return deleted


def _orphaned(obj: JSON, living: set[str]) -> bool:
    owners = [owner["uid"] for owner in obj["metadata"].get("ownerReferences") or () if owner.get("uid")]
    return bool(owners) and not any(uid in living for uid in owners)
