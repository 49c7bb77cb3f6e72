"""Writes docs/metrics.md: every metric, where it is to be had, or why it is not. `make metrics` runs it.

Where is read from the source: what `core/observability` and the scrape name is Prometheus', the rest CloudWatch's.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import journeyman
from journeyman.core.api.metrics import METRICS, Metric
from journeyman.core.api.metrics.absent import ABSENT

SOURCE = Path(journeyman.__file__).parent
DECLARED = SOURCE / "core/api/metrics"
PAGE = Path(__file__).with_suffix(".md")
_MAY_NAME = re.compile("operator_{")
SHORTEST = 12  # characters that a pattern must have besides its holes, to be the name of a metric

INTRODUCTION = """# Metrics
Generated from `shared/journeyman/core/api/metrics`; `make metrics` writes it anew.

Names and labels are Karpenter's. On top comes `cluster`, as one deployment may serve several; a label without a value is left out.

- **Prometheus**: `GET /clusters/{name}/metrics` of the API answers in the text format, from the cluster as it is at that moment.
  Requests are signed with AWS credentials (Prometheus: `sigv4`; the collector's `sigv4auth`). `?of=nodes,pods` asks for some groups
  alone: `cluster`, `offerings`, `nodes`, `nodepools`, `pods`, `conditions`. An answer may have 5.5 MB; large clusters are scraped group by group.
  Each scrape reads the whole cluster, so once a minute is often enough.
- **CloudWatch**: counters, histograms and the gauges of decisions are lines in the embedded metric format, namespace `Journeyman`:
  a function has no memory to count in. Prometheus gets them with a CloudWatch exporter. CloudWatch bills each label set.

`DISABLE_CLUSTER_STATE_OBSERVABILITY=true` leaves out nodes, NodePools, pods and `operator_*`, as in Karpenter; Events of changed
conditions are told all the same. Karpenter's summaries are histograms here, and `{kind}` is one of `nodeclaim`, `node`, `nodepool`,
`ec2nodeclass`, `nodeoverlay`, `capacitybuffer`.

"""


def named_in(*paths: Path) -> frozenset[str]:
    """Which declared metrics the source names there, in a text or by a pattern (`f"operator_{kind}_…"`)."""
    files = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*.py")))]
    texts = [file.read_text() for file in files if DECLARED not in file.parents]
    patterns = [
        re.compile(pattern) for text in texts if _MAY_NAME.search(text) for pattern in _patterns(ast.parse(text))
    ]
    return frozenset(
        name
        for name in METRICS
        if any(f'"{name}"' in text for text in texts) or any(pattern.fullmatch(name) for pattern in patterns)
    )


def _patterns(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            fixed = [part.value if isinstance(part, ast.Constant) else None for part in node.values]
            if sum(len(str(text)) for text in fixed if text) >= SHORTEST:
                yield "".join("[a-z0-9_]+" if text is None else re.escape(str(text)) for text in fixed)


def page() -> str:
    """The page as it should be."""
    scraped = named_in(SOURCE / "core/observability", SOURCE / "runtime/scrape.py")
    rows = [_row(metric, scraped) for metric in METRICS.values()]
    head = "| metric | kind | labels | where | says |\n|---|---|---|---|---|\n"
    missing = "".join(f"| `{name}` | {ABSENT[name]} |\n" for name in METRICS if name in ABSENT)
    return (
        INTRODUCTION
        + head
        + "".join(row for metric, row in zip(METRICS.values(), rows, strict=True) if metric.name not in ABSENT)
        + "\n## Declared and not there\n| metric | why |\n|---|---|\n"
        + missing
    )


def _row(metric: Metric, scraped: Iterable[str]) -> str:
    where = "Prometheus" if metric.kind == "gauge" and metric.name in scraped else "CloudWatch"
    labels = ", ".join(metric.labels) if len(metric.labels) < 20 else "node_name, managed, all well-known labels"
    if "resource_type" in metric.labels and len(metric.labels) >= 20:
        labels += ", resource_type"
    return f"| `{metric.name}` | {metric.kind} | {labels} | {where} | {metric.help} |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
