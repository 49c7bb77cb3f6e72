"""One run's worth of life for every NodeClaim that is not being deleted: launch → register → initialize, or time out.

Restates: karpenter pkg/controllers/nodeclaim/lifecycle/controller.go `Reconcile`.
Differs: launching is asked for and not awaited; what the cloud answers comes back through `launch.after_launch`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api.objects import Node, NodeClaim, Pod, is_true
from journeyman.core.lifecycle.explain import disrupted
from journeyman.core.lifecycle.hints import Hints, is_held, nominations, take_back
from journeyman.core.lifecycle.initialization import initialize
from journeyman.core.lifecycle.launch import is_pending, launch_pending
from journeyman.core.lifecycle.liveness import Timeouts, timed_out
from journeyman.core.lifecycle.progress import Progress, claim_ref, poll_at
from journeyman.core.lifecycle.registration import register
from journeyman.core.plan import Chain, DeleteObject, NominatePods, Plan, Step, Wake, look_at, merged, one
from journeyman.core.state import Snapshot


class Pace(Struct, frozen=True, kw_only=True):
    """How often a claim that is on its way is looked at: at first every `shortest`, later more rarely."""

    shortest: timedelta = timedelta(seconds=5)
    longest: timedelta = timedelta(seconds=30)
    held: timedelta = timedelta(seconds=2)  # a node that is kept closed until it is ready


class Lifecycle(Struct, frozen=True, kw_only=True):
    """What the lifecycle needs to know besides the snapshot.

    `wait_for_devices`: ResourceClaims are planned for. `most_hints`: how many pods one run may nominate, none if 0.
    """

    timeouts: Timeouts = field(default_factory=Timeouts)
    pace: Pace = field(default_factory=Pace)
    wait_for_devices: bool = False
    most_hints: int = 0


def advance(snapshot: Snapshot, lifecycle: Lifecycle) -> Plan:
    """Move every claim on as far as it gets now; wake up for those that are not initialized yet."""
    by_provider = nodes_by_provider_id(snapshot)
    hints = Hints.of(snapshot, enabled=lifecycle.most_hints > 0)
    plans, left = [take_back(snapshot)], lifecycle.most_hints
    for claim in snapshot.claims:
        if claim.metadata.deletion_timestamp is None:
            plan = _advance(
                claim, by_provider, snapshot, lifecycle, _Room(hints=hints, left=left, most=lifecycle.most_hints)
            )
            left -= sum(len(action.pods) for action in plan.actions if isinstance(action, NominatePods))
            plans.append(plan)
    return merged(plans)


class _Room(Struct, frozen=True, kw_only=True):
    """How many more pods this run may nominate."""

    hints: Hints
    left: int
    most: int

    def admits(self, pods: Sequence[Pod]) -> bool:
        """Whether all of these may be; one claim's may whatever their number, so that none is closed for ever."""
        return len(pods) <= self.left or self.left == self.most


def nodes_by_provider_id(snapshot: Snapshot) -> Mapping[str, tuple[Node, ...]]:
    """Nodes by the cloud's id; more than one under an id is something gone wrong."""
    found: dict[str, tuple[Node, ...]] = {}
    for node in snapshot.nodes:
        if node.spec.provider_id:
            found[node.spec.provider_id] = (*found.get(node.spec.provider_id, ()), node)
    return found


def _advance(
    claim: NodeClaim,
    by_provider: Mapping[str, tuple[Node, ...]],
    snapshot: Snapshot,
    lifecycle: Lifecycle,
    room: _Room,
) -> Plan:
    if is_true(claim.status.conditions, "Initialized"):
        return Plan()
    if reason := timed_out(claim, lifecycle.timeouts, snapshot.now):
        return _give_up(claim, reason, snapshot)
    if is_pending(claim):
        return launch_pending((claim,), snapshot.now)
    nodes = by_provider.get(claim.status.provider_id, ())
    pods = () if is_true(claim.status.conditions, "Registered") else room.hints.waiting(claim)
    held = _held(nodes, pods, room, snapshot.now)
    progress = register(Progress.of(claim, snapshot.now), nodes, held=held)
    progress = initialize(progress, snapshot.resource_slices if lifecycle.wait_for_devices else None)
    hints = () if held or progress.node is None else nominations(pods, progress.node)
    return _record(progress, hints, lifecycle.pace, held=held)


def _held(nodes: Sequence[Node], pods: Sequence[Pod], room: _Room, now: datetime) -> str:
    """Why the node that has joined is not opened to pods yet, empty if it is."""
    if not pods or len(nodes) != 1:
        return ""
    if is_held(nodes[0], now):
        return "AwaitingReadiness"
    return "" if room.admits(pods) else "AwaitingPlacementHints"


def _record(progress: Progress, hints: tuple[NominatePods, ...], pace: Pace, *, held: str) -> Plan:
    """Hints come first: once the taint is gone kube-scheduler is faster than we are."""
    chain = progress.chain(why="the claim moved on")
    chain = replace(chain, actions=(*hints, *chain.actions))
    chains: tuple[Chain, ...] = (chain,) if chain.actions else ()
    claim = progress.claim
    if not is_true(claim.status.conditions, "Initialized"):
        since = claim.metadata.creation_timestamp or progress.now
        at = poll_at(progress.now, since, pace.shortest, pace.longest)
        wake = Wake(
            step=Step.PROVISION,
            at=min(at, look_at(progress.now, pace.held)) if held else at,
            reason=f"NodeClaim {claim.metadata.name} is not initialized yet",
        )
        chains += (one(f"NodeClaim {claim.metadata.name}", wake),)
    return Plan(chains=chains, notes=progress.notes)


def _give_up(claim: NodeClaim, reason: str, snapshot: Snapshot) -> Plan:
    """Its pods are planned again as soon as it is gone; the instance, if any, is terminated by its finalizer."""
    name = claim.metadata.name
    chain = one(
        f"NodeClaim {name}",
        DeleteObject(ref=claim_ref(claim), why=reason),
        Wake(step=Step.TERMINATE, at=snapshot.now, reason=f"NodeClaim {name}: {reason}"),
        Wake(step=Step.PROVISION, at=snapshot.now, reason=f"NodeClaim {name}: {reason}"),
    )
    note = f"gave up NodeClaim {name}: {reason}"
    return Plan(chains=(replace(chain, observations=(disrupted(claim, reason),)),), notes=(note,))
