"""Removes startup taints of Ready nodes, as the agents that set a node up do (a CNI, a driver). An `Actor`."""

from __future__ import annotations

from datetime import datetime

import msgspec

from journeyman.core.api import labels
from journeyman.core.api.objects import NODE, NODEPOOL, Node, is_true
from journeyman_simulator.apiserver import ApiServer


class StartupTaintRemover:
    """Removes the startup taints of each NodePool from its nodes once they are Ready and registered."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._seen = ""

    def due(self) -> datetime | None:
        """Return None: it acts on changes of the cluster only."""
        return None

    def act(self) -> bool:
        """Remove the taints that are due; return whether there was one."""
        if self._server.resource_version == self._seen:
            return False
        self._seen = self._server.resource_version
        startup = {
            (pool["metadata"]["name"], taint["key"])
            for pool in self._server.list(NODEPOOL).items
            for taint in pool["spec"]["template"]["spec"].get("startupTaints", ())
        }
        nodes = [node for node in self._server.list(NODE).items if self._is_set_up(node)]
        changed = False
        for node in nodes:
            pool = node.metadata.labels.get(labels.NODEPOOL, "")
            kept = [taint for taint in node.spec.taints if (pool, taint.key) not in startup]
            if len(kept) < len(node.spec.taints):
                patch = {"spec": {"taints": msgspec.to_builtins(kept)}}
                self._server.patch(NODE, node.metadata.name, patch)
                changed = True
        return changed

    def _is_set_up(self, node: Node) -> bool:
        is_registered = labels.UNREGISTERED_TAINT not in {taint.key for taint in node.spec.taints}
        return is_registered and is_true(node.status.conditions, "Ready")
