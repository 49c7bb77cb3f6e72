"""Write the demo's output as it is, a page for each cloud: docs/demo.md and its siblings. `make demo-transcript` runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

_STORY: Final = """The clock is virtual. Ten pods arrive on a cluster without nodes; a burst ends and its node is replaced by a smaller
one when the budget window opens; a Spot node is interrupted; everything scales to zero.
"""
PAGES: Final = {
    "aws": (
        "demo.md",
        f"""# A run of the demo

`make demo` runs the deployed Lambda handlers, queues, rules and schedules of `template.yaml` on an in-memory API server with kubelets
and a kube-scheduler, and on [moto](https://github.com/getmoto/moto) as AWS with its gaps filled. {_STORY}
On Alibaba Cloud it is [the same](demo-alibaba.md), on Huawei Cloud [almost the same](demo-huawei.md).
""",
    ),
    "alibaba": (
        "demo-alibaba.md",
        f"""# A run of the demo on Alibaba Cloud

`make demo CLOUD=alibaba` runs the deployed Function Compute handlers, queues, rules and timers of `infra/alibaba` on an in-memory API
server with kubelets and a kube-scheduler. The official SDK sends its requests over HTTP to a simulated account. The NodePool and the
ECSNodeClass are published ones, unchanged (`docs/examples/alibaba-cluster.yaml`). {_STORY}
""",
    ),
    "huawei": (
        "demo-huawei.md",
        """# A run of the demo on Huawei Cloud

`make demo CLOUD=huawei` runs the deployed FunctionGraph handlers and triggers of `infra/huawei` on an in-memory API server with
kubelets and a kube-scheduler. The official SDK sends its requests over HTTP to a simulated account, which checks each function's agency.
The CCENodeClass, the NodePool `demo-cce-elastic-cpu` and the Deployment `cpu-burst` are published ones, unchanged
(`docs/examples/huawei-cluster.yaml`); a second NodePool has Spot nodes. The clock is virtual. Ten pods arrive on a cluster without
nodes; `cpu-burst` scales from 0 to 10 and to 5, when its node is replaced by a smaller one; a Spot node is reclaimed; everything scales to
zero.
""",
    ),
}
"""File name and introduction by cloud."""


def main() -> int:
    """Run the demo on each cloud and write the pages; return the first exit status that is not 0, else 0."""
    statuses = [write_page(cloud, *page) for cloud, page in PAGES.items()]
    return next((status for status in statuses if status), 0)


def write_page(cloud: str, name: str, introduction: str) -> int:
    """Run the demo on a cloud and write its page; return the demo's exit status."""
    command = [str(Path(sys.executable).with_name("journeyman")), "demo", "--cloud", cloud]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "132", "NO_COLOR": "1"}
    )
    text = "\n".join(line.rstrip() for line in done.stdout.splitlines())
    Path(__file__).with_name(name).write_text(f"{introduction}\n```text\n{text}\n```\n", encoding="utf-8")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
