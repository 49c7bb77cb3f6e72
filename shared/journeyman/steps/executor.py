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

The order of a plan's chains is that of `phases`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from msgspec.structs import replace
from typing_extensions import assert_never

from journeyman.core.api.model import parse
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import NODEPOOL, POD
from journeyman.core.lifecycle.nodepool_status import NO_USAGE, usage_by_pool
from journeyman.core.plan import (
    Chain,
    ClearLaunchFaults,
    ClearOfferingFailures,
    CreateObject,
    CreateScheduleEntry,
    DeleteObject,
    DeletePod,
    DeleteScheduleEntry,
    DeleteUnusedResources,
    EvictPod,
    ImmediateAction,
    LaunchInstance,
    MarkOfferingUnavailable,
    NameInstance,
    NominatePods,
    PatchObject,
    Plan,
    RecordLaunchFault,
    RecordLearnedSizes,
    RecordPriceAge,
    RefreshPrices,
    ReleaseNodeClass,
    RenominatePods,
    Requeue,
    ResolveNodeClass,
    Step,
    TerminateInstance,
)
from journeyman.core.state import Snapshot
from journeyman.errors import (
    ConflictError,
    DeadlineError,
    ForbiddenError,
    InvalidObjectError,
    InvariantError,
    JourneymanError,
    LeaseLostError,
    NodeClaimNotFoundError,
    NotFoundError,
)
from journeyman.ports import Lease
from journeyman.steps.actions import (
    ObjectWriter,
    WrittenObjects,
    change_schedule,
    delete_unused_resources,
    eviction_blocked,
    eviction_sample,
    is_blocked_by_budget,
    terminate_instances,
    termination_failed,
)
from journeyman.steps.context import RunContext
from journeyman.steps.instance_launch import InstanceLauncher
from journeyman.steps.node_classes import resolve_node_class
from journeyman.steps.offering_state_updates import (
    clear_launch_faults,
    clear_offering_failures,
    mark_offering_unavailable,
    record_launch_fault,
    record_learned_sizes,
    record_price_age,
)
from journeyman.steps.phases import has_only_patches, patch_batches, patches_of, phases_of
from journeyman.steps.pod_nominator import PodNominator
from journeyman.steps.recorder import RunRecorder
from journeyman.steps.scheduling_inputs import SchedulingInputs

RETRY_LIMITS_AFTER: Final = timedelta(seconds=10)
"""karpenter pkg/controllers/provisioning/controller.go: pods requeue after 10 s."""


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
        self._writer = ObjectWriter(run)
        self._nominator = PodNominator(run, recorder.count)
        self._may_patch_pods = True
        self._launches: list[tuple[LaunchInstance, Chain]] = []  # each with the rest of its chain
        self._terminations: list[tuple[TerminateInstance, Chain]] = []

    @property
    def written(self) -> WrittenObjects:
        """The objects that this run has written so far."""
        return self._writer.written

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
        phases = phases_of(plan.chains)
        if phases.nominations:
            self._check()
            self._nominator.nominate(*phases.nominations)
        for chain in phases.terminating:
            self._run_chain(chain)
        self._terminate()
        for group in phases.others:
            if has_only_patches(group[0]):
                self._patch_in_parallel(group)
            else:
                for chain in group:
                    self._run_chain(chain)
        self._terminate()
        while self._launches:
            self._launch(scheduling)
            self._terminate()

    def _launch(self, scheduling: SchedulingInputs | None) -> None:
        """Launch the instances of all chains that wait for it together, and continue the chain of each that succeeds."""
        rest_by_claim = {action.claim: rest for action, rest in self._launches}
        self._launches = []
        if scheduling is None:
            raise InvariantError("a plan without a catalogue launches instances", claim=next(iter(rest_by_claim)))
        self._check()
        launcher = InstanceLauncher(
            self._run, self._recorder, self._writer, scheduling, execute=self._execute_within_margin, lease=self._lease
        )
        for claim in launcher.launch(tuple(rest_by_claim)):
            self._run_chain(rest_by_claim[claim])

    def _execute_within_margin(self, plan: Plan) -> None:
        """Execute a plan without calls to the cloud that records its response; it may use the deadline's margin."""
        self._recorder.record_plan(plan)
        for chain in plan.chains:
            self._run_chain(chain, in_margin=True)

    def _terminate(self) -> None:
        """Terminate the instances of all chains that wait for it together, and continue the chain of each that succeeds."""
        while self._terminations:
            waiting, self._terminations = self._terminations, []
            self._check()
            errors = terminate_instances(self._run, [action for action, _ in waiting])
            for (action, rest), error in zip(waiting, errors, strict=True):
                if self._record_result(action, rest, error):
                    self._run_chain(rest)

    # -- one chain ----------------------------------------------------------------------------------------------

    def _run_chain(self, chain: Chain, *, in_margin: bool = False) -> None:
        """Perform a chain's actions until one fails, or waits for those of other chains; then run the chains behind it."""
        for index, action in enumerate(chain.actions):
            if isinstance(action, Requeue):
                continue  # recorded with the plan
            if isinstance(action, LaunchInstance):
                self._launches.append((action, replace(chain, actions=chain.actions[index + 1 :])))
                return
            if isinstance(action, TerminateInstance):
                self._terminations.append((action, replace(chain, actions=chain.actions[index + 1 :])))
                return
            self._check(in_margin=in_margin or chain.in_margin)
            if not self._perform(action, chain):
                return
        self._record_chain(chain)
        for next_chain in chain.then:
            self._run_chain(next_chain, in_margin=in_margin)

    def _check(self, *, in_margin: bool = False) -> None:
        """Raise if the run's time is up, unless the action may use the deadline's margin, or if the run lost the Lease."""
        if self._run.is_out_of_time and not in_margin:
            raise DeadlineError("the run's time is up", step=self._step.value)
        if self._lease is not None:
            self._lease.check()

    def _perform(self, action: ImmediateAction, chain: Chain) -> bool:  # noqa: C901, PLR0912 - one case for each kind
        """Perform one action; return whether its chain continues."""
        run, writer = self._run, self._writer
        try:
            match action:
                case CreateObject():
                    writer.create(action)
                case PatchObject():
                    writer.patch(action)
                case DeleteObject():
                    writer.delete(action)
                case DeletePod():
                    writer.delete_by_force(action)
                case EvictPod():
                    run.store.evict(action.ref.namespace, action.ref.name, uid=action.ref.uid)
                case NominatePods():
                    self._nominator.nominate(action)
                    return True
                case RenominatePods():
                    self._nominator.renominate(action)
                    return True
                case ResolveNodeClass():
                    return self._resolve(action, chain)
                case ReleaseNodeClass():
                    run.cloud.release(action.raw)
                case DeleteUnusedResources():
                    delete_unused_resources(run)
                case NameInstance():
                    with suppress(NodeClaimNotFoundError):
                        run.cloud.name_instance(action.provider_id, action.name)
                case RefreshPrices():
                    run.cloud.refresh_prices()
                case RecordPriceAge():
                    record_price_age(run, action)
                case RecordLearnedSizes():
                    record_learned_sizes(run, action)
                case MarkOfferingUnavailable():
                    mark_offering_unavailable(run, action)
                    self.written.unavailable.append(action)
                case ClearOfferingFailures():
                    clear_offering_failures(run, action)
                case RecordLaunchFault():
                    record_launch_fault(run, action)
                    self.written.launch_faults.append(action)
                case ClearLaunchFaults():
                    clear_launch_faults(run, action)
                case CreateScheduleEntry() | DeleteScheduleEntry():
                    change_schedule(run, action)
                case _:
                    assert_never(action)
        except (LeaseLostError, InvariantError):
            raise
        except JourneymanError as error:
            return self._record_result(action, chain, error)
        return self._record_result(action, chain, None)

    def _resolve(self, action: ResolveNodeClass, chain: Chain) -> bool:
        """Resolve a NodeClass and write its status, within the deadline's margin; return whether its chain continues."""
        node_class, writes, error = resolve_node_class(self._run.cloud, action)
        self.written.node_classes[node_class.name] = node_class
        self._run_chain(writes, in_margin=True)
        if error is not None:
            self._recorder.record_error(chain.subject, error)
        return error is None

    def _record_result(
        self, action: ImmediateAction | TerminateInstance, chain: Chain, error: JourneymanError | None
    ) -> bool:
        """Record an action's success or error; return whether its chain continues."""
        recorder = self._recorder
        if isinstance(action, EvictPod):
            recorder.observe(eviction_sample(error))
        if error is None:
            recorder.count(type(action).__name__)
        elif isinstance(action, EvictPod) and is_blocked_by_budget(error):
            recorder.count("evictions refused")
            recorder.event(eviction_blocked(action, error))
        elif isinstance(action, EvictPod) and isinstance(error, NotFoundError | ConflictError):
            recorder.count("evictions of pods that are gone")
        elif isinstance(error, ConflictError) or (isinstance(error, NotFoundError) and isinstance(action, PatchObject)):
            recorder.record_conflict(chain.subject, error)
        elif isinstance(error, ForbiddenError) and _patches_pod(action):
            if self._may_patch_pods:  # reported once; no more of them are patched in this run
                recorder.record_error(chain.subject, error)
            recorder.count("patches of pods refused")
            self._may_patch_pods = False
        else:
            if isinstance(action, TerminateInstance) and not error.retryable and (action.node or action.claim):
                recorder.event(termination_failed(action, error))
            recorder.record_error(chain.subject, error)
        return error is None

    def _record_chain(self, chain: Chain) -> None:
        """Record a chain's Events and metrics; add the UIDs of claims that this run created to the Events' objects."""
        events = tuple(replace(event, ref=self._writer.with_uid(event.ref)) for event in chain.events)
        self._recorder.record_chain(replace(chain, events=events))

    def _patch_in_parallel(self, chains: Sequence[Chain]) -> None:
        """Execute chains that only patch; send as many patches in parallel as possible."""
        stopped: set[int] = set()  # indexes of chains
        for batch in patch_batches(chains):
            if not self._may_patch_pods:
                stopped |= {index for index, patch in batch if _patches_pod(patch)}
            due = [(index, patch) for index, patch in batch if index not in stopped]
            if not due:
                continue
            self._check()
            if len(due) == 1:
                ((index, patch),) = due
                results = [self._perform(patch, chains[index])]
            else:
                errors = self._writer.patch_in_parallel([patch for _, patch in due])
                results = [
                    self._record_result(patch, chains[index], error)
                    for (index, patch), error in zip(due, errors, strict=True)
                ]
            for (index, patch), continues in zip(due, results, strict=True):
                if not continues:
                    stopped.add(index)
                elif patch is patches_of(chains[index])[-1]:
                    self._record_chain(chains[index])

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


def _patches_pod(action: ImmediateAction | TerminateInstance) -> bool:
    return isinstance(action, PatchObject) and action.ref.resource is POD
