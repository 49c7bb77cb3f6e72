"""Properties of a pass whose effort does not suffice for all pods."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from journeyman.core.api.objects import Pod
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.results import Effort, EffortSpentError
from journeyman.core.scheduling.scheduler import solve
from journeyman_simulator.judge import verify_strictly
from tests.fuzz.expensive_pods import SHAPES
from tests.helpers.builders import a_pod, a_pool, a_snapshot, an_instance_type

ZONES = ("us-east-1a", "us-east-1b", "us-east-1c")
TYPES = tuple(an_instance_type(f"t{cpu}", cpu=cpu, memory_gib=4 * cpu, price=cpu / 20, zones=ZONES) for cpu in (2, 8))
CATALOGUE = Catalogue({"default": TYPES})
FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
ENOUGH_FOR_CHEAP_PODS = 40_000


def cluster(shape: str, count: int, size: int):
    """Return a snapshot with pods of this shape, and three cheap pods."""
    expensive = msgspec.convert(SHAPES[shape](count, size), list[Pod])
    cheap = [a_pod(f"cheap-{n}", cpu="1500m") for n in range(3)]
    return a_snapshot(node_pools=(a_pool(),), pods=(*expensive, *cheap))


def placed(results) -> set[str]:
    """Return the keys of the scheduled pods."""
    on_existing = (key for keys in results.existing.values() for key in keys)
    return {*(key for claim in results.new_claims for key in claim.pods), *on_existing}


@FEW
@given(shape=st.sampled_from(sorted(SHAPES)), effort=st.integers(0, 600_000))
def test_any_effort_gives_a_valid_plan(shape, effort):
    """Every pod is scheduled or has an error, the plan passes verification, and the same effort gives the same plan."""
    snapshot = cluster(shape, 4, 40)

    results = solve(snapshot, CATALOGUE, effort=effort)

    assert verify_strictly(snapshot, CATALOGUE, results, pods=snapshot.pods) == ()
    assert placed(results) | results.pod_errors.keys() == {pod.key for pod in snapshot.pods}
    assert solve(snapshot, CATALOGUE, effort=effort) == results


@FEW
@given(shape=st.sampled_from(sorted(SHAPES)), count=st.integers(1, 30), size=st.integers(50, 300))
def test_too_little_effort_still_opens_nodes_for_cheap_pods(shape, count, size):
    """Expensive pods of any shape and number keep no cheap pod from its node."""
    snapshot = cluster(shape, count, size)

    results = solve(snapshot, CATALOGUE, effort=ENOUGH_FOR_CHEAP_PODS)

    assert {f"default/cheap-{n}" for n in range(3)} <= placed(results)
    unreached = {key for key, error in results.pod_errors.items() if error.kind == "unreached"}
    assert not unreached or results.is_truncated


@FEW
@given(shape=st.sampled_from(sorted(SHAPES)), size=st.integers(1, 20))
def test_enough_effort_changes_nothing(shape, size):
    """A pass that does not use up its effort has the results of a pass without a limit."""
    snapshot = cluster(shape, 3, size)
    limited = solve(snapshot, CATALOGUE, effort=100_000_000)

    assert not limited.is_truncated
    assert limited == solve(snapshot, CATALOGUE)


def test_spent_effort_stays_spent():
    """After one place has used up the effort, every other place finds it used up."""
    effort = Effort(10)
    effort.spend(10)

    with pytest.raises(EffortSpentError):
        effort.spend(1)
    with pytest.raises(EffortSpentError):
        effort.spend(1)
    assert effort.left == 0
