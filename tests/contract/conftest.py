"""Fixtures: a new simulated AWS account for each test, on moto or in process; moto is imported only if a test uses it."""

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone

import pytest

from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.cloud_rules.instance_states import InstanceTiming
from journeyman_simulator.in_process_account.account import InProcessAccount
from journeyman_simulator.in_process_account.ec2_catalogue import KNOWN_TYPES

# USD per hour in us-east-1, July 2026
PRICES = {
    "t3.nano": 0.0052,
    "t3.medium": 0.0416,
    "t3.large": 0.0832,
    "c5.large": 0.085,
    "m5.large": 0.096,
    "m5.24xlarge": 4.608,
}
ZONES = {f"us-east-1{letter}": f"use1-az{number}" for number, letter in enumerate("abcdef", start=1)}

on_both_accounts = pytest.mark.parametrize("aws", ["moto", "in process"], indirect=True)
"""The marker of tests that run on both simulated accounts."""


@pytest.fixture
def clock() -> VirtualClock:
    """Return a virtual clock that starts on a Monday morning."""
    return VirtualClock(datetime(2026, 11, 2, 8, 0, tzinfo=timezone.utc))


@contextmanager
def opened(kind: str, clock: VirtualClock, prices: Mapping[str, float] = PRICES, **given) -> Iterator:
    """Return an empty account of either kind in six zones, of which us-east-1e lacks most instance types."""
    if kind == "moto":
        from journeyman_simulator.moto_account.moto_server import MotoAccount

        with MotoAccount(clock, prices, **given) as account:
            yield account
    else:
        lacking = [(name, "us-east-1e") for name in KNOWN_TYPES]
        timing = given.pop("timing", InstanceTiming())
        yield InProcessAccount(
            clock, types=KNOWN_TYPES, zones=ZONES, missing=lacking, on_demand_prices=prices, timing=timing, **given
        )


def seeded(aws, **given):
    """Create a cluster's resources in either kind of account."""
    if isinstance(aws, InProcessAccount):
        return aws.seed(**given)
    from journeyman_simulator.moto_account.moto_seed import seed_account

    return seed_account(aws, **given)


@pytest.fixture
def aws(request, clock: VirtualClock) -> Iterator:
    """Return an empty account, on moto unless the test is `on_both_accounts`."""
    with opened(getattr(request, "param", "moto"), clock) as account:
        yield account


@pytest.fixture
def account(aws):
    """Create a cluster's resources in the account."""
    return seeded(aws)


ALIBABA_TRANSPORTS = ("http with the real SDK", "in process")


@pytest.fixture
def alibaba(clock: VirtualClock):
    """Return a simulated Alibaba Cloud account with all instance types, and without a cluster."""
    from journeyman_simulator.alibaba_account import AlibabaAccount

    return AlibabaAccount(clock)


@pytest.fixture
def ack(alibaba):
    """Create an ACK cluster, and what an ECSNodeClass selects."""
    return alibaba.seed()


@pytest.fixture(scope="session")
def free_port() -> int:
    """Return a free port for all servers of a run, since the SDK takes 0.1 s to prepare for a new endpoint."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


@pytest.fixture
def endpoint(alibaba, free_port) -> Iterator[str]:
    """Serve the account over HTTP."""
    from journeyman_simulator.alibaba_account.openapi_server import serving

    with serving(alibaba, port=free_port) as endpoint:
        yield endpoint


@pytest.fixture(params=ALIBABA_TRANSPORTS)
def api(request, alibaba):
    """Return an `OpenApi` of the account, over each transport."""
    if request.param == "in process":
        return alibaba.open_api()
    from tests.contract.official_sdk import sdk_open_api

    return sdk_open_api(request.getfixturevalue("endpoint"), alibaba.access_key)


HUAWEI_TRANSPORTS = ("http with the real SDK", "in process")


@pytest.fixture
def huawei(clock: VirtualClock):
    """Return a simulated Huawei Cloud account with all flavors, and without a cluster."""
    from journeyman_simulator.huawei_account import HuaweiAccount

    return HuaweiAccount(clock)


@pytest.fixture
def cce(huawei):
    """Create a CCE cluster, and what a CCENodeClass names."""
    return huawei.seed()


@pytest.fixture
def huawei_url(huawei, free_port) -> Iterator[str]:
    """Serve the account over HTTP."""
    from journeyman_simulator.huawei_account.rest_server import serving

    with serving(huawei, port=free_port) as url:
        yield url


@pytest.fixture(params=HUAWEI_TRANSPORTS)
def rest_api(request, huawei):
    """Return a `RestApi` of the account, over each transport."""
    if request.param == "in process":
        return huawei.rest_api()
    from tests.contract.official_huawei_sdk import sdk_rest_api

    return sdk_rest_api(request.getfixturevalue("huawei_url"), huawei, huawei.access_key)
