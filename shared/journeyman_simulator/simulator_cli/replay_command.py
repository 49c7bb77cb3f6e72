"""Runs `journeyman replay`: passes recorded events to the handlers and prints their decisions and writes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from journeyman.cli.console import standard_output
from journeyman.errors import ConfigurationError
from journeyman_simulator.apiserver import Write
from journeyman_simulator.lambda_functions import InvocationOutcome
from journeyman_simulator.replay import ReplayResult, open_replay, with_replaced_ids

JSON = Mapping[str, Any]
_NOT_WRITES: Final = ("Event", "Lease")  # Events are printed as explanations, Leases are not printed
_MAX_CHARACTERS: Final = 400


def run_replay(events: Iterable[Path], cluster: Path, aws: str, console: Console | None = None) -> int:
    """Replay the events and print the decisions and writes of each.

    Args:
        events: Files with one event each, in the order of replay.
        cluster: A file or folder of Kubernetes YAML or JSON.
        aws: "moto", or the URL of a LocalStack-compatible endpoint.
        console: The console; standard output if None.

    Returns:
        The exit code: 0 if every event was handled, 1 if a handler failed or returned a record to the queue.

    Raises:
        ConfigurationError: A file cannot be read.
    """
    console = console or standard_output()
    recorded = [(path, _read_event(path)) for path in events]
    failed = False
    with open_replay((event for _, event in recorded), _read_cluster(cluster), aws) as (replay, new_ids):
        recorded_ids = {new: old for old, new in new_ids.items()}
        for path, event in recorded:
            with console.status(f"replaying {path.name} …"):
                result = replay.run(with_replaced_ids(event, new_ids))
            failed |= _print_replayed(console, path, result, recorded_ids)
    return 1 if failed else 0


def _read_event(path: Path) -> JSON:
    try:
        event = json.loads(path.read_text())
    except ValueError as error:
        raise ConfigurationError(f"{path} is not JSON: {error}", to_do="give one recorded event per file") from error
    if not isinstance(event, Mapping):
        raise ConfigurationError(f"{path} is not an event: a JSON object is needed", path=str(path))
    return event


def _read_cluster(path: Path) -> list[JSON]:
    files = sorted(p for p in path.iterdir() if p.suffix in {".yaml", ".yml", ".json"}) if path.is_dir() else [path]
    if not files:
        raise ConfigurationError(f"{path} has no YAML or JSON file", to_do="kubectl get … -o yaml > cluster.yaml")
    return [document for file in files for document in _documents(file)]


def _documents(file: Path) -> Iterator[JSON]:
    try:
        yield from (document for document in yaml.safe_load_all(file.read_text()) if document)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigurationError(f"{file} is not YAML: {error}", path=str(file)) from error


def _print_replayed(console: Console, path: Path, result: ReplayResult, names: Mapping[str, str]) -> bool:
    """Print the decisions and writes of one event; return whether the handler failed."""
    invocation = result.invocation
    assert invocation is not None  # noqa: S101 - `Replay.run` always sets the invocation
    returned = (invocation.response or {}).get("batchItemFailures", []) if isinstance(invocation.response, dict) else []
    failed = invocation.outcome is not InvocationOutcome.SUCCEEDED or bool(returned)
    console.rule(f"[bold]{escape(str(path))}[/bold] → {result.function}", align="left")
    table = Table(show_header=False, box=None, padding=(0, 1))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for kind, text in _lines(result, names):
        table.add_row(kind, escape(text))
    console.print(table)
    failure = f"[red]failed: {escape(invocation.error or f'{len(returned)} record(s) return to the queue')}[/red]"
    console.print(f"{failure if failed else '[green]handled[/green]'} in {invocation.billed_ms} ms\n")
    return failed


def _lines(result: ReplayResult, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield decisions, Events, cloud calls, writes and requeues as (kind, text)."""
    for line in result.log:
        if line["level"] != "DEBUG":
            yield ("decision" if line["level"] == "INFO" else str(line["level"]).lower()), _log_text(line, names)
    for write in result.writes:
        if write.resource.kind == "Event" and write.verb == "create":
            yield "event", _event_text(write.result)
    for call in result.calls:
        yield "cloud", f"{call.service}:{call.operation} {_short(with_replaced_ids(call.parameters, names))}"
    for write in result.writes:
        if write.resource.kind not in _NOT_WRITES:
            yield "write", _write_text(write, names)
    for requeue in result.requeues:
        when = f"in {requeue['delaySeconds']} s" if requeue["delaySeconds"] else "now"
        yield "requeue", f"{requeue['step']} {when}: {requeue['reason']}"


def _log_text(line: JSON, names: Mapping[str, str]) -> str:
    objects = [f"{kind} {value['name']}" for kind, value in line.items() if isinstance(value, dict) and "name" in value]
    facts = [f"{key}={line[key]}" for key in ("instance-type", "zone", "capacity-type", "error") if key in line]
    return str(with_replaced_ids(" ".join([str(line["message"]), *objects, *facts]), names))


def _event_text(event: JSON) -> str:
    about = event.get("regarding") or event.get("involvedObject") or {}
    text = event.get("note") or event.get("message", "")
    return f"{event.get('reason')} on {about.get('kind')} {about.get('name')}: {text}"


def _write_text(write: Write, names: Mapping[str, str]) -> str:
    where = f"{write.namespace}/{write.name}" if write.namespace else write.name
    part = f"/{write.subresource}" if write.subresource else ""
    return f"{write.verb} {write.resource.kind}{part} {where} {_short(with_replaced_ids(write.body, names))}"


def _short(body: Any) -> str:
    text = json.dumps(body, default=str, separators=(",", ":"))
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}…"
