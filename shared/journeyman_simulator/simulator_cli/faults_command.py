"""`journeyman faults`: a story of faults told for a person, or a hunt through many."""

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
from journeyman_simulator.faults.call_sites import CALL_SITES
from journeyman_simulator.faults.fault_scenario import Kind, Story, from_json, lines, to_json
from journeyman_simulator.faults.history import Moment
from journeyman_simulator.faults.invariants.checkers import Broken
from journeyman_simulator.faults.scenario_generator import story_of
from journeyman_simulator.faults.scenario_run import Told
from journeyman_simulator.faults.scenario_view import SOMEONE
from journeyman_simulator.faults.seed_search import Caught, Found, hunt, judged, shortest

_SEEDS: Final = re.compile(r"(\d+)(?:\.\.(\d+))?")
_NOISE: Final = re.compile(
    r" Lease |^patch Pod/status|PodDisruptionBudget/status|ReplicaSet|^patch Node (?!.*journeyman)"
)
_LAST_MOMENTS: Final = 30
_COLUMNS: Final = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())


def run_scenario(seed: int, file: Path | None, *, shrink: bool, quiet: bool) -> int:
    """Tell one story, moment by moment; the exit code is 1 if it breaks a rule.

    Raises:
        ConfigurationError: The file holds no story.
    """
    console = Console(highlight=False, soft_wrap=True)
    story = _read(file) if file is not None else story_of(seed)
    _print(console, lines(story))
    told = judged(story, None if quiet else _printer(console))
    _verdict(console, told)
    if told.broken and shrink:
        _shrink(console, told)
    return 1 if told.broken else 0


def run_seeds(seeds: str, *, require_crash_coverage: bool) -> int:
    """Tell the stories of many seeds ("1..300"), print what broke and where what went wrong; the exit code is 1 if any did.

    Args:
        seeds: First and last.
        require_crash_coverage: Fail also if no process crashed at one of the API calls.

    Raises:
        ConfigurationError: That is no range.
    """
    collect_rarely()
    console = Console(highlight=False, soft_wrap=True)
    wanted = _range(seeds)
    with Progress(*_COLUMNS, console=console, transient=True) as progress:
        task = progress.add_task("stories", total=len(wanted))
        caught = hunt(
            wanted,
            processes=os.cpu_count() or 1,
            on_found=lambda found: _print(console, _about(found)),
            on_told=lambda number: progress.advance(task, number),
        )
    console.print(caught.coverage.table(), markup=False)
    _print(console, _figures(caught))
    undead = [
        f"{site}: never the last call before a death"
        for site in caught.coverage.untouched(CALL_SITES, Kind.DIE_BEFORE, Kind.DIE_AFTER)
    ]
    unlisted = sorted(f"{site}: not in the list of call sites" for site in {*caught.coverage.calls} - {*CALL_SITES})
    missing = [*undead, *unlisted] if require_crash_coverage else []
    _print(console, missing)
    return 1 if caught.found or missing else 0


def _range(text: str) -> range:
    match = _SEEDS.fullmatch(text)
    if match is None:
        raise ConfigurationError(f"{text!r} is no range of seeds", to_do="give the first and the last: 1..300")
    return range(int(match[1]), int(match[2] or match[1]) + 1)


def _read(file: Path) -> Story:
    try:
        return from_json(file.read_bytes())
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{file} holds no story: {error}") from error


def _printer(console: Console) -> Callable[[Moment], None]:
    def show(moment: Moment) -> None:
        if not _NOISE.search(moment.what):
            console.print(_styled(moment))

    return show


def _styled(moment: Moment) -> str:
    text = escape(str(moment))
    if moment.who in {SOMEONE, "story"}:
        return f"[cyan]{text}[/cyan]"
    ours = "#" in moment.who
    return text if ours else f"[dim]{text}[/dim]"


def _verdict(console: Console, told: Told) -> None:
    for broken in told.broken:
        console.print(f"[red]{escape(str(broken))}[/red]")
    if not told.broken:
        console.print(f"[green]no rule is broken[/green]: {told.runs} runs in {told.minutes:.0f} minutes of their time")


def _shrink(console: Console, told: Told) -> None:
    console.print("shortening it …")
    story = shortest(told.story, told.broken[0].rule)
    short = judged(story)
    file = Path(f"story-{story.seed}.json")
    file.write_bytes(to_json(story))
    _print(console, [*lines(story), *(str(moment) for moment in short.history[-_LAST_MOMENTS:])])
    _verdict(console, short)
    console.print(f"saved in {file}; run it again with journeyman faults --scenario {file}")


def _about(found: Found) -> list[str]:
    first: Broken = found.broken[0]
    return [f"seed {found.seed}: {first}", f"  journeyman faults --seed {found.seed} --shrink"]


def _figures(caught: Caught) -> list[str]:
    stories = caught.coverage.stories
    each = caught.seconds / max(1, stories)
    faults = sum(sum(kinds.values()) for kinds in (*caught.coverage.fired.values(), *caught.coverage.messages.values()))
    return [
        f"{stories} stories, {caught.runs} runs, {caught.virtual_minutes / 60:.0f} hours of their time, {faults} faults",
        f"{len(caught.found)} broke a rule; {caught.seconds:.0f} s, {each:.2f} s each, until {time.strftime('%H:%M')}",
    ]


def _print(console: Console, told: Iterable[str]) -> None:
    for line in told:
        console.print(line, markup=False)
