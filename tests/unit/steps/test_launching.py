"""Launching many claims together: what is between one launch and the next."""

import pytest

from journeyman.core.api.objects import NODECLAIM
from journeyman.core.plan import CreateObject, LaunchInstance, Plan, Step, one
from journeyman.errors import LeaseLostError
from journeyman.steps.apply import run_step
from journeyman.steps.load import EVERYTHING, load, with_catalogue
from tests.helpers.builders import claim_body, condition, node_class_body, pool_body
from tests.helpers.fakes import Cluster, FakeCloud, Fence


class SlowCloud(FakeCloud):
    """Each answer takes half a minute."""

    def launch(self, requests):
        for request in requests:
            self.clock.advance(30)
            yield self._launch(request)


class TakenOver(Fence):
    """Another run takes the step as soon as `done` says so."""

    done = staticmethod(lambda: False)

    def check(self):
        if self.done():
            raise LeaseLostError("another run took it")


@pytest.fixture
def cluster():
    ready = {"conditions": [condition("Ready", observedGeneration=1)]}
    cluster = Cluster(fence=TakenOver(), seconds=115)
    cluster.add(pool_body(), node_class_body(status=ready, metadata={"generation": 1}))
    return cluster


def launch(cluster, *names):
    """One run that opens these claims and launches them."""

    def work(hand):
        world = with_catalogue(hand.run, load(cluster.run(), EVERYTHING))
        hand.apply(Plan(chains=tuple(opened(name) for name in names)), world)

    return run_step(cluster.run(), Step.PROVISION, work)


def opened(name):
    launch = LaunchInstance(claim=name, why="test")
    return one(name, CreateObject(resource=NODECLAIM, body=claim_body(name), why="test"), launch)


def with_instance(cluster):
    return [c.metadata.name for c in cluster.server.list(NODECLAIM).items if c.status.provider_id]


def test_a_launch_that_would_not_be_answered_in_time_is_left_to_the_next_run(cluster):
    """The third answer comes with 25 seconds to go, of which 5 are for the run's end: too short for a fourth."""
    cluster.cloud = SlowCloud(cluster.clock)
    outcome = launch(cluster, "a", "b", "c", "d", "e")

    assert cluster.cloud.launches == with_instance(cluster) == ["a", "b", "c"]
    assert outcome.status == "partial"
    assert [w.step for w in outcome.wakes] == [Step.PROVISION]
    assert len(cluster.server.list(NODECLAIM).items) == 5


def test_between_two_launches_the_fence_is_checked(cluster):
    """What was launched is written down; who has the step now launches the rest."""
    cluster.fence.done = lambda: bool(with_instance(cluster))
    outcome = launch(cluster, "a", "b", "c")

    assert cluster.cloud.launches == with_instance(cluster) == ["a"]
    assert outcome.status == "busy"
