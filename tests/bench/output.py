"""What benchmarks print."""

from __future__ import annotations

import sys


def say(line: str) -> None:
    """Print a line without buffering."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
