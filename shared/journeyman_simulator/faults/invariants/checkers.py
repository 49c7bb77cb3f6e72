"""The rules that no story may break: small judges, each of one promise, who share no code with those who decide.

A rule is made anew for each story. It is told what happens, in order, and answers with what is wrong, one sentence each;
`Judges` keeps the sentences.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct

from journeyman_simulator.apiserver.server import Write
from journeyman_simulator.faults.scenario_view import CloudEvent, RunError, Scene


class Broken(Struct, frozen=True, kw_only=True):
    """A rule was broken: which, what happened, when."""

    rule: str
    what: str
    at: datetime

    def __str__(self) -> str:
        return f"{self.at:%H:%M:%S} {self.rule}: {self.what}"


class Rule:
    """One promise. A rule overrides what it needs to see; each method yields what is wrong, as a sentence."""

    name: str

    def __init__(self, scene: Scene) -> None:
        """Args: `scene` is asked for whatever the rule is not told."""
        self.scene = scene

    def on_write(self, write: Write) -> Iterable[str]:
        """The API server accepted a write; its caller does not know yet."""
        return ()

    def on_cloud(self, event: CloudEvent) -> Iterable[str]:
        """Something happened to an instance."""
        return ()

    def on_error(self, error: RunError) -> Iterable[str]:
        """A run reported an error."""
        return ()

    def at_tick(self) -> Iterable[str]:
        """A minute has passed: the schedule is about to invoke the sweep (or would, in stories without one)."""
        return ()

    def at_rest(self) -> Iterable[str]:
        """The storm is over and the cluster has come to rest."""
        return ()


class Judges:
    """All rules of one story, and what they found."""

    def __init__(self, scene: Scene, rules: Iterable[type[Rule]]) -> None:
        self._clock = scene.clock
        self._rules = [rule(scene) for rule in rules]
        self.broken: list[Broken] = []

    def on_write(self, write: Write) -> None:
        """Tell all of them."""
        for rule in self._rules:
            self._keep(rule, rule.on_write(write))

    def on_cloud(self, event: CloudEvent) -> None:
        """Tell all of them."""
        for rule in self._rules:
            self._keep(rule, rule.on_cloud(event))

    def on_error(self, error: RunError) -> None:
        """Tell all of them."""
        for rule in self._rules:
            self._keep(rule, rule.on_error(error))

    def at_tick(self) -> None:
        """Ask all of them."""
        for rule in self._rules:
            self._keep(rule, rule.at_tick())

    def at_rest(self) -> None:
        """Ask all of them."""
        for rule in self._rules:
            self._keep(rule, rule.at_rest())

    def report(self, rule: str, what: str) -> None:
        """What the teller of the story itself found broken."""
        self.broken.append(Broken(rule=rule, what=what, at=self._clock.now()))

    def _keep(self, rule: Rule, found: Iterable[str]) -> None:
        for what in found:
            self.report(rule.name, what)
