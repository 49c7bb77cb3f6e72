"""Placement hints: kube-scheduler, which binds and likes to spread, is told which node each pod was planned for.

A claim remembers the pods it was opened for. Just before its node is opened to pods (the unregistered taint goes), they
are nominated to it (`status.nominatedNodeName`). What kube-scheduler makes of a nomination, since 1.24 and up to 1.36
(pkg/scheduler `evaluateNominatedNode`, `RunFilterPluginsWithNominatedPods`, `Preempt`):

* it tries the nominated node before all others, and binds there if the pod fits, without scoring;
* on every node it counts the pods nominated there, of the same or a higher priority, as if they ran;
* an attempt that fails everywhere takes the nomination back. So a hint is worth nothing before the node can take pods,
  and a node that has just joined is held back until it is ready and kube-scheduler knows of its hints (`settling`): for
  `HOLD` at most, as its daemons may not wait for us;
* the API server takes it back when the pod is bound, from 1.35 on (`ClearingNominatedNodeNameAfterBinding`). Before
  that it would stay for the pod's life, which other readers take for a preemption; so no hints are given there.

A nomination is ours if a claim remembers the pod and it names that claim's node. It is taken back when it has become
pointless; all others (preemption, other schedulers) are left alone, and never overwritten. A crash between hints and
taint leaves hints for a node that is closed: the next run opens it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.conditions import INITIALIZED, format_time
from journeyman.core.api.objects import NODECLAIM, POD, Node, NodeClaim, Pod, condition_of, is_true
from journeyman.core.api.resources import fits, pod_requests, subtract, to_resources, total_requests
from journeyman.core.plan import Action, Chain, NominatePods, ObjectRef, PatchObject, Plan, Requeue, Step, chain_of
from journeyman.core.scheduling.claims import remembered_pods, remembering
from journeyman.core.scheduling.demand.buffers import is_virtual
from journeyman.core.scheduling.pods import is_active
from journeyman.core.state import Snapshot, StateNode

SCHEDULER: Final = "default-scheduler"
SINCE_VERSION: Final = (1, 35)
HOLD: Final = timedelta(seconds=30)
"""How long after it joined a node may be kept closed until it is ready for the pods planned for it."""
AGAIN: Final = timedelta(seconds=2)
"""How soon pods that lost their hints are looked for, and get them again, while their node is new: who has failed is left
alone for one second at least (pkg/scheduler `podInitialBackoffSeconds`)."""
PATIENCE: Final = timedelta(seconds=30)
"""How long after its node is initialized a pod may stay nominated: three times kube-scheduler's longest back-off."""
LOOK: Final = timedelta(seconds=5)
"""How soon a run looks whether pods are on the nodes they are nominated to, as long as these are open and they are not."""
HINTS_PER_RUN: Final = 500
"""How many pods one run nominates: some seconds of requests. The nodes of the others stay closed until the next."""


class Hints(Struct, frozen=True, kw_only=True):
    """Whom a run may nominate: pods by key, and the NodePools that want no hints. Without `enabled`, nobody."""

    enabled: bool
    pods: Mapping[str, Pod]
    without: frozenset[str]

    @classmethod
    def of(cls, snapshot: Snapshot, *, enabled: bool) -> Hints:
        """Of one moment."""
        without = (p.metadata.name for p in snapshot.node_pools if p.is_pod_nomination_disabled)
        pods = {pod.key: pod for pod in snapshot.pods} if enabled else {}
        return cls(enabled=enabled, pods=pods, without=frozenset(without))

    def waiting(self, claim: NodeClaim) -> tuple[Pod, ...]:
        """The claim's planned pods that still wait for a node and that nobody has nominated, in the order remembered."""
        entries = {entry.key: entry for entry in remembered_pods(claim.metadata.annotations)}
        return tuple(pod for pod in self.among(tuple(entries), claim) if entries[pod.key].means(pod))

    def expected(self, claim: NodeClaim) -> tuple[Pod, ...]:
        """The claim's planned pods that still wait for a node, nominated or not, in the order remembered."""
        if not self._are_for(claim):
            return ()
        entries = remembered_pods(claim.metadata.annotations)
        found = ((entry, self.pods.get(entry.key)) for entry in entries)
        return tuple(pod for entry, pod in found if pod is not None and entry.means(pod) and _may_wait(pod))

    def among(self, keys: Iterable[str], claim: NodeClaim) -> tuple[Pod, ...]:
        """Of these pods, planned for the claim, those that wait for a node and that nobody has nominated."""
        if not self._are_for(claim):
            return ()
        found = (self.pods.get(key) for key in keys)
        return tuple(pod for pod in found if pod is not None and _may_be_hinted(pod))

    def _are_for(self, claim: NodeClaim) -> bool:
        return self.enabled and claim.metadata.labels.get(labels.NODEPOOL, "") not in self.without


def nominations(pods: Sequence[Pod], node: Node) -> tuple[NominatePods, ...]:
    """Tell kube-scheduler that these pods were planned for this node; nothing if there are none.

    It tries whoever failed longest ago first, and writes to a pod that fails: so versions tell when it comes to whom. They
    can be compared (KEP-5504, Kubernetes 1.35; earlier ones get no hints). Hints that are given in that order leave
    it as it is.
    """
    refs, turns = tuple(map(_ref, pods)), tuple(pod.metadata.version_number for pod in pods)
    return (NominatePods(pods=refs, turns=turns, node=node.metadata.name, why="planned for this node"),) if refs else ()


def look_after_hints(claim: NodeClaim, now: datetime) -> Requeue:
    """Look soon whether an attempt of kube-scheduler that was under way took the hints of some."""
    why = f"pods of NodeClaim {claim.metadata.name} may have lost their nomination"
    return Requeue(step=Step.PROVISION, at=now + AGAIN, reason=why)


def on_standing_nodes(snapshot: Snapshot, existing: Mapping[str, Sequence[str]], hints: Hints) -> Plan:
    """What is planned onto nodes that are there or on their way: remembered by their claims; nominated where one is open.

    A pod that lost its nomination comes by here, once it is known that there is still room for it.

    Args:
        snapshot: What was decided on.
        existing: Keys of pods by the name of their node or claim, verified.
        hints: Whom this run may nominate.
    """
    nodes = {node.name: node for node in snapshot.state_nodes}
    chains, left = [], HINTS_PER_RUN
    for name, keys in sorted(existing.items()):
        node = nodes.get(name)
        if node is None or node.claim is None or node.deleting or left <= 0:
            continue
        pods = hints.among(keys, node.claim)
        actions = _planned_onto(node, pods, snapshot) if pods else ()
        if actions:
            chains.append(chain_of(f"NodeClaim {node.claim.metadata.name}", *actions))
            left -= len(pods)
    return Plan(chains=tuple(chains))


def is_held(node: Node, now: datetime) -> bool:
    """Whether the node is best kept closed a little longer: it takes no pods yet, so hints would be lost on it."""
    joined = node.metadata.creation_timestamp
    if joined is None or now >= joined + HOLD:
        return False
    starting = any(
        labels.is_ephemeral_taint(taint.key, taint.effect) and taint.key != labels.UNREGISTERED_TAINT
        for taint in node.spec.taints
    )
    return starting or not is_true(node.status.conditions, "Ready")


def take_back(snapshot: Snapshot) -> Plan:
    """Clear the nominations of ours that have become pointless, so that these pods are planned for again."""
    nodes = {node.metadata.name: node for node in snapshot.nodes}
    chains = []
    for claim, pod in _nominated_by_us(snapshot):
        node = nodes.get(pod.status.nominated_node_name)
        if why := _pointless(claim, pod, node, snapshot):
            chains.append(_cleared(pod, why, snapshot.now))
        elif not pod.spec.node_name and is_true(claim.status.conditions, "Registered"):
            why = f"pod {pod.key} is not yet on the node it was planned for"
            chains.append(chain_of(f"Pod {pod.key}", Requeue(step=Step.PROVISION, at=snapshot.now + LOOK, reason=why)))
    return Plan(chains=tuple(chains))


def has_open_hints(snapshot: Snapshot) -> str:
    """The first pod whose hint may have become pointless, empty if there is none; needs claims and unassigned pods."""
    open_hints = (
        pod.key
        for claim, pod in _nominated_by_us(snapshot)
        if claim.metadata.deletion_timestamp is not None or is_true(claim.status.conditions, INITIALIZED)
    )
    return next(open_hints, "")


def _planned_onto(node: StateNode, pods: Sequence[Pod], snapshot: Snapshot) -> tuple[Action, ...]:
    """Remember them first, so that whoever finds the nomination knows whose it is."""
    claim = node.claim
    assert claim is not None  # noqa: S101 - the caller looked
    known = remembered_pods(claim.metadata.annotations)
    is_open = node.registered and node.node is not None
    is_news = any(not any(entry.means(pod) for entry in known) for pod in pods)
    if not is_news and (not is_open or _was_hinted_lately(claim, snapshot.now)):
        return ()
    alive = {pod.key for pod in snapshot.pods}
    uids = {entry.key: entry.uid for entry in known if entry.key in alive}
    uids.update({pod.key: pod.metadata.uid for pod in pods})
    notes = {labels.PLANNED_PODS: remembering(tuple(uids), uids)}
    if is_open:
        notes[labels.NOMINATED_AT] = format_time(snapshot.now)
    ref = ObjectRef(resource=NODECLAIM, name=claim.metadata.name, uid=claim.metadata.uid)
    patch = PatchObject(ref=ref, patch={"metadata": {"annotations": notes}}, why="more pods are planned onto it")
    if not is_open or node.node is None:
        return (patch,)
    looks = (look_after_hints(claim, snapshot.now),) if _is_new(claim, snapshot.now) else ()
    return (patch, *nominations(pods, node.node), *looks)


def _may_be_hinted(pod: Pod) -> bool:
    return not pod.status.nominated_node_name and _may_wait(pod)


def _may_wait(pod: Pod) -> bool:
    """Whether kube-scheduler, and nobody else, may still be looking for a node for it."""
    spec = pod.spec
    ours = spec.scheduler_name == SCHEDULER and not spec.scheduling_gates
    return not spec.node_name and ours and is_active(pod) and not is_virtual(pod)


def _nominated_by_us(snapshot: Snapshot) -> Iterator[tuple[NodeClaim, Pod]]:
    """Pods nominated to the node of a claim that remembers them, each with that claim, by pod."""
    nominated = [pod for pod in snapshot.pods if pod.status.nominated_node_name]
    if not nominated:
        return
    joined = {node.spec.provider_id: node.metadata.name for node in snapshot.nodes if node.spec.provider_id}
    claims = {c.status.node_name or joined.get(c.status.provider_id, ""): c for c in snapshot.claims}
    for pod in nominated:
        claim = claims.get(pod.status.nominated_node_name)
        if claim is not None and any(e.means(pod) for e in remembered_pods(claim.metadata.annotations)):
            yield claim, pod


def _pointless(claim: NodeClaim, pod: Pod, node: Node | None, snapshot: Snapshot) -> str:
    """Why the nomination to this node is of no more use, empty if it may still be."""
    name = pod.status.nominated_node_name
    if pod.spec.node_name:
        return f"the pod is on {pod.spec.node_name}" if pod.spec.node_name != name else ""
    if claim.metadata.deletion_timestamp is not None or node is None:
        return f"node {name} goes away"
    if _is_full_for(pod, node, snapshot):
        return f"node {name} has no room left for it"
    since = _hinted_since(claim)
    late = since is not None and snapshot.now >= since + PATIENCE
    return f"node {name} is ready, and the pod is still not on it" if late else ""


def _is_full_for(pod: Pod, node: Node, snapshot: Snapshot) -> bool:
    """Whether others have taken the room that was planned for it: those that stay on the node."""
    allocatable = to_resources(node.status.allocatable, round_up=False)
    staying = [other for other in snapshot.pods_by_node.get(node.metadata.name, ()) if is_active(other)]
    return bool(allocatable) and not fits(pod_requests(pod), subtract(allocatable, total_requests(staying)))


def _hinted_since(claim: NodeClaim) -> datetime | None:
    """Since when pods could have followed all their hints, None while the node still starts."""
    initialized = condition_of(claim.status.conditions, INITIALIZED)
    if initialized is None or initialized.status != "True" or initialized.last_transition_time is None:
        return None
    again = hinted_at(claim)
    return max(initialized.last_transition_time, again) if again else initialized.last_transition_time


def _was_hinted_lately(claim: NodeClaim, now: datetime) -> bool:
    """Whether pods were nominated to its node a moment ago: who loses that for good is not to be fought over."""
    again = hinted_at(claim)
    return again is not None and now < again + (AGAIN if _is_new(claim, now) else PATIENCE)


def _is_new(claim: NodeClaim, now: datetime) -> bool:
    """Whether kube-scheduler is still at filling the claim's node."""
    initialized = condition_of(claim.status.conditions, INITIALIZED)
    since = initialized.last_transition_time if initialized is not None and initialized.status == "True" else None
    return since is None or now < since + PATIENCE


def hinted_at(claim: NodeClaim) -> datetime | None:
    """When the claim's pods were nominated: the first time while its node is closed, the last time once it is open."""
    try:
        at = datetime.fromisoformat(claim.metadata.annotations[labels.NOMINATED_AT].replace("Z", "+00:00"))
    except (KeyError, ValueError):
        return None
    return at if at.tzinfo else None


def _cleared(pod: Pod, why: str, now: datetime) -> Chain:
    wake = Requeue(step=Step.PROVISION, at=now, reason=f"pod {pod.key} is not expected on a node any more")
    return chain_of(f"Pod {pod.key}", NominatePods(pods=(_ref(pod),), node="", why=why), wake)


def _ref(pod: Pod) -> ObjectRef:
    return ObjectRef(resource=POD, name=pod.metadata.name, namespace=pod.metadata.namespace, uid=pod.metadata.uid)
