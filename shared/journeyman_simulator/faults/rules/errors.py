"""Runs fail in the ways that are foreseen, and in no other."""

from __future__ import annotations

from collections.abc import Iterator

from journeyman_simulator.faults.rules import Rule
from journeyman_simulator.faults.scene import RunError


class NothingUnexpected(Rule):
    """No error but ours leaves a run, and no plan is refused by its own check."""

    name = "nothing unexpected is raised"

    def on_error(self, error: RunError) -> Iterator[str]:
        """Looks at each."""
        if not error.expected or error.error == "InvariantError":
            last = error.stack.strip().rpartition("\n")[2]
            yield f"{error.run}: {error.error}: {error.message} {last}".rstrip()
