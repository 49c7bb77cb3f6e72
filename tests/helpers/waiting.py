"""Waiting for what others do in their own time: real servers, threads, processes."""

from __future__ import annotations

import time
from collections.abc import Callable

_SECONDS = 30.0
_POLL_SECONDS = 0.02


def wait_until(true: Callable[[], object], otherwise: str, seconds: float = _SECONDS) -> None:
    """Return as soon as it is true. Fails the test, saying what is `otherwise`, if it does not become so."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"{otherwise} (waited for {seconds:g} s)"
        time.sleep(_POLL_SECONDS)
