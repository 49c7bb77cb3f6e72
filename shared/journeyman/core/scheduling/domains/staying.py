"""Pods that stay with the claim opened for them, once all others are placed: is their spread still kept?"""

from __future__ import annotations

from collections.abc import Sequence

from journeyman.core.scheduling.domains.ledger import Ledger, is_wide
from journeyman.core.scheduling.draft import Draft, Question
from journeyman.core.scheduling.keeping import Kept


def no_longer_level(question: Question, draft: Draft, kept: Sequence[Kept]) -> tuple[Kept, ...]:
    """Those of them that are too many where they are, as a finished draft has it."""
    spread = [entry for entry in kept if any(is_wide(s.group) for s in question.rows[entry.row].spreads)]
    if not spread:
        return ()
    ledger = Ledger(question)
    ledger.enter_draft(draft)
    return tuple(e for e in spread if ledger.is_out_of_place(e.row, question.existing.nodes[e.node].labels))
