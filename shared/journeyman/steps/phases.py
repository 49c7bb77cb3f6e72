"""The order in which the chains of a plan are executed.

1. All nominations with which chains begin: before a node loses its taint.
2. The chains that terminate instances, whose terminations then go to the cloud together.
3. The other chains. Consecutive ones that only patch are sent in parallel (`patch_batches`).
4. The launches of all chains, together, and the rest of each chain as its instance exists.

Within a chain the order holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.plan import Chain, NominatePods, PatchObject, Requeue, TerminateInstance

MAX_PARALLEL_PATCHES: Final = 32
"""Patches that are sent between two checks of the deadline and the Lease."""


class Phases(Struct, frozen=True, kw_only=True):
    """The chains of a plan in the order of their execution; launches come last, from whichever chain they are."""

    nominations: tuple[NominatePods, ...]
    terminating: tuple[Chain, ...]
    others: tuple[tuple[Chain, ...], ...]
    """In groups: chains that only patch, which are sent in parallel, and chains that run one after the other."""


def phases_of(chains: Iterable[Chain]) -> Phases:
    """Return the order in which these chains are executed; those that begin with a nomination are without it."""
    nominations, rest = [], []
    for chain in chains:
        if chain.actions and isinstance(chain.actions[0], NominatePods):
            nominations.append(chain.actions[0])
            rest.append(replace(chain, actions=chain.actions[1:]))
        else:
            rest.append(chain)
    others = [chain for chain in rest if not _terminates(chain)]
    return Phases(
        nominations=tuple(nominations),
        terminating=tuple(chain for chain in rest if _terminates(chain)),
        others=tuple(tuple(group) for _, group in groupby(others, key=has_only_patches)),
    )


def _terminates(chain: Chain) -> bool:
    return any(isinstance(action, TerminateInstance) for action in chain.actions)


def has_only_patches(chain: Chain) -> bool:
    """Whether the chain consists of patches only, apart from requeues, which are recorded with the plan."""
    kinds = {type(action) for action in chain.actions}
    return not chain.then and PatchObject in kinds and kinds <= {PatchObject, Requeue}


def patches_of(chain: Chain) -> tuple[PatchObject, ...]:
    """Return the patches of a chain, in order."""
    return tuple(action for action in chain.actions if isinstance(action, PatchObject))


def patch_batches(chains: Sequence[Chain]) -> Iterator[list[tuple[int, PatchObject]]]:
    """Yield the patches of chains that only patch, with the index of their chain, in batches that can be sent in parallel.

    All first patches come before any second one, and lower waves before higher ones. The patches of a batch are of one
    kind and subresource, and each is of another object, because the second patch of an object needs the version that the
    first one returns.
    """
    batches: dict[tuple[int, int, int, str, str], list[tuple[int, PatchObject]]] = {}
    earlier: Counter[tuple[int, int, str, str, str, str]] = Counter()
    for index, chain in enumerate(chains):
        for position, patch in enumerate(patches_of(chain)):
            ref, rank = patch.ref, (position, chain.wave)
            same_object = (*rank, ref.resource.plural, patch.subresource, ref.namespace, ref.name)
            key = (*rank, earlier[same_object], ref.resource.plural, patch.subresource)
            batches.setdefault(key, []).append((index, patch))
            earlier[same_object] += 1
    for _, batch in sorted(batches.items(), key=lambda entry: entry[0][:3]):
        for start in range(0, len(batch), MAX_PARALLEL_PATCHES):
            yield batch[start : start + MAX_PARALLEL_PATCHES]
