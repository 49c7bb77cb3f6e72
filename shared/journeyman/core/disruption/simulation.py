"""Scheduling simulations: where the pods of some nodes would run if these were deleted, and whether that is acceptable.

Restates: karpenter pkg/controllers/disruption/helpers.go `SimulateScheduling`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Final

import msgspec
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import Pod
from journeyman.core.catalogue import Catalogue
from journeyman.core.disruption.candidates import Candidate
from journeyman.core.disruption.commands import Command, SimulationResult
from journeyman.core.scheduling.node_removal import NodeRemovals
from journeyman.core.scheduling.nodeclaim_templates import BY_PRICE, FEWEST_NODES
from journeyman.core.scheduling.results import UNLIMITED, CachedResults, Defect, Options, ProblemKey, Results, Verifier
from journeyman.core.scheduling.scheduler import Scheduler, explained
from journeyman.core.scheduling.verify import verify
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.pod_predicates import is_currently_reschedulable, is_provisionable, is_virtual_pod
from journeyman.core.state.waiting_launches import stored_entries, waiting_pods

_EXPLANATION_EFFORT: Final = 50_000  # of one simulation; a run has hundreds of them


class Simulation:
    """Scheduling simulations in one cluster; inputs that they share are computed once."""

    def __init__(
        self,
        snapshot: Snapshot,
        catalogue: Catalogue,
        *,
        marked_for_deletion: frozenset[str] = frozenset(),
        within_consolidate_after: frozenset[str] = frozenset(),
        options: Options | None = None,
        effort: int = UNLIMITED,
        results: CachedResults | None = None,
        verify: Verifier = verify,
    ) -> None:
        """Prepare simulations.

        Args:
            snapshot: The cluster.
            catalogue: Instance types and prices per NodePool.
            marked_for_deletion: Names of NodeClaims that started commands will delete.
            within_consolidate_after: Names of NodeClaims whose consolidateAfter has not passed.
            options: Options of the scheduler.
            effort: The most effort of one simulation; pods that it does not reach count as unschedulable.
            results: Cached scheduler results for this cluster; the property `results` has these and new ones.
            verify: Verifies the placements of commands.
        """
        self.snapshot = snapshot
        self.catalogue = catalogue
        self.marked_for_deletion = marked_for_deletion
        self._within_consolidate_after = within_consolidate_after
        self._options = options if options is not None else Options()
        self._effort = effort
        self._cached = results if results is not None else CachedResults()
        self._solved: dict[ProblemKey, Results] = {}
        self._verify = verify

    @property
    def results(self) -> CachedResults:
        """The scheduler's results for this cluster: those given as `results`, and those of these simulations."""
        return self._cached.with_results(self._solved)

    def without(
        self, candidates: Iterable[Candidate], *, other_packing: bool = False, respect_consolidate_after: bool = True
    ) -> SimulationResult:
        """Schedule the candidates' pods, pending pods and pods on deleting nodes on the remaining and on new nodes.

        Errors are: pods of candidates or deleting nodes that are unschedulable, but not of hibernating NodePools' nodes; pods of candidates on a node that is not
        initialized (it may never be) or within its consolidateAfter (they would restart it). If no other pods must be
        scheduled, such nodes are excluded from the start, unless they count against limits. Otherwise nodes within their
        consolidateAfter are excluded in a second attempt, with the other pods that the first one placed there. Its result counts if
        the rest of the other pods need no more new nodes.

        Args:
            candidates: Nodes to exclude; may be empty.
            other_packing: Whether NodePools pack into the fewest nodes, or by price if all of them pack into the fewest nodes.
            respect_consolidate_after: Whether nodes within their consolidateAfter are refused.
        """
        chosen = tuple(candidates)
        moving = tuple(self._pods_on(self._node_of[c.nodeclaim] for c in chosen))
        others = self._pending_pods + self._deleting_pods
        excluded = self._deleting | {self._node_of[c.nodeclaim].name for c in chosen}
        unsettled = self._uninitialized
        if respect_consolidate_after:
            unsettled |= self.recently_changed
        if not others:
            excluded |= unsettled - self._in_limited_pools
        pods = tuple(sorted(moving + others, key=lambda p: p.key))
        first = self._simulate(pods, moving, excluded, unsettled, other_packing=other_packing)
        changed = (unsettled - self._uninitialized - self._in_limited_pools) & first.results.existing.keys()
        if not first.errors or not changed:
            return first
        # pods that wait stay on such nodes; they are left out with them
        waiting = {pod.key for pod in others}
        settled = waiting & {key for name in changed for key in first.results.existing[name]}
        second = self._simulate(
            tuple(pod for pod in pods if pod.key not in settled),
            moving,
            excluded | (self.recently_changed - self._in_limited_pools),
            unsettled,
            other_packing=other_packing,
        )
        launches_more = not waiting & _on_new_nodes(second.results) <= _on_new_nodes(first.results)
        return first if second.errors or launches_more else second

    def _simulate(
        self,
        pods: tuple[Pod, ...],
        moving: tuple[Pod, ...],
        excluded: frozenset[str],
        unsettled: frozenset[str],
        *,
        other_packing: bool,
    ) -> SimulationResult:
        results = self._solve(pods, excluded, other_packing=other_packing)
        errors = self._errors(results, moving, unsettled)
        return SimulationResult(pods=pods, excluded_nodes=excluded, results=results, errors=errors)

    def removals(self, candidates: Iterable[Candidate]) -> NodeRemovals:
        """Return the cluster in which each of the candidates can be removed, one at a time.

        As in a simulation, their pods use no node that is not initialized or within its consolidateAfter.
        """
        moving = {c.node: tuple(self._pods_on((self._node_of[c.nodeclaim],))) for c in candidates}
        others = self._pending_pods + self._deleting_pods
        unsettled = self._uninitialized | self.recently_changed
        excluded = self._deleting if others else self._deleting | (unsettled - self._in_limited_pools)
        return NodeRemovals(self._scheduler.inputs, moving, others, excluded, unsettled)

    @cached_property
    def packs_into_fewest_nodes(self) -> bool:
        """Whether all NodePools pack as Karpenter does."""
        return all(pool.packing == FEWEST_NODES for pool in self.snapshot.node_pools)

    @cached_property
    def nodes_hosting_buffers(self) -> frozenset[str]:
        """Names of the nodes on which capacity of CapacityBuffers is reserved, if nothing is disrupted.

        Restates: karpenter pkg/controllers/disruption/emptiness.go `ShouldDisrupt`, its part about buffer pods.
        """
        if not any(map(is_virtual_pod, self._pending_pods)):
            return frozenset()
        return nodes_hosting_buffers(self._pending_pods, self.without(()).results)

    @property
    def options(self) -> Options:
        """The scheduler's options."""
        return self._options

    @property
    def effort(self) -> int:
        """The most effort of one simulation."""
        return self._effort

    @cached_property
    def nodes_without_capacity(self) -> frozenset[str]:
        """Names of nodes that take no pods of candidates: deleting, not initialized, or within their consolidateAfter."""
        return self._deleting | self._uninitialized | self.recently_changed

    @property
    def pods_to_schedule(self) -> tuple[Pod, ...]:
        """Pods that need a node whatever is disrupted: pending pods, and pods on deleting nodes."""
        return self._pending_pods + self._deleting_pods

    def movable_pods(self, candidates: Iterable[Candidate]) -> tuple[Pod, ...]:
        """Return the pods of candidates that need another node if their nodes are deleted."""
        return tuple(self._pods_on(self._node_of[c.nodeclaim] for c in candidates))

    def verify(self, command: Command) -> tuple[Defect, ...]:
        """Return the defects that the independent verification finds in a command's placements; empty if none."""
        simulated = command.simulation_result
        if simulated is None or not command.candidates:
            return ()
        return self._verify(
            self.snapshot,
            self.catalogue,
            replace(simulated.results, new_claims=command.replacements),
            pods=simulated.pods,
            without_nodes=simulated.excluded_nodes,
            ignore_dra_requests=self._options.ignore_dra_requests,
        )

    def _solve(self, pods: tuple[Pod, ...], excluded: frozenset[str], *, other_packing: bool) -> Results:
        problem = ProblemKey(tuple(pod.key for pod in pods), excluded, "other packing" if other_packing else "")
        results = self._solved.get(problem) or self._cached.by_problem.get(problem)
        if results is None:
            scheduler = self._other_scheduler if other_packing else self._scheduler
            solved = scheduler.solve(pods, excluded, self._effort)
            results = self._solved[problem] = self.explained(solved)
        return results

    def explained(self, results: Results) -> Results:
        """Return the results with the explanations of the pods that may not wait; no command depends on the others."""
        return explained(results, effort=_EXPLANATION_EFFORT, only=results.pod_errors.keys() - self._may_wait)

    def _errors(self, results: Results, moving: Iterable[Pod], unsettled: frozenset[str]) -> Mapping[str, str]:
        moving_keys = {pod.key for pod in moving}
        errors = {key: error.message for key, error in results.pod_errors.items() if key not in self._may_wait}
        for name in sorted(unsettled & results.existing.keys()):
            for key in results.existing[name]:
                if key in moving_keys:
                    errors[key] = f"would schedule against uninitialized or recently changed node {name}"
        return errors

    @cached_property
    def _scheduler(self) -> Scheduler:
        return Scheduler(self.snapshot, self.catalogue, self._options)

    @cached_property
    def _other_scheduler(self) -> Scheduler:
        packing = BY_PRICE if self.packs_into_fewest_nodes else FEWEST_NODES
        packed = tuple(_with_packing(pool, packing) for pool in self.snapshot.node_pools)
        return Scheduler(replace(self.snapshot, node_pools=packed), self.catalogue, self._options)

    @cached_property
    def _node_of(self) -> Mapping[str, StateNode]:
        return self.snapshot.state_nodes_by_claim

    @cached_property
    def _deleting(self) -> frozenset[str]:
        """Names of nodes that are deleting, or that a started command will delete."""
        marked = self.marked_for_deletion
        return frozenset(n.name for n in self.snapshot.state_nodes if n.is_terminating or _claim_name(n) in marked)

    @cached_property
    def _uninitialized(self) -> frozenset[str]:
        return frozenset(n.name for n in self.snapshot.state_nodes if n.managed and not n.initialized)

    @cached_property
    def recently_changed(self) -> frozenset[str]:
        """Names of nodes within their consolidateAfter."""
        within = self._within_consolidate_after
        return frozenset(n.name for n in self.snapshot.state_nodes if n.managed and _claim_name(n) in within)

    @cached_property
    def _in_limited_pools(self) -> frozenset[str]:
        """Names of nodes of NodePools with limits: excluding one would free its share for new nodes."""
        pools = {pool.metadata.name for pool in self.snapshot.node_pools if pool.spec.limits}
        return frozenset(n.name for n in self.snapshot.state_nodes if n.node_pool in pools)

    @cached_property
    def _pending_pods(self) -> tuple[Pod, ...]:
        """Pending pods, without those for which no node is launched now."""
        waiting = waiting_pods(self.snapshot, stored_entries(self.snapshot))
        return tuple(pod for pod in self.snapshot.pods if is_provisionable(pod) and pod.key not in waiting)

    @cached_property
    def _deleting_pods(self) -> tuple[Pod, ...]:
        return tuple(self._pods_on(n for n in self.snapshot.state_nodes if n.name in self._deleting))

    @cached_property
    def _may_wait(self) -> frozenset[str]:
        """Keys of pods that wait whatever is disrupted: pending ones, and those on deleting nodes of hibernating NodePools."""
        hibernating = {p.metadata.name for p in self.snapshot.node_pools if p.is_hibernating(self.snapshot.now)}
        nodes = (n for n in self.snapshot.state_nodes if n.name in self._deleting and n.node_pool in hibernating)
        waiting = self._pods_on(nodes) if hibernating else ()
        return frozenset(pod.key for pod in (*self._pending_pods, *waiting))

    def _pods_on(self, nodes: Iterable[StateNode]) -> Iterator[Pod]:
        for node in nodes:
            for pod in node.pods:
                if is_currently_reschedulable(pod, self.snapshot.pdbs, self.snapshot.now):
                    yield pod


def _on_new_nodes(results: Results) -> frozenset[str]:
    """Return the keys of the pods that need new nodes."""
    return frozenset(pod for claim in results.new_claims for pod in claim.pods)


def _claim_name(node: StateNode) -> str:
    return node.claim.metadata.name if node.claim is not None else ""


def _with_packing(pool: NodePool, packing: str) -> NodePool:
    annotations = {**pool.metadata.annotations, labels.PACKING: packing}
    return pool.model_copy(update={"metadata": msgspec.structs.replace(pool.metadata, annotations=annotations)})


def nodes_hosting_buffers(pods: Iterable[Pod], results: Results) -> frozenset[str]:
    """Return the names of existing nodes on which virtual pods are scheduled; these nodes do not count as empty.

    Restates: karpenter pkg/controllers/provisioning/buffers.go `bufferPodCountsFromResults`.
    """
    virtual = {pod.key for pod in pods if is_virtual_pod(pod)}
    return frozenset(name for name, keys in results.existing.items() if virtual.intersection(keys))
