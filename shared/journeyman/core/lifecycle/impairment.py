"""Impairment: the cloud's own checks say that a machine of ours is broken, or going to be.

======================  ============================================================================================
instance, system check  failed for two minutes: the machine does not work, so its end is forced
planned event           retirement, maintenance, a reboot: its host is worn out, so the node is drained now
======================  ============================================================================================

Restates: karpenter-provider-aws pkg/controllers/interruption/instancestatus_controller.go `Reconcile`,
pkg/providers/instancestatus/instancestatus.go `List`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from journeyman.core.lifecycle.forced_end import end_now
from journeyman.core.lifecycle.notices import NOTICES, InterruptionKind, take_down, wakes
from journeyman.core.plan import Observation, Plan, Step, merge_plans
from journeyman.core.state import InstanceStatus, Snapshot, StateNode

KINDS: Final[Mapping[str, InterruptionKind]] = {
    "InstanceStatus": InterruptionKind.INSTANCE_STATUS,
    "SystemStatus": InterruptionKind.SYSTEM_STATUS,
    "EventStatus": InterruptionKind.EVENT_STATUS,
}
"""What each category of a check means."""


def impaired(snapshot: Snapshot, statuses: Iterable[InstanceStatus], impaired_for: timedelta) -> Plan:
    """Take down what the checks condemn.

    Args:
        snapshot: Claims and nodes; `snapshot.now` is the time.
        statuses: What the cloud finds wrong; instances of others may be among it.
        impaired_for: How long a check must have failed.

    Returns:
        The end of each node that is hit, and wake-ups. Whoever is on its way out asks for nothing.
    """
    counting = [s for s in statuses if s.category in KINDS and _counts(s, snapshot.now, impaired_for)]
    by_instance: dict[str, list[InstanceStatus]] = {}
    for status in counting:
        by_instance.setdefault(status.provider_id, []).append(status)
    living = (n for n in snapshot.state_nodes if n.claim is not None and not n.is_terminating and not n.duplicate_of)
    return merge_plans(
        _end(n, by_instance[n.provider_id], snapshot.now) for n in living if n.provider_id in by_instance
    )


def next_look(statuses: Iterable[InstanceStatus], now: datetime, impaired_for: timedelta) -> datetime | None:
    """When the next check will have failed for long enough; None if there is none to wait for."""
    ends = (s.since + impaired_for for s in statuses if s.since is not None)
    return min((end for end in ends if end > now), default=None)


def _counts(status: InstanceStatus, now: datetime, impaired_for: timedelta) -> bool:
    """Events count at once, though they are to come; a failing check without a beginning has just begun."""
    if KINDS[status.category] is InterruptionKind.EVENT_STATUS:
        return True
    return status.since is not None and now - status.since >= impaired_for


def _end(node: StateNode, statuses: Sequence[InstanceStatus], now: datetime) -> Plan:
    """By force if any check of the machine itself fails."""
    assert node.claim is not None  # noqa: S101 - the caller's
    kinds = sorted({KINDS[s.category] for s in statuses}, key=list(InterruptionKind).index)
    kind = kinds[0]
    forced = () if kind is InterruptionKind.EVENT_STATUS else end_now(node.claim, now, NOTICES[kind][1])
    plan = take_down(node, node.claim, kind, *forced)
    first, *rest = plan.chains
    counted = replace(first, observations=(*first.observations, *_counted(statuses)))
    return replace(plan, chains=(counted, *rest)) + wakes(kind, now, Step.PROVISION, Step.TERMINATE)


def _counted(statuses: Iterable[InstanceStatus]) -> tuple[Observation, ...]:
    """Once for each category, as it is acted upon once."""
    return tuple(
        Observation(name="karpenter_interruption_instance_status_unhealthy_total", labels={"category": category})
        for category in sorted({s.category for s in statuses})
    )
