"""The `journeyman` command: help, errors for invalid input, and the demo's timeline."""

import io
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest
from rich.console import Console

from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.simulator_cli.timeline import Timeline

COMMAND = Path(sys.executable).parent / "journeyman"


def journeyman(*arguments):
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=60)


def test_invalid_scenario_file_is_reported_in_one_line(tmp_path):
    """The error has no traceback and states each fact once."""
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    done = journeyman("solve", broken)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"journeyman: {broken} is not a scenario")
    assert done.stderr.count(str(broken)) == 1
    assert done.stderr.count("\n") == 1


def test_without_a_command_the_help_is_shown():
    """The exit code is 0, and the help lists the simulator's commands with the product's own."""
    done = journeyman()
    assert done.returncode == 0
    assert all(command in done.stdout for command in ("demo", "solve", "explain", "replay", "faults"))


def test_help_imports_neither_the_scheduler_nor_an_sdk():
    """Each command imports its modules when it runs."""
    code = "import sys; from journeyman.cli.main import add_contributed_commands; add_contributed_commands(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "boto3", "moto", "msgspec", "pydantic"} & set(done.stdout.split())


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("computed 1 new nodeclaim(s) to fit 10 pod(s)", "computed 1 new NodeClaim to fit 10 pods"),
        ("computed 2 new nodeclaim(s) to fit 1 pod(s)", "computed 2 new NodeClaims to fit 1 pod"),
    ],
)
@pytest.mark.parametrize("width", [80, 120, 300])
def test_timeline_uses_plurals_and_fits_every_width(message, text, width):
    """No row is wider than the terminal."""
    output = io.StringIO()
    clock = VirtualClock(datetime(2026, 1, 1, tzinfo=timezone.utc))
    timeline = Timeline(Console(file=output, width=width), clock, lambda: 0.0)
    timeline.log_line({"message": message, "level": "INFO"})
    cells = " ".join(line[9:-8].strip() for line in output.getvalue().splitlines())
    assert text in cells
    assert max(map(len, output.getvalue().splitlines())) <= width
