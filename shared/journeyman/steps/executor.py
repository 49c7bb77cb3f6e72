"""Executes plans: the only code that writes.

Chains are independent: what fails stops its own chain and the chains behind it, never the others. The Lease and the time
are checked before every outside effect:

============================  ==========================================================================
conflict, object gone         the chain stops; the step runs again at once, reloads and decides again
eviction refused (`actions`)  counted, an Event on the node; the drain's own requeue tries again
other retryable error         the chain stops; the step runs again when it may help
other error                   the chain stops, the error is reported; the sweep finds what is left to do
nomination refused            logged; its chain goes on (`nomination`)
NodePool gone or over limits  chains that create its NodeClaims do not start; provision runs again
deadline near                 no further action starts; the step runs again at once for the rest ("partial")
Lease lost                    no further action starts: another run has the step ("busy")
============================  ==========================================================================

Launches are collected over all chains and requested together, after everything that needs no instance. Neighbouring chains
that only patch send their patches in parallel: the first patch of each, then the second… Inside a chain the order holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from itertools import groupby
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api.model import parse
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import NODEPOOL
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
from journeyman.steps.node_classes import resolve_node_class
from journeyman.steps.pod_nominator import PodNominator
from journeyman.steps.recorder import RunRecorder
from journeyman.steps.scheduling_inputs import SchedulingInputs

LIMITS_PERIOD: Final = timedelta(seconds=10)
"""karpenter pkg/controllers/provisioning/controller.go: pods requeue after 10 s."""
PATCHES_AT_ONCE: Final = 32
"""Patches that are sent between two checks of the time and the Lease."""


class PlanExecutor:
    """Executes the plans of one run.

    Args:
        run: The run's connections.
        step: The step that runs.
        recorder: Records what came of each action.
        lease: The fence, checked before every outside effect; None for a step that needs none.
    """

    def __init__(self, run: RunContext, step: Step, recorder: RunRecorder, lease: Lease | None) -> None:
        self._run = run
        self._step = step
        self._recorder = recorder
        self._lease = lease
        self._performer = ActionPerformer(run)
        self._nominator = PodNominator(run, recorder.count)

    @property
    def written(self) -> WrittenObjects:
        """What this run has written so far."""
        return self._performer.written

    def execute(self, plan: Plan, snapshot: Snapshot, scheduling: SchedulingInputs | None = None) -> None:
        """Execute a plan, launches included.

        Args:
            plan: What was decided.
            snapshot: What it was decided on.
            scheduling: NodeClasses and instance types; a plan that launches needs them.

        Raises:
            LeaseLostError: Another run holds the step.
            DeadlineError: The time is up; the step runs again for the rest.
            InvariantError: The plan launches, and there is no catalogue to launch from.
        """
        plan = self._without_closed_pools(plan, snapshot)
        self._recorder.record_plan(plan)
        launches: list[_PendingLaunch] = []
        for only_patches, chains in groupby(self._nominate_first(plan.chains), key=_has_only_patches):
            if only_patches:
                self._patch_in_parallel(chains)
                continue
            for chain in chains:
                self._run_chain(chain, launches)
        while launches:
            if scheduling is None:
                raise InvariantError("a plan without a catalogue launches instances", claim=launches[0].claim)
            self._check()
            launches = self._launch(launches, scheduling)

    def _execute_at_once(self, plan: Plan) -> None:
        """Execute a plan without launches that follows from the cloud's answer: the deadline's margin is there for it."""
        self._recorder.record_plan(plan)
        for chain in plan.chains:
            self._run_chain(chain, [], in_margin=True)

    def _launch(self, launches: list[_PendingLaunch], scheduling: SchedulingInputs) -> list[_PendingLaunch]:
        """Launch all of them; each that succeeds lets its chain go on, maybe to further launches."""
        launcher = InstanceLauncher(
            self._run, self._recorder, self._performer, scheduling, execute=self._execute_at_once, lease=self._lease
        )
        further: list[_PendingLaunch] = []
        rest = {launch.claim: launch.rest for launch in launches}
        for claim in launcher.launch(tuple(rest)):
            self._run_chain(rest[claim], further)
        return further

    # -- one chain ----------------------------------------------------------------------------------------------

    def _run_chain(self, chain: Chain, launches: list[_PendingLaunch], *, in_margin: bool = False) -> None:
        for index, action in enumerate(chain.actions):
            if isinstance(action, Requeue):
                continue  # recorded with the plan
            if isinstance(action, LaunchInstance):
                launches.append(_PendingLaunch(action.claim, replace(chain, actions=chain.actions[index + 1 :])))
                return
            self._check(in_margin=in_margin)
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
            self._run_chain(next_chain, launches, in_margin=in_margin)

    def _check(self, *, in_margin: bool = False) -> None:
        """Check before every outside effect that there is time (or the margin is for it), and that the Lease is ours."""
        if self._run.out_of_time and not in_margin:
            raise DeadlineError("the run's time is up", step=self._step.value)
        if self._lease is not None:
            self._lease.check()

    def _perform(self, action: Action, chain: Chain) -> bool:
        """Perform one action; return whether its chain may go on."""
        try:
            self._performer.perform(action)
        except (LeaseLostError, InvariantError):
            raise
        except JourneymanError as error:
            return self._record_result(action, chain, error)
        return self._record_result(action, chain, None)

    def _resolve(self, action: ResolveNodeClass, chain: Chain) -> bool:
        """Resolve a NodeClass and write its status; return whether its chain may go on."""
        try:
            node_class, writes = resolve_node_class(self._run.cloud, action)
        except CloudProviderError as error:
            self._recorder.record_error(chain.subject, error)
            return False
        self.written.node_classes[node_class.name] = node_class
        self._run_chain(writes, [])
        return True

    def _record_result(self, action: Action, chain: Chain, error: JourneymanError | None) -> bool:
        """Record how an action went; return whether its chain may go on."""
        if error is None:
            self._recorder.count(type(action).__name__)
            if isinstance(action, EvictPod):
                self._recorder.observe(eviction_sample(None))
            return True
        if isinstance(action, EvictPod):
            self._record_refused_eviction(action, chain, error)
        elif isinstance(error, ConflictError) or (isinstance(error, NotFoundError) and isinstance(action, PatchObject)):
            self._recorder.record_conflict(chain.subject, error)
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

    def _record_chain(self, chain: Chain) -> None:
        """Record what is true now; on a claim that this run created with the UID that it has."""
        events = tuple(replace(event, ref=self._performer.identified(event.ref)) for event in chain.events)
        self._recorder.record_chain(replace(chain, events=events))

    def _nominate_first(self, chains: Iterable[Chain]) -> list[Chain]:
        """Write the nominations that chains begin with, before any node loses its taint; return the rest of the chains."""
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
        """Execute chains that only patch, as many patches in parallel as may be."""
        tracks = [_PatchTrack.of(chain) for chain in chains]
        while wave := _next_wave(tracks):
            self._check()
            for track, may_go_on in zip(wave, self._send(wave), strict=True):
                track.left = track.left[1:] if may_go_on else []
                track.sent += 1
                if may_go_on and not track.left:
                    self._record_chain(track.chain)

    def _send(self, wave: Sequence[_PatchTrack]) -> list[bool]:
        """Send the next patch of each; return whether its chain may go on."""
        if len(wave) == 1:
            return [self._perform(wave[0].left[0], wave[0].chain)]
        errors = self._performer.patch_together([track.left[0] for track in wave])
        return [self._record_result(track.left[0], track.chain, e) for track, e in zip(wave, errors, strict=True)]

    # -- chains that need their NodePool ----------------------------------------------------------------------------

    def _without_closed_pools(self, plan: Plan, snapshot: Snapshot) -> Plan:
        """Return the plan without chains whose NodePool, as it is stored right now, is gone or over its limits.

        Restates: karpenter pkg/controllers/provisioning/provisioner.go `Create`.
        """
        names = {chain.node_pool for chain in plan.chains if chain.node_pool}
        closed = self._closed_pools(names, snapshot) if names else frozenset()
        if not closed:
            return plan
        return replace(plan, chains=tuple(chain for chain in plan.chains if chain.node_pool not in closed))

    def _closed_pools(self, names: Iterable[str], snapshot: Snapshot) -> frozenset[str]:
        """Return the NodePools that may have no new nodes now; note why, and let provision run again."""
        usages = usage_by_pool(snapshot)
        closed = set()
        for name in sorted(names):
            pool = self._stored_pool(name)
            over = usages.get(name, NO_USAGE).exceeded(pool.spec.limit_amounts) if pool is not None else ()
            if pool is None or pool.metadata.deletion_timestamp is not None or over:
                self._recorder.note(
                    f"NodePool {name} may have no new nodes: {', '.join(over) or 'it is gone or invalid'}"
                )
                # it stays over its limits until terminating nodes are gone, so running again at once does not help
                at = self._run.clock.now() + (LIMITS_PERIOD if over else timedelta())
                self._recorder.requeue(Step.PROVISION, at, f"NodePool {name} changed since it was read")
                closed.add(name)
        return frozenset(closed)

    def _stored_pool(self, name: str) -> NodePool | None:
        try:
            raw: dict[str, Any] = self._run.store.get(NODEPOOL, name)
            return parse(NodePool, raw)
        except (NotFoundError, InvalidObjectError):
            return None


class _PendingLaunch(Struct, frozen=True):
    """A NodeClaim to launch, and what its chain does once its instance exists."""

    claim: str
    rest: Chain


class _PatchTrack(Struct):
    """A chain that only patches, and the patches of it that are still to be sent."""

    chain: Chain
    left: list[PatchObject]
    sent: int = 0

    @classmethod
    def of(cls, chain: Chain) -> _PatchTrack:
        return cls(chain=chain, left=[a for a in chain.actions if isinstance(a, PatchObject)])


def _has_only_patches(chain: Chain) -> bool:
    """Whether the chain consists of patches, and requeues, which are recorded with the plan."""
    kinds = {type(action) for action in chain.actions}
    return not chain.then and PatchObject in kinds and kinds <= {PatchObject, Requeue}


def _next_wave(tracks: Sequence[_PatchTrack]) -> tuple[_PatchTrack, ...]:
    """Return tracks whose next patches may be sent in parallel, in their order; empty once nothing is left.

    No second patch of a chain is sent before every first one. They are of the kind and subresource of the first track's, and
    each is for another object: two patches of one object depend on each other's version.
    """
    kind: tuple[str, str] | None = None  # plural, subresource
    wave: dict[tuple[str, str], _PatchTrack] = {}  # by namespace, name
    pending = [track for track in tracks if track.left]
    sent = min((track.sent for track in pending), default=0)
    for track in pending:
        if track.sent > sent:
            continue
        patch = track.left[0]
        kind = kind or (patch.ref.resource.plural, patch.subresource)
        if (patch.ref.resource.plural, patch.subresource) == kind:
            wave.setdefault((patch.ref.namespace, patch.ref.name), track)
    return tuple(wave.values())[:PATCHES_AT_ONCE]
