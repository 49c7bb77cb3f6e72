"""Tests of `CachedResults`: scheduler results are valid until the cluster changes."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.core.catalogue import Catalogue, Unavailable
from journeyman.core.scheduling.results import CachedResults, Options, ProblemKey, Results
from journeyman.core.state.snapshot import Workloads
from tests.helpers.builders import NOW, a_claim, a_daemon_set, a_node_class, a_pod, a_pool, a_snapshot

CATALOGUE = Catalogue({})
PROBLEM_KEY = ProblemKey(("default/p",), frozenset())


def stored(obj, version="1"):
    """Return the object with a resourceVersion, as the API server stores it."""
    return replace(obj, metadata=replace(obj.metadata, resource_version=version))


def a_stored_pool(version="1"):
    return a_pool(metadata={"resourceVersion": version, "uid": "uid-pool"})


CLUSTER = a_snapshot(node_pools=(a_stored_pool(),), pods=(stored(a_pod("p")),), claims=(a_claim(),))


@pytest.fixture
def cache():
    """Return a cache with one result for CLUSTER."""
    return CachedResults().valid_for(CLUSTER, CATALOGUE, Options()).with_results({PROBLEM_KEY: Results(price=1.0)})


def test_cached_result_stays_valid_when_only_time_passes(cache):
    """The scheduler does not use the current time."""
    later = replace(CLUSTER, now=NOW + timedelta(hours=1))
    assert cache.valid_for(later, CATALOGUE, Options()).by_problem.get(PROBLEM_KEY) == Results(price=1.0)


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
def test_cached_result_is_dropped_when_an_object_changes(cache, changed):
    """It stays dropped when the cluster returns to its earlier state: the cache keeps only the latest state."""
    since = cache.valid_for(replace(CLUSTER, **changed), CATALOGUE, Options())
    assert len(since.by_problem) == 0
    assert len(since.valid_for(CLUSTER, CATALOGUE, Options()).by_problem) == 0


def test_cached_result_is_dropped_when_the_catalogue_or_the_options_change(cache):
    """One case changes a scheduler option, the other passes a new catalogue."""
    assert len(cache.valid_for(CLUSTER, CATALOGUE, Options(near_price=2.0)).by_problem) == 0
    assert len(cache.valid_for(CLUSTER, Catalogue({}), Options()).by_problem) == 0


def test_results_for_pods_without_a_resource_version_are_not_cached():
    """Virtual pods of a CapacityBuffer are created anew in each run."""
    cluster = replace(CLUSTER, pods=(a_pod("virtual"),))
    cache = CachedResults().valid_for(cluster, CATALOGUE, Options()).with_results({PROBLEM_KEY: Results()})
    assert len(cache.valid_for(cluster, CATALOGUE, Options()).by_problem) == 0
