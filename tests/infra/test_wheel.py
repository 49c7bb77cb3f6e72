"""`journeyman` from a wheel, without a checkout: the commands of the simulator work in an empty folder.

The wheel has the same files as the checkout, where other tests run the demo to its end. So here it only
starts.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SITE = Path(sysconfig.get_path("purelib"))
NOWHERE = "http://127.0.0.1:9"

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """A virtual environment with the wheel; its requirements are those of this process's environment."""
    folder = tmp_path_factory.mktemp("wheel")
    uv = Path(sys.executable).with_name("uv")
    offline = ("--offline", "--quiet", "--python")
    run(uv, "build", "--wheel", "--no-build-isolation", "--out-dir", folder, *offline, sys.executable, ROOT, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    run(uv, "venv", *offline, sys.executable, folder / "venv", cwd=folder)
    run(uv, "pip", "install", "--no-deps", *offline, folder / "venv", wheel, cwd=folder)
    environment = folder / "venv" / "bin"
    # Only the folder: its own .pth files, the editable installation's among them, are not read.
    (site_of(environment) / "requirements.pth").write_text(f"{SITE}\n")
    return environment


def run(*command, cwd: Path, **variables: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**clean(), **variables},
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def clean():
    """The environment variables, without those that lead to other packages."""
    return {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}


def test_wheel_holds_the_product_the_simulator_and_the_deployment(environment, tmp_path):
    """Modules, template and handlers are files of the new environment, not of the checkout."""
    code = (
        "import journeyman, journeyman_simulator.deployment_files as files\n"
        "found = (journeyman.__file__, files.__file__, files.deployment_file('template.yaml'),"
        " files.import_deployed('functions.aws.provision').__file__,"
        " files.import_deployed('infra.forwarder.notifications').__file__)\n"
        "print(*found, sep='\\n')"
    )

    found = run(environment / "python", "-c", code, cwd=tmp_path).splitlines()

    assert len(found) == 5
    assert all(Path(path).is_relative_to(environment.parent) for path in found), found


@pytest.mark.parametrize("folder", ["journeyman", "journeyman_simulator"])
def test_wheel_has_every_file_of_the_packages(environment, folder):
    """It has their modules and data files."""
    assert files(site_of(environment) / folder, "deployment") == files(ROOT / "shared" / folder)


@pytest.mark.parametrize(
    "folder", ["functions", "infra/alibaba", "infra/huawei", "infra/crds", "infra/forwarder", "docs/examples", "events"]
)
def test_wheel_has_every_file_of_the_deployment(environment, folder):
    """The commands run and read these files."""
    assert files(site_of(environment) / "journeyman_simulator" / "deployment" / folder) == files(ROOT / folder)


def site_of(environment):
    (site,) = environment.parent.glob("lib/python*/site-packages")
    return site


def files(folder, *without):
    """Return the relative paths of the files in a folder, without Python's caches."""
    paths = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    return {path.as_posix() for path in paths if not {"__pycache__", *without} & {*path.parts}}


def lines_until(text, lines):
    """Yield the lines up to the first that contains the text."""
    for line in lines:
        yield line
        if text in line:
            return


@pytest.mark.parametrize(
    "cloud",
    [
        pytest.param("aws", marks=pytest.mark.nightly),  # the replay below needs the same files
        "alibaba",
        "huawei",
    ],
)
def test_demo_runs_from_the_wheel_in_an_empty_folder(environment, tmp_path, cloud):
    """The first pods run, and no file is written."""
    with subprocess.Popen(
        [environment / "journeyman", "demo", "--cloud", cloud],
        cwd=tmp_path,
        env={**clean(), "COLUMNS": "120"},  # narrower, the line that is awaited would be wrapped
        text=True,
        stdout=subprocess.PIPE,
    ) as demo:
        lines = list(lines_until("10 of 10 pods run", demo.stdout))
        demo.kill()

    assert "10 of 10 pods run" in lines[-1], "".join(lines)
    assert not list(tmp_path.iterdir())


def test_replay_runs_from_the_wheel_in_an_empty_folder(environment, tmp_path):
    """Event and cluster are files of the wheel; a missing profile, another region and an unreachable proxy have no effect."""
    events = site_of(environment) / "journeyman_simulator" / "deployment" / "events"
    event, cluster = events / "forwarder" / "pods-unschedulable.json", events / "clusters" / "zero-nodes.yaml"
    own = {"AWS_PROFILE": "nope", "AWS_REGION": "eu-west-1", "HTTP_PROXY": NOWHERE, "http_proxy": NOWHERE}
    output = run(environment / "journeyman", "replay", event, "--cluster", cluster, cwd=tmp_path, **own)
    assert "ec2:CreateFleet" in output
    assert not list(tmp_path.iterdir())
