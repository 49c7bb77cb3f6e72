"""Where nodes are repaired, one that is ill for too long is replaced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final

from journeyman.core.api.objects import Node
from journeyman_simulator.apiserver.server import Write
from journeyman_simulator.faults.rules import Rule
from journeyman_simulator.faults.rules.looking import claim_of, is_leaving, nodes, skew
from journeyman_simulator.faults.scene import Scene

TOLERATED: Final[Mapping[tuple[str, str], timedelta]] = {
    ("AcceleratedHardwareReady", "False"): timedelta(minutes=10),
    **{
        (condition, "False"): timedelta(minutes=30)
        for condition in ("Ready", "StorageReady", "NetworkingReady", "KernelReady", "ContainerRuntimeReady")
    },
    ("Ready", "Unknown"): timedelta(minutes=30),
}
"""What EKS says of its nodes' conditions (Karpenter's policies for AWS)."""
PATIENCE: Final = timedelta(minutes=4)
"""The sweep looks every two minutes; the first of its runs may come to nothing."""


class TheIllAreReplaced(Rule):
    """With the gate on, a node whose illness nobody shares is on its way out soon after what is tolerated; without, never for it."""

    name = "a node that stays ill is replaced"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._skew = skew(scene.story)
        self._since: dict[tuple[str, str, str], datetime] = {}

    def on_write(self, write: Write) -> Iterator[str]:
        """Remembers since when nodes are ill."""
        if write.resource.kind == "Node":
            self._look()
        yield from ()

    def at_tick(self) -> Iterator[str]:
        """Each minute; where several are ill at once it may be the cluster, and all are left alone."""
        self._look()
        if not self.scene.story.setting.node_repair or len({name for name, _, _ in self._since}) != 1:
            return
        for (name, condition, status), since in sorted(self._since.items()):
            ill_for = self.scene.clock.now() - since
            if ill_for > TOLERATED[condition, status] + PATIENCE + self._skew and not self._is_leaving(name):
                yield f"Node {name} has been {condition}={status} since {since:%H:%M:%S}, and stays"

    def _look(self) -> None:
        now = self.scene.clock.now()
        ill = {(n.metadata.name, c, s) for n in nodes(self.scene) for c, s in _illnesses(n)}
        self._since = {key: self._since.get(key, now) for key in ill}

    def _is_leaving(self, name: str) -> bool:
        node = next(node for node in nodes(self.scene) if node.metadata.name == name)
        claim = claim_of(self.scene, node)
        return claim is None or is_leaving(claim) or node.metadata.deletion_timestamp is not None


def _illnesses(node: Node) -> list[tuple[str, str]]:
    told = [(condition.type, condition.status) for condition in node.status.conditions]
    return [key for key in told if key in TOLERATED]
