"""What the pods of one row ask of a place, prepared once for all of them.

Restates: karpenter pkg/controllers/provisioning/scheduling/scheduler.go `PodData`; preferences.go
`removeRequiredNodeAffinityTerm`: the terms of a required node affinity are tried one after the other.

Devices for pods with ResourceClaims: which places have them, and what instance types a node then keeps.

Restates: karpenter pkg/controllers/provisioning/scheduling/nodeclaim.go `tryVolumeAlternative`, existingnode.go
`CanAdd`, as far as they allocate dynamic resources.
Differs: what the pod itself wants of its node is known to the search.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.scheduling.arrays import Bools
from journeyman.core.scheduling.instance_type_choice import held
from journeyman.core.scheduling.offering.wishes import Shape
from journeyman.core.scheduling.problem import Question
from journeyman.core.scheduling.requirements import Requirements
from journeyman.core.scheduling.sequential.offering_masks import NONE, Book, Shelf
from journeyman.core.scheduling.sequential.topology_rules import Rules

if TYPE_CHECKING:  # imported at run time only where pods have ResourceClaims
    from journeyman.core.scheduling.dra import Allocations, Devices, Proposal


class Opening(Struct, frozen=True):
    """A way to open a node: what its claim asks for (a number), the offerings it leaves, the reservation it draws on."""

    wanted: int
    offerings: int
    reservation: str = ""


class Ask:
    """One row by one of its terms: `amounts` as (axis, how much), `rules` between pods.

    `wishes` are the term with each of the alternatives that its volumes leave (numbers).
    """

    def __init__(self, question: Question, row: int, term: Requirements, rules: Rules, book: Book) -> None:
        """Prepare a row."""
        cls = question.rows[row]
        self.row = row
        self.rules = rules
        self.ports = cls.ports
        self.cls = cls
        self.amounts: tuple[tuple[int, int], ...] = tuple(
            (axis, amount) for axis, amount in enumerate(question.requests[row].tolist()) if amount
        )
        both = [term & volumes for volumes in cls.volume_terms]
        wishes = [wanted for wanted in both if not any(r.impossible for r in wanted.values())]
        self.wishes = tuple(book.number(wanted) for wanted in wishes)
        self._book = book
        self._shape = Shape.of(cls)
        columns = question.existing.columns
        self._open: Bools = columns.meeting(wishes) & columns.accepted(
            cls.tolerations, heeds_preferences=cls.heeds_preferences
        )  # by place; grows with the places
        self._openings: dict[int, tuple[Opening, ...]] = {}

    def may_go(self, places: int) -> Bools:
        """By place, whether it may still take one of these; places that once refused for good are left out."""
        if places > len(self._open):
            more = np.ones(max(2 * places, 64), dtype=bool)
            more[: len(self._open)] = self._open
            self._open = more
        return self._open[:places]

    def rule_out(self, place: int) -> None:
        """The place will never take one of these again."""
        self._open[place] = False

    def on_new(self, shelf: Shelf) -> Sequence[Opening]:
        """The ways to open a node for one of these."""
        found = self._openings.get(shelf.index)
        if found is None:
            found = self._openings[shelf.index] = tuple(self._found(shelf)) if self.tolerates(shelf) else ()
        return found

    def _found(self, shelf: Shelf) -> Iterator[Opening]:
        holding = shelf.free_of(self.ports)
        for axis, amount in self.amounts:
            holding &= shelf.holding(axis, amount)
        for wish in self.wishes:
            wanted = self._book.narrowed(shelf.offer, wish)
            if wanted == NONE:
                continue
            if left := shelf.suiting(wanted) & shelf.ordinary & holding:
                yield Opening(wanted, left)
            for name, offerings in shelf.reserved:
                reserved = self._book.number(held(self._book[wanted], name))
                if left := shelf.suiting(reserved) & offerings & holding:
                    yield Opening(reserved, left, name)

    def tolerates(self, shelf: Shelf) -> bool:
        """Whether the pool's taints let these in."""
        return self._shape.accepts(shelf.stall.template.pool.spec.template.spec.taints)


class Equipped(Struct, frozen=True):
    """A node to open with the devices that a pod needs: its requirements (a number) and offerings once it has them."""

    wanted: int
    offerings: int
    proposal: Proposal


class Equipping:
    """Who has which devices, as places see it.

    A place that could not serve a row is not asked again before that may have changed: devices became free, or, where
    pods share a claim, anything was decided.
    """

    def __init__(self, devices: Devices, allocations: Allocations, book: Book) -> None:
        """Go on from `allocations`, which is changed."""
        self._devices = devices
        self.allocations = allocations
        self._book = book
        self._changes = 0
        self._failed: dict[tuple[int, ...], int] = {}

    def on_standing(self, place: int, ask: Ask, pods: int) -> bool:
        """Give the next pod of a row, of which there are so many already, its devices on an existing node, if it can."""
        case, now = (place, ask.row), self._now(ask)
        if self._failed.get(case) == now:
            return False
        proposal = self.allocations.propose(place, self._devices.spot(place), ask.cls.claims, ask.row, pods)
        if proposal is None:
            self._failed[case] = now
            return False
        self.allocations.commit(place, proposal)
        self._changes += 1
        return True

    def on_open(self, place: int, shelf: Shelf, opening: Opening, ask: Ask, pods: int) -> Equipped | None:
        """How a node opened this way could have the devices that the next pod of a row needs; None if it cannot."""
        wanted, offerings = opening.wanted, opening.offerings
        case = (place, ask.row, shelf.index, wanted, offerings)
        now = self._now(ask)
        if self._failed.get(case) == now:
            return None
        names = shelf.type_names(offerings)
        spot = self._devices.new_spot(shelf.instance_types(offerings), self._book[wanted])
        proposal = self.allocations.propose(place, spot, ask.cls.claims, ask.row, pods)
        left = 0
        if proposal is not None:
            number = self._book.number(proposal.offer)
            if len(proposal.types) < len(names):
                kept = [name for name in names if name in proposal.types]
                number = self._book.narrowed(number, self._book.pin(labels.INSTANCE_TYPE, kept))
            left = offerings & shelf.suiting(number)
            if left and proposal.types.issuperset(shelf.type_names(left)):  # types that do not name themselves do not
                return Equipped(number, left, proposal)
        self._failed[case] = now
        return None

    def _now(self, ask: Ask) -> int:
        """A number that changes when a search that failed for such pods may succeed."""
        alone = all(not claim.key for claim in ask.cls.claims)
        return self.allocations.releases if alone else self.allocations.releases + self._changes

    def decide(self, place: int, shelf: Shelf, offerings: int, equipped: Equipped | None) -> None:
        """A node to open has these offerings left now; with the devices that its new pod gets, if it needs any."""
        if equipped is not None:
            self.allocations.commit(place, equipped.proposal, shelf.type_names(offerings))
        elif self.allocations.at(place):
            self.allocations.keep(place, shelf.type_names(offerings))
        else:
            return
        self._changes += 1
