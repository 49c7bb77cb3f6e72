"""The forced end: a machine that no longer works is not waited for, whatever protects the pods on it.

It is the end of a terminationGracePeriod that has been moved to now: the drain then deletes pods past the Eviction API.

Restates: karpenter pkg/controllers/node/health/controller.go `annotateTerminationGracePeriod`.
"""

from __future__ import annotations

from datetime import datetime

from journeyman.core.api import labels
from journeyman.core.api.conditions import format_time
from journeyman.core.api.objects import NodeClaim
from journeyman.core.lifecycle.progress import claim_ref
from journeyman.core.plan import PatchObject


def end_now(claim: NodeClaim, now: datetime, why: str) -> tuple[PatchObject, ...]:
    """Let the claim's grace period be over; nothing to write if it is."""
    if _is_over(claim.metadata.annotations.get(labels.TERMINATION_TIMESTAMP, ""), now):
        return ()
    annotations = {labels.TERMINATION_TIMESTAMP: format_time(now)}
    return (PatchObject(ref=claim_ref(claim), patch={"metadata": {"annotations": annotations}}, why=why),)


def _is_over(end: str, now: datetime) -> bool:
    """Whether that time has come; a text that is no time says nothing."""
    try:
        moment = datetime.fromisoformat(end.replace("Z", "+00:00"))
    except ValueError:
        return False
    return moment.tzinfo is not None and moment <= now
