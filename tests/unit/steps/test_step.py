"""What every step does with its reconcilers and its time."""

from datetime import timedelta

import pytest

from journeyman.core.api.objects import NODEPOOL
from journeyman.core.plan import ObjectRef, Observation, PatchObject, Plan, Step, chain_of
from journeyman.ports import RequeueDue
from journeyman.steps.context import EFFORT_PER_SECOND, MAX_EFFORT
from journeyman.steps.load import Scope, load
from journeyman.steps.scheduling_inputs import StepInputs
from journeyman.steps.step import Reconciler, StepDefinition, run_step
from tests.helpers.builders import NOW, pool_body
from tests.helpers.fakes import Cluster, InterceptingStore


@pytest.mark.parametrize(
    ("seconds", "is_out_of_time", "effort"),
    [
        (2, True, 0),
        (5, True, 0),
        (6, False, EFFORT_PER_SECOND / 4),
        (15, False, EFFORT_PER_SECOND / 4 * 10),
        (60, False, MAX_EFFORT),
    ],
)
def test_scheduler_gets_a_quarter_of_the_time_before_the_margin(seconds, is_out_of_time, effort):
    """The margin is five seconds; a run in them starts nothing more."""
    run = Cluster(seconds=seconds).run()
    assert (run.is_out_of_time, run.effort) == (is_out_of_time, effort)


def test_duration_of_a_reconciler_is_that_of_its_decisions_alone():
    """Three plans are decided in two seconds each; the patch between them takes five, which are not its own."""
    cluster = Cluster()
    cluster.add(pool_body())
    patch = PatchObject(ref=ObjectRef(resource=NODEPOOL, name="default"), patch={}, why="test")

    def decide(_inputs):
        for kind in ("fast", "slow", "slow"):
            cluster.clock.advance(2)
            sample = Observation(name="duration", labels={"kind": kind}, kind="histogram")
            yield Plan(chains=(chain_of("default", patch),), durations=(sample,))

    definition = StepDefinition(
        name=Step.TERMINATE,
        load=lambda run, trigger: StepInputs.of(run, trigger, load(run, Scope())),
        reconcilers=(Reconciler(decide, needs_catalogue=False),),
        requeues=Step.TERMINATE,
    )
    store = InterceptingStore(cluster.server, "patch", 2, lambda: cluster.clock.advance(5))
    trigger = RequeueDue(id="1", cluster="demo", step=Step.TERMINATE, reason="test", time=NOW)
    run_step(cluster.run(store=store), definition, trigger)

    assert [(o.labels["kind"], o.value) for o in cluster.record.observations] == [("fast", 2), ("slow", 4)]
    assert cluster.clock.now() == NOW + timedelta(seconds=11)
