"""Nodes are given back only once what replaces them is there, and only if that is cheaper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from journeyman_simulator.apiserver.server import Write
from journeyman_simulator.faults.rules import Rule
from journeyman_simulator.faults.rules.looking import (
    COMMAND_ANNOTATION,
    candidates,
    claim_named,
    commands,
    is_ours,
    phase,
    says,
)
from journeyman_simulator.faults.scene import CloudEvent, CloudInstance, Scene


class ReplacementsFirst(Rule):
    """A node that is given back goes after all that its command opened in its place were initialized.

    A replacement that is withdrawn before it was launched is none.
    """

    name = "replacements first"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._initialized: set[str] = set()

    def on_write(self, write: Write) -> Iterator[str]:
        """Looks at each claim that the consolidate step deletes."""
        if write.resource.kind != "NodeClaim":
            return
        if says(write.result, "Initialized"):
            self._initialized.add(write.name)
        if write.verb == "delete" and is_ours(write, "consolidate") and says(write.result, "Launched"):
            yield from self._judged(write.name)

    def _judged(self, name: str) -> Iterator[str]:
        taking = [c for c in commands(self.scene) if name in candidates(c) and phase(c) == "Executing"]
        if not taking:
            yield f"NodeClaim {name} was deleted, and no command that is under way takes it"
        for command in taking:
            awaited = [r["name"] for r in command["spec"].get("replacements", ())]
            if missing := [r for r in awaited if r not in self._initialized]:
                whose = command["metadata"]["name"]
                yield f"NodeClaim {name} was deleted before {', '.join(missing)} of {whose} was initialized"


class PricesFall(Rule):
    """What consolidation opens costs less than what it gives back, all together, as launched."""

    name = "price never raised by consolidation"

    def on_cloud(self, event: CloudEvent) -> Iterator[str]:
        """Adds up when the last replacement is launched."""
        claim = claim_named(self.scene, event.instance.claim)
        if event.kind != "launched" or claim is None:
            return
        name = claim.metadata.annotations.get(COMMAND_ANNOTATION, "")
        for command in commands(self.scene):
            if command["metadata"]["name"] == name and command["spec"]["reason"] == "Underutilized":
                yield from self._judged(command)

    def _judged(self, command: Mapping[str, Any]) -> Iterator[str]:
        by_claim: dict[str, CloudInstance] = {i.claim: i for i in self.scene.instances()}
        new = [by_claim.get(r["name"]) for r in command["spec"].get("replacements", ())]
        old = [by_claim.get(name) for name in candidates(command)]
        before = sum(i.price for i in old if i is not None)
        after = sum(i.price for i in new if i is not None)
        if None not in old and after >= before:
            yield f"{command['metadata']['name']} gives back {before:.4f} an hour and opens {after:.4f}"
