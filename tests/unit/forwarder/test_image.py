"""The forwarder's container image has exactly the modules that the forwarder imports."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "infra" / "forwarder"
INSTALLED = {"botocore", "dateutil", "jmespath", "msgspec", "six", "urllib3"}  # installed by requirements.txt
MODULES = ("__main__", "aws_sinks", "https_sink")
CODE = f"""
import importlib, json, site, sys
from pathlib import Path
for folder in filter(Path.is_dir, map(Path, site.getsitepackages())):  # Debian lists some that do not exist
    for name in {{path.name.partition(".")[0] for path in folder.iterdir()}} - {INSTALLED}:
        sys.modules.setdefault(name, None)  # as if it were not installed
for name in {MODULES}:
    importlib.import_module(f"infra.forwarder.{{name}}")
print(json.dumps({{name: getattr(module, "__file__", None) for name, module in sys.modules.items()}}))
"""


def copied(folder):
    """Copy the Dockerfile's files into `folder`."""
    lines = (FOLDER / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    for line in lines:
        words = line.split()
        if words[:1] != ["COPY"] or "/site" not in words[-1] or words[1].startswith("--"):
            continue
        target = folder / words[-1].removeprefix("/site/")
        target.mkdir(parents=True, exist_ok=True)
        for pattern in words[1:-1]:
            for source in ROOT.glob(pattern):
                shutil.copy(source, target)


def test_image_has_every_module_that_the_forwarder_imports(tmp_path):
    """The test imports it from the Dockerfile's files and the locked requirements only."""
    copied(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    files = {name: file for name, file in json.loads(done.stdout).items() if file}
    ours = [file for name, file in files.items() if name.split(".")[0] in {"infra", "journeyman"}]

    assert "infra.forwarder.aws_sinks" in files
    assert all(Path(file).is_relative_to(tmp_path) for file in ours)


def test_lock_has_the_requirements_of_the_image():
    """It has no others, so that the process fits into 64 MiB."""
    lines = (FOLDER / "requirements.txt").read_text().splitlines()
    locked = {line.partition("==")[0] for line in lines if "==" in line}

    assert locked == {"botocore", "jmespath", "msgspec", "python-dateutil", "six", "urllib3"}
