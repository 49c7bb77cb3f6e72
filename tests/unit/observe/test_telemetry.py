"""Log lines have Karpenter's keys, metrics CloudWatch's embedded metric format."""

import io
import json
from datetime import datetime, timedelta, timezone

import pytest

from journeyman.core.plan import Observation
from journeyman.observe import RunTelemetry, logs
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.clock import VirtualClock

START = datetime(2026, 11, 21, 9, 0, tzinfo=timezone.utc)
FIELDS = {"controller": "provision", "reconcileID": "req-1", "cluster": "demo", "correlation_id": "msg-1"}


class Run:
    def __init__(self, service, level="info"):
        self.clock = VirtualClock(START)
        self.lines, self.metric_lines = io.StringIO(), io.StringIO()
        logger = logs.json_logger(service=service, level=level, commit="abc123", stream=self.lines)
        self.telemetry = RunTelemetry(
            logger, ApiServer(self.clock), self.clock, fields=FIELDS, stream=self.metric_lines
        )

    @property
    def logged(self):
        return [json.loads(line) for line in self.lines.getvalue().splitlines()]

    def metrics(self):
        self.telemetry.flush(until=self.clock.now() + timedelta(seconds=1))
        return [json.loads(line) for line in self.metric_lines.getvalue().splitlines()]


@pytest.fixture
def run(request):
    return Run(request.node.name)  # one logger per test, since Powertools caches loggers by name


def test_log_line_has_karpenters_keys_in_order(run):
    """Alerts and dashboards for Karpenter's logs keep working."""
    run.telemetry.log("info", "created nodeclaim", NodeClaim={"name": "default-1"})

    (line,) = run.logged
    assert list(line)[:4] == ["level", "time", "logger", "message"]
    assert line["level"] == "INFO"
    assert line["message"] == "created nodeclaim"
    assert line["NodeClaim"] == {"name": "default-1"}
    assert line["commit"] == "abc123"
    assert line.items() >= FIELDS.items()
    assert datetime.fromisoformat(line["time"].replace("Z", "+00:00")).tzinfo is not None


def test_log_field_may_have_any_name(run):
    """Python's LogRecord rejects `name`, `args` and others."""
    run.telemetry.log("error", "odd", name="n", args=1, message_="kept", module="m", level_name="x")

    (line,) = run.logged
    assert (line["name_"], line["args_"], line["module_"]) == ("n", 1, "m")


def test_debug_lines_are_omitted_by_default(run, request):
    """INFO is for changes, DEBUG for why nothing changed."""
    run.telemetry.log("debug", "nothing to do")
    verbose = Run(request.node.name + "-verbose", level="debug")
    verbose.telemetry.log("debug", "nothing to do")

    assert (run.logged, len(verbose.logged)) == ([], 1)


def test_samples_with_the_same_labels_share_one_line(run):
    """CloudWatch bills label sets and ingests lines."""
    for name in ("karpenter_nodeclaims_created_total", "karpenter_nodes_created_total"):
        run.telemetry.observe(Observation(name=name, labels={"nodepool": "default"}))
    run.telemetry.observe(
        Observation(name="karpenter_scheduler_scheduling_duration_seconds", value=0.25, kind="histogram")
    )

    first, second = run.metrics()
    (directive,) = first["_aws"]["CloudWatchMetrics"]
    assert directive["Namespace"] == "Journeyman"
    assert set(directive["Dimensions"][0]) >= {"cluster", "nodepool"}
    assert (first["cluster"], first["nodepool"]) == ("demo", "default")
    assert {m["Name"]: m["Unit"] for m in directive["Metrics"]} == {
        "karpenter_nodeclaims_created_total": "Count",
        "karpenter_nodes_created_total": "Count",
    }
    assert second["karpenter_scheduler_scheduling_duration_seconds"] == [0.25]
    assert second["_aws"]["CloudWatchMetrics"][0]["Metrics"][0]["Unit"] == "Seconds"


def test_empty_labels_and_samples_that_are_not_finite_are_omitted(run):
    """CloudWatch rejects the whole line for either."""
    run.telemetry.observe(Observation(name="a_total", labels={"zone": "", "nodepool": "default"}))
    run.telemetry.observe(Observation(name="b_seconds", value=float("nan"), kind="gauge"))

    (line,) = run.metrics()
    assert "zone" not in line
    assert "b_seconds" not in line


def test_a_thousand_samples_are_written_to_the_stream(run):
    """Powertools prints a line by itself at a hundred values."""
    for i in range(1000):
        run.telemetry.observe(Observation(name="x_seconds", value=float(i), kind="histogram"))

    values = [value for line in run.metrics() for value in line["x_seconds"]]
    assert values == [float(i) for i in range(1000)]


def test_second_flush_writes_nothing(run):
    """A warm function must not repeat the last run's samples."""
    run.telemetry.observe(Observation(name="a_total"))

    assert len(run.metrics()) == len(run.metrics()) == 1
