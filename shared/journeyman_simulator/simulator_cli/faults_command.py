"""Runs `journeyman faults`: one fault scenario with its history, or many with only their violations."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from journeyman.errors import ConfigurationError
from journeyman.runtime.collector import collect_rarely
from journeyman_simulator.faults.call_sites import CALL_SITES, CALLS_AFTER_FAILURES
from journeyman_simulator.faults.fault_scenario import (
    CloudName,
    FaultKind,
    FaultScenario,
    describe_scenario,
    from_json,
    to_json,
)
from journeyman_simulator.faults.history import HistoryEntry
from journeyman_simulator.faults.invariants.checkers import Violation
from journeyman_simulator.faults.scenario_generator import generate_scenario
from journeyman_simulator.faults.scenario_run import ScenarioResult
from journeyman_simulator.faults.scenario_view import HUMAN
from journeyman_simulator.faults.seed_search import SeedSearchResult, ViolatingSeed, run_checked, search_seeds, shrink

_SEEDS: Final = re.compile(r"(\d+)(?:\.\.(\d+))?")
_HIDDEN: Final = re.compile(
    r" Lease |^patch Pod/status|PodDisruptionBudget/status|ReplicaSet|^patch Node (?!.*journeyman)"
)
_LAST_ENTRIES: Final = 30
_COLUMNS: Final = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())


def run_scenario(seed: int, file: Path | None, *, cloud: CloudName = "aws", shrink: bool, quiet: bool) -> int:
    """Run one scenario and print its history.

    Args:
        seed: The seed of the scenario.
        file: A scenario to run instead.
        cloud: The cloud of the seed's scenario.
        shrink: Whether to reduce a scenario that violates an invariant.
        quiet: Whether to print only the violations.

    Returns:
        The exit code: 1 if the scenario violates an invariant.

    Raises:
        ConfigurationError: The file is not a scenario.
    """
    console = Console(highlight=False, soft_wrap=True)
    scenario = _read(file) if file is not None else generate_scenario(seed, cloud)
    _print(console, describe_scenario(scenario))
    result = run_checked(scenario, None if quiet else _printer(console))
    _print_result(console, result)
    if result.violations and shrink:
        _shrink(console, result)
    return 1 if result.violations else 0


def run_seeds(seeds: str, *, cloud: CloudName = "aws", require_crash_coverage: bool) -> int:
    """Run the scenarios of many seeds, and print each violation and the injected faults by call site.

    Args:
        seeds: The first and the last seed, such as "1..300".
        cloud: The cloud of the scenarios.
        require_crash_coverage: Whether to fail if no process crashed at one of the recorded call sites.

    Returns:
        The exit code: 1 if a scenario violates an invariant, or crash coverage is required and incomplete.

    Raises:
        ConfigurationError: `seeds` is not a range.
    """
    collect_rarely()
    console = Console(highlight=False, soft_wrap=True)
    seed_range = _range(seeds)
    with Progress(*_COLUMNS, console=console, transient=True) as progress:
        task = progress.add_task("scenarios", total=len(seed_range))
        search = search_seeds(
            seed_range,
            cloud=cloud,
            processes=os.cpu_count() or 1,
            on_found=lambda found: _print(console, _violation_lines(found, cloud)),
            on_progress=lambda number: progress.advance(task, number),
        )
    console.print(search.coverage.table(), markup=False)
    _print(console, _summary_lines(search))
    uncrashed = [
        f"{site}: no process crashed at this call"
        for site in search.coverage.sites_without(CALL_SITES[cloud], FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER)
    ]
    unlisted = sorted(
        f"{site}: not among the recorded call sites; run make call-sites"
        for site in {*search.coverage.calls} - {*CALL_SITES[cloud], *CALLS_AFTER_FAILURES}
    )
    untested = [
        f"{phase}: no process crashed while a command was in this phase"
        for phase in search.coverage.phases_without_crash()
    ]
    missing = [*uncrashed, *untested, *unlisted] if require_crash_coverage else []
    _print(console, missing)
    return 1 if search.found or missing else 0


def _range(text: str) -> range:
    match = _SEEDS.fullmatch(text)
    if match is None:
        raise ConfigurationError(f"{text!r} is not a range of seeds", to_do="give the first and the last: 1..300")
    return range(int(match[1]), int(match[2] or match[1]) + 1)


def _read(file: Path) -> FaultScenario:
    try:
        return from_json(file.read_bytes())
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{file} is not a fault scenario: {error}") from error


def _printer(console: Console) -> Callable[[HistoryEntry], None]:
    def show(entry: HistoryEntry) -> None:
        if not _HIDDEN.search(entry.what):
            console.print(_styled(entry))

    return show


def _styled(entry: HistoryEntry) -> str:
    text = escape(str(entry))
    if entry.who in {HUMAN, "scenario"}:
        return f"[cyan]{text}[/cyan]"
    is_function_run = "#" in entry.who
    return text if is_function_run else f"[dim]{text}[/dim]"


def _print_result(console: Console, result: ScenarioResult) -> None:
    for violation in result.violations:
        console.print(f"[red]{escape(str(violation))}[/red]")
    if not result.violations:
        console.print(
            f"[green]no invariant is violated[/green]: {result.runs} function runs in {result.minutes:.0f} simulated minutes"
        )


def _shrink(console: Console, result: ScenarioResult) -> None:
    console.print("reducing the scenario …")
    scenario = shrink(result.scenario, result.violations[0].invariant)
    shrunk = run_checked(scenario)
    file = Path(f"scenario-{scenario.seed}.json")
    file.write_bytes(to_json(scenario))
    _print(console, [*describe_scenario(scenario), *(str(entry) for entry in shrunk.history[-_LAST_ENTRIES:])])
    _print_result(console, shrunk)
    console.print(f"saved in {file}; run it with: journeyman faults --scenario {file}")


def _violation_lines(found: ViolatingSeed, cloud: CloudName) -> list[str]:
    first: Violation = found.violations[0]
    option = "" if cloud == "aws" else f"--cloud {cloud} "
    return [f"seed {found.seed}: {first}", f"  journeyman faults {option}--seed {found.seed} --shrink"]


def _summary_lines(search: SeedSearchResult) -> list[str]:
    scenarios = search.coverage.scenarios
    seconds_each = search.seconds / max(1, scenarios)
    faults = sum(sum(kinds.values()) for kinds in (*search.coverage.fired.values(), *search.coverage.messages.values()))
    return [
        f"{scenarios} scenarios, {search.runs} function runs, {search.virtual_minutes / 60:.0f} simulated hours, {faults} faults",
        f"{len(search.found)} violate an invariant; {search.seconds:.0f} s, {seconds_each:.2f} s each, until {time.strftime('%H:%M')}",
    ]


def _print(console: Console, result: Iterable[str]) -> None:
    for line in result:
        console.print(line, markup=False)
