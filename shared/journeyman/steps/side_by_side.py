"""Which patches of a plan go out together: a fleet that joins at once is written in the time of a few claims.

Chains that do nothing but patch, and that nothing else stands between, are gone through in step: the first patch of each,
then the second… Inside a chain order stays law, and a chain whose patch was refused goes no further. Chains that create,
launch, evict or delete are carried out one after the other, where they stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from journeyman.core.plan import Chain, PatchObject, Requeue

AT_MOST: Final = 32
"""Patches between two looks at the clock and the fence."""

_Kind = tuple[str, str]  # plural, subresource
_Object = tuple[str, str]  # namespace, name


class Track(Struct):
    """A chain and the patches of it that are still to be sent."""

    chain: Chain
    left: list[PatchObject]
    sent: int = 0

    @classmethod
    def of(cls, chain: Chain) -> Track:
        """Nothing sent yet."""
        return cls(chain=chain, left=[a for a in chain.actions if isinstance(a, PatchObject)])


def only_patches(chain: Chain) -> bool:
    """Whether the chain asks for patches and nothing else but requeues, which are noted when a plan is told."""
    kinds = {type(action) for action in chain.actions}
    return not chain.then and PatchObject in kinds and kinds <= {PatchObject, Requeue}


def next_wave(tracks: Sequence[Track]) -> tuple[Track, ...]:
    """Tracks whose next patches may be sent together, in their order; empty once nothing is left.

    No second patch of a chain is sent before every first one. They are of the kind and subresource of the first track's, and
    each is for another object: two patches of one object rest on each other's version.
    """
    kind: _Kind | None = None
    wave: dict[_Object, Track] = {}
    pending = [track for track in tracks if track.left]
    sent = min((track.sent for track in pending), default=0)
    for track in pending:
        if track.sent > sent:
            continue
        patch = track.left[0]
        kind = kind or _kind(patch)
        if _kind(patch) == kind:
            wave.setdefault((patch.ref.namespace, patch.ref.name), track)
    return tuple(wave.values())[:AT_MOST]


def _kind(patch: PatchObject) -> _Kind:
    return patch.ref.resource.plural, patch.subresource
