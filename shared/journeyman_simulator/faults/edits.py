"""What somebody writes who edits a NodeClaim or a Node by hand, and knows what they do wrong."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from journeyman.core.api.conditions import format_time, to_wire
from journeyman.core.api.objects import NodeClaim
from journeyman_simulator.faults.manifests import DO_NOT_DISRUPT
from journeyman_simulator.faults.story import Change, NodeChange, StatusChange

JSON = Mapping[str, Any]

_OF_CLAIMS: Final[Mapping[str, JSON]] = {
    "drop-pool-label": {"metadata": {"labels": {"karpenter.sh/nodepool": None}}},
    "drop-hash": {"metadata": {"annotations": {"karpenter.sh/nodepool-hash": None}}},
    "do-not-disrupt": {"metadata": {"annotations": {DO_NOT_DISRUPT: "true"}}},
    "foreign-label": {"metadata": {"labels": {"example.com/edited": "by-hand"}}},
    "drop-class-label": {"metadata": {"labels": {"karpenter.k8s.aws/ec2nodeclass": None}}},
    "drop-finalizers": {"metadata": {"finalizers": None}},
    "drop-provider-id": {"status": {"providerID": None}},
    "drop-conditions": {"status": {"conditions": None}},
    "drop-status": {"status": dict.fromkeys(("conditions", "providerID", "nodeName", "capacity", "allocatable"))},
    "nonsense-provider-id": {"status": {"providerID": "i-am-none"}},
    "nonsense-end": {"metadata": {"annotations": {"karpenter.sh/nodeclaim-termination-timestamp": "soon"}}},
}
_OF_NODES: Final[Mapping[str, JSON]] = {
    "drop-finalizers": {"metadata": {"finalizers": None}},
    "drop-owner": {"metadata": {"ownerReferences": None}},
    "drop-labels": {
        "metadata": {
            "labels": dict.fromkeys(f"karpenter.sh/{name}" for name in ("nodepool", "registered", "initialized"))
        }
    },
    "drop-taints": {"spec": {"taints": None}},
    "close": {"spec": {"taints": [{"key": "karpenter.sh/unregistered", "effect": "NoExecute"}]}},
    "mark": {"spec": {"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]}},
}
_SAID: Final[Mapping[str, str]] = {"say-registered": "Registered", "say-initialized": "Initialized"}


def edit_of_claim(claim: NodeClaim, change: Change | StatusChange, now: datetime) -> JSON:
    """The patch; of its status if it has one."""
    return _said(claim, _SAID[change], now) if change in _SAID else _OF_CLAIMS[change]


def edit_of_node(change: NodeChange) -> JSON:
    """The patch."""
    return _OF_NODES[change]


def _said(claim: NodeClaim, condition: str, now: datetime) -> JSON:
    """A status that has this condition True, as if it had come to that just now."""
    others = [c for c in to_wire(claim.status.conditions) if c["type"] != condition]
    said = {
        "type": condition,
        "status": "True",
        "reason": condition,
        "message": "",
        "lastTransitionTime": format_time(now),
    }
    return {"status": {"conditions": [*others, said]}}
