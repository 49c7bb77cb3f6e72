"""Write docs/demo.md: the demo's output as it is. `make demo-transcript` runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).with_name("demo.md")
INTRODUCTION: Final = """# A run of the demo

`make demo` runs the deployed Lambda handlers, queues, rules and schedules of `template.yaml` on an in-memory API server with kubelets
and a kube-scheduler, and on [moto](https://github.com/getmoto/moto) as AWS with its gaps filled. The clock is virtual: an hour takes half
a minute. Ten pods arrive on a cluster without nodes; a burst ends and its node is replaced by a smaller one when the budget window
opens; a Spot node is interrupted; everything scales to zero.

"""


def main() -> int:
    """Run the demo and write the page; return the demo's exit status."""
    command = [str(Path(sys.executable).with_name("journeyman")), "demo"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "132", "NO_COLOR": "1"}
    )
    text = "\n".join(line.rstrip() for line in done.stdout.splitlines())
    PAGE.write_text(f"{INTRODUCTION}```text\n{text}\n```\n", encoding="utf-8")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
