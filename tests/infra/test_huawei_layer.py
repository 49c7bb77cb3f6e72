"""The package of FunctionGraph builds without docker, and its functions run with nothing else."""

import json
from datetime import datetime, timezone
from pathlib import Path

import pytest

from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.huawei_account import HuaweiAccount
from journeyman_simulator.huawei_account.fgs_stack import FgsStack, read_description
from tests.infra.built_layer import BuiltLayer

ROOT = Path(__file__).parents[2]
LARGEST_PACKAGE_MB = 110  # FunctionGraph unpacks at most 1500, of an archive of at most 300
MOST_FILES = 30_000
NOT_LOADED = ("pymongo", "gridfs", "dns")
"""What Huawei Cloud's SDK declares and does not load."""
STACK = FgsStack(
    HuaweiAccount(VirtualClock(datetime(2026, 11, 21, tzinfo=timezone.utc)), types=[]),
    read_description(),
    {"cluster_name": "demo", "cluster_id": "00000000-0000-4000-8000-000000000001"},
)
SETTINGS = {
    **STACK.variables,
    **{f"{service}_ENDPOINT": "http://127.0.0.1:9" for service in ("CCE", "ECS", "VPC", "BSS", "FUNCTIONGRAPH")},
}
RUNTIME = STACK.module.variables["runtime"].removeprefix("Python")
CONTEXT = """
class Context:
    def getRequestID(self): return "r"
    def getRemainingTimeInMilliSeconds(self): return 29000
    def getSecurityAccessKey(self): return "id"
    def getSecuritySecretKey(self): return "secret"
    def getSecurityToken(self): return "token"
context = Context()
"""

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("huawei-layer"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> BuiltLayer:
    """Return a build."""
    folder = tmp_path_factory.mktemp("huawei")
    return BuiltLayer.build("build-HuaweiPackage", folder, RUNTIME, "functions/huawei", SETTINGS)


def test_package_is_within_the_limits_and_for_its_interpreter(package):
    """It has neither the simulator nor the SDK of another cloud, nor what Huawei Cloud's SDK does not load."""
    assert package.megabytes <= LARGEST_PACKAGE_MB
    assert len(package.files) <= MOST_FILES
    assert not [file for file in package.files if file.name.endswith("~")]
    assert package.tags == {package.version.replace(".", "")}
    assert (package.site / "bson").is_dir()
    for name in (
        *NOT_LOADED,
        "boto3",
        "botocore",
        "alibabacloud_tea_openapi",
        "aiohttp",
        "journeyman_simulator",
        "kubernetes/aio",
        "journeyman/cli",
    ):
        assert not (package.site / name).exists(), name


def test_handlers_and_package_have_no_name_in_common(package):
    """FunctionGraph unpacks both into one folder."""
    handlers = {path.stem for path in (ROOT / "functions" / "huawei").glob("*.py")}
    assert not handlers & {path.stem for path in package.site.iterdir()}


def test_package_is_compiled(package):
    """The files are unchecked: a zip loses file times, and each cold start would compile files again."""
    package.check_is_compiled()


def test_package_modules_import_with_its_requirements_alone(package):
    """No module that the package contains needs another one."""
    package.check_imports()


@pytest.mark.parametrize("name", sorted({props["handler"].partition(".")[0] for props in STACK.properties.values()}))
def test_built_function_initializes(package, name):
    """The package has all imports of handler and initializer."""
    done = package.run(f"{CONTEXT}\nimport {name}; {name}.initialize(context)")
    assert done.returncode == 0, done.stderr


def test_built_api_lists_clusters(package):
    """Routing needs no cloud; the clusters are in the environment."""
    event = json.dumps({"httpMethod": "GET", "path": "/clusters", "headers": {}, "requestContext": {"requestId": "r"}})
    code = f"import api, json\napi.initialize(context)\nprint(json.dumps(api.handler(json.loads({event!r}), context)))"
    done = package.run(CONTEXT + code)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert (answer["statusCode"], json.loads(answer["body"])) == (200, {"clusters": [{"name": "demo"}]})


def test_package_has_what_the_sdk_loads(package):
    """A request to a closed port fails for no other reason than that, and loads nothing that was left out."""
    code = f"""
import sys
from journeyman.cloud.huawei.rest_api import RestApiError, RestCall
from journeyman.cloud.huawei.sdk_client import SdkRestApi, function_credentials, use_context
from journeyman.runtime.adapters import SystemClock
use_context(context)
call = SdkRestApi(
    "cn-north-4", "p", "d", SystemClock(), function_credentials,
    endpoint=lambda *_: "http://127.0.0.1:9", pause=lambda _: None,
)
for service, path in (("cce", "/api/v3/projects/p/clusters/c"), ("bss", "/v2/bills")):
    try:
        call(RestCall(service=service, operation="X", method="GET", path=path))
    except RestApiError as error:
        print(type(error).__name__, repr(error.code), error.status)
print(sorted(set(sys.modules) & set({NOT_LOADED!r})))
"""
    done = package.run(CONTEXT + code)

    assert done.stdout.splitlines() == ["RestApiError '' 0", "RestApiError '' 0", "[]"], done.stdout + done.stderr
