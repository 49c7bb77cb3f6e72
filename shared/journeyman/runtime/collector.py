"""Tunes Python's garbage collector to our runs."""

from __future__ import annotations

import gc


def collect_rarely() -> None:
    """Look for cycles a hundred times less often than by default.

    A run makes hundreds of thousands of values without cycles, and most live as long as the run: looking through them
    again and again takes a tenth of a large decision.
    """
    gc.set_threshold(100_000, 50, 100)
