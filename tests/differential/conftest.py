"""Karpenter for the tests of this folder."""

import pytest

from tests.differential.karpenter import Karpenter, OracleMissingError


@pytest.fixture(scope="session")
def karpenter():
    """A running oracle; without one, and without `go` to build it, the test is skipped and says so."""
    try:
        running = Karpenter()
    except OracleMissingError as missing:
        pytest.skip(str(missing))
    with running:
        yield running
