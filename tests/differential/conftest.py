"""The oracle, as a fixture."""

import pytest

from tests.differential.karpenter import Karpenter, OracleMissingError


@pytest.fixture(scope="session")
def karpenter():
    """Yield the running oracle; skip the test if it is missing and cannot be built."""
    try:
        running = Karpenter()
    except OracleMissingError as missing:
        pytest.skip(str(missing))
    with running:
        yield running
