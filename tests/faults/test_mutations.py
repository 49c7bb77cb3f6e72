"""Each invariant checker detects a mutation of the product that violates its invariant."""

from collections.abc import Iterator

import pytest

from journeyman_simulator.faults.invariants import ALL_CHECKERS
from journeyman_simulator.faults.scenario_generator import generate_scenario
from journeyman_simulator.faults.seed_search import run_checked
from tests.faults.mutations import MUTATIONS

LAST_SEED = 300


SAMPLE = MUTATIONS[::3]
EACH = [
    *(pytest.param(m, "aws", marks=() if m in SAMPLE else pytest.mark.nightly, id=m.name) for m in MUTATIONS),
    *(
        pytest.param(m, "alibaba", marks=pytest.mark.nightly, id=f"{m.name} on Alibaba Cloud")
        for m in MUTATIONS
        if m.alibaba_seed
    ),
]


@pytest.mark.parametrize(("mutation", "cloud"), EACH)
def test_a_mutation_is_detected_by_its_invariant_checker(mutation, cloud):
    """One of the first 300 suitable scenarios violates it, and does not without the mutation."""
    first = mutation.seed if cloud == "aws" else mutation.alibaba_seed
    scenarios = filter(mutation.where, (generate_scenario(seed, cloud) for seed in seeds_from(first)))
    with mutation.applied():
        caught = next((s for s in scenarios if violates(mutation, s, mutation.collaborators)), None)
    assert caught is not None
    assert not violates(mutation, caught)


def test_every_invariant_has_a_mutation():
    """A mutation shows that the invariant's checker works."""
    assert {mutation.invariant for mutation in MUTATIONS} == {*ALL_CHECKERS}


def seeds_from(first: int) -> Iterator[int]:
    """Yield all seeds once: from that one to the last, then those before it."""
    yield from range(first, LAST_SEED + 1)
    yield from range(1, first)


def violates(mutation, scenario, *collaborators):
    violations = run_checked(scenario, None, *collaborators).violations
    return mutation.invariant.name in {violation.invariant for violation in violations}
