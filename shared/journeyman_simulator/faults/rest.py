"""Whether a cluster is at rest: nothing changes any more, and nobody is on the way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from journeyman.core.api.conditions import INITIALIZED
from journeyman.core.api.objects import NODE, NODE_DISRUPTION, NODECLAIM, POD, is_true
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.faults.scene import CloudInstance

_UNENDED: Final = frozenset({"", "Proposed", "Executing"})


def state(server: ApiServer) -> list[object]:
    """What changes as long as anybody is busy, without the moments at which it did. Compare, and nothing else."""
    claims = [
        (c.metadata.name, bool(c.metadata.deletion_timestamp), [(x.type, x.status) for x in c.status.conditions])
        for c in server.list(NODECLAIM).items
    ]
    nodes = [
        (n.metadata.name, bool(n.metadata.deletion_timestamp), [(t.key, t.value) for t in n.spec.taints])
        for n in server.list(NODE).items
    ]
    pods = [(p.key, p.status.phase, p.spec.node_name) for p in server.list(POD).items]
    commands = [(d["metadata"]["name"], _phase(d)) for d in server.list(NODE_DISRUPTION).items]
    return [claims, nodes, pods, commands]


def unfinished(server: ApiServer) -> list[str]:
    """What is still on the way, a sentence each."""
    claims = server.list(NODECLAIM).items
    commands = server.list(NODE_DISRUPTION).items
    return [
        *(f"NodeClaim {c.metadata.name} is leaving" for c in claims if c.metadata.deletion_timestamp),
        *(f"Node {n.metadata.name} is leaving" for n in server.list(NODE).items if n.metadata.deletion_timestamp),
        *(f"pod {p.key} is leaving" for p in server.list(POD).items if p.metadata.deletion_timestamp),
        *(f"NodeClaim {c.metadata.name} is not initialized" for c in claims if not _is_initialized(c)),
        *(f"NodeDisruption {d['metadata']['name']} has not ended" for d in commands if _phase(d) in _UNENDED),
    ]


def pods_wait(server: ApiServer) -> bool:
    """Whether a pod has no node, or does not run yet."""
    return any(pod.status.phase == "Pending" for pod in server.list(POD).items)


def leftovers(server: ApiServer, instances: Iterable[CloudInstance]) -> Iterator[str]:
    """What a cluster from which all was taken away should not have, a sentence each."""
    yield from (f"NodeClaim {claim.metadata.name} is there" for claim in server.list(NODECLAIM).items)
    yield from (f"Node {node.metadata.name} is there" for node in server.list(NODE).items)
    yield from (f"instance {i.provider_id} is {i.state}" for i in instances if i.runs)


def _is_initialized(claim: Any) -> bool:
    return is_true(claim.status.conditions, INITIALIZED)


def _phase(command: dict[str, Any]) -> str:
    return str((command.get("status") or {}).get("phase", ""))
