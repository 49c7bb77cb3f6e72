"""Caches solver results, keyed by the resource versions that they were computed from.

A run that waits for its nodes, or considers consolidation, mostly finds the cluster as the run before left it. The
solver and its verification are pure and read no clock, so equal pods in an equal cluster have equal results. A warm
process keeps the results for the cluster state it read last; losing them costs time only.

Serves the purpose of karpenter pkg/controllers/state/cluster.go `ConsolidationState`.
Differs: the stored versions of the objects decide, not which watch events arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any, Final

from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.results import Options, Results
from journeyman.core.state.snapshot import Snapshot, Workloads

ProblemKey = tuple[tuple[str, ...], frozenset[str], str]
"""The keys of the pods to schedule, the names of the nodes that are assumed gone, and the kind of solve."""


class StateResults:
    """The results for one state of a cluster."""

    def __init__(self) -> None:
        """Start without any."""
        self._results: dict[ProblemKey, Results] = {}

    def __len__(self) -> int:
        return len(self._results)

    def get(self, key: ProblemKey) -> Results | None:
        """Return the results of this problem, None if it was not solved in this state."""
        return self._results.get(key)

    def store(self, key: ProblemKey, results: Results) -> None:
        """Keep the results of a problem."""
        self._results[key] = results


class ResultCache:
    """The results for the last state of one cluster."""

    def __init__(self) -> None:
        """Start without any."""
        self._state: tuple[object, ...] | None = None
        self._catalogue: Catalogue | None = None
        self._results = StateResults()

    def results_for(self, snapshot: Snapshot, catalogue: Catalogue, options: Options) -> StateResults:
        """Return the results for this state; none if anything in the cluster, the catalogue or the options has changed.

        Catalogues are compared by identity, as `steps.load` keeps them.
        """
        state = (options, *_state(snapshot))
        is_same = self._catalogue is catalogue and self._state == state and None not in state
        if not is_same:
            self._state, self._catalogue, self._results = state, catalogue, StateResults()
        return self._results


def _state(snapshot: Snapshot) -> Iterator[object]:
    """Yield each part of a snapshot but the time as UIDs and resource versions; None where an object has no version."""
    for part in _PARTS:
        yield _versions(getattr(snapshot, part))
    for part in Workloads.__struct_fields__:
        yield _versions(getattr(snapshot.workloads, part))


def _versions(items: Iterable[Any]) -> tuple[object, ...] | None:
    found: list[object] = []
    for item in items:
        version = _VERSION(item) if hasattr(item, "metadata") else item
        if version is not item and not version[1]:
            return None  # it is not stored: a virtual pod of a CapacityBuffer
        found.append(version)
    return tuple(found)


_PARTS: Final = tuple(name for name in Snapshot.__struct_fields__ if name not in {"cluster", "now", "workloads"})
_VERSION: Final = attrgetter("metadata.uid", "metadata.resource_version")
