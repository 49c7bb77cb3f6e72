"""Executes plans: the only code that writes.

Chains are independent: a failure stops its own chain and the chains that follow from it (`Chain.then`), never the others.
The executor checks the Lease and the deadline before every outside effect:

============================  ==========================================================================
conflict, object gone         stop the chain; requeue the step at once, which loads and decides again
eviction refused (`actions`)  stop the chain, record an Event on the node; the drain's requeue tries again
other retryable error         stop the chain; requeue the step
other error                   stop the chain, report the error; the sweep finds the remaining work
nomination refused            log it, and continue the chain (`pod_nominator`)
NodePool gone or over limits  skip the chains that create its NodeClaims; requeue provision
deadline near                 start no further action; requeue the step at once ("partial")
Lease lost                    start no further action: another run holds the Lease ("busy")
============================  ==========================================================================

The executor collects the launches of all chains and requests them together, after all other actions. Chains that terminate
instances come first, and their terminations go to the cloud together. The patches of consecutive chains that only patch are
sent in parallel: first patches, then second patches… Within a chain the order holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from itertools import groupby
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api.model import parse
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import NODEPOOL, POD
from journeyman.core.lifecycle.nodepool_status import NO_USAGE, usage_by_pool
from journeyman.core.plan import (
    Action,
    Chain,
    EvictPod,
    LaunchInstance,
    NominatePods,
    PatchObject,
    Plan,
    RenominatePods,
    Requeue,
    ResolveNodeClass,
    Step,
    TerminateInstance,
)
from journeyman.core.state import Snapshot
from journeyman.errors import (
    CloudProviderError,
    ConflictError,
    DeadlineError,
    ForbiddenError,
    InvalidObjectError,
    InvariantError,
    JourneymanError,
    LeaseLostError,
    NotFoundError,
)
from journeyman.ports import Lease
from journeyman.steps.actions import (
    ActionPerformer,
    WrittenObjects,
    eviction_blocked,
    eviction_sample,
    is_blocked_by_budget,
    is_evicted_already,
    termination_failed,
)
from journeyman.steps.context import RunContext
from journeyman.steps.instance_launch import InstanceLauncher
from journeyman.steps.node_classes import resolve_node_class, unresolved_node_class
from journeyman.steps.pod_nominator import PodNominator
from journeyman.steps.recorder import RunRecorder
from journeyman.steps.scheduling_inputs import SchedulingInputs

RETRY_LIMITS_AFTER: Final = timedelta(seconds=10)
"""karpenter pkg/controllers/provisioning/controller.go: pods requeue after 10 s."""
MAX_PARALLEL_PATCHES: Final = 32
"""Patches that are sent between two checks of the deadline and the Lease."""


class PlanExecutor:
    """Executes the plans of one run.

    Args:
        run: The run.
        step: The step that runs.
        recorder: Records the result of each action.
        lease: The step's Lease, checked before every outside effect; None for a step without one.
    """

    def __init__(self, run: RunContext, step: Step, recorder: RunRecorder, lease: Lease | None) -> None:
        self._run = run
        self._step = step
        self._recorder = recorder
        self._lease = lease
        self._performer = ActionPerformer(run)
        self._nominator = PodNominator(run, recorder.count)
        self._may_patch_pods = True

    @property
    def written(self) -> WrittenObjects:
        """The objects that this run has written so far."""
        return self._performer.written

    def execute(self, plan: Plan, snapshot: Snapshot, scheduling: SchedulingInputs | None = None) -> None:
        """Execute a plan, launches included.

        Args:
            plan: The plan.
            snapshot: The snapshot from which the plan was decided.
            scheduling: NodeClasses and instance types; required if the plan launches instances.

        Raises:
            LeaseLostError: Another run holds the Lease.
            DeadlineError: The run's time is up; the remaining actions were not started.
            InvariantError: The plan launches instances without `scheduling`.
        """
        plan = self._without_unusable_pools(plan, snapshot)
        self._recorder.record_plan(plan)
        pending = _PendingCalls()
        chains = self._nominate_first(plan.chains)
        self._run_chains([chain for chain in chains if _terminates(chain)], pending)
        self._run_chains([chain for chain in chains if not _terminates(chain)], pending)
        while launches := pending.take_launches():
            if scheduling is None:
                raise InvariantError("a plan without a catalogue launches instances", claim=launches[0].claim)
            self._check()
            self._launch(launches, pending, scheduling)
            self._terminate(pending)

    def _execute_within_margin(self, plan: Plan) -> None:
        """Execute a plan without calls to the cloud that records its response; it may use the deadline's margin."""
        self._recorder.record_plan(plan)
        for chain in plan.chains:
            self._run_chain(chain, _PendingCalls(), in_margin=True)

    def _run_chains(self, chains: Sequence[Chain], pending: _PendingCalls) -> None:
        """Run chains, then terminate the instances of all of them; what they launch is pending."""
        for only_patches, some in groupby(chains, key=_has_only_patches):
            if only_patches:
                self._patch_in_parallel(some)
                continue
            for chain in some:
                self._run_chain(chain, pending)
        self._terminate(pending)

    def _launch(self, launches: list[_PendingLaunch], pending: _PendingCalls, scheduling: SchedulingInputs) -> None:
        """Launch instances, and continue the chain of each that succeeds."""
        launcher = InstanceLauncher(
            self._run,
            self._recorder,
            self._performer,
            scheduling,
            execute=self._execute_within_margin,
            lease=self._lease,
        )
        rest_by_claim = {launch.claim: launch.rest for launch in launches}
        for claim in launcher.launch(tuple(rest_by_claim)):
            self._run_chain(rest_by_claim[claim], pending)

    def _terminate(self, pending: _PendingCalls) -> None:
        """Terminate the instances of all chains that wait for it together, and continue the chain of each that succeeds."""
        while terminations := pending.take_terminations():
            self._check()
            errors = self._performer.terminate([each.action for each in terminations])
            for each, error in zip(terminations, errors, strict=True):
                if self._record_result(each.action, each.rest, error):
                    self._run_chain(each.rest, pending)

    # -- one chain ----------------------------------------------------------------------------------------------

    def _run_chain(self, chain: Chain, pending: _PendingCalls, *, in_margin: bool = False) -> None:
        for index, action in enumerate(chain.actions):
            if isinstance(action, Requeue):
                continue  # recorded with the plan
            if isinstance(action, LaunchInstance | TerminateInstance):
                pending.add(action, replace(chain, actions=chain.actions[index + 1 :]))
                return
            self._check(in_margin=in_margin or chain.in_margin)
            if isinstance(action, NominatePods):
                self._nominator.nominate(action)
            elif isinstance(action, RenominatePods):
                self._nominator.renominate(action)
            elif isinstance(action, ResolveNodeClass):
                if not self._resolve(action, chain):
                    return
            elif not self._perform(action, chain):
                return
        self._record_chain(chain)
        for next_chain in chain.then:
            self._run_chain(next_chain, pending, in_margin=in_margin)

    def _check(self, *, in_margin: bool = False) -> None:
        """Raise if the run's time is up, unless the action may use the deadline's margin, or if the run lost the Lease."""
        if self._run.is_out_of_time and not in_margin:
            raise DeadlineError("the run's time is up", step=self._step.value)
        if self._lease is not None:
            self._lease.check()

    def _perform(self, action: Action, chain: Chain) -> bool:
        """Perform one action; return whether its chain continues."""
        try:
            self._performer.perform(action)
        except (LeaseLostError, InvariantError):
            raise
        except JourneymanError as error:
            return self._record_result(action, chain, error)
        return self._record_result(action, chain, None)

    def _resolve(self, action: ResolveNodeClass, chain: Chain) -> bool:
        """Resolve a NodeClass and write its status; return whether its chain continues."""
        try:
            node_class, writes = resolve_node_class(self._run.cloud, action)
        except CloudProviderError as error:
            node_class, writes = unresolved_node_class(self._run.cloud, action, error)
            self.written.node_classes[node_class.name] = node_class
            self._run_chain(writes, _PendingCalls())
            self._recorder.record_error(chain.subject, error)
            return False
        self.written.node_classes[node_class.name] = node_class
        self._run_chain(writes, _PendingCalls())
        return True

    def _record_result(self, action: Action, chain: Chain, error: JourneymanError | None) -> bool:
        """Record an action's success or error; return whether its chain continues."""
        if error is None:
            self._recorder.count(type(action).__name__)
            if isinstance(action, EvictPod):
                self._recorder.observe(eviction_sample(None))
            return True
        if isinstance(action, EvictPod):
            self._record_refused_eviction(action, chain, error)
        elif isinstance(error, ConflictError) or (isinstance(error, NotFoundError) and isinstance(action, PatchObject)):
            self._recorder.record_conflict(chain.subject, error)
        elif isinstance(error, ForbiddenError) and _patches_pod(action):
            self._record_refused_pod(chain, error)
        else:
            if isinstance(action, TerminateInstance) and not error.retryable and (action.node or action.claim):
                self._recorder.event(termination_failed(action, error))
            self._recorder.record_error(chain.subject, error)
        return False

    def _record_refused_eviction(self, action: EvictPod, chain: Chain, error: JourneymanError) -> None:
        self._recorder.observe(eviction_sample(error))
        if is_blocked_by_budget(error):
            self._recorder.count("evictions refused")
            self._recorder.event(eviction_blocked(action, error))
        elif is_evicted_already(error):
            self._recorder.count("evictions of pods that are gone")
        else:
            self._recorder.record_error(chain.subject, error)

    def _record_refused_pod(self, chain: Chain, error: ForbiddenError) -> None:
        """Record once that the permission to patch pods is missing; no more of them are patched in this run."""
        if self._may_patch_pods:
            self._recorder.record_error(chain.subject, error)
        self._recorder.count("patches of pods refused")
        self._may_patch_pods = False

    def _record_chain(self, chain: Chain) -> None:
        """Record a chain's Events and metrics; add the UIDs of claims that this run created to the Events' objects."""
        events = tuple(replace(event, ref=self._performer.with_uid(event.ref)) for event in chain.events)
        self._recorder.record_chain(replace(chain, events=events))

    def _nominate_first(self, chains: Iterable[Chain]) -> list[Chain]:
        """Nominate the pods of all chains that begin with a nomination, before a node loses its taint; return the other actions."""
        rest, nominations = [], []
        for chain in chains:
            first = next(iter(chain.actions), None)
            if isinstance(first, NominatePods):
                nominations.append(first)
                rest.append(replace(chain, actions=chain.actions[1:]))
            else:
                rest.append(chain)
        if nominations:
            self._check()
            self._nominator.nominate(*nominations)
        return rest

    # -- chains that only patch -----------------------------------------------------------------------------------

    def _patch_in_parallel(self, chains: Iterable[Chain]) -> None:
        """Execute chains that only patch; send as many patches in parallel as possible."""
        pending = [_PendingPatches.of(chain) for chain in chains]
        while batch := _next_batch(pending):
            self._check()
            for patches, continues in zip(batch, self._send(batch), strict=True):
                patches.remaining = patches.remaining[1:] if continues else []
                patches.sent += 1
                if continues and not patches.remaining:
                    self._record_chain(patches.chain)
            if not self._may_patch_pods:
                pending = [p for p in pending if p.remaining and not _patches_pod(p.remaining[0])]

    def _send(self, batch: Sequence[_PendingPatches]) -> list[bool]:
        """Send the next patch of each chain; return for each chain whether it continues."""
        if len(batch) == 1:
            return [self._perform(batch[0].remaining[0], batch[0].chain)]
        errors = self._performer.patch_in_parallel([patches.remaining[0] for patches in batch])
        return [self._record_result(p.remaining[0], p.chain, error) for p, error in zip(batch, errors, strict=True)]

    # -- chains that need their NodePool ----------------------------------------------------------------------------

    def _without_unusable_pools(self, plan: Plan, snapshot: Snapshot) -> Plan:
        """Return the plan without the chains whose NodePool, read again now, is gone or over its limits.

        Restates: karpenter pkg/controllers/provisioning/provisioner.go `Create`.
        """
        names = {chain.node_pool for chain in plan.chains if chain.node_pool}
        unusable = self._unusable_pools(names, snapshot) if names else frozenset()
        if not unusable:
            return plan
        return replace(plan, chains=tuple(chain for chain in plan.chains if chain.node_pool not in unusable))

    def _unusable_pools(self, names: Iterable[str], snapshot: Snapshot) -> frozenset[str]:
        """Return the NodePools that are gone, being deleted or over their limits; requeue provision for each."""
        usages = usage_by_pool(snapshot)
        unusable = set()
        for name in sorted(names):
            pool = self._read_pool(name)
            exceeded_limits = usages.get(name, NO_USAGE).exceeded(pool.spec.limit_amounts) if pool is not None else ()
            if pool is None or pool.metadata.deletion_timestamp is not None or exceeded_limits:
                why = ", ".join(exceeded_limits) or "it is deleted or invalid"
                self._recorder.note(f"not creating NodeClaims for NodePool {name}: {why}")
                # a NodePool stays over its limits until nodes are gone, so an immediate requeue does not help
                at = self._run.clock.now() + (RETRY_LIMITS_AFTER if exceeded_limits else timedelta())
                self._recorder.requeue(Step.PROVISION, at, f"NodePool {name} changed since it was read")
                unusable.add(name)
        return frozenset(unusable)

    def _read_pool(self, name: str) -> NodePool | None:
        try:
            raw: dict[str, Any] = self._run.store.get(NODEPOOL, name)
            return parse(NodePool, raw)
        except (NotFoundError, InvalidObjectError):
            return None


class _PendingLaunch(Struct, frozen=True):
    """A NodeClaim to launch, and the actions of its chain that follow once its instance exists."""

    claim: str
    rest: Chain


class _PendingTermination(Struct, frozen=True):
    """An instance to terminate, and the actions of its chain that follow."""

    action: TerminateInstance
    rest: Chain


class _PendingCalls(Struct):
    """What chains wait for: launches and terminations of instances, which go to the cloud together."""

    launches: list[_PendingLaunch] = field(default_factory=list)
    terminations: list[_PendingTermination] = field(default_factory=list)

    def add(self, action: LaunchInstance | TerminateInstance, rest: Chain) -> None:
        """Add a call, and the actions that follow it."""
        if isinstance(action, LaunchInstance):
            self.launches.append(_PendingLaunch(action.claim, rest))
        else:
            self.terminations.append(_PendingTermination(action, rest))

    def take_launches(self) -> list[_PendingLaunch]:
        """Return the launches, which are no longer pending."""
        taken, self.launches = self.launches, []
        return taken

    def take_terminations(self) -> list[_PendingTermination]:
        """Return the terminations, which are no longer pending."""
        taken, self.terminations = self.terminations, []
        return taken


class _PendingPatches(Struct):
    """A chain that only patches, its patches not yet sent, and how many were sent."""

    chain: Chain
    remaining: list[PatchObject]
    sent: int = 0

    @classmethod
    def of(cls, chain: Chain) -> _PendingPatches:
        return cls(chain=chain, remaining=[a for a in chain.actions if isinstance(a, PatchObject)])


def _patches_pod(action: Action) -> bool:
    return isinstance(action, PatchObject) and action.ref.resource is POD


def _terminates(chain: Chain) -> bool:
    return any(isinstance(action, TerminateInstance) for action in chain.actions)


def _has_only_patches(chain: Chain) -> bool:
    """Whether the chain consists of patches only, apart from requeues, which are recorded with the plan."""
    kinds = {type(action) for action in chain.actions}
    return not chain.then and PatchObject in kinds and kinds <= {PatchObject, Requeue}


def _next_batch(chains: Sequence[_PendingPatches]) -> tuple[_PendingPatches, ...]:
    """Return the chains whose next patches may be sent in parallel, in order; empty once all patches are sent.

    All first patches are sent before any second one, and lower waves before higher ones. The patches of a batch are of one
    kind and subresource, and each is of another object, because the second patch of an object needs the version that the
    first one returns.
    """
    kind: tuple[str, str] | None = None  # plural, subresource
    batch: dict[tuple[str, str], _PendingPatches] = {}  # by namespace, name
    unsent = [chain for chain in chains if chain.remaining]
    lowest_rank = min((_rank(chain) for chain in unsent), default=None)
    for chain in unsent:
        if _rank(chain) != lowest_rank:
            continue
        patch = chain.remaining[0]
        kind = kind or (patch.ref.resource.plural, patch.subresource)
        if (patch.ref.resource.plural, patch.subresource) == kind:
            batch.setdefault((patch.ref.namespace, patch.ref.name), chain)
    return tuple(batch.values())[:MAX_PARALLEL_PATCHES]


def _rank(chain: _PendingPatches) -> tuple[int, int]:
    """Return the rank of the chain's next patch: the number of its patches already sent, then the chain's wave."""
    return chain.sent, chain.chain.wave
