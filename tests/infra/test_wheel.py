"""`journeyman` from a wheel, away from a checkout: the commands that the simulator contributes work in an empty folder."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SITE = Path(sysconfig.get_path("purelib"))

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """A virtual environment with the wheel; the requirements are the ones of this process's environment."""
    folder = tmp_path_factory.mktemp("wheel")
    uv = Path(sys.executable).with_name("uv")
    offline = ("--offline", "--quiet", "--python")
    run(uv, "build", "--wheel", "--no-build-isolation", "--out-dir", folder, *offline, sys.executable, ROOT, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    run(uv, "venv", *offline, sys.executable, folder / "venv", cwd=folder)
    run(uv, "pip", "install", "--no-deps", *offline, folder / "venv", wheel, cwd=folder)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    # Only the folder: its own .pth files, the editable installation's among them, are not read.
    (site / "requirements.pth").write_text(f"{SITE}\n")
    return folder / "venv" / "bin"


def run(*command, cwd: Path) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=clean, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_wheel_holds_the_product_the_simulator_and_the_deployment(environment, tmp_path):
    """Nothing is found in the checkout: modules, template and handlers lie in the new environment."""
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


def test_demo_runs_from_the_wheel_in_an_empty_folder(environment, tmp_path):
    """Every pod runs, nothing is left over, and no file is written."""
    output = run(environment / "journeyman", "demo", "--quiet", cwd=tmp_path)

    assert "every pod ran, and nothing is left over" in output
    assert not list(tmp_path.iterdir())


def test_replay_runs_from_the_wheel_in_an_empty_folder(environment, tmp_path):
    """On an event and a cluster that the wheel carries."""
    code = "from journeyman_simulator.deployment_files import deployment_file; print(deployment_file('events'))"
    events = Path(run(environment / "python", "-c", code, cwd=tmp_path).strip())
    event, cluster = events / "forwarder" / "pods-unschedulable.json", events / "clusters" / "zero-nodes.yaml"

    output = run(environment / "journeyman", "replay", event, "--cluster", cluster, cwd=tmp_path)

    assert "to fit 10 pod(s)" in output
    assert "ec2:CreateFleet" in output
