"""Catching up with a list that is remembered: what changed since, and the proof that nothing is missing.

1. A consistent list of one object tells the store's version *now*. The API server answers once its own cache is there.
2. A watch from the version we have brings all changes up to there, at once, as they are in that cache already. It is asked
   for on the same connection, since another server of the control plane may not be there yet.
3. It ends with the first event at that version or beyond, as events come in order. Most often another kind's change was
   the last one, and no event of ours says so: then a short silence ends it. A bookmark would come a second later.
4. The list of one object also told how many there are (where nothing is selected), and one of them with its UID and version.
   What we have must fit: so it does not if an event was late, or if this is another cluster than the one remembered.

A first doubt is answered by more patience, a second by listing everything again. So is a store whose version is older than
ours: it was restored from a backup.

Versions are compared as numbers where both are such, which Kubernetes promises since 1.35 (KEP-5504); otherwise only for being
equal, and the silence decides, without proof.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter, itemgetter
from typing import Any, Final

import msgspec

from journeyman.core.api.objects import Object, ObjectMeta
from journeyman.errors import GoneError
from journeyman.kube.http_store import HttpKubeStore
from journeyman.kube.remembered import Mirror, Question
from journeyman.kube.transport import LONGEST_QUIET_SECONDS

_WATCH_SECONDS: Final = 5.0  # the silence ends it long before

key_of: Final[Callable[[Object], tuple[str, str]]] = attrgetter("metadata.namespace", "metadata.name")
"""Namespace and name."""


class _Sample(msgspec.Struct, frozen=True):
    metadata: ObjectMeta


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")
    remaining_item_count: int | None = None


class _Now(msgspec.Struct, frozen=True):
    """A list of one object."""

    metadata: _Meta
    items: tuple[_Sample, ...] = ()

    @property
    def version(self) -> str:
        return self.metadata.resource_version

    @property
    def count(self) -> int | None:
        """How many objects there are; None if the server does not say."""
        if not self.metadata.continue_:
            return len(self.items)
        remaining = self.metadata.remaining_item_count
        return None if remaining is None else len(self.items) + remaining


_NOW: Final = msgspec.json.Decoder(_Now)  # made before threads meet in it: see `lists._decoder`


def catch_up(store: HttpKubeStore, mirror: Mirror[Any], quiet_seconds: float) -> Mirror[Any]:
    """The list as it is now.

    Args:
        store: Over one connection.
        mirror: The list as it was.
        quiet_seconds: The shortest silence after which a watch has nothing more to say.

    Raises:
        GoneError: What is remembered is of no more use; list it again.
        ForbiddenError: The list may be read, but not watched.
        KubeAPIError: And its other kinds.
    """
    for patience in (quiet_seconds, max(quiet_seconds, LONGEST_QUIET_SECONDS)):
        now = _now(store, mirror.question)
        mirror = _changed(store, mirror, now, patience)
        if _fits(mirror, now):
            return mirror
    raise GoneError("what is remembered is not what the API server has")


def _now(store: HttpKubeStore, question: Question) -> _Now:
    query = {"limit": "1", "labelSelector": question.label_selector, "fieldSelector": question.field_selector}
    path = question.resource.path(question.namespace)
    body = store.transport.request("GET", path, query={name: value for name, value in query.items() if value})
    try:
        return _NOW.decode(body)
    except msgspec.DecodeError as error:
        raise GoneError(f"GET {path} does not tell the version of what it lists: {error}") from error


def _changed(store: HttpKubeStore, mirror: Mirror[Any], now: _Now, quiet_seconds: float) -> Mirror[Any]:
    """The list with its changes up to now."""
    if mirror.version == now.version:
        return mirror
    if _is_beyond(mirror.version, now.version):
        raise GoneError("the API server's store is older than what is remembered of it")
    objects, version, is_new = dict(mirror.objects), mirror.version, False
    changes = store.watch(
        mirror.question.resource,
        resource_version=version,
        timeout_seconds=_WATCH_SECONDS,
        quiet_seconds=quiet_seconds,
        **mirror.question.selection,
    )
    for event in changes:
        if _is_beyond(event.resource_version, now.version):  # so all that came before `now` is here
            version = now.version
            break
        version = event.resource_version
        if event.type == "DELETED" and event.object is not None:
            objects.pop(key_of(event.object), None)
        elif event.object is not None:
            is_new = is_new or key_of(event.object) not in objects
            objects[key_of(event.object)] = event.object
        if version == now.version:
            break
    objects = dict(sorted(objects.items(), key=itemgetter(0))) if is_new else objects
    return Mirror(question=mirror.question, objects=objects, version=version, listed_at=mirror.listed_at)


def _fits(mirror: Mirror[Any], now: _Now) -> bool:
    """Whether the list can be what the server has at that version; one that is of another version is not compared."""
    if mirror.version != now.version and not _is_beyond(now.version, mirror.version):
        return True
    if now.count is not None and now.count != len(mirror.objects):
        return False
    return all(_has(mirror, sample.metadata) for sample in now.items)


def _has(mirror: Mirror[Any], told: ObjectMeta) -> bool:
    found = mirror.objects.get((told.namespace, told.name))
    return found is not None and (found.metadata.uid, found.metadata.resource_version) == (
        told.uid,
        told.resource_version,
    )


def _is_beyond(version: str, other: str) -> bool:
    """Whether a version is later than another; those that are no numbers say nothing about it."""
    return version.isdecimal() and other.isdecimal() and int(version) > int(other)
