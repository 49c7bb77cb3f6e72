"""Generates docs/metrics.md: every metric, where to find it, or why it is not emitted. `make metrics` runs it.

Metrics that `core/observability` and the scrape name are on Prometheus, all others on CloudWatch.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import journeyman
from journeyman.core.api.metrics import METRICS, NOT_EMITTED, Metric

SOURCE = Path(journeyman.__file__).parent
DECLARED = SOURCE / "core/api/metrics.py"
PAGE = Path(__file__).with_suffix(".md")
_MAY_HAVE_PATTERN = re.compile("operator_{")
SHORTEST = 12  # characters of an f-string besides its fields, for it to be a metric name

INTRODUCTION = """# Metrics
Generated from `shared/journeyman/core/api/metrics.py` by `make metrics`.

Names and labels are Karpenter's. Every metric also has the label `cluster`, because one deployment may serve several clusters. Empty labels are omitted.

- **Prometheus**: `GET /clusters/{name}/metrics` of the API returns the gauges of the cluster's current state in the text format.
  Sign requests with AWS credentials (Prometheus: `sigv4`; OpenTelemetry collector: `sigv4auth`). `?of=nodes,pods` selects groups:
  `cluster`, `offerings`, `nodes`, `nodepools`, `pods`, `conditions`. A response is at most 5.5 MB; scrape large clusters group by group.
  Each scrape reads the whole cluster; scrape at most once a minute.
- **CloudWatch**: counters, histograms and the gauges of decisions are written in the embedded metric format, namespace `Journeyman`,
  because a function has no memory to count in. A CloudWatch exporter brings them to Prometheus. CloudWatch bills each label set.

`DISABLE_CLUSTER_STATE_OBSERVABILITY=true` turns off the metrics of nodes, NodePools and pods and `operator_*`, as in Karpenter; Events of
changed conditions are still recorded. Karpenter's summaries are histograms here. `{kind}` is one of `nodeclaim`, `node`, `nodepool`,
`ec2nodeclass`, `nodeoverlay`, `capacitybuffer`.

"""


def named_in(*paths: Path) -> frozenset[str]:
    """Return the declared metrics that source files name, as a string or by an f-string (`f"operator_{kind}_…"`)."""
    files = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*.py")))]
    texts = [file.read_text() for file in files if file != DECLARED]
    patterns = [
        re.compile(pattern)
        for text in texts
        if _MAY_HAVE_PATTERN.search(text)
        for pattern in _patterns(ast.parse(text))
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
    """Return the text of docs/metrics.md."""
    scraped = named_in(SOURCE / "core/observability", SOURCE / "runtime/scrape.py")
    rows = [_row(metric, scraped) for metric in METRICS.values()]
    head = "| metric | kind | labels | where | description |\n|---|---|---|---|---|\n"
    missing = "".join(f"| `{name}` | {NOT_EMITTED[name]} |\n" for name in METRICS if name in NOT_EMITTED)
    return (
        INTRODUCTION
        + head
        + "".join(row for metric, row in zip(METRICS.values(), rows, strict=True) if metric.name not in NOT_EMITTED)
        + "\n## Not emitted\n| metric | why |\n|---|---|\n"
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
