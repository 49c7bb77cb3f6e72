"""Static NodePools, as a part of the provision step: surplus nodes go, those lacking are opened and launched.

It comes after claims on their way were moved on, so that a claim given up is counted no more, and before pods are
planned, so that they find the room of what was just launched. One queue and one fence hold for both kinds of pools.
"""

from __future__ import annotations

from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.nodepool import NodePool
from journeyman.core.disruption.static_capacity import deprovision_static, provision_static
from journeyman.core.disruption.static_nodepools import static_nodepools
from journeyman.core.lifecycle.progress import poll_at
from journeyman.core.plan import Step
from journeyman.core.state import Snapshot
from journeyman.steps.executor import Applier
from journeyman.steps.scheduling_inputs import SchedulingInputs
from journeyman.steps.stored_pools import still_allowed


def scale_static_pools(hand: Applier, world: SchedulingInputs, read: Snapshot) -> None:
    """Bring every static NodePool closer to the number of nodes that it asks for.

    Args:
        hand: The run.
        world: The cluster with what this run has written so far.
        read: The cluster as it was read.
    """
    hand.apply(deprovision_static(world.snapshot), world)
    run = hand.run
    now = run.clock.now()
    look_again = poll_at(now, now, run.settings.registration_poll, run.settings.registration_poll)
    snapshot = replace(world.snapshot, node_pools=_openable(hand, world.snapshot, read))
    plan = provision_static(snapshot, world.catalogue, max_claims=run.settings.claims_per_run, requeue_at=look_again)
    hand.apply(plan, world)


def _openable(hand: Applier, snapshot: Snapshot, read: Snapshot) -> tuple[NodePool, ...]:
    """The pools that lack nodes and, as they are stored right now, may open some.

    One of which this run gave a claim up waits for the next run: until the claim is gone it counts against the limit,
    and what refused its launch is known then.
    """
    written = hand.effects.claims
    given_up = {c.metadata.labels.get(labels.NODEPOOL) for c in read.claims if written.get(c.metadata.name, c) is None}
    lacking = {pool.name for pool in static_nodepools(snapshot.claims, snapshot.node_pools) if pool.missing}
    for name in sorted(lacking & given_up):
        hand.requeue(Step.PROVISION, hand.run.clock.now(), f"NodePool {name} lost a node that was on its way")
    allowed = still_allowed(hand, snapshot, lacking - given_up)
    return tuple(pool for pool in snapshot.node_pools if pool.metadata.name in allowed)
