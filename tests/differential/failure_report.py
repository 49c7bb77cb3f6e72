"""Describes a failing comparison, and saves its cluster."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.differential.compare import KINDS, Finding, key_of

JSONDict = dict[str, Any]
SAVED_IN = Path(".cache/differential")


def describe_failure(scenario: JSONDict, found: Sequence[Finding], folder: Path = SAVED_IN) -> str:
    """Return the findings, the cluster's size, the pod, and the path of the saved scenario."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(scenario, indent=1)
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
    path.write_text(text)
    kinds = Counter(o["kind"] for o in scenario["objects"])
    lines = [", ".join(f"{n} {kind}" for kind, n in kinds.items()) + f", {len(scenario['instanceTypes'])} types"]
    for finding in found:
        lines.append(f"{KINDS[finding.kind]}: {finding.text[:1500]}")
        lines += [
            f"  {json.dumps(o)}" for o in scenario["objects"] if o["kind"] == "Pod" and key_of(o) in finding.pods[:1]
        ]
    lines.append(f"to reduce it: python -m tests.differential.hunt {path}")
    return "\n".join(lines)
