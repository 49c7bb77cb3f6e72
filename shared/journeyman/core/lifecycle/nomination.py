"""Pod nomination: which pods are nominated to which node (`status.nominatedNodeName`), and when.

kube-scheduler binds pods, and by itself spreads them over the nodes. Each NodeClaim lists the pods it was planned for
(annotation `planned-pods`). Just before its node loses the `unregistered` taint, those pods are nominated to the node.

How kube-scheduler treats a nomination, from 1.24 to 1.36 (pkg/scheduler `evaluateNominatedNode`,
`RunFilterPluginsWithNominatedPods`, `Preempt`):

* It tries the nominated node first, and binds the pod there without scoring if it fits.
* On every node it counts the pods nominated there, of the same or a higher priority, as if they ran.
* It clears the nomination when an attempt fails on all nodes. So a nomination is useless before the node can take pods.
* The API server clears the nomination when the pod is bound, since 1.35 (`ClearingNominatedNodeNameAfterBinding`). On older
  versions it would stay for the life of the pod, and look like a preemption. So no pods are nominated there.

Every change of a node makes kube-scheduler retry pending pods, and clear the nominations of those whose node still has the
taint. Its watch of pods lags behind its watch of nodes by 100 ms and more. So nodes that join together are handled together
(`NominationWindow`): their pods are nominated, two seconds later all of them lose the taint, and right after that the pods
whose nomination was cleared are nominated once more.

kube-scheduler sees the taints go one by one, and retries a few pods meanwhile. One whose nomination it clears does no harm
as long as its node has the taint: no other pod can be bound there. kube-scheduler retries in the order of the last attempts
(pkg/scheduler/framework/plugins/queuesort `Less`), each of which updated the pod. So the nodes of the pods that it retries
first, those with the lowest resourceVersions, lose the taint last (`LAST_NODES`).

A node whose device plugin has not registered a resource yet refuses the pods that request it, so these are not nominated; nor, half
a minute after its registration, are pods to a node that is not initialized and that has a taint that they do not tolerate.

A nomination is ours if the NodeClaim of the nominated node lists the pod. Ours are cleared once they have no use; those of
others (preemption, other schedulers) are neither changed nor overwritten. After a crash between the nominations and the
removal of the taint, the next run removes the taint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.conditions import INITIALIZED, REGISTERED, format_time, parse_time
from journeyman.core.api.duration import time_after
from journeyman.core.api.objects import Node, NodeClaim, Pod, condition_of, is_true
from journeyman.core.api.resources import fits, pod_requests, subtract, to_resources, total_requests
from journeyman.core.api.wording import counted
from journeyman.core.lifecycle.progress import with_metadata
from journeyman.core.plan import (
    Action,
    Chain,
    NominatePods,
    PatchObject,
    Plan,
    RenominatePods,
    Requeue,
    Step,
    chain_of,
    claim_ref,
    pod_ref,
)
from journeyman.core.scheduling.nodeclaim_templates import format_planned_pods, parse_planned_pods
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.pod_predicates import is_active, is_virtual_pod
from journeyman.core.state.taints import untolerated

DEFAULT_SCHEDULER: Final = "default-scheduler"
MIN_KUBERNETES_VERSION: Final = (1, 35)
MAX_PODS_PER_RUN: Final = 500
"""How many pods one run nominates: some seconds of requests. The nodes of the others keep the taint until the next run."""
TAINT_TIMEOUT: Final = timedelta(seconds=30)
"""How long after it joined a node may keep the taint: daemons that do not tolerate it wait for its removal."""
BATCH_WINDOW: Final = timedelta(seconds=10)
"""How long a ready node waits for nodes of the same launch: a third of the half minute and more that a node takes to boot."""
BATCH_MIN_PODS: Final = 50
"""Planned pods from which nodes wait for each other. With fewer, seconds to running matter more than the odd pod that is
bound elsewhere."""
WATCH_DELAY: Final = timedelta(seconds=2)
"""From the start of the run that nominates until the taints are removed; the run's own requests take some of it."""
MAX_WATCH_DELAY: Final = timedelta(seconds=12)
"""How long after its first nominations a node keeps the taint for pods whose nominations are cleared, and for other nodes."""
RENOMINATION_DELAY: Final = timedelta(seconds=2)
"""Between two nominations to a new node: kube-scheduler leaves a pod that failed alone for a second at least
(pkg/scheduler `podInitialBackoffSeconds`)."""
LAST_NODES: Final = 4
"""How many nodes of a batch lose the taint after the others: those of the five or so pods that kube-scheduler retries
meanwhile. Few, since these lose it one after the other, too."""
NOMINATION_TIMEOUT: Final = timedelta(seconds=30)
"""How long after its node is initialized a pod may stay nominated: three times kube-scheduler's longest back-off."""
BINDING_POLL: Final = timedelta(seconds=5)
"""How soon to check again whether nominated pods are bound, while they are not."""
_LAUNCH_SPREAD: Final = timedelta(seconds=2)
"""NodeClaims created within this time of each other belong to one launch: a run creates them one after the other."""


class NominatablePods(Struct, frozen=True, kw_only=True):
    """Pods by key (none if `enabled` is false), and the NodePools whose annotation turns nomination off."""

    enabled: bool
    pods: Mapping[str, Pod]
    disabled_node_pools: frozenset[str]

    @classmethod
    def of(cls, snapshot: Snapshot, *, enabled: bool) -> NominatablePods:
        """Return the pods and NodePools of a snapshot."""
        return cls(
            enabled=enabled,
            pods={pod.key: pod for pod in snapshot.pods} if enabled else {},
            disabled_node_pools=frozenset(p.metadata.name for p in snapshot.node_pools if p.is_pod_nomination_disabled),
        )

    def planned(self, claim: NodeClaim) -> tuple[Pod, ...]:
        """Return the pods that the NodeClaim was planned for and that are still pending, nominated or not."""
        if not self._is_enabled_for(claim):
            return ()
        entries = parse_planned_pods(claim.metadata.annotations)
        found = ((entry, self.pods.get(entry.key)) for entry in entries)
        return tuple(pod for entry, pod in found if pod is not None and entry.means(pod) and _is_pending(pod))

    def not_nominated(self, claim: NodeClaim) -> tuple[Pod, ...]:
        """Return the pending pods that the NodeClaim was planned for and that have no nomination."""
        return tuple(pod for pod in self.planned(claim) if not pod.status.nominated_node_name)

    def to_nominate(self, claim: NodeClaim, node: Node) -> tuple[Pod, ...]:
        """Return those of `not_nominated` whose resources the NodeClaim's node has registered."""
        return tuple(pod for pod in self.not_nominated(claim) if not lacks_resource(node, pod))

    def among(self, keys: Iterable[str], claim: NodeClaim) -> tuple[Pod, ...]:
        """Return the pods of these keys that are pending and have no nomination; the scheduler chose the NodeClaim for them."""
        if not self._is_enabled_for(claim):
            return ()
        found = (self.pods.get(key) for key in keys)
        return tuple(p for p in found if p is not None and not p.status.nominated_node_name and _is_pending(p))

    def _is_enabled_for(self, claim: NodeClaim) -> bool:
        return self.enabled and claim.metadata.labels.get(labels.NODEPOOL, "") not in self.disabled_node_pools


class JoiningNode(Struct, frozen=True, kw_only=True):
    """A launched NodeClaim and its only node, which is not registered yet."""

    claim: NodeClaim
    node: Node


class NodeNomination(Struct, frozen=True, kw_only=True):
    """What to do with a joining node: nominate `nominate` to it now; keep its taint for `keep_taint`, or remove it.

    `keep_taint` is the reason for the condition Registered, empty if the taint is removed now; `until`: when to decide again,
    None for soon. `planned`: all pending pods that were planned for it. `is_last`: whether it loses the taint after others.
    """

    node: Node
    nominate: tuple[Pod, ...] = ()
    planned: tuple[Pod, ...] = ()
    keep_taint: str = ""
    until: datetime | None = None
    is_last: bool = False

    @property
    def actions(self) -> tuple[NominatePods, ...]:
        """The nominations to write now."""
        return _nominate(self.nominate, self.node)


class NominationWindow(Struct, frozen=True, kw_only=True):
    """When pods are nominated to the joining nodes, and when these lose the taint.

    * Ready nodes wait for nodes that were launched with them or before, for `BATCH_WINDOW` at most.
    * They lose the taint once no pod was nominated to any of them for `WATCH_DELAY`, and `MAX_WATCH_DELAY` after the first
      nominations at the latest.
    * A node that joined `TAINT_TIMEOUT` ago waits for nothing.

    The NodeClaim's annotation `nominated-at` has the time of its first nominations. Where it is missing (the run died before
    it was written), the node of nominated pods waits for nothing.
    """

    now: datetime
    nominate_from: datetime
    untaint_from: datetime
    is_batch: bool = True

    @classmethod
    def of(
        cls, snapshot: Snapshot, nodes: Mapping[str, Sequence[Node]], pods: NominatablePods, min_pods: int = 0
    ) -> NominationWindow:
        """Return the window of all NodeClaims that have an instance and no registered node.

        Args:
            snapshot: The cluster.
            nodes: Nodes by provider id.
            pods: Pods that may be nominated.
            min_pods: If fewer pods are planned for these NodeClaims in total, nodes do not wait for each other, and lose the
                taint in the run that nominates.
        """
        now = snapshot.now
        joining = [c for c in snapshot.claims if _is_joining(c, nodes.get(c.status.provider_id, ()), now)]
        if sum(len(parse_planned_pods(c.metadata.annotations)) for c in joining) < min_pods:
            return cls(now=now, nominate_from=now, untaint_from=now, is_batch=False)
        ready = {
            c.metadata.name: node for c in joining if (node := _ready_node(nodes.get(c.status.provider_id, ()), now))
        }
        joined = [claim for claim in joining if claim.metadata.name in ready]
        nominated = [at for at in map(nominated_at, joined) if at is not None]
        missing = [c for c in joined if pods.to_nominate(c, ready[c.metadata.name])]
        nominate_from = now
        if not nominated and _waits_for_others(joining, joined, pods):
            first_ready = min(_ready_since(ready[c.metadata.name], now) for c in missing or joined)
            nominate_from = time_after(first_ready, BATCH_WINDOW)
        latest = now if missing else max(nominated, default=now)
        untaint_from = min([time_after(latest, WATCH_DELAY), *(time_after(at, MAX_WATCH_DELAY) for at in nominated)])
        return cls(now=now, nominate_from=nominate_from, untaint_from=untaint_from)

    def decide(self, joining: JoiningNode, pods: NominatablePods, capacity: int) -> NodeNomination:
        """Decide on one joining node.

        Args:
            joining: The NodeClaim and its node.
            pods: Pods that may be nominated.
            capacity: How many pods this run may still nominate.
        """
        claim, node = joining.claim, joining.node
        missing = pods.to_nominate(claim, node)
        planned = tuple(pod for pod in pods.planned(claim) if not lacks_resource(node, pod))
        if missing and is_starting(node, self.now):
            return NodeNomination(node=node, keep_taint="AwaitingReadiness")
        if missing and len(missing) > capacity:
            return NodeNomination(node=node, keep_taint="AwaitingPodNomination")
        if missing and (until := self._later(node, self.nominate_from)):
            return NodeNomination(node=node, keep_taint="AwaitingPodNomination", until=until)
        first = nominated_at(claim) or (self.now if missing else None)
        until = self._later(node, max(first + WATCH_DELAY, self.untaint_from)) if first and self.is_batch else None
        reason = "AwaitingPodNomination" if until else ""
        return NodeNomination(node=node, nominate=missing, planned=planned, keep_taint=reason, until=until)

    def _later(self, node: Node, at: datetime) -> datetime | None:
        """Return the time, but no later than the taint's timeout; None if it has come."""
        joined = node.metadata.creation_timestamp
        at = min(at, time_after(joined, TAINT_TIMEOUT)) if joined is not None else self.now
        return at if at > self.now else None


def decide_nominations(
    window: NominationWindow, joining: Sequence[JoiningNode], pods: NominatablePods, max_pods: int
) -> Mapping[str, NodeNomination]:
    """Return what to do with each joining node, by the name of its NodeClaim.

    At most `max_pods` pods are nominated, but the first node gets all of its pods whatever their number.
    """
    decided: dict[str, NodeNomination] = {}
    capacity = max_pods
    for each in joining:
        unlimited = capacity == max_pods
        found = window.decide(each, pods, len(pods.pods) if unlimited else capacity)
        capacity -= len(found.nominate)
        decided[each.claim.metadata.name] = found
    claims = [each.claim for each in joining if decided[each.claim.metadata.name].planned] if window.is_batch else []
    last = sorted(claims, key=_oldest_pod_version)[:LAST_NODES]
    return decided | {c.metadata.name: replace(decided[c.metadata.name], is_last=True) for c in last}


def renominate(nominations: Iterable[NodeNomination], now: datetime) -> Plan:
    """Nominate pods once more if their nomination was cleared while this run removed taints; check them again soon.

    The plan belongs after the removal of the taints: an attempt of kube-scheduler may fail as long as they are there.
    """
    actions = [a for n in nominations if not n.keep_taint for a in _nominate(n.planned, n.node)]
    if not actions:
        return Plan()
    check = _check_nominations(f"pods of {counted(len(actions), 'new node')}", now)
    return Plan(chains=(chain_of("pod nomination", RenominatePods(nominations=tuple(actions)), check),))


def nominate_to_existing_nodes(
    snapshot: Snapshot, existing: Mapping[str, Sequence[str]], pods: NominatablePods
) -> Plan:
    """Record pods that were scheduled to existing nodes in their NodeClaims, and nominate them if the node is registered.

    A pod whose nomination was cleared gets a new one here, since the scheduler found that it still fits.

    Args:
        snapshot: The snapshot that the scheduler used.
        existing: Verified placements: keys of pods by the name of their node or NodeClaim.
        pods: Pods that may be nominated.
    """
    nodes = {node.name: node for node in snapshot.state_nodes}
    chains, capacity = [], MAX_PODS_PER_RUN
    for name, keys in sorted(existing.items()):
        node = nodes.get(name)
        if node is None or node.claim is None or node.is_terminating or capacity <= 0:
            continue
        found = pods.among(keys, node.claim)
        actions = _record_and_nominate(node, node.claim, found, snapshot) if found else ()
        if actions:
            chains.append(chain_of(f"NodeClaim {node.claim.metadata.name}", *actions))
            capacity -= len(found)
    return Plan(chains=tuple(chains))


def clear_stale_nominations(snapshot: Snapshot) -> Plan:
    """Clear our nominations that have no use any more, so that the scheduler plans for these pods again."""
    nodes = {state.name: state for state in snapshot.state_nodes if state.node is not None}
    chains = []
    for claim, pod in _nominated_by_us(snapshot):
        node = nodes.get(pod.status.nominated_node_name)
        if why := _stale_reason(claim, pod, node, snapshot):
            chains.append(_clear(pod, why, snapshot.now))
        elif not pod.spec.node_name and is_true(claim.status.conditions, INITIALIZED):
            why = f"pod {pod.key} is not yet bound to the node it was planned for"
            at = snapshot.now + BINDING_POLL
            chains.append(chain_of(f"Pod {pod.key}", Requeue(step=Step.PROVISION, at=at, reason=why)))
    return Plan(chains=tuple(chains))


def pod_with_stale_nomination(snapshot: Snapshot) -> str:
    """Return the first pod whose nomination may be stale, empty if there is none; needs NodeClaims and unbound pods."""
    stale = (
        pod.key
        for claim, pod in _nominated_by_us(snapshot)
        if claim.metadata.deletion_timestamp is not None or is_true(claim.status.conditions, INITIALIZED)
    )
    return next(stale, "")


def nominated_at(claim: NodeClaim) -> datetime | None:
    """Return when pods were nominated to the NodeClaim's node: first, before it is registered; last, after that."""
    return parse_time(claim.metadata.annotations.get(labels.NOMINATED_AT, ""))


def with_nominated_at(claim: NodeClaim, pods: Iterable[Pod], now: datetime) -> NodeClaim:
    """Return the NodeClaim with the annotations about the first nominations to its node; earlier ones stay.

    `nominated-at` is in milliseconds. `oldest-pod-version` has to be written now, since a nomination changes the version.
    """
    if nominated_at(claim) is not None:
        return claim
    at, version = now.isoformat(timespec="milliseconds"), min(pod.metadata.version_number for pod in pods)
    added = {labels.NOMINATED_AT: at, labels.OLDEST_POD_VERSION: str(version)}
    return with_metadata(claim, annotations={**claim.metadata.annotations, **added})


def _oldest_pod_version(claim: NodeClaim) -> int:
    version = claim.metadata.annotations.get(labels.OLDEST_POD_VERSION, "")
    return int(version) if version.isdecimal() else 0


def is_starting(node: Node, now: datetime) -> bool:
    """Whether a node that joined within `TAINT_TIMEOUT` cannot take pods yet, so that nominations to it would be cleared."""
    joined = node.metadata.creation_timestamp
    if joined is None or now >= time_after(joined, TAINT_TIMEOUT):
        return False
    has_ephemeral_taint = any(
        labels.is_ephemeral_taint(taint.key, taint.effect) and taint.key != labels.UNREGISTERED_TAINT
        for taint in node.spec.taints
    )
    return has_ephemeral_taint or not is_true(node.status.conditions, "Ready")


def _is_joining(claim: NodeClaim, nodes: Sequence[Node], now: datetime) -> bool:
    """Whether the NodeClaim has an instance whose node has not joined, or has the taint and may keep it."""
    if not claim.status.provider_id or claim.metadata.deletion_timestamp is not None:
        return False
    joined = nodes[0].metadata.creation_timestamp if nodes else now
    return (
        joined is not None
        and now < time_after(joined, TAINT_TIMEOUT)
        and not is_true(claim.status.conditions, REGISTERED)
    )


def _ready_node(nodes: Sequence[Node], now: datetime) -> Node | None:
    return nodes[0] if len(nodes) == 1 and not is_starting(nodes[0], now) else None


def _ready_since(node: Node, now: datetime) -> datetime:
    ready = condition_of(node.status.conditions, "Ready")
    return now if ready is None or ready.last_transition_time is None else ready.last_transition_time


def _waits_for_others(joining: Sequence[NodeClaim], joined: Sequence[NodeClaim], pods: NominatablePods) -> bool:
    """Whether NodeClaims of the same launch, or of an earlier one, have planned pods and no ready node."""
    created = [claim.metadata.creation_timestamp for claim in joined if claim.metadata.creation_timestamp is not None]
    if not created:
        return False
    names, latest = {claim.metadata.name for claim in joined}, max(created) + _LAUNCH_SPREAD
    others = (claim for claim in joining if claim.metadata.name not in names)
    return any(
        c.metadata.creation_timestamp is None or c.metadata.creation_timestamp <= latest
        for c in others
        if pods.not_nominated(c)
    )


def _record_and_nominate(
    state: StateNode, claim: NodeClaim, pods: Sequence[Pod], snapshot: Snapshot
) -> tuple[Action, ...]:
    """Record the pods in the NodeClaim, so that later runs recognize our nominations; then nominate them if it is registered."""
    planned = parse_planned_pods(claim.metadata.annotations)
    node = state.node if state.registered else None
    nominated = () if node is None else _worth_nominating(claim, node, pods, snapshot.now)
    has_new = any(not any(entry.means(pod) for entry in planned) for pod in pods)
    if not has_new and (not nominated or _was_nominated_recently(claim, snapshot.now)):
        return ()
    existing = {pod.key for pod in snapshot.pods}
    uids = {entry.key: entry.uid for entry in planned if entry.key in existing}
    uids.update({pod.key: pod.metadata.uid for pod in pods})
    annotations = {labels.PLANNED_PODS: format_planned_pods(tuple(uids), uids)}
    if nominated:
        annotations[labels.NOMINATED_AT] = format_time(snapshot.now)
    merge = {"metadata": {"annotations": annotations}}
    patch = PatchObject(ref=claim_ref(claim), patch=merge, why="more pods are planned for it")
    if node is None or not nominated:
        return (patch,)
    name = f"pods of NodeClaim {claim.metadata.name}"
    may_bind = _is_being_filled(claim, snapshot.now) and not all(_refuses(node, pod) for pod in nominated)
    checks = (_check_nominations(name, snapshot.now),) if may_bind else ()
    return (patch, *_nominate(nominated, node), *checks)


def _worth_nominating(claim: NodeClaim, node: Node, pods: Sequence[Pod], now: datetime) -> tuple[Pod, ...]:
    """Return the pods that the node may take soon.

    Soon after its registration its taints do not count: a nomination keeps other pods out until they are removed.
    """
    initialized, registered = (condition_of(claim.status.conditions, type_) for type_ in (INITIALIZED, REGISTERED))
    if initialized is not None and initialized.status == "True":
        return tuple(pods)
    since = registered.last_transition_time if registered is not None else None
    is_new = since is None or now < time_after(since, NOMINATION_TIMEOUT)
    return tuple(pod for pod in pods if not (lacks_resource(node, pod) if is_new else _refuses(node, pod)))


def _nominate(pods: Sequence[Pod], node: Node) -> tuple[NominatePods, ...]:
    refs = tuple(map(pod_ref, pods))
    return (NominatePods(pods=refs, node=node.metadata.name, why="planned for this node"),) if refs else ()


def _check_nominations(pods: str, now: datetime) -> Requeue:
    """Return a requeue: an attempt of kube-scheduler that is under way now may clear nominations."""
    return Requeue(step=Step.PROVISION, at=now + RENOMINATION_DELAY, reason=f"{pods} may have lost their nomination")


def _is_pending(pod: Pod) -> bool:
    """Whether kube-scheduler, and no other scheduler, may still bind the pod."""
    spec = pod.spec
    is_default = spec.scheduler_name == DEFAULT_SCHEDULER and not spec.scheduling_gates
    return not spec.node_name and is_default and is_active(pod) and not is_virtual_pod(pod)


def _nominated_by_us(snapshot: Snapshot) -> Iterator[tuple[NodeClaim, Pod]]:
    """Yield pods nominated to the node of a NodeClaim that lists them, each with that NodeClaim."""
    nominated = [pod for pod in snapshot.pods if pod.status.nominated_node_name]
    if not nominated:
        return
    claims: dict[str, list[NodeClaim]] = {}
    for claim in snapshot.claims:
        joined = snapshot.nodes_by_provider_id.get(claim.status.provider_id, ())
        for name in {claim.status.node_name, *(node.metadata.name for node in joined)}:
            claims.setdefault(name, []).append(claim)
    for pod in nominated:
        for claim in claims.get(pod.status.nominated_node_name, ()):
            if any(entry.means(pod) for entry in parse_planned_pods(claim.metadata.annotations)):
                yield claim, pod
                break


def _stale_reason(claim: NodeClaim, pod: Pod, node: StateNode | None, snapshot: Snapshot) -> str:
    """Return why the nomination has no use any more; empty if it may still have one."""
    name = pod.status.nominated_node_name
    if pod.spec.node_name:
        return f"the pod is bound to {pod.spec.node_name}" if pod.spec.node_name != name else ""
    if claim.metadata.deletion_timestamp is not None or node is None:
        return f"node {name} is terminating"
    if _is_too_full(pod, node):
        return f"the pod no longer fits node {name}"
    since = _nominated_since(claim)
    is_late = since is not None and snapshot.now >= since + NOMINATION_TIMEOUT
    return f"node {name} is ready, and the pod is still not bound to it" if is_late else ""


def _is_too_full(pod: Pod, node: StateNode) -> bool:
    """Whether pods that stay on the node have taken the capacity that was planned for it, as the scheduler counts it."""
    allocatable = node.allocatable()
    staying = [other for other in node.pods if is_active(other)]
    return bool(allocatable) and not fits(pod_requests(pod), subtract(allocatable, total_requests(staying)))


def lacks_resource(node: Node, pod: Pod) -> bool:
    """Whether the node offers nothing of a resource that the pod requests, as before a device plugin has started."""
    allocatable = to_resources(node.status.allocatable, round_up=False)
    requests = pod_requests(pod)
    return bool(allocatable) and any(amount and not allocatable.get(name) for name, amount in requests.items())


def _refuses(node: Node, pod: Pod) -> bool:
    """Whether kube-scheduler cannot bind the pod to the node, whatever runs there."""
    return lacks_resource(node, pod) or untolerated(node.spec.taints, pod.spec.tolerations) is not None


def _nominated_since(claim: NodeClaim) -> datetime | None:
    """Return since when kube-scheduler could follow all nominations, None while the node is not initialized."""
    initialized = condition_of(claim.status.conditions, INITIALIZED)
    if initialized is None or initialized.status != "True" or initialized.last_transition_time is None:
        return None
    last = nominated_at(claim)
    return max(initialized.last_transition_time, last) if last else initialized.last_transition_time


def _was_nominated_recently(claim: NodeClaim, now: datetime) -> bool:
    """Whether pods were nominated a moment ago: if kube-scheduler clears a nomination twice, it has a reason."""
    last = nominated_at(claim)
    wait = RENOMINATION_DELAY if _is_being_filled(claim, now) else NOMINATION_TIMEOUT
    return last is not None and now < time_after(last, wait)


def _is_being_filled(claim: NodeClaim, now: datetime) -> bool:
    """Whether the node is not initialized, or so new that kube-scheduler still binds the first pods to it."""
    initialized = condition_of(claim.status.conditions, INITIALIZED)
    since = initialized.last_transition_time if initialized is not None and initialized.status == "True" else None
    return since is None or now < time_after(since, NOMINATION_TIMEOUT)


def _clear(pod: Pod, why: str, now: datetime) -> Chain:
    requeue = Requeue(step=Step.PROVISION, at=now, reason=f"pod {pod.key} is nominated to no node any more")
    return chain_of(f"Pod {pod.key}", NominatePods(pods=(pod_ref(pod),), node="", why=why), requeue)
