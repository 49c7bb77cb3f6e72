"""Loads objects in the form that `kubectl get … -o yaml` prints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, timezone
from typing import Any

from journeyman.core.api.objects import NAMESPACE, Resource
from journeyman.errors import InvalidObjectError
from journeyman.ports import Clock
from journeyman_simulator.apiserver import object_metadata
from journeyman_simulator.apiserver.object_registry import ObjectRegistry
from journeyman_simulator.apiserver.served_kinds import ServedKind

JSON = Mapping[str, Any]


def load(registry: ObjectRegistry, clock: Clock, objects: Iterable[JSON]) -> int:
    """Store objects with their status, UID, generation and timestamps; return their number.

    The function unpacks lists (`kind: List`, `PodList`…), sets a missing UID, generation or timestamp as a creation does,
    registers kinds that are not served, creates missing namespaces, and replaces stored objects of the same name. It does
    not validate objects, since the recorded cluster's definitions may be less strict.

    Raises:
        InvalidObjectError: An object has no kind, apiVersion or name.
    """
    count = 0
    for obj in _unpacked(objects):
        kind = _kind_of(registry, obj)
        namespace = obj["metadata"].get("namespace") or ("default" if kind.resource.namespaced else "")
        if namespace:
            _ensure_namespace(registry, namespace)
        key = registry.key(kind, namespace, obj["metadata"]["name"])
        registry.storage.put(kind.id, key, _with_identity(registry, clock, kind, namespace, obj))
        count += 1
    return count


def _unpacked(objects: Iterable[JSON]) -> Iterator[dict[str, Any]]:
    for raw in objects:
        if not isinstance(raw, Mapping):
            raise InvalidObjectError(f"not a Kubernetes object: {raw!r}")
        if str(raw.get("kind", "")).endswith("List") and isinstance(raw.get("items"), list):
            shared = {"apiVersion": raw.get("apiVersion"), "kind": raw["kind"].removesuffix("List")}
            yield from _unpacked({**{k: v for k, v in shared.items() if v}, **item} for item in raw["items"])
            continue
        if not (raw.get("kind") and raw.get("apiVersion") and (raw.get("metadata") or {}).get("name")):
            raise InvalidObjectError(
                "not a Kubernetes object: kind, apiVersion and metadata.name are needed", found=str(raw)[:200]
            )
        yield _to_json(raw)


def _to_json(value: Any) -> Any:
    """Return a copy with JSON's types; YAML parses timestamps as datetimes."""
    if isinstance(value, Mapping):
        return {str(key): _to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_json(item) for item in value]
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
        return object_metadata.text(aware)
    return value.isoformat() if isinstance(value, date) else value


def _kind_of(registry: ObjectRegistry, obj: JSON) -> ServedKind:
    group, _, version = obj["apiVersion"].rpartition("/")
    served = registry.kind_named(group, obj["kind"])
    if served is not None:
        return served
    resource: Resource[Any] = Resource(
        group=group,
        version=version,
        kind=obj["kind"],
        plural=_plural(obj["kind"].lower()),
        namespaced="namespace" in obj["metadata"],
        type=dict,
    )
    kind = ServedKind(resource=resource, custom=True)
    registry.register(kind)
    return kind


def _plural(word: str) -> str:
    if word.endswith("y") and word[-2:-1] not in set("aeiou"):
        return f"{word[:-1]}ies"
    return f"{word}es" if word.endswith(("s", "x", "ch", "sh")) else f"{word}s"


def _ensure_namespace(registry: ObjectRegistry, name: str) -> None:
    kind = registry.kind(NAMESPACE)
    if ("", name) not in registry.storage.table(kind.id).entries:
        registry.create(kind, "", {"metadata": {"name": name}})


def _with_identity(
    registry: ObjectRegistry, clock: Clock, kind: ServedKind, namespace: str, obj: JSON
) -> dict[str, Any]:
    meta = dict(obj["metadata"])
    meta.setdefault("uid", object_metadata.uid(registry.storage.next_serial()))
    meta.setdefault("creationTimestamp", object_metadata.text(clock.now()))
    if kind.generation:
        meta.setdefault("generation", 1)
    if namespace:
        meta["namespace"] = namespace
    completed = kind.default({**obj, "metadata": meta})
    return {**completed, "metadata": {**completed["metadata"]}}
