"""Tunes Python's garbage collector to short runs."""

from __future__ import annotations

import gc


def collect_rarely() -> None:
    """Collect reference cycles a hundred times less often than by default.

    A run creates hundreds of thousands of values without cycles, most of which live as long as the run. Scanning them
    repeatedly takes a tenth of the time of a large decision.
    """
    gc.set_threshold(100_000, 50, 100)
