"""The layer of Function Compute builds without docker, and its functions run with nothing else."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from journeyman_simulator.alibaba_account.fc_stack import read_description

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


def interpreter() -> tuple[str, str]:
    """Return an interpreter of the runtime's version, or else that of the tests, and its version."""
    pyenv = sorted((Path.home() / ".pyenv" / "versions").glob(f"{RUNTIME}.*/bin/python{RUNTIME}"))
    for candidate in (f"python{RUNTIME}", *map(str, pyenv)):
        path = shutil.which(candidate)
        if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path, RUNTIME
    return sys.executable, "{}.{}".format(*sys.version_info)


PYTHON, VERSION = interpreter()


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Return the folder `python` of a build."""
    folder = tmp_path_factory.mktemp("alibaba")
    command = ["make", "-C", str(ROOT / "shared"), "build-AlibabaLayer", f"ARTIFACTS_DIR={folder}"]
    command += [f"PYTHON={sys.executable}", f"PYTHON_VERSION={VERSION}"]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "python"


def run(site: Path, code: str, **variables: str) -> subprocess.CompletedProcess:
    """Run code with the functions and the layer only."""
    paths = [str(ROOT / "functions" / "alibaba"), str(site)]
    command = [PYTHON, "-I", "-S", "-c", f"import sys; sys.path[:0] = {paths!r}\n{code}"]
    environment = {"PATH": os.environ["PATH"], **SETTINGS, **variables}
    return subprocess.run(command, env=environment, text=True, capture_output=True, check=False)


def test_layer_is_small_and_for_its_interpreter(site):
    """It has neither the simulator nor the SDK of another cloud."""
    megabytes = sum(f.stat().st_size for f in site.rglob("*") if f.is_file()) / 1_000_000
    tags = {m[1] for f in site.rglob("*.so") if (m := re.search(r"\.cpython-(\d+)-", f.name))}

    assert megabytes <= LARGEST_LAYER_MB
    assert tags == {VERSION.replace(".", "")}
    for name in (
        "boto3",
        "botocore",
        "moto",
        "aws_xray_sdk",
        "journeyman_simulator",
        "kubernetes/aio",
        "journeyman/cli",
    ):
        assert not (site / name).exists(), name


def test_layer_is_compiled(site):
    """The files are unchecked: a zip loses file times, and each cold start would compile files again."""
    compiled = list((site / "journeyman").rglob(f"*.cpython-{VERSION.replace('.', '')}.pyc"))

    assert len(compiled) == len(list((site / "journeyman").rglob("*.py")))
    assert all(int.from_bytes(f.read_bytes()[4:8], "little") == 0b01 for f in compiled)


def test_layer_modules_import_with_the_layers_requirements_alone(site):
    """No module that the layer contains needs a package that it lacks."""
    names = [
        ".".join(path.relative_to(site).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted((site / "journeyman").rglob("*.py"))
    ]
    done = run(site, f"import importlib\nfor name in {names!r}: importlib.import_module(name)")

    assert done.returncode == 0, done.stderr
    assert len(names) > 100


@pytest.mark.parametrize("name", ["provision", "terminate", "consolidate", "interrupt", "sweep", "api"])
def test_built_function_initializes(site, name):
    """The layer has all imports of handler and initializer."""
    done = run(site, f"import {name}; {name}.initialize(None)")

    assert done.returncode == 0, done.stderr


def test_built_api_lists_clusters(site):
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
    done = run(site, code)

    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert (answer["statusCode"], json.loads(answer["body"])) == (200, {"clusters": [{"name": "demo"}]})


def test_layer_has_the_sdks(site):
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
    done = run(site, code)

    assert done.stdout.splitlines() == ["OpenApiError ''", "SmqError ''"], done.stdout + done.stderr
