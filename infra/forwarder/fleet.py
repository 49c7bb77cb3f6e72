"""Nodes and claims: whether they are there, ready, leaving. What happened to them is news; what they are is not kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from infra.forwarder.news import Cause, News

_NODE_POOL: Final = "karpenter.sh/nodepool"


class Node(NamedTuple):
    """A node; `ready` as its condition says, `leaving` if it is being deleted."""

    name: str
    ready: bool
    version: str
    leaving: bool = False


class ClaimMetadata(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """`metadata`, as much of it as is read."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None


class Claim(msgspec.Struct, frozen=True, gc=False):
    """A NodeClaim."""

    metadata: ClaimMetadata = ClaimMetadata()

    @property
    def leaving(self) -> bool:
        """Whether it is being deleted."""
        return self.metadata.deletion_timestamp is not None

    @property
    def of_a_pool(self) -> bool:
        """Whether it was made for a NodePool, which the steps do themselves."""
        return _NODE_POOL in (self.metadata.labels or {})


class Nodes:
    """The nodes by name, whether each is ready, and which are being deleted."""

    wants_list: Final = False

    def __init__(self) -> None:
        self._ready: dict[str, bool] = {}
        self._leaving: set[str] = set()
        self._listed = False

    def fresh(self) -> Nodes:
        """An empty one, to list into."""
        return Nodes()

    def take_page(self, nodes: Iterable[Node], before: Nodes) -> Iterator[News]:
        """Take over a page of a list; differences from `before` are news.

        If that was never listed only those that are being deleted are: who deleted them may have been heard by nobody.
        """
        for node in nodes:
            self._put(node)
            cause = before._cause(node)
            if cause and (before._listed or cause is Cause.NODE_DELETING):
                yield News(cause, node.name, node.version)

    def ended(self, before: Nodes, version: str) -> Iterator[News]:
        """The list has ended: nodes that `before` had and that are not there are gone."""
        self._listed = True
        for name in before._ready.keys() - self._ready.keys():
            yield News(Cause.NODE_GONE, name, version)

    def apply(self, type_: str, node: Node) -> News | None:
        """Take over one change."""
        if type_ == "DELETED":
            self._ready.pop(node.name, None)
            self._leaving.discard(node.name)
            return News(Cause.NODE_GONE, node.name, node.version)
        cause = self._cause(node)
        self._put(node)
        return News(cause, node.name, node.version) if cause else None

    def _put(self, node: Node) -> None:
        self._ready[node.name] = node.ready
        if node.leaving:
            self._leaving.add(node.name)
        else:
            self._leaving.discard(node.name)  # another one of its name

    def _cause(self, node: Node) -> Cause | None:
        """What is new about it; that it is being deleted matters most."""
        if node.leaving and node.name not in self._leaving:
            return Cause.NODE_DELETING
        was_ready = self._ready.get(node.name)
        if was_ready is None:
            return Cause.NODE_JOINED
        if was_ready == node.ready:
            return None
        return Cause.NODE_READY if node.ready else Cause.NODE_NOT_READY


class Claims:
    """The NodeClaims by UID, and whether each is being deleted."""

    wants_list: Final = False

    def __init__(self) -> None:
        self._leaving: dict[str, bool] = {}
        self._listed = False

    def fresh(self) -> Claims:
        """An empty one, to list into."""
        return Claims()

    def take_page(self, claims: Iterable[Claim], before: Claims) -> Iterator[News]:
        """Take over a page of a list; differences from `before` are news, unless that was never listed."""
        for claim in claims:
            uid, leaving = claim.metadata.uid, claim.leaving
            self._leaving[uid] = leaving
            if before._listed and (cause := _claim_cause(before._leaving.get(uid), claim)):
                yield News(cause, uid, claim.metadata.resource_version)

    def ended(self, before: Claims, version: str) -> Iterator[News]:
        """The list has ended. The first one tells that there are claims, whatever became of them while nobody watched."""
        self._listed = True
        if self._leaving and not before._listed:
            yield News(Cause.STARTED, "claims", version)
        for uid in before._leaving.keys() - self._leaving.keys():
            yield News(Cause.CLAIM_GONE, uid, version)

    def apply(self, type_: str, claim: Claim) -> News | None:
        """Take over one change."""
        uid, version = claim.metadata.uid, claim.metadata.resource_version
        if type_ == "DELETED":
            self._leaving.pop(uid, None)
            return News(Cause.CLAIM_GONE, uid, version)
        cause = _claim_cause(self._leaving.get(uid), claim)
        self._leaving[uid] = claim.leaving
        return News(cause, uid, version) if cause else None


def _claim_cause(was_leaving: bool | None, claim: Claim) -> Cause | None:
    if claim.leaving and not was_leaving:
        return Cause.CLAIM_DELETING
    return Cause.CLAIM_CREATED if was_leaving is None and not claim.of_a_pool else None
