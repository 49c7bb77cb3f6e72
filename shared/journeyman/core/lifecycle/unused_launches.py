"""Unused launches: nodes that were launched for a pod, joined, and on which the pod does not run; the next launch waits.

A plan may be wrong in a way that only the node shows: it is smaller than its instance type was known to be, or kube-scheduler binds
the pod nowhere (another pod uses its ReadWriteOncePod volume, its local volume was on a node that is gone). Without memory the next
run launches the same again, all day. So the ChurnLedger counts such launches per workload, of pods that kube-scheduler cannot
distinguish (`waiting_launches`), and after each the next launch for them waits twice as long, up to an hour. The wait ends when
what schedules the pods changes, a NodePool or NodeClass, or what is known of the instance type.

A launch was not used by a pod that it was planned for and that is still pending if

* the node's size is known and too small for the pod and the DaemonSets' pods, whatever else runs there; or
* the node is initialized for 40 seconds, or was until it was removed as empty, no other workload's pod runs there, and the pod fits.

So nodes that have not joined do not count, nor do pods whose place another pod has taken. Pods that wait are still nominated to
existing nodes. Nodes that were launched together count once.

Differs: Karpenter launches again at once, without end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Final

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.churn_ledger import (
    LEDGER_NAME,
    MAX_UNUSED,
    MAX_UNUSED_MESSAGE,
    MAX_UNUSED_PODS,
    UnusedLaunches,
)
from journeyman.core.api.conditions import DISRUPTION_REASON, INITIALIZED
from journeyman.core.api.duration import doubled, time_after
from journeyman.core.api.objects import CHURN_LEDGER, LearnedSize, NodeClaim, Pod, condition_of
from journeyman.core.api.resources import (
    EPHEMERAL_STORAGE,
    MEMORY,
    Resources,
    add,
    format_amount,
    pod_requests,
    subtract,
    to_resources,
    total_requests,
)
from journeyman.core.lifecycle.learned_sizes import known_sizes
from journeyman.core.plan import (
    Chain,
    CreateObject,
    Event,
    ObjectRef,
    Observation,
    PatchObject,
    Plan,
    Requeue,
    Step,
    chain_of,
    pod_ref,
)
from journeyman.core.scheduling.daemon_overhead import Daemon, make_daemons, missing_daemon_overhead
from journeyman.core.scheduling.nodeclaim_templates import parse_planned_pods
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.pod_predicates import is_active, is_owned_by_daemon_set
from journeyman.core.state.pod_workload import WorkloadKey, workload_of
from journeyman.core.state.skipped_objects import evaluate
from journeyman.core.state.waiting_launches import (
    entry_key,
    is_pending,
    pod_hash,
    runs_anywhere,
    stored_entries,
    waiting_pods,
)

UNUSED_AFTER: Final = timedelta(seconds=40)
"""How long an initialized node waits for its pods: four times kube-scheduler's longest back-off."""
BOUND_WITHIN: Final = timedelta(seconds=4)
"""How long after its initialization a node's pods are bound as a rule; pods that are not then are checked again."""
FIRST_WAIT: Final = timedelta(minutes=2)
LONGEST_WAIT: Final = timedelta(hours=1)
MEMORY_AFTER: Final = timedelta(hours=1)
"""How long after a wait launches are still counted while no such pod is pending: its controller may create it again."""
MAX_EVENTS: Final = 20
"""Pods of one workload that get the Event."""

_Key = tuple[WorkloadKey, str]


class UnusedLaunch(Struct, frozen=True, kw_only=True):
    """A node that was launched for a pod and that the pod does not use; `cause` is size or unbound."""

    claim: NodeClaim
    pod: Pod
    key: _Key
    cause: str
    message: str

    @property
    def instance_type(self) -> str:
        """The instance type of the node."""
        return self.claim.metadata.labels.get(labels.INSTANCE_TYPE, "")


class LaunchMemory(Struct, frozen=True, kw_only=True):
    """The entries now, sorted; the pods that wait, by key; the launches that were counted now; and when to check again."""

    entries: tuple[UnusedLaunches, ...]
    waiting: frozenset[str]
    counted: tuple[UnusedLaunch, ...]
    check_again_at: datetime | None


def remember_launches(snapshot: Snapshot) -> LaunchMemory:
    """Return the stored entries together with what the snapshot shows."""
    found, check_again_at = _unused_launches(snapshot)
    sizes = known_sizes(snapshot) if found or stored_entries(snapshot) else ()
    situation = _Situation(snapshot, sizes)
    entries = {entry_key(entry): _in_situation(entry, situation) for entry in stored_entries(snapshot)}
    counted: list[UnusedLaunch] = []
    for key, launches in _by_key(found).items():
        entry, new = _counted(entries.get(key), launches, situation)
        counted += new
        if entry is not None:
            entries[key] = entry
    pending = _pending_pods(snapshot, {workload for workload, _ in entries})
    kept = (_pruned(entry, pending, snapshot) for entry in entries.values())
    bounded = _bounded(entry for entry in kept if entry is not None)
    return LaunchMemory(
        entries=bounded,
        waiting=waiting_pods(snapshot, bounded),
        counted=tuple(counted),
        check_again_at=check_again_at,
    )


def record_unused_launches(snapshot: Snapshot) -> Plan:
    """Return the plan that writes the entries that have changed, with Events and metrics."""
    memory = remember_launches(snapshot)
    gauge = Observation(name="journeyman_pods_launch_delayed", value=float(len(memory.waiting)), kind="gauge")
    chains = list(_record(memory, snapshot))
    if memory.check_again_at is not None:
        reason = "pods are not bound to the nodes that were launched for them"
        chains.append(chain_of("requeues", Requeue(step=Step.PROVISION, at=memory.check_again_at, reason=reason)))
    return Plan(observations=(gauge,), chains=tuple(chains))


# -- what nodes show --------------------------------------------------------------------------------------------------


def _unused_launches(snapshot: Snapshot) -> tuple[tuple[UnusedLaunch, ...], datetime | None]:
    """Return the launches that pending pods do not use, by NodeClaim and pod; and when further ones can be judged."""
    daemons: tuple[Daemon, ...] | None = None
    found: list[UnusedLaunch] = []
    later: list[datetime] = []
    for claim, node, pods in _nodes_with_pending_pods(snapshot):
        daemons = make_daemons(snapshot.daemon_sets, snapshot.pods)[0] if daemons is None else daemons
        since, now = _initialized_at(claim), min(claim.metadata.deletion_timestamp or snapshot.now, snapshot.now)
        wait = BOUND_WITHIN if _is_removed_as_empty(claim) else UNUSED_AFTER
        is_due = since is not None and now >= time_after(since, wait)
        verdicts = (evaluate(node, _verdict, claim, node, pod, daemons, is_due) for pod in pods)
        found += [verdict for verdict in verdicts if isinstance(verdict, UnusedLaunch)]
        if since is not None and not is_due and now >= time_after(since, BOUND_WITHIN) and now == snapshot.now:
            later.append(time_after(since, UNUSED_AFTER))
    return tuple(found), min(later, default=None)


def _nodes_with_pending_pods(snapshot: Snapshot) -> Iterator[tuple[NodeClaim, StateNode, list[Pod]]]:
    """Yield NodeClaims with their own node, as soon as it has joined, and those pending pods that they were launched for."""
    pending = {pod.key: pod for pod in snapshot.pods if is_pending(pod)}
    for claim in snapshot.claims if pending else ():
        state = snapshot.state_nodes_by_claim.get(claim.metadata.name)
        if state is None or state.node is None or state.node.metadata.name != (claim.status.node_name or state.name):
            continue
        planned = ((entry, pending.get(entry.key)) for entry in parse_planned_pods(claim.metadata.annotations))
        pods = [pod for entry, pod in planned if pod is not None and entry.means(pod) and _is_older(pod, claim)]
        if pods:
            yield claim, state, pods


def _is_older(pod: Pod, claim: NodeClaim) -> bool:
    """Whether the pod existed when the NodeClaim was created; pods are also planned for nodes that were launched for others."""
    created, launched = pod.metadata.creation_timestamp, claim.metadata.creation_timestamp
    return created is None or launched is None or created <= launched


def _is_removed_as_empty(claim: NodeClaim) -> bool:
    """Whether consolidation deletes the NodeClaim because no pod runs on its node: the next launch for the pod would end so, too."""
    reason = condition_of(claim.status.conditions, DISRUPTION_REASON)
    is_deleted = claim.metadata.deletion_timestamp is not None
    return is_deleted and reason is not None and (reason.status, reason.reason) == ("True", _EMPTY)


_EMPTY: Final = "Empty"  # the reason of consolidation


def _initialized_at(claim: NodeClaim) -> datetime | None:
    initialized = condition_of(claim.status.conditions, INITIALIZED)
    return initialized.last_transition_time if initialized is not None and initialized.status == "True" else None


def _verdict(
    claim: NodeClaim, state: StateNode, pod: Pod, daemons: Sequence[Daemon], is_due: bool
) -> UnusedLaunch | None:
    """Return the unused launch; None if the pod may still use the node, or another pod has its place."""
    offered, requests = state.allocatable(), pod_requests(pod)
    of_daemons = [other for other in state.pods if is_owned_by_daemon_set(other)]
    overhead = add(total_requests(of_daemons), missing_daemon_overhead(state, daemons))
    left = subtract(offered, overhead)
    short = [name for name in sorted(requests) if requests[name] > left.get(name, 0)]
    key = (workload_of(pod), pod_hash(pod))
    if short:
        message = _too_small(claim, state, {name: requests[name] for name in short}, offered, overhead)
        return UnusedLaunch(claim=claim, pod=pod, key=key, cause="size", message=message)
    is_used = any(is_active(other) and not is_owned_by_daemon_set(other) for other in state.pods)
    if not is_due or is_used:
        return None
    return UnusedLaunch(claim=claim, pod=pod, key=key, cause="unbound", message=_not_bound(claim, state, pod))


def _too_small(claim: NodeClaim, state: StateNode, short: Resources, offered: Resources, overhead: Resources) -> str:
    planned = to_resources(claim.status.allocatable, round_up=False)
    parts = [
        f"{_text(name, offered.get(name, 0))} {name}, planned {_text(name, planned.get(name, 0))} "
        f"(the pod requests {_text(name, amount)}, DaemonSets {_text(name, overhead.get(name, 0))})"
        for name, amount in sorted(short.items())
    ]
    return f"{_named(claim, state)} offers {'; '.join(parts)}"


def _not_bound(claim: NodeClaim, state: StateNode, pod: Pod) -> str:
    scheduled = condition_of(pod.status.conditions, "PodScheduled")
    said = scheduled.message if scheduled is not None and scheduled.message else "it gives no reason"
    return f"{_named(claim, state)} was launched for the pod and has capacity for it, kube-scheduler did not bind it: {said}"


def _named(claim: NodeClaim, state: StateNode) -> str:
    instance_type = claim.metadata.labels.get(labels.INSTANCE_TYPE, "")
    return f"node {state.name}{f' of type {instance_type}' if instance_type else ''}"


def _text(name: str, amount: int) -> str:
    """Return an amount for people: bytes in GiB, with three decimals."""
    if name not in (MEMORY, EPHEMERAL_STORAGE):
        return format_amount(name, amount)
    return f"{amount / 2**30:.3f}".rstrip("0").rstrip(".") + "Gi"


# -- counting ---------------------------------------------------------------------------------------------------------


class _Situation:
    """What a plan depends on besides the pods: NodePools, NodeClasses, and what is known of an instance type."""

    def __init__(self, snapshot: Snapshot, sizes: Iterable[LearnedSize]) -> None:
        self.now = snapshot.now
        pools = [f"{p.metadata.name} {p.metadata.uid} {p.metadata.generation}" for p in snapshot.node_pools]
        classes = [f"{c.name} {c.hash or c.generation}" for c in snapshot.node_classes]
        self._common = [*sorted(pools), "", *sorted(classes), ""]
        self._sizes: dict[str, list[str]] = {}
        for size in sizes:
            amounts = sorted(size.allocatable.items())
            self._sizes.setdefault(size.instance_type, []).append(f"{size.node_class} {size.image} {amounts}")

    def hash(self, instance_type: str) -> str:
        """Return a hash of it for pods whose last node was of this instance type."""
        text = "\0".join((*self._common, *self._sizes.get(instance_type, ())))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _in_situation(entry: UnusedLaunches, situation: _Situation) -> UnusedLaunches:
    """Return the entry; without its launches and its wait if the situation is another one than at the last count."""
    now = situation.hash(entry.instance_type)
    if entry.situation == now:
        return entry
    return entry.model_copy(update={"situation": now, "launches": 0, "until": None})


def _by_key(found: Iterable[UnusedLaunch]) -> Mapping[_Key, list[UnusedLaunch]]:
    by_key: dict[_Key, list[UnusedLaunch]] = {}
    for launch in found:
        if launch.key[1]:
            by_key.setdefault(launch.key, []).append(launch)
    return dict(sorted(by_key.items()))


def _counted(
    before: UnusedLaunches | None, found: Sequence[UnusedLaunch], situation: _Situation
) -> tuple[UnusedLaunches | None, list[UnusedLaunch]]:
    """Return the entry after these launches, and those that it did not contain: nodes that were launched after the last count."""
    new = [launch for launch in found if before is None or _launched_at(launch) > before.counted_at]
    if not new:
        return before, []
    (kind, namespace, name, uid), hashed = found[0].key
    last = max(new, key=lambda launch: (_launched_at(launch), launch.claim.metadata.name))
    launches = (before.launches if before is not None else 0) + 1
    uids = {launch.pod.metadata.uid for launch in found} | set(before.pods if before is not None else ())
    has_all = len(uids) > MAX_UNUSED_PODS or (before is not None and not before.pods)
    wait = doubled(FIRST_WAIT, launches, LONGEST_WAIT)
    entry = UnusedLaunches(
        kind=kind,
        namespace=namespace,
        name=name,
        uid=uid,
        pod_hash=hashed,
        pods=() if has_all else tuple(sorted(uids)),
        launches=launches,
        counted_at=_whole(situation.now),
        until=_whole(situation.now + wait),
        situation=situation.hash(last.instance_type),
        instance_type=last.instance_type,
        message=last.message[:MAX_UNUSED_MESSAGE],
    )
    return entry, new


def _whole(at: datetime) -> datetime:
    return at.replace(microsecond=0)


def _launched_at(launch: UnusedLaunch) -> datetime:
    return launch.claim.metadata.creation_timestamp or datetime.min.replace(tzinfo=timezone.utc)


def _pending_pods(snapshot: Snapshot, workloads: set[WorkloadKey]) -> Mapping[_Key, frozenset[str]]:
    """Return the UIDs of the pending pods of these workloads, by entry."""
    found: dict[_Key, set[str]] = {}
    for pod in snapshot.pods if workloads else ():
        if is_pending(pod) and (workload := workload_of(pod)) in workloads:
            found.setdefault((workload, pod_hash(pod)), set()).add(pod.metadata.uid)
    return {key: frozenset(uids) for key, uids in found.items()}


def _pruned(entry: UnusedLaunches, pending: Mapping[_Key, frozenset[str]], snapshot: Snapshot) -> UnusedLaunches | None:
    """Return the entry with the pods that are still pending; None once it has no use any more.

    If all its pods run, or are gone while others like them run, it has none. If they are gone, their controller may create them again.
    """
    waiting = pending.get(entry_key(entry), frozenset())
    left = tuple(uid for uid in entry.pods if uid in waiting)
    if left or (not entry.pods and waiting):
        return entry.model_copy(update={"pods": left}) if left != entry.pods else entry
    is_old = time_after(max(entry.until or entry.counted_at, entry.counted_at), MEMORY_AFTER) <= snapshot.now
    return None if is_old or runs_anywhere(entry, snapshot) else entry


def _bounded(entries: Iterable[UnusedLaunches]) -> tuple[UnusedLaunches, ...]:
    """Return the entries by workload and hash; beyond the maximum without those of the fewest launches."""
    ranked = sorted(entries, key=lambda entry: (-entry.launches, entry_key(entry)))[:MAX_UNUSED]
    return tuple(sorted(ranked, key=entry_key))


# -- the plan ---------------------------------------------------------------------------------------------------------


def _record(memory: LaunchMemory, snapshot: Snapshot) -> Iterator[Chain]:
    """Yield the chain that writes the entries; a ledger that does not exist is created, and the next run writes it."""
    if memory.entries == stored_entries(snapshot) or CHURN_LEDGER.kind in snapshot.unread:
        return
    subject = f"ChurnLedger {LEDGER_NAME}"
    if snapshot.churn_ledger is None:
        if any(item.kind == CHURN_LEDGER.kind for item in snapshot.invalid_objects):
            return  # consolidate writes it anew
        body = {"apiVersion": CHURN_LEDGER.api_version, "kind": CHURN_LEDGER.kind, "metadata": {"name": LEDGER_NAME}}
        create = CreateObject(resource=CHURN_LEDGER, body=body, why="counts launches that were not used")
        again = Requeue(step=Step.PROVISION, at=snapshot.now, reason="launches that were not used are to be recorded")
        yield chain_of(subject, create, again)
        return
    meta = snapshot.churn_ledger.metadata
    patch = PatchObject(
        ref=ObjectRef(resource=CHURN_LEDGER, name=LEDGER_NAME, uid=meta.uid),
        patch={"status": {"unusedLaunches": [entry.to_wire() for entry in memory.entries]}},
        why=f"{len(memory.counted)} launches were not used",
        resource_version=meta.resource_version,
        subresource="status",
    )
    yield Chain(
        subject=subject,
        actions=(patch,),
        events=tuple(_events(memory)),
        observations=tuple(_observations(memory)),
    )


def _events(memory: LaunchMemory) -> Iterator[Event]:
    """Yield an Event on each pod whose node was counted now, on the first ones of each workload."""
    entries = {entry_key(entry): entry for entry in memory.entries}
    reported: dict[_Key, set[str]] = {}
    for launch in memory.counted:
        entry, pods = entries.get(launch.key), reported.setdefault(launch.key, set())
        if entry is None or entry.until is None or launch.pod.key in pods or len(pods) >= MAX_EVENTS:
            continue
        pods.add(launch.pod.key)
        times = f"{entry.launches} launches were" if entry.launches > 1 else "one launch was"
        message = f"{launch.message}. {times.capitalize()} not used; the next one waits until {entry.until:%H:%M} UTC"
        yield Event(ref=pod_ref(launch.pod), reason="LaunchDelayed", message=message, type="Warning")


def _observations(memory: LaunchMemory) -> Iterator[Observation]:
    by_claim = {launch.claim.metadata.name: launch for launch in memory.counted}
    for _, launch in sorted(by_claim.items()):
        pool = launch.claim.metadata.labels.get(labels.NODEPOOL, "")
        yield Observation(name="journeyman_launches_unused_total", labels={"nodepool": pool, "cause": launch.cause})
