"""The template validates and builds without docker, and the result runs under Lambda's runtime client."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from journeyman_simulator.sam_stack import read_template
from tests.helpers.runtime_api import RuntimeApi

ROOT = Path(__file__).parents[2]
RUNTIME = read_template(ROOT / "template.yaml")["Globals"]["Function"]["Runtime"].removeprefix("python")
LARGEST_LAYER_MB = 100
RUNTIME_CLIENT = ("awslambdaric", "simplejson", "snapshot-restore-py")
VARIABLES = {
    "JOURNEYMAN_CLUSTERS": '[{"name": "demo", "region": "us-east-1"}]',
    **{
        f"JOURNEYMAN_{queue}_QUEUE_URL": f"https://sqs.invalid/{queue}"
        for queue in ("PROVISION", "TERMINATE", "CONSOLIDATE", "REQUEUE")
    },
    "POWERTOOLS_TRACE_DISABLED": "true",
}

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("sam"), pytest.mark.timeout(300)]


def tool(name: str) -> str:
    """Return the path of the SAM CLI or of the linter that is installed with it."""
    variable = name.upper().replace("-", "_")
    command = os.environ.get(variable) or str(ROOT / ".tools" / "sam" / "bin" / name)
    assert shutil.which(command), (
        f"there is no {name} at {command}: run `make sam`, or say where it is with {variable}=…"
    )
    return command


def sam(*arguments: str, **variables: str) -> subprocess.CompletedProcess:
    environment = {
        **os.environ, "SAM_CLI_TELEMETRY": "0", "AWS_DEFAULT_REGION": "us-east-1", "PYTHON": sys.executable, **variables,
    }  # fmt: skip
    return subprocess.run(
        [tool("sam"), *arguments], cwd=ROOT, env=environment, text=True, capture_output=True, check=False
    )


def test_template_validates():
    """It finds mistakes that the linter does not, as a misspelt SAM property."""
    done = sam("validate")
    assert done.returncode == 0, done.stdout + done.stderr


def test_templates_have_no_lint():
    """`sam validate --lint` runs the same linter, for one template at a time."""
    templates = [str(ROOT / "template.yaml"), str(ROOT / "infra" / "aws" / "cluster.yaml")]
    done = subprocess.run([tool("cfn-lint"), *templates], text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class Built(NamedTuple):
    """A build, and the interpreter it was made for."""

    folder: Path
    version: str
    python: str


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Built:
    """One build: for the template's Python if this machine has it, otherwise for the Python of the tests."""
    found = interpreter(RUNTIME)
    version = RUNTIME if found else "{}.{}".format(*sys.version_info)
    folder = tmp_path_factory.mktemp("sam")
    done = sam(
        "build", "--build-dir", str(folder / "build"), "--cache-dir", str(folder / "cache"), PYTHON_VERSION=version
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Built(folder / "build", version, found or sys.executable)


def interpreter(version: str) -> str | None:
    """An interpreter of exactly that version; a pyenv shim without that version does not run."""
    pyenv = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python{version}"))
    for candidate in (f"python{version}", *map(str, pyenv)):
        path = shutil.which(candidate)
        if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    return None


def test_layer_fits_lambda_and_its_interpreter(built):
    """Lambda allows 250 MB unzipped; packages that no function imports are left out."""
    site = built.folder / "JourneymanLayer" / "python"
    megabytes = sum(f.stat().st_size for f in site.rglob("*") if f.is_file()) / 1_000_000
    tags = {m[1] for f in site.rglob("*.so") if (m := re.search(r"\.cpython-(\d+)-", f.name))}

    assert megabytes <= LARGEST_LAYER_MB
    assert tags == {built.version.replace(".", "")}
    assert not (site / "kubernetes" / "aio").exists()
    assert not (site / "journeyman_simulator").exists()
    assert {d.name for d in (site / "botocore" / "data").iterdir() if d.is_dir()} >= {
        "ec2",
        "sqs",
        "ssm",
        "iam",
        "eks",
        "sts",
    }


@pytest.mark.parametrize(("layer", "machine"), [("JourneymanLayer", "x86_64"), ("JourneymanArmLayer", "aarch64")])
def test_build_has_a_layer_for_each_architecture(built, layer, machine):
    """The stack's parameter Architecture, which is chosen after the build, selects one of them."""
    site = built.folder / layer / "python"
    libraries = [f.name for f in site.rglob("*.so") if ".cpython-" in f.name]
    assert libraries
    assert all(f"-{machine}-" in name for name in libraries)
    assert (site / "journeyman" / "runtime" / "aws.py").is_file()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_layer_has_the_locked_versions_for_lambdas_python(tmp_path, machine):
    """The markers are read for the target, not for the Python that builds: numpy is locked in three versions."""
    command = ["make", "-C", str(ROOT / "shared"), "install", f"PLATFORM={machine}"]
    variables = {"ARTIFACTS_DIR": str(tmp_path), "PYTHON": sys.executable}
    done = subprocess.run(command, env={**os.environ, **variables}, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

    site = tmp_path / "python"
    locked = (ROOT / "shared" / "requirements.txt").read_text()
    (newest,) = re.findall(r"^numpy==(\S+) ; python_full_version >= '3\.12'", locked, re.MULTILINE)
    libraries = [f.name for f in site.rglob("*.so") if ".cpython-" in f.name]

    assert (site / f"numpy-{newest}.dist-info").is_dir()
    assert libraries
    assert all(f".cpython-{RUNTIME.replace('.', '')}-{machine}-" in name for name in libraries)


def test_layer_modules_import_with_the_layers_requirements_alone(built):
    """Neither the simulator nor this machine's site-packages can be imported."""
    site = built.folder / "JourneymanLayer" / "python"
    names = [
        ".".join(path.relative_to(site).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted((site / "journeyman").rglob("*.py"))
    ]
    code = f"import importlib, sys; sys.path.append({str(site)!r})\nfor name in sys.stdin.read().split(): importlib.import_module(name)"

    done = subprocess.run(
        [built.python, "-I", "-S", "-c", code], input="\n".join(names), text=True, capture_output=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert len(names) > 100
    assert not [name for name in names if name.startswith("journeyman.cli")]


def test_layer_reads_a_kubeconfig_with_an_exec_plugin(built, tmp_path):
    """The part of the Kubernetes client that the layer keeps runs the plugin and returns its token."""
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "spec": {"interactive": False},
        "status": {"token": "of-the-plugin"},
    }
    plugin = {
        "apiVersion": credential["apiVersion"],
        "command": "echo",
        "args": [json.dumps(credential)],
        "interactiveMode": "Never",
    }
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://c.example"}}],
        "users": [{"name": "u", "user": {"exec": plugin}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(kubeconfig))
    code = (
        f"import sys; sys.path.append({str(built.folder / 'JourneymanLayer' / 'python')!r})\n"
        "from journeyman.kube.access.kubeconfig import from_kubeconfig\n"
        f"print(from_kubeconfig({str(path)!r}).authorization())"
    )

    done = subprocess.run([built.python, "-I", "-S", "-c", code], text=True, capture_output=True, check=False)

    assert done.stdout == "Bearer of-the-plugin\n", done.stderr


def test_layer_is_compiled_if_its_interpreter_is_installed(built):
    """The files are unchecked: the zip loses file times, and each cold start would compile files again."""
    site = built.folder / "JourneymanLayer" / "python"
    compiled = list((site / "journeyman").rglob(f"*.cpython-{built.version.replace('.', '')}.pyc"))
    assert len(compiled) == len(list((site / "journeyman").rglob("*.py")))
    assert all(int.from_bytes(f.read_bytes()[4:8], "little") == 0b01 for f in compiled)


@pytest.fixture(scope="module")
def runtime_client(built, tmp_path_factory) -> Path:
    """Lambda's own runtime interface client, for the interpreter of the build."""
    target = tmp_path_factory.mktemp("ric")
    locked = re.split(r"\n(?=\S)", (ROOT / "tests" / "requirements.txt").read_text())
    wanted = [entry for entry in locked if entry.partition("==")[0] in RUNTIME_CLIENT]
    (target / "requirements.txt").write_text("\n".join(wanted) + "\n")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--require-hashes", "--only-binary=:all:", "--python-version", built.version, "--implementation", "cp",
               "--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_28_x86_64", "--target", str(target),
               "-r", str(target / "requirements.txt")]  # fmt: skip
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def function(built: Built, client: Path, name: str) -> RuntimeApi:
    layer = built.folder / "JourneymanLayer" / "python"
    handler = f"{name}.lambda_handler"
    return RuntimeApi(built.python, built.folder / f"{name.title()}Function", (layer, client), handler, VARIABLES)


@pytest.mark.parametrize("name", ["provision", "terminate", "consolidate", "interrupt"])
def test_built_function_fails_only_the_malformed_record(built, runtime_client, name):
    """The layer has all of a handler's imports, and the response is one that SQS understands."""
    record = {"messageId": "m-1", "body": "{", "eventSource": "aws:sqs", "attributes": {}}
    with function(built, runtime_client, name) as lambda_:
        answer = lambda_.invoke({"Records": [record]})
    assert answer == ("response", {"batchItemFailures": [{"itemIdentifier": "m-1"}]}), lambda_.output
    (line,) = [json.loads(text) for text in lambda_.output.splitlines() if text.startswith("{")]
    assert (line["level"], line["error"], line["id"]) == ("ERROR", "MalformedEventError", "m-1")


def test_malformed_direct_event_raises_an_error(built, runtime_client):
    """The schedule has no queue, so the invocation must count as failed."""
    with function(built, runtime_client, "sweep") as lambda_:
        kind, error = lambda_.invoke({"version": "1", "source": "sweep"})
    assert (kind, error["errorType"]) == ("error", "MalformedEventError"), lambda_.output
    assert "id" in error["errorMessage"]


def test_built_api_lists_clusters(built, runtime_client):
    """Routing needs no cloud; the clusters are in the environment."""
    event = json.loads((ROOT / "events" / "api" / "get-clusters.json").read_text())
    with function(built, runtime_client, "api") as lambda_:
        kind, answer = lambda_.invoke(event)
    assert (kind, answer["statusCode"]) == ("response", 200), lambda_.output
    assert json.loads(answer["body"]) == {"clusters": [{"name": "demo"}]}
