"""The layer of Function Compute builds without docker, and its functions run with nothing else."""

import json
from pathlib import Path

import pytest

from journeyman_simulator.alibaba_account.fc_stack import read_description
from tests.infra.built_layer import BuiltLayer

ROOT = Path(__file__).parents[2]
RUNTIME = read_description().serverless["resources"]["provision"]["props"]["runtime"].removeprefix("python")
LARGEST_LAYER_MB = 130
SETTINGS = {
    "JOURNEYMAN_CLUSTERS": '[{"name": "demo", "region": "cn-hangzhou", "access": {"kind": "ack", "clusterId": "c1"}}]',
    "SMQ_ENDPOINT": "http://127.0.0.1:9",
    "ECS_ENDPOINT": "http://127.0.0.1:9",
    "POWERTOOLS_TRACE_DISABLED": "true",
    "ALIBABA_CLOUD_ACCESS_KEY_ID": "id",
    "ALIBABA_CLOUD_ACCESS_KEY_SECRET": "secret",
}

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("alibaba-layer"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def layer(tmp_path_factory) -> BuiltLayer:
    """Return a build."""
    folder = tmp_path_factory.mktemp("alibaba")
    return BuiltLayer.build("build-AlibabaLayer", folder, RUNTIME, "functions/alibaba", SETTINGS)


def test_layer_is_small_and_for_its_interpreter(layer):
    """It has neither the simulator nor the SDK of another cloud."""
    assert layer.megabytes <= LARGEST_LAYER_MB
    assert layer.tags == {layer.version.replace(".", "")}
    for name in (
        "boto3",
        "botocore",
        "moto",
        "aws_xray_sdk",
        "huaweicloudsdkcore",
        "journeyman_simulator",
        "kubernetes/aio",
        "journeyman/cli",
    ):
        assert not (layer.site / name).exists(), name


def test_layer_is_compiled(layer):
    """The files are unchecked: a zip loses file times, and each cold start would compile files again."""
    layer.check_is_compiled()


def test_layer_modules_import_with_the_layers_requirements_alone(layer):
    """No module that the layer contains needs a package that it lacks."""
    layer.check_imports()


@pytest.mark.parametrize("name", ["provision", "terminate", "consolidate", "interrupt", "sweep", "api"])
def test_built_function_initializes(layer, name):
    """The layer has all imports of handler and initializer."""
    done = layer.run(f"import {name}; {name}.initialize(None)")
    assert done.returncode == 0, done.stderr


def test_built_api_lists_clusters(layer):
    """Routing needs no cloud; the clusters are in the environment."""
    event = (ROOT / "events" / "alibaba" / "http" / "get-clusters.json").read_text()
    code = f"""
import api, json
class function: timeout = 29
class context: request_id = "r"
context.function = function
api.initialize(context)
print(json.dumps(api.handler({event.encode()!r}, context)))
"""
    done = layer.run(code)

    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert (answer["statusCode"], json.loads(answer["body"])) == (200, {"clusters": [{"name": "demo"}]})


def test_layer_has_the_sdks(layer):
    """Requests to a closed port fail for no other reason than that."""
    code = """
from journeyman.cloud.alibaba.open_api import ApiCall, OpenApiError
from journeyman.cloud.alibaba.sdk_client import SdkOpenApi, credentials_of
from journeyman.cloud.alibaba.smq_queue import SdkSmq, SmqError, SmqMessage
from journeyman.runtime.adapters import SystemClock
call = SdkOpenApi("cn-hangzhou", SystemClock(), credentials_of, endpoint=lambda *_: ("127.0.0.1:9", False), pause=lambda _: None)
for request in (
    lambda: call(ApiCall(service="ecs", action="DescribeZones")),
    lambda: SdkSmq("http://127.0.0.1:9", credentials_of).send("q", [SmqMessage("{}")]),
):
    try:
        request()
    except (OpenApiError, SmqError) as error:
        print(type(error).__name__, repr(error.code))
"""
    done = layer.run(code)

    assert done.stdout.splitlines() == ["OpenApiError ''", "SmqError ''"], done.stdout + done.stderr
