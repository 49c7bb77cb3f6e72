"""Reserved capacity: instances already paid for, each reservation so many.

Restates: karpenter pkg/controllers/provisioning/scheduling/reservationmanager.go.
Differs: a claim holds one reservation, not one slot in each that would suit it; and pods that find every reservation
full go on to spot or on-demand at once, where Karpenter's wait for the next pass.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeClaim
from journeyman.core.scheduling.offering.templates import Template


class Reservations(Struct, eq=False):
    """How many more nodes each reservation has, by id; used up as nodes are opened."""

    left: dict[str, int]

    @classmethod
    def of(cls, templates: Iterable[Template], claims: Iterable[NodeClaim]) -> Reservations:
        """What the NodePools' offerings say, the least where they differ, less what claims hold that have not launched.

        A launched claim's instance is no longer in what the cloud says is left.
        """
        left: dict[str, int] = {}
        for template in templates:
            for name, count in zip(template.table.reservations, template.table.reserved, strict=True):
                left[name] = min(count, left.get(name, count))
        for claim in claims:
            for name in _held_by(claim):
                if name in left:
                    left[name] = max(left[name] - 1, 0)
        return cls(left)

    def copy(self) -> Reservations:
        """The same amounts, used up independently."""
        return Reservations(dict(self.left))

    def take(self, name: str, count: int) -> int:
        """Use up as many of `count` as there are; how many that were."""
        taken = min(count, self.left.get(name, 0))
        self.left[name] = self.left.get(name, 0) - taken
        return taken


def _held_by(claim: NodeClaim) -> tuple[str, ...]:
    if claim.status.provider_id or claim.metadata.deletion_timestamp is not None:
        return ()
    return tuple(
        name
        for entry in claim.spec.requirements
        if entry.key == labels.RESERVATION_ID and entry.operator == "In"
        for name in entry.values
    )
