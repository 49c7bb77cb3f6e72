"""The labels and taints of existing nodes as columns, so that a wish is judged for all of them at once.

Many nodes share few values: a wish is held against each value once, and the verdict looked up for every node.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import TypeVar

import numpy as np

from journeyman.core.api.objects import Taint, Toleration
from journeyman.core.scheduling.arrays import Bools, Ints
from journeyman.core.scheduling.demand.topology import Pins
from journeyman.core.scheduling.requirements import Requirement, Requirements
from journeyman.core.scheduling.taints import discouraged, untolerated
from journeyman.core.state.state_node import StateNode

T = TypeVar("T", bound=Hashable)


class NodeColumns:
    """Nodes in a fixed order. The arrays it gives have an entry per node, and are not to be changed."""

    def __init__(self, nodes: Sequence[StateNode]) -> None:
        self._nodes = nodes
        self._labels: dict[str, tuple[Ints, tuple[str | None, ...]]] = {}
        self._cells: dict[tuple[str, ...], tuple[tuple[Pins, Bools], ...]] = {}
        self._of: tuple[NodeColumns, Ints] | None = None

    def only(self, places: Ints) -> NodeColumns:
        """Some of the nodes, in the order given; what is found out about a label is found out for all."""
        chosen = NodeColumns([self._nodes[place] for place in places.tolist()])
        chosen._of = self, places
        return chosen

    def label(self, key: str) -> tuple[Ints, tuple[str | None, ...]]:
        """A label as (codes, value per code); None where a node does not have it. Not every code need occur."""
        if key not in self._labels:
            if self._of is not None:
                whole, places = self._of
                codes, values = whole.label(key)
                self._labels[key] = codes[places], values
            else:
                self._labels[key] = _numbered([node.labels.get(key) for node in self._nodes])
        return self._labels[key]

    @cached_property
    def taints(self) -> tuple[Ints, tuple[tuple[Taint, ...], ...]]:
        """The taints, a cordon among them, as (codes, taints per code)."""
        if self._of is not None:
            whole, places = self._of
            codes, taints = whole.taints
            return codes[places], taints
        return _numbered([(*node.taints, *_cordon(node)) for node in self._nodes])

    def cells(self, keys: tuple[str, ...]) -> tuple[tuple[Pins, Bools], ...]:
        """The combinations of values of these labels that nodes have, each with its nodes; those one lacks are left out."""
        if keys not in self._cells:
            self._cells[keys] = self._find_cells(keys)
        return self._cells[keys]

    def _find_cells(self, keys: tuple[str, ...]) -> tuple[tuple[Pins, Bools], ...]:
        if self._of is not None:
            whole, places = self._of
            found = ((pins, nodes[places]) for pins, nodes in whole.cells(keys))
            return tuple((pins, nodes) for pins, nodes in found if nodes.any())
        values = [tuple((key, node.labels[key]) for key in keys if key in node.labels) for node in self._nodes]
        codes, pins_of = _numbered(values)
        return tuple((pins, codes == code) for code, pins in enumerate(pins_of))

    def accepted(self, tolerations: Sequence[Toleration], *, heeds_preferences: bool) -> Bools:
        """On which nodes no taint (a cordon is one) keeps these tolerations away."""
        codes, taints = self.taints
        verdicts = [
            untolerated(t, tolerations) is None and not (heeds_preferences and discouraged(t, tolerations))
            for t in taints
        ]
        return _looked_up(verdicts, codes)

    def meeting(self, terms: Sequence[Requirements]) -> Bools:
        """Which nodes suit one of these terms, strictly: an undefined label suits no demand."""
        found: Bools = np.zeros(len(self._nodes), dtype=bool)
        for term in terms:
            suits: Bools = np.ones(len(self._nodes), dtype=bool)
            for key, wish in term.items():
                codes, values = self.label(key)
                suits &= _looked_up([_meets(wish, value) for value in values], codes)
            found |= suits
        return found

    def pinned(self, pins: Pins) -> Bools:
        """Which nodes have all these labels."""
        found: Bools = np.ones(len(self._nodes), dtype=bool)
        for key, wanted in pins:
            codes, values = self.label(key)
            found &= _looked_up([value == wanted for value in values], codes)
        return found


def _meets(wish: Requirement, value: str | None) -> bool:
    if wish.impossible:
        return False
    return wish.allows_absence if value is None else wish.has(value)


def _cordon(node: StateNode) -> tuple[Taint, ...]:
    """What a cordon means to kube-scheduler, whether the node has its taint yet or not."""
    if node.node is None or not node.node.spec.unschedulable:
        return ()
    return (Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule"),)


def _looked_up(verdicts: Sequence[bool], codes: Ints) -> Bools:
    found: Bools = np.array(verdicts, dtype=bool)[codes]
    return found


def _numbered(entries: Sequence[T]) -> tuple[Ints, tuple[T, ...]]:
    """Entries as numbers, and what each number stands for, in order of appearance."""
    numbers: dict[T, int] = {}
    codes = [numbers.setdefault(entry, len(numbers)) for entry in entries]
    return np.array(codes, dtype=np.int64), tuple(numbers)
