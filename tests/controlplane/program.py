"""Where the control plane's programs come from.

    python -m tests.controlplane      builds ours if needed, prints where it is

KUBEBUILDER_ASSETS names a folder with released programs (etcd, kube-apiserver, …) to use instead; what that folder
lacks comes from our own build: one program over the published modules of Kubernetes and etcd, in `main.go` here.
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


OURS = GoProgram(
    name="controlplane",
    title="a Kubernetes control plane for tests",
    sources=HERE,
    minutes="7",
    flags=("-buildvcs=false", "-ldflags", f"-s -w {_version()}"),
)


def command(name: str, environment: Mapping[str, str] = os.environ) -> list[str]:
    """How to start etcd, kube-apiserver, kube-scheduler or kube-controller-manager so that it ends with its input.

    Raises:
        GoProgramMissingError: The program is not there and cannot be built.
    """
    released = Path(environment.get("KUBEBUILDER_ASSETS") or os.devnull) / name
    if released.is_file():
        return [sys.executable, "-S", "-E", str(_KEEPER), str(released)]
    return [str(OURS.path()), name]
