"""NodePools as they are stored at the moment nodes are to be opened: meanwhile one may be gone, or have new limits.

Restates: karpenter pkg/controllers/provisioning/provisioner.go `Create`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

from journeyman.core.api.model import parse
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import NODEPOOL
from journeyman.core.lifecycle.nodepool_status import NOTHING, usage_by_pool
from journeyman.core.plan import Step
from journeyman.core.state import Snapshot
from journeyman.errors import InvalidObjectError, NotFoundError
from journeyman.steps.context import RunContext
from journeyman.steps.executor import Applier

LIMITS_PERIOD: Final = timedelta(
    seconds=10
)  # karpenter pkg/controllers/provisioning/controller.go: pods requeue after 10 s


def still_allowed(hand: Applier, snapshot: Snapshot, pools: Iterable[str]) -> frozenset[str]:
    """Of these pools those that still exist, and have not got over their limits, as they are stored right now.

    Why others may not is noted, and the provision step looks again.
    """
    usages = usage_by_pool(snapshot)
    allowed = set()
    for name in sorted(pools):
        pool = _stored_pool(hand.run, name)
        over = usages.get(name, NOTHING).exceeded(pool.spec.limit_amounts) if pool is not None else ()
        if pool is None or pool.metadata.deletion_timestamp is not None or over:
            hand.note(f"NodePool {name} may open no nodes now: {', '.join(over) or 'it is gone or invalid'}")
            # over its limits it stays until nodes that are leaving are gone: no use in asking again at once
            at = hand.run.clock.now() + (LIMITS_PERIOD if over else timedelta())
            hand.requeue(Step.PROVISION, at, f"NodePool {name} changed meanwhile")
        else:
            allowed.add(name)
    return frozenset(allowed)


def _stored_pool(run: RunContext, name: str) -> NodePool | None:
    try:
        raw: dict[str, Any] = run.store.get(NODEPOOL, name)
        return parse(NodePool, raw)
    except (NotFoundError, InvalidObjectError):
        return None
