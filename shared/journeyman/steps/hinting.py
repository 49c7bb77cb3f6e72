"""The placement hints of one run: given, counted, given again to who lost them; given up where they are hopeless."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from journeyman.core.plan import NominatePods
from journeyman.steps.context import RunContext
from journeyman.steps.nominating import is_gone, nominate, nominate_again


class Hints:
    """Hints are no more than that: who cannot be given one is told of, and keeps nothing waiting.

    Args:
        run: Whose hints they are.
        count: Adds to the run's counts.
    """

    def __init__(self, run: RunContext, count: Callable[[str, int], None]) -> None:
        self._run = run
        self._count = count
        self._given: list[NominatePods] = []
        self._given_up = False

    @property
    def may_be_lost(self) -> bool:
        """Whether there are any that kube-scheduler may take back."""
        return bool(self._given) and not self._given_up

    def give(self, *actions: NominatePods) -> None:
        """Nominate pods, or take their nominations back; a refusal that is not about one pod alone ends it for this run."""
        asked = sum(len(action.pods) for action in actions)
        if self._given_up or not asked:
            self._count("hints not given", asked)
            return
        outcome = nominate(self._run.store, actions)
        self._given += [action for action in actions if action.node and outcome.given]
        self._count("hints", outcome.given)
        self._count("hints not given", asked - outcome.given)
        self._given_up = outcome.is_hopeless
        for hint, error in outcome.refused[: 1 if outcome.is_hopeless else None]:
            level = "debug" if is_gone(error) else "warning"
            text = f"{hint.pod} is not nominated to node {hint.node}: {error.message}"
            fields = {key: str(value) for key, value in error.context.items()}
            self._run.telemetry.log(level, text, error=type(error).__name__, **fields)
        if outcome.is_hopeless:
            self._run.telemetry.log("warning", "no more placement hints in this run")

    def expect(self, given: Iterable[NominatePods]) -> None:
        """Look after these as well, which an earlier run gave."""
        self._given += given

    def give_again(self) -> None:
        """Who lost the nomination meanwhile gets it again."""
        if self.may_be_lost:
            self._count("hints given again", nominate_again(self._run.store, self._given))

    def forget(self) -> None:
        """Look after none of them any longer."""
        self._given.clear()
