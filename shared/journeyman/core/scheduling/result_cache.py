"""Answers that still hold: of a cluster that did not change nobody asks the scheduler the same thing twice.

A run that waits for its nodes, or looks for nodes to give back, mostly finds the cluster as the run before left it. The
scheduler and its check are pure and know no time, so the same pods in the same cluster have the same answer; a warm
process keeps the answers about the state that it saw last. Losing them costs time, nothing else.

Serves the purpose of karpenter pkg/controllers/state/cluster.go `ConsolidationState`.
Differs: what counts is what is stored, each object's version, and not which watch events came in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any, Final

from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.options import Options
from journeyman.core.scheduling.results import Results
from journeyman.core.state.snapshot import Snapshot, Workloads

Question = tuple[tuple[str, ...], frozenset[str], str]
"""The keys of the pods to place, the names of the nodes to think away, and in which way."""


class ResultCache:
    """Those of one cluster, as long as it is asked about in the same state."""

    def __init__(self) -> None:
        """None yet."""
        self._state: tuple[object, ...] | None = None
        self._catalogue: Catalogue | None = None
        self._known: dict[Question, Results] = {}

    def about(self, snapshot: Snapshot, catalogue: Catalogue, options: Options) -> dict[Question, Results]:
        """What is known of this cluster, for its callers to add to; nothing if anything in it has changed.

        Catalogues are compared by identity, as `steps.load` keeps them.
        """
        state = (options, *_state(snapshot))
        is_same = self._catalogue is catalogue and self._state == state and None not in state
        if not is_same:
            self._state, self._catalogue, self._known = state, catalogue, {}
        return self._known


def _state(snapshot: Snapshot) -> Iterator[object]:
    """All of a snapshot but the time, objects by their UIDs and versions; None where an object has no version."""
    for part in _PARTS:
        yield _versions(getattr(snapshot, part))
    for part in Workloads.__struct_fields__:
        yield _versions(getattr(snapshot.workloads, part))


def _versions(items: Iterable[Any]) -> tuple[object, ...] | None:
    found: list[object] = []
    for item in items:
        version = _VERSION(item) if hasattr(item, "metadata") else item
        if version is not item and not version[1]:
            return None  # it is stored nowhere: a pod that a CapacityBuffer stands for
        found.append(version)
    return tuple(found)


_PARTS: Final = tuple(name for name in Snapshot.__struct_fields__ if name not in {"cluster", "now", "workloads"})
_VERSION: Final = attrgetter("metadata.uid", "metadata.resource_version")
