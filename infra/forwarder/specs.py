"""NodePools and NodeClasses: whether somebody changed what they ask for. Steps write their statuses and metadata, which is no news.

A pool that is new or was changed may have room for pods that wait, and is to be judged; so is a NodeClass that was mended,
and one that is being deleted goes once its last claim has gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from infra.forwarder.news import Cause, News


class SpecMetadata(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """`metadata`, as much of it as is read. The generation counts changes of the spec."""

    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    deletion_timestamp: str | None = None


class Spec(msgspec.Struct, frozen=True, gc=False):
    """A NodePool or a NodeClass."""

    metadata: SpecMetadata = SpecMetadata()

    @property
    def asked(self) -> Asked:
        """What it would be news of."""
        return Asked(self.metadata.generation, self.metadata.deletion_timestamp is not None)


class Asked(NamedTuple):
    """Which spec it has, and whether it is being deleted."""

    generation: int
    leaving: bool


class Specs:
    """The objects by UID.

    Args:
        cause: What it is called when one was made or changed.
    """

    wants_list: Final = False

    def __init__(self, cause: Cause) -> None:
        self._cause = cause
        self._known: dict[str, Asked] = {}
        self._listed = False

    def fresh(self) -> Specs:
        """An empty one, to list into."""
        return Specs(self._cause)

    def take_page(self, specs: Iterable[Spec], before: Specs) -> Iterator[News]:
        """Take over a page of a list; differences from `before` are news, unless that was never listed."""
        for spec in specs:
            if (news := self._put(spec, before._known)) and before._listed:
                yield news

    def ended(self, before: Specs, version: str) -> Iterator[News]:
        """The list has ended; that one is no longer there is nothing to tell, its claims tell it."""
        self._listed = True
        return iter(())

    def apply(self, type_: str, spec: Spec) -> News | None:
        """Take over one change."""
        if type_ == "DELETED":
            self._known.pop(spec.metadata.uid, None)
            return None
        return self._put(spec, self._known)

    def _put(self, spec: Spec, known: dict[str, Asked]) -> News | None:
        uid, asked = spec.metadata.uid, spec.asked
        is_news = known.get(uid) != asked
        self._known[uid] = asked
        return News(self._cause, uid, spec.metadata.resource_version) if is_news else None
