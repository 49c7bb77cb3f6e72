"""`journeyman budgets`: what is open now and next, in local time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from journeyman.cli.main import app
from journeyman.cli.window_tables import read_cluster
from journeyman.core.api import labels
from journeyman.errors import ConfigurationError
from tests.helpers.builders import buffer_body, pool_body
from tests.helpers.fakes import Cluster

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "office-hours.yaml"


def budgets(*arguments: str) -> list[str]:
    """Run the command; return its lines without frames and with single spaces."""
    result = CliRunner().invoke(app, ["budgets", *arguments], env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return [" ".join(line.split()) for line in result.output.splitlines() if line.strip(" ─")]


def test_budgets_prints_open_windows_and_the_next_edges_in_local_time():
    """At three on a Friday in Berlin; clocks change on the Sunday."""
    assert budgets(str(EXAMPLE), "--at", "2026-03-27T14:00Z", "--next", "5") == [
        "Open now",
        "object window until local time",
        "NodePool office budget 10% (Drifted, Underutilized, Empty) always Fri 27 Mar 15:00 CET",
        "budget 0 (Drifted, Underutilized) Fri 27 Mar 17:00 CET",
        "CapacityBuffer default/morning none Fri 27 Mar 15:00 CET",
        "Next",
        "when in object window",
        "Fri 27 Mar 17:00 CET 2h 0m NodePool office budget 0 (Drifted, Underutilized) closes",
        "Fri 27 Mar 20:00 CET 5h 0m NodePool office hibernation opens",
        "Mon 30 Mar 07:00 CEST 2d 15h NodePool office hibernation closes",
        "Mon 30 Mar 07:30 CEST 2d 15h CapacityBuffer default/morning reserved capacity opens",
        "Mon 30 Mar 09:00 CEST 2d 17h NodePool office budget 0 (Drifted, Underutilized) opens",
    ]


def test_budgets_lists_what_is_invalid_after_the_rest(tmp_path):
    """A NodePool that does not validate, and one in an unknown time zone, hide no other."""
    manifests = tmp_path / "pools.yaml"
    manifests.write_text(
        EXAMPLE.read_text().replace(
            "Europe/Berlin\n    journeyman.dev/hibernate", "Europe/Berlim\n    journeyman.dev/hibernate"
        )
        + "---\napiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {name: broken}\nspec: {}\n"
    )
    lines = budgets(str(manifests), "--at", "2026-03-27T14:00")

    assert any("reserved capacity opens" in line for line in lines)
    invalid = [line for line in lines if line.startswith("invalid")]
    assert ["NodePool office" in invalid[0], "Europe/Berlim" in invalid[0]] == [True, True]
    assert "NodePool broken" in invalid[1]


def test_budgets_without_windows_says_so(tmp_path):
    """A budget without a schedule is always active."""
    manifests = tmp_path / "pool.json"
    manifests.write_text('{"kind": "List", "items": [' + json.dumps(pool_body()) + "]}")
    lines = budgets(str(manifests))

    assert any("NodePool default budget 10% always" in line for line in lines)
    assert lines[-1] == "No window opens or closes within a year."


def test_budgets_says_for_which_reasons_nothing_is_limited_now(tmp_path):
    """Outside the window of the only budget for Drifted, Karpenter and Journeyman replace any number of drifted nodes at once."""
    drifted = {"nodes": "1", "reasons": ["Drifted"], "schedule": "0 9 * * *", "duration": "8h"}
    other = {"nodes": "10%", "reasons": ["Empty", "Underutilized"]}
    manifests = tmp_path / "pool.json"
    pool = pool_body(spec={"disruption": {"budgets": [drifted, other]}})
    manifests.write_text('{"kind": "List", "items": [' + json.dumps(pool) + "]}")

    outside = budgets(str(manifests), "--at", "2026-03-27T20:00Z")
    inside = budgets(str(manifests), "--at", "2026-03-27T10:00Z")

    assert "unlimited (Drifted): no budget applies Sat 28 Mar 09:00 UTC" in outside
    assert not any("unlimited" in line for line in inside)


def test_unreadable_manifests_are_an_error(tmp_path):
    """The message names the file."""
    manifests = tmp_path / "pools.yaml"
    manifests.write_text("{")
    with pytest.raises(ConfigurationError, match=r"pools\.yaml"):
        budgets(str(manifests))


@pytest.mark.parametrize("serves_buffers", [True, False])
def test_budgets_reads_a_cluster_with_or_without_capacity_buffers(serves_buffers):
    """Their CustomResourceDefinition is not ours."""
    cluster = Cluster()
    cluster.add(pool_body(metadata={"annotations": {labels.HIBERNATE: "@daily / 1h"}}))
    if serves_buffers:
        cluster.add(buffer_body("spare", podTemplateRef={"name": "shape"}, replicas=1))
    objects = read_cluster(cluster.server)

    assert [pool.metadata.name for pool in objects.pools] == ["default"]
    assert [buffer.key for buffer in objects.buffers] == (["default/spare"] if serves_buffers else [])
