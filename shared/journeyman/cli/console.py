"""Where commands print: as wide as the terminal, or wide enough for a row where there is none."""

from __future__ import annotations

import os
from typing import Final

from rich.console import Console

_WIDTH_OF_A_FILE: Final = 120  # columns; rich would take 80


def standard_output() -> Console:
    """Standard output. In a pipe or file, lines are 120 columns long unless COLUMNS says otherwise."""
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _WIDTH_OF_A_FILE
    return console
