"""Requests by the official SDK: repetitions, the end of the run, credentials and endpoints."""

import os
import socket
import subprocess
import sys
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest

from journeyman.cloud.alibaba.open_api import CS, ECS, RAM, VPC, ApiCall, OpenApiError
from journeyman.cloud.alibaba.sdk_client import (
    SdkOpenApi,
    credentials_of,
    private_endpoint,
    public_endpoint,
    use_context,
)
from journeyman.cloud.repeated_calls import READ_SECONDS
from journeyman.errors import DeadlineError
from journeyman.signing import Credentials
from journeyman_simulator.alibaba_account import AlibabaAccount
from journeyman_simulator.alibaba_account.openapi_server import serving
from journeyman_simulator.clock import VirtualClock
from tests.helpers.access_keys import credentials_of as key_credentials
from tests.unit.cloud.alibaba.conftest import START

ZONES = ApiCall(service=ECS, action="DescribeZones", parameters={"RegionId": "cn-hangzhou"})


@pytest.fixture(scope="module")
def account():
    return AlibabaAccount(VirtualClock(START), types=())


@pytest.fixture(scope="module")
def endpoint(account):
    with serving(account) as address:
        yield address


@pytest.fixture
def client(account, endpoint):
    """Return a function that makes a client; its pauses advance its clock, which is `client.clock`."""

    def make(**given):
        clock = VirtualClock(START)
        make.clock = clock
        return SdkOpenApi(
            "cn-hangzhou",
            clock,
            **{
                "credentials": lambda: key_credentials(account.access_key),
                "endpoint": lambda service, region: (given.pop("host", endpoint), False),
                "pause": clock.advance,
                **{name: value for name, value in given.items() if name != "host"},
            },
        )

    return make


@pytest.mark.parametrize("code", ["Throttling.User", "ServiceUnavailable", "InternalError"])
def test_transient_failures_are_repeated_with_the_same_parameters(account, client, code):
    """The client token stays, so that a launch is not repeated."""
    seen = []
    account.fail_next("DescribeZones", code, 2)
    before = account.calls().get("DescribeZones", 0)
    answer = client(pause=seen.append)(ZONES)

    assert answer["Zones"]["Zone"]
    assert account.calls()["DescribeZones"] == before + 3
    assert seen == [0.5, 1.0]


def test_third_failure_and_other_refusals_are_raised(account, client):
    account.fail_next("DescribeZones", "Throttling.User", 3)
    with pytest.raises(OpenApiError) as throttled:
        client()(ZONES)
    account.fail_next("DescribeZones", "InvalidParameter", 1)
    with pytest.raises(OpenApiError) as refused:
        client()(ZONES)

    assert throttled.value.code == "Throttling.User"
    assert (refused.value.code, refused.value.status) == ("InvalidParameter", 400)
    assert refused.value.request_id
    assert client()(ZONES)


def test_lost_answer_and_unreachable_service_are_errors_without_code(account, client):
    """The request may have taken effect, so it is not repeated; or the function's VPC has no route."""
    account.lose_next_answer("DescribeZones")
    before = account.calls().get("DescribeZones", 0)
    for host in ({}, {"host": "127.0.0.1:9"}):
        with pytest.raises(OpenApiError) as caught:
            client(**host)(ZONES)
        assert (caught.value.code, caught.value.status) == ("", 0)

    assert account.calls()["DescribeZones"] == before + 1


def test_request_shortly_before_the_end_of_the_run_waits_for_a_second(client):
    """Not for as long as an earlier one; a service that does not answer is an error without code."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(OpenApiError) as caught:
            client(host=host, ends_at=lambda: START + timedelta(seconds=0.3))(ZONES)

    assert 1 <= time.monotonic() - began < READ_SECONDS / 3
    assert (caught.value.code, caught.value.status) == ("", 0)


def test_no_request_starts_after_the_end_of_the_run(account, client):
    before = account.calls().get("DescribeZones", 0)
    with pytest.raises(DeadlineError):
        client(ends_at=lambda: START)(ZONES)
    assert account.calls().get("DescribeZones", 0) == before

    account.fail_next("DescribeZones", "Throttling.User", 1)
    with pytest.raises(OpenApiError):
        client(ends_at=lambda: START + timedelta(seconds=0.4))(ZONES)
    assert account.calls()["DescribeZones"] == before + 1


def test_changed_credentials_sign_the_next_request(account, client):
    """A function's role gets new ones; the token is sent with them."""
    temporary = account.add_access_key("journeyman", security_token="sts-token")
    keys = [
        Credentials(access_key_id="unknown", access_key_secret="x", security_token=""),
        key_credentials(account.access_key),
        key_credentials(temporary),
    ]
    send = client(credentials=lambda: keys[0])
    with pytest.raises(OpenApiError) as caught:
        send(ZONES)

    assert caught.value.code.startswith("InvalidAccessKeyId")
    for _ in range(2):
        del keys[0]
        assert send(ZONES)


def test_endpoints_are_regional_with_the_known_exceptions():
    """RAM is central, as VPC is in Hangzhou; inside a VPC requests do not leave it."""
    assert public_endpoint(ECS, "cn-beijing")[0].startswith("ecs.cn-beijing.")
    assert public_endpoint(ECS, "cn-hangzhou")[0].startswith("ecs.cn-hangzhou.")
    assert public_endpoint(VPC, "cn-zhangjiakou")[0].startswith("vpc.cn-zhangjiakou.")
    assert public_endpoint(VPC, "cn-hangzhou")[0].startswith("vpc.aliyuncs")
    assert public_endpoint(RAM, "cn-beijing") == private_endpoint(RAM, "cn-beijing")
    assert private_endpoint(CS, "cn-beijing")[0].startswith("cs-vpc.cn-beijing.")
    assert public_endpoint(ECS, "cn-beijing")[1]


VARIABLES = {
    "ALIBABA_CLOUD_ACCESS_KEY_ID": "id-of-environment",
    "ALIBABA_CLOUD_ACCESS_KEY_SECRET": "s",
    "ALIBABA_CLOUD_SECURITY_TOKEN": "t",
}
CONTEXT = SimpleNamespace(
    credentials=SimpleNamespace(access_key_id="id-of-context", access_key_secret="s", security_token="t")
)


def test_credentials_are_those_of_environment_then_context():
    """Newer runtimes set variables, older ones pass a context."""
    use_context(CONTEXT)
    try:
        assert credentials_of(VARIABLES).access_key_id == "id-of-environment"
        assert credentials_of(VARIABLES).security_token == "t"
        for incomplete in ({}, *({name: "x"} for name in VARIABLES)):
            assert credentials_of(incomplete).access_key_id == "id-of-context"
    finally:
        use_context(None)


_PROGRAM = """
from journeyman.cloud.alibaba.open_api import OpenApiError
from journeyman.cloud.alibaba.sdk_client import credentials_of
try:
    print(credentials_of({}).access_key_id)
except OpenApiError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("variables", "expected"), [(VARIABLES, "id-of-environment"), ({}, "InvalidAccessKeyId: there is no access key")]
)
def test_credentials_outside_of_a_function_are_those_of_the_default_chain(tmp_path, variables, expected):
    """The chain reads its settings when it is imported, so a new process does that; it may not ask the instance's metadata."""
    sealed = {
        "ALIBABA_CLOUD_ECS_METADATA_DISABLED": "true",
        "HOME": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env={**sealed, **variables}, capture_output=True, text=True, check=True
    )

    assert ended.stdout.startswith(expected)
