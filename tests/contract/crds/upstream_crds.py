"""Karpenter's own CustomResourceDefinitions, from its published Go module.

`upstream/go.mod` has its version, `upstream/go.sum` its checksum. The AWS provider's module has all CRDs: EC2NodeClass, and
Karpenter's own with the restrictions that AWS adds, as its charts install them. That of CCENodeClass, which is in no such module,
is a file.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.helpers.go_programs import GoProgramMissingError

MODULE = "github.com/aws/karpenter-provider-aws"

_HERE = Path(__file__).parent / "upstream"
JSONDict = dict[str, Any]


@cache
def documents() -> dict[str, JSONDict]:
    """Return Karpenter's CRDs by kind.

    Raises:
        GoProgramMissingError: Go is missing, or the module cannot be downloaded.
    """
    folder = _module() / "pkg" / "apis" / "crds"
    files = (*sorted(folder.glob("*.yaml")), *sorted(_HERE.glob("*.yaml")))
    found = [yaml.load(path.read_text(), yaml.CSafeLoader) for path in files]
    return {document["spec"]["names"]["kind"]: document for document in found}


def schema(kind: str) -> JSONDict:
    """Return the schema of a kind's objects. Raises GoProgramMissingError."""
    (version,) = documents()[kind]["spec"]["versions"]
    found: JSONDict = version["schema"]["openAPIV3Schema"]
    return found


def examples() -> dict[str, list[JSONDict]]:
    """Return the objects of Karpenter's published examples by file name. Raises GoProgramMissingError."""
    files = sorted((_module() / "examples").glob("*/*.yaml"))
    return {
        f"{path.parent.name}/{path.name}": [*filter(None, yaml.load_all(path.read_text(), yaml.CSafeLoader))]
        for path in files
    }


def _module() -> Path:
    """Return the module's folder; download it and verify it by go.sum if needed."""
    go = shutil.which("go")
    if go is None:
        raise GoProgramMissingError("not compared with Karpenter's CRDs: Go 1.21 or newer is needed to fetch them")
    found = re.search(rf"{MODULE} (v\S+)", (_HERE / "go.mod").read_text())
    assert found is not None
    command = [go, "mod", "download", "-json", f"{MODULE}@{found[1]}"]
    answer = subprocess.run(command, cwd=_HERE, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise GoProgramMissingError(f"not compared with Karpenter's CRDs: {answer.stderr or answer.stdout}")
    return Path(json.loads(answer.stdout)["Dir"])
