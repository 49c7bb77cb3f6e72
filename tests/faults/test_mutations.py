"""Each invariant checker detects a mutation of the product that violates its invariant."""

from collections.abc import Iterator

import pytest

from journeyman_simulator.faults.invariants import ALL_CHECKERS
from journeyman_simulator.faults.scenario_generator import generate_scenario
from journeyman_simulator.faults.seed_search import run_checked
from tests.faults.mutations import MUTATIONS

LAST_SEED = 1000


SAMPLE = MUTATIONS[::3]
EACH = [
    pytest.param(
        mutation, cloud, first, marks=() if is_sampled else pytest.mark.nightly, id=f"{mutation.name} on {cloud}"
    )
    for mutation in MUTATIONS
    for cloud, first, is_sampled in (
        ("aws", mutation.seed, mutation in SAMPLE),
        ("alibaba", mutation.alibaba_seed, False),
        ("huawei", mutation.huawei_seed, not mutation.seed),
    )
    if first
]


@pytest.mark.parametrize(("mutation", "cloud", "first"), EACH)
def test_a_mutation_is_detected_by_its_invariant_checker(mutation, cloud, first):
    """One of the suitable scenarios violates it, and does not without the mutation."""
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
