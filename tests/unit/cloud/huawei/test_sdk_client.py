"""Requests by the official SDK: repetitions, the end of the run, errors, credentials and endpoints."""

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
from datetime import timedelta
from types import SimpleNamespace

import pytest

from journeyman.cloud.huawei.flavors import FlavorReader
from journeyman.cloud.huawei.huawei_errors import translated
from journeyman.cloud.huawei.huawei_settings import HuaweiSettings
from journeyman.cloud.huawei.pricing import price_provider
from journeyman.cloud.huawei.rest_api import BSS, CCE, ECS, FUNCTIONGRAPH, VPC, RestApiError, RestCall
from journeyman.cloud.huawei.sdk_client import SdkRestApi, function_credentials, public_endpoint, use_context
from journeyman.errors import ConfigurationError, DeadlineError, RateLimitedError
from journeyman.signing import Credentials
from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.huawei_account.huawei_account import DOMAIN_ID, PROJECT_ID, HuaweiAccount
from journeyman_simulator.huawei_account.rest_server import serving
from tests.helpers.access_keys import credentials_of
from tests.unit.cloud.huawei.conftest import START

SUBNETS = RestCall(service=VPC, operation="ListSubnets", method="GET", path=f"/v1/{PROJECT_ID}/subnets")


@pytest.fixture(scope="module")
def account():
    account = HuaweiAccount(VirtualClock(START), types=["c7.large.2"])
    account.seed()
    return account


@pytest.fixture(scope="module")
def endpoint(account):
    with serving(account) as url:
        yield url


@pytest.fixture
def client(account, endpoint):
    """Return a function that makes a client whose pauses advance its clock."""

    def make(**given):
        clock = VirtualClock(START)
        url = given.pop("url", endpoint)
        options = {"endpoint": lambda _service, _region: url, "pause": clock.advance, **given}
        credentials = options.pop("credentials", lambda: credentials_of(account.access_key))
        return SdkRestApi("cn-north-4", PROJECT_ID, DOMAIN_ID, clock, credentials, **options)

    return make


def create_node(account):
    (cluster,) = account.clusters.known.values()
    spec = {
        "flavor": "c7.large.2",
        "az": "cn-north-4a",
        "count": 1,
        "login": {"sshKey": "KeyPair-demo"},
        "rootVolume": {"size": 40, "volumetype": "SSD"},
        "dataVolumes": [{"size": 100, "volumetype": "SSD"}],
    }
    body = {"kind": "Node", "apiVersion": "v3", "spec": spec}
    path = f"/api/v3/projects/{PROJECT_ID}/clusters/{cluster.id}/nodes"
    return RestCall(service=CCE, operation="CreateNode", method="POST", path=path, body=body)


def calls(account, operation):
    return sum(number for name, number in account.calls().items() if name.endswith(f" {operation}"))


# --- repetitions


@pytest.mark.parametrize("code", ["APIGW.0308", "CCE.02429001", "CCE.01429002", "CCE.01500001"])
def test_throttled_and_failed_requests_are_repeated(account, client, code):
    seen = []
    account.fail_next("ListSubnets", code, 2)
    before = calls(account, "ListSubnets")
    answer = client(pause=seen.append)(SUBNETS)

    assert len(answer["subnets"]) == 2
    assert calls(account, "ListSubnets") == before + 3
    assert seen == [0.5, 1.0]


def test_third_failure_and_other_refusals_are_raised(account, client):
    """The SDK by itself hides the answer of a request with 429, so that its code would be lost, and throttling an alarm."""
    account.fail_next("ListSubnets", "APIGW.0308", 3)
    with pytest.raises(RateLimitedError) as throttled, translated("vpc:subnets:get"):
        client()(SUBNETS)
    account.fail_next("ListSubnets", "VPC.0201", 1)
    before = calls(account, "ListSubnets")
    with pytest.raises(RestApiError) as refused:
        client()(SUBNETS)

    assert throttled.value.context["code"] == "APIGW.0308"
    assert (throttled.value.__cause__.code, throttled.value.__cause__.status) == ("APIGW.0308", 429)
    assert (refused.value.code, refused.value.status) == ("VPC.0201", 400)
    assert refused.value.request_id
    assert calls(account, "ListSubnets") == before + 1


def test_node_creation_is_repeated_after_throttling_not_after_a_failure(account, client):
    """CreateNode has no client token: a request that failed inside CCE may have created a node."""
    account.fail_next("CreateNode", "CCE.01500001", 1)
    before = calls(account, "CreateNode")
    with pytest.raises(RestApiError) as failed:
        client()(create_node(account))
    assert (failed.value.status, calls(account, "CreateNode")) == (500, before + 1)

    account.fail_next("CreateNode", "APIGW.0308", 2)
    node = client()(create_node(account))
    assert node["metadata"]["uid"]
    assert calls(account, "CreateNode") == before + 4


def test_lost_answer_and_unreachable_service_are_errors_without_code(account, client, capfd):
    """The request may have taken effect, so it is not repeated; or the function's VPC has no route."""
    account.lose_next_answer("CreateNode")
    before = calls(account, "CreateNode")
    for url in ({}, {"url": "http://127.0.0.1:9"}):
        with pytest.raises(RestApiError) as caught:
            client(**url)(create_node(account))
        assert (caught.value.code, caught.value.status) == ("", 0)

    assert calls(account, "CreateNode") == before + 1
    assert capfd.readouterr().err == ""  # where the SDK would write it, too, not as JSON


@pytest.mark.timeout(20)
def test_service_that_does_not_answer_is_an_error_without_code(client):
    """It accepts the connection; the SDK alone would wait for two minutes, longer than a run has."""
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(RestApiError) as caught:
        client(url=f"http://127.0.0.1:{silent.getsockname()[1]}", read_seconds=0.2)(SUBNETS)
    assert (caught.value.code, caught.value.status) == ("", 0)
    assert "timed out" in caught.value.message.lower()


def test_no_request_starts_after_the_end_of_the_run(account, client):
    before = calls(account, "ListSubnets")
    with pytest.raises(DeadlineError):
        client(ends_at=lambda: START)(SUBNETS)
    assert calls(account, "ListSubnets") == before

    account.fail_next("ListSubnets", "APIGW.0308", 1)
    with pytest.raises(RestApiError):
        client(ends_at=lambda: START + timedelta(seconds=0.4))(SUBNETS)
    assert calls(account, "ListSubnets") == before + 1


# --- answers and errors


class _Answers(http.server.BaseHTTPRequestHandler):
    """Answers every request with the status and body of its server."""

    def do_GET(self):
        status, body = self.server.answer
        self.server.paths.append(self.path)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Request-Id", "r-1")
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - the standard library's name

    def log_message(self, *_):
        """Log nothing."""


@pytest.fixture
def answering():
    """Serve one answer, which a test sets as `answer`, and record the paths."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    server.answer, server.paths = (200, b"{}"), []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "code", "text"),
    [
        (400, {"error_code": "CBC.0100", "error_msg": "no"}, "CBC.0100", "no"),
        (400, {"errorCode": "CCE.01400021", "errorMessage": "No flavors"}, "CCE.01400021", "No flavors"),
        (403, {"code": "VPC.2201", "message": "no right"}, "VPC.2201", "no right"),
        (400, {"badRequest": {"code": "Ecs.0005", "message": "wrong"}}, "Ecs.0005", "wrong"),
        (404, {"itemNotFound": {"code": 404, "message": "gone"}}, "404", "gone"),
        (
            400,
            {
                "error_code": "CCE_CM.0021",
                "error_msg": "old",
                "code": 400,
                "errorCode": "CCE.01400021",
                "errorMessage": "new",
                "message": "details",
            },
            "CCE.01400021",
            "new old details",
        ),
        (429, {"error_code": "APIGW.0308", "error_msg": "slow"}, "APIGW.0308", "slow"),
        (502, "<html>Bad Gateway</html>", "502", "<html>Bad Gateway</html>"),
        (400, ["x"], "400", '["x"]'),
        (503, "", "503", ""),
    ],
)
def test_every_form_of_an_error_has_its_code_and_text(client, answering, status, body, code, text):
    """The services have four forms; of CCE's two codes the newer counts, and a proxy answers without any."""
    answering.answer = status, (body if isinstance(body, str) else json.dumps(body)).encode()
    with pytest.raises(RestApiError) as caught:
        client(url=f"http://127.0.0.1:{answering.server_port}")(SUBNETS)
    error = caught.value
    assert (error.code, error.message, error.status, error.request_id) == (code, text, status, "r-1")


def test_answers_may_be_empty_or_no_json(client, answering):
    """Such as the text of a function, and a deletion's answer."""
    api = client(url=f"http://127.0.0.1:{answering.server_port}")
    answering.answer = 200, b""
    assert api(SUBNETS) is None
    answering.answer = 200, "Grüße".encode()
    assert api(SUBNETS) == "Grüße"


def test_colons_of_a_functions_urn_are_escaped(client, answering):
    """FunctionGraph expects them as its own SDK sends them."""
    urn = f"urn:fss:cn-north-4:{PROJECT_ID}:function:default:journeyman-sweep"
    path = f"/v2/{PROJECT_ID}/fgs/functions/{urn}/invocations-async"
    call = RestCall(service=FUNCTIONGRAPH, operation="AsyncInvokeFunction", method="POST", path=path, body={"a": "ü"})
    client(url=f"http://127.0.0.1:{answering.server_port}")(call)
    assert answering.paths == [path.replace(":", "%3A")]


# --- credentials and endpoints


def test_changed_credentials_sign_the_next_request(account, client):
    """A function's agency gets new ones; the token is sent with them."""
    temporary = account.add_access_key("journeyman", temporary=True)
    keys = [
        Credentials(access_key_id="unknown", access_key_secret="x", security_token=""),
        credentials_of(account.access_key),
        credentials_of(temporary),
    ]
    send = client(credentials=lambda: keys[0])
    with pytest.raises(RestApiError) as caught:
        send(SUBNETS)

    assert (caught.value.code, caught.value.status) == ("APIGW.0301", 401)
    for _ in range(2):
        del keys[0]
        assert send(SUBNETS)


def test_prices_are_requested_for_the_account(account, client):
    """BSS takes the account's id instead of the project's, and has one address for all regions."""
    settings = HuaweiSettings(cluster_id="c", project_id=PROJECT_ID, region="cn-north-4", domain_id=DOMAIN_ID)
    api, clock = client(), VirtualClock(START)
    prices = price_provider(api, settings, FlavorReader(api, settings, clock).read, clock)
    prices.refresh_on_demand_if_due()

    assert prices.on_demand("c7.large.2") == account.catalogue.flavors["c7.large.2"].price
    assert public_endpoint(BSS, "cn-north-4") == public_endpoint(BSS, "cn-south-1")
    assert public_endpoint(ECS, "cn-north-4").startswith("https://ecs.cn-north-4.")


VARIABLES = {
    "HUAWEICLOUD_SDK_AK": "id-of-environment",
    "HUAWEICLOUD_SDK_SK": "s",
    "HUAWEICLOUD_SDK_SECURITY_TOKEN": "t",
}


def context_with(key, secret="s"):
    return SimpleNamespace(
        getSecurityAccessKey=lambda: key,
        getSecuritySecretKey=lambda: key and secret,
        getSecurityToken=lambda: key and "t",
    )


@pytest.fixture
def context():
    yield use_context
    use_context(context_with(""))


def test_credentials_are_those_of_the_agency_then_of_the_environment(context):
    """A function without an agency has an empty key in its context."""
    context(context_with("id-of-agency"))
    assert function_credentials(VARIABLES).access_key_id == "id-of-agency"
    assert function_credentials({}).security_token == "t"

    for incomplete in (context_with(""), context_with("id-of-agency", secret="")):
        context(incomplete)
        assert function_credentials(VARIABLES).access_key_id == "id-of-environment"
        assert function_credentials(VARIABLES).security_token == "t"


def test_missing_access_key_says_what_to_do(context):
    """Of the function, and of a process outside of FunctionGraph."""
    context(context_with(None))
    with pytest.raises(ConfigurationError, match="no access key") as caught:
        function_credentials({"HUAWEICLOUD_SDK_AK": "without a secret"})
    assert "agency" in caught.value.context["to_do"]


_PROGRAM = """
import sys
from journeyman.cloud.huawei.sdk_client import SdkRestApi, function_credentials
import journeyman.runtime.huawei
from journeyman.runtime.adapters import SystemClock
api = SdkRestApi("cn-north-4", "p", "d", SystemClock(), lambda: function_credentials({}))
print(sorted(name for name in sys.modules if name.startswith(("huaweicloudsdk", "requests"))))
from journeyman.cloud.huawei.sdk_client import import_sdk
import_sdk()
print("huaweicloudsdkcore.client" in sys.modules)
"""


def test_sdk_is_imported_for_the_first_request_only(tmp_path):
    """Importing a handler stays fast; the function's initializer imports the SDK."""
    variables = {"HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", _PROGRAM], env=variables, capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines() == ["[]", "True"]
