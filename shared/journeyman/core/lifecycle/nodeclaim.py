"""One run's worth of life for every NodeClaim that is not being deleted: launch → register → initialize, or time out.

Restates: karpenter pkg/controllers/nodeclaim/lifecycle/controller.go `Reconcile`.
Differs: launching is asked for and not awaited; what the cloud answers comes back through `launch.after_launch`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import Node, NodeClaim, Pod, is_true
from journeyman.core.lifecycle.consistency import checked
from journeyman.core.lifecycle.hints import Hints, hinted_at, is_held, look_after_hints, nominations, take_back
from journeyman.core.lifecycle.hydration import begun, hydrate, is_at_work, recalled
from journeyman.core.lifecycle.initialization import initialize
from journeyman.core.lifecycle.launch import is_pending, launch_pending, withdrawn
from journeyman.core.lifecycle.liveness import Timeouts, give_up, timed_out
from journeyman.core.lifecycle.progress import Progress, poll_at
from journeyman.core.lifecycle.registration import register
from journeyman.core.lifecycle.settling import Settling, hinted
from journeyman.core.plan import Chain, NominatePods, Plan, Requeue, Step, chain_of, merge_plans, next_requeue
from journeyman.core.state import Snapshot

_UNDONE: Final = frozenset({"Rejected", "RolledBack"})
"""Phases of commands that came to nothing."""


class Pace(Struct, frozen=True, kw_only=True):
    """How often a claim that is on its way is looked at: at first every `shortest`, later more rarely."""

    shortest: timedelta = timedelta(seconds=5)
    longest: timedelta = timedelta(seconds=30)
    held: timedelta = timedelta(seconds=2)  # a node that is kept closed until it is ready


class Lifecycle(Struct, frozen=True, kw_only=True):
    """What the lifecycle needs to know besides the snapshot.

    `wait_for_devices`: ResourceClaims are planned for. `most_hints`: how many pods one run may nominate, none if 0.
    `settles_from`: for so many planned pods nodes are kept closed until kube-scheduler has taken note of the hints.
    """

    timeouts: Timeouts = field(default_factory=Timeouts)
    pace: Pace = field(default_factory=Pace)
    wait_for_devices: bool = False
    most_hints: int = 0
    settles_from: int = 0


def advance(snapshot: Snapshot, lifecycle: Lifecycle) -> Plan:
    """Move every claim on as far as it gets now; wake up for those that are not initialized yet."""
    by_provider = nodes_by_provider_id(snapshot)
    hints = Hints.of(snapshot, enabled=lifecycle.most_hints > 0)
    settling = Settling.of(snapshot, by_provider, hints, lifecycle.settles_from)
    plans, left = [], lifecycle.most_hints
    for claim in snapshot.claims:
        if claim.metadata.deletion_timestamp is None:
            room = _Room(hints=hints, left=left, most=lifecycle.most_hints, settling=settling)
            plan = _advance(claim, by_provider, snapshot, lifecycle, room)
            left -= sum(len(action.pods) for action in plan.actions if isinstance(action, NominatePods))
            plans.append(plan)
    return merge_plans((take_back(snapshot), *sorted(plans, key=_first_turn, reverse=True)))


def _first_turn(plan: Plan) -> int:
    """When kube-scheduler comes to the first of the pods that the plan opens nodes to; 0 if it opens none to anybody.

    Nodes open in the opposite order. The first that opens makes kube-scheduler try all pods, and whoever comes up before
    its own node is open loses its hint: one of the first few, whatever one does. But the room that it leaves is taken
    only by pods that come up before their own nodes are open, too; so it is there last, and is there still when the hint
    is given again.
    """
    return min((turn for chain in plan.chains for n in chain.expects for turn in n.turns), default=0)


class _Room(Struct, frozen=True, kw_only=True):
    """How many more pods this run may nominate, and when their nodes open."""

    hints: Hints
    left: int
    most: int
    settling: Settling

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
    stored: NodeClaim,
    by_provider: Mapping[str, tuple[Node, ...]],
    snapshot: Snapshot,
    lifecycle: Lifecycle,
    room: _Room,
) -> Plan:
    if is_at_work(stored):
        return hydrate(stored, snapshot)
    state = snapshot.state_nodes_by_claim[stored.metadata.name]
    claim = recalled(stored, state, snapshot.now)
    if reason := timed_out(claim, lifecycle.timeouts, snapshot.now):
        return give_up(claim, reason, snapshot.now)
    if is_pending(claim):
        return _undone(claim, snapshot) or launch_pending((claim,), snapshot.now)
    nodes = () if state.duplicate_of else by_provider.get(state.provider_id, ())
    joined = nodes[0] if len(nodes) == 1 and not is_true(claim.status.conditions, "Registered") else None
    pods = room.hints.waiting(claim) if joined is not None else ()
    held = _held(claim, joined, pods, room, snapshot.now)
    given = pods if held.takes_hints else ()
    progress = begun(stored, claim, snapshot.now)
    progress = replace(progress, claim=hinted(progress.claim, snapshot.now) if given else progress.claim)
    progress = register(progress, nodes, held=held.reason, duplicate_of=state.duplicate_of)
    progress = initialize(progress, snapshot.resource_slices if lifecycle.wait_for_devices else None)
    if progress.node is not None and is_true(progress.claim.status.conditions, "Initialized"):
        progress = checked(progress, progress.node)
    hints = nominations(given, joined) if joined is not None else ()
    expected = nominations(room.hints.expected(claim), joined) if joined is not None else ()
    return _record(progress, hints, lifecycle.pace, held, expected)


def _undone(claim: NodeClaim, snapshot: Snapshot) -> Plan | None:
    """Withdraws a replacement whose command was undone, None for any other claim.

    A run that was frozen before it created the claim finds nothing wrong with that when it wakes.
    """
    name = claim.metadata.annotations.get(labels.DISRUPTION, "")
    phase = next((d.status.phase for d in snapshot.node_disruptions if d.metadata.name == name), "")
    if phase not in _UNDONE:
        return None
    why = f"{name}, which it was opened for, was undone"
    note = f"NodeClaim {claim.metadata.name} is withdrawn: {why}"
    return Plan(chains=(withdrawn(claim, "DisruptionUndone", why, snapshot.now),), notes=(note,))


class _Held(Struct, frozen=True, kw_only=True):
    """Why and until when the node that has joined is not opened to pods, no reason if it is; who may be nominated."""

    reason: str = ""
    until: datetime | None = None
    takes_hints: bool = True


def _held(claim: NodeClaim, node: Node | None, pods: Sequence[Pod], room: _Room, now: datetime) -> _Held:
    if node is None:
        return _Held()
    if pods and is_held(node, now):
        return _Held(reason="AwaitingReadiness", takes_hints=False)
    if pods and not room.admits(pods):
        return _Held(reason="AwaitingPlacementHints", takes_hints=False)
    if pods and (until := room.settling.hinted_from(node)):
        return _Held(reason="AwaitingPlacementHints", until=until, takes_hints=False)
    until = room.settling.opened_from(hinted(claim, now) if pods else claim, node)
    return _Held(reason="AwaitingPlacementHints", until=until) if until else _Held()


def _record(
    progress: Progress,
    hints: tuple[NominatePods, ...],
    pace: Pace,
    held: _Held,
    expected: tuple[NominatePods, ...],
) -> Plan:
    """Hints come first: once the taint is gone kube-scheduler is faster than we are."""
    chain = progress.chain(why="the claim moved on")
    opens = _opens(progress)
    chain = replace(chain, actions=(*hints, *chain.actions), opens=opens, expects=expected if opens else ())
    chains: tuple[Chain, ...] = (chain,) if chain.actions else ()
    claim = progress.claim
    if not is_at_work(claim):
        at, reason = min(_looks(progress, pace, held)), f"NodeClaim {claim.metadata.name} is not initialized yet"
        chains += (chain_of(f"NodeClaim {claim.metadata.name}", Requeue(step=Step.PROVISION, at=at, reason=reason)),)
    if opens and hinted_at(claim):
        chains += (chain_of(f"NodeClaim {claim.metadata.name}", look_after_hints(claim, progress.now)),)
    return Plan(chains=chains, notes=progress.notes)


def _looks(progress: Progress, pace: Pace, held: _Held) -> Iterator[datetime]:
    since = progress.claim.metadata.creation_timestamp or progress.now
    yield poll_at(progress.now, since, pace.shortest, pace.longest)
    if held.reason:
        yield held.until or next_requeue(progress.now, pace.held)


def _opens(progress: Progress) -> bool:
    """Whether the node is opened to pods by this run."""
    before, after = progress.original.status.conditions, progress.claim.status.conditions
    return is_true(after, "Registered") and not is_true(before, "Registered")
