"""Answers of the scheduler hold as long as the cluster is as it was when they were given, and no longer."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.core.catalogue import Catalogue, Unavailable
from journeyman.core.scheduling.results import CachedResults, Options, ProblemKey, Results
from journeyman.core.state.snapshot import Workloads
from tests.helpers.builders import NOW, a_claim, a_daemon_set, a_node_class, a_pod, a_pool, a_snapshot

CATALOGUE = Catalogue({})
QUESTION = ProblemKey(("default/p",), frozenset())


def stored(obj, version="1"):
    """An object as the API server has it."""
    return replace(obj, metadata=replace(obj.metadata, resource_version=version))


def a_stored_pool(version="1"):
    return a_pool(metadata={"resourceVersion": version, "uid": "uid-pool"})


CLUSTER = a_snapshot(node_pools=(a_stored_pool(),), pods=(stored(a_pod("p")),), claims=(a_claim(),))


@pytest.fixture
def answers():
    """With one answer about CLUSTER."""
    return CachedResults().valid_for(CLUSTER, CATALOGUE, Options()).with_results({QUESTION: Results(price=1.0)})


def test_an_answer_holds_at_a_later_time(answers):
    """The scheduler knows none."""
    later = replace(CLUSTER, now=NOW + timedelta(hours=1))
    assert answers.valid_for(later, CATALOGUE, Options()).by_problem.get(QUESTION) == Results(price=1.0)


@pytest.mark.parametrize(
    "changed",
    [
        {"pods": (stored(a_pod("p"), "2"),)},
        {"pods": (stored(a_pod("p")), stored(a_pod("q")))},
        {"claims": ()},
        {"node_pools": (a_stored_pool("2"),)},
        {"node_classes": (a_node_class(generation=9),)},
        {"workloads": Workloads(services=(stored(a_daemon_set("s")),))},
        {"unavailable": (Unavailable(instance_type="m", zone="a", capacity_type="spot", until=NOW),)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_an_answer_holds_no_longer_once_anything_has_changed(answers, changed):
    """Nor does it when the cluster has become again what it was: only the last state is kept."""
    since = answers.valid_for(replace(CLUSTER, **changed), CATALOGUE, Options())
    assert len(since.by_problem) == 0
    assert len(since.valid_for(CLUSTER, CATALOGUE, Options()).by_problem) == 0


def test_an_answer_is_about_one_catalogue_and_one_way_to_decide(answers):
    """What could be launched has changed, or what is preferred."""
    assert len(answers.valid_for(CLUSTER, CATALOGUE, Options(near_price=2.0)).by_problem) == 0
    assert len(answers.valid_for(CLUSTER, Catalogue({}), Options()).by_problem) == 0


def test_what_has_no_version_is_not_known_again():
    """Pods that stand for a CapacityBuffer are made anew in each run."""
    cluster = replace(CLUSTER, pods=(a_pod("virtual"),))
    answers = CachedResults().valid_for(cluster, CATALOGUE, Options()).with_results({QUESTION: Results()})
    assert len(answers.valid_for(cluster, CATALOGUE, Options()).by_problem) == 0
