"""Helm itself, for tests of the chart: the release that `tests/infra/helm/go.mod` pins, built once.

python -m tests.infra.helm_program      builds it if needed, prints where it is
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.helpers.go_programs import GoProgram, print_path

CHART = Path(__file__).parents[2] / "infra" / "chart"
EXAMPLES = sorted((CHART / "ci").glob("*.yaml"))
KUBERNETES = "1.36"  # what Helm assumes without a cluster
RELEASE = NAMESPACE = "journeyman"
HELM = GoProgram(
    name="helm",
    title="Helm",
    sources=Path(__file__).parent / "helm",
    minutes="2",
    flags=("-buildvcs=false", "-ldflags", "-s -w"),
    package="helm.sh/helm/v3/cmd/helm",
)


class HelmError(Exception):
    """Helm failed; the text is its output."""


def helm(*arguments: str, cwd: Path | None = None) -> str:
    """What Helm prints.

    Raises:
        HelmError: It failed.
        GoProgramMissingError: Helm is missing and cannot be built.
    """
    done = subprocess.run([str(HELM.path()), *arguments], capture_output=True, text=True, cwd=cwd, check=False)
    if done.returncode:
        raise HelmError(done.stderr)
    return done.stdout


def rendered(values: Path | Mapping[str, Any], *arguments: str) -> list[dict[str, Any]]:
    """The chart's objects, in Helm's order of installation.

    Args:
        values: A file of values, or values themselves.
        arguments: More for `helm template`.
    """
    flags = (
        ["--values", str(values)] if isinstance(values, Path) else [f"--set-json={k}={v}" for k, v in values.items()]
    )
    version = _default_version(arguments)
    text = helm("template", RELEASE, str(CHART), f"--namespace={NAMESPACE}", *flags, *arguments, *version)
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]


def _default_version(arguments: Sequence[str]) -> list[str]:
    return [] if any(a.startswith("--kube") for a in arguments) else ["--kube-version", KUBERNETES]


if __name__ == "__main__":
    sys.exit(print_path(HELM.path))
