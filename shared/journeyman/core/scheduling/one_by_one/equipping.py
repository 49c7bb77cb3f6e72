"""Devices for pods with ResourceClaims: which places have them, and what instance types a node then keeps.

Restates: karpenter pkg/controllers/provisioning/scheduling/nodeclaim.go `tryVolumeAlternative`, existingnode.go
`CanAdd`, as far as they allocate dynamic resources.
Differs: what the pod itself wants of its node is known to the search.
"""

from __future__ import annotations

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.scheduling.dra import Allocations, Devices, Proposal
from journeyman.core.scheduling.one_by_one.asks import Ask, Opening
from journeyman.core.scheduling.one_by_one.book import Book
from journeyman.core.scheduling.one_by_one.shelves import Shelf


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
