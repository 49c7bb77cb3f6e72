"""Find or build the control plane's programs.

    python -m tests.controlplane      builds the program if needed and prints its path

`main.go` here builds one program from the published modules of Kubernetes and etcd. If KUBEBUILDER_ASSETS names a folder
with released programs (etcd, kube-apiserver, …), tests use the ones in it, and the built program for the others.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.helpers.go_programs import GoProgram

HERE = Path(__file__).parent
_KEEPER = HERE / "keeper.py"


def _version() -> str:
    found = re.search(r"^\s*k8s\.io/kubernetes (v\d+\.(\d+)\.\d+)$", (HERE / "go.mod").read_text(), re.MULTILINE)
    assert found is not None
    version = "k8s.io/component-base/version"
    named = {"gitVersion": found[1], "gitMajor": "1", "gitMinor": found[2], "gitTreeState": "clean"}
    return " ".join(f"-X {version}.{field}={value}" for field, value in named.items())


BUILT = GoProgram(
    name="controlplane",
    title="a Kubernetes control plane for tests",
    sources=HERE,
    minutes="7",
    flags=("-buildvcs=false", "-ldflags", f"-s -w {_version()}"),
)


def command(name: str, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the command for etcd, kube-apiserver, kube-scheduler or kube-controller-manager, which ends with its input.

    Raises:
        GoProgramMissingError: The program is missing and cannot be built.
    """
    released = Path(environment.get("KUBEBUILDER_ASSETS") or os.devnull) / name
    if released.is_file():
        return [sys.executable, "-S", "-E", str(_KEEPER), str(released)]
    return [str(BUILT.path()), name]
