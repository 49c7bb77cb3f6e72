"""Wait, in real time, for servers, threads and processes."""

from __future__ import annotations

import time
from collections.abc import Callable

_SECONDS = 30.0
_POLL_SECONDS = 0.02


def wait_until(is_true: Callable[[], object], failure: str, seconds: float = _SECONDS) -> None:
    """Return as soon as `is_true` returns true; fail the test with the message `failure` after so many seconds."""
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, f"{failure} (waited for {seconds:g} s)"
        time.sleep(_POLL_SECONDS)
