"""A fresh simulated AWS account for each test; moto is imported only when one is asked for."""

from collections.abc import Iterator
from datetime import datetime, timezone

import pytest

from journeyman.simulate.clock import VirtualClock

# USD per hour in us-east-1, July 2026
PRICES = {
    "t3.nano": 0.0052,
    "t3.medium": 0.0416,
    "t3.large": 0.0832,
    "c5.large": 0.085,
    "m5.large": 0.096,
    "m5.24xlarge": 4.608,
    "p5.48xlarge": 55.04,
}


@pytest.fixture
def clock() -> VirtualClock:
    """Monday morning."""
    return VirtualClock(datetime(2026, 11, 2, 8, 0, tzinfo=timezone.utc))


@pytest.fixture
def aws(clock: VirtualClock) -> Iterator:
    """An empty account."""
    from journeyman.simulate.aws.server import SimulatedAws

    with SimulatedAws(clock, PRICES) as account:
        yield account


@pytest.fixture
def account(aws):
    """What `images.seed` makes in it."""
    from journeyman.simulate.aws.images import seed

    return seed(aws)
