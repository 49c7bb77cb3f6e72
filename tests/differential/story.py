"""A failing comparison told briefly, and the cluster kept where it can be looked at."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.differential.compare import KINDS, Finding, key_of

JSONDict = dict[str, Any]
KEPT_IN = Path(".cache/differential")


def tell(scenario: JSONDict, found: Sequence[Finding], folder: Path = KEPT_IN) -> str:
    """What was found, on what kind of cluster, about which pod; and where the scenario is."""
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
    lines.append(f"make it smaller: python -m tests.differential.hunt {path}")
    return "\n".join(lines)
