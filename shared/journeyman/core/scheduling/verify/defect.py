"""What `verify` finds: a sentence for people, and for the program the nodes without which the rest may be right."""

from __future__ import annotations

from msgspec import Struct


class Defect(Struct, frozen=True):
    """Something that is wrong with a plan.

    `places` are the nodes that are wrong, by the names that sentences have for them (`Place.name`): standing ones or
    planned ones. There are none where no node is wrong by itself: of several that are too much together, or of a pod
    that was forgotten.
    """

    sentence: str
    places: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.sentence
