"""Builds the layer of a cloud's functions as `make` does, and runs functions with nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]


def interpreter(version: str) -> tuple[str, str]:
    """Return an interpreter of a version such as 3.10, or else that of the tests, and its version."""
    pyenv = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python{version}"))
    for candidate in (f"python{version}", *map(str, pyenv)):
        path = shutil.which(candidate)
        if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path, version
    return sys.executable, "{}.{}".format(*sys.version_info)


def make(*arguments: str, **variables: str) -> subprocess.CompletedProcess:
    """Run make in the repository, with further environment variables."""
    environment = {**os.environ, **variables}
    return subprocess.run(["make", *arguments], cwd=ROOT, env=environment, text=True, capture_output=True, check=False)


@dataclass(frozen=True)
class BuiltLayer:
    """The folder of a build, and the interpreter that it is for."""

    site: Path
    python: str
    version: str
    functions: Path
    settings: dict[str, str]

    @classmethod
    def build(cls, target: str, folder: Path, runtime: str, functions: str, settings: dict[str, str]) -> BuiltLayer:
        """Build a target of shared/Makefile for a runtime's version; `functions` is the folder with the handlers."""
        python, version = interpreter(runtime)
        command = ["make", "-C", str(ROOT / "shared"), target, f"ARTIFACTS_DIR={folder}"]
        command += [f"PYTHON={sys.executable}", f"PYTHON_VERSION={version}"]
        done = subprocess.run(command, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return cls(folder / "python", python, version, ROOT / functions, settings)

    def run(self, code: str, **variables: str) -> subprocess.CompletedProcess:
        """Run code with the functions and the layer only."""
        paths = [str(self.functions), str(self.site)]
        command = [self.python, "-I", "-S", "-c", f"import sys; sys.path[:0] = {paths!r}\n{code}"]
        environment = {"PATH": os.environ["PATH"], **self.settings, **variables}
        return subprocess.run(command, env=environment, text=True, capture_output=True, check=False)

    @cached_property
    def files(self) -> list[Path]:
        """Return the files of the layer."""
        return [file for file in self.site.rglob("*") if file.is_file()]

    @property
    def megabytes(self) -> float:
        """Return the size of the files."""
        return sum(file.stat().st_size for file in self.files) / 1_000_000

    @property
    def tags(self) -> set[str]:
        """Return the Python versions of the compiled extensions, such as 310."""
        return {m[1] for file in self.files if (m := re.search(r"\.cpython-(\d+)-.*\.so$", file.name))}

    @property
    def modules(self) -> list[str]:
        """Return the names of the product's modules."""
        sources = sorted((self.site / "journeyman").rglob("*.py"))
        return [
            ".".join(path.relative_to(self.site).with_suffix("").parts).removesuffix(".__init__") for path in sources
        ]

    def check_is_compiled(self) -> None:
        """Assert that each module is compiled, and that the files are unchecked: a zip loses file times."""
        compiled = list((self.site / "journeyman").rglob(f"*.cpython-{self.version.replace('.', '')}.pyc"))
        assert len(compiled) == len(self.modules)
        assert all(int.from_bytes(file.read_bytes()[4:8], "little") == 0b01 for file in compiled)

    def check_imports(self) -> None:
        """Assert that no module of the product needs a package that the layer lacks."""
        done = self.run(f"import importlib\nfor name in {self.modules!r}: importlib.import_module(name)")
        assert done.returncode == 0, done.stderr
        assert len(self.modules) > 100
