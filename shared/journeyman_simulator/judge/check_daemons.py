"""Finds the nodes to which DaemonSets' pods are still to come, and checks anti-affinity between them and planned pods.

The DaemonSet controller creates these pods after the Node. On an existing node they are awaited if its labels and taints
suit them, and they fit beside all that stays there. On a planned node they count for affinity if they come whatever the
node becomes, and for anti-affinity if they may come. Over labels other than the hostname, those of other planned nodes
are not counted: no one of these nodes is sure to join first.

Differs: Karpenter counts only pods that run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field

from journeyman.core.scheduling.results import Defect
from journeyman.core.scheduling.verify.matching import (
    PodKind,
    is_finished_or_terminating,
    untolerated,
)
from journeyman.errors import InvalidQuantityError
from journeyman_simulator.judge.check_nodes import left_on, meets_labels
from journeyman_simulator.judge.check_topology import CountedPods
from journeyman_simulator.judge.possible_nodes import AwaitedPods, CheckedNode, PlanIndex


class AwaitedDaemons(Struct, eq=False):
    """The nodes to which the pods of each DaemonSet are still to come: existing ones, planned ones surely and possibly."""

    existing: dict[PodKind, list[CheckedNode]] = field(default_factory=dict)
    surely: dict[PodKind, list[CheckedNode]] = field(default_factory=dict)
    possibly: dict[PodKind, list[CheckedNode]] = field(default_factory=dict)

    @classmethod
    def of(cls, index: PlanIndex) -> AwaitedDaemons:
        """Return where the pods of the DaemonSets are awaited that a rule of theirs or of planned pods concerns."""
        found, concerned = cls(), _concerned(index)
        for node in index.existing_nodes if concerned else ():
            pool = node.state_node.node_pool if node.state_node is not None else ""
            belonging = [daemon for daemon in index.daemons_of_pool(pool) if _belongs(daemon, node)]
            missing = [daemon for daemon in belonging if daemon in concerned and not _runs(daemon, node)]
            if missing and node.is_schedulable and _fit(node, belonging):
                for daemon in missing:
                    found.existing.setdefault(daemon, []).append(node)
        for node in index.new_nodes if concerned else ():
            launches = index.launches(node.claim.node_pool) if node.claim is not None else None
            for daemon in (d for d in launches.daemons if d in concerned) if launches is not None else ():
                if node.possible.rows_possibly_meeting(daemon.node_requirements) & node.rows:
                    found.possibly.setdefault(daemon, []).append(node)
                if not node.rows & ~node.possible.rows_meeting(daemon.node_requirements):
                    found.surely.setdefault(daemon, []).append(node)
        return found

    @property
    def certain(self) -> tuple[AwaitedPods, ...]:
        """The pods that come whatever the nodes become."""
        on_existing = (AwaitedPods(d, n, True) for d, nodes in self.existing.items() for n in nodes)
        on_new = (AwaitedPods(d, n, False) for d, nodes in self.surely.items() for n in nodes)
        return (*on_existing, *on_new)


def _concerned(index: PlanIndex) -> dict[PodKind, None]:
    groups = {
        group.id: group
        for kind in (index.planned_by_kind if index.daemons else ())
        for term in (*kind.affinity, *kind.anti_affinity)
        for group in (CountedPods.of(kind.pod, term),)
    }
    return {
        daemon: None
        for daemon in index.daemons
        if daemon.anti_affinity or any(group.counts(daemon, index.namespaces) for group in groups.values())
    }


def _belongs(daemon: PodKind, node: CheckedNode) -> bool:
    return untolerated(daemon.pod, node.taints) is None and meets_labels(node, daemon.node_requirements)


def _runs(daemon: PodKind, node: CheckedNode) -> bool:
    """Whether the DaemonSet, whose UID its sample pod has, runs a pod on the node."""
    return node.state_node is not None and any(
        owner.uid == daemon.pod.metadata.uid
        for pod in node.state_node.pods
        if not is_finished_or_terminating(pod)
        for owner in pod.metadata.owner_references
        if owner.controller and owner.kind == "DaemonSet"
    )


def _fit(node: CheckedNode, daemons: Iterable[PodKind]) -> bool:
    """Whether the daemons that do not run yet fit beside the pods that stay on the node."""
    try:
        return all(amount >= 0 for amount in left_on(node, daemons).values())
    except InvalidQuantityError:
        return False


def check_daemons(index: PlanIndex, awaited: AwaitedDaemons) -> Iterator[Defect]:
    """Check that no anti-affinity keeps planned pods and awaited pods of DaemonSets apart that share a domain."""
    daemons = tuple({**awaited.existing, **awaited.possibly})
    named = {daemon: f"the awaited pod of DaemonSet {daemon.pod.key}" for daemon in daemons}
    for kind, where in index.planned_by_kind.items() if daemons else ():
        for term in kind.anti_affinity:
            group = CountedPods.of(kind.pod, term)
            for daemon in daemons:
                if group.counts(daemon, index.namespaces):
                    yield from _sharing(
                        awaited, daemon, group, where, f"the anti-affinity of pod {{}} selects {named[daemon]}"
                    )
        for daemon in daemons:
            for term in daemon.anti_affinity:
                group = CountedPods.of(daemon.pod, term)
                if group.counts(kind, index.namespaces):
                    yield from _sharing(
                        awaited, daemon, group, where, f"the anti-affinity of {named[daemon]} selects pod {{}}"
                    )


def _sharing(
    awaited: AwaitedDaemons,
    daemon: PodKind,
    group: CountedPods,
    where: Sequence[tuple[CheckedNode, str, int]],
    wrong: str,
) -> Iterator[Defect]:
    """Yield a defect for each node of planned pods to whose domain a DaemonSet's pod comes."""
    taken = {domain for node in awaited.existing.get(daemon, ()) for domain in node.domains(group.key)}
    own = {node.host for node in awaited.possibly.get(daemon, ())}
    for node, pod, _ in where:
        domains: Mapping[str, None] = dict.fromkeys(sorted(node.domains(group.key)))
        if domains and (node.host in own or not taken.isdisjoint(domains)):
            yield node.defect(f"{wrong.format(pod)} in its {group.key}")
