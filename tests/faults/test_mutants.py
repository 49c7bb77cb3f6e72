"""The test of the test: every promise is broken on purpose, and its checker sees it within three hundred scenarios."""

from collections.abc import Iterator

import pytest

from journeyman_simulator.faults.invariants import ALL_CHECKERS
from journeyman_simulator.faults.scenario_generator import generate_scenario
from journeyman_simulator.faults.seed_search import run_checked
from tests.faults.mutants import MUTATIONS, applied

MOST = 300


@pytest.mark.parametrize("mutant", MUTATIONS, ids=lambda mutant: mutant.name)
def test_a_promise_broken_on_purpose_is_seen_by_its_judge(mutant):
    """In one of the scenarios that may have to do with it; to the product its checker does not object there."""
    scenarios = filter(mutant.where, map(generate_scenario, _all_from(mutant.seed)))
    with applied(mutant):
        caught = next((scenario for scenario in scenarios if _objects(mutant, scenario)), None)
    assert caught is not None
    assert not _objects(mutant, caught)


def test_every_judge_is_seen_to_object_to_the_product():
    """A rule that nothing can break is none."""
    assert {mutant.invariant for mutant in MUTATIONS} == {*ALL_CHECKERS}


def _all_from(seed: int) -> Iterator[int]:
    """All seeds once: that one, whoever comes after it, and then those before it."""
    yield from range(seed, MOST + 1)
    yield from range(1, seed)


def _objects(mutant, scenario):
    return mutant.invariant.name in {violation.invariant for violation in run_checked(scenario).violations}
