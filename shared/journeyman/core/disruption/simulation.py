"""What if these nodes were gone? The scheduler's answer, and what in it stands against disruption.

Restates: karpenter pkg/controllers/disruption/helpers.go `SimulateScheduling`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import Pod
from journeyman.core.catalogue import Catalogue
from journeyman.core.disruption.types import Candidate, Command, Simulated
from journeyman.core.scheduling.demand.buffers import buffer_hosts, is_virtual
from journeyman.core.scheduling.offering.templates import FEWEST_NODES
from journeyman.core.scheduling.options import Options
from journeyman.core.scheduling.pods import is_currently_reschedulable, is_provisionable
from journeyman.core.scheduling.result_cache import Question
from journeyman.core.scheduling.results import Results
from journeyman.core.scheduling.scheduler import Scheduler
from journeyman.core.scheduling.verify import Defect, verify
from journeyman.core.state import Snapshot, StateNode


class Simulation(Struct, frozen=True, kw_only=True, dict=True):
    """One cluster to ask "what if" of, several times.

    `marked` are the claims that commands under way give back; `waiting` those whose consolidateAfter has not passed.
    `known` are the scheduler's answers about this very cluster, to which more are added.
    """

    snapshot: Snapshot
    catalogue: Catalogue
    marked: frozenset[str] = frozenset()
    waiting: frozenset[str] = frozenset()
    options: Options = field(default_factory=Options)
    known: dict[Question, Results] = field(default_factory=dict)

    def without(self, candidates: Iterable[Candidate], *, fewest_nodes: bool = False) -> Simulated:
        """Schedule the candidates' pods, the pending ones and those on leaving nodes, on what remains.

        New nodes are chosen as the NodePools ask for, or all of them to be few and large.

        Errors are: pods of candidates or leaving nodes that find no place; pods of candidates planned onto a node
        that is not initialized (it may never be), or that is still within its consolidateAfter (they would restart
        its clock). Where no other pods need a place, such nodes are not offered in the first place, unless they take
        their share of a limit.
        """
        chosen = tuple(candidates)
        moving = tuple(self._pods_on(self._node_of[c.nodeclaim] for c in chosen))
        others = self._pending + self._leaving_pods
        gone = self._leaving | {self._node_of[c.nodeclaim].name for c in chosen}
        if not others:
            gone |= self._unsettled - self._limited
        pods = tuple(sorted(moving + others, key=lambda p: p.key))
        question = (tuple(pod.key for pod in pods), gone, "few nodes" if fewest_nodes else "")
        results = self.known.get(question)
        if results is None:
            results = (self._frugal_scheduler if fewest_nodes else self._scheduler).solve(pods, gone)
            self.known[question] = results
        return Simulated(pods=pods, gone=gone, results=results, errors=self._errors(results, moving))

    @cached_property
    def keeping_room(self) -> frozenset[str]:
        """Names of the nodes on which room is kept for CapacityBuffers, if all stays as it is.

        Restates: karpenter pkg/controllers/disruption/emptiness.go `ShouldDisrupt`, as far as it is about buffer pods.
        """
        if not any(map(is_virtual, self._pending)):
            return frozenset()
        return buffer_hosts(self._pending, self.without(()).results)

    def defects(self, command: Command) -> tuple[Defect, ...]:
        """What the independent check finds wrong with a command's placements; empty if nothing is."""
        if command.simulated is None or not command.candidates:
            return ()
        return verify(
            self.snapshot,
            self.catalogue,
            replace(command.simulated.results, new_claims=command.replacements),
            pods=command.simulated.pods,
            without_nodes=command.simulated.gone,
        )

    def _errors(self, results: Results, moving: Iterable[Pod]) -> Mapping[str, str]:
        movers = {pod.key for pod in moving}
        pending = {pod.key for pod in self._pending}
        errors = {key: error.message for key, error in results.pod_errors.items() if key not in pending}
        for name in sorted(self._unsettled & results.existing.keys()):
            for key in results.existing[name]:
                if key in movers:
                    errors[key] = f"would schedule against node {name}, which is not settled yet"
        return errors

    @cached_property
    def _scheduler(self) -> Scheduler:
        return Scheduler(self.snapshot, self.catalogue, self.options)

    @cached_property
    def _frugal_scheduler(self) -> Scheduler:
        pools = tuple(_packing_few(pool) for pool in self.snapshot.node_pools)
        return Scheduler(replace(self.snapshot, node_pools=pools), self.catalogue, self.options)

    @cached_property
    def _node_of(self) -> Mapping[str, StateNode]:
        return self.snapshot.state_nodes_by_claim

    @cached_property
    def _leaving(self) -> frozenset[str]:
        """Nodes being deleted, or given back by a command under way."""
        return frozenset(n.name for n in self.snapshot.state_nodes if n.deleting or self._claim(n) in self.marked)

    @cached_property
    def _unsettled(self) -> frozenset[str]:
        """Managed nodes that are not initialized, or still within their consolidateAfter."""
        nodes = (n for n in self.snapshot.state_nodes if n.managed)
        return frozenset(n.name for n in nodes if not n.initialized or self._claim(n) in self.waiting)

    @cached_property
    def _limited(self) -> frozenset[str]:
        """Nodes of pools with limits: whoever thinks them away thinks that there is room for others."""
        pools = {pool.metadata.name for pool in self.snapshot.node_pools if pool.spec.limits}
        return frozenset(n.name for n in self.snapshot.state_nodes if n.node_pool in pools)

    @cached_property
    def _pending(self) -> tuple[Pod, ...]:
        return tuple(pod for pod in self.snapshot.pods if is_provisionable(pod))

    @cached_property
    def _leaving_pods(self) -> tuple[Pod, ...]:
        return tuple(self._pods_on(n for n in self.snapshot.state_nodes if n.name in self._leaving))

    def _pods_on(self, nodes: Iterable[StateNode]) -> Iterator[Pod]:
        for node in nodes:
            for pod in node.pods:
                if is_currently_reschedulable(pod, self.snapshot.pdbs, self.snapshot.now):
                    yield pod

    def _claim(self, node: StateNode) -> str:
        return node.claim.metadata.name if node.claim is not None else ""


def _packing_few(pool: NodePool) -> NodePool:
    annotations = {**pool.metadata.annotations, labels.PACKING: FEWEST_NODES}
    return pool.model_copy(update={"metadata": msgspec.structs.replace(pool.metadata, annotations=annotations)})
