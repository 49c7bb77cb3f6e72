"""Carry out plans: the only hand that writes.

Chains are independent: what fails stops its own chain and what stands behind it, never the others. Before each outside
effect the fence is checked, and the time. However a run ends, its requeues are sent:

============================  ==========================================================================
conflict, object gone         the chain stops; the step wakes up at once, reloads and decides again
eviction refused (`refusals`) counted, told on the node; the drain's own requeue comes back to it
other retryable error         the chain stops; the step wakes up when it may help
other error                   the chain stops, the error is reported; the sweep finds what is left to do
pod nomination refused        logged; its chain goes on; a refusal that other pods would meet too ends the run's nominations
deadline near                 nothing more is begun; the step wakes up at once for the rest ("partial")
fence lost                    nothing more is done: another run has the step ("busy")
============================  ==========================================================================

Launches are collected over all chains and asked of the cloud together, after everything that needs no instance.
Neighbouring chains that only patch are carried out side by side (`side_by_side`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from msgspec.structs import replace

from journeyman.core.api.objects import NodeClaim
from journeyman.core.plan import (
    Action,
    Chain,
    EvictPod,
    LaunchInstance,
    MarkOfferingUnavailable,
    NominatePods,
    PatchObject,
    Plan,
    RenominatePods,
    Requeue,
    Step,
    TerminateInstance,
)
from journeyman.errors import (
    ConflictError,
    DeadlineError,
    InvariantError,
    JourneymanError,
    LeaseLostError,
    NotFoundError,
)
from journeyman.steps.actions import Effects
from journeyman.steps.context import Outcome, RunContext
from journeyman.steps.instance_launch import PendingLaunch, launch_together
from journeyman.steps.nomination import PodNominator
from journeyman.steps.recorder import Report
from journeyman.steps.refusals import (
    eviction_counted,
    held_by_budget,
    is_evicted_already,
    is_held_by_budget,
    not_terminated,
)
from journeyman.steps.scheduling_inputs import SchedulingInputs
from journeyman.steps.side_by_side import Track, next_wave, only_patches


class Applier(Report):
    """One run's hand: applies plans, and reports what came of it."""

    def __init__(self, run: RunContext, step: Step) -> None:
        super().__init__(run, step)
        self.effects = Effects(run)
        self.remembered: list[MarkOfferingUnavailable] = []
        self._nominator = PodNominator(run, self.count)

    def apply(self, plan: Plan, world: SchedulingInputs | None = None) -> None:
        """Carry a plan out, launches included.

        Args:
            plan: What was decided.
            world: What it was decided on; launches take NodeClasses and instance types from it.

        Raises:
            LeaseLostError: Another run holds the step.
            DeadlineError: The time is up; what is left waits for the requeue.
            InvariantError: The plan launches, and there is no world to launch from.
        """
        self.tell(plan)
        launches: list[PendingLaunch] = []
        for only_patched, chains in groupby(self._nominate_first(plan.chains), key=only_patches):
            if only_patched:
                self._side_by_side(chains)
                continue
            for chain in chains:
                self._run_chain(chain, launches)
        while launches:
            if world is None:
                raise InvariantError("a plan without a catalogue asks for launches", claim=launches[0].claim)
            self._check()
            launches = self._launched(launches, world)

    def carry_out(self, plan: Plan) -> None:
        """Carry out a plan without launches: what follows from an answer of the cloud, so the margin is there for it."""
        self.tell(plan)
        for chain in plan.chains:
            self._run_chain(chain, [], in_margin=True)

    def explain(self, chain: Chain) -> None:
        """Tell what is true now; of a claim that this run created by the UID that it has got."""
        events = tuple(replace(event, ref=self.effects.identified(event.ref)) for event in chain.events)
        super().explain(replace(chain, events=events))

    def claim(self, name: str, world: SchedulingInputs) -> NodeClaim | None:
        """The claim as it is stored now, as far as this run knows."""
        return self.effects.claim(name, world.snapshot)

    def _launched(self, launches: list[PendingLaunch], world: SchedulingInputs) -> list[PendingLaunch]:
        """Launch all of them; each that succeeds lets its chain go on, maybe to further launches."""
        further: list[PendingLaunch] = []
        rest = {launch.claim: launch.rest for launch in launches}
        for claim in launch_together(self, tuple(rest), world):
            self._run_chain(rest[claim], further)
        return further

    # -- one chain ----------------------------------------------------------------------------------------------

    def _run_chain(self, chain: Chain, launches: list[PendingLaunch], *, in_margin: bool = False) -> None:
        for index, action in enumerate(chain.actions):
            if isinstance(action, Requeue):
                continue  # noted when the plan was told
            if isinstance(action, LaunchInstance):
                launches.append(
                    PendingLaunch(claim=action.claim, rest=replace(chain, actions=chain.actions[index + 1 :]))
                )
                return
            self._check(in_margin=in_margin)
            if isinstance(action, NominatePods):
                self._nominator.nominate(action)
            elif isinstance(action, RenominatePods):
                self._nominator.renominate(action)
            elif not self._done(action, chain):
                return
        self.explain(chain)
        for behind in chain.then:
            self._run_chain(behind, launches, in_margin=in_margin)

    def _check(self, *, in_margin: bool = False) -> None:
        """Before every outside effect: there is time (or it is what the margin is for), and nobody else has the step."""
        if self.run.out_of_time and not in_margin:
            raise DeadlineError("the run's time is up", step=self.step.value)
        self.run.lease.check()

    def _done(self, action: Action, chain: Chain) -> bool:
        """Carry one action out; whether its chain may go on."""
        try:
            self.effects.carry_out(action)
        except (LeaseLostError, InvariantError):
            raise
        except JourneymanError as error:
            return self._came_off(action, chain, error)
        return self._came_off(action, chain, None)

    def _came_off(self, action: Action, chain: Chain, error: JourneymanError | None) -> bool:
        """Tell how an action went; whether its chain may go on."""
        if error is None:
            self._counted(action)
            return True
        if isinstance(action, EvictPod):
            self._not_evicted(action, chain, error)
        elif isinstance(error, ConflictError) or (isinstance(error, NotFoundError) and isinstance(action, PatchObject)):
            self.moved_on(chain.subject, error)
        else:
            self._failed_action(action, chain, error)
        return False

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

    def _side_by_side(self, chains: Iterable[Chain]) -> None:
        """Carry out chains that only patch, as many patches together as may be."""
        tracks = [Track.of(chain) for chain in chains]
        while wave := next_wave(tracks):
            self._check()
            for track, went_well in zip(wave, self._sent(wave), strict=True):
                track.left = track.left[1:] if went_well else []
                track.sent += 1
                if went_well and not track.left:
                    self.explain(track.chain)

    def _sent(self, wave: Sequence[Track]) -> list[bool]:
        """Send the next patch of each; whether its chain may go on."""
        if len(wave) == 1:
            return [self._done(wave[0].left[0], wave[0].chain)]
        errors = self.effects.patch_together([track.left[0] for track in wave])
        return [self._came_off(track.left[0], track.chain, e) for track, e in zip(wave, errors, strict=True)]

    def _counted(self, action: Action) -> None:
        self.count(type(action).__name__)
        if isinstance(action, MarkOfferingUnavailable):
            self.remembered.append(action)
        if isinstance(action, EvictPod):
            self.observe(eviction_counted(None))

    # -- what goes wrong ----------------------------------------------------------------------------------------

    def _not_evicted(self, action: EvictPod, chain: Chain, error: JourneymanError) -> None:
        self.observe(eviction_counted(error))
        if is_held_by_budget(error):
            self.count("evictions refused")
            self.run.telemetry.event(held_by_budget(action, error))
        elif is_evicted_already(error):
            self.count("evictions of pods that are gone")
        else:
            self.failed(chain.subject, error)

    def _failed_action(self, action: Action, chain: Chain, error: JourneymanError) -> None:
        if isinstance(action, TerminateInstance) and not error.retryable and (action.node or action.claim):
            self.run.telemetry.event(not_terminated(action, error))
        self.failed(chain.subject, error)


def run_step(run: RunContext, step: Step, work: Callable[[Applier], None]) -> Outcome:
    """Run a step behind its fence.

    Returns:
        "busy" if another run holds the step (what this one was woken for must come again: the other may not have seen
        it), "partial" if time or a passing fault cut this one short, with a requeue for the rest.

    Raises:
        JourneymanError: Something a retry cannot mend; what was done stays done, requeues are sent all the same.
    """
    hand = Applier(run, step)
    try:
        run.lease.acquire()
        work(hand)
    except LeaseLostError as error:
        hand.busy(error)
    except JourneymanError as error:
        if not error.retryable:
            raise
        hand.partial(error)
    finally:
        hand.send_requeues()
        run.lease.release()
    return hand.outcome()
