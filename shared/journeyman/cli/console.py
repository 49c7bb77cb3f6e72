"""The console of commands."""

from __future__ import annotations

import os
from typing import Final

from rich.console import Console

_FILE_WIDTH: Final = 120  # columns; rich would take 80


def standard_output() -> Console:
    """Return the console for standard output; without a terminal it is 120 columns wide, unless COLUMNS is set."""
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _FILE_WIDTH
    return console
